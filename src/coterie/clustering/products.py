"""Inner products of many long rows, tile by tile: half of a general product's work, and no second matrix of its size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from coterie.clustering import _checks
from coterie.clustering.columns import Columns, blocks

WIDTH = 1 << 16
"""Columns whose products are added in the rows' own precision, at most, before float64 takes over."""

_ENTRIES = 1 << 26  # of a block of columns: what is converted to float32 at a time, 256 MB of it
_TILE = 2048  # rows: a tile of products is 16 MB in float32
_FEW = 200  # rows: below, torch's product is the faster one; from there on, NumPy's is, and it does half of the work


def self_products(rows: Tensor, columns: Columns, centre: bool) -> np.ndarray:
    """``(n, n)`` float64 inner products of checked rows ``(n, d)``; ``centre`` takes the mean row off, block by block."""
    n = len(rows)
    total = np.zeros((n, n))
    for block in blocks(rows, columns, width=_width(n)):
        if centre:
            block = block - block.mean(dim=0)
        for i, j in _upper(n):
            _add(total, block, i, block, j)
    for i, j in _upper(n):
        if i == j:  # a product is symmetric only up to rounding
            tile = np.triu(total[i, i])
            total[i, i] = tile + np.triu(tile, 1).T
        else:
            total[j, i] = total[i, j].T
    # No product is greater than the greatest of the squares, so these tell whether all are finite.
    if not np.isfinite(np.diagonal(total)).all():
        _checks.refuse_infinite_rows(rows)
    return total


def cross_products(rows: Tensor, some: np.ndarray, columns: Columns) -> np.ndarray:
    """``(m, n)`` float64 inner products of the rows at the m positions ``some`` with all rows ``(n, d)``."""
    n = len(rows)
    total = np.zeros((len(some), n))
    for block in blocks(rows, columns, width=_width(n)):
        chosen = block[some]
        for i in _tiles(len(some)):
            for j in _tiles(n):
                _add(total, chosen, i, block, j)
    if not np.isfinite(total).all():
        _checks.refuse_infinite_rows(rows)
    return total


def _width(n: int) -> int:
    return max(256, min(WIDTH, _ENTRIES // n))


def _tiles(n: int) -> list[slice]:
    """``range(n)`` in parts of equal length, none longer than a tile."""
    step = -(-n // -(-n // _TILE))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _upper(n: int) -> Iterator[tuple[slice, slice]]:
    tiles = _tiles(n)
    return ((i, j) for at, i in enumerate(tiles) for j in tiles[at:])


def _add(total: np.ndarray, left: Tensor, i: slice, right: Tensor, j: slice) -> None:
    """Add the products of rows i of ``left`` and rows j of ``right`` to the tile (i, j) of ``total``."""
    one, two = left[i], right[j]
    with np.errstate(all="ignore"):  # what is not finite is named by the callers
        if one.device.type == "cpu" and max(len(one), len(two)) >= _FEW:
            total[i, j] += one.numpy() @ two.numpy().T  # of a matrix and its own transpose, NumPy computes one half
        else:
            total[i, j] += (one @ two.T).cpu().numpy()
