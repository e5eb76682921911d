"""Part k: the default method with losses in other spellings, and data sets that are tensors, beside the built-in loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coterie

from .clock import interleaved

CLIENTS, FEATURES, CLASSES = 20, 20, 5
BUILT_IN = "the built-in cross entropy"


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """A user's own mean over examples: the focal loss."""
    right = outputs.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    return (-((1 - right.exp()) ** 2) * right).mean()


def model() -> nn.Module:
    """A small dense net, of which blocks of clients are trained at once."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def clients(examples: int) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels of each client; half of the clients have other labels for the same inputs."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(FEATURES, CLASSES))
    found = []
    for number in range(CLIENTS):
        inputs = rng.normal(size=(examples, FEATURES)).astype(np.float32)
        labels = (inputs @ directions * (1 if number % 2 else -1)).argmax(1)
        found.append((torch.from_numpy(inputs), torch.from_numpy(labels)))
    return found


def measure(scale: str, *, repetitions: int = 3) -> dict[str, Any]:
    """``seconds``: of a run of ``auto`` with each loss, in turn."""
    examples, rounds = (30, 1) if scale == "small" else (400, 20)
    arrays = clients(examples)
    sets = [TensorDataset(*pair) for pair in arrays]
    of_classes = torch.arange(1.0, CLASSES + 1)
    worlds: dict[str, tuple[Any, Any]] = {
        BUILT_IN: (arrays, None),
        "`nn.CrossEntropyLoss()`": (arrays, nn.CrossEntropyLoss()),
        "`functional.cross_entropy`": (arrays, nn.functional.cross_entropy),
        "`nn.CrossEntropyLoss(weight=...)`": (arrays, nn.CrossEntropyLoss(weight=of_classes)),
        "a focal loss of one's own": (arrays, focal),
        "the built-in one, of `TensorDataset`s": (sets, None),
    }
    contestants: dict[str, Callable[[], float]] = {}
    for name, (data, loss) in worlds.items():
        objective = {} if loss is None else {"objective": coterie.Objective(loss=loss)}
        training = coterie.Training(lr=0.1, batch=20, epochs=2)
        world = coterie.from_lists(data, model=model, training=training, **objective)
        contestants[name] = partial(_run, world, rounds)
    title = f"{CLIENTS} clients of {examples} examples, {rounds} rounds of `auto`, one process"
    return {"title": title, "seconds": interleaved(contestants, repetitions)}


def _run(world: Any, rounds: int) -> float:
    since = time.perf_counter()
    for _ in coterie.run("auto", world, rounds=rounds, workers=1):
        pass
    return time.perf_counter() - since
