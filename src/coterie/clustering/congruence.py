"""The split-half test: whether the clients of a group are congruent, or differ by more than chance explains.

This test is Coterie's own; letters and assumptions as in :mod:`~coterie.clustering.halves`. Under
the hypothesis that all members have the same signal, the differences between their whole updates M
are noise, and the noise D is another draw of the same distribution. So the two are compared. There
is no threshold except the probability of a false alarm.

**Spread.** ``X = ‖C M‖²`` with C centring is compared with its average under noise alone, ``Y = (1
- 1/n) Σ ‖D_i‖²``. ``T = X - Y`` is the trace of the centred
:func:`~coterie.clustering.signal_gram`. Its expectation is ``Σ ‖s_i - s̄‖²``, zero under the
hypothesis. Let noise have covariance ``c_i Λ``. Then, for Gaussian noise, ``Var X = 2 tr Λ² Σ_ij
C_ij² c_i c_j`` and ``Var Y = 2 tr Λ² Σ_i C_ii² c_i²``, and X and Y are independent. With the
*effective dimension* ``r = (tr Λ)² / tr Λ²`` and ``‖D_i‖²`` in place of ``c_i tr Λ``, both are
known multiples of ``1/r``. A sum of squares with mean μ and variance v is nearly ``μ χ²_ν / ν``
with ``ν = 2 μ² / v`` (Satterthwaite), and exactly so if Λ has r equal eigenvalues. So X/Y is
compared with Fisher's F with these two ν. For large r it is normal.

**Effective dimension.** ``1/r`` is the average of ``cos²(M_i - M̄, D_j)`` over all i and j: under
the hypothesis, both are independent draws of the same noise. (It measures the noise along the
observed differences. So a few directions with much of the noise have an effect when they matter.)
Two means are computed: the mean of the squared cosines, in which clients with little noise count
like others, and the mean of the products over the mean of the norms, which has no bias if noise has
few great directions. The larger one counts. It is an estimate from about ``n (n - 1)`` independent
products, so ``1/r`` varies like ``χ²_df / df``, and the normal score of X/Y is compared with
Student's t with df degrees of freedom. If noise levels differ, the M_i - M̄ are correlated beyond
``-1/(n-1)``, and df is ``n³ / Σ_ij corr_ij²``.

**Direction, odd one out.** Two more tests, of :mod:`~coterie.clustering.halves`, find much smaller
differences between two groups, or between one client and all others. They need :data:`MIN_HALF_TEST_CLIENTS` clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from coterie.clustering import _checks
from coterie.clustering.geometry import leading_vector
from coterie.clustering.halves import (
    SQUARE_ROUNDING,
    Halves,
    centred,
    centred_squares,
    clients_of,
    half_tests,
    halves,
    signals,
)
from coterie.settings.calls import public

MIN_HALF_TEST_CLIENTS = 8
"""With fewer clients, the tests of one half by the other have too few degrees of freedom to be
useful."""


@public
@dataclass(frozen=True)
class Congruence:
    """The result of the split-half test of a group.

    Attributes:
        clients: n.
        spread: ``T``, unbiased for ``Σ ‖s_i - s̄‖²``.
        z: T over its standard deviation under the hypothesis.
        dimension: r, the effective dimension of the noise.
        df: The degrees of freedom from which r is estimated; ``inf`` if r was given.
        p_spread: The p-value of the spread.
        p_direction: The p-value of the direction test; ``None`` if n is too small for it.
        p_odd: The p-value of the odd-one-out test; ``None`` if n is too small for it.
        p: The smallest p-value times the number of tests, at most 1 (Bonferroni): the probability
            of so much difference, or more, if all members have the same signal.
    """

    clients: int
    spread: float
    z: float
    dimension: float
    df: float
    p_spread: float
    p_direction: float | None
    p_odd: float | None
    p: float


class Noise(NamedTuple):
    """The effective dimension of noise.

    Attributes:
        share: ``1/r``.
        df: Degrees of freedom of that estimate.
    """

    share: float
    df: float


class Excess(NamedTuple):
    """A sum of squares, compared with its average under noise alone.

    Attributes:
        value: The sum minus that average.
        sd: The standard deviation of ``value`` under the hypothesis.
        z: Their ratio.
        p: The p-value.
    """

    value: float
    sd: float
    z: float
    p: float


class Excesses(NamedTuple):
    """:class:`Excess` of several sums of squares: arrays of one shape, which is ``()`` for a single sum."""

    value: np.ndarray
    sd: np.ndarray
    z: np.ndarray
    p: np.ndarray

    def excess_at(self, position: int | tuple[()] = ()) -> Excess:
        """Return the result at a position; without one, that of a single sum."""
        return Excess(*(float(numbers[position]) for numbers in self))


Numbers = float | np.ndarray
"""A number; for several tests at once, an array."""


@public
def congruence(
    gram: Any, members: Iterable[int] | None = None, dimension: float | None = None
) -> Congruence:
    """Test whether the members have the same signal.

    The test assumes Gaussian noise whose covariances are multiples of each other, c_i Λ. All
    clients must train their halves for the same number of steps, because unequal work makes updates
    differ. Test a group by the halves of its members alone: the noise of other clients has other
    directions, r would seem too large, and p too small.

    False alarms at p < 0.001, in 3,000 to 30,000 draws each: at most 0.001 for 2 to 20 clients and
    noise in equal directions, 2 to 1,000 of them; up to 0.002 if noise levels are the inverse of
    sizes from a third to double. There are more in extreme cases: 0.005 for 20 clients in 10
    dimensions of which one has nine times the noise of the others, 0.005 for 4 clients if half of
    the noise's variance is in one direction, 0.002 for 20 clients and 0.0045 for 40 if the noise of
    every parameter is Student's t with 3 degrees of freedom. A second probe that must confirm the
    first costs little and guards against them: :func:`repeated_p`.

    Without noise, ``a = b``, p is 0 if clients differ by more than rounding, and 1 if not.

    Args:
        gram: Shape ``(2n, 2n)``, of halves (:func:`~coterie.clustering.halves_gram`).
        members: Positions; all if ``None``. One client is congruent: p = 1.
        dimension: The effective dimension of the noise if it is known, for example from earlier
            rounds or from a larger group of the same model. The members' own estimate counts if it
            is smaller. Without ``dimension``, two clients are split only if they differ enormously,
            because their noise is estimated from two products.

    Returns:
        The result of the test.

    Raises:
        ValueError: As in :func:`~coterie.clustering.signal_gram`, or the dimension is below 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> signal, noise = np.repeat([[0.0] * 50, [1.0] * 50], 4, axis=0), rng.normal(size=(2, 8, 50))
        >>> from coterie.clustering import halves_gram
        >>> congruence(halves_gram(*(signal + noise))).p < 1e-6
        True
        >>> congruence(halves_gram(*noise)).p > 0.05
        True
    """
    group_halves = halves(gram, members)
    return congruence_of(group_halves, noise_of(group_halves, dimension))


def congruence_of(group_halves: Halves, noise_estimate: Noise) -> Congruence:
    """Compute :func:`congruence` of checked halves, with the noise of :func:`noise_of`."""
    n = len(group_halves.mean)
    if n == 1:
        return Congruence(
            1, 0.0, 0.0, _inverse(noise_estimate.share), noise_estimate.df, 1.0, None, None, 1.0
        )
    spread = _spread(group_halves, noise_estimate)
    p_values = [spread.p]
    # The two tests of one half by the other.
    p_direction = p_odd = None
    if n >= MIN_HALF_TEST_CLIENTS:
        p_direction, p_odd = half_tests(group_halves, noise_estimate.share)
        p_values += [p_direction, p_odd]
    # Bonferroni: the smallest p-value times the number of tests.
    return Congruence(
        clients=n,
        spread=spread.value,
        z=spread.z,
        dimension=_inverse(noise_estimate.share),
        df=noise_estimate.df,
        p_spread=spread.p,
        p_direction=p_direction,
        p_odd=p_odd,
        p=min(1.0, len(p_values) * min(p_values)),
    )


def noise_of(group_halves: Halves, dimension: float | None = None) -> Noise:
    """Estimate ``1/r`` and its degrees of freedom from whole updates and noise of one group.

    Args:
        group_halves: The halves of the group.
        dimension: As in :func:`congruence`.

    Returns:
        The estimate.

    Raises:
        ValueError: The dimension is below 1.
    """
    if dimension is not None and not dimension >= 1:
        raise ValueError(
            f"dimension must be an effective dimension, a number >= 1, got {dimension}"
        )
    given_share = 0.0 if dimension is None else 1 / dimension
    n = len(group_halves.levels)
    # ‖D_j‖² and ‖M_i - M̄‖², where these are more than rounding errors.
    noise_levels = group_halves.levels
    deviations = centred_squares(group_halves.mean)
    largest = float(np.diagonal(group_halves.mean).max())
    rounding = SQUARE_ROUNDING * max(largest, np.finfo(float).tiny)
    deviates = deviations > rounding
    has_noise = noise_levels > rounding
    if not (deviates.any() and has_noise.any()):
        return Noise(given_share, math.inf)
    # cos²(M_i - M̄, D_j): the mean of these, and the mean of their products over that of their norms.
    squared_products = group_halves.mixed - group_halves.mixed.mean(axis=0)
    squared_products *= squared_products
    inverse_deviation = np.where(deviates, 1 / np.where(deviates, deviations, 1), 0)
    inverse_level = np.where(has_noise, 1 / np.where(has_noise, noise_levels, 1), 0)
    # One pass over the matrix for both sums.
    divided_sums, sums = np.stack((inverse_deviation, deviates)) @ squared_products
    sum_of_cosines = float(divided_sums @ inverse_level)
    mean_of_cosines = sum_of_cosines / float(deviates.sum() * has_noise.sum())
    norm_product = float(deviations[deviates].sum() * noise_levels[has_noise].sum())
    cosine_of_means = float(sums @ has_noise) / norm_product
    noise_share = max(mean_of_cosines, cosine_of_means)
    df = n**3 / _sum_of_squared_correlations(noise_levels)
    return Noise(min(max(noise_share, given_share), 1.0), df if dimension is None else math.inf)


def _sum_of_squared_correlations(noise_levels: np.ndarray) -> float:
    """``Σ_ij corr_ij²`` of the ``M_i - M̄`` if the M_i are independent, with variances l ``(n,)``.

    Their covariance is ``C diag(l) C``. With ``L = Σ l`` and ``h_i = L/(2 n²) - l_i/n``, it is ``l_i
    + 2 h_i`` on the diagonal, and ``h_i + h_j`` elsewhere.
    """
    n = len(noise_levels)
    halves_of_sum = noise_levels.sum() / (2 * n**2) - noise_levels / n
    variances = noise_levels + 2 * halves_of_sum
    precisions = 1 / np.where(variances > 0, variances, 1.0)
    # Σ_ij (h_i + h_j)² / (v_i v_j) over all pairs, as if the formula also held on the diagonal;
    total = 2 * float(precisions @ halves_of_sum**2) * float(precisions.sum())
    total += 2 * float(precisions @ halves_of_sum) ** 2
    # there, its terms are replaced by those of the variances.
    total -= float(precisions**2 @ (2 * halves_of_sum) ** 2)
    total += float(precisions**2 @ variances**2)
    return total


def _spread(group_halves: Halves, noise: Noise) -> Excess:
    """Test the spread: :func:`excess` with the weights ``W = C``, which centre, without that matrix."""
    n = len(group_halves.levels)
    levels = _levels(group_halves)
    # C_ii = 1 - 1/n, and C_ij = -1/n.
    weight = 1 - 1 / n
    squared_sum = float(levels.sum()) ** 2
    sum_of_squares = float(levels @ levels)
    sums = (
        float(centred_squares(group_halves.mean).sum()),
        weight * float(group_halves.levels.sum()),
        weight**2 * sum_of_squares,
        (squared_sum - sum_of_squares) / n**2,
    )
    largest = weight * float(np.diagonal(group_halves.mean).max())
    return excess(sums, levels, largest, noise.share, noise.df, draws=2).excess_at()


def _levels(group_halves: Halves) -> np.ndarray:
    """Every client's noise level ``(n,)`` if all signals are equal; ``‖M_i - M̄‖²`` is then as good a measure as ``‖D_i‖²``.

    The ratio of two such squares does not depend on their sum. So levels from sums, unlike levels
    from D alone, are not small when the ratio is great. They are scaled to the total of D, so that
    signal does not make all levels greater.
    """
    n = len(group_halves.levels)
    noise_levels = group_halves.levels
    # ‖M_i - M̄‖² n / (n - 1), whose expectation is the noise level where all levels are equal.
    deviations = np.maximum(centred_squares(group_halves.mean), 0.0) * n / (n - 1)
    summed_levels = noise_levels + deviations
    total = summed_levels.sum()
    return summed_levels * noise_levels.sum() / total if total > 0 else noise_levels


def excess(
    sums: tuple[Numbers, Numbers, Numbers, Numbers],
    levels: np.ndarray,
    largest: Numbers,
    noise_share: Numbers,
    df: float,
    draws: int = 1,
) -> Excesses:
    """Test whether ``X = tr(W M Mᵀ)`` is greater than its average under noise alone, ``Y = Σ W_ii ‖D_i‖²``.

    W is a matrix ``(n, n)`` of weights with ``W 1 = 0``. As for C in the module's head: ``Var X =
    (2/r) Σ_ij W_ij² l_i l_j`` and ``Var Y = (2/r) Σ_i W_ii² l_i²`` with noise levels l. The square
    of a level is too large on average because of the level's own variance, by the factor ``1 +
    2/r``, or ``1 + 1/r`` for levels of two draws. This factor is removed (but the result is at least
    that for equal levels).

    Args:
        sums: X, Y, ``Σ_i W_ii² l_i²``, and ``Σ_ij W_ij² l_i l_j`` over pairs ``i ≠ j``; for several
            tests at once, arrays of one shape ``(...)``.
        levels: Shape ``(..., n)``, the noise levels l.
        largest: The largest product of a weight ``W_ii`` and a client's squared update.
        noise_share: ``1/r``; for several tests, of each.
        df: Degrees of freedom of ``1/r``.
        draws: From how many draws each level is.

    Returns:
        The result of each test.
    """
    observed, expected, sum_of_squares, sum_of_pairs = sums
    noise_share = np.maximum(noise_share, MIN_SHARE)
    # The variance of a level makes its square too large, so the squares are divided by the bias;
    # but they are at least the squares of equal levels. Without noise, there is nothing to divide.
    mean_square = (levels**2).mean(axis=-1)
    square_of_equal = levels.mean(axis=-1) ** 2 / np.where(mean_square > 0, mean_square, 1.0)
    bias_factor = 1 + 2 * noise_share / draws
    shrink_factor = np.where(mean_square > 0, np.maximum(1 / bias_factor, square_of_equal), 1.0)
    return compared(
        observed,
        expected,
        shrink_factor * sum_of_squares,
        sum_of_pairs,
        noise_share,
        df,
        rounding=SQUARE_ROUNDING * levels.shape[-1] * largest,
    )


def compared(
    observed: Numbers,
    expected: Numbers,
    sum_of_squares: Numbers,
    sum_of_pairs: Numbers,
    noise_share: Numbers,
    df: float,
    rounding: Numbers,
) -> Excesses:
    """Compare a sum of squares X with its average under noise alone, Y, both with variances as in :func:`excess`.

    Args:
        observed: X; for several tests at once, all arguments are arrays of one shape.
        expected: Y.
        sum_of_squares: ``Σ_i W_ii² l_i²``.
        sum_of_pairs: The same sum over pairs ``i ≠ j``.
        noise_share: ``1/r``, at least :data:`MIN_SHARE`.
        df: Degrees of freedom of ``1/r``.
        rounding: Sums up to this are rounding errors.

    Returns:
        The result of each test.
    """
    observed = np.asarray(observed)
    has_noise = np.asarray(expected > rounding)
    # Ones stand for what is not compared by its variance, so that nothing is divided by zero.
    mean = np.where(has_noise, expected, 1.0)
    variance_of_observed = 2 * noise_share * np.where(has_noise, sum_of_squares + sum_of_pairs, 1.0)
    variance_of_expected = 2 * noise_share * np.where(has_noise, sum_of_squares, 1.0)
    sd = np.sqrt(variance_of_observed + variance_of_expected)
    value = observed - mean
    p = _p_value(
        ratio=np.maximum(observed, 0.0) / mean,
        # Satterthwaite: ν = 2 μ² / v
        df_observed=2 * mean**2 / variance_of_observed,
        df_expected=2 * mean**2 / variance_of_expected,
        df=df,
    )
    # Without noise, any difference beyond rounding counts.
    is_certain = ~has_noise & (observed > rounding)
    value_without_noise = np.where(is_certain, observed, 0.0)
    return Excesses(
        value=np.where(has_noise, value, value_without_noise),
        sd=np.where(has_noise, sd, 0.0),
        z=np.where(has_noise, value / sd, np.where(is_certain, math.inf, 0.0)),
        p=np.where(has_noise, p, np.where(is_certain, 0.0, 1.0)),
    )


def _p_value(
    ratio: np.ndarray, df_observed: np.ndarray, df_expected: np.ndarray, df: float
) -> np.ndarray:
    """p-values of ratios of sums of squares: their normal scores under F, compared with Student's t."""
    p = np.asarray(scipy.special.fdtrc(df_observed, df_expected, ratio))
    # Where it is too small for a float, p is replaced by the leading term of the tail of the beta
    # function.
    is_tiny = p <= 1e-290
    a = df_expected / 2
    b = df_observed / 2
    x = df_expected / (df_expected + df_observed * ratio)
    # There, x is far from 0 and 1; the numbers elsewhere are not used.
    x = np.where(is_tiny, x, 0.5)
    log_p = a * np.log(x) + b * np.log1p(-x) - np.log(a) - scipy.special.betaln(a, b)
    score_of_tiny = -scipy.special.ndtri_exp(np.where(is_tiny, log_p, -1.0))
    normal_score = np.where(is_tiny, score_of_tiny, -scipy.special.ndtri(np.where(is_tiny, 0.5, p)))
    if math.isinf(df):
        return np.asarray(scipy.special.ndtr(-normal_score))
    return np.asarray(scipy.special.stdtr(df, -normal_score))


