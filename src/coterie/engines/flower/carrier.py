"""Exchanges and tests over Flower's grid: plans become messages, replies become what a method sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.core import Assignment, Client, Note, Plan, Replies, Task, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import likeness, messages, plain, reading, witnesses
from coterie.engines.flower.messages import CONFIG, METRICS, Order, Unfit
from coterie.engines.flower.nodes import Nodes, Present
from coterie.engines.flower.reading import Heard
from coterie.engines.flower.waiting import BEHIND, Kind, Post, Waiting, gone
from coterie.engines.inprocess import Position
from coterie.robust import Robust
from coterie.settings import SettingError


@dataclass
class Carrier:
    """One run's exchanges over a grid.

    names: metric -> the names an app may give it. configs: kind of message -> what its config tells besides. secret: digest
    of the one by which clients have drawn the first model; digests: those that clients have told, where none has. run,
    layers: see :class:`.nodes.Memory`. kept: the layers of their own that nodes are known to have, and need not be sent.
    unasked: clients whose apps would ignore the task, and why. passed: who
    is asked for what without being waited for.
    """

    post: Post
    wire: Wire
    training: Training
    seed: int
    nodes: Nodes
    rest: messages.Rest
    waiting: Waiting
    names: Mapping[str, Sequence[str]]
    method: str
    online: frozenset[Client] = frozenset()
    attacks: Mapping[Client, Any] = field(default_factory=dict)
    patience: int = 10
    robust: Robust = field(default_factory=Robust)
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secret: str | None = None
    digests: dict[Client, str] = field(default_factory=dict)
    run: str = ""
    layers: dict[Client, int] = field(default_factory=dict)
    kept: dict[int, tuple[str, ...]] = field(default_factory=dict)
    unasked: dict[Client, str] = field(default_factory=dict)
    passed: set[Kind] = field(default_factory=set)

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
        secret = self._common_secret(replies)
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is None or client not in plan.tasks or client in heard or client in refused or gone(reply):
                continue  # of a node that is gone Flower itself says so: it is silent
            if self.nodes.node(client) != reply.metadata.src_node_id:
                continue  # another node that was this client, and is not asked any more
            try:
                heard[client] = reading.read(reply, plan, plan.tasks[client], self.wire, secret)
            except Unfit as error:
                refused[client] = messages.brief(error)
        found = reading.gathered(plan, heard, refused, self.wire, self.robust)
        self._remember(plan, {client: heard[client] for client in found.clients}, exchange)
        return found

    def _common_secret(self, replies: Iterable[Message]) -> str | None:
        """The digest of the secret that drew the first model; of a run that goes on, the one that most clients tell, all
        exchanges taken together, so that nobody who answers first decides for the others."""
        if self.secret is not None:
            return self.secret
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is not None and reply.has_content() and likeness.agrees(reply.content, self.wire.boundary):
                self.digests[client] = likeness.secret_of(reply.content)
        return likeness.most(self.digests.values())

    def _remember(self, plan: Plan, heard: Mapping[Client, Heard], exchange: int) -> None:
        """Who has kept layers now; a note where they are not those that the client is known to have kept."""
        for client, task in plan.tasks.items():
            node = self.nodes.node(client)
            if client not in heard:
                self.kept.pop(node, None)  # it may have come back without what it had
            elif task.keep and task.trains and not task.gradient:
                found, expected = heard[client].kept, self.layers.get(client, -1)
                if found != expected and self.wire.counts:  # with noise a client does not tell
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
            replies = self.ask(out)
        with clock("server"):
            return self.incoming(plan, replies, position.exchange)

    def ask(self, out: Sequence[Message]) -> list[Message]:
        """Send tasks or tests; the answers of whoever is waited for, and of the others that have come by then."""
        if not out:
            return []
        replies = self.post.ask(out, self.waiting, [self.nodes.node(client) for client in self.online])
        for kind in sorted({Kind.of(message) for message in out}):
            behind, client = self.post.behind(kind), self.nodes.client[kind.node]
            if behind != (kind in self.passed):
                what = "tests" if kind.what == "evaluate" else "tasks"
                text = f"has left {BEHIND} {what} in a row without an answer, and is asked without being waited for"
                text = f"client {client} {text if behind else f'answers {what} again, and is waited for'}"
                self.nodes.notes.append(Note(kind="node", clients=(client,), text=text))
                self.passed ^= {kind}
        return replies

    def first_model(self, replies: Iterable[Message], model: Callable[[], nn.Module]) -> Tensor | None:
        """The first model that more than half of those asked have drawn and sealed, all by one secret; None where no reply
        has one. Raises :class:`~coterie.engines.workers.EngineError` where they do not agree."""
        found = witnesses.agreed(replies, self.wire, model)
        if found is None:
            return None
        row, self.secret = found
        return row

    # -- tests ----------------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, position: Position) -> dict[Client, dict[str, float]]:
        """Every served client's model, or models, on its own test data; NaN for who does not answer."""
        return self.scores(assignment, self.ask(self.tests(assignment, position)))

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
            if client is None or client in found or self.nodes.node(client) != reply.metadata.src_node_id:
                continue
            if reply.has_content():
                found[client] = self._scores(reply)
        nothing = dict.fromkeys(self.names, math.nan)
        return {client: found.get(client, nothing) for client in sorted(assignment.row)}

    def _scores(self, reply: Message) -> dict[str, float]:
        try:
            metrics = messages.only(reply.content.metric_records, METRICS, "metric records")
        except Unfit:
            return dict.fromkeys(self.names, math.nan)
        return {metric: messages.number(metrics, names) for metric, names in self.names.items()}
