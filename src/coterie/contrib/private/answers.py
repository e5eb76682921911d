"""Limits on one client's answer to a question about sketches, where the server sees single answers: without masks.

An honest answer follows from two vectors, the client's signal s and its noise D
(:mod:`~coterie.contrib.private.cells`). A hostile client may send any numbers, such as a 1 in every
bin of a histogram. :func:`flaw_of` finds answers that no client can have. :func:`limited_answers`
limits the others by the answers of the other clients, if some may be hostile: one client's noise
can hide that all others differ, and one long signal the direction in which they do.

Behind masks the server sees the sum alone, and can do neither. Coterie's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt

import numpy as np

from coterie.contrib.private.cells import CellQuestion
from coterie.contrib.private.moments import Moments
from coterie.core import Client

MAX_ANSWER_ERROR = 1e-3
"""The greatest error of an honest answer in single precision; its numbers are between -1 and 1."""

MAX_NOISE_RATIO = 2.0
"""The squared noise of a client, in that of all but so many clients as may be hostile, above which it
is left out of the moments. Clients of the same number of examples differ by less."""


def flaw_of(question: CellQuestion, answer: np.ndarray) -> str | None:
    """Find out why no client can have an answer.

    Args:
        question: The question.
        answer: Shape ``(m,)``: the numbers of the answer, between -1 and 1.

    Returns:
        The reason, or None if a client may have it.
    """
    if question.is_bounded:
        too_long = float(np.linalg.norm(answer)) > 1 + MAX_ANSWER_ERROR
        return "its answer to a question has a norm above 1" if too_long else None
    if question.ask == "moments":
        return _flaw_of_moments(answer.reshape(len(question.cells), -1))
    if question.ask == "means":
        return _flaw_of_means(answer.reshape(question.count, -1))
    # Histograms: a client is in one bin of each.
    histogram_count = 2 if question.ask == "sizes" else 1
    for histogram in answer.reshape(histogram_count, -1):
        if histogram.min() < -MAX_ANSWER_ERROR or histogram.sum() > 1 + MAX_ANSWER_ERROR:
            return "its answer to a question counts it more than once in a histogram"
    return None


def _flaw_of_moments(rows: np.ndarray) -> str | None:
    """Why moments by cell ``(cells, length)`` are not those of one client in one cell."""
    if _cells_with_numbers(rows) > 1:
        return "its answer to a question says that it is in several cells"
    for row in rows:
        moments = Moments.from_vector(row, _sketch_length(row))
        if abs(moments.count) < MAX_ANSWER_ERROR and not row.any():
            continue
        # One client: Σ M Mᵀ and Σ D Dᵀ are products of one vector with itself.
        squared_noise = float(np.trace(moments.noise))
        noise = _factor(moments.noise)
        is_one_client = (
            abs(moments.count - 1) <= MAX_ANSWER_ERROR
            and _matches(moments.products, np.outer(moments.total, moments.total))
            and _matches(moments.noise, np.outer(noise, noise))
            and abs(moments.fourth - squared_noise**2) <= MAX_ANSWER_ERROR
            and float(moments.total @ moments.total) <= 1 + MAX_ANSWER_ERROR
            and squared_noise <= 1 + MAX_ANSWER_ERROR
        )
        if not is_one_client:
            return "its answer to a question has moments that are not those of one client"
    return None


def _flaw_of_means(rows: np.ndarray) -> str | None:
    """Why numbers and sums by cell ``(cells, 1 + k)`` are not those of one client in one cell."""
    if _cells_with_numbers(rows) > 1:
        return "its answer to a question says that it is in several cells"
    is_count = bool((np.abs(rows[:, 0] * (rows[:, 0] - 1)) <= MAX_ANSWER_ERROR).all())
    if not is_count or float(np.linalg.norm(rows[:, 1:])) > 1 + MAX_ANSWER_ERROR:
        return "its answer to a question has a mean that is not that of one client"
    return None


def _cells_with_numbers(rows: np.ndarray) -> int:
    return int(np.any(rows != 0, axis=1).sum())


def _matches(matrix: np.ndarray, expected_matrix: np.ndarray) -> bool:
    return bool(np.abs(matrix - expected_matrix).max() <= MAX_ANSWER_ERROR)


def _factor(matrix: np.ndarray) -> np.ndarray:
    """The vector v of a matrix ``v vᵀ``, from its greatest diagonal entry; zeros if none is above zero."""
    place = int(np.argmax(np.diagonal(matrix)))
    greatest = float(matrix[place, place])
    if greatest <= 0:
        return np.zeros(len(matrix))
    return np.asarray(matrix[place] / np.sqrt(greatest))


def _sketch_length(row: np.ndarray) -> int:
    """k, from the moments of sketches of k numbers: these are (k + 1)² + 1 numbers."""
    return isqrt(len(row) - 1) - 1


def limited_answers(
    question: CellQuestion, answers: Mapping[Client, np.ndarray], hostile: int
) -> dict[Client, np.ndarray]:
    """Limit the answers of the clients of one sum by each other.

    No signal is longer than that of all but f clients. A client whose squared noise is
    :data:`MAX_NOISE_RATIO` times that of all but f clients is left out of the moments; it is still
    placed in a cell. Histograms stay as they are: a client counts once in them.

    Args:
        question: The question.
        answers: Client -> its answer ``(m,)``, as in :func:`flaw_of`.
        hostile: f, the number of clients that may be hostile; with 0, or half of the clients, the
            answers stay as they are.

    Returns:
        Client -> the answer that counts.
    """
    if question.ask not in ("moments", "means") or not hostile or len(answers) <= 2 * hostile:
        return dict(answers)
    clients = sorted(answers)
    cell_count = len(question.cells) if question.ask == "moments" else question.count
    rows = np.stack([answers[client] for client in clients]).astype(np.float64)
    rows = rows.reshape(len(clients), cell_count, -1)
    if question.ask == "means":
        signals = rows[:, :, 1:]
        signals *= _factors_within_others(np.linalg.norm(signals, axis=(1, 2)), hostile)
    else:
        rows = _limited_moments(rows, hostile)
    limited_rows = rows.reshape(len(clients), -1)
    return dict(zip(clients, limited_rows, strict=True))


def _limited_moments(rows: np.ndarray, hostile: int) -> np.ndarray:
    """Moments by client and cell ``(n, cells, length)``, limited by those of the other clients."""
    limited_rows = rows.copy()
    k = _sketch_length(rows[0, 0])
    # The places of count and fourth moment, of Σ M, and of the triangles of Σ M Mᵀ and Σ D Dᵀ.
    total_places = slice(2, 2 + k)
    product_places = slice(2 + k, 2 + k + k * (k + 1) // 2)
    # A triangle has its diagonal where both indices are equal.
    row_indices, column_indices = np.triu_indices(k)
    is_diagonal = row_indices == column_indices
    noise_triangles = rows[:, :, product_places.stop :]
    squared_noise = noise_triangles[:, :, is_diagonal].sum(axis=(1, 2))
    # Signals are shortened.
    signal_norms = np.linalg.norm(rows[:, :, total_places], axis=(1, 2))
    factors = _factors_within_others(signal_norms, hostile)
    limited_rows[:, :, total_places] *= factors
    limited_rows[:, :, product_places] *= factors**2
    # Clients of much more noise than the others are left out, since noise alone hides differences.
    ordered = np.sort(squared_noise)
    limited_rows[squared_noise > MAX_NOISE_RATIO * ordered[-1 - hostile]] = 0.0
    return limited_rows


def _factors_within_others(norms: np.ndarray, hostile: int) -> np.ndarray:
    """Factors ``(n, 1, 1)`` by which no norm ``(n,)`` is above that of all but so many clients."""
    longest = np.sort(norms)[-1 - hostile]
    return np.minimum(1.0, longest / np.maximum(norms, 1e-300))[:, None, None]
