"""Ditto: FedAvg, and a model of every client's own that is pulled to the shared one.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv 2012.04221, Algorithm 1, with FedAvg for the shared model. In
each round a client trains the shared model w as in FedAvg, and then its own model v by steps ``v ←
v - η (∇F(v) + λ (v - w))``, where w is the model that it was offered.

Deviations
- A client's own model starts at the first shared model that it is offered. The paper leaves the
  start open.
- Both models take the same number of passes with the same batch size and learning rate, unless
  ``epochs`` states otherwise, and the order of examples is drawn for each. The paper has a number
  of steps for each.
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
    Personal,
    Plan,
    Task,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting


@state("ditto")
class DittoState:
    """State of Ditto.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model; only the clients know their own ones.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Ditto(OneModel[DittoState]):
    """One model for all, and every client's own model, trained near it, which it uses."""

    name: ClassVar[str] = "ditto"

    pull: float = setting(
        1.0,
        "weight of the term that pulls a client's own model to the shared one (λ)",
        ge=0,
        lt=1e9,
    )
    epochs: int | None = setting(
        None, "passes for a client's own model (s); none: as for the shared model", ge=1
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
            features=("personal-model", "pull"),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> DittoState:
        # The pull multiplies v - w by 1 - lr λ in each step of SGD, and must not lengthen it. Steps of
        # Adam do not depend on the scale of the gradient.
        training = federation.training
        if training.optimizer == "sgd" and self.pull * training.lr > 2:
            raise SettingError(
                f"Ditto.pull must be at most 2 / lr = {2 / training.lr:g}, got {self.pull:g}: each step would move a client's "
                "own model farther away from the shared one"
            )
        return DittoState(clients=federation.clients, model=federation.draw(0))

    def plan(self, state: DittoState, cohort: Cohort) -> Plan:
        # A client trains w as in FedAvg, and then v, which stays at the client, pulled to the w that
        # it was offered.
        task = Task(
            offered=(0,), personal=Personal(start="own", epochs=self.epochs, pull=self.pull)
        )
        return self.asking(state, cohort, task)
