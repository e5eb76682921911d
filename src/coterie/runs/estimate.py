"""Estimates of the time, memory and disk space that each method of an experiment will need, before it begins.

A simulation runs the method's own plans with artificial replies. It shows how much each client trains and how much data is
kept. A few real training steps show the speed of this machine. No file is written, and no random number of the run is drawn.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.clustering import gram, sketch
from coterie.core import Assignment, Client, Method, Plan, Position, Replies, Round, Task, Training, amounts
from coterie.data.world import ClientData, Split, World
from coterie.engines import rounds as inprocess
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import Clock, window
from coterie.engines.workers import Hardware
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator, numpy_generator, seeded
from coterie.records.record import line, to_json
from coterie.runs.experiment import Experiment

PATIENCE, LEAST = 0.8, 0.05
"""Seconds of simulation for all methods together, and the least for each method."""

PROCESS = 280e6
WORKER = 40e6
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


def estimate(experiment: Experiment, world: World | None = None, patience: float = PATIENCE) -> tuple[Estimate, ...]:
    """Estimate what an experiment will need.

    Args:
        experiment: The experiment.
        world: The world of the first seed, if it is available; None to build it.
        patience: Seconds of simulation, for all methods together.

    Returns:
        One estimate per method.
    """
    seed, hardware = experiment.seeds[0], experiment.hardware()
    world = world or experiment.world(seed)
    wire, _ = inprocess.setup(experiment.methods[0], world, seed, experiment.boundary)
    costs, each = probe(world, wire, hardware), max(patience / len(experiment.methods), LEAST)
    workers = hardware.processes(len(world.clients))
    out = []
    for method in experiment.methods:
        played = play(
            method, world, seed, experiment.boundary, rounds=experiment.rounds, eval_every=experiment.eval_every,
            kept=experiment.checkpoints_kept, patience=each,
        )  # fmt: skip
        total = {name: played.total(name, experiment.rounds) for name in ("exchanges", "asked", "evaluations")}
        out.append(
            Estimate(
                method=method.name,
                seconds=seconds(played, costs, experiment.rounds, workers),
                memory=PROCESS + data_bytes(world) + rows_bytes(played) + 2 * played.state + workers * WORKER,
                disk=disk(played, experiment.rounds),
                **total,
            )
        )
    return tuple(out)


def seconds(played: Played, costs: Costs, rounds: int, workers: int) -> float:
    """The wall-clock time of a run: workers share training and tests, one process does the server's arithmetic.

    Args:
        played: The simulation of the run.
        costs: The costs on this machine.
        rounds: Rounds of the run.
        workers: Processes that train.

    Returns:
        Seconds.
    """
    total = {name: played.total(name, rounds) for name in played.work[0].__dataclass_fields__}
    blocks = math.ceil(total["tasks"] / max(total["exchanges"], 1) / costs.width)
    together = max(1, min(workers, blocks))
    training = total["tasks"] * costs.task + total["passes"] * costs.trained + total["measured"] * costs.tried
    return training / together + total["tested"] * costs.tried / workers + total["products"] * costs.product + total["server"]


def rows_bytes(played: Played) -> float:
    """Bytes of the models and replies in shared memory, in the largest exchange."""
    return played.most("rows") * played.size * 4


def disk(played: Played, rounds: int) -> float:
    """Bytes of a run directory after ``rounds`` rounds: records, matrices and the newest checkpoints."""
    return played.total("text", rounds) + played.total("matrices", rounds) + played.kept


def data_bytes(world: World) -> float:
    """Bytes of all clients' examples; examples that several clients share are counted once."""
    tensors: dict[int, Tensor] = {}
    for data in world.clients.values():
        for split in (data.train, data.validation, data.test):
            tensors |= {id(tensor): tensor for tensor in (split.inputs, split.index, split.targets)}
    return float(sum(tensor.nbytes for tensor in tensors.values()))


def together(estimates: Sequence[Estimate], seeds: int) -> Estimate:
    """The estimate for all runs of an experiment, one after the other, with ``seeds`` seeds."""
    added = ("seconds", "disk", "exchanges", "asked", "evaluations")
    sums = {name: seeds * sum(getattr(one, name) for one in estimates) for name in added}
    return Estimate(method="all", memory=max(one.memory for one in estimates), **sums)


