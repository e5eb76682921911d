"""Examples in memory: pools, and data sets that consist of a training and a test pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.settings import UserError

MOST_CLASSES = 10_000_000
"""Labels of this size or greater count as ids: a last layer with so many outputs would fill the memory."""


@dataclass(frozen=True, eq=False)
class Pool:
    """``N`` examples, which are never changed.

    Attributes:
        inputs: Images ``(N, C, H, W)`` float32 in [0, 1], features ``(N, d)`` float32, or tokens ``(N, t)`` int64.
        targets: Class labels ``(N,)`` int64, or next tokens ``(N, t)``.
        meta: Name -> ``(N,)`` int64, such as the writer of each example.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    meta: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

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


def pool(inputs: Any, targets: Any, where: Path | str, classes: int | None = None, **meta: Any) -> Pool:
    """Make a checked :class:`Pool` of arrays.

    Inputs of type uint8, and integers with three or more dimensions, are images of 0-255 and are scaled to [0, 1].
    Other integers are tokens. ``(N, H, W)`` gets a channel dimension, and ``(N, H, W, C)`` becomes ``(N, C, H, W)``.

    Args:
        inputs: The inputs, one per example.
        targets: The labels ``(N,)``, or next tokens ``(N, t)``.
        where: The file, for messages.
        classes: Number of classes, if it is known.
        **meta: Name -> ``(N,)`` integers.

    Returns:
        The pool.

    Raises:
        UserError: There are no examples, inputs and labels differ in number, the inputs are not finite numbers, or the
            labels are not classes.
    """
    inputs, targets = np.asarray(inputs), np.asarray(targets)
    if targets.ndim == 2 and targets.shape[1] == 1 and inputs.ndim > 1:
        targets = targets[:, 0]
    if not inputs.ndim or not targets.ndim or not len(inputs):
        raise UserError(f"{where} holds no examples")
    if len(inputs) != len(targets):
        raise UserError(f"{where} is mislabelled: {len(inputs)} inputs but {len(targets)} labels")
    if inputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf" or _fractional(targets):
        raise UserError(f"{where} must hold numbers, and labels that are integers")
    ends = targets.min(), targets.max()  # Python cannot write some floats as integers
    low, high = (int(np.clip(end, -1e18, 1e18) if targets.dtype.kind == "f" else end) for end in ends)
    if high >= MOST_CLASSES:
        raise UserError(f"{where} is mislabelled: labels must be class numbers from 0, found {high}; are these ids?")
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
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            made = _tensor(array, np.float32)
        if not bool(torch.isfinite(made).all()):
            raise UserError(f"{where} holds inputs that are not finite numbers in float32")
        return made
    if array.dtype == np.uint8 or array.ndim == 4:
        return _tensor(array, np.float32).div_(255)
    return _tensor(array, np.int64)
