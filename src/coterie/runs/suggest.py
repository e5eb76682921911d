"""What methods with thresholds would have to be set to: ``coterie suggest``, by the split-half test's finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    gamma_bound,
    gram,
    labels_of,
    manhattan,
    noise_levels,
    reliability,
    same_partition,
)  # fmt: skip
from coterie.clustering.halves import centred, halves
from coterie.core import Assignment, Client, Federation, Groups, Plan, Position, Replies, Task, as_groups
from coterie.engines import rounds
from coterie.engines.pool import ClientPool
from coterie.engines.rounds import Clock, exchange, setup
from coterie.methods import ACFL, CFL, FLHC, SplitHalf
from coterie.methods._cluster_tree import CFLState, Leaf, root
from coterie.methods._half_steps import of_equal_steps
from coterie.methods.acfl import Rule, layers_compared
from coterie.methods.cfl import GroupUpdates
from coterie.methods.split_half import Evidence, confirmed, evidence_of, together
from coterie.models.layout import own_layers
from coterie.records.codec import from_stored
from coterie.records.record import Line
from coterie.runs.experiment import data_folder
from coterie.runs.run import Run, reopen, world_facts
from coterie.settings import SettingError, UserError

# ----------------------------------------------------------------------------------------------------
# What a suggestion says: the groups that were found, and for each method the settings that would have found them.


CLEAR, NARROW, NONE = "clear", "narrow", "none"
"""How sure an advice is; see :func:`sureness`."""

ROOM = 1.5
"""The least margin of what is clear: a value in the middle may then be a fifth off either way."""

DOUBT = 0.05
"""A p-value below this is no sign that clients are alike."""

AWAY = 1.5
"""How far a value is put from its one end where nothing tells the other: of one group, how far apart two would be."""


@dataclass(frozen=True)
class Range:
    """Between which values a setting gives the groups found.

    setting: its name. low, high: the ends; infinite, or the setting's own limit, where nothing bounds it. value: the one
    suggested, None where the ends leave no room; of CFL's eps2 and gamma_max, of which one is enough to keep a group whole, it
    may be below low. margin: high over low, as distances or norms.
    """

    setting: str
    low: float
    high: float
    value: float | None
    margin: float


@dataclass(frozen=True)
class Advice:
    """What a method would have to be set to.

    method: its name. compared: of what, in words: a metric and linkage, say. settings: all to set, as in an experiment's file;
    empty where nothing is right. ranges: of the settings that were looked for. margin: how much room there is, a ratio; 1 or
    less is none. sure: ``clear``, ``narrow`` or ``none``. ari: adjusted Rand index of the nearest groups that the method
    could make; 1 where it can make those found. text: the numbers compared, in a sentence.
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
    """What the split-half test says of the clients, by two probes with halves drawn apart.

    clients (n,): on whom they agree. level: of the test. p: that all are alike, by both together. groups: that both confirm.
    alone: what each finds by itself; agreement: adjusted Rand index of these two. alike: of each group, p that its members
    are alike, by both together. reliability ``(n,)``: of each client, the share of signal in what sets it
    apart, the mean of both.
    """

    clients: tuple[Client, ...]
    level: float
    p: float
    groups: Groups
    alone: tuple[Groups, Groups]
    agreement: float
    alike: tuple[float, ...]
    reliability: tuple[float, ...]

    @property
    def same(self) -> bool:
        """Whether each probe finds the same groups by itself."""
        return self.alone[0] == self.alone[1]

    @property
    def doubt(self) -> float | None:
        """The p of the group that is likeliest to be several, where it is small: below :data:`DOUBT`, divided by the groups."""
        least = min(self.alike)
        return least if least < DOUBT / len(self.groups) else None

    @property
    def firm(self) -> bool:
        """Whether the groups are ones to set thresholds by: a group that is not alike, and was not cut, is none."""
        return self.same and self.doubt is None


