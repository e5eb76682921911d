"""ε of single training rows: from each client's number of rows, and the passes that it made.

Two data sets of a client are neighbours if one has an empty row, without a gradient, in place of a
row of the other: its number of rows is known to the server, and the row is what ε protects. The
sum of clipped gradients then changes by at most C, so a step is a Gaussian mechanism with
multiplier σ.

- *Poisson* batches: each step is a Gaussian mechanism on a random sample with rate ``q = B / n``,
  and all steps compose. dp-accounting computes this (I. Mironov, K. Talwar, L. Zhang, "Rényi
  Differential Privacy of the Sampled Gaussian Mechanism", arXiv 1908.10530; or privacy loss
  distributions).
- *Shuffled* batches: in a pass, each row is in one batch, and the server may know in which. So a
  pass is one Gaussian mechanism, and ε follows from the number of passes exactly
  (:func:`coterie.boundary.spent`). To count them as Poisson batches, as is often done, claims too
  small an ε (L. Chua et al., "How Private are DP-SGD Implementations?", ICML 2024).

A client composes over the rounds in which it took part itself. That the server asks only some clients
in a round lowers no ε: it knows whom it asked.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from coterie.boundary.privacy import spent
from coterie.contrib.dpsgd.options import RecordPrivacy, options_of
from coterie.core import Training
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public

RENYI_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)
"""Orders of the Rényi divergences. Whole numbers have a closed form, and are enough below an ε of 20."""


@public
def spent_by_rows(
    rows: int,
    passes: int,
    *,
    batch: int = 32,
    noise: float = 1.0,
    delta: float = 1e-5,
    sampling: str = "poisson",
    accountant: str = "rdp",
) -> float:
    """Return the ε at which DP-SGD with these settings protects each training row of a client.

    Args:
        rows: The client's training rows.
        passes: Passes over them, in all rounds together.
        batch: Examples in a batch; 0 for all.
        noise: The noise multiplier σ.
        delta: δ.
        sampling: ``poisson`` or ``shuffled``.
        accountant: ``rdp`` or ``pld``, of Poisson batches.

    Returns:
        ε; infinite without noise, 0 without passes.

    Raises:
        SettingError: An argument is out of its range.
        UserError: dp-accounting is not installed.

    Example:
        >>> round(spent_by_rows(rows=1000, passes=10, batch=50, noise=1.0, sampling="shuffled"), 3)
        17.857
    """
    options = RecordPrivacy(noise=noise, delta=delta, sampling=sampling, accountant=accountant)
    if rows < 1 or passes < 0:
        raise SettingError(f"rows must be >= 1 and passes >= 0, got {rows!r} and {passes!r}")
    amount = passes
    if sampling == "poisson":
        amount = passes * math.ceil(rows / min(batch or rows, rows))
    return spent_with(options, batch, rows, amount)


@public
def noise_for_rows(
    epsilon: float,
    rows: int,
    passes: int,
    *,
    batch: int = 32,
    delta: float = 1e-5,
    sampling: str = "poisson",
) -> float:
    """Return the least noise multiplier σ with which the training rows of a client have at most this ε.

    Args:
        epsilon: ε.
        rows: The client's training rows. Of several clients, the one with the fewest decides.
        passes: Passes over them, in all rounds together.
        batch: Examples in a batch; 0 for all.
        delta: δ.
        sampling: ``poisson`` or ``shuffled``.

    Returns:
        σ, to three digits upwards.

    Raises:
        SettingError: An argument is out of its range.
        UserError: dp-accounting is not installed.
    """
    if not epsilon > 0 or passes < 1:
        raise SettingError(f"epsilon must be > 0 and passes >= 1, got {epsilon!r} and {passes!r}")

    def is_enough(noise: float) -> bool:
        spent_epsilon = spent_by_rows(
            rows, passes, batch=batch, noise=noise, delta=delta, sampling=sampling
        )
        return spent_epsilon <= epsilon

    # Bisection: ε falls as the noise grows.
    insufficient_noise = 1e-3
    sufficient_noise = 1.0
    while not is_enough(sufficient_noise):
        sufficient_noise *= 2
    while sufficient_noise > 1.001 * insufficient_noise:
        middle_noise = math.sqrt(insufficient_noise * sufficient_noise)
        if is_enough(middle_noise):
            sufficient_noise = middle_noise
        else:
            insufficient_noise = middle_noise
    return sufficient_noise


def spent_with(options: RecordPrivacy, batch: int, rows: int, amount: int) -> float:
    """Return the ε of each training row of a client.

    Args:
        options: The settings of DP-SGD.
        batch: Examples in a batch; 0 for all.
        rows: The client's training rows.
        amount: Its steps on Poisson batches, or its passes over shuffled ones.
    """
    if options.sampling == "shuffled":
        # The distance of two sums is C, half of that of two updates of a client.
        return spent(options.noise, amount, options.delta, sums=True)
    if not amount:
        return 0.0
    if not options.noise:
        return math.inf
    rate = min(batch or rows, rows) / rows
    return _of_poisson(rate, options.noise, amount, options.delta, options.accountant)


@lru_cache(maxsize=4096)
def _of_poisson(rate: float, noise: float, steps: int, delta: float, accountant: str) -> float:
    """ε of steps on Poisson batches with a sampling rate."""
    try:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise UserError("ε of dp-sgd needs dp-accounting: pip install 'coterie[dp]'") from error
    ledger = PLDAccountant() if accountant == "pld" else RdpAccountant(RENYI_ORDERS)
    step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))
    ledger.compose(dp.SelfComposedDpEvent(step, steps))
    return float(ledger.get_epsilon(delta))


def privacy(description: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the privacy loss of the training rows of a run's clients.

    Args:
        description: The content of ``run.toml``.
        lines: The completed rounds.

    Returns:
        - epsilon: the greatest ε of a client, or None if dp-accounting is not installed; least and
          median; of_client: client -> its ε
        - delta, unit (``"row"``), updates (the steps on Poisson batches, or passes over shuffled ones, of the client that
          made most)
        - label and words: the same in words
    """
    training = Training(**description["training"])
    options = options_of(training.optimizer_options)
    amounts: Counter[str] = Counter()
    for line in lines:
        amounts.update(line.get("released", {}))
    epsilons: dict[str, float] = {}
    common_entries: dict[str, Any] = {
        "epsilon": None,
        "delta": options.delta,
        "unit": "row",
        "updates": max(amounts.values(), default=0),
        "label": f"ε of a row at δ = {options.delta:g}, the greatest of all clients",
    }
    try:
        for client, rows in _rows_of_clients(description["world"], lines).items():
            epsilons[client] = spent_with(options, training.batch, rows, amounts[client])
    except UserError as error:
        return {**common_entries, "words": str(error)}
    if not epsilons:
        return {**common_entries, "words": "no client has trained yet"}
    least_epsilon = min(epsilons.values())
    median = statistics.median(epsilons.values())
    greatest_epsilon = max(epsilons.values())
    return {
        **common_entries,
        "epsilon": greatest_epsilon,
        "least": least_epsilon,
        "median": median,
        "of_client": epsilons,
        "words": (
            f"each training row is protected with ε = {greatest_epsilon:.3g} at δ = {options.delta:g} or less "
            f"(of {len(epsilons)} clients: least {least_epsilon:.3g}, median {median:.3g}); test scores are not covered"
        ),
    }


def _rows_of_clients(
    world: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Client -> its number of training rows: from its data, or in a federation the least that it has reported."""
    if "examples" in world:
        return dict(zip(map(str, world["clients"]), world["examples"], strict=True))
    rows_of_clients: dict[str, int] = {}
    for line in lines:
        for client, rows in line.get("rows", {}).items():
            rows_of_clients[client] = max(1, min(rows, rows_of_clients.get(client, rows)))
    return rows_of_clients
