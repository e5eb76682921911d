"""What a server needs to know of ``n`` updates: their Gram matrix, and all that follows from it without the rows.

With ``G = X Xᵀ`` of the updates ``X`` (n clients, d parameters), cosine similarities, Euclidean distances, every
client's norm and the norm of any weighted mean are functions of the ``(n, n)`` matrix alone. ``G`` is a sum over
parameters, so it is built block by block, the matrices of layers add up to that of the model, and an orthonormal map of
the rows leaves it as it is. Only Manhattan distances need the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import _checks

ZERO = 1e-12
"""A norm below this counts as zero: such an update is similar to nobody."""

METRICS = ("l2", "cosine")

Columns = slice | Sequence[Any] | np.ndarray | Tensor | None


def gram(updates: np.ndarray | Tensor, columns: Columns = None) -> np.ndarray:
    """Inner products of all pairs of updates.

    updates: ``(n, d)``, an array or a tensor on any device. columns: which of the d parameters count: ``None`` for
    all, a slice, a pair ``(start, stop)``, a sequence of pairs or slices that do not overlap, or an integer index
    array (a NumPy array or a tensor, so that two numbers in a tuple or list are always a pair).

    Returns ``(n, n)`` float64, exactly symmetric. Products are taken in the input's precision (half precisions:
    float32) within a block of columns and added in float64, so extra memory is a block and two ``(n, n)`` matrices,
    whatever d. In float32 the relative error is about 1e-7 of ``‖x_i‖ ‖x_j‖``.

    Raises ``ValueError`` for rows that are not finite, which it names, and for columns that are not there.

    >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]))
    array([[25.,  8.],
           [ 8.,  4.]])
    >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]), columns=(0, 1))
    array([[9., 0.],
           [0., 0.]])
    """
    return gram_of_rows(_checks.rows(updates), columns)


def gram_of_rows(rows: Tensor, columns: Columns = None, centre: bool = False) -> np.ndarray:
    """:func:`gram` of checked rows; ``centre`` takes the mean row off first, block by block."""
    n = len(rows)
    total = np.zeros((n, n))
    for block in _blocks(rows, columns, width=max(256, min(1 << 16, (1 << 25) // n))):
        if centre:
            block = block - block.mean(dim=0)
        with np.errstate(all="ignore"):  # what is not finite is named below
            total += (block @ block.T).cpu().numpy()
    if not np.isfinite(total).all():
        _checks.refuse_infinite_rows(rows)
    return (total + total.T) / 2  # a general matrix product is symmetric only up to rounding


def _blocks(rows: Tensor, columns: Columns, width: int) -> Iterator[Tensor]:
    """The chosen columns of ``rows`` in blocks ``(n, <= width)``, of at least float32."""
    for part in _parts(columns, rows.shape[1]):
        size = part.stop - part.start if isinstance(part, slice) else len(part)
        for at in range(0, size, width):
            if isinstance(part, slice):
                block = rows[:, part.start + at : min(part.start + at + width, part.stop)]
            else:
                block = rows[:, torch.from_numpy(part[at : at + width]).to(rows.device)]
            wide = block.is_floating_point() and block.element_size() >= 4
            yield block if wide else block.to(torch.float32 if block.is_floating_point() else torch.float64)


def _parts(columns: Columns, d: int) -> list[slice | np.ndarray]:
    """``columns`` as slices with start and stop, or as one index array; nothing counted twice."""
    if columns is None:
        return [slice(0, d)]
    if isinstance(columns, (np.ndarray, Tensor)):
        return [_index(_checks.array(columns), d)]
    whole = (int, np.integer)
    if isinstance(columns, slice) or (len(columns) == 2 and all(isinstance(c, whole) for c in columns)):
        columns = [columns]
    parts = sorted((_range(c, d) for c in columns), key=lambda part: part.start)
    if not parts:
        raise ValueError("columns is empty: no parameter would count")
    for one, two in pairwise(parts):
        if two.start < one.stop:
            raise ValueError(f"columns overlap: {two.start} to {min(one.stop, two.stop)} would count twice")
    return list(parts)


def _range(part: Any, d: int) -> slice:
    if isinstance(part, slice):
        start, stop, step = part.indices(d)
        if step != 1:
            raise ValueError("columns: a slice must have step 1; pass an index array for others")
    else:
        try:
            start, stop = (int(c) for c in part)
        except (TypeError, ValueError):
            raise ValueError(
                f"columns must be a slice, a pair (start, stop), a sequence of those or an index array, got {part!r}; "
                "a list of single columns is passed as np.array([...])"
            ) from None
    if not 0 <= start < stop <= d:
        raise ValueError(f"columns {start} to {stop} is not a range of columns within 0 to {d}")
    return slice(start, stop)


def _index(index: np.ndarray, d: int) -> np.ndarray:
    if index.ndim != 1 or index.dtype.kind not in "iub" or (index.dtype.kind == "b" and len(index) != d):
        got = f"{index.dtype} of shape {index.shape}"
        raise ValueError(f"columns: an index array must be (m,) whole numbers or ({d},) booleans, got {got}")
    index = np.flatnonzero(index) if index.dtype.kind == "b" else index.astype(np.int64)
    if not index.size or index.min() < 0 or index.max() >= d:
        raise ValueError(f"columns: an index array must name columns 0 to {d - 1}")
    if len(np.unique(index)) != len(index):
        raise ValueError("columns: the index array names a column twice")
    return index


def norms(gram: np.ndarray) -> np.ndarray:
    """Euclidean norm of every update, ``(n,)``, from the Gram matrix ``(n, n)``.

    >>> norms(np.array([[25.0, 8.0], [8.0, 4.0]]))
    array([5., 2.])
    """
    return np.sqrt(np.maximum(np.diagonal(_checks.gram_matrix(gram)), 0.0))


def cosine(gram: np.ndarray) -> np.ndarray:
    """Cosine similarities ``(n, n)`` from the Gram matrix ``(n, n)``: within [-1, 1], ones on the diagonal.

    An update of norm below 1e-12 has similarity 0 to every other, and 1 to itself by definition.

    >>> cosine(np.array([[25.0, 8.0], [8.0, 4.0]]))
    array([[1. , 0.8],
           [0.8, 1. ]])
    """
    products = _checks.gram_matrix(gram)
    norm = np.sqrt(np.maximum(np.diagonal(products), 0.0))
    inverse = np.where(norm < ZERO, 0.0, 1.0 / np.where(norm < ZERO, 1.0, norm))
    out = products * inverse
    out *= inverse[:, None]
    np.clip(out, -1.0, 1.0, out=out)
    np.fill_diagonal(out, 1.0)
    return (out + out.T) / 2


def distances(gram: np.ndarray, metric: str = "l2") -> np.ndarray:
    """Distances ``(n, n)`` from the Gram matrix ``(n, n)``; zero diagonal.

    metric: ``"l2"``, ``‖x_i - x_j‖ = sqrt(G_ii + G_jj - 2 G_ij)``, or ``"cosine"``, ``1 - cos(x_i, x_j)``, where an
    update of norm below 1e-12 is at distance 1 from every other.

    The difference cancels for rows that nearly agree: distances below ``sqrt(ε) ‖x_i‖`` are noise, where ε is the
    precision of the products (1e-7 in float32: 3e-4 of the norm). Pass float64 updates, or take a common part off the
    rows first, where that matters; :func:`~coterie.clustering.agglomerative` does the latter.

    >>> distances(np.array([[25.0, 8.0], [8.0, 4.0]]))  # (3, 4) and (0, 2): sqrt(9 + 4)
    array([[0.        , 3.60555128],
           [3.60555128, 0.        ]])
    """
    if metric in ("l1", "manhattan", "cityblock"):
        raise ValueError("l1 distances do not follow from a Gram matrix; pass the rows: manhattan(updates)")
    if _checks.one_of(metric, METRICS, "metric") == "cosine":
        out = 1.0 - cosine(gram)
    else:
        products = _checks.gram_matrix(gram)
        square = np.diagonal(products)
        out = square[:, None] + square - 2 * products
        np.sqrt(np.maximum(out, 0.0, out=out), out=out)
    np.fill_diagonal(out, 0.0)
    return out


def norm_of_mean(gram: np.ndarray, weights: np.ndarray | Sequence[float] | None = None) -> float:
    """Norm of the weighted mean of the updates, ``sqrt(wᵀ G w)``: CFL's first criterion (arXiv 1910.01991, eq. 32).

    gram: ``(n, n)``. weights: ``(n,)``, any numbers >= 0, scaled to sum to one, so training-set sizes will do; equal
    where ``None``. Not the mean of the norms, which stays large where updates cancel.

    >>> norm_of_mean(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    0.0
    """
    products = _checks.gram_matrix(gram)
    n = len(products)
    w = np.ones(n) if weights is None else _checks.one_per_client(weights, n, "weights")
    if not w.sum() > 0:
        raise ValueError("weights must not all be zero")
    w = w / w.sum()
    return float(np.sqrt(max(w @ products @ w, 0.0)))


def manhattan(updates: np.ndarray | Tensor, columns: Columns = None) -> np.ndarray:
    """L1 distances ``(n, n)`` of updates ``(n, d)``, ``Σ_p |x_ip - x_jp|``; zero diagonal.

    columns: as in :func:`gram`. Taken over blocks of columns in the input's precision and added in float64.

    >>> manhattan(np.array([[3.0, 4.0], [0.0, 2.0]]))
    array([[0., 5.],
           [5., 0.]])
    """
    rows = _checks.rows(updates)
    n = len(rows)
    condensed = np.zeros(n * (n - 1) // 2)
    for block in _blocks(rows, columns, width=4096):  # small enough for the processor's cache
        condensed += torch.pdist(block.contiguous(), p=1).cpu().numpy()
    if not np.isfinite(condensed).all():
        _checks.refuse_infinite_rows(rows)
    out = np.zeros((n, n))
    out[np.triu_indices(n, 1)] = condensed
    return out + out.T
