"""A grid that goes on where a node's answer is no message at all.

Flower makes messages of what nodes have uploaded as it fetches them, all that have come at once. The upload of one node that
cannot be made a message raises then, and the others' answers, which the SuperLink gives out once, are lost with it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

log = logging.getLogger("flwr.coterie")

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RecursionError, DecodeError)
"""What is raised in making a message of the wrong bytes; that the SuperLink cannot be reached is another matter."""

KNOWN = 10_000
"""Of so many messages, the newest, it is known whom they went to."""

UNREADABLE = "its answer is no message of Flower's"


class CarefulGrid(Grid):
    """Another grid, but that a malformed answer is an error of the node that has sent it.

    The first such answer loses those that came with it: their nodes are silent once. From then on answers are fetched one by
    one, which takes a request for each, and nobody's is lost with another's.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.singly = grid, False
        self.sent: dict[str, Message] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = list(message_ids)
        if not self.singly:
            try:
                return list(self.grid.pull_messages(ids))
            except MALFORMED as error:
                log.warning("an answer is no message (%s); from now on answers are fetched one by one", type(error).__name__)
                self.singly = True
        return [reply for id in ids for reply in self._pulled(id)]

    def _pulled(self, id: str) -> list[Message]:
        try:
            return list(self.grid.pull_messages([id]))
        except MALFORMED as error:
            asked = self.sent.get(id)
            return [] if asked is None else [Message(Error(2, f"{UNREADABLE}: {type(error).__name__}"), reply_to=asked)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send, each message with a word that nobody but its node can know.

        Whose answer it is, and to which message, Flower's grid takes from what the node has uploaded. The message's name is a
        hash of its content, which others could compute, and answer in its node's place.
        """
        messages = list(messages)
        for message in messages:
            message.metadata.group_id = message.metadata.group_id or secrets.token_hex(8)
        ids = list(self.grid.push_messages(messages))
        for message in messages:  # who was asked what, without the models
            about = message.metadata
            light = Message(RecordDict(), dst_node_id=about.dst_node_id, message_type=about.message_type)
            light.metadata.__dict__["_message_id"] = about.message_id
            self.sent[about.message_id] = light
        for old in list(self.sent)[:-KNOWN]:
            del self.sent[old]
        return ids

    # -- as the other grid has it ---------------------------------------------------------------------------------------------

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self.grid.get_nodes()

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *content: Any, **about: Any) -> Message:
        return self.grid.create_message(*content, **about)
