"""The client pool: all clients of a world on this machine, whose orders and tests are jobs for worker processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie import training as local
from coterie.boundary import Wire
from coterie.core import (
    Assignment,
    Client,
    Means,
    Note,
    Plan,
    Position,
    Task,
    as_groups,
)
from coterie.data.objective import VALIDATION
from coterie.data.on_demand import OnDemand
from coterie.data.world import Split, World
from coterie.engines.worker import DRAWN, PlacedOrder, Test, Worker
from coterie.engines.workers import Hardware, Workers, shared_matrix
from coterie.models.layout import own_layers, without_weight
from coterie.randomness import seeded
from coterie.robust import Extent, Length, Robust, lengths, lengths_of, steps_of
from coterie.settings import SettingError
from coterie.training import ClientResult, Order, Sums, halvable, sketch_size
from coterie.training.blocks import goes_with
from coterie.training.learner import treats_parameters_alone

EXAMPLES_PER_TEST = 2500
"""Examples in one test job.

A longer test is cut into jobs of this size, so that one large test keeps all workers busy. Shorter
tests of the same model are joined up to this size.
"""

EXAMPLES_PER_PART = 100
"""Examples that a small model computes in the time that one more part of a test costs."""

ClientTests = Mapping[int, Sequence[Client]]
"""Clients with the same models and the same test inputs: identity of their targets -> the clients."""

JobParts = list[tuple[int, slice | np.ndarray]]
"""The parts of tests in one job: the number of each test, and the positions of its examples."""


class Runner(Protocol):
    """What carries out jobs: worker processes of this machine, or other machines."""

    def run(self, jobs: Sequence[Any]) -> list[Any]:
        """Carry out all jobs and return their results, in order."""
        ...


class Remote(Runner, Protocol):
    """Other machines that carry out the jobs of a pool.

    The rows of the replies are sent here, to the matrices of the pool's worker; or they *stay*
    where they were made, and only what is asked for below is sent.
    """

    @property
    def machines(self) -> int:
        """The number of machines."""
        ...

    def place(
        self, models: Tensor, personal: Sequence[Tensor], local_worker: Worker, updates_stay: bool
    ) -> None:
        """Prepare for jobs.

        Args:
            models: The models ``(k, d)``: the first rows to which jobs refer.
            personal: Rows ``(d,)`` that were made for single clients, which follow them.
            local_worker: The worker of this process. Its matrices have room for the replies and sketches of
                the jobs.
            updates_stay: Whether the updates stay at the machines. Sketches, personal models and layers
                that a client keeps are sent in any case.
        """
        ...

    def extent(self, reply_slot: int) -> Extent:
        """The measure of the update of a slot, which stays elsewhere."""
        ...

    def scale(self, reply_slots: Sequence[int], scale_factor: float) -> None:
        """Let the updates of some slots, which stay elsewhere, count as scaled by a factor."""
        ...

    def pair(self, first_slot: int, second_slot: int) -> None:
        """Let the update of the first slot count as the mean of both, which stay elsewhere."""
        ...

    def add_means(
        self,
        model_means: Means,
        reply_slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Add updates that stay elsewhere to means.

        Args:
            model_means: The means.
            reply_slots: The slots of the updates.
            amounts: Shape ``(m,)``: the weight of each update.
            groups: For each update, the groups in which it counts.
        """
        ...

    def notes(self) -> tuple[Note, ...]:
        """Return what happened to the machines since the last call."""
        ...


