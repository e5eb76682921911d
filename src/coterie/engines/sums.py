"""Sums over clients, without masks: what a server learns of a plan with ``need="sums"``, computed in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from coterie.core import Client, Plan, Replies
from coterie.engines.pool import Answer, ClientPool


class Answers:
    """The clients' answers to the questions of a plan, added up as they arrive.

    Attributes:
        halves: Client -> the sketches ``(2, k)`` of its halves, which stay at the client.
        sums: First offered row -> the sum of the answers.
        cells: Client -> its cell, if it was asked for that.
    """

    def __init__(self, pool: ClientPool, plan: Plan, halves: Mapping[Client, Tensor]) -> None:
        self.pool, self.plan, self.halves = pool, plan, dict(halves)
        self.sums: dict[int, np.ndarray] = {}
        self.cells: dict[Client, int] = {}

    def take(self, answers: Mapping[Client, Answer]) -> None:
        """Store the sketches of clients that trained on both halves, and add the answers of all.

        Args:
            answers: Client -> its reply, with the updates of both halves apart.
        """
        for client, answer in answers.items():
            task = self.plan.tasks[client]
            if task.halves:
                self.halves.pop(client, None)  # those of an earlier model
            if answer.second is not None:
                self.halves[client] = self.pool.sketches([answer.slot, answer.second]).view(2, -1)
            if task.question is None:
                continue
            own = self.halves.get(client)
            sketches = None if own is None else own.numpy()
            if task.question.ask == "cell":
                if sketches is not None:
                    self.cells[client] = task.question.cell(sketches)
                continue
            norm = None
            if task.question.ask == "sizes" and answer.update is not None:
                norm = float(answer.update[: self.pool.layout.trainable].norm())
            numbers = task.question.answer(sketches, norm, len(self.pool.world.clients[client].train))
            if numbers is not None:
                self.sums[task.offered[0]] = self.sums.get(task.offered[0], 0.0) + numbers.astype(np.float64)

    def only(self, replies: Replies) -> Replies:
        """Return the replies without anything of a single client, and with the sums.

        Every client counts as one example.
        """
        return replace(
            replies,
            examples=np.ones(len(replies.clients), dtype=np.int64),
            losses=(),
            accuracies=(),
            claimed={},
            halves=None,
            second_halves=None,
            sums=self.sums,
            cells=self.cells,
        )
