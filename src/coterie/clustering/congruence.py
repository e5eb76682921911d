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
differences between two groups, or between one client and all others. They need :data:`FEW` clients.
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
    ROUNDING,
    Halves,
    centred,
    clients_of,
    half_tests,
    halves,
    signals,
)
from coterie.settings.calls import public

FEW = 8
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
        >>> apart, alike = halves_gram(*(signal + noise)), halves_gram(*noise)
        >>> congruence(apart).p < 1e-6, congruence(alike).p > 0.05
        (True, True)
    """
    return congruence_of(halves(gram, members), dimension)


def congruence_of(h: Halves, dimension: float | None = None) -> Congruence:
    """Compute :func:`congruence` of checked halves."""
    n = len(h.mean)
    noise = noise_of(h, dimension)
    if n == 1:
        return Congruence(1, 0.0, 0.0, _inverse(noise.share), noise.df, 1.0, None, None, 1.0)
    spread = excess(h, np.eye(n) - 1 / n, noise, _levels(h))
    others = half_tests(h, noise.share) if n >= FEW else ()
    ps = [spread.p, *others]
    p = min(1.0, len(ps) * min(ps))
    direction, odd = others or (None, None)
    return Congruence(
        n, spread.value, spread.z, _inverse(noise.share), noise.df, spread.p, direction, odd, p
    )


def noise_of(h: Halves, dimension: float | None = None) -> Noise:
    """Estimate ``1/r`` and its degrees of freedom from whole updates and noise of one group.

    Args:
        h: The halves of the group.
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
    known = 0.0 if dimension is None else 1 / dimension
    level, n = np.diagonal(h.noise), len(h.noise)
    apart = np.diagonal(centred(h.mean))
    tiny = ROUNDING * max(float(np.diagonal(h.mean).max()), np.finfo(float).tiny)
    one, two = apart > tiny, level > tiny
    if not (one.any() and two.any()):
        return Noise(known, math.inf)
    product = (h.mixed - h.mixed.mean(axis=0)) ** 2
    by_norms = (
        np.where(one, 1 / np.where(one, apart, 1), 0)
        @ product
        @ np.where(two, 1 / np.where(two, level, 1), 0)
    )
    share = max(
        float(by_norms) / float(one.sum() * two.sum()),
        float(one @ product @ two) / float(apart[one].sum() * level[two].sum()),
    )
    covariance = centred(np.diag(level))
    scale = np.sqrt(np.diagonal(covariance))
    scale = np.where(scale > 0, scale, 1.0)
    df = n**3 / float(((covariance / np.outer(scale, scale)) ** 2).sum())
    return Noise(min(max(share, known), 1.0), df if dimension is None else math.inf)


def _levels(h: Halves) -> np.ndarray:
    """Every client's noise level ``(n,)`` if all signals are equal; ``‖M_i - M̄‖²`` is then as good a measure as ``‖D_i‖²``.

    The ratio of two such squares does not depend on their sum. So levels from sums, unlike levels
    from D alone, are not small when the ratio is great. They are scaled to the total of D, so that
    signal does not make all levels greater.
    """
    level, n = np.diagonal(h.noise), len(h.noise)
    both = level + np.maximum(np.diagonal(centred(h.mean)), 0.0) * n / (n - 1)
    return both * level.sum() / both.sum() if both.sum() > 0 else level


def excess(h: Halves, weights: np.ndarray, noise: Noise, level: np.ndarray | None = None) -> Excess:
    """Test whether ``X = tr(W M Mᵀ)`` is greater than its average under noise alone, ``Y = Σ W_ii ‖D_i‖²``.

    As for C in the module's head: ``Var X = (2/r) Σ_ij W_ij² l_i l_j`` and ``Var Y = (2/r) Σ_i
    W_ii² l_i²`` with noise levels l. The square of a level is too large on average because of the
    level's own variance, by the factor ``1 + 2/r``, or ``1 + 1/r`` for levels of two draws. This
    factor is removed (but the result is at least that for equal levels).

    Args:
        h: The halves.
        weights: W, shape ``(n, n)``, with ``W 1 = 0``.
        noise: The effective dimension.
        level: Noise levels ``(n,)`` from two draws each; ``‖D_i‖²`` if ``None``.

    Returns:
        The result of the test.
    """
    own, each = np.diagonal(weights), np.diagonal(h.noise) if level is None else level
    observed, expected = float((weights * h.mean).sum()), float(own @ np.diagonal(h.noise))
    squares = float(own**2 @ each**2)
    pairs = float(each @ weights**2 @ each) - squares
    return _judged(h, observed, expected, squares, pairs, float(np.abs(own).max()), noise, level)


