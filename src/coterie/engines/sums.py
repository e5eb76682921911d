"""Sums over clients, without masks: what a server learns of a plan with ``need="sums"``, computed in one process.

With noise (``boundary.noise``) a sum gets what the clients' shares of it add up to. Of n clients
that are asked, each adds Gaussian noise with 1 / sqrt(honest n) of the standard deviation, so that
it is enough as soon as that share of them answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.boundary import Boundary
from coterie.core import Client, Plan, QuestionSums, Replies, Task
from coterie.engines.pool import ClientPool
from coterie.randomness import Purpose, numpy_generator
from coterie.training import ClientResult, answer_to

COUNTED = 0.4
"""Weight of the number of clients beside an update of norm 1, in the slots of a hidden plan."""


@dataclass(frozen=True)
class Noise:
    """Standard deviations of one client's share of the noise on a sum.

    Attributes:
        update: On each number of an update.
        count: On each slot's number of clients.
        answer: On each number of the answer.
    """

    update: float
    count: float
    answer: float

    @classmethod
    def of(
        cls, boundary: Boundary, clients: int, hidden: bool, limit: float | None, cost: int
    ) -> Noise | None:
        """Return the noise of a sum; None if the boundary has none.

        Args:
            boundary: The boundary.
            clients: How many clients are asked.
            hidden: Whether the plan is hidden.
            limit: The maximum norm of an update.
            cost: As how many updates the answer counts.
        """
        if not boundary.noise or limit is None:
            return None
        share = boundary.noise / math.sqrt(boundary.honest * clients)
        both = share * math.sqrt(1 + COUNTED**2) if hidden else share
        return cls(both * limit, both / COUNTED if hidden else 0.0, share / math.sqrt(cost))


def least(boundary: Boundary, asked: int) -> int:
    """Return how many of the clients that were asked must answer, so that their noise is enough."""
    return math.ceil(boundary.honest * asked - 1e-9) if boundary.noise else 1


def as_taken(plan: Plan, halves: Mapping[Client, Tensor]) -> Plan:
    """Return a plan in which clients that take the model of their cell are offered only that one.

    Args:
        plan: The plan.
        halves: Client -> the sketches ``(2, k)`` of its halves; a client without takes the model of
            lowest loss.
    """
    if not plan.private.hides_choices or all(
        task.private.question is None or task.private.question.ask != "cell"
        for task in plan.tasks.values()
    ):
        return plan
    return replace(
        plan,
        tasks={client: in_cell(task, halves.get(client)) for client, task in plan.tasks.items()},
    )


def in_cell(task: Task, halves: Tensor | np.ndarray | None) -> Task:
    """Return the task of a hidden plan as a client with these sketches takes it."""
    question = task.private.question
    if question is None or question.ask != "cell":
        return task
    if halves is None:
        return replace(task, private=replace(task.private, question=None))
    return replace(
        task,
        private=replace(task.private, question=None),
        offered=(task.offered[question.cell(np.asarray(halves))],),
        measure=None,
    )


class Answers:
    """The clients' answers to the questions of a plan, added up as they arrive.

    Attributes:
        plan: The plan, with the tasks as the clients take them.
        halves: Client -> the sketches ``(2, k)`` of its halves, which stay at the client.
        sums: First offered row -> the sum of the answers.
        cells: Client -> its cell, if it was asked for that.
    """

    def __init__(
        self, pool: ClientPool, plan: Plan, halves: Mapping[Client, Tensor], round: int
    ) -> None:
        self.pool, self.plan, self.halves = pool, as_taken(plan, halves), dict(halves)
        self.data = pool.world.steps[pool.world.step(round)]
        self.sums: dict[int, np.ndarray] = {}
        self.cells: dict[Client, int] = {}

    def take(self, answers: Mapping[Client, ClientResult]) -> None:
        """Store the sketches of clients that trained on both halves, and add the answers of all.

        Args:
            answers: Client -> its reply, with the updates of both halves apart.
        """
        for client, answer in answers.items():
            task = self.plan.tasks[client]
            if task.halves:
                self.halves.pop(client, None)  # those of an earlier model
            if len(answer.slots) == 2:
                self.halves[client] = self.pool.rows.sketches(answer.slots).view(2, -1)
            if task.private.question is None:
                continue
            own = self.halves.get(client)
            sketches = None if own is None else own.numpy()
            if task.private.question.ask == "cell":
                if sketches is not None:
                    self.cells[client] = task.private.question.cell(sketches)
                continue
            examples = len(self.data[client].train)
            numbers = answer_to(
                task.private.question, sketches, answer.update, examples, self.pool.layout
            )
            if numbers is not None:
                self.sums[task.offered[0]] = self.sums.get(task.offered[0], 0.0) + numbers.astype(
                    np.float64
                )

    def limit(self, answers: Mapping[Client, ClientResult]) -> None:
        """Shorten updates to the maximum norm, and cut them to what masked numbers can express."""
        wire = self.pool.wire
        if not wire.boundary.masks:
            return
        limit = wire.limit(self.plan.private.clip)
        for answer in answers.values():
            if answer.update is not None:
                if limit is not None:
                    answer.update.copy_(wire.clipped(answer.update, limit))
                answer.update.clamp_(-wire.boundary.bound, wire.boundary.bound)

    def only(self, replies: Replies, key: tuple[int, int, int]) -> Replies:
        """Return the replies without anything of a single client, and with the sums and their noise.

        Every client counts as one example.

        Args:
            replies: The replies, with means.
            key: The seed, the exchange, and the position of the plan among the parts, for the
                noise.
        """
        hidden, boundary = self.plan.private.hides_choices, self.pool.wire.boundary
        replies = replace(
            replies,
            examples=np.ones(len(replies.clients), dtype=np.int64),
            losses=(),
            accuracies=(),
            limits=replace(replies.limits, claimed={}),
            halves=None,
            sums=QuestionSums(by_row=self.sums, cells=self.cells),
            chosen=() if hidden else replies.chosen,
        )
        if hidden and replies.means is not None and replies.mean_counts is not None:
            shares = torch.from_numpy(replies.mean_counts / max(len(replies.clients), 1)).float()
            replies = replace(replies, means=replies.means * shares[:, None])
        return (
            self._noised(replies, numpy_generator(key[0], Purpose.NOISE, *key[1:]))
            if boundary.noise
            else replies
        )

    def _noised(self, replies: Replies, rng: np.random.Generator) -> Replies:
        """The replies with noise on every sum; sums in which too few clients have answered are left out."""
        boundary, means, heard = self.pool.wire.boundary, replies.means, replies.mean_counts
        assert means is not None
        assert heard is not None
        answered, tasks, each = set(replies.clients), self.plan.tasks, range(len(means))
        rows = (
            [list(tasks)]
            if self.plan.private.hides_choices
            else [[c for c in tasks if tasks[c].offered[0] == row] for row in each]
        )
        means, heard, sums, deviation = (
            means.clone(),
            heard.astype(np.float64),
            dict(replies.sums.by_row),
            0.0,
        )
        limit, hidden = (
            self.pool.wire.limit(self.plan.private.clip),
            self.plan.private.hides_choices,
        )
        for row, asked in enumerate(rows):
            there = len(answered.intersection(asked))
            at = slice(None) if hidden else slice(row, row + 1)
            if there < least(boundary, len(asked)) or not there:
                means[at], heard[at] = 0.0, 0.0
                sums.pop(row, None)
                continue
            cost = next(
                (
                    t.private.question.cost
                    for c in asked
                    if (t := tasks[c]).private.question is not None
                ),
                1,
            )
            noise, together = Noise.of(boundary, len(asked), hidden, limit, cost), math.sqrt(there)
            assert noise is not None
            if any(tasks[c].trains and tasks[c].private.sends_update for c in asked):
                means[at] += self._drawn(means[at], asked[0], rng) * (
                    noise.update * together / there
                )
                if hidden:
                    heard = heard + rng.standard_normal(len(heard)) * noise.count * together
            if row in sums:
                deviation = noise.answer * together
                sums[row] = sums[row] + rng.standard_normal(len(sums[row])) * deviation
        noisy = replace(replies.sums, by_row=sums, deviation=deviation)
        return replace(replies, means=means, mean_counts=heard, sums=noisy)

    def _drawn(self, means: Tensor, client: Client, rng: np.random.Generator) -> Tensor:
        """Standard normal numbers for some means; zero for running statistics, and for layers that stay at the clients."""
        noise = torch.from_numpy(rng.standard_normal(means.shape, dtype=np.float32))
        noise[:, self.pool.layout.trainable :] = 0.0
        keep = self.plan.tasks[client].local_layers
        return noise.masked_fill(self.pool.mask(keep), 0.0) if keep else noise
