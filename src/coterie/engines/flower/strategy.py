"""A strategy for Flower that runs any method: it sends plans as messages and turns replies into the input of a step."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from coterie.engines.flower.federated_run import FederatedRun
from coterie.engines.flower.federation import APP_METRIC_NAMES, FederationSettings
from coterie.engines.flower.limited import LimitLog, LimitMessage
from coterie.engines.flower.nodes import (
    CLAIMED,
    Identity,
    NodeMemory,
    Waiting,
    identity_of_file,
)
from coterie.engines.flower.result import GroupedResult
from coterie.engines.flower.run_directory import RunDirectory
from coterie.engines.flower.tolerant_grid import log
from coterie.engines.membership import Roster
from coterie.engines.workers import EngineError
from coterie.methods import METHODS, made, method_class
from coterie.methods._presets import built
from coterie.models import nets
from coterie.notebook.tables import count
from coterie.printable import printable
from coterie.records.shown import Shown
from coterie.robust import Robust
from coterie.settings import SettingError, build, settings_of, table_of
from coterie.settings.calls import public

_ARGUMENT_KEYS = (
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
"""Keys of a run config that are arguments of the strategy."""


def _table(run_config: Mapping[str, Any], table_name: str) -> dict[str, Any]:
    """The settings in one table of a run config. Flower flattens tables: ``cfl.eps1`` is ``eps1`` of ``cfl``."""
    return {
        config_key.removeprefix(f"{table_name}."): _read_list(config_value)
        for config_key, config_value in run_config.items()
        if config_key.startswith(f"{table_name}.")
    }


def _misspelled_keys(run_config: Mapping[str, Any], method: Method[Any]) -> list[str]:
    """A sentence for each key of a run config that Coterie does not read, though it was probably meant to."""
    known_keys = ("method", "clients", *_ARGUMENT_KEYS)
    method_settings = settings_of(type(method))
    # A key with a typing error would silently leave a setting at its default.
    warnings = []
    for config_key in run_config:
        if config_key in known_keys:
            continue
        # Without a method the default one runs, whatever other method has settings.
        table_name, _, inner_name = config_key.partition(".")
        if "method" not in run_config and inner_name and table_name in METHODS:
            if table_name != method.name:
                warnings.append(
                    f"the run config has {config_key!r} and no method, so {method.name} runs; "
                    f'for {table_name}, write method = "{table_name}"'
                )
            continue
        setting_name = config_key.replace("-", "_")
        similar_keys = get_close_matches(config_key.replace("_", "-"), known_keys, 1, 0.8)
        # Settings of the method need its name in front.
        if setting_name in method_settings:
            suggestion = f"{method.name}.{setting_name}"
        elif similar_keys:
            suggestion = similar_keys[0]
        else:
            continue
        warnings.append(
            f"the run config has {config_key!r}, which Coterie does not read; did you mean {suggestion}?"
        )
    return warnings


def _read_list(config_value: Any) -> Any:
    """Read a list. A run config has none, so numbers separated by commas, or one number and a comma, mean a list."""
    if not isinstance(config_value, str) or "," not in config_value:
        return config_value
    try:
        return tuple(
            json.loads(list_entry) for list_entry in config_value.split(",") if list_entry.strip()
        )
    except ValueError:
        return config_value


def _log_limit(limit_message: LimitMessage) -> None:
    level = logging.WARNING if limit_message.warns else logging.INFO
    log.log(level, printable(limit_message.text))


MAX_NAMED_ABSENT = 6
"""Absent clients that the log names in each round."""


def _absence_words(
    finished_round: Round, shown_names: Shown, connected_clients: Container[int]
) -> str:
    """Which clients were not asked in a round because they were away, and since when."""
    phrases = []
    for client, first_missed in sorted(finished_round.absent.items())[:MAX_NAMED_ABSENT]:
        # A node may be connected and answer nothing: then it is not asked either.
        problem = "does not answer" if client in connected_clients else "is offline"
        phrases.append(f"{shown_names.client(client)} {problem} since round {first_missed}")
    other_count = len(finished_round.absent) - MAX_NAMED_ABSENT
    if other_count > 0:
        phrases.append(f"and {other_count} more")
    return f"away: {'; '.join(phrases)}"


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
        facts: What is known of the clients' data, to be recorded and exported as that of a
            simulation: ``about`` and ``target_scale`` as ``run.toml`` has them under ``world``.
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
        facts: Mapping[str, Any] | None = None,
        out: Path | str | None = None,
    ) -> None:
        # Check the arguments that are not settings of some dataclass.
        integers = (
            ("nodes", nodes, 1),
            ("patience", patience, 1),
            ("seed", seed, 0),
            ("eval_every", eval_every, 1),
        )
        for argument_name, argument_value, minimum in integers:
            if type(argument_value) is not int or argument_value < minimum:
                raise SettingError(
                    f"MethodStrategy.{argument_name} must be an integer >= {minimum}, got {argument_value!r}"
                )
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < 1e9:
            raise SettingError(f"MethodStrategy.wait must be a number of seconds > 0, got {wait!r}")
        if not isinstance(metrics or {}, Mapping):
            raise SettingError(
                f"MethodStrategy.metrics must be a mapping from metrics to apps' names, got {metrics!r:.60}"
            )
        nets.check_maker(model, "MethodStrategy.model")
        # The user's names replace the default names of a metric.
        metric_names: dict[str, Sequence[str]] = dict(APP_METRIC_NAMES)
        for metric_name, app_names in (metrics or {}).items():
            metric_names[metric_name] = (
                (app_names,) if isinstance(app_names, str) else tuple(app_names)
            )
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
            metric_names=metric_names,
            schema=None if schema is None else checked(schema, "MethodStrategy.schema"),
            facts=facts or {},
        )
        self.out = out
        self._federated_run: FederatedRun | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._limits = LimitLog()
        self._stored_assignment: Assignment | None = None

    @property
    def last(self) -> Round | None:
        """The last round, or None before the first one."""
        return self._federated_run.last if self._federated_run else None

    @property
    def assignment(self) -> Assignment | None:
        """The current assignment of models to clients, or None before the first round."""
        return self.last.assignment if self.last else self._stored_assignment

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], model: Callable[[], nn.Module], **how: Any
    ) -> MethodStrategy:
        """Make a strategy from Flower's run config.

        These keys of the run config count; an app may have other keys.

        - ``method``: a name of :data:`coterie.METHODS`, or ``package.module:Class`` of your own;
          without it, ``auto``.
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
        # The method with its settings, and warnings about keys that look misspelled.
        method_type = method_class(str(config.get("method", "auto")))
        method = built(method_type, _table(config, method_type.name))
        for warning_text in _misspelled_keys(config, method):
            log.warning(warning_text)
        # Entries that are arguments of the strategy. In a run config, an empty text means that the
        # entry is not set.
        arguments = {
            config_key.replace("-", "_"): config_value
            for config_key, config_value in config.items()
            if config_key in _ARGUMENT_KEYS and config_value != ""
        }
        if config.get("clients"):
            arguments["identity"] = identity_of_file(str(config["clients"]))
        # The tables of settings.
        arguments["training"] = build(Training, _table(config, "training"))
        arguments["boundary"] = build(Boundary, _table(config, "boundary"))
        arguments["robust"] = build(Robust, _table(config, "robust"))
        arguments["metrics"] = {
            metric_name: str(app_names).split(",")
            for metric_name, app_names in _table(config, "metrics").items()
        }
        return cls(method, model, **{**arguments, **how})

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
        # This waits for the nodes, and asks them for their client ids and schemas.
        federated_run = FederatedRun(
            self.settings,
            grid,
            start=start,
            memory=memory,
            initial=initial,
            roster=roster,
            configs=self._configs,
        )
        self._federated_run = federated_run
        while federated_run.position.round < rounds:
            yield federated_run.round(final=federated_run.position.round + 1 == rounds)

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
        # Flower's arguments override the strategy's settings.
        if timeout is not None:
            self.settings = replace(
                self.settings, waiting=replace(self.settings.waiting, timeout=timeout)
            )
        self._configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self._log_settings(num_rounds)
        settings = self.settings
        # The result has the models of the last finished round, also if the run fails later.
        result = GroupedResult(
            layout=settings.layout,
            other_tensors=settings.other_tensors,
            sealed=settings.boundary.rotation != "none",
        )
        with ExitStack() as exit_stack:
            run_directory = None
            if self.out is not None:
                run_directory = exit_stack.enter_context(
                    RunDirectory(self.out, settings, num_rounds)
                )
            # Continue the run of the directory, or return its result if it has all its rounds.
            start, memory = run_directory.stored() if run_directory else (None, None)
            if start is not None and start.round >= num_rounds:
                log.info("%s already has its %d rounds", self.out, start.round)
                self._stored_assignment = settings.method.assignment(start.state)
                result.serve(self._stored_assignment, memory.names if memory else {})
                return self._with_cautions(result, start)
            self._limits = LimitLog()
            if run_directory is not None and start is not None:
                log.info("%s continues after round %d", self.out, start.round)
                client_names = memory.names if memory else {}
                self._limits = LimitLog.of_records(run_directory.record.lines(), client_names)
            for finished_round in self.rounds(
                grid, num_rounds, start=start, memory=memory, initial=initial_arrays
            ):
                if run_directory:
                    assert self._federated_run is not None
                    # The round is on the disk before anything else happens with it.
                    run_directory.keep(finished_round, self._federated_run.memory)
                # Report the round in Flower's result and in the log, and test it at the server.
                result.serve(finished_round.assignment, finished_round.names)
                self._store_metrics(finished_round, result)
                self._log_round(finished_round)
                if evaluate_fn:
                    metrics = evaluate_fn(finished_round.number, result.arrays)
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[finished_round.number] = metrics
            if run_directory and self._federated_run is not None and self.last is not None:
                # What an export of the last models says about their probabilities.
                sums = self._federated_run.exchanges.calibration(
                    self.last.assignment, self.last.position
                )
                run_directory.keep_calibration(self.last.number, sums)
            # At the end, say once more which clients were limited.
            for limit_total in self._limits.totals():
                _log_limit(limit_total)
        return self._with_cautions(result, self.last.position if self.last else None)

    def _with_cautions(self, result: GroupedResult, position: Position | None) -> GroupedResult:
        """The result, with a warning about each way in which its arrays are not the one model of all clients."""
        if position is not None:
            # The tasks of the next plan say what stays at the clients.
            next_cohort = Cohort(
                present=position.members, exchange=position.exchange, seed=self.settings.seed
            )
            next_plan = self.settings.method.plan(position.state, next_cohort)
            assignment = result.assignment
            local_layers: set[str] = set()
            for part_name, part in next_plan.leaves():
                if assignment is not None and part_name != assignment.part:
                    continue
                for client, task in part.tasks.items():
                    if assignment is None or client not in assignment.plain:
                        local_layers.update(task.local_layers)
                        result.personal |= task.personal is not None
            result.local_layers = tuple(sorted(local_layers))
        for caution in result.cautions():
            log.warning(caution)
        return result

    def _store_metrics(self, finished_round: Round, result: Result) -> None:
        """Store the counts and the scores of a round in the result, under Flower's names."""
        result.train_metrics_clientapp[finished_round.number] = MetricRecord(
            {
                "groups": len(finished_round.assignment.groups),
                "asked": finished_round.asked,
                "answered": finished_round.answered,
                "bytes-up": finished_round.bytes_up,
                "bytes-down": finished_round.bytes_down,
            }
        )
        mean_score = self._mean_score(finished_round)
        if mean_score is None:
            return
        main_metric = self.settings.main_metric
        # The worst client is the one with the least or the greatest value, as the metric demands.
        client_scores = self._client_scores(finished_round)
        if self.settings.better == "greater":
            worst_name = f"least-{main_metric}"
            worst_score = min(client_scores)
        else:
            worst_name = f"greatest-{main_metric}"
            worst_score = max(client_scores)
        scores: dict[str, Any] = {main_metric: mean_score, worst_name: worst_score}
        result.evaluate_metrics_clientapp[finished_round.number] = MetricRecord(scores)

    def _client_scores(self, finished_round: Round) -> list[float]:
        """The clients' scores by the main metric, without NaN; empty if the round was not tested."""
        main_metric = self.settings.main_metric
        client_scores = [
            scores_of_client[main_metric]
            for scores_of_client in (finished_round.scores or {}).values()
        ]
        return [
            scores_of_client
            for scores_of_client in client_scores
            if scores_of_client == scores_of_client
        ]

    def _mean_score(self, finished_round: Round) -> float | None:
        """The mean of the main metric over the clients; None if no client has a score."""
        if not self._client_scores(finished_round):
            return None
        return finished_round.over(finished_round.scores or {}, self.settings.main_metric)

    def _log_round(self, finished_round: Round) -> None:
        """Log a round: its counts and mean score, refusals, limits and notes."""
        # One line for the round, then one line for each event in it.
        summary = (
            f"round {finished_round.number}: {finished_round.answered} of {finished_round.asked} answered, "
            f"{count(len(finished_round.assignment.groups), 'group')}"
        )
        mean_score = self._mean_score(finished_round)
        if mean_score is not None:
            summary += f", mean {self.settings.main_metric} {mean_score:.3f}"
        log.info(summary)
        shown_names = Shown.of({}, finished_round.names)
        for client, refusal in sorted(finished_round.refused.items()):
            log.warning(
                "client %s refused: %s", shown_names.client(client), shown_names.text(refusal)
            )
        for limit_message in self._limits.new_limits(finished_round):
            _log_limit(limit_message)
        for round_note in finished_round.notes:
            log.info("%s: %s", round_note.kind, shown_names.text(round_note.text))
        if finished_round.absent:
            connected_clients: Container[int] = ()
            if self._federated_run is not None:
                connected_clients = self._federated_run.nodes.connected_clients
            absence = _absence_words(finished_round, shown_names, connected_clients)
            log.warning(printable(absence))

    def _model_of_largest_group(self, assignment: Assignment) -> ArrayRecord:
        largest_group = max(assignment.groups, key=len)
        model_row = assignment.models[assignment.row[largest_group[0]]]
        return messages.packed(model_row, self.settings.layout, self.settings.other_tensors)

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
        federated_run = self._federated_run
        finished_round = federated_run.close(federated_run.end_exchanges(replies))
        task_counts = MetricRecord(
            {"asked": finished_round.asked, "answered": finished_round.answered}
        )
        return self._model_of_largest_group(finished_round.assignment), task_counts

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
        scores = self._federated_run.exchanges.scores(self.last.assignment, replies)
        tested_round = self.last.tested(scores)
        mean_scores = {
            metric_name: tested_round.over(tested_round.scores or {}, metric_name)
            for metric_name in self.settings.metric_names
        }
        return MetricRecord(
            {
                metric_name: mean_value
                for metric_name, mean_value in mean_scores.items()
                if mean_value is not None
            }
        )

    def summary(self) -> None:
        """Log the method, the training settings, those without effect, and whether the nodes' client ids are unproven."""
        self._log_settings(rounds=None)

    def _log_settings(self, rounds: int | None) -> None:
        """Log the settings, see :meth:`summary`; ``rounds`` is the number of the last round, if it is known."""
        log.info("%s with %s", self.settings.method, self.settings.training)
        for unused_setting in self.settings.unused(rounds):
            log.warning(printable(unused_setting))
        if self.settings.identity.rule == CLAIMED:
            log.info("identity is claimed: the client ids that nodes report are not verified")
