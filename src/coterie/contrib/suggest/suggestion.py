"""Suggested settings for methods with thresholds, from the result of the split-half test: ``coterie suggest``."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coterie.clustering import (
    adjusted_rand,
    congruent_groups,
    cosine,
    cut_dendrogram,
    dendrogram,
    distances,
    gram,
    labels_of,
    manhattan,
    noise_levels,
    reliability,
    same_partition,
)
from coterie.clustering.halves import centred, halves
from coterie.core import (
    Assignment,
    Client,
    Federation,
    Groups,
    Plan,
    Position,
    Replies,
    Task,
    as_groups,
    needs_of,
)
from coterie.engines import rounds
from coterie.engines.clock import Clock
from coterie.engines.exchange import exchange
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import setup
from coterie.files import Folder
from coterie.methods import ACFL, CFL, FLHC, SplitHalf
from coterie.methods._cluster_tree import Leaf, root
from coterie.methods._half_steps import of_equal_steps
from coterie.methods._split_half_probes import Evidence, confirmed, evidence_of, together
from coterie.methods.acfl import Rule, layers_compared
from coterie.methods.cfl import CFLState, GroupUpdates
from coterie.methods.split_half import SplitHalfState, members_of, several
from coterie.models.layout import own_layers
from coterie.notebook.tables import partition, some
from coterie.printable import printable
from coterie.records.codec import from_stored
from coterie.records.record import Line
from coterie.runs.experiment import data_folder
from coterie.runs.run import Run, reopen, same_world, world_facts
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public

# ----------------------------------------------------------------------------------------------------
# The contents of a suggestion: the groups found, and for each method the settings that would have
# found them.


CLEAR, NARROW, NONE = "clear", "narrow", "none"
"""The confidence in an advice, see :func:`sureness`."""

ROOM = 1.5
"""The least margin of a clear advice: a value in the middle may then be off by a fifth in either
direction."""

DOUBT = 0.05
"""A p-value below this does not support that clients are alike."""

AWAY = 1.5
"""Ratio between a value and the one known end of its range: a single group does not show how far
apart two would be."""


@dataclass(frozen=True)
class Range:
    """The range of a setting's values that give the groups found.

    Attributes:
        setting: The name of the setting.
        low: The lower end; where there is no bound, infinite or the setting's own limit.
        high: The upper end; where there is no bound, infinite or the setting's own limit.
        value: The suggested value; None if there is no room between the ends. For CFL's eps2 and
            gamma_max it may be below ``low``, since one of the two is enough to keep a group whole.
        margin: The ratio of ``high`` to ``low``, as distances or norms.
    """

    setting: str
    low: float
    high: float
    value: float | None
    margin: float


@dataclass(frozen=True)
class Advice:
    """The settings with which a method would find the groups.

    Attributes:
        method: The name of the method.
        compared: The quantities that it compares, in words: for example a metric and a linkage.
        settings: All settings to set, as in an experiment's file; empty if none are right.
        ranges: The ranges of the settings that were searched for.
        margin: The room for the settings, as a ratio; 1 or less is none.
        sure: ``clear``, ``narrow`` or ``none``.
        ari: Adjusted Rand index of the most similar groups that the method could make; 1 if it can
            make the groups found.
        text: The numbers that were compared, in a sentence.
    """

    method: str
    compared: str
    settings: Mapping[str, Any]
    ranges: tuple[Range, ...]
    margin: float
    sure: str
    ari: float
    text: str


@dataclass(frozen=True)
class Finding:
    """The result of the split-half test for the clients, from two probes with independently drawn halves.

    Attributes:
        clients: The clients in ``groups``, ``(n,)``: those on which both probes agree, or those
            that the run has placed.
        level: The level of the test.
        p: The p-value that all clients are alike, from both probes together.
        groups: The groups that both probes confirm. In a run that split-half has split they may
            only divide its groups further; if they do anything else, these are the groups of the
            run.
        alone: The groups that each probe finds by itself.
        agreement: Adjusted Rand index of the two partitions ``alone``.
        alike: For each group, the p-value that its members are alike, from both probes together.
        reliability: For each client, the share of signal in its difference from the others, mean of
            both probes, ``(n,)``.
        of_run: Whether these are the groups into which split-half has split the run. They were
            found at the same level, and one more model at which a difference does not show is no
            evidence against it.
    """

    clients: tuple[Client, ...]
    level: float
    p: float
    groups: Groups
    alone: tuple[Groups, Groups]
    agreement: float
    alike: tuple[float, ...]
    reliability: tuple[float, ...]
    of_run: bool = False

    @property
    def same(self) -> bool:
        """Whether each probe finds the same groups by itself."""
        return self.alone[0] == self.alone[1]

    @property
    def doubt(self) -> float | None:
        """The least of the groups' p-values if it is below :data:`DOUBT` divided by the number of groups, else None.

        It belongs to the group that most likely consists of several groups.
        """
        least = min(self.alike)
        return least if least < DOUBT / len(self.groups) else None

    @property
    def firm(self) -> bool:
        """Whether thresholds may be set by these groups: each probe finds the same, and no group has a small p-value."""
        return self.same and self.doubt is None and not self.unseen

    @property
    def unseen(self) -> bool:
        """Whether the groups are the run's, and the probes of this model find others."""
        return self.of_run and self.alone != (self.groups, self.groups)


