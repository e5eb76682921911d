"""Values in the middle of a range, with few digits."""

from __future__ import annotations

import math

ONE_ENDED_RATIO = 1.5
"""Ratio between a value and the one known end of its range: a single group does not show how far
apart two would be."""

MAX_DIGITS = 16
"""Significant digits of a suggested value, at most."""


def ratio(lower_end: float, upper_end: float) -> float:
    """``high / low``; infinite if there is no bound below or above."""
    return upper_end / lower_end if lower_end > 0 else math.inf


def middle(lower_end: float, upper_end: float) -> float:
    """The middle of a range, as ratios.

    Args:
        lower_end: The lower end; 0 for none.
        upper_end: The upper end; infinite for none.

    Returns:
        The geometric mean of the ends; with one end only, a value at the ratio
        :data:`ONE_ENDED_RATIO` from it; 1 without ends, as any value is right then.

    Example:
        >>> middle(1.0, 4.0), middle(2.0, math.inf), middle(0.0, 3.0)
        (2.0, 3.0, 2.0)
    """
    # How far apart two ends would be is not known from one of them.
    if math.isinf(upper_end):
        return ONE_ENDED_RATIO * lower_end if lower_end > 0 else 1.0
    return math.sqrt(lower_end * upper_end) if lower_end > 0 else upper_end / ONE_ENDED_RATIO


def shortest(value: float, lower_end: float, upper_end: float) -> float:
    """Round a value to as few digits as possible.

    Args:
        value: The value, between the ends.
        lower_end: The lower end.
        upper_end: The upper end.

    Returns:
        The value with the fewest digits, at least two, that differs by at most a fifth of the
        distance to the nearer end.

    Example:
        >>> shortest(1.6449, 1.137, 2.382), shortest(0.99052, 0.9899, 0.9911)
        (1.6, 0.9905)
    """
    # Rounding must not bring the value near an end.
    max_error = min(value - lower_end, upper_end - value) / 5
    for digits in range(2, MAX_DIGITS + 1):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded - value) <= max_error:
            return rounded
    return value
