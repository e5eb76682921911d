"""Runs the cells of a study that are not recorded yet; knows nothing of what a cell is about."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from coterie.boundary import Boundary
from coterie.core import Method, Plan, Position, Replies, Round
from coterie.data import datasets
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import Clock, exchange
from coterie.robust import AS_PUBLISHED
from coterie.runs.experiment import make
from papers.store import Rows
from papers.study import Claim, Resources, Row, Scale, Study, key, strength, verdict


@dataclass(frozen=True)
class Outcome:
    """What is known of a study at one scale: the rows of all its cells, what they say of the paper, and the verdict."""

    study: Study
    scale: Scale
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    @property
    def verdict(self) -> str:
        return verdict(self.claims)

    @property
    def strength(self) -> str:
        return strength(self.scale, self.seeds)

    @property
    def seeds(self) -> int:
        return len({row["cell"]["seed"] for row in self.rows})


def check_data(scale: Scale, data: str | None) -> None:
    """Raises :class:`~coterie.settings.UserError` where a file that the scale needs is not in the folder."""
    for name in scale.needs:
        source = datasets.find(name, data)
        if source.files:
            source.files(datasets.resolve(data, name))


def carry_out(study: Study, scale: Scale, rows: Rows, resources: Resources, seeds: int | None = None) -> Iterator[Row]:
    """Measure and record every cell that has no row yet; yields the rows as they are recorded."""
    known = rows.known()
    for cell in scale.cells(seeds):
        if key(cell) in known:
            continue
        began = time.perf_counter()
        found = study.measure(resources, **cell)
        row = {"cell": cell, "found": found, "seconds": round(time.perf_counter() - began, 2)}
        rows.append(row)
        yield row


def complete_seeds(scale: Scale, rows: Rows) -> int:
    """How many seeds, from 0 on, have a row of every cell."""
    known, cells, seed = rows.known(), scale.cells(1), 0
    while all(key({**cell, "seed": seed}) in known for cell in cells):
        seed += 1
    return seed


def outcome(study: Study, scale: Scale, rows: Rows, seeds: int | None = None) -> Outcome | None:
    """What the recorded rows say; None where cells are missing."""
    cells = scale.cells(seeds)
    found = rows.of(cells)
    return Outcome(study, scale, tuple(found), study.claims(found)) if len(found) == len(cells) else None


# -- what measures have in common ------------------------------------------------------------------------------------------


def world_of(resources: Resources, scenario: Mapping[str, Any], training: Mapping[str, Any], seed: int) -> World:
    """The world of a scenario's name and settings, as an experiment's file has them."""
    place = {"data": resources.data} if resources.data else {}
    return make({"scenario": scenario, "training": training, "methods": ["fedavg"], **place}).world(seed)


def rounds_of(
    method: Method[Any],
    world: World,
    resources: Resources,
    rounds: int,
    seed: int,
    start: Position | None = None,
    every: int | None = None,
) -> Iterator[Round]:
    """The rounds of a method over a world, from the first or after ``start``; every so many are tested, and the last."""
    how = {"eval_every": every or rounds, "start": start, "robust": AS_PUBLISHED, **asdict(resources.hardware)}
    for done in inprocess.rounds(method, world, rounds=rounds, seed=seed, **how):
        if resources.progress:
            resources.progress(done, rounds)
        yield done


def asked(on: Resources, method: Method[Any], plan: Plan, position: Position, world: World, seed: int) -> Replies:
    """The replies to one exchange after a run has come to ``position``; no method learns of it."""
    wire, _ = inprocess.setup(method, world, seed, Boundary())
    with ClientPool(world, wire, on.hardware, AS_PUBLISHED) as fleet:
        replies, _ = exchange(fleet, plan, position, seed, Clock())
        if replies.updates is None:
            return replies
        return replace(replies, updates=replies.updates.clone())  # the fleet's memory goes with it
