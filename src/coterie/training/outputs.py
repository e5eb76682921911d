"""Outputs of nets for rows of a client, what kind they are, and the loss of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data.batches import Batch, call
from coterie.data.objective import Objective, binary_cross_entropy, cross_entropy, squared_error
from coterie.data.target_scale import LossOfStandardized
from coterie.data.world import Split

CLASS_LOGITS = "classes"
"""The outputs are logits of classes, of which a row has one."""

LABEL_LOGITS = "labels"
"""The outputs are logits of labels of 0 and 1, of which a row may have several."""

NUMBER_OUTPUTS = "numbers"
"""The outputs are the numbers to predict."""

ROWS_AT_ONCE = 512
"""Rows whose outputs are computed together."""


def output_kind(objective: Objective) -> str:
    """Return what the outputs of nets with this objective are; an empty text for a loss of the user's own."""
    loss: Any = objective.loss
    if isinstance(loss, LossOfStandardized):
        loss = loss.loss
    if objective.plain_classes or loss is cross_entropy:
        return CLASS_LOGITS
    if loss is binary_cross_entropy:
        return LABEL_LOGITS
    return NUMBER_OUTPUTS if loss is squared_error else ""


def batches(split: Split, max_rows: int | None = None) -> Iterator[tuple[Batch, Batch]]:
    """Yield (inputs, targets) of the rows of a split, or of as many of them, evenly spaced."""
    num_rows = len(split)
    kept_rows = num_rows if max_rows is None else min(num_rows, max_rows)
    positions = torch.arange(kept_rows) * num_rows // max(kept_rows, 1)
    for start in range(0, kept_rows, ROWS_AT_ONCE):
        yield split.batch(positions[start : start + ROWS_AT_ONCE])


@torch.no_grad()
def outputs_and_targets(net: nn.Module, splits: Sequence[Split]) -> tuple[Tensor, Tensor] | None:
    """Return a net's outputs ``(n, ...)`` for all rows of some splits, and the targets ``(n, ...)``.

    None if these are no tensors, or there is no row.
    """
    all_outputs = []
    all_targets = []
    for split in splits:
        for inputs, targets in batches(split):
            outputs = call(net, inputs)
            if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
                return None
            all_outputs.append(outputs)
            all_targets.append(targets)
    if not all_outputs:
        return None
    return torch.cat(all_outputs), torch.cat(all_targets)


def row_losses(kind: str, outputs: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the loss of each row ``(n,)``: cross entropy in nats, or the squared error in the unit of the targets.

    Args:
        kind: What the outputs are.
        outputs: Shape ``(n, m)``.
        targets: Classes ``(n,)``, or labels or numbers ``(n, m)``, or ``(n,)`` for one.
        temperature: By which logits are divided.
    """
    if kind == CLASS_LOGITS:
        return torch.nn.functional.cross_entropy(outputs / temperature, targets, reduction="none")
    shaped_targets = targets.to(outputs.dtype).view_as(outputs)
    if kind == LABEL_LOGITS:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs / temperature, shaped_targets, reduction="none"
        )
    else:
        losses = (outputs - shaped_targets).square()
    return losses.flatten(1).mean(1)


def suitable(kind: str, pair: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """Return outputs and targets if they are one row each and finite; None if not, as for sequences.

    Args:
        kind: What the outputs are.
        pair: Outputs ``(n, m)`` and targets; None for none.
    """
    if pair is None:
        return None
    outputs, targets = pair
    wanted_dimensions = 1 if kind == CLASS_LOGITS else outputs.dim()
    if outputs.dim() != 2 or targets.dim() not in (1, wanted_dimensions):
        return None
    if kind == CLASS_LOGITS and targets.is_floating_point():
        return None
    if kind != CLASS_LOGITS and targets.numel() != outputs.numel():
        return None
    return pair if bool(outputs.isfinite().all()) else None