@dataclass(frozen=True)
class Suggestion:
    """What :func:`coterie.suggest` says of a run.

    run, method, scenario, seed: which. start: the model that was probed from, in words; round: how many it was trained for.
    finding: the groups. advice: for each method, what it compares by default first. caveats: why to trust this less, one
    sentence each. left_out: client -> why it could not be asked. exchanges: how many everybody was asked for.
    """

    run: str
    method: str
    scenario: str
    seed: int
    start: str
    round: int
    finding: Finding
    advice: tuple[Advice, ...]
    caveats: tuple[str, ...]
    left_out: Mapping[Client, str]
    exchanges: int

    def best(self, method: str) -> Advice:
        """The advice for a method to follow: what it compares by default where that is clear, else that of the widest margin.

        Raises ``KeyError`` for a method that nothing is said about.
        """
        own = [one for one in self.advice if one.method == method]
        if not own:
            raise KeyError(method)
        return own[0] if own[0].sure == CLEAR else max(own, key=lambda one: one.margin)


def sureness(margin: float, firm: bool) -> str:
    """``none`` where no value is right, ``clear`` from a margin of :data:`ROOM` if the finding is ``firm``, else ``narrow``."""
    if not margin > 1:
        return NONE
    return CLEAR if margin >= ROOM and firm else NARROW


def labels(groups: Groups) -> np.ndarray:
    """Of the clients of ``groups``, in their order, ``(n,)``."""
    return np.array([number for _, number in sorted((client, i) for i, group in enumerate(groups) for client in group)])


def without(method: str, compared: str, text: str, ari: float = 0.0) -> Advice:
    """The advice where nothing is right, and why."""
    return Advice(method, compared, {}, (), 0.0, NONE, ari, text)


def ratio(low: float, high: float) -> float:
    """``high / low``; infinite where nothing is below or nothing above."""
    return high / low if low > 0 else math.inf


def middle(low: float, high: float) -> float:
    """As far from one end as from the other, as ratios; where one is zero or infinite, :data:`AWAY` from the other.

    >>> middle(1.0, 4.0), middle(2.0, math.inf), middle(0.0, 3.0)
    (2.0, 3.0, 2.0)
    """
    if math.isinf(high):
        return AWAY * low if low > 0 else 1.0  # neither end: any will do
    return math.sqrt(low * high) if low > 0 else high / AWAY


def shortest(value: float, low: float, high: float) -> float:
    """``value`` in so few digits, two at least, that it moves by no more than a fifth of its way to the nearer end.

    >>> shortest(1.6449, 1.137, 2.382), shortest(0.99052, 0.9899, 0.9911)
    (1.6, 0.9905)
    """
    room = min(value - low, high - value) / 5
    return next((short for digits in range(2, 17) if abs((short := float(f"{value:.{digits}g}")) - value) <= room), value)


# ----------------------------------------------------------------------------------------------------
# Where to cut a dendrogram so that it gives the groups found: thresholds for FL+HC and ACFL.


@dataclass(frozen=True)
class Cut:
    """The thresholds that cut a dendrogram into given groups: above ``low``, the highest merge inside one, and up to ``high``,
    the lowest across; ``ari``: adjusted Rand index of the cut that is most like them, 1 where it gives them. Without such a
    threshold, low is not below high."""

    low: float
    high: float
    ari: float

    def room(self) -> bool:
        """Whether there is such a threshold."""
        return self.low < self.high


def cut_of(apart: np.ndarray, linkage: str, labels: np.ndarray) -> Cut:
    """The thresholds that cut the dendrogram of distances ``(n, n)`` into the groups ``labels`` ``(n,)``.

    >>> cut_of(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single", np.array([0, 0, 1]))
    Cut(low=1.0, high=4.0, ari=1.0)
    """
    tree = dendrogram(apart, linkage)
    n, groups = len(labels), len(set(labels.tolist()))
    if same_partition(cut_dendrogram(tree, groups=groups), labels):
        heights = [0.0, *tree[:, 2].tolist(), math.inf]
        return Cut(heights[n - groups], heights[n - groups + 1], 1.0)
    return Cut(math.inf, 0.0, max(adjusted_rand(cut_dendrogram(tree, groups=k), labels) for k in range(1, n + 1)))


