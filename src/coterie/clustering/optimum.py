"""The best partition by HCCT's utility (arXiv 2401.13236, problem P1), by trying all: what the greedy merge is held against."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.utility import Tradeoff, utility

MOST = 10
"""Clients: the work grows as 3ⁿ."""


def utility_optimum(
    gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, *, groups: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """The partition of greatest total utility (eq. 10-11), of all partitions of n <= 10 clients.

    Arguments and result as :func:`~coterie.clustering.utility_merge`, which merges greedily and is near it, not always at
    it. groups: partitions into just so many only. Of partitions equal but for rounding, one with the most groups is
    returned, as a merge must gain. Raises ``ValueError`` for more than 10 clients.

    >>> utility_optimum(np.eye(2), [100, 100], 58), utility_optimum(np.eye(2), [100, 100], 59)
    (((0,), (1,)), ((0, 1),))
    """
    products = _checks.gram_matrix(gram)
    n = len(products)
    if n > MOST:
        raise ValueError(f"utility_optimum tries all partitions of at most {MOST} clients, got {n}; use utility_merge")
    if groups is not None:
        _checks.number_of_groups(groups, n)
    worth = [0.0] + [float(utility(products, sizes, tradeoff, _members(s)).sum()) for s in range(1, 1 << n)]
    # best[m][s]: (utility, first group) of the set s of clients in m groups; sets are the bits of a number.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for m in range(1, (groups or n) + 1):
        best.append({s: found for s in range(1, 1 << n) if (found := _first_group(s, worth, best[m - 1])) is not None})
    everyone = (1 << n) - 1
    counts = [m for m in range((groups or n), 0, -1) if groups in (None, m)]
    top = max(best[m][everyone][0] for m in counts)
    m = next(m for m in counts if best[m][everyone][0] >= top - _rounding(top, n))
    parts, rest = [], everyone
    for left in range(m, 0, -1):
        first = best[left][rest][1]
        parts.append(_members(first))
        rest ^= first
    return tuple(parts)


def _first_group(s: int, worth: list[float], fewer: dict[int, tuple[float, int]]) -> tuple[float, int] | None:
    """The group of the first client of ``s`` in the best partition whose other groups are as in ``fewer``."""
    lowest, found = s & -s, None
    others = rest = s ^ lowest
    while True:  # every subset of the others, the whole first: what is left over is ``others ^ rest``
        group = lowest | rest
        if others ^ rest in fewer:
            total = worth[group] + fewer[others ^ rest][0]
            if found is None or total > found[0]:
                found = total, group
        if not rest:
            return found
        rest = (rest - 1) & others


def _members(s: int) -> tuple[int, ...]:
    return tuple(i for i in range(s.bit_length()) if s >> i & 1)


def _rounding(total: float, n: int) -> float:
    return 4 * float(np.finfo(float).eps) * n * max(1.0, abs(total))
