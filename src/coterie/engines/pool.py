"""The clients' tasks and tests as jobs of worker processes, which read and write shared matrices of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie import training as local
from coterie.boundary import Wire, update_number
from coterie.clustering.sketch import unchecked_sketch
from coterie.core import (
    Assignment,
    Client,
    Means,
    Neighbours,
    Note,
    Plan,
    Position,
    Task,
    Training,
    as_groups,
)
from coterie.data.world import ClientData, Split, World
from coterie.engines.plausible import Plausible
from coterie.engines.workers import EngineError, Hardware, Workers, sentence, shared_matrix
from coterie.models.layout import own_layers, with_weight, without_weight
from coterie.randomness import Purpose, seeded
from coterie.robust import Extent, Length, Robust, lengths, lengths_of, steps_of
from coterie.training import Sums, halvable
from coterie.training.blocks import goes_with


def sketch_size(plan: Plan, d: int) -> int:
    """Numbers of a plan's sketches of models of d parameters; if columns are fewer, they are the sketch. 0 without sketches."""
    return (
        0 if plan.sketch is None else min(plan.sketch, len(range(d)[plan.columns or slice(None)]))
    )


@dataclass(frozen=True)
class ClientJob:
    """A client's task in the form that a worker receives.

    Attributes:
        slot: Row of the reply matrix for the reply.
        client: Id of the client.
        task: The task.
        rows: Rows of the model matrix with the offered models.
        lr: Learning rate.
        key: (seed, purpose, exchange, client), the seed of all random draws.
        columns: Columns for the sketch. None means all.
        sketch: Numbers of the sketch. None means no sketch.
        half: 0 or 1 if the client trains on one half of its data, which is a job of its own. None
            means all data.
        own: Row of the model matrix with the client's personal model. None if it has none.
        weight: Weight of the personal model in a mixture.
        personal: Row of the reply matrix for the new personal model. None if the task trains none.
        part: The position of the plan among the parts that are carried out together.
        training: Settings of local training. None for those of the task.
        aside: Whether only the personal model and the held-out losses count, because the update is
            that of both halves.
        step: The time step whose data the client has.
    """

    slot: int
    client: Client
    task: Task
    rows: tuple[int, ...]
    lr: float
    key: tuple[int, ...]
    columns: slice | None = None
    sketch: int | None = None
    half: int | None = None
    own: int | None = None
    weight: float | None = None
    personal: int | None = None
    part: int = 0
    training: Training | None = None
    aside: bool = False
    step: int = 0


@dataclass(frozen=True)
class Test:
    """A test of one model, or of an ensemble, on some examples of clients with equal test examples.

    Attributes:
        rows: Rows of the model matrix: one model, or those of an ensemble.
        clients: The clients, one per distinct set of targets.
        at: Positions of the examples in the clients' test data.
        neighbours: How the client's nearest training examples take part; the test is then of all
            examples of one client.
        step: The time step whose data the clients have.
        apart: Whether this is a whole test of one client, which shares no batch with others because
            it draws random numbers.
    """

    rows: tuple[int, ...]
    clients: tuple[Client, ...]
    at: slice | np.ndarray
    neighbours: Neighbours | None = None
    step: int = 0
    apart: bool = False

    def __len__(self) -> int:
        return self.at.stop - self.at.start if isinstance(self.at, slice) else len(self.at)


@dataclass(frozen=True)
class Done:
    """What a worker returns for a task; rows are in the shared matrix.

    Attributes:
        chosen: The chosen models, as rows of the plan's models.
        losses: Measured losses, one per offered model, or empty.
        accuracies: Measured accuracies, one per offered model, or empty.
        trained: Whether the client trained.
        refused: Why the reply is refused. None if it is not.
        weight: Weight of the personal model in a mixture; None without a mixture.
        held: Held-out losses ``(m, examples)``, or None.
    """

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    trained: bool
    refused: str | None
    weight: float | None = None
    held: np.ndarray | None = None


DRAWN = "loss/drawn"  # no metric can be called loss
"""Entry of a test's sums if the user's code drew random numbers in a batch that clients may share.
"""


