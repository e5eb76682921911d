"""Exchanges and tests over Flower's grid: plans become messages, and messages become the replies that a method receives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.clustering import sketch
from coterie.core import Assignment, Client, Note, Plan, Position, Replies, Task, Training
from coterie.engines.flower import boundary_check, messages
from coterie.engines.flower.messages import ARRAYS, CONFIG, KEPT, LARGEST, METRICS, UPDATE, UPDATES, Order, Unfit
from coterie.engines.flower.nodes import BEHIND, Kind, Nodes, Post, Present, Waiting, gone
from coterie.engines.rounds import Clock, needed, products
from coterie.robust import Robust, lengths
from coterie.settings import SettingError


@dataclass
class Carrier:
    """The exchanges of one run over a grid.

    Attributes:
        post: Sends and receives messages.
        wire: The wire between clients and server.
        training: Training settings.
        seed: Seed of all random draws.
        nodes: The nodes and their clients.
        rest: Tensors of the net's state dict that are not part of a row.
        waiting: How long to wait for answers.
        names: Metric -> the names that apps may use for it.
        method: Name of the method.
        online: The connected clients that can take part.
        attacks: Client -> attack. Empty, because a server does not know the adversaries.
        patience: Number of rounds in a row without an answer after which a client is retired.
        robust: Bounds on the influence of one client on the others.
        configs: Kind of message -> additional entries of its config.
        secret: Digest of the secret with which clients drew the first model.
        digests: Client -> the digest that it reported, used if ``secret`` is None.
        run: Name of the run, see :class:`.nodes.NodeMemory`.
        layers: Client -> exchange, see :class:`.nodes.NodeMemory`.
        kept: Node -> the own layers that it is known to have, which need not be sent.
        unasked: Client -> why it gets no task: its app would ignore a part of it.
        passed: Nodes and kinds of request that are sent without waiting for the answer.
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
        """Client -> node."""
        return {client: node for node, client in self.nodes.client.items()}

    @property
    def client_names(self) -> dict[Client, str]:
        """Client -> its name, for clients with names."""
        return dict(self.nodes.names)

    @property
    def attendance(self) -> Present:
        """The clients that can be asked now: the connected ones."""
        return Present(online=self.online, patience=self.patience)

    # -- an exchange ----------------------------------------------------------------------------------------------------

    def outgoing(self, plan: Plan, position: Position) -> list[Message]:
        """Make the messages for a plan.

        Args:
            plan: The plan.
            position: State of the run in which the method made the plan.

        Returns:
            One message for each client of the plan whose app can do the task.

        Raises:
            SettingError: No client's app can do its task.
        """
        aware, functions = self.nodes.aware, self.nodes.functions
        limited = {client: task for client, task in plan.tasks.items() if client not in aware or client in functions}
        why = {c: messages.sentence(self.method, task, c, c in functions) for c, task in limited.items()}
        self.unasked = {client: text for client, text in why.items() if text}
        if self.unasked and len(self.unasked) == len(plan.tasks):
            raise SettingError(self.nodes.shown.text(next(iter(self.unasked.values()))))
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
        """Arrays of the offered models without the layers that the client has; clients with equal arrays share one copy."""
        layout = self.wire.layout
        for row in task.offered:
            if (row, has) not in known:
                without = layout.mask(has) if has else None
                known[row, has] = messages.packed(models[row], layout, self.rest, without)
        return {messages.name_of(i): known[row, has] for i, row in enumerate(task.offered)}

    def _message(self, kind: str, models: Mapping[str, ArrayRecord], task: Task, client: Client, position: Position) -> Message:
        training = task.how(self.training)
        lr = training.lr * training.lr_decay ** (position.round if task.lr_round is None else task.lr_round)
        key = self.seed, position.exchange, position.round
        order = Order(task=task, training=training, lr=lr, key=key, client=client, run=self.run)
        config = messages.config_of(order)
        config.update({key: value for key, value in self.configs.get(kind, {}).items() if key not in config})
        return Message(RecordDict({**models, CONFIG: config}), dst_node_id=self.nodes.node(client), message_type=kind)

    def incoming(self, plan: Plan, replies: Iterable[Message], exchange: int) -> Replies:
        """Convert the replies to the form that a method's step needs. Unusable ones are refused with a reason.

        Args:
            plan: The plan.
            replies: The clients' messages.
            exchange: Number of the exchange.

        Returns:
            The replies.
        """
        heard: dict[Client, ClientReply] = {}
        refused = dict(self.unasked)
        replies = list(replies)
        secret = self._common_secret(replies)
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is None or client not in plan.tasks or client in heard or client in refused or gone(reply):
                continue  # if a node has gone, Flower itself replies: the client is silent
            if self.nodes.node(client) != reply.metadata.src_node_id:
                continue  # another node, which was this client before
            try:
                heard[client] = read(reply, plan, plan.tasks[client], self.wire, secret)
            except Unfit as error:
                refused[client] = messages.brief(error)
        found = gathered(plan, heard, refused, self.wire, self.robust)
        self._remember(plan, {client: heard[client] for client in found.clients}, exchange)
        return found

    def _common_secret(self, replies: Iterable[Message]) -> str | None:
        """The digest of the secret with which clients drew the first model.

        In a run that continues, it is the digest that most clients have reported in all exchanges so far. So the client that
        answers first does not decide for the others.
        """
        if self.secret is not None:
            return self.secret
        for reply in replies:
            client = self.nodes.client.get(reply.metadata.src_node_id)
            if client is not None and reply.has_content() and boundary_check.agrees(reply.content, self.wire.boundary):
                self.digests[client] = boundary_check.secret_of(reply.content)
        return boundary_check.most(self.digests.values())

    def _remember(self, plan: Plan, heard: Mapping[Client, ClientReply], exchange: int) -> None:
        """Update which clients have stored own layers; add a note if these are not the layers that the server expects."""
        for client, task in plan.tasks.items():
            node = self.nodes.node(client)
            if client not in heard:
                self.kept.pop(node, None)  # it may return without its layers
            elif task.keep and task.trains and not task.gradient:
                found, expected = heard[client].kept, self.layers.get(client, -1)
                if found != expected and self.wire.counts:  # with noise a client does not report it
                    had = f"its layers of exchange {expected}" if expected >= 0 else "no layers of its own"
                    has = f"those of exchange {found}" if found >= 0 else "none, and starts anew"
                    text = f"client {client} should have {had}, but has {has}"
                    self.nodes.notes.append(Note(kind="node", clients=(client,), text=text))
                self.kept[node], self.layers[client] = task.keep, exchange

    def exchange(self, plan: Plan, position: Position, clock: Clock) -> Replies:
        """Carry out a plan. A client that does not answer in time is silent.

        Args:
            plan: The plan.
            position: State of the run in which the method made the plan.
            clock: Adds up the seconds.

        Returns:
            The replies.

        Raises:
            SettingError: No client's app can do its task.
        """
        with clock("server"):
            out = self.outgoing(plan, position)
        with clock("train"):
            replies = self.ask(out)
        with clock("server"):
            return self.incoming(plan, replies, position.exchange)

    def ask(self, out: Sequence[Message]) -> list[Message]:
        """Send tasks or tests and wait for the answers.

        Args:
            out: The messages.

        Returns:
            All answers that have arrived at the end of the wait, also those of nodes that are not waited for.
        """
        if not out:
            return []
        replies = self.post.ask(out, self.waiting, [self.nodes.node(client) for client in self.online])
        for kind in sorted({Kind.of(message) for message in out}):
            behind, client = self.post.behind(kind), self.nodes.client[kind.node]
            if behind != (kind in self.passed):
                what = "tests" if kind.what == "evaluate" else "tasks"
                text = f"did not answer {BEHIND} {what} in a row; the server no longer waits for it"
                text = f"client {client} {text if behind else f'answers {what} again; the server waits for it'}"
                self.nodes.notes.append(Note(kind="node", clients=(client,), text=text))
                self.passed ^= {kind}
        return replies

    def first_model(self, replies: Iterable[Message], model: Callable[[], nn.Module]) -> Tensor | None:
        """Return the first model on which more than half of the clients that offer a usable one agree.

        All of them must have drawn and sealed it with the same secret, whose digest is stored.

        Args:
            replies: The clients' replies.
            model: Function that makes the net.

        Returns:
            The model as a row ``(d,)``, or None if no reply has a usable one.

        Raises:
            EngineError: The clients do not agree.
        """
        found = boundary_check.agreed(replies, self.wire, model)
        if found is None:
            return None
        row, self.secret = found
        return row

    # -- tests ----------------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, position: Position) -> dict[Client, dict[str, float]]:
        """Test the model, or the ensemble, of each client on its own test data.

        Args:
            assignment: The model of each client.
            position: State of the run.

        Returns:
            Client -> metric -> value; NaN for clients that do not answer.
        """
        return self.scores(assignment, self.ask(self.tests(assignment, position)))

    def tests(self, assignment: Assignment, position: Position) -> list[Message]:
        """Make the messages that ask the connected clients to test the models assigned to them.

        Args:
            assignment: The model of each client.
            position: State of the run.

        Returns:
            One message per connected client.
        """
        records: dict[Any, ArrayRecord] = {}
        out = []
        for client, served in sorted(assignment.row.items()):
            if client not in self.online:
                continue
            rows = assignment.path.get(client, (served,)) if assignment.ensemble else (served,)
            if client not in self.nodes.aware:
                rows = (served,)  # an app that does not know Coterie tests one model
            has = self.kept.get(self.nodes.node(client), ())
            offered = self._offered(assignment.models, Task(offered=rows, choose=len(rows)), has, records)
            task = Task(offered=tuple(range(len(rows))), choose=len(rows))
            out.append(self._message("evaluate", offered, task, client, position))
        return out

    def scores(self, assignment: Assignment, replies: Iterable[Message]) -> dict[Client, dict[str, float]]:
        """Return the results of the tests for all clients of an assignment.

        Args:
            assignment: The model of each client.
            replies: The clients' messages.

        Returns:
            Client -> metric -> value; NaN for clients without a usable answer.
        """
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


