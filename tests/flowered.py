"""A Flower grid whose nodes live in this process: messages are handed to the app and its replies given back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from coterie.core import Round
from coterie.data.world import World
from coterie.engines.flower import MethodStrategy, Participant, client_app, nodes
from coterie.randomness import seeded
from coterie.robust import AS_PUBLISHED

FIRST = 1 << 40  # node ids are large numbers


class Here(Grid):
    """Nodes of one app. fate: message -> what becomes of it: None is as it should be, ``"silent"``, or another reply.

    messages: all that were sent, with their replies.
    """

    def __init__(self, app: ClientApp, count: int, named: bool = True) -> None:
        self.app, self.named, self.fate = app, named, lambda message: None
        self.contexts: dict[int, Context] = {}
        self.messages: list[tuple[Message, Message | None]] = []
        self.replies: dict[str, Message] = {}
        self.count = itertools.count()
        for i in range(count):
            self.join(i)

    fate: Callable[[Message], Any]

    def join(self, partition: int, node: int | None = None) -> int:
        """A node connects; returns its id."""
        node = FIRST + 7 * partition if node is None else node
        config = {"partition-id": partition} if self.named else {"place": partition}
        self.contexts[node] = Context(
            run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={}
        )
        return node

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        return iter(self.pull_messages(self.push_messages(messages)))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self.count)}"
            reply = self._answer(message) if message.metadata.dst_node_id in self.contexts else None
            self.messages.append((message, reply))
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(id) for id in message_ids if id in self.replies]

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


class Clock:
    """A clock that nobody waits for."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@contextmanager
def a_run() -> Iterator[Clock]:
    """What Flower sets for the process of a ServerApp: messages carry it. Whoever waits for a node does so by this clock."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    clock = Clock()
    with patch.object(nodes, "time", clock):
        yield clock


def app_of(tried: World, mods: Any = ()) -> ClientApp:
    ids = sorted(tried.clients)

    def participant(context: Context) -> Participant:
        data = tried.clients[ids[int(context.node_config["partition-id"])]]
        return Participant(data, tried.model, tried.objective, tried.augment)

    return client_app(
        participant=participant,
        client=lambda context: ids[int(context.node_config["partition-id"])],
        mods=mods,
    )


def strategy_of(method: Any, tried: World, **how: Any) -> MethodStrategy:
    """A strategy without the bounds of ``robust``, unless ``how`` says otherwise, as ``scripted.play``."""
    how = {
        "nodes": len(tried.clients),
        "wait": 1.0,
        "training": tried.training,
        "robust": AS_PUBLISHED,
        **how,
    }
    return MethodStrategy(method, tried.model, **how)


def over_flower(method: Any, tried: World, rounds: int, mods: Any = (), **how: Any) -> list[Round]:
    grid = Here(app_of(tried, mods), len(tried.clients))
    return list(strategy_of(method, tried, **how).rounds(grid, rounds))


def same(found: list[Round], expected: list[Round]) -> None:
    for one, other in zip(found, expected, strict=True):
        if not one.assignment.hidden:  # else the server does not know them
            assert one.assignment.groups == other.assignment.groups
            assert one.assignment.row == other.assignment.row
        torch.testing.assert_close(
            one.assignment.models, other.assignment.models, rtol=1e-4, atol=1e-6
        )
        assert (one.asked, one.answered, one.exchanges) == (
            other.asked,
            other.answered,
            other.exchanges,
        )
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
        assert [note.kind for note in one.notes] == [
            note.kind for note in other.notes if note.kind != "choose"
        ]
        assert one.scores is not None
        assert other.scores is not None
        for client, score in other.scores.items():
            assert one.scores[client]["accuracy"] == pytest.approx(score["accuracy"], abs=0.02)
            assert one.scores[client]["loss"] == pytest.approx(score["loss"], rel=1e-3)


def foreign(
    tried: World, mods: Any = (), epochs: Mapping[int, int] | None = None, batch: int = 10**9
) -> ClientApp:
    """As in Flower's quickstart: the model's arrays in, the trained ones and freely named metrics out.

    Place of a client -> its epochs, which the server does not know; one for all others.
    """
    app, ids = ClientApp(mods=list(mods)), sorted(tried.clients)

    @seeded(0)
    def loaded(message: Message) -> nn.Module:
        net = tried.model()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return net

    @app.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["place"])
        net, data = loaded(message), tried.clients[ids[place]].train
        optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
        for _ in range((epochs or {}).get(place, 1)):
            for rows in torch.arange(len(data)).split(batch):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(
                    net(data.inputs[data.index[rows]]), data.targets[data.index[rows]]
                )
                loss.backward()
                optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(data)})
        return Message(
            RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        net, data = loaded(message), tried.clients[ids[int(context.node_config["place"])]].test
        with torch.no_grad():
            outputs = net(data.inputs[data.index])
        found = {
            "eval_loss": float(nn.functional.cross_entropy(outputs, data.targets)),
            "eval_acc": float((outputs.argmax(1) == data.targets).float().mean()),
            "num-examples": len(data),
        }
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    return app
