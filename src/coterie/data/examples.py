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

MOST_CLASSES = 10_000_000
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
    inputs: Any, targets: Any, where: Path | str, classes: int | None = None, **meta: Any
) -> Pool:
    """Make a checked :class:`Pool` of arrays.

    Inputs of type uint8, and integers with three or more dimensions, are images of 0-255 and are
    scaled to [0, 1]. Other integers are tokens. ``(N, H, W)`` gets a channel dimension, and ``(N,
    H, W, C)`` becomes ``(N, C, H, W)``.

    Args:
        inputs: The inputs, one per example.
        targets: The labels ``(N,)``, or next tokens ``(N, t)``.
        where: The file, for messages.
        classes: Number of classes, if it is known.
        **meta: Name -> ``(N,)`` integers.

    Returns:
        The pool.

    Raises:
        UserError: There are no examples, inputs and labels differ in number, the inputs are not
            finite numbers, or the labels are not classes.
    """
    inputs, targets = (
        np.asanyarray(ordinary(inputs, f"{where}: x")),
        np.asanyarray(ordinary(targets, f"{where}: y")),
    )
    if targets.ndim == 2 and targets.shape[1] == 1 and inputs.ndim > 1:
        targets = targets[:, 0]
    if not inputs.ndim or not targets.ndim or not len(inputs):
        raise UserError(f"{where} holds no examples")
    if len(inputs) != len(targets):
        raise UserError(f"{where} is mislabelled: {len(inputs)} inputs but {len(targets)} labels")
    if inputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf" or _fractional(targets):
        raise UserError(f"{where} must hold numbers, and labels that are integers")
    counted = targets[targets != IGNORED] if targets.ndim > 1 else targets  # padding of sequences
    if not counted.size:
        raise UserError(f"{where} holds no labels but {IGNORED}, which do not count")
    ends = counted.min(), counted.max()  # Python cannot write some floats as integers
    low, high = (
        int(np.clip(end, -1e18, 1e18) if targets.dtype.kind == "f" else end) for end in ends
    )
    if high >= MOST_CLASSES:
        raise UserError(
            f"{where} is mislabelled: labels must be class numbers from 0, found {high}; are these ids?"
        )
    if low < 0 or (classes is not None and high >= classes):
        allowed = ">= 0" if classes is None else f"0 to {classes - 1}"
        raise UserError(f"{where} is mislabelled: labels must be {allowed}, found {low} to {high}")
    long = {name: _tensor(values, np.int64) for name, values in meta.items()}
    return Pool(_inputs(inputs, where), _tensor(targets, np.int64), long)


def _fractional(targets: np.ndarray) -> bool:
    return bool((~np.isfinite(targets) | (targets != np.floor(targets))).any())


def _tensor(array: np.ndarray, dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _inputs(array: np.ndarray, where: Path | str) -> torch.Tensor:
    given = array
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            made = as_tensor(array)
        _check_finite(made, f"{where} holds inputs")
        if given.ndim <= 3:
            check_distinct(given, f"{where}: input")
        return made
    if array.dtype == np.uint8 or array.ndim == 4:
        return (
            as_tensor(array)
            if isinstance(array, np.memmap)
            else _tensor(array, np.float32).div_(255)
        )
    return as_tensor(array)


AT_ONCE = 1024
"""Examples of which the numbers are tested at a time: the test of a tensor needs as much memory as
the tensor."""


def _check_finite(made: torch.Tensor, what: str) -> None:
    for start in range(0, len(made), AT_ONCE):
        if not bool(torch.isfinite(made[start : start + AT_ONCE]).all()):
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
    array = (
        values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asanyarray(values)
    )
    exact_types = (np.float16, np.float32, np.bool_, np.int8, np.uint8, np.int16, np.uint16)
    if array.dtype in exact_types or array.ndim not in (2, 3) or not array.size:
        return
    columns = array.reshape(-1, array.shape[-1])
    for start in range(0, columns.shape[1], AT_ONCE):
        block = columns[:, start : start + AT_ONCE]
        least, above = _above_least(block)
        greatest = np.maximum(np.abs(least), np.abs(block.max(0).astype(np.float64)))
        spread = above.std(0)
        # Computed constants, such as sums of shares, differ in their last digits; whole numbers do
        # not.
        rounding = np.where((block == np.floor(block)).all(0), 0.0, 64 * np.spacing(greatest))
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # callers refuse what is not finite in float32
            steps = np.spacing(greatest.astype(np.float32))
        wrong = np.flatnonzero((above.max(0) > rounding) & (spread < 100 * steps))
        if len(wrong):
            number, mean = start + int(wrong[0]), least[wrong[0]] + float(above[:, wrong[0]].mean())
            by = f"{spread[wrong[0]]:.2g} (standard deviation), too little for float32"
            column = names[number] if len(names) else number
            raise UserError(
                f"{what} {column} has values near {mean:.6g} that differ by {by}: subtract a constant, such as their mean"
            )


def _above_least(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least value of each column ``(f,)``, and how far each value is above it ``(N, f)``, float64.

    Differences of whole numbers of 64 bits are computed before they become floats, which would lose
    them.
    """
    least = block.min(0)
    if block.dtype.kind not in "iu":
        return least.astype(np.float64), (block - least).astype(np.float64)
    wide = np.uint64 if block.dtype.kind == "u" else np.int64
    # Modulo 2^64, so that a difference of 2^63 or more does not overflow.
    above = block.astype(wide).view(np.uint64) - least.astype(wide).view(np.uint64)
    return least.astype(np.float64), above.astype(np.float64)


def check_distinct_floats(values: Any, what: str) -> None:
    """Check floats, which become float32, by :func:`check_distinct`; whole numbers stay whole.

    Args:
        values: An array or tensor ``(N,)``, ``(N, f)`` or ``(N, t, f)``; others are not checked.
        what: What a column is, for the message.
    """
    array = values.detach().cpu() if isinstance(values, torch.Tensor) else np.asanyarray(values)
    floats = (
        array.is_floating_point() if isinstance(array, torch.Tensor) else array.dtype.kind == "f"
    )
    if floats and array.ndim:
        check_distinct(array[:, None] if array.ndim == 1 else array, what)


def own_pool(inputs: Any, targets: Any, where: str) -> Pool:
    """Make a :class:`Pool` of any inputs and targets that a user's own model and loss take.

    Args:
        inputs: An array or tensor, or a tuple or dict of them.
        targets: The same.
        where: The client, for messages.

    Returns:
        The pool.

    Raises:
        UserError: There are no examples, or inputs and targets differ in number.
    """
    x = mapped(lambda part: as_tensor(part, f"{where}: x"), inputs)
    y = mapped(lambda part: as_tensor(part, f"{where}: y"), targets)
    lengths = {len(one) if one.dim() else 0 for one in tensors((x, y))}
    if lengths == {0}:
        raise UserError(f"{where} holds no examples")
    if len(lengths) > 1:
        found = " and ".join(map(str, sorted(lengths)))
        hint = (
            "; a tuple has several inputs of one model: pass rows in a list"
            if isinstance(inputs, tuple)
            else ""
        )
        raise UserError(
            f"{where}: all inputs and targets must have the same number of examples, got {found}{hint}"
        )
    for what, part in (("inputs", x), ("targets", y)):
        for one in tensors(part):
            if one.is_floating_point():
                _check_finite(one, f"{where} holds {what}")
    mapped(lambda one: check_distinct_floats(one, f"{where}: input"), inputs)
    mapped(lambda one: check_distinct_floats(one, f"{where}: target"), targets)
    return Pool(x, y)
