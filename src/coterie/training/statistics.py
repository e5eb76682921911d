"""What a client tells about its training data, if a method asks for it: counts of labels, or the mean of features.

Both are about the model's last layer, which must be dense: its outputs are the classes, and its
inputs are the features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from coterie.core import Statistic
from coterie.data.label_counts import label_counts
from coterie.data.objective import counted
from coterie.data.world import Split
from coterie.models.layout import Layout
from coterie.training.learner import Learner

NO_DENSE_LAYER = "counts of labels and means of features need a model whose last layer is dense"
"""Why a model has no statistics."""


def sizes(layout: Layout) -> dict[Statistic, int] | None:
    """Return how many numbers each statistic has.

    Args:
        layout: The layout of the model.

    Returns:
        ``label-counts``: the number of classes, C; ``feature-mean``: the number of features, f.
        None if the model's last layer is not dense.
    """
    last_layer = list(layout.columns)[-1]
    if last_layer not in layout.dense:
        return None
    for piece in layout.pieces:
        if piece.name.rpartition(".")[0] == last_layer and len(piece.shape) == 2:
            num_classes, num_features = piece.shape
            return {"label-counts": num_classes, "feature-mean": num_features}
    return None


def statistics_of(
    learner: Learner, model_row: torch.Tensor, examples: Split, statistics: Sequence[Statistic]
) -> dict[Statistic, np.ndarray]:
    """Compute statistics of a client's training examples.

    Args:
        learner: Computes features.
        model_row: The model ``(d,)`` whose features count, from which the client starts.
        examples: The training examples.
        statistics: Which statistics.

    Returns:
        ``label-counts``: shape ``(C,)``; ``feature-mean``: shape ``(f,)``, zeros without examples.

    Raises:
        ValueError: The model's last layer is not dense, or the targets are not class labels.
    """
    layout = learner.layout
    size_of_statistic = sizes(layout)
    if size_of_statistic is None:
        raise ValueError(NO_DENSE_LAYER)
    last_layer = list(layout.columns)[-1]
    values_of_statistic: dict[Statistic, np.ndarray] = {}
    if "label-counts" in statistics:
        num_classes = size_of_statistic["label-counts"]
        values_of_statistic["label-counts"] = np.zeros(num_classes)
        for targets in _targets(learner, model_row, examples, last_layer):
            values_of_statistic["label-counts"] += label_counts(targets, num_classes)
    if "feature-mean" in statistics:
        total = torch.zeros(size_of_statistic["feature-mean"], dtype=torch.float64)
        num_inputs = 0
        for _, features, targets in learner.features_of(model_row, examples, last_layer):
            # Padding and other positions that count in no loss are left out.
            counted_features = features[counted(targets)].cpu().double()
            total += counted_features.sum(0)
            num_inputs += len(counted_features)
        values_of_statistic["feature-mean"] = (total / max(num_inputs, 1)).numpy()
    return values_of_statistic


def _targets(
    learner: Learner, model_row: torch.Tensor, examples: Split, layer: str
) -> Iterator[Any]:
    """The targets of examples, in batches if these are read one by one."""
    if examples.targets is not None:
        yield examples.targets
        return
    for _, _, targets in learner.features_of(model_row, examples, layer):
        yield targets
