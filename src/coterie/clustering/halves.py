"""What updates from two halves of every client's data tell: how much of their differences is signal, how much noise.

Coterie's own. Client i trains twice from the same model, on two random halves of its data with the same number of steps,
and sends ``a_i = s_i + e_i`` and ``b_i = s_i + f_i``: the signal ``s_i`` is what its data distribution says, ``e_i`` and
``f_i`` are what chance adds, independent of each other and of all other clients', of mean zero and alike in law. Written
as the *whole update* ``M_i = (a_i + b_i) / 2`` and the *noise* ``D_i = (a_i - b_i) / 2``,

- ``D_i`` holds no signal, and is distributed like the noise in ``M_i`` where that is symmetric;
- the two are uncorrelated; where noise is Gaussian, they are independent.

So D is a copy of the noise that can be looked at by itself, and everything here follows from it. Only inner products are
needed: the Gram matrix ``(2n, 2n)`` of the rows ``[a; b]``, client i's halves at positions i and n + i. It is a sum over
parameters, stays the same under orthonormal maps, and may be of :func:`~coterie.clustering.sketch`es: to these formulas a
sketch of k numbers is a model of k parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from coterie.clustering import _checks
from coterie.clustering.columns import Columns
from coterie.clustering.geometry import gram_of_rows

ROUNDING = 1e-12
"""Squared norms below this, relative to the updates', are what float64 leaves of zero."""


class Halves(NamedTuple):
    """Inner products ``(n, n)`` of whole updates M and noise D: ``M Mᵀ``, ``D Dᵀ``, ``M Dᵀ``."""

    mean: np.ndarray
    noise: np.ndarray
    mixed: np.ndarray


def halves_gram(a: np.ndarray | Tensor, b: np.ndarray | Tensor, columns: Columns = None) -> np.ndarray:
    """The Gram matrix ``(2n, 2n)`` of all half-updates: a ``(n, d)`` first, then b ``(n, d)``, the same clients in order.

    columns: as in :func:`~coterie.clustering.gram`. Float64, like all that is made of it here. Noise is a difference of
    its entries, so noise below ``sqrt(ε) ‖a_i‖`` is lost in rounding, where ε is the precision of the rows: 3e-4 of the
    norm in float32.

    Raises ``ValueError`` where a and b differ in shape, and as :func:`~coterie.clustering.gram` does.

    >>> halves_gram(np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]]))
    array([[25.,  8.],
           [ 8.,  4.]])
    """
    first, second = _checks.rows(a, "a"), _checks.rows(b, "b")
    if first.shape != second.shape:
        raise ValueError(
            f"a and b must be halves of the same clients, got shapes {tuple(first.shape)} and {tuple(second.shape)}"
        )
    return gram_of_rows(torch.cat((first, second)), columns)


def clients_of(gram: Any) -> np.ndarray:
    """The checked Gram matrix ``(2n, 2n)`` of halves."""
    square = _checks.gram_matrix(gram)
    if len(square) % 2:
        raise ValueError(
            f"gram must be (2n, 2n), of n clients' first halves and then their second, got shape {square.shape}; "
            "pass halves_gram(a, b)"
        )
    return square


