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
from itertools import chain
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

MIN_ROWS_OF_WORST = 5
"""With fewer test rows, a client's accuracy moves by more than a fifth with each of them, so the worst
client of all is mostly chance."""

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
    # Leave out clients whose sums are not finite.
    client_sums = [sums for sums in clients if _is_finite(sums)]
    rows_of_clients = [sums["rows"][0] for sums in client_sums]
    total_rows = math.fsum(rows_of_clients)
    if not total_rows:
        return math.nan
    # The sum of squared errors of each output, over all clients.
    output_count = min(len(sums["errors"]) for sums in client_sums)
    error_sums = []
    for output in range(output_count):
        error_sums.append(math.fsum(sums["errors"][output] for sums in client_sums))
    # Without means it is the root mean squared error.
    if "means" not in client_sums[0]:
        return math.sqrt(math.fsum(error_sums) / total_rows)
    # With means it is R2, in the mean over outputs.
    scores_of_outputs = []
    for output in range(output_count):
        client_means = [sums["means"][output] for sums in client_sums]
        squares_within = math.fsum(sums["squares"][output] for sums in client_sums)
        # An output whose targets are all equal has no R2.
        if not squares_within and len(set(client_means)) == 1:
            continue
        # The squares around the mean of all targets: those around each client's mean, and those of
        # the clients' means.
        sum_of_all = math.fsum(map(math.prod, zip(rows_of_clients, client_means, strict=True)))
        mean_of_all = sum_of_all / total_rows
        squares_between = math.fsum(
            rows * (mean - mean_of_all) ** 2
            for rows, mean in zip(rows_of_clients, client_means, strict=True)
        )
        scores_of_outputs.append(1 - error_sums[output] / (squares_within + squares_between))
    if not scores_of_outputs:
        return math.nan
    return math.fsum(scores_of_outputs) / len(scores_of_outputs)


def _is_finite(sums: ErrorSums) -> bool:
    numbers = chain.from_iterable(sums.values())
    return all(number is not None and math.isfinite(number) for number in numbers)


def flat(metric: str, sums: ErrorSums) -> dict[str, float]:
    """Return a metric's sums as numbers by key, as they are beside the metrics in the results of a test."""
    results = {}
    for sum_name, numbers in sums.items():
        for position, number in enumerate(numbers):
            results[f"{metric}{SIGN}{sum_name}/{position}"] = float(number)
    return results


def parted(results: Mapping[str, float]) -> tuple[dict[str, float], dict[str, ErrorSums]]:
    """Return the metrics among the results of a test, and metric -> its sums, from keys as :func:`flat` makes them.

    Example:
        >>> parted({"loss": 2.0, "RMSE": 1.0, "RMSE|rows/0": 4.0, "RMSE|errors/0": 4.0})
        ({'loss': 2.0, 'RMSE': 1.0}, {'RMSE': {'rows': [4.0], 'errors': [4.0]}})
    """
    metrics: dict[str, float] = {}
    sums_of_metrics: dict[str, dict[str, list[float]]] = {}
    for key, number in results.items():
        # Keys without the sign are metrics; METRIC|NAME/POSITION is one number of a sum.
        metric, sign, sum_part = key.rpartition(SIGN)
        sum_name = sum_part.rpartition("/")[0]
        if sign and sum_name in SUM_NAMES:
            sums_of_metrics.setdefault(metric, {}).setdefault(sum_name, []).append(number)
        else:
            metrics[key] = number
    return metrics, dict(sums_of_metrics)


def sound(sums: Any) -> bool:
    """Whether a value, which may come from anybody, has the form of :data:`ErrorSums`; numbers may be None, for NaN."""
    if not isinstance(sums, Mapping) or not {"rows", "errors"} <= set(sums) <= set(SUM_NAMES):
        return False
    # R2 has both of these sums, the root mean squared error has neither.
    if ("means" in sums) != ("squares" in sums):
        return False
    for sum_name, numbers in sums.items():
        if not isinstance(numbers, list) or not numbers:
            return False
        if not all(_is_number_or_none(number) for number in numbers):
            return False
        # Only means may be negative.
        if sum_name != "means" and any(
            number is not None and not number >= 0 for number in numbers
        ):
            return False
    # One number of rows, and equally many outputs in all other sums.
    output_counts = {len(numbers) for sum_name, numbers in sums.items() if sum_name != "rows"}
    if len(output_counts) != 1 or len(sums["rows"]) != 1:
        return False
    rows = sums["rows"][0]
    return rows is None or 1 <= rows <= MAX_ROWS


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
