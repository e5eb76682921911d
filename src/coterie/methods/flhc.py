"""FL+HC: FedAvg for n rounds, one agglomerative clustering of all clients' updates, then FedAvg in each cluster.

C. Briggs, Z. Fan, P. Andras, "Federated learning with hierarchical clustering of local updates to
improve training on non-IID data", IJCNN 2020, arXiv 2004.11791, Algorithm 1.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- Weights are renormalised over the clients that answered; the paper's ``n_k / n`` over all samples
  does not sum to one under a client fraction.
- The feature is the update (Algorithm 1), not the local parameters (section I-C): parameters share
  the global model, so with cosine all clients look alike. With L1, L2 and Ward the two features
  give the same result.
- Average linkage is the mean pairwise distance (UPGMA), which is monotone as the paper requires;
  the centroid linkage that its text describes is not.
- If fewer than ``quorum`` of the clients answer the clustering exchange, the round is one more of
  FedAvg and they are asked again in the next. Clients that are silent in the exchange that
  clusters, and clients that join later, are placed like CFL's newcomers
  (:mod:`coterie.methods._cluster_tree`): when they next answer, they train from the model of the
  clustering exchange and join the cluster that holds the nearest update by ``metric``. If that
  update is not nearer than the threshold, they form a new cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from coterie.clustering import cut_dendrogram, dendrogram, gram, groups_of, manhattan
from coterie.clustering import distances as distances_of_gram
from coterie.clustering.agglomerative import borders, doubt
from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Groups,
    Needs,
    Note,
    Plan,
    Replies,
    Sign,
    as_groups,
    group_means,
    state,
    train_from,
)
from coterie.methods import _cluster_tree
from coterie.methods._cluster_tree import Tree, root
from coterie.methods._decisions import (
    cut_in_words,
    cut_rule_in_words,
    merges_at_cut,
    missed_quorum,
)
from coterie.methods._leavers import entries_without
from coterie.methods._presets import Presets
from coterie.settings import SettingError, check, setting


@state("flhc")
class FLHCState:
    """State of FL+HC.

    Attributes:
        round: number of rounds completed.
        tree: a tree of one level; its root's model is that of the clustering exchange.
        leaves: node of the tree for each row of ``models``; the root until the clients have been
            clustered.
        models: ``(k, d)``, the models of the leaves.
        walkers: clients that are not placed yet, at node 0.
        missed: the last round in which too few clients answered the clustering exchange.
        notes: notes of the last exchange.
    """

    round: int
    tree: Tree
    leaves: tuple[int, ...]
    models: torch.Tensor
    walkers: Mapping[Client, int] = field(default_factory=dict)
    missed: int = -1
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    @property
    def clustered(self) -> bool:
        """Whether the clients have been clustered."""
        return not self.tree.is_leaf(0)

    @property
    def groups(self) -> Groups:
        """The groups, in the order of the models; a group that all clients have left is empty."""
        return tuple(self.tree.nodes[node].clients for node in self.leaves)


@dataclass(frozen=True, kw_only=True)
class FLHC:
    """FedAvg, then one hierarchical clustering of the updates, then FedAvg per cluster."""

    name: ClassVar[str] = "flhc"

    # Section III of the paper: MNIST, and FEMNIST by writer. It also varies n and C.
    presets: ClassVar[Presets] = {
        "paper": {
            "warmup": 10,
            "fraction": 0.2,
            "metric": "l2",
            "linkage": "ward",
            "threshold": 3.0,
        },
        "paper-femnist": {
            "warmup": 10,
            "fraction": 0.2,
            "metric": "l2",
            "linkage": "ward",
            "threshold": 10.0,
        },
    }

    warmup: int = setting(
        10,
        "rounds of FedAvg before the clustering exchange (n)",
        ge=0,
        begins="the clustering",
        rounds_later=1,
    )
    fraction: float = setting(
        0.2, "fraction of each group's clients sampled in a round (C), at least one", gt=0, le=1
    )
    metric: str = setting("l2", "distance of updates", choices=("l1", "l2", "cosine"))
    linkage: str = setting(
        "ward", "linkage; ward needs metric l2", choices=("single", "complete", "average", "ward")
    )
    threshold: float | None = setting(
        3.0, "merge while the linkage distance is below this (t); paper: 3, FEMNIST 10", gt=0
    )
    groups: int | None = setting(None, "number of groups, instead of threshold", ge=1)
    quorum: float = setting(
        0.5,
        "minimum fraction of the clients that must answer before clustering; not in the paper",
        gt=0,
        le=1,
    )
    edge_sketch: int | None = setting(
        4096,
        "size of the sketch kept of each update to place late clients; none, or metric l1: full updates; not in the paper",
        multiple=4,
        only_with={"sketch": (None,)},
    )
    sketch: int | None = setting(
        None,
        "cluster sketches of this size, instead of edge_sketch; full updates are not kept; not in the paper",
        multiple=4,
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.threshold is None) == (self.groups is None):
            raise SettingError(
                f"exactly one of FLHC.threshold and FLHC.groups must be set and the other must be none, "
                f"got {self.threshold} and {self.groups}"
            )
        if self.sketch is not None and self.metric == "l1":
            raise SettingError(
                "FLHC.sketch needs metric l2 or cosine, got l1: a sketch keeps no L1 distances"
            )
        if self.linkage == "ward" and self.metric != "l2":
            raise SettingError(f"FLHC.linkage ward needs metric l2, got metric {self.metric}")

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            unchanged_by="signed-permutation" if self.metric == "l1" else "rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> FLHCState:
        if self.groups is not None and self.groups > len(federation.clients):
            raise SettingError(
                f"FLHC.groups must be at most the {len(federation.clients)} clients, got {self.groups}"
            )
        # A sketch preserves inner products, not L1 distances.
        sketch_size = None if self.metric == "l1" else self.sketch or self.edge_sketch
        tree = root(federation.clients, federation.parameters.stop, sketch_size)
        return FLHCState(round=0, tree=tree, leaves=(0,), models=federation.draw(0)[None])

    def _clusters_now(self, state: FLHCState) -> bool:
        """Whether the next exchange is the clustering exchange; after too few replies, a round of FedAvg comes first."""
        return not state.clustered and state.round >= self.warmup and state.missed != state.round

    def plan(self, state: FLHCState, cohort: Cohort) -> Plan:
        # The clustering exchange: all clients, regardless of fraction. No aggregation, so not a
        # round.
        if self._clusters_now(state):
            row_of_client = dict.fromkeys(cohort.present, 0)
            return train_from(
                state.models, row_of_client, **self._needs_rows(state), ends_round=False
            )
        # A round of FedAvg in each group.
        row_of_client = {}
        for group_row, group in enumerate(state.groups):
            if group:
                row_of_client.update(dict.fromkeys(cohort.sample(group, self.fraction), group_row))
        # Only walkers need single updates; the groups need their means.
        plan_needs: dict[str, Any] = self._needs_rows(state) if state.walkers else {"need": "mean"}
        plan = train_from(state.models, row_of_client, **plan_needs)
        # Late clients train from the models on their way through the tree.
        walker_models, walker_tasks = _cluster_tree.tasks(
            state.tree, state.walkers, cohort.present, len(state.models)
        )
        if not walker_tasks:
            return plan
        models = torch.stack([*state.models, *walker_models])
        return replace(plan, models=models, tasks={**plan.tasks, **walker_tasks})

    def _needs_rows(self, state: FLHCState) -> dict[str, Any]:
        """Arguments of a plan that collects updates, or their sketches."""
        # A sketch is made of the parameters alone: running statistics are not compared.
        if self.sketch is None:
            return {"need": "rows"}
        return {"need": "rows", "sketch": self.sketch, "columns": slice(0, state.tree.parameters)}

    def step(self, state: FLHCState, replies: Replies) -> FLHCState:
        if self._clusters_now(state):
            return self._cluster(state, replies)
        # A round of FedAvg: each group's model takes the mean update of its members.
        mean_updates = None if replies.means is None else replies.means[: len(state.models)]
        # Single updates include those of walkers, which count for no group.
        if mean_updates is None and replies.updates is not None:
            mean_updates, _ = group_means(replies, state.groups)
        models = state.models if mean_updates is None else state.models + mean_updates
        # The first round says when clients will be clustered, for runs that end before.
        notes: tuple[Note, ...] = ()
        if state.round == 0 and not state.clustered and self.warmup > 1:
            notes = (self._warmup_note(state),)
        new_state = replace(state, models=models, round=state.round + 1, notes=notes)
        return self._place(new_state, replies)

    def _warmup_note(self, state: FLHCState) -> Note:
        """Say in the first round when the clients will be clustered, for runs that end before."""
        description = f"not clustered yet: this is done after round {self.warmup} (warmup)"
        return Note(
            kind="keep", effect="keeps", clients=state.tree.nodes[0].clients, text=description
        )

    def _place(self, state: FLHCState, replies: Replies) -> FLHCState:
        """Place the walkers that answered in a group, or in new groups."""
        if not state.walkers:
            return state
        walked = _cluster_tree.step(state.tree, state.walkers, replies, self.metric, self.threshold)
        # Walkers that are far from all clients have become new leaves, each with the root's model.
        arrived_at = dict.fromkeys(walked.arrived.values())
        new_leaves = tuple(node_id for node_id in arrived_at if node_id not in state.leaves)
        root_model = state.tree.model(0)
        return replace(
            state,
            tree=walked.tree,
            walkers=walked.walkers,
            leaves=(*state.leaves, *new_leaves),
            models=torch.cat([state.models, root_model.repeat(len(new_leaves), 1)]),
            notes=walked.notes,
        )

    def _cluster(self, state: FLHCState, replies: Replies) -> FLHCState:
        """The clustering exchange: all clients are clustered by their updates, unless too few answered."""
        clients = state.tree.nodes[0].clients
        quorum_note = missed_quorum(clients, len(replies.clients), self.quorum)
        if quorum_note is not None:
            return replace(state, missed=state.round, notes=(quorum_note,))
        # FL+HC: hierarchical clustering of the updates w_k - w by their distances, once.
        distances = self._distances(replies.all_updates[:, : state.tree.parameters])
        labels, merges = self._labels(distances)
        groups = as_groups(
            [replies.clients[position] for position in positions] for positions in groups_of(labels)
        )
        tree, leaves = state.tree.split(0, groups, state.models[0], {}, replies, state.round)
        # Clients that were silent are placed when they answer.
        late_clients = sorted(set(clients) - set(replies.clients))
        note = self._note(state, groups, merges[:, 2], late_clients)
        # Sketches add an error to the distances, which may have changed the cut.
        num_parameters = state.tree.parameters or state.models.shape[1]
        if self.sketch is not None and self.sketch < num_parameters:
            doubt_text = self._doubt(distances, labels, merges, self.sketch)
            unsure_text = f", unsure: {doubt_text}" if doubt_text else ""
            note = replace(note, text=f"{note.text}; in sketches{unsure_text}")
        similarity = {"all": torch.from_numpy(distances).float()}
        note = replace(note, heard=replies.clients, similarity=similarity)
        # Every cluster starts from the global model.
        return replace(
            state,
            tree=tree,
            leaves=leaves,
            models=state.models[0].repeat(len(groups), 1),
            walkers=dict.fromkeys(late_clients, 0),
            notes=(note,),
        )

    def _distances(self, updates: torch.Tensor) -> np.ndarray:
        """``(n, n)`` distances between the received updates."""
        if self.metric == "l1":
            return manhattan(updates)
        return distances_of_gram(gram(updates), metric=self.metric)

    def _labels(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(label of each reply, the merges)."""
        # The clusters are those below the threshold, or as many as asked for.
        merges = dendrogram(distances, self.linkage)
        num_groups = None if self.groups is None else min(self.groups, len(distances))
        return cut_dendrogram(merges, threshold=self.threshold, groups=num_groups), merges

    def _doubt(
        self, distances: np.ndarray, labels: np.ndarray, merges: np.ndarray, sketch_size: int
    ) -> str | None:
        """Why whole updates might give other groups than their sketches; None if they would not."""
        return doubt(
            borders(distances, labels, merges, self.linkage),
            linkage=self.linkage,
            metric=self.metric,
            threshold=self.threshold,
            size=sketch_size,
            n=len(labels),
        )

    def _note(
        self, state: FLHCState, groups: Groups, heights: np.ndarray, late_clients: list[Client]
    ) -> Note:
        """Describe the cut; the last merge made and the next merge, which was not made, show how clear it is."""
        # How far the threshold is from the last merge made, and from the next one.
        merge_numbers = merges_at_cut(np.sort(heights), len(groups))
        description = (
            f"{self.linkage} linkage of {self.metric} distances after {state.round} rounds, "
            f"{cut_rule_in_words(self.threshold, self.groups)}: "
            f"distance {cut_in_words(merge_numbers, len(groups))}"
        )
        if late_clients:
            description += (
                f"; {len(late_clients)} clients without an answer are placed when they answer"
            )
        return Note(
            kind="cluster" if len(groups) > 1 else "keep",
            effect="divides" if len(groups) > 1 else "keeps",
            clients=state.tree.nodes[0].clients,
            text=description,
            parts=groups,
            numbers={"groups": float(len(groups)), "node": 0.0, "first_part": 1.0, **merge_numbers},
            criteria=self._criteria(merge_numbers),
            otherwise="the groups would have been different",
        )

    def _criteria(self, merge_numbers: Mapping[str, float]) -> tuple[Criterion, ...]:
        """The comparisons with the threshold that decided the cut."""
        # A number of groups is no threshold that a merge could be above or below.
        if self.threshold is None:
            return ()
        comparisons: Mapping[str, tuple[Sign, str]] = {
            "last_merge": ("<", "two groups merged"),
            "next_merge": (">=", "no merge"),
        }
        criteria = []
        for merge_name, (sign, meaning) in comparisons.items():
            if merge_name in merge_numbers:
                criterion = Criterion(
                    f"distance of the {merge_name.replace('_', ' ')}",
                    merge_numbers[merge_name],
                    sign,
                    self.threshold,
                    "threshold",
                    key=merge_name,
                    met=meaning,
                )
                criteria.append(criterion)
        return tuple(criteria)

    def assignment(self, state: FLHCState) -> Assignment:
        # Walkers are a group until they are placed.
        filled_groups = [group for group in state.groups if group]
        groups = as_groups([*filled_groups, *_cluster_tree.waiting(state.walkers)])
        row_of_client: dict[Client, int] = {}
        for group_row, group in enumerate(state.groups):
            row_of_client.update(dict.fromkeys(group, group_row))
        root_model = state.tree.nodes[0].model
        if root_model is None or (len(state.leaves) == 1 and not state.walkers):
            return Assignment(models=state.models, row=row_of_client, groups=groups)
        # The root's model comes last; it serves walkers, and is on the path of all clients.
        root_row = len(state.models)
        row_of_client.update(dict.fromkeys(state.walkers, root_row))
        path_rows = {}
        for client, group_row in row_of_client.items():
            path_rows[client] = (root_row,) if group_row == root_row else (root_row, group_row)
        return Assignment(
            models=torch.cat([state.models, root_model[None]]),
            row=row_of_client,
            groups=groups,
            path=path_rows,
        )

    def admit(self, state: FLHCState, clients: tuple[Client, ...]) -> FLHCState:
        """Admit clients: before the clustering they are members at once, after it they are placed."""
        # Node 0 is the group of all clients, and later the root, from which walkers are placed.
        at_root = dict.fromkeys(clients, 0)
        walkers = {**state.walkers, **at_root} if state.clustered else state.walkers
        return replace(state, tree=state.tree.place(at_root), walkers=walkers)

    def retire(self, state: FLHCState, clients: tuple[Client, ...]) -> FLHCState:
        walkers = entries_without(state.walkers, clients)
        return replace(state, tree=state.tree.remove(clients), walkers=walkers)

    def explain(self, state: FLHCState) -> tuple[Note, ...]:
        return state.notes
