"""A rare label: one payment in a hundred is fraud, so the area under the ROC curve judges the models."""

import numpy as np
import torch
from torch import nn

import coterie


def payments(seed, bank):
    """Made up: 4,000 payments with eight features; frauds look different at half of the banks."""
    rng = np.random.default_rng([seed, bank])
    x = rng.normal(size=(4000, 8)).astype(np.float32)
    fraud = rng.random(4000) < 0.01
    x[fraud, :4] += 1.5 if bank < 3 else -1.5
    return x, fraud.astype(np.int64)


def weighted(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 30.0]))


def world(seed):
    banks = {f"bank {i}": payments(seed, i) for i in range(6)}
    objective = coterie.Objective(loss=weighted, metrics=["AUROC", "AveragePrecision", "accuracy"])
    training = coterie.Training(lr=0.05, batch=50, epochs=1)
    return coterie.from_lists(
        banks,
        model=lambda: nn.Linear(8, 2),
        objective=objective,
        training=training,
        train=0.5,
        seed=seed,
    )
