"""Splits by time: the earliest examples of a client train, later ones are held out, and the last ones test.

An example shows a *span* of time: a row shows one time, and a window of a series all times from its
first value to its last. An example is in an earlier part only if its span ends before the span of
each example of all later parts begins. A *gap* makes spans begin earlier. So no value is on both
sides of a cut, and rows of the same time are in the same part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from coterie.data.times import Times
from coterie.notebook.tables import count
from coterie.settings import UserError

STARTS, ENDS = "starts", "ends"
"""Columns of a pool's ``meta`` with the spans of its examples, as ranks among the client's times.
"""

CUTS = 100
"""Places of a cut that are tried, those with the wanted number of examples first."""

FAR = 0.5
"""Part of the wanted number by which a part may be larger or smaller, unless many examples have the
same time."""

ROUNDING = 1e-9
"""Part of a gap of floats by which it is made longer: 0.4 - 0.3 is less than 0.1."""


def spans(times: Times, gap: float = 0.0, overlap: int = 0) -> dict[str, torch.Tensor]:
    """Return the spans of examples.

    Args:
        times: Their times.
        gap: In the unit of the times: examples of a later part are later by more than this.
        overlap: Number of the next distinct times whose examples share values with an example, such
            as of overlapping windows; see :func:`~coterie.data.windows.overlap`.

    Returns:
        ``STARTS`` and ``ENDS``, ``(N,)`` int64. They are ranks, which other clients cannot change.
    """
    values = times.values if times.values.ndim == 2 else times.values[:, None]
    first, last = values[:, 0], values[:, -1]
    if gap and first.dtype.kind == "f":
        first = first - gap * (1 + ROUNDING) - ROUNDING * np.spacing(np.abs(first).max() / ROUNDING)
    elif gap:
        whole = int(min(gap, 2.0**62))
        first = np.maximum(first, np.iinfo(np.int64).min + whole) - whole
    distinct, ranks = np.unique(last, return_inverse=True)
    starts = np.searchsorted(distinct, first)  # ends before the start have a smaller rank
    starts = np.minimum(starts, ranks - overlap)
    return {
        STARTS: torch.from_numpy(starts.astype(np.int64)),
        ENDS: torch.from_numpy(ranks.astype(np.int64)),
    }


def spans_of(meta: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the spans ``(N, 2)`` that a pool has in its ``meta``, or None."""
    return torch.stack([meta[STARTS], meta[ENDS]], 1) if ENDS in meta else None


def in_time(
    spans: np.ndarray,
    sizes: tuple[int, int],
    subjects: np.ndarray | None,
    name: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the examples of a client into training, validation and test examples, the last ones for tests.

    Examples whose spans reach into a later part are in no part. So are those of a subject that a
    later part has.

    Args:
        spans: Start and end of each example's span ``(N, 2)``.
        sizes: Numbers of validation and of test examples; each cut is made between two times, at
            the nearest number. A part of 0 examples stays empty.
        subjects: The subject of each example ``(N,)``, or None if each has its own.
        name: The client, for the message.

    Returns:
        Positions of the training, validation and test examples, each in order of time.

    Raises:
        UserError: A part would be empty.
    """
    held, tested = sizes
    everything = np.argsort(spans[:, 1], kind="stable")
    nothing = everything[:0]
    for test in _latest(spans, everything, tested) if tested else (nothing,):
        before = _before(spans, everything, test, subjects)
        for validation in _latest(spans, before, held) if held else (nothing,):
            train = _before(spans, before, validation, subjects)
            if len(train):
                return train, validation, test
    parts = 1 + bool(held) + bool(tested)
    times = count(len(np.unique(spans[:, 1])), "different time")
    of_subjects = (
        ", or leave out subject: rows of a subject that a later part has are left out"
        if subjects is not None
        else ""
    )
    raise UserError(
        f"{name} has {count(len(spans), 'example')} at {times}, too few for {parts} parts that follow each other in time with "
        f"this gap: use a smaller gap{of_subjects}, or leave the client out"
    )


def latest(
    spans: np.ndarray, most: int, wanted: int, subjects: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Hold out the latest examples.

    Args:
        spans: Start and end of each example's span ``(N, 2)``.
        most: The greatest number of examples to hold out.
        wanted: The number of examples to hold out; the cut is made between two times, at the
            nearest number.
        subjects: The subject of each example ``(N,)``, or None if each has its own.

    Returns:
        Positions, in ascending order, of the examples that are held out, and of those before them
        that do not reach into them; None if there is no such cut.
    """
    everything = np.argsort(spans[:, 1], kind="stable")
    for held in _latest(spans, everything, wanted):
        kept = _before(spans, everything, held, subjects)
        if len(kept) and len(held) <= most:
            return np.sort(held), np.sort(kept)
    return None


def _latest(spans: np.ndarray, rows: np.ndarray, wanted: int) -> Iterator[np.ndarray]:
    """The last of ``rows``, which are in order of time, about ``wanted`` of them; of several cuts, the nearest first."""
    ends = spans[rows, 1]
    cuts = 1 + np.flatnonzero(np.diff(ends))  # never between rows of the same time
    if not len(cuts):
        return
    apart = np.abs(len(rows) - cuts - wanted)
    nearest = np.argsort(apart, kind="stable")[:CUTS]
    for cut in cuts[nearest[apart[nearest] <= max(apart.min(), FAR * wanted)]]:
        yield rows[cut:]


def _before(
    spans: np.ndarray, rows: np.ndarray, later: np.ndarray, subjects: np.ndarray | None
) -> np.ndarray:
    """Those of ``rows`` that end before all of ``later`` begin, and whose subjects are not among these."""
    if not len(later):
        return rows
    fits = spans[rows, 1] < spans[later, 0].min()
    if subjects is not None:
        fits &= ~np.isin(subjects[rows], subjects[later])
    return rows[fits]
