"""Limits on the reports of clients, so that one hostile client decides nothing."""

from __future__ import annotations

import math

import numpy as np


def fenced(values: np.ndarray) -> np.ndarray:
    """Return the values of clients ``(n,)``, each limited to the outer fences of the other clients' values.

    Two clients are not limited: none of them can be told from the other.

    Example:
        >>> fenced(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
        array([1.  , 2.  , 3.  , 4.  , 7.75])
    """
    others = len(values) - 1
    if others < 2:
        return values
    ordered, rank = np.sort(values), np.argsort(np.argsort(values))

    def quantile(level: float) -> np.ndarray:
        """The quantile of all values but one, for each of them that is left out."""
        at = level * (others - 1)
        lower, upper = (ordered[k + (rank <= k)] for k in (math.floor(at), math.ceil(at)))
        return np.asarray(lower + (at - math.floor(at)) * (upper - lower))

    low, high = quantile(0.25), quantile(0.75)
    return values.clip(low - 3 * (high - low), high + 3 * (high - low))