@dataclass(frozen=True)
class OwnProbes:
    """How split-half, which probes by itself, comes to the groups of a suggestion.

    Attributes:
        settings: All settings with which its first probe starts from the model that was probed
            here; empty if there is nothing to set.
        rounds: The number of rounds in which it then probes three times, each with the next round
            for confirmation; None without ``settings``.
        text: Which groups are the advice if split-half finds others, and why it may, in a sentence.
    """

    settings: Mapping[str, Any]
    rounds: int | None
    text: str


@public
@dataclass(frozen=True)
class Suggestion:
    """The result of :func:`coterie.suggest` for a run.

    Attributes:
        run: The run directory.
        method: The method of the run.
        scenario: The scenario of the run.
        seed: The seed of the run.
        start: The model from which the probes started, in words.
        round: The number of rounds for which that model was trained.
        finding: The groups.
        split_half: How split-half comes to these groups.
        advice: The advice for each method; the quantities that it compares by default come first.
        caveats: Reasons to trust the result less, one sentence each.
        left_out: Client -> why it could not be asked.
        exchanges: The number of exchanges in which the clients were asked.
        names: Client -> its name, if clients have names.
    """

    run: str
    method: str
    scenario: str
    seed: int
    start: str
    round: int
    finding: Finding
    split_half: OwnProbes
    advice: tuple[Advice, ...]
    caveats: tuple[str, ...]
    left_out: Mapping[Client, str]
    exchanges: int
    names: Mapping[Client, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        advice = some([f"{one.method} {one.sure}" for one in self.advice])
        return f"<Suggestion for {printable(self.run)}: {partition(self.finding.groups)} clients; advice: {advice}>"

    def best(self, method: str) -> Advice:
        """The advice to follow for a method.

        Args:
            method: The name of the method.

        Returns:
            The advice for its default quantities if that is clear, else the advice with the widest
            margin.

        Raises:
            KeyError: There is no advice for the method.
        """
        own = [one for one in self.advice if one.method == method]
        if not own:
            raise KeyError(method)
        return own[0] if own[0].sure == CLEAR else max(own, key=lambda one: one.margin)


def sureness(margin: float, firm: bool) -> str:
    """The confidence in an advice.

    Args:
        margin: The room for the settings, as a ratio.
        firm: Whether the groups are firm, see :attr:`Finding.firm`.

    Returns:
        ``none`` if no value is right, ``clear`` from a margin of :data:`ROOM` on if the groups are
        firm, else ``narrow``.
    """
    if not margin > 1:
        return NONE
    return CLEAR if margin >= ROOM and firm else NARROW


def labels(groups: Groups) -> np.ndarray:
    """The number of each client's group ``(n,)``, with the clients in ascending order."""
    return np.array(
        [
            number
            for _, number in sorted(
                (client, i) for i, group in enumerate(groups) for client in group
            )
        ]
    )


def without(method: str, compared: str, text: str, ari: float = 0.0) -> Advice:
    """The advice if no settings are right.

    Args:
        method: The name of the method.
        compared: The quantities that it compares, in words.
        text: The reason, in a sentence.
        ari: Adjusted Rand index of the most similar groups that the method could make.

    Returns:
        The advice, without settings.
    """
    return Advice(method, compared, {}, (), 0.0, NONE, ari, text)


def ratio(low: float, high: float) -> float:
    """``high / low``; infinite if there is no bound below or above."""
    return high / low if low > 0 else math.inf


def middle(low: float, high: float) -> float:
    """The middle of a range, as ratios.

    Args:
        low: The lower end; 0 for none.
        high: The upper end; infinite for none.

    Returns:
        The geometric mean of the ends; with one end only, a value at the ratio :data:`AWAY` from
        it.

    Example:
        >>> middle(1.0, 4.0), middle(2.0, math.inf), middle(0.0, 3.0)
        (2.0, 3.0, 2.0)
    """
    if math.isinf(high):
        return AWAY * low if low > 0 else 1.0  # without ends, any value is right
    return math.sqrt(low * high) if low > 0 else high / AWAY


def shortest(value: float, low: float, high: float) -> float:
    """Round a value to as few digits as possible.

    Args:
        value: The value, between the ends.
        low: The lower end.
        high: The upper end.

    Returns:
        The value with the fewest digits, at least two, that differs by at most a fifth of the
        distance to the nearer end.

    Example:
        >>> shortest(1.6449, 1.137, 2.382), shortest(0.99052, 0.9899, 0.9911)
        (1.6, 0.9905)
    """
    room = min(value - low, high - value) / 5
    return next(
        (
            short
            for digits in range(2, 17)
            if abs((short := float(f"{value:.{digits}g}")) - value) <= room
        ),
        value,
    )


# ----------------------------------------------------------------------------------------------------
# Cuts of a dendrogram that give the groups found: thresholds for FL+HC and ACFL.


@dataclass(frozen=True)
class Cut:
    """The thresholds that cut a dendrogram into given groups: above ``low`` and up to ``high``.

    If there is no such threshold, ``low`` is not below ``high``.

    Attributes:
        low: The height of the highest merge inside a group.
        high: The height of the lowest merge across groups.
        ari: Adjusted Rand index of the cut that is most similar to the groups; 1 if it gives them.
    """

    low: float
    high: float
    ari: float

    def room(self) -> bool:
        """Whether there is such a threshold."""
        return self.low < self.high


def cut_of(apart: np.ndarray, linkage: str, labels: np.ndarray) -> Cut:
    """The thresholds that cut a dendrogram into given groups.

    Args:
        apart: Distances ``(n, n)`` of the clients.
        linkage: The linkage of the dendrogram.
        labels: The number of each client's group, ``(n,)``.

    Returns:
        The thresholds.

    Example:
        >>> cut_of(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single", np.array([0, 0, 1]))
        Cut(low=1.0, high=4.0, ari=1.0)
    """
    tree = dendrogram(apart, linkage)
    n, groups = len(labels), len(set(labels.tolist()))
    if same_partition(cut_dendrogram(tree, groups=groups), labels):
        heights = [0.0, *tree[:, 2].tolist(), math.inf]
        return Cut(heights[n - groups], heights[n - groups + 1], 1.0)
    return Cut(
        math.inf,
        0.0,
        max(adjusted_rand(cut_dendrogram(tree, groups=k), labels) for k in range(1, n + 1)),
    )


def common(cuts: Iterable[Cut]) -> Cut:
    """The thresholds that are right in each of several dendrograms of the same clients."""
    several = list(cuts)
    return Cut(
        max(c.low for c in several), min(c.high for c in several), min(c.ari for c in several)
    )


@dataclass(frozen=True)
class Geometry:
    """The distances by which a method clusters.

    Attributes:
        method: The name of the method.
        settings: The settings that select these distances, besides the threshold.
        compared: The same in words.
        linkage: The linkage of the dendrogram.
        apart: Distances ``(n, n)`` of each draw.
        similarity: Whether the threshold is the cosine similarity 1 - distance.
    """

    method: str
    settings: Mapping[str, Any]
    compared: str
    linkage: str
    apart: Sequence[np.ndarray]
    similarity: bool = False

    def advice(self, labels: np.ndarray, firm: bool) -> Advice:
        """The threshold that gives the groups in every draw.

        Args:
            labels: The number of each client's group, ``(n,)``.
            firm: As for :func:`sureness`.

        Returns:
            The advice.
        """
        cut = common(cut_of(apart, self.linkage, labels) for apart in self.apart)
        if not cut.room():
            why = "they are not in its tree" if cut.ari < 1 else "none is right in both probes"
            return without(
                self.method, self.compared, f"no threshold gives these groups: {why}", cut.ari
            )
        margin = ratio(cut.low, cut.high)
        found = _similarities(cut) if self.similarity else _distances(cut)
        across = (
            "no merge across" if math.isinf(cut.high) else f"lowest merge across {cut.high:.3g}"
        )
        what = "distance 1 - cos, " if self.similarity else ""
        text = f"{what}{self.linkage} linkage: highest merge within a group {cut.low:.3g}, {across}"
        settings = {**self.settings, "threshold": found.value}
        return Advice(
            self.method,
            self.compared,
            settings,
            (found,),
            margin,
            sureness(margin, firm),
            1.0,
            text,
        )


def _distances(cut: Cut) -> Range:
    value = shortest(middle(cut.low, cut.high), cut.low, cut.high)
    return Range("threshold", cut.low, cut.high, value, ratio(cut.low, cut.high))


def _similarities(cut: Cut) -> Range:
    """The range as similarities: groups merge while their similarity is above the threshold, so the ends change places."""
    low, high = max(1 - cut.high, -1.0), 1 - cut.low
    value = max(1 - middle(cut.low, cut.high), -1.0)
    return Range("threshold", low, high, -shortest(-value, -high, -low), ratio(cut.low, cut.high))


# ----------------------------------------------------------------------------------------------------
# Probing: exchanges with a run's clients that are not recorded in the run, and the model from which
#     they train.


FAR = 10**9
"""First number of the exchanges made here. No run reaches it, so their random numbers differ from
those of the run."""


@dataclass(frozen=True)
class StartingPoint:
    """The model from which a probe starts.

    Attributes:
        model: The model ``(d,)``.
        round: The number of rounds for which it was trained.
        words: A description of the model.
        shared: Whether all clients have this model, or had it.
    """

    model: Tensor
    round: int
    words: str
    shared: bool


def stored(run: Run) -> Position:
    """The current position of a run, from its newest checkpoint.

    Args:
        run: The run.

    Returns:
        The position.

    Raises:
        UserError: The run has no completed round, or is damaged.
    """
    found = run.record.stored(Position, fallback=False)
    if found is None:
        raise UserError(
            f"{run.folder} has no completed round yet; to continue, run coterie resume {run.folder}"
        )
    return found[1]


def start_of(assignment: Assignment, position: Position, lines: list[Line]) -> StartingPoint:
    """The model from which to probe.

    Args:
        assignment: The models that serve the clients.
        position: The position of the run.
        lines: The records of the run.

    Returns:
        The model that serves all clients; else the last model that all clients shared before they
        were divided into groups; else the mean of the models that serve clients.
    """
    paths = [assignment.path.get(client, (row,)) for client, row in assignment.row.items()]
    shared = [row for row in paths[0] if all(row in path for path in paths)]
    if shared and not any(
        position.own(assignment, client) is not None for client in assignment.row
    ):
        model = assignment.models[shared[-1]]
        if all(row == shared[-1] for row in assignment.row.values()):
            return StartingPoint(model, position.round, "the model that serves all clients", True)
        apart = next(
            (line["round"] for line in lines if len(line["groups"]) > 1), position.round + 1
        )
        return StartingPoint(model, apart - 1, "the last model shared by all clients", True)
    each = {
        (row, None if position.own(assignment, client) is None else client)
        for client, row in assignment.row.items()
    }
    total = sum(
        own_layers(assignment.models[row], None if c is None else position.own(assignment, c))
        for row, c in each
    )
    assert isinstance(total, Tensor)
    return StartingPoint(
        total / len(each),
        position.round,
        f"the mean of the {len(each)} models that serve clients",
        False,
    )


class ProbedClients:
    """The clients that are present at the current position of a run.

    Args:
        pool: The pool that trains the clients.
        parameters: The columns of a row on which similarities are computed.
        position: The position of the run.
        seed: The seed of the run.
        progress: Called after each exchange.
    """

    def __init__(
        self,
        pool: ClientPool,
        parameters: slice,
        position: Position,
        seed: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        self.progress = progress
        self.pool, self.world, self.parameters, self.seed = pool, pool.world, parameters, seed
        self.there = rounds.present(pool.world.attendance, position)
        self.left_out: Mapping[Client, str] = {}
        self.asked = 0

    def halves(self, start: StartingPoint) -> Evidence:
        """Make one probe: updates from both halves of each client's data, with equal steps, as the method split-half does.

        Clients whose data cannot be halved are left out from then on.

        Args:
            start: The model from which the clients train.

        Returns:
            The evidence for the split-half test.

        Raises:
            UserError: Fewer than two clients have data that can be halved.
        """
        sizes = [
            self.pool.wire.examples(len(self.world.clients[client].train)) for client in self.there
        ]
        task = Task(offered=(0,), halves=True, training=of_equal_steps(self.world.training, sizes))
        tasks = dict.fromkeys(self.there, task)
        replies = self._ask(
            Plan(models=start.model[None], tasks=tasks, need="mean", columns=self.parameters),
            start.round,
        )
        evidence = evidence_of(replies)
        if evidence is None:
            client, why = min(replies.refused.items(), default=(None, ""))
            refused = f"; client {client} was refused: {why}" if why else ""
            raise UserError(
                f"a probe needs two clients with enough training examples (or subjects) for two halves{refused}"
            )
        few = [client for client in replies.clients if client not in evidence.clients]
        self.leave_out(
            {
                **replies.refused,
                **dict.fromkeys(few, "too few training examples (or subjects) for two halves"),
            }
        )
        return evidence

    def leave_out(self, reasons: Mapping[Client, str]) -> None:
        """Ask some clients no longer; ``reasons``: client -> why."""
        self.left_out = {**self.left_out, **reasons}
        self.there = tuple(client for client in self.there if client not in reasons)

    def updates(self, start: StartingPoint, epochs: int | None = None) -> Replies:
        """The update of each client.

        Args:
            start: The model from which the clients train.
            epochs: Epochs of training; None for those of a round.

        Returns:
            The replies.

        Raises:
            UserError: A client was refused.
        """
        tasks = dict.fromkeys(self.there, Task(offered=(0,), epochs=epochs))
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="rows"), start.round)
        if replies.refused:
            client, why = next(iter(replies.refused.items()))
            raise UserError(f"the probe failed: client {client} was refused: {why}")
        return replace(
            replies, updates=replies.all_updates.clone()
        )  # the pool reuses this memory for the next replies

    def _ask(self, plan: Plan, round: int) -> Replies:
        self.pool.wire.check(plan, "suggest")
        self.asked += 1
        position = Position(round=round, exchange=FAR + self.asked, state=None)
        replies, _ = exchange(self.pool, plan, position, self.seed, Clock())
        if self.progress:
            self.progress()
        return replies


