"""Evidence of a race: differences of held-out losses of two methods, pooled over clients and over rounds.

In each round, every client reports the mean difference of two methods' losses on its held-out
examples, and its variance. :func:`pooled` makes one difference of them, with its standard error.

Held-out examples are the same ones in all rounds. So the differences of two rounds have the same
error by the draw of the examples, and more rounds do not lower it. What changes from round to round
is the noise of training. :func:`over_rounds` averages this noise over the later half of the rounds,
and keeps the error by the draw of the examples.

Models go on learning: :func:`expected` extrapolates a difference to later rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core import WORST_LOSS, Averaging, Client, state
from coterie.core.client_table import ClientTable
from coterie.methods._fences import clients_limited, fenced_reports


@state("race.difference")
class Difference:
    """Held-out loss of one arm less that of another, pooled over clients.

    Attributes:
        round: The round.
        mean: The difference.
        error: Its standard error.
        share: Share of the clients that reported in this round.
        degrees: Degrees of freedom of the standard error (B. L. Welch, Biometrika 1947).
        level: Pooled loss of the models that serve the clients.
    """

    round: int
    mean: float
    error: float
    share: float = 1.0
    degrees: float = math.inf
    level: float = 1.0

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 for equal models."""
        if self.error > 0:
            return self.mean / self.error
        return math.copysign(math.inf, self.mean) if self.mean else 0.0


Report = tuple[float, float, int]
"""Mean of a client's losses or differences of losses, the variance of this mean, and the number of
examples."""

Reports = Mapping[Client, Report]


def pooled(round: int, reports: Reports, limited: bool = False) -> Difference:
    """Return the mean difference over all held-out examples of all clients.

    Clients are the ones that are served, not a sample of others: the variance is that within
    clients.

    Args:
        round: The round.
        reports: Client -> (mean difference, variance of this mean, number of examples).
        limited: Whether a client's report is limited by those of the others, as some may be
            hostile.
    """
    difference, _ = pooled_within_fences(round, reports, limited)
    return difference


def pooled_within_fences(
    round: int, reports: Reports, limited: bool
) -> tuple[Difference, set[Client]]:
    """The difference of :func:`pooled`, and the clients whose reports were limited."""
    mean_differences, spreads, counts = spread_out(reports)
    # One hostile client must not decide for the others.
    limited_clients: set[Client] = set()
    if limited:
        within_fences = fenced_reports(mean_differences, spreads)
        limited_clients = clients_limited(reports, (mean_differences, spreads), within_fences)
        mean_differences, spreads = within_fences
    # Clients count by their held-out examples, none for more than its largest share.
    shares = Averaging().bounded(counts)
    shares = shares / shares.sum()
    client_variances = shares**2 * spreads / counts
    variance = client_variances.sum()
    # The Welch-Satterthwaite equation.
    squared_sum = (client_variances**2 / np.maximum(counts - 1, 1)).sum()
    degrees = float(variance**2 / squared_sum) if squared_sum > 0 else math.inf
    difference = Difference(
        round=round,
        mean=float(shares @ mean_differences),
        error=math.sqrt(variance),
        degrees=degrees,
    )
    return difference, limited_clients


def spread_out(reports: Reports) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean differences, the variances of a single example, and the numbers of examples, ``(n,)`` each.

    Args:
        reports: Client -> (mean difference, variance of this mean, number of examples).
    """
    columns: Iterable[Any] = (
        reports.columns if isinstance(reports, ClientTable) else zip(*reports.values(), strict=True)
    )
    mean_differences, variances, counts = (np.array(column, dtype=np.float64) for column in columns)
    spreads = np.minimum(variances, (2 * WORST_LOSS) ** 2) * counts
    # The variance of a client with one example is not known: it counts as that of the others.
    is_known = np.isfinite(variances)
    spreads[~is_known] = (
        spreads[is_known].mean() if is_known.any() else (mean_differences**2).mean()
    )
    return mean_differences, spreads, counts


def example_counts(reports: Reports) -> Mapping[Client, int]:
    """Return client -> the number of examples of its report."""
    if isinstance(reports, ClientTable):
        return ClientTable(reports.clients, reports.columns[2:], False, reports.rank)
    return {client: count for client, (_, _, count) in reports.items()}


def later_half(history: Sequence[Difference]) -> Sequence[Difference]:
    """Return the later half of the differences of two methods, the larger half of an odd number."""
    return history[len(history) // 2 :]


def over_rounds(history: Sequence[Difference]) -> Difference:
    """Return the difference of two methods over the later half of the rounds, with its standard error.

    The variance is that of the last round's difference, by the draw of the held-out examples, which
    all rounds have in common, plus that of the mean over rounds, by the noise of training.

    Args:
        history: The differences of at least one round.

    Example:
        >>> rounds = [Difference(round=1 + i, mean=mean, error=0.3) for i, mean in enumerate((9.0, 9.0, 0.8, 1.2))]
        >>> over_rounds(rounds).mean, round(over_rounds(rounds).error, 3)
        (1.0, 0.361)
    """
    later = later_half(history)
    latest = history[-1]
    means = np.array([difference.mean for difference in later])
    variance_of_mean = 0.0
    if len(means) > 1:
        variance_of_mean = float(means.var(ddof=1)) / len(means)
    # Models that are the same have no difference and no error.
    error = math.sqrt(latest.error**2 + variance_of_mean) if latest.error else 0.0
    return replace(latest, mean=float(means.mean()), error=error)


def expected(history: Sequence[Difference], times: float = 2.0) -> float:
    """Return the difference to be expected after ``times`` as many rounds, linear in the logarithm of the rounds.

    Extrapolated is the difference in units of the loss, because a difference shrinks with the
    losses themselves. The slope is that of a least-squares line through the later half of the
    differences. Rounds count from the first difference: after another start of the arms, few rounds
    say little about many.
    """
    slope, _ = _slope(history)
    # So many times the rounds are the logarithm of this further on the line.
    return history[-1].mean + history[-1].level * math.log(times) * slope


def expected_on_line(history: Sequence[Difference], times: float = 2.0) -> float:
    """Return the difference of :func:`expected` from the line alone: the noise of the last round does not count in full.

    Args:
        history: The differences of at least one round.
        times: How many times as many rounds.
    """
    slope, from_middle = _slope(history)
    return over_rounds(history).mean + history[-1].level * (math.log(times) + from_middle) * slope


def _slope(history: Sequence[Difference]) -> tuple[float, float]:
    """The slope of a line through (log of the round, difference in units of the loss) of the later half, by least squares.

    Also how far, on the axis of log rounds, the last round is from their mean.
    """
    later = later_half(history)
    if len(later) < 2:
        return 0.0, 0.0
    first_round = history[0].round
    log_rounds = np.log([difference.round - first_round + 1 for difference in later])
    log_rounds = log_rounds - log_rounds.mean()
    in_loss_units = np.array([difference.mean / difference.level for difference in later])
    slope = float(log_rounds @ in_loss_units / (log_rounds @ log_rounds))
    return slope, float(log_rounds[-1])
