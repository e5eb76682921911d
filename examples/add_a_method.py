"""A custom method: FedAvg, then k-means of the clients' updates, then FedAvg in each group.

    python examples/add_a_method.py

docs/research/add-a-method.md goes through it piece by piece.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from sklearn.cluster import KMeans
from torch import Tensor

import coterie
from coterie.clustering import groups_of
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    as_groups,
    group_means,
    joined,
    row_of,
    state,
    without,
)
from coterie.settings import check, setting
from coterie.settings.calls import public


@state("k-means")
class KMeansState:
    """round: rounds completed. clients: all clients. models ``(k, d)``: a single one until the clustering. parameters: the
    number of columns that are not buffers. group: client -> row of ``models``, once it has one.
    notes: of the last step."""

    round: int
    clients: tuple[Client, ...]
    models: Tensor
    parameters: int
    group: Mapping[Client, int]
    notes: tuple[Note, ...] = ()


@public
@dataclass(frozen=True, kw_only=True)
class KMeansFL:
    """FedAvg, then k-means of all clients' updates, then FedAvg in each group."""

    name: ClassVar[str] = "k-means"
    needs: ClassVar[Needs] = Needs(
        occasional=("model-choice", "losses"),  # of clients that have no group yet
        unchanged_by="rotation",  # k-means compares Euclidean distances
    )

    groups: int = setting(4, "number of groups (k)", ge=1)
    warmup: int = setting(3, "rounds of FedAvg before the round whose updates are clustered", ge=0)
    inside: float = setting(
        0.5, "most of the updates' variance that may be left inside the groups", ge=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)

    def init(self, federation: Federation) -> KMeansState:
        size = federation.parameters.stop
        return KMeansState(
            round=0,
            clients=federation.clients,
            models=federation.draw(0)[None],
            parameters=size,
            group={},
        )

    def plan(self, state: KMeansState, cohort: Cohort) -> Plan:
        everything = tuple(
            range(len(state.models))
        )  # a client without a group takes the model of lowest loss
        offered = {c: (state.group[c],) if c in state.group else everything for c in state.clients}
        tasks = {
            client: Task(offered=rows)
            for client, rows in offered.items()
            if client in cohort.present
        }
        return Plan(
            models=state.models, tasks=tasks, need="rows" if state.round == self.warmup else "mean"
        )

    def step(self, state: KMeansState, replies: Replies) -> KMeansState:
        if not replies.clients:
            return replace(state, notes=())
        if state.round == self.warmup:
            return self.cluster(state, replies)
        chosen = {
            client: rows[0] for client, rows in zip(replies.clients, replies.chosen, strict=True)
        }
        new = [client for client in chosen if client not in state.group and len(state.models) > 1]
        notes = tuple(
            Note(
                kind="join",
                effect="joins",
                clients=(client,),
                text=f"least training loss with model {chosen[client]}",
            )
            for client in new
        )
        group = {**state.group, **chosen}
        return replace(
            state,
            round=state.round + 1,
            models=state.models + replies.mean_updates,
            group=group,
            notes=notes,
        )

    def cluster(self, state: KMeansState, replies: Replies) -> KMeansState:
        updates = replies.all_updates[
            :, : state.parameters
        ].double()  # running statistics do not count
        count = min(self.groups, len(updates.unique(dim=0)))
        found = KMeans(count, n_init=10, random_state=0).fit(
            updates.numpy()
        )  # a pure function needs a fixed seed
        groups = as_groups(
            [replies.clients[i] for i in part] for part in groups_of(found.labels_)
        )  # ids from here on
        inside = found.inertia_ / max(float((updates - updates.mean(0)).square().sum()), 1e-12)
        clear = Criterion(
            "variance inside groups",
            inside,
            "<=",
            self.inside,
            "inside",
            met="clear groups",
            unmet="no groups",
        )
        if not clear.held:
            groups = (replies.clients,)
        text = f"k-means of {len(updates)} updates: {clear.text}"
        then = (
            "all clients would have stayed together"
            if clear.held
            else "there would have been groups"
        )
        note = Note(
            kind="cluster",
            effect="divides",
            clients=replies.clients,
            parts=groups,
            text=text,
            criteria=(clear,),
            otherwise=then,
            heard=replies.clients,
            similarity={"all": torch.cdist(updates, updates).float()},
        )
        models = state.models + group_means(replies, groups)[0]
        return replace(
            state, round=state.round + 1, models=models, group=row_of(groups), notes=(note,)
        )

    def assignment(self, state: KMeansState) -> Assignment:
        row = {client: state.group.get(client, 0) for client in state.clients}
        groups = as_groups({tuple(c for c in row if row[c] == r) for r in row.values()})
        return Assignment(models=state.models, row=row, groups=groups)

    def explain(self, state: KMeansState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: KMeansState, clients: tuple[Client, ...]) -> KMeansState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: KMeansState, clients: tuple[Client, ...]) -> KMeansState:
        stay = {client: row for client, row in state.group.items() if client not in clients}
        return replace(state, clients=without(state.clients, clients), group=stay)


def main(rounds: int = 12) -> None:
    for round in coterie.run(
        KMeansFL(groups=4), "digits/label-permutation", rounds=rounds, workers=1
    ):
        for note in round.notes:
            print(f"round {round.number}: {note.kind}: {note.text}")
    assert round.scores is not None  # the last round is always evaluated
    accuracy = sum(scores["accuracy"] for scores in round.scores.values()) / len(round.scores)
    print(f"accuracy {accuracy:.2f}, groups {round.assignment.groups}")


if __name__ == "__main__":
    main()
