"""A strategy for Flower that runs any method: it sends plans as messages and turns replies into the input of a step."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from google.protobuf.message import DecodeError
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.core import Assignment, Cohort, Federation, Method, Position, Replies, Round, Training
from coterie.data import objective
from coterie.data.scenario import FEDERATION
from coterie.data.schema import Schema, checked
from coterie.data.world import World
from coterie.engines.clock import Clock
from coterie.engines.flower import messages
from coterie.engines.flower.exchange import Carrier
from coterie.engines.flower.limited import LimitLog
from coterie.engines.flower.messages import ARRAYS, CONFIG, FIRST, Rest
from coterie.engines.flower.nodes import (
    CLAIMED,
    Identity,
    NodeMemory,
    Nodes,
    Post,
    Waiting,
    from_file,
)
from coterie.engines.flower.result import GroupedResult
from coterie.engines.flower.schemas import agreed, checked_memory
from coterie.engines.membership import Roster
from coterie.engines.plausible import Plausible
from coterie.engines.rounds import Steps, carry, round_steps
from coterie.engines.workers import EngineError
from coterie.methods import made, method_class
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.printable import printable, printable_record
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import NODES, OTHERS, RUN, Record, read_nodes, versions
from coterie.records.shown import Shown
from coterie.records.store import LOCK, PART, held, write_whole
from coterie.robust import Robust
from coterie.settings import SettingError, UserError, build, plain, settings_of, table_of
from coterie.settings.calls import public

METRICS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": (
        "accuracy",
        "eval_acc",
        "eval_accuracy",
        "acc",
        "test_acc",
        "test_accuracy",
        "val_acc",
        "val_accuracy",
    ),
}
"""Metric -> the names that apps may use for it. The first one found in a reply counts."""

_OWN = (
    "nodes",
    "wait",
    "timeout",
    "min-replies",
    "grace",
    "identity",
    "patience",
    "seed",
    "eval-every",
    "schema",
    "out",
)


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings in one table of a run config. Flower flattens tables: ``cfl.eps1`` is ``eps1`` of ``cfl``."""
    return {
        key.removeprefix(f"{name}."): _listed(value)
        for key, value in config.items()
        if key.startswith(f"{name}.")
    }


def _slips(config: Mapping[str, Any], method: Method[Any]) -> list[str]:
    """A sentence for each key of a run config that Coterie does not read, and that is nearly one that it reads."""
    read, own, said = ("method", "clients", *_OWN), settings_of(type(method)), []
    for key in config:
        near = get_close_matches(key.replace("_", "-"), read, 1, 0.8)
        meant = (
            f"{method.name}.{name}"
            if (name := key.replace("-", "_")) in own
            else near[0]
            if near
            else ""
        )
        if key not in read and meant:
            said.append(
                f"the run config has {key!r}, which Coterie does not read; did you mean {meant}?"
            )
    return said


def _listed(value: Any) -> Any:
    """Read a list. A run config has none, so numbers separated by commas, or one number and a comma, mean a list."""
    if not isinstance(value, str) or "," not in value:
        return value
    try:
        return tuple(json.loads(part) for part in value.split(",") if part.strip())
    except ValueError:
        return value


