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
from coterie.data.objective import TEMPERATURES, Sums, Tally, counted
from coterie.data.world import ClientData, Split
from coterie.training.learner import Learner, at_best_temperature, inputs_of

PREDICTED_BLOCK = 256
REMEMBERED_BLOCK = 4096
"""Examples that are compared at a time: those to be predicted, and those that are remembered."""

MIN_LOG_PROBABILITY = math.log(torch.finfo(torch.float32).tiny)
"""Least logarithm of a probability: a class without neighbours must not have an infinite loss."""


@dataclass(frozen=True, eq=False)
class NeighbourMemory:
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
    def of(
        cls, learner: Learner, model_row: Tensor, examples: Split, neighbours: Neighbours
    ) -> NeighbourMemory:
        """Remember some examples. Predictions that do not count, such as padding, are left out."""
        # The features are the inputs of a layer, usually the last.
        parts = []
        for _, features, targets in learner.features_of(model_row, examples, neighbours.layer):
            is_counted = counted(targets)
            parts.append((features[is_counted], targets[is_counted]))
        features, labels = (torch.cat(batches) for batches in zip(*parts, strict=True))
        return cls(features, labels, neighbours.k, neighbours.scale)

    def probabilities(self, features: Tensor, classes: int) -> Tensor:
        """Return the class probabilities ``(b, classes)`` of inputs with features ``(b, f)``, from their neighbours."""
        blocks = features.split(PREDICTED_BLOCK)
        return torch.cat([self._probabilities_of_block(block, classes) for block in blocks])

    def _probabilities_of_block(self, features: Tensor, classes: int) -> Tensor:
        input_count = len(features)
        # The k nearest so far, over blocks of the remembered examples: distances and positions.
        nearest = features.new_zeros(input_count, 0)
        positions = self.labels.new_zeros(input_count, 0)
        for start in range(0, len(self.features), REMEMBERED_BLOCK):
            block = self.features[start : start + REMEMBERED_BLOCK]
            block_positions = torch.arange(start, start + len(block), device=positions.device)
            # Products of matrices are fast, and rounding can only exchange neighbours at almost the
            # same distance.
            distances = torch.cdist(features, block, compute_mode="use_mm_for_euclid_dist")
            candidates = torch.cat([nearest, distances], 1)
            candidate_positions = torch.cat([positions, block_positions.expand(input_count, -1)], 1)
            nearest, best_candidates = candidates.topk(
                min(self.k, candidates.shape[1]), largest=False
            )
            positions = candidate_positions.gather(1, best_candidates)
        # Each neighbour votes for its class with weight exp(-d / scale).
        exact_distances = (features[:, None] - self.features[positions]).norm(dim=2)
        votes = (-exact_distances / self.scale).softmax(1)
        probabilities = features.new_zeros(input_count, classes)
        return probabilities.scatter_add_(1, self.labels[positions], votes)

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
        # log(λ p_neighbours + (1 - λ) p_model)
        probabilities = self.probabilities(features.flatten(0, -2), outputs.shape[-1])
        of_neighbours = probabilities.view_as(outputs).log() + math.log(weight)
        if weight == 1:
            return of_neighbours.clamp(min=MIN_LOG_PROBABILITY)
        of_model = outputs.log_softmax(-1) + math.log1p(-weight)
        return torch.logaddexp(of_neighbours, of_model).clamp(min=MIN_LOG_PROBABILITY)


def remembered(
    learner: Learner, model_row: Tensor, data: ClientData, neighbours: Neighbours
) -> tuple[NeighbourMemory, float]:
    """Return a client's memory, and the weight of its neighbours.

    Args:
        learner: Computes features.
        model_row: The client's model ``(d,)``.
        data: Its data, with the validation examples by which it chooses.
        neighbours: Settings.
    """
    # With one weight there is nothing to choose.
    memory = NeighbourMemory.of(learner, model_row, data.train, neighbours)
    if len(neighbours.weights) == 1:
        return memory, neighbours.weights[0]
    if not len(memory.labels):
        return memory, chosen(np.zeros(0), np.zeros(0), neighbours.weights)
    # The probability of each validation example's class, by its neighbours and by the model.
    by_neighbours = [torch.zeros(0)]
    by_model = [torch.zeros(0)]
    for outputs, features, targets in learner.features_of(
        model_row, data.validation, neighbours.layer
    ):
        is_counted = counted(targets)
        true_classes = targets[is_counted][:, None]
        neighbour_chances = memory.probabilities(features[is_counted], outputs.shape[-1])
        by_neighbours.append(neighbour_chances.gather(1, true_classes)[:, 0].cpu())
        by_model.append(outputs[is_counted].softmax(-1).gather(1, true_classes)[:, 0].cpu())
    neighbour_probabilities = torch.cat(by_neighbours).double().numpy()
    model_probabilities = torch.cat(by_model).double().numpy()
    return memory, chosen(neighbour_probabilities, model_probabilities, neighbours.weights)