class Worker:
    """Carries out jobs in the process in which it is called.

    All rows of the shared matrices have the form that the server sees. A client opens the offered
    models, and ``wire`` protects the update that it sends.
    """

    def __init__(
        self, world: World, wire: Wire, hardware: Hardware, module: torch.nn.Module
    ) -> None:
        self.world, self.wire, self.hardware, self.module = world, wire, hardware, module
        self.plausible = Plausible.of_objective(world.objective)
        self.models = self.replies = torch.empty(0, wire.layout.size)
        self.sketches = torch.empty(0, 0)
        self._learner: local.Learner | None = None
        self._data: dict[tuple[Client, float, int], ClientData] = {}

    @property
    def learner(self) -> local.Learner:
        """The learner of this process, made when it is first needed."""
        if (
            self._learner is None
        ):  # made in the worker process, which then has its own tensors of all that is trained
            world, how = self.world, self.hardware
            self._learner = local.Learner(
                self.module,
                world.objective,
                world.augment,
                device=how.device,
                precision=how.precision,
            )
        return self._learner

    def work(self, job: Any) -> Any:
        """Carry out a job: a list of :class:`ClientJob` or of :class:`Test`."""
        return self.train(job) if isinstance(job[0], ClientJob) else self.test(job)

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(self, client_jobs: Sequence[ClientJob]) -> list[tuple[ClientJob, Done]]:
        """Carry out one task, or the tasks of several clients in one block.

        Args:
            client_jobs: The tasks of the block.

        Returns:
            One (task, result) per task.

        Raises:
            EngineError: A task failed.
        """
        several = f"a block of {len(client_jobs)} clients"
        who = (
            f"client {self.world.name(client_jobs[0].client)}" if len(client_jobs) == 1 else several
        )
        try:
            jobs = [self._job(client_job) for client_job in client_jobs]
            replies = (
                [local.answer(self.learner, jobs[0])]
                if len(jobs) == 1
                else local.answer_together(self.learner, jobs)
            )
            return [
                (client_job, self._send(client_job, reply))
                for client_job, reply in zip(client_jobs, replies, strict=True)
            ]
        except Exception as error:
            hint = "; --width 1 trains each client alone" if len(client_jobs) > 1 else ""
            raise EngineError(f"{who} failed in its task: {sentence(error)}{hint}") from error

    def _job(self, client_job: ClientJob) -> local.Job:
        offered = [self.wire.open(self.models[row]) for row in client_job.rows]
        task, own = (
            client_job.task,
            None if client_job.own is None else self.wire.open(self.models[client_job.own]),
        )
        data = self.data(client_job.client, task.holdout.share, client_job.step)
        training = client_job.training or task.how(self.world.training)
        job = local.Job(
            task, offered, data, training, client_job.lr, client_job.key, own, client_job.weight
        )
        return job if client_job.half is None else local.halved(job)[client_job.half]

    def data(self, client: Client, holdout: float, step: int) -> ClientData:
        """A client's data in a time step; without a validation part, this share of its training examples is held out."""
        key = (client, holdout, step)
        if key not in self._data:
            self._data[key] = local.held_out(
                self.world.steps[step][client], holdout, self.wire.seed, client
            )
        return self._data[key]

    def _send(self, client_job: ClientJob, reply: local.Reply) -> Done:
        """Write the row of a reply to the reply matrix; refuse it if it is not finite."""
        refused, trained, exchange = None, reply.row is not None, client_job.key[2]
        if client_job.personal is not None and reply.own is not None:
            self.replies[client_job.personal] = self.wire.seal(reply.own)
        if client_job.aside:
            pass
        elif reply.row is None:
            self.replies[client_job.slot] = 0.0  # clears the row of an earlier exchange
            self.sketches[client_job.slot : client_job.slot + 1] = 0.0
        else:
            keep = (
                self.wire.layout.mask(client_job.task.local_layers)
                if client_job.task.local_layers
                else None
            )
            row = self._tampered(reply.row, client_job, keep)
            number = update_number(client_job.part, client_job.half or 0)
            sent = self.wire.send(row, client_job.client, exchange, keep, number)
            self.replies[client_job.slot] = sent
            # A finite squared norm also bounds every entry of a Gram matrix. With noise only the
            # noised row is checked: a refusal because of the other one would reveal something about
            # the data.
            rows = [sent] if self.wire.boundary.noise or sent is reply.row else [reply.row, sent]
            if client_job.sketch is not None:
                shown = sent if keep is None else sent.masked_fill(keep, 0.0)
                rows += unchecked_sketch(
                    shown[None, client_job.columns or slice(None)], client_job.sketch
                )
                self.sketches[client_job.slot] = rows[-1]
            if not all(math.isfinite(row.dot(row)) for row in rows):
                refused = "its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)"
        personal = None if client_job.personal is None else self.replies[client_job.personal]
        if (
            personal is not None
            and not self.wire.boundary.noise
            and not torch.isfinite(personal).all()
        ):
            refused = (
                "its personal model has a NaN or infinite entry (a smaller lr, or clip, may help)"
            )
        held = None if reply.held is None else reply.held.numpy()
        least = [] if held is None or not held.size else [float(held.min())]
        refused = refused or self.plausible.flaw(
            [*reply.losses, *least], reply.accuracies, str(client_job.task.measure)
        )
        return Done(
            reply.chosen, reply.losses, reply.accuracies, trained, refused, reply.weight, held
        )

    def _tampered(self, row: Tensor, client_job: ClientJob, keep: Tensor | None) -> Tensor:
        """Return the row that a client sends: its update, or the adversarial row if the client is an adversary."""
        attack = self.world.attacks.get(client_job.client)
        if attack is None:
            return row
        sent = torch.arange(len(row)) < self.wire.layout.trainable
        return attack.tampered(
            row,
            sent if keep is None else sent & ~keep,
            client_job.key[0],
            client_job.key[2],
            client_job.client,
        )

    # -- testing
    # ------------------------------------------------------------------------------------------------------

    def test(self, tests: Sequence[Test]) -> list[list[local.Sums]]:
        """Return sums of loss and metrics.

        Args:
            tests: The tests. All must be of the same models.

        Returns:
            For each test, one entry per client of it.

        Raises:
            EngineError: A test failed.
        """
        try:
            clients = [
                self.world.steps[test.step][client] for test in tests for client in test.clients
            ]
            with self.learner.scope(
                (0,), *(data.test for data in clients)
            ) as scope:  # tests may draw random numbers, too
                models = [self.wire.open(self.models[row]) for row in tests[0].rows]
                if tests[0].neighbours is not None:
                    return [[self._near(models[0], test, tests[0].neighbours)] for test in tests]
                found = self.learner.sums(models, [self._part(test) for test in tests])
                drawn = scope.own_code and not tests[0].apart and scope.moved
            return (
                [[{**sums, DRAWN: (1.0, 1)} for sums in of_test] for of_test in found]
                if drawn
                else found
            )
        except Exception as error:
            if len(tests) > 1:  # one by one, to find the client whose test fails
                return [self.test([test])[0] for test in tests]
            raise EngineError(
                f"client {self.world.name(tests[0].clients[0])} failed in its test: {sentence(error)}"
            ) from error

    def _near(self, model: Tensor, test: Test, neighbours: Neighbours) -> local.Sums:
        data = self.data(test.clients[0], neighbours.holdout, test.step)
        return local.sums_with_neighbours(self.learner, model, data, neighbours)

    def _part(self, test: Test) -> local.Part:
        clients = self.world.steps[test.step]
        first = clients[test.clients[0]].test
        part = torch.tensor(test.at) if isinstance(test.at, np.ndarray) else test.at
        targets = [clients[c].test.at(part).targets for c in test.clients]
        return first.inputs, first.index[part], targets


