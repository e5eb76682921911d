"""CFL's three criteria, from a probe: what they would see in each group that has to be split, and in each that must not.

CFL looks at a group where its training has come to rest, so that its updates sum to zero. A probe is seldom made just there.
So the members' mean is taken off their updates, as it is at rest if all have the same curvature, and CFL's own criteria are
asked of what is left (:func:`coterie.methods.cfl_criteria.listen`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.clustering import adjusted_rand, gamma_bound, noise_levels
from coterie.clustering.halves import centred, halves
from coterie.core import Client, Groups, Replies
from coterie.methods import CFL
from coterie.methods.cfl_criteria import Heard, listen
from coterie.methods.cfl_leaves import CFLState, Leaf
from coterie.suggestion.results import Advice, Range, labels, middle, ratio, shortest, sureness, without
from coterie.tree import root

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
class Course:
    """How CFL would go from one group to those found. splits: what it would see of each group it has to cut, in turn; kept: of
    each that must stay; groups: where it comes to. start, moving: the norm of the mean update, as a share of the greatest
    client's, at the first model of all and at the model probed. bound: what gamma may be up to in all updates as they are."""

    splits: tuple[Sight, ...]
    kept: tuple[Sight, ...]
    groups: Groups
    start: float
    moving: float
    bound: float


def course(probe: Probe, groups: Groups) -> Course:
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
    return Course(
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


def heard(replies: Replies, parameters: int) -> Heard:
    """What CFL would hear if all who replied were one group."""
    assert replies.updates is not None
    leaf = Leaf(node=0, clients=replies.clients, model=replies.updates[0])
    state = CFLState(round=0, leaves=(leaf,), tree=root(replies.clients, parameters))
    found = listen(CFL(), state, 0, replies)
    assert found is not None
    return found


def advise(courses: Sequence[Course], groups: Groups, rho: np.ndarray, firm: bool) -> Advice:
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


def _words(courses: Sequence[Course], splits: Sequence[Sight], kept: Sequence[Sight], rho: np.ndarray) -> str:
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