def chosen(by_neighbours: np.ndarray, by_model: np.ndarray, weights: Sequence[float]) -> float:
    """Choose the weight of the neighbours that has the lowest mean loss, the first of equal ones.

    Args:
        by_neighbours: Probability of each example's class by its neighbours, ``(n,)``.
        by_model: By the model, ``(n,)``.
        weights: The weights to choose from.

    Returns:
        The weight; 0 without examples, or if no loss is a number.

    Example:
        >>> chosen(np.array([0.9, 0.2]), np.array([0.5, 0.5]), (0.0, 0.5, 1.0))
        0.0
    """
    if not len(by_neighbours):
        return 0.0
    min_probability = np.finfo(np.float64).tiny
    mean_losses = []
    for weight in weights:
        # The mean cross entropy of the mixture with this weight.
        mixture = weight * by_neighbours + (1 - weight) * by_model
        mean_losses.append(-np.log(np.maximum(mixture, min_probability)).mean())
    return 0.0 if np.isnan(mean_losses).any() else weights[int(np.argmin(mean_losses))]


def losses_with_neighbours(
    learner: Learner, model_row: Tensor, data: ClientData, neighbours: Neighbours
) -> Tensor:
    """Loss of a model ``(d,)`` with a client's nearest training examples, for each of its held-out examples ``(n,)``.

    As in :meth:`~coterie.training.learner.Learner.losses`, it is that at the best temperature.

    Args:
        learner: Computes features, and has the objective.
        model_row: The model.
        data: The client's data.
        neighbours: Settings, of which the first weight counts.

    Raises:
        ValueError: The model has no features for each prediction, or targets are not classes.
    """
    losses_of_batches = [torch.zeros(len(TEMPERATURES), 0)]
    with torch.no_grad():
        memory = NeighbourMemory.of(learner, model_row, data.train, neighbours)
        for outputs, features, targets in learner.features_of(
            model_row, data.validation, neighbours.layer
        ):
            mixed_outputs = memory.mixed(outputs, features, neighbours.weights[0])
            example_losses = learner.objective.at_temperatures(mixed_outputs, targets)
            losses_of_batches.append(example_losses.weighted.float().cpu())
    return at_best_temperature(torch.cat(losses_of_batches, 1), None)


def sums_with_neighbours(
    learner: Learner, model_row: Tensor, data: ClientData, neighbours: Neighbours
) -> Sums:
    """Test a model ``(d,)`` together with a client's nearest training examples on its test examples.

    Args:
        learner: Computes features, and has the objective.
        model_row: The client's model.
        data: Its data, with the validation examples by which it chooses the weight.
        neighbours: Settings.

    Returns:
        Name -> (sum, count), see :class:`~coterie.data.objective.Tally`.
    """
    score_tally = Tally(learner.objective)
    with torch.no_grad():
        memory, weight = remembered(learner, model_row, data, neighbours)
        for outputs, features, targets in learner.features_of(
            model_row, data.test, neighbours.layer
        ):
            score_tally.add(memory.mixed(outputs, features, weight), targets)
    return score_tally.result()


class WithNeighbours(nn.Module):
    """A net together with a client's nearest training examples.

    Args:
        net: The net.
        layer: The layer whose input is the features.
        memory: The client's training examples.
        weight: The weight λ of its neighbours.
    """

    def __init__(self, net: nn.Module, layer: str, memory: NeighbourMemory, weight: float) -> None:
        super().__init__()
        self.net = net
        self.layer = layer
        self.weight = weight
        self.k = memory.k
        self.scale = memory.scale
        self.register_buffer("features", memory.features)
        self.register_buffer("labels", memory.labels)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Tensor:
        """The logarithm of the class probabilities of these inputs; the net's outputs if the weight is 0."""
        with inputs_of(self.net, self.layer) as layer_inputs:
            outputs = self.net(*inputs, **named_inputs)
        outputs = getattr(outputs, "logits", outputs)
        memory = NeighbourMemory(
            self.get_buffer("features"), self.get_buffer("labels"), self.k, self.scale
        )
        return memory.mixed(outputs, layer_inputs[-1].float(), self.weight)
