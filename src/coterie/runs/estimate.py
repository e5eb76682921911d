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
from coterie.core import Assignment, Client, Method, Plan, Position, Round, Task, Training
from coterie.data.batches import tensors
from coterie.data.world import ClientData, World
from coterie.engines import rounds as inprocess
from coterie.engines.exchange import window
from coterie.engines.pool import ClientPool
from coterie.engines.workers import Hardware
from coterie.models.layout import Layout
from coterie.randomness import numpy_generator, seeded
from coterie.records import codec
from coterie.records.round_line import line_of_round
from coterie.records.text_files import to_json
from coterie.runs.experiment import Experiment

MAX_SECONDS = 0.8
"""Seconds for the first rounds of all methods together; each method makes two rounds or more."""

MIN_CLIENTS = 10
"""Clients in the first rounds, at least."""

MAX_UPDATE_NUMBERS = 1 << 25
"""Numbers in the updates of more clients than :data:`MIN_CLIENTS`, at most."""

TRAINED_EXAMPLES = 8
"""Examples of each client in the first rounds."""

ENOUGH_SECONDS = 0.2
"""Seconds that are enough for a measurement."""

TESTED_EXAMPLES = 64
"""Examples of a client with which a test is timed."""

LONG_SCORE = 0.123456789012345678
"""A score that is as long as others when it is recorded."""

PROCESS_BYTES = 280e6
"""Bytes that Python and PyTorch need in the first process."""

WORKER_BYTES = 40e6
"""Bytes that Python and PyTorch need in each worker."""


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


def estimate(experiment: Experiment, max_seconds: float = MAX_SECONDS) -> tuple[Estimate, ...]:
    """Estimate what an experiment will need.

    Args:
        experiment: The experiment.
        max_seconds: Seconds for the first rounds of all methods together.

    Returns:
        One estimate per method.
    """
    methods = experiment.methods
    seed = experiment.seeds[0]
    world = experiment.world(seed)
    wire, _ = inprocess.setup(methods[0], world, seed, experiment.boundary)
    # The speed of this machine is measured once; each method then makes its first rounds.
    costs = _measured_costs(world, wire, experiment.hardware())
    max_seconds_each = max_seconds / len(methods)
    return tuple(
        _FirstRounds(experiment, method, world, costs, max_seconds_each).estimate()
        for method in methods
    )


def together(estimates: Sequence[Estimate], seeds: int) -> Estimate:
    """The estimate for all runs of an experiment, one after the other, with ``seeds`` seeds."""
    added_fields = ("seconds", "disk", "exchanges", "asked", "evaluations")
    total_of_field = {
        field_name: seeds * sum(getattr(of_method, field_name) for of_method in estimates)
        for field_name in added_fields
    }
    memory = max(of_method.memory for of_method in estimates)
    return Estimate(method="all", memory=memory, **total_of_field)


# ----------------------------------------------------------------------------------------------------
# The examples that a task trains on.


def _examples_in_steps(training: Training, size: int, epochs: int | None = None) -> int:
    """Examples in the steps of one training on ``size`` examples; ``epochs`` replaces the epochs or steps if given."""
    if epochs is None and training.steps is not None:
        return training.steps * min(training.batch or size, size)
    return size * (training.epochs if epochs is None else epochs)


def _examples_of_update(task: Task, training: Training, size: int) -> int:
    """Examples in the steps that give one update, in all stages."""
    # Each stage is a training with its own number of epochs.
    if not task.stages:
        return _examples_in_steps(training, size)
    return sum(_examples_in_steps(training, size, stage.epochs) for stage in task.stages)


def _examples_of_personal_model(task: Task, training: Training, size: int) -> int:
    """Examples in the steps for a client's personal model, and for an update that halves do not give it."""
    if task.personal is None:
        return 0
    of_update = _examples_of_update(task, training, size) if task.halves else 0
    return _examples_in_steps(training, size, task.personal.epochs) + of_update


