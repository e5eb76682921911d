"""A number over the seeds of a method: its mean, its standard deviation, and an interval where that says something."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import scipy

from coterie.data.objective import metric_of
from coterie.report.summary import interval

SHARES = (
    "accuracy",
    "AUROC",
    "AveragePrecision",
    "BalancedAccuracy",
    "ExactMatch",
    "F1Score",
    "Recall",
    "isolated",
)
"""Metrics and other numbers from 0 to 1."""

AT_MOST_ONE = (*SHARES, "ari")
"""Metrics and other numbers that are at most 1."""

NOT_NEGATIVE = (
    *SHARES,
    "perplexity",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "RootMeanSquaredError",
    "std",
    "groups",
    "personal",
    "exchanges",
    "bytes_up",
    "bytes_down",
    "evaluations",
    "seconds",
    "traffic",
)
"""Those that cannot be below 0."""

MIN_SEEDS_OF_INTERVAL = 3
"""Fewest seeds with an interval: with two, Student's t is 12.7 standard errors."""


def limits_of(name: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest value that a metric or another number can have; None for no limit.

    Example:
        >>> limits_of("accuracy"), limits_of("Recall/0"), limits_of("loss")
        ((0.0, 1.0), (0.0, 1.0), (None, None))
    """
    # A metric of one class has its name before the slash; a validation score has that of its metric.
    metric = metric_of(name).split("/")[0]
    least_value = 0.0 if metric in NOT_NEGATIVE else None
    greatest_value = 1.0 if metric in AT_MOST_ONE else None
    return least_value, greatest_value


def within_limits(value: float, name: str) -> float:
    """Return a value, or the limit of a metric that it is beyond."""
    least_value, greatest_value = limits_of(name)
    if least_value is not None:
        value = max(value, least_value)
    if greatest_value is not None:
        value = min(value, greatest_value)
    return value


def over_seeds(values: Sequence[float | None], name: str) -> dict[str, Any]:
    """Return what a comparison says of a number over the seeds.

    Args:
        values: The number with each seed; None where it is not known.
        name: The metric, or the name of the number, which says how small and great it can be.

    Returns:
        mean; low and high, the ends of the 95 % interval of the mean by Student's t, not beyond the
        limits of the metric, None for fewer than three seeds; sd, the standard deviation over the
        seeds, None for one; and values.

    Example:
        >>> found = over_seeds([0.25, 0.75], "accuracy")
        >>> found["mean"], found["low"], round(found["sd"], 3)
        (0.5, None, 0.354)
    """
    ends = interval(values)
    mean = ends["mean"]
    known_values = [value for value in values if value is not None]
    result: dict[str, Any] = {"mean": mean, "low": None, "high": None, "sd": None}
    if mean is not None and len(known_values) > 1:
        result["sd"] = statistics.stdev(known_values)
    if len(known_values) >= MIN_SEEDS_OF_INTERVAL:
        for end in ("low", "high"):
            end_of_interval = ends[end]
            if end_of_interval is not None:
                result[end] = within_limits(end_of_interval, name)
    return {**result, "values": list(values)}


def paired_p_value(differences: Sequence[float]) -> float | None:
    """Return the p-value of the paired t-test that the mean difference is 0, two-sided.

    Args:
        differences: The difference of two methods with each seed.

    Returns:
        The p-value; None for fewer than three differences, or if all are equal.

    Example:
        >>> round(paired_p_value([0.1, 0.2, 0.3]), 3), paired_p_value([0.1, 0.2])
        (0.074, None)
    """
    if len(differences) < MIN_SEEDS_OF_INTERVAL:
        return None
    mean = statistics.fmean(differences)
    standard_deviation = statistics.stdev(differences)
    if not standard_deviation:
        return None
    statistic = mean / (standard_deviation / len(differences) ** 0.5)
    return float(2 * scipy.special.stdtr(len(differences) - 1, -abs(statistic)))