class ReplyRows:
    """The updates and sketches of the last orders that a pool carried out, by their slots.

    They are rows of the shared matrices of this process. If the updates stay at other machines, only
    the columns of layers that a client keeps are valid here, and the machines do the arithmetic.

    Args:
        worker: The worker of this process, whose matrices these are.
        remote: The machines at which the updates stay; None if they are here.
    """

    def __init__(self, worker: Worker, remote: Remote | None) -> None:
        self.worker = worker
        self.remote = remote

    def updates(self, reply_slots: Sequence[int]) -> Tensor:
        """Return the updates at some slots; a view if these are 0, 1, 2 and so on, else a copy."""
        if list(reply_slots) == list(range(len(reply_slots))):
            return self.worker.replies[: len(reply_slots)]
        return self.worker.replies[list(reply_slots)]

    def sketches(self, reply_slots: Sequence[int]) -> Tensor:
        """Return a copy of the sketches at some slots."""
        return self.worker.sketches[list(reply_slots)]

    def lengths(
        self, plan: Plan, results: Mapping[Client, ClientResult], counted: Mapping[Client, int]
    ) -> dict[Client, Length]:
        """Return the lengths of the updates of clients that trained, see :func:`coterie.robust.lengths`.

        Args:
            plan: The plan.
            results: Client -> its result.
            counted: Client -> the number of examples that it counts for.
        """
        # The expected length of an update depends on where a client started, and on its steps.
        world = self.worker.world
        chosen_models = {client: result.chosen for client, result in results.items()}
        step_counts = {
            client: steps_of(plan.tasks[client], world.training, counted[client])
            for client in results
        }
        if self.remote is not None:
            extents = {
                client: [self.remote.extent(reply_slot) for reply_slot in result.slots]
                for client, result in results.items()
            }
            return lengths_of(plan, extents, chosen_models, self.worker.wire, step_counts)
        updates = {client: result.updates for client, result in results.items()}
        return lengths(plan, updates, chosen_models, self.worker.wire, step_counts)

    def scale(
        self, result: ClientResult, scale_factor: float, keep_mask: Tensor | None, sketched: bool
    ) -> None:
        """Scale the update of a client, or those of both halves, and their sketches.

        Args:
            result: The client's result.
            scale_factor: The factor.
            keep_mask: Mask ``(d,)`` of the layers that stay at the client, which are not scaled.
            sketched: Whether there are sketches.
        """
        if self.remote is not None:
            self.remote.scale(result.slots, scale_factor)
        for reply_slot in result.slots:
            if self.remote is None:
                update_row = self.worker.replies[reply_slot]
                if keep_mask is None:
                    update_row *= scale_factor
                else:
                    update_row *= torch.where(keep_mask, 1.0, scale_factor)
            if sketched:
                self.worker.sketches[reply_slot] *= scale_factor

    def add_to_means(
        self,
        model_means: Means,
        reply_slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Add the updates at some slots to means, see :meth:`coterie.core.Means.add`."""
        if self.remote is not None:
            self.remote.add_means(model_means, reply_slots, amounts, groups)
        else:
            model_means.add(self.updates(reply_slots), amounts, groups)

    def average_halves(self, first_slot: int, second_slot: int) -> None:
        """Replace the update at the first slot by the mean of both, and its sketch likewise."""
        # Updates that stay at other machines are averaged there.
        matrices = [self.worker.sketches]
        if self.remote is not None:
            self.remote.pair(first_slot, second_slot)
        else:
            matrices.append(self.worker.replies)
        for matrix in matrices:
            if max(first_slot, second_slot) < len(matrix):
                matrix[first_slot] += matrix[second_slot]
                matrix[first_slot] /= 2


class ClientPool:
    """The worker processes for a world, and the shared matrices of models and replies that they read and write.

    Args:
        world: The clients, their data and their model.
        wire: The wire between clients and server.
        hardware: The hardware settings.
        robust: Bounds on the influence of one client on the others.
        remote: Other machines that carry out the jobs in place of worker processes.

    Attributes:
        worker: The worker of this process. Its matrices are shared with the worker processes.
        rows: The updates and sketches of the last orders.
        width: Clients trained in one block.
    """

    def __init__(
        self,
        world: World,
        wire: Wire,
        hardware: Hardware,
        robust: Robust | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.world = world
        self.wire = wire
        self.layout = wire.layout
        self.robust = (robust or Robust()).within(exposed=bool(world.attacks))
        self.remote = remote
        with seeded(0):
            # The frozen parameters are in memory once, for all worker processes.
            module = world.model()
        # What trains, and in what portions: processes, and clients in one block.
        self.worker = Worker(world, wire, hardware, module)
        self.rows = ReplyRows(self.worker, None)
        hardware.warn_of_one()
        self.processes = hardware.processes(len(world.clients))
        self.width = hardware.block(module, world)
        # BatchNorm needs at least two examples in a step, and batches of equal size in a block.
        has_batchnorm, self.mixes_examples = local.batchnorm(module)
        self.fewest_in_a_step = 1 + has_batchnorm
        self.equal_batches = has_batchnorm
        # Each client is tested alone once a test has drawn random numbers.
        self.draws_in_tests = False
        self._masks: dict[tuple[str, ...], Tensor] = {}
        self._overlaps: dict[tuple[int, str], bool] = {}
        self._workers: Workers | None = None
        self._notes: list[Note] = []

    def __enter__(self) -> ClientPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers:
            self._workers.close()

    def mask(self, layers: tuple[str, ...]) -> Tensor:
        """Return the mask ``(d,)`` of the columns of some layers."""
        if layers not in self._masks:
            self._masks[layers] = self.layout.mask(layers)
        return self._masks[layers]

    def keep_mask(self, task: Task) -> Tensor | None:
        """Return the mask ``(d,)`` of the layers that stay at a client in a task; None for none."""
        return self.mask(task.local_layers) if task.local_layers else None

    def add_note(self, note: Note) -> None:
        """Add a note of an exchange to those that :meth:`notes` returns."""
        self._notes.append(note)

    def notes(self) -> tuple[Note, ...]:
        """Return the notes of exchanges, and what happened to other machines, since the last call."""
        notes_of_exchanges = tuple(self._notes)
        self._notes.clear()
        return (*notes_of_exchanges, *(() if self.remote is None else self.remote.notes()))

    def updates_stay(self, plan: Plan) -> bool:
        """Whether the updates of a plan stay at other machines, which send their means and sketches.

        They are sent if something needs single ones: exact inner products, a robust mean,
        adversaries that collude.
        """
        if self.remote is None or self.robust.needs_all:
            return False
        # Sums under masks are formed here.
        if plan.need == "sums" or self.wire.boundary.masks:
            return False
        for client, attack in self.world.attacks.items():
            if client in plan.tasks and attack.colluding:
                return False
        has_halves = any(task.halves for task in plan.tasks.values())
        if has_halves and (plan.sketch is None or plan.second_halves):
            return False
        return plan.need == "mean" or plan.sketch is not None

    def machines(self, plan: Plan) -> int:
        """Return the number of machines whose memory holds the replies to a plan."""
        if self.remote is None or not self.updates_stay(plan):
            return 1
        return self.remote.machines

    def _reserve(self, model_count: int, reply_count: int, sketch_length: int = 0) -> bool:
        """Provide at least this many rows of shared memory; return whether there is new memory."""
        # The shared matrices only grow, so that most exchanges need no new memory.
        local_worker = self.worker
        sketch_count = reply_count if sketch_length else 0
        same_length = sketch_length in (0, local_worker.sketches.shape[1])
        enough_sketches = sketch_count <= len(local_worker.sketches) and same_length
        if (
            model_count <= len(local_worker.models)
            and reply_count <= len(local_worker.replies)
            and enough_sketches
        ):
            return False
        if model_count > len(local_worker.models):
            local_worker.models = shared_matrix(model_count, self.layout.size)
        if reply_count > len(local_worker.replies):
            local_worker.replies = shared_matrix(reply_count, self.layout.size)
        if not enough_sketches:
            local_worker.sketches = shared_matrix(sketch_count, sketch_length)
        return True

    def put(
        self,
        models: Tensor,
        personal_rows: Sequence[Tensor],
        reply_count: int = 0,
        sketch_length: int = 0,
        updates_stay: bool = False,
    ) -> Runner:
        """Write the models and, after them, the rows made for single clients; return what carries out the jobs.

        Args:
            models: The models ``(k, d)``.
            personal_rows: The rows ``(d,)`` for single clients.
            reply_count: Number of slots for replies.
            sketch_length: Numbers of a sketch; 0 without sketches.
            updates_stay: Whether the updates stay at other machines.

        Returns:
            What carries out the jobs.
        """
        self.rows = ReplyRows(self.worker, self.remote if updates_stay else None)
        if self.remote is not None:
            self._reserve(0, reply_count, sketch_length)
            self.remote.place(models, personal_rows, self.worker, updates_stay)
            return self.remote
        if (
            self._reserve(len(models) + len(personal_rows), reply_count, sketch_length)
            or self._workers is None
        ):
            if self._workers:
                self._workers.close()
            # New memory needs new worker processes, which are cheap to fork.
            self._workers = Workers(self.worker.work, self.processes)
        if models.shape[1:] != self.worker.models.shape[1:]:
            raise SettingError(
                f"the method's models must be rows of {self.worker.models.shape[1]} numbers, those of the clients' model, got "
                f"shape {tuple(models.shape)}"
            )
        # Workers read the models from shared memory: jobs have only the numbers of rows.
        self.worker.models[: len(models)] = models
        for row_number, personal_row in enumerate(personal_rows, len(models)):
            self.worker.models[row_number] = personal_row
        return self._workers

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(
        self,
        plan: Plan,
        clients: Sequence[Client],
        own_values: Mapping[Client, Tensor],
        exchange_key: tuple[int, int, int],
        part_number: int = 0,
        optimizer_states: Mapping[Client, Tensor] = MappingProxyType({}),
    ) -> dict[Client, ClientResult]:
        """Carry out the tasks of some clients of a plan.

        Args:
            plan: The plan.
            clients: The clients whose tasks are carried out.
            own_values: Client -> the values ``(d,)`` of the layers that stay at it, NaN in the other
                columns.
            exchange_key: The seed, the exchange, and the round counted from 0.
            part_number: The position of the plan among the parts that are carried out together.
            optimizer_states: Client -> the bytes of its optimizer's state after its last training.

        Returns:
            Client -> result, sorted by client id. The next call overwrites their rows.

        Raises:
            EngineError: A task failed.
        """
        personal_rows: list[Tensor] = []
        placed_orders: list[PlacedOrder] = []
        # Rows of the reply matrix behind the first one of each client.
        more_slots = itertools.count(len(clients))
        for reply_slot, client in enumerate(sorted(clients)):
            order = Order.of_plan(
                plan,
                client,
                self.world.training,
                exchange_key,
                d=self.layout.size,
                number=part_number,
            )
            placed = self._placed(plan, order, own_values.get(client), reply_slot, personal_rows)
            if client in optimizer_states:
                placed = replace(placed, optimizer_state=optimizer_states[client].numpy().tobytes())
            placed_orders += self._divided(placed, more_slots)
        # All jobs write to rows of their own, so their order does not matter.
        runner = self.put(
            plan.models,
            personal_rows,
            next(more_slots),
            sketch_size(plan, self.layout.size),
            self.updates_stay(plan),
        )
        # A client with halves has several jobs, whose results become one.
        results: dict[Client, list[tuple[Order, ClientResult]]] = {}
        for block in runner.run(self._blocks(placed_orders)):
            for placed, result in block:
                results.setdefault(placed.order.client, []).append(
                    (placed.order, self._with_rows(placed, result))
                )
        return {client: local.combined(results[client]) for client in sorted(clients)}

    def _placed(
        self,
        plan: Plan,
        order: Order,
        own_values: Tensor | None,
        reply_slot: int,
        personal_rows: list[Tensor],
    ) -> PlacedOrder:
        """An order with its rows; rows that are made for its client alone are appended to ``personal_rows``."""
        task = order.task
        first_row = len(plan.models) + len(personal_rows)
        kept_layers = self._kept_layers(task, own_values)
        row_numbers = task.offered
        if kept_layers is not None:
            row_numbers = tuple(range(first_row, first_row + len(row_numbers)))
            personal_rows += [
                own_layers(plan.models[offered_row], kept_layers) for offered_row in task.offered
            ]
        personal = task.personal
        if personal is None or personal.start != "own" or own_values is None:
            return PlacedOrder(order, reply_slot, row_numbers)
        personal_model, mixture_weight = without_weight(own_values, self.layout.size)
        personal_rows.append(personal_model)
        return PlacedOrder(
            order, reply_slot, row_numbers, personal_row=first_row, personal_weight=mixture_weight
        )

    def _divided(self, placed: PlacedOrder, more_slots: Iterator[int]) -> list[PlacedOrder]:
        """The orders into which an order is divided, each with slots of its own."""
        if not placed.order.task.halves and placed.order.task.personal is None:
            return [placed]
        # A client with too few examples for two halves trains once, on all of them.
        can_halve = halvable(self._training_data(placed.order), self.fewest_in_a_step)
        orders = local.divided(placed.order, can_halve=can_halve)
        divided = []
        for order in orders:
            reply_slot = next(more_slots) if order.half == 1 else placed.slot
            personal_slot = None
            if placed.order.task.personal is not None and order.half is None:
                personal_slot = next(more_slots)
            divided.append(
                replace(placed, order=order, slot=reply_slot, personal_slot=personal_slot)
            )
        return divided

    def _with_rows(self, placed: PlacedOrder, result: ClientResult) -> ClientResult:
        """A result with the slots of its update, and with views of its rows in the reply matrix."""
        replies = self.worker.replies
        personal = None if placed.personal_slot is None else replies[placed.personal_slot]
        if placed.order.beside_halves:
            return replace(result, personal=personal)
        updates = (replies[placed.slot],) if result.trained else ()
        return replace(result, slots=(placed.slot,), updates=updates, personal=personal)

    def _blocks(self, placed_orders: Sequence[PlacedOrder]) -> list[list[PlacedOrder]]:
        """Form blocks of clients that can train together, and jobs of one client for the others.

        Long jobs come first, so that no worker starts one when the others have almost finished.
        """
        # Clients whose steps have the same shape can share a block.
        orders_by_key: dict[Hashable, list[PlacedOrder]] = {}
        for placed in placed_orders:
            orders_by_key.setdefault(self._block_key(placed.order), []).append(placed)
        blocks: list[list[PlacedOrder]] = []
        for similar_orders in orders_by_key.values():
            blocks += self._cut(similar_orders)
        return sorted(blocks, key=lambda block: -sum(map(self._size, block)))

    def _training_data(self, order: Order) -> Split:
        """The training examples of a client; an order for a half trains on half of them."""
        time_step = self.world.step(order.round + 1)
        return self.worker.data(order.client, order.task.holdout.share, time_step).train

    def _size(self, placed: PlacedOrder) -> int:
        """The number of training examples of an order; about that of a half with whole subjects."""
        example_count = len(self._training_data(placed.order))
        return example_count if placed.order.half is None else example_count // 2

    def _block_key(self, order: Order) -> Hashable:
        """The properties that all clients of a block share; for a client that trains alone, its id."""
        task = order.task
        client_alone = (order.client, order.half, order.beside_halves)
        mixes_models = task.personal is not None and task.personal.mixture is not None
        only_measures = task.measure and not (
            task.trains or task.personal or task.holdout.report_losses
        )
        # Measuring needs no equal steps. Training does, and some tasks cannot be done in blocks at
        # all.
        if self.width > 1 and only_measures:
            return task.measure, task.offered
        if self.width == 1 or task.gradient or mixes_models:
            return client_alone
        training = order.training
        if not task.trains:
            if task.personal is None:
                return client_alone
            # Besides halves, only the personal model is trained.
            training = local.personal_training(training, task.personal)
        # Clients of a block share an optimizer, and so its count of steps.
        if training.keep_optimizer or not treats_parameters_alone(training):
            return client_alone
        training_data = self._training_data(order)
        if order.half is not None and training_data.subjects is not None:
            # Halves of whole subjects have several sizes.
            training_data = training_data.at(
                local.halves(training_data, order.client_draws)[order.half]
            )
        elif order.half is not None:
            training_data = training_data.at(slice(len(training_data) // 2))
        try:
            batch_shapes = goes_with(
                training_data, training, self.fewest_in_a_step, self.equal_batches
            )
        except ValueError:
            # It cannot make a step, and its task reports this error.
            return client_alone
        settings = (order.training, order.lr, task.stages, task.personal, task.corrected)
        return settings, task.trains, batch_shapes

    def _cut(self, similar_orders: Sequence[PlacedOrder]) -> Iterator[list[PlacedOrder]]:
        """Cut a group into as few blocks as possible; clients with similar numbers of examples share a block."""
        by_size = sorted(similar_orders, key=self._size)
        # Blocks of about equal numbers of clients.
        block_count = math.ceil(len(similar_orders) / self.width)
        for block_number in range(block_count):
            block_start = block_number * len(similar_orders) // block_count
            block_end = (block_number + 1) * len(similar_orders) // block_count
            yield by_size[block_start:block_end]

    def start_model(
        self, plan: Plan, task: Task, own_values: Tensor | None, chosen_rows: Sequence[int]
    ) -> Tensor:
        """Return the model from which a client trained: the mean of those that it chose, with its own layers.

        Args:
            plan: The plan.
            task: The client's task.
            own_values: The values ``(d,)`` of the layers that stay at the client, NaN in the other
                columns.
            chosen_rows: The chosen models, as rows of the plan's models.

        Returns:
            The model ``(d,)``.
        """
        kept_layers = self._kept_layers(task, own_values)
        return local.mean_model(
            [own_layers(plan.models[row_number], kept_layers) for row_number in chosen_rows]
        )

    def _kept_layers(self, task: Task, own_values: Tensor | None) -> Tensor | None:
        """The client's own values of the layers that it keeps in a task; NaN in the other columns."""
        if own_values is None or not task.local_layers:
            return None
        return torch.where(self.mask(task.local_layers), own_values, torch.nan)

    def taken(self, assignment: Assignment, exchange_key: tuple[int, int, int]) -> Assignment:
        """Return an assignment in which every client is served by the model of lowest loss on its training data.

        Args:
            assignment: The assignment.
            exchange_key: The seed, the exchange, and the round counted from 0.
        """
        if len(assignment.models) == 1:
            return assignment
        # A task that chooses one of all models and does not train.
        task = Task(offered=tuple(range(len(assignment.models))), epochs=0)
        plan = Plan(models=assignment.models, tasks=dict.fromkeys(assignment.row, task))
        results = self.train(plan, sorted(assignment.row), {}, exchange_key)
        model_of_client = {client: result.chosen[0] for client, result in results.items()}
        # The groups: clients that chose the same model.
        clients_of_model: dict[int, list[Client]] = {}
        for client, chosen_model in model_of_client.items():
            clients_of_model.setdefault(chosen_model, []).append(client)
        groups = [clients for _, clients in sorted(clients_of_model.items())]
        return replace(assignment, row=model_of_client, groups=as_groups(groups))

    # -- testing
    # ------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        assignment: Assignment,
        position: Position,
        clients: Sequence[Client] | None = None,
    ) -> dict[Client, dict[str, float]]:
        """Test the model, or the ensemble, of each client on its own test data, and on what is set aside for validation scores.

        Args:
            assignment: The model of each client.
            position: The position after the round, with the clients' own values.
            clients: The clients that are tested, as far as a model serves them; None for all.

        Returns:
            Client -> metric -> value, and the sums of metrics that have some, see ``flat``.
            Validation scores begin with :data:`~coterie.data.objective.VALIDATION`.

        Raises:
            EngineError: A test failed.
        """
        if clients is None:
            clients = sorted(assignment.row)
        clients = [client for client in clients if client in assignment.row]
        scores = self._scores(assignment, position, "test", clients)
        if self.world.has_validation_scores:
            for client, results in self._scores(assignment, position, "scoring", clients).items():
                validation_scores = {VALIDATION + key: value for key, value in results.items()}
                scores[client] = {**scores[client], **validation_scores}
        return scores

    def _scores(
        self,
        assignment: Assignment,
        position: Position,
        part: str,
        tested_clients: Sequence[Client],
    ) -> dict[Client, dict[str, float]]:
        """The results of some clients on one part of their data: ``test`` or ``scoring``.

        Each distinct pair of models and test examples is computed once.
        """
        time_step = self.world.step(position.round)
        # The rows made for single clients, and for each combination of models the test examples of
        # their clients: clients with equal examples and equal targets share a test.
        personal_rows: list[Tensor] = []
        tests: dict[tuple[int, ...], dict[tuple[int, int], dict[int, list[Client]]]] = {}
        tests_with_neighbours: dict[tuple[tuple[int, ...], Client], list[Test]] = {}
        for client in tested_clients:
            row_numbers = assignment.serving(client)
            own_values = position.own(assignment, client)
            if own_values is not None:
                first_row = len(assignment.models) + len(personal_rows)
                personal_rows += [
                    own_layers(assignment.models[row_number], own_values)
                    for row_number in row_numbers
                ]
                row_numbers = tuple(range(first_row, first_row + len(row_numbers)))
            test_split = getattr(self.world.steps[time_step][client], part)
            neighbours = assignment.neighbours_of(client)
            if neighbours is not None:
                # The result depends on the client's training data, so it has a test of its own.
                tests_with_neighbours[row_numbers, client] = [
                    Test(
                        row_numbers,
                        (client,),
                        slice(0, len(test_split)),
                        neighbours,
                        time_step,
                        part=part,
                    )
                ]
                continue
            example_key = (id(test_split.inputs), id(test_split.index))
            if isinstance(self.world.clients, OnDemand):
                # The tensors may be forgotten, and their ids used again.
                example_key = (-1, client)
            same_examples = tests.setdefault(row_numbers, {}).setdefault(example_key, {})
            same_examples.setdefault(id(test_split.targets), []).append(client)

        def run_tests() -> dict[tuple[tuple[int, ...], Client], Sums]:
            test_jobs: list[list[Test]] = []
            for row_numbers, by_examples in tests.items():
                test_jobs += self._test_jobs(
                    row_numbers, list(by_examples.values()), time_step, part
                )
            test_jobs += tests_with_neighbours.values()
            return self._sums(test_jobs, assignment.models, personal_rows)

        test_sums = run_tests()
        has_drawn = any(DRAWN in metric_totals for metric_totals in test_sums.values())
        if not self.draws_in_tests and has_drawn:
            # Clients that share a batch would draw each other's random numbers: test each of them
            # alone.
            self.draws_in_tests = True
            test_sums = run_tests()
        # Clients that share a test share its metrics.
        objective = self.world.objective
        scores: dict[Client, dict[str, float]] = {}
        for row_numbers, by_examples in tests.items():
            for by_targets in by_examples.values():
                for clients in by_targets.values():
                    metric_totals = test_sums.get((row_numbers, clients[0]), {})
                    metrics = objective.scores(metric_totals) | objective.error_sums(metric_totals)
                    scores.update(dict.fromkeys(clients, metrics))
        for row_numbers, client in tests_with_neighbours:
            metric_totals = test_sums.get((row_numbers, client), {})
            scores[client] = objective.scores(metric_totals) | objective.error_sums(metric_totals)
        return dict(sorted(scores.items()))

    def _sums(
        self, jobs: Sequence[Sequence[Test]], models: Tensor, personal: Sequence[Tensor]
    ) -> dict[tuple[tuple[int, ...], Client], Sums]:
        """Carry out tests; return the sums of each client's parts, by the rows of its models and the client."""
        sums_by_test: dict[tuple[tuple[int, ...], Client], Sums] = {}
        for test_job, results in zip(jobs, self.put(models, personal).run(jobs), strict=True):
            for test, totals_of_clients in zip(test_job, results, strict=True):
                for client, metric_totals in zip(test.clients, totals_of_clients, strict=True):
                    sums_of_client = sums_by_test.setdefault((test.rows, client), {})
                    for metric, (metric_sum, example_count) in metric_totals.items():
                        earlier_value, earlier_count = sums_of_client.get(metric, (0.0, 0))
                        sums_of_client[metric] = (
                            earlier_value + metric_sum,
                            earlier_count + example_count,
                        )
        return sums_by_test

    def _test_jobs(
        self,
        row_numbers: tuple[int, ...],
        client_tests: Sequence[ClientTests],
        time_step: int,
        part: str,
    ) -> Iterator[list[Test]]:
        """Jobs of at most :data:`EXAMPLES_PER_TEST` examples, all of the same models."""
        # One client for each set of targets, and the examples of each test.
        clients_of_tests = []
        examples = []
        for by_targets in client_tests:
            clients = tuple(same_targets[0] for same_targets in by_targets.values())
            clients_of_tests.append(clients)
            examples.append(getattr(self.world.steps[time_step][clients[0]], part))
        # One job per client, because no test may draw another one's random numbers.
        if self.draws_in_tests:
            for clients, test_split in zip(clients_of_tests, examples, strict=True):
                for client in clients:
                    yield [
                        Test(
                            row_numbers,
                            (client,),
                            slice(0, len(test_split)),
                            step=time_step,
                            apart=True,
                            part=part,
                        )
                    ]
            return
        is_whole = self.mixes_examples or self.world.objective.whole
        overlap = len(examples) > 1 and not is_whole and self._overlap(time_step, part)
        for job in cut(examples, whole=is_whole, overlap=overlap):
            yield [
                Test(
                    row_numbers,
                    clients_of_tests[test_number],
                    positions,
                    step=time_step,
                    part=part,
                )
                for test_number, positions in job
            ]

    def _overlap(self, time_step: int, part: str) -> bool:
        """Whether the clients' test data overlap so much that it may pay to compute common examples once."""
        if isinstance(self.world.clients, OnDemand):
            return False
        if (time_step, part) not in self._overlaps:
            # Clients with the same examples count once.
            distinct_tests = {}
            for client_data in self.world.steps[time_step].values():
                test_split = getattr(client_data, part)
                distinct_tests[id(test_split.inputs), id(test_split.index)] = test_split
            # Positions of the test examples in each pool of examples.
            pool_positions: dict[int, list[np.ndarray]] = {}
            for test_split in distinct_tests.values():
                pool_positions.setdefault(id(test_split.inputs), []).append(
                    test_split.index.numpy()
                )
            # A tenth of common examples is the least that may pay.
            total_count = sum(map(len, distinct_tests.values()))
            distinct_count = 0
            for positions in pool_positions.values():
                distinct_count += int(np.count_nonzero(np.bincount(np.concatenate(positions))))
            self._overlaps[time_step, part] = bool(distinct_count <= 0.9 * total_count)
        return self._overlaps[time_step, part]


