"""Regression from a data frame: clinics whose patients react to a dose in two ways."""

import numpy as np
import pandas as pd
from torch import nn

import coterie


def records(seed):
    """Made up: 1,200 rows with the clinic, four measurements, and the outcome."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(1200, 4)), columns=["age", "dose", "weight", "pressure"])
    table["clinic"] = rng.choice(["Aarhus", "Bergen", "Cork", "Delft", "Essen", "Faro"], 1200)
    sign = np.where(table["clinic"].isin(["Aarhus", "Bergen", "Cork"]), 1, -1)
    table["outcome"] = sign * table["dose"] + 0.5 * table["age"] + 0.1 * rng.normal(size=1200)
    return table


def model():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def world(seed):
    training = coterie.Training(lr=0.05, batch=20, epochs=2)
    return coterie.from_frame(
        records(seed), client="clinic", target="outcome", model=model, training=training, seed=seed
    )
