"""Which method to use, as a decision: :mod:`coterie.report.verdict` puts it into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.records.shown import ClientId
from coterie.report.contest import Contest, Gain
from coterie.report.warnings import clients_below

Reason = Literal["no better than constant", "not known", "simplest", "tied", "best"]
"""Why a method comes first:

- ``no better than constant``: it does not, nothing was learned;
- ``not known``: it has the best score, and noise is not known;
- ``simplest``: others have a better score, but not significantly, and not fewer groups;
- ``tied``: it has the best score, others are not significantly worse;
- ``best``: it is significantly better than all others.
"""


@dataclass(frozen=True)
class Recommendation:
    """Which method to use.

    Attributes:
        method: The label of the method with the best score, or of the simplest of those that do not
            differ significantly from it.
        reason: Why this method.
        tied: The methods that do not differ significantly from it.
        best_score: The label of the method with the best score.
        below: Clients for which it is worse than a constant prediction.
        exceptions: Label of another method -> the clients for which that is significantly better.
    """

    method: str
    reason: Reason
    tied: Sequence[str] = ()
    best_score: str = ""
    below: Sequence[ClientId] = ()
    exceptions: Mapping[str, Sequence[ClientId]] = field(default_factory=dict)


def recommend(contest: Contest) -> Recommendation:
    """Return which method to use of those that are compared.

    Args:
        contest: The comparison, with the recommended method first.
    """
    best, *rivals = contest.methods
    # 1. How the best method compares with the others in the mean over clients.
    gain_over: dict[str, Gain] = {}
    for rival in rivals:
        gain = contest.mean_gain(best, rival)
        if gain is not None:
            gain_over[rival.label] = gain
    if contest.constant is not None and contest.beats_constant(best) is False:
        return Recommendation(best.label, "no better than constant")
    if any(gain.sign is None for gain in gain_over.values()):
        return Recommendation(best.label, "not known")
    tied = [label for label, gain in gain_over.items() if gain.sign == 0]
    reason: Reason = "tied" if tied else "best"
    best_score = best.label
    if any(gain.improvement < 0 for gain in gain_over.values()):
        reason = "simplest"
        best_score = min(gain_over, key=lambda label: gain_over[label].improvement)
    # 2. The clients that it does not suit.
    exceptions = {}
    for rival in contest.rivals_of(best):
        better_off = contest.clients_better_with(rival, than=best)
        if better_off:
            exceptions[rival.label] = better_off
    below_constant = [below.client for below in clients_below(contest, best)]
    return Recommendation(best.label, reason, tied, best_score, below_constant, exceptions)
