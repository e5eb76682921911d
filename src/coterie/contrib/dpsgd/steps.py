"""The noisy steps of a client: Algorithm 1 of Abadi et al. (2016).

In each step t, of a batch L_t of about B examples:

1. the gradient g_t(x) of the loss of each example x,
2. clipped to norm C: ``g_t(x) / max(1, ||g_t(x)|| / C)``,
3. their sum with noise, divided by the size of a batch: ``(Σ_x g_t(x) + N(0, σ² C² I)) / B``,
4. one step of the optimizer with this gradient.

Poisson batches have a random size, of which B is the mean: B is divided by, and not the size,
which would reveal something. An empty batch makes a step of noise alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.contrib.dpsgd.options import RecordPrivacy, options_of
from coterie.core import Stage, Training
from coterie.data.batches import Batch, call, joined, mapped, rows, tensors
from coterie.data.world import Split
from coterie.settings import UserError
from coterie.training.learner import Learner, batch_starts, passes, staged, stepper

MAX_GRADIENT_NUMBERS = 2**25
"""Numbers in the gradients of single examples that are in memory at a time."""


def train(
    learner: Learner,
    model_row: Tensor,
    examples: Split,
    training: Training,
    learning_rate: float,
    generator: torch.Generator,
    *,
    stages: Sequence[Stage] = (),
    **refused: Any,
) -> Tensor:
    """Train a model with the arguments of :meth:`coterie.training.learner.Learner.train`.

    Args:
        learner: Has the module, the loss and the device.
        model_row: The model ``(d,)`` from which training starts.
        examples: Training examples.
        training: Settings of local training; ``optimizer_options`` are those of DP-SGD.
        learning_rate: Learning rate.
        generator: Draws batches and noise.
        stages: Stages with the layers that they train; none to train all layers at once.
        **refused: Terms that other tasks add to gradients. They must be None.

    Returns:
        The trained row ``(d,)``.

    Raises:
        UserError: The model mixes the examples of a batch, or the precision is not fp32.
    """
    assert not any(term is not None for term in refused.values())
    _check(learner)
    options = options_of(training.optimizer_options)
    learner.load(model_row)
    learner.module.train()
    for positions, stage_training in staged(learner.layout, training, stages):
        make_step = stepper(
            [learner.master.trainable[position] for position in positions],
            options.of_steps(stage_training),
            learning_rate,
        )
        for inputs, targets, batch_size in batches(
            learner, examples, stage_training, options, generator
        ):
            _check_loss(learner, inputs, targets)
            make_step(
                noisy_gradient(learner, inputs, targets, positions, options, batch_size, generator)
            )
    return learner.master.row().to("cpu", copy=True)


def _check(learner: Learner) -> None:
    if learner.has_batchnorm:
        raise UserError(
            "dp-sgd needs a model without BatchNorm, which mixes the examples of a batch: use GroupNorm"
        )
    if learner.precision != "fp32":
        raise UserError(f"dp-sgd needs precision fp32, got {learner.precision}")


@torch.no_grad()
def _check_loss(learner: Learner, inputs: Batch, targets: Batch) -> None:
    """Refuse a loss with class weights: torch divides by their sum, so that they cancel in one example."""
    if learner.objective.takes_classes(targets) or not len(tensors(targets)[0]):
        return
    if learner.objective.weight(learner.outputs(inputs), targets) is not None:
        raise UserError(
            "dp-sgd needs a loss without class weights, which cancel in single examples"
        )


def batches(
    learner: Learner,
    examples: Split,
    training: Training,
    options: RecordPrivacy,
    generator: torch.Generator,
) -> Iterator[tuple[Batch, Batch, int]]:
    """Yield the batches of a training.

    Args:
        learner: Reads and augments examples.
        examples: The client's training examples.
        training: ``batch`` B, and ``epochs`` or ``steps``. A pass has as many Poisson batches as
            it would have shuffled ones.
        options: ``sampling``.
        generator: Draws the batches.

    Yields:
        Inputs, targets, and the size by which the sum of gradients is divided.
    """
    batch_size = min(training.batch or len(examples), len(examples))
    for pass_starts in passes(batch_starts(len(examples), training, 1), training):
        shuffled_positions = torch.empty(0)
        if options.sampling == "shuffled":
            shuffled_positions = torch.randperm(len(examples), generator=generator)
        for batch_start in pass_starts:
            if options.sampling == "shuffled":
                positions = shuffled_positions[batch_start : batch_start + batch_size]
                divisor = len(positions)
            else:
                is_drawn = torch.rand(len(examples), generator=generator) * len(examples)
                positions = (is_drawn < batch_size).nonzero().squeeze(1)
                divisor = batch_size
            inputs, targets = learner.batch(examples, positions)
            yield _augmented(learner, inputs, len(positions), generator), targets, divisor


def _augmented(
    learner: Learner, inputs: Batch, example_count: int, generator: torch.Generator
) -> Batch:
    """The inputs, each augmented alone: an augmentation of a batch could mix its examples."""
    if learner.augment is None or not example_count:
        return learner.arranged(inputs)
    augmented_inputs = []
    for position in range(example_count):
        example_inputs = rows(inputs, slice(position, position + 1))
        augmented_inputs.append(learner.augment(example_inputs, generator))
    return learner.arranged(joined(augmented_inputs))


def noisy_gradient(
    learner: Learner,
    inputs: Batch,
    targets: Batch,
    positions: Sequence[int],
    options: RecordPrivacy,
    batch_size: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """Return the noisy mean of the clipped gradients of a batch: steps 1 to 3 of the algorithm.

    Args:
        learner: Has the loaded model.
        inputs: The inputs of the b examples, perhaps none.
        targets: Their targets.
        positions: Positions of the parameters that are trained.
        options: ``clip`` and ``noise``.
        batch_size: What the sum is divided by.
        generator: Draws the noise.

    Returns:
        A tensor for each parameter.
    """
    parameters = [learner.parameters[position] for position in positions]
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    example_count = len(tensors(targets)[0])
    # The gradients of all examples of a large model do not fit into memory together.
    model_numbers = sum(parameter.numel() for parameter in parameters)
    chunk_size = max(1, MAX_GRADIENT_NUMBERS // max(model_numbers, 1))
    for chunk_start in range(0, example_count, chunk_size):
        chunk = slice(chunk_start, chunk_start + chunk_size)
        gradients = example_gradients(learner, rows(inputs, chunk), rows(targets, chunk), positions)
        for total, clipped in zip(sums, clipped_gradients(gradients, options.clip), strict=True):
            total += clipped.sum(0)
    noisy_means = []
    for total in sums:
        noise = torch.randn(total.shape, generator=generator).to(learner.device)
        noisy_means.append((total + options.noise * options.clip * noise) / batch_size)
    return noisy_means


def clipped_gradients(gradients: Sequence[Tensor], max_norm: float) -> list[Tensor]:
    """Return the gradients of single examples, each of norm ``max_norm`` at most over all its tensors.

    Args:
        gradients: Of shape ``(b, ...)`` for each parameter. An example whose gradient is not finite,
            because none of its targets counts, contributes nothing.
        max_norm: The norm C.
    """
    norms_of_tensors = [gradient.flatten(1).norm(dim=1) for gradient in gradients]
    norms = torch.stack(norms_of_tensors).norm(dim=0)
    scales = max_norm / norms.clamp(min=max_norm)
    clipped = []
    for gradient in gradients:
        example_shape = (-1, *[1] * (gradient.dim() - 1))
        is_finite = norms.isfinite().view(example_shape)
        scaled = gradient * scales.view(example_shape)
        clipped.append(torch.where(is_finite, scaled, 0.0))
    return clipped


def example_gradients(
    learner: Learner, inputs: Batch, targets: Batch, positions: Sequence[int]
) -> list[Tensor]:
    """Return the gradient of each example's loss, of shape ``(b, ...)`` for each parameter.

    Args:
        learner: Has the loaded model.
        inputs: The inputs of the b examples.
        targets: Their targets.
        positions: Positions of the parameters.
    """
    names = [learner.layout.pieces[position].name for position in positions]
    parameters = {
        name: learner.parameters[position].detach()
        for name, position in zip(names, positions, strict=True)
    }

    def loss_of_example(
        example_parameters: dict[str, Tensor], example_inputs: Batch, example_targets: Batch
    ) -> Tensor:
        # The model and the loss take batches: here of one example.
        module: Any = _Functional(learner.module, example_parameters)
        outputs = call(module, mapped(_as_batch, example_inputs))
        loss: Tensor = learner.objective.loss(outputs, mapped(_as_batch, example_targets))
        return loss

    gradients_of_batch = torch.func.vmap(
        torch.func.grad(loss_of_example), in_dims=(None, 0, 0), randomness="different"
    )
    try:
        with warnings.catch_warnings():
            # Some layers, such as nn.LSTM, are computed one example after the other.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            gradients = gradients_of_batch(parameters, inputs, targets)
        return [gradients[name] for name in names]
    except RuntimeError:
        # vmap cannot follow code that branches on the values of an example.
        return _one_by_one(learner, inputs, targets, positions)


def _one_by_one(
    learner: Learner, inputs: Batch, targets: Batch, positions: Sequence[int]
) -> list[Tensor]:
    """The gradient of each example's loss, by one backward pass each."""
    parameters = [learner.parameters[position] for position in positions]
    gradients_of_examples = []
    for position in range(len(tensors(targets)[0])):
        example = slice(position, position + 1)
        gradients_of_examples.append(
            learner.gradients(rows(inputs, example), rows(targets, example), parameters)
        )
    return [torch.stack(gradients) for gradients in zip(*gradients_of_examples, strict=True)]


def _as_batch(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0)


class _Functional:
    """A module called with other parameters.

    Args:
        module: The module.
        parameters: Name -> parameter; the others are the module's own.
    """

    def __init__(self, module: torch.nn.Module, parameters: dict[str, Tensor]) -> None:
        self.module = module
        self.parameters = parameters

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        return torch.func.functional_call(self.module, self.parameters, inputs, named_inputs)
