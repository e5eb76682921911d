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
    """The large dense layers of a module that computes with ``weights``, its trainable parameters, as they are."""

    def __init__(self, module: nn.Module, weights: Sequence[Tensor]) -> None:
        own = {id(w) for w in weights if w.dtype == torch.float32 and w.is_cpu and not w._backward_hooks}
        self.layers: list[tuple[nn.Linear, Tensor]] = []
        for layer in module.modules():
            weight = layer._parameters.get("weight")  # none where a hook computes it
            if type(layer) is nn.Linear and weight is not None and weight.numel() >= LARGE and id(weight) in own:
                self.layers.append((layer, weight))
        self.held: Held = []

    def gain(self, training: Training) -> bool:
        """Whether training changes the weights by nothing but ``-lr`` times the gradient, and there are such layers."""
        plain = training.optimizer == "sgd" and not (training.momentum or training.weight_decay or training.proximal)
        return bool(self.layers) and plain and training.clip is None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While this lasts, backward passes give these layers' weights no gradient but keep what it is made of."""
        for layer, weight in self.layers:
            layer.forward = partial(_outputs, layer, weight, self.held)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.held.clear()
            for layer, _ in self.layers:
                del layer.forward

    def forget(self) -> None:
        """What a module has differentiated on its own way to the loss is not the loss's."""
        self.held.clear()

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Change the weights by what the last backward pass has left."""
        for weight, x, g in self.held:
            weight.addmm_(g.t(), x, alpha=-lr)
        self.held.clear()


def _outputs(layer: nn.Linear, weight: Tensor, held: Held, x: Tensor) -> Tensor:
    if layer.weight is not weight:  # another one in its place for the time of a call
        return functional.linear(x, layer.weight, layer.bias)
    return _Dense.apply(x, weight, layer.bias, held)


class _Dense(torch.autograd.Function):
    """A dense layer, ``x W^T + b``; its weights' gradient is left out, unless it will be differentiated in turn."""

    @staticmethod
    def forward(ctx, x, weight, bias, held):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.held = held
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        for_x, _, for_bias, _ = ctx.needs_input_grad
        rows, inputs = (t.reshape(-1, t.shape[-1]).to(weight.dtype) for t in (g, x))  # half precision, in a module's autocast
        bias = rows.sum(0) if for_bias else None
        if torch.is_grad_enabled():
            return (rows @ weight).view_as(x).to(x.dtype), rows.t() @ inputs, bias, None
        ctx.held.append((weight, inputs, rows))
        return _times(rows, weight).view_as(x).to(x.dtype) if for_x else None, None, bias, None


def _times(g: Tensor, weight: Tensor) -> Tensor:
    """``g W``, by oneDNN where PyTorch has it: for few rows it takes two thirds of the time of PyTorch's own choice."""
    try:
        return torch.ops.mkldnn._linear_pointwise(g, weight.detach().t(), None, "none", [], "")
    except (AttributeError, RuntimeError):  # not a public function
        return g @ weight
