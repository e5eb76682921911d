"""Orthonormal maps of rows, drawn from a key: a client applies ``seal`` before it sends, and ``open`` is the inverse."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from coterie.models.layout import Layout
from coterie.randomness import numpy_generator


class Map(Protocol):
    """An orthonormal map of rows ``(d,)``; the entries behind the parameters (buffers) stay behind them."""

    def seal(self, model_row: torch.Tensor) -> torch.Tensor:
        """Map a row."""
        ...

    def open(self, model_row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        ...


class NoMap:
    """The identity map."""

    def seal(self, model_row: torch.Tensor) -> torch.Tensor:
        """Return the row."""
        return model_row

    def open(self, model_row: torch.Tensor) -> torch.Tensor:
        """Return the row."""
        return model_row


class Permutation:
    """A permutation of the entries that flips the signs of some.

    It is exact: ``open(seal(row))`` is ``row``, bit for bit.

    Args:
        order: Entry i of a sealed row is entry ``order[i]`` of the row, times ``signs[i]``; shape
            ``(d,)``.
        signs: 1 or -1 for each entry of a sealed row, ``(d,)``.
    """

    def __init__(self, order: torch.Tensor, signs: torch.Tensor) -> None:
        self.order = order
        self.inverse_order = torch.argsort(order)
        self.signs = signs

    def seal(self, model_row: torch.Tensor) -> torch.Tensor:
        """Permute a row ``(d,)`` and flip signs."""
        return model_row[self.order] * self.signs

    def open(self, model_row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        return (model_row * self.signs)[self.inverse_order]


class Blocks:
    """A permutation with signs, then an orthogonal matrix for each block of ``size`` parameters.

    The matrix is uniform (Haar): Q of the QR decomposition of a Gaussian matrix, with the signs of
    R's diagonal. All blocks share it, but each has other entries of the row. A shorter last block
    has its own matrix. Products are in float64, so ``open(seal(row))`` is ``row`` up to float32
    rounding.

    Args:
        permutation: The permutation.
        parameters: Number of parameters.
        block_size: Parameters per block.
        rng: Draws the matrices.
    """

    def __init__(
        self, permutation: Permutation, parameters: int, block_size: int, rng: np.random.Generator
    ) -> None:
        self.permutation = permutation
        self.size = block_size
        self.parameters = parameters
        # Where the shorter last block begins.
        self.last_start = parameters - parameters % block_size
        self.matrix = _orthogonal(block_size, rng)
        self.last_matrix = _orthogonal(parameters % block_size, rng)

    def seal(self, model_row: torch.Tensor) -> torch.Tensor:
        """Permute a row ``(d,)`` and multiply its blocks by the matrix."""
        permuted = self.permutation.seal(model_row)
        return self._multiplied(permuted, self.matrix.T, self.last_matrix.T)

    def open(self, model_row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        return self.permutation.open(self._multiplied(model_row, self.matrix, self.last_matrix))

    def _multiplied(
        self, row: torch.Tensor, matrix: torch.Tensor, last_matrix: torch.Tensor
    ) -> torch.Tensor:
        """The row with each block of parameters multiplied by the matrix from the right."""
        # Buffers, which stand behind the parameters, are only permuted.
        multiplied = row.clone()
        full_blocks = slice(0, self.last_start)
        last_block = slice(self.last_start, self.parameters)
        multiplied[full_blocks] = (
            (row[full_blocks].double().view(-1, self.size) @ matrix).flatten().to(row.dtype)
        )
        multiplied[last_block] = (row[last_block].double() @ last_matrix).to(row.dtype)
        return multiplied


def _orthogonal(block_size: int, rng: np.random.Generator) -> torch.Tensor:
    """Draw an orthogonal matrix ``(size, size)``, uniformly."""
    orthogonal, triangular = torch.linalg.qr(
        torch.from_numpy(rng.standard_normal((block_size, block_size)))
    )
    # The signs of R's diagonal make the factorisation unique, and Q uniform.
    return orthogonal * torch.sign(torch.diagonal(triangular))


def draw_map(rotation: str, layout: Layout, block: int, *key: int) -> Map:
    """Draw a map, which depends only on the layout and ``key``.

    Buffers are only permuted among themselves: a server may average a variance, but its sign must
    not change.

    Args:
        rotation: ``rotation`` of :class:`~coterie.boundary.rules.Boundary`.
        layout: Layout of the rows.
        block: Parameters per block.
        *key: Numbers that seed the draws.

    Returns:
        The map.
    """
    if rotation == "none":
        return NoMap()
    # The seed of NumPy's generator has 128 bits; that of PyTorch's has 32, and could be guessed.
    map_rng = numpy_generator(*key)
    parameters = layout.trainable
    if rotation == "permute-tensors":
        # Entries stay within their tensor, so layers keep their columns.
        spans = [(row_piece.start, row_piece.stop) for row_piece in layout.pieces]
    else:
        # Entries move between layers, but parameters and buffers do not mix.
        spans = [(0, parameters), (parameters, layout.size)]
    # Permute within each span, and flip the signs of the parameters alone.
    permuted_spans = [start + map_rng.permutation(stop - start) for start, stop in spans]
    order = torch.from_numpy(np.concatenate(permuted_spans))
    signs = torch.ones(layout.size)
    signs[:parameters] -= 2 * torch.from_numpy(map_rng.integers(0, 2, parameters))
    permutation = Permutation(order, signs)
    if rotation == "blocks":
        return Blocks(permutation, parameters, min(block, parameters), map_rng)
    return permutation