def _inverse(share: float) -> float:
    return 1 / share if share > 0 else math.inf


MIN_SHARE = 1e-6
"""The smallest ``1/r`` of noise: updates that happen to be orthogonal to all noise contain no
information about it."""

TAIL_BOUND_SCORE = 8.0
"""From this normal score on, a bound replaces a difference of two nearly equal numbers."""


@public
def repeated_p(first: float, second: float, clients: int) -> float:
    """Combine two probes of the same clients: the p-value of both p-values being as small as the greater one.

    The halves of the two probes are drawn separately.

    The data stay the same, so two probes are not independent. In ``tr(C Ŝ) = Σ_i (1 - 1/n) (‖M_i‖²
    - ‖D_i‖²) - Σ_i≠j M_i·M_j / n`` the two probes have the whole updates M in common, at worst
    entirely. The noise ``D_i`` is separate for each probe, and of the same size. So the two scores
    have the correlation ``ρ = n / (2n - 1)``, and the probability that both exceed the lesser, z,
    is ``Φ(-z) - 2 T(z, sqrt((1 - ρ)/(1 + ρ)))`` with Owen's function T; from z = 8 on, its bound
    ``Φ(-z sqrt(2 / (1 + ρ)))``. With more probes, the noise that all have in common would remain: z
    could grow by less than the square root of 2, however many there are.

    Args:
        first: The p-value of the first probe.
        second: The p-value of the second probe.
        clients: n.

    Returns:
        The p-value.

    Raises:
        ValueError: A p-value is not in [0, 1], or there are no clients.

    Example:
        >>> repeated_p(1e-3, 2e-3, clients=20) < 2e-4 < repeated_p(2e-3, 2e-3, clients=2)
        True
    """
    if not 1 <= clients < math.inf:
        raise ValueError(f"clients must be a number of clients, at least 1, got {clients}")
    for p_value in (first, second):
        if not 0 <= p_value <= 1:
            raise ValueError(f"a p-value must be 0 to 1, got {p_value:g}")
    greater = max(first, second)
    # z is the lesser score, and ρ the correlation of the two scores.
    z = -float(scipy.special.ndtri(greater))
    rho = clients / (2 * clients - 1)
    if clients == 1 or math.isinf(z):
        return greater
    # Φ(-z) - 2 T(z, ...) with Owen's T, and its bound where the two terms are nearly equal.
    if z > TAIL_BOUND_SCORE:
        return float(scipy.special.ndtr(-z * math.sqrt(2 / (1 + rho))))
    owens_t = scipy.special.owens_t(z, math.sqrt((1 - rho) / (1 + rho)))
    return float(scipy.special.ndtr(-z) - 2 * owens_t)