def _judged(
    h: Halves,
    observed: float,
    expected: float,
    squares: float,
    pairs: float,
    greatest: float,
    noise: Noise,
    level: np.ndarray | None = None,
) -> Excess:
    """Compute :func:`excess` from its sums: X, Y, ``Σ_i W_ii² l_i²``, the same over pairs ``i ≠ j``, and the largest weight."""
    largest = greatest * float(np.diagonal(h.mean).max())
    levels, draws = (np.diagonal(h.noise), 1) if level is None else (level, 2)
    return excess_of_sums((observed, expected, squares, pairs), levels, largest, noise, draws)


def excess_of_sums(
    sums: tuple[float, float, float, float],
    levels: np.ndarray,
    largest: float,
    noise: Noise,
    draws: int = 1,
) -> Excess:
    """Compute :func:`excess` from its sums.

    Args:
        sums: X, Y, ``Σ_i W_ii² l_i²``, and the same over pairs ``i ≠ j``.
        levels: Shape ``(n,)``, the noise levels l.
        largest: The largest product of a weight ``W_ii`` and a client's squared update.
        noise: The effective dimension.
        draws: From how many draws each level is.

    Returns:
        The result of the test.
    """
    observed, expected, squares, pairs = sums
    share, mean = max(noise.share, LEAST), float((levels**2).mean())
    bias = 1 + 2 * share / draws
    shrink = max(1 / bias, float(levels.mean()) ** 2 / mean) if mean > 0 else 1.0
    nothing = ROUNDING * len(levels) * largest
    return compared(observed, expected, shrink * squares, pairs, Noise(share, noise.df), nothing)


def compared(
    observed: float, expected: float, own: float, pairs: float, noise: Noise, nothing: float
) -> Excess:
    """Compare a sum of squares X with its average under noise alone, Y, both with variances as in :func:`excess`.

    Args:
        observed: X.
        expected: Y.
        own: ``Σ_i W_ii² l_i²``.
        pairs: The same sum over pairs ``i ≠ j``.
        noise: The effective dimension, ``1/r`` at least :data:`LEAST`.
        nothing: Sums up to this are rounding errors.

    Returns:
        The result of the test.
    """
    if expected <= nothing:  # without noise, any difference counts
        value = observed if observed > nothing else 0.0
        return Excess(value, 0.0, math.inf if value else 0.0, 0.0 if value else 1.0)
    of_observed, of_expected = 2 * noise.share * (own + pairs), 2 * noise.share * own
    sd = math.sqrt(of_observed + of_expected)
    value = observed - expected
    p = _p_value(
        max(observed, 0.0) / expected,
        2 * expected**2 / of_observed,
        2 * expected**2 / of_expected,
        noise.df,
    )
    return Excess(value, sd, value / sd, p)


def _p_value(ratio: float, df_observed: float, df_expected: float, df: float) -> float:
    """p-value of a ratio of sums of squares: its normal score under F, compared with Student's t."""
    p = float(scipy.special.fdtrc(df_observed, df_expected, ratio))
    if p > 1e-290:
        score = -float(scipy.special.ndtri(p))
    else:  # the leading term of the tail, as p itself is too small for a float
        a, b = df_expected / 2, df_observed / 2
        x = df_expected / (df_expected + df_observed * ratio)
        log_p = a * math.log(x) + b * math.log1p(-x) - math.log(a) - scipy.special.betaln(a, b)
        score = -float(scipy.special.ndtri_exp(log_p))
    return float(scipy.special.ndtr(-score) if math.isinf(df) else scipy.special.stdtr(df, -score))


def _inverse(share: float) -> float:
    return 1 / share if share > 0 else math.inf


LEAST = 1e-6
"""The smallest ``1/r`` of noise: updates that happen to be orthogonal to all noise contain no
information about it."""

SURE = 8.0
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
    for p in (first, second):
        if not 0 <= p <= 1:
            raise ValueError(f"a p-value must be 0 to 1, got {p:g}")
    z, rho = -float(scipy.special.ndtri(max(first, second))), clients / (2 * clients - 1)
    if clients == 1 or math.isinf(z):
        return max(first, second)
    if z > SURE:
        return float(scipy.special.ndtr(-z * math.sqrt(2 / (1 + rho))))
    return float(
        scipy.special.ndtr(-z) - 2 * scipy.special.owens_t(z, math.sqrt((1 - rho) / (1 + rho)))
    )


# ----------------------------------------------------------------------------------------------------
# Groups: split until their members are congruent, merged if they prove to be the same, and found
#     for a newcomer.
#
# This part is Coterie's own; letters and assumptions as in :mod:`~coterie.clustering.halves` and
# :mod:`~coterie.clustering.congruence`.


Group = tuple[int, ...]

SAME = 1e-9
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
    return _cut(_checks.matrix(signal, "signal"))


