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
from coterie.models.layout import Layout
from coterie.randomness import Scope, seeded
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
        self.layout = Layout(module)
        self.module = module.to(device)
        self.objective = objective
        self.augment = augment
        self.device = torch.device(device)
        self.precision = precision
        # Convolutions are faster with the channels last in memory.
        self.images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self.large = sum(p.numel() for p in module.parameters()) >= LARGE_MODEL
        self.at_once = BATCH_TO_MEASURE // (8 if self.large else 1)
        self.has_batchnorm, self.mixes = batchnorm(module)
        self.own_code = runs_own_code(module, objective, augment)
        self.master = Master(module, self.layout, self.device, precision)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.dense = DenseUpdates(
            module, list(zip(self.parameters, self.master.trainable, strict=True))
        )
        in_row = {piece.name for piece in self.layout.pieces}
        # (owner, name, first values) of the buffers that are not part of a row.
        self.first_buffers: list[tuple[nn.Module, str, Tensor]] = []
        for path, owner in module.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and f"{path}.{name}".lstrip(".") not in in_row:
                    self.first_buffers.append((owner, name, buffer.clone()))
        self._resident: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch: dict[tuple[str, torch.dtype], Tensor] = {}

    def scope(self, key: Sequence[int], *splits: Split) -> AbstractContextManager[Scope]:
        """A scope of seeded generators for work on some splits; see :func:`~coterie.randomness.seeded`.

        Args:
            key: The seed.
            *splits: The examples, whose data set may have code of its own.
        """
        reads_items = any(isinstance(split.inputs, Items) for split in splits)
        return seeded(*key, own_code=self.own_code or reads_items)

    def load(self, row: Tensor) -> None:
        """Load a model ``(d,)``; buffers that are not part of a row (such as integers) get their first values again."""
        self.master.load(row)
        self.reset()

    def reset(self) -> None:
        """Give the buffers that are not part of a row their first values again."""
        for owner, name, first in self.first_buffers:
            owner._buffers[name] = first.clone()

    def gradients(
        self, x: Batch, y: Batch, parameters: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Gradient of the batch's mean loss for each parameter, or for some; zero if the loss does not depend on it."""
        loss = self.objective.loss(self.outputs(x), y)
        return torch.autograd.grad(
            loss, self.parameters if parameters is None else parameters, materialize_grads=True
        )

    def outputs(self, x: Batch) -> Any:
        """The module's outputs in float32."""
        if self.precision == "fp32":
            return call(self.module, x)
        with computing(self.precision, self.device):
            return mapped(Tensor.float, call(self.module, x))

    def on_device(self, tensor: Tensor) -> Tensor:
        """A tensor of the world on this device; it is copied once."""
        if tensor.device == self.device:
            return tensor
        if id(tensor) not in self._resident:
            # With the tensor itself, so that its id stays in use.
            self._resident[id(tensor)] = (tensor, tensor.to(self.device))
        return self._resident[id(tensor)][1]

    def batch(self, data: Split, positions: Tensor) -> tuple[Batch, Batch]:
        """(inputs, targets) of the examples at ``positions`` of a split, on this device."""
        x, y = self.examples(data.inputs, data.index[positions])
        return x, self.selected(data.targets, positions) if y is None else y

    def examples(self, pool: Batch, index: Tensor) -> tuple[Batch, Batch]:
        """The examples of a pool at ``index``, on this device; and their targets if the pool has them, otherwise None."""
        if isinstance(pool, Items):
            x, y = pool.batch(index)
            move = partial(Tensor.to, device=self.device)
            return mapped(move, x), mapped(move, y)
        return mapped(numbers, self.selected(pool, index)), None

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
        size = math.prod(shape)
        if (name, dtype) not in self._scratch or len(self._scratch[name, dtype]) < size:
            self._scratch[name, dtype] = torch.empty(size, dtype=dtype, device=self.device)
        return self._scratch[name, dtype][:size].view(shape)

    def arranged(self, x: Batch) -> Batch:
        """A batch with the channels last in memory if the module has convolutions and the inputs are images."""
        if not self.images:
            return x
        # Not contiguous(): it does not change images of one channel, and the next layers would
        # compute with channels first.
        return mapped(_channels_last, x)

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
        if self.mixes and len(parts) > 1:
            return [self.sums(models, [part])[0] for part in parts]
        tallies = [[Tally(self.objective) for _ in targets] for _, _, targets in parts]
        for _, run in groupby(range(len(parts)), key=lambda i: id(parts[i][0])):
            part_numbers = list(run)  # of one pool
            pool = parts[part_numbers[0]][0]
            # The examples of all these parts, each once, and where each part has its own.
            index, places = distinct([parts[i][1] for i in part_numbers])
            for start, stop, pool_targets, outputs in self._outputs_of(models, pool, index):
                for i, part_places in zip(part_numbers, places, strict=True):
                    in_batch = (start <= part_places) & (part_places < stop)
                    of_part = in_batch.nonzero().squeeze(1)
                    if not len(of_part):
                        continue
                    of_batch = part_places[of_part] - start
                    for tally, targets in zip(tallies[i], parts[i][2], strict=True):
                        has_targets = targets is not None
                        y = rows(targets, of_part) if has_targets else rows(pool_targets, of_batch)
                        y = mapped(partial(Tensor.to, device=self.device), y)
                        tally.add(rows(outputs, of_batch), y)
        return [[tally.result() for tally in of_part] for of_part in tallies]

    def _outputs_of(
        self, models: Sequence[Tensor], pool: Batch, index: Tensor
    ) -> Iterator[tuple[int, int, Batch, Any]]:
        """(start, stop, targets that the pool has, outputs) of examples of a pool; see :data:`MAX_HELD_NUMBERS`."""
        held: list[tuple[Batch, Any]] = []  # batches that are not yielded yet, from `first` on
        first = 0
        entries = 0
        shapes: list[Any] = []
        for start in range(0, len(index), self.at_once):
            x, y = self.examples(pool, index[start : start + self.at_once])
            outputs = self._ensemble_outputs(models, self.arranged(x))
            shapes_before = shapes
            shapes = []
            for tensor in (*tensors(y), *tensors(outputs)):
                shapes.append(None if tensor is None else tensor.shape[1:])
            # Batches of other shapes, such as longer sequences, cannot be joined.
            is_full = entries >= MAX_HELD_NUMBERS and not self.objective.whole
            if held and (shapes != shapes_before or is_full):
                yield first, start, *_joined(held)
                held = []
                first = start
                entries = 0
            held.append((y, outputs))
            entries += sum(tensor.numel() for tensor in tensors(outputs))
        if held:
            yield first, len(index), *_joined(held)

    def _ensemble_outputs(self, models: Sequence[Tensor], x: Batch) -> Any:
        """Outputs of the loaded model, or of the ensemble of several models, which are loaded in turn."""
        self.module.eval()
        if len(models) == 1:
            return self.outputs(x)
        outputs = []
        for row in models:
            self.load(row)
            outputs.append(self.outputs(x))
        return self.objective.combine(torch.stack(outputs))

    def measure(self, row: Tensor, data: Split) -> Scores:
        """Mean loss and metrics of a model ``(d,)`` on a client's examples; NaN without examples."""
        part = (data.inputs, data.index, [data.targets])
        return self.objective.scores(self.sums([row], [part])[0][0])

    def _in_order(self, data: Split) -> Iterator[tuple[Batch, Batch, int]]:
        """(inputs, targets, number of examples) of batches of a client's examples, in order and without augmentation."""
        for start in range(0, len(data), self.at_once):
            positions = torch.arange(start, min(start + self.at_once, len(data)))
            x, y = self.batch(data, positions)
            yield self.arranged(x), y, len(positions)

    @torch.no_grad()
    def losses(self, row: Tensor, data: Split) -> Tensor:
        """Loss of a model ``(d,)`` for each of a client's examples ``(n,)``, at the temperature that makes their sum least.

        A net that has overfitted is too sure of its errors: its loss rises while its accuracy still
        does. Temperature scaling (C. Guo et al., "On Calibration of Modern Neural Networks", arXiv
        1706.04599) mends this and changes no prediction. So models are compared by what they know.
        No temperature is below 1: few examples that are all right would ask for 0.

        With class weights, each loss is multiplied by its weight over the mean weight: the mean of
        all is the weighted mean.
        """
        self.load(row)
        self.module.eval()
        batches: list[Tensor] = []  # (temperatures, examples) each
        weights: list[Tensor] = []
        for x, y, _ in self._in_order(data):
            example_losses = self.objective.at_temperatures(self.outputs(x), y)
            batches.append(example_losses.losses.float().cpu())
            if example_losses.weights is None:
                weights.append(torch.ones(batches[-1].shape[1]))
            else:
                weights.append(example_losses.weights.float().cpu())
        if not batches:
            return torch.zeros(0)
        losses = weighted(torch.cat(batches, 1), torch.cat(weights))
        sums = losses.double().sum(1).nan_to_num(nan=math.inf)
        return losses[int(sums.argmin())]

    @torch.no_grad()
    def features_of(
        self, row: Tensor, data: Split, layer: str
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Compute what a model ``(d,)`` makes of a client's examples.

        Args:
            row: The model.
            data: The examples.
            layer: A layer that the model uses once.

        Yields:
            Outputs ``(b, ..., classes)``, inputs of the layer in float32 ``(b, ..., f)``, and
            targets ``(b, ...)``, batch by batch.

        Raises:
            ValueError: The layer has no input for each target, or the targets are not class labels.
        """
        self.load(row)
        self.module.eval()
        with inputs_of(self.module, layer) as layer_inputs:
            for x, y, _ in self._in_order(data):
                outputs = self.outputs(x)
                are_labels = isinstance(y, Tensor) and not y.is_floating_point()
                if not are_labels or not layer_inputs or layer_inputs[-1].shape[:-1] != y.shape:
                    raise ValueError(
                        f"the nearest examples need a class label for each input of the layer {layer!r}"
                    )
                yield outputs, layer_inputs.pop().float(), y
                layer_inputs.clear()

    # -- training
    # -----------------------------------------------------------------------------------------------------

    def train(
        self,
        row: Tensor,
        data: Split,
        training: Training,
        lr: float,
        gen: torch.Generator,
        *,
        stages: Sequence[Stage] = (),
        pull: PullToShared | None = None,
    ) -> Tensor:
        """Train a model.

        Args:
            row: The model ``(d,)`` from which training starts.
            data: Training examples.
            training: Settings of local training.
            lr: Learning rate.
            gen: Draws the order of the examples.
            stages: Stages with the layers that they train; none to train all layers at once.
            pull: A term that pulls the model to another one.

        Returns:
            The trained row ``(d,)``.
        """
        self.load(row)
        self.module.train()
        if not stages and pull is None and self.dense.gain(training):
            self._train_dense(self._batches(data, training, gen), lr)
            return self.master.row().to("cpu", copy=True)
        for positions, settings in staged(self.layout, training, stages):
            parameters = [self.parameters[i] for i in positions]
            values = [self.master.trainable[i] for i in positions]
            pulled = None if pull is None else pull.of(self.layout, positions, self.device)
            step = stepper(values, settings, lr, pull=pulled)
            for x, y in self._batches(data, settings, gen):
                step(self.gradients(x, y, parameters))
                self.master.round()
        return self.master.row().to("cpu", copy=True)

    def train_mixture(
        self,
        row: Tensor,
        own: Tensor,
        weight: float,
        data: Split,
        training: Training,
        lr: float,
        gen: torch.Generator,
        adapt: bool,
    ) -> tuple[Tensor, Tensor, float]:
        """Train a model, and with the same batches the client's own part of a mixture with it (APFL, Algorithm 1).

        In each step, w moves along the gradient of its own loss. v moves along the gradient by v of
        the loss of the mixture ``α v + (1 - α) w`` before this step, which is α times the gradient
        at the mixture. Buffers of v are those of the mixture.

        Args:
            row: The model w ``(d,)``.
            own: The own part v ``(d,)``.
            weight: The weight α of v.
            data: Training examples.
            training: Settings of local training.
            lr: Learning rate.
            gen: Draws the order of the examples.
            adapt: Whether α makes a step of gradient descent before training (equation 10), on the
                first batch.

        Returns:
            The trained w and v, ``(d,)`` each, and α.
        """
        w = row.clone()
        v = own.clone()
        trainable = slice(0, self.layout.trainable)
        buffers = slice(self.layout.trainable, None)
        step_w = stepper([w[trainable]], training, lr)
        step_v = stepper([v[trainable]], training, lr)
        for number, (x, y) in enumerate(self._batches(data, training, gen)):
            if adapt and not number:  # equation 10: α <- α - η <v - w, ∇f(mixture)>
                gradient, _ = self._gradient_at(weight * v + (1 - weight) * w, x, y)
                weight = min(max(weight - lr * float(gradient @ (v - w)[trainable]), 0.0), 1.0)
            gradient_of_w, w_after = self._gradient_at(w, x, y)
            mixture = weight * v + (1 - weight) * w
            gradient_of_mixture, mixture_after = self._gradient_at(mixture, x, y)
            step_w([gradient_of_w])
            step_v([weight * gradient_of_mixture])
            w[buffers] = w_after[buffers]
            v[buffers] = mixture_after[buffers]
        return w, v, weight

    def _gradient_at(self, row: Tensor, x: Batch, y: Batch) -> tuple[Tensor, Tensor]:
        """Gradient of a batch's loss by the parameters at ``row``, and the row with the buffers after the batch."""
        self.load(row)
        self.module.train()
        gradient = torch.cat([g.reshape(-1) for g in self.gradients(x, y)]).cpu()
        return gradient, self.master.row().to("cpu", copy=True)

    def _train_dense(self, batches: Iterable[tuple[Tensor, Tensor]], lr: float) -> None:
        """Plain SGD in which large dense layers are updated separately."""
        with self.dense.kept():
            for x, y in batches:
                loss = self.objective.loss(self.outputs(x), y)
                self.dense.forget()
                gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
                self.dense.step(lr)
                descend(self.master.trainable, lr, gradients)
                self.master.round()

    def _batches(
        self, data: Split, training: Training, gen: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled mini-batches of ``epochs`` passes, or of as many passes as ``steps`` need; one gather per pass."""
        size = training.batch or len(data)
        gathers_whole_pass = _fits(data)
        for starts in passes(batch_starts(len(data), training, self.min_batch), training):
            if gathers_whole_pass:
                x, y = self.shuffled(data, gen)
                for start in starts:
                    batch = slice(start, start + size)
                    yield rows(x, batch), rows(y, batch)
            else:
                order = torch.randperm(len(data), generator=gen)
                for start in starts:
                    yield self._augmented(*self.batch(data, order[start : start + size]), gen)

    @property
    def min_batch(self) -> int:
        """Fewest examples of a batch: BatchNorm has no variance of a single example."""
        return 2 if self.has_batchnorm else 1

    def shuffled(self, data: Split, gen: torch.Generator) -> tuple[Batch, Batch]:
        """A client's examples in a new random order, augmented."""
        return self._augmented(*self.batch(data, torch.randperm(len(data), generator=gen)), gen)

    def _augmented(self, x: Batch, y: Batch, gen: torch.Generator) -> tuple[Batch, Batch]:
        if self.augment is not None:
            x = self.augment(x, gen)
        return self.arranged(x), y

    def gradient(self, row: Tensor, data: Split) -> Tensor:
        """Full-batch gradient ``(d,)`` of the mean training loss at ``row``, without dropout; zero for buffers."""
        self.load(row)
        self.module.eval()
        total = torch.zeros(self.layout.size, device=self.device)
        weights = 0.0
        for x, y, count in self._in_order(data):
            outputs = self.outputs(x)
            weight = self.objective.weight(outputs, y)  # with class weights, batches count by these
            share = count / len(data) if weight is None else weight
            if not share:
                continue  # nothing counts, and torch's mean is no number
            loss = self.objective.loss(outputs, y)
            gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            total[: self.layout.trainable].add_(
                torch.cat([g.reshape(-1) for g in gradients]), alpha=share
            )
            weights += weight or 0.0
        return (total / weights if weights else total).cpu()


@contextmanager
def inputs_of(module: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """Context in which the inputs of a layer are appended to the list that it returns, one for each use."""
    layer_inputs: list[Tensor] = []
    handle = module.get_submodule(layer).register_forward_pre_hook(
        lambda _, inputs: layer_inputs.append(inputs[0])
    )
    try:
        yield layer_inputs
    finally:
        handle.remove()


def _channels_last(tensor: Tensor) -> Tensor:
    """Images with the channels last in memory; any other tensor as it is."""
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


# ----------------------------------------------------------------------------------------------------
# Steps of local training, and the order of batches.


MAX_PASS_BYTES = 2**28
"""Bytes of a client's examples from which batches are gathered one by one, and not for a whole pass
at once."""


def _fits(data: Split) -> bool:
    """Whether a client's examples are gathered for a whole pass: they are tensors, and not too large."""
    if isinstance(data.inputs, Items):
        return False
    example_bytes = sum(tensor[:1].nbytes for tensor in tensors(data.inputs))
    return example_bytes * len(data) <= MAX_PASS_BYTES


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
        self, layout: Layout, part: Sequence[int], device: torch.device
    ) -> tuple[float, list[Tensor]]:
        """The weight, and the tensors of ``toward`` for some of the trainable parameters."""
        lead = self.toward.shape[:-1]
        pieces = [layout.pieces[i] for i in part]
        return self.weight, [
            self.toward[..., p.start : p.stop].view(*lead, *p.shape).to(device) for p in pieces
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
    count = len(layout.tensors)
    if not stages:
        yield list(range(count)), training
    for stage in stages:
        layout.mask(stage.layers)  # raises an error for an unknown layer
        part = [i for i in range(count) if layout.pieces[i].name.rpartition(".")[0] in stage.layers]
        settings = training
        if stage.epochs is not None:
            settings = replace(training, epochs=stage.epochs, steps=None)
        if part:
            yield part, settings


def plain(training: Training) -> bool:
    """Return whether a step only adds ``-lr`` times the gradient of the loss to the parameters."""
    adds_terms = training.momentum or training.weight_decay or training.proximal
    return training.optimizer == "sgd" and not adds_terms and training.clip is None


def stepper(
    values: Sequence[Tensor],
    training: Training,
    lr: float,
    *,
    stacked: bool = False,
    pull: tuple[float, Sequence[Tensor]] | None = None,
) -> Step:
    """Return a function that makes one step of local training, with a new optimiser.

    Args:
        values: The tensors to train, which each step changes in place.
        training: Settings of local training.
        lr: Learning rate.
        stacked: Whether the first dimension of the tensors is that of clients; then each client is
            clipped separately.
        pull: Weight of a term that pulls the tensors to other ones, and these.

    Returns:
        A function of the gradients of a batch, one for each of ``values``.
    """
    pulls: list[tuple[float, Sequence[Tensor]]] = []
    if training.proximal:  # FedProx: towards the model that the client was sent
        pulls.append((training.proximal, [v.detach().clone() for v in values]))
    if pull is not None:
        pulls.append(pull)
    move = _optimiser(values, training, lr)

    @torch.no_grad()
    def step(gradients: Sequence[Tensor]) -> None:
        # Not in place: two parameters may share a gradient.
        for weight, targets in pulls:
            terms = zip(gradients, values, targets, strict=True)
            gradients = [g.float().add(v - target, alpha=weight) for g, v, target in terms]
        if training.clip is not None:
            gradients = _clipped([g.float() for g in gradients], training.clip, stacked)
        move(gradients)

    return step


def _clipped(gradients: Sequence[Tensor], limit: float, stacked: bool) -> list[Tensor]:
    """Gradients of norm ``limit`` at most, all tensors together; stacked: those of each client."""
    if not stacked:
        norm = torch.stack([g.norm() for g in gradients]).norm()
        share = (limit / (norm + 1e-6)).clamp(max=1.0)
        return [g * share for g in gradients]
    norm = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients]).norm(dim=0)
    share = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [g * share.view(-1, *[1] * (g.dim() - 1)) for g in gradients]


def _optimiser(values: Sequence[Tensor], training: Training, lr: float) -> Step:
    decay = training.weight_decay
    optimiser: torch.optim.Optimizer
    if training.optimizer == "adam":
        optimiser = torch.optim.Adam(values, lr=lr, weight_decay=decay)
    elif training.momentum or decay:
        optimiser = torch.optim.SGD(values, lr=lr, momentum=training.momentum, weight_decay=decay)
    else:
        return partial(descend, values, lr)

    def move(gradients: Sequence[Tensor]) -> None:
        for v, g in zip(values, gradients, strict=True):
            v.grad = g.to(v.dtype)
        optimiser.step()

    return move


@torch.no_grad()
def descend(values: Sequence[Tensor], lr: float, gradients: Sequence[Tensor | None]) -> None:
    """Make one step of plain SGD; a tensor without a gradient does not change."""
    for v, g in zip(values, gradients, strict=True):
        if g is not None:
            v.add_(g, alpha=-lr)


def batch_starts(examples: int, training: Training, min_batch: int) -> list[int]:
    """Return the start of each batch in one pass over a client's examples.

    Args:
        examples: Number of examples.
        training: Settings of local training.
        min_batch: Batches with fewer examples are left out.

    Returns:
        Positions of the first examples.

    Raises:
        ValueError: No batch is left.
    """
    size = training.batch or examples
    starts = [
        start for start in range(0, examples, size) if min(size, examples - start) >= min_batch
    ]
    if not starts:
        kind = "a batch of 1" if examples > 1 else "a client with one training example"
        raise ValueError(f"{kind} cannot train a model with BatchNorm")
    return starts


def passes(starts: Sequence[int], training: Training) -> Iterator[Sequence[int]]:
    """Yield ``starts`` for each pass; the last pass is shorter if ``steps`` require it."""
    left = training.steps if training.steps is not None else training.epochs * len(starts)
    while left > 0:
        yield starts[:left]
        left -= len(starts)


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

    def __init__(self, module: nn.Module, weights: Sequence[tuple[Tensor, Tensor]]) -> None:
        values_of: dict[int, Tensor] = {}
        for weight, values in weights:
            if weight.is_cpu and not weight._backward_hooks and values.dtype == torch.float32:
                values_of[id(weight)] = values
        self.layers: list[tuple[nn.Linear, Tensor, Tensor]] = []
        for layer in module.modules():
            if type(layer) is not nn.Linear:
                continue
            weight_parameter = layer._parameters.get("weight")  # None if a hook computes it
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
        for layer, weight, values in self.layers:
            layer.forward = partial(_outputs, layer, weight, values, self.held)  # type: ignore[method-assign]
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
    def step(self, lr: float) -> None:
        """Update the weights with the factors of the last backward pass."""
        for values, x, g in self.held:
            values.addmm_(g.t().float(), x.float(), alpha=-lr)
        self.held.clear()


def _outputs(layer: nn.Linear, weight: Tensor, values: Tensor, held: Held, x: Tensor) -> Tensor:
    if layer.weight is not weight:  # a call has replaced the weight temporarily
        return functional.linear(x, layer.weight, layer.bias)
    return _Dense.apply(x, weight, layer.bias, values, held)


class _Dense(torch.autograd.Function):
    """A dense layer, ``x W^T + b``, without a gradient of the weights unless that gradient is differentiated again."""

    @staticmethod
    def forward(ctx, x, weight, bias, values, held):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.values, ctx.held = values, held
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        for_x, _, for_bias, *_ = ctx.needs_input_grad
        # In half precision under autocast.
        rows = g.reshape(-1, g.shape[-1]).to(weight.dtype)
        inputs = x.reshape(-1, x.shape[-1]).to(weight.dtype)
        of_bias = rows.sum(0) if for_bias else None
        is_low = weight.dtype != torch.float32
        if torch.is_grad_enabled() or (is_low and len(rows) > MAX_FLOAT32_ROWS):
            return (rows @ weight).view_as(x).to(x.dtype), rows.t() @ inputs, of_bias, None, None
        ctx.held.append((ctx.values, inputs, rows))
        of_x = _times(rows, weight).view_as(x).to(x.dtype) if for_x else None
        return of_x, None, of_bias, None, None


def _times(g: Tensor, weight: Tensor) -> Tensor:
    """``g W``, by oneDNN if PyTorch has it: for few rows it takes two thirds of the time of PyTorch's own choice."""
    try:
        return torch.ops.mkldnn._linear_pointwise(g, weight.detach().t(), None, "none", [], "")
    except (AttributeError, RuntimeError):  # it is not a public function
        return g @ weight


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
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return bool(norms), any(norm.running_mean is None for norm in norms)


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
    index = torch.cat(list(indexes))
    lengths = [len(part) for part in indexes]
    if len(indexes) > 1:
        entries, places = index.unique(return_inverse=True)
        if len(entries) < len(index):
            return entries, places.split(lengths)
    # All are distinct, so they stay in their order.
    return index, torch.arange(len(index)).split(lengths)
