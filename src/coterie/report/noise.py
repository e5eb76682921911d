"""The noise of a difference between two methods: how far apart two equally good methods come out by chance.

A difference is significant if it is greater than its noise:

- If the main metric averages numbers from 0 to 1 over test examples, such as the accuracy, noise is
  that of a test set. A difference of two shares of n examples is not significant below
  ``1.96 sqrt(2 min(p, 1 - p) / n) + 1 / n``, with p their mean. Both models are tested on the same
  examples. They can differ in at most ``2 min(p, 1 - p) n`` of them, and if the models are equally
  good, each of these favours either with probability 1/2: the bound is that of the sign test for the
  largest number of such examples, in its normal approximation with the correction 1 / n for steps.
  So it holds however the errors of both models are related. In a mean over clients, an example that
  several clients test counts once, see :mod:`coterie.data.shared_tests`.
- If it is the area under the ROC curve, noise is that of a test set, too: see :func:`two_areas`. For
  the balanced accuracy, n is the number of classes times the number of examples of the rarest one.
  See :mod:`coterie.data.deciding_tests`.
- Otherwise, with three seeds or more, noise of the mean over clients is half the 95% interval of its
  difference over the seeds (Student's t). With fewer, half the interval over the clients takes its
  place. It includes real differences between clients, so it overestimates noise: a difference
  beyond it is significant, one within it is inconclusive. Noise of a single client is half the 95%
  interval over the seeds, with the variance over seeds pooled over all clients; with one seed it is
  not known. Seeds that test on the same rows differ by training alone, so they count as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import scipy

from coterie.report.summary import interval

NORMAL_95 = 1.96
"""Half the 95% interval of a normal distribution, in standard deviations."""

MIN_SAMPLE = 3
"""The smallest number of clients, or of seeds, over which the noise of a mean is estimated."""

MAX_INDEPENDENT_TESTERS = 1.1
"""Clients per test example, in the mean. With more, the differences of clients are not independent
observations."""


def mean_value(values: Iterable[float]) -> float:
    """Return the mean of some values, of which there is at least one."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def half_interval(values: Sequence[float]) -> float | None:
    """Return half the 95% interval of the mean of some values; None for fewer than two."""
    mean_interval = interval(list(values))
    if mean_interval["high"] is None or mean_interval["mean"] is None:
        return None
    return mean_interval["high"] - mean_interval["mean"]


def two_shares(p: float, n: float) -> float:
    """Return the greatest variance of the difference of two shares of the same n examples.

    Both shares are p in the long run. Where one model is right and the other is wrong, the
    difference of this example is 1 or -1, otherwise 0. If both models are right with probability p,
    they differ with at most the probability ``2 min(p, 1 - p)``. That is reached if the errors of
    one never are errors of the rival, or if the models are never both right. It also holds for
    numbers between 0 and 1, whose squared differences are smaller.

    Example:
        >>> round(1.96 * two_shares(0.9, 100) ** 0.5, 3)
        0.088
    """
    # A mean of shares may leave [0, 1] by rounding.
    p = min(max(p, 0.0), 1.0)
    return 2 * min(p, 1 - p) / n


def two_areas(area: float, with_label: float, without_label: float) -> float:
    """Return the variance of the difference of two areas under the ROC curve, of the same examples.

    It is twice the variance of one area, as Hanley and McNeil estimate it from the area and the
    numbers of examples (Radiology 143, 1982). Two models usually fail at the same examples, so that
    their difference varies less.

    Args:
        area: The area of both in the long run.
        with_label: The number of examples with the label.
        without_label: The number of examples without it.

    Example:
        >>> round(1.96 * two_areas(0.75, 18, 72) ** 0.5, 3), round(1.96 * two_areas(0.75, 5, 19) ** 0.5, 2)
        (0.197, 0.38)
    """
    # A mean of areas may leave [0, 1] by rounding.
    area = min(max(area, 0.0), 1.0)
    # The chances that two examples with the label are above one without it, and one above two.
    two_above_one = area / (2 - area)
    one_above_two = 2 * area**2 / (1 + area)
    variance_of_pairs = area * (1 - area)
    variance_of_pairs += (with_label - 1) * (two_above_one - area**2)
    variance_of_pairs += (without_label - 1) * (one_above_two - area**2)
    # With means of numbers below 1, the estimate could be negative.
    return 2 * max(variance_of_pairs, 0.0) / (with_label * without_label)


def examples_needed(p: float, difference: float) -> int | None:
    """Return with how many test examples a difference of two shares would be significant.

    It is the least n whose noise, ``1.96 sqrt(2 min(p, 1 - p) / n) + 1 / n``, is below the difference.

    Args:
        p: The mean of both shares.
        difference: Their difference, which is assumed to stay the same with more examples.

    Returns:
        The number; None without a difference.

    Example:
        >>> examples_needed(0.5, 0.1), examples_needed(0.95, 0.1)
        (404, 57)
    """
    if not difference:
        return None
    # With x = 1 / sqrt(n), noise equals the difference where x^2 + slope x - difference = 0.
    slope = NORMAL_95 * math.sqrt(two_shares(p, 1))
    root = (math.sqrt(slope**2 + 4 * abs(difference)) - slope) / 2
    return math.floor(1 / root**2) + 1


def noise_over_few(difference: float, half: float | None) -> float | None:
    """Return an interval over clients as noise, if the difference is beyond it.

    The interval overestimates noise, so it says nothing about a difference within it.

    Args:
        difference: The mean difference.
        half: Half the interval of the difference over clients; None if there are too few.
    """
    # Within the interval it is not known whether the difference is noise.
    if half is None or abs(difference) <= half:
        return None
    return half


def noise_of_seeds(client_differences: Sequence[Sequence[float]], num_seeds: int) -> float | None:
    """Return half the 95% interval of a client's mean difference over seeds.

    The variance over seeds is pooled over all clients, since a client has few seeds.

    Args:
        client_differences: The differences of each client with each seed.
        num_seeds: The number of seeds of the client.

    Returns:
        The noise; None with one seed.
    """
    # Each client's mean over seeds takes one degree of freedom.
    degrees_of_freedom = sum(len(over_seeds) - 1 for over_seeds in client_differences if over_seeds)
    if not degrees_of_freedom:
        return None
    squares: list[float] = []
    for over_seeds in client_differences:
        squares += [(difference - mean_value(over_seeds)) ** 2 for difference in over_seeds]
    pooled_variance = math.fsum(squares) / degrees_of_freedom
    quantile = float(scipy.special.stdtrit(degrees_of_freedom, 0.975))
    return quantile * math.sqrt(pooled_variance / num_seeds)
