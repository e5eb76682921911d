"""Split-half: federated averaging that splits a group where two halves of every client's data say that it is two.

Coterie's own, after an idea that is old in statistics: what two halves of a client's data agree on is signal, what they
differ in is noise. Every ``probe_every`` rounds a group *probes*: each member trains twice, on two disjoint random halves,
and sends both updates. Their mean serves as the round's update, so a round is not lost. The server takes their Gram matrix
and tests whether the members are congruent (:func:`coterie.clustering.congruence`); the only threshold is ``level``, the
probability of splitting clients who are alike.

- A group whose probe finds it incongruent probes again in the next round. It splits if both together are below ``level``
  (:func:`coterie.clustering.repeated_p`), and goes on splitting as long as its parts are incongruent in both
  (:func:`.split_half_groups.confirmed`). Clients on whose side the two disagree walk down from there like newcomers. A group
  whose probes show nothing waits longer for the next, twice as long each time, up to four times ``probe_every``.
- Newcomers, and members that were silent when their group split, walk down the parameter tree with halves
  (:mod:`.split_half_walk`).
- ``review_every`` rounds after the groups last changed, everybody trains on halves from one model, the median of all, in an
  exchange of its own. Two groups that are one by the evidence merge, and a client that belongs to another group moves. A
  review that changes nothing is followed by one twice as many rounds later.

All halves make the same number of steps, whoever's they are: unequal work makes updates differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import congruence, congruent_groups, contrast, gram, repeated_p, signal_cosine, signal_cut, signal_gram
from coterie.clustering.congruence import Congruence, Contrast, Excess, Noise, excess, noise_of
from coterie.clustering.halves import Halves, halves
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    as_groups,
    state,
    weights,
)  # fmt: skip
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import Leaf, Node, Tree, join, ordered, root
from coterie.methods._half_steps import of_equal_steps
from coterie.settings import check, setting

# ----------------------------------------------------------------------------------------------------
# What split-half's notes tell of a probe besides its p-value: cosines of the clients' signals, distances to the parts, and
# how near the nearest groups of a review are to being one.


def with_cosines(note: Note, clients: tuple[Client, ...], products: np.ndarray) -> Note:
    """The note with the cosines of the clients' signals, without noise, from the Gram matrix ``(2n, 2n)`` of their halves."""
    return replace(note, heard=clients, similarity={"all": torch.from_numpy(signal_cosine(products)).float()})


def distances(clients: Sequence[Client], products: np.ndarray, parts: Groups) -> dict[str, dict[Client, float]]:
    """``distance j`` -> client -> the squared distance of its signal from the mean signal of part j, without the bias of
    noise, so it may be below zero; a client's own share in that mean is left out. Of parts that are the client alone, none."""
    signal, place = signal_gram(products), {client: i for i, client in enumerate(clients)}
    own = np.diagonal(signal)
    found: dict[str, dict[Client, float]] = {}
    for j, part in enumerate(parts):
        at = [place[client] for client in part if client in place]
        inside = np.zeros(len(clients), dtype=bool)
        inside[at] = True
        rows, total = signal[:, at].sum(axis=1), float(signal[np.ix_(at, at)].sum())
        count = len(at) - inside
        rest = np.where(inside, rows - own, rows), np.where(inside, total - 2 * rows + own, total)
        known = count > 0
        many = np.where(known, count, 1)
        apart = own - 2 * rest[0] / many + rest[1] / many**2
        found[f"distance {j}"] = {client: float(apart[i]) for i, client in enumerate(clients) if known[i]}
    return found


def nearest(pairs: Iterable[tuple[Leaf, Leaf, Contrast]]) -> Mapping[str, float]:
    """Of the pairs of groups that a review has compared, the numbers of that most likely to be one; none of no pairs."""
    one, other, found = max(pairs, key=lambda pair: pair[2].p, default=(None, None, None))
    if one is None or other is None or found is None:
        return {}
    return {"node": float(one.node), "other_node": float(other.node), "p": found.p, "distance": found.distance}


# ----------------------------------------------------------------------------------------------------
# What split-half makes of its probes: whether a group is two, and why, in words.


