"""Exchanges and tests over Flower's grid: plans become messages, and messages become the replies that a method receives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import (
    AppliedLimits,
    Assignment,
    Candidate,
    Client,
    HalvedUpdates,
    HeldOutLosses,
    Note,
    Plan,
    Position,
    Replies,
    Task,
    Training,
)
from coterie.engines.clock import Clock
from coterie.engines.exchange import needed, products, together
from coterie.engines.flower import boundary_check, messages
from coterie.engines.flower.messages import (
    ARRAYS,
    CONFIG,
    KEPT,
    LARGEST,
    METRICS,
    PERSONAL,
    Unfit,
)
from coterie.engines.flower.nodes import (
    MAX_UNANSWERED,
    ConnectedClients,
    Messenger,
    Nodes,
    RequestKind,
    Waiting,
    gone,
)
from coterie.engines.flower.sums import MaskedExchange, flower_sums
from coterie.engines.plausible import Plausible
from coterie.pooling import flat
from coterie.robust import Robust, lengths, steps_of
from coterie.settings import SettingError
from coterie.training import (
    PERSONAL_NOT_FINITE,
    UPDATE_NOT_FINITE,
    ClientResult,
    Order,
    all_finite,
)


@dataclass
class GridExchanges:
    """The exchanges of one run over a grid.

    Attributes:
        messenger: Sends and receives messages.
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
        configs: RequestKind of message -> additional entries of its config.
        secret: Digest of the secret with which clients drew the first model.
        digests: Client -> the digest that it reported, used if ``secret`` is None.
        run: Name of the run, see :class:`.nodes.NodeMemory`.
        layers: Name of a part of the plan -> client -> exchange, see :class:`.nodes.NodeMemory`.
        kept: Node -> name of a part -> the own layers that it is known to have, which need not be
            sent.
        ended: Name of a part -> exchange, see :class:`.nodes.NodeMemory`.
        ending: The same for parts that ended in this round. Clients delete their values only when
            the round is stored.
        unasked: Client -> why it gets no task: its app would ignore a part of it.
        passed: Nodes and kinds of request that are sent without waiting for the answer.
        masking: The masked sums of the current exchange, if the boundary has masks.
        measured: What is known of the numbers that clients measure. None takes what the
            federation's schema says.
    """

    messenger: Messenger
    wire: Wire
    training: Training
    seed: int
    nodes: Nodes
    rest: messages.OtherTensors
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
    layers: dict[str, dict[Client, int]] = field(default_factory=dict)
    kept: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    ending: dict[str, int] = field(default_factory=dict)
    unasked: dict[Client, str] = field(default_factory=dict)
    passed: set[RequestKind] = field(default_factory=set)
    masking: MaskedExchange | None = None
    measured: Plausible | None = None

    @property
    def plausible(self) -> Plausible:
        """What is known of the numbers that clients measure."""
        if self.measured is not None:
            return self.measured
        words = None if self.nodes.schema is None else self.nodes.schema.words
        return (
            Plausible()
            if words is None
            else Plausible.of(words.loss, next(iter(words.metrics), ""))
        )

    @property
    def clients(self) -> dict[Client, int]:
        """Client -> node."""
        return {client: node for node, client in self.nodes.client_of_node.items()}

    @property
    def client_names(self) -> dict[Client, str]:
        """Client -> its name, for clients with names."""
        return dict(self.nodes.client_names)

    @property
    def attendance(self) -> ConnectedClients:
        """The clients that can be asked now: the connected ones."""
        return ConnectedClients(online=self.online, patience=self.patience)

    # -- an exchange
    # ----------------------------------------------------------------------------------------------------

    def outgoing(self, plan: Plan, position: Position) -> list[Message]:
        """Make the messages for a plan.

        Args:
            plan: The plan.
            position: State of the run in which the method made the plan.

        Returns:
            One message for each client of the plan whose app can do the task.

        Raises:
            SettingError: No client's app can do its task, the rule of averaging needs more than the
                plan asks for, or the noise of masked sums would be rounded away.
        """
        self.robust.check_plan(plan, self.wire.boundary.masks)
        aware, functions = self.nodes.coterie_clients, self.nodes.function_clients
        asked = plan.asked
        limited = {c: messages.tasks_of(plan, c) for c in asked if c not in aware or c in functions}
        why = {
            c: messages.sentence(self.method, tasks, c, c in functions)
            for c, tasks in limited.items()
        }
        self.unasked = {client: text for client, text in why.items() if text}
        if self.unasked and len(self.unasked) == len(asked):
            raise SettingError(self.nodes.shown.text(next(iter(self.unasked.values()))))
        records: dict[Any, ArrayRecord] = {}
        there = [client for client in asked if client not in self.unasked]
        if self.wire.boundary.masks:
            self.masking = flower_sums().masked_exchange(
                plan, there, self.run, position.exchange, self.wire, self._ask_each
            )
            self.masking.begin()
            there = [client for client in there if not self.masking.is_silent(client)]
        return [self._tasks(plan, client, position, records) for client in there]

    def _ask_each(self, contents: Mapping[Client, RecordDict]) -> dict[Client, RecordDict]:
        """Send a message to each client; the contents of the answers."""
        out = [
            Message(each, dst_node_id=self.nodes.node(client), message_type="train")
            for client, each in contents.items()
        ]
        replies = self.ask(out)
        found = {
            self.nodes.client_of_node.get(reply.metadata.src_node_id, -1): reply
            for reply in replies
            if reply.has_content()
        }
        return {client: found[client].content for client in contents if client in found}

    def _tasks(
        self, plan: Plan, client: Client, position: Position, records: dict[Any, ArrayRecord]
    ) -> Message:
        """The message with a client's tasks of all parts of a plan."""
        offered: list[ArrayRecord] = []
        orders: list[Order] = []
        has = self.kept.get(self.nodes.node(client), {})
        for number, (name, part) in enumerate(plan.leaves()):
            if (task := part.tasks.get(client)) is not None:
                own = task.local_layers if has.get(name) == task.local_layers else ()
                offered += self._offered(part.models, task, own, records, number)
                orders.append(self._order(part, client, position, part_name=name, number=number))
        message = self._message("train", offered, orders)
        if self.masking is not None:
            self.masking.add_config(client, message.content)
        return message

    def _offered(
        self,
        models: Tensor,
        task: Task,
        has: tuple[str, ...],
        known: dict[Any, ArrayRecord],
        number: int = 0,
    ) -> list[ArrayRecord]:
        """Arrays of the offered models without the layers that the client has; clients with equal arrays share one copy."""
        layout = self.wire.layout
        for row in task.offered:
            if (number, row, has) not in known:
                without = layout.mask(has) if has else None
                known[number, row, has] = messages.packed(models[row], layout, self.rest, without)
        return [known[number, row, has] for row in task.offered]

    def _order(
        self, plan: Plan, client: Client, position: Position, part_name: str, number: int = 0
    ) -> Order:
        """The order of a client from its task in a plan without parts."""
        order = Order.of_plan(
            plan,
            client,
            self.training,
            (self.seed, position.exchange, position.round),
            d=self.wire.layout.size,
            part=part_name,
            number=number,
        )
        return replace(order, run=self.run, since=self._since(part_name))

    def _since(self, part: str) -> int:
        """The exchange from which on own values of a part count: the one after it last ended."""
        ends = {
            name: max(self.ended.get(name, 0), self.ending.get(name, 0))
            for name in {*self.ended, *self.ending}
        }
        return max(
            (exchange for name, exchange in ends.items() if f"{part}/".startswith(f"{name}/")),
            default=0,
        )

    def _message(
        self, kind: str, models: Iterable[ArrayRecord], orders: Sequence[Order]
    ) -> Message:
        first = replace(orders[0], ended=dict(self.ended)) if kind == "train" else orders[0]
        config = messages.config_of(first, *orders[1:])
        config.update(
            {key: value for key, value in self.configs.get(kind, {}).items() if key not in config}
        )
        named = {messages.name_of(i): record for i, record in enumerate(models)}
        return Message(
            RecordDict({**named, CONFIG: config}),
            dst_node_id=self.nodes.node(first.client),
            message_type=kind,
        )

    def incoming(self, plan: Plan, answers: Iterable[Message], exchange: int) -> Replies:
        """Convert the replies to the form that a method's step needs. Unusable ones are refused with a reason.

        Args:
            plan: The plan.
            answers: The clients' messages.
            exchange: Number of the exchange.

        Returns:
            The replies.
        """
        parsed, refused = self._parsed(plan, list(answers))
        if self.masking is not None:
            self.masking.end()
            self.nodes.notes += self.masking.notes
        replies: dict[str, Replies] = {}
        for name, part in plan.leaves():
            results = {
                client: reply.results[name]
                for client, reply in parsed.items()
                if name in reply.results
            }
            reasons = {
                client: reply.refused[name]
                for client, reply in parsed.items()
                if name in reply.refused
            }
            reasons |= {client: why for client, why in refused.items() if client in part.tasks}
            if self.masking is not None:
                replies[name] = self.masking.replies(name, results, reasons)
            elif part.need == "sums":
                replies[name] = flower_sums().added_up(part, results, reasons, self.wire)
            else:
                replies[name] = gathered(
                    part, results, reasons, self.wire, self.robust, self.training
                )
            answered = {client: results[client] for client in replies[name].clients}
            self._remember(name, part, answered, exchange)
        self._end(plan.all_ended_parts, exchange)
        held_out_losses: dict[Client, HeldOutLosses] = {}
        for client, reply in parsed.items():
            # Only the models of parts in which the reply of the client counts.
            parts = {name for name, of_part in replies.items() if client in of_part.clients}
            losses = reply.held_of(parts)
            if losses is not None:
                held_out_losses[client] = losses
        return together(plan, replies, held_out_losses)

    def _parsed(
        self, plan: Plan, answers: Sequence[Message]
    ) -> tuple[dict[Client, ParsedReply], dict[Client, str]]:
        """The usable replies of clients, and why those of others are refused."""
        parsed: dict[Client, ParsedReply] = {}
        refused = dict(self.unasked)
        asked = set(plan.asked)
        secret = self._common_secret(answers)
        for answer in answers:
            if gone(answer):
                continue  # Flower itself replies for a node that has gone: its client is silent
            node = answer.metadata.src_node_id
            client = self.nodes.client_of_node.get(node)
            if client is None or client not in asked or client in parsed or client in refused:
                continue
            if self.nodes.node(client) != node:
                continue  # another node, which was this client before
            most_examples = self.robust.most_examples
            try:
                reply = read(answer, plan, client, self.wire, secret, most_examples, self.plausible)
            except Unfit as error:
                refused[client] = messages.brief(error)
                continue
            if self.masking is not None:
                # Masked numbers that cannot be used refuse one part, as all else in a reply does.
                reply = reply.without(self.masking.take(client, answer.content, reply.results))
            parsed[client] = reply
        return parsed, refused

    def _common_secret(self, replies: Iterable[Message]) -> str | None:
        """The digest of the secret with which clients drew the first model.

        In a run that continues, it is the digest that most clients have reported in all exchanges
        so far. So the client that answers first does not decide for the others.
        """
        if self.secret is not None:
            return self.secret
        for reply in replies:
            client = self.nodes.client_of_node.get(reply.metadata.src_node_id)
            if (
                client is not None
                and reply.has_content()
                and boundary_check.agrees(reply.content, self.wire.boundary)
            ):
                self.digests[client] = boundary_check.secret_of(reply.content)
        return boundary_check.most(self.digests.values())

    def _remember(
        self, name: str, plan: Plan, results: Mapping[Client, ClientResult], exchange: int
    ) -> None:
        """Update which clients have stored own values; add a note if these are not the expected ones."""
        exchanges_of_part = self.layers.setdefault(name, {})
        for client, task in plan.tasks.items():
            layers_of_node = self.kept.setdefault(self.nodes.node(client), {})
            if client not in results:
                layers_of_node.pop(name, None)  # it may return without its layers
                continue
            keeps_layers = bool(task.local_layers) and task.trains and not task.gradient
            if task.personal is None and not keeps_layers:
                continue
            uses_personal = task.personal is not None and task.personal.start == "own"
            stored_at = results[client].stored_at
            expected = exchanges_of_part.get(client, -1)
            # With noise a client does not report what it has stored.
            reports = self.wire.counts and (bool(task.local_layers) or uses_personal)
            if reports and stored_at != expected:
                text = _lost_values(client, bool(task.local_layers), stored_at, expected)
                note = Note(kind="node", effect="warns", clients=(client,), text=text)
                self.nodes.notes.append(note)
            layers_of_node[name] = task.local_layers
            exchanges_of_part[client] = exchange
        if not exchanges_of_part:
            del self.layers[name]

    def _end(self, names: Iterable[str], exchange: int) -> None:
        """Note that own values of some parts, stored up to an exchange, do not count any more."""
        for name in names:
            self.ending[name] = exchange + 1
            gone = [part for part in self.layers if f"{part}/".startswith(f"{name}/")]
            for part in gone:
                del self.layers[part]
                for known in self.kept.values():
                    known.pop(part, None)

    def round_stored(self) -> None:
        """Note that a round has ended: no server continues before it, so clients may delete what ended in it."""
        self.ended |= self.ending
        self.ending = {}

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
            All answers that have arrived at the end of the wait, also those of nodes that are not
            waited for.
        """
        if not out:
            return []
        replies = self.messenger.ask(
            out, self.waiting, [self.nodes.node(client) for client in self.online]
        )
        for kind in sorted({RequestKind.of(message) for message in out}):
            behind, client = self.messenger.is_behind(kind), self.nodes.client_of_node[kind.node]
            if behind != (kind in self.passed):
                what = "tests" if kind.request == "evaluate" else "tasks"
                text = f"did not answer {MAX_UNANSWERED} {what} in a row; the server no longer waits for it"
                text = f"client {client} {text if behind else f'answers {what} again; the server waits for it'}"
                self.nodes.notes.append(
                    Note(kind="node", effect="warns", clients=(client,), text=text)
                )
                self.passed ^= {kind}
        return replies

    def first_model(
        self, replies: Iterable[Message], model: Callable[[], nn.Module]
    ) -> Tensor | None:
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

    # -- tests
    # ----------------------------------------------------------------------------------------------------------

    def evaluate(
        self, assignment: Assignment, position: Position
    ) -> dict[Client, dict[str, float]]:
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
        test_messages = []
        for client, row in sorted(assignment.row.items()):
            if client not in self.online:
                continue
            rows = assignment.serving(client)
            if client not in self.nodes.coterie_clients:
                rows = (row,)  # an app that does not know Coterie tests one model
            # The models in the message, which are numbered anew there.
            task = Task(offered=tuple(range(len(rows))), choose=len(rows))
            if assignment.hidden:  # the client takes one of all models
                rows = tuple(range(len(assignment.models)))
                task = Task(offered=rows, epochs=0)
            plain = client in assignment.plain
            has_layers: tuple[str, ...] = ()
            if not plain:
                layers_of_part = self.kept.get(self.nodes.node(client), {})
                has_layers = layers_of_part.get(assignment.part, ())
            arrays = self._offered(
                assignment.models, Task(offered=rows, choose=len(rows)), has_layers, records
            )
            plan = Plan(models=assignment.models, tasks={client: task})
            order = self._order(plan, client, position, part_name=assignment.part)
            order = replace(
                order, plain=plain, neighbours=assignment.neighbours, hidden=assignment.hidden
            )
            test_messages.append(self._message("evaluate", arrays, [order]))
        return test_messages

    def scores(
        self, assignment: Assignment, replies: Iterable[Message]
    ) -> dict[Client, dict[str, float]]:
        """Return the results of the tests for all clients of an assignment.

        Args:
            assignment: The model of each client.
            replies: The clients' messages.

        Returns:
            Client -> metric -> value, and the sums of metrics that have some, see ``flat``; NaN for
            clients without a usable answer.
        """
        found: dict[Client, dict[str, float]] = {}
        for reply in replies:
            client = self.nodes.client_of_node.get(reply.metadata.src_node_id)
            if (
                client is None
                or client in found
                or self.nodes.node(client) != reply.metadata.src_node_id
            ):
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
        found: dict[str, float] = {}
        for metric, names in self.names.items():
            found[metric] = messages.number(metrics, names)
            found |= flat(metric, messages.error_sums(metrics, names))
        if self.plausible.flaw([found.get("loss", math.nan)], [], "test"):
            found["loss"] = math.nan
        return found


def _lost_values(client: Client, layers: bool, stored_at: int, expected: int) -> str:
    """The sentence about a client with other own values than it should have, by exchanges or -1."""
    what, that = ("layers", "those") if layers else ("personal model", "that")
    should_have = f"its {what} of exchange {expected}" if expected >= 0 else f"no {what} of its own"
    has = f"{that} of exchange {stored_at}" if stored_at >= 0 else "none, and starts anew"
    return f"client {client} should have {should_have}, but has {has}"


# ----------------------------------------------------------------------------------------------------
# Parsing and validation of replies: nothing in a reply is trusted, and a refusal has a reason in
# one sentence.


@dataclass(frozen=True)
class ParsedReply:
    """One client's reply to its tasks of all parts of a plan, after parsing.

    Attributes:
        results: Name of a part -> the result of its task.
        refused: Name of a part -> why the result of its task cannot be used.
        held: The sums of held-out losses over the models of all parts. None if no task asks for
            them.
    """

    results: Mapping[str, ClientResult]
    refused: Mapping[str, str]
    held: HeldOutLosses | None

    def without(self, reasons: Mapping[str, str]) -> ParsedReply:
        """Return the reply without the results of some parts.

        Args:
            reasons: Name of a part -> why the result of its task cannot be used.
        """
        usable = {name: result for name, result in self.results.items() if name not in reasons}
        return replace(self, results=usable, refused={**self.refused, **reasons})

    def held_of(self, parts: Collection[str]) -> HeldOutLosses | None:
        """Return the sums over the models of some parts; None if there are none."""
        if self.held is None:
            return None
        models = self.held.models
        positions = [i for i, (name, _) in enumerate(models) if name in parts]
        if not positions:
            return None
        return replace(
            self.held,
            models=tuple(models[i] for i in positions),
            sums=self.held.sums[positions],
            products=self.held.products[np.ix_(positions, positions)],
        )


def read(
    reply: Message,
    plan: Plan,
    client: Client,
    wire: Wire,
    secret: str | None,
    most: int,
    plausible: Plausible = Plausible(),  # noqa: B008  (frozen)
) -> ParsedReply:
    """Parse a client's reply. No content of a reply can raise any other error than :class:`Unfit`.

    Args:
        reply: The message.
        plan: The plan.
        client: The client.
        wire: The wire between clients and server.
        secret: Digest of the clients' secret. None if it is unknown.
        most: Greatest number of held-out examples.
        plausible: What is known of the numbers that clients measure.

    Returns:
        The reply.

    Raises:
        Unfit: The reply cannot be used, in no part of the plan.
    """
    try:
        parts = {name: part for name, part in plan.leaves() if client in part.tasks}
        return _read(reply, parts, client, wire, secret, most, plausible)
    except Unfit:
        raise
    except Exception as error:  # an unforeseen error of one client must not stop the others
        raise Unfit(f"its reply cannot be read: {type(error).__name__} {error}") from error


def _read(
    reply: Message,
    parts: Mapping[str, Plan],
    client: Client,
    wire: Wire,
    secret: str | None,
    most: int,
    plausible: Plausible,
) -> ParsedReply:
    if reply.has_error():
        raise Unfit(f"its app failed: {reply.error.reason or reply.error.code}")
    if not reply.has_content():
        raise Unfit("its reply is empty")
    content, tasks = reply.content, {name: part.tasks[client] for name, part in parts.items()}
    if any(task.trains for task in tasks.values()) and (
        why := boundary_check.unlike(content, wire.boundary, secret)
    ):
        raise Unfit(why)
    metrics = messages.only(content.metric_records, METRICS, "metric records")
    examples = messages.count_of(metrics, "num-examples", "number of examples")
    models = [model for name, task in tasks.items() for model in _held_models(name, task)]
    held = messages.held_of(metrics, models, most) if models else None
    if held is not None and (flaw := plausible.flaw_of_held(held.sums, held.products, held.count)):
        raise Unfit(flaw)
    results: dict[str, ClientResult] = {}
    refused: dict[str, str] = {}
    for place, (name, part) in enumerate(parts.items()):
        try:
            results[name] = _read_task(
                content, metrics, place, part, tasks[name], wire, wire.examples(examples), plausible
            )
        except Unfit as error:
            refused[name] = messages.brief(error)
    return ParsedReply(results, refused, held)


def _held_models(name: str, task: Task) -> list[Candidate]:
    """The models of a task of which a client reports held-out losses: that from which it starts, and the personal one."""
    return (
        [(name, i) for i in range(1 + (task.personal is not None))]
        if task.holdout.report_losses
        else []
    )


def _read_task(
    content: Any,
    metrics: Any,
    place: int,
    plan: Plan,
    task: Task,
    wire: Wire,
    examples: int,
    plausible: Plausible,
) -> ClientResult:
    """The reply to the task at a place among the client's tasks."""
    if metrics.get(messages.of_task(PERSONAL, place), 1) != 1:
        raise Unfit(PERSONAL_NOT_FINITE)
    places = (
        [] if plan.private.hides_choices and wire.boundary.masks else _places(metrics, task, place)
    )
    losses, accuracies = (
        _measured(metrics, task, place, plausible) if plan.need != "sums" else ((), ())
    )
    if flaw := plausible.flaw(losses, accuracies, str(task.measure)):
        raise Unfit(flaw)
    plain = task.trains and task.private.sends_update and not wire.boundary.masks
    updates = _updates(content, plan, task, places, wire, place) if plain else ()
    stored_at = messages.whole(metrics.get(messages.of_task(KEPT, place)))
    answer: np.ndarray | None = None
    cell: int | None = None
    if task.private.question is not None:
        answer, cell = flower_sums().read_answer(
            content, metrics, plan, task, wire.layout.size, place
        )
    return ClientResult(
        chosen=tuple(task.offered[position] for position in places),
        losses=losses,
        accuracies=accuracies,
        trained=bool(updates),
        updates=updates,
        examples=examples,
        stored_at=-1 if stored_at is None else stored_at,
        answer=answer,
        cell=cell,
    )


