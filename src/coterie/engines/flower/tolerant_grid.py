"""A grid that tolerates malformed answers.

Flower fetches all uploads that have arrived at once and turns them into messages. If it cannot do
so for the upload of one node, it raises an error. The answers of the other nodes are then lost,
because the SuperLink delivers them only once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from coterie.printable import printable_record

log = logging.getLogger("flwr.coterie")
"""A child of Flower's logger, so that Flower's handlers show its messages."""
# Messages quote text from clients.
log.addFilter(printable_record)


MALFORMED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    DecodeError,
)
"""Errors that occur when wrong bytes are turned into a message. A SuperLink that cannot be reached
raises others."""

MAX_REMEMBERED = 10_000
"""Number of the newest messages whose receivers are remembered."""

UNREADABLE = "its answer is not a Flower message"


class TolerantGrid(Grid):
    """A wrapper of a grid that turns a malformed answer into an error reply of the node that sent it.

    The answers that arrive together with the first malformed one are lost, so their nodes are
    silent once. After that, answers are fetched one by one. This needs one request for each, but a
    malformed answer no longer affects the others.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.fetches_singly = False
        self.sent: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Fetch the answers to some messages; a malformed answer becomes an error reply."""
        ids = list(message_ids)
        if not self.fetches_singly:
            try:
                return list(self.grid.pull_messages(ids))
            except MALFORMED as error:
                log.warning(
                    "an answer is not a message (%s); from now on answers are fetched one by one",
                    type(error).__name__,
                )
                self.fetches_singly = True
        replies = []
        for message_id in ids:
            replies += self._pull_one(message_id)
        return replies

    def _pull_one(self, message_id: str) -> list[Message]:
        """Fetch the answer to one message, or make an error reply of a malformed one; empty if there is no answer."""
        try:
            return list(self.grid.pull_messages([message_id]))
        except MALFORMED as error:
            request = self.sent.get(message_id)
            if request is None:
                return []
            failure = Error(2, f"{UNREADABLE}: {type(error).__name__}")
            return [Message(failure, reply_to=request)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, each with a random token that only its receiver knows.

        Flower's grid takes the sender of an answer, and the message that it answers, from the
        upload of the node. The id of a message is a hash of its content. Without the token, another
        node could compute the id and answer in place of the receiver.

        Args:
            messages: The messages to send.

        Returns:
            Their ids.
        """
        messages = list(messages)
        for message in messages:
            message.metadata.group_id = message.metadata.group_id or secrets.token_hex(8)
        message_ids = list(self.grid.push_messages(messages))
        # Remember the receiver and the type of each message, without its models.
        for message in messages:
            metadata = message.metadata
            empty_message = Message(
                RecordDict(), dst_node_id=metadata.dst_node_id, message_type=metadata.message_type
            )
            empty_message.metadata.__dict__["_message_id"] = metadata.message_id
            self.sent[metadata.message_id] = empty_message
        for forgotten_id in list(self.sent)[:-MAX_REMEMBERED]:
            del self.sent[forgotten_id]
        return message_ids

    # -- delegated to the wrapped grid
    # --------------------------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As in the wrapped grid."""
        return self.grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        """As in the wrapped grid."""
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        """As in the wrapped grid."""
        return self.grid.get_nodes()

    def set_run(self, run: Any) -> None:
        """As in the wrapped grid."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self.grid.run

    def create_message(self, *content: Any, **metadata: Any) -> Message:
        """As in the wrapped grid."""
        return self.grid.create_message(*content, **metadata)
