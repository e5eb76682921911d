"""Probes of split-half: replies of halves, the decision whether a group splits, and its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from coterie.clustering import congruent_groups, gram, repeated_p, signal_cosine, signal_gram
from coterie.clustering.congruence import (
    Congruence,
    Noise,
    congruence_of,
    contrast_of,
    cut_of,
    noise_of,
)
from coterie.clustering.halves import Halves, halves_of, signals
from coterie.core import (
    P_VALUE,
    Averaging,
    Client,
    Cohort,
    Criterion,
    Groups,
    HalvedUpdates,
    Note,
    Replies,
    as_groups,
    rows_without,
    state,
    tested,
    without,
)
from coterie.methods._cluster_tree import Leaf
from coterie.methods._decisions import KeepWhole, SplitGroup
from coterie.methods._hostile_few import Clients, left_out
from coterie.methods._positions import positions_of
from coterie.notebook.tables import some

HALF_STEPS_IN_ROUNDS = 4.0
"""Steps on a half, in those of a client of median size in a round. Signal accumulates over the
steps, batch noise averages out: with 40 examples a client, the groups of digits are found that half
a round does not show."""

ENOUGH_SHARE = 0.8
"""A probe goes on until this share of a group, or :data:`ENOUGH_CLIENTS`, have answered."""

ENOUGH_CLIENTS = 30
"""A probe goes on until so many clients, or :data:`ENOUGH_SHARE` of the group, have answered."""

MAX_PROBE_ROUNDS = 12
"""Maximum length of a probe, in rounds."""

MIN_P_OF_NO_DIFFERENCE = 0.1
"""A probe with p above this shows no difference."""


# ----------------------------------------------------------------------------------------------------
# Replies to probes, and when the next probe of a group comes.


@state("split-half.gathered")
class LongProbe:
    """Replies to a probe that lasts several rounds, because few clients answer in one. All train from the same model.

    Attributes:
        round: number of rounds completed when the probe began.
        steps: mini-batch steps on each half.
        model: ``(d,)``, the model from which clients train.
        answered: clients that have answered.
        clients: the m of them that have sent updates of halves.
        updates: ``(m, d)``, the means of both updates of each client.
        second_halves: ``(m, d)``, the updates of the second halves.
    """

    round: int
    steps: int
    model: torch.Tensor
    answered: tuple[Client, ...] = ()
    clients: tuple[Client, ...] = ()
    updates: torch.Tensor
    second_halves: torch.Tensor

    @classmethod
    def begun(cls, round: int, steps: int, model: torch.Tensor) -> LongProbe:
        """Return a probe to which nobody has answered."""
        no_updates = model.new_zeros(0, len(model))
        return cls(
            round=round, steps=steps, model=model, updates=no_updates, second_halves=no_updates
        )

    def ends(self, members: Sequence[Client], round: int) -> bool:
        """Return whether the probe of a group ends after a round: most or many have answered, or it has lasted long."""
        enough_answers = len(self.answered) >= min(ENOUGH_SHARE * len(members), ENOUGH_CLIENTS)
        return enough_answers or round - self.round >= MAX_PROBE_ROUNDS

    def first_answers(self, replies: Replies) -> tuple[Client, ...]:
        """Return the clients that have not answered before; they have trained from the probe's model."""
        return tuple(sorted(set(replies.clients) - set(self.answered)))

    def take(self, replies: Replies) -> LongProbe:
        """Add the replies of clients that have not answered before."""
        new_replies = replies.of(self.first_answers(replies))
        probe = replace(self, answered=(*self.answered, *new_replies.clients))
        # Clients that sent no halves have answered, and give no evidence.
        if new_replies.halves is None or new_replies.halves.second is None:
            return probe
        halved_replies = new_replies.of(new_replies.halves.clients)
        return replace(
            probe,
            clients=(*self.clients, *halved_replies.clients),
            updates=torch.cat([self.updates, halved_replies.all_updates]),
            second_halves=torch.cat([self.second_halves, new_replies.halves.second]),
        )

    def without(self, removed: set[Client]) -> LongProbe:
        """Remove the replies of these clients."""
        clients, updates = rows_without(self.clients, self.updates, removed)
        _, second_halves = rows_without(self.clients, self.second_halves, removed)
        return replace(
            self,
            answered=without(self.answered, removed),
            clients=clients,
            updates=updates,
            second_halves=second_halves,
        )

    def replies(
        self, parameters: int | None, examples: Mapping[Client, int], averaging: Averaging
    ) -> Replies:
        """Return the replies as if they were those of one exchange.

        Args:
            parameters: number of columns of the Gram matrix.
            examples: client -> its number of training examples.
            averaging: the rule by which the run averages updates.
        """
        # Replies of an exchange are in the order of the clients' ids.
        clients = tuple(sorted(self.clients))
        positions_in_order = positions_of(clients, among=self.clients)
        updates = self.updates[positions_in_order]
        second_halves = self.second_halves[positions_in_order]
        # An update is the mean of those of both halves, so the first half's follows from the second's.
        first_halves = 2 * updates - second_halves
        halves = None
        if clients:
            products = gram(torch.cat([first_halves, second_halves]), columns=slice(0, parameters))
            halves = HalvedUpdates(clients=clients, gram=products)
        return Replies(
            clients=clients,
            examples=np.array([examples.get(client, 1) for client in clients], dtype=np.int64),
            updates=updates,
            halves=halves,
            averaging=averaging,
        )


