"""Standardized targets: a net learns targets minus a mean and over a deviation, and everybody else sees their own unit.

Only the loss takes standardized targets, so its values are squares of deviations and not of units:
1 is what the mean of all targets reaches. The targets of a world stay as they are. Outputs are
turned back into the unit before metrics take them, in :meth:`coterie.Round.model` and in
:func:`coterie.load`. The tensors of a net, also in an export's files, are those that learn
standardized targets; the constants stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LARGE_TARGET = 10.0
"""Root mean square of targets above which a net, whose first outputs are around 1, should learn
standardized ones."""


def typical_target(targets: Any) -> float:
    """Return the root mean square of floats; 0 for targets of another form."""
    if (
        not isinstance(targets, torch.Tensor)
        or not targets.is_floating_point()
        or not targets.numel()
    ):
        return 0.0
    return float(targets.double().square().mean().sqrt())


@dataclass(frozen=True)
class TargetScale:
    """The constants of standardized targets.

    Attributes:
        means: One per output, or one for all.
        deviations: One per output, or one for all; all positive.
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]

    def standardized(self, targets: torch.Tensor) -> torch.Tensor:
        """Return targets ``(b, m)``, or ``(b,)`` of one output, minus the means and over the deviations."""
        return (targets - self._like(self.means, targets)) / self._like(self.deviations, targets)

    def in_units(self, outputs: Any) -> Any:
        """Return outputs ``(..., m)`` in the unit of the targets, in float32 or finer."""
        if not isinstance(outputs, torch.Tensor):
            return outputs
        # Half precision could not hold targets with a large mean.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        return outputs * self._like(self.deviations, outputs) + self._like(self.means, outputs)

    def _like(self, constants: Sequence[float], values: torch.Tensor) -> Any:
        """Constants as a number, or as a tensor of the last dimension on the device of ``values``."""
        # One number broadcasts to every output.
        if len(constants) == 1:
            return constants[0]
        dtype = values.dtype if values.is_floating_point() else torch.float32
        return torch.tensor(constants, dtype=dtype, device=values.device)


@dataclass(frozen=True)
class LossOfStandardized:
    """A loss of outputs that stand for standardized targets, and of the targets as they are.

    Attributes:
        loss: Function of (outputs, standardized targets).
        scale: The constants.
    """

    loss: Callable[[Any, Any], torch.Tensor]
    scale: TargetScale

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The loss of a batch."""
        return self.loss(outputs, self.scale.standardized(targets))


@dataclass(frozen=True)
class _Hook:
    """Turns a module's outputs into units; a class, so that a net that has it can be pickled."""

    scale: TargetScale

    def __call__(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
        return self.scale.in_units(outputs)


def predicting(net: torch.nn.Module, scale: TargetScale | None) -> torch.nn.Module:
    """Return a net whose outputs are in the unit of the targets; its tensors stay as they are.

    Args:
        net: A net, which is changed.
        scale: The constants; None for targets that are not standardized.
    """
    if scale is not None:
        net.register_forward_hook(_Hook(scale))
    return net


def recorded(scale: TargetScale) -> dict[str, list[float]]:
    """The constants as a record or an export has them."""
    return {"means": list(scale.means), "deviations": list(scale.deviations)}


def sound(value: Any) -> bool:
    """Whether a value, which may come from anybody, is what :func:`recorded` returns."""
    if not isinstance(value, Mapping) or set(value) != {"means", "deviations"}:
        return False
    means = value["means"]
    deviations = value["deviations"]
    if not isinstance(means, list) or not isinstance(deviations, list):
        return False
    if not means or len(means) != len(deviations):
        return False
    # True and False are numbers to Python, and none here.
    for number in (*means, *deviations):
        if not isinstance(number, int | float) or isinstance(number, bool):
            return False
        if not math.isfinite(number):
            return False
    return min(deviations) > 0


def of_record(value: Mapping[str, Any] | None) -> TargetScale | None:
    """The constants in a record or an export, which :func:`sound` accepts; None if it has none."""
    if value is None:
        return None
    return TargetScale(
        means=tuple(map(float, value["means"])),
        deviations=tuple(map(float, value["deviations"])),
    )
