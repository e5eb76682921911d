"""How much a client's updates tell of its data at most: ε and δ of differential privacy, exactly.

Each client adds noise of standard deviation ``noise * clip`` to its own update of norm at most ``clip``, and the server sees
every such update. Two data sets of that client, however different, have updates at most ``2 clip`` apart: a Gaussian
mechanism of multiplier ``noise / 2``. The server knows whom it asked, so there is no amplification by sampling, and several
adaptive Gaussian releases are together as private as one (J. Dong, A. Roth, W. Su, "Gaussian Differential Privacy",
JRSS B 2022, Corollary 3.3): ``T`` of them as one of multiplier ``noise / (2 sqrt(T))``. For that one, δ(ε) is known in closed
form (B. Balle, Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8). So nothing is
bounded here; it is the number itself.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from coterie.settings import SettingError, UserError


def leak(epsilon: float, separation: float) -> float:
    """log δ of Gaussian releases whose means are ``separation`` (μ) standard deviations apart, at ``epsilon``.

    δ = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)
    """
    high = float(log_ndtr(separation / 2 - epsilon / separation))
    low = epsilon + float(log_ndtr(-separation / 2 - epsilon / separation))
    return high + math.log1p(-math.exp(low - high)) if low < high else -math.inf


ACCOUNTANTS = ("exact", "rdp", "pld")


def spent(noise: float, updates: int, delta: float = 1e-5, accountant: str = "exact") -> float:
    """The least ε for which ``updates`` noised updates of a client are (ε, δ)-differentially private.

    noise: the multiplier of :class:`~coterie.boundary.Boundary` (z). The unit is a client: all of its data may be replaced by
    any other. Infinite without noise, 0 without updates. accountant: ``exact``, or one of Google's dp-accounting library
    (``coterie[dp]``): ``rdp``, a bound by Rényi divergences, or ``pld``, by privacy loss distributions, which agrees with
    ``exact`` to its discretisation and takes minutes where the noise is small.

    >>> round(spent(noise=10.0, updates=1), 3), round(spent(noise=10.0, updates=40), 3)
    (0.726, 5.759)
    """
    if not 0 < delta < 1:
        raise SettingError(f"delta must be > 0 and < 1, got {delta!r}")
    if updates < 0 or noise < 0:
        raise SettingError(f"noise and updates must be >= 0, got {noise!r} and {updates!r}")
    if accountant not in ACCOUNTANTS:
        raise SettingError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}")
    if not updates:
        return 0.0
    if not noise:
        return math.inf
    if accountant != "exact":
        return _by_library(noise, updates, delta, accountant)
    separation = 2 * math.sqrt(updates) / noise
    wanted = math.log(delta)
    if leak(0.0, separation) <= wanted:
        return 0.0
    # By zero-concentrated privacy, ε is no greater; the closed form is decreasing in ε.
    most = separation * separation / 2 + separation * math.sqrt(-2 * wanted)
    if leak(most, separation) > wanted:  # rounded: the noise is next to nothing
        most *= 2
    if not math.isfinite(most):
        return math.inf
    from scipy.optimize import brentq  # a third of a second, at every start of any run

    found = float(brentq(lambda epsilon: max(leak(epsilon, separation), -1e300) - wanted, 0.0, most, xtol=1e-12, rtol=1e-12))
    return found * (1 + 1e-9)  # not below the root


def _by_library(noise: float, updates: int, delta: float, accountant: str) -> float:
    try:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise UserError(f"the accountant {accountant} needs dp-accounting: pip install 'coterie[dp]'") from error
    ledger = (RdpAccountant if accountant == "rdp" else PLDAccountant)()
    ledger.compose(dp.GaussianDpEvent(noise / 2), updates)
    return float(ledger.get_epsilon(delta))


def noise_for(epsilon: float, updates: int, delta: float = 1e-5) -> float:
    """The least noise multiplier with which ``updates`` updates spend at most ``epsilon``.

    >>> round(noise_for(5.76, updates=40), 2)
    10.0
    """
    if not epsilon > 0 or updates < 1:
        raise SettingError(f"epsilon must be > 0 and updates >= 1, got {epsilon!r} and {updates!r}")
    low, high = 1e-9, 1.0
    while spent(high, updates, delta) > epsilon:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle, updates, delta) <= epsilon else (middle, high)
    return high
