"""FedAMP: every client has its own model, pulled to a mixture of those of similar clients.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, "Personalized Cross-Silo Federated
Learning on Non-IID Data", AAAI 2021, arXiv 2007.03797, Algorithm 1, and HeurFedAMP of its section on
deep networks. For each client i the server keeps a cloud model u_i, a mixture of all clients'
models w_j with weights that fall with their distance. The client minimises its loss plus ``λ/(2α)
||w - u_i||²``.

Deviations
- Local training starts at u_i and makes the experiment's steps. The paper minimises exactly.
- ``pull`` is λ/α, the weight that counts.
- α is σ/n unless it is set, so that weights sum to less than one for every client. Where a given α
  makes their sum larger than one, the weights of this client are divided by it; the paper asks for an
  α that is small enough.
- The distance is that of the trainable parameters; buffers of BatchNorm are mixed by the same weights.
- A share of the clients can be asked; the models of the others stay. A client that has never
  answered takes no part in mixtures, and begins with the mean of all clients' models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.clustering import distances, gram
from coterie.core import Federation, Needs, state
from coterie.methods._mixed_models import MixedModels, MixedModelsState
from coterie.settings import check, setting


@state("fedamp")
class FedAMPState(MixedModelsState):
    """State of FedAMP, see :class:`MixedModelsState`; its training has the pull to the cloud model."""


@dataclass(frozen=True, kw_only=True)
class FedAMP(MixedModels[FedAMPState]):
    """A model for each client, pulled to a mixture in which similar clients weigh more."""

    name: ClassVar[str] = "fedamp"

    rule: str = setting(
        "distance",
        "weights by distance (FedAMP), or by cosine (HeurFedAMP)",
        choices=("distance", "cosine"),
    )
    sigma: float = setting(
        1.0,
        "squared distance at which a weight has fallen to 1/e; with cosine, how much similar clients are preferred (σ)",
        gt=0,
    )
    alpha: float | None = setting(
        None,
        "step towards the others with distance (α); none: σ divided by the clients",
        gt=0,
        only_with={"rule": ("distance",)},
    )
    self_weight: float = setting(
        0.5,
        "weight of a client's own model with cosine (ξ_ii)",
        ge=0,
        le=1,
        only_with={"rule": ("cosine",)},
    )
    pull: float = setting(
        0.1, "weight of the term that pulls a client's model to its mixture (λ/α)", ge=0, lt=1e9
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(features=("training",), unchanged_by="rotation", fraction=self.fraction)

    def init(self, federation: Federation) -> FedAMPState:
        return FedAMPState(**self.first_values(federation))

    def collaboration(self, state: FedAMPState) -> np.ndarray:
        """Return the weights ξ ``(m, m)`` of the clients' models in their mixtures; rows sum to one.

        Args:
            state: The state, whose ``trained`` is the order of rows and columns.
        """
        products = gram(state.models[:, : state.parameters])
        if self.rule == "cosine":
            return cosine_weights(products, self.sigma, self.self_weight)
        alpha = self.alpha
        if alpha is None:
            alpha = self.sigma / max(len(state.clients), 1)
        return distance_weights(distances(products), self.sigma, alpha)


def distance_weights(client_distances: np.ndarray, sigma: float, alpha: float) -> np.ndarray:
    """Return FedAMP's weights ``(n, n)``, with the attention function ``A(x) = 1 - e^{-x/σ}`` of squared distances.

    Args:
        client_distances: Shape ``(n, n)``: the distances of the clients' models.
        sigma: σ.
        alpha: α, the step.

    Example:
        >>> distance_weights(np.array([[0.0, 0.0], [0.0, 0.0]]), 1.0, 0.5)
        array([[0.5, 0.5],
               [0.5, 0.5]])
    """
    # Equation 4: ξ_ij = α A'(||w_i - w_j||²), and ξ_ii = 1 - Σ_j ξ_ij.
    weights: np.ndarray = alpha * np.exp(-(client_distances**2) / sigma) / sigma
    np.fill_diagonal(weights, 0.0)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def cosine_weights(products: np.ndarray, sigma: float, self_weight: float) -> np.ndarray:
    """Return HeurFedAMP's weights ``(n, n)``: a softmax of ``σ cos(w_i, w_j)`` over the other clients.

    Args:
        products: Shape ``(n, n)``: the Gram matrix of the clients' models.
        sigma: σ.
        self_weight: ξ_ii.
    """
    if len(products) == 1:
        return np.ones((1, 1))
    norms = np.sqrt(np.maximum(products.diagonal(), np.finfo(np.float64).tiny))
    cosines = products / norms[:, None] / norms
    # ξ_ij = (1 - ξ_ii) e^{σ cos} / Σ_{h ≠ i} e^{σ cos}; the greatest exponent is taken out of both.
    exponents = sigma * cosines
    np.fill_diagonal(exponents, -np.inf)
    weights: np.ndarray = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    weights *= (1.0 - self_weight) / weights.sum(axis=1, keepdims=True)
    np.fill_diagonal(weights, self_weight)
    return weights
