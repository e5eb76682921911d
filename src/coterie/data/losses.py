"""What Coterie knows of a loss: which one of torch's it is, in any spelling, and its value for each example.

A loss is a function of (outputs, targets). What it calls shows which loss it is:
``nn.CrossEntropyLoss()``, ``functional.cross_entropy``, a ``partial`` of it and a lambda that calls
it are the same loss. Of this one, the losses of all examples are one call. Any other loss is
vectorised over examples, if this is equal, and otherwise called for each of them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from coterie.data.batches import Batch, rows, size, tensors
from coterie.randomness import GlobalStates, seeded

Loss = Callable[[Any, Any], "torch.Tensor"]

TORCH_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "poisson_nll_loss",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "multilabel_soft_margin_loss",
    "multilabel_margin_loss",
    "multi_margin_loss",
)
"""The functions of ``torch.nn.functional`` that take outputs and targets, and have a value for each
prediction."""

LOSSES_OF_CLASSES = ("cross_entropy", "nll_loss")
"""The losses whose mean is weighted by class, and leaves out a class."""

LOSSES_OF_LOGITS = (
    "cross_entropy",
    "binary_cross_entropy_with_logits",
    "multilabel_soft_margin_loss",
)
"""The losses whose outputs are logits, so that a division of them changes their temperature."""


@cache
def _signatures() -> Mapping[Callable[..., Any], inspect.Signature]:
    """Loss -> its signature. Made when it is first needed: commands that read start without torch."""
    torch_functions = [getattr(torch.nn.functional, name) for name in TORCH_LOSSES]
    return {function: inspect.signature(function) for function in torch_functions}


RESHAPING_FUNCTIONS: tuple[str, ...] = (
    *("view", "view_as", "reshape", "reshape_as", "flatten", "squeeze", "unsqueeze", "contiguous"),
    *("transpose", "permute", "movedim", "mT", "T", "size", "__get__", "__getitem__"),
    *("to", "type", "type_as", "float", "double", "long"),
)
"""Functions that change the form of outputs, and not their values."""


@dataclass(frozen=True)
class ExampleLosses:
    """The losses of some examples.

    Attributes:
        losses: The loss of each example alone, ``(b,)``; 0 for one that does not count.
        weights: The weight of each in the mean loss ``(b,)``, such as that of its class. None if
            all are equal.
    """

    losses: torch.Tensor
    weights: torch.Tensor | None = None

    @property
    def weighted(self) -> torch.Tensor:
        """Losses ``(b,)`` whose plain mean is the weighted mean; zeros if nothing counts."""
        return weighted(self.losses, self.weights)


def weighted(losses: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return losses ``(..., b)`` times their weights ``(b,)``, divided by the mean weight: their mean is the weighted mean."""
    if weights is None or bool((weights == 1).all()):
        return losses
    mean_weight = weights.double().mean()
    if not mean_weight:
        return torch.zeros_like(losses)
    return (losses * (weights / mean_weight)).to(losses.dtype)


