"""A Flower grid whose nodes take their time, by a clock that nobody waits for.

It knows no more of Coterie than a client's app, so that older versions can be tried over it as
well.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

PULL = 3.0
"""Seconds between Flower's own looks for replies."""


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(seconds, 1e-3)


@contextmanager
def timed() -> Iterator[Clock]:
    """What Flower sets for the process of a ServerApp, and a clock in place of the computer's."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    clock = Clock()
    torch.set_num_threads(1)  # the nets are tiny
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with patch.object(time, "monotonic", clock.now), patch.object(time, "sleep", clock.sleep):
        yield clock


@dataclass
class Node:
    """delay: message -> the seconds that it takes; None: the message is lost, and never answered; infinite: it is held."""

    context: Context
    key: bytes
    delay: Callable[[Message], float | None]
    online: bool = True
    busy: float = 0.0
    """Until when: a node does one thing after the other."""


@dataclass
class Timed(Grid):
    """sent: (kind, node, the client that it is told to be or None, when) of all messages."""

    clock: Clock
    nodes: dict[int, Node] = field(default_factory=dict)
    sent: list[tuple[str, int, int | None, float]] = field(default_factory=list)
    _due: dict[str, tuple[int, float, Message]] = field(default_factory=dict)
    _to: dict[str, Message] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def join(self, node: int, client: Any, key: bytes = b"", delay: Any = 1.0) -> Node:
        """A node connects. client: whom it claims to be, or None. delay: of every message, or as a node's."""
        config = {"place": 0} if client is None else {"partition-id": client}
        context = Context(
            run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={}
        )
        self.nodes[node] = Node(context, key, delay if callable(delay) else partial(paced, delay))
        return self.nodes[node]

    def get_node_ids(self) -> list[int]:
        return [id for id, node in self.nodes.items() if node.online]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=id, public_key=self.nodes[id].key) for id in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        about, now = message.metadata, self.clock.time
        id = about.__dict__["_message_id"] = f"message-{next(self._ids)}"
        self._to[id] = message
        self.sent.append((about.message_type, about.dst_node_id, told(message), now))
        node = self.nodes.get(about.dst_node_id)
        if node is not None and node.online and (takes := node.delay(message)) is not None:
            node.busy = max(now, node.busy) + takes
            self._due[id] = (
                about.dst_node_id,
                node.busy,
                Message(answer(message, node.context), reply_to=message),
            )
        return id

    def wake(self, node: int) -> None:
        """A node answers what it has held, one after the other."""
        self.nodes[node].busy = self.clock.time
        for id, (its, due, reply) in list(self._due.items()):
            if its == node and due == math.inf:
                self.nodes[node].busy += 1.0
                self._due[id] = its, self.nodes[node].busy, reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = []
        for id in message_ids:
            if id not in self._to:
                continue
            node = self.nodes.get(self._to[id].metadata.dst_node_id)
            if node is None or not node.online:
                found.append(self._unavailable(self._to.pop(id)))
                self._due.pop(id, None)
            elif id in self._due and self._due[id][1] <= self.clock.time:
                found.append(self._due.pop(id)[2])
                self._to.pop(id)
        return found

    def _unavailable(self, message: Message) -> Message:
        reply = Message(
            Error(code=ErrorCode.NODE_UNAVAILABLE, reason="Node Unavailable"), reply_to=message
        )
        reply.metadata.__dict__["_src_node_id"] = 1  # Flower answers in its place
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """As Flower does it."""
        ids, end = set(self.push_messages(messages)), self.clock.time + (timeout or 0.0)
        found: list[Message] = []
        while timeout is None or self.clock.time < end:
            replies = self.pull_messages(sorted(ids))
            found += replies
            ids -= {reply.metadata.reply_to_message_id for reply in replies}
            if not ids:
                break
            self.clock.sleep(PULL)
        return found

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError


def answer(message: Message, context: Context) -> RecordDict:
    """What an app says in no time: who it is, or that it has moved the model a little, in a direction of its own."""
    client = context.node_config.get("partition-id")
    kind = message.metadata.message_type
    if kind == "evaluate":
        return RecordDict(
            {"metrics": MetricRecord({"loss": 0.5, "accuracy": 0.5, "num-examples": 4})}
        )
    if kind != "train":
        if isinstance(client, str):
            from coterie.engines.flower.names import claim_in_config, id_reply

            return id_reply(claim_in_config(context.node_config))
        who = MetricRecord({} if client is None else {"client": client})
        return RecordDict({"coterie": who, "metrics": who})  # older versions look into the metrics
    node = context.node_id
    state = {
        name: array
        + 0.01
        * torch.sin(node % 97 + torch.arange(array.numel(), dtype=torch.float32)).reshape(
            array.shape
        )
        for name, array in message.content["arrays"].to_torch_state_dict().items()
    }
    metrics = MetricRecord({"num-examples": 5, "losses": [0.5], "accuracies": [0.5]})
    return RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})


def paced(seconds: float, message: Message) -> float:
    """The time of a message whose task takes so many seconds; to say who it is takes a node no longer than its start."""
    return seconds if message.metadata.message_type in ("train", "evaluate") else min(seconds, 10.0)


def told(message: Message) -> int | None:
    """The client that a task is for."""
    from coterie.engines.flower import messages

    try:
        return messages.order_of(message.content).client
    except ValueError:
        return None
