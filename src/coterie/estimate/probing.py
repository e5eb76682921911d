"""What training and testing cost here: a few real steps of one block of clients, timed. Nothing is kept of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from coterie.boundary import Wire
from coterie.clustering import gram
from coterie.core import Assignment, Plan, Task
from coterie.engines.fleet import Fleet
from coterie.engines.hardware import Hardware
from coterie.randomness import Purpose, generator, seeded
from coterie.world import Split, World

LONG = 0.2
"""Seconds that are enough to tell."""
TESTED = 64
"""Examples of a client, at most, that a test is timed with."""
MULTIPLIED = 1 << 22
"""Numbers in the updates whose products are timed."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one process: of a task besides its steps, of an example trained, of one tried; of the product of two updates.
    width: clients trained in one block."""

    task: float
    trained: float
    tried: float
    product: float
    width: int


def probe(world: World, wire: Wire, hardware: Hardware) -> Costs:
    """Measure, in this process, with clients of middling size."""
    with seeded(0):
        width = hardware.block(world.model(), world)
    ordered = sorted(world.clients, key=lambda client: len(world.clients[client].train))
    first = max(0, (len(ordered) - width) // 2)
    clients = {client: world.clients[client] for client in ordered[first : first + width]}
    clients = {c: replace(data, test=_short(data.train)) for c, data in clients.items()}
    training, model = world.training, wire.first_model(0, world.model)[None]
    small = replace(world, clients=clients, training=training, attacks={}, truth=None)
    alone = replace(hardware, workers=1, width=width)

    with Fleet(small, wire, alone) as fleet:

        def train(steps: int) -> None:
            task = Task(offered=(0,), training=replace(training, steps=steps))
            fleet.train(Plan(models=model, tasks=dict.fromkeys(clients, task), need="mean"), tuple(clients), {}, (0, 0, 0))

        served = Assignment(models=model, row=dict.fromkeys(clients, 0), groups=(tuple(clients),))
        step, task = _step(train)
        test = _timed(lambda: fleet.evaluate(served, {}))
        if test < LONG:
            test = _timed(lambda: fleet.evaluate(served, {}))
    sizes = [len(data.train) for data in clients.values()]
    examples = sum(min(training.batch or size, size) for size in sizes)
    tried = sum(len(data.test) for data in clients.values())
    return Costs(task / len(clients), step / examples, test / max(tried, 1), _product(wire.layout.size), width)


def _short(split: Split) -> Split:
    return Split(split.inputs, split.index[:TESTED], split.targets[:TESTED])


def _step(train: Callable[[int], None]) -> tuple[float, float]:
    """Seconds of a step, and of a call besides its steps."""
    once = _timed(lambda: train(1))  # the first makes what others find
    if once > LONG:
        return once, 0.0
    once = min(_timed(lambda: train(1)) for _ in range(2))
    steps = max(2, min(20, int(LONG / once)))
    step = max(_timed(lambda: train(steps)) - once, 0.0) / (steps - 1)
    return step, max(once - step, 0.0)


def _product(size: int) -> float:
    """Seconds of the product of two updates ``(d,)`` in a Gram matrix of many."""
    rows = torch.randn(max(2, min(128, MULTIPLIED // size)), size, generator=generator(0, Purpose.INIT))
    return _timed(lambda: gram(rows)) / len(rows) ** 2


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