@dataclass(frozen=True)
class TorchLoss:
    """A call of one of torch's losses, which is all that a loss does besides forming its arguments.

    Attributes:
        function: The loss, a function with one of the names :data:`TORCH_LOSSES`.
        outputs: What it takes as outputs.
        targets: What it takes as targets.
        options: Its other arguments, without how it is reduced.
        reduction: How it is reduced: mean, sum or none.
        functions_before: Names of torch's functions that were called before it.
        takes_as_given: Whether it takes outputs and targets as they are given.
    """

    function: Callable[..., torch.Tensor]
    outputs: torch.Tensor
    targets: torch.Tensor
    options: Mapping[str, Any]
    reduction: str
    functions_before: tuple[str, ...]
    takes_as_given: bool

    @property
    def of_classes(self) -> bool:
        """Whether the targets are class numbers, of which one may be left out."""
        return self.function.__name__ in LOSSES_OF_CLASSES and not self.targets.is_floating_point()

    @property
    def plain(self) -> bool:
        """Whether this is the mean cross entropy of classes, without weights, smoothing or a class that is left out."""
        # An option makes another loss of it, of which the built-in one knows nothing.
        has_options = (
            self.options.get("weight") is not None
            or self.options.get("ignore_index", -100) != -100
            or self.options.get("label_smoothing")
        )
        return (
            self.function.__name__ == "cross_entropy"
            and self.of_classes
            and self.reduction == "mean"
            and self.takes_as_given
            and not has_options
        )

    def weights(self) -> torch.Tensor | None:
        """The weight of each prediction in the mean, in the shape of the targets; None if all weigh the same."""
        if not self.of_classes or self.reduction != "mean":
            return None
        class_weights = self.options.get("weight")
        is_counted = self.targets != self.options.get("ignore_index", -100)
        if class_weights is None:
            return is_counted.to(self.outputs.dtype)
        # The class that is left out may be no index of the weights: class 0 stands for it.
        return class_weights[self.targets.where(is_counted, 0)] * is_counted

    def example_losses(self, examples: int) -> ExampleLosses | None:
        """Return the losses of b examples; None if there is no value for each of them."""
        values = self.function(self.outputs, self.targets, **self.options, reduction="none")
        if not values.dim() or len(values) % examples:
            return None
        prediction_losses = values.reshape(examples, -1)
        weights = self.weights()
        if weights is None:
            return ExampleLosses(prediction_losses.mean(1))
        if weights.shape != values.shape:
            return None

        # Torch has multiplied each value by its weight already. The loss of an example is their
        # sum over the sum of its weights, as torch's mean over this example alone. Its own weight is
        # the mean weight of its predictions.
        weights = weights.reshape(examples, -1)
        counts = (weights != 0).sum(1).clamp(min=1)
        weight_sums = weights.sum(1)
        losses = torch.where(
            weight_sums > 0,
            prediction_losses.sum(1) / weight_sums.where(weight_sums > 0, 1),
            torch.zeros_like(weight_sums),
        )
        return ExampleLosses(losses, weight_sums / counts)

    def at_temperatures(self, temperatures: Sequence[float], examples: int) -> ExampleLosses | None:
        """Return the losses ``(t, b)`` of b examples at t temperatures, in one call; None if there are none."""
        cooled = self.cooled
        if cooled is None or not self.takes_as_given or not examples:
            return None
        # The outputs at all temperatures are one long batch.
        count = len(temperatures)
        cooled_outputs = [
            self.outputs if temperature == 1 else cooled(self.outputs, temperature)
            for temperature in temperatures
        ]
        targets = self.targets.repeat(count, *[1] * (self.targets.dim() - 1))
        long_batch = replace(self, outputs=torch.cat(cooled_outputs), targets=targets)
        long_losses = long_batch.example_losses(count * examples)
        if long_losses is None:
            return None
        weights = long_losses.weights
        return ExampleLosses(
            long_losses.losses.view(count, -1),
            # The weights are those of the targets, the same at every temperature.
            None if weights is None else weights[:examples],
        )

    @property
    def cooled(self) -> Callable[[torch.Tensor, float], torch.Tensor] | None:
        """Function of (outputs, temperature) that returns outputs of this temperature; None if they are no logits."""
        function_name = self.function.__name__
        changes_before = [name for name in self.functions_before if name not in RESHAPING_FUNCTIONS]
        if function_name in LOSSES_OF_LOGITS and not changes_before:
            return divided
        # The negative log likelihood takes log probabilities. If the loss makes these from logits,
        # the logits are divided; otherwise the log probabilities stand for logits.
        if function_name == "nll_loss" and set(changes_before) == {"log_softmax"}:
            return divided
        if function_name == "nll_loss" and not changes_before:
            class_dimension = 1 if self.outputs.dim() > 1 else 0
            return lambda outputs, temperature: (outputs / temperature).log_softmax(class_dimension)
        return None


def divided(outputs: Any, temperature: float) -> Any:
    """Logits of a temperature."""
    return outputs / temperature


