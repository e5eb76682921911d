"""What a server needs to know of ``n`` updates: their Gram matrix, and all that follows from it without the rows.

With ``G = X Xᵀ`` of the updates ``X`` (n clients, d parameters), cosine similarities, Euclidean distances, every
client's norm and the norm of any weighted mean are functions of the ``(n, n)`` matrix alone. ``G`` is a sum over
parameters, so it is built block by block, the matrices of layers add up to that of the model, and an orthonormal map of
the rows leaves it as it is. Only Manhattan distances need the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import _checks
from coterie.clustering.columns import Columns, blocks
from coterie.clustering.sketch import sketch_of_columns

ZERO = 1e-12
"""A norm below this counts as zero: such an update is similar to nobody."""

METRICS = ("l2", "cosine")


def gram(updates: np.ndarray | Tensor, columns: Columns = None, sketch: int | None = None, seed: int = 0) -> np.ndarray:
    """Inner products of all pairs of updates.

    updates: ``(n, d)``, an array (``np.memmap`` too, which is read from disk a block at a time) or a tensor on any
    device. columns: which of the d parameters count: ``None`` for all, a slice, a pair ``(start, stop)``, a sequence of
    pairs or slices that do not overlap, or an integer index array (a NumPy array or a tensor, so that two numbers in a
    tuple or list are always a pair). sketch: take the products of sketches (:func:`~coterie.clustering.sketch`) of so many
    numbers, drawn by ``seed``, in place of the rows': much faster where d is large, and off by what
    :func:`~coterie.clustering.sketch_error` says.

    Returns ``(n, n)`` float64, exactly symmetric. Products are taken in the input's precision (half precisions:
    float32) within a block of columns and added in float64, so beside the result there is memory for a block alone, at
    most 0.6 GB. In float32 the relative error is about 1e-7 of ``‖x_i‖ ‖x_j‖``.

    Raises ``ValueError`` for rows that are not finite, which it names, and for columns that are not there.

    >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]))
    array([[25.,  8.],
           [ 8.,  4.]])
    >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]), columns=(0, 1))
    array([[9., 0.],
           [0., 0.]])
    """
    rows = _checks.rows(updates)
    if sketch is not None:
        rows, columns = sketch_of_columns(rows, columns, sketch, seed), None
    return gram_of_rows(rows, columns)


def gram_of_rows(rows: Tensor, columns: Columns = None, centre: bool = False) -> np.ndarray:
    """:func:`gram` of checked rows; ``centre`` takes the mean row off first, block by block."""
    return self_products(rows, columns, centre)


def gram_update(gram: np.ndarray, updates: np.ndarray | Tensor, changed: Iterable[int], columns: Columns = None) -> np.ndarray:
    """The Gram matrix after some rows changed: their products are taken anew, the others kept.

    gram: ``(n, n)`` of the updates before. updates: ``(n, d)`` as they are now. changed: positions of the rows that
    differ, m of them. columns: those that ``gram`` was made of. Returns a new ``(n, n)`` float64 matrix, exactly
    symmetric, that is ``gram(updates, columns)`` but for rounding, for the work of m n products in place of n²/2.

    Raises ``ValueError`` as :func:`gram` does, and for a matrix of other size than the updates'.

    >>> before = np.array([[25.0, 8.0], [8.0, 4.0]])  # (3, 4) and (0, 2)
    >>> gram_update(before, np.array([[3.0, 4.0], [1.0, 0.0]]), [1])
    array([[25.,  3.],
           [ 3.,  1.]])
    """
    rows, out = _checks.rows(updates), _checks.gram_matrix(gram)
    if len(out) != len(rows):
        raise ValueError(f"gram must be ({len(rows)}, {len(rows)}), of the {len(rows)} updates, got shape {out.shape}")
    out, positions = out.copy(), list(changed)
    if positions:
        at = _checks.position_list(positions, len(rows), "changed")
        products = cross_products(rows, at, columns)
        both = products[:, at]
        products[:, at] = (both + both.T) / 2
        out[at], out[:, at] = products, products.T
    return out


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
    out = np.empty_like(products)
    for part in _checks.strips(len(out)):
        strip = np.multiply(inverse[part, None], inverse, out=out[part])  # a product of two commutes: symmetric
        strip *= products[part]
        np.clip(strip, -1.0, 1.0, out=strip)
    np.fill_diagonal(out, 1.0)
    return out


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
        out = cosine(gram)
        np.subtract(1.0, out, out=out)
    else:
        products = _checks.gram_matrix(gram)
        square = np.diagonal(products)
        out = np.empty_like(products)
        for part in _checks.strips(len(out)):
            strip = np.add(square[part, None], square, out=out[part])
            strip -= 2 * products[part]
            np.sqrt(np.maximum(strip, 0.0, out=strip), out=strip)
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
    for block in blocks(rows, columns, width=4096):  # small enough for the processor's cache
        condensed += torch.pdist(block.contiguous(), p=1).cpu().numpy()
    if not np.isfinite(condensed).all():
        _checks.refuse_infinite_rows(rows)
    out = np.zeros((n, n))
    out[np.triu_indices(n, 1)] = condensed
    return out + out.T


# ----------------------------------------------------------------------------------------------------
# Inner products of many long rows, tile by tile: half of a general product's work, and no second matrix of its size.


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


# ----------------------------------------------------------------------------------------------------
# Which layers tell clients apart (ACFL): a Gram matrix and cosine similarities of every layer on its own.


ALL = "all"
"""The name of the matrix of all layers together."""


def layer_grams(rows: np.ndarray | Tensor, columns: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """layer -> ``(n, n)`` inner products of the clients' rows ``(n, d)`` in that layer's columns alone.

    columns: layer -> ``(start, stop)``, which do not overlap, so that the matrices of layers add up to that of them all.
    Raises ``ValueError`` for rows that are not finite and for columns that are not there.

    >>> layer_grams(np.array([[3.0, 4.0], [0.0, 2.0]]), {"conv": (0, 1), "fc": (1, 2)})["fc"]
    array([[16.,  8.],
           [ 8.,  4.]])
    """
    checked = _checks.rows(rows)
    return {layer: gram_of_rows(checked, span) for layer, span in columns.items()}


def layer_similarities(rows: np.ndarray | Tensor, columns: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """layer -> ``(n, n)`` cosine similarities of the clients' rows ``(n, d)`` in that layer, and ``"all"`` in all of them.

    The matrices of ACFL's figure 3: first layers are alike in all clients, the last ones tell tasks apart. Arguments and
    errors as in :func:`layer_grams`.

    >>> found = layer_similarities(np.array([[3.0, 4.0], [0.0, 2.0]]), {"conv": (0, 1), "fc": (1, 2)})
    >>> float(found["fc"][0, 1]), float(found["all"][0, 1])
    (1.0, 0.8)
    """
    return layer_cosines(layer_grams(rows, columns))


def layer_cosines(grams: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """:func:`layer_similarities` from the matrices of :func:`layer_grams`; ``"all"`` is the cosine of their sum."""
    return {**{layer: cosine(gram) for layer, gram in grams.items()}, ALL: cosine(np.sum([*grams.values()], axis=0))}


# ----------------------------------------------------------------------------------------------------
# How close one update is to others: what places a newcomer (CFL, arXiv 1910.01991, Algorithm 4).


CLOSENESS_METRICS = ("cosine", "l2", "l1")


def closeness(update: Tensor, stored: Tensor, metric: str = "cosine") -> Tensor:
    """How close ``update`` ``(d,)`` is to each of ``stored`` ``(m, d)``: ``(m,)`` float64, greater is closer.

    ``cosine``: the cosine similarity, 0 where a norm is below 1e-12. ``l2``, ``l1``: minus the distance. ValueError for
    another metric.

    >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
    [1.0, 0.0]
    >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]), "l1").tolist()
    [-1.0, -4.0]
    """
    if metric == "cosine":
        norms, own = stored.norm(dim=1).double(), update.norm().double()
        none = (norms < ZERO) | (own < ZERO)
        inner = (stored @ update).double()
        return torch.where(none, 0.0, inner / torch.where(none, 1.0, norms * own)).clamp(-1.0, 1.0)
    if metric not in CLOSENESS_METRICS:
        raise ValueError(f"metric must be one of {', '.join(CLOSENESS_METRICS)}, got {metric!r}")
    order = 2 if metric == "l2" else 1
    return -torch.stack([(row - update).norm(p=order) for row in stored]).double()
