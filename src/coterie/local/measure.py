"""A model's loss and metrics on examples: each output computed once, in batches that several clients' examples share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from coterie.world import Objective

BATCH_TO_MEASURE = 256
"""Examples per batch where nothing is trained; a batch's activations should fit a core's cache."""

Scores = dict[str, float]
Sums = dict[str, tuple[float, int]]
"""Name -> (sum, count) over predictions."""

Part = tuple[Tensor, Tensor, Sequence[Tensor]]
"""A pool, an index into it, and any number of targets of those examples."""

Piece = tuple[int, slice, slice]
"""Of a batch: which part, which of its examples, and where they are in the batch."""


def batches(parts: Sequence[Part]) -> Iterator[tuple[Tensor, Tensor, list[Piece]]]:
    """(pool, index, pieces) of batches through all parts; parts that follow each other in one pool share batches."""
    for _, run in groupby(range(len(parts)), key=lambda i: id(parts[i][0])):
        at = list(run)
        index = torch.cat([parts[i][1] for i in at])
        pieces: list[Piece] = []
        filled = start = 0
        for i in at:
            size, done = len(parts[i][1]), 0
            while done < size:
                taken = min(size - done, BATCH_TO_MEASURE - filled)
                pieces.append((i, slice(done, done + taken), slice(filled, filled + taken)))
                done, filled = done + taken, filled + taken
                if filled == BATCH_TO_MEASURE:
                    yield parts[i][0], index[start : start + filled], pieces
                    start, filled, pieces = start + filled, 0, []
        if pieces:
            yield parts[at[0]][0], index[start:], pieces


def score(total: Sums, objective: Objective, outputs: Tensor, y: Tensor) -> None:
    """Add what some outputs and their targets are worth."""
    _add(total, "loss", float(objective.loss(outputs, y)) * y.numel(), y.numel())
    for name, metric in objective.metrics.items():
        values = metric(outputs, y)
        _add(total, name, float(values.sum(dtype=torch.float64)), values.numel())


def _add(total: Sums, name: str, value: float, count: int) -> None:
    before = total.get(name, (0.0, 0))
    total[name] = (before[0] + value, before[1] + count)
