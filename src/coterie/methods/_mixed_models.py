"""A model for each client, which trains from a mixture of all clients' models: what FedAMP and pFedGraph share.

The weights of the mixtures are a graph of who learns from whom. A method says how they follow from
the models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    joined,
    rows_without,
    without,
)
from coterie.settings import SettingError


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedModelsState:
    """What the state of such a method has.

    Attributes:
        clients: all ids.
        first: ``(d,)``, the first model.
        trained: the m clients that have answered, in the order of ``models``.
        models: ``(m, d)``, w_j, their models.
        parameters: the number of columns that are no buffers.
        training: the experiment's training settings, with the pull to the mixture.
    """

    clients: tuple[Client, ...]
    first: torch.Tensor
    trained: tuple[Client, ...]
    models: torch.Tensor
    parameters: int
    training: Training


State = TypeVar("State", bound=MixedModelsState)


class MixedModels(ABC, Generic[State]):
    """The contract's functions of a method in which each client trains from its mixture u_i.

    Attributes:
        pull: Weight of the term that pulls a client's model to its mixture.
        fraction: Fraction of the clients sampled in each round.
        replaces_training: Setting of local training -> the method's setting in its place.
    """

    replaces_training: ClassVar[Mapping[str, str]] = {"proximal": "pull"}
    pull: float
    fraction: float

    @abstractmethod
    def collaboration(self, state: State) -> np.ndarray:
        """Return the weights ``(m, m)`` of the clients' models in their mixtures; rows sum to one.

        Args:
            state: The state, whose ``trained`` is the order of rows and columns.
        """

    def first_values(self, federation: Federation) -> dict[str, Any]:
        """The values of the first state, by the names of :class:`MixedModelsState`.

        Raises:
            SettingError: A step of SGD would move models away from their mixtures.
        """
        # The term multiplies w - u by 1 - lr pull in each step of SGD, and must not lengthen it.
        training = federation.training
        if training.optimizer == "sgd" and self.pull * training.lr > 2:
            raise SettingError(
                f"{type(self).__name__}.pull must be at most 2 / lr = {2 / training.lr:g}, got {self.pull:g}: each step would "
                "move a client's model farther away from its mixture"
            )
        first = federation.draw(0)
        return {
            "clients": federation.clients,
            "first": first,
            "trained": (),
            "models": torch.zeros(0, len(first)),
            "parameters": federation.parameters.stop,
            "training": replace(training, proximal=self.pull),
        }

    def plan(self, state: State, cohort: Cohort) -> Plan:
        # Each client gets its mixture, and trains with a pull to it.
        sampled_clients = cohort.sample(state.clients, self.fraction)
        tasks = {}
        for row, client in enumerate(sampled_clients):
            tasks[client] = Task(offered=(row,), training=state.training)
        return Plan(models=self._mixtures(state, sampled_clients), tasks=tasks, need="rows")

    def step(self, state: State, replies: Replies) -> State:
        if not replies.clients:
            return state
        # w_i is the mixture from which the client started, plus its update.
        trained_models = self._mixtures(state, replies.clients) + replies.all_updates
        kept_clients, kept_models = rows_without(state.trained, state.models, replies.clients)
        return replace(
            state,
            trained=(*kept_clients, *replies.clients),
            models=torch.cat([kept_models, trained_models]),
        )

    def _mixtures(self, state: State, clients: tuple[Client, ...]) -> torch.Tensor:
        """The models u_i ``(len(clients), d)``; of clients that have not answered yet, the mean of all."""
        if not state.trained:
            return state.first.repeat(len(clients), 1)
        weights = torch.from_numpy(self.collaboration(state))
        mixtures = (weights @ state.models.double()).float()
        row_of_client = {client: row for row, client in enumerate(state.trained)}
        mean_model = state.models.mean(0)
        models_of_clients = []
        for client in clients:
            row = row_of_client.get(client)
            models_of_clients.append(mean_model if row is None else mixtures[row])
        return torch.stack(models_of_clients) if models_of_clients else state.models[:0]

    def assignment(self, state: State) -> Assignment:
        # Clients use their own models; the last row serves those that have not answered yet.
        fallback = state.models.mean(0) if state.trained else state.first
        row_of_client = dict.fromkeys(state.clients, len(state.trained))
        for row, client in enumerate(state.trained):
            row_of_client[client] = row
        return Assignment(
            models=torch.cat([state.models, fallback[None]]),
            row=row_of_client,
            groups=(state.clients,) if state.clients else (),
        )

    def explain(self, state: State) -> tuple[Note, ...]:
        return ()

    def admit(self, state: State, clients: tuple[Client, ...]) -> State:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: State, clients: tuple[Client, ...]) -> State:
        """Forget the clients and their models."""
        trained, models = rows_without(state.trained, state.models, clients)
        return replace(
            state, clients=without(state.clients, clients), trained=trained, models=models
        )
