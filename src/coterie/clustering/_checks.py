"""Checks of the inputs of this package. Each error message is one sentence that suggests the likely mistake."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from coterie.settings import brief

FLOAT32_SLACK = 1e-6
"""The greatest effect of float32 rounding on a symmetry or a diagonal, relative to the entries."""

_CHECKED_TILE_ROWS = 256  # a tile of as many rows and columns stays in the processor's cache
_STRIP_ENTRIES = 1 << 17  # of a part of a matrix, for the same reason


def array(values: Any) -> np.ndarray:
    """Convert anything array-like, including a tensor on any device, to a NumPy array."""
    # In this order, because a list or an array must not cause an import of torch.
    if isinstance(values, (np.ndarray, Sequence)) or not isinstance(values, torch.Tensor):
        refuse_masked(values, "an array")
        return np.asarray(values)
    refuse_sparse(values, "a tensor")
    values = values.detach().cpu()
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    return values.numpy()


def refuse_masked(values: Any, name: str) -> None:
    """Raise ``ValueError`` for an array with masked entries: the numbers below a mask are no data."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.count_masked(values):
        raise ValueError(
            f"{name} has {np.ma.count_masked(values):,} masked entries: fill them in with .filled(VALUE)"
        )


def refuse_sparse(values: torch.Tensor, name: str) -> None:
    """Raise ``ValueError`` for a sparse tensor."""
    if values.layout is not torch.strided:
        raise ValueError(f"{name} is sparse: pass its .to_dense()")


