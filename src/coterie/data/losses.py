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
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from coterie.data.batches import Batch, rows, size, tensors
from coterie.randomness import seeded

Loss = Callable[[Any, Any], "torch.Tensor"]

TORCHS = (
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

OF_CLASSES = ("cross_entropy", "nll_loss")
"""The losses whose mean is weighted by class, and leaves out a class."""

OF_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")
"""The losses whose outputs are logits, so that a division of them changes their temperature."""


@cache
def _signatures() -> Mapping[Callable[..., Any], inspect.Signature]:
    """Loss -> its signature. Made when it is first needed: commands that read start without torch."""
    losses = [getattr(torch.nn.functional, name) for name in TORCHS]
    return {loss: inspect.signature(loss) for loss in losses}


RESHAPING: tuple[str, ...] = (
    *("view", "view_as", "reshape", "reshape_as", "flatten", "squeeze", "unsqueeze", "contiguous"),
    *("transpose", "permute", "movedim", "mT", "T", "size", "__get__", "__getitem__"),
    *("to", "type", "type_as", "float", "double", "long"),
)
"""Functions that change the form of outputs, and not their values."""


@dataclass(frozen=True)
class Each:
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
    mean = weights.double().mean()
    return torch.zeros_like(losses) if not mean else (losses * (weights / mean)).to(losses.dtype)


@dataclass(frozen=True)
class TorchLoss:
    """A call of one of torch's losses, which is all that a loss does besides forming its arguments.

    Attributes:
        function: The loss, a function with one of the names :data:`TORCHS`.
        outputs: What it takes as outputs.
        targets: What it takes as targets.
        options: Its other arguments, without how it is reduced.
        reduction: How it is reduced: mean, sum or none.
        before: Names of torch's functions that were called before it.
        same: Whether it takes outputs and targets as they are given.
    """

    function: Callable[..., torch.Tensor]
    outputs: torch.Tensor
    targets: torch.Tensor
    options: Mapping[str, Any]
    reduction: str
    before: tuple[str, ...]
    same: bool

    @property
    def of_classes(self) -> bool:
        """Whether the targets are class numbers, of which one may be left out."""
        return self.function.__name__ in OF_CLASSES and not self.targets.is_floating_point()

    @property
    def plain(self) -> bool:
        """Whether this is the mean cross entropy of classes, without weights, smoothing or a class that is left out."""
        rest = self.options.get("weight") is None and self.options.get("ignore_index", -100) == -100
        rest = rest and not self.options.get("label_smoothing")
        return (
            self.function.__name__ == "cross_entropy"
            and self.of_classes
            and self.reduction == "mean"
            and self.same
            and rest
        )

    def weights(self) -> torch.Tensor | None:
        """The weight of each prediction in the mean, in the shape of the targets; None if all weigh the same."""
        if not self.of_classes or self.reduction != "mean":
            return None
        by_class, left_out = self.options.get("weight"), self.options.get("ignore_index", -100)
        counts = self.targets != left_out
        if by_class is None:
            return counts.to(self.outputs.dtype)
        return by_class[self.targets.where(counts, 0)] * counts

    def each(self, examples: int) -> Each | None:
        """Return the losses of b examples; None if there is no value for each of them."""
        values = self.function(self.outputs, self.targets, **self.options, reduction="none")
        if not values.dim() or len(values) % examples:
            return None
        several, weights = values.reshape(examples, -1), self.weights()
        if weights is None:
            return Each(several.mean(1))
        if weights.shape != values.shape:
            return None
        weights = weights.reshape(examples, -1)
        counts, sums = (weights != 0).sum(1).clamp(min=1), weights.sum(1)
        losses = torch.where(
            sums > 0, several.sum(1) / sums.where(sums > 0, 1), torch.zeros_like(sums)
        )
        return Each(losses, sums / counts)

    def at_temperatures(self, temperatures: Sequence[float], examples: int) -> Each | None:
        """Return the losses ``(t, b)`` of b examples at t temperatures, in one call; None if there are none."""
        cooled, count = self.cooled, len(temperatures)
        if cooled is None or not self.same or not examples:
            return None
        outputs = torch.cat(
            [self.outputs if t == 1 else cooled(self.outputs, t) for t in temperatures]
        )
        targets = self.targets.repeat(count, *[1] * (self.targets.dim() - 1))
        found = replace(self, outputs=outputs, targets=targets).each(count * examples)
        if found is None:
            return None
        return Each(
            found.losses.view(count, -1),
            None if found.weights is None else found.weights[:examples],
        )

    @property
    def cooled(self) -> Callable[[torch.Tensor, float], torch.Tensor] | None:
        """Function of (outputs, temperature) that returns outputs of this temperature; None if they are no logits."""
        rest = [name for name in self.before if name not in RESHAPING]
        if self.function.__name__ in OF_LOGITS and not rest:
            return divided
        if self.function.__name__ == "nll_loss" and set(rest) == {"log_softmax"}:
            return divided
        if self.function.__name__ == "nll_loss" and not rest:
            dimension = 1 if self.outputs.dim() > 1 else 0
            return lambda outputs, temperature: (outputs / temperature).log_softmax(dimension)
        return None


def divided(outputs: Any, temperature: float) -> Any:
    """Logits of a temperature."""
    return outputs / temperature


@cache
def _recorder() -> type[Any]:
    """The class that records the functions of torch that are called; made when it is first needed, see :func:`_signatures`."""

    class Calls(torch.overrides.TorchFunctionMode):
        """The names of the functions that were called, and the losses among them: place, function, arguments, result."""

        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []
            self.losses: list[tuple[int, Any, dict[str, Any], Any]] = []

        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Call a function of torch, and note it."""
            result = func(*args, **(kwargs or {}))
            if func in _signatures():
                bound = _signatures()[func].bind(*args, **(kwargs or {})).arguments
                self.losses.append((len(self.names), func, bound, result))
            self.names.append(getattr(func, "__name__", ""))
            return result

    return Calls


def torch_loss(loss: Loss, outputs: Any, targets: Any) -> TorchLoss | None:
    """Return which loss of torch a loss is for a batch; None if it does anything else.

    Args:
        loss: The loss.
        outputs: Outputs of a batch.
        targets: Its targets.
    """
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    try:
        with torch.no_grad(), warnings.catch_warnings(), _recorder()() as calls:
            warnings.simplefilter("ignore")
            result = loss(outputs, targets)
    except (
        Exception
    ):  # the user's code can raise anything; the call that counts will raise it again
        return None
    if len(calls.losses) != 1:
        return None
    place, function, bound, made = calls.losses[0]
    if place != len(calls.names) - 1 or result is not made:
        return None  # something is done with its value
    first, second = list(bound.values())[:2]
    options = {
        name: value
        for name, value in list(bound.items())[2:]
        if name not in ("reduction", "size_average", "reduce")
    }
    if (
        bound.get("size_average") is not None
        or bound.get("reduce") is not None
        or isinstance(second, float)
    ):
        return None
    same = first is outputs and second is targets and place == 0
    return TorchLoss(
        function,
        first,
        second,
        options,
        bound.get("reduction", "mean"),
        tuple(calls.names[:place]),
        same,
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
    known = torch_loss(loss, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    return known is not None and known.plain


# ----------------------------------------------------------------------------------------------------
# The loss of each example.


def each_alone(loss: Loss, outputs: Batch, targets: Batch, at: Any = None) -> torch.Tensor:
    """The loss of each example ``(b,)``, or of those at some positions, of which each is a batch."""
    positions = range(size(targets)) if at is None else at
    alone = [
        loss(rows(outputs, slice(i, i + 1)), rows(targets, slice(i, i + 1))) for i in positions
    ]
    return torch.stack(alone).float() if alone else torch.zeros(0)


def each(loss: Loss, outputs: Batch, targets: Batch, known: TorchLoss | None) -> Each:
    """Return the loss of each example, in one call if this is equal to a call for each example.

    The first and the last example are compared.

    Args:
        loss: The loss.
        outputs: The outputs for b examples.
        targets: Their targets.
        known: Which loss of torch this is for them, see :func:`torch_loss`.
    """
    count = size(targets)
    if count > 1:
        found = None if known is None or known.reduction == "none" else known.each(count)
        if found is not None and (is_torchs(loss) or _as_alone(loss, outputs, targets, found)):
            return Each(found.losses.float(), found.weights)
        if (losses := _vectorised(loss, outputs, targets)) is not None:
            return Each(losses)
    return Each(each_alone(loss, outputs, targets))


def _as_alone(loss: Loss, outputs: Batch, targets: Batch, found: Each) -> bool:
    """Whether the first and the last example that count have the losses that they have alone."""
    at = (
        list(range(len(found.losses)))
        if found.weights is None
        else found.weights.nonzero().flatten().tolist()
    )
    if not at:
        return True
    ends = [at[0], at[-1]]
    return torch.allclose(
        each_alone(loss, outputs, targets, ends),
        found.losses[ends].float(),
        1e-4,
        1e-6,
        equal_nan=True,
    )


def _vectorised(loss: Loss, outputs: Batch, targets: Batch) -> torch.Tensor | None:
    """The loss of each example by ``vmap``; None if this fails, draws random numbers, or is not equal."""
    if not all(isinstance(one, torch.Tensor) for one in (*tensors(outputs), *tensors(targets))):
        return None

    def alone(output: Batch, target: Batch) -> torch.Tensor:
        return loss(rows(output, None), rows(target, None))

    try:
        with seeded(0) as scope, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as one of a function that is slow
            losses = torch.func.vmap(alone)(outputs, targets).float()
            if losses.dim() != 1 or scope.moved:
                return None
    except Exception:  # the user's code can raise anything
        return None
    return losses if _as_alone(loss, outputs, targets, Each(losses)) else None


def for_several_models(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Return whether a loss can be computed for several models at once, with equal values and gradients.

    Args:
        loss: The loss.
        outputs: Outputs of some examples.
        targets: Their targets.
    """
    if (
        isinstance(loss, torch.nn.Module)
        and not is_torchs(loss)
        and any(True for _ in (*loss.parameters(), *loss.buffers()))
    ):
        return False  # it may change what it has
    models = torch.stack([outputs, outputs.roll(1, 0), -outputs]).float().requires_grad_()
    several = targets.expand(3, *targets.shape)
    try:
        with seeded(0) as scope, warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            together = torch.func.vmap(loss)(models, several)
            alone = torch.stack([loss(model, targets) for model in models])
            gradients = [
                torch.autograd.grad(losses.sum(), models)[0] for losses in (together, alone)
            ]
            return not scope.moved and _close(together, alone) and _close(*gradients)
    except Exception:  # the user's code can raise anything
        return False


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 1e-4, 1e-6)


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
    if not all(
        isinstance(one, torch.Tensor) and one.dim()
        for one in (*tensors(outputs), *tensors(targets))
    ):
        return False
    known = torch_loss(loss, outputs, targets)
    if known is not None and known.reduction == "sum":
        return True
    values = []
    for times in (1, 2, 4):
        again = torch.arange(size(targets)).repeat(times)
        try:
            with seeded(0), torch.no_grad():
                values.append(float(loss(rows(outputs, again), rows(targets, again))))
        except Exception:  # the user's code can raise anything
            return False
    single, double, fourfold = values
    grown = double - single
    if not abs(grown) > 1e-3 * abs(single):
        return False
    linear = abs(fourfold - double - 2 * grown) <= 1e-3 * abs(grown)
    power = single * double > 0 and abs(fourfold / double - double / single) <= 1e-3 * abs(
        double / single
    )
    return linear or power
