"""Data sets of PyTorch that are tensors: they need not be read item by item.

:func:`coterie.from_lists` turns them into arrays, and leaves any other data set as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coterie.notebook.tables import some
from coterie.settings import UserError

PARTS = ("train", "validation", "test")
"""Keys of the data sets of a client."""


def tensors_of(dataset: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the (inputs, targets) of a data set that only holds them.

    Args:
        dataset: A ``TensorDataset`` of two tensors, or a ``Subset`` or ``ConcatDataset`` of such
            ones.

    Returns:
        The tensors, or None for any other data set: a class of the user's own may do more with an
        item.
    """
    # The types must be exactly these: a class of the user's own may change items.
    if type(dataset) is torch.utils.data.TensorDataset:
        return (dataset.tensors[0], dataset.tensors[1]) if len(dataset.tensors) == 2 else None
    if type(dataset) is torch.utils.data.Subset:
        inner_tensors = tensors_of(dataset.dataset)
        if inner_tensors is None:
            return None
        inputs, targets = inner_tensors
        positions = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        return inputs[positions], targets[positions]
    if type(dataset) is torch.utils.data.ConcatDataset:
        return _concatenated(dataset.datasets)
    return None


def _concatenated(datasets: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The tensors of several data sets, one after the other; None if one has none, or they differ in form."""
    all_inputs: list[torch.Tensor] = []
    all_targets: list[torch.Tensor] = []
    for dataset in datasets:
        inner_tensors = tensors_of(dataset)
        if inner_tensors is None:
            return None
        all_inputs.append(inner_tensors[0])
        all_targets.append(inner_tensors[1])
    # Tensors of several shapes or types cannot be one tensor.
    for same_part in (all_inputs, all_targets):
        if len({(tensor.shape[1:], tensor.dtype) for tensor in same_part}) > 1:
            return None
    return torch.cat(all_inputs), torch.cat(all_targets)


def arrays_of_pairs(data: Any, context: str) -> Any:
    """Return a client's data whose parts are pairs of arrays with the keys of a client's .npz file; other data as they are.

    Args:
        data: Anything that :func:`coterie.from_lists` takes as a client.
        context: The client, for messages.

    Raises:
        UserError: A part is a mapping or an array, or only some parts are pairs.
    """
    if not isinstance(data, Mapping) or "train" not in data:
        return data
    parts = {part: data[part] for part in PARTS if data.get(part) is not None}
    for part, content in parts.items():
        if isinstance(content, Mapping | np.ndarray | torch.Tensor):
            form = "an array"
            if isinstance(content, Mapping):
                form = f"a mapping with {some(list(content)) or 'nothing'}"
            keys = ", ".join(f"{kind}_{name}" for name in PARTS for kind in "xy")
            raise UserError(
                f"{context}: its {part} part must be a data set or a pair (inputs, targets), "
                f"got {form}; arrays may also be given by the keys {keys}"
            )
    pairs = {part: content for part, content in parts.items() if _is_pair_of_arrays(content)}
    if not pairs:
        return data
    if len(pairs) < len(parts):
        unpaired_part = next(part for part in parts if part not in pairs)
        raise UserError(
            f"{context}: its {next(iter(pairs))} part is a pair of arrays, and its {unpaired_part} part is none: "
            "give pairs for all parts, or data sets"
        )
    arrays: dict[str, Any] = {}
    for part, (inputs, targets) in pairs.items():
        arrays[f"x_{part}"] = inputs
        arrays[f"y_{part}"] = targets
    return arrays | {key: value for key, value in data.items() if key not in PARTS}


def _is_pair_of_arrays(content: Any) -> bool:
    """Whether a part is an array of inputs and one of targets; a list of two items (input, target) is a data set."""
    if not isinstance(content, tuple | list) or len(content) != 2:
        return False
    # The shape of a single number is empty.
    return all(getattr(array, "shape", ()) for array in content)


def as_arrays(data: Any) -> dict[str, Any] | None:
    """Return a client's data sets as arrays, with the keys of a client's .npz file; None if they are no such data sets.

    Args:
        data: A data set, or a mapping with data sets as train and, optionally, validation and test.
    """
    # A mapping with arrays in place of data sets, and any sequence, is no data set.
    if isinstance(data, Sequence) or (isinstance(data, Mapping) and "train" not in data):
        return None
    if not isinstance(data, Mapping):
        data = {"train": data}
    arrays: dict[str, Any] = {}
    for part in PARTS:
        if data.get(part) is None:
            continue
        tensors = tensors_of(data[part])
        # Data sets without items are refused elsewhere.
        if tensors is None or not len(tensors[0]):
            return None
        arrays[f"x_{part}"], arrays[f"y_{part}"] = tensors
    if "x_train" not in arrays:
        return None
    return arrays | {key: value for key, value in data.items() if key not in PARTS}