# ----------------------------------------------------------------------------------------------------
# CFL's three criteria, from a probe: their values for each group that must be split, and for each
# that must stay whole.
#
# CFL examines a group at a stationary point, where its updates sum to zero. A probe is seldom made
# exactly there. So the mean of the members' updates is subtracted from each update, which gives the
# updates at the stationary point if all members have the same curvature. CFL's own criteria are
# then tested on these updates.


LOWER = {"eps2": 1.4, "gamma_max": 1.15}
"""Factor by which these settings are put below the value that the least cut needs, if the middle is
not lower.

The greatest norm so far, of which eps2 is a share, grows during a run, while the norms of clients
that agree shrink. And a group never reaches its stationary point exactly, which lowers the bound on
gamma. The factors were chosen on digits, see docs/suggest.md."""

LOWEST = 1.25
"""Upper limit of this factor if the bound on gamma is even lower in the original updates, away from
the stationary point."""


@dataclass(frozen=True)
class Sight:
    """CFL's quantities for a group at its stationary point.

    Attributes:
        clients: The clients of the group.
        parts: The two sides of its cut.
        floor: The norm of the mean update that noise alone would give, as a share of the greatest
            norm of a client.
        norm: The greatest norm of a client's update, as a share of the greatest norm so far.
        bound: The greatest value that gamma may have.
    """

    clients: tuple[Client, ...]
    parts: Groups
    floor: float
    norm: float
    bound: float