# ----------------------------------------------------------------------------------------------------
# Sums over the work and the stored data of a run, if a sample of its clients represents all.


NUMBER = 4
HEADER = 180
"""Bytes of an array's header in its file and of its name in a checkpoint."""

PASS = 1e-9
"""Approximate seconds of the server for one number of a model or reply: memory access, not arithmetic, is the limit."""

SCORE = 0.123456789012345678


@dataclass(frozen=True)
class Work:
    """The work of one round, of all clients.

    Attributes:
        exchanges: As in records.
        asked: As in records.
        evaluations: As in records.
        tasks: Tasks with training; a task with halves counts as two.
        passes: Examples that go through training.
        measured: Examples on which clients evaluate the offered models.
        tested: Examples on which models are tested.
        products: Pairs of updates that are multiplied.
        rows: Models and replies in shared memory, in the largest exchange.
        text: Bytes recorded as text.
        matrices: Bytes recorded as matrices.
        server: Seconds of the method's own steps.
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
    """The sums of one round, exchange by exchange.

    Attributes:
        world: The clients of the simulation.
        share: Number of real clients for each client in ``world``.
        left_out: Numbers of the real model that the simulated model does not have.
        sums: Name of a field of :class:`Work` -> its sum so far.
        rows: Models and replies in shared memory, in the largest exchange so far.
    """

    world: World
    share: float
    left_out: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("tasks", "passes", "measured", "products"), 0.0))
    rows: float = 0.0

    def add(self, plan: Plan, window: int, kept: Mapping[int, Tensor]) -> None:
        """Add an exchange.

        Args:
            plan: The plan of the exchange.
            window: Replies that are held at a time.
            kept: Clients that keep own layers -> these layers.
        """
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
        everyone = len(plan.models) >= len(self.world.clients)  # one model for each client
        models = len(plan.models) * (self.share if everyone else 1) + self.share * personal
        streamed = not whole or (plan.need == "mean" and not halves)
        self.rows = max(self.rows, models + (min(window, replies) if streamed else replies))

    def work(self, done: Round, tested: bool) -> Work:
        """The work of the round.

        Args:
            done: The completed round.
            tested: Whether the round is tested.

        Returns:
            The work.
        """
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
        """Examples on which models are tested: each distinct pair (models, examples) once, as in the engine."""
        served: Assignment = done.assignment
        distinct: dict[Hashable, float] = {}
        for client, row in served.row.items():
            rows = served.path.get(client, (row,)) if served.ensemble else (row,)
            test = self.world.clients[client].test
            own = client if client in done.position.kept else None
            distinct[rows, own, id(test.inputs), id(test.index)] = len(test) * len(rows)
        return sum(distinct.values()) * (self.share if len(distinct) == len(served.row) else 1)


def passes(task: Task, training: Training, examples: int) -> float:
    """Examples that go through training in a task, both halves together.

    Args:
        task: The task.
        training: Local training.
        examples: Training examples of the client.

    Returns:
        The number of examples.

    Example:
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
    """Bytes of states in checkpoints; an array that several states share is counted once.

    If a sample of the clients represents all, a collection with one part per simulated client counts as ``share`` times as
    long. So does an array axis longer than ``models`` and at most as long as the number of simulated clients.

    Args:
        clients: Simulated clients.
        models: Models of the method.
        share: Number of real clients for each simulated client.
        longer: Length of an axis in the simulation -> its length in the real run.
    """

    def __init__(self, clients: int, models: int, share: float, longer: Mapping[int, int] | None = None) -> None:
        self.clients, self.models, self.share, self.longer = clients, models, share, longer or {}
        self.seen: set[int] = set()

    def of(self, value: Any) -> float:
        """Bytes of a value of a state."""
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


# ----------------------------------------------------------------------------------------------------
# A small model in place of a large one that no client trains: its tensors have the same names and fewer numbers.


LARGE = 1 << 14
"""Parameters (d) from which on a model is made smaller, and about the number that remains."""


def shrunk(world: World, numbers: int | None = None) -> World:
    """A world with a smaller model.

    Each tensor keeps its share of the numbers, at least one. A model that is small already stays as it is.

    Args:
        world: The world.
        numbers: About the number of numbers of the new model; None for :data:`LARGE`.

    Returns:
        The world with the new model.
    """
    with seeded(0, Purpose.INIT):
        module = world.model()
        share = (numbers or LARGE) / Layout(module).size
        if share >= 1:
            return world
        for tensor in (*module.parameters(), *module.buffers()):
            flat = tensor.detach().flatten()
            tensor.data = flat[: max(1, round(len(flat) * share))].clone()  # the same object: shared tensors stay shared
    return replace(world, model=_like(module))


