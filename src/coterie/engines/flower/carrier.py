"""Exchanges and tests over Flower's grid: plans become messages, replies become what a method sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from torch import Tensor

from coterie.boundary import Wire
from coterie.core import Assignment, Client, Plan, Replies, Task, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import likeness, messages
from coterie.engines.flower.messages import METRICS, UPDATE, UPDATES, Order, Unfit
from coterie.engines.flower.nodes import Nodes, Present
from coterie.engines.gather import needed
from coterie.engines.halves import products
from coterie.engines.inprocess import Position
from coterie.settings import SettingError


@dataclass
class Heard:
    """One client's reply, read: see :class:`~coterie.core.Replies`. updates: none, one, or those of both halves."""

    updates: tuple[Tensor, ...]
    examples: int
    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]


@dataclass
class Carrier:
    """One run's exchanges over a grid. names: metric -> the names an app may give it. configs: kind of message -> what its
    config tells besides. secret: digest of the one that the clients share, once one of them has told it. kept: the layers of
    their own that nodes are known to have, and need not be sent."""

    grid: Grid
    wire: Wire
    training: Training
    seed: int
    nodes: Nodes
    rest: messages.Rest
    timeout: float
    names: Mapping[str, Sequence[str]]
    method: str
    online: frozenset[Client] = frozenset()
    attacks: Mapping[Client, Any] = field(default_factory=dict)
    patience: int = 10
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secret: str | None = None
    kept: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def clients(self) -> dict[Client, int]:
        return {client: node for node, client in self.nodes.client.items()}

    @property
    def attendance(self) -> Present:
        return Present(online=self.online, patience=self.patience)

    # -- an exchange ----------------------------------------------------------------------------------------------------

    def outgoing(self, plan: Plan, position: Position) -> list[Message]:
        """A plan's messages, one per client that is connected."""
        records: dict[Any, ArrayRecord] = {}
        out = []
        for client, task in sorted(plan.tasks.items()):
            if client not in self.nodes.aware:
                self._check(task, client)
            has = task.keep if self.kept.get(self.nodes.node(client)) == task.keep else ()
            offered = self._offered(plan.models, task, has, records)
            out.append(self._message("train", offered, task, client, position))
        return out

    def _offered(
        self, models: Tensor, task: Task, has: tuple[str, ...], known: dict[Any, ArrayRecord]
    ) -> dict[str, ArrayRecord]:
        """The arrays of the models offered, without the layers that the client has; made once for all who get the same."""
        layout = self.wire.layout
        for row in task.offered:
            if (row, has) not in known:
                without = layout.mask(has) if has else None
                known[row, has] = messages.packed(models[row], layout, self.rest, without)
        return {messages.name_of(i): known[row, has] for i, row in enumerate(task.offered)}

    def _message(
        self, kind: str, models: Mapping[str, ArrayRecord], task: Task, client: Client, position: Position
    ) -> Message:
        training = task.how(self.training)
        lr = training.lr * training.lr_decay ** (position.round if task.lr_round is None else task.lr_round)
        key = self.seed, position.exchange, position.round
        order = Order(task=task, training=training, lr=lr, key=key, client=client)
        config = messages.config_of(order)
        config.update({key: value for key, value in self.configs.get(kind, {}).items() if key not in config})
        content = messages.content(models, config)
        return Message(content, dst_node_id=self.nodes.node(client), message_type=kind)

    def _check(self, task: Task, client: Client) -> None:
        """An app that knows nothing of Coterie trains from one model, in its own way; anything else it would ignore."""
        wants = (
            "to choose among several models" if len(task.offered) > 1
            else "the loss of a model" if task.measure
            else "a gradient in place of an update" if task.gradient
            else "to keep layers to itself" if task.keep
            else "for updates of both halves of its data" if task.halves
            else "to train in another way than in other rounds" if task.training is not None or task.epochs is not None
            else None
        )  # fmt: skip
        if wants:
            raise SettingError(
                f"{self.method} asks a client {wants}, and client {client}'s app, which knows nothing of Coterie, would ignore "
                "that; make the app with coterie.engines.flower.client_app"
            )

    def incoming(self, plan: Plan, replies: Iterable[Message]) -> Replies:
        """What a method's step must see of the replies; those that cannot be used are refused with a reason."""
        heard: dict[Client, Heard] = {}
        refused: dict[Client, str] = {}
        replies = list(replies)
        if self.secret is None:
            self.secret = likeness.most(reply.content for reply in replies if reply.has_content())
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is None or client not in plan.tasks or client in heard:
                continue
            try:
                heard[client] = self._read(reply, plan, plan.tasks[client])
            except Unfit as error:
                refused[client] = str(error)
        taken = sorted(heard)
        for client, task in plan.tasks.items():
            if client not in heard:
                self.kept.pop(self.nodes.node(client), None)  # it may have come back without what it had
            elif task.keep and task.trains and not task.gradient:
                self.kept[self.nodes.node(client)] = task.keep
        size, trained = self.wire.layout.size, any(heard[c].updates for c in taken)
        updates = torch.stack([_mean(heard[c].updates, size) for c in taken]) if trained else None
        told = Replies(
            clients=tuple(taken),
            examples=np.array([heard[c].examples for c in taken], dtype=np.int64),
            chosen=tuple(heard[c].chosen for c in taken),
            losses=tuple(heard[c].losses for c in taken),
            accuracies=tuple(heard[c].accuracies for c in taken),
            refused=refused,
            updates=updates,
            halves=products(plan, {c: heard[c].updates for c in taken if plan.tasks[c].halves}, taken),
        )
        if not taken:
            told = replace(told, updates=torch.empty(0, size))
        return needed(plan, told)

    def _read(self, reply: Message, plan: Plan, task: Task) -> Heard:
        if reply.has_error():
            raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
        content = reply.content
        if task.trains and (why := likeness.unlike(content, self.wire.boundary, self.secret)):
            raise Unfit(why)
        metrics = messages.only(content.metric_records, METRICS, "metric records")
        examples = messages.number(metrics, ["num-examples"])
        if not (examples >= 1 and examples == int(examples) and examples < 2**53):
            raise Unfit("its reply tells no number of examples (num-examples)")
        places = [int(place) for place in messages.numbers(metrics, "chosen")] or list(range(task.choose))
        if len(places) != task.choose or any(not 0 <= place < len(task.offered) for place in places):
            raise Unfit(f"it chose {places} of {len(task.offered)} models")
        losses, accuracies = (messages.numbers(metrics, name) for name in ("losses", "accuracies"))
        if task.measure and len(losses) != len(task.offered):
            raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
        updates = self._updates(content, plan, task, places) if task.trains else ()
        chosen = tuple(task.offered[place] for place in places)
        return Heard(updates, self.wire.examples(int(examples)), chosen, losses, accuracies)

    def _updates(self, content: Any, plan: Plan, task: Task, places: Sequence[int]) -> tuple[Tensor, ...]:
        layout, names = self.wire.layout, UPDATES[: 2 if task.halves else 1]
        if task.halves and UPDATES[1] not in content.array_records:
            raise Unfit("its reply has no update of the second half of its data")
        if self.wire.boundary.compress != "none":
            rows = [self._decompressed(content, name, task) for name in names]
        elif UPDATE in content.array_records:
            rows = [messages.unpacked(content[name], layout, lacking=0.0 if task.keep else None) for name in names]
        else:
            trained = messages.unpacked(messages.only(content.array_records, messages.ARRAYS, "array records"), layout)
            rows = [trained - plan.models[[task.offered[place] for place in places]].mean(0)]
        if not all(torch.isfinite(row.dot(row)) for row in rows):
            raise Unfit("its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)")
        return tuple(rows)

    def first_model(self, reply: Message) -> Tensor | None:
        """A first model that a client has sealed; its secret is the one that counts. None of another reply."""
        if not reply.has_content() or likeness.unlike(reply.content, self.wire.boundary, self.secret):
            return None
        try:
            row = messages.unpacked(messages.only(reply.content.array_records, messages.ARRAYS, "records"), self.wire.layout)
        except Unfit:
            return None
        self.secret = likeness.secret_of(reply.content)
        return row if bool(torch.isfinite(row).all()) else None

    def _decompressed(self, content: Any, name: str, task: Task) -> Tensor:
        keep = self.wire.layout.mask(task.keep) if task.keep else None
        try:
            sent = {key: torch.from_numpy(array.numpy().copy()) for key, array in content[name].items()}
            return self.wire.unpack(sent, keep)
        except (ValueError, TypeError, KeyError, OSError, EOFError) as error:
            raise Unfit(f"its update is not compressed by {self.wire.boundary.compress}: {error}") from None

    def exchange(self, plan: Plan, position: Position, clock: Clock) -> Replies:
        """Carry out a plan; who does not answer in time is silent."""
        with clock("server"):
            out = self.outgoing(plan, position)
        with clock("train"):
            replies = list(self.grid.send_and_receive(out, timeout=self.timeout)) if out else []
        with clock("server"):
            return self.incoming(plan, replies)

    # -- tests ----------------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, position: Position) -> dict[Client, dict[str, float]]:
        """Every served client's model, or models, on its own test data; NaN for who does not answer."""
        out = self.tests(assignment, position)
        return self.scores(assignment, self.grid.send_and_receive(out, timeout=self.timeout) if out else ())

    def tests(self, assignment: Assignment, position: Position) -> list[Message]:
        """The messages that ask the connected clients to test the models that serve them."""
        records: dict[Any, ArrayRecord] = {}
        out = []
        for client, served in sorted(assignment.row.items()):
            if client not in self.online:
                continue
            rows = assignment.path.get(client, (served,)) if assignment.ensemble else (served,)
            if client not in self.nodes.aware:
                rows = (served,)  # an app that knows nothing of Coterie tests one model
            has = self.kept.get(self.nodes.node(client), ())
            offered = self._offered(assignment.models, Task(offered=rows, choose=len(rows)), has, records)
            task = Task(offered=tuple(range(len(rows))), choose=len(rows))
            out.append(self._message("evaluate", offered, task, client, position))
        return out

    def scores(self, assignment: Assignment, replies: Iterable[Message]) -> dict[Client, dict[str, float]]:
        """What the tests found, of everyone who is served."""
        found: dict[Client, dict[str, float]] = {}
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is not None and reply.has_content():
                found[client] = self._scores(reply)
        nothing = dict.fromkeys(self.names, float("nan"))
        return {client: found.get(client, nothing) for client in sorted(assignment.row)}

    def _scores(self, reply: Message) -> dict[str, float]:
        try:
            metrics = messages.only(reply.content.metric_records, METRICS, "metric records")
        except Unfit:
            return dict.fromkeys(self.names, float("nan"))
        return {metric: messages.number(metrics, names) for metric, names in self.names.items()}


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)