def halves(gram: Any, members: Iterable[int] | None = None) -> Halves:
    """``M Mᵀ``, ``D Dᵀ`` and ``M Dᵀ`` from the Gram matrix ``(2n, 2n)`` of halves.

    members: positions of the clients that count, sorted first; all where ``None``. Raises ``ValueError`` for a matrix of
    odd size or that is no Gram matrix, and for positions that are not there.

    >>> halves(halves_gram(np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])))  # M = (2, 3), D = (1, 1)
    Halves(mean=array([[13.]]), noise=array([[2.]]), mixed=array([[5.]]))
    """
    square = clients_of(gram)
    if members is not None:
        at = _checks.position_list(members, len(square) // 2, "members")
        both = np.concatenate((at, at + len(square) // 2))
        square = square[np.ix_(both, both)]
    n = len(square) // 2
    aa, ab, bb = square[:n, :n], square[:n, n:], square[n:, n:]
    noise = (aa + bb - ab - ab.T) / 4
    np.fill_diagonal(noise, np.maximum(np.diagonal(noise), 0.0))
    return Halves((aa + bb + ab + ab.T) / 4, noise, (aa - bb + ab.T - ab) / 4)


def noise_levels(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """How much noise each whole update holds, ``‖D_i‖²``, ``(n,)``: unbiased for its expected squared norm.

    >>> noise_levels(halves_gram(np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])))
    array([2.])
    """
    return np.diagonal(halves(gram, members).noise).copy()


def signal_gram(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """Inner products ``(n, n)`` of the clients' signals, ``S Sᵀ``, without bias, the diagonal included.

    gram: ``(2n, 2n)``, of halves. Off the diagonal ``M_i · M_j``, as different clients share no noise; on it
    ``a_i · b_i = ‖M_i‖² - ‖D_i‖²``, as a client's halves share none. A plain Gram matrix has the noise on its diagonal.

    The symmetrised cross-half products ``(a_i · b_j + b_i · a_j) / 2`` have the same expectation, and twice the variance off
    the diagonal: they leave ``a_i · a_j`` and ``b_i · b_j`` unused. With ``τ_ij = Var(e_i · f_j)`` they have ``τ_ij / 2``,
    ``M_i · M_j`` has ``τ_ij / 4``.

    The matrix is symmetric but need not be positive: a negative square says that nothing but noise was seen. Without
    noise, ``a = b``, it is the Gram matrix of the updates.

    >>> signal_gram(halves_gram(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([[1.0, -1.0], [0.0, 4.0]])))
    array([[0., 0.],
           [0., 8.]])
    """
    return signals(halves(gram, members))


def signals(h: Halves) -> np.ndarray:
    """:func:`signal_gram` of checked halves."""
    return h.mean - np.diag(np.diagonal(h.noise))


def centred(square: np.ndarray) -> np.ndarray:
    """``C X C`` with ``C = I - 11ᵀ/n``: what the inner products ``(n, n)`` become when the rows' mean is taken off."""
    rows = square - square.mean(axis=0)
    return rows - rows.mean(axis=1, keepdims=True)


def reliability(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """How much of what sets each client's whole update apart from the group's mean is signal, ``(n,)``, 0 to 1.

    ``ρ_i = (C Ŝ C)_ii / (C M Mᵀ C)_ii`` with Ŝ of :func:`signal_gram` and C centring; below zero counts as 0, and 0/0 is 1:
    a client exactly at the mean has nothing that could be noise. The γ_i of CFL's Separation Theorem, noise over signal,
    is ``sqrt(1/ρ_i - 1)``.

    >>> a, b = np.array([[2.0, 0.0], [-2.0, 0.0]]), np.array([[2.0, 2.0], [-2.0, 2.0]])
    >>> reliability(halves_gram(a, b))  # centred: M = ±(2, 0), and noise ‖D_i‖² = 1, of which the mean takes a half off
    array([0.875, 0.875])
    """
    h = halves(gram, members)
    total = np.diagonal(centred(h.mean))
    nothing = total <= ROUNDING * np.diagonal(h.mean).max()
    share = np.diagonal(centred(signals(h))) / np.where(nothing, 1.0, total)
    return np.where(nothing, 1.0, np.clip(share, 0.0, 1.0))


def signal_cosine(gram: Any, members: Iterable[int] | None = None, centre: bool = False) -> np.ndarray:
    """Cosine similarities ``(n, n)`` of the clients' signals: those of updates without noise, which more data would show.

    ``Ŝ_ij / sqrt(Ŝ_ii Ŝ_jj)`` of :func:`signal_gram`, within [-1, 1], ones on the diagonal. Noise makes plain cosine
    similarities smaller, and the more so the fewer examples a client has. A client whose ``Ŝ_ii`` is not above zero is
    similar to nobody: 0. centre: take the members' mean off first.

    >>> a, b = np.array([[1.0, 2.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> signal_cosine(halves_gram(a, b))
    array([[1., 1.],
           [1., 1.]])
    """
    estimate = signals(halves(gram, members))
    estimate = centred(estimate) if centre else estimate
    square = np.diagonal(estimate)
    seen = square > ROUNDING * max(float(np.abs(square).max()), np.finfo(float).tiny)
    inverse = np.where(seen, 1.0 / np.sqrt(np.where(seen, square, 1.0)), 0.0)
    out = np.clip(inverse[:, None] * inverse * estimate, -1.0, 1.0)
    np.fill_diagonal(out, 1.0)
    return out


# ----------------------------------------------------------------------------------------------------
# Two tests of congruence in which one half says where to look, and the other whether there is anything.
#
# Coterie's own; letters as in :mod:`~coterie.clustering.halves`. Take any weights u ``(n,)`` with ``Σ u_i = 0``, chosen after
# seeing the first halves, and the direction ``v = Σ u_i a_i``. Given a, the numbers ``y_j = b_j · v`` are independent,
# with mean ``s_j · v`` and variance ``vᵀ Cov(f_j) v``. If all signals are equal and all noise alike, they are n draws of one
# normal law whatever was chosen, and in however few directions noise lives, so the slope of y on u is a Student's t with
# ``n - 2`` degrees of freedom, exactly: neither noise level nor effective dimension enter.
#
# Where clients have unequal noise, each client's halves are first divided by ``c_i^(k/2)``, ``c_i = ‖a_i - ā‖² + ‖b_i -
# b̄‖²``, and taking the mean off becomes the projection P off the vector of these weights. ``c_i`` is even in ``b_i``'s
# noise, so y keeps its mean; ``‖D_i‖²`` would not do, as it holds ``a_i · b_i``. But ``c_i`` holds signal too, and would hide
# a client that is far from all others; so k is 0 while the ``log ‖D_i‖²`` vary as much as equal noise makes them by chance,
# ``2/r`` with the effective dimension r, and rises to 1 at twice that. The means ā and b̄ are weighted by ``1/‖D_i‖``, lest
# one client of much noise lend it to all.


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