# ----------------------------------------------------------------------------------------------------
# Groups: split until their members are congruent, merged if they prove to be the same, and found
#     for a newcomer.
#
# This part is Coterie's own; letters and assumptions as in :mod:`~coterie.clustering.halves` and
# :mod:`~coterie.clustering.congruence`.


Group = tuple[int, ...]

EQUAL_COORDINATES = 1e-9
"""Coordinates closer than this, relative to the greatest, are equal: they are not separated."""


@public
@dataclass(frozen=True)
class SplitDecision:
    """Whether one group was split.

    Attributes:
        members: Positions, sorted.
        test: The numbers of the test.
        parts: The two new groups; empty if the group was not split.
    """

    members: Group
    test: Congruence
    parts: tuple[Group, ...]


@public
@dataclass(frozen=True)
class CongruentGroups:
    """Groups of congruent clients, and the decisions that led to them.

    Attributes:
        groups: In the order of their first members, each sorted.
        decisions: One for each group that was tested, a group before its parts.
    """

    groups: tuple[Group, ...]
    decisions: tuple[SplitDecision, ...]


@public
@dataclass(frozen=True)
class Contrast:
    """The distance between the mean signals of two groups.

    Attributes:
        distance: Squared, without bias, so it may be below zero.
        error: Its standard error, whether the groups differ or not.
        z: The distance over its standard deviation if the groups are one.
        df: As in :class:`~coterie.clustering.Congruence`.
        p: The probability of such a distance, or more, if the groups are one.
    """

    distance: float
    error: float
    z: float
    df: float
    p: float


