"""pFedGraph: every client has its own model, and the server infers from the models who should learn from whom.

R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang, "Personalized Federated Learning with Inferred Collaboration
Graphs", ICML 2023, PMLR 202, Algorithm 1, and the code published with it. After each round the
server finds for each client i weights a_i over the clients' models that are near the clients' shares
of all examples, and small where models differ. The client then trains from their mixture.

The weights minimise ``α ‖a - p‖² + d_i · a`` over vectors ``a >= 0`` that sum to one, where p are the
shares of examples, and d_ij is minus the cosine between what clients i and j have learned: their
models minus the first model. This is the point of the simplex nearest to ``p - d_i / (2α)``, and is
computed exactly. The published code calls a solver of quadratic programs for each client.

Deviations
- The paper's clients also compare their model's direction with that of the mixture in their loss. The
  published code adds λ times the cosine of both to the loss, with λ = 0.01, which drives them apart.
  Here ``pull`` is the weight of a proximal term, ``pull / 2 ‖w - u_i‖²``, and is 0 unless it is set.
- Cosines are those of the trainable parameters; buffers of BatchNorm are mixed by the same weights.
- A share of the clients can be asked; the graph is of all clients that have answered, with their last
  models. In the published code it is of the clients of the round. A client that has never answered
  begins with the mean of all clients' models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from coterie.clustering import distances, gram
from coterie.core import Client, Federation, Needs, Replies, state
from coterie.methods._leavers import entries_without
from coterie.methods._mixed_models import MixedModels, MixedModelsState
from coterie.settings import check, setting
from coterie.settings.calls import public


@state("pfedgraph")
class PFedGraphState(MixedModelsState):
    """State of pFedGraph, see :class:`MixedModelsState`.

    Attributes:
        examples: client -> its number of training examples, for clients that have answered.
    """

    examples: Mapping[Client, int] = field(default_factory=dict)


@public
@dataclass(frozen=True, kw_only=True)
class PFedGraph(MixedModels[PFedGraphState]):
    """A model for each client, mixed with those that have learned similar things, by the best weights of a graph."""

    name: ClassVar[str] = "pfedgraph"

    alpha: float = setting(
        0.8,
        "how near the weights of a mixture stay to the clients' shares of examples (α)",
        gt=0,
        lt=1e9,
    )
    alike: float = setting(
        0.9,
        "cosine from which on two clients count as equal, as in the published code; 1: none do",
        gt=0,
        le=1,
    )
    pull: float = setting(
        0.0, "weight of the term that pulls a client's model to its mixture", ge=0, lt=1e9
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

    def init(self, federation: Federation) -> PFedGraphState:
        return PFedGraphState(**self.first_values(federation))

    def step(self, state: PFedGraphState, replies: Replies) -> PFedGraphState:
        examples = dict(state.examples)
        for client, count in zip(replies.clients, replies.examples, strict=True):
            examples[client] = int(count)
        return replace(super().step(state, replies), examples=examples)

    def collaboration(self, state: PFedGraphState) -> np.ndarray:
        """Return the weights a ``(m, m)`` of the clients' models in their mixtures; rows sum to one.

        Args:
            state: The state, whose ``trained`` is the order of rows and columns.
        """
        # p: the shares of all examples.
        counts = np.array([state.examples[client] for client in state.trained], dtype=np.float64)
        shares = counts / counts.sum()
        # cos(w_i - w_0, w_j - w_0): what two clients have learned since the first model.
        learned = state.models[:, : state.parameters] - state.first[: state.parameters]
        cosines = 1.0 - distances(gram(learned), "cosine")
        cosines[cosines > self.alike] = 1.0
        return graph_weights(shares, cosines, self.alpha)

    def retire(self, state: PFedGraphState, clients: tuple[Client, ...]) -> PFedGraphState:
        """Forget the clients, their models and their numbers of examples."""
        remaining = super().retire(state, clients)
        return replace(remaining, examples=entries_without(state.examples, clients))


def graph_weights(shares: np.ndarray, cosines: np.ndarray, alpha: float) -> np.ndarray:
    """Return pFedGraph's weights ``(n, n)``; row i minimises ``α ‖a - p‖² - Σ_j cos_ij a_j`` on the simplex.

    Args:
        shares: p, shape ``(n,)``: the clients' shares of all examples.
        cosines: Shape ``(n, n)``: how similar the clients' models are.
        alpha: α.

    Example:
        >>> graph_weights(np.array([0.5, 0.5]), np.array([[1.0, -1.0], [-1.0, 1.0]]), 1.0)
        array([[1., 0.],
               [0., 1.]])
    """
    # Completing the square: the minimum is the point of the simplex nearest to p + cos_i / (2α).
    return nearest_in_simplex(shares + cosines / (2.0 * alpha))


def nearest_in_simplex(points: np.ndarray) -> np.ndarray:
    """Return for each row the nearest vector without negative entries that sums to one.

    Held, Wolfe, Crowder: Validation of subgradient optimization. Mathematical Programming 6, 1974.

    Args:
        points: Shape ``(n, k)``, with k > 0.

    Example:
        >>> nearest_in_simplex(np.array([[0.2, 0.2], [3.0, 0.0]]))
        array([[0.5, 0.5],
               [1. , 0. ]])
    """
    # The result is max(x - θ, 0). With the m greatest entries above zero, θ = (their sum - 1) / m.
    descending = -np.sort(-points, axis=1)
    counts = np.arange(1, points.shape[1] + 1)
    thresholds = (descending.cumsum(axis=1) - 1.0) / counts
    # m is the number of entries that are above the threshold that they give.
    positive_counts = (descending > thresholds).sum(axis=1)
    threshold = np.take_along_axis(thresholds, positive_counts[:, None] - 1, axis=1)
    nearest: np.ndarray = np.maximum(points - threshold, 0.0)
    return nearest