def _cut(signal: np.ndarray) -> tuple[Group, Group]:
    n = len(signal)
    if n < 2:
        raise ValueError("signal must have at least 2 clients to be split, got 1")
    square = centred(signal)
    largest = float(np.abs(square).max())
    if largest <= SAME**2 * float(np.abs(signal).max()):
        raise ValueError("signal cannot be split: all clients are equal")
    # Moved below all other eigenvalues, the constant vector is never the leading one.
    vector = leading_vector(square / largest - 2.0)
    vector = vector * np.sign(vector[np.abs(vector).argmax()])
    order = np.argsort(vector, kind="stable")
    ranked = vector[order]
    below = np.arange(1, n)
    total = np.cumsum(ranked)[:-1]
    between = (total - below * ranked.mean()) ** 2 * n / (below * (n - below))
    between[np.diff(ranked) <= SAME * np.abs(ranked).max()] = -np.inf
    split = 1 + int(between.argmax())
    low, high = sorted(order[:split].tolist()), sorted(order[split:].tolist())
    return (tuple(low), tuple(high)) if low[0] == 0 else (tuple(high), tuple(low))


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
    first = range(n) if members is None else _checks.position_list(members, n, "members").tolist()
    waiting: list[Group] = [tuple(first)]
    groups, decisions = [], []
    while waiting:
        group = waiting.pop()
        h = halves(square, group)
        test = congruence_of(h, dimension)
        parts: tuple[Group, ...] = ()
        if test.p < alpha:
            parts = tuple(tuple(group[i] for i in side) for side in _cut(signals(h)))
            waiting += reversed(parts)
        else:
            groups.append(group)
        decisions.append(SplitDecision(group, test, parts))
    return CongruentGroups(tuple(sorted(groups)), tuple(decisions))


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
    n = len(square) // 2
    one = _checks.position_list(left, n, "left")
    two = _checks.position_list(right, n, "right")
    if (both := np.intersect1d(one, two)).size:
        raise ValueError(
            f"left and right must have no client in common, got {int(both[0])} in both"
        )
    at = np.sort(np.concatenate((one, two)))
    weights = np.where(np.isin(at, one), 1 / len(one), -1 / len(two))
    return _contrast(halves(square, at), weights, dimension)


def _contrast(h: Halves, weights: np.ndarray, dimension: float | None) -> Contrast:
    noise = noise_of(h, dimension)
    along = (weights @ h.mixed) ** 2
    norms = float(weights @ h.mean @ weights) * float(np.trace(h.noise))
    share = max(noise.share, float(along.sum()) / norms) if norms > 0 else noise.share
    found = excess(h, np.outer(weights, weights), Noise(min(share, 1.0), noise.df))
    return Contrast(
        found.value, max(found.sd, 2 * math.sqrt(weights**2 @ along)), found.z, noise.df, found.p
    )


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
        >>> [found.distance for found in member_contrasts(halves_gram(a, a), [0, 1, 2])]
        [4.0, 1.0, 1.0]
    """
    square = clients_of(gram)
    at = _checks.position_list(group, len(square) // 2, "group")
    n = len(at)
    if n < 2:
        raise ValueError("group must have at least 2 members, got 1")
    h = halves(square, at)
    noise, level, mixed = noise_of(h, dimension), np.diagonal(h.noise), h.mixed.sum(axis=0)
    rows, total, trace, squares = (
        h.mean.sum(axis=1),
        float(h.mean.sum()),
        float(level.sum()),
        float((level**2).sum()),
    )
    found = []
    for i in range(n):  # w = (1 + b) e_i - b 1, so that w_i is 1 and the others are -b
        b = 1 / (n - 1)
        one, rest = level[i], trace - level[i]
        along = ((1 + b) * h.mixed[i] - b * mixed) ** 2
        observed = float((1 + b) ** 2 * h.mean[i, i] - 2 * b * (1 + b) * rows[i] + b**2 * total)
        own = one**2 + b**4 * (squares - one**2)
        sums = observed, float(one + b**2 * rest), float(own), float((one + b**2 * rest) ** 2 - own)
        weighted = float(along[i] + b**2 * (along.sum() - along[i]))
        norms = observed * trace
        share = max(noise.share, float(along.sum()) / norms) if norms > 0 else noise.share
        judged = _judged(h, *sums, 1.0, Noise(min(share, 1.0), noise.df))
        found.append(
            Contrast(
                judged.value, max(judged.sd, 2 * math.sqrt(weighted)), judged.z, noise.df, judged.p
            )
        )
    return tuple(found)


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
        >>> [found.distance for found in newcomer_contrasts(halves_gram(a, a), 2, [[0], [1]])]
        [5.0, 1.0]
    """
    return tuple(contrast(gram, [newcomer], group, dimension) for group in groups)
