"""Any method as a strategy of Flower's: plans go out as messages, replies come back as what a step sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from coterie.boundary import Boundary
from coterie.core import Assignment, Method, Replies, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import messages
from coterie.engines.flower.conductor import Conductor, Terms, log
from coterie.engines.flower.identity import CLAIMED, Identity, from_file
from coterie.engines.flower.journal import Journal
from coterie.engines.flower.nodes import Memory
from coterie.engines.flower.waiting import Waiting
from coterie.engines.inprocess import Position, Round, Steps
from coterie.engines.roll import Roster
from coterie.engines.workers import EngineError
from coterie.methods import method_class
from coterie.robust import Robust
from coterie.settings import SettingError, build

METRICS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": ("accuracy", "eval_acc", "eval_accuracy", "acc", "test_acc", "test_accuracy", "val_acc", "val_accuracy"),
}
"""Metric -> the names that apps may have for it; the first one there counts."""

_OWN = ("nodes", "wait", "timeout", "min-replies", "grace", "identity", "patience", "seed", "eval-every", "out")


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings in a table of a run config, which Flower flattens: ``cfl.eps1`` is eps1 of cfl."""
    return {key.removeprefix(f"{name}."): _listed(value) for key, value in config.items() if key.startswith(f"{name}.")}


def _listed(value: Any) -> Any:
    """A run config has no lists: numbers with commas between them, or one and a comma, are one."""
    if not isinstance(value, str) or "," not in value:
        return value
    try:
        return tuple(json.loads(part) for part in value.split(",") if part.strip())
    except ValueError:
        return value


