"""The Gram matrix of ``n`` updates, and the quantities that follow from it without the rows.

With ``G = X Xᵀ`` of the updates ``X`` (n clients, d parameters), cosine similarities, Euclidean
distances, the norm of every client's update and the norm of any weighted mean are functions of the
``(n, n)`` matrix alone. ``G`` is a sum over parameters. So it is built block by block, the matrices
of layers add up to that of the model, and an orthonormal map of the rows does not change it. Only
Manhattan distances need the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import scipy
import torch

from coterie.clustering import _checks
from coterie.clustering.columns import Columns, blocks
from coterie.clustering.sketch import sketch_of_columns
from coterie.settings.calls import public

ZERO = 1e-12
"""A norm below this counts as zero: such an update is not similar to any other."""

TINY = ZERO**2
"""A squared norm below this is computed in float64: in float32, squares of numbers below 1e-19 lose
digits, and from 1e-23 on they are zero."""

DISTANCE_METRICS = ("l2", "cosine")
"""Distances that follow from inner products alone."""


@public
def gram(
    updates: np.ndarray | torch.Tensor,
    columns: Columns = None,
    sketch: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Compute the inner products of all pairs of updates.

    Products are computed in the precision of the input (half precisions: float32) within a block of
    columns, and added in float64. So apart from the result, there is only memory for one block, at
    most 0.6 GB. With ε the precision of the input (1e-7 in float32), the error of an entry is about
    ``ε ‖x_i‖ ‖x_j‖``.

    Squared distances ``G_ii + G_jj - 2 G_ij`` have a relative error of about 100 ε, down to rows
    that differ by 1e-5 of their norm. Rows that differ by less than an eighth of their norm have a
    common part, which would cancel in this difference and leave rounding errors. Their products are
    computed again without it, and what it adds to each entry is added in float64. Rows that are not
    close to any other row are not computed twice. Products of rows whose squares are too small or
    too large for float32 are computed in float64.

    Args:
        updates: Shape ``(n, d)``: an array (also ``np.memmap``, which is read from disk a block at
            a time) or a tensor on any device.
        columns: Which of the d parameters count: ``None`` for all, a slice, a pair ``(start,
            stop)``, a sequence of pairs or slices that do not overlap, or an integer index array (a
            NumPy array or a tensor, so that two numbers in a tuple or list are always a pair).
        sketch: If given, compute the products of sketches (:func:`~coterie.clustering.sketch`) of
            that many numbers instead of the rows. This is much faster if d is large.
            :func:`~coterie.clustering.sketch_error` bounds the error.
        seed: The seed of the sketches.

    Returns:
        Shape ``(n, n)``, float64, exactly symmetric.

    Raises:
        ValueError: A row is not finite (the message names it), or columns do not exist.

    Example:
        >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]))
        array([[25.,  8.],
               [ 8.,  4.]])
        >>> gram(np.array([[3.0, 4.0], [0.0, 2.0]]), columns=(0, 1))
        array([[9., 0.],
               [0., 0.]])
    """
    rows = _checks.rows(updates)
    if sketch is None:
        return gram_of_rows(rows, columns)
    return gram_of_rows(sketch_of_columns(rows, columns, sketch, seed))


def gram_of_rows(rows: torch.Tensor, columns: Columns = None) -> np.ndarray:
    """Compute :func:`gram` of checked rows."""
    products = self_products(rows, columns)
    # Rows whose squares float32 cannot hold: their products again, in float64.
    extreme = out_of_range(products, rows)
    if len(extreme):
        _put(products, extreme, cross_products(rows, extreme, columns, in_float64=True))
    # No product is greater than the greatest of the squares, so it is enough to check that these
    # are finite.
    if not np.isfinite(np.diagonal(products)).all():
        _checks.refuse_infinite_rows(rows)
    # Close rows: their products again, around their mean, so that differences do not cancel.
    close_groups = list(close_rows(products))
    if any(len(close_positions) == len(rows) for close_positions in close_groups):
        # The memory is free before a second matrix is made.
        del products
        everyone = np.arange(len(rows))
        return products_around_mean(rows, everyone, columns, in_float64=len(extreme) > 0)
    for close_positions in close_groups:
        in_float64 = bool(np.isin(close_positions, extreme).any())
        products[np.ix_(close_positions, close_positions)] = products_around_mean(
            rows, close_positions, columns, in_float64=in_float64
        )
    return products