@cache
def _recorder() -> type[Any]:
    """The class that records the functions of torch that are called; made when it is first needed, see :func:`_signatures`."""

    class RecordedCalls(torch.overrides.TorchFunctionMode):
        """The names of the functions that were called, and the losses among them: place, function, arguments, result."""

        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []
            self.losses: list[tuple[int, Any, dict[str, Any], Any]] = []

        # Torch calls this in place of every function while the mode is on.
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Call a function of torch, and note it."""
            result = func(*args, **(kwargs or {}))
            if func in _signatures():
                arguments = _signatures()[func].bind(*args, **(kwargs or {})).arguments
                self.losses.append((len(self.names), func, arguments, result))
            self.names.append(getattr(func, "__name__", ""))
            return result

    return RecordedCalls


def torch_loss(loss: Loss, outputs: Any, targets: Any) -> TorchLoss | None:
    """Return which loss of torch a loss is for a batch; None if it does anything else.

    Args:
        loss: The loss.
        outputs: Outputs of a batch.
        targets: Its targets.
    """
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    # The user's code can raise anything; the call that counts will raise it again.
    try:
        with torch.no_grad(), warnings.catch_warnings(), _recorder()() as calls:
            warnings.simplefilter("ignore")
            result = loss(outputs, targets)
    except Exception:
        return None

    # It must call one loss of torch, as its last function, and return the value as it is.
    if len(calls.losses) != 1:
        return None
    place, function, arguments, value = calls.losses[0]
    if place != len(calls.names) - 1 or result is not value:
        return None

    # Arguments of an older torch, or a number in place of targets, have another meaning.
    if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        return None
    loss_outputs, loss_targets = list(arguments.values())[:2]
    if isinstance(loss_targets, float):
        return None
    options = {
        name: value
        for name, value in list(arguments.items())[2:]
        if name not in ("reduction", "size_average", "reduce")
    }
    return TorchLoss(
        function=function,
        outputs=loss_outputs,
        targets=loss_targets,
        options=options,
        reduction=arguments.get("reduction", "mean"),
        functions_before=tuple(calls.names[:place]),
        takes_as_given=loss_outputs is outputs and loss_targets is targets and place == 0,
    )


def is_of_numbers(loss: Any) -> bool:
    """Whether a loss is torch's own of numbers to predict: its function, or a module that is it."""
    functional = torch.nn.functional
    functions = (
        functional.mse_loss,
        functional.l1_loss,
        functional.smooth_l1_loss,
        functional.huber_loss,
    )
    modules = (torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss, torch.nn.HuberLoss)
    return isinstance(loss, modules) or any(loss is function for function in functions)


def is_torchs(loss: Any) -> bool:
    """Whether a loss is torch's own object: a module or a function of ``torch.nn``, or a partial of it.

    What such a loss does depends on its settings alone, so one call shows it.
    """
    if isinstance(loss, partial):
        return is_torchs(loss.func)
    if isinstance(loss, torch.nn.Module):
        # A subclass or a hook could do anything besides.
        return (
            type(loss).__module__ == "torch.nn.modules.loss"
            and not loss._forward_hooks
            and not loss._forward_pre_hooks
        )
    return loss in _signatures()


