"""Work of one client with a model: measure it, train from it, compute its gradient.

This is the plain loop, one client and one mini-batch at a time. It is the reference for all faster
methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core import Stage, Training
from coterie.data.batches import Batch, Items, call, joined, mapped, rows, tensors
from coterie.data.losses import weighted
from coterie.data.objective import Objective, Sums, Tally
from coterie.data.scaling import numbers
from coterie.data.world import Split
from coterie.extensions import imported
from coterie.models.layout import Layout
from coterie.randomness import Scope, seeded
from coterie.settings.optimizers import (
    ELEMENTWISE,
    OPTIMIZERS,
    OWN_OPTIMIZERS,
    build_optimizer,
    is_own,
)
from coterie.training.optimizer_state import KeptOptimizer
from coterie.training.own_code import runs_own_code
from coterie.training.precision import Master, computing


class Learner:
    """A module that loads one model after another, for all clients.

    Rows come from the CPU's memory and return there.

    Args:
        module: The module.
        objective: The loss and the metrics.
        augment: Function of (inputs, generator) for training batches, or None.
        device: Device of all computations; a pool of examples is copied there once.
        precision: ``"fp32"``, or ``"bf16"`` for autocast over float32 weights.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        augment: Callable | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: str = "fp32",
    ) -> None:
        # Where each parameter and buffer is in a row, and where the computations take place.
        self.layout = Layout(module)
        self.module = module.to(device)
        self.objective = objective
        self.augment = augment
        self.device = torch.device(device)
        self.precision = precision
        # Convolutions are faster with the channels last in memory.
        self.images = any(isinstance(part, nn.Conv2d) for part in module.modules())
        self.large = sum(parameter.numel() for parameter in module.parameters()) >= LARGE_MODEL
        self.at_once = BATCH_TO_MEASURE // (8 if self.large else 1)
        self.has_batchnorm, self.mixes = batchnorm(module)
        self.own_code = runs_own_code(module, objective, augment)
        # The row of the loaded model; float32 parameters of the module are views of it.
        self.master = Master(module, self.layout, self.device, precision)
        self.parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self.dense = DenseUpdates(
            module, list(zip(self.parameters, self.master.trainable, strict=True))
        )
        # Buffers outside a row, such as counts of batches, start from the same values in every
        # task.
        names_in_row = {piece.name for piece in self.layout.pieces}
        # (owner, name, first values)
        self.first_buffers: list[tuple[nn.Module, str, Tensor]] = []
        for path, owner in module.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and f"{path}.{name}".lstrip(".") not in names_in_row:
                    self.first_buffers.append((owner, name, buffer.clone()))
        # Pools that are on the device already, and memory that is used again and again.
        self._resident: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch: dict[tuple[str, torch.dtype], Tensor] = {}

    def scope(self, seed_key: Sequence[int], *splits: Split) -> AbstractContextManager[Scope]:
        """A scope of seeded generators for work on some splits; see :func:`~coterie.randomness.seeded`.

        Args:
            seed_key: The seed.
            *splits: The examples, whose data set may have code of its own.
        """
        reads_items = any(isinstance(split.inputs, Items) for split in splits)
        return seeded(*seed_key, own_code=self.own_code or reads_items)

    def load(self, model_row: Tensor) -> None:
        """Load a model ``(d,)``; buffers that are not part of a row (such as integers) get their first values again."""
        self.master.load(model_row)
        self.reset()

    def reset(self) -> None:
        """Give the buffers that are not part of a row their first values again."""
        for owner, name, first in self.first_buffers:
            owner._buffers[name] = first.clone()

    def gradients(
        self, inputs: Batch, targets: Batch, parameters: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Gradient of the batch's mean loss for each parameter, or for some; zero if the loss does not depend on it."""
        mean_loss = self.objective.loss(self.outputs(inputs), targets)
        return torch.autograd.grad(
            mean_loss, self.parameters if parameters is None else parameters, materialize_grads=True
        )

    def outputs(self, inputs: Batch) -> Any:
        """The module's outputs in float32."""
        if self.precision == "fp32":
            return call(self.module, inputs)
        with computing(self.precision, self.device):
            return mapped(Tensor.float, call(self.module, inputs))

    def on_device(self, tensor: Tensor) -> Tensor:
        """A tensor of the world on this device; it is copied once."""
        if tensor.device == self.device:
            return tensor
        if id(tensor) not in self._resident:
            # With the tensor itself, so that its id stays in use.
            self._resident[id(tensor)] = (tensor, tensor.to(self.device))
        return self._resident[id(tensor)][1]

    def batch(self, examples: Split, positions: Tensor) -> tuple[Batch, Batch]:
        """(inputs, targets) of the examples at ``positions`` of a split, on this device."""
        inputs, targets = self.examples(examples.inputs, examples.index[positions])
        if targets is None:
            targets = self.selected(examples.targets, positions)
        return inputs, targets

    def examples(self, pool: Batch, positions: Tensor) -> tuple[Batch, Batch]:
        """The examples of a pool at ``positions``, on this device; and their targets if the pool has them, otherwise None."""
        if isinstance(pool, Items):
            inputs, targets = pool.batch(positions)
            # Items read inputs and targets together.
            move = partial(Tensor.to, device=self.device)
            return mapped(move, inputs), mapped(move, targets)
        return mapped(numbers, self.selected(pool, positions)), None

    def selected(self, batch: Batch, positions: Tensor) -> Batch:
        """The examples of a batch at some positions, on this device."""
        positions = positions.to(self.device)
        # index_select takes a fifth of the time of ordinary indexing.
        return mapped(lambda tensor: self.on_device(tensor).index_select(0, positions), batch)

    def scratch(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uninitialised memory, which is kept because new memory is slow to access.

        Args:
            name: Calls with the same name and type share their memory.
            *shape: Shape of the tensor.
            dtype: Type of the tensor.

        Returns:
            The tensor.
        """
        number_count = math.prod(shape)
        if (name, dtype) not in self._scratch or len(self._scratch[name, dtype]) < number_count:
            self._scratch[name, dtype] = torch.empty(number_count, dtype=dtype, device=self.device)
        return self._scratch[name, dtype][:number_count].view(shape)

    def arranged(self, inputs: Batch) -> Batch:
        """A batch with the channels last in memory if the module has convolutions and the inputs are images."""
        if not self.images:
            return inputs
        # Not contiguous(): it does not change images of one channel, and the next layers would
        # compute with channels first.
        return mapped(_channels_last, inputs)

    # -- measuring
    # ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sums(self, models: Sequence[Tensor], parts: Sequence[Part]) -> list[list[Sums]]:
        """Measure a model, or the ensemble of several models, on parts of pools.

        Successive parts of one pool share batches, and examples that they have in common are
        computed once.

        Args:
            models: The models ``(d,)``.
            parts: The examples.

        Returns:
            For each part and each of its targets, the (sum, count) of the loss and of each metric.
        """
        if len(models) == 1:
            self.load(models[0])
        # Where the examples of a batch mix, each part needs batches of its own.
        if self.mixes and len(parts) > 1:
            return [self.sums(models, [single_part])[0] for single_part in parts]
        # One tally for each part and each of its targets.
        tallies_of_parts: list[list[Tally]] = []
        for _, _, part_targets in parts:
            tallies_of_parts.append([Tally(self.objective) for _ in part_targets])
        # Successive parts of one pool are measured together.
        pool_ids = [id(pool) for pool, _, _ in parts]
        for _, part_numbers in groupby(range(len(parts)), key=pool_ids.__getitem__):
            first_part, *other_parts = part_numbers
            part_range = slice(first_part, first_part + 1 + len(other_parts))
            self._tally_pool(models, parts[part_range], tallies_of_parts[part_range])
        sums_of_parts: list[list[Sums]] = []
        for part_tallies in tallies_of_parts:
            sums_of_parts.append([score_tally.result() for score_tally in part_tallies])
        return sums_of_parts

    def _tally_pool(
        self,
        models: Sequence[Tensor],
        parts: Sequence[Part],
        tallies_of_parts: Sequence[Sequence[Tally]],
    ) -> None:
        """Add the scores of a model, or an ensemble, on parts of one pool to the tallies of each part."""
        move = partial(Tensor.to, device=self.device)
        pool = parts[0][0]
        # The examples of all these parts, each once, and where each part has its own.
        all_positions, places_of_parts = distinct([positions for _, positions, _ in parts])
        for batch_start, batch_stop, pool_targets, batch_outputs in self._outputs_of(
            models, pool, all_positions
        ):
            for part, part_tallies, part_places in zip(
                parts, tallies_of_parts, places_of_parts, strict=True
            ):
                # Which examples of the part are in this batch, and where in each of the two.
                is_in_batch = (batch_start <= part_places) & (part_places < batch_stop)
                positions_in_part = is_in_batch.nonzero().squeeze(1)
                if not len(positions_in_part):
                    continue
                positions_in_batch = part_places[positions_in_part] - batch_start
                for score_tally, part_targets in zip(part_tallies, part[2], strict=True):
                    if part_targets is not None:
                        batch_targets = rows(part_targets, positions_in_part)
                    else:
                        batch_targets = rows(pool_targets, positions_in_batch)
                    batch_targets = mapped(move, batch_targets)
                    score_tally.add(rows(batch_outputs, positions_in_batch), batch_targets)

    def _outputs_of(
        self, models: Sequence[Tensor], pool: Batch, positions: Tensor
    ) -> Iterator[tuple[int, int, Batch, Any]]:
        """(start, stop, targets that the pool has, outputs) of examples of a pool; see :data:`MAX_HELD_NUMBERS`."""
        # The batches that are not yielded yet, from `first_position` on.
        held_batches: list[tuple[Batch, Any]] = []
        first_position = 0
        held_numbers = 0
        shapes_now: list[Any] = []
        for batch_start in range(0, len(positions), self.at_once):
            batch_inputs, batch_targets = self.examples(
                pool, positions[batch_start : batch_start + self.at_once]
            )
            outputs = self._ensemble_outputs(models, self.arranged(batch_inputs))
            shapes_before = shapes_now
            shapes_now = []
            for tensor in (*tensors(batch_targets), *tensors(outputs)):
                shapes_now.append(None if tensor is None else tensor.shape[1:])
            # Batches of other shapes, such as longer sequences, cannot be joined.
            is_full = held_numbers >= MAX_HELD_NUMBERS and not self.objective.whole
            if held_batches and (shapes_now != shapes_before or is_full):
                yield first_position, batch_start, *_joined(held_batches)
                held_batches = []
                first_position = batch_start
                held_numbers = 0
            held_batches.append((batch_targets, outputs))
            held_numbers += sum(tensor.numel() for tensor in tensors(outputs))
        if held_batches:
            yield first_position, len(positions), *_joined(held_batches)

    def _ensemble_outputs(self, models: Sequence[Tensor], inputs: Batch) -> Any:
        """Outputs of the loaded model, or of the ensemble of several models, which are loaded in turn."""
        self.module.eval()
        if len(models) == 1:
            return self.outputs(inputs)
        outputs_of_models = []
        for model_row in models:
            self.load(model_row)
            outputs_of_models.append(self.outputs(inputs))
        return self.objective.combine(torch.stack(outputs_of_models))

    def measure(self, model_row: Tensor, examples: Split) -> Scores:
        """Mean loss and metrics of a model ``(d,)`` on a client's examples; NaN without examples."""
        part = (examples.inputs, examples.index, [examples.targets])
        return self.objective.scores(self.sums([model_row], [part])[0][0])

    def _in_order(self, examples: Split) -> Iterator[tuple[Batch, Batch, int]]:
        """(inputs, targets, number of examples) of batches of a client's examples, in order and without augmentation."""
        for batch_start in range(0, len(examples), self.at_once):
            positions = torch.arange(batch_start, min(batch_start + self.at_once, len(examples)))
            inputs, targets = self.batch(examples, positions)
            yield self.arranged(inputs), targets, len(positions)

    @torch.no_grad()
    def losses(self, model_row: Tensor, examples: Split) -> Tensor:
        """Loss of a model ``(d,)`` for each of a client's examples ``(n,)``, at the temperature that makes their sum least.

        A net that has overfitted is too sure of its errors: its loss rises while its accuracy still
        does. Temperature scaling (C. Guo et al., "On Calibration of Modern Neural Networks", arXiv
        1706.04599) mends this and changes no prediction. So models are compared by what they know.
        No temperature is below 1: few examples that are all right would ask for 0.

        With class weights, each loss is multiplied by its weight over the mean weight: the mean of
        all is the weighted mean.
        """
        self.load(model_row)
        self.module.eval()
        # The shape of each is (temperatures, examples).
        losses_of_batches: list[Tensor] = []
        example_weights: list[Tensor] = []
        for batch_inputs, batch_targets, _ in self._in_order(examples):
            example_losses = self.objective.at_temperatures(
                self.outputs(batch_inputs), batch_targets
            )
            losses_of_batches.append(example_losses.losses.float().cpu())
            if example_losses.weights is None:
                example_weights.append(torch.ones(losses_of_batches[-1].shape[1]))
            else:
                example_weights.append(example_losses.weights.float().cpu())
        if not losses_of_batches:
            return torch.zeros(0)
        return at_best_temperature(torch.cat(losses_of_batches, 1), torch.cat(example_weights))

    @torch.no_grad()
    def features_of(
        self, model_row: Tensor, examples: Split, layer: str
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Compute what a model ``(d,)`` makes of a client's examples.

        Args:
            model_row: The model.
            examples: The examples.
            layer: A layer that the model uses once.

        Yields:
            Outputs ``(b, ..., classes)``, inputs of the layer in float32 ``(b, ..., f)``, and
            targets ``(b, ...)``, batch by batch.

        Raises:
            ValueError: The layer has no input for each target, or the targets are not class labels.
        """
        self.load(model_row)
        self.module.eval()
        with inputs_of(self.module, layer) as layer_inputs:
            for batch_inputs, batch_targets, _ in self._in_order(examples):
                outputs = self.outputs(batch_inputs)
                are_labels = (
                    isinstance(batch_targets, Tensor) and not batch_targets.is_floating_point()
                )
                has_inputs = are_labels and bool(layer_inputs)
                if not has_inputs or layer_inputs[-1].shape[:-1] != batch_targets.shape:
                    raise ValueError(
                        f"features need a class label for each input of the layer {layer!r}"
                    )
                yield outputs, layer_inputs.pop().float(), batch_targets
                layer_inputs.clear()

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(
        self,
        model_row: Tensor,
        examples: Split,
        training: Training,
        learning_rate: float,
        generator: torch.Generator,
        *,
        stages: Sequence[Stage] = (),
        pull_term: PullToShared | None = None,
        correction: Tensor | None = None,
        kept: KeptOptimizer | None = None,
    ) -> Tensor:
        """Train a model.

        Args:
            model_row: The model ``(d,)`` from which training starts.
            examples: Training examples.
            training: Settings of local training.
            learning_rate: Learning rate.
            generator: Draws the order of the examples.
            stages: Stages with the layers that they train; none to train all layers at once.
            pull_term: A term that pulls the model to another one.
            correction: A row ``(d,)`` that is added to every gradient.
            kept: The optimizer, if it goes on from an earlier training; None for a new one.

        Returns:
            The trained row ``(d,)``.
        """
        # An extension's optimizer makes its own steps.
        if training.own_optimizer is not None:
            trained_row: Tensor = training.own_optimizer.train(
                self,
                model_row,
                examples,
                training,
                learning_rate,
                generator,
                stages=stages,
                pull_term=pull_term,
                correction=correction,
            )
            return trained_row
        self.load(model_row)
        self.module.train()
        # Plain SGD may be faster on large dense layers.
        has_terms = pull_term is not None or correction is not None
        if not stages and not has_terms and self.dense.gain(training):
            self._train_dense(self._batches(examples, training, generator), learning_rate)
            return self.master.row().to("cpu", copy=True)
        for positions, stage_training in staged(self.layout, training, stages):
            # A stage trains some layers only, so gradients of others are not computed.
            parameters = [self.parameters[position] for position in positions]
            trained_values = [self.master.trainable[position] for position in positions]
            pulled_parameters = (
                None if pull_term is None else pull_term.of(self.layout, positions, self.device)
            )
            added_tensors = None
            if correction is not None:
                added_tensors = tensors_of(correction, self.layout, positions, self.device)
            make_step = stepper(
                trained_values,
                stage_training,
                learning_rate,
                pull_term=pulled_parameters,
                added_tensors=added_tensors,
                kept=kept,
            )
            for inputs, targets in self._batches(examples, stage_training, generator):
                make_step(self.gradients(inputs, targets, parameters))
                self.master.round()
        return self.master.row().to("cpu", copy=True)

    def train_mixture(
        self,
        model_row: Tensor,
        own_row: Tensor,
        mixture_weight: float,
        examples: Split,
        training: Training,
        learning_rate: float,
        generator: torch.Generator,
        adapts_weight: bool,
    ) -> tuple[Tensor, Tensor, float]:
        """Train a model, and with the same batches the client's own part of a mixture with it (APFL, Algorithm 1).

        In each step, w moves along the gradient of its own loss. v moves along the gradient by v of
        the loss of the mixture ``α v + (1 - α) w`` before this step, which is α times the gradient
        at the mixture. Buffers of v are those of the mixture.

        Args:
            model_row: The model w ``(d,)``.
            own_row: The own part v ``(d,)``.
            mixture_weight: The weight α of v.
            examples: Training examples.
            training: Settings of local training.
            learning_rate: Learning rate.
            generator: Draws the order of the examples.
            adapts_weight: Whether α makes a step of gradient descent before training (equation 10), on the
                first batch.

        Returns:
            The trained w and v, ``(d,)`` each, and α.
        """
        # Optimisers change the rows of w and v in place; buffers have no gradient.
        shared_model = model_row.clone()
        own_part = own_row.clone()
        trainable = slice(0, self.layout.trainable)
        buffers = slice(self.layout.trainable, None)
        step_shared = stepper([shared_model[trainable]], training, learning_rate)
        step_own = stepper([own_part[trainable]], training, learning_rate)
        for step_number, (inputs, targets) in enumerate(
            self._batches(examples, training, generator)
        ):
            if adapts_weight and not step_number:
                # Equation 10: α <- α - η <v - w, ∇f(mixture)>, within 0 and 1.
                mixture = mixture_weight * own_part + (1 - mixture_weight) * shared_model
                gradient, _ = self._gradient_at(mixture, inputs, targets)
                slope = float(gradient @ (own_part - shared_model)[trainable])
                mixture_weight = min(max(mixture_weight - learning_rate * slope, 0.0), 1.0)
            # Both gradients belong to the models before this step.
            shared_gradient, shared_after = self._gradient_at(shared_model, inputs, targets)
            mixture = mixture_weight * own_part + (1 - mixture_weight) * shared_model
            mixture_gradient, mixture_after = self._gradient_at(mixture, inputs, targets)
            # One step of w, and one of v with α times the gradient at the mixture (Algorithm 1).
            step_shared([shared_gradient])
            step_own([mixture_weight * mixture_gradient])
            shared_model[buffers] = shared_after[buffers]
            own_part[buffers] = mixture_after[buffers]
        return shared_model, own_part, mixture_weight

    def _gradient_at(
        self, model_row: Tensor, inputs: Batch, targets: Batch
    ) -> tuple[Tensor, Tensor]:
        """Gradient of a batch's loss by the parameters at ``model_row``, and the row with the buffers after the batch."""
        self.load(model_row)
        self.module.train()
        gradient = _flattened(self.gradients(inputs, targets)).cpu()
        return gradient, self.master.row().to("cpu", copy=True)

    def _train_dense(self, batches: Iterable[tuple[Tensor, Tensor]], learning_rate: float) -> None:
        """Plain SGD in which large dense layers are updated separately."""
        with self.dense.kept():
            for inputs, targets in batches:
                mean_loss = self.objective.loss(self.outputs(inputs), targets)
                self.dense.forget()
                gradients = torch.autograd.grad(mean_loss, self.parameters, allow_unused=True)
                self.dense.step(learning_rate)
                descend(self.master.trainable, learning_rate, gradients)
                self.master.round()

    def _batches(
        self, examples: Split, training: Training, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled mini-batches of ``epochs`` passes, or of as many passes as ``steps`` need; one gather per pass."""
        batch_size = training.batch or len(examples)
        gathers_whole_pass = _fits(examples)
        for pass_starts in passes(batch_starts(len(examples), training, self.min_batch), training):
            # One gather for the pass, then batches are views; large examples are gathered batch by
            # batch.
            if gathers_whole_pass:
                inputs, targets = self.shuffled(examples, generator)
                for batch_start in pass_starts:
                    positions_in_pass = slice(batch_start, batch_start + batch_size)
                    yield rows(inputs, positions_in_pass), rows(targets, positions_in_pass)
            else:
                shuffled_positions = torch.randperm(len(examples), generator=generator)
                for batch_start in pass_starts:
                    positions = shuffled_positions[batch_start : batch_start + batch_size]
                    yield self._augmented(*self.batch(examples, positions), generator)

    @property
    def min_batch(self) -> int:
        """Fewest examples of a batch: BatchNorm has no variance of a single example."""
        return 2 if self.has_batchnorm else 1

    def shuffled(self, examples: Split, generator: torch.Generator) -> tuple[Batch, Batch]:
        """A client's examples in a new random order, augmented."""
        return self._augmented(
            *self.batch(examples, torch.randperm(len(examples), generator=generator)), generator
        )

    def _augmented(
        self, inputs: Batch, targets: Batch, generator: torch.Generator
    ) -> tuple[Batch, Batch]:
        if self.augment is not None:
            inputs = self.augment(inputs, generator)
        return self.arranged(inputs), targets

    def gradient(self, model_row: Tensor, examples: Split) -> Tensor:
        """Full-batch gradient ``(d,)`` of the mean training loss at ``model_row``, without dropout; zero for buffers."""
        self.load(model_row)
        self.module.eval()
        weighted_sum = torch.zeros(self.layout.size, device=self.device)
        total_weight = 0.0
        for inputs, targets, example_count in self._in_order(examples):
            outputs = self.outputs(inputs)
            # With class weights, batches count by the sum of these, else by their examples.
            class_weight = self.objective.weight(outputs, targets)
            batch_weight = example_count / len(examples) if class_weight is None else class_weight
            # Where nothing counts, torch's mean is no number.
            if not batch_weight:
                continue
            loss = self.objective.loss(outputs, targets)
            gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            weighted_sum[: self.layout.trainable].add_(_flattened(gradients), alpha=batch_weight)
            total_weight += class_weight or 0.0
        return (weighted_sum / total_weight if total_weight else weighted_sum).cpu()


@contextmanager
def inputs_of(module: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """Context in which the inputs of a layer are appended to the list that it returns, one for each use."""
    layer_inputs: list[Tensor] = []
    hook_handle = module.get_submodule(layer).register_forward_pre_hook(
        lambda _, call_inputs: layer_inputs.append(call_inputs[0])
    )
    try:
        yield layer_inputs
    finally:
        hook_handle.remove()


def _flattened(gradients: Sequence[Tensor]) -> Tensor:
    """The gradients of all parameters as one row."""
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def at_best_temperature(losses: Tensor, example_weights: Tensor | None) -> Tensor:
    """Return the losses ``(b,)`` at the temperature that makes their sum least, one for all examples.

    Args:
        losses: The losses at each temperature, ``(temperatures, b)``.
        example_weights: The weight of each example in the mean loss ``(b,)``; None for equal ones.
    """
    losses_at_temperatures = weighted(losses, example_weights)
    loss_sums = losses_at_temperatures.double().sum(1).nan_to_num(nan=math.inf)
    return losses_at_temperatures[int(loss_sums.argmin())]


def _channels_last(tensor: Tensor) -> Tensor:
    """Images with the channels last in memory; any other tensor as it is."""
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


# ----------------------------------------------------------------------------------------------------
# Steps of local training, and the order of batches.


MAX_PASS_BYTES = 2**28
"""Bytes of a client's examples from which batches are gathered one by one, and not for a whole pass
at once."""


def _fits(examples: Split) -> bool:
    """Whether a client's examples are gathered for a whole pass: they are tensors, and not too large."""
    if isinstance(examples.inputs, Items):
        return False
    example_bytes = sum(tensor[:1].nbytes for tensor in tensors(examples.inputs))
    return example_bytes * len(examples) <= MAX_PASS_BYTES


Step = Callable[[Sequence[Tensor]], None]


@dataclass(frozen=True)
class PullToShared:
    """The term ``weight/2 ||v - toward||²`` in the loss of a model v.

    Attributes:
        weight: Its weight.
        toward: The model ``(d,)`` to which it pulls, or one for each client of a block ``(w, d)``.
    """

    weight: float
    toward: Tensor

    def of(
        self, layout: Layout, positions: Sequence[int], device: torch.device
    ) -> tuple[float, list[Tensor]]:
        """The weight, and the tensors of ``toward`` for some of the trainable parameters."""
        return self.weight, tensors_of(self.toward, layout, positions, device)


def tensors_of(
    row: Tensor, layout: Layout, positions: Sequence[int], device: torch.device
) -> list[Tensor]:
    """Return the tensors of some of the trainable parameters in a row ``(d,)``, or in one for each client ``(w, d)``."""
    leading_shape = row.shape[:-1]
    pieces = [layout.pieces[position] for position in positions]
    return [
        row[..., piece.start : piece.stop].view(*leading_shape, *piece.shape).to(device)
        for piece in pieces
    ]


def staged(
    layout: Layout, training: Training, stages: Sequence[Stage]
) -> Iterator[tuple[list[int], Training]]:
    """Yield for each stage the positions of the trainable parameters that it trains, and its settings of local training.

    Args:
        layout: The layout of the model.
        training: Settings of local training.
        stages: The stages; none for a single one that trains all layers.

    Raises:
        ValueError: The model has no such layer.
    """
    tensor_count = len(layout.tensors)
    if not stages:
        yield list(range(tensor_count)), training
        return
    for stage in stages:
        # This call raises an error for an unknown layer.
        layout.mask(stage.layers)
        stage_positions: list[int] = []
        for position in range(tensor_count):
            layer, _, _ = layout.pieces[position].name.rpartition(".")
            if layer in stage.layers:
                stage_positions.append(position)
        stage_training = training
        if stage.epochs is not None:
            stage_training = replace(training, epochs=stage.epochs, steps=None)
        if stage_positions:
            yield stage_positions, stage_training


def plain(training: Training) -> bool:
    """Return whether a step only adds ``-lr`` times the gradient of the loss to the parameters."""
    adds_terms = training.momentum or training.weight_decay or training.proximal
    return training.optimizer == "sgd" and not adds_terms and training.clip is None


def treats_parameters_alone(training: Training) -> bool:
    """Return whether the optimizer treats each parameter alone, so that clients can be stacked in one block."""
    if training.optimizer in OWN_OPTIMIZERS:
        return True
    return training.optimizer.removeprefix(OPTIMIZERS) in ELEMENTWISE


def stepper(
    trained_tensors: Sequence[Tensor],
    training: Training,
    learning_rate: float,
    *,
    stacked: bool = False,
    pull_term: tuple[float, Sequence[Tensor]] | None = None,
    added_tensors: Sequence[Tensor] | None = None,
    kept: KeptOptimizer | None = None,
) -> Step:
    """Return a function that makes one step of local training.

    Args:
        trained_tensors: The tensors to train, which each step changes in place.
        training: Settings of local training.
        learning_rate: Learning rate.
        stacked: Whether the first dimension of the tensors is that of clients; then each client is
            clipped separately.
        pull_term: Weight of a term that pulls the tensors to other ones, and these.
        added_tensors: What is added to the gradients, one for each of the tensors.
        kept: The optimiser, if it goes on from an earlier training; None for a new one.

    Returns:
        A function of the gradients of a batch, one for each of ``trained_tensors``.
    """
    pull_terms: list[tuple[float, Sequence[Tensor]]] = []
    if training.proximal:
        # FedProx pulls towards the model that the client was sent.
        sent_tensors = [tensor.detach().clone() for tensor in trained_tensors]
        pull_terms.append((training.proximal, sent_tensors))
    if pull_term is not None:
        pull_terms.append(pull_term)
    # The optimiser sees the gradients with these terms, clipped.
    optimise = _optimiser(trained_tensors, training, learning_rate, kept)

    @torch.no_grad()
    def step(gradients: Sequence[Tensor]) -> None:
        # The gradient of weight/2 ||v - target||². Not in place: two parameters may share a gradient.
        for pull_weight, all_targets in pull_terms:
            pulled_gradients = zip(gradients, trained_tensors, all_targets, strict=True)
            gradients = [
                gradient.float().add(tensor - pulled_towards, alpha=pull_weight)
                for gradient, tensor, pulled_towards in pulled_gradients
            ]
        if added_tensors is not None:
            gradients = [
                gradient.float() + added
                for gradient, added in zip(gradients, added_tensors, strict=True)
            ]
        if training.clip is not None:
            gradients = _clipped(
                [gradient.float() for gradient in gradients], training.clip, stacked
            )
        optimise(gradients)

    return step


def _clipped(gradients: Sequence[Tensor], max_norm: float, stacked: bool) -> list[Tensor]:
    """Gradients of norm ``max_norm`` at most, all tensors together; stacked: those of each client."""
    if not stacked:
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return [gradient * scale for gradient in gradients]
    # The norm of each client's gradient, from the norms of its tensors.
    norms_of_tensors = [gradient.reshape(len(gradient), -1).norm(dim=1) for gradient in gradients]
    norm = torch.stack(norms_of_tensors).norm(dim=0)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return [gradient * scale.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def _optimiser(
    trained_tensors: Sequence[Tensor],
    training: Training,
    learning_rate: float,
    kept: KeptOptimizer | None,
) -> Step:
    weight_decay = training.weight_decay
    optimiser: torch.optim.Optimizer
    if training.optimizer not in OWN_OPTIMIZERS:
        own_class = None
        if is_own(training.optimizer):
            own_class = imported(training.optimizer, "optimizer")
        optimiser = build_optimizer(
            training.optimizer,
            training.optimizer_options,
            trained_tensors,
            learning_rate,
            own_class,
        )
    elif training.optimizer == "adam":
        optimiser = torch.optim.Adam(trained_tensors, lr=learning_rate, weight_decay=weight_decay)
    elif training.momentum or weight_decay:
        optimiser = torch.optim.SGD(
            trained_tensors, lr=learning_rate, momentum=training.momentum, weight_decay=weight_decay
        )
    else:
        return partial(descend, trained_tensors, learning_rate)
    if kept is not None:
        kept.resume(optimiser)

    def move(gradients: Sequence[Tensor]) -> None:
        for tensor, gradient in zip(trained_tensors, gradients, strict=True):
            tensor.grad = gradient.to(tensor.dtype)
        optimiser.step()

    return move


@torch.no_grad()
def descend(
    trained_tensors: Sequence[Tensor], learning_rate: float, gradients: Sequence[Tensor | None]
) -> None:
    """Make one step of plain SGD; a tensor without a gradient does not change."""
    for tensor, gradient in zip(trained_tensors, gradients, strict=True):
        if gradient is not None:
            tensor.add_(gradient, alpha=-learning_rate)


def batch_starts(example_count: int, training: Training, min_batch: int) -> list[int]:
    """Return the start of each batch in one pass over a client's examples.

    Args:
        example_count: Number of examples.
        training: Settings of local training.
        min_batch: Batches with fewer examples are left out.

    Returns:
        Positions of the first examples.

    Raises:
        ValueError: No batch is left.
    """
    batch_size = training.batch or example_count
    all_starts = list(range(0, example_count, batch_size))
    # Only the last batch can be too small, unless every batch is.
    while all_starts and min(batch_size, example_count - all_starts[-1]) < min_batch:
        all_starts.pop()
    if not all_starts:
        description = "a batch of 1" if example_count > 1 else "a client with one training example"
        raise ValueError(f"{description} cannot train a model with BatchNorm")
    return all_starts


def passes(batch_starts: Sequence[int], training: Training) -> Iterator[Sequence[int]]:
    """Yield ``batch_starts`` for each pass; the last pass is shorter if ``steps`` require it."""
    steps_left = training.steps
    if steps_left is None:
        steps_left = training.epochs * len(batch_starts)
    while steps_left > 0:
        yield batch_starts[:steps_left]
        steps_left -= len(batch_starts)


# ----------------------------------------------------------------------------------------------------
# Large dense layers under plain SGD on a CPU: one product updates the weights.
#
# With few examples in a batch, memory limits the speed of such a layer, not arithmetic: its
# gradient is as large as its weights and is written once, read once and dropped. Here a backward
# pass keeps only the layer's inputs X and the derivatives G of the loss by its outputs, which are
# both small. Then ``W -= lr G^T X`` passes over the weights once. The numbers are those of SGD up
# to float rounding; in bf16 they are more exact, since the product itself is not rounded.


MIN_LAYER_WEIGHTS = 2**18
"""Number of weights from which a layer becomes faster."""

MAX_FLOAT32_ROWS = 64
"""Most rows of a batch of which the product of a bf16 layer is computed in float32: of more,
arithmetic limits the speed."""

Held = list[tuple[Tensor, Tensor, Tensor]]
"""(float32 values of the weight, X, G) of each use of a layer in a backward pass."""


class DenseUpdates:
    """The large dense layers of a module.

    Args:
        module: The module.
        weights: Its trainable parameters, each with its float32 values: itself, or what it is
            rounded from.
    """

    def __init__(
        self, module: nn.Module, weights_and_values: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        values_of: dict[int, Tensor] = {}
        for weight, float32_values in weights_and_values:
            is_plain = weight.is_cpu and not weight._backward_hooks
            # A hook on a weight's gradient needs the gradient itself.
            if is_plain and float32_values.dtype == torch.float32:
                values_of[id(weight)] = float32_values
        self.layers: list[tuple[nn.Linear, Tensor, Tensor]] = []
        for layer in module.modules():
            if type(layer) is not nn.Linear:
                continue
            # A weight that a hook computes is no parameter.
            weight_parameter = layer._parameters.get("weight")
            if weight_parameter is None or id(weight_parameter) not in values_of:
                continue
            if weight_parameter.numel() >= MIN_LAYER_WEIGHTS:
                self.layers.append((layer, weight_parameter, values_of[id(weight_parameter)]))
        self.held: Held = []

    def gain(self, training: Training) -> bool:
        """Whether there are such layers and training only adds ``-lr`` times the gradient to the weights."""
        return bool(self.layers) and plain(training)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context in which backward passes keep the factors of these weights' gradients and do not compute the gradients."""
        for layer, weight, float32_values in self.layers:
            layer.forward = partial(_outputs, layer, weight, float32_values, self.held)  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.held.clear()
            for layer, _, _ in self.layers:
                del layer.forward

    def forget(self) -> None:
        """Drop the factors of gradients that a module computed itself on the way to the loss."""
        self.held.clear()

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the weights with the factors of the last backward pass."""
        for float32_values, layer_inputs, output_derivatives in self.held:
            # W -= lr G^T X
            float32_values.addmm_(
                output_derivatives.t().float(), layer_inputs.float(), alpha=-learning_rate
            )
        self.held.clear()


def _outputs(
    layer: nn.Linear,
    weight: Tensor,
    float32_values: Tensor,
    held_factors: Held,
    layer_inputs: Tensor,
) -> Tensor:
    # A call may have replaced the weight temporarily.
    if layer.weight is not weight:
        return functional.linear(layer_inputs, layer.weight, layer.bias)
    return _Dense.apply(layer_inputs, weight, layer.bias, float32_values, held_factors)


class _Dense(torch.autograd.Function):
    """A dense layer, ``x W^T + b``, without a gradient of the weights unless that gradient is differentiated again."""

    @staticmethod
    def forward(context, layer_inputs, weight, bias, float32_values, held_factors):  # type: ignore[no-untyped-def]
        context.save_for_backward(layer_inputs, weight)
        context.values = float32_values
        context.held = held_factors
        return functional.linear(layer_inputs, weight, bias)

    @staticmethod
    def backward(context, output_derivatives):  # type: ignore[no-untyped-def]
        layer_inputs, weight = context.saved_tensors
        needs_inputs, _, needs_bias, *_ = context.needs_input_grad
        # In half precision under autocast.
        derivative_rows = output_derivatives.reshape(-1, output_derivatives.shape[-1])
        derivative_rows = derivative_rows.to(weight.dtype)
        input_rows = layer_inputs.reshape(-1, layer_inputs.shape[-1]).to(weight.dtype)
        bias_gradient = derivative_rows.sum(0) if needs_bias else None
        is_half_precision = weight.dtype != torch.float32
        is_large = is_half_precision and len(derivative_rows) > MAX_FLOAT32_ROWS
        # The ordinary backward pass, with the gradient of the weights.
        if torch.is_grad_enabled() or is_large:
            input_gradient = (derivative_rows @ weight).view_as(layer_inputs).to(layer_inputs.dtype)
            return input_gradient, derivative_rows.t() @ input_rows, bias_gradient, None, None
        # The factors of that gradient are kept for the step.
        context.held.append((context.values, input_rows, derivative_rows))
        input_gradient = None
        if needs_inputs:
            input_gradient = _times(derivative_rows, weight).view_as(layer_inputs)
            input_gradient = input_gradient.to(layer_inputs.dtype)
        return input_gradient, None, bias_gradient, None, None


def _times(output_derivatives: Tensor, weight: Tensor) -> Tensor:
    """``g W``, by oneDNN if PyTorch has it: for few rows it takes two thirds of the time of PyTorch's own choice."""
    transposed = weight.detach().t()
    try:
        return torch.ops.mkldnn._linear_pointwise(
            output_derivatives, transposed, None, "none", [], ""
        )
    # It is not a public function, so it may be missing or refuse.
    except (AttributeError, RuntimeError):
        return output_derivatives @ weight


# ----------------------------------------------------------------------------------------------------
# Loss and metrics of a model: each output is computed once, in batches that examples of several
# clients share.


BATCH_TO_MEASURE = 256
"""Examples per batch without training; the activations of a batch should fit into the cache of a
core."""

LARGE_MODEL = 2**25
"""Parameters, frozen ones included, from which such a batch has an eighth of these examples:
activations take memory."""

Scores = dict[str, float]

Part = tuple[Batch, Tensor, Sequence[Batch]]
"""A pool, an index into it, and any number of targets for these examples; None for targets that the
pool has."""

MAX_HELD_NUMBERS = 2**24
"""Numbers in outputs that are held until they are counted for every part that has these examples.
"""


def batchnorm(module: nn.Module) -> tuple[bool, bool]:
    """Whether a module has BatchNorm, and whether the examples of a batch mix in tests, too, for lack of running statistics."""
    has_norm_layers = False
    mixes_in_tests = False
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            has_norm_layers = True
            mixes_in_tests = mixes_in_tests or part.running_mean is None
    return has_norm_layers, mixes_in_tests


def _joined(held: Sequence[tuple[Batch, Any]]) -> tuple[Batch, Any]:
    """The targets that the pool has, and the outputs, of several batches."""
    targets, outputs = zip(*held, strict=True)
    return None if targets[0] is None else joined(targets), joined(outputs)


def distinct(indexes: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """The distinct entries of some indexes, and where among these each index has its own.

    Example:
        >>> distinct([torch.tensor([4, 9]), torch.tensor([9, 2])])
        (tensor([2, 4, 9]), (tensor([1, 2]), tensor([2, 0])))
    """
    all_entries = torch.cat(list(indexes))
    lengths = [len(index) for index in indexes]
    if len(indexes) > 1:
        entries, places = all_entries.unique(return_inverse=True)
        if len(entries) < len(all_entries):
            return entries, places.split(lengths)
    # All are distinct, so they stay in their order.
    return all_entries, torch.arange(len(all_entries)).split(lengths)