@state("split-half.evidence")
class Evidence:
    """One probe of a group: the Gram matrix ``(2n, 2n)`` of the halves of the ``clients`` that answered."""

    clients: tuple[Client, ...]
    products: Tensor

    def of(self, clients: Sequence[Client]) -> Evidence:
        """The same of some of them."""
        place = {client: i for i, client in enumerate(self.clients)}
        at = [half * len(self.clients) + place[client] for half in (0, 1) for client in clients]
        return Evidence(clients=tuple(clients), products=self.products[at][:, at])


@dataclass(frozen=True)
class Found:
    """What a probe found; ``note.kind`` is ``keep``, ``hold`` (probe again) or ``split``."""

    note: Note
    evidence: Evidence


def enough(asked: Sequence[Client], heard: Sequence[Client]) -> bool:
    """Whether half of them answered: fewer do not speak for a group."""
    return 2 * len(set(asked) & set(heard)) >= len(asked)


def evidence_of(own: Replies) -> Evidence | None:
    """The halves of those who sent them; None of fewer than two."""
    seen = own.of(own.halved)
    if seen.halves is None or len(seen.clients) < 2:
        return None
    return Evidence(clients=seen.clients, products=torch.from_numpy(seen.halves))


def looked_at(level: float, leaf: Leaf, own: Replies, before: Evidence | None) -> Found | None:
    """What a group's probe says, alone or with the one ``before`` it; None where too few answered."""
    now = evidence_of(own)
    if now is None:
        return None
    if before is not None and 2 * len(now.clients) < len(before.clients):
        text = f"only {len(now.clients)} clients answered the second probe, and {len(before.clients)} the first; asked again"
        return Found(Note(kind="hold", clients=leaf.clients, text=text), before)
    test = congruence(now.products.numpy())
    told, rule = f"p {test.p:.2g} of {test.clients} clients alike", f"below level {level:g}"
    if before is None:
        p = repeated_p(test.p, test.p, test.clients)
        kind, says, verdict = ("hold", "incongruent", rule) if p < level else ("keep", "congruent", f"not {rule}")
        text = f"{says}: {told}; coming twice it would be {p:.2g}, {verdict}"
        return Found(_group_note(leaf, kind, text, test, p_twice=p), now)
    p = together(before, now)
    told += f", {p:.2g} with the probe before"
    if not p < level:
        return Found(_group_note(leaf, "keep", f"congruent: {told}, not {rule}", test, p_together=p), now)
    parts = confirmed(level, before, now)
    if len(parts) < 2:
        text = f"incongruent: {told}, {rule}; but the two probes do not see the same two sides"
        return Found(_group_note(leaf, "keep", text, test, p_together=p), now)
    text, undecided = f"incongruent: {told}, {rule}", len(now.clients) - sum(map(len, parts))
    if undecided:
        text += f"; {undecided} clients, on which they disagree, walk down"
    return Found(_told(replace(_group_note(leaf, "split", text, test, p_together=p), parts=parts), before, now), now)


def _group_note(leaf: Leaf, kind: str, text: str, test: Congruence, **more: float) -> Note:
    numbers = {"node": float(leaf.node), "heard": float(test.clients), "p": test.p, "z": test.z, "spread": test.spread}
    numbers |= {"dimension": test.dimension, **more}
    return Note(kind=kind, clients=leaf.clients, text=text, numbers={k: v for k, v in numbers.items() if np.isfinite(v)})


def _told(note: Note, first: Evidence, second: Evidence) -> Note:
    """A split with what its parts rest on: both probes' mean, as far as that speaks for the group; else the second's."""
    both = tuple(sorted(set(first.clients) & set(second.clients)))
    one = enough(second.clients, both)
    clients = both if one else second.clients
    products = second.of(clients).products.numpy()
    products = (products + first.of(clients).products.numpy()) / 2 if one else products
    values = distances(clients, products, note.parts)
    return replace(with_cosines(note, clients, products), values=values)


def together(first: Evidence, second: Evidence) -> float:
    """The p-value of two probes of a group that its clients are congruent; not all need to be in both."""
    one, other = (congruence(evidence.products.numpy()).p for evidence in (first, second))
    return repeated_p(one, other, clients=min(len(first.clients), len(second.clients)))


