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
