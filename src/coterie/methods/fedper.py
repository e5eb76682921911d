"""FedPer: FedAvg of the first layers; the last ones stay at their client for ever.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization
Layers", arXiv 1912.00818, Algorithms 1 and 2. FedPer is HCCT-P with one group.

Deviations
- Every client's own layers start with the same values, those of the first model, as in HCCT's
  experiments. In the paper the client chooses them.
- A share of the clients can be asked; in the paper all clients take part in every round. Weights
  are then those of the clients that answered, and the other clients' own layers do not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.core import Client, Cohort, Federation, Needs, Plan, Task, Weighting, state
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting


@state("fedper")
class FedPerState:
    """State of FedPer.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model; the columns of the layers ``keep`` hold the values of the
            first draw.
        keep: layers that stay at the clients.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    keep: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FedPer(OneModel[FedPerState]):
    """One model for all but its last layers, of which every client has its own."""

    name: ClassVar[str] = "fedper"

    personal: int = setting(1, "number of last layers that stay at their client (K_P)", ge=0)
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
            features=("local-layers",) if self.personal else (),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> FedPerState:
        # The layers are in the order of the forward pass: the last K_P are personal.
        layers = tuple(federation.columns)
        if self.personal > len(layers):
            raise SettingError(
                f"FedPer.personal must be at most the {len(layers)} layers of the model, got {self.personal}"
            )
        return FedPerState(
            clients=federation.clients,
            model=federation.draw(0),
            keep=layers[len(layers) - self.personal :],
        )

    def plan(self, state: FedPerState, cohort: Cohort) -> Plan:
        # A client trains all layers together, and sends those that it does not keep.
        task = Task(offered=(0,), local_layers=state.keep)
        return self.asking(state, cohort, task)
