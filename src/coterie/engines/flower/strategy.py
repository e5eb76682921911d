"""A strategy for Flower that runs any method: it sends plans as messages and turns replies into the input of a step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from coterie.boundary import Boundary
from coterie.core import Assignment, Cohort, Method, Position, Round, Training
from coterie.data.schema import Schema, checked
from coterie.engines.flower import messages
from coterie.engines.flower.federated_run import METRICS, FederatedRun, FederationSettings
from coterie.engines.flower.limited import LimitLog
from coterie.engines.flower.nodes import (
    CLAIMED,
    Identity,
    NodeMemory,
    Waiting,
    from_file,
)
from coterie.engines.flower.result import GroupedResult
from coterie.engines.flower.run_directory import RunDirectory
from coterie.engines.flower.tolerant_grid import log
from coterie.engines.membership import Roster
from coterie.engines.workers import EngineError
from coterie.methods import made, method_class
from coterie.models import nets
from coterie.printable import printable
from coterie.records.shown import Shown
from coterie.robust import Robust
from coterie.settings import SettingError, build, settings_of, table_of
from coterie.settings.calls import public

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
        self.settings = FederationSettings(
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
        self._federated_run: FederatedRun | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._limits = LimitLog()
        self._stored: Assignment | None = None

    @property
    def last(self) -> Round | None:
        """The last round, or None before the first one."""
        return self._federated_run.last if self._federated_run else None

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
        run = self._federated_run = FederatedRun(
            self.settings,
            grid,
            start=start,
            memory=memory,
            initial=initial,
            roster=roster,
            configs=self._configs,
        )
        while run.position.round < rounds:
            yield run.round(final=run.position.round + 1 == rounds)

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
            self.settings = replace(
                self.settings, waiting=replace(self.settings.waiting, timeout=timeout)
            )
        self._configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self.summary()
        settings = self.settings
        result = GroupedResult(
            layout=settings.layout, rest=settings.rest, sealed=settings.boundary.rotation != "none"
        )
        with ExitStack() as stack:
            journal = (
                stack.enter_context(RunDirectory(self.out, self.settings, num_rounds))
                if self.out is not None
                else None
            )
            start, memory = journal.stored() if journal else (None, None)
            if start is not None and start.round >= num_rounds:
                log.info("%s already has its %d rounds", self.out, start.round)
                self._stored = settings.method.assignment(start.state)
                result.serve(self._stored, memory.names if memory else {})
                return self._cautioned(result, start)
            for done in self.rounds(
                grid, num_rounds, start=start, memory=memory, initial=initial_arrays
            ):
                if journal:
                    assert self._federated_run is not None
                    journal.keep(done, self._federated_run.memory)
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
            cohort = Cohort(present=at.members, exchange=at.exchange, seed=self.settings.seed)
            plan, served = self.settings.method.plan(at.state, cohort), result.served
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
            main, better = self.settings.main, self.settings.better
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
            served.models[served.row[group[0]]], self.settings.layout, self.settings.rest
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
        if self._federated_run is None:
            self._federated_run = FederatedRun(
                self.settings, grid, initial=arrays, configs=self._configs
            )
        return self._federated_run.begin_round()

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
        if self._federated_run is None:
            raise EngineError("aggregate_train needs configure_train before it")
        run = self._federated_run
        done = run.close(run.end_exchanges(replies))
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
        if (
            self._federated_run is None
            or self.last is None
            or server_round % self.settings.eval_every
        ):
            return []
        return self._federated_run.exchanges.tests(self.last.assignment, self.last.position)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the mean of each metric over the clients."""
        if self._federated_run is None or self.last is None:
            return None
        done = self.last.tested(self._federated_run.exchanges.scores(self.last.assignment, replies))
        means = {name: done.over(done.scores or {}, name) for name in self.settings.names}
        return MetricRecord({name: mean for name, mean in means.items() if mean is not None})

    def summary(self) -> None:
        """Log the method, the training settings and whether the nodes' client ids are unproven."""
        log.info("%s with %s", self.settings.method, self.settings.training)
        if self.settings.identity.rule == CLAIMED:
            log.info("identity is claimed: the client ids that nodes report are not verified")