@dataclass(frozen=True)
class Probe:
    """One draw.

    Attributes:
        halves: The Gram matrix of the halves, ``(2n, 2n)``.
        now: Replies to a round of training from the probed model.
        first: Replies to a round of training from the first model of the run.
        parameters: Number of columns that are compared.
    """

    halves: np.ndarray
    now: Replies
    first: Replies
    parameters: int


@dataclass(frozen=True)
class ProbeCourse:
    """The cuts by which CFL would get from one group to the groups found.

    Attributes:
        splits: CFL's quantities for each group that it must cut, in order.
        kept: CFL's quantities for each group that must stay whole.
        groups: The groups at the end.
        start: The norm of the mean update at the first model of the run, as a share of the greatest
            norm of a client.
        moving: The same at the probed model.
        bound: The greatest value that gamma may have for the original updates of all clients.
    """

    splits: tuple[Sight, ...]
    kept: tuple[Sight, ...]
    groups: Groups
    start: float
    moving: float
    bound: float


def course(probe: Probe, groups: Groups) -> ProbeCourse:
    """CFL's cuts, from all clients to given groups; a cut that would divide one of them is not made.

    Args:
        probe: The draw.
        groups: The groups.

    Returns:
        The cuts.
    """
    first, now = (heard(replies, probe.parameters) for replies in (probe.first, probe.now))
    peak = max(first.client_norm, now.client_norm)
    start, moving = values(first), values(now)
    splits, kept, reached = [], [], []
    waiting = [probe.now.clients]
    while waiting:
        clients = waiting.pop()
        inside = [group for group in groups if set(group) <= set(clients)]
        seen = sight(probe, clients, peak) if len(clients) > 1 else None
        if seen and len(inside) > 1:
            splits.append(seen)
        if (
            seen
            and len(inside) > 1
            and all(any(set(group) <= set(part) for part in seen.parts) for group in inside)
        ):
            waiting += seen.parts
            continue
        reached.append(clients)
        if seen and len(inside) == 1:
            kept.append(seen)
    return ProbeCourse(
        tuple(splits),
        tuple(kept),
        tuple(sorted(reached)),
        start=start["mean_norm"],
        moving=moving["mean_norm"],
        bound=moving["gamma_bound"],
    )


