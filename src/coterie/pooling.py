"""Metrics of the test rows of several clients together, from sums that each client has of its own rows.

R2 of a few rows can be any number below 1: two rows that are alike have almost no spread, so a
small error gives -100. A mean over clients keeps such numbers. The same is true, if less so, of the
root of a mean squared error. Both have a value for the rows of all clients together, and the sums
from which it follows add up over clients. So wherever the mean over clients of another metric
stands, these two have their pooled value. Each client keeps the value of its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ErrorSums = Mapping[str, Sequence[float]]
"""A client's sums of one metric, by name: ``rows`` (one number), ``errors`` (the sum of squared
errors of each output), and for R2 also ``means`` and ``squares`` of each output's targets: their
mean, and the sum of squares around it."""

SIGN = "|"
"""Sign in a key of test results between a metric and a sum of it: ``R2Score|errors/0``."""

SUM_NAMES = ("rows", "errors", "means", "squares")

MAX_ROWS = 10**12
"""More rows than this are not taken from a client."""

FEW_ROWS = 10
"""With fewer test rows, a client's own value of such a metric says little."""


def pooled(clients: Iterable[ErrorSums]) -> float:
    """Return a metric of the test rows of several clients together.

    - Root mean squared error: the root of the sum of squared errors over the number of errors.
    - R2: for each output, 1 minus the sum of squared errors over the sum of squares of all targets
      **around the mean of all targets**; the mean of this over the outputs. So 0 is what one
      constant for all clients would reach. An output whose targets are all equal has no R2, and
      does not count.

    Args:
        clients: The sums of each client, all of one metric.

    Returns:
        The metric; NaN if it is not defined. A client whose sums are not finite does not count.
    """
    finite = [sums for sums in clients if _is_finite(sums)]
    client_rows = [sums["rows"][0] for sums in finite]
    rows = math.fsum(client_rows)
    if not rows:
        return math.nan
    outputs = min(len(sums["errors"]) for sums in finite)
    errors = [math.fsum(sums["errors"][position] for sums in finite) for position in range(outputs)]
    if "means" not in finite[0]:
        # The root mean squared error.
        return math.sqrt(math.fsum(errors) / rows)
    scores = []
    for position in range(outputs):
        means = [sums["means"][position] for sums in finite]
        within = math.fsum(sums["squares"][position] for sums in finite)
        if not within and len(set(means)) == 1:
            # All targets are equal.
            continue
        # The squares around the mean of all targets: those around each client's mean, and those of
        # the clients' means.
        mean_of_all = math.fsum(map(math.prod, zip(client_rows, means, strict=True))) / rows
        between = math.fsum(
            count * (mean - mean_of_all) ** 2
            for count, mean in zip(client_rows, means, strict=True)
        )
        scores.append(1 - errors[position] / (within + between))
    return math.fsum(scores) / len(scores) if scores else math.nan


def _is_finite(sums: ErrorSums) -> bool:
    numbers = [value for values in sums.values() for value in values]
    return all(value is not None and math.isfinite(value) for value in numbers)


def flat(metric: str, sums: ErrorSums) -> dict[str, float]:
    """Return a metric's sums as numbers by key, as they are beside the metrics in the results of a test."""
    results = {}
    for part, values in sums.items():
        for position, value in enumerate(values):
            results[f"{metric}{SIGN}{part}/{position}"] = float(value)
    return results


def parted(results: Mapping[str, float]) -> tuple[dict[str, float], dict[str, ErrorSums]]:
    """Return the metrics among the results of a test, and metric -> its sums, from keys as :func:`flat` makes them.

    Example:
        >>> parted({"loss": 2.0, "RMSE": 1.0, "RMSE|rows/0": 4.0, "RMSE|errors/0": 4.0})
        ({'loss': 2.0, 'RMSE': 1.0}, {'RMSE': {'rows': [4.0], 'errors': [4.0]}})
    """
    metrics: dict[str, float] = {}
    sums: dict[str, dict[str, list[float]]] = {}
    for key, value in results.items():
        metric, sign, part = key.rpartition(SIGN)
        name = part.rpartition("/")[0]
        if sign and name in SUM_NAMES:
            sums.setdefault(metric, {}).setdefault(name, []).append(value)
        else:
            metrics[key] = value
    return metrics, dict(sums)


def sound(sums: Any) -> bool:
    """Whether a value, which may come from anybody, has the form of :data:`ErrorSums`; numbers may be None, for NaN."""
    if not isinstance(sums, Mapping) or not {"rows", "errors"} <= set(sums) <= set(SUM_NAMES):
        return False
    if ("means" in sums) != ("squares" in sums):
        return False
    for name, values in sums.items():
        if not isinstance(values, list) or not values:
            return False
        if not all(_is_number_or_none(value) for value in values):
            return False
        if name != "means" and any(value is not None and not value >= 0 for value in values):
            return False
    outputs = {len(values) for name, values in sums.items() if name != "rows"}
    if len(outputs) != 1 or len(sums["rows"]) != 1:
        return False
    rows = sums["rows"][0]
    return rows is None or 1 <= rows <= MAX_ROWS


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