def out_of_range(gram: np.ndarray, rows: torch.Tensor) -> np.ndarray:
    """Return the positions of rows whose squares are too small or too large for the precision of ``rows``.

    Args:
        gram: Their products, shape ``(n, n)``.
        rows: Shape ``(n, d)``.
    """
    if rows.dtype == torch.float64 or not rows.is_floating_point():
        return np.zeros(0, dtype=np.int64)
    squared_norms = np.diagonal(gram)
    suspects = np.flatnonzero(~np.isfinite(squared_norms) | (squared_norms < TINY))
    # The square of a row of zeros is zero, and exact.
    extreme = [position for position in suspects if bool((rows[position] != 0).any())]
    return np.array(extreme, dtype=np.int64)


def _put(gram: np.ndarray, positions: np.ndarray, products: np.ndarray) -> None:
    """Put products ``(m, n)`` of the rows at ``positions`` with all rows into the Gram matrix, exactly symmetric."""
    among_themselves = products[:, positions]
    products[:, positions] = (among_themselves + among_themselves.T) / 2
    gram[positions] = products
    gram[:, positions] = products.T


@public
def gram_update(
    gram: np.ndarray,
    updates: np.ndarray | torch.Tensor,
    changed: Iterable[int],
    columns: Columns = None,
) -> np.ndarray:
    """Update the Gram matrix after some rows changed: only their products are computed again.

    The work is that of m n products for m changed rows, instead of n²/2, apart from rows that are
    close to a changed one, see :func:`gram`.

    Args:
        gram: Shape ``(n, n)``, of the updates before the change.
        updates: The updates after it, shape ``(n, d)``.
        changed: Positions of the m rows that differ.
        columns: The columns from which ``gram`` was made.

    Returns:
        A new ``(n, n)`` float64 matrix, exactly symmetric, equal to ``gram(updates, columns)``
        except for rounding.

    Raises:
        ValueError: As in :func:`gram`, or the matrix and the updates have different numbers of
            rows.

    Example:
        >>> before = np.array([[25.0, 8.0], [8.0, 4.0]])  # (3, 4) and (0, 2)
        >>> gram_update(before, np.array([[3.0, 4.0], [1.0, 0.0]]), [1])
        array([[25.,  3.],
               [ 3.,  1.]])
    """
    rows = _checks.rows(updates)
    before = _checks.gram_matrix(gram)
    if len(before) != len(rows):
        raise ValueError(
            f"gram must be ({len(rows)}, {len(rows)}), for the {len(rows)} updates, got shape {before.shape}"
        )
    after = before.copy()
    changed_list = list(changed)
    if not changed_list:
        return after
    # The steps of `gram_of_rows`, for the rows that changed.
    positions = _checks.position_list(changed_list, len(rows), "changed")
    products = cross_products(rows, positions, columns)
    is_finite = bool(np.isfinite(products).all())
    _put(after, positions, products)
    extreme_positions = (
        np.intersect1d(out_of_range(after, rows), positions) if is_finite else positions
    )
    if len(extreme_positions):
        _put(
            after,
            extreme_positions,
            cross_products(rows, extreme_positions, columns, in_float64=True),
        )
    for close_positions in close_rows(after):
        if np.isin(positions, close_positions).any():
            in_float64 = bool(np.isin(close_positions, out_of_range(after, rows)).any())
            after[np.ix_(close_positions, close_positions)] = products_around_mean(
                rows, close_positions, columns, in_float64=in_float64
            )
    return after