def sight(probe: Probe, clients: tuple[Client, ...], peak: float) -> Sight:
    """CFL's quantities for a group at its stationary point.

    Args:
        probe: The draw.
        clients: The clients of the group, two or more.
        peak: The greatest norm so far.

    Returns:
        The quantities.
    """
    own = probe.now.of(clients)
    at_rest = heard(
        replace(own, updates=own.all_updates - own.all_updates.mean(0)), probe.parameters, peak
    )
    compared = values(at_rest)
    at = probe.now.positions(clients)
    greatest = float(np.sqrt(np.diagonal(centred(halves(probe.halves, at).mean)).max()))
    noise = float(np.sqrt(noise_levels(probe.halves, at).sum())) / len(at)
    floor = noise / greatest if greatest > 0 else 0.0
    return Sight(clients, at_rest.parts(), floor, compared["client_norm"], compared["gamma_bound"])


def values(group: GroupUpdates) -> dict[str, float]:
    """The numbers that CFL compares with its settings, by the keys of its criteria."""
    criteria = (*CFL().norm_criteria(group), *CFL().cut_criteria(group))
    return {criterion.key: criterion.value for criterion in criteria}


def heard(replies: Replies, parameters: int, peak: float = 0.0) -> GroupUpdates:
    """The updates as CFL would receive them if all clients that replied were one group.

    Args:
        replies: The replies, with all updates.
        parameters: Number of columns that are compared.
        peak: The greatest norm of a client's update so far.

    Returns:
        CFL's quantities of the group.
    """
    leaf = Leaf(node=0, clients=replies.clients, model=replies.all_updates[0], peak=peak)
    state = CFLState(round=0, leaves=(leaf,), tree=root(replies.clients, parameters))
    found = CFL().group_updates(state, 0, replies)
    assert found is not None
    return found


def advise(courses: Sequence[ProbeCourse], groups: Groups, rho: np.ndarray, firm: bool) -> Advice:
    """CFL's settings for which the cuts of every draw end in the groups found.

    Args:
        courses: The cuts of each draw.
        groups: The groups found.
        rho: The clients' reliabilities, ``(n,)``.
        firm: As for :func:`sureness`.

    Returns:
        The advice.
    """
    ari = min(adjusted_rand(labels(one.groups), labels(groups)) for one in courses)
    splits, kept = (
        [sight for one in courses for sight in getattr(one, name)] for name in ("splits", "kept")
    )
    if ari < 1:
        return without(CFL.name, "relative scale", "CFL's cut goes through a group", ari)
    ranges = [
        _below("eps2", [s.norm for s in kept], [s.norm for s in splits]),
        _below(
            "gamma_max",
            [s.bound for s in kept],
            [s.bound for s in splits],
            min(one.bound for one in courses),
        ),
    ]
    # A group is cut only if all criteria are met, so one of these is enough to keep a group whole.
    margin = max(one.margin for one in ranges)
    if splits:
        ranges.insert(
            0,
            _eps1(
                [*(s.floor for s in splits), *(one.moving for one in courses)],
                [one.start for one in courses],
            ),
        )
        margin = min(margin, ranges[0].margin)
    text = _words(courses, splits, kept, rho)
    settings = {one.setting: one.value for one in ranges} if margin > 1 else {}
    return Advice(
        CFL.name,
        "relative scale",
        settings,
        tuple(ranges),
        margin,
        sureness(margin, firm),
        1.0,
        text,
    )


