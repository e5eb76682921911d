"""Any method as a strategy of Flower's: plans go out as messages, replies come back as what a step sees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from coterie.boundary import Boundary, Wire
from coterie.core import Federation, Method, Training
from coterie.engines.clock import Clock
from coterie.engines.flower import messages
from coterie.engines.flower.carrier import Carrier
from coterie.engines.flower.journal import Journal
from coterie.engines.flower.nodes import Nodes
from coterie.engines.inprocess import Position, Round, Steps, carry, communicate
from coterie.engines.roll import Roster
from coterie.engines.workers import EngineError
from coterie.experiment import method_class
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError, build

log = logging.getLogger("flwr.coterie")
"""Below Flower's own, so that its handlers show what is logged."""

METRICS: Mapping[str, tuple[str, ...]] = {
    "loss": ("loss", "eval_loss", "test_loss", "val_loss"),
    "accuracy": ("accuracy", "eval_acc", "eval_accuracy", "acc", "test_acc", "test_accuracy", "val_acc", "val_accuracy"),
}
"""Metric -> the names that apps may have for it; the first one there counts."""


_OWN = ("nodes", "wait", "timeout", "patience", "seed", "eval-every", "out")


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings in a table of a run config, which Flower flattens: ``cfl.eps1`` is eps1 of cfl."""
    return {key.removeprefix(f"{name}."): value for key, value in config.items() if key.startswith(f"{name}.")}


class MethodStrategy(Strategy):
    """A Coterie method over Flower: one model per cluster or client, several in one message where a task offers them.

    method: with its settings. model: makes the clients' net. training: how clients train that know of Coterie; of it other
    apps are told the learning rate, as ``config["lr"]``. nodes: how many must be connected before the first round; ``wait``
    seconds at most. timeout: seconds an exchange may take; who has not answered is silent, and after ``patience`` rounds of
    silence away. seed: of everything random. eval_every: rounds between tests. metrics: metric -> the names that apps give
    it. boundary: what clients do to rows (:func:`~coterie.engines.flower.boundary_mod`). out: a run directory, for records
    and checkpoints; if a run of this method is there already, it goes on.

    After :meth:`start`, ``last`` is the last round, with the groups and their models.
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
        patience: int = 10,
        seed: int = 0,
        eval_every: int = 1,
        metrics: Mapping[str, Sequence[str]] | None = None,
        boundary: Boundary | None = None,
        out: Path | str | None = None,
    ) -> None:
        whole = (("nodes", nodes, 1), ("patience", patience, 1), ("seed", seed, 0), ("eval_every", eval_every, 1))
        for name, value, least in whole:
            if not isinstance(value, int) or value < least:
                raise SettingError(f"MethodStrategy.{name} must be a whole number >= {least}, got {value!r}")
        self.method, self.model, self.training = method, model, training or Training()
        self.nodes, self.wait, self.timeout, self.patience = nodes, wait, timeout, patience
        self.seed, self.eval_every, self.out = seed, eval_every, out
        self.names = {**METRICS, **{name: tuple(names) for name, names in (metrics or {}).items()}}
        self.boundary = boundary or Boundary()
        with seeded(0):
            module = model()
        self.layout = Layout(module)
        self.wire = Wire(self.boundary, self.layout, seed)
        in_row = {piece.name for piece in self.layout.pieces}
        self.others = {name: value.clone() for name, value in module.state_dict().items() if name not in in_row}
        self.boundary.check_method(method)
        self.configs: dict[str, Mapping[str, Any]] = {}
        self.last: Round | None = None
        self._carrier: Carrier | None = None
        self._steps: Steps | None = None
        self._position: Position | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], model: Callable[[], nn.Module], **how: Any) -> MethodStrategy:
        """By Flower's run config: ``method`` is a name of :data:`coterie.METHODS`, ``<method>.<setting>`` and
        ``training.<setting>`` are settings, and ``nodes``, ``wait``, ``timeout``, ``patience``, ``seed``, ``eval-every``
        and ``out`` are those of this class. An app may have other keys of its own. how: what takes precedence. Raises
        :class:`~coterie.settings.UserError`."""
        name = str(config.get("method", "cfl"))
        made = build(method_class(name), _table(config, name))
        training = build(Training, _table(config, "training"))
        own = {key.replace("-", "_"): value for key, value in config.items() if key in _OWN and value != ""}
        return cls(made, model, **{"training": training, **own, **how})

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def rounds(
        self, grid: Grid, rounds: int, *, start: Position | None = None, clients: Mapping[int, int] | None = None,
        initial: ArrayRecord | None = None, roster: Roster | None = None,
    ) -> Iterator[Round]:
        """Yield each communication round up to number ``rounds``. start: go on from there. clients: node -> client, as it
        was before. initial: the first model, in place of a fresh one. roster: who is there when, where that is not simply
        who is connected."""
        position = self._begin(grid, start, clients, initial, roster)
        while position.round < rounds:
            done = self._round(position.round + 1 == rounds)
            position = done.position
            yield done

    def _begin(
        self, grid: Grid, start: Position | None, clients: Mapping[int, int] | None, initial: ArrayRecord | None,
        roster: Roster | None = None,
    ) -> Position:  # fmt: skip
        nodes = Nodes(grid, before=clients or {})
        online = nodes.wait(self.nodes, self.wait, log.info)
        self._carrier = Carrier(
            grid=grid, wire=self.wire, training=self.training, seed=self.seed, nodes=nodes, others=self.others,
            timeout=self.timeout, names=self.names, method=self.method.name, online=online, patience=self.patience,
            roster=roster, configs=self.configs,
        )  # fmt: skip
        if start is None:
            founders = roster.attendance.founders(roster.clients) if roster else tuple(sorted(online))
            state = self.method.init(self._federation(founders, initial))
            start = Position(round=0, exchange=0, state=state, members=founders)
        self._position = start
        return start

    def _federation(self, clients: tuple[int, ...], initial: ArrayRecord | None) -> Federation:
        def draw(i: int) -> torch.Tensor:
            if i == 0 and initial:
                return messages.unpacked(initial, self.layout)
            with seeded(*self.wire.first_key(i)):
                return self.layout.row(self.model())

        layout = self.layout
        return self.wire.veil(
            Federation(clients=clients, draw=draw, columns=layout.columns, tensors=layout.tensors, dense=layout.dense)
        )

    def _round(self, final: bool) -> Round:
        """One communication round: its exchanges, and the test."""
        clock, carrier = Clock(), self._there()
        done = carry(self._steps_of(carrier, clock), lambda plan, at: (carrier.exchange(plan, at, clock), {}))
        if final or done.number % self.eval_every == 0:
            with clock("evaluate"):
                done = replace(done, scores=carrier.evaluate(done.assignment, done.position))
        self._position, self.last = done.position, done
        return done

    def _steps_of(self, carrier: Carrier, clock: Clock) -> Steps:
        assert self._position is not None
        return communicate(self.method, carrier.roster or carrier, self.wire, self._position, self.seed, clock)

    def _there(self) -> Carrier:
        """The carrier, with who is connected now; if nobody is, wait as at the start."""
        assert self._carrier is not None
        nodes = self._carrier.nodes
        self._carrier.online = nodes.look() or nodes.wait(1, self.wait, log.info)
        return self._carrier

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
            self.timeout = timeout
        self.configs = {"train": train_config or {}, "evaluate": evaluate_config or {}}
        self.summary()
        result = Result()
        with ExitStack() as stack:
            journal = stack.enter_context(Journal(self.out, self, num_rounds)) if self.out is not None else None
            start, clients = journal.stored() if journal else (None, None)
            for done in self.rounds(grid, num_rounds, start=start, clients=clients, initial=initial_arrays):
                if journal:
                    assert self._carrier is not None
                    journal.keep(done, self._carrier.nodes.client)
                self._tell(done, result)
                if evaluate_fn and (found := evaluate_fn(done.number, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[done.number] = found
        return result

    def _tell(self, done: Round, result: Result) -> None:
        result.arrays = self._largest(done)
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

    def _largest(self, done: Round) -> ArrayRecord:
        group = max(done.assignment.groups, key=len)
        return messages.packed(done.assignment.models[done.assignment.row[group[0]]], self.layout, self.others)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The messages of a round's last exchange; those before it are carried out here."""
        if self._carrier is None:
            self._begin(grid, None, None, arrays)
        carrier, self._clock = self._there(), Clock()
        self._steps = self._steps_of(carrier, self._clock)
        self._plan, at = next(self._steps)
        while not self._plan.ends_round:
            self._plan, at = self._steps.send((carrier.exchange(self._plan, at, self._clock), {}))
        return carrier.outgoing(self._plan, at)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the step; the largest group's model, and how many answered."""
        if self._carrier is None or self._steps is None:
            raise EngineError("aggregate_train needs configure_train before it")
        try:
            self._steps.send((self._carrier.incoming(self._plan, replies), {}))
        except StopIteration as end:
            self.last = end.value
        assert self.last is not None
        self._position = self.last.position
        return self._largest(self.last), MetricRecord({"asked": self.last.asked, "answered": self.last.answered})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every client gets the model that serves it."""
        if self._carrier is None or self.last is None or server_round % self.eval_every:
            return []
        return self._carrier.tests(self.last.assignment, self.last.position)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean over clients."""
        if self._carrier is None or self.last is None:
            return None
        scores = self._carrier.scores(self.last.assignment, replies)
        values = {name: [s[name] for s in scores.values() if s[name] == s[name]] for name in self.names}
        return MetricRecord({name: sum(each) / len(each) for name, each in values.items() if each})

    def summary(self) -> None:
        """Log what will run."""
        log.info("%s with %s", self.method, self.training)
