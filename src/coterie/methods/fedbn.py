"""FedBN: FedAvg of all layers but BatchNorm, which stays at the clients.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", ICLR 2021, arXiv 2102.07623, Algorithm 1. Clients whose inputs differ, such as
images of several scanners, keep the scale and the shift of their features, with the running
statistics.

Deviations
- A client that joins late begins with the BatchNorm of the first model. The paper averages the
  clients' BatchNorm for an unknown client, which needs them to be sent.
- A share of the clients can be asked; in the paper all take part in every round.
- In the paper's experiments the mean is unweighted, since its clients have equally many examples;
  ``weighting="uniform"`` does the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from coterie.core import (
    NOT_STORED,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting


@state("fedbn")
class FedBNState:
    """State of FedBN.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model; the columns of the layers ``keep`` hold the values of the
            first draw.
        keep: layers that stay at the clients.
        warned: whether the first round is over, which warns if there are no such layers.
        notes: notes of the last exchange.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    keep: tuple[str, ...]
    warned: bool = False
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class FedBN(OneModel[FedBNState]):
    """One model for all but its BatchNorm layers, of which every client has its own."""

    name: ClassVar[str] = "fedbn"

    layers: tuple[str, ...] = setting(
        (), "names of the layers that stay at their client; empty: all BatchNorm layers"
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "data", "weights of the mean: by training examples, or uniform", choices=("data", "uniform")
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("local-layers",),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> FedBNState:
        for layer in self.layers:
            if layer not in federation.columns:
                known_layers = ", ".join(federation.columns)
                raise SettingError(
                    f"FedBN.layers must be layers of the model, one of {known_layers}, got {layer!r}"
                )
        return FedBNState(
            clients=federation.clients,
            model=federation.draw(0),
            keep=self.layers or federation.norms,
        )

    def plan(self, state: FedBNState, cohort: Cohort) -> Plan:
        # A client trains all layers together, and sends all but BatchNorm.
        return self.asking(state, cohort, Task(offered=(0,), local_layers=state.keep))

    def step(self, state: FedBNState, replies: Replies) -> FedBNState:
        # The first round says so if nothing stays at the clients.
        notes: tuple[Note, ...] = ()
        if not state.keep and not state.warned:
            text = "the model has no BatchNorm layer with parameters, so that FedBN is FedAvg"
            notes = (Note(kind="keep", effect="warns", clients=state.clients, text=text),)
        return replace(super().step(state, replies), notes=notes, warned=True)

    def explain(self, state: FedBNState) -> tuple[Note, ...]:
        return state.notes