@dataclass(frozen=True)
class FinishedProbe:
    """A probe of a group to which all replies have come.

    Attributes:
        replies: the replies of its clients.
        model: ``(d,)``, the model from which they trained.
        steps: mini-batch steps on each half.
        round: number of rounds completed when it began.
        in_one_exchange: whether these are the replies of the round that ends now.
    """

    replies: Replies
    model: torch.Tensor
    steps: int
    round: int
    in_one_exchange: bool


@state("split-half.watch")
class ProbeSchedule:
    """Schedule of a leaf's probes.

    Attributes:
        due: round of the next probe.
        calm: number of probes in a row that showed no difference.
        evidence: result of the last probe, if the next one is to confirm it.
        long_probe: the current probe, if it lasts several rounds.
    """

    due: int
    calm: int = 0
    evidence: Evidence | None = None
    long_probe: LongProbe | None = None


def forget(schedule: ProbeSchedule, removed: set[Client]) -> ProbeSchedule:
    """Return the schedule without the evidence of these clients."""
    if schedule.long_probe is not None:
        schedule = replace(schedule, long_probe=schedule.long_probe.without(removed))
    evidence = schedule.evidence
    if evidence is None or not removed & set(evidence.clients):
        return schedule
    remaining = without(evidence.clients, removed)
    return replace(schedule, evidence=evidence.of(remaining) if len(remaining) > 1 else None)


@state("split-half.evidence")
class Evidence:
    """Result of one probe of a group.

    Attributes:
        clients: the n clients that answered.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
    """

    clients: tuple[Client, ...]
    products: torch.Tensor

    def of(self, clients: Sequence[Client]) -> Evidence:
        """Return the evidence of some of the clients."""
        if tuple(clients) == self.clients:
            return self
        # The rows of all first halves come before those of all second halves.
        first_rows = np.array(positions_of(clients, among=self.clients), dtype=np.int64)
        rows = np.concatenate([first_rows, len(self.clients) + first_rows])
        products = torch.from_numpy(self.products.numpy()[np.ix_(rows, rows)])
        return Evidence(clients=tuple(clients), products=products)

    # What follows from the products, each computed once: several decisions ask for it.

    @cached_property
    def halves(self) -> Halves:
        """The inner products of whole updates and of noise."""
        return halves_of(self.products.numpy())

    @cached_property
    def noise(self) -> Noise:
        """The effective dimension of the noise."""
        return noise_of(self.halves)

    @cached_property
    def test(self) -> Congruence:
        """The test of whether the clients differ."""
        return congruence_of(self.halves, self.noise)

    @cached_property
    def signal(self) -> np.ndarray:
        """Inner products ``(n, n)`` of the signals, see :func:`~coterie.clustering.signal_gram`."""
        return signals(self.halves)

    def p_of_cut(self, left_side: Sequence[int], right_side: Sequence[int]) -> float:
        """Return the p-value of the two sides of a cut, positions of all clients, being one group."""
        weights = np.empty(len(self.clients))
        weights[list(left_side)] = 1 / len(left_side)
        weights[list(right_side)] = -1 / len(right_side)
        return contrast_of(self.halves, weights, self.noise).p


