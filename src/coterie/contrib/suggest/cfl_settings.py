"""CFL's settings, from probes: its three criteria for each group that must be split, and for each that must stay whole.

CFL examines a group at a stationary point, where its updates sum to zero. A probe is seldom made
exactly there. So the mean of the members' updates is subtracted from each update, which gives the
updates at the stationary point if all members have the same curvature. CFL's own criteria are then
tested on these updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from coterie.clustering import adjusted_rand, noise_levels
from coterie.clustering.halves import centred, halves
from coterie.contrib.suggest.ranges import middle, ratio, shortest
from coterie.contrib.suggest.suggestion import (
    Advice,
    Range,
    group_labels,
    lie_within,
    no_advice,
    sureness,
)
from coterie.core import Client, Groups, Replies
from coterie.methods import CFL
from coterie.methods._cluster_tree import Leaf, root
from coterie.methods.cfl import CFLState, GroupUpdates

RELATIVE_SCALE = "relative scale"
"""What CFL compares, in words."""

SAFETY_FACTORS = {"eps2": 1.4, "gamma_max": 1.15}
"""Factor by which these settings are put below the value that the least cut needs, if the middle is
not lower.

The greatest norm so far, of which eps2 is a share, grows during a run, while the norms of clients
that agree shrink. And a group never reaches its stationary point exactly, which lowers the bound on
gamma. The factors were chosen on digits, see docs/research/thresholds.md."""

MAX_GAMMA_FACTOR = 1.25
"""Upper limit of this factor if the bound on gamma is even lower in the original updates, away from
the stationary point."""


@dataclass(frozen=True)
class ProbeDraw:
    """What the clients sent in one draw of the probes.

    Attributes:
        halves_gram: The Gram matrix of the halves, ``(2n, 2n)``.
        probed: Replies to a round of training from the probed model.
        first: Replies to a round of training from the first model of the run.
        parameters: Number of columns that are compared.
    """

    halves_gram: np.ndarray
    probed: Replies
    first: Replies
    parameters: int


@dataclass(frozen=True)
class GroupCriteria:
    """CFL's quantities for a group at its stationary point.

    Attributes:
        clients: The clients of the group.
        parts: The two sides of its cut.
        noise_norm: The norm of the mean update that noise alone would give, as a share of the
            greatest norm of a client.
        client_norm: The greatest norm of a client's update, as a share of the greatest norm so far.
        gamma_bound: The greatest value that gamma may have.
    """

    clients: tuple[Client, ...]
    parts: Groups
    noise_norm: float
    client_norm: float
    gamma_bound: float


@dataclass(frozen=True)
class CutPath:
    """The cuts by which CFL would get from one group to the groups found.

    Attributes:
        splits: CFL's quantities for each group that it must cut, in order.
        kept: CFL's quantities for each group that must stay whole.
        groups: The groups at the end.
        first_mean_norm: The norm of the mean update at the first model of the run, as a share of
            the greatest norm of a client.
        probed_mean_norm: The same at the probed model.
        probed_gamma_bound: The greatest value that gamma may have for the original updates of all
            clients.
    """

    splits: tuple[GroupCriteria, ...]
    kept: tuple[GroupCriteria, ...]
    groups: Groups
    first_mean_norm: float
    probed_mean_norm: float
    probed_gamma_bound: float


# ----------------------------------------------------------------------------------------------------
# The cuts that CFL would make, and what its criteria compare at each of them.


def cut_path(draw: ProbeDraw, groups: Groups) -> CutPath:
    """CFL's cuts, from all clients to given groups; a cut that would divide one of them is not made.

    Args:
        draw: The draw.
        groups: The groups.

    Returns:
        The cuts.
    """
    # CFL compares norms with the greatest one so far, which usually is that of the first rounds.
    at_first = as_one_group(draw.first, draw.parameters)
    at_probed = as_one_group(draw.probed, draw.parameters)
    peak_norm = max(at_first.client_norm, at_probed.client_norm)
    # From all clients down: each group is cut until no wanted group would be divided.
    split_criteria: list[GroupCriteria] = []
    kept_criteria: list[GroupCriteria] = []
    groups_reached: list[tuple[Client, ...]] = []
    waiting_groups = [draw.probed.clients]
    while waiting_groups:
        clients = waiting_groups.pop()
        if len(clients) == 1:
            groups_reached.append(clients)
            continue
        criteria = group_criteria(draw, clients, peak_norm)
        wanted_groups = [group for group in groups if set(group) <= set(clients)]
        # CFL must cut these clients if several of the wanted groups are among them.
        if len(wanted_groups) > 1:
            split_criteria.append(criteria)
            if lie_within(wanted_groups, criteria.parts):
                waiting_groups += criteria.parts
                continue
        # These clients stay together: the cut would divide a wanted group, or none is needed.
        groups_reached.append(clients)
        if len(wanted_groups) == 1:
            kept_criteria.append(criteria)
    first_values = criteria_values(at_first)
    probed_values = criteria_values(at_probed)
    return CutPath(
        splits=tuple(split_criteria),
        kept=tuple(kept_criteria),
        groups=tuple(sorted(groups_reached)),
        first_mean_norm=first_values["mean_norm"],
        probed_mean_norm=probed_values["mean_norm"],
        probed_gamma_bound=probed_values["gamma_bound"],
    )


def group_criteria(draw: ProbeDraw, clients: tuple[Client, ...], peak_norm: float) -> GroupCriteria:
    """CFL's quantities for a group at its stationary point.

    Args:
        draw: The draw.
        clients: The clients of the group, two or more.
        peak_norm: The greatest norm so far.

    Returns:
        The quantities.
    """
    # The stationary point of these clients alone: their updates without their mean.
    group_replies = draw.probed.of(clients)
    centred_updates = group_replies.all_updates - group_replies.all_updates.mean(0)
    at_rest = as_one_group(
        replace(group_replies, updates=centred_updates), draw.parameters, peak_norm
    )
    compared = criteria_values(at_rest)
    # The noise of the mean update, from the differences between the halves of each client.
    positions = draw.probed.positions(clients)
    mean_products = centred(halves(draw.halves_gram, positions).mean)
    greatest_norm = float(np.sqrt(np.diagonal(mean_products).max()))
    noise_of_mean = float(np.sqrt(noise_levels(draw.halves_gram, positions).sum())) / len(positions)
    return GroupCriteria(
        clients=clients,
        parts=at_rest.parts(),
        noise_norm=noise_of_mean / greatest_norm if greatest_norm > 0 else 0.0,
        client_norm=compared["client_norm"],
        gamma_bound=compared["gamma_bound"],
    )


def criteria_values(group: GroupUpdates) -> dict[str, float]:
    """The numbers that CFL compares with its settings, by the keys of its criteria."""
    criteria = (*CFL().norm_criteria(group), *CFL().cut_criteria(group))
    return {criterion.key: criterion.value for criterion in criteria}


def as_one_group(replies: Replies, parameters: int, peak_norm: float = 0.0) -> GroupUpdates:
    """The updates as CFL would receive them if all clients that replied were one group.

    Args:
        replies: The replies, with all updates.
        parameters: Number of columns that are compared.
        peak_norm: The greatest norm of a client's update so far.

    Returns:
        CFL's quantities of the group.
    """
    # CFL's own code computes the quantities, as for the only leaf of a new tree.
    only_leaf = Leaf(node=0, clients=replies.clients, model=replies.all_updates[0], peak=peak_norm)
    cfl_state = CFLState(round=0, leaves=(only_leaf,), tree=root(replies.clients, parameters))
    group_updates = CFL().group_updates(cfl_state, 0, replies)
    assert group_updates is not None
    return group_updates


# ----------------------------------------------------------------------------------------------------
# The settings for which the cuts of every draw end in the groups found.


class _AllDraws(NamedTuple):
    """CFL's quantities on the paths of all draws.

    Attributes:
        splits: The quantities of each group that CFL must cut, in any draw.
        kept: The quantities of each group that must stay whole, in any draw.
        first_mean_norm: The least of all draws, as in :class:`CutPath`.
        probed_mean_norm: The greatest of all draws.
        probed_gamma_bound: The least of all draws.
    """

    splits: Sequence[GroupCriteria]
    kept: Sequence[GroupCriteria]
    first_mean_norm: float
    probed_mean_norm: float
    probed_gamma_bound: float

    @classmethod
    def of(cls, cut_paths: Sequence[CutPath]) -> _AllDraws:
        split_criteria: list[GroupCriteria] = []
        kept_criteria: list[GroupCriteria] = []
        for path_of_draw in cut_paths:
            split_criteria += path_of_draw.splits
            kept_criteria += path_of_draw.kept
        # A setting must suit every draw, so the value that leaves the least room counts.
        return cls(
            splits=split_criteria,
            kept=kept_criteria,
            first_mean_norm=min(map(attrgetter("first_mean_norm"), cut_paths)),
            probed_mean_norm=max(map(attrgetter("probed_mean_norm"), cut_paths)),
            probed_gamma_bound=min(map(attrgetter("probed_gamma_bound"), cut_paths)),
        )


def cfl_advice(
    cut_paths: Sequence[CutPath], groups: Groups, reliabilities: np.ndarray, firm: bool
) -> Advice:
    """CFL's settings for which the cuts of every draw end in the groups found.

    Args:
        cut_paths: The cuts of each draw.
        groups: The groups found.
        reliabilities: The clients' reliabilities ρ, ``(n,)``.
        firm: As for :func:`~coterie.contrib.suggest.suggestion.sureness`.

    Returns:
        The advice.
    """
    wanted_labels = group_labels(groups)
    rand_index = min(adjusted_rand(group_labels(path.groups), wanted_labels) for path in cut_paths)
    if rand_index < 1:
        return no_advice(CFL.name, RELATIVE_SCALE, "CFL's cut goes through a group", rand_index)
    all_draws = _AllDraws.of(cut_paths)
    ranges = [_eps2_range(all_draws), _gamma_max_range(all_draws)]
    # A group is cut only if all criteria are met, so one of these is enough to keep a group whole.
    margin = max(map(attrgetter("margin"), ranges))
    # Without a group to be cut, any eps1 is right.
    if all_draws.splits:
        eps1_range = _eps1_range(all_draws)
        ranges.insert(0, eps1_range)
        margin = min(margin, eps1_range.margin)
    settings = {each_range.setting: each_range.value for each_range in ranges}
    return Advice(
        method=CFL.name,
        compared=RELATIVE_SCALE,
        settings=settings if margin > 1 else {},
        ranges=tuple(ranges),
        margin=margin,
        sure=sureness(margin, firm),
        ari=1.0,
        text=_words(all_draws, reliabilities),
    )


def _eps1_range(all_draws: _AllDraws) -> Range:
    """The range of eps1.

    It is above the norm of the mean update at the probed model, and above the norm that noise alone
    leaves in a group to be cut. It is below the norm at the first model, which is far from a
    stationary point.
    """
    # Below the ends: what CFL sees near a stationary point. Above: what it sees in the beginning.
    noise_norms = [group.noise_norm for group in all_draws.splits]
    lower_end = max([*noise_norms, all_draws.probed_mean_norm])
    upper_end = all_draws.first_mean_norm
    value = None
    if lower_end < upper_end:
        value = shortest(middle(lower_end, upper_end), lower_end, upper_end)
    return Range("eps1", lower_end, upper_end, value, ratio(lower_end, upper_end))


def _eps2_range(all_draws: _AllDraws) -> Range:
    """The range of eps2, a bound on the greatest norm of a client."""
    return _range_between("eps2", all_draws, attrgetter("client_norm"))


def _gamma_max_range(all_draws: _AllDraws) -> Range:
    """The range of gamma_max, a bound on the noise of updates."""
    original_bound = all_draws.probed_gamma_bound
    return _range_between("gamma_max", all_draws, attrgetter("gamma_bound"), original_bound)


def _range_between(
    setting: str,
    all_draws: _AllDraws,
    quantity: Callable[[GroupCriteria], float],
    original_value: float = math.inf,
) -> Range:
    """The range above the values of groups that must stay whole and below those of groups that must be cut (1 if none must).

    ``original_value``: the value of all clients together away from the stationary point, which
        counts if it is lower.
    """
    lower_end = max(map(quantity, all_draws.kept), default=0.0)
    upper_end = min(map(quantity, all_draws.splits), default=1.0)
    # A group to be cut must exceed the value by far, as its quantities change during a run.
    value = middle(lower_end, upper_end)
    if all_draws.splits:
        value = min(
            value,
            upper_end / SAFETY_FACTORS[setting],
            max(original_value, upper_end / MAX_GAMMA_FACTOR),
        )
    return Range(setting, lower_end, upper_end, float(f"{value:.2g}"), ratio(lower_end, upper_end))


def _words(all_draws: _AllDraws, reliabilities: np.ndarray) -> str:
    """The numbers that were compared, besides the ranges."""
    gamma_bound = attrgetter("gamma_bound")
    bound_words = []
    if all_draws.kept:
        bound_words.append(f"{max(map(gamma_bound, all_draws.kept)):.2f} within a group")
    if all_draws.splits:
        bound_words.append(f"{min(map(gamma_bound, all_draws.splits)):.2f} at every cut")
    text = f"at a stationary point, gamma may be up to {' and '.join(bound_words)}"
    if not all_draws.splits:
        return text
    # γ, the noise of an update relative to its signal, from the share of signal ρ = 1 / (1 + γ²).
    measured_gammas = [
        math.sqrt(1 / reliability - 1) if reliability > 0 else math.inf
        for reliability in reliabilities.tolist()
    ]
    text += f"; measured gamma: median {float(np.median(measured_gammas)):.2f}, maximum {max(measured_gammas):.2f}"
    # Whether the probed model is near a stationary point.
    probed_norm = all_draws.probed_mean_norm
    first_norm = all_draws.first_mean_norm
    text += f"; the mean update's norm is {probed_norm:.2f} of the greatest at this model, {first_norm:.2f} at the first"
    if probed_norm >= first_norm:
        text += ": this is not near a stationary point, so probe a later round"
    return text
