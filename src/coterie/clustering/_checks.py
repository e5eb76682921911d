"""Checks of the inputs of this package. Each error message is one sentence that suggests the likely mistake."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch

from coterie.settings import brief

FLOAT32_SLACK = 1e-6
"""The greatest effect of float32 rounding on a symmetry or a diagonal, relative to the entries."""

# A tile of as many rows and columns stays in the processor's cache.
_CHECKED_TILE_ROWS = 256
# A part of a matrix with as many entries does, too.
_STRIP_ENTRIES = 1 << 17


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


def refuse_masked(values: Any, argument: str) -> None:
    """Raise ``ValueError`` for an array with masked entries: the numbers below a mask are no data."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.count_masked(values):
        raise ValueError(
            f"{argument} has {np.ma.count_masked(values):,} masked entries: fill them in with .filled(VALUE)"
        )


def refuse_sparse(values: torch.Tensor, argument: str) -> None:
    """Raise ``ValueError`` for a sparse tensor."""
    if values.layout is not torch.strided:
        raise ValueError(f"{argument} is sparse: pass its .to_dense()")


def matrix(values: Any, argument: str) -> np.ndarray:
    """Convert to a matrix ``(n, n)`` of float64, finite and exactly symmetric, n >= 1.

    Args:
        values: Anything array-like.
        argument: The name of the matrix in error messages.

    Returns:
        The matrix, with small asymmetries from rounding removed.

    Raises:
        ValueError: It is not such a matrix.
    """
    refuse_masked(values, argument)
    # In this order: an array needs no torch, whose import takes long.
    if not isinstance(values, np.ndarray) and isinstance(values, torch.Tensor):
        refuse_sparse(values, argument)
    try:
        # Without a copy if it is a matrix of float64 already.
        square = np.asarray(array(values), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{argument} must be a matrix (n, n) of numbers") from None
    if square.ndim != 2 or square.shape[0] != square.shape[1]:
        hints = {
            1: "; a condensed vector becomes one with scipy.spatial.distance.squareform",
            2: "; these look like updates (n, d): take gram(updates) first",
        }
        hint = hints.get(square.ndim, "")
        raise ValueError(f"{argument} must be a matrix (n, n), got shape {square.shape}{hint}")
    if not square.size:
        raise ValueError(f"{argument} has no rows: there are no clients")
    return _symmetric(square, argument)


def strips(row_count: int) -> list[slice]:
    """Divide the n rows of a matrix ``(n, n)`` into parts that fit into the processor's cache."""
    rows_per_strip = max(1, _STRIP_ENTRIES // row_count)
    return [slice(start, start + rows_per_strip) for start in range(0, row_count, rows_per_strip)]


def _symmetric(square: np.ndarray, argument: str) -> np.ndarray:
    """Refuse a matrix that is not finite or clearly not symmetric, and remove asymmetries that come from rounding."""
    # First whether the matrix is exactly symmetric, tile by tile, which is the usual case and fast.
    starts = range(0, len(square), _CHECKED_TILE_ROWS)
    tile_pairs = combinations_with_replacement(starts, 2)
    if all(_mirrored(square, row_start, column_start) for row_start, column_start in tile_pairs):
        return square
    for start in starts:
        row_range = slice(start, start + _CHECKED_TILE_ROWS)
        _refuse_asymmetry(square[row_range], square[:, row_range].T, start, argument)
    return (square + square.T) / 2


def _mirrored(square: np.ndarray, row_start: int, column_start: int) -> bool:
    """Whether a tile is finite and exactly the mirror image of its counterpart.

    Tiles are used because whole columns are slow to read.
    """
    row_range = slice(row_start, row_start + _CHECKED_TILE_ROWS)
    column_range = slice(column_start, column_start + _CHECKED_TILE_ROWS)
    tile = square[row_range, column_range]
    return np.array_equal(tile, square[column_range, row_range].T) and bool(np.isfinite(tile).all())


def _refuse_asymmetry(rows: np.ndarray, columns: np.ndarray, start: int, argument: str) -> None:
    """Name an entry that is not finite, or that differs between the rows from ``start`` on and ``columns``."""
    is_finite = np.isfinite(rows).all(axis=1)
    if not is_finite.all():
        raise ValueError(
            f"{argument}: row {start + int(np.flatnonzero(~is_finite)[0])} holds a value that is not finite"
        )
    # Rounding may make entries differ by little, relative to the greatest.
    differences = np.abs(rows - columns)
    if differences.max() > FLOAT32_SLACK * max(1.0, float(np.abs(rows).max())):
        row, column = np.unravel_index(int(differences.argmax()), differences.shape)
        raise ValueError(
            f"{argument} is not symmetric: entry ({start + row}, {column}) is {rows[row, column]:g}, "
            f"({column}, {start + row}) is {columns[row, column]:g}; rows and columns must be the same "
            "clients in the same order"
        )


def gram_matrix(values: Any) -> np.ndarray:
    """Check a Gram matrix ``(n, n)``; a matrix that cannot be one raises ``ValueError``."""
    square = matrix(values, "gram")
    diagonal = np.diagonal(square)
    if (diagonal < -FLOAT32_SLACK).any():
        position = int(diagonal.argmin())
        raise ValueError(
            f"gram: entry ({position}, {position}) is {diagonal[position]:g}, but a squared norm is >= 0"
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
    # A matrix of another kind shows by its diagonal: zeros of distances, squared norms of inner
    # products.
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
    update_norms = np.sqrt(np.diagonal(square))
    return all(
        (np.abs(products) <= update_norms[position] * update_norms * (1 + FLOAT32_SLACK)).all()
        for position, products in enumerate(square)
    )


def distance_matrix(values: Any) -> np.ndarray:
    """Check distances ``(n, n)``: zero diagonal, nothing negative; similarities and Gram matrices raise ``ValueError``."""
    square = matrix(values, "distances")
    diagonal = np.diagonal(square)
    # The diagonal of a distance is zero, up to rounding.
    smallest = float(square.min())
    largest = max(1.0, float(square.max()), -smallest)
    if np.abs(diagonal).max() > FLOAT32_SLACK * largest:
        has_ones = np.abs(diagonal - 1).max() <= 1e-3
        likely_input = "a Gram matrix: pass distances(gram, metric)"
        if has_ones:
            likely_input = (
                "a matrix of similarities: pass distances(gram, 'cosine') or 1 - similarity"
            )
        raise ValueError(
            f"distances must have a zero diagonal, got {diagonal[0]:g} first; this looks like {likely_input}"
        )
    if smallest < 0:
        row, column = np.unravel_index(int(square.argmin()), square.shape)
        raise ValueError(
            f"distances must be >= 0, got {square[row, column]:g} at ({row}, {column}); is this a similarity?"
        )
    return square


def rows(updates: Any, argument: str = "updates") -> torch.Tensor:
    """Convert updates ``(n, d)`` to a tensor on the same memory, if torch can use it."""
    if not isinstance(updates, torch.Tensor):
        refuse_masked(updates, argument)
        values = np.asarray(updates)
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{argument} must be numbers (n, d), got an array of {values.dtype}")
        # Memory that torch cannot use is copied.
        runs_backwards = any(stride < 0 for stride in values.strides)
        if not values.dtype.isnative or values.dtype.itemsize > 8 or runs_backwards:
            values = values.astype(np.float64)
        with warnings.catch_warnings():
            # About read-only memory, which this package never writes to.
            warnings.simplefilter("ignore", UserWarning)
            updates = torch.from_numpy(values)
    refuse_sparse(updates, argument)
    updates = updates.detach()
    if updates.ndim != 2:
        raise ValueError(
            f"{argument} must be (n, d), one row per client, got shape {tuple(updates.shape)}"
        )
    if updates.is_complex():
        raise ValueError(f"{argument} must be real numbers")
    if not updates.shape[0]:
        raise ValueError(f"{argument} has no rows: there are no clients")
    return updates


def refuse_infinite_rows(updates: torch.Tensor, argument: str = "updates") -> None:
    """Raise ``ValueError`` with the row that is not finite, after a product or sum of ``updates`` was not finite."""
    for position, row in enumerate(updates):
        if not bool(torch.isfinite(row).all()):
            raise ValueError(f"{argument}: row {position} holds a value that is not finite")
    raise ValueError(f"{argument}: products or sums of such large entries overflow; scale them")


MAX_GRAM_ENTRY = 1e140
"""Products of two entries of a Gram matrix, summed over clients, stay finite up to this."""


def one_per_client(values: Any, num_clients: int, argument: str) -> np.ndarray:
    """Check one number per client, such as weights, sizes or trade-offs: ``(n,)`` float64, finite and >= 0."""
    try:
        numbers = np.asarray(array(values), dtype=np.float64)
    except TypeError:
        raise ValueError(
            f"{argument} must hold one number per client, got {brief(values)}"
        ) from None
    if numbers.shape != (num_clients,):
        raise ValueError(
            f"{argument} must hold one number per client, shape ({num_clients},), got shape {numbers.shape}"
        )
    # Negative and infinite numbers, and NaN, are refused together.
    is_wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if is_wrong.any():
        wrong_client = int(np.flatnonzero(is_wrong)[0])
        raise ValueError(
            f"{argument} must be finite and >= 0, got {numbers[wrong_client]:g} for client {wrong_client}"
        )
    return numbers


def label_vector(
    labels: Any, num_clients: int | None = None, argument: str = "labels"
) -> np.ndarray:
    """Renumber labels by first member: ``(n,)`` integers 0 to g-1.

    Args:
        labels: One label per client; any labels that NumPy can sort.
        num_clients: The number of clients, if it is known.
        argument: The name of the labels in error messages.

    Returns:
        The new labels, ``(n,)`` int64.

    Raises:
        ValueError: They are not one finite label per client.
    """
    try:
        label_values = array(labels)
    except ValueError:
        # Lists of different lengths are groups.
        label_values = np.empty((0, 0))
    if label_values.dtype == object or label_values.ndim != 1:
        raise ValueError(
            f"{argument} must be one label per client, shape (n,); for groups, pass labels_of(groups)"
        )
    if label_values.dtype.kind == "f" and not np.isfinite(label_values).all():
        unlabelled = int(np.flatnonzero(~np.isfinite(label_values))[0])
        raise ValueError(f"{argument}: client {unlabelled} has no finite label")
    if num_clients is not None and len(label_values) != num_clients:
        raise ValueError(
            f"{argument} must hold one label per client, {num_clients} here, got {len(label_values)}; "
            "positions of a group's members are not labels: use labels_of(groups)"
        )
    if not label_values.size:
        raise ValueError(f"{argument} is empty: there are no clients")
    # Number the labels in the order of their first members.
    _, first_members, inverse = np.unique(label_values, return_index=True, return_inverse=True)
    new_label = np.empty(len(first_members), dtype=np.int64)
    new_label[np.argsort(first_members)] = np.arange(len(first_members))
    return new_label[inverse.reshape(-1)]


def position_list(group: Iterable[int], num_clients: int, argument: str = "group") -> np.ndarray:
    """Check positions 0 to n-1 and sort them. Repetitions are refused; they show that labels were passed instead."""
    if not isinstance(group, Sequence) and not hasattr(group, "__array__"):
        group = list(group)
    # A list of labels is the likely mistake, which repeats entries.
    positions = array(group)
    if positions.ndim != 1 or not positions.size or positions.dtype.kind not in "iu":
        raise ValueError(f"{argument} must be a list of positions, integers 0 to {num_clients - 1}")
    if len(np.unique(positions)) != len(positions):
        raise ValueError(
            f"{argument} contains a position twice; labels are not positions: use groups_of(labels)"
        )
    if positions.min() < 0 or positions.max() >= num_clients:
        wrong_position = int(positions.max() if positions.max() >= num_clients else positions.min())
        raise ValueError(
            f"{argument} must be positions 0 to {num_clients - 1}, got {wrong_position}; client ids are not positions"
        )
    return np.sort(positions)


def number_of_groups(groups: Any, num_clients: int) -> None:
    """Refuse anything but an integer 1 to n."""
    if (
        isinstance(groups, bool)
        or not isinstance(groups, (int, np.integer))
        or not 1 <= groups <= num_clients
    ):
        hint = "; to cut at a distance, pass threshold" if isinstance(groups, float) else ""
        raise ValueError(
            f"groups must be an integer from 1 to {num_clients}, the number of clients, got {groups!r}{hint}"
        )


def one_of(value: Any, valid_values: Sequence[str], argument: str) -> str:
    """Return ``value`` if it is one of ``valid_values``; otherwise raise ``ValueError``."""
    if value not in valid_values:
        raise ValueError(f"{argument} must be one of {', '.join(valid_values)}, got {value!r}")
    return str(value)
