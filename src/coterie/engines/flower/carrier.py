"""Exchanges and tests over Flower's grid: plans become messages, replies become what a method sees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from coterie.boundary import Wire
from coterie.core import Assignment, Client, Note, Plan, Replies, Task, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import likeness, messages, plain, reading
from coterie.engines.flower.messages import CONFIG, METRICS, Order, Unfit
from coterie.engines.flower.nodes import Nodes, Present, gone
from coterie.engines.flower.reading import Heard
from coterie.engines.inprocess import Position
from coterie.settings import SettingError


@dataclass
class Carrier:
    """One run's exchanges over a grid.

    names: metric -> the names an app may give it. configs: kind of message -> what its config tells besides. secret: digest
    of the one that the clients share, once they have told it. run, layers: see :class:`.nodes.Memory`. kept: the layers of
    their own that nodes are known to have, and need not be sent. unasked: clients whose apps would ignore the task, and why.
    """

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
    run: str = ""
    layers: dict[Client, int] = field(default_factory=dict)
    kept: dict[int, tuple[str, ...]] = field(default_factory=dict)
    unasked: dict[Client, str] = field(default_factory=dict)

    @property
    def clients(self) -> dict[Client, int]:
        return {client: node for node, client in self.nodes.client.items()}

    @property
    def attendance(self) -> Present:
        return Present(online=self.online, patience=self.patience)

    # -- an exchange ----------------------------------------------------------------------------------------------------

    def outgoing(self, plan: Plan, position: Position) -> list[Message]:
        """A plan's messages, one per client that is connected and whose app can do the task."""
        unaware = {client: task for client, task in plan.tasks.items() if client not in self.nodes.aware}
        why = {client: plain.sentence(self.method, task, client) for client, task in unaware.items()}
        self.unasked = {client: text for client, text in why.items() if text}
        if self.unasked and len(self.unasked) == len(plan.tasks):
            raise SettingError(next(iter(self.unasked.values())))
        records: dict[Any, ArrayRecord] = {}
        out = []
        for client, task in sorted(plan.tasks.items()):
            if client not in self.unasked:
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
        order = Order(task=task, training=training, lr=lr, key=key, client=client, run=self.run)
        config = messages.config_of(order)
        config.update({key: value for key, value in self.configs.get(kind, {}).items() if key not in config})
        return Message(RecordDict({**models, CONFIG: config}), dst_node_id=self.nodes.node(client), message_type=kind)

    def incoming(self, plan: Plan, replies: Iterable[Message], exchange: int) -> Replies:
        """What a method's step must see of the replies; those that cannot be used are refused with a reason."""
        heard: dict[Client, Heard] = {}
        refused = dict(self.unasked)
        replies = list(replies)
        if self.secret is None:
            self.secret = reading.common_secret(replies, self.wire)
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is None or client not in plan.tasks or client in heard or client in refused or gone(reply):
                continue  # of a node that is gone Flower itself says so: it is silent
            try:
                heard[client] = reading.read(reply, plan, plan.tasks[client], self.wire, self.secret)
            except Unfit as error:
                refused[client] = messages.brief(error)
        self._remember(plan, heard, exchange)
        return reading.gathered(plan, heard, refused, self.wire)

    def _remember(self, plan: Plan, heard: Mapping[Client, Heard], exchange: int) -> None:
        """Who has kept layers now; a note where they are not those that the client is known to have kept."""
        for client, task in plan.tasks.items():
            node = self.nodes.node(client)
            if client not in heard:
                self.kept.pop(node, None)  # it may have come back without what it had
            elif task.keep and task.trains and not task.gradient:
                found, expected = heard[client].kept, self.layers.get(client, -1)
                if found != expected:
                    had = f"layers of its own after exchange {expected}" if expected >= 0 else "none that this server knows of"
                    has = f"those of exchange {found}" if found >= 0 else "none, and begins anew"
                    text = f"client {client} had kept {had}, and has {has}"
                    self.nodes.notes.append(Note(kind="node", clients=(client,), text=text))
                self.kept[node], self.layers[client] = task.keep, exchange

    def exchange(self, plan: Plan, position: Position, clock: Clock) -> Replies:
        """Carry out a plan; who does not answer in time is silent."""
        with clock("server"):
            out = self.outgoing(plan, position)
        with clock("train"):
            replies = list(self.grid.send_and_receive(out, timeout=self.timeout)) if out else []
        with clock("server"):
            return self.incoming(plan, replies, position.exchange)

    def first_model(self, replies: Iterable[Message]) -> Tensor | None:
        """The first model that clients have drawn and sealed, all by one secret: that of most. None where no reply has one."""
        replies = [reply for reply in replies if reply.has_content()]
        self.secret = reading.common_secret(replies, self.wire)
        for reply in replies:
            if self.secret is None or likeness.unlike(reply.content, self.wire.boundary, self.secret):
                continue
            try:
                arrays = messages.only(reply.content.array_records, messages.ARRAYS, "array records")
                row = messages.unpacked(arrays, self.wire.layout)
            except Unfit:
                continue
            if torch.isfinite(row).all():
                return row
        return None

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
        nothing = dict.fromkeys(self.names, math.nan)
        return {client: found.get(client, nothing) for client in sorted(assignment.row)}

    def _scores(self, reply: Message) -> dict[str, float]:
        try:
            metrics = messages.only(reply.content.metric_records, METRICS, "metric records")
        except Unfit:
            return dict.fromkeys(self.names, math.nan)
        found = {metric: messages.number(metrics, names) for metric, names in self.names.items()}
        return {metric: value if math.isfinite(value) else math.nan for metric, value in found.items()}
