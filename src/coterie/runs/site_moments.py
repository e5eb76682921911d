"""The numbers by which a site's rows are described, and their moments: see :mod:`coterie.runs.group_profiles`.

With labels, a row has its loss under the model of each group. Without, it has the first principal
components of its inputs and of the embeddings and outputs of the groups' models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from coterie.data.batches import Batch, call
from coterie.runs.group_profiles import SiteMoments
from coterie.settings import UserError

MAX_COMPONENTS = 16
"""Most principal components that describe a row."""

MAX_INPUT_BLOCK = 1 << 14
"""Most numbers in an input for which the inputs themselves are part of the description; of larger
ones only the models' embeddings and outputs are."""

MAX_FITTED_ROWS = 1000
"""Most rows from which the principal components are computed."""


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
