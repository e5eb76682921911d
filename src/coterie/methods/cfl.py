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
- Members that are silent in the exchange of a split stand at the split node, and walk down from there like newcomers
  (Algorithm 4, see :mod:`coterie.methods.walking`), as do clients that join, or come back after long.
- With ``fraction < 1`` (the paper has no partial participation) a group that looks stationary is asked in full next time,
  and only then may split.
- With ``gamma_max`` none, a group that looks stationary and at odds is asked for updates of both halves of its members' data,
  which tell γ_i, noise over signal, of each (:func:`coterie.clustering.reliability`); the greatest counts.
- With gradients, the criteria stay on updates; the gradients are asked for in an exchange of their own, after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
    weights,
)  # fmt: skip
from coterie.methods import cfl_leaves, walking
from coterie.methods.cfl_criteria import Heard, by_schedule, decide, listen, separate
from coterie.methods.cfl_leaves import CFLState, Leaf, best_on_path, join, ordered, stays
from coterie.settings import SettingError, check, setting
from coterie.tree import root


@dataclass(frozen=True, kw_only=True)
class CFL:
    """Recursive bipartition of stationary groups by the cosine similarity of their updates."""

    name: ClassVar[str] = "cfl"

    eps1: float = setting(0.5, "a group is stationary if its mean update's norm is below this (ε1)", ge=0)
    eps2: float = setting(0.4, "it is at odds if a member's update has at least this norm (ε2)", ge=0)
    scale: str = setting("relative", "absolute: as in the paper; relative (ours): eps1, eps2 are shares of norms",
                         choices=("relative", "absolute"))  # fmt: skip
    gamma_max: float | None = setting(
        0.68, "relative noise of gradients that is reckoned with (γ_max); none measures it from halves of the data; ours",
        ge=0, lt=1,
    )  # fmt: skip
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
    ensemble: bool = setting(False, "serve a client the mean of the predictions of all models on its path")
    edge_sketch: int | None = setting(
        None, "numbers kept of each update on the tree's edges; none keeps all of it; ours", multiple=4
    )
    sketch: int | None = setting(
        None, "compare sketches of so many numbers, in place of edge_sketch; updates are not kept then; ours", multiple=4
    )
    fraction: float = setting(1.0, "share of each group's clients asked in a round, at least one; ours", gt=0, le=1)
    quorum: float = setting(0.5, "least share of a group that must answer for it to split; ours", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)
        if self.fallback and self.ensemble:
            raise SettingError("use just one of CFL.fallback and CFL.ensemble, got true for both")
        if self.sketch is not None and self.post_split == "child-mean":
            raise SettingError("CFL.sketch needs post_split parent-mean, got child-mean: sketches have no child's mean")
        if self.similarity == "gradients" and self.post_split == "child-mean":
            raise SettingError(
                "CFL.similarity gradients needs post_split parent-mean, got child-mean: an exchange of gradients has no "
                "updates for the children to apply"
            )
        if self.similarity == "gradients" and self.gamma_max is None:
            raise SettingError("CFL.gamma_max none is measured from updates, and needs similarity updates, got gradients")
        if self.similarity == "gradients" and self.split_rounds is not None:
            raise SettingError("CFL.split_rounds works with similarity updates, got gradients")

    @property
    def asks(self) -> tuple[Task, ...]:
        """What a group is asked for once it is about to split."""
        gradients, halves = self.similarity == "gradients", self.gamma_max is None
        return (Task(offered=(0,), gradient=gradients, halves=halves),)

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> CFLState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop, self.sketch or self.edge_sketch)
        return CFLState(round=0, leaves=(leaf,), tree=tree)

    def plan(self, state: CFLState, cohort: Cohort) -> Plan:
        models, tasks = [leaf.model for leaf in state.leaves], {}
        gradients = any(leaf.gradients for leaf in state.leaves)
        measure: Any = "validation" if self.fallback else None
        weighting: Any = self.weighting
        for row, leaf in enumerate(state.leaves):
            if not leaf.clients or (gradients and not leaf.gradients):
                continue
            everyone = gradients or leaf.ask_all or (self.split_rounds is not None and state.round + 1 in self.split_rounds)
            halves = leaf.ask_all and self.gamma_max is None and not gradients
            task = Task(offered=(row,), gradient=gradients, measure=measure, halves=halves)
            tasks.update(dict.fromkeys(cohort.sample(leaf.clients, 1.0 if everyone else self.fraction), task))
        if not gradients:
            by_gradient = self.similarity == "gradients"
            more, walks = walking.tasks(
                state.tree, state.walkers, cohort.present, len(models), gradient=by_gradient, measure=measure
            )
            models, tasks = models + more, tasks | walks
        return Plan(
            models=torch.stack(models), tasks=tasks, need="rows", columns=slice(0, state.tree.parameters), sketch=self.sketch,
            weighting=weighting, ends_round=not gradients,
        )  # fmt: skip

    def step(self, state: CFLState, replies: Replies) -> CFLState:
        if any(leaf.gradients for leaf in state.leaves):
            return self._step_gradients(state, replies)
        said = {leaf.node: listen(self, state, row, replies) for row, leaf in enumerate(state.leaves)}
        chosen = self._scheduled(state, said)
        new, leaves, notes = state, [], []
        for leaf in state.leaves:
            heard = said[leaf.node]
            if heard is None:
                leaves.append(leaf)
                continue
            note = decide(self, heard, state.round + 1) if chosen is None else by_schedule(heard, chosen)
            if note.kind == "split":
                means = {part: self._child_mean(heard, part) for part in note.parts}
                new, children = self._split(new, heard, means)
                leaves += children
                note = cfl_leaves.placed(note, leaf, children)
            else:
                leaves.append(stays(heard.leaf, heard.mean, note.kind))
            notes.append(note)
        new = replace(new, round=state.round + 1, leaves=ordered(leaves), notes=tuple(notes))
        return self._walk(new, state.walkers, replies)

    def _split(self, state: CFLState, heard: Heard, means: Mapping[tuple[Client, ...], Tensor]) -> tuple[CFLState, list[Leaf]]:
        """The state with a split in its tree, and the children; silent members are walkers now."""
        tree, children = cfl_leaves.split(state.tree, heard.leaf, means, heard.replies, state.round)
        late = set(heard.leaf.clients) - set(heard.clients)
        return replace(state, tree=tree, walkers={**state.walkers, **dict.fromkeys(late, heard.leaf.node)}), children

    def _walk(self, state: CFLState, before: Mapping[Client, int], replies: Replies) -> CFLState:
        """Those who walked in this exchange go down one level; leaves that split in it are inner nodes already."""
        walked = walking.step(state.tree, state.walkers, replies.of(before), "cosine")
        tree = walked.tree
        if self.fallback:
            tree = walking.with_losses(tree, before, replies)
        leaves = ordered(join(state.leaves, walked.arrived))
        return replace(state, tree=tree, walkers=walked.walkers, leaves=leaves, notes=(*state.notes, *walked.notes))

    def assignment(self, state: CFLState) -> Assignment:
        best = dict(best_on_path(state)) if self.fallback else {}
        return cfl_leaves.served(state, best, self.ensemble)

    def admit(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return cfl_leaves.admitted(state, clients)

    def retire(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return cfl_leaves.retired(state, clients)

    def explain(self, state: CFLState) -> tuple[Note, ...]:
        return state.notes

    def _scheduled(self, state: CFLState, said: Mapping[int, Heard | None]) -> int | None:
        """With ``split_rounds``: the node to split now, that of least alpha_cross, or -1 for none. None: criteria decide.

        Corrected for the number of clients: else few who agree, with cosines of -1/(n - 1), would look less alike than many
        who do not.
        """
        if self.split_rounds is None:
            return None
        alphas = {}
        for leaf in state.leaves if state.round + 1 in self.split_rounds else ():
            heard = said[leaf.node]
            if heard and heard.sides and heard.enough(self.quorum) and heard.smallest >= self.min_cluster_size:
                alphas[leaf.node] = heard.alpha
        return min(alphas, key=lambda node: (alphas[node], node), default=-1)

    def _child_mean(self, heard: Heard, part: tuple[Client, ...]) -> Tensor:
        """What a part applies in the round of the split."""
        own = heard.replies.of(part)
        if self.post_split == "parent-mean":
            return heard.mean
        return own.mean(weights(own, self.weighting))

    def _step_gradients(self, state: CFLState, replies: Replies) -> CFLState:
        """The exchange after stationarity: bipartition of the gradients at the model as it is (Algorithm 3)."""
        new, leaves, notes = state, [], []
        for row, leaf in enumerate(state.leaves):
            heard = listen(self, state, row, replies) if leaf.gradients else None
            if heard is None or not heard.enough(self.quorum):
                # Too few gradients: asked again once the criteria hold in the next round as well.
                leaves.append(replace(leaf, gradients=False, held=self.persistence - 1 if leaf.gradients else leaf.held))
                continue
            leaf = replace(leaf, gradients=False, losses=heard.leaf.losses)
            note = separate(self, heard, "by gradients at the stationary point")
            if note.kind == "split":
                still = dict.fromkeys(note.parts, torch.zeros_like(leaf.model))
                new, children = self._split(new, replace(heard, leaf=leaf), still)  # peaks are of updates
                leaves += children
                note = cfl_leaves.placed(note, leaf, children)
            else:
                leaves.append(leaf)
            notes.append(note)
        return replace(new, leaves=ordered(leaves), notes=tuple(notes))
