"""What a client does with a task: measure the offered models, choose, train or compute a gradient, and reply.

This is one piece of code for every engine. :func:`carry_out` does a whole task, as a Flower client
does. The worker processes of a pool, here or on Ray's nodes, take the same steps apart, because
tasks of several clients, and both halves of one, are trained in blocks: :func:`divided`, then
:func:`answer` or :func:`answer_together`, then :func:`combined`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core import Personal, Stage, Statistic, Task, Training
from coterie.models.layout import Layout
from coterie.randomness import generator
from coterie.training.blocks import Block, can_measure_together, losses_together
from coterie.training.learner import Learner, PullToShared, Scores
from coterie.training.neighbours import losses_with_neighbours
from coterie.training.optimizer_state import KeptOptimizer
from coterie.training.order import ClientResult, Job, Order
from coterie.training.splits import halvable, of_each_subject
from coterie.training.statistics import statistics_of

UPDATE_NOT_FINITE = (
    "its update has a NaN, infinite or enormous entry (a smaller lr, or clip, may help)"
)
PERSONAL_NOT_FINITE = (
    "its personal model has a NaN or infinite entry (a smaller lr, or clip, may help)"
)
"""Why an engine refuses a result."""


def carry_out(
    learner: Learner, job: Job, attack: Any = None, own_values: Tensor | None = None
) -> ClientResult:
    """Carry out a task.

    Args:
        learner: Measures and trains.
        job: The order with models and data.
        attack: The client's attack, if it simulates an adversary.
        own_values: What the client stored after an earlier exchange, ``(d,)``, NaN in the columns of
            layers that it does not keep; None for nothing.

    Returns:
        The result. If its update is not finite, the client stores nothing.
    """
    # Train: once, or on each half of the data and once more on all of them.
    orders = divided(job.order, can_halve=halvable(job.data.train, learner.min_batch))
    results_of_orders: list[tuple[Order, ClientResult]] = []
    for order in orders:
        results_of_orders.append((order, answer(learner, job.of_order(order))))
    result = combined(results_of_orders)
    # Send: an adversary replaces its updates here, on the client's side.
    layout = learner.layout
    keep_mask = layout.mask(job.task.local_layers) if job.task.local_layers else None
    updates = tuple(
        sent_update(update, attack, job.order, layout, keep_mask) for update in result.updates
    )
    result = replace(result, updates=updates)
    if not all_finite(updates):
        return replace(result, refused=UPDATE_NOT_FINITE, optimizer_state=None)
    # Store: the layers that the client keeps, or its personal model, for the next exchange.
    chosen_models = []
    for model_row in result.chosen:
        chosen_models.append(job.offered[job.task.offered.index(model_row)])
    start = mean_model(chosen_models)
    update = torch.stack(updates).mean(0) if updates else None
    stored = own_values_after(job.task, result, start, update, keep_mask, own_values)
    return replace(result, own_values=stored)


# -- the parts of a task, and what becomes of their results
# ------------------------------------------------------------


def divided(order: Order, *, can_halve: bool) -> list[Order]:
    """Divide an order into the trainings that it takes.

    Args:
        order: The order.
        can_halve: Whether the client has enough examples for two halves.

    Returns:
        The order itself; or one for each half of the data, and a third one for what halves do not
        give: held-out losses and a personal model.
    """
    task = order.task
    if not (task.halves and can_halve):
        return [order]
    # On a half, the client only trains, which is usually all that the task asks for.
    task_of_half = task
    if task.personal is not None or task.holdout.report_losses:
        holdout_of_half = replace(task.holdout, report_losses=False)
        task_of_half = replace(task, personal=None, holdout=holdout_of_half)
    orders = [replace(order, task=task_of_half, half=half) for half in (0, 1)]
    # What the server asks of all of the client's data takes a third training.
    task_beside_halves = _beside_halves(task)
    if task_beside_halves is not None:
        orders.append(replace(order, task=task_beside_halves, beside_halves=True))
    return orders


def _beside_halves(task: Task) -> Task | None:
    """What a client does with all of its data besides training on both halves; None for nothing."""
    if task.personal is None and not task.holdout.report_losses:
        return None
    if task.personal is not None and task.personal.start == "trained":
        # It trains on all of its data again, because its personal model starts from the trained
        # model.
        return replace(task, halves=False)
    return replace(task, halves=False, training=None, epochs=0)


def combined(results: Sequence[tuple[Order, ClientResult]]) -> ClientResult:
    """Combine the results of the orders into which a client's order was divided.

    Args:
        results: The orders and their results.

    Returns:
        The result: the updates of both halves, and the personal model and the held-out losses of the
        third order, if there is one.
    """
    # The usual case: one order, which was not divided.
    if len(results) == 1 and not results[0][0].beside_halves:
        return results[0][1]
    result_of_half: dict[int, ClientResult] = {}
    result_on_all_data: ClientResult | None = None
    refused: str | None = None
    for order, result in results:
        if order.beside_halves:
            result_on_all_data = result
        else:
            result_of_half[order.half or 0] = result
        refused = refused or result.refused
    # The updates come from the halves, in their order.
    updates: list[Tensor] = []
    slots: list[int] = []
    for half in sorted(result_of_half):
        updates += result_of_half[half].updates
        slots += result_of_half[half].slots
    # The personal model and the held-out losses come from the third training, if there was one.
    first_result = result_of_half[min(result_of_half)]
    if result_on_all_data is None:
        result_on_all_data = first_result
    return replace(
        first_result,
        updates=tuple(updates),
        slots=tuple(slots),
        personal=result_on_all_data.personal,
        weight=result_on_all_data.weight,
        held_losses=result_on_all_data.held_losses,
        refused=refused,
    )


def sent_update(
    update: Tensor, attack: Any, order: Order, layout: Layout, keep_mask: Tensor | None
) -> Tensor:
    """Return the update that a client sends: what it trained, or an adversary's row in place of it.

    Args:
        update: The update ``(d,)``.
        attack: The client's attack, or None.
        order: The order.
        layout: The layout of the model's parameters.
        keep_mask: Mask ``(d,)`` of the columns that stay at the client, or None.
    """
    if attack is None:
        return update
    # An attack changes trained parameters that are sent, and neither buffers nor layers that stay.
    sent_columns = torch.arange(len(update)) < layout.trainable
    if keep_mask is not None:
        sent_columns &= ~keep_mask
    tampered: Tensor = attack.tampered(
        update, sent_columns, order.seed, order.exchange, order.client
    )
    return tampered


def all_finite(model_rows: Iterable[Tensor]) -> bool:
    """Whether rows have finite squared norms, which also bounds every entry of a Gram matrix."""
    return all(math.isfinite(model_row.dot(model_row)) for model_row in model_rows)


def mean_model(models: Sequence[Tensor]) -> Tensor:
    """Return the mean ``(d,)`` of the models from which a client starts, often just one."""
    return models[0] if len(models) == 1 else torch.stack(tuple(models)).mean(0)


def own_values_after(
    task: Task,
    result: ClientResult,
    start: Tensor | None,
    update: Tensor | None,
    keep_mask: Tensor | None,
    own_values: Tensor | None,
) -> Tensor | None:
    """Return what a client stores after a task: the layers that it keeps, or its personal model.

    Args:
        task: The task.
        result: The result, with the personal model.
        start: The model ``(d,)`` from which the client trained; None if it keeps no layers.
        update: Its update ``(d,)``; of two halves, their mean. None without one.
        keep_mask: Mask ``(d,)`` of the layers that it keeps, or None.
        own_values: What it had stored before, or None.

    Returns:
        The values ``(d,)``, NaN in the columns of layers that it does not keep, and perhaps the
        weight of a mixture behind them. None if what was stored before stays.
    """
    if task.personal is not None:
        return result.personal_values
    # Nothing was trained, or the client keeps no layers.
    if keep_mask is None or start is None or update is None or task.gradient:
        return None
    trained_model = start + update
    values_before = torch.full_like(trained_model, torch.nan) if own_values is None else own_values
    return torch.where(keep_mask, trained_model, values_before[: len(trained_model)])


# -- one client alone
# -------------------------------------------------------------------------------------------------


class TrainingStart(NamedTuple):
    """From where a client trains.

    Attributes:
        model: The mean ``(d,)`` of the models that it chose.
        scores: Its measurements of the offered models; empty if it did not measure.
        chosen: The positions of the chosen models in the offer.
    """

    model: Tensor
    scores: list[Scores]
    chosen: list[int]


def answer(learner: Learner, job: Job) -> ClientResult:
    """Do the work of an order: all of it, or one of those into which it was divided.

    Args:
        learner: Measures and trains.
        job: The order with models and data.

    Returns:
        The result. Its update is the trained model minus the start, or the gradient if the task asks
        for it.
    """
    order = job.order
    task = job.task
    personal = task.personal
    # The scope has a key of its own: dropout and the order of batches are independent.
    with learner.scope((*order.draws, 1), job.data.train, job.data.validation):
        # Measure the offered models, and start from the mean of those with the lowest losses.
        start = _start(job, _measured(learner, [job])[0])
        # Train the shared model, or compute its gradient.
        update: Tensor | None = None
        own_model: Tensor | None = None
        kept = KeptOptimizer(job.optimizer_state) if order.training.keep_optimizer else None
        if task.gradient:
            update = learner.gradient(start.model, job.data.train)
        elif personal is not None and personal.mixture is not None:
            return _answer_of_mixture(learner, job, start)
        elif task.trains:
            trained_model = learner.train(
                start.model,
                job.data.train,
                order.training,
                order.lr,
                generator(*order.draws),
                stages=task.stages,
                correction=job.correction,
                kept=kept,
            )
            update = trained_model - start.model
        # Train the personal model, which stays at the client.
        if personal is not None:
            own_model = learner.train(
                _personal_start(job, personal, start.model, update),
                job.data.train,
                personal_training(order.training, personal),
                order.lr,
                generator(*order.draws, 3),
                stages=_personal_stages(personal),
                pull_term=PullToShared(personal.pull, start.model) if personal.pull else None,
            )
    held_losses = _held_losses(learner, job, start.model, own_model)
    result = _result(learner, job, start, update, own_model, held_losses=held_losses)
    return result if kept is None else replace(result, optimizer_state=kept.state())


def _answer_of_mixture(learner: Learner, job: Job, start: TrainingStart) -> ClientResult:
    """Train the shared model and the client's part of a mixture together (APFL)."""
    order = job.order
    personal = job.task.personal
    assert personal is not None
    assert personal.mixture is not None
    # In its first task the client's own part starts as the shared model, with the first weight.
    own_model = start.model
    mixture_weight = personal.mixture
    if job.personal is not None and job.weight is not None:
        own_model = job.personal
        mixture_weight = job.weight
    trained_model, own_model, mixture_weight = learner.train_mixture(
        start.model,
        own_model,
        mixture_weight,
        job.data.train,
        order.training,
        order.lr,
        generator(*order.draws),
        personal.adapt,
    )
    # The client is served by the mixture.
    mixture = start.model + mixture_weight * (own_model - start.model)
    held_losses = _held_losses(learner, job, start.model, mixture)
    return _result(
        learner,
        job,
        start,
        trained_model - start.model,
        own_model,
        mixture_weight,
        held_losses,
    )


