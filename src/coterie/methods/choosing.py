"""What IFCA and FLSC share: k models from which every client chooses by its training loss, and how they come to be.

A *start* is k first models and what became of them. With ``restarts`` above 1 several starts are trained for
``restart_rounds`` rounds each, one after the other. Then all their models are measured by the same clients in one
exchange, and the start goes on whose clients have the smallest mean of least training losses: of the model that they would
take, or the mean of those that they would take. Until then every client is served by the first start. Learning rates decay
with the rounds of the start itself, so that all starts are trained alike. Rounds of all starts are communication rounds
like any other; the exchanges that only measure, and those of k-means++, belong to the round that they come before.

Whoever sums up a method's costs sees all of this: there is no exchange but those that ``plan`` asks for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.core import Assignment, Client, Cohort, Federation, Note, Plan, Replies, Task, joined, without
from coterie.methods.initialisation import MOST_CENTRES, Centres, plan_centre, step_centre
from coterie.methods.starts import (
    Choice,
    ChoosingState,
    Start,
    groups_of,
    least,
    mean_losses,
    of_all,
    restart_note,
    round_note,
)
from coterie.settings import SettingError, check, setting


@dataclass(frozen=True, kw_only=True)
class Choosing(ABC):
    """Settings and start-up of methods whose clients choose among k models; a subclass says what a round is."""

    measures: ClassVar[bool] = True  # losses leave the clients, if not in the first exchange

    models: int = setting(4, "number of models (k)", ge=1)
    fraction: float = setting(1.0, "share of the clients asked in each exchange, at least one", gt=0, le=1)
    initial: str = setting(
        "distinct", "first models: distinct draws; the same draw k times; or kmeans++, each trained by a client (ours)",
        choices=("distinct", "same", "kmeans++"),
    )  # fmt: skip
    initial_epochs: int = setting(5, "local epochs of a client that trains a first model (kmeans++)", ge=1)
    restarts: int = setting(1, "number of starts, of which the one of least training loss goes on", ge=1)
    restart_rounds: int = setting(3, "rounds that each start is trained for before they are compared", ge=1)

    def __post_init__(self) -> None:
        check(self)
        if self.initial == "kmeans++" and self.models > MOST_CENTRES:
            raise SettingError(
                f"{type(self).__name__}.models must be at most {MOST_CENTRES} with initial kmeans++, got {self.models}: each "
                "takes two exchanges of the first round"
            )

    # -- what a subclass says -------------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """How many models a client takes."""
        return 1

    @abstractmethod
    def plan_round(self, start: Start, asked: tuple[Client, ...], cohort: Cohort) -> Plan:
        """One round of a start."""

    @abstractmethod
    def aggregate(self, models: Tensor, replies: Replies) -> Tensor:
        """The models ``(k, d)`` after a round."""

    @abstractmethod
    def served(self, models: Tensor, choices: Mapping[Client, Choice]) -> tuple[Tensor, dict[Client, int]]:
        """The models that serve clients, and client -> row."""

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> ChoosingState:
        starts = []
        for start in range(self.restarts):
            first = start * self.models
            if self.initial == "distinct":
                models = torch.stack([federation.draw(first + row) for row in range(self.models)])
            else:
                models = federation.draw(start).repeat(self.models, 1)
            starts.append(Start(models=models, centres=Centres() if self.initial == "kmeans++" else None))
        return ChoosingState(clients=federation.clients, starts=tuple(starts))

    def plan(self, state: ChoosingState, cohort: Cohort) -> Plan:
        asked = cohort.sample(state.clients, self.fraction)
        if state.compares:
            models = torch.cat([start.models for start in state.starts])
            task = Task(offered=tuple(range(len(models))), epochs=0, measure="train")
            return Plan(models=models, tasks=dict.fromkeys(asked, task), need="mean", ends_round=False)
        start = state.starts[state.at]
        if start.centres is not None:
            return plan_centre(start.centres, start.models, state.clients, asked, cohort, self.initial_epochs)
        return self.plan_round(start, asked, cohort)

    def step(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        if state.compares:
            return self._keep_best(state, replies)
        start = state.starts[state.at]
        if start.centres is not None:
            centres, models = step_centre(start.centres, start.models, replies)
            return self._put(state, replace(start, centres=centres, models=models))
        models = self.aggregate(start.models, replies) if replies.clients else start.models
        chosen = {**start.chosen, **dict(zip(replies.clients, replies.chosen, strict=True))}
        new = replace(start, models=models, round=start.round + 1, chosen=chosen)
        tried = len(state.starts) > 1 and new.round >= self.restart_rounds
        return self._put(state, new, at=state.at + tried, notes=(round_note(state, start, new, replies),))

    def _put(self, state: ChoosingState, start: Start, *, at: int | None = None, notes: tuple[Note, ...] = ()) -> ChoosingState:
        starts = (*state.starts[: state.at], start, *state.starts[state.at + 1 :])
        return replace(state, starts=starts, at=state.at if at is None else at, notes=notes)

    def _keep_best(self, state: ChoosingState, replies: Replies) -> ChoosingState:
        """The start with the smallest mean of least losses over the clients that measured; the first where none did.

        Whoever measured has told its choice with it.
        """
        losses = mean_losses(replies, len(state.starts), self.taken)
        best = int(np.argmin(losses))
        start = state.starts[best]
        measured = zip(replies.clients, replies.losses, strict=True)
        rows = slice(best * self.models, (best + 1) * self.models)
        told = {c: least(values[rows], self.taken) for c, values in measured if np.isfinite(values[rows]).all()}
        start = replace(start, chosen={**start.chosen, **told})
        note = restart_note(state, start, best, losses, len(replies.clients))
        return replace(state, starts=(start,), at=0, notes=(note,))

    def assignment(self, state: ChoosingState) -> Assignment:
        choices = of_all(state.clients, state.starts[0].chosen)
        models, row = self.served(state.starts[0].models, choices)
        return Assignment(models=models, row=row, groups=groups_of(choices))

    def explain(self, state: ChoosingState) -> tuple[Note, ...]:
        return state.notes

    # -- comings and goings ---------------------------------------------------------------------------------------------

    def admit(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """They choose by their losses when first asked; until then the most frequent choice serves them."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: ChoosingState, clients: tuple[Client, ...]) -> ChoosingState:
        """Their choices are forgotten; what the models learned from them stays."""
        gone = set(clients)
        starts = tuple(_without(start, gone) for start in state.starts)
        return replace(state, clients=without(state.clients, clients), starts=starts, notes=())


def _without(start: Start, gone: set[Client]) -> Start:
    kept = {c: choice for c, choice in start.chosen.items() if c not in gone}
    centres = start.centres
    if centres is not None:
        centres = replace(centres, losses={c: v for c, v in centres.losses.items() if c not in gone})
    return replace(start, chosen=kept, centres=centres)