def sample(
    cohort: Cohort, clients: Sequence[Client], max_clients: int, preferred: Sequence[Client] = ()
) -> tuple[Client, ...]:
    """Return the clients of a group that are asked for halves.

    Args:
        cohort: the clients that are present.
        clients: the group.
        max_clients: how many are drawn at random from a larger group. Of a smaller one, all that are
            present are asked.
        preferred: if some of these are present, they are asked instead of a sample.
    """
    if len(clients) <= max_clients:
        return cohort.sample(clients, 1.0)
    # A second probe asks the clients of the first, because only these can confirm it.
    present = cohort.sample(preferred, 1.0) if preferred else ()
    return present or cohort.sample(clients, max_clients / len(clients))


def enough(asked: Sequence[Client], answered: Sequence[Client]) -> bool:
    """Return whether at least half of the clients asked answered; fewer do not represent a group."""
    return 2 * len(set(asked) & set(answered)) >= len(asked)


def evidence_of(replies: Replies) -> Evidence | None:
    """Return the evidence of the clients that sent halves; None if there are fewer than two."""
    if replies.halves is None or len(replies.halves.clients) < 2:
        return None
    products = torch.from_numpy(replies.halves.gram)
    return Evidence(clients=replies.halves.clients, products=products)


# ----------------------------------------------------------------------------------------------------
# The decision.


@dataclass(frozen=True)
class ProbeAgain:
    """The group probes again in the next round, to confirm this probe."""


@dataclass(frozen=True)
class ProbeDecision:
    """What follows from a probe of a group, and why.

    Attributes:
        action: what follows.
        evidence: result of the probe that the next one confirms, or that split the group.
        test: the test of this probe; None if it was not made.
        criteria: the comparisons that were made.
        why: a reason beside the criteria.
        otherwise: what would have happened if the criteria had come out differently.
        probes: the two probes that split a group; empty otherwise.
    """

    action: SplitGroup | KeepWhole | ProbeAgain
    evidence: Evidence
    test: Congruence | None = None
    criteria: tuple[Criterion, ...] = ()
    why: str = ""
    otherwise: str = ""
    probes: tuple[Evidence, ...] = ()

    @property
    def p(self) -> float | None:
        """The p-value of this probe."""
        return None if self.test is None else self.test.p


def decide_probe(
    level: float, replies: Replies, evidence_before: Evidence | None
) -> ProbeDecision | None:
    """Evaluate a group's probe.

    Args:
        level: probability of splitting clients that are identically distributed.
        replies: the replies of its members.
        evidence_before: evidence of the probe before, if this one is to confirm it.

    Returns:
        The decision; None if too few members answered.
    """
    evidence = evidence_of(replies)
    if evidence is None:
        return None
    # A test without no client, one without one, and so on share the level (Bonferroni).
    hostile = replies.averaging.hostile
    level = level / (hostile + 1)
    # A single probe never splits a group: the next one must confirm what it finds.
    if evidence_before is None:
        return _decide_first_probe(level, evidence, hostile)
    # The second probe confirms the first only if at least half as many clients answered it.
    if 2 * len(evidence.clients) < len(evidence_before.clients):
        reason = (
            f"only {len(evidence.clients)} clients answered the second probe, "
            f"and {len(evidence_before.clients)} the first; asked again"
        )
        return ProbeDecision(ProbeAgain(), evidence_before, why=reason)
    return _decide_second_probe(level, evidence_before, evidence, hostile)


def _hiding(level: float, first: Evidence, second: Evidence, hostile: int) -> Clients:
    """The clients without which a group differs by two probes, if it does not differ with them; usually none.

    All sets of as many clients share the level.
    """

    def differ(clients: Clients, num_sets: int) -> tuple[bool, float]:
        p_value = together(first.of(clients), second.of(clients))
        return p_value < level / num_sets, -p_value

    in_both = tuple(sorted(set(first.clients) & set(second.clients)))
    return left_out(in_both, hostile, differ, _by_noise(first, second, in_both)) or ()


def _by_noise(first: Evidence, second: Evidence, clients: Clients) -> Clients:
    """Clients in the order of their noise in two probes, the noisiest first: noise is what hides a difference."""
    levels = first.of(clients).halves.levels
    levels = levels + second.of(clients).halves.levels
    return tuple(clients[position] for position in np.argsort(-levels, kind="stable"))


