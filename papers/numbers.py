"""Numbers of rows: those alike, their means over seeds, and when a curve has come to stay somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np

from coterie.report.summary import interval
from coterie.report.words import plus_minus
from papers.study import Row


def picked(rows: Sequence[Row], **cell: Any) -> list[Row]:
    """The rows whose cells have these values."""
    return [
        row for row in rows if all(row["cell"].get(name) == value for name, value in cell.items())
    ]


def values(rows: Sequence[Row], name: str) -> list[Any]:
    """The different values of a setting of cells, in their order."""
    return list({repr(row["cell"][name]): row["cell"][name] for row in rows}.values())


def by(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Value of this setting -> the rows of the cells that have it."""
    return {value: picked(rows, **{name: value}) for value in values(rows, name)}


def found(rows: Sequence[Row], *path: str) -> np.ndarray:
    """``(rows,)``, or ``(rows, points)`` of curves: what was found of each row under this name, or names within names.

    >>> found([{"found": {"updates": {"gap": 0.5}}}], "updates", "gap")
    array([0.5])
    """
    return np.array([reduce(getitem, path, row["found"]) for row in rows], dtype=np.float64)


def at(rows: Sequence[Row], *path: str) -> list[Row]:
    """The rows of what is found at this place alone.

    >>> at([{"found": {"end": {"gap": 0.5}}}], "end")
    [{'found': {'gap': 0.5}}]
    """
    return [{**row, "found": reduce(getitem, path, row["found"])} for row in rows]


def mean(rows: Sequence[Row], *path: str) -> float:
    """The mean of a number over rows."""
    return float(found(rows, *path).mean())


def spread(rows: Sequence[Row], *path: str, digits: int = 2) -> str:
    """The mean over seeds and its 95 % interval, in words."""
    return plus_minus(interval(found(rows, *path).tolist()), digits)


def percent(rows: Sequence[Row], *path: str, digits: int = 1) -> str:
    """A share in percent, with its interval."""
    return plus_minus(interval((100 * found(rows, *path)).tolist()), digits)


def surely_less(one: np.ndarray, other: np.ndarray) -> bool | None:
    """Whether numbers ``(seeds,)`` are less than others of the same seeds: the 95 % interval of their differences is below 0.

    None if it contains 0, or if there is one seed: the rows cannot tell.

    >>> surely_less(np.array([0.1, 0.2, 0.1]), np.array([0.5, 0.6, 0.6])), surely_less(np.array([0.1]), np.array([0.5]))
    (True, None)
    """
    apart = interval((one - other).tolist())
    low, high = apart["low"], apart["high"]
    return None if low is None or high is None or low <= 0 <= high else high < 0


def stays_above(points: Sequence[float], level: float = 0.0) -> int | None:
    """The position from which a curve is above ``level`` until its end; None where its end is not.

    >>> stays_above([0.1, -0.1, 0.2, 0.3]), stays_above([0.2, -0.1])
    (2, None)
    """
    place = None
    for i in reversed(range(len(points))):
        if not points[i] > level:
            break
        place = i
    return place


def short(value: float) -> float:
    """Four significant digits: enough for a figure, and short in a file."""
    return float(f"{value:.4g}")
