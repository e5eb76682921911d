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
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from coterie.boundary import Wire
from coterie.core import Assignment, Client, Method, Plan, Position, Round, Task, Training
from coterie.data.batches import tensors
from coterie.data.on_demand import OnDemand, examined
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
    estimates = []
    for method in methods:
        first_rounds = _FirstRounds(experiment, method, world, costs, max_seconds_each)
        estimates.append(first_rounds.estimate())
    return tuple(estimates)


def together(estimates: Sequence[Estimate], seeds: int) -> Estimate:
    """The estimate for all runs of an experiment, one after the other, with ``seeds`` seeds."""
    added_fields = ("seconds", "disk", "exchanges", "asked", "evaluations")
    total_of_field = {}
    for field_name in added_fields:
        total_of_field[field_name] = seeds * sum(map(attrgetter(field_name), estimates))
    # The runs follow one another, so the largest one needs the most memory.
    memory = max(map(attrgetter("memory"), estimates))
    return Estimate(method="all", memory=memory, **total_of_field)


# ----------------------------------------------------------------------------------------------------
# The examples that a task trains on.


def _examples_in_steps(training: Training, num_examples: int, epochs: int | None = None) -> int:
    """Examples in the steps of one training on ``num_examples`` examples; ``epochs`` replaces the epochs or steps if given."""
    if epochs is None and training.steps is not None:
        return training.steps * min(training.batch or num_examples, num_examples)
    return num_examples * (training.epochs if epochs is None else epochs)


def _examples_of_update(task: Task, training: Training, num_examples: int) -> int:
    """Examples in the steps that give one update, in all stages."""
    # Each stage is a training with its own number of epochs.
    if not task.stages:
        return _examples_in_steps(training, num_examples)
    return sum(_examples_in_steps(training, num_examples, stage.epochs) for stage in task.stages)