def matrix(values: Any, name: str) -> np.ndarray:
    """Convert to a matrix ``(n, n)`` of float64, finite and exactly symmetric, n >= 1.

    Args:
        values: Anything array-like.
        name: The name of the matrix in error messages.

    Returns:
        The matrix, with small asymmetries from rounding removed.

    Raises:
        ValueError: It is not such a matrix.
    """
    refuse_masked(values, name)
    # In this order: an array needs no torch, whose import takes long.
    if not isinstance(values, np.ndarray) and isinstance(values, torch.Tensor):
        refuse_sparse(values, name)
    try:
        square = np.asarray(array(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a matrix (n, n) of numbers") from None
    if square.ndim != 2 or square.shape[0] != square.shape[1]:
        hints = {
            1: "; a condensed vector becomes one with scipy.spatial.distance.squareform",
            2: "; these look like updates (n, d): take gram(updates) first",
        }
        hint = hints.get(square.ndim, "")
        raise ValueError(f"{name} must be a matrix (n, n), got shape {square.shape}{hint}")
    if not square.size:
        raise ValueError(f"{name} has no rows: there are no clients")
    return _symmetric(square, name)


def strips(n: int) -> list[slice]:
    """Divide the n rows of a matrix ``(n, n)`` into parts that fit into the processor's cache."""
    step = max(1, _STRIP_ENTRIES // n)
    return [slice(start, start + step) for start in range(0, n, step)]


def _symmetric(square: np.ndarray, name: str) -> np.ndarray:
    """Refuse a matrix that is not finite or clearly not symmetric, and remove asymmetries that come from rounding."""
    starts = range(0, len(square), _CHECKED_TILE_ROWS)
    if all(_mirrored(square, i, j) for i in starts for j in starts if i <= j):
        return square
    for start in starts:
        strip = slice(start, start + _CHECKED_TILE_ROWS)
        _refuse_asymmetry(square[strip], square[:, strip].T, start, name)
    return (square + square.T) / 2


def _mirrored(square: np.ndarray, i: int, j: int) -> bool:
    """Whether a tile is finite and exactly the mirror image of its counterpart.

    Tiles are used because whole columns are slow to read.
    """
    rows = slice(i, i + _CHECKED_TILE_ROWS)
    columns = slice(j, j + _CHECKED_TILE_ROWS)
    tile = square[rows, columns]
    return np.array_equal(tile, square[columns, rows].T) and bool(np.isfinite(tile).all())


def _refuse_asymmetry(rows: np.ndarray, columns: np.ndarray, start: int, name: str) -> None:
    """Name an entry that is not finite, or that differs between the rows from ``start`` on and ``columns``."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{name}: row {start + int(np.flatnonzero(~finite)[0])} holds a value that is not finite"
        )
    gap = np.abs(rows - columns)
    if gap.max() > FLOAT32_SLACK * max(1.0, float(np.abs(rows).max())):
        i, j = np.unravel_index(int(gap.argmax()), gap.shape)
        raise ValueError(
            f"{name} is not symmetric: entry ({start + i}, {j}) is {rows[i, j]:g}, ({j}, {start + i}) is "
            f"{columns[i, j]:g}; rows and columns must be the same clients in the same order"
        )


def gram_matrix(values: Any) -> np.ndarray:
    """Check a Gram matrix ``(n, n)``; a matrix that cannot be one raises ``ValueError``."""
    square = matrix(values, "gram")
    diagonal = np.diagonal(square)
    if (diagonal < -FLOAT32_SLACK).any():
        bad = int(diagonal.argmin())
        raise ValueError(
            f"gram: entry ({bad}, {bad}) is {diagonal[bad]:g}, but a squared norm is >= 0"
        )
    if max(square.max(), -square.min()) > MAX_GRAM_ENTRY:
        raise ValueError(
            f"gram: an entry is beyond {MAX_GRAM_ENTRY:g}, so that sums would overflow; "
            "scale the updates"
        )
    if not diagonal.any() and square.any():
        raise ValueError(
            "gram has a zero diagonal, so it looks like a matrix of distances; pass gram(updates)"
        )
    return square


def similarity_matrix(values: Any) -> np.ndarray:
    """Check similarities ``(n, n)``, and refuse matrices that certainly hold distances or are Gram matrices.

    Most callers use only the order of similarities, so any other symmetric matrix passes.

    Args:
        values: Anything array-like.

    Returns:
        The matrix, ``(n, n)`` float64.

    Raises:
        ValueError: It is not a symmetric matrix, or certainly holds distances or inner products.
    """
    square = matrix(values, "similarity")
    diagonal = np.diagonal(square)
    if len(square) > 1 and not diagonal.any() and square.min() >= 0:
        raise ValueError(
            "similarity has a zero diagonal and no negative entry, so it looks like a matrix of distances; "
            "pass cosine(gram), with ones on the diagonal"
        )
    if (diagonal >= 0).all() and np.abs(diagonal - 1).max() > 1e-3 and _cauchy_schwarz(square):
        raise ValueError(
            "similarity looks like a Gram matrix (squared norms on the diagonal); pass cosine(gram)"
        )
    return square


def _cauchy_schwarz(square: np.ndarray) -> bool:
    """Whether every entry is at most the product of its two norms, as in a Gram matrix."""
    norm = np.sqrt(np.diagonal(square))
    return all(
        (np.abs(row) <= norm[i] * norm * (1 + FLOAT32_SLACK)).all() for i, row in enumerate(square)
    )


def distance_matrix(values: Any) -> np.ndarray:
    """Check distances ``(n, n)``: zero diagonal, nothing negative; similarities and Gram matrices raise ``ValueError``."""
    square = matrix(values, "distances")
    diagonal = np.diagonal(square)
    smallest = float(square.min())
    scale = max(1.0, float(square.max()), -smallest)
    if np.abs(diagonal).max() > FLOAT32_SLACK * scale:
        has_ones = np.abs(diagonal - 1).max() <= 1e-3
        guess = "a Gram matrix: pass distances(gram, metric)"
        if has_ones:
            guess = "a matrix of similarities: pass distances(gram, 'cosine') or 1 - similarity"
        raise ValueError(
            f"distances must have a zero diagonal, got {diagonal[0]:g} first; this looks like {guess}"
        )
    if smallest < 0:
        i, j = np.unravel_index(int(square.argmin()), square.shape)
        raise ValueError(
            f"distances must be >= 0, got {square[i, j]:g} at ({i}, {j}); is this a similarity?"
        )
    return square


def rows(updates: Any, name: str = "updates") -> torch.Tensor:
    """Convert updates ``(n, d)`` to a tensor on the same memory, if torch can use it."""
    if not isinstance(updates, torch.Tensor):
        refuse_masked(updates, name)
        values = np.asarray(updates)
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be numbers (n, d), got an array of {values.dtype}")
        # Memory that torch cannot use is copied.
        runs_backwards = any(stride < 0 for stride in values.strides)
        if not values.dtype.isnative or values.dtype.itemsize > 8 or runs_backwards:
            values = values.astype(np.float64)
        with warnings.catch_warnings():
            # About read-only memory, which this package never writes to.
            warnings.simplefilter("ignore", UserWarning)
            updates = torch.from_numpy(values)
    refuse_sparse(updates, name)
    updates = updates.detach()
    if updates.ndim != 2:
        raise ValueError(
            f"{name} must be (n, d), one row per client, got shape {tuple(updates.shape)}"
        )
    if updates.is_complex():
        raise ValueError(f"{name} must be real numbers")
    if not updates.shape[0]:
        raise ValueError(f"{name} has no rows: there are no clients")
    return updates


def refuse_infinite_rows(updates: torch.Tensor, name: str = "updates") -> None:
    """Raise ``ValueError`` with the row that is not finite, after a product or sum of ``updates`` was not finite."""
    for i, row in enumerate(updates):
        if not bool(torch.isfinite(row).all()):
            raise ValueError(f"{name}: row {i} holds a value that is not finite")
    raise ValueError(f"{name}: products or sums of such large entries overflow; scale them")


MAX_GRAM_ENTRY = 1e140
"""Products of two entries of a Gram matrix, summed over clients, stay finite up to this."""


def one_per_client(values: Any, n: int, name: str) -> np.ndarray:
    """Check one number per client, such as weights, sizes or trade-offs: ``(n,)`` float64, finite and >= 0."""
    try:
        numbers = np.asarray(array(values), dtype=np.float64)
    except TypeError:
        raise ValueError(f"{name} must hold one number per client, got {brief(values)}") from None
    if numbers.shape != (n,):
        raise ValueError(
            f"{name} must hold one number per client, shape ({n},), got shape {numbers.shape}"
        )
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"{name} must be finite and >= 0, got {numbers[bad]:g} for client {bad}")
    return numbers


def label_vector(labels: Any, n: int | None = None, name: str = "labels") -> np.ndarray:
    """Renumber labels by first member: ``(n,)`` integers 0 to g-1.

    Args:
        labels: One label per client; any labels that NumPy can sort.
        n: The number of clients, if it is known.
        name: The name of the labels in error messages.

    Returns:
        The new labels, ``(n,)`` int64.

    Raises:
        ValueError: They are not one finite label per client.
    """
    try:
        vector = array(labels)
    except ValueError:
        vector = np.empty((0, 0))  # ragged, so these are groups
    if vector.dtype == object or vector.ndim != 1:
        raise ValueError(
            f"{name} must be one label per client, shape (n,); for groups, pass labels_of(groups)"
        )
    if vector.dtype.kind == "f" and not np.isfinite(vector).all():
        unlabelled = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"{name}: client {unlabelled} has no finite label")
    if n is not None and len(vector) != n:
        raise ValueError(
            f"{name} must hold one label per client, {n} here, got {len(vector)}; "
            "positions of a group's members are not labels: use labels_of(groups)"
        )
    if not vector.size:
        raise ValueError(f"{name} is empty: there are no clients")
    _, first_members, inverse = np.unique(vector, return_index=True, return_inverse=True)
    new_label = np.empty(len(first_members), dtype=np.int64)
    new_label[np.argsort(first_members)] = np.arange(len(first_members))
    return new_label[inverse.reshape(-1)]


def position_list(group: Iterable[int], n: int, name: str = "group") -> np.ndarray:
    """Check positions 0 to n-1 and sort them. Repetitions are refused; they show that labels were passed instead."""
    if not isinstance(group, Sequence) and not hasattr(group, "__array__"):
        group = list(group)
    positions = array(group)
    if positions.ndim != 1 or not positions.size or positions.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of positions, integers 0 to {n - 1}")
    if len(np.unique(positions)) != len(positions):
        raise ValueError(
            f"{name} contains a position twice; labels are not positions: use groups_of(labels)"
        )
    if positions.min() < 0 or positions.max() >= n:
        wrong = int(positions.max() if positions.max() >= n else positions.min())
        raise ValueError(
            f"{name} must be positions 0 to {n - 1}, got {wrong}; client ids are not positions"
        )
    return np.sort(positions)


def number_of_groups(groups: Any, n: int) -> None:
    """Refuse anything but an integer 1 to n."""
    if (
        isinstance(groups, bool)
        or not isinstance(groups, (int, np.integer))
        or not 1 <= groups <= n
    ):
        hint = "; to cut at a distance, pass threshold" if isinstance(groups, float) else ""
        raise ValueError(
            f"groups must be an integer from 1 to {n}, the number of clients, got {groups!r}{hint}"
        )


def one_of(value: Any, valid: Sequence[str], name: str) -> str:
    """Return ``value`` if it is one of ``valid``; otherwise raise ``ValueError``."""
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")
    return str(value)
