"""FL+HC: FedAvg for n rounds, one agglomerative clustering of all clients' updates, then FedAvg in each cluster.

C. Briggs, Z. Fan, P. Andras, "Federated learning with hierarchical clustering of local updates to improve training on
non-IID data", IJCNN 2020, arXiv 2004.11791, Algorithm 1.

Deviations
- Weights are renormalised over the clients that answered; the paper's ``n_k / n`` over all samples does not sum to one
  under a client fraction.
- The feature is the update (Algorithm 1), not the local parameters (section I-C): with cosine, parameters share the global
  model and all look alike. L1, L2 and Ward do not tell the two apart.
- Average linkage is the mean pairwise distance (UPGMA), which is monotone as the paper demands; the centroid linkage that
  its text describes is not.
- Clients silent in the clustering exchange are a group of their own, with the global model. Where fewer than ``quorum`` of
  the clients answer, the round is one more of FedAvg and they are asked again in the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import cut_dendrogram, dendrogram, distances, groups_of, manhattan
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
    Note,
    Plan,
    Replies,
    as_groups,
    row_of,
    state,
    train_from,
)  # fmt: skip
from coterie.settings import SettingError, check, setting


@state
class FLHCState:
    """round: completed. models ``(k, d)``: one per group. clustered: whether the clustering exchange has been held.
    missed: the last round in which too few answered it."""

    clients: tuple[Client, ...]
    parameters: int
    round: int
    groups: Groups
    models: Tensor
    clustered: bool = False
    missed: int = -1
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FLHC:
    """FedAvg, then one hierarchical clustering of the updates, then FedAvg per cluster."""

    name: ClassVar[str] = "flhc"

    warmup: int = setting(10, "rounds of FedAvg before the clustering exchange (n)", ge=0)
    fraction: float = setting(0.2, "share of each group's clients asked in a round (C), at least one", gt=0, le=1)
    metric: str = setting("l2", "distance of updates", choices=("l1", "l2", "cosine"))
    linkage: str = setting("ward", "linkage; ward needs metric l2", choices=("single", "complete", "average", "ward"))
    threshold: float | None = setting(3.0, "merge while the linkage distance is below this (t); paper: 3, FEMNIST 10", gt=0)
    groups: int | None = setting(None, "number of groups, in place of threshold", ge=1)
    quorum: float = setting(0.5, "least share of the clients that must answer to be clustered; ours", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)
        if (self.threshold is None) == (self.groups is None):
            raise SettingError(
                f"exactly one of FLHC.threshold and FLHC.groups must be set and the other be none, "
                f"got {self.threshold} and {self.groups}"
            )
        if self.linkage == "ward" and self.metric != "l2":
            raise SettingError(f"FLHC.linkage ward needs metric l2, got metric {self.metric}")

    def init(self, federation: Federation) -> FLHCState:
        if self.groups is not None and self.groups > len(federation.clients):
            raise SettingError(f"FLHC.groups must be at most the {len(federation.clients)} clients, got {self.groups}")
        return FLHCState(
            clients=federation.clients, parameters=federation.parameters.stop, round=0,
            groups=(federation.clients,), models=federation.draw(0)[None],
        )  # fmt: skip

    def _clusters_now(self, state: FLHCState) -> bool:
        return not state.clustered and state.round >= self.warmup and state.missed != state.round

    def plan(self, state: FLHCState, cohort: Cohort) -> Plan:
        if self._clusters_now(state):  # everyone, whatever the fraction; nothing is aggregated: an exchange, no round
            need = "rows" if self.metric == "l1" else "gram"
            row = dict.fromkeys(cohort.present, 0)
            return train_from(state.models, row, need=need, columns=slice(0, state.parameters), ends_round=False)
        asked = {c: row for row, group in enumerate(state.groups) for c in cohort.sample(group, self.fraction)}
        return train_from(state.models, asked, need="mean")

    def step(self, state: FLHCState, replies: Replies) -> FLHCState:
        if self._clusters_now(state):
            return self._cluster(state, replies)
        models = state.models if replies.means is None else state.models + replies.means
        return replace(state, models=models, round=state.round + 1, notes=())

    def _cluster(self, state: FLHCState, replies: Replies) -> FLHCState:
        heard, members = len(replies.clients), len(state.clients)
        if heard < self.quorum * members or heard < 1:
            text = f"not clustered yet: {heard} of {members} clients answered, fewer than the quorum of {self.quorum:g}"
            return replace(state, missed=state.round, notes=(Note(kind="keep", clients=state.clients, text=text),))
        apart = self._apart(state, replies)
        labels, heights = self._labels(apart)
        parts = [[replies.clients[i] for i in group] for group in groups_of(labels)]
        late = sorted(set(state.clients) - set(replies.clients))
        groups = as_groups([*parts, late] if late else parts)
        note = self._note(state, groups, heights, late)
        note = replace(note, heard=replies.clients, similarity={"all": torch.from_numpy(apart).float()})
        return replace(state, groups=groups, models=state.models[0].repeat(len(groups), 1), clustered=True, notes=(note,))

    def _apart(self, state: FLHCState, replies: Replies) -> np.ndarray:
        """``(n, n)`` distances of the updates heard."""
        if self.metric == "l1":
            assert replies.updates is not None
            return manhattan(replies.updates, columns=slice(0, state.parameters))
        assert replies.gram is not None
        return distances(replies.gram, metric=self.metric)

    def _labels(self, apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(label per reply, heights of the merges)."""
        if len(apart) == 1:
            return np.zeros(1, dtype=np.int64), np.zeros(0)
        merges = dendrogram(apart, self.linkage)
        groups = None if self.groups is None else min(self.groups, len(apart))
        return cut_dendrogram(merges, threshold=self.threshold, groups=groups), merges[:, 2]

    def _note(self, state: FLHCState, groups: Groups, heights: np.ndarray, late: list[Client]) -> Note:
        """The cut in words: the highest merge that was made and the lowest that was not tell how clear it is."""
        count = len(groups) - bool(late)
        made, open_ = np.split(np.sort(heights), [len(heights) - (count - 1)])
        numbers = {"groups": float(count)}
        if len(made):
            numbers["highest_merge"] = float(made[-1])
        if len(open_):
            numbers["lowest_cut"] = float(open_[0])
        inside, across = (f"{numbers[name]:.3g}" if name in numbers else "none" for name in ("highest_merge", "lowest_cut"))
        rule = f"threshold {self.threshold:g}" if self.threshold is not None else f"{self.groups} groups asked for"
        text = (
            f"{self.linkage} linkage of {self.metric} distances after {state.round} rounds, {rule}: highest merge made "
            f"{inside}, lowest merge not made {across}, {count} group{'s' if count > 1 else ''}"
        )
        if late:
            text += f"; {len(late)} silent clients wait in a group of their own"
        kind = "cluster" if len(groups) > 1 else "keep"
        return Note(kind=kind, clients=state.clients, text=text, parts=groups, numbers=numbers)

    def assignment(self, state: FLHCState) -> Assignment:
        return Assignment(models=state.models, row=row_of(state.groups), groups=state.groups)

    def explain(self, state: FLHCState) -> tuple[Note, ...]:
        return state.notes


