"""How sure the groups of a method are: by chance, over the seeds, and by what one model for all would cost."""

from __future__ import annotations

from coterie.records.shown import ClientId
from coterie.report.contest import BASELINES, Contest
from coterie.report.trials import MethodTrials
from coterie.report.warnings import MAX_P_OF_EVIDENCE
from coterie.report.words import count, number, readable_number

Partition = frozenset[frozenset[ClientId]]
"""Groups, in any order."""


def sureness(contest: Contest, method: MethodTrials) -> str:
    """Return how sure the groups of a method are, as a sentence; empty for a baseline, and for one group.

    Args:
        contest: The comparison.
        method: The method whose groups these are.
    """
    if method.name in BASELINES or len(method.first.summary["groups"]) < 2:
        return ""
    reasons = [beyond_chance(method), same_over_seeds(method), _loss_of_one_model(contest, method)]
    # One seed without any evidence says nothing.
    if len(method.trials) == 1 and not reasons[0] and not reasons[2]:
        return ""
    in_words = "; ".join(reason for reason in reasons if reason)
    return f"How sure are the groups? {in_words[:1].upper()}{in_words[1:]}."


def beyond_chance(method: MethodTrials) -> str:
    """Return the p-value by which clients differ, with the seed for which it is weakest; empty if the method has none."""
    p_values = [trial.evidence.p for trial in method.trials.values() if trial.evidence is not None]
    if not p_values:
        return ""
    weakest = readable_number("p", max(p_values))
    equals = weakest if weakest.startswith("<") else f"= {weakest}"
    if max(p_values) >= MAX_P_OF_EVIDENCE:
        return f"the evidence that clients differ beyond chance is weak (p {equals})"
    at_most = ", or less with each seed" if len(method.trials) > 1 else ""
    if len(p_values) < len(method.trials):
        return f"clients differ beyond chance (p {equals}) with {len(p_values)} of {len(method.trials)} seeds"
    return f"clients differ beyond chance (p {equals}{at_most})"


def same_over_seeds(method: MethodTrials) -> str:
    """Return with how many seeds the method found the same groups."""
    num_seeds = len(method.trials)
    if num_seeds == 1:
        return "one seed was run, so it is not known whether others find the same groups"
    first = _partition(method.first.summary["groups"])
    same = sum(_partition(summary["groups"]) == first for summary in method.summaries)
    if same == num_seeds:
        return f"each of {num_seeds} seeds found the same groups"
    return f"{same} of {count(num_seeds, 'seed')} found these groups, and others differ"


def _partition(groups: list[list[ClientId]]) -> Partition:
    return frozenset(map(frozenset, groups))


def _loss_of_one_model(contest: Contest, method: MethodTrials) -> str:
    """How much worse one model for all is in the mean; empty without a run of it."""
    fedavg = contest.find("fedavg")
    gain = None if fedavg is None or contest.round is None else contest.mean_gain(method, fedavg)
    if fedavg is None or gain is None:
        return ""
    significance = {1: "significantly", 0: "not significantly", -1: "significantly", None: ""}
    better = "worse" if gain.improvement > 0 else "better"
    degree = f"{significance[gain.sign]} {better}".strip()
    note = ", and whether that is significant is not known" if gain.sign is None else ""
    if not gain.improvement:
        return "one model for all is as good in the mean"
    return (
        f"one model for all is {degree} in the mean, by {number(abs(gain.improvement))} "
        f"{contest.metric}{note}"
    )