def _eps1(rest: Iterable[float], starts: Iterable[float]) -> Range:
    """The range of eps1.

    It is above the norm of the mean update at the probed model, and above the norm that noise alone
    leaves in a group to be cut. It is below the norm at the first model, which is far from a
    stationary point.
    """
    low, high = max(rest), min(starts)
    return Range(
        "eps1",
        low,
        high,
        shortest(middle(low, high), low, high) if low < high else None,
        ratio(low, high),
    )


def _below(
    setting: str, kept: Sequence[float], splits: Sequence[float], seen: float = math.inf
) -> Range:
    """The range above the values of groups that must stay whole and below those of groups that must be cut (1 if none must).

    ``seen``: the value of all clients together away from the stationary point, which counts if it
        is lower.
    """
    low, high = max(kept, default=0.0), min(splits, default=1.0)
    value = (
        min(middle(low, high), high / LOWER[setting], max(seen, high / LOWEST))
        if splits
        else middle(low, high)
    )
    return Range(setting, low, high, float(f"{value:.2g}"), ratio(low, high))


def _words(
    courses: Sequence[ProbeCourse], splits: Sequence[Sight], kept: Sequence[Sight], rho: np.ndarray
) -> str:
    """The numbers that were compared, besides the ranges."""
    moving, start = max(one.moving for one in courses), min(one.start for one in courses)
    bounds = [f"{max(s.bound for s in kept):.2f} within a group"] if kept else []
    bounds += [f"{min(s.bound for s in splits):.2f} at every cut"] if splits else []
    text = f"at a stationary point, gamma may be up to {' and '.join(bounds)}"
    if splits:
        gamma = [math.sqrt(1 / one - 1) if one > 0 else math.inf for one in rho.tolist()]
        text += f"; measured gamma: median {float(np.median(gamma)):.2f}, maximum {max(gamma):.2f}"
        text += f"; the mean update's norm is {moving:.2f} of the greatest at this model, {start:.2f} at the first"
        text += (
            ": this is not near a stationary point, so probe a later round"
            if moving >= start
            else ""
        )
    return text


# ----------------------------------------------------------------------------------------------------
# From the probes: the thresholds that FL+HC, ACFL and CFL would need, and the confidence in them.


FLHC_TRIED = (("l2", "ward"), ("l1", "complete"), ("cosine", "average"))
"""Metrics and linkages: FL+HC's default, its paper's advice, and one that does not depend on the
length of updates."""

EPOCHS = (ACFL().pretrain_epochs, 10)
"""Epochs of ACFL's first training: its default, and more if that leaves no clear threshold."""


EXCHANGES = 9
"""Most exchanges of a suggestion; the last two are made only if ACFL's default epochs leave no
clear threshold."""


@public
def suggest(
    run: Folder,
    *,
    data: Path | str | None = None,
    workers: int | None = None,
    progress: Callable[[], None] | None = None,
    trust_code: bool = False,
    secret: int | None = None,
) -> Suggestion:
    """Suggest settings with which FL+HC, ACFL and CFL would find the groups that the split-half test finds in a run.

    The run's clients are asked for a few exchanges, from the model of its newest checkpoint and
    from its first model. The run is not changed, and a second call gives the same result.

    Args:
        run: A run directory, of any method, with a completed round.
        data: Folder of the data set's files, if it is no longer the run's folder.
        workers: Processes that train; the result does not depend on it.
        progress: Called after each exchange, of which there are at most ``EXCHANGES``.
        trust_code: Whether a model that the run directory names as ``package.module:Name`` may be
            imported.
        secret: The boundary's secret, if the run had one; None for the environment's
            COTERIE_SECRET.

    Returns:
        The suggestion.

    Raises:
        UserError: The folder is not a run directory, holds several runs, is of a federation, is
            damaged, or has no completed round; the data have changed; fewer than two clients have
            data that can be halved; or code or a secret is needed and was not given.
    """
    one = _only(run, trust_code, secret)
    one.experiment.check_secret()
    position = stored(one)
    federation, pool = _meet(one, data, workers)
    with from_stored(one.record.checkpoints.path(position.round)):
        assignment: Assignment = one.method.assignment(position.state)
        start = start_of(assignment, position, one.record.lines())
        if strangers := set(position.members) - set(pool.world.clients):
            raise ValueError(f"there is no client {min(strangers)}")
        if start.model.shape != (size := pool.wire.layout.size,):
            raise ValueError(f"a model must have shape ({size},), got {tuple(start.model.shape)}")
    with pool:
        asked = _Asked(
            one,
            ProbedClients(pool, federation.parameters, position, one.seed, progress),
            federation,
            start,
        )
        finding, probes = asked.found(proven(position.state))
        advice = tuple(asked.advice(finding, probes))
    return Suggestion(
        run=os.fspath(run),
        method=one.method.name,
        scenario=one.experiment.scenario,
        seed=one.seed,
        start=start.words,
        round=start.round,
        finding=finding,
        split_half=own_probes(one.method, start, finding, one.record.lines()),
        advice=advice,
        caveats=tuple(_caveats(start, finding, assignment.groups)),
        left_out=asked.clients.left_out,
        exchanges=asked.clients.asked,
        names=pool.world.client_names,
    )


