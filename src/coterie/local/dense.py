"""Large dense layers under plain SGD on a CPU: the update goes into the weights by one product.

With few examples in a batch such a layer waits for memory, not for arithmetic: its gradient, as large as its weights, is
written and read once and forgotten. Here a backward pass keeps the layer's inputs X and the loss's derivatives G by its
outputs, both small, and afterwards ``W -= lr G^T X`` passes over the weights once. The numbers are those of SGD up to
float rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core import Training

LARGE = 2**18
"""Weights from which on a layer gains."""

Held = list[tuple[Tensor, Tensor, Tensor]]
"""(weight, X, G) of each use of a layer in a backward pass."""


class DenseUpdates:
    """The large dense layers of a module whose float32 weights are the model's own."""

    def __init__(self, module: nn.Module, trainable: Sequence[Tensor]) -> None:
        own = {(values.data_ptr(), values.dtype) for values in trainable if values.device.type == "cpu"}
        self.layers = [m for m in module.modules() if type(m) is nn.Linear and _is_one(m, own)]
        self.held: Held = []

    def gain(self, training: Training) -> bool:
        """Whether training changes the weights by nothing but ``-lr`` times the gradient, and there are such layers."""
        plain = training.optimizer == "sgd" and not (training.momentum or training.weight_decay or training.proximal)
        return bool(self.layers) and plain and training.clip is None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While this lasts, backward passes give these layers' weights no gradient but keep what it is made of."""
        for layer in self.layers:
            layer.forward = partial(_outputs, layer, self.held)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.held.clear()
            for layer in self.layers:
                del layer.forward

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Change the weights by what the last backward pass has left."""
        for weight, x, g in self.held:
            weight.addmm_(g.t(), x, alpha=-lr)
        self.held.clear()


def _is_one(layer: nn.Linear, own: set[tuple[int, torch.dtype]]) -> bool:
    weight = layer._parameters.get("weight")  # none where a hook computes it
    return weight is not None and weight.numel() >= LARGE and (weight.data_ptr(), weight.dtype) in own


def _outputs(layer: nn.Linear, held: Held, x: Tensor) -> Tensor:
    return _Dense.apply(x, layer.weight, layer.bias, held)


class _Dense(torch.autograd.Function):
    """A dense layer, ``x W^T + b``."""

    @staticmethod
    def forward(ctx, x, weight, bias, held):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.weight, ctx.held = weight, held  # not saved: it is changed only after the whole backward pass
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        for_x, _, for_bias, _ = ctx.needs_input_grad
        rows = g.reshape(-1, g.shape[-1])
        ctx.held.append((ctx.weight, x.reshape(-1, x.shape[-1]), rows))
        inputs = _times(rows, ctx.weight).view_as(x) if for_x else None
        return inputs, None, rows.sum(0) if for_bias else None, None


def _times(g: Tensor, weight: Tensor) -> Tensor:
    """``g W``, by oneDNN where PyTorch has it: for few rows it takes two thirds of the time of PyTorch's own choice."""
    try:
        return torch.ops.mkldnn._linear_pointwise(g, weight.detach().t(), None, "none", [], "")
    except (AttributeError, RuntimeError):  # not a public function
        return g @ weight
