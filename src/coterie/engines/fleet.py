"""The clients of a world on this machine: their tasks and tests as jobs for worker processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.boundary import Boundary, Wire
from coterie.core import Assignment, Client, Plan, Task
from coterie.engines.workers import EngineError, Workers, default_workers, sentence, shared_matrix
from coterie.layout import Layout
from coterie.local import Learner
from coterie.randomness import Purpose, seeded
from coterie.settings import SettingError
from coterie.world import World

if TYPE_CHECKING:
    from coterie.engines.inprocess import Position

EXAMPLES_PER_TEST = 2500
"""A longer test is cut into jobs of this many examples, so that one large test keeps every worker busy."""


@dataclass(frozen=True)
class Answer:
    """A client's reply as the engine holds it: its row of the reply matrix, or why it was refused."""

    slot: int
    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    update: Tensor | None
    refused: str | None


class Fleet:
    """Worker processes over a world, with the shared matrices of models and replies they read and write.

    All rows here are the server's: a client opens what it is offered, and what it sends goes through ``wire``.
    """

    def __init__(self, world: World, layout: Layout, workers: int | None, wire: Wire | None = None) -> None:
        if workers is not None and workers < 1:
            raise SettingError(f"workers must be >= 1, got {workers}")
        self.world, self.layout, self.wire = world, layout, wire or Wire(Boundary(), layout, 0)
        self.count = min(workers or default_workers(), len(world.clients))
        self._masks: dict[tuple[str, ...], Tensor] = {}
        self._learner: Learner | None = None
        self._workers: Workers | None = None
        self.models = self.replies = torch.empty(0, layout.size)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers:
            self._workers.close()

    def mask(self, layers: tuple[str, ...]) -> Tensor:
        if layers not in self._masks:
            self._masks[layers] = self.layout.mask(layers)
        return self._masks[layers]

    def updates(self, slots: Sequence[int]) -> Tensor:
        """The reply rows at ``slots``, in order; a view where they are all of the first ones."""
        if list(slots) == list(range(len(slots))):
            return self.replies[: len(slots)]
        return self.replies[list(slots)]

    def _reserve(self, models: int, replies: int) -> None:
        """At least so many rows of shared memory. Growing it means new workers, which are cheap to fork."""
        if self._workers and models <= len(self.models) and replies <= len(self.replies):
            return
        if self._workers:
            self._workers.close()
        self.models = shared_matrix(max(models, len(self.models)), self.layout.size)
        self.replies = shared_matrix(max(replies, len(self.replies)), self.layout.size)
        self._workers = Workers(self._work, self.count)

    def _put(self, models: Tensor, personal: Sequence[Tensor], replies: int = 0) -> Workers:
        """Lay out a matrix of models and, behind them, rows made for one client; returns the workers to run jobs on."""
        self._reserve(len(models) + len(personal), replies)
        assert self._workers is not None
        self.models[: len(models)] = models
        for i, row in enumerate(personal, len(models)):
            self.models[i] = row
        return self._workers

    # -- training -----------------------------------------------------------------------------------------------------

    def train(self, plan: Plan, position: Position, seed: int) -> dict[Client, Answer]:
        """Every task of the plan, done: client -> answer, by client id."""
        personal: list[Tensor] = []
        jobs = []
        for slot, (client, task) in enumerate(sorted(plan.tasks.items())):
            rows = task.offered
            own = self._own(task, position.kept.get(client))
            if own is not None:
                rows = tuple(range(len(plan.models) + len(personal), len(plan.models) + len(personal) + len(rows)))
                personal += [own_layers(plan.models[r], own) for r in task.offered]
            training = task.how(self.world.training)
            lr = training.lr * training.lr_decay ** (position.round if task.lr_round is None else task.lr_round)
            jobs.append(("train", slot, client, task, rows, lr, (seed, Purpose.TRAIN, position.exchange, client)))
        workers = self._put(plan.models, personal, len(jobs))
        # Long jobs first, so that no worker is left alone with one at the end.
        order = sorted(range(len(jobs)), key=lambda i: -len(self.world.clients[jobs[i][2]].train))
        done = dict(workers.run([jobs[i] for i in order]))
        return {client: self._answer(done[client], slot) for slot, client in enumerate(sorted(plan.tasks))}

    def _answer(self, done: tuple[Any, ...], slot: int) -> Answer:
        chosen, losses, accuracies, replied, refused = done
        update = self.replies[slot] if replied else None
        return Answer(slot, chosen, losses, accuracies, update, refused)

    def start_row(self, plan: Plan, task: Task, kept: Tensor | None, chosen: Sequence[int]) -> Tensor:
        """The row ``(d,)`` a client trained from: the mean of the models it chose, with its own layers in them."""
        own = self._own(task, kept)
        rows = [own_layers(plan.models[r], own) for r in chosen]
        return rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)

    def _own(self, task: Task, kept: Tensor | None) -> Tensor | None:
        """Those of a client's own values that count in a task: of the layers it keeps; NaN in the other columns."""
        return None if kept is None or not task.keep else torch.where(self.mask(task.keep), kept, torch.nan)

    # -- testing ------------------------------------------------------------------------------------------------------

    def evaluate(self, assignment: Assignment, kept: Mapping[Client, Tensor]) -> dict[Client, dict[str, float]]:
        """Every served client's model, or models, on its own test data; each distinct (models, test examples) pair once."""
        personal: list[Tensor] = []
        tests: dict[tuple[tuple[int, ...], int, int], dict[int, list[Client]]] = {}
        for client, served in sorted(assignment.row.items()):
            rows = assignment.path.get(client, (served,)) if assignment.ensemble else (served,)
            if client in kept:
                first = len(assignment.models) + len(personal)
                personal += [own_layers(assignment.models[row], kept[client]) for row in rows]
                rows = tuple(range(first, first + len(rows)))
            test = self.world.clients[client].test
            same_examples = tests.setdefault((rows, id(test.inputs), id(test.index)), {})
            same_examples.setdefault(id(test.targets), []).append(client)
        jobs = []
        for (rows, _, _), by_targets in tests.items():
            firsts = [clients[0] for clients in by_targets.values()]
            size = len(self.world.clients[firsts[0]].test)
            jobs += [("test", rows, firsts, start) for start in range(0, size, EXAMPLES_PER_TEST)]
        sums: dict[tuple[tuple[int, ...], Client], dict[str, tuple[float, int]]] = {}
        for job, results in zip(jobs, self._put(assignment.models, personal).run(jobs), strict=True):
            for client, totals in zip(job[2], results, strict=True):
                before = sums.setdefault((job[1], client), {})
                for name, (value, count) in totals.items():
                    old = before.get(name, (0.0, 0))
                    before[name] = (old[0] + value, old[1] + count)
        scores = {}
        for (rows, _, _), by_targets in tests.items():
            for clients in by_targets.values():
                score = self._scores(sums.get((rows, clients[0]), {}))
                scores.update(dict.fromkeys(clients, score))
        return dict(sorted(scores.items()))

    def _scores(self, totals: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        names = ["loss", *self.world.objective.metrics]
        score = {n: totals[n][0] / totals[n][1] if n in totals else float("nan") for n in names}
        if self.world.objective.perplexity:
            score["perplexity"] = math.exp(min(score["loss"], 700.0))
        return score

    # -- what a worker does -------------------------------------------------------------------------------------------

    def _work(self, job: tuple[Any, ...]) -> Any:
        if self._learner is None:  # made in the worker: a module's tensors are its own
            with seeded(0):
                self._learner = Learner(self.world.model(), self.world.objective, self.world.augment)
        return self._train_job(*job[1:]) if job[0] == "train" else self._test_job(*job[1:])

    def _train_job(
        self, slot: int, client: Client, task: Task, rows: tuple[int, ...], lr: float, key: tuple[int, ...]
    ) -> tuple[Client, tuple[Any, ...]]:
        assert self._learner is not None
        try:
            reply = self._learner.answer(
                task, [self.wire.open(self.models[r]) for r in rows], self.world.clients[client],
                task.how(self.world.training), lr, key,
            )  # fmt: skip
        except Exception as error:
            raise EngineError(f"client {client} failed in its task: {sentence(error)}") from error
        refused = None
        if reply.row is None:
            self.replies[slot] = 0.0  # of an earlier exchange
        else:
            keep = self.mask(task.keep) if task.keep else None
            sent = self.wire.send(self._tampered(reply.row, client, keep, key), client, key[2], keep)
            self.replies[slot] = sent
            # A finite square of the norm bounds every entry of a Gram matrix too. With noise, a refusal would tell of data.
            shown = (sent,) if self.wire.boundary.noise else (reply.row, sent)
            if not all(torch.isfinite(row.dot(row)) for row in shown):
                refused = "its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)"
        return client, (reply.chosen, reply.losses, reply.accuracies, reply.row is not None, refused)

    def _tampered(self, row: Tensor, client: Client, keep: Tensor | None, key: tuple[int, ...]) -> Tensor:
        """What a client sends in place of its update; the update itself, if it means well."""
        attack = self.world.attacks.get(client)
        if attack is None:
            return row
        sent = torch.arange(len(row)) < self.layout.trainable
        return attack.tampered(row, sent if keep is None else sent & ~keep, key[0], key[2], client)

    def _test_job(
        self, rows: tuple[int, ...], clients: Sequence[Client], start: int
    ) -> list[dict[str, tuple[float, int]]]:
        assert self._learner is not None
        tests = [self.world.clients[c].test for c in clients]
        part = slice(start, start + EXAMPLES_PER_TEST)
        try:
            with seeded(0):  # a module may draw random numbers in tests as well
                models = [self.wire.open(self.models[row]) for row in rows]
                return self._learner.sums(models, tests[0].inputs, tests[0].index[part], [t.targets[part] for t in tests])
        except Exception as error:
            raise EngineError(f"client {clients[0]} failed in its test: {sentence(error)}") from error


def own_layers(row: Tensor, kept: Tensor | None) -> Tensor:
    """A model ``(d,)`` with a client's own values in it; ``kept`` is NaN wherever the model's value counts."""
    return row if kept is None else torch.where(kept.isnan(), row, kept)