def common(cuts: Iterable[Cut]) -> Cut:
    """The thresholds that are right in all of several dendrograms of the same clients."""
    several = list(cuts)
    return Cut(max(c.low for c in several), min(c.high for c in several), min(c.ari for c in several))


@dataclass(frozen=True)
class Geometry:
    """What a method clusters by. method: its name. settings: that make it so, beside the threshold. compared: the same, in
    words. apart: distances ``(n, n)`` of each draw. similarity: the threshold is the cosine similarity 1 - distance."""

    method: str
    settings: Mapping[str, Any]
    compared: str
    linkage: str
    apart: Sequence[np.ndarray]
    similarity: bool = False

    def advice(self, labels: np.ndarray, firm: bool) -> Advice:
        """The threshold that gives the groups ``labels`` ``(n,)`` in every draw; ``firm``: as :func:`.results.sureness`."""
        cut = common(cut_of(apart, self.linkage, labels) for apart in self.apart)
        if not cut.room():
            why = "its tree does not hold them" if cut.ari < 1 else "none is right in both draws"
            return without(self.method, self.compared, f"no threshold gives these groups: {why}", cut.ari)
        margin = ratio(cut.low, cut.high)
        found = _similarities(cut) if self.similarity else _distances(cut)
        across = "nothing across" if math.isinf(cut.high) else f"lowest merge across {cut.high:.3g}"
        what = "distance 1 - cos, " if self.similarity else ""
        text = f"{what}{self.linkage} linkage: highest merge inside a group {cut.low:.3g}, {across}"
        settings = {**self.settings, "threshold": found.value}
        return Advice(self.method, self.compared, settings, (found,), margin, sureness(margin, firm), 1.0, text)


def _distances(cut: Cut) -> Range:
    value = shortest(middle(cut.low, cut.high), cut.low, cut.high)
    return Range("threshold", cut.low, cut.high, value, ratio(cut.low, cut.high))


def _similarities(cut: Cut) -> Range:
    """As similarities, that merge while they are above: the ends change places."""
    low, high = max(1 - cut.high, -1.0), 1 - cut.low
    value = max(1 - middle(cut.low, cut.high), -1.0)
    return Range("threshold", low, high, -shortest(-value, -high, -low), ratio(cut.low, cut.high))


# ----------------------------------------------------------------------------------------------------
# A run's clients, asked for exchanges of which the run keeps nothing; and the model that they are asked to train from.


FAR = 10**9
"""Exchanges asked for here are numbered from this, where no run comes to: their draws are none of its own."""


@dataclass(frozen=True)
class StartingPoint:
    """model ``(d,)``: what is probed from. round: how many it was trained for. words: which it is. shared: all clients have, or
    had, it."""

    model: Tensor
    round: int
    words: str
    shared: bool


def stored(run: Run) -> Position:
    """Where a run stands. Raises :class:`~coterie.settings.UserError` if it has completed no round, or is damaged."""
    found = run.record.stored(Position, fallback=False)
    if found is None:
        raise UserError(f"{run.folder} has no completed round yet; coterie resume {run.folder} goes on with it")
    return found[1]


def start_of(assignment: Assignment, position: Position, lines: list[Line]) -> StartingPoint:
    """The model that serves all; else the last that all had before they were parted; else the mean of those that serve."""
    paths = [assignment.path.get(client, (row,)) for client, row in assignment.row.items()]
    shared = [row for row in paths[0] if all(row in path for path in paths)]
    if shared and not position.kept:
        model = assignment.models[shared[-1]]
        if all(row == shared[-1] for row in assignment.row.values()):
            return StartingPoint(model, position.round, "the model that serves all", True)
        apart = next((line["round"] for line in lines if len(line["groups"]) > 1), position.round + 1)
        return StartingPoint(model, apart - 1, "the last model that all had in common", True)
    each = {(row, client if client in position.kept else None) for client, row in assignment.row.items()}
    total = sum(own_layers(assignment.models[row], None if c is None else position.kept[c]) for row, c in each)
    assert isinstance(total, Tensor)
    return StartingPoint(total / len(each), position.round, f"the mean of the {len(each)} models that serve", False)


