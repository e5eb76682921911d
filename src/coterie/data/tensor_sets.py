"""Data sets of PyTorch that are tensors: they need not be read item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

PARTS = ("train", "validation", "test")


def tensors_of(dataset: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the (inputs, targets) of a data set that only holds them.

    Args:
        dataset: A ``TensorDataset`` of two tensors, or a ``Subset`` or ``ConcatDataset`` of such
            ones.

    Returns:
        The tensors, or None for any other data set: a class of the user's own may do more with an
        item.
    """
    if type(dataset) is torch.utils.data.TensorDataset:
        return (dataset.tensors[0], dataset.tensors[1]) if len(dataset.tensors) == 2 else None
    if type(dataset) is torch.utils.data.Subset:
        whole = tensors_of(dataset.dataset)
        at = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        return None if whole is None else (whole[0][at], whole[1][at])
    if type(dataset) is torch.utils.data.ConcatDataset:
        parts = [tensors_of(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        forms = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in known}
        if len(known) < len(parts) or len(forms) > 1:
            return None
        return torch.cat([x for x, _ in known]), torch.cat([y for _, y in known])
    return None


def as_arrays(data: Any) -> dict[str, Any] | None:
    """Return a client's data sets as arrays, with the keys of a client's .npz file; None if they are no such data sets.

    Args:
        data: A data set, or a mapping with data sets as train and, optionally, validation and test.
    """
    if isinstance(data, Mapping):
        if "train" not in data:
            return None
        found = {part: tensors_of(data[part]) for part in PARTS if data.get(part) is not None}
        rest = {key: value for key, value in data.items() if key not in PARTS}
    elif isinstance(data, Sequence):
        return None
    else:
        found, rest = {"train": tensors_of(data)}, {}
    arrays: dict[str, Any] = {}
    for part, tensors in found.items():
        if tensors is None or not len(tensors[0]):
            return None
        arrays[f"x_{part}"], arrays[f"y_{part}"] = tensors
    return {**arrays, **rest} if "x_train" in arrays else None
