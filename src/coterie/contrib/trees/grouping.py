"""Groups from the losses of each client's model at each client: no gradients, no updates.

1. Each client trains a model on its training rows without a fifth, which it holds out, and scores
   the models of all clients on its held-out rows: the matrix of cross-losses.
2. The distance of two clients is what they lose by each other's model, compared with their own,
   in the mean of both. Clients are joined by average linkage.
3. The number of groups is chosen on the held-out rows: the fewest groups of the dendrogram whose
   ensembles are not worse than the best by more than one standard error.

A held-out row is in the training data of no model here, so one group, several, and each client
alone are compared fairly.

IFCA and CLoVE also group by losses. IFCA offers k models and lets each client choose; with models of
clients in place of k models, a client would choose its own. CLoVE runs k-means on the rows of losses
with k given. Here the distances are differences of losses, so that a client whose rows are hard for
all models is far from nobody, and k is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.clustering.agglomerative import cut_dendrogram, dendrogram
from coterie.data.constant import Kind

Predictions = np.ndarray
"""Probabilities of classes ``(b, classes)`` or of labels ``(b, m)``, or numbers ``(b, m)``."""

MIN_CLASS_PROBABILITY = 1e-6
"""Probabilities are at least this in a loss: one row of a class that a client has never seen would decide all."""


@dataclass(frozen=True)
class HeldOutPredictions:
    """What each client's model predicts for the held-out rows of each client.

    Attributes:
        kind: What the targets are.
        predictions: ``predictions[i][j]``: of the model of client i for the rows of client j.
        targets: Those of each client.
        weights: Shape ``(n,)``: the training rows of each client.
    """

    kind: Kind
    predictions: Sequence[Sequence[Predictions]]
    targets: Sequence[np.ndarray]
    weights: np.ndarray

    def cross_losses(self) -> np.ndarray:
        """Return the matrix ``(n, n)``: the mean loss of the model of client i at client j."""
        n = len(self.targets)
        losses = np.empty((n, n))
        for model in range(n):
            for client in range(n):
                row_losses = losses_of(
                    self.kind, self.predictions[model][client], self.targets[client]
                )
                losses[model, client] = row_losses.mean()
        return losses

    def losses_of_groups(self, labels: np.ndarray) -> list[np.ndarray]:
        """Return the losses ``(b,)`` of each client's held-out rows under the ensemble of its group.

        Args:
            labels: Shape ``(n,)``: the group of each client.
        """
        losses = []
        for client, targets in enumerate(self.targets):
            members = np.flatnonzero(labels == labels[client]).tolist()
            predictions = ensemble(
                [self.predictions[member][client] for member in members], self.weights[members]
            )
            losses.append(losses_of(self.kind, predictions, targets))
        return losses


def losses_of(kind: Kind, predictions: Predictions, targets: np.ndarray) -> np.ndarray:
    """Return the loss of each row ``(b,)``: cross entropy of classes and labels, squared error of numbers.

    Args:
        kind: What the targets are.
        predictions: The predictions.
        targets: Classes ``(b,)``, or labels or numbers ``(b, m)``.
    """
    if kind == "numbers":
        squared_errors: np.ndarray = ((predictions - targets) ** 2).mean(axis=1)
        return squared_errors
    if kind == "classes":
        of_target = predictions[np.arange(len(targets)), targets.astype(int)]
        class_losses: np.ndarray = -np.log(np.maximum(of_target, MIN_CLASS_PROBABILITY))
        return class_losses
    of_label = np.where(targets > 0.5, predictions, 1 - predictions)
    label_losses: np.ndarray = -np.log(np.maximum(of_label, MIN_CLASS_PROBABILITY)).mean(axis=1)
    return label_losses


def ensemble(predictions: Sequence[Predictions], weights: np.ndarray) -> Predictions:
    """Return the mean of the predictions of several models.

    Args:
        predictions: Those of each model, of equal shapes.
        weights: Shape ``(k,)``: the weight of each model.
    """
    mean: Predictions = np.average(np.stack(predictions), axis=0, weights=weights)
    return mean


def distances_of(cross_losses: np.ndarray) -> np.ndarray:
    """Return the distances ``(n, n)`` of clients: what two of them lose by each other's model, in the mean; at least 0.

    Args:
        cross_losses: Shape ``(n, n)``: the loss of the model of client i at client j.

    Example:
        >>> distances_of(np.array([[0.1, 0.5], [0.9, 0.3]]))
        array([[0. , 0.5],
               [0.5, 0. ]])
    """
    # What client j loses by the model of client i.
    excess = cross_losses - np.diagonal(cross_losses)[None, :]
    distances = np.maximum((excess + excess.T) / 2, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


@dataclass(frozen=True)
class Candidate:
    """A number of groups, and how well their ensembles do.

    Attributes:
        labels: Shape ``(n,)``: the group of each client, numbered by first member.
        loss: The mean over clients of the mean loss on their held-out rows.
        behind: How much more that is than with the best number of groups.
        standard_error: Of that difference, over the held-out rows.
    """

    labels: np.ndarray
    loss: float
    behind: float
    standard_error: float

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return int(self.labels.max()) + 1


def candidates(held_out: HeldOutPredictions, cross_losses: np.ndarray) -> list[Candidate]:
    """Return the cuts of the dendrogram of clients, from one group to as many as clients.

    Args:
        held_out: The predictions for held-out rows.
        cross_losses: Their matrix ``(n, n)``.
    """
    n = len(cross_losses)
    labels_of_cuts = [np.zeros(n, dtype=int)]
    if n > 1:
        joins = dendrogram(distances_of(cross_losses), "average")
        labels_of_cuts += [cut_dendrogram(joins, groups=groups) for groups in range(2, n + 1)]
    losses_of_cuts = [held_out.losses_of_groups(labels) for labels in labels_of_cuts]
    means = [float(np.mean([row.mean() for row in losses])) for losses in losses_of_cuts]
    best = int(np.argmin(means))
    partitions = []
    for labels, losses, mean in zip(labels_of_cuts, losses_of_cuts, means, strict=True):
        partitions.append(
            Candidate(
                labels, mean, mean - means[best], _standard_error(losses, losses_of_cuts[best])
            )
        )
    return partitions


def _standard_error(losses: Sequence[np.ndarray], other_losses: Sequence[np.ndarray]) -> float:
    """The standard error of the difference of two means over clients, from the differences of their rows."""
    variance = 0.0
    for client_losses, client_others in zip(losses, other_losses, strict=True):
        differences = client_losses - client_others
        if len(differences) > 1:
            variance += float(differences.var(ddof=1)) / len(differences)
    return math.sqrt(variance) / len(losses)


def chosen(partitions: Sequence[Candidate]) -> Candidate:
    """Return the fewest groups that are behind the best by one standard error at most."""
    return next(
        candidate for candidate in partitions if candidate.behind <= candidate.standard_error
    )
