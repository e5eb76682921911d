"""FedProx: FedAvg whose clients stay near the model that they were sent.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2. A client minimises its loss
plus ``μ/2 ||w - w^t||²``, with the model w^t that it was sent.

Deviations
- Clients are drawn without replacement, and the mean is weighted by training examples. Algorithm 2
  draws them with probability p_k, with an unweighted mean; the paper compares both schemes.
- The paper's stragglers do less work. Here a client that answers does all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from coterie.core import (
    Client,
    Cohort,
    Federation,
    Needs,
    Plan,
    Task,
    Training,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting


@state("fedprox")
class FedProxState:
    """State of FedProx.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the model of all clients.
        training: the experiment's training settings, with the proximal term.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    training: Training


@dataclass(frozen=True, kw_only=True)
class FedProx(OneModel[FedProxState]):
    """One model for all, from which clients that differ must not move far."""

    name: ClassVar[str] = "fedprox"
    replaces_training: ClassVar[Mapping[str, str]] = {"proximal": "mu"}

    mu: float = setting(
        0.01,
        "weight of the term that pulls clients to the model that they were sent (μ); 0: FedAvg",
        ge=0,
        lt=1e9,
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
            features=("training",), sums_only=True, unchanged_by="rotation", fraction=self.fraction
        )

    def init(self, federation: Federation) -> FedProxState:
        # The term multiplies w - w^t by 1 - lr μ in each step of SGD, and must not lengthen it.
        training = federation.training
        if training.optimizer == "sgd" and self.mu * training.lr > 2:
            raise SettingError(
                f"FedProx.mu must be at most 2 / lr = {2 / training.lr:g}, got {self.mu:g}: each step would move a client "
                "farther away from the model that it was sent"
            )
        return FedProxState(
            clients=federation.clients,
            model=federation.draw(0),
            training=replace(training, proximal=self.mu),
        )

    def plan(self, state: FedProxState, cohort: Cohort) -> Plan:
        # Each client minimises F_k(w) + μ/2 ||w - w^t||², starting at w^t (Algorithm 2, step 4).
        return self.asking(state, cohort, Task(offered=(0,), training=state.training))
