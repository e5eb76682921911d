"""Whether a run has finished learning: the curve of its clients' losses on test data.

Losses *still fall* in a run if three things hold of the last quarter of its tested rounds, that is,
of the change from the tested round at three quarters of the curve to the last one:

1. The mean loss over clients has fallen by at least :data:`MIN_SHARE_OF_MEAN_FALL` of what it would
   have fallen if it had gone down by the same amount in every round, from the first tested round to
   the last.
2. This fall is significant: the 95 % interval (Student's t) of its mean over clients is above 0.
   With fewer than three clients, the mean loss has fallen in each step of the last quarter.
3. The fall from the first tested round is significant, too.

By this measure, a loss that decays as ``exp(-t / s)`` has stopped falling after about 2 s rounds,
and one that falls as ``1 / t`` after 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coterie.records.shown import ClientId
from coterie.report.noise import MIN_SAMPLE
from coterie.report.summary import interval

MIN_SHARE_OF_MEAN_FALL = 0.4
"""A loss still falls if its fall per round in the last quarter is at least this share of its mean
fall per round over all tested rounds."""

LAST_PART_BEGINS = 0.75
"""The place on the curve where its last part begins, as a share of the tested rounds."""

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
    first_round = rounds[0]
    late_round = rounds[math.floor(LAST_PART_BEGINS * (len(rounds) - 1))]
    last_round = rounds[-1]
    first_losses = losses[first_round]
    late_losses = losses[late_round]
    last_losses = losses[last_round]
    in_all_three = first_losses.keys() & late_losses.keys() & last_losses.keys()
    if not in_all_three:
        return None
    clients = sorted(in_all_three, key=str)
    late_falls = [late_losses[client] - last_losses[client] for client in clients]
    all_falls = [first_losses[client] - last_losses[client] for client in clients]
    # 1. The late fall, against a fall by the same amount in every round.
    late_share = (last_round - late_round) / (last_round - first_round)
    if math.fsum(late_falls) < MIN_SHARE_OF_MEAN_FALL * late_share * math.fsum(all_falls):
        return None
    # 2. and 3. Both falls are significant.
    last_part = [round for round in rounds if round >= late_round]
    if not _is_significant(late_falls, losses, last_part):
        return None
    if not _is_significant(all_falls, losses, [first_round, last_round]):
        return None
    loss_before = math.fsum(late_losses[client] for client in clients) / len(clients)
    loss_after = math.fsum(last_losses[client] for client in clients) / len(clients)
    return Fall(first=late_round, last=last_round, before=loss_before, after=loss_after)


def _is_significant(falls: Sequence[float], losses: Losses, rounds: Sequence[int]) -> bool:
    """Whether the mean fall is above 0: by its interval over clients, or with few of them in each step."""
    if len(falls) >= MIN_SAMPLE:
        lower_end = interval(list(falls))["low"]
        return lower_end is not None and lower_end > 0
    mean_losses = []
    for round in rounds:
        client_losses = losses[round].values()
        mean_losses.append(math.fsum(client_losses) / len(client_losses))
    return all(loss_after < loss for loss, loss_after in pairwise(mean_losses))
