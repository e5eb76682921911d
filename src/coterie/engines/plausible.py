"""Losses and metrics that a client can have measured, in every engine: of a loss that is never negative, none is below zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.data.loss_sign import ROUNDING, loss_name, never_negative
from coterie.data.objective import METRICS, Objective


@dataclass(frozen=True, kw_only=True)
class Plausible:
    """What is known of the numbers that clients measure.

    Attributes:
        nonnegative: Whether no loss is below zero.
        share: Whether the main metric is a share, from 0 to 1.
    """

    nonnegative: bool = False
    share: bool = False

    @classmethod
    def of(cls, loss: str, main: str) -> Plausible:
        """Return what the names of a loss and of the main metric say. Of other names nothing is known."""
        metric = METRICS.get(main)
        share = metric is not None and metric.share and metric.better == "greater"
        return cls(nonnegative=never_negative(loss), share=share)

    @classmethod
    def of_objective(cls, objective: Objective) -> Plausible:
        """Return what an objective says; a metric that only has the name of a known one says nothing."""
        metric = METRICS.get(objective.main)
        is_known = metric is not None and objective.named[objective.main] is metric
        return cls.of(loss_name(objective.loss), objective.main if is_known else "")

    def flaw(self, losses: Sequence[float], metrics: Sequence[float], data_name: str) -> str | None:
        """Return why a client cannot have measured these numbers, in words; None if it can.

        Args:
            losses: Losses.
            metrics: Values of the main metric.
            data_name: The data on which it measured, for the words.
        """
        if self.nonnegative and any(loss < -ROUNDING for loss in losses):
            return (
                f"it measured a loss of {min(losses):.3g} on its {data_name} data, "
                "and the objective's loss is never negative"
            )
        if self.share and any(value < -ROUNDING or value > 1 + ROUNDING for value in metrics):
            worst = max(metrics, key=lambda value: abs(value - 0.5))
            return f"it measured a main metric of {worst:.3g} on its {data_name} data, and the metric is from 0 to 1"
        return None

    def flaw_of_held(self, sums: Any, products: Any, count: int) -> str | None:
        """Return why a client's held-out losses cannot have these sums, in words; None if they can.

        Args:
            sums: Shape ``(m,)``: the sums of losses of m models.
            products: Shape ``(m, m)``: the sums of products of two models' losses.
            count: The number of examples.
        """
        smallest = min(np.min(sums, initial=0.0), np.min(products, initial=0.0))
        if self.nonnegative and count and smallest < -ROUNDING * count:
            return "its held-out losses have sums below zero, and the objective's loss is never negative"
        return None
