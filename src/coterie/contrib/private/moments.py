"""The split-half test from sums over clients, which need not show any client.

Coterie's own; letters and assumptions as in ``coterie.clustering.halves``. Clients map both half
updates to k numbers, by the same random map (:func:`~coterie.clustering.sketch`). The map is
linear, so clients with the same signal have the same one after it, and the test keeps its level. Of
the sketches of whole updates ``M_i`` and noise ``D_i`` only these sums over the clients of a group
are needed (:class:`Moments`): their number, ``Σ M_i``, ``Σ M_i M_iᵀ``, ``N = Σ D_i D_iᵀ``, and ``Σ
‖D_i‖⁴``. They can be computed under masks (``coterie.contrib.private.masks``).

- The *spread* is a trace, ``X = tr S`` with the centred scatter S of the whole updates, and ``Y =
  (1 - 1/n) tr N``. The effective dimension is ``r = tr S tr N / tr(S N)``, the second mean of
  :mod:`~coterie.clustering.congruence`.
- The *axis* along which clients differ is the leading eigenvector of ``S - (1 - 1/n) N``. A
  histogram of the clients' coordinates on it, which is a sum too, gives the cut of least variance
  within (:func:`histogram_cut`).

- Behind noise that makes the sums differentially private, :class:`Crossed` is enough: with halves a
  and b, of independent noise, ``Σ a·b - Σa·Σb / n`` is zero on average if all signals are the same,
  and its variance is n times that of ``a·b`` at most. No assumption is made about the noise
  (:func:`crossed_congruence`).

What sums cannot give: single noise levels, so that levels count as equal but for the variance that
``Σ ‖D_i‖⁴`` shows; and the tests of one half by the other, which need levels: with weights that are
all equal, twenty clients whose levels are inverse to sizes from a third to double made ten times as
many false alarms at 0.001 as they should.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy

from coterie.clustering.congruence import MIN_SHARE, Congruence, Contrast, Noise, compared
from coterie.clustering.halves import SQUARE_ROUNDING


@dataclass(frozen=True)
class Moments:
    """Sums over the clients of a group, of the sketches ``(k,)`` of whole updates M and noise D.

    Attributes:
        count: n, the number of clients.
        total: ``Σ M``, shape ``(k,)``.
        products: ``Σ M Mᵀ``, shape ``(k, k)``.
        noise: N: ``Σ D Dᵀ``, shape ``(k, k)``. It is not centred: the mean of noise is zero.
        fourth: ``Σ ‖D‖⁴``.

    Example:
        >>> a, b = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 2.0], [3.0, 2.0]])
        >>> both = Moments.of(a, b)
        >>> vectors = [Moments.of(a[i : i + 1], b[i : i + 1]).vector() for i in (0, 1)]
        >>> float(abs(Moments.from_vector(vectors[0] + vectors[1], 2).products - both.products).max())
        0.0
    """

    count: float
    total: np.ndarray
    products: np.ndarray
    noise: np.ndarray
    fourth: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> Moments:
        """Return the sums of n clients: rows ``(n, k)`` of their first and second halves, in float64."""
        mean, noise = (a + b) / 2, (a - b) / 2
        fourth = float(((noise**2).sum(axis=1) ** 2).sum())
        return cls(len(a), mean.sum(axis=0), mean.T @ mean, noise.T @ noise, fourth)

    def vector(self) -> np.ndarray:
        """Return all sums as one vector of :func:`length` numbers; vectors of clients add up to the vector of their group."""
        upper = np.triu_indices(len(self.total))
        return np.concatenate(
            [[self.count, self.fourth], self.total, self.products[upper], self.noise[upper]]
        )

    @classmethod
    def from_vector(cls, vector: np.ndarray, k: int) -> Moments:
        """Return the sums of a vector.

        Raises:
            ValueError: It has another length than sums of sketches of k numbers.
        """
        if len(vector) != length(k):
            raise ValueError(
                f"sums of sketches of {k} numbers have {length(k)} numbers, got {len(vector)}"
            )
        total, products, noise = np.split(vector[2:], [k, k + k * (k + 1) // 2])
        return cls(
            float(vector[0]), total, _symmetric(products, k), _symmetric(noise, k), float(vector[1])
        )

    def __add__(self, other: Moments) -> Moments:
        """Return the sums of both groups together."""
        return Moments.from_vector(self.vector() + other.vector(), len(self.total))

    @property
    def scatter(self) -> np.ndarray:
        """S: the centred scatter ``(k, k)`` of the whole updates."""
        return self.products - np.outer(self.total, self.total) / self.count


def length(k: int) -> int:
    """Return how many numbers the sums of sketches of k numbers are.

    Example:
        >>> length(64)
        4226
    """
    return 2 + k + k * (k + 1)


def _symmetric(upper: np.ndarray, k: int) -> np.ndarray:
    out = np.zeros((k, k))
    out[np.triu_indices(k)] = upper
    return out + np.triu(out, 1).T


def congruence_from_sums(sums: Moments) -> Congruence:
    """Test whether the clients of a group have the same signal: :func:`~coterie.clustering.congruence` from sums alone.

    Args:
        sums: The sums of the group.

    Returns:
        The result of the test, of the spread alone; p is 1 for a single client.

    Example:
        >>> rng = np.random.default_rng(2)
        >>> signal, noise = np.repeat([[0.0] * 50, [1.0] * 50], 4, axis=0), rng.normal(size=(2, 8, 50))
        >>> congruence_from_sums(Moments.of(*(signal + noise))).p < 1e-5, congruence_from_sums(Moments.of(*noise)).p > 0.05
        (True, True)
    """
    n, scatter = round(sums.count), sums.scatter
    if n < 2:
        return Congruence(n, 0.0, 0.0, math.inf, math.inf, 1.0, None, None, 1.0)
    observed, total, df = float(np.trace(scatter)), float(np.trace(sums.noise)), n * (n - 1)
    share = _share(scatter, sums.noise)
    squares = _squares(sums, share)
    own, pairs = (1 - 1 / n) ** 2 * squares, (total**2 - squares) / n**2
    nothing = SQUARE_ROUNDING * n * float(np.trace(sums.products) + total)
    found = compared(observed, (1 - 1 / n) * total, own, pairs, Noise(share, df), nothing)
    return Congruence(n, found.value, found.z, 1 / share, df, found.p, None, None, found.p)


def contrast_from_sums(one: Moments, other: Moments, more: Iterable[Moments] = ()) -> Contrast:
    """Test whether two groups have the same mean signal: :func:`~coterie.clustering.contrast` from sums alone.

    Args:
        one: The sums of one group, of one client or more.
        other: Those of the other group, of sketches from the same model by the same map.
        more: The sums of further groups, from which the effective dimension of the noise is
            estimated as well.

    Returns:
        The squared distance of the mean signals, without the bias of noise, and its p-value.

    Example:
        >>> noise = np.random.default_rng(2).normal(size=(2, 2, 5, 50))
        >>> one, other = Moments.of(*noise[0]), Moments.of(*(1 + noise[1]))
        >>> found = contrast_from_sums(one, other)
        >>> found.p < 1e-6, 45 < found.distance < 55, contrast_from_sums(one, Moments.of(*noise[1])).p > 0.05
        (True, True, True)
    """
    groups, known = (one, other), (one, other, *more)
    apart = one.total / one.count - other.total / other.count
    noise = one.noise + other.noise
    levels = [float(np.trace(group.noise)) for group in groups]
    along = float(apart @ noise @ apart) / max(float(apart @ apart) * sum(levels), 1e-300)
    scatter: np.ndarray = np.sum([group.scatter for group in known], axis=0)
    share = min(max(_share(scatter, np.sum([group.noise for group in known], axis=0)), along), 1.0)
    squares = [_squares(group, share) for group in groups]
    expected = sum(level / group.count**2 for group, level in zip(groups, levels, strict=True))
    own = sum(square / group.count**4 for group, square in zip(groups, squares, strict=True))
    df = sum(round(group.count) * (round(group.count) - 1) for group in known)
    nothing = SQUARE_ROUNDING * float(
        sum(np.trace(group.products) for group in groups) + sum(levels)
    )
    found = compared(
        float(apart @ apart),
        expected,
        own,
        max(expected**2 - own, 0.0),
        Noise(share, max(df, 1)),
        nothing,
    )
    spread = sum(float(apart @ group.noise @ apart) / group.count**2 for group in groups)
    return Contrast(found.value, max(found.sd, 2 * math.sqrt(spread)), found.z, max(df, 1), found.p)


def _share(scatter: np.ndarray, noise: np.ndarray) -> float:
    """``1/r``, the second mean of :mod:`~coterie.clustering.congruence`."""
    both = float(np.trace(scatter) * np.trace(noise))
    return (
        min(max(float((scatter * noise).sum()) / both, MIN_SHARE), 1.0) if both > 0 else MIN_SHARE
    )


def _squares(sums: Moments, share: float) -> float:
    """The sum of squared noise levels.

    The square of a level is too large on average by the factor 1 + 2/r; levels are at least as
    unequal as equal ones.
    """
    return max(sums.fourth / (1 + 2 * share), float(np.trace(sums.noise)) ** 2 / sums.count)


_PARTS = np.array([0.2, 0.3, 0.5, 0.2, 0.75])
_PARTS /= np.linalg.norm(_PARTS)
"""Weights of count, halves, dot, square and products in an answer, each of which has norm 1 at most
without them."""


@dataclass(frozen=True)
class Crossed:
    """Sums over the clients of a cell, of the sketches ``(k,)`` of their halves a and b, each of norm 1 at most.

    Halves are relative to the centre of the cell. The vector of a single client has norm 1 at most.

    Attributes:
        count: n, the number of clients.
        totals: ``Σ a`` and ``Σ b``, shape ``(2, k)``.
        dot: ``Σ a·b``.
        square: ``Σ (a·b)²``.
        products: ``Σ (a bᵀ + b aᵀ) / 2``, shape ``(k, k)``.
    """

    count: float
    totals: np.ndarray
    dot: float
    square: float
    products: np.ndarray

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray) -> Crossed:
        """Return the sums of n clients: rows ``(n, k)`` of their first and second halves."""
        dots, products = (a * b).sum(axis=1), a.T @ b
        totals = np.stack([a.sum(axis=0), b.sum(axis=0)])
        return cls(
            len(a), totals, float(dots.sum()), float((dots**2).sum()), (products + products.T) / 2
        )

    def vector(self) -> np.ndarray:
        """Return all sums as one vector of :func:`crossed_length` numbers."""
        upper = np.triu_indices(len(self.products))
        twice = np.where(
            upper[0] == upper[1], 1.0, math.sqrt(2)
        )  # then its norm is that of the whole matrix
        parts = [
            [self.count],
            self.totals.ravel() / math.sqrt(2),
            [self.dot],
            [self.square],
            self.products[upper] * twice,
        ]
        return np.concatenate(
            [weight * np.asarray(part) for weight, part in zip(_PARTS, parts, strict=True)]
        )

    @classmethod
    def from_vector(cls, vector: np.ndarray) -> Crossed:
        """Return the sums of a vector."""
        k = _size(len(vector))
        count, totals, dot, square, products = (
            part / weight
            for weight, part in zip(
                _PARTS, np.split(vector, np.cumsum([1, 2 * k, 1, 1])), strict=True
            )
        )
        upper = np.triu_indices(k)
        products = products / np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
        totals = totals.reshape(2, k) * math.sqrt(2)
        return cls(
            float(count[0]), totals, float(dot[0]), float(square[0]), _symmetric(products, k)
        )


def crossed_length(k: int) -> int:
    """Return how many numbers the :class:`Crossed` of sketches of k numbers are.

    Example:
        >>> crossed_length(16)
        171
    """
    return 3 + 2 * k + k * (k + 1) // 2


def _size(length: int) -> int:
    return round((math.sqrt(25 + 8 * (length - 3)) - 5) / 2)


def crossed_congruence(sums: Crossed, deviation: float = 0.0) -> tuple[float, float]:
    """Test whether the clients of a cell have the same signal, from sums with noise.

    Args:
        sums: The sums of the cell.
        deviation: Standard deviation of the noise on each number of the vector.

    Returns:
        How much the clients' signals differ, ``Σ a·b - Σa·Σb / n``, and the p-value, one-sided.

    Example:
        >>> rng = np.random.default_rng(2)
        >>> signal, noise = np.repeat([[0.0] * 8, [0.2] * 8], 60, axis=0), 0.1 * rng.normal(size=(2, 120, 8))
        >>> crossed_congruence(Crossed.of(*(signal - 0.1 + noise)))[1] < 1e-9, crossed_congruence(Crossed.of(*noise))[1] > 0.05
        (True, True)
    """
    n, (_, halves, dot, _, _), k = max(sums.count, 2.0), deviation / _PARTS, sums.totals.shape[1]
    spread = sums.dot - float(sums.totals[0] @ sums.totals[1]) / n
    of_totals = 2 * halves**2 * (float((sums.totals**2).sum()) + 2 * k * halves**2) / n**2
    variance = max(sums.square - sums.dot**2 / n, 0.0) + dot**2 + of_totals
    if variance <= 0:
        return spread, 1.0
    return spread, float(scipy.special.stdtr(n - 1, -spread / math.sqrt(variance)))


def crossed_axis(sums: Crossed) -> tuple[np.ndarray, float]:
    """Return the direction ``(k,)`` of length 1 along which the clients' signals differ most, and its variance."""
    n = max(sums.count, 2.0)
    both = np.outer(*sums.totals)
    values, directions = np.linalg.eigh(sums.products - (both + both.T) / 2 / n)
    direction: np.ndarray = directions[:, -1]
    return direction, max(float(values[-1]), 0.0) / n


