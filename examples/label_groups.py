"""A method that asks clients about their data: groups of clients with similar shares of classes, and FedAvg in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from sklearn.cluster import KMeans
from torch import Tensor

import coterie
from coterie.clustering import groups_of
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    as_groups,
    row_of,
    state,
)
from coterie.settings import check, setting
from coterie.settings.calls import public


@state("label-groups")
class LabelGroupsState:
    """clients: all clients. models ``(k, d)``: a single one until there are groups. row: client -> its row of ``models``,
    empty before clients were asked. notes: of the last step."""

    clients: tuple[Client, ...]
    models: Tensor
    row: Mapping[Client, int]
    notes: tuple[Note, ...] = ()


@public
@dataclass(frozen=True, kw_only=True)
class LabelGroups:
    """Groups by the shares of classes that clients tell, then FedAvg in each group."""

    name: ClassVar[str] = "label-groups"
    needs: ClassVar[Needs] = Needs(features=("label-counts", "training"), unchanged_by="rotation")

    groups: int = setting(4, "number of groups (k)", ge=1)

    def __post_init__(self) -> None:
        check(self)

    def init(self, federation: Federation) -> LabelGroupsState:
        return LabelGroupsState(
            clients=federation.clients,
            models=federation.draw(0)[None],
            row={},
        )

    def plan(self, state: LabelGroupsState, cohort: Cohort) -> Plan:
        if not state.row:  # the first exchange of round 1 only asks: no client trains
            ask = Task(offered=(0,), epochs=0, statistics=("label-counts",))
            tasks = dict.fromkeys(cohort.present, ask)
            return Plan(models=state.models, tasks=tasks, need="mean", ends_round=False)
        tasks = {client: Task(offered=(state.row[client],)) for client in cohort.present}
        return Plan(models=state.models, tasks=tasks, need="mean")

    def step(self, state: LabelGroupsState, replies: Replies) -> LabelGroupsState:
        if not state.row:
            return self.group(state, replies.statistics.get("label-counts", {}))
        if replies.means is None:  # nobody answered
            return replace(state, notes=())
        return replace(state, models=state.models + replies.means, notes=())

    def group(
        self, state: LabelGroupsState, counts: Mapping[Client, np.ndarray]
    ) -> LabelGroupsState:
        told = sorted(counts)
        if not told:
            return replace(state, row=dict.fromkeys(state.clients, 0), notes=())
        shares = np.stack([counts[client] / max(counts[client].sum(), 1) for client in told])
        found = KMeans(min(self.groups, len(told)), n_init=10, random_state=0).fit(shares)
        parts = as_groups([told[i] for i in part] for part in groups_of(found.labels_))
        text = f"k-means of the shares of {shares.shape[1]} classes"
        note = Note(kind="cluster", effect="divides", clients=tuple(told), parts=parts, text=text)
        row = row_of(parts)
        for client in state.clients:
            row.setdefault(client, 0)  # who told nothing is in the first group
        models = state.models.repeat(len(parts), 1)
        return replace(state, models=models, row=row, notes=(note,))

    def assignment(self, state: LabelGroupsState) -> Assignment:
        row = {client: state.row.get(client, 0) for client in state.clients}
        groups = as_groups({tuple(c for c in row if row[c] == r) for r in row.values()})
        return Assignment(models=state.models, row=row, groups=groups)

    def explain(self, state: LabelGroupsState) -> tuple[Note, ...]:
        return state.notes


def main() -> None:
    scenario = replace(coterie.SCENARIOS["digits/dirichlet"], alpha=0.1)
    for round in coterie.run(LabelGroups(), scenario, rounds=10, workers=1):
        for note in round.notes:
            print(f"round {round.number}: {note.kind}: {note.text}")
    assert round.scores is not None  # the last round is always evaluated
    accuracy = sum(scores["accuracy"] for scores in round.scores.values()) / len(round.scores)
    print(f"accuracy {accuracy:.2f}, groups {round.assignment.groups}")


if __name__ == "__main__":
    main()