def confirmed(level: float, first: Evidence, second: Evidence) -> Groups:
    """The groups that two probes confirm: both find the whole incongruent, and the two sides of one cut apart; and so on
    with the sides.

    Clients who are not in both probes, or on different sides, are in none of the groups. Where fewer than half of those of
    the second probe are in the first, the groups are those of the second alone.
    """
    both = sorted(set(first.clients) & set(second.clients))
    if not enough(second.clients, both):
        found = congruent_groups(second.products.numpy(), level).groups
        return as_groups([second.clients[i] for i in group] for group in found)
    waiting = [tuple(both)]
    groups: list[tuple[Client, ...]] = []
    while waiting:
        group = waiting.pop()
        sides = _sides(level, group, first, second)
        if sides:
            waiting += sides
        else:
            groups.append(group)
    return as_groups(groups)


def _sides(level: float, group: tuple[Client, ...], first: Evidence, second: Evidence) -> list[tuple[Client, ...]]:
    """The two sides of a group, or none where it stays whole.

    The cut is that of both probes' mean: where several groups are equally far apart many cuts are as good as each other,
    and each probe alone would take another. Both have to say that the sides differ, and who is on which.
    """
    if len(group) < 2 or not together(first.of(group), second.of(group)) < level:
        return []
    matrices = [evidence.of(group).products.numpy() for evidence in (first, second)]
    left, right = signal_cut(signal_gram(matrices[0]) + signal_gram(matrices[1]))
    one, other = (contrast(matrix, left, right).p for matrix in matrices)
    if not repeated_p(one, other, len(group)) < level:
        return []
    for alone in (False, True):
        nearer = [_nearer(signal_gram(matrix), left, right, alone) for matrix in matrices]
        sides = [
            tuple(group[i] for i in side if all(seen[i] == sign for seen in nearer)) for side, sign in ((left, 1), (right, -1))
        ]
        if all(sides):
            return sides
    return []


def _nearer(signal: np.ndarray, left: Sequence[int], right: Sequence[int], alone: bool) -> np.ndarray:
    """1 for clients whose signal is nearer to the mean of the left side than to that of the right, -1 for the others.

    Their own part in these means is left out, lest chance keep a client where chance has put it; but where clients all
    differ, everybody is then nearer to the other side. alone: left in.
    """
    out = np.zeros(len(signal))
    for i in range(len(signal)):
        away = []
        for side in (left, right):
            rest = [j for j in side if alone or j != i]
            # Of a side that is this client alone nothing is left, and it is at distance zero.
            away.append(signal[np.ix_(rest, rest)].mean() - 2 * signal[i, rest].mean() if rest else -signal[i, i])
        out[i] = 1 if away[0] < away[1] else -1
    return out


# ----------------------------------------------------------------------------------------------------
# How newcomers find their group under split-half: down the parameter tree, with halves, by the distance to every branch.
#
# Coterie's own, after CFL's Algorithm 4, which follows the edge with the one update of greatest cosine. Here a walker trains
# on halves from the model of the node where it stands, as that node's clients did in the probe that split it. So its update
# can be held against theirs: for every branch, the squared distance of the mean signals, without the bias of either's noise,
# and the probability of such a distance if the walker is of that branch. It goes on to the nearest branch; where it differs
# from all of them it becomes a leaf of its own.


@state("split-half.probed")
class Probed:
    """How the members of a node were probed when it was split. steps: of each half. levels: client -> noise of its whole
    update, ``‖D‖²``. share, df: how noise is spread over directions, as in :class:`~coterie.clustering.congruence.Noise`."""

    steps: int
    levels: Mapping[Client, float]
    share: float
    df: float


def probed(steps: int, evidence: Evidence, parts: Groups) -> Probed:
    """What a split keeps of its probe. The noise's directions are seen within the parts, whose members are alike: what sets
    the parts apart has directions of its own."""
    h = halves(evidence.products.numpy())
    within = [noise_of(halves(evidence.of(part).products.numpy())) for part in parts if len(part) > 1]
    seen = [noise for noise in within if np.isfinite(noise.df)] or [noise_of(h)]
    levels = dict(zip(evidence.clients, map(float, np.diagonal(h.noise)), strict=True))
    share, df = max(noise.share for noise in seen), sum(noise.df for noise in seen)
    return Probed(steps=steps, levels=levels, share=share, df=df)


