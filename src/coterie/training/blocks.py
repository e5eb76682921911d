"""Local training of a block of clients at once: each step is one step of all clients, under ``torch.func.vmap``.

This is faster where the step of one client is so small that calls to torch take most of the time:
small dense networks on a CPU, and all networks on a GPU. Each client has its own examples, order
and model. The results are equal to those of the plain loop up to rounding.

Small dense networks are most of what is trained in blocks. Their gradients are written out
(:class:`DenseStack`): autograd and vmap would take more time than the products.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coterie.core import Stage, Training
from coterie.data.losses import TorchLoss, is_torchs, torch_loss
from coterie.data.objective import counted
from coterie.data.world import Split
from coterie.training.graphs import Recorded, recordable, used_once
from coterie.training.learner import (
    Learner,
    PullToShared,
    batch_starts,
    passes,
    plain,
    staged,
    stepper,
)
from coterie.training.precision import computing


def goes_with(data: Split, training: Training, min_batch: int, exact: bool) -> Hashable:
    """Return a key; clients with equal keys can be trained in one block.

    They make the same number of steps, with batches of nearly the same sizes. A shorter last batch
    is padded, and the loss leaves the padding out.

    Args:
        data: The client's training examples.
        training: Settings of local training.
        min_batch: Fewest examples of a batch.
        exact: Whether all sizes must be equal, because the module mixes examples.

    Returns:
        The key.

    Raises:
        ValueError: The client can make no step.
    """
    steps = len(batch_starts(len(data), training, min_batch))
    kind = data.inputs.shape[1:], data.inputs.dtype, data.targets.shape[1:], data.targets.dtype
    return steps, exact and len(data), kind


class Block:
    """Stacked models ``(w, d)`` of w clients, and steps of all of them at once."""

    def __init__(self, learner: Learner, rows: Sequence[Tensor]) -> None:
        self.learner = learner
        self.layout = learner.layout
        self.flat = learner.scratch("models", len(rows), learner.layout.size)
        torch.stack([row.to(learner.device) for row in rows], out=self.flat)
        for model in self.flat if self.layout.variances else ():
            self.layout.raise_variances(model)
        trainable = {p.name for p in self.layout.pieces[: len(learner.parameters)]}
        rounded = {id(parameter) for parameter, _ in learner.master.rounded}
        parameters = dict(learner.module.named_parameters())
        # Float32 views of `flat`, in the order of the row, trainable ones first.
        self.values: list[Tensor] = []
        # The tensors with which the module computes.
        self.tensors: dict[str, Tensor] = {}
        # (values, tensor) of tensors that are not trained.
        self.buffers: list[tuple[Tensor, Tensor]] = []
        for piece in self.layout.pieces:
            values = self.flat[:, piece.start : piece.stop].view(len(rows), *piece.shape)
            is_rounded = id(parameters.get(piece.name)) in rounded
            self.tensors[piece.name] = values.to(torch.bfloat16) if is_rounded else values.detach()
            if piece.name in trainable:
                self.values.append(values)
            else:  # BatchNorm writes its statistics, under vmap only to contiguous tensors
                self.tensors[piece.name] = values.contiguous()
                self.buffers.append((values, self.tensors[piece.name]))
        self.leaves = [
            self.tensors[p.name].requires_grad_() for p in self.layout.pieces if p.name in trainable
        ]
        self.stack = DenseStack.of(learner)
        # Which loss of torch the loss is; the first batch shows it.
        self.torch_loss: TorchLoss | None = None
        # Whether the loss is the cross entropy of classes; the targets show it.
        self.of_classes = False

    def train(
        self,
        splits: Sequence[Split],
        training: Training,
        lr: float,
        gens: Sequence[torch.Generator],
        *,
        stages: Sequence[Stage] = (),
        pull: PullToShared | None = None,
    ) -> Tensor:
        """Train the model of each client on its own examples.

        Args:
            splits: Training examples of each client.
            training: Settings of local training.
            lr: Learning rate.
            gens: Generator of each client, which draws the order of its examples.
            stages: Stages with the layers that they train; none to train all layers at once.
            pull: A term that pulls each client's model to another one.

        Returns:
            The trained rows ``(w, d)``, which the learner's next block overwrites.
        """
        learner = self.learner
        learner.reset()
        learner.module.train()
        self.of_classes = learner.objective.takes_classes(splits[0].targets)
        longest = max(splits, key=len)
        size = training.batch or len(longest)
        present = _present([len(split) for split in splits], len(longest)).to(learner.device)
        for positions, settings in staged(self.layout, training, stages):
            step = self._stepper(positions, settings, lr, pull, trains_all=not stages)
            starts = batch_starts(len(longest), settings, learner.min_batch)
            for pass_starts in passes(starts, settings):
                x, y = self._shuffled(splits, len(longest), gens)
                for start in pass_starts:
                    part = slice(start, start + size)
                    step(x[:, part], y[:, part], present[:, part])
        for buffer, tensor in self.buffers:
            buffer.copy_(tensor)
        return self.flat

    def _stepper(
        self,
        positions: Sequence[int],
        settings: Training,
        lr: float,
        pull: PullToShared | None,
        trains_all: bool,
    ) -> Callable[..., None]:
        """Return a function of a batch, its targets and what of it is no padding, which makes a step of some tensors."""
        learner = self.learner
        pulled = None if pull is None else pull.of(self.layout, positions, learner.device)
        values = [self.values[i] for i in positions]
        step = stepper(values, settings, lr, stacked=True, pull=pulled)
        # Plain SGD of all layers of a stack adds products of matrices to the weights directly.
        stack = self.stack if plain(settings) and trains_all and pull is None else None

        def make_step(x: Tensor, y: Tensor, present: Tensor) -> None:
            if stack is not None and stack.takes(x, y, self.of_classes):
                stack.descend(self.tensors, x, y, present, lr, self._derivative())
            else:
                step(self._gradients(x, y, present, positions))
                self._round()

        if self.of_classes and recordable(learner, settings):
            return Recorded(make_step, learner.device)
        return make_step

    def _shuffled(
        self, splits: Sequence[Split], length: int, gens: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Each client's examples in its own order, ``(w, length, ...)``, padded with its first example."""
        if self.learner.augment is not None:
            return self._augmented(splits, length, gens)
        device = self.learner.device
        on_device = self.learner.on_device
        x = self._scratch("inputs", length, splits[0].inputs)
        y = self._scratch("targets", length, splits[0].targets)
        indexes = []  # of each client's inputs in the pool
        for split, gen, targets in zip(splits, gens, y, strict=True):
            order = _padded(torch.randperm(len(split), generator=gen), length)
            torch.index_select(on_device(split.targets), 0, order.to(device), out=targets)
            indexes.append(split.index.index_select(0, order))
        # One gather for all clients of a pool.
        start = 0
        for _, run in groupby(splits, key=lambda split: id(split.inputs)):
            pool = on_device(splits[start].inputs)
            stop = start + len(list(run))
            index = torch.cat(indexes[start:stop]).to(device)
            inputs = x[start:stop].flatten(0, 1)
            if pool.dtype == torch.uint8:
                torch.div(pool.index_select(0, index), 255, out=inputs)
            else:
                torch.index_select(pool, 0, index, out=inputs)
            start = stop
        return x, y

    def _scratch(self, name: str, length: int, like: Tensor) -> Tensor:
        """Memory ``(w, length, ...)`` for the examples of all clients; images of 0 to 255 become float32."""
        images = like.dtype == torch.uint8 and name == "inputs"
        dtype = torch.float32 if images else like.dtype
        return self.learner.scratch(name, len(self.flat), length, *like.shape[1:], dtype=dtype)

    def _augmented(
        self, splits: Sequence[Split], length: int, gens: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """:meth:`_shuffled` with an augmentation, which takes one client's examples at a time."""
        memory: list[Tensor] = []  # for the inputs and the targets of all clients
        for i, (split, gen) in enumerate(zip(splits, gens, strict=True)):
            examples = self.learner.shuffled(split, gen)
            if not memory:
                for name, tensor in zip(("inputs", "targets"), examples, strict=True):
                    memory.append(self._scratch(name, length, tensor))
            for tensor_of_all, tensor in zip(memory, examples, strict=True):
                tensor_of_all[i, : len(split)] = tensor
                tensor_of_all[i, len(split) :] = tensor[:1]
        return memory[0], memory[1]

    def _gradients(
        self, x: Tensor, y: Tensor, present: Tensor, positions: Sequence[int]
    ) -> Sequence[Tensor]:
        """Gradients of each client's mean loss by some trainable tensors; ``present`` ``(w, b)`` is False for padding."""
        if self.stack is not None and self.stack.takes(x, y, self.of_classes):
            gradients = self.stack.gradients(self.tensors, x, y, present, self._derivative())
            return [gradients[i] for i in positions]
        is_low = self.learner.precision != "fp32"
        with (
            computing(self.learner.precision, self.learner.device),
            SameTypes() if is_low else nullcontext(),
        ):
            outputs = torch.func.vmap(self._module, randomness="error")(self.tensors, x)
        outputs = outputs.float()
        if self.of_classes:
            losses = nn.functional.cross_entropy(
                outputs.flatten(0, -2), y.flatten(), reduction="none"
            )
            # The sum of the clients' means over predictions that count: each mean depends on one
            # model only.
            counts = (counted(y).view(*present.shape, -1) & present[..., None]).flatten(1)
            # A batch in which none counts changes nothing, as in the plain loop.
            total = ((losses.view_as(counts) * counts).sum(1) / counts.sum(1).clamp(min=1)).sum()
        else:
            total = self._losses(outputs, y, present)
        leaves = [self.leaves[i] for i in positions]
        return torch.autograd.grad(total, leaves, materialize_grads=True)

    def _derivative(self) -> Derivative:
        """The derivative of the loss by the outputs of a stack of dense layers."""
        return of_cross_entropy if self.of_classes else self._of_loss

    def _of_loss(self, outputs: Tensor, y: Tensor, present: Tensor) -> Tensor:
        """Derivatives ``(w, b, classes)`` of the sum of the clients' losses by their outputs, by autograd."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            return torch.autograd.grad(self._losses(leaf, y, present), leaf)[0]

    def _losses(self, outputs: Tensor, y: Tensor, present: Tensor) -> Tensor:
        """Sum of the clients' losses; those with equally many examples in this batch are computed together."""
        if is_torchs(self.learner.objective.loss):
            torch_total = self._of_torch(outputs, y, present)
            if torch_total is not None:
                return torch_total
        loss = torch.func.vmap(self.learner.objective.loss)
        counts = present.sum(1)
        total = outputs.new_zeros(())
        for count in counts.unique().tolist():
            clients = (counts == count).nonzero().squeeze(1)
            if len(clients) == len(counts):
                total = total + loss(outputs[:, :count], y[:, :count]).sum()
            elif count:
                total = total + loss(outputs[clients, :count], y[clients, :count]).sum()
        return total

    def _of_torch(self, outputs: Tensor, y: Tensor, present: Tensor) -> Tensor | None:
        """Sum of the clients' losses if the loss is torch's and has a value for each example, in one call; otherwise None."""
        if self.torch_loss is None:
            self.torch_loss = torch_loss(self.learner.objective.loss, outputs[0], y[0])
        if self.torch_loss is None or self.torch_loss.reduction != "mean":
            return None
        all_examples = replace(
            self.torch_loss, outputs=outputs.flatten(0, 1), targets=y.flatten(0, 1)
        )
        examples = all_examples.example_losses(present.numel())
        if examples is None:
            return None
        shares = present
        if examples.weights is not None:
            shares = examples.weights.view_as(present) * present
        sums = (examples.losses.view_as(shares) * shares).sum(1)
        totals = shares.sum(1)
        # A batch in which nothing counts changes nothing.
        return (sums / totals.where(totals > 0, 1)).sum()

    def _module(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The module's outputs with these tensors."""
        outputs = torch.func.functional_call(self.learner.module, tensors, (x,))
        return outputs.logits if hasattr(outputs, "logits") else outputs

    @torch.no_grad()
    def _round(self) -> None:
        for leaf, values in zip(self.leaves, self.values, strict=True):
            if leaf.dtype != values.dtype:
                leaf.copy_(values)


def _padded(order: Tensor, length: int) -> Tensor:
    """An order of positions, with the first one again and again up to a length."""
    if len(order) == length:
        return order
    return torch.cat([order, order[:1].expand(length - len(order))])


def _present(lengths: Sequence[int], length: int) -> Tensor:
    """Whether client i has an example at a position, ``(w, length)``."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]


class SameTypes(TorchFunctionMode):
    """Gives convolutions and PReLU all tensors in the weights' type, and norms their inputs in float32.

    Autocast does so otherwise, but not under vmap.
    """

    WEIGHTED = frozenset(
        {torch.conv1d, torch.conv2d, torch.conv3d, torch.prelu}
        | {torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d}
    )
    """Functions whose second argument is a weight."""
    NORMS = frozenset(
        {
            functional.batch_norm,
            functional.group_norm,
            functional.layer_norm,
            functional.instance_norm,
        }
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func in self.WEIGHTED:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            args = [_as_type(value, weight.dtype) for value in args]
            kwargs = {name: _as_type(value, weight.dtype) for name, value in kwargs.items()}
        elif func in self.NORMS and args:
            args = (args[0].float(), *args[1:])
        return func(*args, **kwargs)


def _as_type(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


# ----------------------------------------------------------------------------------------------------
# Stacks of dense layers: gradients without autograd.


_ACTIVATIONS: dict[
    type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
] = {
    nn.ReLU: (torch.relu_, lambda g, out: torch.ops.aten.threshold_backward(g, out, 0)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}
"""Activation -> itself in place; and the loss's derivative by its inputs, from the derivative by
its outputs and these."""


MAX_CLASSES_FIRST = 16
"""With fewer classes, a softmax over the first dimension takes a quarter of the time of one over
the last; with many, more."""


class Dense(NamedTuple):
    """A dense layer: the names of its weight and bias, and the activation after it; None where there is none."""

    weight: str
    bias: str | None
    activation: type[nn.Module] | None = None


Derivative = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of outputs ``(w, b, m)``, targets and what is no padding ``(w, b)``: the loss's
derivatives ``(w, b, m)``."""


def of_cross_entropy(out: Tensor, y: Tensor, present: Tensor) -> Tensor:
    """Derivatives ``(w, b, classes)`` of each client's mean cross entropy by its outputs, for classes ``(w, b)``."""
    if out.shape[2] < MAX_CLASSES_FIRST:
        g = torch.softmax(out.permute(2, 0, 1), 0).permute(1, 2, 0).contiguous()
    else:
        g = torch.softmax(out, 2)
    counts = counted(y) & present
    right = y.clamp(min=0).unsqueeze(2)  # targets that do not count may be no class
    g.scatter_add_(2, right, g.new_full((), -1.0).expand(right.shape))
    return g.mul_((counts / counts.sum(1, keepdim=True).clamp(min=1)).unsqueeze(2))


@dataclass(frozen=True)
class DenseStack:
    """A network of dense layers with activations between them.

    Attributes:
        layers: The layers, from the first to the last.
        order: Names of the trainable tensors, in the order of a row: the weights and biases of the
            layers.
        flattens: Whether the network flattens its inputs.
    """

    layers: tuple[Dense, ...]
    order: tuple[str, ...]
    flattens: bool

    @classmethod
    def of(cls, learner: Learner) -> DenseStack | None:
        """Return the stack of a learner's module; None for any other network or precision."""
        if learner.precision != "fp32":
            return None
        layers: list[Dense] = []
        parts = [
            (name, part)
            for name, part in learner.module.named_modules()
            if type(part) is not nn.Sequential
        ]
        for i, (name, part) in enumerate(parts):
            prefix = f"{name}." if name else ""
            if type(part) is nn.Linear:
                layers.append(
                    Dense(f"{prefix}weight", None if part.bias is None else f"{prefix}bias")
                )
            elif type(part) in _ACTIVATIONS and layers and layers[-1].activation is None:
                layers[-1] = layers[-1]._replace(activation=type(part))
            elif type(part) is not nn.Flatten or i or (part.start_dim, part.end_dim) != (1, -1):
                return None
        order = tuple(piece.name for piece in learner.layout.pieces)
        names = [name for layer in layers for name in (layer.weight, layer.bias) if name]
        if sorted(names) != sorted(order) or not used_once(learner.module):
            return None  # some are fixed or shared, or a hook sees or changes what a layer computes
        return cls(tuple(layers), order, type(parts[0][1]) is nn.Flatten)

    def takes(self, x: Tensor, y: Tensor, of_classes: bool) -> bool:
        """Return whether these are inputs ``(w, b, f)``, or others that are flattened, with targets of the loss."""
        one_class_each = y.dim() == 2 and not y.is_floating_point()
        return (
            (one_class_each or not of_classes)
            and x.is_floating_point()
            and (self.flattens or x.dim() == 3)
        )

    @torch.no_grad()
    def gradients(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        present: Tensor,
        derivative: Derivative,
    ) -> list[Tensor]:
        """Compute the gradients of each client's mean loss.

        Args:
            tensors: Name -> weights ``(w, out, in)`` and biases ``(w, out)`` of w clients.
            x: Inputs ``(w, b, ...)``.
            y: Targets ``(w, b, ...)``.
            present: Which examples are no padding, ``(w, b)``.
            derivative: The loss's derivatives by the outputs.

        Returns:
            The gradients, in the order of a row.
        """
        gradients: dict[str, Tensor] = {}
        for layer, g, inputs in self._backward(tensors, x, y, present, derivative):
            gradients[layer.weight] = torch.bmm(g.transpose(1, 2), inputs)
            if layer.bias:
                gradients[layer.bias] = g.sum(1)
        return [gradients[name] for name in self.order]

    @torch.no_grad()
    def descend(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        present: Tensor,
        lr: float,
        derivative: Derivative,
    ) -> None:
        """Make one step of plain SGD in place: the products of :meth:`gradients` are added to the weights directly.

        Args:
            tensors: As in :meth:`gradients`; they change.
            x: As in :meth:`gradients`.
            y: As in :meth:`gradients`.
            present: As in :meth:`gradients`.
            lr: Learning rate.
            derivative: As in :meth:`gradients`.
        """
        for layer, g, inputs in self._backward(tensors, x, y, present, derivative):
            tensors[layer.weight].baddbmm_(g.transpose(1, 2), inputs, alpha=-lr)
            if layer.bias:
                tensors[layer.bias].add_(g.sum(1), alpha=-lr)

    def _backward(
        self,
        tensors: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        present: Tensor,
        derivative: Derivative,
    ) -> Iterator[tuple[Dense, Tensor, Tensor]]:
        """Yield, from the last layer to the first: the layer, the loss's derivatives by its outputs, and its inputs.

        The weights of a yielded layer may be changed.
        """
        # Forward.
        out = x.flatten(2)
        activations = [out]  # the inputs of each layer, then the outputs of the last one
        for layer in self.layers:
            weight = tensors[layer.weight].transpose(1, 2)
            bias = tensors[layer.bias].unsqueeze(1) if layer.bias else None
            out = torch.bmm(out, weight) if bias is None else torch.baddbmm(bias, out, weight)
            if layer.activation is not None:
                activate, _ = _ACTIVATIONS[layer.activation]
                out = activate(out)
            activations.append(out)
        # Backward.
        g = derivative(out, y, present)
        for i, layer in reversed(list(enumerate(self.layers))):
            if layer.activation is not None:
                _, derivative_of_activation = _ACTIVATIONS[layer.activation]
                g = derivative_of_activation(g, activations[i + 1])
            of_inputs = torch.bmm(g, tensors[layer.weight]) if i else g
            yield layer, g, activations[i]
            g = of_inputs
