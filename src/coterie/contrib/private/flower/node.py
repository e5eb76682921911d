"""A client's side of sums over Flower: the task that it takes, and the answer to its question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.sketch import unchecked_sketch
from coterie.contrib.private.cells import question_of
from coterie.contrib.private.sums import answer_to
from coterie.contrib.private.sums import task_as_taken as task_as_taken
from coterie.models.layout import Layout
from coterie.training import ClientResult, Order


def client_result(
    result: ClientResult,
    order: Order,
    stored_sketches: Callable[[], np.ndarray | None],
    layout: Layout,
    examples: int,
) -> ClientResult:
    """Return the result of a task of which only sums are needed: one update, and the answer to its question.

    Args:
        result: What the client has trained.
        order: The task.
        stored_sketches: Returns the sketches ``(2, k)`` of the halves of an earlier exchange; None
            if the client has none.
        layout: The layout of the model's parameters.
        examples: The client's number of training examples.
    """
    task = order.task
    question = question_of(task)
    # The question is about the halves of this exchange, or about stored sketches of an earlier one.
    new_sketches: np.ndarray | None = None
    half_sketches: np.ndarray | None = None
    if task.halves:
        new_sketches = half_sketches = _half_sketches(result.updates, order)
    elif question is not None and not question.needs_norm:
        half_sketches = stored_sketches()
    # Empty sketches are of a client that could not train on both halves.
    if half_sketches is not None and not len(half_sketches):
        half_sketches = None
    # Single halves are not sent: their mean is the update.
    mean_update = None
    if result.updates:
        mean_update = torch.stack(result.updates).sum(0) / len(result.updates)
    client_cell: int | None = None
    client_answer: np.ndarray | None = None
    if question is not None and question.asks_cell:
        client_cell = None if half_sketches is None else question.cell(half_sketches)
    elif question is not None:
        client_answer = answer_to(question, half_sketches, mean_update, examples, layout)
    return replace(
        result,
        updates=() if mean_update is None or not task.private.sends_update else (mean_update,),
        answer=client_answer,
        cell=client_cell,
        half_sketches=new_sketches,
    )


def _half_sketches(updates: Sequence[Tensor], order: Order) -> np.ndarray:
    """The sketches ``(2, k)`` of both halves; empty if the client could not make them."""
    if len(updates) == 2 and order.sketch:
        # The same map as at all other clients, of the same columns.
        columns = torch.stack(tuple(updates))[:, slice(*order.columns)]
        sketches = unchecked_sketch(columns, order.sketch).numpy()
        if np.isfinite(sketches).all():
            return sketches
    return np.zeros((0, 0), dtype=np.float32)