class ProbedClients:
    """Those who are there where a run stands. fleet: trains them. parameters: the columns that similarity sees. seed: of the
    run. told: is called after each exchange."""

    def __init__(
        self, fleet: ClientPool, parameters: slice, position: Position, seed: int, told: Callable[[], None] | None = None
    ) -> None:
        self.told = told
        self.fleet, self.world, self.parameters, self.seed = fleet, fleet.world, parameters, seed
        self.there = rounds.present(fleet.world.attendance, position)
        self.left_out: Mapping[Client, str] = {}
        self.asked = 0

    def halves(self, start: StartingPoint) -> Evidence:
        """One probe: updates of both halves of everybody's data, in as many steps each, as split-half asks for.

        Who cannot be halved is left out from then on. Raises :class:`~coterie.settings.UserError` if fewer than two can be.
        """
        sizes = [self.fleet.wire.examples(len(self.world.clients[client].train)) for client in self.there]
        task = Task(offered=(0,), halves=True, training=of_equal_steps(self.world.training, sizes))
        tasks = dict.fromkeys(self.there, task)
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="mean", columns=self.parameters), start.round)
        evidence = evidence_of(replies)
        if evidence is None:
            client, why = min(replies.refused.items(), default=(None, ""))
            refused = f"; client {client} was refused: {why}" if why else ""
            raise UserError(f"a probe needs two clients with training examples enough for two halves{refused}")
        few = [client for client in replies.clients if client not in evidence.clients]
        self.leave_out({**replies.refused, **dict.fromkeys(few, "too few training examples for two halves")})
        return evidence

    def leave_out(self, reasons: Mapping[Client, str]) -> None:
        """Ask these no more: client -> why."""
        self.left_out = {**self.left_out, **reasons}
        self.there = tuple(client for client in self.there if client not in reasons)

    def updates(self, start: StartingPoint, epochs: int | None = None) -> Replies:
        """Every update of a round from ``start``, or of so many epochs. Raises :class:`~coterie.settings.UserError` if one is
        refused."""
        tasks = dict.fromkeys(self.there, Task(offered=(0,), epochs=epochs))
        replies = self._ask(Plan(models=start.model[None], tasks=tasks, need="rows"), start.round)
        if replies.refused:
            client, why = next(iter(replies.refused.items()))
            raise UserError(f"the probe came to nothing: client {client} was refused: {why}")
        assert replies.updates is not None
        return replace(replies, updates=replies.updates.clone())  # the fleet writes the next replies there

    def _ask(self, plan: Plan, round: int) -> Replies:
        self.fleet.wire.check(plan, "suggest")
        self.asked += 1
        position = Position(round=round, exchange=FAR + self.asked, state=None)
        replies, _ = exchange(self.fleet, plan, position, self.seed, Clock())
        if self.told:
            self.told()
        return replies


# ----------------------------------------------------------------------------------------------------
# CFL's three criteria, from a probe: what they would see in each group that has to be split, and in each that must not.
#
# CFL looks at a group where its training has come to rest, so that its updates sum to zero. A probe is seldom made just there.
# So the members' mean is taken off their updates, as it is at rest if all have the same curvature, and CFL's own criteria are
# asked of what is left (:meth:`coterie.methods.CFL.listen`).


LOWER = {"eps2": 1.4, "gamma_max": 1.15}
"""How far below what the least cut needs these settings are put, where the middle is not lower. The greatest norm so far, in
which eps2 is told, grows as a run goes on, while the norms of clients who agree shrink; and groups are never wholly at rest,
which lowers the bound on gamma. Chosen on digits, as docs/suggest.md tells."""

LOWEST = 1.25
"""The same at most where the bound on gamma is lower yet in the updates as they are, away from rest."""


@dataclass(frozen=True)
class Sight:
    """What CFL would see of a group at rest. clients: of it. parts: the sides of its cut. floor: what noise alone leaves of the
    norm of the mean, and norm: the greatest of a client, the first as a share of the second, the second as one of the greatest
    so far. bound: what gamma may be up to."""

    clients: tuple[Client, ...]
    parts: Groups
    floor: float
    norm: float
    bound: float