# ----------------------------------------------------------------------------------------------------
# Parsing and validation of replies: nothing in a reply is trusted, and a refusal has a reason in one sentence.


@dataclass(frozen=True)
class ClientReply:
    """One client's reply after parsing, see :class:`~coterie.core.Replies`.

    Attributes:
        updates: No update, one update ``(d,)``, or those of both halves.
        examples: Number of training examples.
        chosen: The chosen models, as rows of the plan's models.
        losses: Measured losses, one per offered model, or empty.
        accuracies: Measured accuracies, one per offered model, or empty.
        kept: The exchange after which the client stored the own layers that it trained from, -1 for none.
    """

    updates: tuple[Tensor, ...]
    examples: int
    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    kept: int


def read(reply: Message, plan: Plan, task: Task, wire: Wire, secret: str | None) -> ClientReply:
    """Parse a reply to a task. No content of a reply can raise any other error than :class:`Unfit`.

    Args:
        reply: The message.
        plan: The plan.
        task: The client's task.
        wire: The wire between clients and server.
        secret: Digest of the clients' secret. None if it is unknown.

    Returns:
        The reply.

    Raises:
        Unfit: The reply cannot be used.
    """
    try:
        return _read(reply, plan, task, wire, secret)
    except Unfit:
        raise
    except Exception as error:  # an unforeseen error of one client must not stop the others
        raise Unfit(f"its reply cannot be read: {type(error).__name__} {error}") from error


