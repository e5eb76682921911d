"""FedAvg as an observer sees it: the norms and cosines of what clients send, in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import cosine, norm_of_mean, norms
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
    state,
    weights,
)
from coterie.settings import check, setting

UPDATES, GRADIENTS = "updates", "gradients"
"""What cosines are taken of: weight-updates (51) and full-batch gradients (50). Also the names of a
note's matrices."""


@state("papers.watched")
class WatchedState:
    """clients: all ids. model ``(d,)``. columns: of the parameters. round: how many are done. cosines ``(n, n)``: of the
    gradients at this model, None before they were asked for. note: of the last exchange."""

    clients: tuple[Client, ...]
    model: Tensor
    columns: slice
    round: int = 0
    cosines: Tensor | None = None
    note: Note | None = None


@dataclass(frozen=True, kw_only=True)
class Watched:
    """FedAvg that never splits and tells each round's norms and cosines; of gradients too, at the same model, if asked."""

    name: ClassVar[str] = "watched"
    needs: ClassVar[Needs] = Needs(
        occasional=("gradients", "halves", "training"), unchanged_by="rotation"
    )

    gradients_from: int | None = setting(
        None, "the round from which clients are asked for gradients too", ge=1
    )

    def __post_init__(self) -> None:
        check(self)

    def init(self, federation: Federation) -> WatchedState:
        return WatchedState(
            clients=federation.clients, model=federation.draw(0), columns=federation.parameters
        )

    def _asks(self, state: WatchedState) -> bool:
        """Whether this exchange is of gradients: they come before the updates of their round, and change nothing."""
        return (
            self.gradients_from is not None
            and state.round + 1 >= self.gradients_from
            and state.cosines is None
        )

    def plan(self, state: WatchedState, cohort: Cohort) -> Plan:
        asks = self._asks(state)
        tasks = dict.fromkeys(cohort.present, Task(offered=(0,), gradient=asks))
        return Plan(
            models=state.model[None],
            tasks=tasks,
            need="gram",
            columns=state.columns,
            ends_round=not asks,
        )

    def step(self, state: WatchedState, replies: Replies) -> WatchedState:
        if replies.gram is None or replies.means is None:
            raise ValueError("a watched federation has clients that answer")
        cosines = torch.from_numpy(cosine(replies.gram)).float()
        if self._asks(state):
            return replace(state, cosines=cosines, note=None)
        seen = {UPDATES: cosines} | ({} if state.cosines is None else {GRADIENTS: state.cosines})
        numbers = {
            "mean_norm": norm_of_mean(replies.gram, weights(replies, "data")),
            "client_norm": float(norms(replies.gram).max()),
        }
        note = Note(
            kind="watch",
            effect="info",
            clients=state.clients,
            text="watched",
            numbers=numbers,
            similarity=seen,
            heard=replies.clients,
        )
        model = state.model + replies.means[0]
        return replace(state, model=model, round=state.round + 1, cosines=None, note=note)

    def assignment(self, state: WatchedState) -> Assignment:
        return Assignment(
            models=state.model[None], row=dict.fromkeys(state.clients, 0), groups=(state.clients,)
        )

    def explain(self, state: WatchedState) -> tuple[Note, ...]:
        return () if state.note is None else (state.note,)


def cosines_of(note: Note, of: str) -> np.ndarray:
    """``(n, n)`` the cosines of a watched round, float64, with ones where a client meets itself."""
    square = note.similarity[of].double().numpy().clip(-1, 1)
    np.fill_diagonal(square, 1.0)
    return square
