"""Forecasting: the next six hours of power stations from the last 24, with recurrent layers."""

import numpy as np
import torch
from torch import nn

import coterie


def series(seed, station):
    """Made up: 2,000 hours; half of the stations swing with a day, the others against it."""
    rng = np.random.default_rng([seed, station])
    hours, noise = np.arange(2000), rng.normal(size=2000)
    sign = 1 if station < 3 else -1
    level = np.zeros(2000)
    for hour in range(1, 2000):
        level[hour] = sign * 0.8 * level[hour - 1] + 0.3 * noise[hour]
    return (level + 0.2 * np.sin(hours * 2 * np.pi / 24)).astype(np.float32)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.head = nn.GRU(1, 16, batch_first=True), nn.Linear(16, 6)

    def forward(self, past):
        return self.head(self.recurrent(past[..., None])[0][:, -1])


def windows(values):
    cut = torch.from_numpy(values).unfold(0, 30, 6)  # 24 hours and the six that follow
    return {
        "x": cut[:, :24].clone(),
        "y": cut[:, 24:].clone(),
        "order": np.arange(len(cut)),
    }  # tests are on the last ones


def world(seed):
    stations = {f"station {i}": windows(series(seed, i)) for i in range(6)}
    objective = coterie.Objective(
        loss=nn.functional.mse_loss,
        metrics=["MeanAbsoluteError", "R2Score"],
        combine=lambda outputs: outputs.mean(0),
    )
    training = coterie.Training(optimizer="adam", lr=0.01, batch=32, epochs=2)
    return coterie.from_lists(
        stations, model=Forecaster, objective=objective, training=training, seed=seed
    )


def baselines(made):
    """The mean absolute error of forecasts without a model: a method is only of use if it is better."""
    tests = [data.test.batch(slice(None)) for data in made.clients.values()]
    forecasts = {
        "mean of the last values": lambda past: past.mean(1),
        "last value": lambda past: past[:, -1],
    }
    errors = {
        name: [(f(past)[:, None] - future).abs().mean() for past, future in tests]
        for name, f in forecasts.items()
    }
    return {name: float(torch.stack(each).mean()) for name, each in errors.items()}
