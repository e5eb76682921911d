"""What a suggestion says besides its numbers: how split-half comes to the groups, and reasons for caution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from coterie.contrib.suggest.probing import StartingPoint
from coterie.contrib.suggest.suggestion import Finding, OwnProbes
from coterie.core import Groups, needs_of
from coterie.methods import SplitHalf
from coterie.notebook.tables import count
from coterie.records.shown import Line

SPLIT_HALF_PROBES = 3
"""Probes, each with one for its confirmation, that a suggested run of split-half has time for:
draws differ, and one alone may miss what the probes here showed narrowly."""

TRAIN_WITH_AUTO = "train with auto, which compares groups with one model"
ONE_GROUP_IS_NO_PROOF = f"{TRAIN_WITH_AUTO}: one group is no proof, and auto tests other models"
GROUPS_ARE_ADVICE = (
    f"{TRAIN_WITH_AUTO}; these groups are the advice, even if split-half finds fewer: "
    "it makes the same test, but of other models"
)
"""Which groups are the advice."""


def own_probes(
    method: Any, starting_point: StartingPoint, finding: Finding, recorded_lines: Sequence[Line]
) -> OwnProbes:
    """How split-half comes to the groups found, and which groups are the advice if it finds others.

    Its test and level are the same. But it probes in rounds of its own, so from other models, and a
    difference that does not show at one model may show at another. So finding several groups is
    evidence, and finding one is not.

    Args:
        method: The method of the run.
        starting_point: The model probed.
        finding: The groups.
        recorded_lines: The records of the run.

    Returns:
        The settings and the reasons.
    """
    # Groups that split-half has found at this level need no further test.
    if finding.of_run:
        advice_words = (
            "split-half found these groups in this run, at the same level: they are the advice"
        )
        return OwnProbes(
            {}, None, f"{advice_words}, though its next reviews may still move single clients"
        )
    if len(finding.groups) == 1:
        return OwnProbes({}, None, ONE_GROUP_IS_NO_PROOF)
    advice_words = GROUPS_ARE_ADVICE
    # A run of split-half keeps its settings; any other takes part with its own fraction.
    if isinstance(method, SplitHalf):
        advice_words += _earlier_tests(recorded_lines)
        split_half = method
    else:
        split_half = SplitHalf(fraction=needs_of(method).fraction)
    # A model that no run shares cannot be probed by a run.
    if not starting_point.shared:
        return OwnProbes({}, None, advice_words)
    # Its first probe starts from the model of this round, after at least one round of training.
    split_half = replace(split_half, first_probe=max(starting_point.round + 1, 2))
    last_probe = split_half.first_probe + (SPLIT_HALF_PROBES - 1) * split_half.probe_every
    advice_words += "; with the options below, it tests this one"
    return OwnProbes(asdict(split_half), last_probe + 1, advice_words)


def _earlier_tests(recorded_lines: Sequence[Line]) -> str:
    """In how many rounds split-half has tested groups of this run; empty if in none."""
    p_of_round: dict[int, float] = {}
    for recorded_line in recorded_lines:
        for note in recorded_line["notes"]:
            if "p" in note["numbers"]:
                p_of_round[recorded_line["round"]] = note["numbers"]["p"]
    if not p_of_round:
        return ""
    smallest_p = min(p_of_round.values())
    return (
        f", here in {len(p_of_round)} rounds, the last {max(p_of_round)} (least p {smallest_p:.2g})"
    )


def caveats(starting_point: StartingPoint, finding: Finding, run_groups: Groups) -> Iterator[str]:
    """Reasons to trust the finding less.

    Args:
        starting_point: The model probed.
        finding: The groups.
        run_groups: The groups of the run.
    """
    if len(run_groups) > 1 and run_groups != finding.groups and not finding.of_run:
        yield f"the run has {len(run_groups)} groups, different from these; a longer run of fedavg may show which are right"
    if not finding.same:
        first_count, second_count = map(len, finding.alone)
        yield (
            f"the two probes alone find {first_count} and {second_count} groups that differ: "
            f"adjusted Rand index {finding.agreement:.2f}"
        )
    elif finding.unseen:
        groups_found = count(len(finding.alone[0]), "group")
        yield f"the groups are the run's; at this model the probes alone find {groups_found}, so thresholds are uncertain"
    # The group that most likely consists of several.
    if finding.doubt is not None:
        num_members = len(finding.groups[finding.alike.index(finding.doubt)])
        if finding.doubt < finding.level:
            yield f"{num_members} clients stay in one group, but differ (p {finding.doubt:.2g}): no split was found"
        else:
            yield f"{num_members} clients are in one group, but p = {finding.doubt:.2g} is small: more data may show several"
    if not starting_point.shared:
        yield f"clients were probed from {starting_point.words}, where no run clusters clients: its thresholds may differ"
    # Clients that differ gradually split into single clients, if data are many.
    single_clients = sum(len(group) == 1 for group in finding.groups)
    if 2 * single_clients > len(finding.groups) > 1:
        yield f"{single_clients} of {len(finding.groups)} groups are single clients: they may differ gradually, without groups"
