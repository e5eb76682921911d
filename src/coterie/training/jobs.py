"""The task of a client: measure the offered models, choose, train from the choice or compute its gradient, and reply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core import Client, Personal, Stage, Task, Training
from coterie.data.order import latest
from coterie.data.world import ClientData, Split
from coterie.randomness import Purpose, generator
from coterie.training.blocks import Block
from coterie.training.learner import Learner, Pull, Scores


@dataclass(frozen=True)
class Reply:
    """The answer of one client.

    Attributes:
        chosen: The offered models that the client chose.
        losses: Its loss under each offered model; empty if it did not measure.
        accuracies: Its main metric under each offered model, NaN if this is no share; empty if it
            did not measure.
        row: The update ``(d,)``, or None if nothing was trained.
        own: The client's personal model ``(d,)``, if the task trains one.
        weight: The weight of ``own`` in a mixture with the offered model; None without a mixture.
        held: Losses of the model from which training started, and of the personal one, on each
            held-out example, ``(m, examples)``, or in the mean of each subject; None if the task
            does not ask for them.
    """

    chosen: tuple[int, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    row: Tensor | None
    own: Tensor | None = None
    weight: float | None = None
    held: Tensor | None = None


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
        own: The client's personal model ``(d,)``, if it has one.
        weight: The weight of ``own`` in a mixture, if it has one.
    """

    task: Task
    offered: Sequence[Tensor]
    data: ClientData
    training: Training
    lr: float
    key: tuple[int, ...]
    own: Tensor | None = None
    weight: float | None = None


def answer(learner: Learner, job: Job) -> Reply:
    """Do a task.

    Args:
        learner: Measures and trains.
        job: The task.

    Returns:
        The reply. Its row is the trained model minus the start, or the gradient if the task asks
        for it.
    """
    # A separate key: dropout and the order of batches are independent.
    with learner.scope((*job.key, 1), job.data.train, job.data.validation):
        begun = _start(job, _measured(learner, [job])[0])
        start = begun[0]
        update, own, personal = None, None, job.task.personal
        if job.task.gradient:
            update = learner.gradient(start, job.data.train)
        elif personal is not None and personal.mixture is not None:
            return _mixed(learner, job, begun)
        elif job.task.trains:
            gen = generator(*job.key)
            update = (
                learner.train(
                    start, job.data.train, job.training, job.lr, gen, stages=job.task.stages
                )
                - start
            )
        if personal is not None:
            begin, how, pull = _second(job, personal, start, update)
            gen, stages = generator(*job.key, 3), _stages(personal)
            own = learner.train(begin, job.data.train, how, job.lr, gen, stages=stages, pull=pull)
    return _reply(learner, job, begun, update, own)


def _second(
    job: Job, personal: Personal, start: Tensor, update: Tensor | None
) -> tuple[Tensor, Training, Pull | None]:
    """The row from which a personal model is trained, its settings of local training, and the pull."""
    own = start if job.own is None else job.own
    begin = {"trained": start if update is None else start + update, "offered": start, "own": own}[
        personal.start
    ]
    how = (
        job.training
        if personal.epochs is None
        else replace(job.training, epochs=personal.epochs, steps=None)
    )
    return begin, how, Pull(personal.pull, start) if personal.pull else None


def _stages(personal: Personal) -> tuple[Stage, ...]:
    """The stages in which a personal model is trained."""
    return (Stage(layers=personal.layers),) if personal.layers else ()


def _mixed(learner: Learner, job: Job, begun: Begun) -> Reply:
    """Train the model and the client's part of a mixture together."""
    start = begun[0]
    personal, gen = job.task.personal, generator(*job.key)
    assert personal is not None
    assert personal.mixture is not None
    own, weight = (
        (start, personal.mixture)
        if job.own is None or job.weight is None
        else (job.own, job.weight)
    )
    trained, own, weight = learner.train_mixture(
        start, own, weight, job.data.train, job.training, job.lr, gen, personal.adapt
    )
    return _reply(learner, job, begun, trained - start, own, weight)


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
    """Whether a client can train on both halves of these examples, however they are drawn."""
    greatest = (
        1
        if data.subjects is None or not len(data)
        else int(data.subjects.unique(return_counts=True)[1].max())
    )
    return (
        len(data) - greatest >= 2 * least - 1
    )  # the smaller half has at least half of what is left of it