def _only(folder: Folder, trust_code: bool, secret: int | None) -> Run:
    """The run in ``folder``, which must be the only one."""
    runs = reopen(folder, trust_code=trust_code, secret=secret)
    if len(runs) > 1:
        raise UserError(
            f"{folder} holds {len(runs)} runs, and a suggestion is for one; give one, for example {runs[0].folder}"
        )
    one = runs[0]
    if one.record.begun and "data" not in one.record.description()["world"]:
        raise UserError(
            f"{folder} is of a federation, whose clients are on other machines and cannot be probed here; "
            f"there, method {SplitHalf.name} probes by itself and needs no thresholds"
        )
    return one


def _meet(run: Run, data: Path | str | None, workers: int | None) -> tuple[Federation, ClientPool]:
    """The method's description of the run's clients, and the processes that train them on the data of the run."""
    experiment = replace(run.experiment, data=data_folder(data or run.experiment.data))
    world = experiment.world(run.seed)
    if not same_world(world_facts(world), run.record.description()["world"]):
        raise UserError(
            f"{run.folder} cannot be probed: the scenario's clients or data have changed"
        )
    hardware = experiment.hardware(workers)
    hardware.check(world)
    wire, federation = setup(run.method, world, run.seed, experiment.boundary)
    return federation, ClientPool(world, wire, hardware)


def proven(state: Any) -> Groups:
    """The groups into which split-half has split a run; none for one group, or another method.

    Args:
        state: The state of the run's method.

    Returns:
        The groups, without clients that still walk down the tree.
    """
    if not isinstance(state, SplitHalfState) or not several(state):
        return ()
    return as_groups(members_of(state).values())


def _found(
    first: Evidence, second: Evidence, clients: tuple[Client, ...], level: float, known: Groups
) -> Finding:
    """The groups of ``clients``, which took part in both probes: those that both confirm.

    If some of these are not within one of the ``known`` groups, which split-half has found in the
    run, those are taken.
    """
    probes = [first.of(clients), second.of(clients)]
    groups = confirmed(level, *probes)
    known = as_groups(
        part for group in known if (part := tuple(c for c in group if c in set(clients)))
    )
    if known and not all(any(set(group) <= set(one) for one in known) for group in groups):
        groups = known
    decided = tuple(sorted(client for group in groups for client in group))
    found = [congruent_groups(one.products.numpy(), level) for one in probes]
    one, other = (as_groups([clients[i] for i in group] for group in each.groups) for each in found)
    return Finding(
        clients=decided,
        level=level,
        p=together(*probes),
        groups=groups,
        alone=(one, other),
        agreement=adjusted_rand(*(labels_of(each.groups) for each in found)),
        alike=tuple(together(first.of(group), second.of(group)) for group in groups),
        reliability=tuple(
            np.mean(
                [reliability(each.of(decided).products.numpy()) for each in probes], axis=0
            ).tolist()
        ),
        of_run=groups == known,
    )


LOOKS = 3
"""Probes, each with one for its confirmation, that a suggested run of split-half has time for:
draws differ, and one alone may miss what the probes here showed narrowly."""


def own_probes(
    method: Any, start: StartingPoint, finding: Finding, lines: Sequence[Line]
) -> OwnProbes:
    """How split-half comes to the groups found, and which groups are the advice if it finds others.

    Its test and level are the same. But it probes in rounds of its own, so from other models, and a
    difference that does not show at one model may show at another. So several groups count, whoever
    found them, and one group is no proof.

    Args:
        method: The method of the run.
        start: The model probed.
        finding: The groups.
        lines: The records of the run.

    Returns:
        The settings and the reasons.
    """
    ran = isinstance(method, SplitHalf)
    if finding.of_run:
        text = "split-half found these groups in this run, at the same level: they are the advice"
        return OwnProbes({}, None, f"{text}, though its next reviews may still move single clients")
    first = "train with auto, which compares groups with one model"
    if len(finding.groups) == 1:
        return OwnProbes({}, None, f"{first}: one group is no proof, and auto tests other models")
    text = f"{first}; these groups are the advice, even if split-half finds fewer: it makes the same test, but of other models"
    if ran:
        notes = [(line["round"], note) for line in lines for note in line["notes"]]
        seen = {number: note["numbers"]["p"] for number, note in notes if "p" in note["numbers"]}
        text += (
            f", here in {len(seen)} rounds, the last {max(seen)} (least p {min(seen.values()):.2g})"
            if seen
            else ""
        )
    if not start.shared:
        return OwnProbes({}, None, text)
    own = method if ran else SplitHalf(fraction=needs_of(method).fraction)
    own = replace(own, first_probe=max(start.round + 1, 2))
    rounds = own.first_probe + 1 + (LOOKS - 1) * own.probe_every
    return OwnProbes(asdict(own), rounds, f"{text}; with the options below, it tests this one")


