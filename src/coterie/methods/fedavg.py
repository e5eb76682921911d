"""FedAvg: one model for all clients, the weighted mean of what they trained.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629, Algorithm 1. The "Global"
baseline of HCCT, and the first phase of CFL and FL+HC. The step that adds the mean to the model is
in ``_one_model.py``, as the methods that personalize it share it.

Deviation: weights are ``n_k / Σ n_k`` over the clients that answered, so that they sum to one under
partial participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.core import Client, Cohort, Federation, Needs, Plan, Task, Weighting, state
from coterie.methods._one_model import OneModel
from coterie.settings import check, setting


@state("fedavg")
class FedAvgState:
    """State of FedAvg.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the model of all clients.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvg(OneModel[FedAvgState]):
    """One model for all: what clustered methods are measured against."""

    name: ClassVar[str] = "fedavg"

    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round (C), at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "data", "weights of the mean: by training examples, or uniform", choices=("data", "uniform")
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(sums_only=True, unchanged_by="rotation", fraction=self.fraction)

    def init(self, federation: Federation) -> FedAvgState:
        return FedAvgState(clients=federation.clients, model=federation.draw(0))

    def plan(self, state: FedAvgState, cohort: Cohort) -> Plan:
        # Each sampled client trains the shared model, which is row 0. `step` adds the weighted mean
        # of the updates.
        return self.asking(state, cohort, Task(offered=(0,)))
