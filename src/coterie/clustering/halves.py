"""Signal and noise, estimated from updates of two halves of every client's data.

This method is Coterie's own. Client i trains twice from the same model, on two random halves of its
data with the same number of steps, and sends ``a_i = s_i + e_i`` and ``b_i = s_i + f_i``. The
signal ``s_i`` depends on its data distribution. ``e_i`` and ``f_i`` are random: independent of each
other and of those of all other clients, with mean zero and the same distribution. With the *whole
update* ``M_i = (a_i + b_i) / 2`` and the *noise* ``D_i = (a_i - b_i) / 2``:

- ``D_i`` contains no signal, and has the distribution of the noise in ``M_i`` if that distribution
  is symmetric;
- the two are uncorrelated; if the noise is Gaussian, they are independent.

So D is a separate copy of the noise, and everything here follows from it. Only inner products are
needed: the Gram matrix ``(2n, 2n)`` of the rows ``[a; b]``, with the halves of client i at
positions i and n + i. It is a sum over parameters and stays the same under orthonormal maps. It may
also be made of sketches (:func:`~coterie.clustering.sketch`): in these formulas a sketch of k
numbers is a model of k parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch

from coterie.clustering import _checks
from coterie.clustering.columns import Columns
from coterie.clustering.geometry import gram_of_rows, leading_vector
from coterie.settings.calls import public

SQUARE_ROUNDING = 1e-12
"""Squared norms below this, relative to those of the updates, are rounding errors of float64."""


class Halves(NamedTuple):
    """Inner products of the updates a and b of n clients' halves, of whole updates M, and of noise D.

    Attributes:
        first: ``A Aᵀ``, shape ``(n, n)`` as the other matrices.
        second: ``B Bᵀ``.
        cross: ``A Bᵀ``.
        mean: ``M Mᵀ``.
        mixed: ``M Dᵀ``.
        levels: Noise levels ``‖D_i‖²``, shape ``(n,)``.
    """

    first: np.ndarray
    second: np.ndarray
    cross: np.ndarray
    mean: np.ndarray
    mixed: np.ndarray
    levels: np.ndarray


@public
def halves_gram(
    a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor, columns: Columns = None
) -> np.ndarray:
    """Compute the Gram matrix of all half-updates: first those of a, then those of b.

    Noise is a difference of entries of this matrix, which has a small relative error, see
    :func:`~coterie.clustering.gram`.

    Args:
        a: First halves, shape ``(n, d)``.
        b: Second halves of the same clients in the same order, shape ``(n, d)``.
        columns: As in :func:`~coterie.clustering.gram`.

    Returns:
        Shape ``(2n, 2n)``, float64, as are all results that follow from it here.

    Raises:
        ValueError: a and b differ in shape, or as in :func:`~coterie.clustering.gram`.

    Example:
        >>> halves_gram(np.array([[3.0, 4.0]]), np.array([[0.0, 2.0]]))
        array([[25.,  8.],
               [ 8.,  4.]])
    """
    first = _checks.rows(a, "a")
    second = _checks.rows(b, "b")
    if first.shape != second.shape:
        raise ValueError(
            f"a and b must be halves of the same clients, got shapes {tuple(first.shape)} and {tuple(second.shape)}"
        )
    return gram_of_rows(torch.cat((first, second)), columns)


def clients_of(gram: Any) -> np.ndarray:
    """Check the Gram matrix ``(2n, 2n)`` of halves."""
    square = _checks.gram_matrix(gram)
    if len(square) % 2:
        raise ValueError(
            f"gram must be (2n, 2n), of n clients' first halves and then their second, got shape {square.shape}; "
            "pass halves_gram(a, b)"
        )
    return square


def halves(gram: Any, members: Iterable[int] | None = None) -> Halves:
    """Compute the products of whole updates and of noise from the Gram matrix of halves.

    Args:
        gram: Shape ``(2n, 2n)``, of :func:`halves_gram`.
        members: Positions of the clients that count, which are sorted first; all if ``None``.

    Returns:
        The products.

    Raises:
        ValueError: The matrix has an odd size or is not a Gram matrix, or a position does not
            exist.

    Example:
        >>> products = halves(halves_gram(np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])))  # M = (2, 3), D = (1, 1)
        >>> products.mean, products.mixed, products.levels
        (array([[13.]]), array([[5.]]), array([2.]))
    """
    square = clients_of(gram)
    if members is not None:
        n = len(square) // 2
        first_halves = _checks.position_list(members, n, "members")
        # All clients in their order need no copy.
        if not np.array_equal(first_halves, np.arange(n)):
            positions = np.concatenate((first_halves, first_halves + n))
            square = square[np.ix_(positions, positions)]
    return halves_of(square)


def halves_of(square: np.ndarray) -> Halves:
    """Compute :func:`halves` of a checked Gram matrix ``(2n, 2n)``."""
    n = len(square) // 2
    # Views of the matrix.
    first = square[:n, :n]
    second = square[n:, n:]
    cross = square[:n, n:]
    # M = (a + b) / 2 and D = (a - b) / 2. In place: with many clients, what takes time is memory.
    mean = first + second
    mean += cross
    mean += cross.T
    mean /= 4
    mixed = first - second
    mixed += cross.T
    mixed -= cross
    mixed /= 4
    return Halves(first, second, cross, mean, mixed, levels_of(square))


def levels_of(square: np.ndarray) -> np.ndarray:
    """Compute :func:`noise_levels` from a checked Gram matrix ``(2n, 2n)``."""
    n = len(square) // 2
    squared_norms = np.diagonal(square)
    squared_differences = squared_norms[:n] + squared_norms[n:] - 2 * np.diagonal(square[:n, n:])
    # Rounding may make them negative.
    return np.maximum(squared_differences / 4, 0.0)


@public
def noise_levels(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """Estimate the noise in each whole update: ``‖D_i‖²``, unbiased for the expected squared norm of the noise.

    Args:
        gram: Shape ``(2n, 2n)``, of halves.
        members: As in :func:`signal_gram`.

    Returns:
        Shape ``(n,)``.

    Raises:
        ValueError: As in :func:`signal_gram`.

    Example:
        >>> noise_levels(halves_gram(np.array([[3.0, 4.0]]), np.array([[1.0, 2.0]])))
        array([2.])
    """
    levels = levels_of(clients_of(gram))
    return (
        levels
        if members is None
        else levels[_checks.position_list(members, len(levels), "members")]
    )


@public
def signal_gram(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """Estimate the inner products of the clients' signals, ``S Sᵀ``, without bias, including the diagonal.

    Off the diagonal the estimate is ``M_i · M_j``, as different clients share no noise. On the
    diagonal it is ``a_i · b_i = ‖M_i‖² - ‖D_i‖²``, as the two halves of a client share no noise. A
    plain Gram matrix contains the noise on its diagonal.

    The symmetrised cross-half products ``(a_i · b_j + b_i · a_j) / 2`` have the same expectation,
    and twice the variance off the diagonal: they do not use ``a_i · a_j`` and ``b_i · b_j``. With
    ``τ_ij = Var(e_i · f_j)``, their variance is ``τ_ij / 2``, and that of ``M_i · M_j`` is ``τ_ij /
    4``.

    The matrix is symmetric but need not be positive semi-definite: a negative diagonal entry means
    that only noise was seen. Without noise, ``a = b``, it is the Gram matrix of the updates.

    Args:
        gram: Shape ``(2n, 2n)``, of halves.
        members: Positions of the clients that count, which are sorted first; all if ``None``.

    Returns:
        Shape ``(n, n)``.

    Raises:
        ValueError: The matrix has an odd size or is not a Gram matrix, or a position does not
            exist.

    Example:
        >>> signal_gram(halves_gram(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([[1.0, -1.0], [0.0, 4.0]])))
        array([[0., 0.],
               [0., 8.]])
    """
    return signals(halves(gram, members))


def signals(group_halves: Halves) -> np.ndarray:
    """Compute :func:`signal_gram` of checked halves."""
    return group_halves.mean - np.diag(group_halves.levels)


def centred(square: np.ndarray) -> np.ndarray:
    """Compute ``C X C`` with ``C = I - 11ᵀ/n``: the inner products ``(n, n)`` after the mean of the rows is subtracted."""
    row_centred = square - square.mean(axis=0)
    return row_centred - row_centred.mean(axis=1, keepdims=True)


def centred_squares(square: np.ndarray) -> np.ndarray:
    """Compute the diagonal ``(n,)`` of :func:`centred` of a symmetric matrix: squared norms after the mean is subtracted."""
    row_means = square.mean(axis=0)
    return np.asarray(np.diagonal(square) - 2 * row_means + row_means.mean())


@public
def reliability(gram: Any, members: Iterable[int] | None = None) -> np.ndarray:
    """Estimate how much of each client's difference from the mean of the group is signal, from 0 to 1.

    ``ρ_i = (C Ŝ C)_ii / (C M Mᵀ C)_ii`` with Ŝ of :func:`signal_gram` and C centring. Below zero it
    counts as 0. 0/0 is 1: a client exactly at the mean has no difference that could be noise. The
    γ_i of CFL's Separation Theorem, noise over signal, is ``sqrt(1/ρ_i - 1)``.

    Args:
        gram: Shape ``(2n, 2n)``, of halves.
        members: As in :func:`signal_gram`.

    Returns:
        Shape ``(n,)``.

    Raises:
        ValueError: As in :func:`signal_gram`.

    Example:
        >>> a, b = np.array([[2.0, 0.0], [-2.0, 0.0]]), np.array([[2.0, 2.0], [-2.0, 2.0]])
        >>> reliability(halves_gram(a, b))  # centred: M = ±(2, 0), and noise ‖D_i‖² = 1, of which the mean takes a half off
        array([0.875, 0.875])
    """
    group_halves = halves(gram, members)
    squared_deviations = centred_squares(group_halves.mean)
    at_mean = squared_deviations <= SQUARE_ROUNDING * np.diagonal(group_halves.mean).max()
    signal_deviations = centred_squares(signals(group_halves))
    shares = signal_deviations / np.where(at_mean, 1.0, squared_deviations)
    return np.where(at_mean, 1.0, np.clip(shares, 0.0, 1.0))


@public
def signal_cosine(
    gram: Any, members: Iterable[int] | None = None, centre: bool = False
) -> np.ndarray:
    """Estimate the cosine similarities of the clients' signals, that is, of updates without noise.

    It is ``Ŝ_ij / sqrt(Ŝ_ii Ŝ_jj)`` with Ŝ of :func:`signal_gram`, within [-1, 1], with ones on the
    diagonal. More data would lead to these values. Noise makes plain cosine similarities smaller,
    the more so the fewer examples a client has. A client whose ``Ŝ_ii`` is not above zero has
    similarity 0 to all others.

    Args:
        gram: Shape ``(2n, 2n)``, of halves.
        members: As in :func:`signal_gram`.
        centre: Subtract the mean of the members first.

    Returns:
        Shape ``(n, n)``.

    Raises:
        ValueError: As in :func:`signal_gram`.

    Example:
        >>> a, b = np.array([[1.0, 2.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
        >>> signal_cosine(halves_gram(a, b))
        array([[1., 1.],
               [1., 1.]])
    """
    estimate = signals(halves(gram, members))
    estimate = centred(estimate) if centre else estimate
    squared_norms = np.diagonal(estimate)
    largest = max(float(np.abs(squared_norms).max()), np.finfo(float).tiny)
    has_signal = squared_norms > SQUARE_ROUNDING * largest
    inverse_norms = np.where(
        has_signal, 1.0 / np.sqrt(np.where(has_signal, squared_norms, 1.0)), 0.0
    )
    similarity = np.clip(inverse_norms[:, None] * inverse_norms * estimate, -1.0, 1.0)
    np.fill_diagonal(similarity, 1.0)
    return similarity


# ----------------------------------------------------------------------------------------------------
# Two tests of congruence. One half of the data selects a direction, and the other half tests for a
# difference along it.
#
# These tests are Coterie's own; letters as in :mod:`~coterie.clustering.halves`. Take any weights u
# ``(n,)`` with ``Σ u_i = 0``, chosen with knowledge of the first halves, and the direction ``v = Σ
# u_i a_i``. Given a, the numbers ``y_j = b_j · v`` are independent, with mean ``s_j · v`` and
# variance ``vᵀ Cov(f_j) v``. If all signals are equal and all noise has the same distribution, they
# are n draws from one normal distribution. This holds for every choice of u, however few directions
# the noise has. So the slope of y on u is exactly a Student's t with ``n - 2`` degrees of freedom,
# and depends on neither the noise level nor the effective dimension.
#
# If clients have unequal noise, each client's halves are first divided by ``c_i^(k/2)``, ``c_i =
# ‖a_i - ā‖² + ‖b_i - b̄‖²``, and centring becomes the projection P orthogonal to the vector of
# these weights. ``c_i`` is even in ``b_i``'s noise, so y keeps its mean. ``‖D_i‖²`` is not
# suitable, as it contains ``a_i · b_i``. But ``c_i`` also contains signal, and would hide a client
# that is far from all others. So k is 0 while the variance of the ``log ‖D_i‖²`` is at most the one
# that equal noise causes by chance, ``2/r`` with the effective dimension r. It rises to 1 at twice
# that variance. The means ā and b̄ are weighted by ``1/‖D_i‖``, so that the noise of one client
# does not affect all others.


class _Scaled(NamedTuple):
    """Products ``(n, n)`` of halves that are scaled and centred: ``A Aᵀ``, ``B Bᵀ``, ``A Bᵀ``; and the diagonal of P."""

    first: np.ndarray
    second: np.ndarray
    cross: np.ndarray
    alone: np.ndarray


def half_tests(group_halves: Halves, noise_share: float) -> tuple[float, float]:
    """Compute :func:`direction_test` and :func:`odd_one_out_test`, from the same scaled halves."""
    scaled = _scaled(group_halves, noise_share)
    return _direction(scaled), _odd_one_out(scaled)


def direction_test(group_halves: Halves, noise_share: float) -> float:
    """Test that all signals are equal, against two groups that differ, or any one direction in which clients differ.

    u is the leading eigenvector of the centred Gram matrix of one half: the clients of that half
    differ most along it. Each half chooses once, and the smaller p-value counts twice (Bonferroni).

    Args:
        group_halves: The halves.
        noise_share: ``1/r``.

    Returns:
        The p-value; 1 for fewer than three clients.
    """
    return _direction(_scaled(group_halves, noise_share))


def _direction(scaled: _Scaled | None) -> float:
    """:func:`direction_test` of scaled halves."""
    if scaled is None:
        return 1.0
    chosen_by_first = _slope_p_value(scaled.first, scaled.cross)
    chosen_by_second = _slope_p_value(scaled.second, scaled.cross.T)
    return min(1.0, 2 * min(chosen_by_first, chosen_by_second))


def _slope_p_value(chosen_by: np.ndarray, cross: np.ndarray) -> float:
    """p-value of the slope of y on u; ``cross`` has the rows of the half that chose u."""
    u = leading_vector(chosen_by)
    y = u @ cross
    slope = u @ y
    return float(_p_value(slope, residual=y @ y - slope**2, df=len(y) - 2))


def odd_one_out_test(group_halves: Halves, noise_share: float) -> float:
    """Test that all signals are equal, against one client that differs from all others.

    For client i, u singles it out: the test asks whether ``a_i · b_i``, centred, is larger than
    ``a_i · b_j`` and ``a_j · b_i`` vary over j ≠ i. Both halves give the same slope, and each gives
    a separate variance from n - 2 numbers. The larger variance counts, with ``2 (n - 2)`` degrees
    of freedom, as both have to be small by chance.

    Args:
        group_halves: The halves.
        noise_share: ``1/r``.

    Returns:
        The p-value, the smallest of n p-values times n; 1 for fewer than three clients.
    """
    return _odd_one_out(_scaled(group_halves, noise_share))


def _odd_one_out(scaled: _Scaled | None) -> float:
    """:func:`odd_one_out_test` of scaled halves."""
    if scaled is None:
        return 1.0
    cross = scaled.cross
    n = len(cross)
    slopes = np.diagonal(cross) / np.sqrt(scaled.alone)
    # Of the residual sums of squares of both halves, the larger.
    squares_of_columns = np.einsum("ij,ij->j", cross, cross)
    squares_of_rows = np.einsum("ij,ij->i", cross, cross)
    larger_sums = np.maximum(squares_of_columns, squares_of_rows)
    residual = larger_sums - slopes**2
    p_values = _p_value(slopes, 2 * residual, 2 * (n - 2))
    return min(1.0, n * float(p_values.min()))


def _p_value(slope: np.ndarray, residual: np.ndarray, df: int) -> np.ndarray:
    """One-sided p-value of Student's t, for a slope on a unit vector and the residual sum of squares."""
    # Without noise there is no residual, and a slope is certain.
    rounding = SQUARE_ROUNDING * slope**2 + np.finfo(float).tiny
    t = slope / np.sqrt(np.maximum(residual, rounding) / df)
    p: np.ndarray = scipy.special.stdtr(df, -t)
    return p


def _scaled(group_halves: Halves, noise_share: float) -> _Scaled | None:
    """Scale and centre; ``None`` if there is nothing to test: fewer than three clients, or no difference beyond rounding."""
    n = len(group_halves.mean)
    first, second = group_halves.first, group_halves.second
    squared_norms = (np.diagonal(first) + np.diagonal(second)) / 2
    rounding = SQUARE_ROUNDING * float(squared_norms.max())
    if n < 3 or not rounding > 0:
        return None
    # c_i = ‖a_i - ā‖² + ‖b_i - b̄‖², with means weighted by 1/‖D_i‖; here half of it.
    noise_levels = np.maximum(group_halves.levels, rounding)
    mean_weights = 1 / np.sqrt(noise_levels)
    mean_weights /= mean_weights.sum()
    products_with_mean = (first @ mean_weights + second @ mean_weights) / 2
    squared_deviations = squared_norms - 2 * products_with_mean + mean_weights @ products_with_mean
    if squared_deviations.max() <= rounding:
        return None
    # Rows are divided by c_i^(k/2).
    k = _inequality(noise_levels, noise_share)
    relative_deviations = squared_deviations / squared_deviations.max()
    row_scales = np.maximum(relative_deviations, SQUARE_ROUNDING) ** (-k / 2)
    unit_scales = row_scales / np.linalg.norm(row_scales)

    def scaled_and_centred(products: np.ndarray) -> np.ndarray:
        """``P (s sᵀ * products) P`` with ``P = I - u uᵀ`` of the unit vector u of the scales s."""
        if k > 0:
            products = products * row_scales
            products *= row_scales[:, None]
        # P X P = X - u (uᵀX - (uᵀXu) uᵀ) - (Xu) uᵀ, which is one product of (n, 2) and (2, n).
        left = unit_scales @ products
        right = products @ unit_scales
        columns = np.stack((unit_scales, right), axis=1)
        rows = np.stack((left - float(unit_scales @ right) * unit_scales, unit_scales))
        projected: np.ndarray = products - columns @ rows
        return projected

    return _Scaled(
        first=scaled_and_centred(first),
        second=scaled_and_centred(second),
        cross=scaled_and_centred(group_halves.cross),
        alone=np.maximum(1 - unit_scales**2, SQUARE_ROUNDING),
    )


def _inequality(noise_levels: np.ndarray, noise_share: float) -> float:
    """k: 0 if noise levels ``(n,)`` vary as equal noise does by chance, 1 if they vary twice as much or more.

    The variation is the variance of their logarithms. So that one client among many is not
    overlooked, it is at least the squared distance of the largest logarithm from the median,
    divided by ``2 log n``, the factor by which that square is larger by chance.
    """
    log_levels = np.log(noise_levels)
    largest_deviation = float(log_levels.max() - np.median(log_levels))
    variance_of_largest = largest_deviation**2 / (2 * np.log(len(log_levels)))
    log_variance = max(float(log_levels.var(ddof=1)), variance_of_largest)
    if log_variance <= 0:
        return 0.0
    # 2/r is the variance of log ‖D_i‖² under equal noise.
    chance_variance = 2 * noise_share
    return min(max(2 * (1 - chance_variance / log_variance), 0.0), 1.0)
