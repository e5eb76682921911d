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

from coterie.clustering.congruence import MIN_SHARE, Congruence, Contrast, compared
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
    def of(cls, first_halves: np.ndarray, second_halves: np.ndarray) -> Moments:
        """Return the sums of n clients: rows ``(n, k)`` of their first and second halves, in float64."""
        # The whole update is the mean of both halves; half of their difference is noise alone.
        updates = (first_halves + second_halves) / 2
        half_differences = (first_halves - second_halves) / 2
        fourth_moment = float(((half_differences**2).sum(axis=1) ** 2).sum())
        return cls(
            len(first_halves),
            updates.sum(axis=0),
            updates.T @ updates,
            half_differences.T @ half_differences,
            fourth_moment,
        )

    def vector(self) -> np.ndarray:
        """Return all sums as one vector of :func:`length` numbers; vectors of clients add up to the vector of their group."""
        # Of symmetric matrices, the upper triangle is enough.
        upper_indices = np.triu_indices(len(self.total))
        return np.concatenate(
            [
                [self.count, self.fourth],
                self.total,
                self.products[upper_indices],
                self.noise[upper_indices],
            ]
        )

    @classmethod
    def from_vector(cls, sum_vector: np.ndarray, k: int) -> Moments:
        """Return the sums of a vector.

        Raises:
            ValueError: It has another length than sums of sketches of k numbers.
        """
        if len(sum_vector) != length(k):
            raise ValueError(
                f"sums of sketches of {k} numbers have {length(k)} numbers, got {len(sum_vector)}"
            )
        update_total, product_triangle, noise_triangle = np.split(
            sum_vector[2:], [k, k + k * (k + 1) // 2]
        )
        return cls(
            count=float(sum_vector[0]),
            total=update_total,
            products=_symmetric(product_triangle, k),
            noise=_symmetric(noise_triangle, k),
            fourth=float(sum_vector[1]),
        )

    def __add__(self, other_moments: Moments) -> Moments:
        """Return the sums of both groups together."""
        return Moments.from_vector(self.vector() + other_moments.vector(), len(self.total))

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


def _symmetric(upper_triangle: np.ndarray, k: int) -> np.ndarray:
    """The symmetric matrix ``(k, k)`` with this upper triangle, row after row."""
    full_matrix = np.zeros((k, k))
    full_matrix[np.triu_indices(k)] = upper_triangle
    return full_matrix + np.triu(full_matrix, 1).T


def congruence_from_sums(group_sums: Moments) -> Congruence:
    """Test whether the clients of a group have the same signal: :func:`~coterie.clustering.congruence` from sums alone.

    Args:
        group_sums: The sums of the group.

    Returns:
        The result of the test, of the spread alone; p is 1 for a single client.

    Example:
        >>> rng = np.random.default_rng(2)
        >>> signal, noise = np.repeat([[0.0] * 50, [1.0] * 50], 4, axis=0), rng.normal(size=(2, 8, 50))
        >>> congruence_from_sums(Moments.of(*(signal + noise))).p < 1e-5, congruence_from_sums(Moments.of(*noise)).p > 0.05
        (True, True)
    """
    n = round(group_sums.count)
    scatter = group_sums.scatter
    if n < 2:
        return Congruence(n, 0.0, 0.0, math.inf, math.inf, 1.0, None, None, 1.0)
    # The observed spread X = tr S, and Y = (1 - 1/n) tr N, which the noise alone would give.
    observed_spread = float(np.trace(scatter))
    noise_level = float(np.trace(group_sums.noise))
    # How many directions the noise has, which decides how much its norm varies.
    degrees_of_freedom = n * (n - 1)
    inverse_dimension = _inverse_dimension(scatter, group_sums.noise)
    # The variance of Y has the squares of single levels, and the products of two.
    squared_levels = _squared_levels(group_sums, inverse_dimension)
    sum_of_squares = (1 - 1 / n) ** 2 * squared_levels
    sum_of_pairs = (noise_level**2 - squared_levels) / n**2
    rounding = SQUARE_ROUNDING * n * float(np.trace(group_sums.products) + noise_level)
    spread_excess = compared(
        observed_spread,
        (1 - 1 / n) * noise_level,
        sum_of_squares,
        sum_of_pairs,
        inverse_dimension,
        degrees_of_freedom,
        rounding,
    ).excess_at()
    effective_dimension = 1 / inverse_dimension
    return Congruence(
        n,
        spread_excess.value,
        spread_excess.z,
        effective_dimension,
        degrees_of_freedom,
        spread_excess.p,
        None,
        None,
        spread_excess.p,
    )


def contrast_from_sums(
    first_group: Moments, second_group: Moments, further_groups: Iterable[Moments] = ()
) -> Contrast:
    """Test whether two groups have the same mean signal: :func:`~coterie.clustering.contrast` from sums alone.

    Args:
        first_group: The sums of one group, of one client or more.
        second_group: Those of the other group, of sketches from the same model by the same map.
        further_groups: The sums of further groups, from which the effective dimension of the noise is
            estimated as well.

    Returns:
        The squared distance of the mean signals, without the bias of noise, and its p-value.

    Example:
        >>> noise = np.random.default_rng(2).normal(size=(2, 2, 5, 50))
        >>> first, second = Moments.of(*noise[0]), Moments.of(*(1 + noise[1]))
        >>> contrast = contrast_from_sums(first, second)
        >>> contrast.p < 1e-6, 45 < contrast.distance < 55, contrast_from_sums(first, Moments.of(*noise[1])).p > 0.05
        (True, True, True)
    """
    groups = (first_group, second_group)
    all_groups = (first_group, second_group, *further_groups)
    # The distance of the mean signals, which noise alone makes positive as well.
    difference = first_group.total / first_group.count - second_group.total / second_group.count
    squared_distance = float(difference @ difference)
    noise_levels = [float(np.trace(group_sums.noise)) for group_sums in groups]
    # The effective dimension is that of the noise of all groups, but noise along the difference
    # counts for no less than it is.
    noise_along = float(difference @ (first_group.noise + second_group.noise) @ difference)
    share_along = noise_along / max(squared_distance * sum(noise_levels), 1e-300)
    scatter: np.ndarray = np.sum([group_sums.scatter for group_sums in all_groups], axis=0)
    noise_scatter: np.ndarray = np.sum([group_sums.noise for group_sums in all_groups], axis=0)
    inverse_dimension = min(max(_inverse_dimension(scatter, noise_scatter), share_along), 1.0)
    # What the noise of both means alone would give, and the squares of it for each group.
    expected_distance = 0.0
    sum_of_squares = 0.0
    for group_sums, noise_level in zip(groups, noise_levels, strict=True):
        expected_distance += noise_level / group_sums.count**2
        sum_of_squares += _squared_levels(group_sums, inverse_dimension) / group_sums.count**4
    degrees_of_freedom = max(
        sum(round(group_sums.count) * (round(group_sums.count) - 1) for group_sums in all_groups), 1
    )
    rounding = SQUARE_ROUNDING * float(
        sum(np.trace(group_sums.products) for group_sums in groups) + sum(noise_levels)
    )
    distance_excess = compared(
        squared_distance,
        expected_distance,
        sum_of_squares,
        max(expected_distance**2 - sum_of_squares, 0.0),
        inverse_dimension,
        degrees_of_freedom,
        rounding,
    ).excess_at()
    # The standard deviation of the squared distance, if the means do differ.
    signal_variance = sum(
        float(difference @ group_sums.noise @ difference) / group_sums.count**2
        for group_sums in groups
    )
    standard_deviation = max(distance_excess.sd, 2 * math.sqrt(signal_variance))
    return Contrast(
        distance_excess.value,
        standard_deviation,
        distance_excess.z,
        degrees_of_freedom,
        distance_excess.p,
    )


def _inverse_dimension(scatter: np.ndarray, noise_scatter: np.ndarray) -> float:
    """``1/r``, the second mean of :mod:`~coterie.clustering.congruence`."""
    # Without noise, or without spread, nothing can be estimated.
    trace_product = float(np.trace(scatter) * np.trace(noise_scatter))
    if not trace_product > 0:
        return MIN_SHARE
    return min(max(float((scatter * noise_scatter).sum()) / trace_product, MIN_SHARE), 1.0)


def _squared_levels(group_sums: Moments, inverse_dimension: float) -> float:
    """The sum of squared noise levels.

    The square of a level is too large on average by the factor 1 + 2/r; levels are at least as
    unequal as equal ones.
    """
    # By the inequality of Cauchy and Schwarz, a sum of squares is least for equal levels.
    of_equal_levels = float(np.trace(group_sums.noise)) ** 2 / group_sums.count
    return max(group_sums.fourth / (1 + 2 * inverse_dimension), of_equal_levels)


_PART_WEIGHTS = np.array([0.2, 0.3, 0.5, 0.2, 0.75])
_PART_WEIGHTS /= np.linalg.norm(_PART_WEIGHTS)
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
    def of(cls, first_halves: np.ndarray, second_halves: np.ndarray) -> Crossed:
        """Return the sums of n clients: rows ``(n, k)`` of their first and second halves."""
        # The noise of both halves is independent, so products of the two have no bias by it.
        half_products = (first_halves * second_halves).sum(axis=1)
        cross_products = first_halves.T @ second_halves
        return cls(
            count=len(first_halves),
            totals=np.stack([first_halves.sum(axis=0), second_halves.sum(axis=0)]),
            dot=float(half_products.sum()),
            square=float((half_products**2).sum()),
            products=(cross_products + cross_products.T) / 2,
        )

    def vector(self) -> np.ndarray:
        """Return all sums as one vector of :func:`crossed_length` numbers."""
        upper_indices = np.triu_indices(len(self.products))
        answer_parts = [
            [self.count],
            self.totals.ravel() / math.sqrt(2),
            [self.dot],
            [self.square],
            # With these factors the triangle has the norm of the whole matrix.
            self.products[upper_indices] * _triangle_factors(upper_indices),
        ]
        weighted_parts = zip(_PART_WEIGHTS, answer_parts, strict=True)
        return np.concatenate(
            [part_weight * np.asarray(answer_part) for part_weight, answer_part in weighted_parts]
        )

    @classmethod
    def from_vector(cls, answer_sum: np.ndarray) -> Crossed:
        """Return the sums of a vector."""
        # Undo the weights and the factors of the vector.
        k = _sketch_size(len(answer_sum))
        weighted_parts = np.split(answer_sum, np.cumsum([1, 2 * k, 1, 1]))
        count_part, totals_part, dot_part, square_part, products_part = (
            answer_part / part_weight
            for part_weight, answer_part in zip(_PART_WEIGHTS, weighted_parts, strict=True)
        )
        upper_triangle = products_part / _triangle_factors(np.triu_indices(k))
        return cls(
            count=float(count_part[0]),
            totals=totals_part.reshape(2, k) * math.sqrt(2),
            dot=float(dot_part[0]),
            square=float(square_part[0]),
            products=_symmetric(upper_triangle, k),
        )


def _triangle_factors(upper_indices: tuple[np.ndarray, ...]) -> np.ndarray:
    """1 for each place on the diagonal of a symmetric matrix, and √2 for each above it, which stands for two."""
    return np.where(upper_indices[0] == upper_indices[1], 1.0, math.sqrt(2))


def crossed_length(k: int) -> int:
    """Return how many numbers the :class:`Crossed` of sketches of k numbers are.

    Example:
        >>> crossed_length(16)
        171
    """
    return 3 + 2 * k + k * (k + 1) // 2


def _sketch_size(answer_length: int) -> int:
    """k, the numbers of a sketch, from :func:`crossed_length`."""
    return round((math.sqrt(25 + 8 * (answer_length - 3)) - 5) / 2)


def crossed_congruence(cell_sums: Crossed, deviation: float = 0.0) -> tuple[float, float]:
    """Test whether the clients of a cell have the same signal, from sums with noise.

    Args:
        cell_sums: The sums of the cell.
        deviation: Standard deviation of the noise on each number of the vector.

    Returns:
        How much the clients' signals differ, ``Σ a·b - Σa·Σb / n``, and the p-value, one-sided.

    Example:
        >>> rng = np.random.default_rng(2)
        >>> signal, noise = np.repeat([[0.0] * 8, [0.2] * 8], 60, axis=0), 0.1 * rng.normal(size=(2, 120, 8))
        >>> crossed_congruence(Crossed.of(*(signal - 0.1 + noise)))[1] < 1e-9, crossed_congruence(Crossed.of(*noise))[1] > 0.05
        (True, True)
    """
    n = max(cell_sums.count, 2.0)
    k = cell_sums.totals.shape[1]
    _, noise_of_totals, noise_of_dot, _, _ = deviation / _PART_WEIGHTS
    signal_spread = cell_sums.dot - float(cell_sums.totals[0] @ cell_sums.totals[1]) / n
    # The variance of the spread: that of a·b between the clients, and those of the noise on Σ a·b
    # and on the product of both totals.
    clients_variance = max(cell_sums.square - cell_sums.dot**2 / n, 0.0)
    squared_totals = float((cell_sums.totals**2).sum()) + 2 * k * noise_of_totals**2
    product_variance = 2 * noise_of_totals**2 * squared_totals / n**2
    variance = clients_variance + noise_of_dot**2 + product_variance
    if variance <= 0:
        return signal_spread, 1.0
    return signal_spread, float(scipy.special.stdtr(n - 1, -signal_spread / math.sqrt(variance)))


def crossed_axis(cell_sums: Crossed) -> tuple[np.ndarray, float]:
    """Return the direction ``(k,)`` of length 1 along which the clients' signals differ most, and its variance."""
    n = max(cell_sums.count, 2.0)
    # The centred cross products of both halves, made symmetric.
    product_of_totals = np.outer(*cell_sums.totals)
    scatter = cell_sums.products - (product_of_totals + product_of_totals.T) / 2 / n
    eigenvalues, eigenvectors = np.linalg.eigh(scatter)
    direction: np.ndarray = eigenvectors[:, -1]
    return direction, max(float(eigenvalues[-1]), 0.0) / n


def axis(cell_sums: Moments) -> np.ndarray:
    """Return the direction ``(k,)`` of length 1 along which the clients' signals differ most, without the noise's share."""
    # The scatter that noise alone would give is subtracted.
    signal_scatter = cell_sums.scatter - (1 - 1 / cell_sums.count) * cell_sums.noise
    _, eigenvectors = np.linalg.eigh(signal_scatter)
    direction: np.ndarray = eigenvectors[:, -1]
    return direction


def histogram_cut(bin_counts: np.ndarray) -> int | None:
    """Return where to cut a histogram in two, so that the variance within both sides is least.

    Args:
        bin_counts: Shape ``(bins,)``, how many clients are in each bin; noise may make some negative,
            which count as none.

    Returns:
        The first bin of the second side; None if one bin has all clients.

    Example:
        >>> histogram_cut(np.array([2, 3, 0, 0, 1, 4]))
        3
    """
    bin_counts = np.maximum(bin_counts, 0.0)
    bin_places = np.arange(len(bin_counts))
    left_counts = np.cumsum(bin_counts)[:-1]
    right_counts = bin_counts.sum() - left_counts
    if not ((left_counts > 0) & (right_counts > 0)).any():
        return None
    # The total variance is that within the sides plus that between them, which is greatest here.
    left_sums = np.cumsum(bin_counts * bin_places)[:-1]
    right_sums = (bin_counts * bin_places).sum() - left_sums
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = left_sums / left_counts - right_sums / right_counts
        between = np.nan_to_num(left_counts * right_counts * distances**2, nan=-1.0)
    # All cuts through the same empty bins are equal: take the one in the middle.
    best_cuts = np.flatnonzero(between >= between.max() * (1 - 1e-12))
    return int(best_cuts[len(best_cuts) // 2]) + 1