def halves(data: Split, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Divide examples into two disjoint random halves.

    Of an odd number of examples, one is left out. Where examples have subjects, those of a subject
    are in the same half, none is left out, and the sizes differ by the greatest number of examples
    of a subject at most.

    Args:
        data: The examples.
        key: Seed of the draw.

    Returns:
        The positions of the examples of each half.

    Raises:
        ValueError: There are too few examples, or all are of one subject.
    """
    if not halvable(data, 1):
        of_one = "" if data.subjects is None else " of too few subjects"
        raise ValueError(
            f"{len(data)} training example{'s' if len(data) != 1 else ''}{of_one} cannot be halved"
        )
    gen = generator(*key, 2)
    if data.subjects is None:
        order, size = torch.randperm(len(data), generator=gen), len(data) // 2
        return order[:size], order[size : 2 * size]
    which, counts = data.subjects.unique(return_inverse=True, return_counts=True)[1:]
    subjects = torch.randperm(len(counts), generator=gen)
    ends = counts[subjects].cumsum(0)[:-1]
    mine = torch.isin(which, subjects[: 1 + int((2 * ends - len(data)).abs().argmin())])
    either = bool(
        torch.randint(2, (), generator=gen)
    )  # of two cuts as near, argmin always takes the first
    return (mine == either).nonzero().squeeze(1), (mine != either).nonzero().squeeze(1)


def halved(job: Job) -> tuple[Job, Job]:
    """Split a job into jobs on the :func:`halves` of the training data, each with its own draws.

    Args:
        job: The job.

    Returns:
        Both jobs.

    Raises:
        ValueError: There are too few examples.
    """
    first, second = halves(job.data.train, job.key)
    return _half(job, first, 0), _half(job, second, 1)


def _half(job: Job, at: Tensor, half: int) -> Job:
    split = job.data.train
    data = replace(job.data, train=split.at(at))
    return replace(job, data=data, key=(*job.key, 2, half))


def beside_halves(task: Task) -> Task | None:
    """Return what a client does besides training on both halves: it tells held-out losses, and trains its personal model.

    Args:
        task: A task with ``halves``.

    Returns:
        The task, on all data; its update does not count. None if the halves are all that is asked
        for.
    """
    if task.personal is None and not task.holdout.report_losses:
        return None
    if task.personal is not None and task.personal.start == "trained":
        return replace(task, halves=False)
    return replace(task, halves=False, training=None, epochs=0)


def held_out(data: ClientData, share: float, seed: int, client: Client) -> ClientData:
    """Return a client's data with validation examples.

    Args:
        data: The client's data.
        share: The share of its training examples that become validation examples if it has none, at
            least one and at most half; always the same ones, and all of a subject. Of examples in
            order of time they are the latest, and those that reach into them are left out. 0 for
            none.
        seed: The seed of the run.
        client: The client.
    """
    count = min(max(round(share * len(data.train)), 1), len(data.train) // 2)
    if not share or len(data.validation) or not count:
        return data
    if data.train.spans is not None:
        subjects = None if data.train.subjects is None else data.train.subjects.numpy()
        found = latest(data.train.spans.numpy(), len(data.train) // 2, count, subjects)
        if found is None:
            return data
        last, earlier = map(torch.from_numpy, found)
        return replace(data, train=data.train.at(earlier), validation=data.train.at(last))
    gen = generator(seed, Purpose.HOLDOUT, client)
    if data.train.subjects is None:
        order = torch.randperm(len(data.train), generator=gen)
        kept, shown = order[:count].sort().values, order[count:].sort().values
    else:
        kept, shown = _whole_subjects(data.train.subjects, count, gen)
    return (
        replace(data, train=data.train.at(shown), validation=data.train.at(kept))
        if len(kept)
        else data
    )


def _whole_subjects(subjects: Tensor, count: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of about ``count`` examples, at most half, those of random subjects; and of the others."""
    which, counts = subjects.unique(return_inverse=True, return_counts=True)[1:]
    taken: list[int] = []
    total = 0
    for subject in torch.randperm(len(counts), generator=gen).tolist():
        more = total + int(counts[subject])
        if total < count and 2 * more <= len(subjects):
            taken.append(subject)
            total = more
    kept = torch.isin(which, torch.tensor(taken, dtype=torch.int64))
    return kept.nonzero().squeeze(1), (~kept).nonzero().squeeze(1)


def of_each_subject(losses: Tensor, subjects: Tensor | None) -> Tensor:
    """Return the mean loss of each subject's examples: unlike single examples, subjects are independent.

    Args:
        losses: Losses of m models on each example, ``(m, examples)``.
        subjects: Number of the subject of each example, or None if each example has its own.

    Returns:
        ``(m, subjects)``.
    """
    if subjects is None or not len(subjects):
        return losses
    which, counts = subjects.unique(return_inverse=True, return_counts=True)[1:]
    return losses.new_zeros(len(losses), len(counts)).index_add_(1, which, losses) / counts


def answer_together(learner: Learner, jobs: Sequence[Job]) -> Iterator[Reply]:
    """Do the tasks of several clients in one block.

    Args:
        learner: Measures and trains.
        jobs: Tasks that train, with equal keys of :func:`.blocks.goes_with`, equal stages and
            personal models; or tasks that only measure the same models.

    Yields:
        The reply to each task, as of :func:`answer`.
    """
    # A block draws nothing. If the user's own code does, its numbers would depend on which clients
    # share the block.
    with learner.scope((*jobs[0].key, 1), *(job.data.validation for job in jobs)) as scope:
        begun = [
            _start(job, scores) for job, scores in zip(jobs, _measured(learner, jobs), strict=True)
        ]
        alone = learner.own_code and scope.moved
    if alone:
        yield from (answer(learner, job) for job in jobs)
        return
    if not jobs[0].task.trains:
        yield from (_reply(learner, job, each, None) for job, each in zip(jobs, begun, strict=True))
        return
    starts = [start for start, _, _ in begun]
    with learner.scope((0,)) as scope:
        try:
            updates, own = _trained_together(learner, jobs, starts)
        except RuntimeError as error:
            if not learner.own_code or "randomness error mode" not in str(error):
                raise
            alone = True  # torch itself draws nothing for several models at once
        else:
            alone = learner.own_code and scope.moved
    if alone:
        yield from (answer(learner, job) for job in jobs)
        return
    for job, update, mine, each in zip(jobs, updates, own, begun, strict=True):
        yield _reply(learner, job, each, update, mine)


def _trained_together(
    learner: Learner, jobs: Sequence[Job], starts: list[Tensor]
) -> tuple[list[Tensor], Sequence[Tensor | None]]:
    """The updates ``(d,)`` of the clients of a block, and their personal models ``(d,)``, None where the task trains none."""
    block = Block(learner, starts)
    gens = [generator(*job.key) for job in jobs]
    splits, personal = [job.data.train for job in jobs], jobs[0].task.personal
    trained = block.train(splits, jobs[0].training, jobs[0].lr, gens, stages=jobs[0].task.stages)
    updates = [row.cpu() - start for row, start in zip(trained, starts, strict=True)]
    return updates, [None] * len(jobs) if personal is None else _personal_together(
        learner, jobs, personal, starts, updates
    )


def _personal_together(
    learner: Learner,
    jobs: Sequence[Job],
    personal: Personal,
    starts: list[Tensor],
    updates: Sequence[Tensor],
) -> Sequence[Tensor]:
    """Train the personal models ``(d,)`` of the clients of a block."""
    second = [
        _second(job, personal, start, update)
        for job, start, update in zip(jobs, starts, updates, strict=True)
    ]
    block = Block(learner, [begin for begin, _, _ in second])
    gens = [generator(*job.key, 3) for job in jobs]
    pull = Pull(personal.pull, torch.stack(starts)) if personal.pull else None
    splits = [job.data.train for job in jobs]
    trained = block.train(
        splits, second[0][1], jobs[0].lr, gens, stages=_stages(personal), pull=pull
    )
    return list(trained.cpu().clone())


Begun = tuple[Tensor, list[Scores], list[int]]
"""The row from which a client trains, its measurements, and the positions of the models it chose.
"""


def _measured(learner: Learner, jobs: Sequence[Job]) -> list[list[Scores]]:
    """The measurements of each client; of a model that several clients were offered, in the same batches."""
    found: list[list[Scores]] = [
        [{}] * len(job.offered) if job.task.measure else [] for job in jobs
    ]
    same: dict[
        int, list[tuple[int, int]]
    ] = {}  # where a model is in memory -> clients, and its place in their offers
    for i, job in enumerate(jobs):
        for place, row in enumerate(job.offered if job.task.measure else ()):
            same.setdefault(row.data_ptr(), []).append((i, place))
    for at in same.values():
        first, where = at[0]
        data = [
            jobs[i].data.train if jobs[i].task.measure == "train" else jobs[i].data.validation
            for i, _ in at
        ]
        totals = learner.sums(
            [jobs[first].offered[where]],
            [(part.inputs, part.index, [part.targets]) for part in data],
        )
        for (i, place), of_part in zip(at, totals, strict=True):
            found[i][place] = learner.objective.scores(of_part[0])
    return found


def _start(job: Job, scores: list[Scores]) -> Begun:
    """The row from which a client trains, its measurements, and the positions of the models it chose."""
    count = len(job.offered)
    best = _least(scores, job.task.choose) if job.task.choose < count else list(range(count))
    start = (
        job.offered[best[0]]
        if len(best) == 1
        else torch.stack([job.offered[i] for i in best]).mean(0)
    )
    return start, scores, best


def _reply(
    learner: Learner,
    job: Job,
    begun: Begun,
    row: Tensor | None,
    own: Tensor | None = None,
    weight: float | None = None,
) -> Reply:
    objective, held = learner.objective, None
    start, scores, best = begun
    if job.task.holdout.report_losses:
        served = () if own is None else (own if weight is None else start + weight * (own - start),)
        with learner.scope((*job.key, 4), job.data.validation):
            each = [learner.losses(model, job.data.validation) for model in (start, *served)]
        held = of_each_subject(torch.stack(each), job.data.validation.subjects)
    metric = objective.named[objective.main]
    share = metric.share and metric.better == "greater"
    return Reply(
        chosen=tuple(job.task.offered[i] for i in best),
        losses=tuple(s["loss"] for s in scores),
        accuracies=tuple(s.get(objective.main, math.nan) if share else math.nan for s in scores),
        row=row,
        own=own,
        weight=weight,
        held=held,
    )


def _least(scores: Sequence[Scores], count: int) -> list[int]:
    """Positions of the ``count`` smallest losses; the first of equal ones, and NaN after all numbers."""
    return sorted(
        range(len(scores)), key=lambda i: (math.isnan(scores[i]["loss"]), scores[i]["loss"])
    )[:count]