def _places(metrics: Any, task: Task, place: int) -> list[int]:
    """The offered models that the client chose; an app without a choice need not report it."""
    stated, count = messages.numbers(metrics, messages.of_task("chosen", place)), len(task.offered)
    if not stated and task.choose == count:
        return list(range(count))
    places = {
        one
        for value in stated[:count]
        if (one := messages.whole(value)) is not None and one < count
    }
    if not len(stated) == len(places) == task.choose:
        raise Unfit(f"it chose {list(stated[:9])} of {count} models")
    return [int(value) for value in stated]


def _measured(
    metrics: Any, task: Task, place: int, plausible: Plausible
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not task.measure:
        return (), ()
    losses, accuracies = (
        messages.numbers(metrics, messages.of_task(name, place))
        for name in ("losses", "accuracies")
    )
    if len(losses) != len(task.offered) or len(accuracies) != len(task.offered):
        raise Unfit(f"it measured {len(losses)} of {len(task.offered)} models")
    # A client whose main metric is no share, such as R2 or an error, states NaN as its accuracy.
    stated = (
        accuracies if plausible.share else [value for value in accuracies if not math.isnan(value)]
    )
    if not all(abs(value) <= LARGEST for value in (*losses, *stated)):
        what = f"the losses or accuracies it measured on its {task.measure} data"
        raise Unfit(f"{what} must be finite single-precision numbers; it may have no such data")
    return tuple(map(float, losses)), tuple(map(float, accuracies))


def _updates(
    content: Any, plan: Plan, task: Task, places: Sequence[int], wire: Wire, place: int = 0
) -> tuple[Tensor, ...]:
    stay = wire.layout.mask(task.local_layers) if task.local_layers else None
    arrays, both = content.array_records, messages.updates_of(place)
    two = task.halves and plan.need != "sums" and both[1] in arrays
    names = both[: 2 if two else 1]  # a client with too few examples sends no halves
    if wire.boundary.compress != "none":
        rows = [_decompressed(arrays, name, wire, stay) for name in names]
    elif names[0] in arrays or place:
        if names[0] not in arrays:
            raise Unfit(f"its reply has no array record {names[0]!r}")
        rows = [messages.unpacked(arrays[name], wire.layout, may_lack=stay) for name in names]
    else:
        trained = messages.unpacked(messages.only(arrays, ARRAYS, "array records"), wire.layout)
        rows = [trained - plan.models[[task.offered[place] for place in places]].mean(0)]
    rows = [row if stay is None else row.masked_fill(stay, 0.0) for row in rows]
    if not all_finite(_rows_and_sketches(rows, plan)):
        raise Unfit(UPDATE_NOT_FINITE)
    for row in rows:
        if why := wire.unclipped(row, task):
            raise Unfit(why)
    return tuple(rows)


def _rows_and_sketches(rows: Sequence[Tensor], plan: Plan) -> list[Tensor]:
    """The rows, and their sketches if the Gram matrix is computed from these."""
    if plan.sketch is None:
        return list(rows)
    return [
        *rows,
        *unchecked_sketch(torch.stack(tuple(rows))[:, plan.columns or slice(None)], plan.sketch),
    ]


def _decompressed(arrays: Any, name: str, wire: Wire, stay: Tensor | None) -> Tensor:
    record = arrays.get(name, {})
    try:
        return wire.unpack(
            {key: torch.from_numpy(messages.array_of(record, key)) for key in record}, stay
        )
    except Unfit:
        raise
    except (ValueError, TypeError) as error:  # TypeError: a type that PyTorch does not have
        raise Unfit(f"its update is not compressed by {wire.boundary.compress}: {error}") from None


def gathered(
    plan: Plan,
    heard: Mapping[Client, ClientResult],
    refused: Mapping[Client, str],
    wire: Wire,
    robust: Robust,
    training: Training,
) -> Replies:
    """Combine all usable and plausible replies in the form that the plan needs for a step.

    Args:
        plan: The plan.
        heard: Client -> its reply after parsing.
        refused: Client -> why its reply was refused.
        wire: The wire between clients and server.
        robust: Bounds on the influence of one client on the others.
        training: Training settings of the experiment.

    Returns:
        The replies.
    """
    trained = {c: one for c, one in heard.items() if one.updates}
    updates, chosen = (
        {c: one.updates for c, one in trained.items()},
        {c: one.chosen for c, one in trained.items()},
    )
    claims = {c: heard[c].examples for c in sorted(heard)}
    counted = robust.counted(claims)
    steps = {client: steps_of(plan.tasks[client], training, counted[client]) for client in trained}
    limited = robust.limited(lengths(plan, updates, chosen, wire, steps), claims)
    taken, size = [c for c in claims if c not in limited.refused], wire.layout.size
    rows = {c: tuple(row * limited.scaled.get(c, 1.0) for row in heard[c].updates) for c in taken}
    pairs = {c: each for c, each in rows.items() if plan.tasks[c].halves and len(each) == 2}
    stated = Replies(
        clients=tuple(taken),
        examples=np.array([counted[c] for c in taken], dtype=np.int64),
        averaging=robust,
        limits=AppliedLimits(
            claimed={c: claims[c] for c in taken if claims[c] > counted[c]}, scaled=limited.scaled
        ),
        chosen=tuple(heard[c].chosen for c in taken),
        losses=tuple(heard[c].losses for c in taken),
        accuracies=tuple(heard[c].accuracies for c in taken),
        refused={**refused, **limited.refused},
        updates=torch.stack([_mean(rows[c], size) for c in taken]) if any(rows.values()) else None,
        halves=_halved(plan, pairs),
    )
    return needed(plan, stated if taken else replace(stated, updates=torch.empty(0, size)))


def _halved(plan: Plan, pairs: Mapping[Client, Sequence[Tensor]]) -> HalvedUpdates | None:
    """The updates of the clients that sent both halves; None without such clients."""
    matrix = products(plan, pairs)
    if matrix is None:
        return None
    second = torch.stack([rows[1] for rows in pairs.values()]) if plan.second_halves else None
    return HalvedUpdates(clients=tuple(pairs), gram=matrix, second=second)


def _mean(updates: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack(tuple(updates)).mean(0) if updates else torch.zeros(size)
