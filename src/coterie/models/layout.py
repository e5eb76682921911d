"""A model as a row: what lies where. The only place that knows both ``nn.Module`` and flat rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Piece:
    """One tensor of a model: its ``state_dict`` name, shape and place in the row."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


class Layout:
    """Maps a model's float tensors to a row ``(d,)`` and back.

    Trainable parameters come first, in ``named_parameters`` order; parameters that are frozen and float buffers
    (BatchNorm's running statistics) follow: they travel and are averaged, but similarity does not see them. Integer
    buffers have no place in a row; :meth:`load` leaves them alone.

    >>> layout = Layout(nn.Linear(3, 2, device="meta"))
    >>> layout.size, dict(layout.columns)
    (8, {'': (0, 8)})
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        frozen = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point() and n in module.state_dict()]
        pieces, start = [], 0
        for name, tensor in [*trainable, *frozen, *buffers]:
            if not tensor.is_floating_point():
                continue
            pieces.append(Piece(name, tuple(tensor.shape), start))
            start = pieces[-1].stop
        if any(p.is_complex() for p in module.parameters()):
            raise ValueError(f"{type(module).__name__} has a complex parameter, and a row is of real numbers")
        if not trainable:
            raise ValueError(f"{type(module).__name__} has no trainable parameter")
        self.pieces: tuple[Piece, ...] = tuple(pieces)
        self.size: int = start
        self.trainable: int = sum(p.numel() for _, p in trainable)
        self.statistics: tuple[str, ...] = tuple(n for n, _ in buffers)
        self.variances: tuple[slice, ...] = tuple(
            slice(p.start, p.stop) for p in pieces if p.name.rpartition(".")[2] == "running_var"
        )
        names = {n for n, _ in trainable}
        self.columns: Mapping[str, tuple[int, int]] = self._layers(names)
        self.tensors: Mapping[str, tuple[int, int]] = {p.name: (p.start, p.stop) for p in self.pieces if p.name in names}
        self.dense: tuple[str, ...] = tuple(
            name for name, part in module.named_modules() if isinstance(part, nn.Linear) and name in self.columns
        )

    def _layers(self, trainable: set[str]) -> dict[str, tuple[int, int]]:
        """Layer (the module that owns the parameters; weight and bias together) -> columns."""
        layers: dict[str, tuple[int, int]] = {}
        for piece in self.pieces:
            if piece.name in trainable:
                layer = piece.name.rpartition(".")[0]
                first = layers.get(layer, (piece.start, 0))[0]
                layers[layer] = (first, piece.stop)
        return layers

    def mask(self, layers: Iterable[str]) -> Tensor:
        """``(d,)`` bool: the columns of these layers, their buffers included; of everything if all layers are named."""
        named = set(layers)
        unknown = sorted(named - set(self.columns))
        if unknown:
            raise ValueError(f"the model has no layer {unknown[0]!r} (layers: {', '.join(self.columns)})")
        mask = torch.zeros(self.size, dtype=torch.bool)
        if named == set(self.columns):
            return ~mask
        for piece in self.pieces:
            if piece.name.rpartition(".")[0] in named:
                mask[piece.start : piece.stop] = True
        return mask

    def row(self, source: nn.Module | Mapping[str, Tensor]) -> Tensor:
        """A copy of a module's or state dict's tensors as one float32 row ``(d,)``."""
        tensors = source.state_dict() if isinstance(source, nn.Module) else source
        missing = [p.name for p in self.pieces if p.name not in tensors]
        if missing:
            raise ValueError(f"the state dict lacks {missing[0]!r}; it is of another model")
        for piece in self.pieces:
            if tuple(tensors[piece.name].shape) != piece.shape:
                raise ValueError(f"{piece.name} has shape {tuple(tensors[piece.name].shape)} where the model has {piece.shape}")
        return torch.cat([tensors[p.name].detach().reshape(-1).to(torch.float32) for p in self.pieces])

    def state_dict(self, row: Tensor) -> dict[str, Tensor]:
        """Views of ``row`` by name: what ``load_state_dict(..., strict=False)`` takes."""
        if row.shape != (self.size,):
            raise ValueError(f"a row of this model has shape ({self.size},), got {tuple(row.shape)}")
        return {p.name: row[p.start : p.stop].view(p.shape) for p in self.pieces}

    def raise_variances(self, row: Tensor) -> None:
        """Running variances of a row below zero, which no training makes and whose roots would be NaN, become zero."""
        for part in self.variances:
            row[part].clamp_(min=0.0)

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Copy a row into a module's tensors, in place."""
        own = module.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, value in self.state_dict(row).items():
                own[name].copy_(value)


def own_layers(row: Tensor, kept: Tensor | None) -> Tensor:
    """A model ``(d,)`` with a client's own values in it; ``kept`` is NaN wherever the model's value counts."""
    return row if kept is None else torch.where(kept.isnan(), row, kept)
