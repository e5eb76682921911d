"""One model for all clients: what FedAvg has in common with the methods that personalize its model at the clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Note,
    Plan,
    Replies,
    Task,
    Weighting,
    joined,
    without,
)

S = TypeVar("S")


class OneModel(Generic[S]):
    """The contract's functions of a method whose state has ``clients`` and one ``model`` ``(d,)``, without init and plan.

    Attributes:
        fraction: Fraction of the clients sampled in each round.
        weighting: Weights of the mean.
    """

    fraction: float
    weighting: Weighting

    def asking(self, state: S, cohort: Cohort, task: Task) -> Plan:
        """Return the plan in which the sampled clients carry out ``task``, which offers model 0."""
        known: Any = state
        asked = cohort.sample(known.clients, self.fraction)
        return Plan(
            models=known.model[None],
            tasks=dict.fromkeys(asked, task),
            need="mean",
            weighting=self.weighting,
        )

    def step(self, state: S, replies: Replies) -> S:
        if not replies.clients:
            return state
        known: Any = state
        moved: S = replace(known, model=known.model + replies.mean_updates[0])
        return moved

    def assignment(self, state: S) -> Assignment:
        known: Any = state
        groups = (known.clients,) if known.clients else ()
        return Assignment(
            models=known.model[None], row=dict.fromkeys(known.clients, 0), groups=groups
        )

    def explain(self, state: S) -> tuple[Note, ...]:
        return ()

    def admit(self, state: S, clients: tuple[Client, ...]) -> S:
        known: Any = state
        more: S = replace(known, clients=joined(known.clients, clients))
        return more

    def retire(self, state: S, clients: tuple[Client, ...]) -> S:
        known: Any = state
        fewer: S = replace(known, clients=without(known.clients, clients))
        return fewer
