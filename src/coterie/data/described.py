"""The schema of a client's data as far as the tensors and the objective show it.

Flower's clients send it before they train, see ``schema``.
"""

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
    split = data.train
    inputs = split.inputs
    targets = split.targets
    # Items have no form until one of them is read, and the others may have another shape.
    have_fixed_shape = not isinstance(inputs, Items)
    if not have_fixed_shape:
        inputs, targets = split.batch(torch.arange(1))
    schema = Schema(
        inputs=form_of(inputs, fixed=have_fixed_shape),
        task=task_of(targets, fixed=have_fixed_shape),
    )
    # The main metric first: clients that report others cannot be compared by it.
    if objective is not None:
        other_metrics = (name for name in objective.named if name != objective.main)
        schema = replace(
            schema, loss=loss_name(objective.loss), metrics=(objective.main, *other_metrics)
        )
        if (scale := objective.target_scale) is not None:
            schema = replace(schema, target_means=scale.means, target_deviations=scale.deviations)
    return schema.overridden(data.schema or Schema())


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

    def form(tensor: Any) -> str:
        if not isinstance(tensor, torch.Tensor):
            return type(tensor).__name__
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape[1:])
        # Tokens may have other lengths at another client; pixels of one byte may not.
        is_whole = _number_kind(tensor) == "whole numbers" and tensor.dtype != torch.uint8
        if not fixed or (is_whole and len(shape) == 1):
            return f"{len(shape)} dimensions of {dtype}"
        return f"{shape} {dtype}"

    return str(mapped(form, inputs)).replace("'", "")


def task_of(targets: Batch, fixed: bool = True) -> str:
    """Return the kind of the targets in words: their type, and the shape of those that are not whole numbers."""

    def form(tensor: Any) -> str:
        if not isinstance(tensor, torch.Tensor):
            return type(tensor).__name__
        kind = _number_kind(tensor)
        # One column is written as (N, 1) or as (N,).
        shape = [size for size in tensor.shape[1:] if size != 1]
        if shape and fixed and kind != "whole numbers":
            return f"{kind} of shape {tuple(shape)}"
        return kind

    return str(mapped(form, targets)).replace("'", "")


def _number_kind(tensor: torch.Tensor) -> str:
    """What a tensor holds, in words."""
    if tensor.dtype == torch.bool:
        return "booleans"
    return "floats" if tensor.is_floating_point() or tensor.is_complex() else "whole numbers"
