"""Independent: every client trains alone, from the same first model, and nothing is ever sent.

The "Independent" baseline of Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate: Towards
Maximizing the Generalization Performance in Cross-Silo Federated Learning" (HCCT), arXiv
2401.13236. Every layer stays at its client, so a round costs no bytes. The code published with the
paper starts with one round of FedAvg; here there is no communication at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

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
    joined,
    state,
    without,
)
from coterie.settings import check


@state("independent")
class IndependentState:
    """State of independent training.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the first model; only the clients know the models trained from it.
        layers: all layers of the model.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Independent:
    """Every client on its own: no communication, one model per client."""

    name: ClassVar[str] = "independent"

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(features=("local-layers",), sums_only=True, unchanged_by="rotation")

    def init(self, federation: Federation) -> IndependentState:
        return IndependentState(
            clients=federation.clients, model=federation.draw(0), layers=tuple(federation.columns)
        )

    def plan(self, state: IndependentState, cohort: Cohort) -> Plan:
        # All layers are local: clients train on from their own values, and send and receive nothing.
        task = Task(offered=(0,), local_layers=state.layers)
        return Plan(
            models=state.model[None], tasks=dict.fromkeys(cohort.present, task), need="mean"
        )

    def step(self, state: IndependentState, replies: Replies) -> IndependentState:
        # All that is learned is at the clients.
        return state

    def assignment(self, state: IndependentState) -> Assignment:
        return Assignment(
            models=state.model[None],
            row=dict.fromkeys(state.clients, 0),
            groups=tuple((client,) for client in state.clients),
        )

    def admit(self, state: IndependentState, clients: tuple[Client, ...]) -> IndependentState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: IndependentState, clients: tuple[Client, ...]) -> IndependentState:
        return replace(state, clients=without(state.clients, clients))

    def explain(self, state: IndependentState) -> tuple[Note, ...]:
        return ()
