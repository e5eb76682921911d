"""CFL: federated averaging that splits a group in two, by the cosine of its updates, where it is stationary and at odds.

F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", IEEE TNNLS 2020, arXiv 1910.01991: Algorithms 1 (bipartition), 2 (FL), 3 (recursion) and 5 (protocol).

A group splits when all of these hold, for the updates ``Δ_i`` of an exchange in which its members were heard:
- stationary: ``‖Σ w_i Δ_i‖ < eps1`` (the norm of the averaged update, not the average of norms);
- at odds: ``max_i ‖Δ_i‖ >= eps2``;
- separable: ``gamma_max < sqrt((1 - α_cross) / 2)``, with ``α_cross`` the greatest similarity across the optimal bipartition.

Deviations
- eps1 and eps2 are relative by default (``scale``): absolute norms grow with the learning rate, the local steps and the
  model. eps1 is then a share of ``max_i ‖Δ_i‖`` in the same exchange, eps2 a share of the greatest ``‖Δ_i‖`` so far on the
  group's path from the root: the updates of clients that agree shrink, those of clients at odds do not. And gamma_max is
  compared with ``α_cross`` corrected for the number of clients (``Heard.alpha``): few updates that sum to zero point away
  from each other even where clients agree.
- All criteria must hold ``persistence`` rounds in a row: the greatest of many client norms is a noisy number, and a split
  is for ever.
- Algorithm 5 does not say what the children apply in the round of the split. ``child-mean`` (default, as the authors' code):
  each child the mean of its own members' updates; ``parent-mean`` (Algorithm 3): both the parent's.
- Members that are silent in the exchange of a split are a third part, with the parent's next model.
- With ``fraction < 1`` (the paper has no partial participation) a group that looks stationary is asked in full next time,
  and only then may split.
- With gradients, the criteria stay on updates; the gradients are asked for in an exchange of their own, after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

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
    as_groups,
    average,
    state,
    weights,
)  # fmt: skip
from coterie.methods.cfl_criteria import Heard, by_schedule, decide, listen, separate
from coterie.settings import SettingError, check, setting
from coterie.tree import Tree, root


@state
class Leaf:
    """A group of now. node: its place in the tree. model ``(d,)``. peak: the greatest norm of a client's update so far, on
    the path from the root. ask_all: hear everyone next time. gradients: ask for gradients next time. held: for how
    many rounds in a row it was about to split. losses: each client's validation loss of the model it was last offered."""

    node: int
    clients: tuple[Client, ...]
    model: Tensor
    peak: float = 0.0
    ask_all: bool = False
    gradients: bool = False
    held: int = 0
    losses: Mapping[Client, float] = field(default_factory=dict)


