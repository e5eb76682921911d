"""APFL: FedAvg, and every client is served by a mixture of the shared model with values of its own.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", arXiv 2003.13461,
Algorithm 1. A client is served by ``α v + (1 - α) w``. In each local step, on the same batch, its
version of the shared model w moves along the gradient of its loss, and its own values v along the
gradient by v of the mixture's loss, which is α times the gradient at the mixture. The weight α
makes one step of gradient descent in each round, ``α ← α - η <v - w, ∇f(α v + (1 - α) w)>``, and
stays between 0 and 1.

Deviations
- A client's own values start at the first shared model that it is offered, so that α does not
  change in its first round. The paper leaves the start open.
- Means can be weighted by training examples; in the paper they are uniform, which is the default
  here.
- α is adapted on the first batch of a round. The paper writes the step of α for every t, and
  proposes to make it once in each round.
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
from coterie.settings import check, setting


@state("apfl")
class APFLState:
    """State of APFL.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model; only the clients know their own values and weights.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class APFL(OneModel[APFLState]):
    """One model for all, mixed at every client with values of its own, by a weight that the client learns."""

    name: ClassVar[str] = "apfl"

    mixture: float = setting(
        0.5, "weight of a client's own values in its first round (α)", ge=0, le=1
    )
    adapt: bool = setting(True, "whether each client adapts its weight, once in each round")
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round (K / n), at least one", gt=0, le=1
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
            features=("personal-model", "mixture"),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> APFLState:
        return APFLState(clients=federation.clients, model=federation.draw(0))

    def plan(self, state: APFLState, cohort: Cohort) -> Plan:
        # Each local step trains w, and v through the mixture. Clients keep v and α, so the server
        # averages w alone, as in FedAvg.
        task = Task(
            offered=(0,), personal=Personal(start="own", mixture=self.mixture, adapt=self.adapt)
        )
        return self.asking(state, cohort, task)
