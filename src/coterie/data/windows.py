"""Overlapping windows of a series, recognised by the values that they share.

``time_order`` uses them for :func:`coterie.from_lists` and the folder of .npz files: with an order, no
window is on both sides of a cut; without one, a hint says that tests know the future.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from coterie.data.batches import tensors

COMPARED_PAIRS = 32
"""Successive examples that are compared."""

MIN_EXAMPLES = 8
"""Least number of examples that are examined."""

MIN_SHARED_PAIRS = 0.8
"""Share of these pairs that must share values: where a series has a break, one does not."""

MAX_SHARED_BY_CHANCE = 0.5
"""Share of pairs of distant examples that may share values, too: more of them show zeros or
constants, and no overlap."""

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
    input_tensors = [tensor for tensor in tensors(inputs) if isinstance(tensor, torch.Tensor)]
    if order is None:
        order = np.arange(len(input_tensors[0]) if input_tensors else 0)
    if len(order) < MIN_EXAMPLES:
        return 0

    # Pairs of an example and the next one, at equal distances over all examples.
    pairs = np.unique(np.linspace(0, len(order) - 2, COMPARED_PAIRS).astype(int))
    first_rows = torch.from_numpy(order[pairs])
    next_rows = torch.from_numpy(order[pairs + 1])
    first_targets = _following_values(targets, first_rows)
    next_targets = _following_values(targets, next_rows)
    horizon = 0 if first_targets is None else first_targets.shape[1]

    # Any dimension of any input may be the time.
    shared_windows = 0
    for tensor in input_tensors:
        for axis in range(1, tensor.ndim):
            steps = tensor.shape[axis]
            if steps < 2 or steps * tensor[0].numel() > MAX_WINDOW_VALUES:
                continue
            first = _by_step(tensor[first_rows], axis)
            following = _by_step(tensor[next_rows], axis)
            # The newest value may be the last one or the first one; targets may continue a window.
            window_pairs = [(first, following), (first[:, ::-1], following[:, ::-1])]
            if tensor.ndim == 2 and first_targets is not None and next_targets is not None:
                longer_first = np.concatenate([first, first_targets], 1)
                longer_following = np.concatenate([following, next_targets], 1)
                window_pairs.append((longer_first, longer_following))
            for earlier_windows, later_windows in window_pairs:
                shared = _shared(earlier_windows, later_windows, steps + horizon)
                shared_windows = max(shared_windows, shared)
    return shared_windows


def _following_values(targets: Any, rows: torch.Tensor) -> np.ndarray | None:
    """The targets of some examples ``(n, h, 1)`` if they are floats."""
    if not isinstance(targets, torch.Tensor) or not targets.is_floating_point() or targets.ndim > 2:
        return None
    values: np.ndarray = targets[rows].reshape(len(rows), -1, 1).numpy()
    return values


def _by_step(inputs: torch.Tensor, axis: int) -> np.ndarray:
    """Inputs ``(n, steps, values)``, with the steps along a dimension."""
    moved = inputs.movedim(axis, 1)
    return moved.reshape(*moved.shape[:2], -1).numpy()


def _shared(windows: np.ndarray, next_windows: np.ndarray, length: int) -> int:
    """The number of next examples that share values with an example, of windows of ``length`` steps with their targets."""
    # Windows that do not follow each other: what these share too, such as zeros, is no overlap.
    distant_windows = np.roll(next_windows, len(next_windows) // 2, 0)
    # A few pairs exclude most shifts.
    few_pairs = slice(0, len(windows), max(1, len(windows) // 4))
    for shift in range(1, windows.shape[1]):
        if not _equal(windows[few_pairs], next_windows[few_pairs], shift).any():
            continue
        share_of_next = _equal(windows, next_windows, shift).mean()
        share_of_distant = _equal(windows, distant_windows, shift).mean()
        if share_of_next >= MIN_SHARED_PAIRS and share_of_distant <= MAX_SHARED_BY_CHANCE:
            return math.ceil(length / shift) - 1
    return 0


def _equal(windows: np.ndarray, next_windows: np.ndarray, shift: int) -> np.ndarray:
    """For each pair ``(n,)``, whether the values after the first ``shift`` of a window are the first ones of the next."""
    is_equal = windows[:, shift:] == next_windows[:, :-shift]
    is_equal_pair: np.ndarray = is_equal.reshape(len(windows), -1).all(1)
    return is_equal_pair
