"""The schema of a client's data as far as the tensors and the objective show it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from coterie.data.batches import Batch, Items, mapped
from coterie.data.loss_sign import loss_name
from coterie.data.objective import Objective
from coterie.data.schema import Schema
from coterie.data.world import ClientData


def described(data: ClientData, objective: Objective | None) -> Schema:
    """Return the schema of a client's data, as far as it is known.

    Args:
        data: The data. Their own schema, if they have one, counts before what the tensors show.
        objective: The loss and the metrics. None if they are not known.

    Returns:
        The schema.
    """
    known = data.schema or Schema()
    split = data.train
    inputs, targets = split.inputs, split.targets
    items = isinstance(inputs, Items)
    if items:
        inputs, targets = split.batch(torch.arange(1))
    found = Schema(inputs=form_of(inputs, fixed=not items), task=task_of(targets, fixed=not items))
    if objective is not None:
        others = (name for name in objective.named if name != objective.main)
        found = replace(found, loss=loss_name(objective.loss), metrics=(objective.main, *others))
        if (scale := objective.target_scale) is not None:
            found = replace(found, target_means=scale.means, target_deviations=scale.deviations)
    return found.overridden(known)


def form_of(inputs: Batch, fixed: bool = True) -> str:
    """Return shape and type of an example's inputs in words.

    The length of whole numbers in one dimension is left out: these are tokens, and a client pads
    them to its longest text.

    Args:
        inputs: A batch.
        fixed: Whether all examples have this shape. If not, only the number of dimensions is
            stated.

    Returns:
        The words, such as ``"(3,) float32"``.
    """

    def form(one: Any) -> str:
        if not isinstance(one, torch.Tensor):
            return type(one).__name__
        dtype, shape = str(one.dtype).removeprefix("torch."), tuple(one.shape[1:])
        if not fixed or (
            _kind(one) == "whole numbers" and one.dtype != torch.uint8 and len(shape) == 1
        ):
            return f"{len(shape)} dimensions of {dtype}"
        return f"{shape} {dtype}"

    return str(mapped(form, inputs)).replace("'", "")


def task_of(targets: Batch, fixed: bool = True) -> str:
    """Return the kind of the targets in words: their type, and the shape of those that are not whole numbers."""

    def form(one: Any) -> str:
        if not isinstance(one, torch.Tensor):
            return type(one).__name__
        kind, shape = _kind(one), [size for size in one.shape[1:] if size != 1]
        return (
            f"{kind} of shape {tuple(shape)}"
            if shape and fixed and kind != "whole numbers"
            else kind
        )

    return str(mapped(form, targets)).replace("'", "")


def _kind(one: torch.Tensor) -> str:
    if one.dtype == torch.bool:
        return "booleans"
    return "floats" if one.is_floating_point() or one.is_complex() else "whole numbers"
