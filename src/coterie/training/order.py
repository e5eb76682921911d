"""The forms of one client's work, the same in every engine: its order, the job with models and data, and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from coterie.core import Client, Neighbours, Plan, Statistic, Task, Training
from coterie.data.world import ClientData
from coterie.models.layout import with_weight
from coterie.randomness import Purpose
from coterie.training.splits import halves

MAX_PART_NAME = 1000
"""Most characters of the name of a plan's part."""


def sketch_size(plan: Plan, d: int) -> int:
    """Return how many numbers a plan's sketches have, of models of d parameters; 0 without sketches.

    If the plan has fewer columns than a sketch should have numbers, the columns are the sketch.
    """
    if plan.sketch is None:
        return 0
    return min(plan.sketch, len(range(d)[plan.columns or slice(None)]))


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one client shall do in one exchange for one part of a plan, without models and data.

    An engine makes it by :meth:`of_plan`. Workers, Ray's nodes and Flower's clients get the same.

    Attributes:
        task: The task.
        training: The settings of local training, with the changes of the task.
        lr: The learning rate.
        key: (seed, exchange, round from 0), which determines all random draws.
        client: The client's id.
        part: The name of the part of the plan, under which the client stores its own values.
        number: The position of this part in the plan.
        sums: Whether the plan needs sums only: no losses are sent, one update even of two halves,
            and the answer to a question.
        sketch: Numbers that a sketch should have; 0 for no sketches.
        columns: First and last column of the sketches.
        hidden: Whether the client must not say which model it takes; in a test, it takes the one of
            lowest loss on its training data.
        clip: The maximum norm of an update in sums, if it is less than the boundary's.
        half: 0 or 1 for the work on one half of the data, which :func:`coterie.training.divided`
            separates; None for all of it.
        beside_halves: Whether this is the work that halves leave over: held-out losses and the
            personal model. Its update does not count.
        run: The name of the run, under which a Flower client stores its own values.
        since: Own values that a Flower client stored before this exchange do not count.
        ended: Name of a part -> an exchange: a Flower client deletes what it stored for this part,
            and for parts of it, before that exchange.
        plain: Whether a test is without own values.
        neighbours: How the client's nearest training examples take part in a test; None if they do
            not.

    Raises:
        ValueError: A number is out of range, or a name is too long.
    """

    task: Task
    training: Training
    lr: float
    key: tuple[int, int, int]
    client: Client
    part: str = ""
    number: int = 0
    sums: bool = False
    sketch: int = 0
    columns: tuple[int, int] = (0, 0)
    hidden: bool = False
    clip: float | None = None
    half: int | None = None
    beside_halves: bool = False
    run: str = ""
    since: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    plain: bool = False
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        # Over Flower these numbers are 64-bit integers.
        exchange_numbers = (
            self.number,
            self.since,
            *self.ended.values(),
            self.sketch,
            *self.columns,
        )
        if not all(0 <= number < 2**63 for number in exchange_numbers):
            raise ValueError(
                "the numbers of a task's part and of exchanges must be from 0 to 2^63 - 1"
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(
                f"the maximum norm of an update must be positive and finite, got {self.clip}"
            )
        if any(len(part_name) > MAX_PART_NAME for part_name in (self.part, *self.ended)):
            raise ValueError(f"the name of a part must have at most {MAX_PART_NAME} characters")

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        client: Client,
        training: Training,
        key: tuple[int, int, int],
        *,
        d: int,
        part: str = "",
        number: int = 0,
    ) -> Order:
        """Make the order of a client from its task in a plan without parts.

        Args:
            plan: The plan.
            client: The client.
            training: The settings of local training of the experiment.
            key: (seed, exchange, round from 0).
            d: The number of parameters of a model.
            part: The name of the part that the plan is.
            number: The position of this part.
        """
        task = plan.tasks[client]
        # The task may change the experiment's settings, such as the number of epochs or the
        # learning rate.
        task_training = task.how(training)
        lr_round = key[2] if task.lr_round is None else task.lr_round
        # The columns of a model that the reply has, from the first to the one after the last.
        column_range = range(d)[plan.columns or slice(None)]
        return cls(
            task=task,
            training=task_training,
            lr=task_training.rate(lr_round),
            key=key,
            client=client,
            part=part,
            number=number,
            sums=plan.need == "sums",
            sketch=plan.sketch or 0,
            columns=(column_range.start, column_range.stop),
            hidden=plan.private.hides_choices,
            clip=plan.private.clip,
        )

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.key[0]

    @property
    def exchange(self) -> int:
        """The number of the exchange."""
        return self.key[1]

    @property
    def round(self) -> int:
        """The round, counted from 0."""
        return self.key[2]

    @property
    def sketch_numbers(self) -> int:
        """Numbers that a sketch has: if there are fewer columns, they are the sketch."""
        first_column, end_column = self.columns
        return min(self.sketch, end_column - first_column)

    @property
    def client_draws(self) -> tuple[int, ...]:
        """The seed of the draws of the whole task."""
        return (self.seed, Purpose.TRAIN, self.exchange, self.client)

    @property
    def draws(self) -> tuple[int, ...]:
        """The seed of the draws of this work: each half has its own."""
        return self.client_draws if self.half is None else (*self.client_draws, 2, self.half)


@dataclass(frozen=True)
class Job:
    """An order with everything that a learner needs for it.

    Attributes:
        order: The order.
        offered: The offered models, one row ``(d,)`` each, with the client's own layers in them.
        data: The client's data; of a half, its half.
        personal: The client's personal model ``(d,)`` before the exchange, if it has one.
        weight: The weight of ``personal`` in a mixture, if it has one.
        optimizer_state: The state of the client's optimizer after its last training, if it keeps one.
    """

    order: Order
    offered: Sequence[Tensor]
    data: ClientData
    personal: Tensor | None = None
    weight: float | None = None
    optimizer_state: bytes | None = None

    @property
    def task(self) -> Task:
        """The task of the order."""
        return self.order.task

    @property
    def correction(self) -> Tensor | None:
        """The row ``(d,)`` that is added to every gradient, or None."""
        return self.offered[-1] if self.task.corrected else None

    def of_order(self, order: Order) -> Job:
        """Return the job for one of the orders into which this whole job's order is divided.

        Args:
            order: The order; for a half, the job has only this half of the training data.

        Raises:
            ValueError: It is a half, and the client has too few examples.
        """
        if order.half is None:
            return self if order is self.order else replace(self, order=order)
        # Both halves are drawn by the seed of the whole task, so that they do not overlap.
        positions = halves(self.data.train, order.client_draws)[order.half]
        half_of_data = replace(self.data, train=self.data.train.at(positions))
        return replace(self, order=order, data=half_of_data)


@dataclass(frozen=True, kw_only=True)
class ClientResult:
    """What a client has done for one task, in every engine and on both sides of a connection.

    Attributes:
        chosen: The models from which the client started, as rows of the plan's models.
        losses: Its loss under each offered model; empty if it did not measure.
        accuracies: Its main metric under each offered model, NaN if this is no share; empty if it
            did not measure.
        trained: Whether the client trained or computed a gradient, so that there is an update.
        updates: The update ``(d,)``, or those of both halves of the data; empty while they are only
            in the rows ``slots``.
        slots: Rows of the reply matrix of a pool with the update, or with those of both halves. A
            client that has not trained has the first one, with zeros.
        personal: The client's personal model ``(d,)`` after the exchange, if the task trains one.
        weight: The weight of ``personal`` in a mixture with the offered model; None without one.
        held_losses: Shape ``(m, examples)``: losses of the model from which training started, and of
            the personal one, on each held-out example, or in the mean of each subject; None if the
            task does not ask for them.
        refused: Why the result cannot be used, or None.
        examples: The number of training examples that the client reports.
        own_values: What the client stores for the next exchange: the layers that it keeps, or its
            personal model. None if this does not change.
        stored_at: The exchange after which the client stored the own values that it started from,
            -1 for none.
        answer: The answer to the task's question, or None.
        cell: The client's cell, if it was asked for that and knows it.
        statistics: Name -> what the client tells about its training data; empty if it was not asked.
        half_sketches: Shape ``(2, k)``: the sketches of both halves that the client stores; empty if
            it could not make them, None if they do not change.
        optimizer_state: The state of the optimizer that the client stores, see :mod:`.optimizer_state`;
            None if it does not change.
    """

    chosen: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    trained: bool = False
    updates: tuple[Tensor, ...] = ()
    slots: tuple[int, ...] = ()
    personal: Tensor | None = None
    weight: float | None = None
    held_losses: np.ndarray | None = None
    refused: str | None = None
    examples: int = 0
    own_values: Tensor | None = None
    stored_at: int = -1
    answer: np.ndarray | None = None
    cell: int | None = None
    statistics: Mapping[Statistic, np.ndarray] = field(default_factory=dict)
    half_sketches: np.ndarray | None = None
    optimizer_state: bytes | None = None

    @property
    def update(self) -> Tensor | None:
        """The update ``(d,)``, or that of the first half; None without one."""
        return self.updates[0] if self.updates else None

    @property
    def personal_values(self) -> Tensor | None:
        """The personal model, with the weight of a mixture behind it; None if it is not finite."""
        if self.personal is None:
            return None
        # What is not finite is not stored: the client would start from it in every later exchange.
        values = with_weight(self.personal, self.weight)
        return values if values.isfinite().all() else None