@dataclass
class _Asked:
    """Collects the evidence for a suggestion from a run's ``clients``."""

    run: Run
    clients: ProbedClients
    federation: Federation
    start: StartingPoint

    def found(self, known: Groups = ()) -> tuple[Finding, list[Evidence]]:
        """The result of two probes, and the probes, for the clients that are in a group; the others are left out.

        ``known``: the groups of the run, if split-half has split it.
        """
        first, second = self.clients.halves(self.start), self.clients.halves(self.start)
        level = (
            self.run.method.level if isinstance(self.run.method, SplitHalf) else SplitHalf().level
        )
        finding = _found(first, second, self.clients.there, level, known)
        undecided = set(self.clients.there) - set(finding.clients)
        why = (
            "the run has not placed it in a group"
            if known
            else "the two probes place it in different groups"
        )
        self.clients.leave_out(dict.fromkeys(sorted(undecided), why))
        return finding, [first.of(finding.clients), second.of(finding.clients)]

    def advice(self, finding: Finding, probes: Sequence[Evidence]) -> Iterator[Advice]:
        """The advice for every method, that for its default quantities first."""
        found, now = labels(finding.groups), [self.clients.updates(self.start) for _ in probes]
        yield from self._flhc(now, found, finding.firm)
        yield from self._acfl(found, finding.firm)
        first, parameters = self.clients.updates(self._first), self.federation.parameters.stop
        seen = [
            Probe(one.products.numpy(), updates, first, parameters)
            for one, updates in zip(probes, now, strict=True)
        ]
        courses = [course(probe, finding.groups) for probe in seen]
        yield advise(courses, finding.groups, np.array(finding.reliability), finding.firm)

    @property
    def _first(self) -> StartingPoint:
        return StartingPoint(self.federation.draw(0), 0, "the first model", True)

    def _flhc(self, now: Sequence[Replies], labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        fraction = needs_of(
            self.run.method
        ).fraction  # the model from which clients are clustered depends on it
        for metric, linkage in FLHC_TRIED:
            compared = f"{metric}, {linkage}"
            settings = {
                "warmup": self.start.round,
                "fraction": fraction,
                "metric": metric,
                "linkage": linkage,
            }
            try:
                self.run.experiment.boundary.check_method(FLHC(metric=metric, linkage=linkage))
            except SettingError as error:
                yield without(FLHC.name, compared, str(error))
                continue
            rows = [
                replies.updates[:, self.federation.parameters]
                for replies in now
                if replies.updates is not None
            ]
            apart = [
                manhattan(row) if metric == "l1" else distances(gram(row), metric=metric)
                for row in rows
            ]
            yield Geometry(FLHC.name, settings, compared, linkage, apart).advice(labels, firm)

    def _acfl(self, labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        """Advice by weights and by updates, with more epochs until one is clear."""
        for epochs in EPOCHS:
            try:
                tried = [one.advice(labels, firm) for one in self._dense(epochs)]
            except SettingError as error:  # no dense layers, or a boundary that hides layers
                yield without(ACFL.name, "dense layers", str(error))
                return
            yield from tried
            if any(one.margin >= ROOM for one in tried):
                return

    def _dense(self, epochs: int) -> list[Geometry]:
        """The distances of the dense layers after ``epochs`` epochs of training from the first model."""
        self.run.experiment.boundary.check_method(ACFL())
        compared = layers_compared(self.federation, (), needed=True)
        spans = {layer: self.federation.columns[layer] for layer in compared}
        drawn = [self.clients.updates(self._first, epochs).updates for _ in range(2)]
        out = []
        for similarity in ("weights", "updates"):
            rule = Rule(
                threshold=None,
                groups=1,
                linkage=ACFL().linkage,
                updates=similarity == "updates",
                columns=spans,
                compared=compared,
            )
            apart = [
                1 - cosine(gram(rule.vectors(self._first.model, rows)))
                for rows in drawn
                if rows is not None
            ]
            settings: dict[str, Any] = {"pretrain_epochs": epochs, "similarity": similarity}
            out.append(
                Geometry(
                    ACFL.name,
                    settings,
                    f"{similarity}, {epochs} epochs",
                    rule.linkage,
                    apart,
                    similarity=True,
                )
            )
        return out


def _caveats(start: StartingPoint, finding: Finding, groups: Groups) -> Iterator[str]:
    """Reasons to trust the finding less; ``groups`` are those of the run."""
    if len(groups) > 1 and groups != finding.groups and not finding.of_run:
        yield f"the run has {len(groups)} groups, different from these; a longer run of fedavg may show which are right"
    if not finding.same:
        one, other = map(len, finding.alone)
        yield f"the two probes alone find {one} and {other} groups that differ: adjusted Rand index {finding.agreement:.2f}"
    elif finding.unseen:
        found = f"{len(finding.alone[0])} group{'s' * (len(finding.alone[0]) > 1)}"
        yield f"the groups are the run's; at this model the probes alone find {found}, so thresholds are uncertain"
    if finding.doubt is not None:
        group = finding.groups[finding.alike.index(finding.doubt)]
        if finding.doubt < finding.level:
            yield f"{len(group)} clients stay in one group, but differ (p {finding.doubt:.2g}): no split was found"
        else:
            yield f"{len(group)} clients are in one group, but p = {finding.doubt:.2g} is small: more data may show several"
    if not start.shared:
        yield f"clients were probed from {start.words}, where no run clusters clients: its thresholds may differ"
    single = sum(len(group) == 1 for group in finding.groups)
    if 2 * single > len(finding.groups) > 1:
        yield f"{single} of {len(finding.groups)} groups are single clients: they may differ gradually, without groups"