@dataclass(frozen=True)
class Probe:
    """One draw. halves ``(2n, 2n)``: the Gram matrix of halves. now, first: replies to a round of training from the model
    probed, and from the first model of all. parameters: the columns compared."""

    halves: np.ndarray
    now: Replies
    first: Replies
    parameters: int


@dataclass(frozen=True)
class ProbeCourse:
    """How CFL would go from one group to those found. splits: what it would see of each group it has to cut, in turn; kept: of
    each that must stay; groups: where it comes to. start, moving: the norm of the mean update, as a share of the greatest
    client's, at the first model of all and at the model probed. bound: what gamma may be up to in all updates as they are."""

    splits: tuple[Sight, ...]
    kept: tuple[Sight, ...]
    groups: Groups
    start: float
    moving: float
    bound: float


def course(probe: Probe, groups: Groups) -> ProbeCourse:
    """CFL's cuts, from all clients to ``groups``; one that goes through a group is not made."""
    first, now = (heard(replies, probe.parameters) for replies in (probe.first, probe.now))
    peak = max(first.client_norm, now.client_norm)
    splits, kept, reached = [], [], []
    waiting = [probe.now.clients]
    while waiting:
        clients = waiting.pop()
        inside = [group for group in groups if set(group) <= set(clients)]
        seen = sight(probe, clients, peak) if len(clients) > 1 else None
        if seen and len(inside) > 1:
            splits.append(seen)
        if seen and len(inside) > 1 and all(any(set(group) <= set(part) for part in seen.parts) for group in inside):
            waiting += seen.parts
            continue
        reached.append(clients)
        if seen and len(inside) == 1:
            kept.append(seen)
    return ProbeCourse(
        tuple(splits), tuple(kept), tuple(sorted(reached)),
        start=first.mean_norm / first.client_norm, moving=now.mean_norm / now.client_norm,
        bound=gamma_bound(now.alpha),
    )  # fmt: skip


def sight(probe: Probe, clients: tuple[Client, ...], peak: float) -> Sight:
    """What CFL would see of ``clients``, two or more, at rest; ``peak``: the greatest norm so far."""
    own = probe.now.of(clients)
    assert own.updates is not None
    at_rest = heard(replace(own, updates=own.updates - own.updates.mean(0)), probe.parameters)
    at = probe.now.positions(clients)
    greatest = float(np.sqrt(np.diagonal(centred(halves(probe.halves, at).mean)).max()))
    noise = float(np.sqrt(noise_levels(probe.halves, at).sum())) / len(at)
    floor = noise / greatest if greatest > 0 else 0.0
    return Sight(clients, at_rest.parts(), floor, at_rest.client_norm / peak, gamma_bound(at_rest.alpha))


def heard(replies: Replies, parameters: int) -> GroupUpdates:
    """What CFL would hear if all who replied were one group."""
    assert replies.updates is not None
    leaf = Leaf(node=0, clients=replies.clients, model=replies.updates[0])
    state = CFLState(round=0, leaves=(leaf,), tree=root(replies.clients, parameters))
    found = CFL().listen(state, 0, replies)
    assert found is not None
    return found


def advise(courses: Sequence[ProbeCourse], groups: Groups, rho: np.ndarray, firm: bool) -> Advice:
    """CFL's settings for which every draw's course ends in ``groups``. rho ``(n,)``: the clients' reliabilities."""
    ari = min(adjusted_rand(labels(one.groups), labels(groups)) for one in courses)
    splits, kept = ([sight for one in courses for sight in getattr(one, name)] for name in ("splits", "kept"))
    if ari < 1:
        return without(CFL.name, "relative scale", "CFL's cut goes through a group", ari)
    ranges = [
        _below("eps2", [s.norm for s in kept], [s.norm for s in splits]),
        _below("gamma_max", [s.bound for s in kept], [s.bound for s in splits], min(one.bound for one in courses)),
    ]
    # A group is cut where all criteria say so, so it is enough if one of these keeps a group whole.
    margin = max(one.margin for one in ranges)
    if splits:
        ranges.insert(0, _eps1([*(s.floor for s in splits), *(one.moving for one in courses)], [one.start for one in courses]))
        margin = min(margin, ranges[0].margin)
    text = _words(courses, splits, kept, rho)
    settings = {one.setting: one.value for one in ranges} if margin > 1 else {}
    return Advice(CFL.name, "relative scale", settings, tuple(ranges), margin, sureness(margin, firm), 1.0, text)


