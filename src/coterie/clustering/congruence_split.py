"""Groups split until their members are congruent, merged where they turn out to be one, and found for a newcomer.

Coterie's own; letters and assumptions as in :mod:`~coterie.clustering.halves` and :mod:`~coterie.clustering.congruence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.congruence import Congruence, Noise, congruence_of, excess, noise_of
from coterie.clustering.halves import Halves, centred, clients_of, halves, signals

Group = tuple[int, ...]

SAME = 1e-9
"""Coordinates closer than this, relative to the greatest, are equal: they are not cut apart."""


@dataclass(frozen=True)
class SplitDecision:
    """Whether one group was split. members: positions, sorted. test: its numbers. parts: two groups, none where it stays."""

    members: Group
    test: Congruence
    parts: tuple[Group, ...]


@dataclass(frozen=True)
class CongruentGroups:
    """groups: by first member, each sorted. decisions: one for each group that was looked at, a group before its parts."""

    groups: tuple[Group, ...]
    decisions: tuple[SplitDecision, ...]


@dataclass(frozen=True)
class Contrast:
    """How far the mean signals of two groups are apart.

    distance: squared, without bias, so it may be below zero. error: its standard error, whether they differ or not. z: the
    distance over its standard deviation if they are one. p: the probability of such a distance, or more, if they are one.
    df: as in :class:`~coterie.clustering.Congruence`.
    """

    distance: float
    error: float
    z: float
    df: float
    p: float


def signal_cut(signal: np.ndarray) -> tuple[Group, Group]:
    """The cut in two along which the signals differ most; the first group holds position 0.

    signal: ``(n, n)``, n >= 2, of :func:`~coterie.clustering.signal_gram`, or any Gram matrix. It is centred, and its leading
    eigenvector gives each client a coordinate; of the n - 1 cuts between neighbours, the one that leaves least variance
    within the two sides is taken. Ties: of equally good cuts, that with fewest clients below it, where the eigenvector's
    sign makes its largest entry positive; equal coordinates are never cut apart. Where the leading eigenvalue is not
    simple, as for three clients equally far from each other, the clients' order decides.

    Raises ``ValueError`` for fewer than two clients, and where all are the same.

    >>> signal_cut(np.array([[4.0, 4.0, -2.0], [4.0, 4.0, -2.0], [-2.0, -2.0, 1.0]]))
    ((0, 1), (2,))
    """
    return _cut(_checks.matrix(signal, "signal"))


def _cut(signal: np.ndarray) -> tuple[Group, Group]:
    n = len(signal)
    if n < 2:
        raise ValueError("signal must be of at least 2 clients to be cut in two, got 1")
    square = centred(signal)
    largest = float(np.abs(square).max())
    if largest <= SAME**2 * float(np.abs(signal).max()):
        raise ValueError("signal has nothing to cut: all clients are the same")
    # Moved below all other eigenvalues, the constant vector is never the leading one.
    vector = np.linalg.eigh(square / largest - 2.0)[1][:, -1]
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


def congruent_groups(
    gram: Any, alpha: float = 1e-4, members: Iterable[int] | None = None, dimension: float | None = None
) -> CongruentGroups:
    """Split a group in two, and its parts again, as long as their members are not congruent.

    gram: ``(2n, 2n)``, of halves, all trained from the same model. A group is split by :func:`signal_cut` if its p of
    :func:`~coterie.clustering.congruence` is below alpha, the probability of splitting a group of equal clients. Every part
    is centred and tested by its own members alone. members: the group to begin with; all where ``None``. dimension: as there.

    Raises ``ValueError`` as :func:`~coterie.clustering.congruence` does, and for an alpha that is not 0 to 1.

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


def contrast(gram: Any, left: Iterable[int], right: Iterable[int], dimension: float | None = None) -> Contrast:
    """Whether two groups of clients are one: their mean signals compared, whatever differs within them.

    gram: ``(2n, 2n)``, of halves, all trained from the same model. left, right: positions, none in both; one member will do.
    With w = ``1/n_left`` on the left and ``-1/n_right`` on the right, the distance is ``wᵀ Ŝ w`` with Ŝ of
    :func:`~coterie.clustering.signal_gram`, and tested as the spread is, with the weights ``w wᵀ``, and with ``1/r`` no less
    than the noise's share along ``δ = Σ w_k M_k``, the difference that is seen: ``Σ (D_i · δ)² / (‖δ‖² Σ ‖D_i‖²)``. The error
    is no less than what noise along it does: ``2 sqrt(Σ w_i² (D_i · δ)²)``.

    Raises ``ValueError`` for positions that are not there, and for a client on both sides.

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
        raise ValueError(f"left and right must have no client in common, got {int(both[0])} in both")
    at = np.sort(np.concatenate((one, two)))
    weights = np.where(np.isin(at, one), 1 / len(one), -1 / len(two))
    return _contrast(halves(square, at), weights, dimension)


def _contrast(h: Halves, weights: np.ndarray, dimension: float | None) -> Contrast:
    noise = noise_of(h, dimension)
    along = (weights @ h.mixed) ** 2
    norms = float(weights @ h.mean @ weights) * float(np.trace(h.noise))
    share = max(noise.share, float(along.sum()) / norms) if norms > 0 else noise.share
    found = excess(h, np.outer(weights, weights), Noise(min(share, 1.0), noise.df))
    return Contrast(found.value, max(found.sd, 2 * math.sqrt(weights**2 @ along)), found.z, noise.df, found.p)


def newcomer_contrasts(
    gram: Any, newcomer: int, groups: Sequence[Iterable[int]], dimension: float | None = None
) -> tuple[Contrast, ...]:
    """:func:`contrast` of one client with each of several groups: the nearest is where it belongs, if p allows it.

    gram: ``(2n, 2n)``, of halves, all trained from the same model. To find a newcomer's leaf, compare the two sides of every
    split on the way down. A group of few members is known less well, and its distance less surely: see the errors.

    >>> from coterie.clustering import halves_gram
    >>> a = np.array([[1.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
    >>> [found.distance for found in newcomer_contrasts(halves_gram(a, a), 2, [[0], [1]])]
    [5.0, 1.0]
    """
    return tuple(contrast(gram, [newcomer], group, dimension) for group in groups)
