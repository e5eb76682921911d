"""Columns of updates: a choice of the d parameters, and their values in blocks that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Union

import numpy as np
import torch

from coterie.clustering import _checks

Columns = Union[slice, Sequence[Any], np.ndarray, "torch.Tensor", None]
"""``None`` for all, a slice, a pair, a sequence of pairs or slices, or an index array; see
:func:`geometry.gram`."""


def blocks(rows: torch.Tensor, columns: Columns, width: int) -> Iterator[torch.Tensor]:
    """Yield the chosen columns of ``rows`` in blocks ``(n, <= width)``, in float32 or a wider precision."""
    for part in parts(columns, rows.shape[1]):
        if isinstance(part, slice):
            for start in range(part.start, part.stop, width):
                yield widened(rows[:, start : min(start + width, part.stop)])
        else:
            for start in range(0, len(part), width):
                index = torch.from_numpy(part[start : start + width]).to(rows.device)
                yield widened(rows[:, index])


def widened(block: torch.Tensor) -> torch.Tensor:
    """Convert to the precision for products and sums: float32 at least, and float64 for integers."""
    if block.is_floating_point() and block.element_size() >= 4:
        return block
    return block.to(torch.float32 if block.is_floating_point() else torch.float64)


def parts(columns: Columns, d: int) -> list[slice | np.ndarray]:
    """Convert ``columns`` to slices with start and stop, or to one index array.

    Args:
        columns: The columns, see :func:`geometry.gram`.
        d: The number of parameters.

    Returns:
        Sorted slices, or a list of one index array.

    Raises:
        ValueError: A column does not exist or would count twice, or no column is chosen.
    """
    if columns is None:
        return [slice(0, d)]
    if isinstance(columns, (np.ndarray, torch.Tensor)):
        return [_index(_checks.array(columns), d)]
    if not isinstance(columns, slice | Sequence):
        raise ValueError(
            f"columns must be a slice, a pair (start, stop), a sequence of those or an index array, got {columns!r:.60}"
        )
    if isinstance(columns, slice) or _is_pair(columns):
        columns = [columns]
    ranges = sorted((_range(part, d) for part in columns), key=lambda part: part.start)
    if not ranges:
        raise ValueError("columns is empty: select at least one")
    for earlier, later in pairwise(ranges):
        if later.start < earlier.stop:
            stop = min(earlier.stop, later.stop)
            raise ValueError(f"columns overlap: {later.start} to {stop} would count twice")
    return list(ranges)


def _is_pair(columns: Sequence[Any]) -> bool:
    """Whether this is ``(start, stop)``."""
    return len(columns) == 2 and all(isinstance(end, (int, np.integer)) for end in columns)


def _range(part: Any, d: int) -> slice:
    if isinstance(part, slice):
        start, stop, step = part.indices(d)
        if step != 1:
            raise ValueError("columns: a slice must have step 1; pass an index array for others")
    else:
        try:
            start, stop = (int(end) for end in part)
        except (TypeError, ValueError):
            raise ValueError(
                f"columns must be a slice, a pair (start, stop), a sequence of those or an index array, got {part!r}; "
                "a list of single columns is passed as np.array([...])"
            ) from None
    if not 0 <= start < stop <= d:
        raise ValueError(f"columns {start} to {stop} is not a range of columns within 0 to {d}")
    return slice(start, stop)


def _index(index: np.ndarray, d: int) -> np.ndarray:
    is_mask = index.dtype.kind == "b"
    if index.ndim != 1 or index.dtype.kind not in "iub" or (is_mask and len(index) != d):
        raise ValueError(
            f"columns: an index array must be (m,) integers or ({d},) booleans, "
            f"got {index.dtype} of shape {index.shape}"
        )
    index = np.flatnonzero(index) if is_mask else index.astype(np.int64)
    if not index.size or index.min() < 0 or index.max() >= d:
        raise ValueError(f"columns: an index array must contain columns 0 to {d - 1}")
    if len(np.unique(index)) != len(index):
        raise ValueError("columns: the index array contains a column twice")
    return index