# ----------------------------------------------------------------------------------------------------
# The client pool: all clients of a world on this machine, with their tasks and tests as jobs for
# worker processes.


EXAMPLES_PER_TEST = 2500
"""Examples in one test job.

A longer test is cut into jobs of this size, so that one large test keeps all workers busy. Shorter
tests of the same model are joined up to this size.
"""

PART_COSTS = 100
"""Examples that a small model computes in the time that one more part of a test costs."""


@dataclass(frozen=True)
class Answer:
    """A client's reply in the form that the engine holds.

    Attributes:
        slot: Row of the reply matrix with the update.
        second: Row of the update of the second half, if the client was asked for halves and has
            enough examples.
        chosen: The chosen models, as rows of the plan's models.
        losses: Measured losses, one per offered model, or empty.
        accuracies: Measured accuracies, one per offered model, or empty.
        update: The update ``(d,)``, a view of the reply matrix. None if the client did not train.
            If it stays at another machine, only the columns of the layers that the client keeps are
            valid.
        refused: Why the reply was refused. None if it was not.
        own: The values that the client keeps as its personal model, with the weight of a mixture
            behind them, or None.
        held: Held-out losses ``(m, examples)``, or None.
    """

    slot: int
    second: int | None
    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    update: Tensor | None
    refused: str | None
    own: Tensor | None = None
    held: np.ndarray | None = None

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of the update, or of the updates of both halves."""
        return (self.slot,) if self.second is None else (self.slot, self.second)


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

    def place(self, models: Tensor, personal: Sequence[Tensor], here: Worker, stay: bool) -> None:
        """Prepare for jobs.

        Args:
            models: The models ``(k, d)``: the first rows to which jobs refer.
            personal: Rows ``(d,)`` that were made for single clients, which follow them.
            here: The worker of this process. Its matrices have room for the replies and sketches of
                the jobs.
            stay: Whether the updates stay at the machines. Sketches, personal models and layers
                that a client keeps are sent in any case.
        """
        ...

    def extent(self, slot: int) -> Extent:
        """The measure of the update of a slot, which stays elsewhere."""
        ...

    def scale(self, slots: Sequence[int], factor: float) -> None:
        """Let the updates of some slots, which stay elsewhere, count as scaled by a factor."""
        ...

    def pair(self, first: int, second: int) -> None:
        """Let the update of the slot ``first`` count as the mean of both, which stay elsewhere."""
        ...

    def add_means(
        self,
        means: Means,
        slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Add updates that stay elsewhere to means.

        Args:
            means: The means.
            slots: The slots of the updates.
            amounts: Shape ``(m,)``: the weight of each update.
            groups: For each update, the groups in which it counts.
        """
        ...

    def notes(self) -> tuple[Note, ...]:
        """Return what happened to the machines since the last call."""
        ...


