"""A client's task: measure the offered models, choose, train from the choice or give its gradient, and reply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core import Task, Training
from coterie.data.world import ClientData, Split
from coterie.randomness import generator, seeded
from coterie.training.blocks import Block
from coterie.training.learner import Learner, Scores


@dataclass(frozen=True)
class Reply:
    """One client's answer; ``row`` ``(d,)`` is None if nothing was trained."""

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    row: Tensor | None


@dataclass(frozen=True)
class Job:
    """A client's task with all it takes: the models offered, one row each; its data; how it trains; ``key`` seeds
    everything random about it."""

    task: Task
    offered: Sequence[Tensor]
    data: ClientData
    training: Training
    lr: float
    key: tuple[int, ...]


def answer(learner: Learner, job: Job) -> Reply:
    """Do a task; the update is trained - start, or the gradient where the task asks for it."""
    with seeded(*job.key, 1):  # a key of its own: dropout and the order of batches are draws apart
        start, scores, best = _start(learner, job)
        update = None
        if job.task.gradient:
            update = learner.gradient(start, job.data.train)
        elif job.task.trains:
            update = learner.train(start, job.data.train, job.training, job.lr, generator(*job.key)) - start
    return _reply(job, scores, best, update)


def parts(job: Job, least: int) -> tuple[Job, ...]:
    """What is trained and replied to: both halves of a task that asks for them, or the whole of it, where it does not or where
    there are too few examples. least: those that a step takes."""
    return halved(job) if job.task.halves and halvable(job.data.train, least) else (job,)


def halvable(data: Split, least: int) -> bool:
    """Whether both halves of these examples can be trained on."""
    return len(data) >= 2 * least


def halved(job: Job) -> tuple[Job, Job]:
    """A task on two disjoint random halves of the training data, each with draws of its own; of an odd number of examples
    one is left out. ValueError where there are too few."""
    split = job.data.train
    size = len(split) // 2
    if not size:
        raise ValueError(f"{len(split)} training example{'s' if len(split) != 1 else ''} cannot be halved")
    order = torch.randperm(len(split), generator=generator(*job.key, 2))
    return _half(job, order[:size], 0), _half(job, order[size : 2 * size], 1)


def _half(job: Job, at: Tensor, half: int) -> Job:
    split = job.data.train
    data = replace(job.data, train=Split(split.inputs, split.index[at], split.targets[at]))
    return replace(job, data=data, key=(*job.key, 2, half))


def answer_together(learner: Learner, jobs: Sequence[Job]) -> Iterator[Reply]:
    """The same for tasks that train, of clients that go together (:func:`.blocks.goes_with`), in one block."""
    begun = []
    for job in jobs:
        with seeded(*job.key, 1):
            begun.append(_start(learner, job))
    starts = [start for start, _, _ in begun]
    block = Block(learner, starts)
    gens = [generator(*job.key) for job in jobs]
    with seeded(0):  # nothing is drawn in a block; a module that does so all the same changes nobody's state
        trained = block.train([job.data.train for job in jobs], jobs[0].training, jobs[0].lr, gens)
    for job, row, (start, scores, best) in zip(jobs, trained, begun, strict=True):
        yield _reply(job, scores, best, row.cpu() - start)


def _start(learner: Learner, job: Job) -> tuple[Tensor, list[Scores], list[int]]:
    """The row a client trains from, what it measured, and which of the models offered it chose."""
    scores = []
    if job.task.measure is not None:
        part = job.data.train if job.task.measure == "train" else job.data.validation
        scores = [learner.measure(row, part) for row in job.offered]
    count = len(job.offered)
    best = _least(scores, job.task.choose) if job.task.choose < count else list(range(count))
    start = job.offered[best[0]] if len(best) == 1 else torch.stack([job.offered[i] for i in best]).mean(0)
    return start, scores, best


def _reply(job: Job, scores: Sequence[Scores], best: Sequence[int], row: Tensor | None) -> Reply:
    return Reply(
        chosen=tuple(job.task.offered[i] for i in best),
        losses=tuple(s["loss"] for s in scores),
        accuracies=tuple(s.get("accuracy", float("nan")) for s in scores),
        row=row,
    )


def _least(scores: Sequence[Scores], count: int) -> list[int]:
    """The ``count`` positions of least loss; ties to the first, and a NaN loss is never the least."""
    return sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]["loss"]), scores[i]["loss"]))[:count]
