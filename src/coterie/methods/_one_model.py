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
    SharedValues,
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


OneModelState = TypeVar("OneModelState", bound=HasClientsAndModel)


def _changed(state: OneModelState, **values: Any) -> OneModelState:
    """``dataclasses.replace``; every state is a dataclass."""
    dataclass_state: Any = state
    changed_state: OneModelState = replace(dataclass_state, **values)
    return changed_state


class OneModel(Generic[OneModelState]):
    """The contract's functions of a method whose state has ``clients`` and one ``model`` ``(d,)``, without init and plan.

    Attributes:
        fraction: Fraction of the clients sampled in each round.
        weighting: Weights of the mean.
    """

    fraction: float
    weighting: Weighting

    def asking(self, state: OneModelState, cohort: Cohort, task: Task) -> Plan:
        """Return the plan in which the sampled clients carry out ``task``, which offers model 0."""
        # The mean of the updates is all that the method needs.
        sampled_clients = cohort.sample(state.clients, self.fraction)
        return Plan(
            models=state.model[None],
            tasks=dict.fromkeys(sampled_clients, task),
            need="mean",
            weighting=self.weighting,
        )

    def step(self, state: OneModelState, replies: Replies) -> OneModelState:
        if not replies.clients:
            return state
        # FedAvg: the mean of the trained models is the sent model plus the mean update.
        return _changed(state, model=state.model + replies.mean_updates[0])

    def assignment(self, state: OneModelState) -> Assignment:
        # A federation that all clients have left has no groups.
        groups = (state.clients,) if state.clients else ()
        return Assignment(
            models=state.model[None], row=SharedValues([(state.clients, 0)]), groups=groups
        )

    def explain(self, state: OneModelState) -> tuple[Note, ...]:
        return ()

    def admit(self, state: OneModelState, clients: tuple[Client, ...]) -> OneModelState:
        return _changed(state, clients=joined(state.clients, clients))

    def retire(self, state: OneModelState, clients: tuple[Client, ...]) -> OneModelState:
        return _changed(state, clients=without(state.clients, clients))
