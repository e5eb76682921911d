"""Checks of the inputs of this package. Each error message is one sentence that suggests the likely mistake."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from coterie.settings import brief

SLACK = 1e-6  # the greatest effect of float32 rounding on a symmetry or a diagonal
_TILE = 256  # rows and columns checked together, so that they stay in the processor's cache


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
    if not isinstance(values, np.ndarray) and isinstance(
        values, torch.Tensor
    ):  # an array needs no torch, which takes long
        refuse_sparse(values, name)
    try:
        square = np.asarray(array(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a matrix (n, n) of numbers") from None
    if square.ndim != 2 or square.shape[0] != square.shape[1]:
        hint = {1: "; a condensed vector becomes one with scipy.spatial.distance.squareform"}.get(
            square.ndim, ""
        )
        if square.ndim == 2:
            hint = "; these look like updates (n, d): take gram(updates) first"
        raise ValueError(f"{name} must be a matrix (n, n), got shape {square.shape}{hint}")
    if not square.size:
        raise ValueError(f"{name} has no rows: there are no clients")
    return _symmetric(square, name)


def strips(n: int) -> list[slice]:
    """Divide the n rows of a matrix ``(n, n)`` into parts that fit into the processor's cache."""
    step = max(1, (1 << 17) // n)
    return [slice(start, start + step) for start in range(0, n, step)]


def _symmetric(square: np.ndarray, name: str) -> np.ndarray:
    """Refuse a matrix that is not finite or clearly not symmetric, and remove asymmetries that come from rounding."""
    starts = range(0, len(square), _TILE)
    if all(_mirrored(square, i, j) for i in starts for j in starts if i <= j):
        return square
    for i in starts:
        _refuse_asymmetry(square[i : i + _TILE], square[:, i : i + _TILE].T, i, name)
    return (square + square.T) / 2


def _mirrored(square: np.ndarray, i: int, j: int) -> bool:
    """Whether a tile is finite and exactly the mirror image of its counterpart.

    Tiles are used because whole columns are slow to read.
    """
    tile = square[i : i + _TILE, j : j + _TILE]
    return np.array_equal(tile, square[j : j + _TILE, i : i + _TILE].T) and bool(
        np.isfinite(tile).all()
    )


def _refuse_asymmetry(rows: np.ndarray, columns: np.ndarray, start: int, name: str) -> None:
    """Name an entry that is not finite, or that differs between the rows from ``start`` on and ``columns``."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{name}: row {start + int(np.flatnonzero(~finite)[0])} holds a value that is not finite"
        )
    gap = np.abs(rows - columns)
    if gap.max() > SLACK * max(1.0, float(np.abs(rows).max())):
        i, j = np.unravel_index(int(gap.argmax()), gap.shape)
        raise ValueError(
            f"{name} is not symmetric: entry ({start + i}, {j}) is {rows[i, j]:g}, ({j}, {start + i}) is "
            f"{columns[i, j]:g}; rows and columns must be the same clients in the same order"
        )


def gram_matrix(values: Any) -> np.ndarray:
    """Check a Gram matrix ``(n, n)``; a matrix that cannot be one raises ``ValueError``."""
    square = matrix(values, "gram")
    diagonal = np.diagonal(square)
    if (diagonal < -SLACK).any():
        bad = int(diagonal.argmin())
        raise ValueError(
            f"gram: entry ({bad}, {bad}) is {diagonal[bad]:g}, but a squared norm is >= 0"
        )
    if max(square.max(), -square.min()) > GREATEST:
        raise ValueError(
            f"gram: an entry is beyond {GREATEST:g}, so that sums would overflow; scale the updates"
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
    return all((np.abs(row) <= norm[i] * norm * (1 + SLACK)).all() for i, row in enumerate(square))


def distance_matrix(values: Any) -> np.ndarray:
    """Check distances ``(n, n)``: zero diagonal, nothing negative; similarities and Gram matrices raise ``ValueError``."""
    square = matrix(values, "distances")
    diagonal = np.diagonal(square)
    least = float(square.min())
    scale = max(1.0, float(square.max()), -least)
    if np.abs(diagonal).max() > SLACK * scale:
        ones = np.abs(diagonal - 1).max() <= 1e-3
        guess = "a matrix of similarities: pass distances(gram, 'cosine') or 1 - similarity"
        if not ones:
            guess = "a Gram matrix: pass distances(gram, metric)"
        raise ValueError(
            f"distances must have a zero diagonal, got {diagonal[0]:g} first; this looks like {guess}"
        )
    if least < 0:
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
        if (
            not values.dtype.isnative
            or values.dtype.itemsize > 8
            or any(stride < 0 for stride in values.strides)
        ):
            values = values.astype(np.float64)  # torch cannot use other memory
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # about read-only memory, which this package never writes to
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


GREATEST = 1e140
"""The greatest entry of a Gram matrix: products of two entries, summed over clients, stay finite.
"""


def one_per_client(values: Any, n: int, name: str) -> np.ndarray:
    """Check one number per client, such as weights, sizes or trade-offs: ``(n,)`` float64, finite and >= 0."""
    try:
        given = np.asarray(array(values), dtype=np.float64)
    except TypeError:
        raise ValueError(f"{name} must hold one number per client, got {brief(values)}") from None
    if given.shape != (n,):
        raise ValueError(
            f"{name} must hold one number per client, shape ({n},), got shape {given.shape}"
        )
    wrong = ~(np.isfinite(given) & (given >= 0))
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"{name} must be finite and >= 0, got {given[bad]:g} for client {bad}")
    return given


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
        given = array(labels)
    except ValueError:
        given = np.empty((0, 0))  # ragged, so these are groups
    if given.dtype == object or given.ndim != 1:
        raise ValueError(
            f"{name} must be one label per client, shape (n,); for groups, pass labels_of(groups)"
        )
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise ValueError(
            f"{name}: client {int(np.flatnonzero(~np.isfinite(given))[0])} has no finite label"
        )
    if n is not None and len(given) != n:
        raise ValueError(
            f"{name} must hold one label per client, {n} here, got {len(given)}; "
            "positions of a group's members are not labels: use labels_of(groups)"
        )
    if not given.size:
        raise ValueError(f"{name} is empty: there are no clients")
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def position_list(group: Iterable[int], n: int, name: str = "group") -> np.ndarray:
    """Check positions 0 to n-1 and sort them. Repetitions are refused; they show that labels were passed instead."""
    given = array(
        group if isinstance(group, Sequence) or hasattr(group, "__array__") else list(group)
    )
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of positions, integers 0 to {n - 1}")
    if len(np.unique(given)) != len(given):
        raise ValueError(
            f"{name} contains a position twice; labels are not positions: use groups_of(labels)"
        )
    if given.min() < 0 or given.max() >= n:
        wrong = int(given.max() if given.max() >= n else given.min())
        raise ValueError(
            f"{name} must be positions 0 to {n - 1}, got {wrong}; client ids are not positions"
        )
    return np.sort(given)


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