@state
class CFLState:
    """round: completed. leaves: the groups, ordered by first client. notes: of the last exchange."""

    parameters: int
    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CFL:
    """Recursive bipartition of stationary groups by the cosine similarity of their updates."""

    name: ClassVar[str] = "cfl"

    eps1: float = setting(0.5, "a group is stationary if its mean update's norm is below this (ε1)", ge=0)
    eps2: float = setting(0.4, "it is at odds if a member's update has at least this norm (ε2)", ge=0)
    scale: str = setting("relative", "absolute: as in the paper; relative (ours): eps1, eps2 are shares of norms",
                         choices=("relative", "absolute"))  # fmt: skip
    gamma_max: float = setting(0.68, "relative noise of gradients that is reckoned with (γ_max)", ge=0, lt=1)
    persistence: int = setting(3, "rounds in a row in which all criteria must hold; 1 in the paper, 3 is ours", ge=1)
    split_rounds: tuple[int, ...] | None = setting(
        None, "split the least alike group in each of these rounds, and never by criteria (the papers' figures)", ge=1
    )
    warmup: int = setting(0, "rounds before the first split", ge=0)
    min_cluster_size: int = setting(1, "no side of a split may be smaller", ge=1)
    weighting: str = setting("uniform", "weights of means: uniform (Algorithm 5) or data (Algorithm 2)",
                             choices=("uniform", "data"))  # fmt: skip
    similarity: str = setting("updates", "what cosines are taken of: updates, or full-batch gradients",
                              choices=("updates", "gradients"))  # fmt: skip
    post_split: str = setting("child-mean", "what children apply in the round of the split",
                              choices=("child-mean", "parent-mean"))  # fmt: skip
    fallback: bool = setting(False, "serve a client the model on its path that is best on its validation data")
    fraction: float = setting(1.0, "share of each group's clients asked in a round, at least one; ours", gt=0, le=1)
    quorum: float = setting(0.5, "least share of a group that must answer for it to split; ours", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)
        if self.similarity == "gradients" and self.post_split == "child-mean":
            raise SettingError(
                "CFL.similarity gradients needs post_split parent-mean, got child-mean: an exchange of gradients has no "
                "updates for the children to apply"
            )
        if self.similarity == "gradients" and self.split_rounds is not None:
            raise SettingError("CFL.split_rounds works with similarity updates, got gradients")

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> CFLState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        return CFLState(
            parameters=federation.parameters.stop, round=0, leaves=(leaf,), tree=root(federation.clients)
        )

    def plan(self, state: CFLState, cohort: Cohort) -> Plan:
        models = torch.stack([leaf.model for leaf in state.leaves])
        gradients = any(leaf.gradients for leaf in state.leaves)
        tasks = {}
        for row, leaf in enumerate(state.leaves):
            if gradients and not leaf.gradients:
                continue
            everyone = gradients or leaf.ask_all or (self.split_rounds is not None and state.round + 1 in self.split_rounds)
            task = Task(offered=(row,), gradient=gradients, measure="validation" if self.fallback else None)
            tasks.update(dict.fromkeys(cohort.sample(leaf.clients, 1.0 if everyone else self.fraction), task))
        return Plan(models=models, tasks=tasks, need="rows", ends_round=not gradients)

    def step(self, state: CFLState, replies: Replies) -> CFLState:
        if any(leaf.gradients for leaf in state.leaves):
            return self._step_gradients(state, replies)
        said = {leaf.node: listen(self, state, leaf, replies) for leaf in state.leaves}
        chosen = self._scheduled(state, said)
        tree, leaves, notes = state.tree, [], []
        for leaf in state.leaves:
            heard = said[leaf.node]
            if heard is None:
                leaves.append(leaf)
                continue
            leaf = heard.leaf
            note = decide(self, heard, state.round + 1) if chosen is None else by_schedule(heard, chosen)
            if note.kind == "split":
                means = {part: self._child_mean(heard, part) for part in note.parts}
                tree, children = _split(tree, leaf, means)
                leaves += children
            else:
                leaves.append(_next(leaf, heard.mean, note.kind))
            notes.append(note)
        return CFLState(
            parameters=state.parameters, round=state.round + 1, tree=tree, notes=tuple(notes), leaves=_ordered(leaves)
        )

    def assignment(self, state: CFLState) -> Assignment:
        groups = as_groups(leaf.clients for leaf in state.leaves)
        row = {client: i for i, leaf in enumerate(state.leaves) for client in leaf.clients}
        models = [leaf.model for leaf in state.leaves]
        if self.fallback:
            ancestors = [node for node in state.tree.nodes if node.model is not None]
            place = {node.id: len(models) + i for i, node in enumerate(ancestors)}
            models += [node.model for node in ancestors if node.model is not None]
            for leaf in state.leaves:
                row.update(_better_ancestors(state.tree, leaf, place))
        return Assignment(models=torch.stack(models), row=row, groups=groups)

    def explain(self, state: CFLState) -> tuple[Note, ...]:
        return state.notes

    def _scheduled(self, state: CFLState, said: Mapping[int, Heard | None]) -> int | None:
        """With ``split_rounds``: the node to split now, that of least alpha_cross, or -1 for none. None: criteria decide."""
        if self.split_rounds is None:
            return None
        crosses = {}
        for leaf in state.leaves if state.round + 1 in self.split_rounds else ():
            heard = said[leaf.node]
            if heard and heard.sides and heard.enough(self.quorum) and heard.smallest >= self.min_cluster_size:
                crosses[leaf.node] = heard.sides.cross
        return min(crosses, key=lambda node: (crosses[node], node), default=-1)

    def _child_mean(self, heard: Heard, part: tuple[Client, ...]) -> Tensor:
        """What a part applies in the round of the split; silent members go on with the parent's mean."""
        own = heard.replies.of(part)
        if self.post_split == "parent-mean" or not own.clients:
            return heard.mean
        assert own.updates is not None
        return average(own.updates, weights(own, self.weighting))

    def _step_gradients(self, state: CFLState, replies: Replies) -> CFLState:
        """The exchange after stationarity: bipartition of the gradients at the model as it is (Algorithm 3)."""
        tree, leaves, notes = state.tree, [], []
        for leaf in state.leaves:
            heard = listen(self, state, leaf, replies) if leaf.gradients else None
            if heard is None or not heard.enough(self.quorum):
                # Too few gradients: asked again once the criteria hold in the next round as well.
                leaves.append(replace(leaf, gradients=False, held=self.persistence - 1 if leaf.gradients else leaf.held))
                continue
            leaf = replace(leaf, gradients=False, losses=heard.leaf.losses)
            note = separate(self, heard, "by gradients at the stationary point")
            if note.kind == "split":
                tree, children = _split(tree, leaf, dict.fromkeys(note.parts, torch.zeros_like(leaf.model)))
                leaves += children
            else:
                leaves.append(leaf)
            notes.append(note)
        return replace(state, tree=tree, leaves=_ordered(leaves), notes=tuple(notes))


def _ordered(leaves: list[Leaf]) -> tuple[Leaf, ...]:
    return tuple(sorted(leaves, key=lambda leaf: leaf.clients))


def _next(leaf: Leaf, mean: Tensor, verdict: str) -> Leaf:
    """A leaf that stays: its model moved, and what to ask of it next."""
    return replace(
        leaf, model=leaf.model + mean, ask_all=verdict in ("ask", "hold"), gradients=verdict == "gradients",
        held=leaf.held + 1 if verdict == "hold" else 0,
    )  # fmt: skip


def _split(tree: Tree, leaf: Leaf, means: Mapping[tuple[Client, ...], Tensor]) -> tuple[Tree, list[Leaf]]:
    """The tree with a split leaf, and its children: part -> what it adds to the leaf's model. Peaks are inherited."""
    tree, ids = tree.split(leaf.node, tuple(means), leaf.model, leaf.losses)
    children = [
        replace(leaf, node=id, clients=part, model=leaf.model + mean, ask_all=False, gradients=False, held=0, losses={})
        for id, (part, mean) in zip(ids, means.items(), strict=True)
    ]
    return tree, children


def _better_ancestors(tree: Tree, leaf: Leaf, place: Mapping[int, int]) -> Iterator[tuple[Client, int]]:
    """(client, row) of each member that an ancestor's model served better than the leaf's last offered model.

    Both losses come with the replies, on the client's validation data; the leaf's is one round old.
    """
    for client in leaf.clients:
        past = [(n.losses[client], n.id) for n in tree.path(leaf.node)[:-1] if client in n.losses]
        if past and client in leaf.losses and min(past)[0] < leaf.losses[client]:
            yield client, place[min(past)[1]]
