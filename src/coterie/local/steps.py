"""One step of local training, and the order in which examples come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from coterie.core import Training

Step = Callable[[Sequence[Tensor]], None]


def stepper(values: Sequence[Tensor], training: Training, lr: float, *, stacked: bool = False) -> Step:
    """A function that takes a batch's gradients, one per tensor of ``values``, and changes those in place.

    A fresh optimiser at every call of this. stacked: the tensors' first dimension is that of clients, who are clipped
    each for itself.
    """
    offered = [v.detach().clone() for v in values] if training.proximal else None
    move = _optimiser(values, training, lr)

    @torch.no_grad()
    def step(gradients: Sequence[Tensor]) -> None:  # nothing in place: autograd may give two parameters the same tensor
        if offered is not None:
            pulls = zip(gradients, values, offered, strict=True)
            gradients = [g.float().add(v - first, alpha=training.proximal) for g, v, first in pulls]
        if training.clip is not None:
            gradients = _clipped([g.float() for g in gradients], training.clip, stacked)
        move(gradients)

    return step


def _clipped(gradients: Sequence[Tensor], limit: float, stacked: bool) -> list[Tensor]:
    if not stacked:
        share = (limit / (nn.utils.get_total_norm(gradients) + 1e-6)).clamp(max=1.0)
        return [g * share for g in gradients]
    norm = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients]).norm(dim=0)
    share = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [g * share.view(-1, *[1] * (g.dim() - 1)) for g in gradients]


def _optimiser(values: Sequence[Tensor], training: Training, lr: float) -> Step:
    decay = training.weight_decay
    optimiser: torch.optim.Optimizer
    if training.optimizer == "adam":
        optimiser = torch.optim.Adam(values, lr=lr, weight_decay=decay)
    elif training.momentum or decay:
        optimiser = torch.optim.SGD(values, lr=lr, momentum=training.momentum, weight_decay=decay)
    else:
        return partial(descend, values, lr)

    def move(gradients: Sequence[Tensor]) -> None:
        for v, g in zip(values, gradients, strict=True):
            v.grad = g.to(v.dtype)
        optimiser.step()

    return move


@torch.no_grad()
def descend(values: Sequence[Tensor], lr: float, gradients: Sequence[Tensor | None]) -> None:
    """A step of plain SGD; where there is no gradient, none."""
    for v, g in zip(values, gradients, strict=True):
        if g is not None:
            v.add_(g, alpha=-lr)


def batch_starts(examples: int, training: Training, least: int) -> list[int]:
    """Where the batches of one pass over a client's examples begin. A batch of fewer than ``least`` is left out."""
    size = training.batch or examples
    starts = [start for start in range(0, examples, size) if min(size, examples - start) >= least]
    if not starts:
        kind = "a batch of 1" if examples > 1 else "a client with one training example"
        raise ValueError(f"{kind} cannot train a model with BatchNorm")
    return starts


def passes(starts: Sequence[int], training: Training) -> Iterator[Sequence[int]]:
    """``starts`` for every pass, the last one cut short where ``steps`` say so."""
    left = training.steps if training.steps is not None else training.epochs * len(starts)
    while left > 0:
        yield starts[:left]
        left -= len(starts)
