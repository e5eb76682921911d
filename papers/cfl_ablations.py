"""CFL as its published code runs it, with two of that code's bugs, each to be switched on by itself.

F. Sattler's notebook (felisat/clustered-federated-learning on GitHub, commit 23a1c38) beside the
paper, arXiv 1910.01991:
- It cuts a group by complete linkage. The cut that Algorithm 1 looks for is that of single linkage.
- A cut's two sides are positions within the group, and are used as if they were clients' numbers.
  That is right for the first split only, where the group is everybody. Afterwards a client may be
  named by two groups, or by none.

As in that code a client holds a model of its own, to which the mean update of every group that
names it is added: whom two groups name moves twice, and whom none names stands still. When to split
is not what is tried here, so rounds are given, as in the paper's figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from coterie.clustering import cosine, gram
from coterie.clustering.bipartition import bipartition
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Note,
    Plan,
    Replies,
    as_groups,
    average,
    state,
    train_from,
    weights,
)
from coterie.methods.cfl import without_bias
from coterie.settings import check, setting
from papers.cfl_learning_seen import watch

Places = tuple[int, ...]
"""Positions in the list of all clients; published code calls its clients so."""


@state("papers.published-cfl")
class PublishedState:
    """round: completed. clients (n,): all ids. models ``(n, d)``: each client's own. columns: of the parameters. groups:
    places of their clients, which may overlap and leave clients out. notes: of the last exchange.
    """

    round: int
    clients: tuple[Client, ...]
    models: Tensor
    columns: slice
    groups: tuple[Places, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublishedCFL:
    """CFL with each client's model kept apart; like CFL with ``split_rounds``, unless a bug is switched on."""

    name: ClassVar[str] = "cfl-published"

    split_rounds: tuple[int, ...] = setting(
        (), "split the least alike group in each of these rounds", ge=1
    )
    linkage: str = setting(
        "single",
        "of the cut: single is Algorithm 1's; complete is the published code's",
        choices=("single", "complete"),
    )
    ids: str = setting(
        "right",
        "mixed up: positions within a group are taken for clients, as in the published code",
        choices=("right", "mixed up"),
    )

    def __post_init__(self) -> None:
        check(self)

    def init(self, federation: Federation) -> PublishedState:
        n = len(federation.clients)
        models = federation.draw(0).repeat(n, 1)
        return PublishedState(
            round=0,
            clients=federation.clients,
            models=models,
            columns=federation.parameters,
            groups=(tuple(range(n)),),
        )

    def plan(self, state: PublishedState, cohort: Cohort) -> Plan:
        return train_from(
            state.models, {client: place for place, client in enumerate(state.clients)}
        )

    def step(self, state: PublishedState, replies: Replies) -> PublishedState:
        if replies.clients != state.clients or replies.updates is None:
            raise ValueError("the published code hears every client in every round")
        seen = [
            watch(self._ids(state, group), replies, state.columns)
            for group in dict.fromkeys(state.groups)
        ]
        groups, models = state.groups, state.models.clone()
        if state.round + 1 in self.split_rounds:
            groups = self.split(groups, cosine(gram(replies.updates, columns=state.columns)))
        for group in groups:
            own = replies.of(self._ids(state, group))
            assert own.updates is not None
            models[list(group)] += average(own.updates, weights(own, "uniform"))
        notes = tuple(note for note in seen if note)
        return replace(state, round=state.round + 1, models=models, groups=groups, notes=notes)

    def split(self, groups: tuple[Places, ...], cosines: np.ndarray) -> tuple[Places, ...]:
        """The groups with the least alike one of them cut in two. cosines ``(n, n)``: of all clients' updates."""
        cuts = {
            i: bipartition(cosines[np.ix_(group, group)], self.linkage)
            for i, group in enumerate(groups)
            if len(group) > 1
        }
        if not cuts:
            return groups
        chosen = min(cuts, key=lambda i: (without_bias(cuts[i].cross, len(groups[i])), i))
        sides = (cuts[chosen].left, cuts[chosen].right)
        if self.ids == "right":
            sides = (
                tuple(groups[chosen][i] for i in sides[0]),
                tuple(groups[chosen][i] for i in sides[1]),
            )
        return (*groups[:chosen], *groups[chosen + 1 :], *sides)

    def assignment(self, state: PublishedState) -> Assignment:
        """Everybody has a model of its own; clients that are named by the same groups are a group."""
        named: dict[tuple[int, ...], list[Client]] = {}
        for place, client in enumerate(state.clients):
            named.setdefault(
                tuple(i for i, group in enumerate(state.groups) if place in group), []
            ).append(client)
        row = {client: place for place, client in enumerate(state.clients)}
        return Assignment(models=state.models, row=row, groups=as_groups(named.values()))

    def explain(self, state: PublishedState) -> tuple[Note, ...]:
        return state.notes

    def _ids(self, state: PublishedState, group: Places) -> tuple[Client, ...]:
        return tuple(state.clients[place] for place in group)