def axis(sums: Moments) -> np.ndarray:
    """Return the direction ``(k,)`` of length 1 along which the clients' signals differ most, without the noise's share."""
    direction: np.ndarray = np.linalg.eigh(sums.scatter - (1 - 1 / sums.count) * sums.noise)[1][
        :, -1
    ]
    return direction


def histogram_cut(counts: np.ndarray) -> int | None:
    """Return where to cut a histogram in two, so that the variance within both sides is least.

    Args:
        counts: Shape ``(bins,)``, how many clients are in each bin; noise may make some negative,
            which count as none.

    Returns:
        The first bin of the second side; None if one bin has all clients.

    Example:
        >>> histogram_cut(np.array([2, 3, 0, 0, 1, 4]))
        3
    """
    counts = np.maximum(counts, 0.0)
    left, places = np.cumsum(counts)[:-1], np.arange(len(counts))
    right = counts.sum() - left
    sums = np.cumsum(counts * places)[:-1]
    if not ((left > 0) & (right > 0)).any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.nan_to_num(
            left * right * (sums / left - ((counts * places).sum() - sums) / right) ** 2, nan=-1.0
        )
    best = np.flatnonzero(
        between >= between.max() * (1 - 1e-12)
    )  # empty bins between the sides: cut in the middle of them
    return int(best[len(best) // 2]) + 1
