"""Two tests of congruence in which one half says where to look, and the other whether there is anything.

Coterie's own; letters as in :mod:`~coterie.clustering.halves`. Take any weights u ``(n,)`` with ``Σ u_i = 0``, chosen after
seeing the first halves, and the direction ``v = Σ u_i a_i``. Given a, the numbers ``y_j = b_j · v`` are independent,
with mean ``s_j · v`` and variance ``vᵀ Cov(f_j) v``. If all signals are equal and all noise alike, they are n draws of one
normal law whatever was chosen, and in however few directions noise lives, so the slope of y on u is a Student's t with
``n - 2`` degrees of freedom, exactly: neither noise level nor effective dimension enter.

Where clients have unequal noise, each client's halves are first divided by ``c_i^(k/2)``, ``c_i = ‖a_i - ā‖² + ‖b_i - b̄‖²``,
and taking the mean off becomes the projection P off the vector of these weights. ``c_i`` is even in ``b_i``'s noise, so y
keeps its mean; ``‖D_i‖²`` would not do, as it holds ``a_i · b_i``. But ``c_i`` holds signal too, and would hide a client
that is far from all others; so k is 0 while the ``log ‖D_i‖²`` vary as much as equal noise makes them by chance, ``2/r``
with the effective dimension r, and rises to 1 at twice that. The means ā and b̄ are weighted by ``1/‖D_i‖``, lest one
client of much noise lend it to all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from coterie.clustering.halves import ROUNDING, Halves


class _Scaled(NamedTuple):
    """Products ``(n, n)`` of halves that are scaled and centred: ``A Aᵀ``, ``B Bᵀ``, ``A Bᵀ``; and the diagonal of P."""

    first: np.ndarray
    second: np.ndarray
    cross: np.ndarray
    alone: np.ndarray


def direction_test(h: Halves, share: float) -> float:
    """p-value that all signals are equal, against two groups that differ, or any one direction in which clients do.

    u is the leading eigenvector of one half's centred Gram matrix: along it that half's clients differ most. Either half
    chooses once, and the smaller p-value counts twice (Bonferroni). share: ``1/r``. 1 for fewer than three clients.
    """
    if (scaled := _scaled(h, share)) is None:
        return 1.0
    found = _slope(scaled.first, scaled.cross), _slope(scaled.second, scaled.cross.T)
    return min(1.0, 2 * min(found))


def _slope(chosen_by: np.ndarray, cross: np.ndarray) -> float:
    """p-value of the slope of y on u; cross: rows of the half that chose."""
    u = np.linalg.eigh(chosen_by)[1][:, -1]
    y = u @ cross
    slope = u @ y
    return float(_p_value(slope, y @ y - slope**2, len(y) - 2))


def odd_one_out_test(h: Halves, share: float) -> float:
    """p-value that all signals are equal, against one client that differs from all others: the least of n, times n.

    For client i, u singles it out: is ``a_i · b_i``, centred, larger than ``a_i · b_j`` and ``a_j · b_i`` vary over j ≠ i?
    Either half gives the same slope, and a variance of its own from n - 2 numbers. The larger variance counts, with
    ``2 (n - 2)`` degrees of freedom, as both have to be small by chance. share: ``1/r``. 1 for fewer than three clients.
    """
    if (scaled := _scaled(h, share)) is None:
        return 1.0
    n, square = len(h.mean), scaled.cross**2
    slope = np.diagonal(scaled.cross) / np.sqrt(scaled.alone)
    rest = np.maximum(square.sum(axis=0), square.sum(axis=1)) - slope**2
    return min(1.0, n * float(_p_value(slope, 2 * rest, 2 * (n - 2)).min()))


def _p_value(slope: np.ndarray, rest: np.ndarray, df: int) -> np.ndarray:
    """Of a slope on a unit vector, given the sum of squares that is left: Student's t, one-sided."""
    # Without noise nothing is left, and a slope is certain.
    t = slope / np.sqrt(np.maximum(rest, ROUNDING * slope**2 + np.finfo(float).tiny) / df)
    p: np.ndarray = special.stdtr(df, -t)
    return p


def _scaled(h: Halves, share: float) -> _Scaled | None:
    """``None`` where there is nothing to test: fewer than three clients, or no difference beyond rounding."""
    n, whole = len(h.mean), h.mean + h.noise  # (A Aᵀ + B Bᵀ) / 2
    tiny = ROUNDING * float(np.diagonal(whole).max())
    if n < 3 or not tiny > 0:
        return None
    level = np.maximum(np.diagonal(h.noise), tiny)
    weight = 1 / np.sqrt(level)
    weight /= weight.sum()
    apart = np.diagonal(whole) - 2 * whole @ weight + weight @ whole @ weight
    if apart.max() <= tiny:
        return None
    scale = np.maximum(apart / apart.max(), ROUNDING) ** (-_unequal(level, share) / 2)
    unit = scale / np.linalg.norm(scale)
    project = np.eye(n) - np.outer(unit, unit)

    def centred(products: np.ndarray) -> np.ndarray:
        out: np.ndarray = project @ (np.outer(scale, scale) * products) @ project
        return out

    both = h.mixed + h.mixed.T
    alone = np.maximum(np.diagonal(project), ROUNDING)
    return _Scaled(centred(whole + both), centred(whole - both), centred(h.mean - h.noise - h.mixed + h.mixed.T), alone)


def _unequal(level: np.ndarray, share: float) -> float:
    """k: 0 where noise levels ``(n,)`` vary as equal noise would by chance, 1 where they vary twice as much or more.

    They vary by the variance of their logarithms, or, lest one client be overlooked among many, by the square of the largest
    one's distance from the median, which is ``2 log n`` times as much by chance.
    """
    logs, by_chance = np.log(level), 2 * share
    above = float(logs.max() - np.median(logs)) ** 2 / (2 * np.log(len(logs)))
    spread = max(float(logs.var(ddof=1)), above)
    return min(max(2 * (1 - by_chance / spread), 0.0), 1.0) if spread > 0 else 0.0
