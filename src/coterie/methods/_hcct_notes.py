"""Notes of HCCT: how an epoch's groups came to be, and why a newcomer joins a group or stays alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie.clustering import benefits, cosine
from coterie.core import Client, Criterion, Groups, Note
from coterie.methods._hcct_partition import EpochComparison, Group


@dataclass(frozen=True, kw_only=True)
class PartitionRule:
    """How the groups of an epoch are chosen.

    Attributes:
        tradeoff: λ, as it is set.
        group_count: number of groups asked for; None to merge while there is a gain.
        settled: whether the groups were final before, so that only newcomers were placed.
        layer: the layer that is compared; None for all.
        signals: whether signals are compared, instead of updates.
    """

    tradeoff: float
    group_count: int | None
    settled: bool
    layer: str | None
    signals: bool

    @property
    def lambda_decides(self) -> bool:
        """Whether groups merge as far as λ allows."""
        return not self.settled and self.group_count is None


def partition_note(
    rule: PartitionRule,
    comparison: EpochComparison,
    clients: tuple[Client, ...],
    groups_before: Groups,
    groups: Groups,
) -> Note:
    """Describe the next groups and their utility; with parts and cosines if they are not the groups that trained.

    Args:
        rule: how the groups were chosen.
        comparison: the data for the partition.
        clients: all clients.
        groups_before: the groups that trained.
        groups: the next groups.
    """
    groups_changed = groups != groups_before
    description = f"{_count(len(groups), 'group')} of {_count(len(clients), 'client')}"
    silent_text = ""
    num_silent = len(clients) - len(comparison.clients)
    if num_silent:
        silent_text = (
            f"; {_count(num_silent, 'client')} without an answer stay with their previous groups"
        )
    note = Note(
        kind="partition",
        effect="regroups",
        clients=clients,
        text=description,
        parts=groups if groups_changed else (),
        labels={"answered": len(comparison.answered)},
        heard=comparison.clients,
    )
    numbers = {"groups": float(len(groups))}
    # With an infinite λ all clients are one group, and nothing is compared.
    gram_matrix = comparison.gram
    if gram_matrix is None:
        description += f", as λ is infinite{silent_text}"
        return replace(note, text=description, numbers=numbers)

    # The utility of the groups, as far as their members can be compared.
    compared_groups = [group for group in groups if comparison.positions_of(group)]
    values = comparison.utilities(gram_matrix, compared_groups)
    numbers["utility"] = sum(values["utility"].values())
    numbers["tradeoff"] = float(comparison.tradeoffs.mean())
    if rule.signals:
        numbers["signal"] = comparison.signal_share
    rule_text = _rule_in_words(rule, numbers["tradeoff"], comparison.signal_share)
    description += f", {rule_text}: utility {numbers['utility']:.3g}"

    # How far the groups are from another merge, if λ decides about merges.
    if rule.lambda_decides:
        note = replace(note, otherwise="two groups would have merged")
    if len(compared_groups) > 1:
        positions = [comparison.positions_of(group) for group in compared_groups]
        gains = benefits(gram_matrix, comparison.sizes, comparison.tradeoffs, positions)
        numbers["best_open"] = float(gains.max())
        description += f", the best merge not made would add {numbers['best_open']:.3g}"
        if rule.lambda_decides:
            no_tradeoff = 0 * comparison.tradeoffs
            free_gains = benefits(gram_matrix, comparison.sizes, no_tradeoff, positions)
            note = replace(note, criteria=_merge_criteria(free_gains, gains, rule.tradeoff))

    # Reports show the cosines that led to the new groups.
    similarity = {}
    if groups_changed:
        similarity[rule.layer or "all"] = torch.from_numpy(cosine(gram_matrix)).float()
    return replace(
        note,
        text=description + silent_text,
        numbers=numbers,
        values=values,
        similarity=similarity,
    )


def _rule_in_words(rule: PartitionRule, mean_tradeoff: float, signal_share: float) -> str:
    """Describe the rule; ``mean_tradeoff`` is the mean of the clients' λ."""
    rule_text = f"λ {mean_tradeoff:.3g}"
    if rule.group_count is not None:
        rule_text = f"{_count(rule.group_count, 'group')} asked for"
    if rule.layer is not None:
        rule_text += f", layer {rule.layer!r}"
    if rule.signals:
        # A share of 1 may also mean that no noise could be measured.
        rule_text += f", of {signal_share:.0%} signal" if signal_share < 1 else ", of whole updates"
    return rule_text


def _merge_criteria(
    free_gains: np.ndarray, gains: np.ndarray, tradeoff: float
) -> tuple[Criterion, ...]:
    """The comparison of λ with the smallest at which merging two of the groups would add to the utility.

    Utilities, and so the gains of merges, are linear in λ.

    Args:
        free_gains: ``(k, k)``, the gains of the merges at λ = 0.
        gains: ``(k, k)``, the gains at the λ of the run.
        tradeoff: this λ, as it is set.
    """
    off_diagonal = ~np.eye(len(gains), dtype=bool)
    gain_slopes = gains[off_diagonal] - free_gains[off_diagonal]
    rising = gain_slopes > 0
    if not rising.any():
        return ()
    # The multiple of λ at which a pair's gain crosses zero; below 1 only by rounding, as the pair
    # has not merged.
    crossings = -free_gains[off_diagonal][rising] / gain_slopes[rising]
    next_merge = float(max(crossings.min(), 1.0)) * tradeoff
    return (
        Criterion(
            "λ of the next merge",
            next_merge,
            ">=",
            tradeoff,
            "tradeoff",
            key="next_merge",
            met="no merge adds utility",
        ),
    )


def join_note(
    client: Client, groups: list[Group], best_group: tuple[int, float] | None, is_full: bool
) -> Note:
    """The note of a newcomer, which joins the group it benefits most if its criteria hold.

    Args:
        client: the newcomer.
        groups: the groups that it may join.
        best_group: the one that benefits most, and its gain; None if no group can be compared.
        is_full: whether there are as many groups as asked for, so that it joins in any case.
    """
    if best_group is None:
        return Note(
            kind="wait",
            effect="waits",
            clients=(client,),
            text=f"client {client} waits: no other client answered",
        )
    # The newcomer joins if that adds to the sum of utilities (equation 16).
    group_index, gain = best_group
    criteria: tuple[Criterion, ...] = ()
    if not is_full:
        gain_criterion = Criterion(
            "gain of the best group",
            gain,
            ">",
            0.0,
            met="it joins",
            unmet="it stays alone",
            key="best_gain",
        )
        criteria = (gain_criterion,)
    if all(criterion.held for criterion in criteria):
        # Where groups are as many as asked for, the newcomer joins even at a loss.
        change = f"changes least, by {gain:.3g}; groups are as many as asked for"
        if gain > 0:
            change = f"raises most, by {gain:.3g}"
        joined_client = min(groups[group_index])
        description = (
            f"client {client} joins the group of client {joined_client}, whose utility it {change}"
        )
    else:
        description = f"client {client} stays alone: in the best of the groups it would change utility by {gain:.3g}"
    return Note(
        kind="join",
        effect="joins",
        clients=(client,),
        text=description,
        criteria=criteria,
        numbers={"gain": gain},
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