def _eps1(rest: Iterable[float], starts: Iterable[float]) -> Range:
    """Above what the mean has at the model probed, and above what noise alone leaves of it in a group to be cut; below what it
    has at the first model, where nothing is at rest."""
    low, high = max(rest), min(starts)
    return Range("eps1", low, high, shortest(middle(low, high), low, high) if low < high else None, ratio(low, high))


def _below(setting: str, kept: Sequence[float], splits: Sequence[float], seen: float = math.inf) -> Range:
    """Above what groups have that must stay and below what those have that must be cut; 1 where none must be. seen: what
    all together have away from rest, where that is lower."""
    low, high = max(kept, default=0.0), min(splits, default=1.0)
    value = min(middle(low, high), high / LOWER[setting], max(seen, high / LOWEST)) if splits else middle(low, high)
    return Range(setting, low, high, float(f"{value:.2g}"), ratio(low, high))


def _words(courses: Sequence[ProbeCourse], splits: Sequence[Sight], kept: Sequence[Sight], rho: np.ndarray) -> str:
    """What was compared beside the ranges."""
    moving, start = max(one.moving for one in courses), min(one.start for one in courses)
    bounds = [f"{max(s.bound for s in kept):.2f} inside a group"] if kept else []
    bounds += [f"{min(s.bound for s in splits):.2f} at every cut"] if splits else []
    text = f"at rest gamma may be up to {' and '.join(bounds)}"
    if splits:
        gamma = [math.sqrt(1 / one - 1) if one > 0 else math.inf for one in rho.tolist()]
        text += f", and is as measured {float(np.median(gamma)):.2f} in the median, {max(gamma):.2f} at most"
        text += f"; the mean update is {moving:.2f} of the greatest at this model, {start:.2f} at the first"
        text += ": far from rest, where CFL looks, so probe a later round" if moving >= start else ""
    return text


# ----------------------------------------------------------------------------------------------------
# From a probing round, the thresholds that FL+HC, ACFL and CFL would need, and how sure that is.


FLHC_TRIED = (("l2", "ward"), ("l1", "complete"), ("cosine", "average"))
"""Metrics and linkages: FL+HC's default, its paper's advice, and one for which the length of updates does not matter."""

EPOCHS = (ACFL().pretrain_epochs, 10)
"""Of ACFL's first training: its default's; where that leaves no clear threshold, more."""


EXCHANGES = 9
"""A suggestion takes so many at most; the last two only where ACFL's first epochs leave no clear threshold."""