def layout_of(world: World) -> Layout:
    """The layout of a world's model; the random numbers of runs are not affected."""
    with seeded(0, Purpose.INIT):
        return Layout(world.model())


def lengths(small: Layout, whole: Layout) -> Mapping[int, int]:
    """Length of a row, and number of its parameters, in the small model -> in the full model."""
    return {small.trainable: whole.trainable, small.size: whole.size}


def _like(module: nn.Module) -> Callable[[], nn.Module]:
    """A function that makes modules with numbers drawn from the tensors of ``module`` by torch's global generator."""

    def make() -> nn.Module:
        made = copy.deepcopy(module)
        for parameter in made.parameters():
            parameter.data = _drawn(parameter.data)
        return made

    return make


def _drawn(tensor: Tensor) -> Tensor:
    return tensor[torch.randint(len(tensor), tensor.shape)]


# ----------------------------------------------------------------------------------------------------
# The costs of training and tests on this machine: the time of a few real steps of one block of clients, which are discarded.


LONG = 0.2
"""Seconds that are enough for a measurement."""
TESTED = 64
"""Most examples of a client with which a test is timed."""
MULTIPLIED = 1 << 22
"""Numbers in the updates with which products are timed."""


@dataclass(frozen=True)
class Costs:
    """The costs of one process, in seconds.

    Attributes:
        task: Of a task besides its steps.
        trained: Of training with one example.
        tried: Of the evaluation of one example.
        product: Of the product of two updates.
        width: Clients trained in one block.
    """

    task: float
    trained: float
    tried: float
    product: float
    width: int