@dataclass(frozen=True)
class Step:
    """Where one walker has come: the tree, its node there, what is known of the split, and why. alone: it grew that node."""

    tree: Tree
    at: int
    probe: Probed
    note: Note
    alone: bool


def step(tree: Tree, at: int, client: Client, probe: Probed, replies: Replies, level: float) -> Step:
    """One level down from node ``at``, by what the walker replied."""
    own = replies.of([client])
    assert own.updates is not None
    update, noise = tree.short(own.updates), _noise(own)
    found = {
        child.id: _apart(update, noise, child, probe)
        for child in tree.children(at)
        if child.updates is not None and set(child.heard) & set(probe.levels)
    }
    nearest = min(found, key=lambda id: (found[id].value, id))
    if alone := noise is not None and all(seen.p < level for seen in found.values()):
        tree, child = tree.grow(at, client, own.updates[0])
        probe = replace(probe, levels={**probe.levels, client: noise})
    else:
        tree, child = tree.place(client, nearest), nearest
    return Step(tree, child, probe, _walk_note(tree, client, at, child, found, noise is not None, alone), alone)


def _noise(own: Replies) -> float | None:
    """Of the walker's whole update; None where it was too small to be halved."""
    seen = None if own.halves is None or np.isnan(own.halves).any() else halves(own.halves)
    return None if seen is None else float(seen.noise[0, 0])


def _apart(update: Tensor, noise: float | None, branch: Node, probe: Probed) -> Excess:
    """How far a walker's signal is from a branch's mean."""
    assert branch.updates is not None
    members = [i for i, client in enumerate(branch.heard) if client in probe.levels]
    levels = [0.0 if noise is None else noise, *(probe.levels[branch.heard[i]] for i in members)]
    products = gram(torch.cat([update, branch.updates[members]]))
    weights = np.array([1.0, *[-1 / len(members)] * len(members)])
    h = Halves(products, np.diag(levels), np.zeros_like(products))
    return excess(h, np.outer(weights, weights), Noise(probe.share, probe.df))


