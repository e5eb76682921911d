"""Values in the middle of a range, with few digits."""

from __future__ import annotations

import math

ONE_ENDED_RATIO = 1.5
"""Ratio between a value and the one known end of its range: a single group does not show how far
apart two would be."""

MAX_DIGITS = 16
"""Significant digits of a suggested value, at most."""


def ratio(low: float, high: float) -> float:
    """``high / low``; infinite if there is no bound below or above."""
    return high / low if low > 0 else math.inf


def middle(low: float, high: float) -> float:
    """The middle of a range, as ratios.

    Args:
        low: The lower end; 0 for none.
        high: The upper end; infinite for none.

    Returns:
        The geometric mean of the ends; with one end only, a value at the ratio
        :data:`ONE_ENDED_RATIO` from it; 1 without ends, as any value is right then.

    Example:
        >>> middle(1.0, 4.0), middle(2.0, math.inf), middle(0.0, 3.0)
        (2.0, 3.0, 2.0)
    """
    if math.isinf(high):
        return ONE_ENDED_RATIO * low if low > 0 else 1.0
    return math.sqrt(low * high) if low > 0 else high / ONE_ENDED_RATIO


def shortest(value: float, low: float, high: float) -> float:
    """Round a value to as few digits as possible.

    Args:
        value: The value, between the ends.
        low: The lower end.
        high: The upper end.

    Returns:
        The value with the fewest digits, at least two, that differs by at most a fifth of the
        distance to the nearer end.

    Example:
        >>> shortest(1.6449, 1.137, 2.382), shortest(0.99052, 0.9899, 0.9911)
        (1.6, 0.9905)
    """
    max_error = min(value - low, high - value) / 5
    for digits in range(2, MAX_DIGITS + 1):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= max_error:
            return rounded
    return value