def is_plain_cross_entropy(loss: Any) -> bool:
    """Whether a loss is torch's own mean cross entropy for outputs ``(b, classes)`` and class numbers ``(b,)``."""
    if not is_torchs(loss):
        return False
    # What torch's own loss does depends on its settings alone, so any batch shows it.
    shown_loss = torch_loss(loss, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    return shown_loss is not None and shown_loss.plain


def losses_one_by_one(
    loss: Loss, outputs: Batch, targets: Batch, positions: Sequence[int] | None = None
) -> torch.Tensor:
    """The loss of each example ``(b,)``, or of those at some positions, of which each is a batch."""
    if positions is None:
        positions = range(size(targets))
    single_losses = []
    for position in positions:
        single = slice(position, position + 1)
        single_losses.append(loss(rows(outputs, single), rows(targets, single)))
    return torch.stack(single_losses).float() if single_losses else torch.zeros(0)


def example_losses(
    loss: Loss, outputs: Batch, targets: Batch, torch_loss: TorchLoss | None
) -> ExampleLosses:
    """Return the loss of each example, in one call if this is equal to a call for each example.

    The first and the last example are compared.

    Args:
        loss: The loss.
        outputs: The outputs for b examples.
        targets: Their targets.
        torch_loss: Which loss of torch this is for them, see :func:`torch_loss`.
    """
    count = size(targets)
    if count > 1:
        # First as a loss of torch without its reduction, then by vmap, and else one by one.
        in_one_call = None
        if torch_loss is not None and torch_loss.reduction != "none":
            in_one_call = torch_loss.example_losses(count)
        if in_one_call is not None and (
            is_torchs(loss) or _equal_one_by_one(loss, outputs, targets, in_one_call)
        ):
            return ExampleLosses(in_one_call.losses.float(), in_one_call.weights)
        vectorised_losses = _vectorised(loss, outputs, targets)
        if vectorised_losses is not None:
            return ExampleLosses(vectorised_losses)
    return ExampleLosses(losses_one_by_one(loss, outputs, targets))


def _equal_one_by_one(
    loss: Loss, outputs: Batch, targets: Batch, in_one_call: ExampleLosses
) -> bool:
    """Whether the first and the last example that count have the losses that they have alone."""
    if in_one_call.weights is None:
        counted_positions = list(range(len(in_one_call.losses)))
    else:
        counted_positions = in_one_call.weights.nonzero().flatten().tolist()
    if not counted_positions:
        return True
    # Two examples are enough: a loss that mixes examples is wrong for both.
    first_and_last = [counted_positions[0], counted_positions[-1]]
    return torch.allclose(
        losses_one_by_one(loss, outputs, targets, first_and_last),
        in_one_call.losses[first_and_last].float(),
        1e-4,
        1e-6,
        equal_nan=True,
    )


# ----------------------------------------------------------------------------------------------------
# The loss of each example.


def _vectorised(loss: Loss, outputs: Batch, targets: Batch) -> torch.Tensor | None:
    """The loss of each example by ``vmap``; None if this fails, draws random numbers, or is not equal."""
    all_tensors = (*tensors(outputs), *tensors(targets))
    if not all(isinstance(tensor, torch.Tensor) for tensor in all_tensors):
        return None

    def loss_of_single(output: Batch, target: Batch) -> torch.Tensor:
        return loss(rows(output, None), rows(target, None))

    # The user's code can raise anything. A warning, such as that a function is slow under vmap,
    # says nothing about the loss.
    losses = None
    states = GlobalStates()
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = torch.func.vmap(loss_of_single)(outputs, targets).float()
    if states.moved:
        states.restore()
        return None
    if losses is None or losses.dim() != 1:
        return None
    is_equal = _equal_one_by_one(loss, outputs, targets, ExampleLosses(losses))
    return losses if is_equal else None


def for_several_models(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Return whether a loss can be computed for several models at once, with equal values and gradients.

    Args:
        loss: The loss.
        outputs: Outputs of some examples.
        targets: Their targets.
    """
    # A module of the user's own may change its parameters and buffers.
    if (
        isinstance(loss, torch.nn.Module)
        and not is_torchs(loss)
        and [*loss.parameters(), *loss.buffers()]
    ):
        return False
    model_outputs = torch.stack([outputs, outputs.roll(1, 0), -outputs]).float().requires_grad_()
    model_targets = targets.expand(3, *targets.shape)
    # The user's code can raise anything.
    try:
        with seeded(0) as scope, warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            vectorised = torch.func.vmap(loss)(model_outputs, model_targets)
            single_losses = torch.stack([loss(model, targets) for model in model_outputs])
            gradients = [
                torch.autograd.grad(losses.sum(), model_outputs)[0]
                for losses in (vectorised, single_losses)
            ]
            is_equal = _close(vectorised, single_losses) and _close(*gradients)
            return not scope.moved and is_equal
    except Exception:
        return False


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and torch.allclose(left, right, 1e-4, 1e-6)


# ----------------------------------------------------------------------------------------------------
# A loss must be a mean.


def is_sum(loss: Loss, outputs: Batch, targets: Batch) -> bool:
    """Return whether a loss grows with the number of examples: that of a batch twice and four times shows it.

    A mean has the same loss. That of a batch that is compared with itself, such as a contrastive
    loss, grows by the logarithm of the number. A sum grows with the number, a sum with a constant
    added likewise, and a norm with a power of the number.

    Args:
        loss: The loss.
        outputs: Outputs of a batch.
        targets: Its targets.
    """
    for tensor in (*tensors(outputs), *tensors(targets)):
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return False
    known_loss = torch_loss(loss, outputs, targets)
    if known_loss is not None and known_loss.reduction == "sum":
        return True

    # The loss of the batch, and of batches that have each example twice and four times.
    repeated_losses = []
    for repeats in (1, 2, 4):
        positions = torch.arange(size(targets)).repeat(repeats)
        # The user's code can raise anything.
        try:
            with seeded(0), torch.no_grad():
                value = float(loss(rows(outputs, positions), rows(targets, positions)))
        except Exception:
            return False
        repeated_losses.append(value)

    single, double, fourfold = repeated_losses
    growth = double - single
    if not abs(growth) > 1e-3 * abs(single):
        return False
    # A sum grows by twice as much again; a power of the number by the same factor again.
    is_linear = abs(fourfold - double - 2 * growth) <= 1e-3 * abs(growth)
    is_power = single * double > 0 and abs(fourfold / double - double / single) <= 1e-3 * abs(
        double / single
    )
    return is_linear or is_power