def suggest(
    run: Path | str, *, data: Path | str | None = None, workers: int | None = None, told: Callable[[], None] | None = None,
    trust_code: bool = False, secret: int | None = None,
) -> Suggestion:  # fmt: skip
    """What FL+HC, ACFL and CFL would have to be set to, to find the groups that the split-half test finds in a run.

    Its clients are asked for a few exchanges, from the model of its newest checkpoint and from its first; nothing of the run is
    changed, and asking again gives the same.

    Args:
        run: A run directory, of any method, with a completed round.
        data: Folder of the data set's files, where it is no longer the run's.
        workers: Processes that train; changes no result.
        told: Is called after each exchange, of which there are at most ``EXCHANGES``.
        trust_code: Lets a model be imported that the run directory names as ``package.module:Name``.
        secret: The boundary's, where the run had one; else the environment's COTERIE_SECRET.

    Raises:
        UserError: It is no run directory, holds several runs, is of a federation, is damaged, or has no completed round; the
            data are not what they were; fewer than two clients can be halved; or code or a secret is needed and was not given.
    """
    one = _only(run, trust_code, secret)
    one.experiment.check_secret()
    position = stored(one)
    federation, fleet = _meet(one, data, workers)
    with from_stored(one.record.checkpoints.path(position.round)):
        assignment: Assignment = one.method.assignment(position.state)
        start = start_of(assignment, position, one.record.lines())
        if strangers := set(position.members) - set(fleet.world.clients):
            raise ValueError(f"there is no client {min(strangers)}")
        if start.model.shape != (size := fleet.wire.layout.size,):
            raise ValueError(f"a model has shape {tuple(start.model.shape)}, and not ({size},)")
    with fleet:
        asked = _Asked(one, ProbedClients(fleet, federation.parameters, position, one.seed, told), federation, start)
        finding, probes = asked.found()
        advice = tuple(asked.advice(finding, probes))
    return Suggestion(
        run=str(run), method=one.method.name, scenario=one.experiment.scenario, seed=one.seed, start=start.words,
        round=start.round, finding=finding, advice=advice, caveats=tuple(_caveats(start, finding, assignment.groups)),
        left_out=asked.clients.left_out, exchanges=asked.clients.asked,
    )  # fmt: skip


def _only(folder: Path | str, trust_code: bool, secret: int | None) -> Run:
    """The run in ``folder``, which must be the only one."""
    runs = reopen(folder, trust_code=trust_code, secret=secret)
    if len(runs) > 1:
        raise UserError(f"{folder} holds {len(runs)} runs, and a suggestion is for one: name it, as {runs[0].folder}")
    one = runs[0]
    if one.record.begun and "data" not in one.record.description()["world"]:
        raise UserError(
            f"{folder} is of a federation, whose clients are elsewhere and cannot be asked for a probe here; "
            f"there, method {SplitHalf.name} probes by itself and needs no thresholds"
        )
    return one


def _meet(run: Run, data: Path | str | None, workers: int | None) -> tuple[Federation, ClientPool]:
    """What a method is told of the run's clients, and the processes that train them on the data they had."""
    experiment = replace(run.experiment, data=data_folder(data or run.experiment.data))
    world = experiment.world(run.seed)
    facts = world_facts(world)
    if any(facts.get(name) != known for name, known in run.record.description()["world"].items()):
        raise UserError(f"{run.folder} cannot be probed: the scenario's clients or data are not what they were")
    hardware = experiment.hardware(workers)
    hardware.check(world)
    wire, federation = setup(run.method, world, run.seed, experiment.boundary)
    return federation, ClientPool(world, wire, hardware)


def _found(first: Evidence, second: Evidence, clients: tuple[Client, ...]) -> Finding:
    """The groups of ``clients``, who took part in both probes."""
    level, probes = SplitHalf().level, [first.of(clients), second.of(clients)]
    groups = confirmed(level, *probes)
    decided = tuple(sorted(client for group in groups for client in group))
    found = [congruent_groups(one.products.numpy(), level) for one in probes]
    one, other = (as_groups([clients[i] for i in group] for group in each.groups) for each in found)
    return Finding(
        clients=decided, level=level, p=together(*probes), groups=groups, alone=(one, other),
        agreement=adjusted_rand(*(labels_of(each.groups) for each in found)),
        alike=tuple(together(first.of(group), second.of(group)) for group in groups),
        reliability=tuple(np.mean([reliability(each.of(decided).products.numpy()) for each in probes], axis=0).tolist()),
    )  # fmt: skip


