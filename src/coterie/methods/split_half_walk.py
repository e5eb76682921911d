"""How newcomers find their group under split-half: down the parameter tree, with halves, by the distance to every branch.

Coterie's own, after CFL's Algorithm 4, which follows the edge with the one update of greatest cosine. Here a walker trains
on halves from the model of the node where it stands, as that node's clients did in the probe that split it. So its update
can be held against theirs: for every branch, the squared distance of the mean signals, without the bias of either's noise,
and the probability of such a distance if the walker is of that branch. It goes on to the nearest branch; where it differs
from all of them it becomes a leaf of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import gram
from coterie.clustering.congruence import Excess, Noise, excess, noise_of
from coterie.clustering.halves import Halves, halves
from coterie.core import Client, Groups, Note, Replies, state
from coterie.methods.split_half_groups import Evidence
from coterie.tree import Node, Tree


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
    return Step(tree, child, probe, _note(tree, client, at, child, found, noise is not None, alone), alone)


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


def _note(tree: Tree, client: Client, at: int, child: int, found: Mapping[int, Excess], known: bool, alone: bool) -> Note:
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
