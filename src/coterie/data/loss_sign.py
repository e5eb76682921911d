"""Losses by name, and which of them are never negative: a client that reports less than zero then reports no loss."""

from __future__ import annotations

from typing import Any

from coterie.data.target_scale import LossOfStandardized

ROUNDING = 1e-6
"""The lowest value that rounding may give such a loss, below zero."""

STANDARDIZED = " (standardized)"
"""The end of the name of a loss of standardized targets."""

_COTERIE_LOSSES = ("cross_entropy", "squared_error", "binary_cross_entropy")

_TORCH_FUNCTIONS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
)
_TORCH_MODULES = (
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "L1Loss",
    "MSELoss",
    "SmoothL1Loss",
)

# A loss of torch is known as a function and as a module.
NEVER_NEGATIVE = frozenset(
    [
        *(f"coterie.data.objective.{name}" for name in _COTERIE_LOSSES),
        *(f"torch.nn.functional.{name}" for name in _TORCH_FUNCTIONS),
        *(f"torch.nn.modules.loss.{name}" for name in _TORCH_MODULES),
    ]
)
"""Names of losses that are never negative; another loss may be."""


def loss_name(loss: Any) -> str:
    """Return the name of a loss: that of a function, or of an object's class; of standardized targets it says so.

    Example:
        >>> import torch
        >>> loss_name(torch.nn.MSELoss()), loss_name(torch.nn.functional.mse_loss)
        ('torch.nn.modules.loss.MSELoss', 'torch.nn.functional.mse_loss')
    """
    # The loss of standardized targets has the sign of the loss that it wraps.
    if isinstance(loss, LossOfStandardized):
        return loss_name(loss.loss) + STANDARDIZED
    # A module has no name of its own, only its class has.
    named_object = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{getattr(named_object, '__module__', '')}.{named_object.__qualname__}"


def never_negative(name: str) -> bool:
    """Whether the loss with this name, see :func:`loss_name`, is never negative."""
    return name.removesuffix(STANDARDIZED) in NEVER_NEGATIVE