def probe(world: World, wire: Wire, hardware: Hardware) -> Costs:
    """Measure the costs in this process, with clients of medium size.

    Args:
        world: The world.
        wire: The boundary with its map, for the layout of the model.
        hardware: The hardware settings of the run.

    Returns:
        The costs.
    """
    with seeded(0):
        width = hardware.block(world.model(), world)
    ordered = sorted(world.clients, key=lambda client: len(world.clients[client].train))
    first = max(0, (len(ordered) - width) // 2)
    clients = {client: world.clients[client] for client in ordered[first : first + width]}
    clients = {c: replace(data, test=_short(data.train)) for c, data in clients.items()}
    training, model = world.training, wire.first_model(0, world.model)[None]
    small = replace(world, clients=clients, training=training, attacks={}, truth=None)
    alone = replace(hardware, workers=1, width=width)

    with ClientPool(small, wire, alone) as fleet:

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
    once = _timed(lambda: train(1))  # the first call fills caches that later calls use
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


# ----------------------------------------------------------------------------------------------------
# Simulation of a run with artificial replies: the method's own plans show the clients' tasks and the data that is kept.
#
# No client trains. Each group of clients has its own optimum, and every reply is a step towards it. So methods find the
# groups and hold as many models as in a real run. If replies are large, a sample of the clients represents all, and a small
# model represents a large one.


NUMBERS = 1 << 24
"""Most numbers in all artificial replies of an exchange; :data:`CLIENTS`: most simulated clients."""
CLIENTS = 200

RATE, NOISE = 0.5, 0.1
"""The step of a client, as a share of the way to its optimum; the variance of updates, as a share of their mean square."""

DIRECTIONS = 512
"""Dimensions of the noise of updates."""


@dataclass(frozen=True)
class Played:
    """A simulated run.

    Attributes:
        work: The work of each simulated round.
        kept: Bytes of the newest checkpoints.
        state: Bytes of one of them.
        size: Numbers of a row (d).
    """

    work: tuple[Work, ...]
    kept: float
    state: float
    size: int

    def total(self, name: str, rounds: int) -> float:
        """The total of a field over a run; rounds that were not simulated count as the mean of the later half of the others.

        Args:
            name: The name of a field of :class:`Work`.
            rounds: Rounds of the run.

        Returns:
            The total.
        """
        values = [getattr(work, name) for work in self.work]
        later = values[len(values) // 2 :]
        return float(sum(values) + (rounds - len(values)) * sum(later) / len(later))

    def most(self, name: str) -> float:
        """The greatest value of a field in any round."""
        return float(max(getattr(work, name) for work in self.work))


def some(world: World, d: int) -> World:
    """The world with the sample of its clients that is simulated, for models of ``d`` parameters."""
    ids, groups = sorted(world.clients), len(world.truth or ((),))
    count = max(5 * groups, min(CLIENTS, NUMBERS // d))
    if count >= len(ids):
        return world
    founders = world.attendance.founders(ids)
    taken = {*ids[:: -(-len(ids) // count)], founders[0]}
    attacks = {client: attack for client, attack in world.attacks.items() if client in taken}
    return replace(world, clients={client: world.clients[client] for client in sorted(taken)}, attacks=attacks)


def play(
    method: Method[Any], world: World, seed: int, boundary: Boundary, *, rounds: int, eval_every: int = 1, kept: int = 2,
    patience: float = float("inf"),
) -> Played:  # fmt: skip
    """Simulate the rounds of a run, as many as the time allows, at least one.

    Args:
        method: The method.
        world: The world.
        seed: The seed of the run.
        boundary: The boundary of the run.
        rounds: Rounds of the run.
        eval_every: Rounds between tests.
        kept: Newest checkpoints kept.
        patience: Seconds that the simulation may take.

    Returns:
        The simulated run.
    """
    layout = layout_of(world)
    played = shrunk(world) if boundary.rotation == "none" else world  # a map's blocks depend on the size of the model
    played = some(played, layout_of(played).size)
    share = len(world.clients) / len(played.clients)
    wire, federation = inprocess.setup(method, played, seed, boundary)
    clients = SimulatedClients(played, wire, federation.draw(0), layout.size)
    position = Position(round=0, exchange=0, state=method.init(federation), members=federation.clients)
    work: list[Work] = []
    newest: list[Position] = []
    end = time.perf_counter() + patience
    while position.round < rounds and (not work or time.perf_counter() < end):
        clock, counts = Clock(), Counts(played, share, left_out=layout.size - wire.layout.size)
        steps = inprocess.round_steps(method, played, wire, position, seed, clock)
        done = inprocess.carry(steps, partial(clients.answer, counts=counts))
        position = done.position
        newest = [*newest, position][-kept:]
        work.append(counts.work(done, done.number % eval_every == 0 or done.number == rounds))
    held = len(done.assignment.models)
    models = held if held < len(played.clients) else 1  # else there is one for each client
    longer = lengths(wire.layout, layout)
    kept_bytes, state = (Sizes(len(played.clients), models, share, longer).of(value) for value in (tuple(newest), position))
    return Played(tuple(work), kept_bytes, state, layout.size)


class SimulatedClients:
    """The replies of all clients. Clients of a group that start from the same models have equal replies.

    Args:
        world: The simulated world.
        wire: The boundary with its map, for the layout of the model.
        first: The first model, ``(d,)`` of the simulated model.
        size: Numbers of a row (d) of the real model, which may be larger than the simulated one.
    """

    def __init__(self, world: World, wire: Wire, first: Tensor, size: int) -> None:
        self.world, self.wire, self.size = world, wire, size
        groups = world.truth or (tuple(world.clients),)
        self.group = {client: number for number, group in enumerate(groups) for client in group}
        apart = torch.randn(len(groups), len(first), generator=generator(0, Purpose.INIT))
        self.optima = first + apart / len(first) ** 0.5 * (10 + first.norm())

    def answer(self, plan: Plan, position: Position, *, counts: Counts) -> tuple[Replies, Mapping[Client, Tensor]]:
        """Answer a plan.

        Args:
            plan: The plan.
            position: The position of the run.
            counts: The sums of the round, to which the exchange is added.

        Returns:
            The replies, and the layers that the clients keep.
        """
        clients = tuple(sorted(plan.tasks))
        counts.add(plan, window(plan, self.size), position.kept)
        losses = tuple(self._losses(plan, client) for client in clients)
        pairs = zip(clients, losses, strict=True)
        chosen = tuple(self._chosen(plan.tasks[client], own) for client, own in pairs)
        replies = Replies(
            clients=clients,
            examples=np.array([self.wire.examples(len(self.world.clients[c].train)) for c in clients], dtype=np.int64),
            chosen=chosen,
            losses=losses,
            accuracies=tuple(tuple(1 / (1 + loss) for loss in own) for own in losses),
        )
        kept = dict(position.kept)
        if clients and not any(plan.tasks[client].trains for client in clients):
            return replies, kept
        rows, at = self._rows(plan, clients, chosen)
        for client, place in zip(clients, at, strict=True):
            if task_keeps := plan.tasks[client].keep:
                mask = self.wire.layout.mask(task_keeps)
                kept[client] = torch.where(mask, rows[place] + client, torch.nan)  # all different
        return self._needed(plan, replies, rows, at, position.exchange), kept

    def _losses(self, plan: Plan, client: Client) -> tuple[float, ...]:
        task, optimum = plan.tasks[client], self.optima[self.group[client]]
        if not task.measure:
            return ()
        return tuple(float((plan.models[row] - optimum).square().sum()) for row in task.offered)

    def _chosen(self, task: Task, losses: Sequence[float]) -> tuple[int, ...]:
        if task.choose == len(task.offered):
            return task.offered
        best = sorted(range(len(task.offered)), key=lambda i: losses[i])[: task.choose]
        return tuple(task.offered[i] for i in best)

    def _rows(self, plan: Plan, clients: Sequence[Client], chosen: Sequence[tuple[int, ...]]) -> tuple[Tensor, list[int]]:
        """The distinct updates ``(p, d)``, and for each client the row of the update that it sends."""
        place: dict[tuple[tuple[int, ...], int, bool], int] = {}
        keys = [(rows, self.group[c], plan.tasks[c].gradient) for c, rows in zip(clients, chosen, strict=True)]
        at = [place.setdefault(key, len(place)) for key in keys]
        out = torch.empty(len(place), self.wire.layout.size)
        for (rows, group, gradient), row in place.items():
            torch.sub(self.optima[group], plan.models[list(rows)].mean(0), out=out[row])
            out[row] *= -RATE if gradient else RATE
        return out, at

    def _needed(self, plan: Plan, replies: Replies, rows: Tensor, at: Sequence[int], exchange: int) -> Replies:
        """The replies with those quantities that the method needs according to the plan."""
        halves = any(plan.tasks[client].halves for client in replies.clients)
        shown = rows[:, plan.columns or slice(None)]
        shown = shown if plan.sketch is None else sketch(shown, plan.sketch)
        products = gram(shown)[np.ix_(at, at)] if len(at) and (plan.need == "gram" or halves) else None
        if halves and products is not None:
            rng = numpy_generator(0, Purpose.NOISE, exchange)
            replies = replace(replies, halves=noisy(np.tile(products, (2, 2)), NOISE * products.diagonal().mean(), rng))
        if plan.need == "rows" and plan.sketch is None:
            return replace(replies, updates=rows[at])
        weigh = np.zeros((len(plan.models), len(rows)))
        heard = np.zeros(len(plan.models), dtype=np.int64)
        each = amounts(replies.examples, plan.weighting)
        for client, chosen, own, weight in zip(replies.clients, replies.chosen, at, each, strict=True):
            if plan.tasks[client].trains:
                weigh[list(chosen), own] += weight
                heard[list(chosen)] += 1
        weigh /= np.maximum(weigh.sum(1, keepdims=True), 1e-12)
        means = torch.as_tensor(weigh, dtype=torch.float32) @ rows
        updates = shown[at] if plan.need == "rows" else None
        return replace(replies, means=means, heard=heard, updates=updates, gram=products if plan.need == "gram" else None)


def noisy(products: np.ndarray, variance: float, rng: np.random.Generator) -> np.ndarray:
    """The Gram matrix of vectors to which independent Gaussian noise is added.

    The noise is drawn and not only added to the diagonal: tests of whether vectors differ by more than noise depend on its
    fluctuations.

    Args:
        products: The Gram matrix ``(n, n)`` of the vectors without noise.
        variance: The mean square of the noise of a vector.
        rng: The random generator.

    Returns:
        The Gram matrix ``(n, n)`` with noise.
    """
    values, vectors = np.linalg.eigh(products)
    exact = vectors * np.sqrt(np.maximum(values, 0.0))  # vectors with these products
    n = len(products)
    size = max(n, DIRECTIONS)
    drawn = rng.standard_normal((n, size)) * (variance / size) ** 0.5
    drawn[:, :n] += exact
    return drawn @ drawn.T