def _read(reply: Message, plan: Plan, task: Task, wire: Wire, secret: str | None) -> ClientReply:
    if reply.has_error():
        raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
    if not reply.has_content():
        raise Unfit("its reply is empty")
    content = reply.content
    if task.trains and (why := boundary_check.unlike(content, wire.boundary, secret)):
        raise Unfit(why)
    metrics = messages.only(content.metric_records, METRICS, "metric records")
    examples = messages.whole(metrics.get("num-examples"))
    if not examples:
        raise Unfit("its reply has no number of examples (num-examples)")
    places = _places(metrics, task)
    losses, accuracies = _measured(metrics, task)
    updates = _updates(content, plan, task, places, wire) if task.trains else ()
    kept = messages.whole(metrics.get(KEPT))
    chosen = tuple(task.offered[place] for place in places)
    return ClientReply(updates, wire.examples(examples), chosen, losses, accuracies, -1 if kept is None else kept)


def _places(metrics: Any, task: Task) -> list[int]:
    """The offered models that the client chose; an app without a choice need not report it."""
    stated, count = messages.numbers(metrics, "chosen"), len(task.offered)
    if not stated and task.choose == count:
        return list(range(count))
    places = {place for value in stated[:count] if (place := messages.whole(value)) is not None and place < count}
    if not len(stated) == len(places) == task.choose:
        raise Unfit(f"it chose {list(stated[:9])} of {count} models")
    return [int(value) for value in stated]


