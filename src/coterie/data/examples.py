"""Examples in memory: pools, and data sets that consist of a training and a test pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.data.arrays import ordinary
from coterie.data.batches import Items, as_tensor, mapped, size, tensors
from coterie.data.objective import IGNORED
from coterie.settings import UserError

MAX_CLASSES = 10_000_000
"""Labels of this size or greater count as ids: a last layer with so many outputs would fill the
memory."""

CONCEPT = "concept "
"""What the names of a pool's columns begin with that have the labels under one concept."""


@dataclass(frozen=True, eq=False)
class Pool:
    """``N`` examples, which are never changed.

    Attributes:
        inputs: Images ``(N, C, H, W)`` float32 in [0, 1], features ``(N, d)`` float32, or tokens
            ``(N, t)`` int64; of a user's own model also tuples or dicts of tensors, or
            :class:`~coterie.data.batches.Items`.
        targets: Class labels ``(N,)`` int64, next tokens ``(N, t)``, or any others; None if
            ``inputs`` are Items.
        meta: Name -> ``(N,)`` int64, such as the writer of each example.
    """

    inputs: Any
    targets: Any
    meta: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs) if isinstance(self.inputs, Items) else size(self.inputs)

    @property
    def labels(self) -> np.ndarray:
        """The labels ``(N,)`` that partitions use: classes, or the topics of text."""
        return (self.targets if self.targets.ndim == 1 else self.meta["topic"]).numpy()

    def first(self, count: int) -> Pool:
        """A copy of the first ``count`` examples, so that the memory of the others can be freed."""
        meta = {name: values[:count].clone() for name, values in self.meta.items()}
        return Pool(self.inputs[:count].clone(), self.targets[:count].clone(), meta)


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """A named data set: the upstream training and test pools.

    Attributes:
        name: Name of the data set.
        train: The training pool.
        test: The test pool, or None if upstream does not split the data.
        classes: Number of classes.
        words: For text, the word of each token.
    """

    name: str
    train: Pool
    test: Pool | None
    classes: int
    words: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch dimension."""
        return tuple(self.train.inputs.shape[1:])


def pool(
    inputs: Any, targets: Any, source: Path | str, classes: int | None = None, **meta: Any
) -> Pool:
    """Make a checked :class:`Pool` of arrays.

    Inputs of type uint8, and integers with three or more dimensions, are images of 0-255 and are
    scaled to [0, 1]. Other integers are tokens. ``(N, H, W)`` gets a channel dimension, and ``(N,
    H, W, C)`` becomes ``(N, C, H, W)``.

    Args:
        inputs: The inputs, one per example.
        targets: The labels ``(N,)``, or next tokens ``(N, t)``.
        source: The file, for messages.
        classes: Number of classes, if it is known.
        **meta: Name -> ``(N,)`` integers.

    Returns:
        The pool.

    Raises:
        UserError: There are no examples, inputs and labels differ in number, the inputs are not
            finite numbers, or the labels are not classes.
    """
    # Both become ordinary arrays; a column of targets, (N, 1), becomes a list of them.
    inputs = np.asanyarray(ordinary(inputs, f"{source}: x"))
    targets = np.asanyarray(ordinary(targets, f"{source}: y"))
    if targets.ndim == 2 and targets.shape[1] == 1 and inputs.ndim > 1:
        targets = targets[:, 0]
    # As many targets as inputs, and only numbers.
    if not inputs.ndim or not targets.ndim or not len(inputs):
        raise UserError(f"{source} holds no examples")
    if len(inputs) != len(targets):
        raise UserError(f"{source} is mislabelled: {len(inputs)} inputs but {len(targets)} labels")
    if inputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf" or _fractional(targets):
        raise UserError(f"{source} must hold numbers, and labels that are integers")
    # Labels of padding do not count.
    counted_targets = targets[targets != IGNORED] if targets.ndim > 1 else targets
    if not counted_targets.size:
        raise UserError(f"{source} holds no labels but {IGNORED}, which do not count")
    # Labels are classes from 0; very large ones are ids.
    lowest_label = _as_integer(counted_targets.min())
    highest_label = _as_integer(counted_targets.max())
    if highest_label >= MAX_CLASSES:
        raise UserError(
            f"{source} is mislabelled: labels must be class numbers from 0, found {highest_label}; are these ids?"
        )
    if lowest_label < 0 or (classes is not None and highest_label >= classes):
        allowed = ">= 0" if classes is None else f"0 to {classes - 1}"
        raise UserError(
            f"{source} is mislabelled: labels must be {allowed}, found {lowest_label} to {highest_label}"
        )
    meta_tensors = {name: _tensor(values, np.int64) for name, values in meta.items()}
    return Pool(_inputs(inputs, source), _tensor(targets, np.int64), meta_tensors)


def _as_integer(label: Any) -> int:
    """A label as an integer; a float is limited first, because Python cannot write huge ones in full."""
    return int(np.clip(label, -1e18, 1e18) if label.dtype.kind == "f" else label)


def _fractional(targets: np.ndarray) -> bool:
    return bool((~np.isfinite(targets) | (targets != np.floor(targets))).any())


def _tensor(array: np.ndarray, dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _inputs(input_array: np.ndarray, source: Path | str) -> torch.Tensor:
    """The inputs of a pool: images ``(N, C, H, W)``, features or tokens, see :func:`pool`."""
    # The channels of images come second: they are added, or moved there.
    given_array = input_array
    if input_array.ndim == 3:
        input_array = input_array[:, None]
    elif (
        input_array.ndim == 4
        and input_array.shape[3] in (1, 3)
        and input_array.shape[1] not in (1, 3)
    ):
        input_array = input_array.transpose(0, 3, 1, 2)
    if input_array.dtype.kind == "f":
        # A number that is too large becomes infinite, and is refused by the check.
        with np.errstate(over="ignore"):
            tensor = as_tensor(input_array)
        _check_finite(tensor, f"{source} holds inputs")
        if given_array.ndim <= 3:
            check_distinct(given_array, f"{source}: input")
        return tensor
    # Bytes and whole numbers of four dimensions are pixels; other whole numbers are tokens.
    is_image = input_array.dtype == np.uint8 or input_array.ndim == 4
    # Images in a memory-mapped file stay there as bytes, and are scaled in each batch.
    if is_image and not isinstance(input_array, np.memmap):
        return _tensor(input_array, np.float32).div_(255)
    return as_tensor(input_array)


CHECKED_AT_ONCE = 1024
"""Examples, or columns, whose numbers are checked at a time: to check a whole tensor needs as much
memory as the tensor."""


def _check_finite(tensor: torch.Tensor, what: str) -> None:
    """Raise :class:`UserError` if a number of ``what`` is not finite."""
    for start in range(0, len(tensor), CHECKED_AT_ONCE):
        if not bool(torch.isfinite(tensor[start : start + CHECKED_AT_ONCE]).all()):
            raise UserError(f"{what} that are not finite numbers in float32")


def check_distinct(values: Any, what: str, names: Sequence[Any] = ()) -> None:
    """Check that columns keep their differences in float32: those of a large offset, such as times in seconds, may not.

    Args:
        values: Numbers before they become float32, an array or tensor ``(N, f)`` or ``(N, t, f)``,
            finite.
        what: What a column is, for the message.
        names: The names of the columns; 0, 1, ... if none are given.

    Raises:
        UserError: The standard deviation of a column is less than a hundred steps of float32, and
            not zero.
    """
    value_array = (
        values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asanyarray(values)
    )
    exact_types = (np.float16, np.float32, np.bool_, np.int8, np.uint8, np.int16, np.uint16)
    if value_array.dtype in exact_types or value_array.ndim not in (2, 3) or not value_array.size:
        return
    # Block by block, which limits the memory.
    columns = value_array.reshape(-1, value_array.shape[-1])
    for first_column in range(0, columns.shape[1], CHECKED_AT_ONCE):
        column_block = columns[:, first_column : first_column + CHECKED_AT_ONCE]
        lowest, above_lowest = _above_lowest(column_block)
        # The spread of a column, against the distance between neighbouring numbers in float32.
        deviation = above_lowest.std(0)
        greatest = np.maximum(np.abs(lowest), np.abs(column_block.max(0).astype(np.float64)))
        # Computed constants, such as sums of shares, differ in their last digits. Such differences
        # are rounding errors and no information; whole numbers have none.
        are_whole = (column_block == np.floor(column_block)).all(0)
        rounding_error = np.where(are_whole, 0.0, 64 * np.spacing(greatest))
        # Callers refuse what is not finite in float32.
        with np.errstate(over="ignore", invalid="ignore"):
            float32_steps = np.spacing(greatest.astype(np.float32))
        is_lost = (above_lowest.max(0) > rounding_error) & (deviation < 100 * float32_steps)
        if is_lost.any():
            lost_column = int(np.flatnonzero(is_lost)[0])
            column_number = first_column + lost_column
            mean = lowest[lost_column] + float(above_lowest[:, lost_column].mean())
            raise UserError(
                f"{what} {names[column_number] if len(names) else column_number} has values near {mean:.6g} that "
                f"differ by {deviation[lost_column]:.2g} (standard deviation), too little for float32: "
                "subtract a constant, such as their mean"
            )


def _above_lowest(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lowest value of each column ``(f,)``, and how far each value is above it ``(N, f)``, float64.

    Differences of whole numbers of 64 bits are computed before they become floats, which would lose
    them.
    """
    lowest = block.min(0)
    if block.dtype.kind not in "iu":
        return lowest.astype(np.float64), (block - lowest).astype(np.float64)
    wide_type = np.uint64 if block.dtype.kind == "u" else np.int64
    # Modulo 2^64, so that a difference of 2^63 or more does not overflow.
    above_lowest = block.astype(wide_type).view(np.uint64) - lowest.astype(wide_type).view(
        np.uint64
    )
    return lowest.astype(np.float64), above_lowest.astype(np.float64)