@public
def norms(gram: np.ndarray) -> np.ndarray:
    """Compute the Euclidean norm of every update from the Gram matrix.

    Args:
        gram: Shape ``(n, n)``.

    Returns:
        Shape ``(n,)``.

    Raises:
        ValueError: ``gram`` is not a Gram matrix.

    Example:
        >>> norms(np.array([[25.0, 8.0], [8.0, 4.0]]))
        array([5., 2.])
    """
    return np.sqrt(np.maximum(np.diagonal(_checks.gram_matrix(gram)), 0.0))


@public
def cosine(gram: np.ndarray) -> np.ndarray:
    """Compute cosine similarities from the Gram matrix.

    Args:
        gram: Shape ``(n, n)``.

    Returns:
        Shape ``(n, n)``, within [-1, 1], with ones on the diagonal. An update of norm below 1e-12
        has similarity 0 to every other, and 1 to itself by definition.

    Raises:
        ValueError: ``gram`` is not a Gram matrix.

    Example:
        >>> cosine(np.array([[25.0, 8.0], [8.0, 4.0]]))
        array([[1. , 0.8],
               [0.8, 1. ]])
    """
    products = _checks.gram_matrix(gram)
    update_norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
    is_zero = update_norms < ZERO
    inverse_norms = np.where(is_zero, 0.0, 1.0 / np.where(is_zero, 1.0, update_norms))
    similarity = np.empty_like(products)
    for part in _checks.strips(len(products)):
        # The factors first: their product commutes, so the result is exactly symmetric.
        strip = np.multiply(inverse_norms[part, None], inverse_norms, out=similarity[part])
        strip *= products[part]
        np.clip(strip, -1.0, 1.0, out=strip)
    np.fill_diagonal(similarity, 1.0)
    return similarity


@public
def distances(gram: np.ndarray, metric: str = "l2") -> np.ndarray:
    """Compute distances from the Gram matrix.

    A squared distance is a difference of entries. :func:`gram` computes these so that the
    difference is exact to about 100 ε of itself, also for rows that are nearly equal. In a Gram
    matrix from elsewhere, distances below ``sqrt(ε) ‖x_i‖`` are noise, where ε is the precision of
    the products (1e-7 in float32: 3e-4 of the norm).

    Args:
        gram: Shape ``(n, n)``.
        metric: ``"l2"``: ``‖x_i - x_j‖ = sqrt(G_ii + G_jj - 2 G_ij)``. ``"cosine"``: ``1 - cos(x_i,
            x_j)``, with distance 1 between an update of norm below 1e-12 and every other.

    Returns:
        Shape ``(n, n)``, with a zero diagonal.

    Raises:
        ValueError: ``gram`` is not a Gram matrix, or the metric is another one.

    Example:
        >>> distances(np.array([[25.0, 8.0], [8.0, 4.0]]))  # (3, 4) and (0, 2): sqrt(9 + 4)
        array([[0.        , 3.60555128],
               [3.60555128, 0.        ]])
    """
    if metric in ("l1", "manhattan", "cityblock"):
        raise ValueError(
            "l1 distances do not follow from a Gram matrix; pass the rows: manhattan(updates)"
        )
    if _checks.one_of(metric, DISTANCE_METRICS, "metric") == "cosine":
        distance_matrix = cosine(gram)
        np.subtract(1.0, distance_matrix, out=distance_matrix)
    else:
        products = _checks.gram_matrix(gram)
        square = np.diagonal(products)
        distance_matrix = np.empty_like(products)
        for part in _checks.strips(len(distance_matrix)):
            strip = np.add(square[part, None], square, out=distance_matrix[part])
            strip -= 2 * products[part]
            np.sqrt(np.maximum(strip, 0.0, out=strip), out=strip)
    np.fill_diagonal(distance_matrix, 0.0)
    return distance_matrix