def _with_one_step(task: Task, training: Training) -> Task:
    """The task with one step in each stage, and one for a personal model."""
    return replace(
        task,
        training=replace(training, steps=1),
        epochs=None,
        stages=tuple(replace(stage, epochs=None) for stage in task.stages),
        personal=task.personal and replace(task.personal, epochs=None),
    )


# ----------------------------------------------------------------------------------------------------
# The speed of this machine.


class _Costs(NamedTuple):
    """The speed of one process.

    Attributes:
        task: Seconds for a task besides its steps.
        trained_example: Seconds for an example in training.
        tested_example: Seconds for an example in a test.
        block_width: Clients in a block.
    """

    task: float
    trained_example: float
    tested_example: float
    block_width: int


def _measured_costs(world: World, wire: Wire, hardware: Hardware) -> _Costs:
    """Measure the costs with one block of clients of medium size."""
    with seeded(0):
        block_width = hardware.block(world.model(), world)
    # A block from the middle of the clients, by their number of examples.
    by_size = sorted(world.clients, key=lambda client: len(world.clients[client].train))
    block = tuple(by_size[max(0, (len(by_size) - block_width) // 2) :][:block_width])
    data_of_block = {}
    for client in block:
        tested = _first_examples(world.clients[client], TESTED_EXAMPLES).test
        data_of_block[client] = replace(world.clients[client], test=tested)
    block_world = _world_of(world, data_of_block)
    # One round of training and tests of one model for all.
    models = wire.first_model(0, world.model)[None]
    assignment = Assignment(models=models, row=dict.fromkeys(block, 0), groups=(block,))
    position = Position(round=0, exchange=0, state=None)
    with ClientPool(block_world, wire, replace(hardware, workers=1, width=block_width)) as pool:

        def seconds_of(steps: int) -> float:
            task = Task(offered=(0,), training=replace(world.training, steps=steps))
            plan = Plan(models=models, tasks=dict.fromkeys(block, task), need="mean")
            return _seconds_of(lambda: pool.train(plan, block, {}, (0, 0, 0)))

        # The first call fills caches that later calls use: if it was quick, it is not representative.
        one_step = seconds_of(1)
        per_step = one_step
        if one_step < ENOUGH_SECONDS:
            one_step = min(seconds_of(1), seconds_of(1))
            steps = max(2, min(20, int(ENOUGH_SECONDS / one_step)))
            per_step = max(seconds_of(steps) - one_step, 0.0) / (steps - 1)
        per_test = min(_seconds_of(lambda: pool.evaluate(assignment, position)) for _ in range(2))
    batch = world.training.batch
    trained_examples = sum(
        min(batch or len(of_client.train), len(of_client.train))
        for of_client in data_of_block.values()
    )
    tested_examples = sum(len(of_client.test) for of_client in data_of_block.values())
    return _Costs(
        task=max(one_step - per_step, 0.0) / len(block),
        trained_example=per_step / max(trained_examples, 1),
        tested_example=per_test / max(tested_examples, 1),
        block_width=block_width,
    )


def _seconds_of(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# ----------------------------------------------------------------------------------------------------
# The first rounds, with short steps and some of the clients.


class _FirstRounds:
    """The first rounds of a method with some of the clients: as many as the time allows, at least two.

    Attributes:
        work: The work of each round, for all clients, by name.
        newest: The positions after the newest rounds.
        held_numbers: The numbers in the models and replies that are held together, at most.
        sample: The world of some of the clients.
        clients_per_sampled: All clients for each of them.
    """

    def __init__(
        self,
        experiment: Experiment,
        method: Method[Any],
        world: World,
        costs: _Costs,
        max_seconds: float,
    ) -> None:
        self.experiment = experiment
        self.method = method
        self.world = world
        self.costs = costs
        self.work: list[Mapping[str, float]] = []
        self.newest: list[Position] = []
        self.held_numbers = 0.0
        with seeded(0):
            parameters = Layout(world.model()).size
        # Half of the time is for their tasks, if each has one short step of training.
        seconds_per_client = costs.task + TRAINED_EXAMPLES * costs.trained_example + 1e-9
        affordable = max_seconds / 2 / seconds_per_client
        max_clients = max(MIN_CLIENTS, min(affordable, MAX_UPDATE_NUMBERS // parameters))
        self.sample = _sample(world, int(max_clients))
        self.clients_per_sampled = len(world.clients) / len(self.sample.clients)
        self._play(time.perf_counter() + max_seconds)

    def _play(self, end: float) -> None:
        """Make rounds until the time is over, at least two."""
        seed = self.experiment.seeds[0]
        # One worker, so that the times are those of the work itself.
        hardware = replace(self.experiment.hardware(), workers=1, width=self.costs.block_width)
        # The same start as a run has, with the sampled clients.
        wire, federation = inprocess.setup(self.method, self.sample, seed, self.experiment.boundary)
        state = self.method.init(federation)
        position = Position(round=0, exchange=0, state=state, members=federation.clients)
        with ClientPool(self.sample, wire, hardware, self.experiment.robust) as pool:
            while position.round < self.experiment.rounds and (
                len(self.work) < 2 or time.perf_counter() < end
            ):
                clock = inprocess.Clock()
                task_work = dict.fromkeys(("tasks", "trained", "measured"), 0.0)
                steps = inprocess.round_steps(self.method, self.sample, wire, position, seed, clock)
                exchange = partial(
                    self._exchange, pool=pool, seed=seed, clock=clock, work=task_work
                )
                finished_round = inprocess.carry(steps, exchange)
                position = finished_round.position
                self.newest = [*self.newest, position][-self.experiment.checkpoints_kept :]
                self.work.append({**task_work, **self._other_work(finished_round)})

    def estimate(self) -> Estimate:
        """Estimate the whole run: further rounds count as the mean of the later half of the first rounds."""
        costs = self.costs
        rounds = self.experiment.rounds
        # The first rounds of many methods are unlike the later ones, such as a warm-up.
        later_work = self.work[len(self.work) // 2 :]
        repeats = (rounds - len(self.work)) / len(later_work)
        total = {}
        for name in self.work[0]:
            of_first = sum(work[name] for work in self.work)
            total[name] = of_first + repeats * sum(work[name] for work in later_work)
        # Workers share the blocks of an exchange; tests are shared evenly.
        workers = self.experiment.hardware().processes(len(self.world.clients))
        tasks_per_exchange = total["tasks"] / max(total["exchanges"], 1)
        blocks = math.ceil(tasks_per_exchange / costs.block_width)
        training_seconds = (
            total["tasks"] * costs.task
            + total["trained"] * costs.trained_example
            + total["measured"] * costs.tested_example
        )
        test_seconds = total["tested"] * costs.tested_example
        # While a checkpoint is written, the position and its encoded copy are held together.
        checkpoint_bytes = self._checkpoint_bytes()
        checkpoints = min(self.experiment.checkpoints_kept, rounds)
        return Estimate(
            method=self.method.name,
            seconds=training_seconds / max(1, min(workers, blocks))
            + test_seconds / workers
            + total["server"],
            memory=PROCESS_BYTES
            + workers * WORKER_BYTES
            + _data_bytes(self.world)
            + 4 * self.held_numbers
            + 2 * checkpoint_bytes,
            disk=total["written"] + checkpoints * checkpoint_bytes,
            exchanges=total["exchanges"],
            asked=total["asked"],
            evaluations=total["evaluations"],
        )

    def _exchange(
        self,
        plan: Plan,
        position: Position,
        *,
        pool: ClientPool,
        seed: int,
        clock: inprocess.Clock,
        work: dict[str, float],
    ) -> inprocess.ExchangeResult:
        """Carry out a plan with one step per task, and add to ``work`` the work of its real tasks."""
        # The tasks with one step each; what they would really cost is added up.
        short_plan = self._shortened(plan, work)
        result = inprocess.exchange(pool, short_plan, position, seed, clock)
        for _, part in plan.leaves():
            held_together = self._held_numbers(part, pool)
            self.held_numbers = max(self.held_numbers, held_together)
        return result

    def _held_numbers(self, plan: Plan, pool: ClientPool) -> float:
        """The numbers in the models and replies that are held together in an exchange with all clients."""
        models = float(len(pool.worker.models))
        # If there is a model for each client, there are more with all clients.
        if models >= len(self.sample.clients):
            models *= self.clients_per_sampled
        replies_of_sample = sum(
            1 + task.halves + (task.personal is not None) for task in plan.tasks.values()
        )
        replies = self.clients_per_sampled * replies_of_sample
        # Replies that are averaged as they arrive are held some at a time.
        at_a_time = window(plan, pool.layout.size, pool.robust.needs_all)
        if at_a_time != len(plan.tasks):
            replies = min(at_a_time, replies)
        return (models + replies) * pool.layout.size

    def _shortened(self, plan: Plan, work: dict[str, float]) -> Plan:
        """The plan with one step per task; the work of its real tasks is added to ``work``."""
        tasks = dict(plan.tasks)
        for client, task in plan.tasks.items():
            self._add_work(task, self.world.clients[client], work)
            if task.trains:
                tasks[client] = _with_one_step(task, task.how(self.world.training))
        parts = {name: self._shortened(part, work) for name, part in plan.parts.items()}
        return replace(plan, tasks=tasks, parts=parts)

    def _add_work(self, task: Task, data: ClientData, work: dict[str, float]) -> None:
        """Add the work of a client's task: trainings, examples in their steps, and examples on which losses are measured."""
        # Losses on offered models, and on held-out examples after training.
        held_out = len(data.validation) or task.holdout.share * len(data.train)
        loss_reports = task.holdout.report_losses * (1 + (task.personal is not None))
        measured_parts = {None: 0, "train": len(data.train), "validation": len(data.validation)}
        measured = len(task.offered) * measured_parts[task.measure]
        work["measured"] += self.clients_per_sampled * (measured + loss_reports * held_out)
        if not task.trains:
            return
        # Each half is a training of its own, and so is a personal model.
        training = task.how(self.world.training)
        halves = 1 + task.halves
        half_size = len(data.train) // halves
        of_update = halves * _examples_of_update(task, training, half_size)
        trained = half_size if task.gradient else of_update
        personal = _examples_of_personal_model(task, training, len(data.train))
        work["tasks"] += self.clients_per_sampled * (halves + (personal > 0))
        work["trained"] += self.clients_per_sampled * (trained + personal)

    def _other_work(self, finished_round: Round) -> dict[str, float]:
        """The work of a round besides its tasks, and what it writes."""
        # The line of a round, with scores and without.
        metrics = dict.fromkeys(["loss", *self.world.objective.named], LONG_SCORE)
        scores = dict.fromkeys(finished_round.assignment.row, metrics)
        untested_bytes, tested_bytes = (
            len(to_json(line_of_round(replace(finished_round, scores=round_scores))).encode())
            for round_scores in (None, scores)
        )
        # Matrices grow with the square of the clients.
        matrix_bytes = 0
        for note in finished_round.notes:
            matrix_bytes += sum(matrix.nbytes for matrix in note.similarity.values())
        tested_share = 1 / self.experiment.eval_every
        line_bytes = untested_bytes + tested_share * (tested_bytes - untested_bytes)
        # Everything but the exchanges grows with the clients.
        factor = self.clients_per_sampled
        return {
            "exchanges": finished_round.exchanges,
            "asked": factor * finished_round.asked,
            "evaluations": factor * finished_round.evaluations,
            "server": factor * finished_round.seconds["server"],
            "tested": tested_share * self._tested_examples(finished_round),
            "written": factor * line_bytes + factor**2 * matrix_bytes,
        }

    def _tested_examples(self, finished_round: Round) -> float:
        """Examples on which models are tested: each distinct pair (models, examples) once, as in the engine."""
        assignment = finished_round.assignment
        examples_of_pair: dict[Hashable, int] = {}
        for client, row in assignment.row.items():
            rows = assignment.path.get(client, (row,)) if assignment.ensemble else (row,)
            client_data = self.world.clients[client]
            has_own_layers = finished_round.position.own(assignment, client) is not None
            # With neighbours, the features of all examples are computed as well.
            neighbours = assignment.neighbours is not None
            featured = len(client_data.train) + len(client_data.validation) if neighbours else 0
            own_pair = client if has_own_layers or neighbours else None
            tested_pair = (rows, own_pair, id(client_data.test.inputs), id(client_data.test.index))
            examples_of_pair[tested_pair] = len(client_data.test) * len(rows) + featured
        # If each client has a pair of its own, there are more pairs with all clients.
        each_its_own = len(examples_of_pair) == len(assignment.row)
        return sum(examples_of_pair.values()) * (self.clients_per_sampled if each_its_own else 1)

    def _checkpoint_bytes(self) -> float:
        """Bytes of one of the newest checkpoints. Equal arrays are stored once. All but the models counts for each client."""
        array_bytes: dict[str, int] = {}

        def put(data: bytes) -> str:
            blob_name = codec.blob(data)
            array_bytes[blob_name] = len(data)
            return blob_name

        # Encoded as for a file, but blobs are counted instead of stored.
        text_bytes = sum(len(json.dumps(codec.encode(position, put))) for position in self.newest)
        checkpoint_size = (text_bytes + sum(array_bytes.values())) / len(self.newest)
        models = self.method.assignment(self.newest[-1].state).models
        # Models that are fewer than the clients do not grow with these.
        shared = (
            min(checkpoint_size, models.nbytes) if len(models) < len(self.sample.clients) else 0
        )
        return shared + self.clients_per_sampled * (checkpoint_size - shared)


def _sample(world: World, count: int) -> World:
    """A world with ``count`` of the clients, drawn at random, and the first examples of each."""
    client_ids = sorted(world.clients)
    # The draw is the same at every call, and is none of the run.
    drawn = [client_ids[i] for i in numpy_generator(0).permutation(len(client_ids))[:count]]
    # One client at least is present from the start.
    founder = world.attendance.founders(client_ids)[0]
    clients = {
        client: _first_examples(world.clients[client], TRAINED_EXAMPLES)
        for client in sorted({founder, *drawn})
    }
    return _world_of(world, clients)


def _world_of(world: World, clients: Mapping[Client, ClientData]) -> World:
    """The world of these clients; its data do not drift, as the time steps of a drift are alike in size."""
    attacks = {client: attack for client, attack in world.attacks.items() if client in clients}
    return replace(
        world,
        clients=clients,
        attendance=world.attendance.of(clients),
        attacks=attacks,
        truth=None,
        drift=None,
    )


def _first_examples(data: ClientData, count: int) -> ClientData:
    """The first examples of a client; the test is on its training examples."""
    train = data.train.at(slice(count))
    return replace(data, train=train, validation=data.validation.at(slice(count)), test=train)


def _data_bytes(world: World) -> float:
    """Bytes of all clients' examples; examples that several clients share are counted once."""
    # By identity: clients that share a pool share its tensors.
    bytes_of_tensor: dict[int, int] = {}
    for data in world.clients.values():
        for split in (data.train, data.validation, data.test):
            for values in tensors((split.inputs, split.index, split.targets)):
                if isinstance(values, torch.Tensor):
                    bytes_of_tensor[id(values)] = values.nbytes
    return float(sum(bytes_of_tensor.values()))