@public
def signal_cut(signal: np.ndarray) -> tuple[Group, Group]:
    """Divide clients into the two groups along which the signals differ most.

    The matrix is centred, and its leading eigenvector gives each client a coordinate. Of the n - 1
    cuts between neighbours, the one with the least variance within the two sides is taken. Ties: of
    equally good cuts, the one with fewest clients below it, where the eigenvector's sign makes its
    largest entry positive. Equal coordinates are never separated. If the leading eigenvalue is not
    simple, as for three clients equally far from each other, the order of the clients decides.

    Args:
        signal: Shape ``(n, n)``, n >= 2, of :func:`~coterie.clustering.signal_gram`, or any Gram
            matrix.

    Returns:
        Two groups of positions. The first one holds position 0.

    Raises:
        ValueError: There are fewer than two clients, or all are the same.

    Example:
        >>> signal_cut(np.array([[4.0, 4.0, -2.0], [4.0, 4.0, -2.0], [-2.0, -2.0, 1.0]]))
        ((0, 1), (2,))
    """
    return cut_of(_checks.matrix(signal, "signal"))


def cut_of(signal: np.ndarray) -> tuple[Group, Group]:
    """:func:`signal_cut` of a checked matrix."""
    n = len(signal)
    if n < 2:
        raise ValueError("signal must have at least 2 clients to be split, got 1")
    square = centred(signal)
    largest = float(np.abs(square).max())
    if largest <= EQUAL_COORDINATES**2 * float(np.abs(signal).max()):
        raise ValueError("signal cannot be split: all clients are equal")
    # Moved below all other eigenvalues, the constant vector is never the leading one.
    coordinates = leading_vector(square / largest - 2.0)
    coordinates = coordinates * np.sign(coordinates[np.abs(coordinates).argmax()])
    ascending = np.argsort(coordinates, kind="stable")
    ranked = coordinates[ascending]
    # Of the cuts between neighbours in this order, the one with the least variance within the two
    # sides has the greatest between them.
    num_below = np.arange(1, n)
    sum_below = np.cumsum(ranked)[:-1]
    between = (sum_below - num_below * ranked.mean()) ** 2 * n / (num_below * (n - num_below))
    # Equal coordinates are never separated.
    are_equal = np.diff(ranked) <= EQUAL_COORDINATES * np.abs(ranked).max()
    between[are_equal] = -np.inf
    cut_position = 1 + int(between.argmax())
    low_side = tuple(sorted(ascending[:cut_position].tolist()))
    high_side = tuple(sorted(ascending[cut_position:].tolist()))
    return (low_side, high_side) if low_side[0] == 0 else (high_side, low_side)