@public
def norm_of_mean(gram: np.ndarray, weights: np.ndarray | Sequence[float] | None = None) -> float:
    """Compute the norm of the weighted mean of the updates, ``sqrt(wᵀ G w)``.

    This is CFL's first criterion (arXiv 1910.01991, eq. 32). It is not the mean of the norms, which
    stays large if updates cancel.

    Args:
        gram: Shape ``(n, n)``.
        weights: Shape ``(n,)``, any numbers >= 0, for example training-set sizes; they are scaled
            to sum 1. Equal weights if ``None``.

    Returns:
        The norm.

    Raises:
        ValueError: ``gram`` is not a Gram matrix, or the weights are not n finite numbers >= 0, or
            all are zero.

    Example:
        >>> norm_of_mean(np.array([[1.0, -1.0], [-1.0, 1.0]]))
        0.0
    """
    products = _checks.gram_matrix(gram)
    n = len(products)
    shares = np.ones(n) if weights is None else _checks.one_per_client(weights, n, "weights")
    if not shares.sum() > 0:
        raise ValueError("weights must not all be zero")
    shares = shares / shares.sum()
    return float(np.sqrt(max(shares @ products @ shares, 0.0)))


@public
def manhattan(updates: np.ndarray | torch.Tensor, columns: Columns = None) -> np.ndarray:
    """Compute the L1 distances of updates, ``Σ_p |x_ip - x_jp|``.

    They are computed over blocks of columns in the precision of the input, and added in float64.

    Args:
        updates: Shape ``(n, d)``.
        columns: As in :func:`gram`.

    Returns:
        Shape ``(n, n)``, with a zero diagonal.

    Raises:
        ValueError: As in :func:`gram`.

    Example:
        >>> manhattan(np.array([[3.0, 4.0], [0.0, 2.0]]))
        array([[0., 5.],
               [5., 0.]])
    """
    rows = _checks.rows(updates)
    n = len(rows)
    condensed = np.zeros(n * (n - 1) // 2)
    # Blocks are small enough for the processor's cache.
    for block in blocks(rows, columns, width=4096):
        condensed += torch.pdist(block.contiguous(), p=1).cpu().numpy()
    if not np.isfinite(condensed).all():
        _checks.refuse_infinite_rows(rows)
    l1_distances = np.zeros((n, n))
    l1_distances[np.triu_indices(n, 1)] = condensed
    return l1_distances + l1_distances.T


# ----------------------------------------------------------------------------------------------------
# Inner products of many long rows, tile by tile: half of the work of a general product, and no
# second matrix of that size.


MAX_BLOCK_COLUMNS = 1 << 16
"""The maximum number of columns whose products are added in the precision of the rows; these sums
are added in float64."""

# Entries of a block of columns that is converted to float32 at a time: 256 MB.
_BLOCK_ENTRIES = 1 << 26
# Entries of a block of columns whose rows are copied: 32 MB.
_COPIED_ENTRIES = 1 << 23
# Rows of a tile of products, which has 16 MB in float32.
_TILE_ROWS = 2048
# With fewer rows torch's product is faster; with more NumPy's, which does half of the work.
_MIN_NUMPY_ROWS = 200


def self_products(rows: torch.Tensor, columns: Columns) -> np.ndarray:
    """Compute ``(n, n)`` float64 inner products of checked rows, not finite where they overflow."""
    n = len(rows)
    products = np.zeros((n, n))
    for block in blocks(rows, columns, width=_block_width(n)):
        for row_tile, column_tile in _upper_tiles(n):
            _add_products(products, block, row_tile, block, column_tile)
    _make_symmetric(products)
    return products


def products_around_mean(
    rows: torch.Tensor, positions: np.ndarray, columns: Columns, in_float64: bool = False
) -> np.ndarray:
    """Compute ``(m, m)`` float64 inner products of the rows at m positions, from their differences to their mean.

    With ``y_i = x_i - c``, ``x_i · x_j = y_i · y_j + y_i · c + y_j · c + c · c``. In a squared
    distance the terms of c cancel except for rounding in float64, whatever the rounding errors of
    ``y_i · c`` itself. With ``in_float64``, all is in float64.
    """
    m = len(positions)
    # Sums over the blocks of y_i · y_j, of y_i · c and of c · c.
    products = np.zeros((m, m))
    along_mean = np.zeros(m)
    mean_square = 0.0
    for block in blocks(rows, columns, width=_block_width(len(rows), _COPIED_ENTRIES)):
        differences = block[torch.from_numpy(positions).to(block.device)]
        differences = differences.double() if in_float64 else differences
        column_means = differences.mean(dim=0)
        differences -= column_means
        along_mean += (differences @ column_means).cpu().numpy()
        mean_square += float(column_means.double() @ column_means.double())
        for row_tile, column_tile in _upper_tiles(m):
            _add_products(products, differences, row_tile, differences, column_tile)
        # The memory is free before the next copy is made.
        del differences
    _make_symmetric(products)
    # x_i · x_j = y_i · y_j + y_i · c + y_j · c + c · c
    for row_range in _checks.strips(m):
        products[row_range] += along_mean[row_range, None] + along_mean + mean_square
    return products


CLOSE_SHARE = 1 / 8
"""Rows that differ by less than this share of their norm are close. The squared distance of others
is at least 1/64 of a product, so that it has 64 times its relative error."""


def close_rows(gram: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the positions, sorted, of rows that are connected by pairs of close rows; no row that is close to no other."""
    squared_norms = np.diagonal(gram)
    # Rows that are close to another one; every row is close to itself.
    unvisited = np.zeros(len(gram), dtype=bool)
    for row_range in _checks.strips(len(gram)):
        are_close = _are_close(gram[row_range], squared_norms[row_range, None], squared_norms)
        unvisited[row_range] = are_close.sum(axis=1) > 1
    # A search in breadth for each connected component.
    for start_row in np.flatnonzero(unvisited).tolist():
        if not unvisited[start_row]:
            continue
        unvisited[start_row] = False
        component = [start_row]
        # The list grows while it is walked through.
        for row in component:
            neighbours = np.flatnonzero(
                unvisited & _are_close(gram[row], squared_norms[row], squared_norms)
            )
            unvisited[neighbours] = False
            component += neighbours.tolist()
        yield np.array(sorted(component))


def _are_close(products: np.ndarray, square_i: np.ndarray, square_j: np.ndarray) -> np.ndarray:
    """Whether rows i and j are close; every row that is not zero is close to itself."""
    close_square = CLOSE_SHARE**2 * np.minimum(square_i, square_j)
    are_close: np.ndarray = square_i + square_j - 2 * products < close_square
    return are_close


def _make_symmetric(products: np.ndarray) -> None:
    """Copy the tiles above the diagonal to those below it; a product is symmetric only up to rounding."""
    for row_tile, column_tile in _upper_tiles(len(products)):
        if row_tile == column_tile:
            tile = np.triu(products[row_tile, row_tile])
            products[row_tile, row_tile] = tile + np.triu(tile, 1).T
        else:
            products[column_tile, row_tile] = products[row_tile, column_tile].T


def cross_products(
    rows: torch.Tensor, positions: np.ndarray, columns: Columns, in_float64: bool = False
) -> np.ndarray:
    """Compute ``(m, n)`` float64 inner products of the rows at m positions with all rows ``(n, d)``.

    With ``in_float64``, products are computed in float64, and must be finite.
    """
    n = len(rows)
    products = np.zeros((len(positions), n))
    for block in blocks(rows, columns, width=_block_width(n)):
        block = block.double() if in_float64 else block
        chosen_rows = block[positions]
        for row_tile in _tiles(len(positions)):
            for column_tile in _tiles(n):
                _add_products(products, chosen_rows, row_tile, block, column_tile)
    if in_float64 and not np.isfinite(products).all():
        _checks.refuse_infinite_rows(rows)
    return products


def _block_width(n: int, entries: int = _BLOCK_ENTRIES) -> int:
    """Columns of a block of n rows that has about this many entries."""
    return max(256, min(MAX_BLOCK_COLUMNS, entries // n))


def _tiles(n: int) -> list[slice]:
    """``range(n)`` in parts of equal length, none longer than a tile."""
    tile_length = -(-n // -(-n // _TILE_ROWS))
    return [slice(start, min(start + tile_length, n)) for start in range(0, n, tile_length)]


def _upper_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """The tiles (i, j) with i <= j: the others follow by symmetry."""
    tiles = _tiles(n)
    for number, row_tile in enumerate(tiles):
        for column_tile in tiles[number:]:
            yield row_tile, column_tile


def _add_products(
    products: np.ndarray,
    left_rows: torch.Tensor,
    row_tile: slice,
    right_rows: torch.Tensor,
    column_tile: slice,
) -> None:
    """Add the products of rows i of ``left`` and rows j of ``right`` to the tile (i, j) of ``total``."""
    rows_i = left_rows[row_tile]
    rows_j = right_rows[column_tile]
    # The callers report values that are not finite.
    with np.errstate(all="ignore"):
        if rows_i.device.type == "cpu" and max(len(rows_i), len(rows_j)) >= _MIN_NUMPY_ROWS:
            # For a matrix and its own transpose, NumPy computes one half.
            products[row_tile, column_tile] += rows_i.numpy() @ rows_j.numpy().T
        else:
            products[row_tile, column_tile] += (rows_i @ rows_j.T).cpu().numpy()


MIN_ITERATED_ROWS = 128
"""Rows from which the leading eigenvector is computed by iteration, in time proportional to the
entries of the matrix."""


def leading_vector(square: np.ndarray) -> np.ndarray:
    """Compute the eigenvector of the greatest eigenvalue of a symmetric matrix.

    Args:
        square: Shape ``(n, n)``.

    Returns:
        Shape ``(n,)``, of norm 1 and either sign. For n of at least :data:`MIN_ITERATED_ROWS` it is
        that of Lanczos' iteration (ARPACK), to eight digits.

    Example:
        >>> abs(leading_vector(np.array([[2.0, 0.0], [0.0, 1.0]])))
        array([1., 0.])
    """
    n = len(square)
    if n >= MIN_ITERATED_ROWS:
        # The same start in every run, and orthogonal to nothing in particular.
        start_vector = np.cos(np.arange(n) ** 2)
        try:
            _, vectors = scipy.sparse.linalg.eigsh(
                square, k=1, which="LA", v0=start_vector, tol=1e-8
            )
            return np.asarray(vectors[:, 0])
        except scipy.sparse.linalg.ArpackNoConvergence:
            pass
    _, vectors = np.linalg.eigh(square)
    return np.asarray(vectors[:, -1])


# ----------------------------------------------------------------------------------------------------
# Layers that distinguish clients (ACFL): a separate Gram matrix and separate cosine similarities
# for every layer.


ALL = "all"
"""The name of the matrix of all layers together."""


@public
def layer_grams(
    rows: np.ndarray | torch.Tensor, columns: Mapping[str, tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Compute the inner products of the clients' rows separately for each layer.

    Args:
        rows: Shape ``(n, d)``.
        columns: Layer -> ``(start, stop)``. They do not overlap, so the matrices of layers add up
            to the matrix of all layers.

    Returns:
        Layer -> inner products, shape ``(n, n)``.

    Raises:
        ValueError: Rows are not finite, or columns do not exist.

    Example:
        >>> layer_grams(np.array([[3.0, 4.0], [0.0, 2.0]]), {"conv": (0, 1), "fc": (1, 2)})["fc"]
        array([[16.,  8.],
               [ 8.,  4.]])
    """
    checked = _checks.rows(rows)
    if not isinstance(columns, Mapping):
        raise ValueError(
            f"columns must be layer -> (start, stop), such as {{'fc': (0, 10)}}, got {columns!r:.60}"
        )
    return {layer: gram_of_rows(checked, span) for layer, span in columns.items()}


@public
def layer_similarities(
    rows: np.ndarray | torch.Tensor, columns: Mapping[str, tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Compute the cosine similarities of the clients' rows for each layer, and for all layers together.

    These are the matrices of ACFL's figure 3: first layers are similar in all clients, the last
    ones distinguish tasks.

    Args:
        rows: Shape ``(n, d)``.
        columns: As in :func:`layer_grams`.

    Returns:
        Layer -> cosine similarities, shape ``(n, n)``; ``"all"`` -> those of all layers together.

    Raises:
        ValueError: As in :func:`layer_grams`.

    Example:
        >>> updates = np.array([[3.0, 4.0], [0.0, 2.0]])
        >>> similarity = layer_similarities(updates, {"conv": (0, 1), "fc": (1, 2)})
        >>> float(similarity["fc"][0, 1]), float(similarity["all"][0, 1])
        (1.0, 0.8)
    """
    return layer_cosines(layer_grams(rows, columns))


@public
def layer_cosines(grams: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute :func:`layer_similarities` from the matrices of :func:`layer_grams`; ``"all"`` is the cosine of their sum."""
    cosines = {layer: cosine(gram) for layer, gram in grams.items()}
    cosines[ALL] = cosine(np.sum([*grams.values()], axis=0))
    return cosines


# ----------------------------------------------------------------------------------------------------
# The closeness of one update to others, by which a newcomer finds its group (CFL, arXiv 1910.01991,
# Algorithm 4).


CLOSENESS_METRICS = ("cosine", "l2", "l1")


@public
def closeness(
    update: torch.Tensor | np.ndarray, stored: torch.Tensor | np.ndarray, metric: str = "cosine"
) -> torch.Tensor:
    """Compute how close an update is to each of several stored ones.

    Args:
        update: Shape ``(d,)``.
        stored: Shape ``(m, d)``.
        metric: ``"cosine"``: the cosine similarity, 0 if a norm is below 1e-12. ``"l2"``, ``"l1"``:
            minus the distance.

    Returns:
        Shape ``(m,)``, float64; greater is closer.

    Raises:
        ValueError: The metric is another one, the shapes do not fit, or a number is not finite.

    Example:
        >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
        [1.0, 0.0]
        >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]), "l1").tolist()
        [-1.0, -4.0]
    """
    update = torch.as_tensor(update)
    stored = torch.as_tensor(stored)
    if update.ndim != 1 or stored.ndim != 2 or stored.shape[1] != len(update):
        raise ValueError(
            f"closeness needs (d,) and (m, d), got shapes {tuple(update.shape)} and {tuple(stored.shape)}"
        )
    for argument, values in (("update", update[None]), ("stored", stored)):
        if not bool(torch.isfinite(values).all()):
            _checks.refuse_infinite_rows(values, argument)
    squares = torch.cat([stored, update[None]]).square().sum(dim=1)
    # Squares that are too large for the precision of the rows are computed in float64.
    if not bool(torch.isfinite(squares).all()):
        update = update.double()
        stored = stored.double()
    if metric == "cosine":
        return _cosine_closeness(update, stored)
    if metric not in CLOSENESS_METRICS:
        raise ValueError(f"metric must be one of {', '.join(CLOSENESS_METRICS)}, got {metric!r}")
    norm_order = 2 if metric == "l2" else 1
    distance = torch.stack([(row - update).norm(p=norm_order) for row in stored]).double()
    # Squares of very small numbers are zero in float32.
    for position in torch.nonzero(distance < ZERO).flatten().tolist():
        distance[position] = (stored[position].double() - update.double()).norm(p=norm_order)
    return -distance


def _cosine_closeness(update: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    update_norm = update.norm().double()
    stored_norms = stored.norm(dim=1).double()
    is_zero = (stored_norms < ZERO) | (update_norm < ZERO)
    inner_products = (stored @ update).double()
    similarity = inner_products / torch.where(is_zero, 1.0, stored_norms * update_norm)
    return torch.where(is_zero, 0.0, similarity).clamp(-1.0, 1.0)
