"""Estimates of the time, memory and disk space that each method of an experiment will need, before it begins.

One block of clients trains for a few steps, which shows the speed of this machine. Then the engine
makes the first rounds of each method in this process, but each task is one short step of training.
They show what the method asks of its clients, what its own steps cost, and what is stored. The
other rounds count like these. No file is written, and no random number of the run is drawn.

So changes in later rounds are not seen: methods that split groups then hold and store more models,
and more clients may join. If only some clients take part, the server's work counts as proportional
to the number of clients; it may grow faster.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from coterie.boundary import Wire
from coterie.core import Assignment, Method, Plan, Position, Round, Task, Training
from coterie.data.batches import tensors
from coterie.data.world import ClientData, World
from coterie.engines import rounds as inprocess
from coterie.engines.exchange import window
from coterie.engines.pool import ClientPool
from coterie.engines.workers import Hardware
from coterie.models.layout import Layout
from coterie.randomness import numpy_generator, seeded
from coterie.records import codec
from coterie.records.record import line, to_json
from coterie.runs.experiment import Experiment

PATIENCE = 0.8
"""Seconds for the first rounds of all methods together; each method makes two rounds or more."""
LEAST, NUMBERS = 10, 1 << 25
"""Clients in the first rounds, at least; numbers in the updates of more clients, at most."""
SHORT, LONG = 8, 0.2
"""Examples of each client in the first rounds; seconds that are enough for a measurement."""
TESTED, SCORE = 64, 0.123456789012345678
"""Examples of a client with which a test is timed; a score that is as long as others when it is
recorded."""
PROCESS, WORKER = 280e6, 40e6
"""Bytes that Python and PyTorch need in the first process, and in each worker."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate for one method with one seed.

    Attributes:
        method: The name of the method.
        seconds: Wall-clock time in seconds.
        memory: Memory in bytes.
        disk: Disk space in bytes.
        exchanges: Exchanges in all rounds.
        asked: Tasks sent in all rounds.
        evaluations: Evaluations of a model by a client in all rounds.
    """

    method: str
    seconds: float
    memory: float
    disk: float
    exchanges: float
    asked: float
    evaluations: float


def estimate(experiment: Experiment, patience: float = PATIENCE) -> tuple[Estimate, ...]:
    """Estimate what an experiment will need.

    Args:
        experiment: The experiment.
        patience: Seconds for the first rounds of all methods together.

    Returns:
        One estimate per method.
    """
    world = experiment.world(experiment.seeds[0])
    wire, _ = inprocess.setup(
        experiment.methods[0], world, experiment.seeds[0], experiment.boundary
    )
    costs, each = _probe(world, wire, experiment.hardware()), patience / len(experiment.methods)
    return tuple(
        _FirstRounds(experiment, method, world, costs, each).estimate()
        for method in experiment.methods
    )


def together(estimates: Sequence[Estimate], seeds: int) -> Estimate:
    """The estimate for all runs of an experiment, one after the other, with ``seeds`` seeds."""
    added = ("seconds", "disk", "exchanges", "asked", "evaluations")
    sums = {name: seeds * sum(getattr(one, name) for one in estimates) for name in added}
    return Estimate(method="all", memory=max(one.memory for one in estimates), **sums)


def _seen(how: Training, size: int, epochs: int | None = None) -> int:
    """Examples in the steps of one training on ``size`` examples; ``epochs`` replaces the epochs or steps if given."""
    if epochs is None and how.steps is not None:
        return how.steps * min(how.batch or size, size)
    return size * (how.epochs if epochs is None else epochs)


def _update(task: Task, how: Training, size: int) -> int:
    """Examples in the steps that give one update, in all stages."""
    return (
        sum(_seen(how, size, stage.epochs) for stage in task.stages)
        if task.stages
        else _seen(how, size)
    )


def _second(task: Task, how: Training, size: int) -> int:
    """Examples in the steps for a client's personal model, and for an update that halves do not give it."""
    if task.personal is None:
        return 0
    return _seen(how, size, task.personal.epochs) + (_update(task, how, size) if task.halves else 0)


def _one_step(task: Task, how: Training) -> Task:
    """The task with one step in each stage, and one for a personal model."""
    personal = task.personal and replace(task.personal, epochs=None)
    stages = tuple(replace(stage, epochs=None) for stage in task.stages)
    return replace(
        task, training=replace(how, steps=1), epochs=None, stages=stages, personal=personal
    )


class _Costs(NamedTuple):
    """The seconds of one process for a task besides its steps, for an example in training and in a test; clients in a block."""

    task: float
    trained: float
    tried: float
    width: int