@public
def congruent_groups(
    gram: Any,
    alpha: float = 1e-4,
    members: Iterable[int] | None = None,
    dimension: float | None = None,
) -> CongruentGroups:
    """Split a group in two, and its parts again, as long as their members are not congruent.

    A group is split by :func:`signal_cut` if its p of :func:`~coterie.clustering.congruence` is
    below ``alpha``. Every part is centred and tested by its own members alone.

    Args:
        gram: Shape ``(2n, 2n)``, of halves, all trained from the same model.
        alpha: The probability of splitting a group of equal clients.
        members: The group to begin with; all if ``None``.
        dimension: As in :func:`~coterie.clustering.congruence`.

    Returns:
        The groups and the decisions.

    Raises:
        ValueError: As in :func:`~coterie.clustering.congruence`, or alpha is not in [0, 1].

    Example:
        >>> from coterie.clustering import halves_gram
        >>> signal = np.repeat([[0.0] * 50, [2.0] * 50, [-2.0] * 50], 4, axis=0)
        >>> halves = signal + np.random.default_rng(0).normal(size=(2, 12, 50))
        >>> congruent_groups(halves_gram(*halves)).groups
        ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be the probability of a false split, 0 to 1, got {alpha}")
    square = clients_of(gram)
    n = len(square) // 2
    first_group = range(n)
    if members is not None:
        first_group = _checks.position_list(members, n, "members").tolist()
    untested_groups: list[Group] = [tuple(first_group)]
    groups = []
    decisions = []
    while untested_groups:
        group = untested_groups.pop()
        group_halves = halves(square, group)
        group_test = congruence_of(group_halves, noise_of(group_halves, dimension))
        if group_test.p < alpha:
            # The cut is of positions within the group. Both new groups are tested, left first.
            left, right = cut_of(signals(group_halves))
            new_groups = (_members_at(group, left), _members_at(group, right))
            untested_groups += reversed(new_groups)
            decisions.append(SplitDecision(group, group_test, new_groups))
        else:
            groups.append(group)
            decisions.append(SplitDecision(group, group_test, ()))
    return CongruentGroups(tuple(sorted(groups)), tuple(decisions))


def _members_at(group: Group, positions: Group) -> Group:
    """The members of a group at some positions within it."""
    return tuple(group[position] for position in positions)


@public
def contrast(
    gram: Any, left: Iterable[int], right: Iterable[int], dimension: float | None = None
) -> Contrast:
    """Test whether two groups of clients are one, by their mean signals, whatever the differences within them are.

    With w = ``1/n_left`` on the left and ``-1/n_right`` on the right, the distance is ``wᵀ Ŝ w``
    with Ŝ of :func:`~coterie.clustering.signal_gram`. It is tested as the spread is, with the
    weights ``w wᵀ``. ``1/r`` is at least the share of the noise along the observed difference ``δ =
    Σ w_k M_k``: ``Σ (D_i · δ)² / (‖δ‖² Σ ‖D_i‖²)``. The error is at least the effect of noise along
    it: ``2 sqrt(Σ w_i² (D_i · δ)²)``.

    Args:
        gram: Shape ``(2n, 2n)``, of halves, all trained from the same model.
        left: Positions of one group; one member is enough.
        right: Positions of the other group, none of them in ``left``.
        dimension: As in :func:`~coterie.clustering.congruence`.

    Returns:
        The result of the test.

    Raises:
        ValueError: A position does not exist, or a client is on both sides.

    Example:
        >>> from coterie.clustering import halves_gram
        >>> a = np.array([[1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
        >>> contrast(halves_gram(a, a), [0, 1], [2])  # without noise: (3 - 1)², for certain
        Contrast(distance=4.0, error=0.0, z=inf, df=inf, p=0.0)
    """
    square = clients_of(gram)
    num_clients = len(square) // 2
    left_positions = _checks.position_list(left, num_clients, "left")
    right_positions = _checks.position_list(right, num_clients, "right")
    common = np.intersect1d(left_positions, right_positions)
    if common.size:
        raise ValueError(
            f"left and right must have no client in common, got {int(common[0])} in both"
        )
    members = np.sort(np.concatenate((left_positions, right_positions)))
    on_left = np.isin(members, left_positions)
    weights = np.where(on_left, 1 / len(left_positions), -1 / len(right_positions))
    group_halves = halves(square, members)
    return contrast_of(group_halves, weights, noise_of(group_halves, dimension))


def contrast_of(group_halves: Halves, weights: np.ndarray, noise: Noise) -> Contrast:
    """Compute :func:`contrast` of checked halves, with the weights w of the clients and the noise of :func:`noise_of`."""
    # (D_i · δ)², and ‖δ‖² Σ ‖D_i‖².
    along_difference = (weights @ group_halves.mixed) ** 2
    difference_square = float(weights @ group_halves.mean @ weights)
    norm_product = difference_square * float(group_halves.levels.sum())
    noise_along = _noise_along(noise, along_difference, norm_product)
    # The sums of `excess` for W = w wᵀ, without that matrix.
    levels = group_halves.levels
    expected = float(weights**2 @ levels)
    sum_of_squares = float(weights**4 @ levels**2)
    sums = (difference_square, expected, sum_of_squares, expected**2 - sum_of_squares)
    largest = float((weights**2).max()) * float(np.diagonal(group_halves.mean).max())
    distance_test = excess(sums, levels, largest, noise_along, noise.df).excess_at()
    # The standard error is at least the effect of noise along the difference.
    error = max(distance_test.sd, 2 * math.sqrt(weights**2 @ along_difference))
    return Contrast(distance_test.value, error, distance_test.z, noise.df, distance_test.p)


def _noise_along(noise: Noise, along_difference: np.ndarray, norm_products: Numbers) -> np.ndarray:
    """``1/r`` of the noise for contrasts: it is at least the share of noise along the difference δ.

    Args:
        noise: The estimate from all directions.
        along_difference: ``(..., n)``, ``(D_i · δ)²`` of each client.
        norm_products: ``(...)``, ``‖δ‖² Σ ‖D_i‖²``.
    """
    # Without a difference, no noise is along it.
    divisor = np.where(np.greater(norm_products, 0), norm_products, 1.0)
    share_along = np.where(
        np.greater(norm_products, 0), along_difference.sum(axis=-1) / divisor, 0.0
    )
    return np.minimum(np.maximum(noise.share, share_along), 1.0)


@public
def member_contrasts(
    gram: Any, group: Iterable[int], dimension: float | None = None
) -> tuple[Contrast, ...]:
    """Compute the :func:`contrast` of each member of a group with the others, in time proportional to the matrix.

    Args:
        gram: Shape ``(2n, 2n)``, of halves, all trained from the same model.
        group: Positions of two members or more.
        dimension: As in :func:`~coterie.clustering.congruence`.

    Returns:
        One contrast for each member, in the order of their positions.

    Raises:
        ValueError: As in :func:`contrast`, or there is one member.

    Example:
        >>> from coterie.clustering import halves_gram
        >>> a = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
        >>> [contrast.distance for contrast in member_contrasts(halves_gram(a, a), [0, 1, 2])]
        [4.0, 1.0, 1.0]
    """
    square = clients_of(gram)
    members = _checks.position_list(group, len(square) // 2, "group")
    n = len(members)
    if n < 2:
        raise ValueError("group must have at least 2 members, got 1")
    group_halves = halves(square, members)
    noise = noise_of(group_halves, dimension)
    mean = group_halves.mean
    levels = group_halves.levels
    # Sums over all members, from which those of `_contrast` follow in O(n) for each member.
    level_sum = float(levels.sum())
    level_squares = float((levels**2).sum())
    mixed_sum = group_halves.mixed.sum(axis=0)
    mean_rows = mean.sum(axis=1)
    mean_sum = float(mean.sum())
    largest = float(np.diagonal(mean).max())
    # The weights of member i and the others are w = (1 + b) e_i - b 1: w_i is 1, the largest, and
    # the other weights are -b. All members at once: row i of a matrix is of member i.
    b = 1 / (n - 1)
    # (D_j · δ)², and ‖δ‖².
    along_difference = ((1 + b) * group_halves.mixed - b * mixed_sum) ** 2
    observed = (1 + b) ** 2 * np.diagonal(mean) - 2 * b * (1 + b) * mean_rows + b**2 * mean_sum
    # Σ w_j² l_j and Σ w_j⁴ l_j², with the noise levels l.
    expected = levels + b**2 * (level_sum - levels)
    sums_of_squares = levels**2 + b**4 * (level_squares - levels**2)
    sums = (observed, expected, sums_of_squares, expected**2 - sums_of_squares)
    noise_along = _noise_along(noise, along_difference, observed * level_sum)
    distance_tests = excess(sums, levels, largest, noise_along, noise.df)
    # Σ w_j² (D_j · δ)²
    own_along = np.diagonal(along_difference)
    weighted_along = own_along + b**2 * (along_difference.sum(axis=1) - own_along)
    errors = np.maximum(distance_tests.sd, 2 * np.sqrt(weighted_along))
    contrasts = []
    for member, error in enumerate(errors.tolist()):
        distance_test = distance_tests.excess_at(member)
        contrasts.append(
            Contrast(distance_test.value, error, distance_test.z, noise.df, distance_test.p)
        )
    return tuple(contrasts)


@public
def newcomer_contrasts(
    gram: Any, newcomer: int, groups: Sequence[Iterable[int]], dimension: float | None = None
) -> tuple[Contrast, ...]:
    """Compute the :func:`contrast` of one client with each of several groups: it belongs to the nearest, if p allows it.

    To find the leaf of a newcomer, compare the two sides of every split on the way down. The mean
    of a group with few members is less certain, and so is its distance: see the errors.

    Args:
        gram: Shape ``(2n, 2n)``, of halves, all trained from the same model.
        newcomer: The position of the client.
        groups: Groups of positions.
        dimension: As in :func:`~coterie.clustering.congruence`.

    Returns:
        One contrast for each group.

    Raises:
        ValueError: As in :func:`contrast`.

    Example:
        >>> from coterie.clustering import halves_gram
        >>> a = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
        >>> contrasts = newcomer_contrasts(halves_gram(a, a), newcomer=2, groups=[[0], [1]])
        >>> [contrast.distance for contrast in contrasts]
        [5.0, 1.0]
    """
    return tuple(contrast(gram, [newcomer], group, dimension) for group in groups)
