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
    for column_range in parts(columns, rows.shape[1]):
        if isinstance(column_range, slice):
            for start in range(column_range.start, column_range.stop, width):
                yield widened(rows[:, start : min(start + width, column_range.stop)])
        else:
            # An index array: its columns are copied, a block at a time.
            for start in range(0, len(column_range), width):
                block_columns = torch.from_numpy(column_range[start : start + width]).to(
                    rows.device
                )
                yield widened(rows[:, block_columns])


def widened(block: torch.Tensor) -> torch.Tensor:
    """Convert to the precision for products and sums: float32 at least, and float64 for integers."""
    if block.is_floating_point() and block.element_size() >= 4:
        return block
    return block.to(torch.float32 if block.is_floating_point() else torch.float64)


def parts(columns: Columns, num_parameters: int) -> list[slice | np.ndarray]:
    """Convert ``columns`` to slices with start and stop, or to one index array.

    Args:
        columns: The columns, see :func:`geometry.gram`.
        num_parameters: The number of parameters.

    Returns:
        Sorted slices, or a list of one index array.

    Raises:
        ValueError: A column does not exist or would count twice, or no column is chosen.
    """
    if columns is None:
        return [slice(0, num_parameters)]
    if isinstance(columns, (np.ndarray, torch.Tensor)):
        return [_index(_checks.array(columns), num_parameters)]
    if not isinstance(columns, slice | Sequence):
        raise ValueError(
            f"columns must be a slice, a pair (start, stop), a sequence of those or an index array, got {columns!r:.60}"
        )
    # One range, or a sequence of them. They are sorted, so that neighbours show an overlap.
    if isinstance(columns, slice) or _is_pair(columns):
        columns = [columns]
    checked_ranges = [_range(column_range, num_parameters) for column_range in columns]
    sorted_ranges = sorted(checked_ranges, key=lambda column_range: column_range.start)
    if not sorted_ranges:
        raise ValueError("columns is empty: select at least one")
    for earlier_range, later_range in pairwise(sorted_ranges):
        if later_range.start < earlier_range.stop:
            stop = min(earlier_range.stop, later_range.stop)
            raise ValueError(f"columns overlap: {later_range.start} to {stop} would count twice")
    return list(sorted_ranges)


def _is_pair(columns: Sequence[Any]) -> bool:
    """Whether this is ``(start, stop)``."""
    return len(columns) == 2 and all(isinstance(end, (int, np.integer)) for end in columns)


def _range(column_range: Any, num_parameters: int) -> slice:
    """Convert a slice or a pair to a slice with start and stop."""
    if isinstance(column_range, slice):
        # Negative ends of a slice count from the last column.
        start, stop, step = column_range.indices(num_parameters)
        if step != 1:
            raise ValueError("columns: a slice must have step 1; pass an index array for others")
    else:
        try:
            start, stop = (int(end) for end in column_range)
        except (TypeError, ValueError):
            raise ValueError(
                f"columns must be a slice, a pair (start, stop), a sequence of those or an index array, got {column_range!r}; "
                "a list of single columns is passed as np.array([...])"
            ) from None
    if not 0 <= start < stop <= num_parameters:
        raise ValueError(
            f"columns {start} to {stop} is not a range of columns within 0 to {num_parameters}"
        )
    return slice(start, stop)


def _index(column_index: np.ndarray, num_parameters: int) -> np.ndarray:
    """Check an index array or a mask, and convert it to positions of columns."""
    is_mask = column_index.dtype.kind == "b"
    if (
        column_index.ndim != 1
        or column_index.dtype.kind not in "iub"
        or (is_mask and len(column_index) != num_parameters)
    ):
        raise ValueError(
            f"columns: an index array must be (m,) integers or ({num_parameters},) booleans, "
            f"got {column_index.dtype} of shape {column_index.shape}"
        )
    # A mask becomes the positions of its true entries.
    column_index = np.flatnonzero(column_index) if is_mask else column_index.astype(np.int64)
    if not column_index.size or column_index.min() < 0 or column_index.max() >= num_parameters:
        raise ValueError(f"columns: an index array must contain columns 0 to {num_parameters - 1}")
    if len(np.unique(column_index)) != len(column_index):
        raise ValueError("columns: the index array contains a column twice")
    return column_index
