"""What split-half makes of its reviews: which groups are one, who belongs elsewhere, and why, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.clustering import contrast
from coterie.clustering.congruence_split import Contrast
from coterie.core import Client, Note, Replies
from coterie.methods import split_half_notes
from coterie.methods.cfl_leaves import Leaf
from coterie.methods.split_half_groups import Evidence, enough, evidence_of

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
        notes[0] = split_half_notes.with_cosines(notes[0], seen.clients, seen.products.numpy())
    return moved, merged, notes


def closest(leaves: Sequence[Leaf], replies: Replies) -> Mapping[str, float]:
    """Of the groups after a review that changed nothing, the numbers of the two most likely to be one."""
    seen = evidence_of(replies)
    return split_half_notes.nearest(_pairs(leaves, seen)) if seen is not None else {}


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
