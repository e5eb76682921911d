"""kNN-Per: FedAvg, and every client mixes the shared model's predictions with those of its nearest training examples.

O. Marfoq, G. Neglia, L. Kameni, R. Vidal, "Personalized Federated Learning through Local
Memorization", ICML 2022, arXiv 2111.09360, Algorithm 1, with FedAvg for the shared model. A client
is served by the class probabilities
``λ p_knn + (1 - λ) p_model``: its k nearest training examples, by the features of the shared model,
count for their classes with weights proportional to ``exp(-d / scale)``. A client chooses λ on its
validation examples. Nothing else is trained.

Deviations
- λ is the value of lowest validation loss among 0, 0.1, ..., 1. The authors' code measures
  accuracies in steps of 0.01.
- Clients without validation examples hold some of their training examples out, of FedAvg's training
  too.
- Distances are Euclidean. The authors' code divides squared distances by the number of features.
- A client remembers all of its training examples that are not held out. The authors' code can bound
  their number.
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
    Holdout,
    Needs,
    Neighbours,
    Plan,
    Task,
    Weighting,
    state,
)
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting

GRID = tuple(i / 10 for i in range(11))
"""The weights λ from which a client chooses."""


@state("knn-per")
class KNNPerState:
    """State of kNN-Per.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the shared model.
        layer: the classifier, whose input is the features.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    layer: str


@dataclass(frozen=True, kw_only=True)
class KNNPer(OneModel[KNNPerState]):
    """One model for all, whose predictions every client mixes with those of its nearest training examples."""

    name: ClassVar[str] = "knn-per"

    neighbours: int = setting(
        10, "number of nearest training examples that count (k)", ge=1, not_with={"weight": (0.0,)}
    )
    scale: float = setting(
        1.0,
        "unit of distances: a neighbour at distance d has weight exp(-d / scale)",
        gt=0,
        lt=1e9,
        not_with={"weight": (0.0,)},
    )
    weight: float | None = setting(
        None,
        "weight of the neighbours (λ), the same for all clients; none: each client chooses it",
        ge=0,
        le=1,
    )
    holdout: float = setting(
        0.2,
        "share of the training examples that clients without a validation part hold out to choose λ",
        gt=0,
        le=0.5,
        only_with={"weight": (None,)},
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
            features=("holdout",) if self._held else (),
            sums_only=True,
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def init(self, federation: Federation) -> KNNPerState:
        # Neighbours are found by the input of the last layer, and vote for a class.
        layer = tuple(federation.columns)[-1]
        if not federation.labels:
            raise SettingError(
                "knn-per needs clients that predict a class, and these predict several labels or numbers"
            )
        if layer not in federation.dense:
            raise SettingError(
                f"knn-per needs a model whose last layer is fully connected (nn.Linear), and {layer!r} is not"
            )
        return KNNPerState(clients=federation.clients, model=federation.draw(0), layer=layer)

    def plan(self, state: KNNPerState, cohort: Cohort) -> Plan:
        # The shared model is trained as in FedAvg. Neighbours come in only when a client predicts.
        task = Task(offered=(0,), holdout=Holdout(share=self._held))
        return self.asking(state, cohort, task)

    def assignment(self, state: KNNPerState) -> Assignment:
        return replace(super().assignment(state), neighbours=self._neighbours(state.layer))

    @property
    def _held(self) -> float:
        return self.holdout if self.weight is None else 0.0

    def _neighbours(self, layer: str) -> Neighbours | None:
        # Without a weight for neighbours, the model predicts alone.
        if self.weight == 0:
            return None
        # A client chooses λ on its held-out examples, unless one is set.
        weights = GRID if self.weight is None else (self.weight,)
        return Neighbours(
            layer=layer, k=self.neighbours, scale=self.scale, weights=weights, holdout=self._held
        )
