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
    def of(cls, loss_name: str, main_metric: str) -> Plausible:
        """Return what the names of a loss and of the main metric say. Of other names nothing is known."""
        # Only a share of which more is better is known to lie between 0 and 1.
        metric = METRICS.get(main_metric)
        is_share = metric is not None and metric.share and metric.better == "greater"
        return cls(nonnegative=never_negative(loss_name), share=is_share)

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
        # Rounding can make a loss of zero a little negative.
        if self.nonnegative and any(loss < -ROUNDING for loss in losses):
            return (
                f"it measured a loss of {min(losses):.3g} on its {data_name} data, "
                "and the objective's loss is never negative"
            )
        if self.share and any(
            metric_value < -ROUNDING or metric_value > 1 + ROUNDING for metric_value in metrics
        ):
            worst_value = max(metrics, key=lambda metric_value: abs(metric_value - 0.5))
            return f"it measured a main metric of {worst_value:.3g} on its {data_name} data, and the metric is from 0 to 1"
        return None

    def flaw_of_held(self, loss_sums: Any, loss_products: Any, example_count: int) -> str | None:
        """Return why a client's held-out losses cannot have these sums, in words; None if they can.

        Args:
            loss_sums: Shape ``(m,)``: the sums of losses of m models.
            loss_products: Shape ``(m, m)``: the sums of products of two models' losses.
            example_count: The number of examples.
        """
        # Sums and products of losses that are never negative are not negative either.
        smallest_number = min(np.min(loss_sums, initial=0.0), np.min(loss_products, initial=0.0))
        if self.nonnegative and example_count and smallest_number < -ROUNDING * example_count:
            return "its held-out losses have sums below zero, and the objective's loss is never negative"
        return None