def _decide_first_probe(level: float, evidence: Evidence, hostile: int) -> ProbeDecision:
    """Probe again if this probe, seen twice, would split the group."""
    all_evidence = evidence
    hiding = _hiding(level, evidence, evidence, hostile) if hostile else ()
    if hiding:
        evidence = evidence.of(without(evidence.clients, hiding))
    test = evidence.test
    p_if_repeated = repeated_p(test.p, test.p, test.clients)
    criterion = differ("p if seen twice", p_if_repeated, level, test.clients)
    again_text = "in the next round, for confirmation"
    if not criterion.held:
        otherwise = f"it would have been tested again {again_text}"
        return ProbeDecision(KeepWhole(), evidence, test, (criterion,), otherwise=otherwise)
    return ProbeDecision(
        ProbeAgain(),
        all_evidence,
        test,
        (criterion,),
        f"tested again {again_text}{_without_in_words(hiding)}",
        f"it would not have been tested again {again_text}",
    )


def _without_in_words(hiding: Clients) -> str:
    """Which clients hid a difference, for a note; empty if none did."""
    return f"; hidden by client {some([str(client) for client in hiding])}" if hiding else ""


def _decide_second_probe(
    level: float, first_evidence: Evidence, second_evidence: Evidence, hostile: int
) -> ProbeDecision:
    """Split the group if both probes together are below the level, and agree on the sides."""
    # 1. Both probes together find that the clients differ, if need be without a few that hide it.
    hiding = _hiding(level, first_evidence, second_evidence, hostile) if hostile else ()
    first_tested = first_evidence.of(without(first_evidence.clients, hiding))
    second_tested = second_evidence.of(without(second_evidence.clients, hiding))
    test = second_tested.test
    criterion = differ(
        "p of two probes", together(first_tested, second_tested), level, test.clients
    )
    if not criterion.held:
        otherwise = "it would have split in this round, if both probes had found the same two sides"
        return ProbeDecision(KeepWhole(), second_evidence, test, (criterion,), otherwise=otherwise)
    # 2. Both probes find the same sides.
    parts = confirmed(level, first_evidence, second_evidence, hostile=hostile)
    if len(parts) < 2:
        reason = "but the probes find different sides"
        return ProbeDecision(KeepWhole(), second_evidence, test, (criterion,), reason)
    num_undecided = len(second_evidence.clients) - sum(map(len, parts))
    reason = ""
    if num_undecided:
        disagreed = f"{num_undecided} of {len(second_evidence.clients)}"
        reason = f"clients on which the probes disagree ({disagreed}) walk down the tree{_without_in_words(hiding)}"
    return ProbeDecision(
        SplitGroup(parts),
        second_evidence,
        test,
        (criterion,),
        reason,
        "it would not have split in this round",
        probes=(first_evidence, second_evidence),
    )


def together(first: Evidence, second: Evidence) -> float:
    """Return the p-value of two probes of a group for its clients being congruent; not all need to be in both."""
    return repeated_p(
        first.test.p, second.test.p, clients=min(len(first.clients), len(second.clients))
    )


def confirmed(level: float, first: Evidence, second: Evidence, *, hostile: int = 0) -> Groups:
    """Return the groups that two probes confirm.

    A group splits if both probes find it incongruent, and both find that the two sides of one cut
    differ. Then the sides are tested in the same way. Clients that are not in both probes, or that
    the probes put on different sides, are in no group. If fewer than half of the clients of the
    second probe are in the first, the groups are those of the second alone.

    Args:
        level: probability of splitting clients that are identically distributed.
        first: evidence of the first probe.
        second: evidence of the second probe.
        hostile: how many clients of a group may be left out if they hide that the others differ;
            they are in no group.
    """
    # Too few clients are in both probes: the second one decides alone.
    in_both = sorted(set(first.clients) & set(second.clients))
    if not enough(second.clients, in_both):
        positions = congruent_groups(second.products.numpy(), level).groups
        return as_groups([second.clients[position] for position in group] for group in positions)
    # Groups are cut in two until both probes find every part congruent.
    untested = [tuple(in_both)]
    groups: list[tuple[Client, ...]] = []
    while untested:
        group = untested.pop()
        sides = _sides(level, group, first, second, hostile)
        if sides:
            untested += sides
        else:
            groups.append(group)
    return as_groups(groups)


