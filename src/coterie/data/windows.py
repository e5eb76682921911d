"""Overlapping windows of a series, recognised by the values that they share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from coterie.data.batches import tensors

COMPARED_PAIRS = 32
"""Successive examples that are compared."""

MIN_EXAMPLES = 8
"""Examples of which fewer are not examined."""

MIN_SHARED_PAIRS = 0.8
"""Share of these pairs that must share values: where a series has a break, one does not."""

MAX_WINDOW_VALUES = 10_000_000
"""Steps times values of an example above which it is not examined: it is an image, or a search
would take seconds."""


def overlap(inputs: Any, targets: Any, order: np.ndarray | None = None) -> int:
    """Return how many of the next examples share values with an example: 0 unless examples are overlapping windows.

    In windows that are s steps apart, all values of an example but its first s are the first values
    of the next one.

    Args:
        inputs: The inputs ``(N, ...)``, of which one dimension may be time, or a tuple or dict of
            such tensors.
        targets: The targets ``(N,)`` or ``(N, h)``; floats count as the h values that follow an
            input.
        order: Positions of the examples in order of time; None if they are in this order.

    Returns:
        The number of examples.
    """
    parts = [one for one in tensors(inputs) if isinstance(one, torch.Tensor)]
    order = np.arange(len(parts[0]) if parts else 0) if order is None else order
    if len(order) < MIN_EXAMPLES:
        return 0
    pairs = np.unique(np.linspace(0, len(order) - 2, COMPARED_PAIRS).astype(int))
    first, second = torch.from_numpy(order[pairs]), torch.from_numpy(order[pairs + 1])
    after_first, after_second = _values(targets, first), _values(targets, second)
    horizon = 0 if after_first is None else after_first.shape[1]
    found = 0
    for part in parts:
        for axis in range(1, part.ndim):
            steps = part.shape[axis]
            if steps < 2 or steps * part[0].numel() > MAX_WINDOW_VALUES:
                continue
            one, two = (_along(part[rows], axis) for rows in (first, second))
            compared = [
                (one, two),
                (one[:, ::-1], two[:, ::-1]),
            ]  # the newest value may be the first one
            if part.ndim == 2 and after_first is not None and after_second is not None:
                compared.append(
                    (np.concatenate([one, after_first], 1), np.concatenate([two, after_second], 1))
                )
            found = max(found, *(_shared(a, b, steps + horizon) for a, b in compared))
    return found


def _values(targets: Any, at: torch.Tensor) -> np.ndarray | None:
    """The targets of some examples ``(n, h, 1)`` if they are floats."""
    if not isinstance(targets, torch.Tensor) or not targets.is_floating_point() or targets.ndim > 2:
        return None
    chosen: np.ndarray = targets[at].reshape(len(at), -1, 1).numpy()
    return chosen


def _along(part: torch.Tensor, axis: int) -> np.ndarray:
    """Inputs ``(n, steps, values)``."""
    moved = part.movedim(axis, 1)
    return moved.reshape(*moved.shape[:2], -1).numpy()


def _shared(one: np.ndarray, two: np.ndarray, length: int) -> int:
    """The number of next examples that share values with an example, of windows of ``length`` steps with their targets."""
    steps = one.shape[1]
    others = np.roll(
        two, len(two) // 2, 0
    )  # not the next example: what these share too, such as zeros, is no overlap
    tried = slice(0, len(one), max(1, len(one) // 4))
    for shift in range(1, steps):
        if not _equal(one[tried], two[tried], shift).any():  # a few pairs exclude most shifts
            continue
        if (
            _equal(one, two, shift).mean() >= MIN_SHARED_PAIRS
            and _equal(one, others, shift).mean() <= 0.5
        ):
            return math.ceil(length / shift) - 1
    return 0


def _equal(one: np.ndarray, two: np.ndarray, shift: int) -> np.ndarray:
    """For each pair ``(n,)``, whether the values after the first ``shift`` of one are the first values of two."""
    same: np.ndarray = (one[:, shift:] == two[:, :-shift]).reshape(len(one), -1).all(1)
    return same