@dataclass
class _Asked:
    """A run's ``clients``, who are asked for all that a suggestion rests on."""

    run: Run
    clients: ProbedClients
    federation: Federation
    start: StartingPoint

    def found(self) -> tuple[Finding, list[Evidence]]:
        """What two probes say, and they themselves, of those on whom they agree; the others are asked no more."""
        first, second = self.clients.halves(self.start), self.clients.halves(self.start)
        finding = _found(first, second, self.clients.there)
        undecided = set(self.clients.there) - set(finding.clients)
        self.clients.leave_out(dict.fromkeys(sorted(undecided), "the two probes see it in different groups"))
        return finding, [first.of(finding.clients), second.of(finding.clients)]

    def advice(self, finding: Finding, probes: Sequence[Evidence]) -> Iterator[Advice]:
        """For every method, its default first."""
        found, now = labels(finding.groups), [self.clients.updates(self.start) for _ in probes]
        yield from self._flhc(now, found, finding.firm)
        yield from self._acfl(found, finding.firm)
        first, parameters = self.clients.updates(self._first), self.federation.parameters.stop
        seen = [Probe(one.products.numpy(), updates, first, parameters) for one, updates in zip(probes, now, strict=True)]
        courses = [course(probe, finding.groups) for probe in seen]
        yield advise(courses, finding.groups, np.array(finding.reliability), finding.firm)

    @property
    def _first(self) -> StartingPoint:
        return StartingPoint(self.federation.draw(0), 0, "the first model", True)

    def _flhc(self, now: Sequence[Replies], labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        fraction = getattr(self.run.method, "fraction", 1.0)  # on which the model depends that is clustered from
        for metric, linkage in FLHC_TRIED:
            compared = f"{metric}, {linkage}"
            settings = {"warmup": self.start.round, "fraction": fraction, "metric": metric, "linkage": linkage}
            try:
                self.run.experiment.boundary.check_method(FLHC(metric=metric, linkage=linkage))
            except SettingError as error:
                yield without(FLHC.name, compared, str(error))
                continue
            rows = [replies.updates[:, self.federation.parameters] for replies in now if replies.updates is not None]
            apart = [manhattan(row) if metric == "l1" else distances(gram(row), metric=metric) for row in rows]
            yield Geometry(FLHC.name, settings, compared, linkage, apart).advice(labels, firm)

    def _acfl(self, labels: np.ndarray, firm: bool) -> Iterator[Advice]:
        """By weights and by updates, after as many epochs as it takes."""
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
        """How far apart the dense layers are after ``epochs`` from the first model."""
        self.run.experiment.boundary.check_method(ACFL())
        compared = layers_compared(self.federation, (), needed=True)
        spans = {layer: self.federation.columns[layer] for layer in compared}
        drawn = [self.clients.updates(self._first, epochs).updates for _ in range(2)]
        out = []
        for similarity in ("weights", "updates"):
            rule = Rule(
                threshold=None, groups=1, linkage=ACFL().linkage, updates=similarity == "updates", columns=spans,
                compared=compared,
            )  # fmt: skip
            apart = [1 - cosine(gram(rule.vectors(self._first.model, rows))) for rows in drawn if rows is not None]
            settings: dict[str, Any] = {"pretrain_epochs": epochs, "similarity": similarity}
            out.append(Geometry(ACFL.name, settings, f"{similarity}, {epochs} epochs", rule.linkage, apart, similarity=True))
        return out


def _caveats(start: StartingPoint, finding: Finding, groups: Groups) -> Iterator[str]:
    """Why to trust the finding less; ``groups``: those of the run."""
    if len(groups) > 1 and groups != finding.groups:
        yield f"the run has {len(groups)} groups, not these; a run of fedavg, of more rounds, may tell which are right"
    if not finding.same:
        one, other = map(len, finding.alone)
        yield f"each probe alone finds other groups, {one} and {other}: their adjusted Rand index is {finding.agreement:.2f}"
    if finding.doubt is not None:
        group = finding.groups[finding.alike.index(finding.doubt)]
        if finding.doubt < finding.level:
            yield f"{len(group)} clients are left in one group, and not alike (p {finding.doubt:.2g}): nothing would part them"
        else:
            yield f"{len(group)} clients are one group with p {finding.doubt:.2g}, which is small: more data may show several"
    if not start.shared:
        yield f"clients were probed from {start.words}, from which no method's run begins: thresholds there may differ"
    single = sum(len(group) == 1 for group in finding.groups)
    if 2 * single > len(finding.groups) > 1:
        yield f"{single} of {len(finding.groups)} groups are single clients: they may differ by degrees, and be no groups"