class ClientPool:
    """The worker processes for a world, and the shared matrices of models and replies that they read and write.

    Args:
        world: The clients, their data and their model.
        wire: The wire between clients and server.
        hardware: The hardware settings.
        robust: Bounds on the influence of one client on the others.
        remote: Other machines that carry out the jobs in place of worker processes.
    """

    def __init__(
        self,
        world: World,
        wire: Wire,
        hardware: Hardware,
        robust: Robust | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.world, self.layout, self.wire = world, wire.layout, wire
        self.robust = (robust or Robust()).within(exposed=bool(world.attacks))
        self.remote, self.away = remote, False
        with seeded(0):
            module = (
                world.model()
            )  # its frozen parameters are in memory once, for all worker processes
        self.hand = Worker(world, wire, hardware, module)
        hardware.warn_of_one()
        self.count = hardware.processes(len(world.clients))
        self.width = hardware.block(module, world)
        normed, self.mixes = local.batchnorm(module)
        self.apart = False  # whether each client is tested alone, because tests draw random numbers
        self.least, self.exact = 1 + normed, normed
        self._masks: dict[tuple[str, ...], Tensor] = {}
        self._overlaps: dict[int, bool] = {}
        self._workers: Workers | None = None

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

    def updates(self, slots: Sequence[int]) -> Tensor:
        """Return the reply rows at ``slots`` in this order; a view if ``slots`` is 0, 1, 2 and so on, else a copy."""
        if list(slots) == list(range(len(slots))):
            return self.hand.replies[: len(slots)]
        return self.hand.replies[list(slots)]

    def sketches(self, slots: Sequence[int]) -> Tensor:
        """Return a copy of the sketches at ``slots``."""
        return self.hand.sketches[list(slots)]

    def reduces(self, plan: Plan) -> bool:
        """Whether the updates of a plan stay at other machines, which send their means and sketches.

        They are sent if something needs single ones: exact inner products, a robust mean,
        adversaries that collude.
        """
        if (
            self.remote is None
            or self.robust.needs_all
            or plan.need == "sums"
            or self.wire.boundary.masks
        ):
            return False
        if any(
            attack.colluding
            for client, attack in self.world.attacks.items()
            if client in plan.tasks
        ):
            return False
        if any(task.halves for task in plan.tasks.values()) and (
            plan.sketch is None or plan.second_halves
        ):
            return False
        return plan.need == "mean" or plan.sketch is not None

    def machines(self, plan: Plan) -> int:
        """Return the number of machines whose memory holds the replies to a plan."""
        return self.remote.machines if self.remote is not None and self.reduces(plan) else 1

    def notes(self) -> tuple[Note, ...]:
        """Return what happened to other machines since the last call."""
        return () if self.remote is None else self.remote.notes()

    def lengths(
        self, plan: Plan, answers: Mapping[Client, Answer], counted: Mapping[Client, int]
    ) -> dict[Client, Length]:
        """Return the lengths of the updates of clients that trained, see :func:`coterie.robust.lengths`.

        Args:
            plan: The plan.
            answers: Client -> its answer.
            counted: Client -> the number of examples that it counts for.
        """
        chosen = {client: answer.chosen for client, answer in answers.items()}
        steps = {
            client: steps_of(plan.tasks[client], self.world.training, counted[client])
            for client in answers
        }
        if self.remote is not None and self.away:
            extents = {
                client: [self.remote.extent(slot) for slot in answer.slots]
                for client, answer in answers.items()
            }
            return lengths_of(plan, extents, chosen, self.wire, steps)
        updates = {
            client: [self.hand.replies[slot] for slot in answer.slots]
            for client, answer in answers.items()
        }
        return lengths(plan, updates, chosen, self.wire, steps)

    def scale(self, plan: Plan, client: Client, answer: Answer, factor: float) -> None:
        """Scale the update of a client, or those of both halves; layers that stay at it are not scaled."""
        keep = plan.tasks[client].local_layers
        if self.remote is not None and self.away:
            self.remote.scale(answer.slots, factor)
        for slot in answer.slots:
            if not self.away:
                self.hand.replies[slot] *= (
                    torch.where(self.mask(keep), 1.0, factor) if keep else factor
                )
            if plan.sketch is not None:
                self.hand.sketches[slot] *= factor

    def add_means(
        self,
        means: Means,
        slots: Sequence[int],
        amounts: np.ndarray,
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Add the updates at ``slots`` to means, see :meth:`coterie.core.Means.add`."""
        if self.remote is not None and self.away:
            self.remote.add_means(means, slots, amounts, groups)
        else:
            means.add(self.updates(slots), amounts, groups)

    def average(self, first: int, second: int) -> None:
        """Replace the first of two replies by their mean, and its sketch likewise."""
        if self.remote is not None and self.away:
            self.remote.pair(first, second)
        for rows in (self.hand.sketches,) if self.away else (self.hand.replies, self.hand.sketches):
            if max(first, second) < len(rows):
                rows[first] += rows[second]
                rows[first] /= 2

    def _reserve(self, models: int, replies: int, sketch: int = 0) -> bool:
        """Provide at least this many rows of shared memory; return whether there is new memory."""
        hand = self.hand
        short = replies if sketch else 0
        enough = short <= len(hand.sketches) and sketch in (0, hand.sketches.shape[1])
        if models <= len(hand.models) and replies <= len(hand.replies) and enough:
            return False
        if models > len(hand.models):
            hand.models = shared_matrix(models, self.layout.size)
        if replies > len(hand.replies):
            hand.replies = shared_matrix(replies, self.layout.size)
        if not enough:
            hand.sketches = shared_matrix(short, sketch)
        return True

    def put(
        self,
        models: Tensor,
        personal: Sequence[Tensor],
        replies: int = 0,
        sketch: int = 0,
        stay: bool = False,
    ) -> Runner:
        """Write the models and, after them, the rows made for single clients; return what carries out the jobs.

        Args:
            models: The models ``(k, d)``.
            personal: The rows ``(d,)`` for single clients.
            replies: Number of slots for replies.
            sketch: Numbers of a sketch; 0 without sketches.
            stay: Whether the updates stay at other machines.

        Returns:
            What carries out the jobs.
        """
        self.away = stay
        if self.remote is not None:
            self._reserve(0, replies, sketch)
            self.remote.place(models, personal, self.hand, stay)
            return self.remote
        if self._reserve(len(models) + len(personal), replies, sketch) or self._workers is None:
            if self._workers:
                self._workers.close()
            self._workers = Workers(
                self.hand.work, self.count
            )  # new memory needs new workers, which are cheap to fork
        self.hand.models[: len(models)] = models
        for i, row in enumerate(personal, len(models)):
            self.hand.models[i] = row
        return self._workers

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(
        self,
        plan: Plan,
        clients: Sequence[Client],
        kept: Mapping[Client, Tensor],
        when: tuple[int, int, int],
        part: int = 0,
    ) -> dict[Client, Answer]:
        """Carry out the tasks of some clients of a plan.

        Args:
            plan: The plan.
            clients: The clients whose tasks are carried out.
            kept: Client -> the values ``(d,)`` of the layers that stay at it, NaN in the other
                columns.
            when: The seed, the exchange, and the round counted from 0.
            part: The position of the plan among the parts that are carried out together.

        Returns:
            Client -> answer, sorted by client id. The next call overwrites their rows.

        Raises:
            EngineError: A task failed.
        """
        personal: list[Tensor] = []
        slots = itertools.count(
            len(clients)
        )  # rows of the reply matrix behind the first one of each client
        client_jobs = []
        for slot, client in enumerate(sorted(clients)):
            data = self.hand.data(
                client, plan.tasks[client].holdout.share, self.world.step(when[2] + 1)
            )
            job = self._job(plan, client, kept.get(client), when, slot, personal, part)
            client_jobs += self._in_parts(job, halvable(data.train, self.least), slots)
        workers = self.put(
            plan.models,
            personal,
            next(slots),
            sketch_size(plan, self.layout.size),
            self.reduces(plan),
        )
        found: dict[Client, list[tuple[ClientJob, Done]]] = {}
        for job, done in (one for block in workers.run(self._jobs(client_jobs)) for one in block):
            found.setdefault(job.client, []).append((job, done))
        return {client: self._answer(found[client]) for client in sorted(clients)}

    def _job(
        self,
        plan: Plan,
        client: Client,
        before: Tensor | None,
        when: tuple[int, int, int],
        slot: int,
        personal: list[Tensor],
        part: int,
    ) -> ClientJob:
        """The job of a client, whose reply goes to ``slot``; rows that are made for it alone are appended to ``personal``."""
        task, first = plan.tasks[client], len(plan.models) + len(personal)
        rows, own, weight = task.offered, self._own(task, before), None
        if own is not None:
            rows = tuple(range(first, first + len(rows)))
            personal += [own_layers(plan.models[r], own) for r in task.offered]
        mine = None
        if task.personal is not None and task.personal.start == "own" and before is not None:
            values, weight = without_weight(before, self.layout.size)
            mine = first
            personal.append(values)
        training = task.how(self.world.training)
        lr = training.lr * training.lr_decay ** (
            when[2] if task.lr_round is None else task.lr_round
        )
        key = when[0], Purpose.TRAIN, when[1], client
        step = self.world.step(when[2] + 1)
        return ClientJob(
            slot,
            client,
            task,
            rows,
            lr,
            key,
            plan.columns,
            plan.sketch,
            own=mine,
            weight=weight,
            part=part,
            step=step,
        )

    def _in_parts(self, job: ClientJob, halvable: bool, slots: Iterator[int]) -> list[ClientJob]:
        """The jobs of a client: one, or one for each half, and one more for what halves cannot tell."""
        task = job.task
        whole = job if task.personal is None else replace(job, personal=next(slots))
        if not (task.halves and halvable):
            return [whole]
        halves = [replace(job, half=0), replace(job, half=1, slot=next(slots))]
        rest = local.beside_halves(task)
        if rest is None:
            return halves
        return [
            *halves,
            replace(whole, aside=True, task=rest, training=task.how(self.world.training)),
        ]

    def _jobs(self, client_jobs: Sequence[ClientJob]) -> list[list[ClientJob]]:
        """Form blocks of clients that can train together, and jobs of one client for the others.

        Long jobs come first, so that no worker starts one when the others have almost finished.
        """
        together: dict[Hashable, list[ClientJob]] = {}
        for client_job in client_jobs:
            together.setdefault(self._kind(client_job), []).append(client_job)
        jobs = [job for group in together.values() for job in self._blocks(group)]
        return sorted(jobs, key=lambda job: -sum(self._size(e) for e in job))

    def _data(self, client_job: ClientJob) -> Split:
        """The training examples of a client; a job for a half trains on half of them."""
        return self.hand.data(
            client_job.client, client_job.task.holdout.share, client_job.step
        ).train

    def _size(self, client_job: ClientJob) -> int:
        """The number of training examples of a job; of a half with whole subjects it is near."""
        size = len(self._data(client_job))
        return size if client_job.half is None else size // 2

    def _kind(self, client_job: ClientJob) -> Hashable:
        """The properties that all clients of a block share; for a client that trains alone, its id."""
        task, alone = client_job.task, (client_job.client, client_job.half, client_job.aside)
        mixes = task.personal is not None and task.personal.mixture is not None
        if (
            self.width > 1
            and task.measure
            and not (task.trains or task.personal or task.holdout.report_losses)
        ):
            return task.measure, task.offered
        if self.width == 1 or task.gradient or not task.trains or mixes:
            return alone
        data, training = self._data(client_job), task.how(self.world.training)
        if client_job.half is not None:  # with subjects, halves have several sizes
            of_subjects = data.subjects is not None
            data = data.at(
                local.halves(data, client_job.key)[client_job.half]
                if of_subjects
                else slice(len(data) // 2)
            )
        try:
            return (
                training,
                task.stages,
                task.personal,
                client_job.lr,
                goes_with(data, training, self.least, self.exact),
            )
        except ValueError:  # it cannot make a step, and its task reports this error
            return alone

    def _blocks(self, group: Sequence[ClientJob]) -> Iterator[list[ClientJob]]:
        """Cut a group into as few blocks as possible; clients with similar numbers of examples share a block."""
        ordered = sorted(group, key=self._size)
        blocks = math.ceil(len(group) / self.width)
        for i in range(blocks):
            yield ordered[i * len(group) // blocks : (i + 1) * len(group) // blocks]

    def _answer(self, found: Sequence[tuple[ClientJob, Done]]) -> Answer:
        """The reply of a client from the results of its jobs."""
        main = {job.half or 0: (job, done) for job, done in found if not job.aside}
        aside, more = next(((job, done) for job, done in found if job.aside), main[0])
        (job, done), rows = main[0], self.hand.replies
        own = None if aside.personal is None else with_weight(rows[aside.personal], more.weight)
        return Answer(
            slot=job.slot,
            second=main[1][0].slot if 1 in main else None,
            chosen=done.chosen,
            losses=done.losses,
            accuracies=done.accuracies,
            update=rows[job.slot] if done.trained else None,
            refused=next((each.refused for _, each in found if each.refused), None),
            own=own,
            held=more.held,
        )

    def start_row(
        self, plan: Plan, task: Task, kept: Tensor | None, chosen: Sequence[int]
    ) -> Tensor:
        """Return the row from which a client trained: the mean of the models that it chose, with its own layers in them.

        Args:
            plan: The plan.
            task: The client's task.
            kept: The values ``(d,)`` of the layers that stay at the client, NaN in the other
                columns.
            chosen: The chosen models, as rows of the plan's models.

        Returns:
            The row ``(d,)``.
        """
        own = self._own(task, kept)
        rows = [own_layers(plan.models[r], own) for r in chosen]
        return rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)

    def _own(self, task: Task, kept: Tensor | None) -> Tensor | None:
        """The client's own values of the layers that it keeps in a task; NaN in the other columns."""
        return (
            None
            if kept is None or not task.local_layers
            else torch.where(self.mask(task.local_layers), kept, torch.nan)
        )

    def taken(self, assignment: Assignment, when: tuple[int, int, int]) -> Assignment:
        """Return an assignment in which every client is served by the model of lowest loss on its training data.

        Args:
            assignment: The assignment.
            when: The seed, the exchange, and the round counted from 0.
        """
        if len(assignment.models) == 1:
            return assignment
        task = Task(offered=tuple(range(len(assignment.models))), epochs=0)
        plan = Plan(models=assignment.models, tasks=dict.fromkeys(assignment.row, task))
        row = {
            client: answer.chosen[0]
            for client, answer in self.train(plan, sorted(assignment.row), {}, when).items()
        }
        groups = [
            [client for client, at in row.items() if at == one] for one in sorted(set(row.values()))
        ]
        return replace(assignment, row=row, groups=as_groups(groups))

    # -- testing
    # ------------------------------------------------------------------------------------------------------

    def evaluate(
        self, assignment: Assignment, position: Position
    ) -> dict[Client, dict[str, float]]:
        """Test the model, or the ensemble, of each client on its own test data.

        Each distinct pair of models and test examples is computed once.

        Args:
            assignment: The model of each client.
            position: The position after the round, with the clients' own values.

        Returns:
            Client -> metric -> value, and the sums of metrics that have some, see ``flat``.

        Raises:
            EngineError: A test failed.
        """
        personal: list[Tensor] = []
        step = self.world.step(position.round)
        tests: dict[tuple[int, ...], dict[tuple[int, int], dict[int, list[Client]]]] = {}
        for client in sorted(assignment.row):
            rows = assignment.serving(client)
            own = position.own(assignment, client)
            if own is not None:
                first = len(assignment.models) + len(personal)
                personal += [own_layers(assignment.models[row], own) for row in rows]
                rows = tuple(range(first, first + len(rows)))
            test = self.world.steps[step][client].test
            examples = (
                (id(test.inputs), id(test.index))
                if assignment.neighbours is None
                else (client, client)
            )
            same_examples = tests.setdefault(rows, {}).setdefault(examples, {})
            same_examples.setdefault(id(test.targets), []).append(client)
        near = assignment.neighbours

        def sums_of_tests() -> dict[tuple[tuple[int, ...], Client], Sums]:
            each = ((rows, list(by_examples.values())) for rows, by_examples in tests.items())
            jobs = [
                job for rows, examples in each for job in self._tests(rows, examples, near, step)
            ]
            return self._sums(jobs, assignment.models, personal)

        sums = sums_of_tests()
        if near is None and not self.apart and any(DRAWN in totals for totals in sums.values()):
            # Clients that share a batch would draw each other's random numbers: test each of them
            # alone.
            self.apart = True
            sums = sums_of_tests()
        objective, found = self.world.objective, {}
        for rows, by_examples in tests.items():
            for by_targets in by_examples.values():
                for clients in by_targets.values():
                    totals = sums.get((rows, clients[0]), {})
                    found.update(
                        dict.fromkeys(
                            clients, objective.scores(totals) | objective.error_sums(totals)
                        )
                    )
        return dict(sorted(found.items()))

    def _sums(
        self, jobs: Sequence[Sequence[Test]], models: Tensor, personal: Sequence[Tensor]
    ) -> dict[tuple[tuple[int, ...], Client], Sums]:
        """Carry out tests; return the sums of each client's parts, by the rows of its models and the client."""
        sums: dict[tuple[tuple[int, ...], Client], Sums] = {}
        for job, results in zip(jobs, self.put(models, personal).run(jobs), strict=True):
            for part, of_part in zip(job, results, strict=True):
                for client, totals in zip(part.clients, of_part, strict=True):
                    before = sums.setdefault((part.rows, client), {})
                    for name, (value, count) in totals.items():
                        old = before.get(name, (0.0, 0))
                        before[name] = (old[0] + value, old[1] + count)
        return sums

    def _tests(
        self,
        rows: tuple[int, ...],
        examples: Sequence[Mapping[int, Sequence[Client]]],
        near: Neighbours | None,
        step: int,
    ) -> Iterator[list[Test]]:
        """Jobs of at most :data:`EXAMPLES_PER_TEST` examples, all of the same models; with neighbours, of one client each."""
        tests = [tuple(clients[0] for clients in by_targets.values()) for by_targets in examples]
        data = [self.world.steps[step][clients[0]].test for clients in tests]
        if self.apart and near is None:
            for clients, test in zip(tests, data, strict=True):
                yield from (
                    [Test(rows, (client,), slice(0, len(test)), step=step, apart=True)]
                    for client in clients
                )
            return
        if near is not None:
            jobs: list[list[tuple[int, slice | np.ndarray]]] = [
                [(i, slice(0, len(one)))] for i, one in enumerate(data)
            ]
        else:
            whole = self.mixes or self.world.objective.whole
            jobs = cut(
                data, whole=whole, overlap=len(data) > 1 and not whole and self._overlap(step)
            )
        yield from ([Test(rows, tests[i], at, near, step) for i, at in job] for job in jobs)

    def _overlap(self, step: int) -> bool:
        """Whether the clients' test data overlap so much that it may pay to compute common examples once."""
        if step not in self._overlaps:
            data = {
                (id(d.test.inputs), id(d.test.index)): d.test
                for d in self.world.steps[step].values()
            }
            pools: dict[int, list[np.ndarray]] = {}
            for test in data.values():
                pools.setdefault(id(test.inputs), []).append(test.index.numpy())
            all_ = sum(len(test) for test in data.values())
            distinct = sum(
                np.count_nonzero(np.bincount(np.concatenate(indexes))) for indexes in pools.values()
            )
            self._overlaps[step] = bool(distinct <= 0.9 * all_)
        return self._overlaps[step]


def cut(
    data: Sequence[Split], *, whole: bool, overlap: bool
) -> list[list[tuple[int, slice | np.ndarray]]]:
    """Cut tests into jobs of about :data:`EXAMPLES_PER_TEST` examples.

    Args:
        data: The examples of each test.
        whole: Whether no test may be cut.
        overlap: Whether to look for examples that several tests have in common. They go into one
            job, where they are computed once, if this saves enough for the smaller parts into which
            tests are then cut.

    Returns:
        For each job, the number of each test that has a part in it, and the positions of the part's
        examples.
    """
    sizes = np.array([len(one) for one in data], dtype=np.int64)
    starts, test = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(data)), sizes)
    job = (np.repeat(starts, sizes) if whole else np.arange(len(test))) // EXAMPLES_PER_TEST
    parts = job * len(data) + test
    if overlap:
        number = _numbers_of_distinct(data)
        shared = number // EXAMPLES_PER_TEST * len(data) + test
        saved, more = len(test) - 1 - number.max(), len(np.unique(shared)) - len(np.unique(parts))
        parts = shared if saved >= PART_COSTS * more else parts
    order = parts.argsort(kind="stable")
    jobs: dict[int, list[tuple[int, slice | np.ndarray]]] = {}
    for one in np.split(order, np.diff(parts[order]).nonzero()[0] + 1) if len(order) else ():
        number_of_job, i = divmod(int(parts[one[0]]), len(data))
        at = one - starts[i]
        run = at[-1] - at[0] == len(at) - 1
        jobs.setdefault(number_of_job, []).append(
            (i, slice(int(at[0]), int(at[-1]) + 1) if run else at)
        )
    return list(jobs.values())


def _numbers_of_distinct(data: Sequence[Split]) -> np.ndarray:
    """For each example of tests, one after the other, the number of its distinct example, in the order in which these come."""
    pools: dict[int, int] = {}
    keys = [
        (pools.setdefault(id(one.inputs), len(pools)) << 40) + one.index.long().numpy()
        for one in data
    ]
    _, first, same = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[first.argsort()] = np.arange(len(first))
    return number[same]