def _sides(
    level: float,
    group: tuple[Client, ...],
    first_evidence: Evidence,
    second_evidence: Evidence,
    hostile: int,
) -> list[tuple[Client, ...]]:
    """The two sides of a group, or none if it stays whole.

    The cut is that of both probes' mean: if several groups are equally far apart, many cuts are
    equally good, and each probe alone would choose a different one. Both probes must find that the
    sides differ, and agree on the side of each client.
    """
    # 0. Without a few clients that hide it, if there are any.
    if hostile:
        group = _without_hiding(level, group, first_evidence, second_evidence, hostile)
    # 1. Both probes together find the group incongruent.
    if len(group) < 2:
        return []
    first = first_evidence.of(group)
    second = second_evidence.of(group)
    if not together(first, second) < level:
        return []
    # 2. One cut, of the mean of both, whose sides differ in both.
    left_side, right_side = cut_of(first.signal + second.signal)
    if not _p_of_cut(first, second, (left_side, right_side)) < level:
        return []
    # 3. A client is on a side if it is nearer to it in both probes. If that leaves a side empty, a
    #    client's share in the mean of its side counts too.
    for with_own_share in (False, True):
        first_sides = _nearer(first.signal, left_side, right_side, with_own_share)
        second_sides = _nearer(second.signal, left_side, right_side, with_own_share)
        is_left = (first_sides == 1) & (second_sides == 1)
        is_right = (first_sides == -1) & (second_sides == -1)
        agreed_left = tuple(group[position] for position in left_side if is_left[position])
        agreed_right = tuple(group[position] for position in right_side if is_right[position])
        if agreed_left and agreed_right:
            return [agreed_left, agreed_right]
    return []


def _p_of_cut(
    first: Evidence, second: Evidence, sides: tuple[Sequence[int], Sequence[int]]
) -> float:
    """The p-value of two probes for the two sides of a cut being one group."""
    return repeated_p(first.p_of_cut(*sides), second.p_of_cut(*sides), len(first.clients))


def _without_hiding(
    level: float, group: Clients, first: Evidence, second: Evidence, hostile: int
) -> Clients:
    """The group without the few clients that hide that the others differ; the group itself if none do."""

    def differ(clients: Clients, num_sets: int) -> tuple[bool, float]:
        first_left = first.of(clients)
        second_left = second.of(clients)
        p_value = together(first_left, second_left)
        if not p_value < level / num_sets:
            return False, -p_value
        sides = cut_of(first_left.signal + second_left.signal)
        p_of_cut = _p_of_cut(first_left, second_left, sides)
        return p_of_cut < level / num_sets, -p_of_cut

    if len(group) < 2:
        return group
    return without(group, left_out(group, hostile, differ, _by_noise(first, second, group)) or ())


def _nearer(
    signal: np.ndarray, left_side: Sequence[int], right_side: Sequence[int], with_own_share: bool
) -> np.ndarray:
    """1 for clients whose signal is nearer to the mean of the left side than to that of the right, -1 for the others.

    A client's own share in these means is left out, so that its noise does not keep it on its side.
    But where all clients differ from each other, every client is then nearer to the other side.
    With ``with_own_share`` it is included.
    """
    side_distances = _from_means(signal, (left_side, right_side), with_own_share)
    # A client that is alone on its side has no distance from the others there: it counts as zero.
    left_distances, right_distances = np.nan_to_num(side_distances)
    return np.where(left_distances < right_distances, 1, -1)


def _from_means(
    signal: np.ndarray, sides: Iterable[Sequence[int]], with_own_share: bool
) -> np.ndarray:
    """Squared distances ``(sides, n)`` of n clients from the mean of each side, with or without their own share in it.

    NaN where a side has no client.
    """
    squares = np.diagonal(signal)
    distances = []
    for side in sides:
        members = list(side)
        is_member = np.zeros(len(signal))
        is_member[members] = 1.0
        # Whose own share in the mean of this side is left out.
        is_left_out = (is_member > 0) & (not with_own_share)
        # ‖x - Σ y / m‖² = x·x - 2 Σ x·y / m + Σ Σ y·y' / m², without x among the y.
        row_sums = signal @ is_member
        total_sum = float(is_member @ row_sums)
        member_counts = len(members) - is_left_out
        row_sums_left = np.where(is_left_out, row_sums - squares, row_sums)
        totals_left = np.where(is_left_out, total_sum - 2 * row_sums + squares, total_sum)
        # Nobody is left where the client was the only one: no distance.
        divisor = np.where(member_counts > 0, member_counts, 1)
        distance = squares - 2 * row_sums_left / divisor + totals_left / divisor**2
        distances.append(np.where(member_counts > 0, distance, np.nan))
    return np.array(distances)


