"""Whether a run has finished learning: the curve of its clients' losses on test data.

Losses *still fall* in a run if three things hold of the last quarter of its tested rounds, that is,
of the change from the tested round at three quarters of the curve to the last one:

1. The mean loss over clients has fallen by at least :data:`STILL` of what it would have fallen if
   it had gone down by the same amount in every round, from the first tested round to the last.
2. This fall is beyond noise: the 95 % interval (Student's t) of its mean over clients is below 0.
   With fewer than three clients, the mean loss has fallen in each step of the last quarter.
3. The fall from the first tested round is beyond noise, too.

By this measure, a loss that decays as ``exp(-t / s)`` has stopped falling after about 2 s rounds,
and one that falls as ``1 / t`` after 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coterie.records.shown import ClientId
from coterie.report.summary import interval

STILL = 0.4
"""Share of the mean fall per round, over all tested rounds, that counts as a fall that goes on in
the last quarter."""

QUARTER = 0.75
"""The place on the curve where its last part begins."""

FEW = 3
"""The smallest number of clients over which the noise of a mean fall is estimated."""

Losses = Mapping[int, Mapping[ClientId, float]]
"""Tested round -> client -> its loss on test data."""


@dataclass(frozen=True)
class Fall:
    """A loss that still falls.

    Attributes:
        first: The tested round at three quarters of the curve.
        last: The last tested round.
        before: The mean loss over clients in the first of these.
        after: The mean loss over clients in the last.
    """

    first: int
    last: int
    before: float
    after: float


def still_falling(losses: Losses) -> Fall | None:
    """Return the fall of the losses in the last quarter of the tested rounds, if they still fall.

    Args:
        losses: The losses of the tested rounds. Clients that were not tested in all of the three
            rounds that are compared do not count.

    Returns:
        The fall; None if losses do not fall, or there are fewer than two tested rounds.
    """
    rounds = sorted(losses)
    if len(rounds) < 2:
        return None
    begin, late, end = rounds[0], rounds[math.floor(QUARTER * (len(rounds) - 1))], rounds[-1]
    clients = sorted(losses[begin].keys() & losses[late].keys() & losses[end].keys(), key=str)
    if not clients:
        return None
    lately = [losses[late][client] - losses[end][client] for client in clients]
    overall = [losses[begin][client] - losses[end][client] for client in clients]
    share = (end - late) / (end - begin)
    if math.fsum(lately) < STILL * share * math.fsum(overall):
        return None
    tail = [each for each in rounds if each >= late]
    if not (_beyond_noise(lately, losses, tail) and _beyond_noise(overall, losses, [begin, end])):
        return None
    mean = lambda number: math.fsum(losses[number][client] for client in clients) / len(clients)  # noqa: E731
    return Fall(late, end, mean(late), mean(end))


def _beyond_noise(falls: Sequence[float], losses: Losses, rounds: Sequence[int]) -> bool:
    """Whether the mean fall is above 0 beyond noise, over clients or, with few of them, over the steps of the curve."""
    if len(falls) >= FEW:
        low = interval(list(falls))["low"]
        return low is not None and low > 0
    means = [math.fsum(losses[each].values()) / len(losses[each]) for each in rounds]
    return all(after < before for before, after in pairwise(means))