def _examples_of_personal_model(task: Task, training: Training, num_examples: int) -> int:
    """Examples in the steps for a client's personal model, and for an update that halves do not give it."""
    if task.personal is None:
        return 0
    of_update = _examples_of_update(task, training, num_examples) if task.halves else 0
    return _examples_in_steps(training, num_examples, task.personal.epochs) + of_update


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
    known_clients = examined(world.clients)
    clients_by_size = sorted(known_clients, key=lambda client: len(known_clients[client].train))
    block_clients = tuple(
        clients_by_size[max(0, (len(clients_by_size) - block_width) // 2) :][:block_width]
    )
    data_of_block = {}
    for client in block_clients:
        tested_split = _first_examples(world.clients[client], TESTED_EXAMPLES).test
        data_of_block[client] = replace(world.clients[client], test=tested_split)
    block_world = _world_of(world, data_of_block)
    # One round of training and tests of one model for all.
    first_models = wire.first_model(0, world.model)[None]
    assignment = Assignment(
        models=first_models, row=dict.fromkeys(block_clients, 0), groups=(block_clients,)
    )
    position = Position(round=0, exchange=0, state=None)
    with ClientPool(block_world, wire, replace(hardware, workers=1, width=block_width)) as pool:

        def seconds_of(steps: int) -> float:
            task = Task(offered=(0,), training=replace(world.training, steps=steps))
            plan = Plan(models=first_models, tasks=dict.fromkeys(block_clients, task), need="mean")
            return _seconds_of(lambda: pool.train(plan, block_clients, {}, (0, 0, 0)))

        # The first call fills caches that later calls use: if it was quick, it is not representative.
        one_step_seconds = seconds_of(1)
        seconds_per_step = one_step_seconds
        if one_step_seconds < ENOUGH_SECONDS:
            one_step_seconds = min(seconds_of(1), seconds_of(1))
            steps = max(2, min(20, int(ENOUGH_SECONDS / one_step_seconds)))
            seconds_per_step = max(seconds_of(steps) - one_step_seconds, 0.0) / (steps - 1)
        seconds_per_test = min(
            _seconds_of(lambda: pool.evaluate(assignment, position)) for _ in range(2)
        )
    batch_size = world.training.batch
    # One step trains on a batch, or on all examples of a client that has fewer.
    trained_examples = 0
    tested_examples = 0
    for client_data in data_of_block.values():
        num_train = len(client_data.train)
        trained_examples += min(batch_size or num_train, num_train)
        tested_examples += len(client_data.test)
    return _Costs(
        task=max(one_step_seconds - seconds_per_step, 0.0) / len(block_clients),
        trained_example=seconds_per_step / max(trained_examples, 1),
        tested_example=seconds_per_test / max(tested_examples, 1),
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

    def _play(self, end_time: float) -> None:
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
                len(self.work) < 2 or time.perf_counter() < end_time
            ):
                clock = inprocess.Clock()
                task_work = dict.fromkeys(("tasks", "trained", "measured"), 0.0)
                fewest_asked = pool.robust.fewest_asked
                steps = inprocess.round_steps(
                    self.method, self.sample, wire, position, seed, clock, fewest_asked
                )
                exchange = partial(
                    self._exchange, pool=pool, seed=seed, clock=clock, task_work=task_work
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
        repetitions = (rounds - len(self.work)) / len(later_work)
        total_work = {}
        for work_name in self.work[0]:
            work_of_first = sum(work_of_round[work_name] for work_of_round in self.work)
            total_work[work_name] = work_of_first + repetitions * sum(
                work_of_round[work_name] for work_of_round in later_work
            )
        # Workers share the blocks of an exchange; tests are shared evenly.
        workers = self.experiment.hardware().processes(len(self.world.clients))
        tasks_per_exchange = total_work["tasks"] / max(total_work["exchanges"], 1)
        blocks = math.ceil(tasks_per_exchange / costs.block_width)
        training_seconds = (
            total_work["tasks"] * costs.task
            + total_work["trained"] * costs.trained_example
            + total_work["measured"] * costs.tested_example
        )
        test_seconds = total_work["tested"] * costs.tested_example
        # While a checkpoint is written, the position and its encoded copy are held together.
        checkpoint_bytes = self._checkpoint_bytes()
        checkpoints = min(self.experiment.checkpoints_kept, rounds)
        return Estimate(
            method=self.method.name,
            seconds=training_seconds / max(1, min(workers, blocks))
            + test_seconds / workers
            + total_work["server"],
            memory=PROCESS_BYTES
            + workers * WORKER_BYTES
            + _data_bytes(self.world)
            + 4 * self.held_numbers
            + 2 * checkpoint_bytes,
            disk=total_work["written"] + checkpoints * checkpoint_bytes,
            exchanges=total_work["exchanges"],
            asked=total_work["asked"],
            evaluations=total_work["evaluations"],
        )

    def _exchange(
        self,
        plan: Plan,
        position: Position,
        *,
        pool: ClientPool,
        seed: int,
        clock: inprocess.Clock,
        task_work: dict[str, float],
    ) -> inprocess.ExchangeResult:
        """Carry out a plan with one step per task, and add to ``task_work`` the work of its real tasks."""
        # The tasks with one step each; what they would really cost is added up.
        short_plan = self._shortened(plan, task_work)
        result = inprocess.exchange(pool, short_plan, position, seed, clock)
        for _, plan_part in plan.leaves():
            held_together = self._held_numbers(plan_part, pool)
            self.held_numbers = max(self.held_numbers, held_together)
        return result

    def _held_numbers(self, plan: Plan, pool: ClientPool) -> float:
        """The numbers in the models and replies that are held together in an exchange with all clients."""
        num_models = float(len(pool.worker.models))
        # If there is a model for each client, there are more with all clients.
        if num_models >= len(self.sample.clients):
            num_models *= self.clients_per_sampled
        # A reply has an update, one more for the second half, and a personal model.
        replies_of_sample = 0
        for task in plan.tasks.values():
            replies_of_sample += 1 + task.halves + (task.personal is not None)
        num_replies = self.clients_per_sampled * replies_of_sample
        # Replies that are averaged as they arrive are held some at a time.
        at_a_time = window(plan, pool.layout.size, pool.robust.needs_all)
        if at_a_time != len(plan.tasks):
            num_replies = min(at_a_time, num_replies)
        return (num_models + num_replies) * pool.layout.size

    def _shortened(self, plan: Plan, task_work: dict[str, float]) -> Plan:
        """The plan with one step per task; the work of its real tasks is added to ``task_work``."""
        short_tasks = dict(plan.tasks)
        for client, task in plan.tasks.items():
            self._add_work(task, self.world.clients[client], task_work)
            if task.trains:
                short_tasks[client] = _with_one_step(task, task.how(self.world.training))
        short_parts = {}
        for part_name, plan_part in plan.parts.items():
            short_parts[part_name] = self._shortened(plan_part, task_work)
        return replace(plan, tasks=short_tasks, parts=short_parts)

    def _add_work(self, task: Task, client_data: ClientData, task_work: dict[str, float]) -> None:
        """Add the work of a client's task: trainings, examples in their steps, and examples on which losses are measured."""
        # Losses on offered models, and on held-out examples after training.
        held_out_examples = len(client_data.validation) or task.holdout.share * len(
            client_data.train
        )
        loss_reports = task.holdout.report_losses * (1 + (task.personal is not None))
        measured_parts = {
            None: 0,
            "train": len(client_data.train),
            "validation": len(client_data.validation),
        }
        measured_examples = len(task.offered) * measured_parts[task.measure]
        task_work["measured"] += self.clients_per_sampled * (
            measured_examples + loss_reports * held_out_examples
        )
        if not task.trains:
            return
        # Each half is a training of its own, and so is a personal model.
        training = task.how(self.world.training)
        halves = 1 + task.halves
        half_size = len(client_data.train) // halves
        of_update = halves * _examples_of_update(task, training, half_size)
        trained_examples = half_size if task.gradient else of_update
        personal_examples = _examples_of_personal_model(task, training, len(client_data.train))
        task_work["tasks"] += self.clients_per_sampled * (halves + (personal_examples > 0))
        task_work["trained"] += self.clients_per_sampled * (trained_examples + personal_examples)

    def _other_work(self, finished_round: Round) -> dict[str, float]:
        """The work of a round besides its tasks, and what it writes."""
        # The line of a round, with scores and without.
        long_scores = dict.fromkeys(["loss", *self.world.objective.named], LONG_SCORE)
        scores_of_client = dict.fromkeys(finished_round.assignment.row, long_scores)
        untested_bytes = _line_bytes(replace(finished_round, scores=None))
        tested_bytes = _line_bytes(replace(finished_round, scores=scores_of_client))
        # Matrices grow with the square of the clients.
        matrix_bytes = 0
        for note in finished_round.notes:
            matrix_bytes += sum(map(attrgetter("nbytes"), note.similarity.values()))
        tested_share = 1 / self.experiment.eval_every
        if self.experiment.eval_clients is not None:
            tested_share *= min(1.0, self.experiment.eval_clients / len(self.world.clients))
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
        for client, served_row in assignment.row.items():
            tested_rows = (
                assignment.path.get(client, (served_row,)) if assignment.ensemble else (served_row,)
            )
            client_data = self.world.clients[client]
            has_own_layers = finished_round.position.own(assignment, client) is not None
            # With neighbours, the features of all examples are computed as well.
            neighbours = assignment.neighbours_of(client) is not None
            featured_examples = (
                len(client_data.train) + len(client_data.validation) if neighbours else 0
            )
            own_pair = client if has_own_layers or neighbours else None
            tested_pair = (
                tested_rows,
                own_pair,
                id(client_data.test.inputs),
                id(client_data.test.index),
            )
            examples_of_pair[tested_pair] = (
                len(client_data.test) * len(tested_rows) + featured_examples
            )
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
        shared_bytes = (
            min(checkpoint_size, models.nbytes) if len(models) < len(self.sample.clients) else 0
        )
        return shared_bytes + self.clients_per_sampled * (checkpoint_size - shared_bytes)


def _line_bytes(finished_round: Round) -> int:
    """Bytes of the line of a round in the records."""
    return len(to_json(line_of_round(finished_round)).encode())


def _sample(world: World, num_clients: int) -> World:
    """A world with ``num_clients`` of the clients, drawn at random, and the first examples of each."""
    client_ids = sorted(world.clients)
    # The draw is the same at every call, and is none of the run.
    shuffled_positions = numpy_generator(0).permutation(len(client_ids))
    drawn_clients = [client_ids[position] for position in shuffled_positions[:num_clients]]
    # One client at least is present from the start.
    founder = world.attendance.founders(client_ids)[0]
    data_of_client = {}
    for client in sorted({founder, *drawn_clients}):
        data_of_client[client] = _first_examples(world.clients[client], TRAINED_EXAMPLES)
    return _world_of(world, data_of_client)


def _world_of(world: World, data_of_client: Mapping[Client, ClientData]) -> World:
    """The world of these clients; its data do not drift, as the time steps of a drift are alike in size."""
    attacks = {
        client: attack for client, attack in world.attacks.items() if client in data_of_client
    }
    return replace(
        world,
        clients=data_of_client,
        attendance=world.attendance.of(data_of_client),
        attacks=attacks,
        truth=None,
        drift=None,
    )


def _first_examples(client_data: ClientData, num_examples: int) -> ClientData:
    """The first examples of a client; the test is on its training examples."""
    first_train = client_data.train.at(slice(num_examples))
    return replace(
        client_data,
        train=first_train,
        validation=client_data.validation.at(slice(num_examples)),
        test=first_train,
    )


def _data_bytes(world: World) -> float:
    """Bytes of all clients' examples in memory; examples that several clients share are counted once."""
    # By identity: clients that share a pool share its tensors.
    bytes_of_tensor: dict[int, int] = {}
    known_clients = examined(world.clients)
    for client_data in known_clients.values():
        for data_split in (client_data.train, client_data.validation, client_data.test):
            for values in tensors((data_split.inputs, data_split.index, data_split.targets)):
                if isinstance(values, torch.Tensor):
                    bytes_of_tensor[id(values)] = values.nbytes
    # Of data that are made on demand, those of a limited number of clients are kept.
    num_in_memory = len(known_clients)
    if isinstance(world.clients, OnDemand):
        num_in_memory = min(len(world.clients), world.clients.most_kept)
    return sum(bytes_of_tensor.values()) * num_in_memory / len(known_clients)