def _walk_note(tree: Tree, client: Client, at: int, child: int, found: Mapping[int, Excess], known: bool, alone: bool) -> Note:
    """A step in words; p only where the walker's noise is known."""
    by = ", ".join(
        f"{seen.value:.3g} to node {id}" + (f" (p {seen.p:.2g})" if known else "") for id, seen in sorted(found.items())
    )
    where = "joins" if tree.is_leaf(child) else "goes on from"
    numbers = {"at": float(at), "node": float(child), **{f"node_{id}": seen.value for id, seen in found.items()}}
    numbers |= {f"p_{id}": seen.p for id, seen in found.items()} if known else {}
    return Note(
        kind="join" if tree.is_leaf(child) else "walk", clients=(client,), numbers=numbers,
        text=f"client {client} at node {at}: squared distance {by}; {where} node {child}"
        + (", on its own, as it differs from all" if alone else ""),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# What split-half remembers from round to round.


CALM = 0.1
"""A probe whose p is above this shows nothing."""


@state("split-half.watch")
class Watch:
    """Of a leaf: the round in which its next probe is due, how many in a row showed nothing, and the last one where it is to
    be confirmed."""

    due: int
    calm: int = 0
    evidence: Evidence | None = None


def forget(watch: Watch, gone: set[Client]) -> Watch:
    """The same without these clients."""
    if watch.evidence is None or not gone & set(watch.evidence.clients):
        return watch
    stay = [client for client in watch.evidence.clients if client not in gone]
    return replace(watch, evidence=watch.evidence.of(stay) if len(stay) > 1 else None)


@state("split-half")
class SplitHalfState:
    """round: completed. leaves, tree, walkers: as in :class:`.cfl_leaves.CFLState`. watched: leaf's node -> its probes.
    probed: inner node -> the probe that split it. examples: client -> how many it has. merged: node of a leaf that was merged
    -> that of the one it became part of. review: the round after which the next review comes, and how many there are from it
    to another. reviewing: the next exchange is a review. notes: of the last exchange."""

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    watched: Mapping[int, Watch] = field(default_factory=dict)
    probed: Mapping[int, Probed] = field(default_factory=dict)
    examples: Mapping[Client, int] = field(default_factory=dict)
    merged: Mapping[int, int] = field(default_factory=dict)
    review: tuple[int, int] = (0, 0)
    reviewing: bool = False
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = ()


def several(state: SplitHalfState) -> bool:
    """Whether there are groups that might be one."""
    return sum(bool(leaf.clients) for leaf in state.leaves) > 1


def members_of(state: SplitHalfState) -> dict[int, tuple[Client, ...]]:
    """Leaf's node -> its clients, of those that have any."""
    return {leaf.node: leaf.clients for leaf in state.leaves if leaf.clients}


# ----------------------------------------------------------------------------------------------------
# What split-half makes of its reviews: which groups are one, who belongs elsewhere, and why, in words.


ALIKE = 0.01
"""Two groups are one, and a client may be of a group, unless p of their being so is below this."""

ITERATIONS = 100
"""In which a geometric median is found."""


def middle(leaves: Iterable[Leaf]) -> Tensor:
    """The model ``(d,)`` from which all are reviewed: the geometric median of the leaves' models, each as often as it has
    clients; where that is no single point, the one nearest to their mean.

    A mean would follow one group whose model has gone astray, as that of adversaries does. By Weiszfeld's iteration; an
    orthonormal map of the models maps the median.
    """
    seen = [leaf for leaf in leaves if leaf.clients]
    models = torch.stack([leaf.model for leaf in seen]).double()
    count = torch.tensor([float(len(leaf.clients)) for leaf in seen], dtype=torch.float64)
    point = count @ models / count.sum()
    for _ in range(ITERATIONS):
        pull = count / (models - point).norm(dim=1).clamp(min=1e-150)
        point = pull @ models / pull.sum()
    return point.to(seen[0].model.dtype)


def reviewed(
    level: float, leaves: Sequence[Leaf], replies: Replies, examples: Mapping[Client, int]
) -> tuple[list[Leaf], dict[int, int], list[Note]]:
    """The leaves after a review, in which all trained from one model; node -> node it was merged into; and why."""
    seen = evidence_of(replies)
    if seen is None:
        return list(leaves), {}, []
    moved, notes = _moved(level, leaves, seen)
    merged: dict[int, int] = {}
    while pair := _closest(moved, seen):
        one, other, note = pair
        merged = {node: one.node if into == other.node else into for node, into in merged.items()} | {other.node: one.node}
        moved = [leaf for leaf in moved if leaf.node not in (one.node, other.node)] + [_joined(one, other, examples)]
        notes.append(note)
    if notes:  # once per review, whatever it changed
        notes[0] = with_cosines(notes[0], seen.clients, seen.products.numpy())
    return moved, merged, notes


def closest(leaves: Sequence[Leaf], replies: Replies) -> Mapping[str, float]:
    """Of the groups after a review that changed nothing, the numbers of the two most likely to be one."""
    seen = evidence_of(replies)
    return nearest(_pairs(leaves, seen)) if seen is not None else {}


def _heard(leaf: Leaf, seen: Evidence) -> list[int]:
    return [i for i, client in enumerate(seen.clients) if client in set(leaf.clients)]


def _moved(level: float, leaves: Sequence[Leaf], seen: Evidence) -> tuple[list[Leaf], list[Note]]:
    """Clients that differ from their own group and not from another one go there."""
    matrix, notes = seen.products.numpy(), []
    there = {leaf.node: _heard(leaf, seen) for leaf in leaves}
    goes: dict[Client, int] = {}
    for leaf in leaves:
        for i in there[leaf.node]:
            rest = [j for j in there[leaf.node] if j != i]
            if not rest:
                continue
            own = contrast(matrix, [i], rest)
            if not own.p < level / len(seen.clients):
                continue
            others = {node: contrast(matrix, [i], at) for node, at in there.items() if node != leaf.node and at}
            best = min(others, key=lambda node: others[node].distance, default=None)
            if best is not None and others[best].p > ALIKE:
                client = seen.clients[i]
                goes[client] = best
                text = f"client {client} is not of its group (p {own.p:.2g}), but of node {best}'s (p {others[best].p:.2g})"
                numbers = {"at": float(leaf.node), "node": float(best), "p": own.p, "p_there": others[best].p}
                numbers |= {"distance": own.distance, "distance_there": others[best].distance}
                notes.append(Note(kind="move", clients=(client,), text=text, numbers=numbers))
    place = {client: leaf.node for leaf in leaves for client in leaf.clients} | goes
    return [replace(leaf, clients=_at(place, leaf.node)) for leaf in leaves], notes


def _at(place: Mapping[Client, int], node: int) -> tuple[Client, ...]:
    return tuple(sorted(client for client, at in place.items() if at == node))


def _closest(leaves: Iterable[Leaf], seen: Evidence) -> tuple[Leaf, Leaf, Note] | None:
    """Of the pairs of groups whose signals do not differ, the nearest. None where there are none."""
    alike = [pair for pair in _pairs(leaves, seen) if pair[2].p > ALIKE]
    if not alike:
        return None
    one, other, found = min(alike, key=lambda pair: pair[2].distance)
    text = f"one group by the evidence: p {found.p:.2g} that they are one, above {ALIKE:g}"
    clients = tuple(sorted((*one.clients, *other.clients)))
    numbers = {"node": float(one.node), "other_node": float(other.node), "p": found.p}
    numbers |= {"distance": found.distance, "error": found.error}
    return one, other, Note(kind="merge", clients=clients, text=text, numbers=numbers)


def _pairs(leaves: Iterable[Leaf], seen: Evidence) -> list[tuple[Leaf, Leaf, Contrast]]:
    """Every two groups of which enough were heard, and how far apart they are."""
    there = [(leaf, at) for leaf in leaves if (at := _heard(leaf, seen)) and enough(leaf.clients, seen.clients)]
    return [
        (one, other, contrast(seen.products.numpy(), at, also))
        for i, (one, at) in enumerate(there) for other, also in there[i + 1 :]
    ]  # fmt: skip


def _joined(one: Leaf, other: Leaf, examples: Mapping[Client, int]) -> Leaf:
    """Both groups as the first, with the mean of their models by examples."""
    n, m = (sum(examples.get(client, 1) for client in leaf.clients) for leaf in (one, other))
    model = (n * one.model + m * other.model) / (n + m)
    return replace(one, clients=tuple(sorted((*one.clients, *other.clients))), model=model)


@dataclass(frozen=True, kw_only=True)
class SplitHalf:
    """Splits groups where two halves of every client's data say so: no threshold but the probability of a false alarm."""

    name: ClassVar[str] = "split-half"

    level: float = setting(1e-4, "probability of splitting a group of equal clients, by two probes (α)", gt=0, lt=1)
    probe_every: int = setting(4, "rounds from one probe of a group to the next; up to four times as many in calm", ge=1)
    first_probe: int = setting(2, "the round of the first probe", ge=2)
    review_every: int = setting(
        8, "rounds from a change of the groups to a review of all; more where reviews change nothing; 0 is never", ge=0
    )
    steps: int | None = setting(
        None, "mini-batch steps of each half; none is half of what a client of median size does in a round", ge=1
    )
    fraction: float = setting(1.0, "share of each group's clients asked in a round, at least one", gt=0, le=1)
    weighting: str = setting("data", "weights of means: by training examples, or uniform", choices=("data", "uniform"))

    def __post_init__(self) -> None:
        check(self)

    @property
    def asks(self) -> tuple[Task, ...]:
        """What a later round asks of clients, and the first may not."""
        return (Task(offered=(0,), halves=True),)

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop)
        watched = {0: Watch(due=self.first_probe)}
        return SplitHalfState(round=0, leaves=(leaf,), tree=tree, watched=watched, training=federation.training)

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        columns, weighting = slice(0, state.tree.parameters), cast(Literal["data", "uniform"], self.weighting)
        probe = Task(offered=(0,), halves=True, training=self._probing(state))
        if state.reviewing:
            present = set(cohort.present)
            members = [c for leaf in state.leaves for c in leaf.clients if c in present]
            tasks = dict.fromkeys(sorted(members), probe)
            return Plan(models=middle(state.leaves)[None], tasks=tasks, need="mean", columns=columns, ends_round=False)
        models, tasks = [leaf.model for leaf in state.leaves], {}
        for row, leaf in enumerate(state.leaves):
            if leaf.clients:
                probes = self.probes(state, leaf)  # everybody: of a few, no group can be told from another
                task = replace(probe, offered=(row,)) if probes else Task(offered=(row,))
                tasks.update(dict.fromkeys(cohort.sample(leaf.clients, 1.0 if probes else self.fraction), task))
        more, walks = _cluster_tree.tasks(state.tree, state.walkers, cohort.present, len(models), halves=True)
        for client, task in walks.items():  # as long as those did who were there when the node was split
            steps = state.probed[state.walkers[client]].steps
            tasks[client] = replace(task, training=replace(state.training, steps=steps))
        return Plan(models=torch.stack([*models, *more]), tasks=tasks, need="rows", columns=columns, weighting=weighting)

    def probes(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Whether a leaf probes in the round that comes."""
        return len(leaf.clients) > 1 and state.round + 1 >= state.watched[leaf.node].due

    def _probing(self, state: SplitHalfState) -> Training:
        """How every half is trained."""
        usual = state.training
        if self.steps is not None:
            return replace(usual, steps=self.steps)
        # Under noise clients do not tell how many examples they have.
        return of_equal_steps(usual, state.examples.values()) or replace(usual, steps=max(1, usual.epochs))

    def step(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        steps = self._probing(state).steps or 1  # as was asked, before this round's sizes were known
        state = replace(state, examples={**state.examples, **counts}, notes=())
        if state.reviewing:
            return self._review(state, replies)
        new = replace(state, leaves=(), round=state.round + 1)
        for leaf in state.leaves:
            own = replies.of(leaf.clients)
            if not own.clients or own.updates is None:
                new = replace(new, leaves=(*new.leaves, leaf))
            elif self.probes(state, leaf):
                new = self._look(new, leaf, own, steps)
            else:
                new = replace(new, leaves=(*new.leaves, self._trained(leaf, own)))
        new = self._walk(replace(new, leaves=ordered(new.leaves)), state.walkers, replies)
        return self._ended(new, state)

    # -- in one step ----------------------------------------------------------------------------------------------------

    def _look(self, new: SplitHalfState, leaf: Leaf, own: Replies, steps: int) -> SplitHalfState:
        """The state after a leaf's probe of so many steps: the leaf, or its parts."""
        watch = new.watched[leaf.node]
        found = looked_at(self.level, leaf, own, watch.evidence)
        if found is None or found.note.kind != "split":
            watch = self._watch(watch, found, new.round)
            leaves, watched = (*new.leaves, self._trained(leaf, own)), {**new.watched, leaf.node: watch}
            notes = new.notes if found is None else (*new.notes, found.note)
            return replace(new, leaves=leaves, watched=watched, notes=notes)
        means = {part: self._mean(own.of(part)) for part in found.note.parts}
        tree, children = _cluster_tree.split(new.tree, leaf, means, own, new.round - 1)
        note = _cluster_tree.placed(found.note, leaf, children)
        late = set(leaf.clients) - {c for part in means for c in part}
        return replace(
            new, tree=tree, leaves=(*new.leaves, *children), notes=(*new.notes, note),
            walkers={**new.walkers, **dict.fromkeys(late, leaf.node)},
            watched={**new.watched, **{child.node: Watch(due=self._turn(new.round)) for child in children}},
            probed={**new.probed, leaf.node: probed(steps, found.evidence, found.note.parts)},
        )  # fmt: skip

    def _watch(self, watch: Watch, found: Found | None, round: int) -> Watch:
        """When a leaf that stays whole probes again: in the next round if what was found is to be confirmed, later the more
        often nothing was."""
        if found is None:
            return replace(watch, due=self._turn(round) if watch.evidence is None else round + 1)
        if found.note.kind == "hold":
            return Watch(due=round + 1, evidence=found.evidence)
        calm = watch.calm + 1 if found.note.numbers["p"] > CALM else 0
        return Watch(due=self._turn(round + self.probe_every * (min(2 ** max(calm - 1, 0), 4) - 1)), calm=calm)

    def _turn(self, round: int) -> int:
        """The first round after this one in which it is time for a probe."""
        return round + 1 + (self.first_probe - round - 1) % self.probe_every if round >= self.first_probe else self.first_probe

    def _mean(self, own: Replies) -> Tensor:
        return own.mean(weights(own, self.weighting))

    def _trained(self, leaf: Leaf, own: Replies) -> Leaf:
        return replace(leaf, model=leaf.model + self._mean(own))

    def _walk(self, state: SplitHalfState, before: Mapping[Client, int], replies: Replies) -> SplitHalfState:
        """Those who walked in this exchange go down one level; leaves that split in it are inner nodes already."""
        for client in replies.of(before).clients:
            went = step(state.tree, before[client], client, state.probed[before[client]], replies, self.level)
            at = state.merged.get(went.at, went.at)  # a leaf that was merged leads to the one it became part of
            state = replace(
                state, tree=went.tree.place(client, at), notes=(*state.notes, went.note),
                probed={**state.probed, before[client]: went.probe},
                walkers={c: node for c, node in state.walkers.items() if c != client},
            )  # fmt: skip
            if went.alone:
                own, model = replies.of([client]), state.tree.nodes[before[client]].model
                assert own.updates is not None
                assert model is not None
                leaf = Leaf(node=at, clients=(), model=model + own.updates[0])
                state = replace(state, leaves=(*state.leaves, leaf), watched={**state.watched, at: Watch(due=state.round)})
            if state.tree.is_leaf(at):
                state = replace(state, leaves=ordered(join(state.leaves, {client: at})))
            else:
                state = replace(state, walkers={**state.walkers, client: at})
        return state

    def _ended(self, new: SplitHalfState, before: SplitHalfState) -> SplitHalfState:
        """The round has ended: if groups have changed the next review is some rounds away, and where one is due it comes
        next."""
        if not self.review_every:
            return new
        if {leaf.node for leaf in new.leaves} != {leaf.node for leaf in before.leaves}:
            return replace(new, review=(new.round + self.review_every, self.review_every))
        return replace(new, reviewing=new.round >= new.review[0] and several(new))

    def _review(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        examples = state.examples if self.weighting == "data" else {}
        leaves, merged, notes = reviewed(self.level, state.leaves, replies, examples)
        tree = state.tree
        for leaf in leaves:
            for client in leaf.clients:
                tree = tree.place(client, leaf.node)
        gone = {node: merged.get(into, into) for node, into in state.merged.items()} | merged
        new = replace(state, leaves=ordered(leaves), tree=tree, merged=gone, reviewing=False)
        changed = [node for node, members in members_of(new).items() if members != members_of(state).get(node)]
        heard = enough([c for leaf in state.leaves for c in leaf.clients], replies.clients)
        if not changed:
            text = "reviewed: nobody moves, no groups are one" if heard else "reviewed, but too few answered"
            everyone = tuple(sorted(c for leaf in leaves for c in leaf.clients))
            notes = [Note(kind="keep", clients=everyone, text=text, numbers=closest(leaves, replies))]
        wait = 2 * state.review[1] if heard and not changed else self.review_every
        again = {node: Watch(due=self._turn(state.round)) for node in changed}
        review = (state.round + wait, wait)
        return replace(new, watched={**state.watched, **again}, review=review, notes=tuple(notes))

    def assignment(self, state: SplitHalfState) -> Assignment:
        return _cluster_tree.served(state)

    def admit(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        return _cluster_tree.admitted(state, clients)

    def retire(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        left, gone = _cluster_tree.retired(state, clients), set(clients)
        watched = {node: forget(watch, gone) for node, watch in left.watched.items()}
        examples = {client: n for client, n in left.examples.items() if client not in gone}
        return replace(left, watched=watched, examples=examples, reviewing=left.reviewing and several(left))

    def explain(self, state: SplitHalfState) -> tuple[Note, ...]:
        return state.notes
