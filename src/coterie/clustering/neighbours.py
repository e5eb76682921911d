"""How close one update is to others: what places a newcomer (CFL, arXiv 1910.01991, Algorithm 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.geometry import ZERO

METRICS = ("cosine", "l2", "l1")


def closeness(update: Tensor, stored: Tensor, metric: str = "cosine") -> Tensor:
    """How close ``update`` ``(d,)`` is to each of ``stored`` ``(m, d)``: ``(m,)`` float64, greater is closer.

    ``cosine``: the cosine similarity, 0 where a norm is below 1e-12. ``l2``, ``l1``: minus the distance. ValueError for
    another metric.

    >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
    [1.0, 0.0]
    >>> closeness(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 3.0]]), "l1").tolist()
    [-1.0, -4.0]
    """
    if metric == "cosine":
        norms, own = stored.norm(dim=1).double(), update.norm().double()
        none = (norms < ZERO) | (own < ZERO)
        inner = (stored @ update).double()
        return torch.where(none, 0.0, inner / torch.where(none, 1.0, norms * own)).clamp(-1.0, 1.0)
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    order = 2 if metric == "l2" else 1
    return -torch.stack([(row - update).norm(p=order) for row in stored]).double()
