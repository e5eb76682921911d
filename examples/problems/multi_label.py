"""Several labels for each example: hospitals that note findings by two conventions."""

import numpy as np
from torch import nn

import coterie


def patients(seed, hospital):
    """Made up: 300 patients with ten measurements and four findings, each there or not."""
    rng = np.random.default_rng([seed, hospital])
    rules = np.random.default_rng(seed).normal(size=(10, 4))
    x = rng.normal(size=(300, 10)).astype(np.float32)
    findings = x @ rules + 0.5 * rng.normal(size=(300, 4)) > 0.5
    return x, findings if hospital < 3 else findings[:, [2, 3, 0, 1]]


def model():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))


def world(seed):
    hospitals = {f"hospital {name}": patients(seed, i) for i, name in enumerate("ABCDEF")}
    training = coterie.Training(lr=0.3, batch=20, epochs=3)
    return coterie.from_lists(hospitals, model=model, training=training, seed=seed)
