"""The task of a client: measure the offered models, choose, train from the choice or compute its gradient, and reply."""

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
    """The answer of one client.

    Attributes:
        chosen: The offered models that the client chose.
        losses: Its loss under each offered model; empty if it did not measure.
        accuracies: Its main metric under each offered model, NaN if this is no share; empty if it did not measure.
        row: The update ``(d,)``, or None if nothing was trained.
    """

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    row: Tensor | None


@dataclass(frozen=True)
class Job:
    """The task of a client with everything it needs.

    Attributes:
        task: The task.
        offered: The offered models, one row ``(d,)`` each.
        data: The client's data.
        training: Settings of local training.
        lr: Learning rate.
        key: Seed of all draws of this task.
    """

    task: Task
    offered: Sequence[Tensor]
    data: ClientData
    training: Training
    lr: float
    key: tuple[int, ...]


def answer(learner: Learner, job: Job) -> Reply:
    """Do a task.

    Args:
        learner: Measures and trains.
        job: The task.

    Returns:
        The reply. Its row is the trained model minus the start, or the gradient if the task asks for it.
    """
    with seeded(*job.key, 1):  # a separate key: dropout and the order of batches are independent
        start, scores, best = _start(learner, job)
        update = None
        if job.task.gradient:
            update = learner.gradient(start, job.data.train)
        elif job.task.trains:
            update = learner.train(start, job.data.train, job.training, job.lr, generator(*job.key)) - start
    return _reply(learner, job, scores, best, update)


def parts(job: Job, least: int) -> tuple[Job, ...]:
    """Return the jobs to train and answer: both halves if the task asks for them, otherwise the whole job.

    A job with too few examples for halves is not halved.

    Args:
        job: The job.
        least: Fewest examples of a step.

    Returns:
        One job or two.
    """
    return halved(job) if job.task.halves and halvable(job.data.train, least) else (job,)


def halvable(data: Split, least: int) -> bool:
    """Whether a client can train on both halves of these examples."""
    return len(data) >= 2 * least


def halved(job: Job) -> tuple[Job, Job]:
    """Split a job into jobs on two disjoint random halves of the training data, each with its own draws.

    Of an odd number of examples, one is left out.

    Args:
        job: The job.

    Returns:
        Both jobs.

    Raises:
        ValueError: There are too few examples.
    """
    split = job.data.train
    size = len(split) // 2
    if not size:
        raise ValueError(f"{len(split)} training example{'s' if len(split) != 1 else ''} cannot be halved")
    order = torch.randperm(len(split), generator=generator(*job.key, 2))
    return _half(job, order[:size], 0), _half(job, order[size : 2 * size], 1)


def _half(job: Job, at: Tensor, half: int) -> Job:
    split = job.data.train
    data = replace(job.data, train=split.at(at))
    return replace(job, data=data, key=(*job.key, 2, half))


def answer_together(learner: Learner, jobs: Sequence[Job]) -> Iterator[Reply]:
    """Do the tasks of several clients in one block.

    Args:
        learner: Measures and trains.
        jobs: Tasks that train, with equal keys of :func:`.blocks.goes_with`.

    Yields:
        The reply to each task, as of :func:`answer`.
    """
    begun = []
    for job in jobs:
        with seeded(*job.key, 1):
            begun.append(_start(learner, job))
    starts = [start for start, _, _ in begun]
    block = Block(learner, starts)
    gens = [generator(*job.key) for job in jobs]
    with seeded(0):  # a block draws nothing; if a module does, no global state changes
        trained = block.train([job.data.train for job in jobs], jobs[0].training, jobs[0].lr, gens)
    for job, row, (start, scores, best) in zip(jobs, trained, begun, strict=True):
        yield _reply(learner, job, scores, best, row.cpu() - start)


def _start(learner: Learner, job: Job) -> tuple[Tensor, list[Scores], list[int]]:
    """The row from which a client trains, its measurements, and the positions of the models it chose."""
    scores = []
    if job.task.measure is not None:
        part = job.data.train if job.task.measure == "train" else job.data.validation
        scores = [learner.measure(row, part) for row in job.offered]
    count = len(job.offered)
    best = _least(scores, job.task.choose) if job.task.choose < count else list(range(count))
    start = job.offered[best[0]] if len(best) == 1 else torch.stack([job.offered[i] for i in best]).mean(0)
    return start, scores, best


def _reply(learner: Learner, job: Job, scores: Sequence[Scores], best: Sequence[int], row: Tensor | None) -> Reply:
    objective = learner.objective
    metric = objective.named[objective.main]
    share = metric.share and metric.better == "greater"
    return Reply(
        chosen=tuple(job.task.offered[i] for i in best),
        losses=tuple(s["loss"] for s in scores),
        accuracies=tuple(s.get(objective.main, math.nan) if share else math.nan for s in scores),
        row=row,
    )


def _least(scores: Sequence[Scores], count: int) -> list[int]:
    """Positions of the ``count`` smallest losses; the first of equal ones, and NaN after all numbers."""
    return sorted(range(len(scores)), key=lambda i: (math.isnan(scores[i]["loss"]), scores[i]["loss"]))[:count]