def _measured(metrics: Any, task: Task) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not task.measure:
        return (), ()
    losses, accuracies = (messages.numbers(metrics, name) for name in ("losses", "accuracies"))
    if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
        raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
    if not all(abs(value) <= LARGEST for value in losses + accuracies):
        what = f"the losses or accuracies it measured on its {task.measure} data"
        raise Unfit(f"{what} must be finite single-precision numbers; it may have no such data")
    return tuple(map(float, losses)), tuple(map(float, accuracies))


def _updates(content: Any, plan: Plan, task: Task, places: Sequence[int], wire: Wire) -> tuple[Tensor, ...]:
    stay = wire.layout.mask(task.keep) if task.keep else None
    arrays = content.array_records
    names = UPDATES[: 2 if task.halves and UPDATES[1] in arrays else 1]  # a client with too few examples sends no halves
    if wire.boundary.compress != "none":
        rows = [_decompressed(arrays, name, wire, stay) for name in names]
    elif UPDATE in arrays:
        rows = [messages.unpacked(arrays[name], wire.layout, may_lack=stay) for name in names]
    else:
        trained = messages.unpacked(messages.only(arrays, ARRAYS, "array records"), wire.layout)
        rows = [trained - plan.models[[task.offered[place] for place in places]].mean(0)]
    rows = [row if stay is None else row.masked_fill(stay, 0.0) for row in rows]
    if not all(torch.isfinite(row.dot(row)) for row in _seen(rows, plan)):
        raise Unfit("its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)")
    for row in rows:
        if why := wire.unclipped(row, task):
            raise Unfit(why)
    return tuple(rows)


def _seen(rows: Sequence[Tensor], plan: Plan) -> list[Tensor]:
    """The rows, and their sketches if the Gram matrix is computed from these."""
    if plan.sketch is None:
        return list(rows)
    return [*rows, *sketch(torch.stack(tuple(rows))[:, plan.columns or slice(None)], plan.sketch)]


def _decompressed(arrays: Any, name: str, wire: Wire, stay: Tensor | None) -> Tensor:
    record = arrays.get(name, {})
    try:
        return wire.unpack({key: torch.from_numpy(messages.array_of(record, key)) for key in record}, stay)
    except Unfit:
        raise
    except (ValueError, TypeError) as error:  # TypeError: a type that PyTorch does not have
        raise Unfit(f"its update is not compressed by {wire.boundary.compress}: {error}") from None


def gathered(
    plan: Plan, heard: Mapping[Client, ClientReply], refused: Mapping[Client, str], wire: Wire, robust: Robust
) -> Replies:
    """Combine all usable and plausible replies in the form that the plan needs for a step.

    Args:
        plan: The plan.
        heard: Client -> its reply after parsing.
        refused: Client -> why its reply was refused.
        wire: The wire between clients and server.
        robust: Bounds on the influence of one client on the others.

    Returns:
        The replies.
    """
    trained = {c: one for c, one in heard.items() if one.updates}
    updates, chosen = {c: one.updates for c, one in trained.items()}, {c: one.chosen for c, one in trained.items()}
    claims = {c: heard[c].examples for c in sorted(heard)}
    limited = robust.limited(lengths(plan, updates, chosen, wire), claims)
    counted = robust.counted(claims)
    taken, size = [c for c in claims if c not in limited.refused], wire.layout.size
    rows = {c: tuple(row * limited.scaled.get(c, 1.0) for row in heard[c].updates) for c in taken}
    stated = Replies(
        clients=tuple(taken),
        examples=np.array([counted[c] for c in taken], dtype=np.int64),
        averaging=robust,
        claimed={c: claims[c] for c in taken if claims[c] > counted[c]},
        scaled=limited.scaled,
        chosen=tuple(heard[c].chosen for c in taken),
        losses=tuple(heard[c].losses for c in taken),
        accuracies=tuple(heard[c].accuracies for c in taken),
        refused={**refused, **limited.refused},
        updates=torch.stack([_mean(rows[c], size) for c in taken]) if any(rows.values()) else None,
        halves=products(plan, {c: rows[c] for c in taken if plan.tasks[c].halves}, taken),
    )
    return needed(plan, stated if taken else replace(stated, updates=torch.empty(0, size)))


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)