def _personal_start(job: Job, personal: Personal, model: Tensor, update: Tensor | None) -> Tensor:
    """The model ``(d,)`` from which a personal model is trained."""
    match personal.start:
        case "trained":
            return model if update is None else model + update
        case "offered":
            return model
        case "own":
            return model if job.personal is None else job.personal


def personal_training(training: Training, personal: Personal) -> Training:
    """Return the settings of local training of a personal model.

    Args:
        training: Those of the task.
        personal: The task's personal model.
    """
    if personal.epochs is None:
        return training
    return replace(training, epochs=personal.epochs, steps=None)


def _personal_stages(personal: Personal) -> tuple[Stage, ...]:
    """The stages in which a personal model is trained."""
    return (Stage(layers=personal.layers),) if personal.layers else ()


# -- several clients in one block
# -------------------------------------------------------------------------------------


def answer_together(learner: Learner, jobs: Sequence[Job]) -> Iterator[ClientResult]:
    """Do the work of several orders in one block.

    Args:
        learner: Measures and trains.
        jobs: Orders that train, with equal keys of :func:`.blocks.goes_with`, equal stages and
            personal models; orders that only train such personal models; or orders that only measure
            the same models.

    Yields:
        The result of each, as of :func:`answer`.
    """
    # A block draws nothing. If the user's own code does, its numbers would depend on which clients
    # share the block: then each client works alone.
    with learner.scope((*jobs[0].order.draws, 1), *(job.data.validation for job in jobs)) as scope:
        all_scores = _measured(learner, jobs)
        starts = [_start(job, scores) for job, scores in zip(jobs, all_scores, strict=True)]
        has_drawn = learner.own_code and scope.moved
    if has_drawn:
        yield from (answer(learner, job) for job in jobs)
        return
    # Orders that only measure are done.
    if not jobs[0].task.trains and jobs[0].task.personal is None:
        for job, start in zip(jobs, starts, strict=True):
            held_losses = _held_losses(learner, job, start.model, None)
            yield _result(learner, job, start, None, held_losses=held_losses)
        return
    # Train all clients at once. Nothing may be drawn here, so any seed serves.
    with learner.scope((0,)) as scope:
        try:
            updates, own_models = _trained_together(
                learner, jobs, [start.model for start in starts]
            )
        except RuntimeError as error:
            if not learner.own_code or "randomness error mode" not in str(error):
                raise
            # PyTorch itself refuses to draw for several models at once.
            has_drawn = True
        else:
            has_drawn = learner.own_code and scope.moved
    if has_drawn:
        yield from (answer(learner, job) for job in jobs)
        return
    start_models = [start.model for start in starts]
    losses_of_clients = _held_losses_together(learner, jobs, start_models, own_models)
    for job, start, update, own_model, held_losses in zip(
        jobs, starts, updates, own_models, losses_of_clients, strict=True
    ):
        yield _result(learner, job, start, update, own_model, held_losses=held_losses)


