"""FedRep: every client trains its own head first, and then the shared layers below it.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, arXiv 2102.07078, Algorithm 1. In each round a client
makes many updates of its head with the shared representation fixed, and then updates the
representation with its new head fixed. Only the representation is sent. FedPer trains both at once.

Deviations
- All clients' heads start with the same values, those of the first model. The paper leaves their
  start open.
- Means can be weighted by training examples; in the paper they are uniform, which is the default
  here.
- Heads and representation have the same learning rate; in the paper each has its own.
- Running statistics (BatchNorm) follow the examples while the head is trained, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.core import (
    Client,
    Cohort,
    Federation,
    Needs,
    Plan,
    Stage,
    Task,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.methods._presets import Presets
from coterie.settings import SettingError, check, setting


@state("fedrep")
class FedRepState:
    """State of FedRep.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model; the columns of the layers ``keep`` hold the values of the
            first draw.
        body: layers of the shared representation.
        keep: layers of the head, which stay at the clients.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    body: tuple[str, ...]
    keep: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FedRep(OneModel[FedRepState]):
    """One model for all but its last layers, which every client trains for itself before it trains the shared ones."""

    name: ClassVar[str] = "fedrep"

    # The paper's experiments.
    presets: ClassVar[Presets] = {
        "paper": {
            "head_epochs": 10,
            "weighting": "uniform",
        }
    }

    personal: int = setting(1, "number of last layers that stay at their client, the head", ge=0)
    head_epochs: int | None = setting(
        10, "passes in which only the head is trained; none: as the experiment states", ge=0
    )
    body_epochs: int | None = setting(
        None,
        "passes in which only the shared layers are trained; none: as the experiment states",
        ge=1,
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round (r), at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "uniform",
        "weights of the mean: by training examples, or uniform",
        choices=("data", "uniform"),
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("local-layers", "stages"),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> FedRepState:
        # The layers are in the order of the forward pass: the last ones are the head.
        layers = tuple(federation.columns)
        if self.personal > len(layers):
            raise SettingError(
                f"FedRep.personal must be at most the {len(layers)} layers of the model, got {self.personal}"
            )
        head_start = len(layers) - self.personal
        return FedRepState(
            clients=federation.clients,
            model=federation.draw(0),
            body=layers[:head_start],
            keep=layers[head_start:],
        )

    def plan(self, state: FedRepState, cohort: Cohort) -> Plan:
        # Algorithm 1 at a client: updates of the head with the representation fixed, and then of the
        # representation with the new head fixed.
        stages = (
            Stage(layers=state.keep, epochs=self.head_epochs),
            Stage(layers=state.body, epochs=self.body_epochs),
        )
        # A stage without layers is left out: one of both parts may be empty.
        task = Task(
            offered=(0,),
            local_layers=state.keep,
            stages=tuple(stage for stage in stages if stage.layers),
        )
        return self.asking(state, cohort, task)
