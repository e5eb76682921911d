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
    at_best_temperature,
    batch_starts,
    passes,
    plain,
    staged,
    stepper,
    tensors_of,
)
from coterie.training.precision import computing


def goes_with(
    examples: Split, training: Training, min_batch: int, needs_equal_sizes: bool
) -> Hashable:
    """Return a key; clients with equal keys can be trained in one block.

    They make the same number of steps, with batches of nearly the same sizes. A shorter last batch
    is padded, and the loss leaves the padding out.

    Args:
        examples: The client's training examples.
        training: Settings of local training.
        min_batch: Fewest examples of a batch.
        needs_equal_sizes: Whether all sizes must be equal, because the module mixes examples.

    Returns:
        The key.

    Raises:
        ValueError: The client can make no step.
    """
    # Steps, types and shapes must agree, because all clients make each step together.
    step_count = len(batch_starts(len(examples), training, min_batch))
    shapes_and_types = (
        examples.inputs.shape[1:],
        examples.inputs.dtype,
        examples.targets.shape[1:],
        examples.targets.dtype,
    )
    return step_count, needs_equal_sizes and len(examples), shapes_and_types


class Block:
    """Stacked models ``(w, d)`` of w clients, and steps of all of them at once."""

    def __init__(self, learner: Learner, model_rows: Sequence[Tensor]) -> None:
        self.learner = learner
        self.layout = learner.layout
        self.flat = learner.scratch("models", len(model_rows), learner.layout.size)
        torch.stack(
            [model_row_of_client.to(learner.device) for model_row_of_client in model_rows],
            out=self.flat,
        )
        for model_row in self.flat if self.layout.variances else ():
            # Averaged variances of BatchNorm may be too small, or negative.
            self.layout.raise_variances(model_row)
        trainable = {piece.name for piece in self.layout.pieces[: len(learner.parameters)]}
        rounded_ids = {id(parameter) for parameter, _ in learner.master.rounded}
        parameters = dict(learner.module.named_parameters())
        # Float32 views of `flat`, in the order of the row, trainable ones first.
        self.values: list[Tensor] = []
        # The tensors with which the module computes.
        self.tensors: dict[str, Tensor] = {}
        # (values, tensor) of tensors that are not trained.
        self.buffers: list[tuple[Tensor, Tensor]] = []
        for piece in self.layout.pieces:
            piece_values = self.flat[:, piece.start : piece.stop].view(
                len(model_rows), *piece.shape
            )
            is_rounded = id(parameters.get(piece.name)) in rounded_ids
            self.tensors[piece.name] = (
                piece_values.to(torch.bfloat16) if is_rounded else piece_values.detach()
            )
            if piece.name in trainable:
                self.values.append(piece_values)
            else:
                # BatchNorm writes its statistics, under vmap only to contiguous tensors.
                self.tensors[piece.name] = piece_values.contiguous()
                self.buffers.append((piece_values, self.tensors[piece.name]))
        self.leaves: list[Tensor] = []
        for piece in self.layout.pieces:
            if piece.name in trainable:
                self.leaves.append(self.tensors[piece.name].requires_grad_())
        self.stack = DenseStack.of(learner)
        # Which loss of torch the loss is; the first batch shows it.
        self.torch_loss: TorchLoss | None = None
        # The loss of each client's batch, for a loss that is not known.
        self.client_loss = torch.func.vmap(learner.objective.loss)
        # Whether the loss is the cross entropy of classes; the targets show it.
        self.of_classes = False
        # Whether it is the mean over all examples of a batch, without padding; the first pass shows
        # it.
        self.all_count: bool | None = None

    def train(
        self,
        splits: Sequence[Split],
        training: Training,
        learning_rate: float,
        generators: Sequence[torch.Generator],
        *,
        stages: Sequence[Stage] = (),
        pull_term: PullToShared | None = None,
        correction: Tensor | None = None,
    ) -> Tensor:
        """Train the model of each client on its own examples.

        Args:
            splits: Training examples of each client.
            training: Settings of local training.
            learning_rate: Learning rate.
            generators: Generator of each client, which draws the order of its examples.
            stages: Stages with the layers that they train; none to train all layers at once.
            pull_term: A term that pulls each client's model to another one.
            correction: Rows ``(w, d)`` that are added to the gradients of each client.

        Returns:
            The trained rows ``(w, d)``, which the learner's next block overwrites.
        """
        learner = self.learner
        learner.reset()
        learner.module.train()
        self.of_classes = learner.objective.takes_classes(splits[0].targets)
        self.all_count = None
        # Clients with fewer examples are padded to the length of the longest, and padding does not
        # count in the loss.
        longest = max(splits, key=len)
        batch_size = training.batch or len(longest)
        is_present = _present([len(split) for split in splits], len(longest)).to(learner.device)
        for positions, stage_training in staged(self.layout, training, stages):
            make_step = self._stepper(
                positions,
                stage_training,
                learning_rate,
                pull_term,
                correction,
                trains_all=not stages,
            )
            first_starts = batch_starts(len(longest), stage_training, learner.min_batch)
            for pass_starts in passes(first_starts, stage_training):
                inputs, targets = self._shuffled(splits, len(longest), generators)
                if self.of_classes and self.stack is not None and self.all_count is None:
                    # Later passes have the same examples in another order.
                    is_padded = min(map(len, splits)) < len(longest)
                    self.all_count = not is_padded and bool(counted(targets).all())
                for batch_start in pass_starts:
                    batch_columns = slice(batch_start, batch_start + batch_size)
                    make_step(
                        inputs[:, batch_columns],
                        targets[:, batch_columns],
                        is_present[:, batch_columns],
                    )
        # The statistics of BatchNorm belong to the row, too.
        for buffer, tensor in self.buffers:
            buffer.copy_(tensor)
        return self.flat

    @torch.no_grad()
    def outputs(self, splits: Sequence[Split]) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """What each client's model makes of its own examples, without training, in their order.

        Args:
            splits: Examples of each client.

        Yields:
            Which clients; their models' outputs ``(w, b, ...)``, with padding; their targets ``(w,
            b, ...)``; and what of them is no padding, ``(w, b)``. Clients of few examples come
            together.
        """
        learner = self.learner
        learner.reset()
        learner.module.eval()
        longest = max(map(len, splits))
        # As many clients at once as make the batches of a client that measures alone.
        clients_at_once = max(1, learner.at_once // max(longest, 1))
        for first_client in range(0, len(splits), clients_at_once):
            clients = slice(first_client, min(first_client + clients_at_once, len(splits)))
            padded_inputs = []
            padded_targets = []
            for split in splits[clients]:
                positions = _padded(torch.arange(len(split)), longest)
                client_inputs, client_targets = learner.batch(split, positions)
                padded_inputs.append(client_inputs)
                padded_targets.append(client_targets)
            inputs = torch.stack(padded_inputs)
            targets = torch.stack(padded_targets)
            tensors = {name: tensor[clients] for name, tensor in self.tensors.items()}
            if self.stack is not None and self.stack.takes(inputs, targets, of_classes=False):
                outputs = self.stack.activations(tensors, inputs)[-1]
            else:
                outputs = torch.func.vmap(self._module)(tensors, inputs)
            is_present = _present([len(split) for split in splits[clients]], longest)
            yield clients, outputs, targets, is_present

    def _stepper(
        self,
        positions: Sequence[int],
        stage_training: Training,
        learning_rate: float,
        pull_term: PullToShared | None,
        correction: Tensor | None,
        trains_all: bool,
    ) -> Callable[..., None]:
        """Return a function of a batch, its targets and what of it is no padding, which makes a step of some tensors."""
        learner = self.learner
        pulled_parameters = (
            None if pull_term is None else pull_term.of(self.layout, positions, learner.device)
        )
        trained_values = [self.values[position] for position in positions]
        added_tensors = None
        if correction is not None:
            added_tensors = tensors_of(correction, self.layout, positions, learner.device)
        optimise = stepper(
            trained_values,
            stage_training,
            learning_rate,
            stacked=True,
            pull_term=pulled_parameters,
            added_tensors=added_tensors,
        )
        # Plain SGD of all layers of a stack adds products of matrices to the weights directly.
        has_terms = pull_term is not None or correction is not None
        direct_stack = (
            self.stack if plain(stage_training) and trains_all and not has_terms else None
        )

        def make_step(inputs: Tensor, targets: Tensor, is_present: Tensor) -> None:
            if direct_stack is not None and direct_stack.takes(inputs, targets, self.of_classes):
                direct_stack.descend(
                    self.tensors, inputs, targets, is_present, learning_rate, self._derivative()
                )
            else:
                optimise(self._gradients(inputs, targets, is_present, positions))
                self._round()

        if self.of_classes and recordable(learner, stage_training):
            return Recorded(make_step, learner.device)
        return make_step

    def _shuffled(
        self, splits: Sequence[Split], length: int, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Each client's examples in its own order, ``(w, length, ...)``, padded with its first example."""
        if self.learner.augment is not None:
            return self._augmented(splits, length, generators)
        device = self.learner.device
        on_device = self.learner.on_device
        all_inputs = self._scratch("inputs", length, splits[0].inputs)
        all_targets = self._scratch("targets", length, splits[0].targets)
        # Where each client's inputs are in its pool.
        pool_indexes = []
        for split, client_generator, client_targets in zip(
            splits, generators, all_targets, strict=True
        ):
            # The draw is that of the plain loop, so a client sees the same batches in a block and
            # alone.
            client_order = _padded(torch.randperm(len(split), generator=client_generator), length)
            torch.index_select(
                on_device(split.targets), 0, client_order.to(device), out=client_targets
            )
            pool_indexes.append(split.index.index_select(0, client_order))
        # One gather for all clients of a pool.
        first_client = 0
        for _, pool_splits in groupby(splits, key=lambda split: id(split.inputs)):
            pool = on_device(splits[first_client].inputs)
            end_client = first_client + len(list(pool_splits))
            pool_positions = torch.cat(pool_indexes[first_client:end_client]).to(device)
            pool_inputs = all_inputs[first_client:end_client].flatten(0, 1)
            if pool.dtype == torch.uint8:
                torch.div(pool.index_select(0, pool_positions), 255, out=pool_inputs)
            else:
                torch.index_select(pool, 0, pool_positions, out=pool_inputs)
            first_client = end_client
        return all_inputs, all_targets

    def _scratch(self, name: str, length: int, example_tensor: Tensor) -> Tensor:
        """Memory ``(w, length, ...)`` for the examples of all clients; images of 0 to 255 become float32."""
        images = example_tensor.dtype == torch.uint8 and name == "inputs"
        dtype = torch.float32 if images else example_tensor.dtype
        return self.learner.scratch(
            name, len(self.flat), length, *example_tensor.shape[1:], dtype=dtype
        )

    def _augmented(
        self, splits: Sequence[Split], length: int, generators: Sequence[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """:meth:`_shuffled` with an augmentation, which takes one client's examples at a time."""
        # For the inputs and the targets of all clients.
        memory_of_all: list[Tensor] = []
        for client_index, (split, client_generator) in enumerate(
            zip(splits, generators, strict=True)
        ):
            examples = self.learner.shuffled(split, client_generator)
            if not memory_of_all:
                for name, tensor in zip(("inputs", "targets"), examples, strict=True):
                    memory_of_all.append(self._scratch(name, length, tensor))
            for tensor_of_all, tensor in zip(memory_of_all, examples, strict=True):
                tensor_of_all[client_index, : len(split)] = tensor
                tensor_of_all[client_index, len(split) :] = tensor[:1]
        return memory_of_all[0], memory_of_all[1]

    def _gradients(
        self, inputs: Tensor, targets: Tensor, is_present: Tensor, positions: Sequence[int]
    ) -> Sequence[Tensor]:
        """Gradients of each client's mean loss by some trainable tensors; ``is_present`` ``(w, b)`` is False for padding."""
        if self.stack is not None and self.stack.takes(inputs, targets, self.of_classes):
            gradients = self.stack.gradients(
                self.tensors, inputs, targets, is_present, self._derivative()
            )
            return [gradients[position] for position in positions]
        is_half_precision = self.learner.precision != "fp32"
        with (
            computing(self.learner.precision, self.learner.device),
            SameTypes() if is_half_precision else nullcontext(),
        ):
            outputs = torch.func.vmap(self._module, randomness="error")(self.tensors, inputs)
        # Each client's loss depends on its own model only, so one backward pass through the sum of
        # the losses gives each client the gradient of its own.
        outputs = outputs.float()
        if self.of_classes:
            example_losses = nn.functional.cross_entropy(
                outputs.flatten(0, -2), targets.flatten(), reduction="none"
            )
            # The sum of the clients' means over predictions that count.
            is_counted = (
                counted(targets).view(*is_present.shape, -1) & is_present[..., None]
            ).flatten(1)
            # A batch in which none counts changes nothing, as in the plain loop.
            loss_sums = (example_losses.view_as(is_counted) * is_counted).sum(1)
            total_loss = (loss_sums / is_counted.sum(1).clamp(min=1)).sum()
        else:
            total_loss = self._losses(outputs, targets, is_present)
        trained_leaves = [self.leaves[position] for position in positions]
        return torch.autograd.grad(total_loss, trained_leaves, materialize_grads=True)

    def _derivative(self) -> Derivative:
        """The derivative of the loss by the outputs of a stack of dense layers."""
        if not self.of_classes:
            return self._of_loss
        return of_cross_entropy_of_all if self.all_count else of_cross_entropy

    def _of_loss(self, outputs: Tensor, targets: Tensor, is_present: Tensor) -> Tensor:
        """Derivatives ``(w, b, classes)`` of the sum of the clients' losses by their outputs, by autograd."""
        with torch.enable_grad():
            output_leaf = outputs.detach().requires_grad_()
            total_loss = self._losses(output_leaf, targets, is_present)
            return torch.autograd.grad(total_loss, output_leaf)[0]

    def _losses(self, outputs: Tensor, targets: Tensor, is_present: Tensor) -> Tensor:
        """Sum of the clients' losses; those with equally many examples in this batch are computed together."""
        if is_torchs(self.learner.objective.loss):
            torch_total = self._of_torch(outputs, targets, is_present)
            if torch_total is not None:
                return torch_total
        # Any other loss: one call for all clients, which usually need no padding in this batch.
        client_loss = self.client_loss
        if is_present.all():
            return client_loss(outputs, targets).sum()
        # Otherwise one call for all clients with equally many examples.
        example_counts = is_present.sum(1)
        total_loss = outputs.new_zeros(())
        for example_count in example_counts.unique().tolist():
            clients = (example_counts == example_count).nonzero().squeeze(1)
            # A slice of all clients is a view, and a choice of some is a copy.
            if len(clients) == len(example_counts):
                client_outputs = outputs[:, :example_count]
                client_targets = targets[:, :example_count]
            elif example_count:
                client_outputs = outputs[clients, :example_count]
                client_targets = targets[clients, :example_count]
            else:
                continue
            total_loss = total_loss + client_loss(client_outputs, client_targets).sum()
        return total_loss

    def _of_torch(self, outputs: Tensor, targets: Tensor, is_present: Tensor) -> Tensor | None:
        """Sum of the clients' losses if the loss is torch's and has a value for each example, in one call; otherwise None."""
        if self.torch_loss is None:
            self.torch_loss = torch_loss(self.learner.objective.loss, outputs[0], targets[0])
        if self.torch_loss is None or self.torch_loss.reduction != "mean":
            return None
        all_examples = replace(
            self.torch_loss, outputs=outputs.flatten(0, 1), targets=targets.flatten(0, 1)
        )
        examples = all_examples.example_losses(is_present.numel())
        if examples is None:
            return None
        example_weights = is_present
        if examples.weights is not None:
            example_weights = examples.weights.view_as(is_present) * is_present
        # Each client's weighted mean over its examples that are no padding.
        loss_sums = (examples.losses.view_as(example_weights) * example_weights).sum(1)
        total_weights = example_weights.sum(1)
        # A batch in which nothing counts changes nothing.
        return (loss_sums / total_weights.where(total_weights > 0, 1)).sum()

    def _module(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """The module's outputs with these tensors."""
        outputs = torch.func.functional_call(self.learner.module, tensors, (inputs,))
        return outputs.logits if hasattr(outputs, "logits") else outputs

    @torch.no_grad()
    def _round(self) -> None:
        for leaf, values in zip(self.leaves, self.values, strict=True):
            if leaf.dtype != values.dtype:
                leaf.copy_(values)


def can_measure_together(learner: Learner, splits: Sequence[Split]) -> bool:
    """Return whether :func:`losses_together` can measure models on these examples.

    Examples must not mix, code of the user must not run, and inputs and targets must be tensors of
    equal shapes.

    Args:
        learner: The learner.
        splits: The examples of each model.
    """
    if learner.own_code or learner.mixes or learner.precision != "fp32":
        return False
    shapes_and_types = set()
    for split in splits:
        if not isinstance(split.inputs, Tensor) or not isinstance(split.targets, Tensor):
            return False
        shapes_and_types.add(
            (
                split.inputs.shape[1:],
                split.inputs.dtype,
                split.targets.shape[1:],
                split.targets.dtype,
            )
        )
    return len(shapes_and_types) <= 1


@torch.no_grad()
def losses_together(
    learner: Learner, models: Sequence[Tensor], splits: Sequence[Split]
) -> list[Tensor]:
    """Measure models as :meth:`~coterie.training.learner.Learner.losses` does, many at once.

    Args:
        learner: The learner, for which :func:`can_measure_together` is true.
        models: The models ``(d,)``.
        splits: The examples ``(n,)`` of each.

    Returns:
        The losses ``(n,)`` of each, equal to those of a model alone up to rounding.
    """
    losses_of_models = [torch.zeros(0)] * len(models)
    # A model without examples has no losses.
    measured = [position for position, split in enumerate(splits) if len(split)]
    if not measured:
        return losses_of_models
    block = Block(learner, [models[position] for position in measured])
    splits_of_block = [splits[position] for position in measured]
    for places, outputs, targets, is_present in block.outputs(splits_of_block):
        # Each example counts for itself, so those of several models are one batch.
        is_example = is_present.flatten().nonzero().squeeze(1)
        batch_losses = learner.objective.at_temperatures(
            outputs.flatten(0, 1)[is_example], targets.flatten(0, 1)[is_example]
        )
        example_counts = is_present.sum(1).tolist()
        losses_by_model = batch_losses.losses.float().cpu().split(example_counts, 1)
        weights_by_model: Sequence[Tensor | None] = [None] * len(example_counts)
        if batch_losses.weights is not None:
            weights_by_model = batch_losses.weights.float().cpu().split(example_counts)
        for position, losses_at_temperatures, example_weights in zip(
            measured[places], losses_by_model, weights_by_model, strict=True
        ):
            losses_of_models[position] = at_best_temperature(
                losses_at_temperatures, example_weights
            )
    return losses_of_models


def _padded(positions: Tensor, length: int) -> Tensor:
    """An order of positions, with the first one again and again up to a length."""
    if len(positions) == length:
        return positions
    return torch.cat([positions, positions[:1].expand(length - len(positions))])


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
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if function in self.WEIGHTED:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            args = [_as_type(value, weight.dtype) for value in args]
            kwargs = {name: _as_type(value, weight.dtype) for name, value in kwargs.items()}
        elif function in self.NORMS and args:
            args = (args[0].float(), *args[1:])
        return function(*args, **kwargs)


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


def of_cross_entropy(outputs: Tensor, targets: Tensor, is_present: Tensor) -> Tensor:
    """Derivatives ``(w, b, classes)`` of each client's mean cross entropy by its outputs, for classes ``(w, b)``."""
    is_counted = counted(targets) & is_present
    # Targets that do not count may be no class.
    derivatives = _of_each_example(outputs, targets.clamp(min=0))
    # The mean is over the number of predictions that count.
    return derivatives.mul_(
        (is_counted / is_counted.sum(1, keepdim=True).clamp(min=1)).unsqueeze(2)
    )


def of_cross_entropy_of_all(outputs: Tensor, targets: Tensor, is_present: Tensor) -> Tensor:
    """:func:`of_cross_entropy` where all predictions count and none is padding: the same bits in a third of the calls."""
    return _of_each_example(outputs, targets).mul_(1 / targets.shape[1])


def _of_each_example(outputs: Tensor, classes: Tensor) -> Tensor:
    """Derivatives ``(w, b, classes)`` of each example's cross entropy: softmax minus one at the class of its target."""
    if outputs.shape[2] < MAX_CLASSES_FIRST:
        derivatives = torch.softmax(outputs.permute(2, 0, 1), 0).permute(1, 2, 0).contiguous()
    else:
        derivatives = torch.softmax(outputs, 2)
    classes = classes.unsqueeze(2)
    return derivatives.scatter_add_(
        2, classes, derivatives.new_full((), -1.0).expand(classes.shape)
    )


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
        parts: list[tuple[str, nn.Module]] = []
        for name, part in learner.module.named_modules():
            if type(part) is not nn.Sequential:
                parts.append((name, part))
        # Each dense layer takes the activation after it; only a flattening may come before them.
        for part_number, (name, part) in enumerate(parts):
            prefix = f"{name}." if name else ""
            if type(part) is nn.Linear:
                layers.append(
                    Dense(f"{prefix}weight", None if part.bias is None else f"{prefix}bias")
                )
            elif type(part) in _ACTIVATIONS and layers and layers[-1].activation is None:
                layers[-1] = layers[-1]._replace(activation=type(part))
            elif (
                type(part) is not nn.Flatten
                or part_number
                or (part.start_dim, part.end_dim) != (1, -1)
            ):
                return None
        order = tuple(piece.name for piece in learner.layout.pieces)
        tensor_names: list[str] = []
        for layer in layers:
            tensor_names.append(layer.weight)
            if layer.bias:
                tensor_names.append(layer.bias)
        # Otherwise some are fixed or shared, or a hook sees or changes what a layer computes.
        if sorted(tensor_names) != sorted(order) or not used_once(learner.module):
            return None
        return cls(tuple(layers), order, type(parts[0][1]) is nn.Flatten)

    def takes(self, inputs: Tensor, targets: Tensor, of_classes: bool) -> bool:
        """Return whether these are inputs ``(w, b, f)``, or others that are flattened, with targets of the loss."""
        one_class_each = targets.dim() == 2 and not targets.is_floating_point()
        return (
            (one_class_each or not of_classes)
            and inputs.is_floating_point()
            and (self.flattens or inputs.dim() == 3)
        )

    @torch.no_grad()
    def gradients(
        self,
        tensors: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        is_present: Tensor,
        derivative: Derivative,
    ) -> list[Tensor]:
        """Compute the gradients of each client's mean loss.

        Args:
            tensors: Name -> weights ``(w, out, in)`` and biases ``(w, out)`` of w clients.
            inputs: Inputs ``(w, b, ...)``.
            targets: Targets ``(w, b, ...)``.
            is_present: Which examples are no padding, ``(w, b)``.
            derivative: The loss's derivatives by the outputs.

        Returns:
            The gradients, in the order of a row.
        """
        gradients: dict[str, Tensor] = {}
        for layer, output_derivatives, layer_inputs in self._backward(
            tensors, inputs, targets, is_present, derivative
        ):
            gradients[layer.weight] = torch.bmm(output_derivatives.transpose(1, 2), layer_inputs)
            if layer.bias:
                gradients[layer.bias] = output_derivatives.sum(1)
        return [gradients[name] for name in self.order]

    @torch.no_grad()
    def descend(
        self,
        tensors: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        is_present: Tensor,
        learning_rate: float,
        derivative: Derivative,
    ) -> None:
        """Make one step of plain SGD in place: the products of :meth:`gradients` are added to the weights directly.

        Args:
            tensors: As in :meth:`gradients`; they change.
            inputs: As in :meth:`gradients`.
            targets: As in :meth:`gradients`.
            is_present: As in :meth:`gradients`.
            learning_rate: Learning rate.
            derivative: As in :meth:`gradients`.
        """
        for layer, output_derivatives, layer_inputs in self._backward(
            tensors, inputs, targets, is_present, derivative
        ):
            tensors[layer.weight].baddbmm_(
                output_derivatives.transpose(1, 2), layer_inputs, alpha=-learning_rate
            )
            if layer.bias:
                tensors[layer.bias].add_(output_derivatives.sum(1), alpha=-learning_rate)

    def activations(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, then the outputs of the last one, ``(w, b, f)`` each.

        Args:
            tensors: As in :meth:`gradients`.
            inputs: As in :meth:`gradients`.
        """
        # One batched product for each layer.
        layer_outputs = inputs.flatten(2)
        activations = [layer_outputs]
        for layer in self.layers:
            weight = tensors[layer.weight].transpose(1, 2)
            bias = tensors[layer.bias].unsqueeze(1) if layer.bias else None
            layer_outputs = (
                torch.bmm(layer_outputs, weight)
                if bias is None
                else torch.baddbmm(bias, layer_outputs, weight)
            )
            if layer.activation is not None:
                activate, _ = _ACTIVATIONS[layer.activation]
                layer_outputs = activate(layer_outputs)
            activations.append(layer_outputs)
        return activations

    def _backward(
        self,
        tensors: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        is_present: Tensor,
        derivative: Derivative,
    ) -> Iterator[tuple[Dense, Tensor, Tensor]]:
        """Yield, from the last layer to the first: the layer, the loss's derivatives by its outputs, and its inputs.

        The weights of a yielded layer may be changed.
        """
        # Forward pass of all clients.
        activations = self.activations(tensors, inputs)
        # Backward pass, from the derivatives G by a layer's outputs: its weights have the gradient
        # G^T X, its inputs G W, which the first layer does not need.
        output_derivatives = derivative(activations[-1], targets, is_present)
        for layer_number, layer in reversed(list(enumerate(self.layers))):
            if layer.activation is not None:
                _, derivative_of_activation = _ACTIVATIONS[layer.activation]
                output_derivatives = derivative_of_activation(
                    output_derivatives, activations[layer_number + 1]
                )
            input_derivatives = (
                torch.bmm(output_derivatives, tensors[layer.weight])
                if layer_number
                else output_derivatives
            )
            yield layer, output_derivatives, activations[layer_number]
            output_derivatives = input_derivatives