def cut(test_splits: Sequence[Split], *, whole: bool, overlap: bool) -> list[JobParts]:
    """Cut tests into jobs of about :data:`EXAMPLES_PER_TEST` examples.

    Args:
        test_splits: The examples of each test.
        whole: Whether no test may be cut.
        overlap: Whether to look for examples that several tests have in common. They go into one
            job, where they are computed once, if this saves enough for the smaller parts into which
            tests are then cut.

    Returns:
        For each job, the number of each test that has a part in it, and the positions of the part's
        examples.
    """
    if not any(map(len, test_splits)):
        return []
    test_count = len(test_splits)
    # Where the examples of each test begin, if all are in one long row.
    test_sizes = np.array([len(test_split) for test_split in test_splits], dtype=np.int64)
    test_starts = np.cumsum(test_sizes) - test_sizes
    # All examples of all tests, one after the other: the test of each, its job by its position, and
    # its part: the examples of one test in one job.
    test_of_example = np.repeat(np.arange(test_count), test_sizes)
    example_positions = (
        np.repeat(test_starts, test_sizes) if whole else np.arange(len(test_of_example))
    )
    part_of_example = example_positions // EXAMPLES_PER_TEST * test_count + test_of_example
    if overlap:
        # Common examples come into one job if the examples that this saves outweigh the additional
        # parts.
        distinct_numbers = _distinct_numbers(test_splits)
        shared_part = distinct_numbers // EXAMPLES_PER_TEST * test_count + test_of_example
        saved_examples = len(test_of_example) - 1 - distinct_numbers.max()
        more_parts = len(np.unique(shared_part)) - len(np.unique(part_of_example))
        if saved_examples >= EXAMPLES_PER_PART * more_parts:
            part_of_example = shared_part
    # The examples of each part, in order; consecutive ones as a slice.
    order = part_of_example.argsort(kind="stable")
    part_ends = np.diff(part_of_example[order]).nonzero()[0] + 1
    jobs: dict[int, JobParts] = {}
    for examples_of_part in np.split(order, part_ends):
        job_number, test_number = divmod(int(part_of_example[examples_of_part[0]]), test_count)
        positions = examples_of_part - test_starts[test_number]
        part_positions: slice | np.ndarray = positions
        if positions[-1] - positions[0] == len(positions) - 1:
            part_positions = slice(int(positions[0]), int(positions[-1]) + 1)
        jobs.setdefault(job_number, []).append((test_number, part_positions))
    return list(jobs.values())


def _distinct_numbers(test_splits: Sequence[Split]) -> np.ndarray:
    """For each example of tests, one after the other, the number of its distinct example, in the order in which these come."""
    # The key of an example: the number of its pool, and its position there.
    pool_numbers: dict[int, int] = {}
    example_keys = []
    for test_split in test_splits:
        pool_number = pool_numbers.setdefault(id(test_split.inputs), len(pool_numbers))
        example_keys.append((pool_number << 40) + test_split.index.long().numpy())
    _, first_positions, key_of_example = np.unique(
        np.concatenate(example_keys), return_index=True, return_inverse=True
    )
    numbers = np.empty(len(first_positions), dtype=np.int64)
    numbers[first_positions.argsort()] = np.arange(len(first_positions))
    return numbers[key_of_example]
