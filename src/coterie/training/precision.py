"""A module over one flat row of float32 numbers.

In bf16, convolutions and dense layers compute with rounded copies of the weights. Training in bf16
is autocast: torch's lists determine the precision of each operation. Autocast rounds the weights
again in every step, which takes a fifth of a step of a small network. Here the module keeps the
rounded weights. They are made once per step, when the float32 weights change, and the numbers are
the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from coterie.models.layout import Layout, Piece

PRECISIONS = ("fp32", "bf16")

MEASURED = "auto"
"""In place of a precision: the faster one, see :mod:`coterie.training.faster_precision`."""

_ROUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Master:
    """The float32 row ``(d,)`` of a module.

    Float32 parameters are views of the row, so one copy loads a model and one copy reads it.
    Buffers, which a module may replace, and tensors of other types are copied in and out.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device | str, precision: str
    ) -> None:
        self.module = module
        self.layout = layout
        self.flat = torch.empty(layout.size, device=device)
        self.trainable: list[Tensor] = []
        # (the module's parameter in bf16, its values in float32)
        self.rounded: list[tuple[Tensor, Tensor]] = []
        # Tensors whose memory is not that of the row, so that they are copied.
        self.unshared: list[Piece] = []
        parameters = dict(module.named_parameters())
        shared = _owned_twice(module)
        for piece in layout.pieces:
            # The piece of the row with this tensor's values.
            values = self.flat[piece.start : piece.stop].view(piece.shape)
            parameter = parameters.get(piece.name)
            if parameter is None or parameter.dtype != torch.float32:
                self.unshared.append(piece)
                if parameter is not None and parameter.requires_grad:
                    self.trainable.append(parameter)
                continue
            if precision == "bf16" and id(parameter) not in shared and _rounds(module, piece.name):
                # The module computes with the rounded copy, and steps change the float32 values.
                parameter.data = parameter.data.to(torch.bfloat16)
                self.rounded.append((parameter, values))
            else:
                # The parameter becomes a view of the row.
                values.copy_(parameter.data)
                parameter.data = values
                values = parameter
            if parameter.requires_grad:
                self.trainable.append(values)

    def load(self, model_row: Tensor) -> None:
        """Copy a model ``(d,)`` into the module."""
        self.layout.raise_variances(self.flat.copy_(model_row))
        if self.unshared:
            tensors = self.module.state_dict(keep_vars=True)
            with torch.no_grad():
                for piece, values in self._unshared_values():
                    tensors[piece.name].copy_(values)
        self.round()

    def row(self) -> Tensor:
        """The module's values as a row ``(d,)``, which the next load overwrites."""
        if self.unshared:
            tensors = self.module.state_dict()
            for piece, values in self._unshared_values():
                values.copy_(tensors[piece.name])
        return self.flat

    def round(self) -> None:
        """Update the rounded parameters after a change of the row."""
        with torch.no_grad():
            for parameter, values in self.rounded:
                parameter.copy_(values)

    def _unshared_values(self) -> Iterator[tuple[Piece, Tensor]]:
        for piece in self.unshared:
            yield piece, self.flat[piece.start : piece.stop].view(piece.shape)


def _owned_twice(module: nn.Module) -> set[int]:
    """Ids of parameters of several modules: an embedding may share its weight with a dense layer, so it is not rounded."""
    owner_counts: Counter[int] = Counter()
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                owner_counts[id(parameter)] += 1
    return {parameter_id for parameter_id, count in owner_counts.items() if count > 1}


def _rounds(module: nn.Module, name: str) -> bool:
    owner, _, tensor_name = name.rpartition(".")
    # A hook's weight_g or weight_orig is not rounded.
    is_plain = tensor_name in ("weight", "bias")
    return is_plain and type(module.get_submodule(owner)) in _ROUNDED


def computing(precision: str, device: torch.device | str) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for bf16, nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
