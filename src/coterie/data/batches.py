"""Examples and batches of any form: tensors, tuples and dicts of tensors, and data sets that are read item by item.

A model receives a dict by keyword and a tuple by position, so a transformer gets its tokens and
masks as it names them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from coterie.data.arrays import ordinary
from coterie.settings import UserError

Batch: TypeAlias = Any
"""A tensor whose first dimension counts examples, or a tuple, list or dict of batches of the same
examples."""


def mapped(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Return the batch with ``function`` applied to each of its tensors.

    Example:
        >>> mapped(len, {"tokens": torch.zeros(3, 2), "more": (torch.zeros(3),)})
        {'tokens': 3, 'more': (3,)}
    """
    if isinstance(batch, Mapping):
        return {name: mapped(function, part) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(mapped(function, part) for part in batch)
    return function(batch)


def tensors(batch: Batch) -> list[Any]:
    """Return the tensors of a batch, in order."""
    if not isinstance(batch, Mapping | tuple | list):
        return [batch]
    tensors_of_parts = []
    for part in batch.values() if isinstance(batch, Mapping) else batch:
        tensors_of_parts += tensors(part)
    return tensors_of_parts


def size(batch: Batch) -> int:
    """Number of examples of a batch."""
    return len(tensors(batch)[0])


def rows(batch: Batch, positions: Any) -> Batch:
    """The examples of a batch at some positions, or in a slice."""
    return mapped(lambda tensor: tensor[positions], batch)


def joined(batches: Sequence[Batch]) -> Batch:
    """All examples of several batches of one form, in order."""
    # Join part by part; all batches have the form of the first.
    first_batch = batches[0]
    if isinstance(first_batch, Mapping):
        return {name: joined([batch[name] for batch in batches]) for name in first_batch}
    if isinstance(first_batch, tuple | list):
        return tuple(joined(parts) for parts in zip(*batches, strict=True))
    return torch.cat(list(batches))


def digests(parts: Sequence[torch.Tensor]) -> list[bytes]:
    """Hash examples.

    Args:
        parts: What each of n examples consists of, ``(n, ...)`` each, such as its inputs and its
            target.

    Returns:
        One hash for each example; examples with equal parts have the same.
    """
    # The bytes of each example are one row of each array.
    arrays = [part.contiguous().view(len(part), -1).numpy() for part in parts if part.numel()]
    example_count = len(parts[0]) if parts else 0
    hashes = []
    for example in range(example_count):
        example_bytes = b"".join(array[example].tobytes() for array in arrays)
        hashes.append(hashlib.blake2b(example_bytes, digest_size=16).digest())
    return hashes


def call(module: torch.nn.Module, inputs: Batch) -> Any:
    """Return a module's outputs: inputs in a dict are keyword arguments, and an output with ``logits`` stands for these."""
    if isinstance(inputs, Mapping):
        outputs = module(**inputs)
    elif isinstance(inputs, tuple | list):
        outputs = module(*inputs)
    else:
        outputs = module(inputs)
    return outputs.logits if hasattr(outputs, "logits") else outputs


LABELS = ("labels", "label", "targets", "target", "y")
"""Keys under which an item may have its target."""


class Items:
    """The examples of a data set in the style of PyTorch or Hugging Face, each of which is read when a batch needs it.

    Args:
        dataset: An object with ``len`` and items by number. An item is ``(input, target)``, or a
            dict in which one of :data:`LABELS` is the target.
        collate: Function from a list of items to ``(inputs, targets)``, or to a dict with the
            targets, both of tensors. None stacks the items, which must then have equal shapes.

    Raises:
        UserError: The data set has no length or no items.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UserError(
                f"a data set must have a length and items by number, and {type(dataset).__name__} has not"
            )
        if not len(dataset):
            raise UserError("a data set must have at least one item")
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, index: torch.Tensor) -> tuple[Batch, Batch]:
        """Read the examples at some positions.

        Args:
            index: The positions ``(b,)``.

        Returns:
            Their inputs and targets.

        Raises:
            UserError: An item or a batch has no target, or items of different shapes cannot be
                stacked.
        """
        # Only the items of this batch are in memory.
        items = [self.dataset[position] for position in index.tolist()]
        if self.collate is not None:
            return pair(self.collate(items))
        _check_keys(items)
        try:
            stacked_items = torch.utils.data.default_collate([_arrays(item) for item in items])
            inputs, targets = pair(stacked_items)
            return _numbers(inputs, "inputs"), _numbers(targets, "targets")
        except (RuntimeError, TypeError) as error:
            cause = f"the items of a data set cannot be stacked: {error}"
            raise UserError(
                f"{cause[:300]}; pass collate, a function from a list of items to "
                "(inputs, targets), which can pad them"
            ) from error


def _check_keys(items: Sequence[Any]) -> None:
    """Raise :class:`~coterie.settings.UserError` if items have other keys: ``default_collate`` takes those of the first."""
    # Items that are no mappings have no keys to compare.
    first_keys = set(items[0]) if isinstance(items[0], Mapping) else None
    for item in items:
        if first_keys is not None and isinstance(item, Mapping) and set(item) != first_keys:
            differing_keys = ", ".join(sorted(map(str, set(item) ^ first_keys)))
            raise UserError(
                f"the items of a data set must have the same keys, and only some of them have {differing_keys}"
            )


def _numbers(batch: Batch, part_name: str) -> Batch:
    """The batch; a column of text is refused."""
    if isinstance(batch, Mapping):
        return {name: _numbers(part, str(name)) for name, part in batch.items()}
    # ``default_collate`` leaves texts as a list.
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], str):
        hint = "remove the column, or pass collate, which can make numbers of it"
        raise UserError(
            f"the items of a data set have text in {part_name!r} ({batch[0]!r:.40}): {hint}"
        )
    return batch


def _arrays(item: Any) -> Any:
    """An item with its lists of numbers as tensors, which ``default_collate`` would transpose, and arrays that it can read."""
    if isinstance(item, Mapping):
        arrays = {}
        for name, part in item.items():
            arrays[name] = _arrays(torch.as_tensor(part) if isinstance(part, list) else part)
        return arrays
    if isinstance(item, tuple):
        parts = []
        for part in item:
            parts.append(_arrays(torch.as_tensor(part) if _is_numbers(part) else part))
        return tuple(parts)
    if isinstance(item, np.ndarray | torch.Tensor):
        # A tensor, or an array that NumPy and PyTorch can read.
        array = ordinary(item, "an item of a data set")
        # PyTorch would warn of an array that cannot be written.
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            array = array.copy()
        return array
    return item


def _is_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, at least one."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, int | float) for entry in value)


def pair(batch: Any) -> tuple[Batch, Batch]:
    """Return (inputs, targets) of a batch or item: a pair, or a dict in which one of :data:`LABELS` is the target.

    Raises:
        UserError: There is no target.
    """
    if isinstance(batch, Mapping):
        for target_key in LABELS:
            if target_key in batch:
                inputs = {name: part for name, part in batch.items() if name != target_key}
                return inputs, batch[target_key]
        item_keys = ", ".join(map(str, batch))
        raise UserError(
            f"an item of a data set must have its target under one of {', '.join(LABELS)}; it has {item_keys}"
        )
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    raise UserError(
        f"an item of a data set must be (input, target) or a dict with a target, got {type(batch).__name__}"
    )


def as_tensor(array: Any, source: str = "an array") -> torch.Tensor:
    """Return an array as a tensor that shares its memory if possible, also that of a memory-mapped file.

    Floats become float32, and integers and booleans int64, for which an array of another type is
    copied. Bytes in a memory-mapped file stay as they are: they are images, and become floats in
    [0, 1] in each batch.

    Args:
        array: A tensor, or anything that NumPy takes as an array of numbers.
        source: What it is, for messages.

    Returns:
        The tensor.

    Raises:
        UserError: It holds no numbers.
    """
    array = ordinary(array, source)
    # Tensors: float32 or int64.
    if isinstance(array, torch.Tensor):
        if array.is_complex():
            raise UserError(f"inputs and targets must be numbers, got a tensor of {array.dtype}")
        return array.to(torch.float32 if array.is_floating_point() else torch.int64)
    # Arrays: the same, and images in a memory-mapped file stay bytes.
    if array.dtype.kind not in "biuf":
        raise UserError(f"inputs and targets must be numbers, got an array of {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(
            f"inputs and targets must be whole numbers of at most 63 bits, got {array.max()}"
        )
    is_image_file = isinstance(array, np.memmap) and array.dtype == np.uint8
    if not is_image_file:
        array = np.asarray(array, np.float32 if array.dtype.kind == "f" else np.int64)
    with warnings.catch_warnings():
        # PyTorch warns of memory that cannot be written; examples never are.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def as_batch(arrays: Any, source: str) -> Batch:
    """Return tensors as they are, and arrays and lists of numbers as tensors; in tuples and dicts each part.

    Args:
        arrays: The tensors or arrays.
        source: What they are, for messages.

    Raises:
        UserError: A part holds no numbers.
    """
    # A message names the part, such as inputs['tokens'].
    if isinstance(arrays, Mapping):
        return {name: as_batch(part, f"{source}[{name!r}]") for name, part in arrays.items()}
    # A list of tensors is a batch of several inputs; any other list is an array of numbers.
    is_tensor_list = isinstance(arrays, list) and any(
        isinstance(part, torch.Tensor) for part in arrays
    )
    if isinstance(arrays, tuple) or is_tensor_list:
        return tuple(as_batch(part, f"{source}[{number}]") for number, part in enumerate(arrays))
    if isinstance(arrays, torch.Tensor):
        return ordinary(arrays, source)
    return as_tensor(arrays, source)