def _trained_together(
    learner: Learner, jobs: Sequence[Job], models: list[Tensor]
) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
    """The updates ``(d,)`` of the clients of a block, and their personal models ``(d,)``; None without one."""
    order = jobs[0].order
    personal = order.task.personal
    if not order.task.trains:
        assert personal is not None
        no_updates = [None] * len(jobs)
        return no_updates, _personal_together(learner, jobs, personal, models, no_updates)
    # Each client has its own generator, so it sees the batches that it would see alone.
    block = Block(learner, models)
    trained = block.train(
        [job.data.train for job in jobs],
        order.training,
        order.lr,
        [generator(*job.order.draws) for job in jobs],
        stages=order.task.stages,
        correction=_corrections(jobs),
    )
    trained = trained.cpu()
    if personal is None and not order.task.holdout.report_losses:
        # No other block comes before the updates are sent, so they need no memory of their own.
        for model_row, model in zip(trained, models, strict=True):
            model_row.sub_(model)
        return list(trained), [None] * len(jobs)
    updates = [model_row - model for model_row, model in zip(trained, models, strict=True)]
    if personal is None:
        return updates, [None] * len(jobs)
    return updates, _personal_together(learner, jobs, personal, models, updates)


def _corrections(jobs: Sequence[Job]) -> Tensor | None:
    """The rows ``(w, d)`` that the clients of a block add to their gradients; None if they add none."""
    corrections = [job.correction for job in jobs if job.correction is not None]
    return torch.stack(corrections) if corrections else None


