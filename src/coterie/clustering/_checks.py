"""What the functions of this package ask of their inputs, each refusal one sentence that guesses the likely slip."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

SLACK = 1e-6  # what rounding in float32 may do to a symmetry or to a diagonal
_TILE = 256  # rows and columns looked at together, so that they stay in the processor's cache


def array(values: Any) -> np.ndarray:
    """Anything array-like, a tensor on any device included, as a NumPy array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        if values.dtype in (torch.bfloat16, torch.float16):
            values = values.float()
        return values.numpy()
    return np.asarray(values)


def matrix(values: Any, name: str) -> np.ndarray:
    """``(n, n)`` float64, finite and exactly symmetric, n >= 1."""
    try:
        square = np.asarray(array(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a matrix (n, n) of numbers") from None
    if square.ndim != 2 or square.shape[0] != square.shape[1]:
        hint = {1: "; a condensed vector becomes one with scipy.spatial.distance.squareform"}.get(square.ndim, "")
        if square.ndim == 2:
            hint = "; these look like updates (n, d): take gram(updates) first"
        raise ValueError(f"{name} must be a matrix (n, n), got shape {square.shape}{hint}")
    if not square.size:
        raise ValueError(f"{name} has no rows: there are no clients")
    return _symmetric(square, name)


def strips(n: int) -> list[slice]:
    """The n rows of a matrix ``(n, n)`` in parts that fit into the processor's cache."""
    step = max(1, (1 << 17) // n)
    return [slice(start, start + step) for start in range(0, n, step)]


def _symmetric(square: np.ndarray, name: str) -> np.ndarray:
    """Refuse what is not finite or clearly not symmetric; even out what rounding did."""
    starts = range(0, len(square), _TILE)
    if all(_mirrored(square, i, j) for i in starts for j in starts if i <= j):
        return square
    for i in starts:
        _refuse_asymmetry(square[i : i + _TILE], square[:, i : i + _TILE].T, i, name)
    return (square + square.T) / 2


def _mirrored(square: np.ndarray, i: int, j: int) -> bool:
    """Whether a tile is finite and exactly the mirror image of its counterpart; columns are slow to read but for tiles."""
    tile = square[i : i + _TILE, j : j + _TILE]
    return np.array_equal(tile, square[j : j + _TILE, i : i + _TILE].T) and bool(np.isfinite(tile).all())


def _refuse_asymmetry(rows: np.ndarray, columns: np.ndarray, start: int, name: str) -> None:
    """The rows from ``start`` on and the columns that should equal them: name an entry that is not finite or differs."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ValueError(f"{name}: row {start + int(np.flatnonzero(~finite)[0])} holds a value that is not finite")
    gap = np.abs(rows - columns)
    if gap.max() > SLACK * max(1.0, float(np.abs(rows).max())):
        i, j = np.unravel_index(int(gap.argmax()), gap.shape)
        raise ValueError(
            f"{name} is not symmetric: entry ({start + i}, {j}) is {rows[i, j]:g}, ({j}, {start + i}) is "
            f"{columns[i, j]:g}; rows and columns must be the same clients in the same order"
        )


def gram_matrix(values: Any) -> np.ndarray:
    """A Gram matrix ``(n, n)``; what cannot be one is refused."""
    square = matrix(values, "gram")
    diagonal = np.diagonal(square)
    if (diagonal < -SLACK).any():
        bad = int(diagonal.argmin())
        raise ValueError(f"gram: entry ({bad}, {bad}) is {diagonal[bad]:g}, but a squared norm is >= 0")
    if not diagonal.any() and square.any():
        raise ValueError("gram has a zero diagonal, so it looks like a matrix of distances; pass gram(updates)")
    return square


def similarity_matrix(values: Any) -> np.ndarray:
    """Similarities ``(n, n)``; distances and Gram matrices are refused where that is certain.

    Only the order of similarities matters to most callers, so any other symmetric matrix passes.
    """
    square = matrix(values, "similarity")
    diagonal = np.diagonal(square)
    if len(square) > 1 and not diagonal.any() and square.min() >= 0:
        raise ValueError(
            "similarity has a zero diagonal and no negative entry, so it looks like a matrix of distances; "
            "pass cosine(gram), with ones on the diagonal"
        )
    if (diagonal >= 0).all() and np.abs(diagonal - 1).max() > 1e-3 and _cauchy_schwarz(square):
        raise ValueError("similarity looks like a Gram matrix (squared norms on the diagonal); pass cosine(gram)")
    return square


def _cauchy_schwarz(square: np.ndarray) -> bool:
    """Whether every entry is within the product of its two norms, as in a Gram matrix."""
    norm = np.sqrt(np.diagonal(square))
    return all((np.abs(row) <= norm[i] * norm * (1 + SLACK)).all() for i, row in enumerate(square))


def distance_matrix(values: Any) -> np.ndarray:
    """Distances ``(n, n)``: zero diagonal, nothing negative; similarities and Gram matrices are refused."""
    square = matrix(values, "distances")
    diagonal = np.diagonal(square)
    least = float(square.min())
    scale = max(1.0, float(square.max()), -least)
    if np.abs(diagonal).max() > SLACK * scale:
        ones = np.abs(diagonal - 1).max() <= 1e-3
        guess = "a matrix of similarities: pass distances(gram, 'cosine') or 1 - similarity"
        if not ones:
            guess = "a Gram matrix: pass distances(gram, metric)"
        raise ValueError(f"distances must have a zero diagonal, got {diagonal[0]:g} first; this looks like {guess}")
    if least < 0:
        i, j = np.unravel_index(int(square.argmin()), square.shape)
        raise ValueError(f"distances must be >= 0, got {square[i, j]:g} at ({i}, {j}); is this a similarity?")
    return square


def rows(updates: Any, name: str = "updates") -> torch.Tensor:
    """Updates ``(n, d)`` as a tensor on the same memory, where torch can."""
    if not isinstance(updates, torch.Tensor):
        values = np.asarray(updates)
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be numbers (n, d), got an array of {values.dtype}")
        if not values.dtype.isnative or values.dtype.itemsize > 8 or any(stride < 0 for stride in values.strides):
            values = values.astype(np.float64)  # torch takes no other memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of read-only memory, which nobody here writes to
            updates = torch.from_numpy(values)
    updates = updates.detach()
    if updates.ndim != 2:
        raise ValueError(f"{name} must be (n, d), one row per client, got shape {tuple(updates.shape)}")
    if updates.is_complex():
        raise ValueError(f"{name} must be real numbers")
    if not updates.shape[0]:
        raise ValueError(f"{name} has no rows: there are no clients")
    return updates


def refuse_infinite_rows(updates: torch.Tensor) -> None:
    """Called when a product of ``updates`` is not finite: says which row it was."""
    for i, row in enumerate(updates):
        if not bool(torch.isfinite(row).all()):
            raise ValueError(f"updates: row {i} holds a value that is not finite")
    raise ValueError(f"updates: products of such large entries overflow {updates.dtype}; pass float64 or scale them")


def one_per_client(values: Any, n: int, name: str) -> np.ndarray:
    """``(n,)`` float64, finite and >= 0: weights, sizes or trade-offs."""
    given = np.asarray(array(values), dtype=np.float64)
    if given.shape != (n,):
        raise ValueError(f"{name} must hold one number per client, shape ({n},), got shape {given.shape}")
    wrong = ~(np.isfinite(given) & (given >= 0))
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"{name} must be finite and >= 0, got {given[bad]:g} for client {bad}")
    return given


def label_vector(labels: Any, n: int | None = None, name: str = "labels") -> np.ndarray:
    """``(n,)`` whole numbers 0..g-1, numbered by first member; any hashable-by-NumPy labels are taken."""
    try:
        given = array(labels)
    except ValueError:
        given = np.empty((0, 0))  # ragged: groups
    if given.dtype == object or given.ndim != 1:
        raise ValueError(f"{name} must be one label per client, shape (n,); for groups, pass labels_of(groups)")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise ValueError(f"{name}: client {int(np.flatnonzero(~np.isfinite(given))[0])} has no finite label")
    if n is not None and len(given) != n:
        raise ValueError(
            f"{name} must hold one label per client, {n} here, got {len(given)}; "
            "positions of a group's members are no labels: use labels_of(groups)"
        )
    if not given.size:
        raise ValueError(f"{name} is empty: there are no clients")
    _, first, inverse = np.unique(given, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def position_list(group: Iterable[int], n: int, name: str = "group") -> np.ndarray:
    """Sorted distinct positions in ``0..n-1``; labels in their place are found out by their repetitions."""
    given = array(group if isinstance(group, (Sequence, np.ndarray, torch.Tensor)) else list(group))
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of positions, whole numbers 0 to {n - 1}")
    if len(np.unique(given)) != len(given):
        raise ValueError(f"{name} names a position twice; labels are no positions: use groups_of(labels)")
    if given.min() < 0 or given.max() >= n:
        wrong = int(given.max() if given.max() >= n else given.min())
        raise ValueError(f"{name} must be positions 0 to {n - 1}, got {wrong}; client ids are no positions")
    return np.sort(given)


def number_of_groups(groups: Any, n: int) -> None:
    """Refuse what is not a whole number 1..n."""
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or not 1 <= groups <= n:
        hint = "; to cut at a distance, pass threshold" if isinstance(groups, float) else ""
        raise ValueError(f"groups must be a whole number, 1 to the {n} clients, got {groups!r}{hint}")


def one_of(value: Any, valid: Sequence[str], name: str) -> str:
    """``value`` if it is one of ``valid``."""
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, got {value!r}")
    return str(value)
