"""One model for all clients: what FedAvg has in common with the methods that personalize its model at the clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch

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


class HasClientsAndModel(Protocol):
    """A state with ``clients`` and one ``model``."""

    @property
    def clients(self) -> tuple[Client, ...]:
        """All ids."""
        ...

    @property
    def model(self) -> torch.Tensor:
        """The model ``(d,)``."""
        ...


S = TypeVar("S", bound=HasClientsAndModel)


def _changed(state: S, **values: Any) -> S:
    """``dataclasses.replace``; every state is a dataclass."""
    dataclass_state: Any = state
    new: S = replace(dataclass_state, **values)
    return new


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
        asked = cohort.sample(state.clients, self.fraction)
        return Plan(
            models=state.model[None],
            tasks=dict.fromkeys(asked, task),
            need="mean",
            weighting=self.weighting,
        )

    def step(self, state: S, replies: Replies) -> S:
        if not replies.clients:
            return state
        return _changed(state, model=state.model + replies.mean_updates[0])

    def assignment(self, state: S) -> Assignment:
        groups = (state.clients,) if state.clients else ()
        return Assignment(
            models=state.model[None], row=dict.fromkeys(state.clients, 0), groups=groups
        )

    def explain(self, state: S) -> tuple[Note, ...]:
        return ()

    def admit(self, state: S, clients: tuple[Client, ...]) -> S:
        return _changed(state, clients=joined(state.clients, clients))

    def retire(self, state: S, clients: tuple[Client, ...]) -> S:
        return _changed(state, clients=without(state.clients, clients))