def check_distinct_floats(values: Any, what: str) -> None:
    """Check floats, which become float32, by :func:`check_distinct`; whole numbers stay whole.

    Args:
        values: An array or tensor ``(N,)``, ``(N, f)`` or ``(N, t, f)``; others are not checked.
        what: What a column is, for the message.
    """
    if isinstance(values, torch.Tensor):
        value_array = values.detach().cpu()
        is_float = value_array.is_floating_point()
    else:
        value_array = np.asanyarray(values)
        is_float = value_array.dtype.kind == "f"
    if is_float and value_array.ndim:
        check_distinct(value_array[:, None] if value_array.ndim == 1 else value_array, what)


def own_pool(inputs: Any, targets: Any, source: str) -> Pool:
    """Make a :class:`Pool` of any inputs and targets that a user's own model and loss take.

    Args:
        inputs: An array or tensor, or a tuple or dict of them.
        targets: The same.
        source: The client, for messages.

    Returns:
        The pool.

    Raises:
        UserError: There are no examples, or inputs and targets differ in number.
    """
    input_batch = mapped(lambda array: as_tensor(array, f"{source}: x"), inputs)
    target_batch = mapped(lambda array: as_tensor(array, f"{source}: y"), targets)
    lengths = set()
    for tensor in tensors((input_batch, target_batch)):
        lengths.add(len(tensor) if tensor.dim() else 0)
    if lengths == {0}:
        raise UserError(f"{source} holds no examples")
    if len(lengths) > 1:
        hint = ""
        if isinstance(inputs, tuple):
            hint = "; a tuple has several inputs of one model: pass rows in a list"
        raise UserError(
            f"{source}: all inputs and targets must have the same number of examples, "
            f"got {' and '.join(map(str, sorted(lengths)))}{hint}"
        )
    for what, batch in (("inputs", input_batch), ("targets", target_batch)):
        for tensor in tensors(batch):
            if tensor.is_floating_point():
                _check_finite(tensor, f"{source} holds {what}")
    mapped(lambda array: check_distinct_floats(array, f"{source}: input"), inputs)
    mapped(lambda array: check_distinct_floats(array, f"{source}: target"), targets)
    return Pool(input_batch, target_batch)
