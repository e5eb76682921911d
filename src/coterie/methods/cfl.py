"""CFL: splits a group by cosine similarity once its mean update is small, but single ones are not.

F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization under Privacy Constraints", IEEE TNNLS 2020, arXiv 1910.01991: Algorithms 1
(bipartition), 2 (FL), 3 (recursion) and 5 (protocol).

A group splits when all of these criteria hold for the updates ``Δ_i`` of the members that answered
in an exchange:
- stationary: ``‖Σ w_i Δ_i‖ < eps1`` (the norm of the averaged update, not the average of norms);
- incongruent: ``max_i ‖Δ_i‖ >= eps2``;
- separable: ``gamma_max < sqrt((1 - α_cross) / 2)``, where ``α_cross`` is the greatest similarity
  across the optimal bipartition.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- eps1 and eps2 are relative by default (``scale``), because absolute norms grow with the learning
  rate, the number of local steps and the model. eps1 is then a share of ``max_i ‖Δ_i‖`` in the same
  exchange. eps2 is a share of the greatest ``‖Δ_i‖`` so far on the group's path from the root: the
  updates of congruent clients shrink, those of incongruent ones do not. gamma_max is compared with
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
- With ``gamma_max`` none, the members of a group that looks stationary and incongruent are asked for
  updates of both halves of their data. These give γ_i, noise over signal, of each
  (:func:`coterie.clustering.reliability`); the greatest counts. On each half they make as many
  steps as usual on all data, so that eps1 and eps2 are tested in these rounds as in all others.
- With gradients, the criteria still use updates; the gradients are asked for afterwards, in a
  separate exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.clustering import (
    Bipartition,
    bipartition,
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
from coterie.clustering.halves import centred
from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Criterion,
    Feature,
    Federation,
    Groups,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    Weighting,
    as_groups,
    state,
    tested,
    weights,
    without,
)
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import Leaf, Node, Tree, join, ordered, root
from coterie.methods._decisions import KeepWhole, SplitGroup
from coterie.methods._hostile_few import Clients, left_out
from coterie.methods._presets import Presets
from coterie.settings import SettingError, check, setting


@state("cfl")
class CFLState:
    """State of CFL.

    Attributes:
        round: number of rounds completed.
        leaves: the groups; an empty group is kept for clients that come back.
        tree: the parameter tree.
        walkers: client -> the inner node where it is, on its way to a leaf.
        notes: notes of the last exchange.
        training: the experiment's training settings.
    """

    round: int
    leaves: tuple[Leaf, ...]
    tree: Tree
    walkers: Mapping[Client, int] = field(default_factory=dict)
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)
    training: Training = field(default_factory=Training)


@dataclass(frozen=True, kw_only=True)
class CFL:
    """Splits a group in two when it has stopped learning and its clients' updates point apart."""

    name: ClassVar[str] = "cfl"

    # The authors' notebook, felisat/clustered-federated-learning; the paper gives no values.
    presets: ClassVar[Presets] = {
        "paper": {
            "scale": "absolute",
            "eps1": 0.4,
            "eps2": 1.6,
            "gamma_max": 0.0,
            "persistence": 1,
            "warmup": 20,
        }
    }

    eps1: float = setting(
        0.5,
        "a group is stationary if its mean update's norm is below this (ε1)",
        ge=0,
        only_with={"split_rounds": (None,)},
    )
    eps2: float = setting(
        0.4,
        "a group may split if its largest update norm is at least this (ε2)",
        ge=0,
        only_with={"split_rounds": (None,)},
    )
    scale: str = setting(
        "relative",
        "absolute: as in the paper; relative (not in the paper): eps1, eps2 are fractions of norms",
        choices=("relative", "absolute"),
        advanced=True,
        only_with={"split_rounds": (None,)},
    )
    gamma_max: float | None = setting(
        0.68,
        "maximum relative noise of gradients (γ_max); none: measured from halves of the data; not in the paper",
        ge=0,
        lt=1,
        only_with={"split_rounds": (None,)},
    )
    persistence: int = setting(
        3,
        "consecutive rounds in which all criteria must hold; paper: 1",
        ge=1,
        only_with={"split_rounds": (None,)},
    )
    split_rounds: tuple[int, ...] | None = setting(
        None,
        "split the least similar group in each of these rounds, not by criteria (the papers' figures)",
        ge=1,
        advanced=True,
        begins="the first split",
    )
    warmup: int = setting(
        0,
        "rounds before the first split",
        ge=0,
        advanced=True,
        only_with={"split_rounds": (None,)},
        begins="the first possible split",
        rounds_later=1,
    )
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
        "size of the sketch kept of each update on the tree's edges; none: the full update; not in the paper",
        multiple=4,
        advanced=True,
        only_with={"sketch": (None,)},
    )
    sketch: int | None = setting(
        None,
        "compare sketches of this size, instead of edge_sketch; full updates are not kept; not in the paper",
        multiple=4,
        advanced=True,
    )
    fraction: float = setting(
        1.0,
        "fraction of each group's clients sampled in a round, at least one; not in the paper",
        gt=0,
        le=1,
    )
    quorum: float = setting(
        0.5,
        "minimum fraction of a group that must answer before it splits; not in the paper",
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
        # Gradients are asked for in a separate exchange, after which there are no updates.
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
    def needs(self) -> Needs:
        """What the method needs from an engine; halves and gradients, if a group is about to split."""
        features: list[Feature] = []
        if self.similarity == "gradients":
            features.append("gradients")
        if self.gamma_max is None:
            features.append("halves")
        return Needs(
            features=tuple(features),
            occasional=("losses", "training"),
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> CFLState:
        # Algorithm 3 starts with one group of all clients, the root of the tree.
        leaf = Leaf(node=0, clients=federation.clients, model=federation.draw(0))
        sketch_size = self.sketch or self.edge_sketch
        tree = root(federation.clients, federation.parameters.stop, sketch_size)
        return CFLState(round=0, leaves=(leaf,), tree=tree, training=federation.training)

    def plan(self, state: CFLState, cohort: Cohort) -> Plan:
        # Algorithm 5: the members of each group train from the group's model.
        models = [leaf.model for leaf in state.leaves]
        tasks: dict[Client, Task] = {}
        # An exchange of gradients is only for the groups that are about to split by them.
        by_gradients = any(leaf.gradients for leaf in state.leaves)
        measure: Literal["validation"] | None = "validation" if self.fallback else None
        for leaf_row, leaf in enumerate(state.leaves):
            if not leaf.clients or (by_gradients and not leaf.gradients):
                continue
            by_halves = leaf.ask_all and self.gamma_max is None and not by_gradients
            task = Task(
                offered=(leaf_row,),
                gradient=by_gradients,
                measure=measure,
                halves=by_halves,
                training=training_of_halves(state.training) if by_halves else None,
            )
            # A group splits only by the updates of all its members.
            ask_all = by_gradients or leaf.ask_all or self._splits_by_schedule(state)
            sampled_clients = cohort.sample(leaf.clients, 1.0 if ask_all else self.fraction)
            tasks.update(dict.fromkeys(sampled_clients, task))
        if not by_gradients:
            # Algorithm 4: newcomers train from the model of the inner node that they have reached.
            walker_models, walker_tasks = _cluster_tree.tasks(
                state.tree,
                state.walkers,
                cohort.present,
                len(models),
                gradient=self.similarity == "gradients",
                measure=measure,
            )
            models += walker_models
            tasks |= walker_tasks
        return Plan(
            models=torch.stack(models),
            tasks=tasks,
            need="rows",
            columns=slice(0, state.tree.parameters),
            sketch=self.sketch,
            weighting=self.weighting,
            ends_round=not by_gradients,
        )

    def step(self, state: CFLState, replies: Replies) -> CFLState:
        if any(leaf.gradients for leaf in state.leaves):
            return self._step_gradients(state, replies)
        # The updates of each group, None if nobody in it answered.
        groups = {}
        for leaf_row, leaf in enumerate(state.leaves):
            groups[leaf.node] = self.group_updates(state, leaf_row, replies)
        scheduled_node = self.scheduled_node(state, groups)
        new_state = state
        leaves = []
        notes = []
        for leaf in state.leaves:
            group = groups[leaf.node]
            # Without a reply of a member, the group and its model stay.
            if group is None:
                leaves.append(leaf)
                continue
            # Algorithm 5: test the criteria. Then split the group, or apply its mean update.
            if self.split_rounds is None:
                decision = self.decide(group, state.round + 1)
            else:
                decision = split_by_schedule(group, leaf.node == scheduled_node)
            match decision.action:
                case SplitGroup(parts):
                    child_updates = {part: self._child_update(group, part) for part in parts}
                    new_state, children = self._split(new_state, group, child_updates)
                    leaves += children
                    notes.append(_cluster_tree.placed(describe(group, decision), leaf, children))
                case action:
                    leaves.append(trained(group, action))
                    notes.append(describe(group, decision))
        # Algorithm 4: newcomers move down one level of the tree.
        new_state = replace(
            new_state, round=state.round + 1, leaves=ordered(leaves), notes=tuple(notes)
        )
        return self._walk(new_state, state.walkers, replies)

    def _step_gradients(self, state: CFLState, replies: Replies) -> CFLState:
        """The exchange after stationarity: bipartition of the gradients at the current model (Algorithm 3)."""
        new_state = state
        leaves = []
        notes = []
        for leaf_row, leaf in enumerate(state.leaves):
            if not leaf.gradients:
                leaves.append(leaf)
                continue
            group = self.group_updates(state, leaf_row, replies)
            if group is None or not group.has_quorum(self.quorum):
                # Too few gradients: ask again if the criteria also hold in the next round.
                leaves.append(replace(leaf, gradients=False, held=self.persistence - 1))
                continue
            # A peak is a norm of updates, so the leaf keeps the one it had.
            leaf = replace(leaf, gradients=False, losses=group.leaf.losses)
            decision = self.decide_sides(group)
            note = describe(group, decision)
            match decision.action:
                # There are no updates in this exchange, so the children keep the model of their parent.
                case SplitGroup(parts):
                    no_updates = dict.fromkeys(parts, torch.zeros_like(leaf.model))
                    new_state, children = self._split(
                        new_state, replace(group, leaf=leaf), no_updates
                    )
                    leaves += children
                    notes.append(_cluster_tree.placed(note, leaf, children))
                case _:
                    leaves.append(leaf)
                    notes.append(note)
        return replace(new_state, leaves=ordered(leaves), notes=tuple(notes))

    def _split(
        self,
        state: CFLState,
        group: GroupUpdates,
        child_updates: Mapping[tuple[Client, ...], torch.Tensor],
    ) -> tuple[CFLState, list[Leaf]]:
        """Split a leaf in the state's tree, and return the state and the children; silent members become walkers."""
        tree, children = _cluster_tree.split(
            state.tree, group.leaf, child_updates, group.replies, state.round
        )
        # Members without an update in this exchange walk down from the split node.
        silent_members = set(group.leaf.clients) - set(group.clients)
        walkers = {**state.walkers, **dict.fromkeys(silent_members, group.leaf.node)}
        return replace(state, tree=tree, walkers=walkers), children

    def _child_update(self, group: GroupUpdates, part: tuple[Client, ...]) -> torch.Tensor:
        """The update that a part applies in the round of the split."""
        if self.post_split == "parent-mean":
            return group.mean
        part_replies = group.replies.of(part)
        return part_replies.mean(weights(part_replies, self.weighting))

    def _walk(
        self, state: CFLState, walkers_asked: Mapping[Client, int], replies: Replies
    ) -> CFLState:
        """Move the walkers of this exchange down one level; leaves that split in it are inner nodes now."""
        # Only walkers that were asked may move, not those that this exchange has made.
        walked = _cluster_tree.step(state.tree, state.walkers, replies.of(walkers_asked), "cosine")
        tree = walked.tree
        # Losses at the nodes show later which model on a client's path serves it best.
        if self.fallback:
            tree = _cluster_tree.with_losses(tree, walkers_asked, replies)
        leaves = ordered(join(state.leaves, walked.arrived))
        return replace(
            state,
            tree=tree,
            walkers=walked.walkers,
            leaves=leaves,
            notes=(*state.notes, *walked.notes),
        )

    def assignment(self, state: CFLState) -> Assignment:
        better_node = dict(best_on_path(state)) if self.fallback else {}
        return _cluster_tree.served(state, better_node, self.ensemble)

    def admit(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return _cluster_tree.admitted(state, clients)

    def retire(self, state: CFLState, clients: tuple[Client, ...]) -> CFLState:
        return _cluster_tree.retired(state, clients)

    def explain(self, state: CFLState) -> tuple[Note, ...]:
        return state.notes

    # -- the rule (Algorithm 5)
    # ---------------------------------------------------------------------------------------------------

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
        member_replies = replies.of(leaf.clients)
        if not member_replies.clients:
            return None
        # Running statistics are averaged with the parameters, but not compared.
        compared_columns = None if self.sketch else slice(0, state.tree.parameters)
        # ‖Σ w_i Δ_i‖, max_i ‖Δ_i‖ and the cosines follow from the Gram matrix.
        products = gram(member_replies.all_updates, columns=compared_columns)
        client_weights = weights(member_replies, self.weighting)
        # With a robust rule, or in a federation, the engine has averaged already.
        mean_update = (
            member_replies.mean(client_weights) if replies.means is None else replies.means[row]
        )
        if member_replies.averaging.needs_all:
            # The Gram matrix gives the norm of a weighted mean, not that of a robust or limited one.
            mean_norm = float(mean_update[: state.tree.parameters].double().norm())
        else:
            mean_norm = norm_of_mean(products, client_weights)
        # max_i ‖Δ_i‖; of clients that may be hostile, as many of the longest do not count.
        hostile = min(member_replies.averaging.hostile, len(products) - 1)
        client_norm = float(np.sort(norms(products))[-1 - hostile])
        # Algorithm 1: the two sides of least similarity, for the test whether they are separable.
        cosines = cosine(products)
        number_of_parameters = state.tree.parameters or len(mean_update)
        group = GroupUpdates(
            leaf=replace(
                leaf,
                peak=max(leaf.peak, client_norm),
                losses=_losses(leaf, member_replies) if self.fallback else {},
            ),
            replies=member_replies,
            mean=mean_update,
            mean_norm=mean_norm,
            client_norm=client_norm,
            cosines=cosines,
            sides=optimal_bipartition(cosines) if len(member_replies.clients) > 1 else None,
            complete=(
                self.fraction == 1.0
                or leaf.ask_all
                or leaf.gradients
                or self.split_rounds is not None
            ),
            sketched=self.sketch if self.sketch and self.sketch < number_of_parameters else None,
        )
        return self._without_bridges(group, products) if hostile else group

    def _without_bridges(self, group: GroupUpdates, products: np.ndarray) -> GroupUpdates:
        """The group's replies without the few hostile clients that keep two sides from being separable.

        In Algorithm 1's single linkage, one client between two groups joins them. Such a client walks
        down the tree like one that was silent.
        """
        position_of_client = {client: position for position, client in enumerate(group.clients)}

        def of(clients: Clients) -> GroupUpdates:
            rows = [position_of_client[client] for client in clients]
            # At a stationary point the honest updates sum to zero, unless a hostile client moves it.
            cosines = cosine(centred(products[np.ix_(rows, rows)]))
            sides = optimal_bipartition(cosines)
            return replace(group, replies=group.replies.of(clients), cosines=cosines, sides=sides)

        def differ(clients: Clients, num_sets: int) -> tuple[bool, float]:
            part = group if clients == group.clients else of(clients)
            criteria = self.cut_criteria(part)
            return all(criterion.held for criterion in criteria), -part.cross

        # First those that are about as near to both sides; then whichever joins them most.
        hostile = group.replies.averaging.hostile
        bridges = left_out(group.clients, hostile, differ, between_sides(group))
        if bridges is None:
            bridges = left_out(group.clients, hostile, differ)
        return of(without(group.clients, bridges)) if bridges else group

    def decide(self, group: GroupUpdates, round: int) -> Decision:
        """Test the criteria and decide what happens to a group.

        Args:
            group: the group's replies.
            round: the current round, from 1.
        """
        # Groups that cannot split, whatever their updates are.
        members = group.leaf.clients
        if len(members) < 2:
            return Decision(KeepWhole(), why="a group of one client cannot split")
        if round <= self.warmup:
            return Decision(
                KeepWhole(), why=f"round {round} is within the warm-up of {self.warmup} rounds"
            )
        # Algorithm 5, first test: stationary, and incongruent.
        norm_criteria = self.norm_criteria(group)
        if not all(criterion.held for criterion in norm_criteria):
            side_criteria = self.cut_criteria(group) if self.similarity == "updates" else ()
            return Decision(
                KeepWhole(), (*norm_criteria, *side_criteria), otherwise=self._otherwise(group)
            )
        # The sides of a sample of the members say nothing about the other members.
        if not group.complete:
            return Decision(AskAll(), norm_criteria, "all members are asked in the next round")
        if not group.has_quorum(self.quorum):
            answered_text = f"only {len(group.clients)} of {len(members)} members answered"
            return Decision(AskAll(), norm_criteria, f"{answered_text}, so they are asked again")
        # Algorithm 5, second test: the two sides are separable.
        if self.similarity == "gradients":
            decision = Decision(AskGradients(), norm_criteria, "gradients are asked for next")
        else:
            decision = self.decide_sides(group, norm_criteria)
        return self._persistent(group.leaf, decision)

    def norm_criteria(self, group: GroupUpdates) -> tuple[Criterion, ...]:
        """The criteria on norms (Algorithm 5): the group is stationary, and its members are incongruent."""
        # In the paper ‖Σ w_i Δ_i‖ and max_i ‖Δ_i‖; with the relative scale, shares of greater norms.
        mean_norm = group.mean_norm
        client_norm = group.client_norm
        if self.scale == "relative":
            mean_norm = _share(group.mean_norm, of=group.client_norm)
            client_norm = _share(group.client_norm, of=group.leaf.peak)
        return (
            Criterion(
                "mean update",
                mean_norm,
                "<",
                self.eps1,
                "eps1",
                met="stationary",
                unmet="not stationary",
                key="mean_norm",
            ),
            Criterion(
                "largest update",
                client_norm,
                ">=",
                self.eps2,
                "eps2",
                met="incongruent",
                unmet="congruent",
                key="client_norm",
            ),
        )

    def cut_criteria(self, group: GroupUpdates) -> tuple[Criterion, ...]:
        """The criteria on the two sides that Algorithm 1 finds: they can be told apart, and neither is too small.

        The first is left out where γ_max is not known: it is measured from updates of halves.
        """
        if group.sides is None:
            return ()
        criteria = []
        # γ_max is a setting, or measured from the halves of the members' data.
        if self.gamma_max is not None:
            gamma_max: float | None = self.gamma_max
            setting_name = "gamma_max"
            basis_text = ""
        else:
            gamma_max = measured_gamma(group.replies)
            setting_name = ""
            basis_text = " by the measured noise"
        if gamma_max is not None:
            # γ_max < sqrt((1 - α_cross) / 2)
            alpha_cross = group.alpha if self.scale == "relative" else group.cross
            criteria.append(
                Criterion(
                    "noise allowed",
                    gamma_bound(alpha_cross),
                    ">",
                    gamma_max,
                    setting_name,
                    met=f"separable{basis_text}",
                    unmet=f"not separable{basis_text}",
                    key="gamma_bound",
                )
            )
        # No side may be smaller than is asked for.
        if self.min_cluster_size > 1:
            criteria.append(
                Criterion(
                    "smaller side",
                    group.smaller_side,
                    ">=",
                    self.min_cluster_size,
                    "min_cluster_size",
                    unmet="a side is too small",
                    key="smaller_side",
                )
            )
        return tuple(criteria)

    def decide_sides(
        self, group: GroupUpdates, norm_criteria: tuple[Criterion, ...] = ()
    ) -> Decision:
        """Test the two sides of a group.

        Args:
            group: the group's replies, of two members or more.
            norm_criteria: the criteria that were met before.
        """
        if self.gamma_max is None and measured_gamma(group.replies) is None:
            # All members of such a group were asked for halves.
            if group.leaf.ask_all:
                missing_halves = (
                    "gamma_max cannot be measured: fewer than two members sent updates of halves"
                )
                return Decision(KeepWhole(), norm_criteria, missing_halves)
            return Decision(AskAll(), norm_criteria, "gamma_max is measured next, from halves")
        # The group splits where Algorithm 1 cuts it, if the sides can be told apart.
        criteria = (*norm_criteria, *self.cut_criteria(group))
        if not all(criterion.held for criterion in criteria):
            return Decision(KeepWhole(), criteria, otherwise=self._otherwise(group))
        return Decision(
            SplitGroup(group.parts()),
            criteria,
            group.uncertainty,
            "it would not have split in this round",
        )

    def _otherwise(self, group: GroupUpdates) -> str:
        """What would have happened to a group that is kept, had it met the criteria."""
        # The steps that come before a split, in their order: the first that is missing.
        if not (group.complete and group.has_quorum(self.quorum)):
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

    def _persistent(self, leaf: Leaf, decision: Decision) -> Decision:
        """Hold a decision until the criteria have been met for ``persistence`` rounds in a row."""
        would_act = isinstance(decision.action, SplitGroup | AskGradients)
        if not would_act or self.persistence == 1:
            return decision
        # The count of this round is the leaf's count so far, and one.
        round_count = Criterion(
            "rounds in a row",
            leaf.held + 1,
            ">=",
            self.persistence,
            "persistence",
            key="persistence",
        )
        criteria = (*decision.criteria, round_count)
        if round_count.held:
            return replace(decision, criteria=criteria)
        return Decision(HoldSplit(), criteria, decision.why, "it would have split by now")

    def _splits_by_schedule(self, state: CFLState) -> bool:
        """Whether the next round is one of ``split_rounds``."""
        return self.split_rounds is not None and state.round + 1 in self.split_rounds

    def scheduled_node(
        self, state: CFLState, groups: Mapping[int, GroupUpdates | None]
    ) -> int | None:
        """Return the node of least alpha_cross, to split in this round of ``split_rounds``; None for no node.

        alpha_cross is corrected for the number of clients. Otherwise a few clients that agree, with
        cosines of -1/(n - 1), would look less similar than many that do not.

        Args:
            state: the state before the exchange.
            groups: node -> the replies of its members.
        """
        if not self._splits_by_schedule(state):
            return None
        # Only groups that may split: two sides, a quorum of replies, and no side too small.
        alpha_of_node = {}
        for node, group in groups.items():
            if group is None or group.sides is None or not group.has_quorum(self.quorum):
                continue
            if group.smaller_side >= self.min_cluster_size:
                alpha_of_node[node] = group.alpha
        return min(alpha_of_node, key=lambda node: (alpha_of_node[node], node), default=None)


# ----------------------------------------------------------------------------------------------------
# Decisions: what happens to a group, and why.


@dataclass(frozen=True)
class AskAll:
    """All members are asked in the next exchange, for only then may the group split."""


@dataclass(frozen=True)
class HoldSplit:
    """All criteria were met, but not yet for enough rounds in a row."""


@dataclass(frozen=True)
class AskGradients:
    """All members are asked for gradients in the next exchange."""


Action = SplitGroup | KeepWhole | AskAll | HoldSplit | AskGradients

NOTE_KINDS: Mapping[type[Action], str] = {
    SplitGroup: "split",
    KeepWhole: "keep",
    AskAll: "ask",
    HoldSplit: "hold",
    AskGradients: "gradients",
}
"""What the notes of these decisions are called."""


@dataclass(frozen=True)
class Decision:
    """What happens to a group, and why.

    Attributes:
        action: what happens.
        criteria: the comparisons that were made.
        why: a reason beside the criteria.
        otherwise: what would have happened if the criteria had come out differently.
    """

    action: Action
    criteria: tuple[Criterion, ...] = ()
    why: str = ""
    otherwise: str = ""


def split_by_schedule(group: GroupUpdates, is_scheduled: bool) -> Decision:
    """Decide on a group by ``split_rounds``, not by criteria.

    Args:
        group: the group's replies.
        is_scheduled: whether the group is the one to split in this round.
    """
    # In the papers' figures, one group splits in a given round, whatever its criteria are.
    if not is_scheduled:
        return Decision(KeepWhole(), why="not chosen by split_rounds")
    corrected_alpha = f"{group.alpha:.3f} corrected for {len(group.clients)} clients"
    reason = f"the least similar group in a round of split_rounds: alpha_cross {group.cross:.3f} ({corrected_alpha})"
    if group.uncertainty:
        reason += f"; {group.uncertainty}"
    return Decision(SplitGroup(group.parts()), why=reason)


def trained(group: GroupUpdates, action: Action) -> Leaf:
    """Apply the mean update to a group that does not split, and set the request for its next exchange."""
    leaf = group.leaf
    return replace(
        leaf,
        model=leaf.model + group.mean,
        ask_all=isinstance(action, AskAll | HoldSplit),
        gradients=isinstance(action, AskGradients),
        held=leaf.held + 1 if isinstance(action, HoldSplit) else 0,
    )


def describe(group: GroupUpdates, decision: Decision) -> Note:
    """Describe a decision, with the group's norms and α_cross; with the cosines if it splits."""
    # A split is described with the cosines that led to it.
    parts: Groups = ()
    similarity: dict[str, torch.Tensor] = {}
    match decision.action:
        case SplitGroup(parts):
            similarity = {"all": torch.from_numpy(group.cosines).float()}
    # The numbers that the criteria are made from, also where no criterion was tested.
    numbers = {
        "peak": group.leaf.peak,
        "mean_norm": group.mean_norm,
        "client_norm": group.client_norm,
    }
    if group.sides is not None:
        numbers["alpha_cross"] = group.cross
    reasons = (tested(decision.criteria), decision.why)
    return Note(
        kind=NOTE_KINDS[type(decision.action)],
        effect="divides" if parts else "keeps",
        clients=group.leaf.clients,
        text="; ".join(reason for reason in reasons if reason),
        parts=parts,
        criteria=decision.criteria,
        otherwise=decision.otherwise,
        numbers=numbers,
        labels={"node": group.leaf.node, "heard": len(group.clients)},
        heard=group.clients,
        similarity=similarity,
    )


# ----------------------------------------------------------------------------------------------------
# What is compared.


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

    def has_quorum(self, quorum: float) -> bool:
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
    def smaller_side(self) -> int:
        """The number of clients on the smaller side."""
        return min(len(self.sides.left), len(self.sides.right)) if self.sides else 0

    @property
    def uncertainty(self) -> str:
        """What a split's note adds where the error of the sketches may have changed the sides; else empty."""
        if self.sketched is None:
            return ""
        # The sides are safe if they would stay the same with every cosine off by its error.
        cosine_error = sketch_error(self.sketched, len(self.clients))
        if bipartition_margin(self.cosines) > 2 * cosine_error:
            return ""
        return f"unsure: sketches of {self.sketched} numbers may have changed the sides"

    def parts(self) -> Groups:
        """Return the sides as groups of client ids."""
        if self.sides is None:
            return ()
        return as_groups(
            [self.clients[position] for position in side]
            for side in (self.sides.left, self.sides.right)
        )


def between_sides(group: GroupUpdates) -> tuple[Client, ...]:
    """Return the clients of a group in order, those that are about as near to both sides first.

    The sides are those of average linkage, which a few clients between two groups do not join.
    """
    sides = bipartition(group.cosines, "average")
    is_left = np.isin(np.arange(len(group.clients)), sides.left)
    to_left = group.cosines[:, is_left].mean(axis=1)
    to_right = group.cosines[:, ~is_left].mean(axis=1)
    order = np.argsort(np.abs(to_left - to_right), kind="stable")
    return tuple(group.clients[position] for position in order)


def best_on_path(state: CFLState) -> Iterator[tuple[Client, int]]:
    """Find the clients that an ancestor's model serves better than the model they were last offered.

    The comparison uses the validation losses in the replies. A leaf's loss is that of its model one
    round ago.

    Args:
        state: the state of CFL.

    Yields:
        (client, node) of each such client and of the ancestor with the smallest loss.
    """
    # A member of a leaf: its loss at the leaf against those at the leaf's ancestors.
    for leaf in state.leaves:
        ancestors = state.tree.path(leaf.node)[:-1]
        for client in leaf.clients:
            best_ancestor = _least_loss(client, ancestors)
            if best_ancestor and client in leaf.losses and best_ancestor[0] < leaf.losses[client]:
                yield client, best_ancestor[1]
    # A walker: all nodes on its path so far.
    for client, node_id in state.walkers.items():
        best_ancestor = _least_loss(client, state.tree.path(node_id))
        if best_ancestor:
            yield client, best_ancestor[1]


def _least_loss(client: Client, nodes: Iterable[Node]) -> tuple[float, int] | None:
    """The smallest loss of a client's that was measured at one of the nodes, and that node's id."""
    measured_losses = [(node.losses[client], node.id) for node in nodes if client in node.losses]
    return min(measured_losses, default=None)


def without_bias(alpha_cross: float, num_clients: int) -> float:
    """Return α_cross of n clients, corrected for the bias of a small n.

    At a stationary point the updates of n clients sum to zero. So the mean cosine is -1/(n - 1)
    even for clients that agree: -0.05 for 20 clients, but -0.25 for five. ``((n - 1) α + 1) / n``
    is 0 at that value, and 1 where α is 1.
    """
    return ((num_clients - 1) * alpha_cross + 1) / num_clients


def _share(norm: float, of: float) -> float:
    """A norm as a share of another; not a number if that is zero, so that no criterion holds."""
    return norm / of if of else math.nan


def _losses(leaf: Leaf, replies: Replies) -> dict[Client, float]:
    """The members' latest validation losses, including those of this exchange."""
    new_losses = {
        client: losses[0] for client, losses in zip(replies.clients, replies.losses, strict=True)
    }
    # A loss is not a number where a client has no validation data.
    if any(np.isnan(new_loss) for new_loss in new_losses.values()):
        raise SettingError(
            "CFL.fallback true needs validation data of every client, and this scenario has none for some"
        )
    return {**leaf.losses, **new_losses}


def training_of_halves(training: Training) -> Training:
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
    # γ_i = sqrt(1/ρ_i - 1) falls with the reliability, so the least reliable client has γ_max.
    least_reliability = float(reliability(replies.halves.gram).min())
    if least_reliability <= 0:
        return float("inf")
    return float(np.sqrt(1 / least_reliability - 1))