def _probe(world: World, wire: Wire, hardware: Hardware) -> _Costs:
    """Measure the costs with one block of clients of medium size."""
    with seeded(0):
        width = hardware.block(world.model(), world)
    ordered = sorted(world.clients, key=lambda client: len(world.clients[client].train))
    block = tuple(ordered[max(0, (len(ordered) - width) // 2) :][:width])
    data = {c: replace(world.clients[c], test=_short(world.clients[c], TESTED).test) for c in block}
    here = world.attendance.of(data)
    small = replace(world, clients=data, attendance=here, attacks={}, truth=None, drift=None)
    models = wire.first_model(0, world.model)[None]
    served = Assignment(models=models, row=dict.fromkeys(block, 0), groups=(block,))
    nobody = Position(round=0, exchange=0, state=None)
    with ClientPool(small, wire, replace(hardware, workers=1, width=width)) as pool:

        def train(steps: int) -> float:
            task = Task(offered=(0,), training=replace(world.training, steps=steps))
            plan = Plan(models=models, tasks=dict.fromkeys(block, task), need="mean")
            return _timed(lambda: pool.train(plan, block, {}, (0, 0, 0)))

        step = once = train(1)  # the first call fills caches that later calls use
        if once < LONG:
            once = min(train(1), train(1))
            steps = max(2, min(20, int(LONG / once)))
            step = max(train(steps) - once, 0.0) / (steps - 1)
        test = min(_timed(lambda: pool.evaluate(served, nobody)) for _ in range(2))
    examples = sum(
        min(world.training.batch or len(one.train), len(one.train)) for one in data.values()
    )
    tried = sum(len(one.test) for one in data.values())
    return _Costs(
        max(once - step, 0.0) / len(block), step / max(examples, 1), test / max(tried, 1), width
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class _FirstRounds:
    """The first rounds of a method with some of the clients: as many as the time allows, at least two."""

    def __init__(
        self,
        experiment: Experiment,
        method: Method[Any],
        world: World,
        costs: _Costs,
        patience: float,
    ) -> None:
        self.experiment, self.method, self.world, self.costs, self.numbers = (
            experiment,
            method,
            world,
            costs,
            0.0,
        )
        self.work: list[Mapping[str, float]] = []  # of each round, for all clients
        self.newest: list[Position] = []
        with seeded(0):
            d = Layout(world.model()).size
        affordable = patience / 2 / (costs.task + SHORT * costs.trained + 1e-9)
        self.few = _some(world, int(max(LEAST, min(affordable, NUMBERS // d))))
        self.share = len(world.clients) / len(self.few.clients)
        self._play(time.perf_counter() + patience)

    def _play(self, end: float) -> None:
        seed, hardware = (
            self.experiment.seeds[0],
            replace(self.experiment.hardware(), workers=1, width=self.costs.width),
        )
        wire, federation = inprocess.setup(self.method, self.few, seed, self.experiment.boundary)
        position = Position(
            round=0, exchange=0, state=self.method.init(federation), members=federation.clients
        )
        with ClientPool(self.few, wire, hardware, self.experiment.robust) as pool:
            while position.round < self.experiment.rounds and (
                len(self.work) < 2 or time.perf_counter() < end
            ):
                clock, tasks = (
                    inprocess.Clock(),
                    dict.fromkeys(("tasks", "passes", "measured"), 0.0),
                )
                steps = inprocess.round_steps(self.method, self.few, wire, position, seed, clock)
                done = inprocess.carry(
                    steps, partial(self._exchange, pool=pool, seed=seed, clock=clock, sums=tasks)
                )
                position = done.position
                self.newest = [*self.newest, position][-self.experiment.checkpoints_kept :]
                self.work.append({**tasks, **self._ended(done)})

    def estimate(self) -> Estimate:
        """Estimate the whole run: further rounds count as the mean of the later half of the first rounds."""
        one, rounds, later = self.costs, self.experiment.rounds, self.work[len(self.work) // 2 :]
        more = (rounds - len(self.work)) / len(later)
        total = {
            n: sum(w[n] for w in self.work) + more * sum(w[n] for w in later) for n in self.work[0]
        }
        workers = self.experiment.hardware().processes(len(self.world.clients))
        blocks = math.ceil(total["tasks"] / max(total["exchanges"], 1) / one.width)
        training = (
            total["tasks"] * one.task
            + total["passes"] * one.trained
            + total["measured"] * one.tried
        )
        state = self._stored()
        return Estimate(
            method=self.method.name,
            seconds=training / max(1, min(workers, blocks))
            + total["tested"] * one.tried / workers
            + total["server"],
            memory=PROCESS
            + workers * WORKER
            + _data_bytes(self.world)
            + 4 * self.numbers
            + 2 * state,
            disk=total["written"] + min(self.experiment.checkpoints_kept, rounds) * state,
            **{name: total[name] for name in ("exchanges", "asked", "evaluations")},
        )

    def _exchange(
        self,
        plan: Plan,
        position: Position,
        *,
        pool: ClientPool,
        seed: int,
        clock: inprocess.Clock,
        sums: dict[str, float],
    ) -> inprocess.ExchangeResult:
        """Carry out a plan with one step per task, and add to ``sums`` the work of its real tasks."""
        out = inprocess.exchange(pool, self._shortened(plan, sums), position, seed, clock)
        for _, part in plan.leaves():
            models = float(len(pool.worker.models))
            replies = self.share * sum(
                1 + task.halves + (task.personal is not None) for task in part.tasks.values()
            )
            if models >= len(self.few.clients):  # one for each client
                models *= self.share
            at_a_time = window(part, pool.layout.size, pool.robust.needs_all)
            replies = (
                replies if at_a_time == len(part.tasks) else min(at_a_time, replies)
            )  # held all together, or some at a time
            self.numbers = max(self.numbers, (models + replies) * pool.layout.size)
        return out

    def _shortened(self, plan: Plan, sums: dict[str, float]) -> Plan:
        """The plan with one step per task; the work of its real tasks is added to ``sums``."""
        tasks = dict(plan.tasks)
        for client, task in plan.tasks.items():
            data, how, parts = (
                self.world.clients[client],
                task.how(self.world.training),
                1 + task.halves,
            )
            held = len(data.validation) or task.holdout.share * len(data.train)
            measured = {None: 0, "train": len(data.train), "validation": len(data.validation)}[
                task.measure
            ]
            models = task.holdout.report_losses * (1 + (task.personal is not None))
            sums["measured"] += self.share * (len(task.offered) * measured + models * held)
            if task.trains:
                part = len(data.train) // parts
                more = _second(task, how, len(data.train))
                sums["tasks"] += self.share * (parts + (more > 0))
                sums["passes"] += self.share * (
                    (part if task.gradient else parts * _update(task, how, part)) + more
                )
                tasks[client] = _one_step(task, how)
        return replace(
            plan,
            tasks=tasks,
            parts={name: self._shortened(part, sums) for name, part in plan.parts.items()},
        )

    def _ended(self, done: Round) -> dict[str, float]:
        """The work of a round besides its tasks, and what it writes."""
        scores = dict.fromkeys(
            done.assignment.row, dict.fromkeys(["loss", *self.world.objective.named], SCORE)
        )
        plain, scored = (
            len(to_json(line(replace(done, scores=some))).encode()) for some in (None, scores)
        )
        matrices = sum(matrix.nbytes for note in done.notes for matrix in note.similarity.values())
        often = 1 / self.experiment.eval_every
        return {
            "exchanges": done.exchanges,
            "asked": self.share * done.asked,
            "evaluations": self.share * done.evaluations,
            "server": self.share * done.seconds["server"],
            "tested": often * self._tested(done),
            "written": self.share * (plain + often * (scored - plain)) + self.share**2 * matrices,
        }

    def _tested(self, done: Round) -> float:
        """Examples on which models are tested: each distinct pair (models, examples) once, as in the engine."""
        served, distinct = done.assignment, dict[Hashable, int]()
        for client, row in served.row.items():
            rows = served.path.get(client, (row,)) if served.ensemble else (row,)
            data, alone = self.world.clients[client], done.position.own(served, client) is not None
            test, near = data.test, served.neighbours is not None
            more = (
                len(data.train) + len(data.validation) if near else 0
            )  # whose features are computed as well
            own = client if alone or near else None
            distinct[rows, own, id(test.inputs), id(test.index)] = len(test) * len(rows) + more
        return sum(distinct.values()) * (self.share if len(distinct) == len(served.row) else 1)

    def _stored(self) -> float:
        """Bytes of one of the newest checkpoints. Equal arrays are stored once. All but the models counts for each client."""
        arrays = dict[str, int]()

        def put(data: bytes) -> str:
            name = codec.blob(data)
            arrays[name] = len(data)
            return name

        text = sum(len(json.dumps(codec.encode(position, put))) for position in self.newest)
        size = (text + sum(arrays.values())) / len(self.newest)
        models = self.method.assignment(self.newest[-1].state).models
        shared = min(size, models.nbytes) if len(models) < len(self.few.clients) else 0
        return shared + self.share * (size - shared)


def _some(world: World, count: int) -> World:
    """A world with ``count`` of the clients, drawn at random, and the first examples of each."""
    ids = sorted(world.clients)
    drawn = [ids[i] for i in numpy_generator(0).permutation(len(ids))[:count]]
    founder = world.attendance.founders(ids)[0]  # one client at least is present from the start
    clients = {c: _short(world.clients[c], SHORT) for c in sorted({founder, *drawn})}
    attacks = {c: attack for c, attack in world.attacks.items() if c in clients}
    here = world.attendance.of(clients)
    # Time steps of a drift are alike in size.
    return replace(world, clients=clients, attendance=here, attacks=attacks, truth=None, drift=None)


def _short(data: ClientData, count: int) -> ClientData:
    """The first examples of a client; the test is on its training examples."""
    train, validation = (s.at(slice(count)) for s in (data.train, data.validation))
    return replace(data, train=train, validation=validation, test=train)


def _data_bytes(world: World) -> float:
    """Bytes of all clients' examples; examples that several clients share are counted once."""
    splits = [
        split
        for data in world.clients.values()
        for split in (data.train, data.validation, data.test)
    ]
    found = [one for split in splits for one in tensors((split.inputs, split.index, split.targets))]
    return float(
        sum({id(one): one.nbytes for one in found if isinstance(one, torch.Tensor)}.values())
    )