def _personal_together(
    learner: Learner,
    jobs: Sequence[Job],
    personal: Personal,
    models: list[Tensor],
    updates: Sequence[Tensor | None],
) -> Sequence[Tensor]:
    """Train the personal models ``(d,)`` of the clients of a block."""
    # With "trained", each personal model starts from its client's newly trained model.
    starts = []
    for job, model, update in zip(jobs, models, updates, strict=True):
        starts.append(_personal_start(job, personal, model, update))
    block = Block(learner, starts)
    trained = block.train(
        [job.data.train for job in jobs],
        personal_training(jobs[0].order.training, personal),
        jobs[0].order.lr,
        [generator(*job.order.draws, 3) for job in jobs],
        stages=_personal_stages(personal),
        pull_term=PullToShared(personal.pull, torch.stack(models)) if personal.pull else None,
    )
    return list(trained.cpu().clone())


# -- measuring and replying
# -------------------------------------------------------------------------------------------


def _measured(learner: Learner, jobs: Sequence[Job]) -> list[list[Scores]]:
    """The measurements of each client; of a model that several were offered, in the same batches."""
    all_scores: list[list[Scores]] = []
    # Where a model is in memory -> the clients that measure it, and its place in their offers.
    offers: dict[int, list[tuple[int, int]]] = {}
    for client_index, job in enumerate(jobs):
        measured_models = job.offered if job.task.measure else ()
        all_scores.append([{} for _ in measured_models])
        for place_in_offer, model in enumerate(measured_models):
            offers.setdefault(model.data_ptr(), []).append((client_index, place_in_offer))
    # Measure each distinct model once, on the examples of all clients that were offered it.
    for offers_of_model in offers.values():
        first_client, first_place_in_offer = offers_of_model[0]
        measured_parts = []
        for client_index, _ in offers_of_model:
            job = jobs[client_index]
            split = job.data.train if job.task.measure == "train" else job.data.validation
            measured_parts.append((split.inputs, split.index, [split.targets]))
        # Batches may hold examples of several clients; each part has its own totals.
        totals = learner.sums([jobs[first_client].offered[first_place_in_offer]], measured_parts)
        for (client_index, place_in_offer), totals_of_part in zip(
            offers_of_model, totals, strict=True
        ):
            all_scores[client_index][place_in_offer] = learner.objective.scores(totals_of_part[0])
    return all_scores


