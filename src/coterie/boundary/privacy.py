"""The exact ε and δ of differential privacy: the most that a client's updates can reveal about its data.

Each client adds noise of standard deviation ``noise * clip`` to its own update of norm at most
``clip``, and the server sees every such update. Two data sets of that client, however different,
have updates at most ``2 clip`` apart: this is a Gaussian mechanism with multiplier ``noise / 2``.
The server knows which clients it asked, so there is no amplification by sampling. Several adaptive
Gaussian releases together are as private as a single one (J. Dong, A. Roth, W. Su, "Gaussian
Differential Privacy", JRSS B 2022, Corollary 3.3): ``T`` of them as one with multiplier ``noise /
(2 sqrt(T))``. For that one, δ(ε) has a closed form (B. Balle, Y.-X. Wang, "Improving the Gaussian
Mechanism for Differential Privacy", ICML 2018, Theorem 8). So the result is exact and not a bound.
"""

from __future__ import annotations

import math

import scipy

from coterie.settings import SettingError, UserError
from coterie.settings.calls import public


def leak(epsilon: float, separation: float) -> float:
    """Return log δ of Gaussian releases at ``epsilon``.

    δ = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)

    Args:
        epsilon: ε.
        separation: Distance μ of the means, in standard deviations.

    Returns:
        log δ.
    """
    # The logarithms of the two terms: both may be below the least float.
    log_first_term = float(scipy.special.log_ndtr(separation / 2 - epsilon / separation))
    log_second_term = epsilon + float(
        scipy.special.log_ndtr(-separation / 2 - epsilon / separation)
    )
    # By rounding, the difference of the two terms may not be positive: then δ is zero.
    if not log_second_term < log_first_term:
        return -math.inf
    # log(exp(a) - exp(b)), without leaving the logarithms.
    return log_first_term + math.log1p(-math.exp(log_second_term - log_first_term))


ACCOUNTANTS = ("exact", "rdp", "pld")


@public
def spent(
    noise: float, updates: int, delta: float = 1e-5, accountant: str = "exact", sums: bool = False
) -> float:
    """Return the least ε for which ``updates`` noised updates of a client are (ε, δ)-differentially private.

    The unit of privacy is a client. If it sends its own updates, all of its data may be replaced by
    any other. In sums it may also be left out: its numbers may be replaced by zeros, so that the
    distance is half as large.

    Args:
        noise: The noise multiplier z of :class:`~coterie.boundary.Boundary`.
        updates: Number of updates.
        delta: δ.
        accountant: ``exact``, or an accountant of Google's dp-accounting library (``coterie[dp]``):
            ``rdp``, a bound by Rényi divergences, or ``pld``, by privacy loss distributions.
            ``pld`` agrees with ``exact`` up to its discretisation, and takes minutes if the noise
            is small.
        sums: Whether the noise is on sums over clients (``boundary.masks``).

    Returns:
        ε; infinite without noise, 0 without updates.

    Raises:
        SettingError: An argument is out of its range.
        UserError: The library is not installed.

    Example:
        >>> round(spent(noise=10.0, updates=1), 3), round(spent(noise=10.0, updates=40), 3)
        (0.726, 5.759)
        >>> round(spent(noise=10.0, updates=40, sums=True), 3)
        2.594
    """
    # In sums the distance of two data sets is half as large, as if the noise were twice as large.
    noise = 2 * noise if sums else noise
    if not 0 < delta < 1:
        raise SettingError(f"delta must be > 0 and < 1, got {delta!r}")
    if updates < 0 or noise < 0:
        raise SettingError(f"noise and updates must be >= 0, got {noise!r} and {updates!r}")
    if accountant not in ACCOUNTANTS:
        raise SettingError(
            f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}"
        )
    if not updates:
        return 0.0
    if not noise:
        return math.inf
    if accountant != "exact":
        return _by_library(noise, updates, delta, accountant)
    # μ: all updates together are one Gaussian mechanism with this separation.
    separation = 2 * math.sqrt(updates) / noise
    log_delta = math.log(delta)
    # At ε = 0 the releases leak at most δ already.
    if leak(0.0, separation) <= log_delta:
        return 0.0
    # Zero-concentrated differential privacy bounds ε; the closed form decreases in ε.
    max_epsilon = separation * separation / 2 + separation * math.sqrt(-2 * log_delta)
    # Rounding can break the bound if the noise is extremely small.
    if leak(max_epsilon, separation) > log_delta:
        max_epsilon *= 2
    if not math.isfinite(max_epsilon):
        return math.inf

    def excess(epsilon: float) -> float:
        """How far log δ(ε) is above log δ."""
        return max(leak(epsilon, separation), -1e300) - log_delta

    least_epsilon = float(scipy.optimize.brentq(excess, 0.0, max_epsilon, xtol=1e-12, rtol=1e-12))
    # Rounded up, so that it is at least the true root.
    return least_epsilon * (1 + 1e-9)


def _by_library(noise: float, updates: int, delta: float, accountant: str) -> float:
    try:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise UserError(
            f"the accountant {accountant} needs dp-accounting: pip install 'coterie[dp]'"
        ) from error
    event_ledger = (RdpAccountant if accountant == "rdp" else PLDAccountant)()
    # A client's updates differ by at most 2 clip, so the multiplier is half of the noise.
    event_ledger.compose(dp.GaussianDpEvent(noise / 2), updates)
    return float(event_ledger.get_epsilon(delta))


@public
def noise_for(epsilon: float, updates: int, delta: float = 1e-5, sums: bool = False) -> float:
    """Return the least noise multiplier with which ``updates`` updates spend at most ``epsilon``.

    Args:
        epsilon: ε.
        updates: Number of updates.
        delta: δ.
        sums: Whether the noise is on sums over clients (``boundary.masks``).

    Returns:
        The noise multiplier z.

    Raises:
        SettingError: An argument is out of its range.

    Example:
        >>> round(noise_for(5.76, updates=40), 2)
        10.0
    """
    if not epsilon > 0 or updates < 1:
        raise SettingError(f"epsilon must be > 0 and updates >= 1, got {epsilon!r} and {updates!r}")
    # Bisection: ε falls as the noise grows. First double the noise until it is enough.
    insufficient_noise = 1e-9
    sufficient_noise = 1.0
    while spent(sufficient_noise, updates, delta, sums=sums) > epsilon:
        sufficient_noise *= 2
    # Then halve the interval up to a relative width of 1e-9; its upper end is always enough.
    while sufficient_noise - insufficient_noise > 1e-9 * sufficient_noise:
        middle_noise = (insufficient_noise + sufficient_noise) / 2
        if spent(middle_noise, updates, delta, sums=sums) <= epsilon:
            sufficient_noise = middle_noise
        else:
            insufficient_noise = middle_noise
    return sufficient_noise
