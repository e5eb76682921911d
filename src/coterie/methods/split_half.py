"""Split-half: federated averaging that splits a group where two halves of every client's data say that it is two.

Coterie's own, after an idea that is old in statistics: what two halves of a client's data agree on is signal, what they
differ in is noise. Every ``probe_every`` rounds a group *probes*: each member trains twice, on two disjoint random halves,
and sends both updates. Their mean serves as the round's update, so a round is not lost. The server takes their Gram matrix
and tests whether the members are congruent (:func:`coterie.clustering.congruence`); the only threshold is ``level``, the
probability of splitting clients who are alike.

- A group whose probe finds it incongruent probes again in the next round, everybody asked. It splits if that finds it so too,
  and goes on splitting as long as its parts are incongruent in both (:func:`.split_half_groups.confirmed`). Clients on whose
  side the two probes disagree stand at the split node, and walk down from there like newcomers.
- Newcomers, and members that were silent when their group split, walk down the parameter tree (CFL's Algorithm 4).
- Every ``review_every`` rounds in which there are several groups, everybody trains on halves from the mean of all models, in
  an exchange of its own. Two groups that are one by the evidence merge, and a client that belongs to another group moves.

All halves make the same number of steps, whoever's they are: unequal work makes updates differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    average,
    state,
    weights,
)  # fmt: skip
from coterie.methods import cfl_leaves, walking
from coterie.methods.cfl_leaves import Leaf, join, ordered
from coterie.methods.split_half_groups import Evidence, looked_at, reviewed
from coterie.settings import check, setting
from coterie.tree import Tree, root


@state
class SplitHalfState:
    """round: completed. leaves, tree, walkers: as in :class:`.cfl_leaves.CFLState`. evidence: leaf's node -> its last probe,
    where that found it incongruent. examples: client -> how many it has. merged: node of a leaf that was merged -> that of
    the one it became part of. reviewing: the next exchange is a review. notes: of the last exchange."""

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    evidence: Mapping[int, Evidence] = field(default_factory=dict)
    examples: Mapping[Client, int] = field(default_factory=dict)
    merged: Mapping[int, int] = field(default_factory=dict)
    reviewing: bool = False
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SplitHalf:
    """Splits groups where two halves of every client's data say so: no threshold but the probability of a false alarm."""

    name: ClassVar[str] = "split-half"

    level: float = setting(1e-4, "probability of splitting a group of equal clients, in one probe (α)", gt=0, lt=1)
    probe_every: int = setting(4, "rounds from one probe of a group to the next", ge=1)
    first_probe: int = setting(2, "the round of the first probe", ge=2)
    review_every: int = setting(20, "rounds from one review of all groups to the next; 0 is never", ge=0)
    steps: int | None = setting(
        None, "mini-batch steps of each half; none is half of what a client of median size does in a round", ge=1
    )
    fraction: float = setting(1.0, "share of each group's clients asked in a round, at least one", gt=0, le=1)
    weighting: str = setting("data", "weights of means: by training examples, or uniform", choices=("data", "uniform"))

    def __post_init__(self) -> None:
        check(self)

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> SplitHalfState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop)
        return SplitHalfState(round=0, leaves=(leaf,), tree=tree, training=federation.training)

    def plan(self, state: SplitHalfState, cohort: Cohort) -> Plan:
        columns, weighting = slice(0, state.tree.parameters), cast(Literal["data", "uniform"], self.weighting)
        probe = Task(offered=(0,), halves=True, training=self._probing(state))
        if state.reviewing:
            present = set(cohort.present)
            members = [c for leaf in state.leaves for c in leaf.clients if c in present]
            start = torch.stack([leaf.model for leaf in state.leaves if leaf.clients]).mean(0)
            tasks = dict.fromkeys(sorted(members), probe)
            return Plan(models=start[None], tasks=tasks, need="mean", columns=columns, ends_round=False)
        models, tasks = [leaf.model for leaf in state.leaves], {}
        for row, leaf in enumerate(state.leaves):
            if leaf.clients:
                probes = self.probes(state, leaf)  # everybody: of a few, no group can be told from another
                task = replace(probe, offered=(row,)) if probes else Task(offered=(row,))
                tasks.update(dict.fromkeys(cohort.sample(leaf.clients, 1.0 if probes else self.fraction), task))
        more, walks = walking.tasks(state.tree, state.walkers, cohort.present, len(models))
        return Plan(
            models=torch.stack([*models, *more]), tasks=tasks | walks, need="rows", columns=columns, weighting=weighting
        )

    def probes(self, state: SplitHalfState, leaf: Leaf) -> bool:
        """Whether a leaf probes in the round that comes: in its turn, or to confirm what it found in the last one."""
        due = state.round + 1 >= self.first_probe and (state.round + 1 - self.first_probe) % self.probe_every == 0
        return len(leaf.clients) > 1 and (due or leaf.node in state.evidence)

    def _probing(self, state: SplitHalfState) -> Training:
        """How every half is trained."""
        usual = state.training
        steps = self.steps
        if steps is None and usual.steps is not None:
            steps = usual.steps // 2
        elif steps is None:
            size = float(np.median(list(state.examples.values()) or [1]))
            told = size > 1  # under noise clients do not tell how many examples they have
            steps = round(usual.epochs * size / (2 * (usual.batch or size))) if told else usual.epochs
        return replace(usual, steps=max(1, steps))

    def step(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        state = replace(state, examples={**state.examples, **counts}, notes=())
        if state.reviewing:
            return self._review(state, replies)
        new, leaves, notes = state, [], []
        evidence: dict[int, Evidence] = {}
        for leaf in state.leaves:
            own, before = replies.of(leaf.clients), state.evidence.get(leaf.node)
            if not own.clients or own.updates is None:
                leaves.append(leaf)
                evidence |= {} if before is None else {leaf.node: before}
                continue
            found = looked_at(self.level, leaf, own, before) if self.probes(state, leaf) else None
            if found is not None:
                notes.append(found.note)
                if found.note.kind == "hold":
                    evidence[leaf.node] = found.evidence
            if found is not None and found.note.kind == "split":
                means = {part: self._mean(own.of(part)) for part in found.note.parts}
                tree, children = cfl_leaves.split(new.tree, leaf, means, own, state.round)
                late = set(leaf.clients) - {c for part in means for c in part}
                new = replace(new, tree=tree, walkers={**new.walkers, **dict.fromkeys(late, leaf.node)})
                leaves += children
            else:
                leaves.append(replace(leaf, model=leaf.model + self._mean(own)))
        new = replace(new, round=state.round + 1, leaves=ordered(leaves), evidence=evidence, notes=tuple(notes))
        return self._ended(self._walk(new, state.walkers, replies))

    def _mean(self, own: Replies) -> Tensor:
        assert own.updates is not None
        return average(own.updates, weights(own, self.weighting))

    def _walk(self, state: SplitHalfState, before: Mapping[Client, int], replies: Replies) -> SplitHalfState:
        walked = walking.step(state.tree, state.walkers, replies.of(before), "cosine")
        tree, walkers, arrived = walked.tree, dict(walked.walkers), {}
        for client, node in walked.arrived.items():
            at = state.merged.get(node, node)  # a leaf that was merged leads to the one it became part of
            tree = tree.place(client, at)
            if tree.is_leaf(at):
                arrived[client] = at
            else:  # which has been split since
                walkers[client] = at
        leaves = ordered(join(state.leaves, arrived))
        return replace(state, tree=tree, walkers=walkers, leaves=leaves, notes=(*state.notes, *walked.notes))

    def _ended(self, state: SplitHalfState) -> SplitHalfState:
        """The round has ended; the next begins with a review where one is due."""
        due = bool(self.review_every) and state.round % max(self.review_every, 1) == 0
        return replace(state, reviewing=due and _several(state.leaves))

    def _review(self, state: SplitHalfState, replies: Replies) -> SplitHalfState:
        leaves, merged, notes = reviewed(self.level, state.leaves, replies, state.examples)
        tree = state.tree
        for leaf in leaves:
            for client in leaf.clients:
                tree = tree.place(client, leaf.node)
        gone = {node: merged.get(into, into) for node, into in state.merged.items()} | merged
        evidence = {node: e for node, e in state.evidence.items() if node not in gone}
        return replace(
            state, leaves=ordered(leaves), tree=tree, merged=gone, evidence=evidence, reviewing=False, notes=tuple(notes)
        )

    def assignment(self, state: SplitHalfState) -> Assignment:
        return cfl_leaves.served(state)

    def admit(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        return cfl_leaves.admitted(state, clients)

    def retire(self, state: SplitHalfState, clients: tuple[Client, ...]) -> SplitHalfState:
        left = cfl_leaves.retired(state, clients)
        return replace(left, reviewing=left.reviewing and _several(left.leaves))

    def explain(self, state: SplitHalfState) -> tuple[Note, ...]:
        return state.notes


def _several(leaves: Iterable[Leaf]) -> bool:
    """Whether there are groups that might be one."""
    return sum(bool(leaf.clients) for leaf in leaves) > 1