def _start(job: Job, scores: list[Scores]) -> TrainingStart:
    """Choose among the offered models those of lowest loss, and take their mean."""
    # A client that needs no choice starts from the mean of all offered models.
    chosen = list(range(job.task.models_offered))
    if job.task.chooses:
        chosen = _lowest(scores, job.task.choose)
    return TrainingStart(mean_model([job.offered[position] for position in chosen]), scores, chosen)


def _lowest(scores: Sequence[Scores], chosen_count: int) -> list[int]:
    """Positions of the ``count`` lowest losses; the first of equal ones, and NaN after all numbers."""
    losses = [score["loss"] for score in scores]

    def nan_last(position: int) -> tuple[bool, float]:
        return math.isnan(losses[position]), losses[position]

    return sorted(range(len(losses)), key=nan_last)[:chosen_count]


def _held_losses(
    learner: Learner, job: Job, start_model: Tensor, serving_model: Tensor | None
) -> np.ndarray | None:
    """The losses that an order's task asks for: of the model from which training started, and of the client's own.

    Returns:
        Shape ``(m, examples)``, as in :class:`ClientResult`; None if the task asks for none.
    """
    if not job.task.holdout.report_losses:
        return None
    models = [start_model]
    if serving_model is not None:
        models.append(serving_model)
    validation = job.data.validation
    with learner.scope((*job.order.draws, 4), validation):
        losses_of_models = [learner.losses(model, validation) for model in models]
    return _reported_losses(learner, job, models, losses_of_models)


