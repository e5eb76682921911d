"""CFL: federated averaging that splits a group in two, by the cosine of its updates, where it is stationary and at odds.

F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints", IEEE TNNLS 2020, arXiv 1910.01991: Algorithms 1
(bipartition), 2 (FL), 3 (recursion) and 5 (protocol).

A group splits when all of these criteria hold for the updates ``Δ_i`` of the members that answered
in an exchange:
- stationary: ``‖Σ w_i Δ_i‖ < eps1`` (the norm of the averaged update, not the average of norms);
- at odds: ``max_i ‖Δ_i‖ >= eps2``;
- separable: ``gamma_max < sqrt((1 - α_cross) / 2)``, where ``α_cross`` is the greatest similarity
  across the optimal bipartition.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- eps1 and eps2 are relative by default (``scale``), because absolute norms grow with the learning
  rate, the number of local steps and the model. eps1 is then a share of ``max_i ‖Δ_i‖`` in the same
  exchange. eps2 is a share of the greatest ``‖Δ_i‖`` so far on the group's path from the root: the
  updates of clients that agree shrink, those of clients at odds do not. gamma_max is compared with
  ``α_cross`` corrected for the number of clients (``GroupUpdates.alpha``): a few updates that sum
  to zero have negative cosines even where clients agree.
- All criteria must hold for ``persistence`` rounds in a row: the greatest of many client norms is
  noisy, and a split is permanent.
- Algorithm 5 does not define the children's update in the round of the split. With ``child-mean``
  (default, as in the authors' code) each child applies the mean of its own members' updates; with
  ``parent-mean`` (Algorithm 3) both apply the parent's.
- Members that are silent in the exchange of a split stay at the split node and walk down from there
  like newcomers (Algorithm 4, see :mod:`coterie.methods._cluster_tree`). So do clients that join,
  or come back after a long absence.
- With ``fraction < 1`` (the paper has no partial participation) all members of a group that looks
  stationary are asked in the next exchange, and only then may the group split.
- With ``gamma_max`` none, the members of a group that looks stationary and at odds are asked for
  updates of both halves of their data. These give γ_i, noise over signal, of each
  (:func:`coterie.clustering.reliability`); the greatest counts. On each half they make as many
  steps as usual on all data, so that eps1 and eps2 are tested in these rounds as in all others.
- With gradients, the criteria still use updates; the gradients are asked for afterwards, in a
  separate exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import (
    Bipartition,
    bipartition_margin,
    cosine,
    gamma_bound,
    gram,
    norm_of_mean,
    norms,
    optimal_bipartition,
    reliability,
    sketch_error,
)
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Groups,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    Weighting,
    as_groups,
    tested,
    weights,
)
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import CFLState, Leaf, best_on_path, join, ordered, root, stays
from coterie.settings import SettingError, check, setting


@dataclass(frozen=True, kw_only=True)
class CFL:
    """Recursive bipartition of stationary groups by the cosine similarity of their updates."""

    name: ClassVar[str] = "cfl"

    eps1: float = setting(
        0.5, "a group is stationary if its mean update's norm is below this (ε1)", ge=0
    )
    eps2: float = setting(
        0.4, "a group may split if its largest update norm is at least this (ε2)", ge=0
    )
    scale: str = setting(
        "relative",
        "absolute: as in the paper; relative (ours): eps1, eps2 are fractions of norms",
        choices=("relative", "absolute"),
        advanced=True,
    )
    gamma_max: float | None = setting(
        0.68,
        "maximum relative noise of gradients (γ_max); none: measured from halves of the data; ours",
        ge=0,
        lt=1,
    )
    persistence: int = setting(
        3, "consecutive rounds in which all criteria must hold; paper: 1, ours: 3", ge=1
    )
    split_rounds: tuple[int, ...] | None = setting(
        None,
        "split the least similar group in each of these rounds, not by criteria (the papers' figures)",
        ge=1,
        advanced=True,
    )
    warmup: int = setting(0, "rounds before the first split", ge=0, advanced=True)
    min_cluster_size: int = setting(
        1, "minimum number of clients on each side of a split", ge=1, advanced=True
    )
    weighting: Weighting = setting(
        "uniform",
        "weights of means: uniform (Algorithm 5) or data (Algorithm 2)",
        choices=("uniform", "data"),
        advanced=True,
    )
    similarity: str = setting(
        "updates",
        "what cosines compare: updates, or full-batch gradients",
        choices=("updates", "gradients"),
        advanced=True,
    )
    post_split: str = setting(
        "child-mean",
        "update that children apply in the round of the split",
        choices=("child-mean", "parent-mean"),
        advanced=True,
    )
    fallback: bool = setting(
        False,
        "serve a client the model on its path that is best on its validation data",
        advanced=True,
    )
    ensemble: bool = setting(
        False, "serve a client the mean of the predictions of all models on its path", advanced=True
    )
    edge_sketch: int | None = setting(
        None,
        "size of the sketch kept of each update on the tree's edges; none: the full update; ours",
        multiple=4,
        advanced=True,
    )
    sketch: int | None = setting(
        None,
        "compare sketches of this size, instead of edge_sketch; full updates are not kept; ours",
        multiple=4,
        advanced=True,
    )
    fraction: float = setting(
        1.0, "fraction of each group's clients sampled in a round, at least one; ours", gt=0, le=1
    )
    quorum: float = setting(
        0.5,
        "minimum fraction of a group that must answer before it splits; ours",
        gt=0,
        le=1,
        advanced=True,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.fallback and self.ensemble:
            raise SettingError("use only one of CFL.fallback and CFL.ensemble, got true for both")
        if self.sketch is not None and self.post_split == "child-mean":
            raise SettingError(
                "CFL.sketch needs post_split parent-mean, got child-mean: sketches have no child's mean"
            )
        if self.similarity == "gradients" and self.post_split == "child-mean":
            raise SettingError(
                "CFL.similarity gradients needs post_split parent-mean, got child-mean: an exchange of gradients has no "
                "updates for the children to apply"
            )
        if self.similarity == "gradients" and self.gamma_max is None:
            raise SettingError(
                "CFL.gamma_max none needs similarity updates, got gradients: it is measured from updates"
            )
        if self.similarity == "gradients" and self.split_rounds is not None:
            raise SettingError("CFL.split_rounds needs similarity updates, got gradients")

    @property
    def asks(self) -> tuple[Task, ...]:
        """Tasks of a group that is about to split."""
        gradients, halves = self.similarity == "gradients", self.gamma_max is None
        return (Task(offered=(0,), gradient=gradients, halves=halves),)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> CFLState:
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        tree = root(federation.clients, federation.parameters.stop, self.sketch or self.edge_sketch)
        return CFLState(round=0, leaves=(leaf,), tree=tree, training=federation.training)

    def plan(self, state: CFLState, cohort: Cohort) -> Plan:
        models, tasks = [leaf.model for leaf in state.leaves], {}
        gradients = any(leaf.gradients for leaf in state.leaves)
        measure: Literal["validation"] | None = "validation" if self.fallback else None
        for row, leaf in enumerate(state.leaves):
            if not leaf.clients or (gradients and not leaf.gradients):
                continue
            everyone = (
                gradients
                or leaf.ask_all
                or (self.split_rounds is not None and state.round + 1 in self.split_rounds)
            )
            halves = leaf.ask_all and self.gamma_max is None and not gradients
            steps = as_whole(state.training) if halves else None
            task = Task(
                offered=(row,), gradient=gradients, measure=measure, halves=halves, training=steps
            )
            tasks.update(
                dict.fromkeys(cohort.sample(leaf.clients, 1.0 if everyone else self.fraction), task)
            )
        if not gradients:
            by_gradient = self.similarity == "gradients"
            more, walks = _cluster_tree.tasks(
                state.tree,
                state.walkers,
                cohort.present,
                len(models),
                gradient=by_gradient,
                measure=measure,
            )
            models, tasks = models + more, tasks | walks
        return Plan(
            models=torch.stack(models),
            tasks=tasks,
            need="rows",
            columns=slice(0, state.tree.parameters),
            sketch=self.sketch,
            weighting=self.weighting,
            ends_round=not gradients,
        )

    def step(self, state: CFLState, replies: Replies) -> CFLState:
        if any(leaf.gradients for leaf in state.leaves):
            return self._step_gradients(state, replies)
        groups = {
            leaf.node: self.group_updates(state, row, replies)
            for row, leaf in enumerate(state.leaves)
        }
        chosen = self._scheduled(state, groups)
        new, leaves, notes = state, [], []
        for leaf in state.leaves:
            group = groups[leaf.node]
            if group is None:
                leaves.append(leaf)
                continue
            note = (
                self.decide(group, state.round + 1) if chosen is None else group.by_schedule(chosen)
            )
            if note.kind == "split":
                means = {part: self._child_mean(group, part) for part in note.parts}
                new, children = self._split(new, group, means)
                leaves += children
                note = _cluster_tree.placed(note, leaf, children)
            else:
                leaves.append(stays(group.leaf, group.mean, note.kind))
            notes.append(note)
        new = replace(new, round=state.round + 1, leaves=ordered(leaves), notes=tuple(notes))
        return self._walk(new, state.walkers, replies)

    def _split(
        self, state: CFLState, group: GroupUpdates, means: Mapping[tuple[Client, ...], torch.Tensor]
    ) -> tuple[CFLState, list[Leaf]]:
        """Split a leaf in the state's tree, and return the state and the children; silent members become walkers."""
        tree, children = _cluster_tree.split(
            state.tree, group.leaf, means, group.replies, state.round
        )
        late = set(group.leaf.clients) - set(group.clients)
        return replace(
            state, tree=tree, walkers={**state.walkers, **dict.fromkeys(late, group.leaf.node)}
        ), children

    def _walk(self, state: CFLState, before: Mapping[Client, int], replies: Replies) -> CFLState:
        """Move the walkers of this exchange down one level; leaves that split in it are inner nodes now."""
        walked = _cluster_tree.step(state.tree, state.walkers, replies.of(before), "cosine")
        tree = walked.tree
        if self.fallback:
            tree = _cluster_tree.with_losses(tree, before, replies)
        leaves = ordered(join(state.leaves, walked.arrived))
        return replace(
            state,
            tree=tree,
            walkers=walked.walkers,
            leaves=leaves,
            notes=(*state.notes, *walked.notes),
        )

    def assignment(self, state: CFLState) -> Assignment:
        best = dict(best_on_path(state)) if self.fallback else {}
        return _cluster_tree.served(state, best, self.ensemble)

    def admit(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return _cluster_tree.admitted(state, clients)

    def retire(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return _cluster_tree.retired(state, clients)

    def explain(self, state: CFLState) -> tuple[Note, ...]:
        return state.notes

    def group_updates(self, state: CFLState, row: int, replies: Replies) -> GroupUpdates | None:
        """Collect the replies of a leaf's members.

        Args:
            state: the state before the exchange.
            row: row of the leaf in the plan's models.
            replies: replies of the exchange.

        Returns:
            The leaf's replies; None if no member answered.
        """
        leaf = state.leaves[row]
        part = replies.of(leaf.clients)
        if not part.clients:
            return None
        parameters = None if self.sketch else slice(0, state.tree.parameters)
        matrix = gram(part.all_updates, columns=parameters)
        w = weights(part, self.weighting)
        mean = part.mean(w) if replies.means is None else replies.means[row]
        # The norm of the group's step. For a robust mean, the Gram matrix does not give it.
        robust = part.averaging.needs_all
        mean_norm = (
            float(mean[: state.tree.parameters].double().norm())
            if robust
            else norm_of_mean(matrix, w)
        )
        client_norm = float(norms(matrix).max())
        leaf = replace(
            leaf,
            peak=max(leaf.peak, client_norm),
            losses=_losses(leaf, part) if self.fallback else {},
        )
        complete = (
            self.fraction == 1.0 or leaf.ask_all or leaf.gradients or self.split_rounds is not None
        )
        cosines = cosine(matrix)
        sides = optimal_bipartition(cosines) if len(part.clients) > 1 else None
        compared = state.tree.parameters or len(mean)
        sketched = self.sketch if self.sketch and self.sketch < compared else None
        return GroupUpdates(
            leaf, part, mean, mean_norm, client_norm, cosines, sides, complete, sketched
        )

    def decide(self, group: GroupUpdates, round: int) -> Note:
        """Test the criteria and decide whether the group splits, stays or is asked again.

        Args:
            group: the group's replies.
            round: the current round, from 1.

        Returns:
            The note of the decision; its kind is ``split``, ``keep``, ``ask``, ``gradients`` or
            ``hold``.
        """
        leaf = group.leaf
        if len(leaf.clients) < 2:
            return group.note("keep", "a group of one client cannot split")
        if round <= self.warmup:
            return group.note(
                "keep", f"round {round} is within the warm-up of {self.warmup} rounds"
            )
        norms = self.norm_criteria(group)
        sides = self.cut_criteria(group) if self.similarity == "updates" else ()
        text = tested(norms)
        if not all(one.held for one in norms):
            return group.note("keep", text, criteria=(*norms, *sides), otherwise=self._else(group))
        if not group.complete:
            return group.note(
                "ask", f"{text}; all members are asked in the next round", criteria=norms
            )
        if not group.enough(self.quorum):
            text += f"; only {len(group.clients)} of {len(leaf.clients)} members answered, so they are asked again"
            return group.note("ask", text, criteria=norms)
        if self.similarity == "updates":
            return self._held(leaf, self.separate(group, norms))
        return self._held(
            leaf, group.note("gradients", f"{text}; gradients are asked for next", criteria=norms)
        )

    def norm_criteria(self, group: GroupUpdates) -> tuple[Criterion, ...]:
        """The criteria on norms (Algorithm 5): the group is stationary, and its members are at odds."""
        mean, most, peak = group.mean_norm, group.client_norm, group.leaf.peak
        if self.scale == "relative":
            mean, most = (
                value / norm if norm else np.nan for value, norm in ((mean, most), (most, peak))
            )
        return (
            Criterion(
                "mean update",
                mean,
                "<",
                self.eps1,
                "eps1",
                met="stationary",
                unmet="not stationary",
                key="mean_norm",
            ),
            Criterion(
                "largest update",
                most,
                ">=",
                self.eps2,
                "eps2",
                met="at odds",
                unmet="in agreement",
                key="client_norm",
            ),
        )

    def cut_criteria(self, group: GroupUpdates) -> tuple[Criterion, ...]:
        """The criteria on the two sides that Algorithm 1 finds: they can be told apart, and neither is too small.

        The first is left out where γ_max is not known: it is measured from updates of halves.
        """
        found: list[Criterion] = []
        gamma_max = self.gamma_max if self.gamma_max is not None else measured_gamma(group.replies)
        if group.sides is not None and gamma_max is not None:
            setting, by = (
                ("gamma_max", "") if self.gamma_max is not None else ("", " by the measured noise")
            )
            met, unmet = f"separable{by}", f"not separable{by}"
            bound = gamma_bound(group.alpha if self.scale == "relative" else group.cross)
            found.append(
                Criterion(
                    "noise allowed", bound, ">", gamma_max, setting, met, unmet, "gamma_bound"
                )
            )
        if group.sides is not None and self.min_cluster_size > 1:
            size, least = group.smallest, self.min_cluster_size
            found.append(
                Criterion(
                    "smaller side",
                    size,
                    ">=",
                    least,
                    "min_cluster_size",
                    unmet="a side is too small",
                    key="smaller_side",
                )
            )
        return tuple(found)

    def separate(self, group: GroupUpdates, before: tuple[Criterion, ...] = ()) -> Note:
        """Test the two sides of the group.

        Args:
            group: the group's replies, of two members or more.
            before: the criteria that were met before.

        Returns:
            The note of the decision; its kind is ``split``, ``keep`` or ``ask``.
        """
        criteria = (*before, *self.cut_criteria(group))
        text = tested(criteria)
        if self.gamma_max is None and measured_gamma(group.replies) is None:
            if group.leaf.ask_all:
                why = "gamma_max cannot be measured: fewer than two members sent updates of halves"
                return group.note(
                    "keep", "; ".join([*([text] if text else []), why]), criteria=before
                )
            return group.note(
                "ask", f"{text}; gamma_max is measured next, from halves", criteria=before
            )
        if not all(one.held for one in criteria):
            return group.note("keep", text, criteria=criteria, otherwise=self._else(group))
        otherwise = "it would not have split in this round"
        return group.note("split", f"{text}{group.unsure}", group.parts(), criteria, otherwise)

    def _else(self, group: GroupUpdates) -> str:
        """What would have happened to a group that is kept, had it met the criteria."""
        if not (group.complete and group.enough(self.quorum)):
            return (
                "all members would have been asked in the next round, and it could then have split"
            )
        if self.similarity == "gradients" and not group.leaf.gradients:
            return "gradients would have been asked for, to decide whether it splits"
        if self.gamma_max is None and measured_gamma(group.replies) is None:
            return "updates of halves would have been asked for, to decide whether it splits"
        if self.persistence > 1 and not group.leaf.gradients:
            return f"this round would have counted towards a split, which takes {self.persistence} rounds in a row"
        return "it would have split in this round"

    def _held(self, leaf: Leaf, found: Note) -> Note:
        """Return the decision if it has been the same for ``persistence`` rounds; else hold it."""
        if found.kind in ("keep", "ask") or self.persistence == 1:
            return found
        rounds = Criterion(
            "rounds in a row",
            leaf.held + 1,
            ">=",
            self.persistence,
            "persistence",
            key="persistence",
        )
        found = replace(
            found, text=f"{found.text}; {rounds.text}", criteria=(*found.criteria, rounds)
        )
        if rounds.held:
            return found
        return replace(
            found,
            kind="hold",
            effect="keeps",
            parts=(),
            similarity={},
            otherwise="it would have split by now",
        )

    def _scheduled(self, state: CFLState, groups: Mapping[int, GroupUpdates | None]) -> int | None:
        """With ``split_rounds``: the node of least alpha_cross, to split now, or -1 for none; None if the criteria decide.

        alpha_cross is corrected for the number of clients. Otherwise a few clients that agree, with
        cosines of -1/(n - 1), would look less similar than many that do not.
        """
        if self.split_rounds is None:
            return None
        alphas = {}
        for leaf in state.leaves if state.round + 1 in self.split_rounds else ():
            group = groups[leaf.node]
            if (
                group
                and group.sides
                and group.enough(self.quorum)
                and group.smallest >= self.min_cluster_size
            ):
                alphas[leaf.node] = group.alpha
        return min(alphas, key=lambda node: (alphas[node], node), default=-1)

    def _child_mean(self, group: GroupUpdates, part: tuple[Client, ...]) -> torch.Tensor:
        """The update that a part applies in the round of the split."""
        own = group.replies.of(part)
        if self.post_split == "parent-mean":
            return group.mean
        return own.mean(weights(own, self.weighting))

    def _step_gradients(self, state: CFLState, replies: Replies) -> CFLState:
        """The exchange after stationarity: bipartition of the gradients at the current model (Algorithm 3)."""
        new, leaves, notes = state, [], []
        for row, leaf in enumerate(state.leaves):
            group = self.group_updates(state, row, replies) if leaf.gradients else None
            if group is None or not group.enough(self.quorum):
                # Too few gradients: ask again if the criteria also hold in the next round.
                leaves.append(
                    replace(
                        leaf,
                        gradients=False,
                        held=self.persistence - 1 if leaf.gradients else leaf.held,
                    )
                )
                continue
            leaf = replace(leaf, gradients=False, losses=group.leaf.losses)
            note = self.separate(group)
            if note.kind == "split":
                still = dict.fromkeys(note.parts, torch.zeros_like(leaf.model))
                new, children = self._split(
                    new, replace(group, leaf=leaf), still
                )  # a peak is a norm of updates
                leaves += children
                note = _cluster_tree.placed(note, leaf, children)
            else:
                leaves.append(leaf)
            notes.append(note)
        return replace(new, leaves=ordered(leaves), notes=tuple(notes))


@dataclass(frozen=True)
class GroupUpdates:
    """Replies of a group in an exchange.

    Attributes:
        leaf: the group, with updated peak and losses.
        replies: replies of the n members that answered.
        mean: ``(d,)``, their weighted mean update.
        mean_norm: ‖Σ w_i Δ_i‖ over the parameters.
        client_norm: max_i ‖Δ_i‖ over the parameters.
        cosines: ``(n, n)``, cosines of the updates.
        sides: the optimal bipartition of these members; None if there are fewer than two.
        complete: whether all members were asked.
        sketched: size of the sketches that replace the updates; None without sketches.
    """

    leaf: Leaf
    replies: Replies
    mean: torch.Tensor
    mean_norm: float
    client_norm: float
    cosines: np.ndarray
    sides: Bipartition | None
    complete: bool
    sketched: int | None

    @property
    def clients(self) -> tuple[Client, ...]:
        """The members that answered."""
        return self.replies.clients

    def enough(self, quorum: float) -> bool:
        """Return whether enough members answered for a split: at least two, and at least the share ``quorum``."""
        return len(self.clients) >= max(2.0, quorum * len(self.leaf.clients))

    @property
    def alpha(self) -> float:
        """α_cross, corrected for the number of clients."""
        return without_bias(self.cross, len(self.clients))

    @property
    def cross(self) -> float:
        """α_cross, the greatest cosine across the two sides; 1 if there are none."""
        return self.sides.cross if self.sides else 1.0

    @property
    def smallest(self) -> int:
        """The number of clients on the smaller side."""
        return min(len(self.sides.left), len(self.sides.right)) if self.sides else 0

    @property
    def unsure(self) -> str:
        """The text that a split's note adds where the error of the sketches may have changed the sides; else empty."""
        if self.sketched is None or bipartition_margin(self.cosines) > 2 * sketch_error(
            self.sketched, len(self.clients)
        ):
            return ""
        return f"; unsure: sketches of {self.sketched} numbers may have changed the sides"

    def parts(self) -> Groups:
        """Return the sides as groups of client ids."""
        sides = (self.sides.left, self.sides.right) if self.sides else ()
        return as_groups([self.clients[i] for i in side] for side in sides)

    def note(
        self,
        kind: str,
        text: str,
        parts: Groups = (),
        criteria: tuple[Criterion, ...] = (),
        otherwise: str = "",
    ) -> Note:
        """Make a note about the group, with its norms and α_cross among the numbers; with the cosines if it splits.

        Args:
            kind: kind of the note.
            text: its text.
            parts: the groups that a split makes.
            criteria: the criteria that were tested.
            otherwise: what would have happened if they had not come out like this.
        """
        numbers = {
            "peak": self.leaf.peak,
            "mean_norm": self.mean_norm,
            "client_norm": self.client_norm,
        }
        if self.sides is not None:
            numbers["alpha_cross"] = self.sides.cross
        return Note(
            kind=kind,
            effect="divides" if kind == "split" else "keeps",
            clients=self.leaf.clients,
            text=text,
            parts=parts,
            criteria=criteria,
            otherwise=otherwise,
            numbers=numbers,
            labels={"node": self.leaf.node, "heard": len(self.clients)},
            heard=self.clients,
            similarity={"all": torch.from_numpy(self.cosines).float()} if parts else {},
        )

    def by_schedule(self, chosen: int) -> Note:
        """Split the group if its node is the one ``chosen`` for this round; else keep it."""
        if self.leaf.node != chosen or self.sides is None:
            return self.note("keep", "not chosen by split_rounds")
        test = f"alpha_cross {self.sides.cross:.3f} ({self.alpha:.3f} corrected for {len(self.clients)} clients)"
        return self.note(
            "split",
            f"the least similar group in a round of split_rounds: {test}{self.unsure}",
            self.parts(),
        )


def without_bias(cross: float, n: int) -> float:
    """Return α_cross of n clients, corrected for the bias of a small n.

    At a stationary point the updates of n clients sum to zero. So the mean cosine is -1/(n - 1)
    even for clients that agree: -0.05 for 20 clients, but -0.25 for five. ``((n - 1) α + 1) / n``
    is 0 at that value, and 1 where α is 1.
    """
    return ((n - 1) * cross + 1) / n


def _losses(leaf: Leaf, part: Replies) -> dict[Client, float]:
    """The members' latest validation losses, including those of this exchange."""
    new = {client: losses[0] for client, losses in zip(part.clients, part.losses, strict=True)}
    if any(np.isnan(loss) for loss in new.values()):
        raise SettingError(
            "CFL.fallback true needs validation data of every client, and this scenario has none for some"
        )
    return {**leaf.losses, **new}


def as_whole(training: Training) -> Training:
    """Return the settings for each half of the data, with about the steps of ``training`` on all of it."""
    return training if training.steps is not None else replace(training, epochs=2 * training.epochs)


def measured_gamma(replies: Replies) -> float | None:
    """Measure γ_max from the updates of halves: the greatest noise over signal, ``sqrt(1/ρ_i - 1)``.

    Returns:
        γ_max; infinite if the halves of a client share no signal, None if fewer than two clients
        sent halves.
    """
    if replies.halves is None or len(replies.halves.clients) < 2:
        return None
    least = float(reliability(replies.halves.gram).min())
    return float(np.sqrt(1 / least - 1)) if least > 0 else float("inf")
