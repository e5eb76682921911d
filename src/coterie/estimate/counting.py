"""Sums over what a run asks for and keeps, where some of its clients stand for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from coterie.core import Assignment, Plan, Task, Training
from coterie.engines.inprocess import Round
from coterie.record import line, to_json
from coterie.world import ClientData, World

NUMBER = 4
HEADER = 180
"""Bytes of an array's head in its file, and of its name in a checkpoint."""

PASS = 1e-9
"""Seconds that the server takes, about, for a number of a model or reply: memory, and not arithmetic, is what limits it."""

SCORE = 0.123456789012345678


@dataclass(frozen=True)
class Work:
    """What one round asks for, of all clients.

    exchanges, asked, evaluations: as in records. tasks: trained, halves counted as two. passes: examples that go through
    training. measured, tested: examples that a model is tried on. products: pairs of updates multiplied. rows: of the largest
    exchange, models and replies in shared memory. text, matrices: bytes recorded. server: seconds of the method's own steps.
    """

    exchanges: int
    asked: float
    evaluations: float
    tasks: float
    passes: float
    measured: float
    tested: float
    products: float
    rows: float
    text: float
    matrices: float
    server: float


@dataclass
class Counts:
    """Of one round, exchange by exchange. share: clients there are for each in ``world``. left_out: numbers of a model that
    the one played with has not."""

    world: World
    share: float
    left_out: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("tasks", "passes", "measured", "products"), 0.0))
    rows: float = 0.0

    def add(self, plan: Plan, window: int, kept: Mapping[int, Tensor]) -> None:
        """An exchange. window: replies held at a time. kept: who has layers of its own."""
        personal = 0
        for client, task in plan.tasks.items():
            data, own = self.world.clients[client], bool(task.keep) and client in kept
            personal += len(task.offered) * own
            self.sums["tasks"] += self.share * task.trains * (1 + task.halves)
            self.sums["passes"] += self.share * passes(task, self.world.training, len(data.train))
            self.sums["measured"] += self.share * len(task.offered) * _measured(task, data)
        halves = sum(task.halves for task in plan.tasks.values())
        if plan.need == "gram" or halves:
            self.sums["products"] += (self.share * (len(plan.tasks) + halves)) ** 2
        whole = window >= len(plan.tasks)
        replies = self.share * (len(plan.tasks) + halves)
        everyone = len(plan.models) >= len(self.world.clients)  # a model each
        models = len(plan.models) * (self.share if everyone else 1) + self.share * personal
        streamed = not whole or (plan.need == "mean" and not halves)
        self.rows = max(self.rows, models + (min(window, replies) if streamed else replies))

    def work(self, done: Round, tested: bool) -> Work:
        """The round's, which has ended."""
        names = self.world.objective.names
        scores = dict.fromkeys(done.assignment.row, dict.fromkeys(names, SCORE)) if tested else None
        text = len(to_json(line(dataclasses.replace(done, scores=scores))).encode())
        matrices = sum(matrix.numel() * NUMBER for note in done.notes for matrix in note.similarity.values())
        return Work(
            exchanges=done.exchanges,
            asked=self.share * done.asked,
            evaluations=self.share * done.evaluations,
            tested=self._tested(done) if tested else 0.0,
            rows=self.rows,
            text=self.share * text,
            matrices=self.share**2 * matrices,
            server=done.seconds["server"] + PASS * self.rows * self.left_out,
            **self.sums,
        )

    def _tested(self, done: Round) -> float:
        """Examples that models are tested on: each distinct (models, examples) once, as the engine does."""
        served: Assignment = done.assignment
        distinct: dict[Hashable, float] = {}
        for client, row in served.row.items():
            rows = served.path.get(client, (row,)) if served.ensemble else (row,)
            test = self.world.clients[client].test
            own = client if client in done.position.kept else None
            distinct[rows, own, id(test.inputs), id(test.index)] = len(test) * len(rows)
        return sum(distinct.values()) * (self.share if len(distinct) == len(served.row) else 1)


def passes(task: Task, training: Training, examples: int) -> float:
    """Examples that go through training in a task, of a client that has so many; its halves together.

    >>> passes(Task(offered=(0,)), Training(epochs=3), 100), passes(Task(offered=(0,)), Training(steps=5, batch=32), 100)
    (300.0, 160.0)
    """
    if not task.trains:
        return 0.0
    how, parts = task.how(training), 1 + task.halves
    if task.gradient:
        return float(examples)
    part = examples // parts
    each = how.epochs * part if how.steps is None else how.steps * min(how.batch or part, part)
    return float(parts * each)


def _measured(task: Task, data: ClientData) -> int:
    return {None: 0, "train": len(data.train), "validation": len(data.validation)}[task.measure]


class Sizes:
    """Bytes that states take in checkpoints; what two of them share is stored once. Where some clients stand for
    all, what has as many parts as clients play is ``share`` times as long, and so is an axis of more than ``models`` and not
    more rows. longer: lengths of axes that stand for others -> those."""

    def __init__(self, clients: int, models: int, share: float, longer: Mapping[int, int] | None = None) -> None:
        self.clients, self.models, self.share, self.longer = clients, models, share, longer or {}
        self.seen: set[int] = set()

    def of(self, value: Any) -> float:
        if isinstance(value, Tensor | np.ndarray):
            return self._array(value)
        if isinstance(value, Mapping):
            items: Sequence[Any] = [part for item in value.items() for part in item]
            return 20 + sum(map(self.of, items)) * self._factor(len(value))
        if isinstance(value, tuple | frozenset):
            return 2 + sum(map(self.of, value)) * self._factor(len(value))
        if dataclasses.is_dataclass(value):
            fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
            return 50 + sum(len(name) + self.of(part) for name, part in fields)
        return float(len(to_json(value)) + 2)

    def _array(self, value: Tensor | np.ndarray) -> float:
        if id(value) in self.seen:
            return HEADER / 2
        self.seen.add(id(value))
        number = value.element_size() if isinstance(value, Tensor) else value.itemsize
        size = float(number)
        for length in value.shape:
            size *= self.longer.get(length, length) * (self.share if self.models < length <= self.clients else 1.0)
        return HEADER + size

    def _factor(self, length: int) -> float:
        return self.share if length == self.clients else 1.0