def _reported_losses(
    learner: Learner, job: Job, models: Sequence[Tensor], losses_of_models: Sequence[Tensor]
) -> np.ndarray:
    """The held-out losses ``(m, examples)`` that a client reports: of models alone, then with its neighbours if asked."""
    reported_losses = list(losses_of_models)
    neighbours = job.task.holdout.neighbours
    if neighbours is not None:
        with learner.scope((*job.order.draws, 6), job.data.validation, job.data.train):
            for model, losses_alone in zip(models, losses_of_models, strict=True):
                try:
                    losses = losses_with_neighbours(learner, model, job.data, neighbours)
                except ValueError:
                    # Without features there are no neighbours, as if they had no weight.
                    losses = losses_alone
                reported_losses.append(losses)
    validation = job.data.validation
    return of_each_subject(torch.stack(reported_losses), validation.subjects).numpy()


def _held_losses_together(
    learner: Learner,
    jobs: Sequence[Job],
    start_models: Sequence[Tensor],
    own_models: Sequence[Tensor | None],
) -> list[np.ndarray | None]:
    """:func:`_held_losses` of the clients of a block; in one block, where each example counts for itself."""
    reporting = [job for job in jobs if job.task.holdout.report_losses]
    splits = [job.data.validation for job in reporting]
    if len(reporting) < len(jobs) or not can_measure_together(learner, splits):
        return [
            _held_losses(learner, job, start_model, own_model)
            for job, start_model, own_model in zip(jobs, start_models, own_models, strict=True)
        ]
    # The clients' own models come after those from which they started.
    models = list(start_models)
    splits_of_models = list(splits)
    for own_model, split in zip(own_models, splits, strict=True):
        if own_model is not None:
            models.append(own_model)
            splits_of_models.append(split)
    losses_of_models = losses_together(learner, models, splits_of_models)
    own_losses = iter(losses_of_models[len(jobs) :])
    losses_of_clients: list[np.ndarray | None] = []
    for job, start_model, own_model, start_losses in zip(
        jobs, start_models, own_models, losses_of_models, strict=False
    ):
        models_of_client = [start_model]
        losses_of_client = [start_losses]
        if own_model is not None:
            models_of_client.append(own_model)
            losses_of_client.append(next(own_losses))
        losses_of_clients.append(_reported_losses(learner, job, models_of_client, losses_of_client))
    return losses_of_clients


def _result(
    learner: Learner,
    job: Job,
    start: TrainingStart,
    update: Tensor | None,
    own_model: Tensor | None = None,
    mixture_weight: float | None = None,
    held_losses: np.ndarray | None = None,
) -> ClientResult:
    """The result of an order."""
    objective = learner.objective
    task = job.task
    client_statistics: Mapping[Statistic, np.ndarray] = {}
    if task.statistics:
        with learner.scope((*job.order.draws, 5), job.data.train):
            client_statistics = statistics_of(learner, start.model, job.data.train, task.statistics)
    metric = objective.named[objective.main]
    # Only a share, such as accuracy, can be averaged over clients by their numbers of examples.
    accuracies = [math.nan] * len(start.scores)
    if metric.share and metric.better == "greater":
        accuracies = [score.get(objective.main, math.nan) for score in start.scores]
    return ClientResult(
        chosen=tuple(task.offered[position] for position in start.chosen),
        losses=tuple(score["loss"] for score in start.scores),
        accuracies=tuple(accuracies),
        trained=update is not None,
        updates=() if update is None else (update,),
        personal=own_model,
        weight=mixture_weight,
        held_losses=held_losses,
        statistics=client_statistics,
    )
