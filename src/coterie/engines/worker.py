"""One worker process: it does clients' orders and tests, and reads and writes the shared matrices of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie import training as local
from coterie.boundary import Wire, update_number
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import Client, Neighbours
from coterie.data.on_demand import OnDemand
from coterie.data.world import ClientData, World
from coterie.engines.plausible import Plausible
from coterie.engines.workers import EngineError, Hardware, sentence
from coterie.training import ClientResult, Order, Sums


@dataclass(frozen=True)
class PlacedOrder:
    """A client's order, and the rows of the shared matrices that belong to it.

    Attributes:
        order: The order.
        slot: Row of the reply matrix for the update.
        rows: Rows of the model matrix with the offered models.
        personal_row: Row of the model matrix with the client's personal model, or None.
        personal_weight: Weight of the personal model in a mixture, or None.
        personal_slot: Row of the reply matrix for the new personal model. None if there is none.
        optimizer_state: The state of the client's optimizer after its last training, or None.
    """

    order: Order
    slot: int
    rows: tuple[int, ...]
    personal_row: int | None = None
    personal_weight: float | None = None
    personal_slot: int | None = None
    optimizer_state: bytes | None = None


@dataclass(frozen=True)
class Test:
    """A test of one model, or of an ensemble, on some examples of clients with equal test examples.

    Attributes:
        rows: Rows of the model matrix: one model, or those of an ensemble.
        clients: The clients, one per distinct set of targets.
        positions: Positions of the examples in the clients' test data.
        neighbours: How the client's nearest training examples take part; the test is then of all
            examples of one client.
        step: The time step whose data the clients have.
        apart: Whether this is a whole test of one client, which shares no batch with others because
            it draws random numbers.
        part: The examples: ``test``, or ``scoring`` for validation scores.
    """

    rows: tuple[int, ...]
    clients: tuple[Client, ...]
    positions: slice | np.ndarray
    neighbours: Neighbours | None = None
    step: int = 0
    apart: bool = False
    part: str = "test"

    def __len__(self) -> int:
        if isinstance(self.positions, slice):
            return int(self.positions.stop - self.positions.start)
        return len(self.positions)


DRAWN = "loss/drawn"
"""Entry of a test's sums if the user's code drew random numbers in a batch that clients may share.
No metric can be called loss.
"""


class Worker:
    """Carries out jobs in the process in which it is called.

    All rows of the shared matrices have the form that the server sees. A client opens the offered
    models, and ``wire`` protects the update that it sends.
    """

    def __init__(
        self, world: World, wire: Wire, hardware: Hardware, module: torch.nn.Module
    ) -> None:
        self.world = world
        self.wire = wire
        self.hardware = hardware
        self.module = module
        self.plausible = Plausible.of_objective(world.objective)
        self.models = self.replies = torch.empty(0, wire.layout.size)
        self.sketches = torch.empty(0, 0)
        self._learner: local.Learner | None = None
        self._data: dict[tuple[Client, float, int], ClientData] = {}

    @property
    def learner(self) -> local.Learner:
        """The learner of this process, made when it is first needed."""
        # Made in the worker process, which then has its own tensors of all that is trained.
        if self._learner is None:
            self._learner = local.Learner(
                self.module,
                self.world.objective,
                self.world.augment,
                device=self.hardware.device,
                precision=self.hardware.precision,
            )
        return self._learner

    def work(self, job: Any) -> Any:
        """Carry out a job: a list of :class:`PlacedOrder` or of :class:`Test`."""
        return self.train(job) if isinstance(job[0], PlacedOrder) else self.test(job)

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(self, block: Sequence[PlacedOrder]) -> list[tuple[PlacedOrder, ClientResult]]:
        """Carry out one order, or the orders of several clients in one block.

        Args:
            block: The orders.

        Returns:
            One (order, result) per order. The rows of the results are in the reply matrix.

        Raises:
            EngineError: A task failed.
        """
        try:
            # Several clients with steps of the same shape train as one block.
            jobs = [self._job(placed) for placed in block]
            if len(jobs) == 1:
                results = iter([local.answer(self.learner, jobs[0])])
            else:
                results = local.answer_together(self.learner, jobs)
            return [
                (placed, self._written(placed, client_result))
                for placed, client_result in zip(block, results, strict=True)
            ]
        except Exception as error:
            # The error names the client, if only one has trained.
            subject = f"a block of {len(block)} clients"
            hint = "; --width 1 trains each client alone"
            if len(block) == 1:
                subject = f"client {self.world.name(block[0].order.client)}"
                hint = ""
            raise EngineError(f"{subject} failed in its task: {sentence(error)}{hint}") from error

    def _job(self, placed: PlacedOrder) -> local.Job:
        order = placed.order
        personal_model = None
        if placed.personal_row is not None:
            personal_model = self.wire.open(self.models[placed.personal_row])
        client_job = local.Job(
            order,
            [self.wire.open(self.models[row_number]) for row_number in placed.rows],
            self.data(order.client, order.task.holdout.share, self.world.step(order.round + 1)),
            personal_model,
            placed.personal_weight,
            placed.optimizer_state,
        )
        return client_job.of_order(order)

    def data(self, client: Client, held_out_share: float, time_step: int) -> ClientData:
        """Return a client's data in a time step.

        Args:
            client: The client.
            held_out_share: The share of its training examples that is held out if it has no validation
                part.
            time_step: The time step.
        """
        data_key = (client, held_out_share, time_step)
        # A worker splits a client's data once, also for later exchanges.
        if data_key not in self._data:
            clients = self.world.steps[time_step]
            self._data[data_key] = local.held_out(
                clients[client], held_out_share, self.wire.seed, client
            )
            # Data that are made on demand are forgotten here, too; the oldest first.
            if isinstance(clients, OnDemand) and len(self._data) > clients.most_kept:
                del self._data[next(key for key in self._data if key != data_key)]
        return self._data[data_key]

    def _written(self, placed: PlacedOrder, result: ClientResult) -> ClientResult:
        """Write the rows of a result to the reply matrix; return it without them, refused if need be."""
        order = placed.order
        refusal = None
        # Of an order beside both halves, the update does not count.
        if not order.beside_halves and result.update is None:
            # Clear the row of an earlier exchange.
            self.replies[placed.slot] = 0.0
            self.sketches[placed.slot : placed.slot + 1] = 0.0
        elif not order.beside_halves and result.update is not None:
            refusal = self._write_update(placed, result.update)
        if placed.personal_slot is not None and result.personal is not None:
            self.replies[placed.personal_slot] = self.wire.seal(result.personal)
            # With noise, a refusal would reveal something about the data.
            if result.personal_values is None and not self.wire.boundary.noise:
                refusal = local.PERSONAL_NOT_FINITE
        # The server does not learn losses that the objective cannot have.
        reported_losses = list(result.losses)
        if result.held_losses is not None and result.held_losses.size:
            reported_losses.append(float(result.held_losses.min()))
        refusal = refusal or self.plausible.flaw(
            reported_losses, result.accuracies, str(order.task.measure)
        )
        return replace(result, updates=(), personal=None, refused=refusal)

    def _write_update(self, placed: PlacedOrder, update: Tensor) -> str | None:
        """Write an update as the server receives it, and its sketch; return why it is refused."""
        order = placed.order
        wire = self.wire
        client_attack = self.world.attacks.get(order.client)
        keep_mask = wire.layout.mask(order.task.local_layers) if order.task.local_layers else None
        # What leaves the client: the update, changed by an attack, and protected by the boundary.
        update = local.sent_update(update, client_attack, order, wire.layout, keep_mask)
        noise_number = update_number(order.number, order.half or 0)
        sent_update = wire.send(update, order.client, order.exchange, keep_mask, noise_number)
        self.replies[placed.slot] = sent_update
        # With noise only the noised row is checked: a refusal because of the other one would reveal
        # something about the data.
        checked_rows = [sent_update]
        if not wire.boundary.noise and sent_update is not update:
            checked_rows.append(update)
        if order.sketch:
            sketched = sent_update if keep_mask is None else sent_update.masked_fill(keep_mask, 0.0)
            checked_rows += unchecked_sketch(sketched[None, slice(*order.columns)], order.sketch)
            self.sketches[placed.slot] = checked_rows[-1]
        return None if local.all_finite(checked_rows) else local.UPDATE_NOT_FINITE

    # -- testing
    # ------------------------------------------------------------------------------------------------------

    def test(self, tests: Sequence[Test]) -> list[list[Sums]]:
        """Return sums of loss and metrics.

        Args:
            tests: The tests. All must be of the same models.

        Returns:
            For each test, one entry per client of it.

        Raises:
            EngineError: A test failed.
        """
        first_test = tests[0]
        try:
            return self._sums_of_tests(tests)
        except Exception as error:
            if len(tests) > 1:
                # One by one, to find the client whose test fails.
                return [self.test([test])[0] for test in tests]
            raise EngineError(
                f"client {self.world.name(first_test.clients[0])} failed in its test: {sentence(error)}"
            ) from error

    def _sums_of_tests(self, tests: Sequence[Test]) -> list[list[Sums]]:
        """The sums of each test, one entry per client of it."""
        first_test = tests[0]
        test_splits = []
        for test in tests:
            data_of_clients = self.world.steps[test.step]
            test_splits += [getattr(data_of_clients[client], test.part) for client in test.clients]
        # Tests may draw random numbers, too.
        with self.learner.scope((0,), *test_splits) as random_scope:
            opened_models = [
                self.wire.open(self.models[row_number]) for row_number in first_test.rows
            ]
            neighbours = first_test.neighbours
            if neighbours is not None:
                return [
                    [self._with_neighbours(opened_models[0], test, neighbours)] for test in tests
                ]
            sums_of_tests = self.learner.sums(opened_models, [self._part(test) for test in tests])
            has_drawn = random_scope.own_code and not first_test.apart and random_scope.moved
        if not has_drawn:
            return sums_of_tests
        marked_sums = []
        for sums_of_clients in sums_of_tests:
            marked_sums.append(
                [{**client_sums, DRAWN: (1.0, 1)} for client_sums in sums_of_clients]
            )
        return marked_sums

    def _with_neighbours(self, model_row: Tensor, test: Test, neighbours: Neighbours) -> Sums:
        client_data = self.data(test.clients[0], neighbours.holdout, test.step)
        client_data = replace(client_data, test=getattr(client_data, test.part))
        return local.sums_with_neighbours(self.learner, model_row, client_data, neighbours)

    def _part(self, test: Test) -> local.Part:
        data_of_clients = self.world.steps[test.step]
        # The clients share their test inputs, and each has its own targets.
        indices = test.positions
        positions = indices if isinstance(indices, slice) else torch.tensor(indices)
        tested_splits = [getattr(data_of_clients[client], test.part) for client in test.clients]
        first_split = tested_splits[0]
        targets = [split.at(positions).targets for split in tested_splits]
        return first_split.inputs, first_split.index[positions], targets
