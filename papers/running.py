"""Runs the cells of a study that are not recorded yet; knows nothing of what a cell is about."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from coterie.boundary import Boundary
from coterie.core import Method, Plan, Position, Replies, Round
from coterie.data import datasets
from coterie.data.world import World
from coterie.engines import rounds as inprocess
from coterie.engines.clock import Clock
from coterie.engines.exchange import exchange
from coterie.engines.pool import ClientPool
from coterie.robust import AS_PUBLISHED
from coterie.runs.experiment import make
from papers.store import Rows
from papers.study import Cell, Claim, Resources, Row, Scale, Study, key, strength, verdict


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


def carry_out(
    study: Study,
    scale: Scale,
    rows: Rows,
    resources: Resources,
    seeds: int | None = None,
    jobs: int = 1,
    part: tuple[int, int] = (0, 1),
) -> Iterator[Row]:
    """Measure and record the cells that have no row yet; yields the rows as they are recorded.

    jobs: cells that are measured at a time, each in a process with one thread. part: (i, n) for
    every n-th cell from the i-th on, for n machines whose files of rows are then put together.
    """
    known = rows.known()
    missing = [cell for cell in scale.cells(seeds)[part[0] :: part[1]] if key(cell) not in known]
    for row in (
        map(partial(measured, study.measure, resources), missing)
        if jobs == 1
        else _at_a_time(study.measure, resources, missing, jobs)
    ):
        rows.append(row)
        yield row


def seconds_left(scale: Scale, rows: Rows, cells: list[Cell]) -> float:
    """About how long the cells without a row take on a CPU, one after the other: as those with one, else as the scale says."""
    recorded = rows.of(cells)
    known = [row for row in recorded if "device" not in row]
    each = (
        sum(row["seconds"] for row in known) / len(known)
        if known
        else scale.seconds / max(1, len(scale.cells()))
    )
    return each * (len(cells) - len(recorded))


Measure = Callable[..., Mapping[str, Any]]


def measured(measure: Measure, resources: Resources, cell: Cell) -> Row:
    """The row of a cell; it names the GPU that it was made on."""
    began = time.perf_counter()
    found = measure(resources, **cell)
    row = {"cell": cell, "found": found, "seconds": round(time.perf_counter() - began, 2)}
    device = resources.hardware.device
    return row if device == "cpu" else row | {"device": torch.cuda.get_device_name(device)}


def _at_a_time(
    measure: Measure, resources: Resources, cells: Sequence[Cell], jobs: int
) -> Iterator[Row]:
    """The rows of cells, in the order in which they are measured."""
    alone = replace(resources, hardware=replace(resources.hardware, workers=1), progress=None)
    context = multiprocessing.get_context("spawn")  # a fork would copy the state of torch's threads
    with ProcessPoolExecutor(
        min(jobs, max(1, len(cells))), context, torch.set_num_threads, (1,)
    ) as pool:
        try:
            for done in as_completed(
                [pool.submit(measured, measure, alone, cell) for cell in cells]
            ):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def complete_seeds(scale: Scale, rows: Rows) -> int:
    """How many seeds, from 0 on, have a row of every cell."""
    known, seed = rows.known(), 0
    while (own := [cell for cell in scale.cells(seed + 1) if cell["seed"] == seed]) and all(
        key(cell) in known for cell in own
    ):
        seed += 1
    return seed


def outcome(study: Study, scale: Scale, rows: Rows, seeds: int | None = None) -> Outcome | None:
    """What the recorded rows say; None where cells are missing."""
    cells = scale.cells(seeds)
    found = rows.of(cells)
    return (
        Outcome(study, scale, tuple(found), study.claims(found))
        if len(found) == len(cells)
        else None
    )


# -- what measures have in common
# ------------------------------------------------------------------------------------------


def world_of(
    resources: Resources, scenario: Mapping[str, Any], training: Mapping[str, Any], seed: int
) -> World:
    """The world of a scenario's name and settings, as an experiment's file has them."""
    place = {"data": resources.data} if resources.data else {}
    return make({"scenario": scenario, "training": training, "methods": ["fedavg"], **place}).world(
        seed
    )


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
    how = {
        "eval_every": every or rounds,
        "start": start,
        "robust": AS_PUBLISHED,
        **asdict(resources.hardware),
    }
    for done in inprocess.rounds(method, world, rounds=rounds, seed=seed, **how):
        if resources.progress:
            resources.progress(done, rounds)
        yield done


def asked(
    on: Resources, method: Method[Any], plan: Plan, position: Position, world: World, seed: int
) -> Replies:
    """The replies to one exchange after a run has come to ``position``; no method learns of it."""
    wire, _ = inprocess.setup(method, world, seed, Boundary())
    with ClientPool(world, wire, on.hardware, AS_PUBLISHED) as fleet:
        replies, _ = exchange(fleet, plan, position, seed, Clock())
        if replies.updates is None:
            return replies
        return replace(replies, updates=replies.updates.clone())  # the fleet's memory goes with it