@public
class MethodStrategy(Strategy):
    """A Flower strategy that runs a Coterie method.

    There is one model per cluster or per client. If a task offers several models, one message
    contains all of them. After :meth:`start`, ``assignment`` has the groups and their models, and
    ``last`` is the last round.

    Args:
        method: The method with its settings.
        model: Function that makes the clients' net.
        training: Training settings for clients whose apps know Coterie. Other apps receive only the
            learning rate, as ``config["lr"]``.
        nodes: Number of nodes that must be connected before the first round.
        wait: Longest time to wait for these nodes, in seconds.
        timeout: Longest time for an exchange, in seconds. A client that has not answered by then is
            silent.
        min_replies: Share of the clients after whose answers the grace time of the others begins.
        grace: Grace time, as a multiple of the time that this share took. It is at least 60
            seconds.
        identity: Rule for the client id of a node. ``"claimed"``: the id that the node reports.
            ``"first"``: an id belongs permanently to the first node, by its key, that reports it.
            Or a mapping of clients, by name or id, to public key files, fingerprints or node ids
            (see ``coterie.engines.flower.nodes``).
        patience: Number of rounds in a row without an answer after which a client is retired.
        seed: Seed of all random draws.
        eval_every: Rounds between tests.
        metrics: Metric -> the names that apps use for it.
        boundary: Operations of the clients on rows (:func:`~coterie.engines.flower.boundary_mod`).
        robust: Bounds on the influence of one client on the others
            (:class:`~coterie.robust.Robust`).
        schema: The schema that all clients' data must have: a :class:`~coterie.data.schema.Schema`,
            a mapping of its fields, or the path of a TOML file with it. None takes the schema that
            most nodes share before the first round; of equally many, that of the client with the
            smallest id. A node that differs in what both state is refused.
        out: Run directory for records and checkpoints. If it already contains a run of this method,
            that run continues.

    Raises:
        SettingError: A setting is not allowed, or method and boundary do not fit together.
    """

    def __init__(
        self,
        method: str | Mapping[str, Any] | Method[Any],
        model: Callable[[], nn.Module],
        *,
        training: Training | Mapping[str, Any] | None = None,
        nodes: int = 2,
        wait: float = 600.0,
        timeout: float = 3600.0,
        min_replies: float = 0.8,
        grace: float = 2.0,
        identity: str | Mapping[int | str, Any] | Identity = CLAIMED,
        patience: int = 10,
        seed: int = 0,
        eval_every: int = 1,
        metrics: Mapping[str, str | Sequence[str]] | None = None,
        boundary: Boundary | Mapping[str, Any] | None = None,
        robust: Robust | Mapping[str, Any] | None = None,
        schema: Schema | Mapping[str, Any] | Path | str | None = None,
        out: Path | str | None = None,
    ) -> None:
        whole = (
            ("nodes", nodes, 1),
            ("patience", patience, 1),
            ("seed", seed, 0),
            ("eval_every", eval_every, 1),
        )
        for name, value, least in whole:
            if type(value) is not int or value < least:
                raise SettingError(
                    f"MethodStrategy.{name} must be an integer >= {least}, got {value!r}"
                )
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < 1e9:
            raise SettingError(f"MethodStrategy.wait must be a number of seconds > 0, got {wait!r}")
        if not isinstance(metrics or {}, Mapping):
            raise SettingError(
                f"MethodStrategy.metrics must be a mapping from metrics to apps' names, got {metrics!r:.60}"
            )
        nets.check_maker(model, "MethodStrategy.model")
        called = {
            name: (names,) if isinstance(names, str) else tuple(names)
            for name, names in (metrics or {}).items()
        }
        self.terms = Terms(
            method=made(method),
            model=model,
            training=table_of("training", training or {}, Training()),
            nodes=nodes,
            wait=wait,
            waiting=Waiting(timeout=timeout, min_replies=min_replies, grace=grace),
            identity=Identity.of(identity),
            patience=patience,
            seed=seed,
            eval_every=eval_every,
            boundary=table_of("boundary", boundary or {}, Boundary()),
            robust=table_of("robust", robust or {}, Robust()),
            names={**METRICS, **called},
            schema=None if schema is None else checked(schema, "MethodStrategy.schema"),
        )
        self.out = out
        self._conductor: Conductor | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._steps: Steps | None = None
        self._limits = LimitLog()
        self._stored: Assignment | None = None

    @property
    def last(self) -> Round | None:
        """The last round, or None before the first one."""
        return self._conductor.last if self._conductor else None

    @property
    def assignment(self) -> Assignment | None:
        """The current assignment of models to clients, or None before the first round."""
        return self.last.assignment if self.last else self._stored

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], model: Callable[[], nn.Module], **how: Any
    ) -> MethodStrategy:
        """Make a strategy from Flower's run config.

        These keys of the run config count; an app may have other keys.

        - ``method``: a name of :data:`coterie.METHODS`.
        - ``<method>.<setting>``, ``training.<setting>``, ``boundary.<setting>``,
          ``robust.<setting>``: settings.
        - ``metrics.<metric>``: the name that apps use for a metric.
        - ``nodes``, ``wait``, ``timeout``, ``min-replies``, ``grace``, ``identity``, ``patience``,
          ``seed``, ``eval-every``, ``schema``, ``out``: the arguments of this class.
        - ``clients``: the path of a TOML file with the list for ``identity``.

        Args:
            config: The run config.
            model: Function that makes the clients' net.
            **how: Arguments of this class that take precedence over the run config.

        Returns:
            The strategy.

        Raises:
            UserError: A setting is not allowed, or the list of clients cannot be read.
        """
        name = str(config.get("method", "cfl"))
        method = build(method_class(name), _table(config, name))
        for text in _slips(config, method):
            log.warning(text)
        own = {
            key.replace("-", "_"): value
            for key, value in config.items()
            if key in _OWN and value != ""
        }
        if config.get("clients"):
            own["identity"] = from_file(str(config["clients"]))
        own["training"] = build(Training, _table(config, "training"))
        own["boundary"] = build(Boundary, _table(config, "boundary"))
        own["robust"] = build(Robust, _table(config, "robust"))
        own["metrics"] = {
            metric: str(called).split(",") for metric, called in _table(config, "metrics").items()
        }
        return cls(method, model, **{**own, **how})

    # -- rounds
    # -----------------------------------------------------------------------------------------------------------

    def rounds(
        self,
        grid: Grid,
        rounds: int,
        *,
        start: Position | None = None,
        memory: NodeMemory | None = None,
        initial: ArrayRecord | None = None,
        roster: Roster | None = None,
    ) -> Iterator[Round]:
        """Run the communication rounds.

        Args:
            grid: Flower's grid.
            rounds: Number of the last round.
            start: Position from which the run continues. None starts a new run.
            memory: The server's knowledge of the nodes at that position.
            initial: The first model. None draws one.
            roster: The clients and the rounds in which they are present. None means the connected
                clients.

        Yields:
            Each communication round, up to number ``rounds``.

        Raises:
            EngineError: Too few nodes are connected, or a round does not end.
            SettingError: The settings do not fit together, or not to the clients' apps.
        """
        here = self._conductor = Conductor(
            self.terms,
            grid,
            start=start,
            memory=memory,
            initial=initial,
            roster=roster,
            configs=self._configs,
        )
        while here.position.round < rounds:
            yield here.round(here.position.round + 1 == rounds)

    # -- Flower's interface
    # -------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> GroupedResult:
        """Run the method; record the rounds in ``out`` and log them.

        Args:
            grid: Flower's grid.
            initial_arrays: The first model. None draws one.
            num_rounds: Number of the last round.
            timeout: Longest time for an exchange, in seconds. None takes the strategy's setting.
            train_config: Entries of ``config`` in training messages, besides the learning rate and
                the round.
            evaluate_config: Entries of ``config`` in test messages, besides the learning rate and
                the round.
            evaluate_fn: Test at the server, given the round and ``arrays`` of the result: the model
                of the largest group.

        Returns:
            The result. Its ``arrays`` are the model of the largest group; ``groups`` and
            ``arrays_of(client)`` have the others. If there are several models, a warning says so at
            the end.

        Raises:
            EngineError: Too few nodes are connected, or a round does not end.
            UserError: The run directory does not belong to this run, or the settings do not fit
                together.
        """
        if timeout is not None:
            self.terms = replace(self.terms, waiting=replace(self.terms.waiting, timeout=timeout))
        self._configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self.summary()
        terms = self.terms
        result = GroupedResult(
            layout=terms.layout, rest=terms.rest, sealed=terms.boundary.rotation != "none"
        )
        with ExitStack() as stack:
            journal = (
                stack.enter_context(Journal(self.out, self.terms, num_rounds))
                if self.out is not None
                else None
            )
            start, memory = journal.stored() if journal else (None, None)
            if start is not None and start.round >= num_rounds:
                log.info("%s already has its %d rounds", self.out, start.round)
                self._stored = terms.method.assignment(start.state)
                result.serve(self._stored, memory.names if memory else {})
                return self._cautioned(result, start)
            for done in self.rounds(
                grid, num_rounds, start=start, memory=memory, initial=initial_arrays
            ):
                if journal:
                    assert self._conductor is not None
                    journal.keep(done, self._conductor.memory)
                result.serve(done.assignment, done.names)
                self._tell(done, result)
                if evaluate_fn and (found := evaluate_fn(done.number, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[done.number] = found
            for text in self._limits.totals():
                log.warning(printable(text))
        return self._cautioned(result, self.last.position if self.last else None)

    def _cautioned(self, result: GroupedResult, at: Position | None) -> GroupedResult:
        """The result, with a warning about each way in which its arrays are not the one model of all clients."""
        if at is not None:
            cohort = Cohort(present=at.members, exchange=at.exchange, seed=self.terms.seed)
            plan, served = self.terms.method.plan(at.state, cohort), result.served
            parts = [part for name, part in plan.leaves() if served is None or name == served.part]
            tasks = [
                task
                for part in parts
                for client, task in part.tasks.items()
                if not served or client not in served.plain
            ]
            result.stays = tuple(sorted({layer for task in tasks for layer in task.local_layers}))
            result.personal = any(task.personal is not None for task in tasks)
        for text in result.cautions():
            log.warning(text)
        return result

    def _tell(self, done: Round, result: Result) -> None:
        result.train_metrics_clientapp[done.number] = MetricRecord(
            {
                "groups": len(done.assignment.groups),
                "asked": done.asked,
                "answered": done.answered,
                "bytes-up": done.bytes_up,
                "bytes-down": done.bytes_down,
            }
        )
        said = f"round {done.number}: {done.answered} of {done.asked} answered, {len(done.assignment.groups)} groups"
        if done.scores:
            main, better = self.terms.main, self.terms.better
            each = [score[main] for score in done.scores.values() if score[main] == score[main]]
            if each:
                mean = done.over(done.scores, main)
                said += f", mean {main} {mean:.3f}"
                worst = f"least-{main}" if better == "greater" else f"greatest-{main}"
                found: dict[str, Any] = {
                    main: mean,
                    worst: min(each) if better == "greater" else max(each),
                }
                result.evaluate_metrics_clientapp[done.number] = MetricRecord(found)
        log.info(said)
        named = Shown.of({}, done.names)
        for client, why in sorted(done.refused.items()):
            log.warning("client %s refused: %s", named.client(client), named.text(why))
        for text in self._limits.tell(done):
            log.warning(printable(text))
        for note in done.notes:
            log.info("%s: %s", note.kind, named.text(note.text))

    def _largest(self, served: Assignment) -> ArrayRecord:
        group = max(served.groups, key=len)
        return messages.packed(
            served.models[served.row[group[0]]], self.terms.layout, self.terms.rest
        )

    # Flower's own Strategy.start calls the following methods in turn. It knows neither run
    # directories nor the number of the last round, so the last round is tested only if
    # ``eval_every`` divides its number.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Carry out all exchanges of a round but the last, and return the messages of the last one.

        Args:
            server_round: Flower's number of the round; not used.
            arrays: The first model, used before the first round only.
            config: Flower's training config; not used.
            grid: Flower's grid.

        Returns:
            The messages of the round's last exchange.

        Raises:
            EngineError: Too few nodes are connected, or the round does not end.
            SettingError: The settings do not fit together, or not to the clients' apps.
        """
        if self._conductor is None:
            self._conductor = Conductor(self.terms, grid, initial=arrays, configs=self._configs)
        carrier, clock = self._conductor.carrier, Clock()
        self._steps = self._conductor.steps(clock)
        self._plan, self._at = next(self._steps)
        while not self._plan.ends_round:
            self._plan, self._at = self._steps.send(
                (carrier.exchange(self._plan, self._at, clock), {})
            )
        return carrier.outgoing(self._plan, self._at)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the method's step with the replies to a round's last exchange.

        Args:
            server_round: Flower's number of the round; not used.
            replies: The replies.

        Returns:
            The model of the largest group, and how many tasks were given and answered.

        Raises:
            EngineError: :meth:`configure_train` was not called before.
        """
        if self._conductor is None or self._steps is None:
            raise EngineError("aggregate_train needs configure_train before it")
        heard = self._conductor.carrier.incoming(self._plan, replies, self._at.exchange)
        done = self._conductor.ended(_last(self._steps, heard))
        return self._largest(done.assignment), MetricRecord(
            {"asked": done.asked, "answered": done.answered}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages by which clients test the models assigned to them.

        Args:
            server_round: Flower's number of the round.
            arrays: Not used.
            config: Not used.
            grid: Not used.

        Returns:
            One message per connected client; none if ``eval_every`` does not divide the number of
            the round.
        """
        if self._conductor is None or self.last is None or server_round % self.terms.eval_every:
            return []
        return self._conductor.carrier.tests(self.last.assignment, self.last.position)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean of each metric over the clients."""
        if self._conductor is None or self.last is None:
            return None
        done = self.last.tested(self._conductor.carrier.scores(self.last.assignment, replies))
        means = {name: done.over(done.scores or {}, name) for name in self.terms.names}
        return MetricRecord({name: mean for name, mean in means.items() if mean is not None})

    def summary(self) -> None:
        """Log the method, the training settings and whether the nodes' client ids are unproven."""
        log.info("%s with %s", self.terms.method, self.terms.training)
        if self.terms.identity.rule == CLAIMED:
            log.info("identity is claimed: the client ids that nodes report are not verified")


def _last(steps: Steps, replies: Replies) -> Round:
    """The round after the replies to its last exchange."""
    try:
        steps.send((replies, {}))
    except StopIteration as end:
        done: Round = end.value
        return done
    raise EngineError("a round continued after its last exchange")


# ----------------------------------------------------------------------------------------------------
# The rounds of a method over a grid: settings of the federation, connected clients and exchanges.


log = logging.getLogger("flwr.coterie")
"""A child of Flower's logger, so that Flower's handlers show its messages."""
log.addFilter(printable_record)  # messages quote text from clients


WITNESSES = 5
"""Clients that are asked for the first model under a rotation. Two of them may be hostile or have
another secret."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The settings of a federation.

    See :class:`~coterie.engines.flower.MethodStrategy` for the names that are not listed here.

    Attributes:
        waiting: ``timeout``, ``min_replies`` and ``grace`` of the strategy.
        names: Metric -> the names that apps use for it.
        wire: The wire between clients and server.
        rest: Tensors of the net's state dict that are not part of a row.

    Raises:
        SettingError: Method and boundary do not fit together, or the boundary has a secret.
    """

    method: Method[Any]
    model: Callable[[], nn.Module]
    training: Training
    nodes: int
    wait: float
    waiting: Waiting
    identity: Identity
    patience: int
    seed: int
    eval_every: int
    names: Mapping[str, Sequence[str]]
    boundary: Boundary
    robust: Robust = field(default_factory=Robust)
    schema: Schema | None = None
    wire: Wire = field(init=False)
    rest: messages.Rest = field(init=False)

    def __post_init__(self) -> None:
        self.boundary.check_method(self.method)
        if self.boundary.secret is not None:
            raise SettingError(
                "Boundary.secret must be none in the server's strategy, got one: only the clients may know it"
            )
        with seeded(0):
            module = self.model()
        layout = Layout(module)
        object.__setattr__(self, "wire", Wire(self.boundary, layout, self.seed))
        object.__setattr__(self, "rest", messages.Rest.of(module, layout))

    @property
    def layout(self) -> Layout:
        """The layout of the net's parameters in a row."""
        return self.wire.layout

    @property
    def main(self) -> str:
        """The main metric: the first one whose names were given, besides the loss; the accuracy if none or it was."""
        given = [
            name
            for name, called in self.names.items()
            if METRICS.get(name) != called and name != "loss"
        ]
        return given[0] if given and "accuracy" not in given else "accuracy"

    @property
    def better(self) -> str:
        """Whether a greater or a smaller value of the main metric is better; greater if it has a name of the user's own."""
        return objective.METRICS[self.main].better if self.main in objective.METRICS else "greater"


class Conductor:
    """Runs the rounds of one run, one after the other. It waits for the nodes first.

    Args:
        terms: The settings of the federation.
        grid: Flower's grid.
        configs: Kind of message -> entries of its config besides the task.
        start: Position from which the run continues. None starts a new run.
        memory: The server's knowledge of the nodes at that position.
        initial: The first model. None draws one.
        roster: The clients and the rounds in which they are present. None means the connected
            clients.

    Attributes:
        position: Current state of the run.
        last: The last round, or None before the first one.

    Raises:
        EngineError: Too few nodes are connected.
        SettingError: The settings do not fit together, or not to the clients' apps.
    """

    def __init__(
        self,
        terms: Terms,
        grid: Grid,
        *,
        configs: Mapping[str, Mapping[str, Any]],
        start: Position | None = None,
        memory: NodeMemory | None = None,
        initial: ArrayRecord | None = None,
        roster: Roster | None = None,
    ) -> None:
        grid = CarefulGrid(grid)
        if initial and terms.boundary.rotation != "none" and start is None:
            raise SettingError(
                f"Boundary.rotation {terms.boundary.rotation} hides the first model too, but the server's strategy got one; "
                "load it in the function that makes the net, at every client"
            )
        self.terms, self.initial, self.roster = terms, initial, roster
        self.drawn: dict[int, Tensor] = {}
        memory = memory or NodeMemory()
        self.post = Post(grid)
        identity = terms.identity.going_on(memory.owners, memory.nodes)
        greeting = self._greeting(configs.get("evaluate", {}))
        names = {**(roster.client_names if roster else {}), **memory.names, **identity.names}
        self.nodes = Nodes(
            self.post, terms.waiting, identity, before=memory.nodes, names=names, greeting=greeting
        )
        self.nodes.versions = versions()
        self.nodes.schema = agreed(terms.schema, checked_memory(memory.schema))
        online = self.nodes.wait(terms.nodes, terms.wait, log.info)
        online = self._alike(online)
        self.carrier = Carrier(
            post=self.post,
            wire=terms.wire,
            training=terms.training,
            seed=terms.seed,
            nodes=self.nodes,
            rest=terms.rest,
            waiting=terms.waiting,
            names=terms.names,
            method=terms.method.name,
            online=online,
            patience=terms.patience,
            robust=terms.robust,
            configs=configs,
            run=memory.run,
            layers={part: dict(of_part) for part, of_part in memory.layers.items()},
            ended=dict(memory.ended),
            measured=Plausible.of_objective(roster.objective)
            if isinstance(roster, World)
            else None,
        )
        self.position = start or self._first(online)
        self.last: Round | None = None

    def _alike(self, online: frozenset[int]) -> frozenset[int]:
        """The connected clients whose schemas are the federation's. The world of a simulation is one anyway."""
        if self.roster is not None:
            return online
        self.nodes.agree()
        return online.intersection(self.nodes.client.values()) or self.nodes.wait(
            1, self.terms.wait, log.info
        )

    def _first(self, online: frozenset[int]) -> Position:
        founders = (
            self.roster.attendance.founders(self.roster.clients)
            if self.roster
            else tuple(sorted(online))
        )
        method = self.terms.method
        state = method.init(self._federation(founders))
        cohort = Cohort(present=founders, exchange=0, seed=self.terms.seed)
        near = method.assignment(state).neighbours is not None
        messages.check(
            method,
            method.plan(state, cohort),
            self.nodes.aware,
            self.nodes.functions,
            self.nodes.names,
            near,
        )
        return Position(round=0, exchange=0, state=state, members=founders)

    def _greeting(self, config: Mapping[str, Any]) -> RecordDict:
        """A first model and a config of a test: what nodes are asked with for their client ids."""
        terms = self.terms
        sealed = (
            terms.boundary.rotation != "none"
        )  # then the server has no first model, but any model will do here
        row = terms.wire.first_model(0, terms.model) if sealed else self._drawn(0)
        told = {**config, "lr": terms.training.lr, "server-round": 0}
        return RecordDict(
            {ARRAYS: messages.packed(row, terms.layout, terms.rest), CONFIG: ConfigRecord(told)}
        )

    def _federation(self, clients: tuple[int, ...]) -> Federation:
        layout, rotated = self.terms.layout, self.terms.boundary.rotation != "none"
        federation = Federation(
            clients=clients,
            draw=self._sealed if rotated else self._drawn,
            columns=layout.columns,
            tensors=layout.tensors,
            dense=layout.dense,
            training=self.terms.training,
        )
        return self.terms.wire.veil(federation, sealed=rotated)

    def _drawn(self, i: int) -> Tensor:
        if i == 0 and self.initial:
            try:
                row = messages.unpacked(self.initial, self.terms.layout)
            except messages.Unfit as error:
                raise SettingError(
                    f"the initial arrays do not fit the strategy's model: {error}"
                ) from None
            if not torch.isfinite(row).all():
                raise SettingError("the initial arrays have a NaN or infinite entry")
            return row
        return self.terms.wire.first_model(i, self.terms.model)

    def _sealed(self, i: int) -> Tensor:
        """The i-th first model, drawn and sealed by clients: all clients obtain the same one, but the server cannot."""
        if i in self.drawn:
            return self.drawn[i]
        config, some = (
            ConfigRecord({FIRST: i, "seed": self.terms.seed}),
            sorted(self.nodes.look())[:WITNESSES],
        )
        asked = [
            Message(
                RecordDict({CONFIG: config}),
                dst_node_id=self.nodes.node(client),
                message_type=MessageType.TRAIN,
            )
            for client in some
        ]
        row = self.carrier.first_model(self.carrier.ask(asked), self.terms.model)
        if row is not None:
            self.drawn[i] = row
            return row
        raise EngineError(
            f"no client drew the first model under rotation {self.terms.boundary.rotation}: their apps need the mod "
            "boundary_mod with the strategy's boundary and a secret"
        )

    # -- rounds
    # -----------------------------------------------------------------------------------------------------------

    def round(self, final: bool) -> Round:
        """Run one communication round with its exchanges and its test.

        Args:
            final: Whether this is the last round, which is always tested.

        Returns:
            The round.

        Raises:
            EngineError: No node is connected, or the round does not end.
        """
        clock = Clock()
        done = carry(
            self.steps(clock), lambda plan, at: (self.carrier.exchange(plan, at, clock), {})
        )
        if final or done.number % self.terms.eval_every == 0:
            with clock("evaluate"):
                done = done.tested(self.carrier.evaluate(done.assignment, done.position))
        return self.ended(done)

    def steps(self, clock: Clock) -> Steps:
        """Return the exchanges of the next round with the clients that are connected now.

        If no client is connected, it waits as at the start. A client that was retired because it
        did not answer takes part again when it has answered a message; a connection is not enough.
        If no client would be left, all connected clients take part.

        Args:
            clock: Adds up the seconds of the round.

        Returns:
            The generator of :func:`~coterie.engines.rounds.round_steps`.

        Raises:
            EngineError: No node is connected within the time to wait.
        """
        terms = self.terms
        connected = self._alike(self.nodes.look() or self.nodes.wait(1, terms.wait, log.info))
        self.carrier.online = self.nodes.awake(connected, self.position.members) or connected
        return round_steps(
            terms.method, self.roster or self.carrier, terms.wire, self.position, terms.seed, clock
        )

    @property
    def memory(self) -> NodeMemory:
        """The server's knowledge of the nodes, which a run needs to continue, besides the position."""
        nodes, owners = {**self.nodes.before, **self.nodes.client}, dict(self.nodes.identity.owners)
        here = self.carrier
        layers = {part: dict(of_part) for part, of_part in here.layers.items()}
        schema = None if self.nodes.schema is None else self.nodes.schema.to_json()
        return NodeMemory(
            here.run, nodes, layers, owners, dict(self.nodes.names), dict(here.ended), schema
        )

    def ended(self, done: Round) -> Round:
        """Add the notes about nodes to a round and store it as the last one.

        Args:
            done: The round.

        Returns:
            The round with these notes.
        """
        refused = {**self.nodes.unlike_clients, **done.refused}
        notes = (*self.nodes.taken(), *done.notes)
        self.last = replace(done, notes=notes, refused=refused, main=self.terms.main)
        self.position = done.position
        self.carrier.round_stored()
        return self.last


# ----------------------------------------------------------------------------------------------------
# A grid that tolerates malformed answers.
#
# Flower fetches all uploads that have arrived at once and turns them into messages. If it cannot do
# so for the upload of one node, it raises an error. The answers of the other nodes are then lost,
# because the SuperLink delivers them only once.


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


class CarefulGrid(Grid):
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


# ----------------------------------------------------------------------------------------------------
# The run directory of a federation: its records, and its checkpoint for a restart of the server.


class Journal(AbstractContextManager["Journal"]):
    """The records of a strategy's run in its folder ``out``.

    A new run starts new records. A run with the same settings continues those that are there.

    Args:
        folder: The folder.
        terms: The settings of the federation.
        rounds: Number of the last round.

    Raises:
        UserError: The folder belongs to another run.
    """

    def __init__(self, folder: Path | str, terms: Terms, rounds: int) -> None:
        self.folder, self.record = Path(folder), Record(folder)
        self.terms, self.rounds, self.stack = terms, rounds, ExitStack()

    def __enter__(self) -> Journal:
        own = {NODES, OTHERS, LOCK, RUN}  # files of a run that was stopped in its first round
        there = (
            {path.name.removesuffix(PART) for path in self.folder.iterdir()}
            if self.folder.is_dir()
            else set()
        )
        if (
            self.folder.exists()
            and not self.record.begun
            and (there - own or not self.folder.is_dir())
        ):
            raise UserError(
                f"{self.folder} exists and is not a run directory; choose another folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack.enter_context(held(self.folder))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def stored(self) -> tuple[Position | None, NodeMemory | None]:
        """Read the checkpoint.

        Returns:
            The position and the server's knowledge of the nodes. Both are None for a new run.

        Raises:
            UserError: The settings differ from those of the run in the folder, or its files are
                damaged.
        """
        if not self.record.begun:
            return None, None
        was = self.record.description()
        for name, value in {**self._settings(), **self._tensors(was)}.items():
            if change := _change(name, was.get(name), value):
                raise UserError(f"{self.folder} cannot be resumed: its {change}")
        found = self.record.go_on(Position, every=1)
        self._describe_anew(was, found[0] if found else 0)
        memory = read_memory(self.folder)
        if found and memory is None:
            raise DamagedError(f"{self.folder} has lost its {NODES}; it is damaged")
        return (found[1] if found else None), memory

    def keep(self, done: Round, memory: NodeMemory) -> None:
        """Record a round and store its checkpoint."""
        if not self.record.begun:
            self._describe(done)
        write_whole(self.folder / NODES, checksum.sealed_json(json.dumps(asdict(memory)).encode()))
        self.record.keep(done)
        self.record.store(done.number, done.position)

    def _settings(self) -> dict[str, Any]:
        terms = self.terms
        return {
            "methods": [{"name": terms.method.name, **plain(terms.method)}],
            "training": plain(terms.training),
            "boundary": plain(terms.boundary),
            "robust": plain(terms.robust),
            "seeds": [terms.seed],
        }

    def _tensors(self, was: Mapping[str, Any]) -> dict[str, Any]:
        """The net's tensors, for a comparison if the record contains them."""
        before = was["world"].get("net")
        return (
            {}
            if before is None
            else {"world": {"net": {"tensors": tensors_of(self.terms.model)[0]["tensors"]}}}
        )

    def _describe(self, done: Round) -> None:
        world = {"clients": sorted(done.position.members), **self._net()}
        if self.terms.main != Shown.main:
            world["metric"] = {"main": self.terms.main, "better": self.terms.better}
        self.record.describe(
            {
                "scenario": {"name": FEDERATION},
                "rounds": self.rounds,
                "eval_every": self.terms.eval_every,
                **self._settings(),
                "world": world,
                "versions": {**versions(), "flwr": version("flwr")},
            }
        )

    def _describe_anew(self, was: Mapping[str, Any], reached: int) -> None:
        """Update the description: the last round and the rounds between tests may change."""
        now = {**was, "rounds": max(self.rounds, reached), "eval_every": self.terms.eval_every}
        if now != was:
            self.record.describe(now)

    def _net(self) -> dict[str, Any]:
        """The description from which the clients' net can be rebuilt, or its state dict's tensors if it has no name."""
        if (model := nets.described(self.terms.model)) is not None:
            return {"model": model}
        net, others = tensors_of(self.terms.model)
        if others:
            data = safetensors.torch.save(others)
            write_whole(self.folder / OTHERS, data)
            net |= {"others": OTHERS, "others_checksum": checksum.digest(data)}
        return {"net": net}


def read_memory(folder: Path) -> NodeMemory | None:
    """Read the server's knowledge of the nodes from a run directory.

    Args:
        folder: The run directory.

    Returns:
        The knowledge, or None if the server was stopped in the first round, before it stored it.

    Raises:
        DamagedError: The file is damaged.
    """
    found = read_nodes(folder)
    if found is None:
        return None
    try:
        nodes, layers = _numbers(found["nodes"]), found["layers"]
        if not all(isinstance(of_part, dict) for of_part in layers.values()):
            layers = {"": layers}  # from before plans had parts
        layers = {str(part): _numbers(of_part) for part, of_part in layers.items()}
        ended = {str(part): int(exchange) for part, exchange in found.get("ended", {}).items()}
        owners = {int(key): str(badge) for key, badge in found["owners"].items()}
        names = {int(key): name for key, name in found["names"].items()}
        schema = found.get("schema")
        checked_memory(schema)
        return NodeMemory(str(found["run"]), nodes, layers, owners, names, ended, schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder / NODES} is damaged ({error})") from error


def _numbers(found: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in found.items()}


def tensors_of(model: Callable[[], nn.Module]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Describe the tensors of a net.

    Args:
        model: Function that makes the net.

    Returns:
        A dictionary with ``tensors``, in the order of a row; ``trainable``, the number of trainable
        ones, which come first; and ``tied``, the other names of tensors that have several names.
        And the tensors that are not part of a row, such as the number of batches in BatchNorm.
    """
    with seeded(0):
        module = model()
    layout, whole = Layout(module), module.state_dict()
    rest = Rest.of(module, layout)
    tensors = [
        {
            "name": piece.name,
            "shape": list(piece.shape),
            "dtype": str(whole[piece.name].dtype).removeprefix("torch."),
        }
        for piece in layout.pieces
    ]
    tied = {"tied": dict(rest.tied)} if rest.tied else {}
    return {"trainable": len(layout.tensors), "tensors": tensors, **tied}, dict(rest.others)


def _change(name: str, was: Any, now: Any) -> str | None:
    """Describe how a setting has changed; in a table, the first changed entry. None if it has not changed.

    A setting that a record lacks was added after the run began: it had its default.
    """
    if name == "methods" and isinstance(was, list) and len(was) == 1:
        return _change("method", was[0], now[0])
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        change = (
            _change(f"{name}.{key}", was[key], value) for key, value in now.items() if key in was
        )
        return next(filter(None, change), None)
    verbs = ("were", "are") if isinstance(now, list) else ("was", "is")
    return f"{name} {verbs[0]} {was}, and now {verbs[1]} {now}" if was != now else None
