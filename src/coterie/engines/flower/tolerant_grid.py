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
log.addFilter(printable_record)  # messages quote text from clients


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

KNOWN = 10_000
"""Number of the newest messages whose receivers are remembered."""

UNREADABLE = "its answer is not a Flower message"


class TolerantGrid(Grid):
    """A wrapper of a grid that turns a malformed answer into an error reply of the node that sent it.

    The answers that arrive together with the first malformed one are lost, so their nodes are
    silent once. After that, answers are fetched one by one. This needs one request for each, but a
    malformed answer no longer affects the others.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.singly = grid, False
        self.sent: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Fetch the answers to some messages; a malformed answer becomes an error reply."""
        ids = list(message_ids)
        if not self.singly:
            try:
                return list(self.grid.pull_messages(ids))
            except MALFORMED as error:
                log.warning(
                    "an answer is not a message (%s); from now on answers are fetched one by one",
                    type(error).__name__,
                )
                self.singly = True
        return [reply for id in ids for reply in self._pulled(id)]

    def _pulled(self, id: str) -> list[Message]:
        try:
            return list(self.grid.pull_messages([id]))
        except MALFORMED as error:
            asked = self.sent.get(id)
            return (
                []
                if asked is None
                else [Message(Error(2, f"{UNREADABLE}: {type(error).__name__}"), reply_to=asked)]
            )

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
        ids = list(self.grid.push_messages(messages))
        for message in messages:  # remember receiver and type of each message, without the models
            about = message.metadata
            light = Message(
                RecordDict(), dst_node_id=about.dst_node_id, message_type=about.message_type
            )
            light.metadata.__dict__["_message_id"] = about.message_id
            self.sent[about.message_id] = light
        for old in list(self.sent)[:-KNOWN]:
            del self.sent[old]
        return ids

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

    def create_message(self, *content: Any, **about: Any) -> Message:
        """As in the wrapped grid."""
        return self.grid.create_message(*content, **about)
