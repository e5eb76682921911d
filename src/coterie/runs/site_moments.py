"""The numbers by which a site's rows are described, and their moments: see :mod:`coterie.runs.group_profiles`.

With labels, a row has its loss under the model of each group. Without, it has the first principal
components of its inputs and of the embeddings and outputs of the groups' models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from coterie.data.batches import Batch, call
from coterie.data.objective import Objective, binary_cross_entropy, cross_entropy, squared_error
from coterie.data.target_scale import LossOfStandardized
from coterie.data.world import Split
from coterie.runs.group_profiles import SiteMoments
from coterie.settings import UserError

CLASS_LOGITS = "classes"
"""The outputs are logits of classes, of which a row has one."""

LABEL_LOGITS = "labels"
"""The outputs are logits of labels of 0 and 1, of which a row may have several."""

NUMBER_OUTPUTS = "numbers"
"""The outputs are the numbers to predict."""

ROWS_AT_ONCE = 512
"""Rows whose outputs are computed together."""

MAX_COMPONENTS = 16
"""Most principal components that describe a row."""

MAX_INPUT_BLOCK = 1 << 14
"""Most numbers in an input for which the inputs themselves are part of the description; of larger
ones only the models' embeddings and outputs are."""

MAX_FITTED_ROWS = 1000
"""Most rows from which the principal components are computed."""


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


def moments_of(numbers: np.ndarray) -> SiteMoments:
    """Return the moments of numbers of rows ``(n, D)``."""
    # One row has no variance; those of the groups then stand for it.
    num_rows, num_numbers = numbers.shape
    variances = numbers.var(0, ddof=min(1, num_rows - 1))
    return SiteMoments(numbers.mean(0), variances, np.full(num_numbers, float(num_rows)))


def with_spread(numbers: np.ndarray) -> SiteMoments:
    """Return the moments of numbers ``(n, D)`` and of the logarithms of their variances, ``(2 D,)``, from two rows on."""
    moments = moments_of(numbers)
    # The logarithm of the variance s^2 of n normal numbers: its bias is digamma(h) - log(h), its own
    # variance trigamma(h), with h = (n - 1) / 2.
    half_degrees = (len(numbers) - 1) / 2
    bias = scipy.special.digamma(half_degrees) - math.log(half_degrees)
    log_variances = np.log(moments.variances + SMALLEST_SPREAD) - bias
    # A row counts as having the variance 2, that of trigamma(h) times n for many rows.
    effective_rows = LOG_VARIANCE_OF_ROW / scipy.special.polygamma(1, half_degrees)
    num_numbers = len(log_variances)
    return SiteMoments(
        np.concatenate([moments.means, log_variances]),
        np.concatenate([moments.variances, np.full(num_numbers, LOG_VARIANCE_OF_ROW)]),
        np.concatenate([moments.rows, np.full(num_numbers, effective_rows)]),
    )


SMALLEST_SPREAD = 1e-6
"""Added to a variance before its logarithm is taken: the components of the training rows together
have a variance of about 1."""

LOG_VARIANCE_OF_ROW = 2.0
"""The logarithm of the variance of n normal numbers has this variance over n, for great n."""


@dataclass(frozen=True)
class RowDescription:
    """How a row becomes D numbers.

    Attributes:
        mean: Of the blocks of numbers, one after the other, ``(B,)``.
        components: ``(B, D)``.
        has_inputs: Whether the first block is the inputs.
    """

    mean: Tensor
    components: Tensor
    has_inputs: bool

    def numbers(self, nets: Sequence[nn.Module], inputs: Batch) -> np.ndarray:
        """Return the numbers of some rows, ``(n, D)``."""
        described = _blocks(nets, inputs, self.has_inputs)
        joined_blocks = torch.cat(described, 1)
        numbers: np.ndarray = ((joined_blocks - self.mean) @ self.components).double().numpy()
        return numbers


def fitted_description(nets: Sequence[nn.Module], examples: Sequence[Batch]) -> RowDescription:
    """Return the description by the principal components of training rows.

    Args:
        nets: The nets of the groups.
        examples: Inputs of the groups' clients.

    Raises:
        UserError: The outputs of the nets are no tensors.
    """
    first_inputs = examples[0]
    has_inputs = isinstance(first_inputs, Tensor) and (
        first_inputs.is_floating_point() or first_inputs.dtype == torch.uint8
    )
    if has_inputs:
        has_inputs = first_inputs[0].numel() <= MAX_INPUT_BLOCK
    # Every block has the same weight: its numbers together have variance 1.
    blocks_of_batches = [_blocks(nets, inputs, has_inputs) for inputs in examples]
    scales = []
    for blocks in zip(*blocks_of_batches, strict=True):
        total_variance = float(torch.cat(blocks).var(0, correction=0).sum())
        scales.append((total_variance * len(blocks_of_batches[0]) + 1e-12) ** -0.5)
    rows = torch.cat([torch.cat(blocks, 1) for blocks in blocks_of_batches])[:MAX_FITTED_ROWS]
    widths = [block.shape[1] for block in blocks_of_batches[0]]
    weights = torch.cat(
        [torch.full((width,), scale) for width, scale in zip(widths, scales, strict=True)]
    )
    mean = rows.mean(0)
    weighted_rows = ((rows - mean) * weights).double()
    # Principal components from the products of rows, of which there are fewer than of numbers.
    eigenvalues, eigenvectors = torch.linalg.eigh(weighted_rows @ weighted_rows.T)
    num_components = min(MAX_COMPONENTS, int((eigenvalues > 1e-9 * eigenvalues[-1]).sum()))
    leading = eigenvectors[:, -num_components:].flip(1)
    lengths = eigenvalues[-num_components:].flip(0).sqrt()
    components = weighted_rows.T @ leading / lengths
    # A component's numbers have the variance 1 over these rows.
    components = components / (lengths / len(rows) ** 0.5)
    return RowDescription(mean, (weights[:, None] * components).float(), has_inputs)


@torch.no_grad()
def _blocks(nets: Sequence[nn.Module], inputs: Batch, has_inputs: bool) -> list[Tensor]:
    """The blocks of numbers that describe rows, each ``(n, width)``: inputs, then embeddings and outputs of each net."""
    blocks = []
    if has_inputs:
        assert isinstance(inputs, Tensor)
        blocks.append(inputs.flatten(1).float())
    for net in nets:
        embedding_layer = _last_linear_layer(net)
        embeddings: list[Tensor] = []
        if embedding_layer is not None:
            hook = embedding_layer.register_forward_pre_hook(
                lambda _, layer_inputs, kept=embeddings: kept.append(layer_inputs[0])
            )
        outputs = call(net, inputs)
        if embedding_layer is not None:
            hook.remove()
        if not isinstance(outputs, Tensor):
            raise UserError("the outputs of the model are no tensor")
        blocks += [embedding.flatten(1).float() for embedding in embeddings[:1]]
        blocks.append(outputs.flatten(1).float())
    return blocks


def _last_linear_layer(net: nn.Module) -> nn.Linear | None:
    """The last linear layer, if there are trained layers before it, whose outputs are then an embedding."""
    trained_layers = [module for module in net.modules() if list(module.parameters(recurse=False))]
    if len(trained_layers) > 1 and isinstance(trained_layers[-1], nn.Linear):
        return trained_layers[-1]
    return None


def described_tensors(description: RowDescription) -> Mapping[str, Tensor]:
    """The tensors of a description, for a file."""
    return {"row_mean": description.mean, "row_components": description.components.contiguous()}
