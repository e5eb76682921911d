"""Toy worlds: points that clusters of clients label in two ways, and bowls on whose surfaces a model of two numbers rolls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coterie.randomness import Purpose, numpy_generator

CENTRES: Mapping[str, tuple[tuple[tuple[float, float, int], ...], ...]] = {
    "xor": (((1, 1, 0), (1, -1, 1)), ((-1, -1, 0), (-1, 1, 1))),
    "diverging": (((-1, 0, 0), (1, 0, 1)), ((-1, 0, 1), (1, 0, 0))),
}
"""Toy -> of each cluster of clients, where its points lie and what it calls them."""


def points(
    toy: str, cluster: int, count: int, spread: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Points ``(count, 2)`` of a client and their labels ``(count,)``, as many around each centre of its cluster."""
    x, y, label = (np.resize(column, count) for column in zip(*CENTRES[toy][cluster], strict=True))
    at = np.column_stack([x, y]) + spread * rng.standard_normal((count, 2))
    return at.astype(np.float32), label.astype(np.int64)


def toy_clients(
    toy: str, clients: int, count: int, spread: float, seed: int
) -> list[tuple[np.ndarray, ...]]:
    """(x, y, x_test, y_test) of every client; clients of the two clusters take turns."""
    made: list[tuple[np.ndarray, ...]] = []
    for client in range(clients):
        rng = numpy_generator(seed, Purpose.DATA, client)
        made.append(
            (
                *points(toy, client % 2, count, spread, rng),
                *points(toy, client % 2, count, spread, rng),
            )
        )
    return made


class Position(nn.Module):
    """Two parameters, θ. For bowls ``(b, 5)`` (centre, radius, stretch along both axes) the distances ``(b, 1)`` of θ."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(start))

    def forward(self, bowls: Tensor) -> Tensor:
        away = (bowls[:, 3:] * (self.theta - bowls[:, :2])).square().sum(1).clamp_min(1e-12).sqrt()
        return (away - bowls[:, 2]).clamp_min(0.0)[:, None]


def risk(distances: Tensor, _: Tensor) -> Tensor:
    """Half the mean squared distance."""
    return distances.square().mean() / 2


def gain(distances: Tensor, _: Tensor) -> Tensor:
    """One value per bowl, greater where θ is nearer."""
    return -distances[:, 0]