# ----------------------------------------------------------------------------------------------------
# Its description.


def differ(criterion_name: str, p_value: float, level: float, client_count: int) -> Criterion:
    """The criterion of a split: a p-value, of all clients being identically distributed, below the level."""
    return Criterion(
        criterion_name,
        p_value,
        "<",
        level,
        "level",
        met=f"{client_count} clients differ beyond chance",
        unmet=f"{client_count} clients differ no more than by chance",
        key=P_VALUE,
    )


def describe_probe(leaf: Leaf, decision: ProbeDecision) -> Note:
    """Describe what follows from a probe; with cosines and distances if it splits the group."""
    description = "; ".join(filter(None, (tested(decision.criteria), decision.why)))
    match decision.action:
        case ProbeAgain():
            kind = "hold"
        case KeepWhole():
            kind = "keep"
        case SplitGroup():
            kind = "split"
    if decision.test is None:
        return Note(kind=kind, effect="keeps", clients=leaf.clients, text=description)
    note = group_note(
        leaf, kind, description, decision.test, decision.criteria[0], decision.otherwise
    )
    # Only a split says where it cuts, and shows the evidence of both probes.
    match decision.action:
        case SplitGroup(parts):
            note = replace(note, effect="divides", parts=parts)
            return _with_evidence(note, *decision.probes)
    return note


def group_note(
    leaf: Leaf,
    kind: str,
    description: str,
    test: Congruence,
    criterion: Criterion,
    otherwise: str = "",
) -> Note:
    """Describe the conclusion from a group's probe that did not split it, with the numbers of its test."""
    numbers = {"p": test.p, "z": test.z, "spread": test.spread, "dimension": test.dimension}
    return Note(
        kind=kind,
        effect="keeps",
        clients=leaf.clients,
        text=description,
        criteria=(criterion,),
        otherwise=otherwise,
        numbers={key: number for key, number in numbers.items() if np.isfinite(number)},
        labels={"node": leaf.node, "heard": test.clients},
    )


def _with_evidence(note: Note, first_evidence: Evidence, second_evidence: Evidence) -> Note:
    """Add cosines and distances to a split's note: of both probes' mean if it represents the group; else of the second."""
    in_both = tuple(sorted(set(first_evidence.clients) & set(second_evidence.clients)))
    represents = enough(second_evidence.clients, in_both)
    clients = in_both if represents else second_evidence.clients
    # The noise of two probes is independent: their mean shows the signal more clearly.
    products = second_evidence.of(clients).products.numpy()
    if represents:
        products = (products + first_evidence.of(clients).products.numpy()) / 2
    part_distances = distances(clients, products, note.parts)
    return replace(with_cosines(note, clients, products), values=part_distances)


def with_cosines(note: Note, clients: tuple[Client, ...], products: np.ndarray) -> Note:
    """Add to a note the cosines of the clients' signals, without noise.

    Args:
        note: the note.
        clients: n clients.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
    """
    cosines = torch.from_numpy(signal_cosine(products)).float()
    return replace(note, heard=clients, similarity={"all": cosines})


def distances(
    clients: Sequence[Client], products: np.ndarray, parts: Groups
) -> dict[str, dict[Client, float]]:
    """Return the squared distances of the clients' signals from the mean signal of each part.

    The bias of noise is removed, so a distance may be below zero. A client's own share in a mean is
    left out.

    Args:
        clients: n clients.
        products: ``(2n, 2n)``, the Gram matrix of their halves.
        parts: groups of clients.

    Returns:
        ``distance to part j`` -> client -> its squared distance from part j; no value where the
        client is alone in the part.
    """
    part_positions = [positions_of(part, among=clients) for part in parts]
    distances_of_parts = _from_means(signal_gram(products), part_positions, with_own_share=False)
    distances_by_part = {}
    for part_number, part_distances in enumerate(distances_of_parts):
        distance_of_client = {}
        for client, distance in zip(clients, map(float, part_distances), strict=True):
            if not np.isnan(distance):
                distance_of_client[client] = distance
        distances_by_part[f"distance to part {part_number}"] = distance_of_client
    return distances_by_part
