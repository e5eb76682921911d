"""What split-half remembers from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from coterie.core import Client, Note, Training, state
from coterie.methods.cfl_leaves import Leaf
from coterie.methods.split_half_groups import Evidence
from coterie.methods.split_half_walk import Probed
from coterie.tree import Tree

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
