"""Orthonormal maps of rows, drawn from a key: a client applies ``seal`` before it sends, and ``open`` is the inverse."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from coterie.models.layout import Layout
from coterie.randomness import numpy_generator


class Map(Protocol):
    """An orthonormal map of rows ``(d,)``; the entries behind the parameters (buffers) stay behind them."""

    def seal(self, row: torch.Tensor) -> torch.Tensor:
        """Map a row."""
        ...

    def open(self, row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        ...


class Same:
    """The identity map."""

    def seal(self, row: torch.Tensor) -> torch.Tensor:
        """Return the row."""
        return row

    def open(self, row: torch.Tensor) -> torch.Tensor:
        """Return the row."""
        return row


class Permutation:
    """A permutation of the entries that flips the signs of some.

    It is exact: ``open(seal(row))`` is ``row``, bit for bit.

    Args:
        order: Entry i of a sealed row is entry ``order[i]`` of the row, times ``signs[i]``; shape
            ``(d,)``.
        signs: 1 or -1 for each entry of a sealed row, ``(d,)``.
    """

    def __init__(self, order: torch.Tensor, signs: torch.Tensor) -> None:
        self.order, self.back, self.signs = order, torch.argsort(order), signs

    def seal(self, row: torch.Tensor) -> torch.Tensor:
        """Permute a row ``(d,)`` and flip signs."""
        return row[self.order] * self.signs

    def open(self, row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        return (row * self.signs)[self.back]


class Blocks:
    """A permutation with signs, then an orthogonal matrix for each block of ``size`` parameters.

    The matrix is uniform (Haar): Q of the QR decomposition of a Gaussian matrix, with the signs of
    R's diagonal. All blocks share it, but each has other entries of the row. A shorter last block
    has its own matrix. Products are in float64, so ``open(seal(row))`` is ``row`` up to float32
    rounding.

    Args:
        first: The permutation.
        parameters: Number of parameters.
        size: Parameters per block.
        rng: Draws the matrices.
    """

    def __init__(
        self, first: Permutation, parameters: int, size: int, rng: np.random.Generator
    ) -> None:
        self.first, self.size = first, size
        self.whole = parameters - parameters % size
        self.parameters = parameters
        self.matrix, self.last = _orthogonal(size, rng), _orthogonal(parameters % size, rng)

    def seal(self, row: torch.Tensor) -> torch.Tensor:
        """Permute a row ``(d,)`` and multiply its blocks by the matrix."""
        return self._turn(self.first.seal(row), self.matrix.T, self.last.T)

    def open(self, row: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`seal`."""
        return self.first.open(self._turn(row, self.matrix, self.last))

    def _turn(self, row: torch.Tensor, matrix: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        turned = row.clone()
        whole, rest = slice(0, self.whole), slice(self.whole, self.parameters)
        turned[whole] = (row[whole].double().view(-1, self.size) @ matrix).flatten().to(row.dtype)
        turned[rest] = (row[rest].double() @ last).to(row.dtype)
        return turned


def _orthogonal(size: int, rng: np.random.Generator) -> torch.Tensor:
    q, r = torch.linalg.qr(torch.from_numpy(rng.standard_normal((size, size))))
    return q * torch.sign(torch.diagonal(r))


def drawn(rotation: str, layout: Layout, block: int, *key: int) -> Map:
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
        return Same()
    rng, parameters = (
        numpy_generator(*key),
        layout.trainable,
    )  # its seed has 128 bits; that of PyTorch's generator has 32
    spans = [(piece.start, piece.stop) for piece in layout.pieces]
    if rotation != "permute-tensors":
        spans = [(0, parameters), (parameters, layout.size)]
    order = torch.from_numpy(
        np.concatenate([start + rng.permutation(stop - start) for start, stop in spans])
    )
    signs = torch.ones(layout.size)
    signs[:parameters] -= 2 * torch.from_numpy(rng.integers(0, 2, parameters))
    permutation = Permutation(order, signs)
    return (
        Blocks(permutation, parameters, min(block, parameters), rng)
        if rotation == "blocks"
        else permutation
    )
