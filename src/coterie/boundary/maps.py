"""Orthonormal maps of rows, drawn from a key: ``seal`` is done by a client before it sends, ``open`` undoes it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.models.layout import Layout
from coterie.randomness import numpy_generator


class Map(Protocol):
    """An orthonormal map of rows ``(d,)``; the entries behind the parameters (buffers) stay behind them."""

    def seal(self, row: Tensor) -> Tensor: ...
    def open(self, row: Tensor) -> Tensor: ...


class Same:
    """No map."""

    def seal(self, row: Tensor) -> Tensor:
        return row

    def open(self, row: Tensor) -> Tensor:
        return row


class Permutation:
    """Entries change places and some change signs: exact, ``open(seal(row))`` is ``row`` bit for bit.

    order ``(d,)``: entry i of a sealed row is entry ``order[i]`` of the row, times ``signs[i]``.
    """

    def __init__(self, order: Tensor, signs: Tensor) -> None:
        self.order, self.back, self.signs = order, torch.argsort(order), signs

    def seal(self, row: Tensor) -> Tensor:
        return row[self.order] * self.signs

    def open(self, row: Tensor) -> Tensor:
        return (row * self.signs)[self.back]


class Blocks:
    """After a permutation with signs, each block of ``size`` parameters is multiplied by an orthogonal matrix.

    The matrix is uniform (Haar): Q of the QR decomposition of a Gaussian matrix, with the signs of R's diagonal. All blocks
    share it, but each holds other entries of the row; a last, short block has one of its own. Products are in float64, so a
    row comes back up to float32 rounding.
    """

    def __init__(self, first: Permutation, parameters: int, size: int, rng: np.random.Generator) -> None:
        self.first, self.size = first, size
        self.whole = parameters - parameters % size
        self.parameters = parameters
        self.matrix, self.last = _orthogonal(size, rng), _orthogonal(parameters % size, rng)

    def seal(self, row: Tensor) -> Tensor:
        return self._turn(self.first.seal(row), self.matrix.T, self.last.T)

    def open(self, row: Tensor) -> Tensor:
        return self.first.open(self._turn(row, self.matrix, self.last))

    def _turn(self, row: Tensor, matrix: Tensor, last: Tensor) -> Tensor:
        turned = row.clone()
        whole, rest = slice(0, self.whole), slice(self.whole, self.parameters)
        turned[whole] = (row[whole].double().view(-1, self.size) @ matrix).flatten().to(row.dtype)
        turned[rest] = (row[rest].double() @ last).to(row.dtype)
        return turned


def _orthogonal(size: int, rng: np.random.Generator) -> Tensor:
    q, r = torch.linalg.qr(torch.from_numpy(rng.standard_normal((size, size))))
    return q * torch.sign(torch.diagonal(r))


def drawn(rotation: str, layout: Layout, block: int, *key: int) -> Map:
    """The map called ``rotation`` of :class:`~coterie.boundary.rules.Boundary`; it depends on the layout and ``key`` alone.

    Buffers and frozen parameters only change places among themselves: a server may average, but not flip, a variance.
    """
    if rotation == "none":
        return Same()
    rng, parameters = numpy_generator(*key), layout.trainable  # of 128 bits; PyTorch's generator has a seed of 32
    spans = [(piece.start, piece.stop) for piece in layout.pieces]
    if rotation != "permute-tensors":
        spans = [(0, parameters), (parameters, layout.size)]
    order = torch.from_numpy(np.concatenate([start + rng.permutation(stop - start) for start, stop in spans]))
    signs = torch.ones(layout.size)
    signs[:parameters] -= 2 * torch.from_numpy(rng.integers(0, 2, parameters))
    permutation = Permutation(order, signs)
    return Blocks(permutation, parameters, min(block, parameters), rng) if rotation == "blocks" else permutation
