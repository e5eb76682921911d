"""Class probabilities from a client's nearest training examples, mixed with those of a model: the tests of kNN-Per.

O. Marfoq, G. Neglia, L. Kameni, R. Vidal, "Personalized Federated Learning through Local
Memorization", ICML 2022, arXiv 2111.09360. The search compares all pairs of examples, in blocks, so
that it needs little memory besides the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core import Neighbours
from coterie.data.objective import Sums, Tally, counted
from coterie.data.world import ClientData, Split
from coterie.training.learner import Learner, inputs_of

ASKED, KNOWN = 256, 4096
"""Examples that are compared at a time: those to be predicted, and those that are remembered."""

LEAST = math.log(torch.finfo(torch.float32).tiny)
"""Least logarithm of a probability: a class without neighbours must not have an infinite loss."""


@dataclass(frozen=True, eq=False)
class Memory:
    """A client's training examples as a model sees them.

    Attributes:
        features: Shape ``(n, f)``.
        labels: Their classes, ``(n,)``.
        k: Number of neighbours.
        scale: Unit of distances.
    """

    features: Tensor
    labels: Tensor
    k: int
    scale: float

    @classmethod
    def of(cls, learner: Learner, row: Tensor, data: Split, neighbours: Neighbours) -> Memory:
        """Remember some examples. Predictions that do not count, such as padding, are left out."""
        parts = []
        for _, features, targets in learner.features_of(row, data, neighbours.layer):
            here = counted(targets)
            parts.append((features[here], targets[here]))
        features, labels = (torch.cat(found) for found in zip(*parts, strict=True))
        return cls(features, labels, neighbours.k, neighbours.scale)

    def probabilities(self, features: Tensor, classes: int) -> Tensor:
        """Return the class probabilities ``(b, classes)`` of inputs with features ``(b, f)``, from their neighbours."""
        return torch.cat([self._some(block, classes) for block in features.split(ASKED)])

    def _some(self, features: Tensor, classes: int) -> Tensor:
        found, at = features.new_zeros(len(features), 0), self.labels.new_zeros(len(features), 0)
        for start in range(0, len(self.features), KNOWN):
            known = self.features[start : start + KNOWN]
            places = torch.arange(start, start + len(known), device=at.device).expand(
                len(features), -1
            )
            # Products of matrices are fast, and rounding can only exchange neighbours at almost the
            # same distance.
            found = torch.cat(
                [found, torch.cdist(features, known, compute_mode="use_mm_for_euclid_dist")], 1
            )
            found, best = found.topk(min(self.k, found.shape[1]), largest=False)
            at = torch.cat([at, places], 1).gather(1, best)
        distances = (features[:, None] - self.features[at]).norm(dim=2)
        chances = features.new_zeros(len(features), classes)
        return chances.scatter_add_(1, self.labels[at], (-distances / self.scale).softmax(1))

    def mixed(self, outputs: Tensor, features: Tensor, weight: float) -> Tensor:
        """Return the logarithm of the class probabilities, which are a mixture of the model's and the neighbours'.

        Args:
            outputs: The model's outputs ``(..., classes)``.
            features: The features ``(..., f)``.
            weight: The weight λ of the neighbours.

        Returns:
            Shape ``(..., classes)``; the outputs themselves if λ is 0.
        """
        if not weight or not len(self.features):
            return outputs
        near = self.probabilities(features.flatten(0, -2), outputs.shape[-1]).view_as(
            outputs
        ).log() + math.log(weight)
        if weight == 1:
            return near.clamp(min=LEAST)
        return torch.logaddexp(near, outputs.log_softmax(-1) + math.log1p(-weight)).clamp(min=LEAST)


def remembered(
    learner: Learner, row: Tensor, data: ClientData, neighbours: Neighbours
) -> tuple[Memory, float]:
    """Return a client's memory, and the weight of its neighbours.

    Args:
        learner: Computes features.
        row: The client's model ``(d,)``.
        data: Its data, with the validation examples by which it chooses.
        neighbours: Settings.
    """
    memory = Memory.of(learner, row, data.train, neighbours)
    if len(neighbours.weights) == 1:
        return memory, neighbours.weights[0]
    right = [torch.zeros(2, 0)]
    for outputs, features, targets in (
        learner.features_of(row, data.validation, neighbours.layer) if len(memory.labels) else ()
    ):
        here = counted(targets)
        chances = memory.probabilities(features[here], outputs.shape[-1]), outputs[here].softmax(-1)
        right.append(
            torch.stack([one.gather(1, targets[here][:, None])[:, 0] for one in chances]).cpu()
        )
    near, far = torch.cat(right, 1).double().numpy()
    return memory, chosen(near, far, neighbours.weights)


def chosen(near: np.ndarray, far: np.ndarray, weights: Sequence[float]) -> float:
    """Choose the weight of the neighbours that has the lowest mean loss, the first of equal ones.

    Args:
        near: Probability of each example's class by its neighbours, ``(n,)``.
        far: By the model, ``(n,)``.
        weights: The weights to choose from.

    Returns:
        The weight; 0 without examples, or if no loss is a number.

    Example:
        >>> chosen(np.array([0.9, 0.2]), np.array([0.5, 0.5]), (0.0, 0.5, 1.0))
        0.0
    """
    if not len(near):
        return 0.0
    least = np.finfo(np.float64).tiny
    losses = [
        -np.log(np.maximum(weight * near + (1 - weight) * far, least)).mean() for weight in weights
    ]
    return 0.0 if np.isnan(losses).any() else weights[int(np.argmin(losses))]


def sums_with_neighbours(
    learner: Learner, row: Tensor, data: ClientData, neighbours: Neighbours
) -> Sums:
    """Test a model ``(d,)`` together with a client's nearest training examples on its test examples.

    Args:
        learner: Computes features, and has the objective.
        row: The client's model.
        data: Its data, with the validation examples by which it chooses the weight.
        neighbours: Settings.

    Returns:
        Name -> (sum, count), see :class:`~coterie.data.objective.Tally`.
    """
    tally = Tally(learner.objective)
    with torch.no_grad():
        memory, weight = remembered(learner, row, data, neighbours)
        for outputs, features, targets in learner.features_of(row, data.test, neighbours.layer):
            tally.add(memory.mixed(outputs, features, weight), targets)
    return tally.result()


class WithNeighbours(nn.Module):
    """A net together with a client's nearest training examples.

    Args:
        net: The net.
        layer: The layer whose input is the features.
        memory: The client's training examples.
        weight: The weight λ of its neighbours.
    """

    def __init__(self, net: nn.Module, layer: str, memory: Memory, weight: float) -> None:
        super().__init__()
        self.net, self.layer, self.weight, self.k, self.scale = (
            net,
            layer,
            weight,
            memory.k,
            memory.scale,
        )
        self.register_buffer("features", memory.features)
        self.register_buffer("labels", memory.labels)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The logarithm of the class probabilities of these inputs; the net's outputs if the weight is 0."""
        with inputs_of(self.net, self.layer) as found:
            outputs = self.net(*inputs, **named)
        outputs = getattr(outputs, "logits", outputs)
        memory = Memory(self.get_buffer("features"), self.get_buffer("labels"), self.k, self.scale)
        return memory.mixed(outputs, found[-1].float(), self.weight)
