"""A Flower grid whose nodes live in this process: messages are handed to the app and its replies given back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

FIRST = 1 << 40  # node ids are large numbers


class Here(Grid):
    """Nodes of one app. fate: message -> what becomes of it: None is as it should be, ``"silent"``, or another reply.

    messages: all that were sent, with their replies.
    """

    def __init__(self, app: ClientApp, count: int, named: bool = True) -> None:
        self.app, self.named, self.fate = app, named, lambda message: None
        self.contexts: dict[int, Context] = {}
        self.messages: list[tuple[Message, Message | None]] = []
        for i in range(count):
            self.join(i)

    fate: Callable[[Message], Any]

    def join(self, partition: int, node: int | None = None) -> int:
        """A node connects; returns its id."""
        node = FIRST + 7 * partition if node is None else node
        config = {"partition-id": partition} if self.named else {"place": partition}
        self.contexts[node] = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        return node

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        replies = []
        for message in messages:
            reply = self._answer(message) if message.metadata.dst_node_id in self.contexts else None
            self.messages.append((message, reply))
            replies.append(reply)
        return iter([reply for reply in replies if reply is not None])

    def _answer(self, message: Message) -> Message | None:
        fate = self.fate(message)
        if fate == "silent":
            return None
        if fate is not None:
            return Message(fate, reply_to=message)
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


@contextmanager
def a_run() -> Iterator[None]:
    """What Flower sets for the process of a ServerApp: messages carry it."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    yield