class MethodStrategy(Strategy):
    """A Coterie method over Flower: one model per cluster or client, several in one message where a task offers them.

    method: with its settings. model: makes the clients' net. training: how clients train that know of Coterie; of it other
    apps are told the learning rate, as ``config["lr"]``. nodes: how many must be connected before the first round; ``wait``
    seconds at most. timeout: seconds an exchange may take; who has not answered is silent, and after ``patience`` rounds of
    silence away. min_replies, grace: once this share of the clients has answered, the others have ``grace`` times as long
    again as that took, and 60 seconds at least. identity: which node is which client: ``"claimed"``, whichever it says;
    ``"first"``, for good the first node, by its key, that says so; or client -> public key file, fingerprint or node id (see
    ``coterie.engines.flower.identity``). seed: of everything random. eval_every: rounds between tests. metrics: metric ->
    the names that apps give it. boundary: what clients do to rows (:func:`~coterie.engines.flower.boundary_mod`). robust:
    bounds on what one client can do to the others (:class:`~coterie.robust.Robust`). out: a run directory, for records and
    checkpoints; if a run of this method is there already, it goes on.

    After :meth:`start`, ``assignment`` has the groups and their models, and ``last`` is the last round.
    """

    def __init__(
        self,
        method: Method[Any],
        model: Callable[[], nn.Module],
        *,
        training: Training | None = None,
        nodes: int = 2,
        wait: float = 600.0,
        timeout: float = 3600.0,
        min_replies: float = 0.8,
        grace: float = 2.0,
        identity: str | Mapping[int, Any] | Identity = CLAIMED,
        patience: int = 10,
        seed: int = 0,
        eval_every: int = 1,
        metrics: Mapping[str, Sequence[str]] | None = None,
        boundary: Boundary | None = None,
        robust: Robust | None = None,
        out: Path | str | None = None,
    ) -> None:
        whole = (("nodes", nodes, 1), ("patience", patience, 1), ("seed", seed, 0), ("eval_every", eval_every, 1))
        for name, value, least in whole:
            if type(value) is not int or value < least:
                raise SettingError(f"MethodStrategy.{name} must be a whole number >= {least}, got {value!r}")
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < 1e9:
            raise SettingError(f"MethodStrategy.wait must be a number of seconds > 0, got {wait!r}")
        self.terms = Terms(
            method=method, model=model, training=training or Training(), nodes=nodes, wait=wait,
            waiting=Waiting(timeout=timeout, min_replies=min_replies, grace=grace), identity=Identity.of(identity),
            patience=patience, seed=seed, eval_every=eval_every, boundary=boundary or Boundary(), robust=robust or Robust(),
            names={**METRICS, **{name: tuple(names) for name, names in (metrics or {}).items()}},
        )  # fmt: skip
        self.out = out
        self._conductor: Conductor | None = None
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._steps: Steps | None = None
        self._stored: Assignment | None = None

    @property
    def last(self) -> Round | None:
        """The last round there was."""
        return self._conductor.last if self._conductor else None

    @property
    def assignment(self) -> Assignment | None:
        """Who is served by which model now."""
        return self.last.assignment if self.last else self._stored

    @classmethod
    def from_config(cls, config: Mapping[str, Any], model: Callable[[], nn.Module], **how: Any) -> MethodStrategy:
        """By Flower's run config: ``method`` is a name of :data:`coterie.METHODS`, ``<method>.<setting>`` and
        ``training.<setting>``, ``boundary.<setting>`` and ``robust.<setting>`` are settings, ``metrics.<metric>`` is the name
        that apps give a metric, and ``nodes``, ``wait``, ``timeout``, ``min-replies``, ``grace``, ``identity``, ``patience``,
        ``seed``, ``eval-every`` and ``out`` are those of this class. ``clients`` is the path of a TOML file with the list for
        ``identity``. An app may have other keys of its own. how: what takes precedence. Raises
        :class:`~coterie.settings.UserError`."""
        name = str(config.get("method", "cfl"))
        made = build(method_class(name), _table(config, name))
        own = {key.replace("-", "_"): value for key, value in config.items() if key in _OWN and value != ""}
        if config.get("clients"):
            own["identity"] = from_file(str(config["clients"]))
        own["training"] = build(Training, _table(config, "training"))
        own["boundary"] = build(Boundary, _table(config, "boundary"))
        own["robust"] = build(Robust, _table(config, "robust"))
        own["metrics"] = {metric: str(called).split(",") for metric, called in _table(config, "metrics").items()}
        return cls(made, model, **{**own, **how})

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def rounds(
        self, grid: Grid, rounds: int, *, start: Position | None = None, memory: Memory | None = None,
        initial: ArrayRecord | None = None, roster: Roster | None = None,
    ) -> Iterator[Round]:
        """Yield each communication round up to number ``rounds``. start, memory: go on from there, with what was known of
        the nodes then. initial: the first model, in place of a fresh one. roster: who is there when, where that is not
        simply who is connected."""
        here = self._conductor = Conductor(
            self.terms, grid, start=start, memory=memory, initial=initial, roster=roster, configs=self._configs
        )
        while here.position.round < rounds:
            yield here.round(here.position.round + 1 == rounds)

    # -- Flower's interface -------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run it: rounds are recorded in ``out`` and logged. The result's arrays are the model of the largest group.

        train_config, evaluate_config: what apps find in ``config`` besides the learning rate and the round.
        """
        if timeout is not None:
            self.terms = replace(self.terms, waiting=replace(self.terms.waiting, timeout=timeout))
        self._configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self.summary()
        result = Result()
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(self.out, self.terms, num_rounds)) if self.out is not None else None
            start, memory = journal.stored() if journal else (None, None)
            if start is not None and start.round >= num_rounds:
                return self._finished(start, result)
            for done in self.rounds(grid, num_rounds, start=start, memory=memory, initial=initial_arrays):
                if journal:
                    assert self._conductor is not None
                    journal.keep(done, self._conductor.memory)
                self._tell(done, result)
                if evaluate_fn and (found := evaluate_fn(done.number, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[done.number] = found
        return result

    def _finished(self, at: Position, result: Result) -> Result:
        """Of a run that has all its rounds already: nobody is waited for."""
        log.info("%s has its %d rounds already", self.out, at.round)
        self._stored = self.terms.method.assignment(at.state)
        result.arrays = self._largest(self._stored)
        return result

    def _tell(self, done: Round, result: Result) -> None:
        result.arrays = self._largest(done.assignment)
        result.train_metrics_clientapp[done.number] = MetricRecord({
            "groups": len(done.assignment.groups), "asked": done.asked, "answered": done.answered,
            "bytes-up": done.bytes_up, "bytes-down": done.bytes_down,
        })  # fmt: skip
        said = f"round {done.number}: {done.answered} of {done.asked} answered, {len(done.assignment.groups)} groups"
        if done.scores:
            each = [score["accuracy"] for score in done.scores.values() if score["accuracy"] == score["accuracy"]]
            if each:
                said += f", mean accuracy {sum(each) / len(each):.3f}"
                found: dict[str, Any] = {"accuracy": sum(each) / len(each), "least-accuracy": min(each)}
                result.evaluate_metrics_clientapp[done.number] = MetricRecord(found)
        log.info(said)
        for client, why in sorted(done.refused.items()):
            log.warning("client %s refused: %s", client, why)
        for note in done.notes:
            log.info("%s: %s", note.kind, note.text)

    def _largest(self, served: Assignment) -> ArrayRecord:
        group = max(served.groups, key=len)
        return messages.packed(served.models[served.row[group[0]]], self.terms.layout, self.terms.rest)

    # Strategy.start of Flower's own calls these in turn. It knows neither run directories nor the last round, which is
    # tested only where ``eval_every`` has it.

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The messages of a round's last exchange; those before it are carried out here."""
        if self._conductor is None:
            self._conductor = Conductor(self.terms, grid, initial=arrays, configs=self._configs)
        carrier, clock = self._conductor.carrier, Clock()
        self._steps = self._conductor.steps(clock)
        self._plan, self._at = next(self._steps)
        while not self._plan.ends_round:
            self._plan, self._at = self._steps.send((carrier.exchange(self._plan, self._at, clock), {}))
        return carrier.outgoing(self._plan, self._at)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the step; the largest group's model, and how many answered."""
        if self._conductor is None or self._steps is None:
            raise EngineError("aggregate_train needs configure_train before it")
        heard = self._conductor.carrier.incoming(self._plan, replies, self._at.exchange)
        done = self._conductor.ended(_last(self._steps, heard))
        return self._largest(done.assignment), MetricRecord({"asked": done.asked, "answered": done.answered})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every client gets the model that serves it."""
        if self._conductor is None or self.last is None or server_round % self.terms.eval_every:
            return []
        return self._conductor.carrier.tests(self.last.assignment, self.last.position)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean over clients."""
        if self._conductor is None or self.last is None:
            return None
        scores = self._conductor.carrier.scores(self.last.assignment, replies)
        values = {name: [s[name] for s in scores.values() if s[name] == s[name]] for name in self.terms.names}
        return MetricRecord({name: sum(each) / len(each) for name, each in values.items() if each})

    def summary(self) -> None:
        """Log what will run."""
        log.info("%s with %s", self.terms.method, self.terms.training)
        if self.terms.identity.rule == CLAIMED:
            log.info("identity is claimed: every node is the client that it says, and nothing proves it")


def _last(steps: Steps, replies: Replies) -> Round:
    """What a round's steps come to after their last exchange."""
    try:
        steps.send((replies, {}))
    except StopIteration as end:
        done: Round = end.value
        return done
    raise EngineError("a round went on after the exchange that ends it")
