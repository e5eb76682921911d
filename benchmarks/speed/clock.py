"""Side by side: everyone is measured in turn, in every repetition, after one warm-up each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The values, to six digits, with their median, least and greatest."""
    values = [float(f"{value:.6g}") for value in values]
    return {
        "values": values,
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
    }


def interleaved(
    contestants: Mapping[str, Callable[[], float]], repetitions: int, calls: int = 1
) -> dict[str, dict[str, Any]]:
    """What each returned (seconds, say): ``first`` in the warm-up, then a :func:`spread` over the repetitions.

    The order is turned by one in each repetition, so that nobody always follows the same one.
    calls: in one turn, of which the mean is taken; for what is over in no time.
    """
    names = list(contestants)
    first = {name: contestants[name]() for name in names}
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repetitions):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            values[name].append(statistics.fmean(contestants[name]() for _ in range(calls)))
    return {name: {"first": first[name], **spread(values[name])} for name in names}
