"""Temperature scaling of exported models: probabilities that say how often a prediction is right.

The logits of a trained net are often too large, so that its probabilities are too near 0 and 1. One
number, the temperature, divides them; it is the one with the least loss on rows that nobody trained
on (Guo, Pleiss, Sun and Weinberger, ICML 2017).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
from torch import Tensor

from coterie.runs.site_moments import CLASS_LOGITS, LABEL_LOGITS, row_losses

NUM_BINS = 15
"""Bins of the expected calibration error, as in the paper."""

MIN_OWN_ROWS = 100
"""Fewest rows from which a model gets a temperature of its own; with fewer, all models share one."""

PRIOR_DEVIATION = 0.5
"""Standard deviation of the logarithm of a temperature before any row is seen."""

TEMPERATURE_RANGE = (1 / 16, 16.0)
"""The temperatures among which the best is sought."""


def best_temperature(kind: str, outputs: Tensor, targets: Tensor) -> float:
    """Return the temperature with the least loss, and with a prior that keeps it near 1.

    Rows that are all predicted rightly would fit any low temperature. The prior of its logarithm is
    ``N(0, 0.5^2)``, so that a few rows change little, and hundreds decide alone.

    Args:
        kind: What the outputs are.
        outputs: Logits ``(n, m)``.
        targets: Classes ``(n,)``, or labels ``(n, m)``.
    """

    def negative_log_posterior(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        loss = float(row_losses(kind, outputs.double(), targets, temperature).sum())
        return loss + 0.5 * (log_temperature / PRIOR_DEVIATION) ** 2

    # The loss is quasi-convex in the temperature, so a search in an interval finds the least one.
    bounds = tuple(map(math.log, TEMPERATURE_RANGE))
    minimum = scipy.optimize.minimize_scalar(
        negative_log_posterior, bounds=bounds, method="bounded"
    )
    return math.exp(float(minimum.x))


def calibration_error(kind: str, outputs: Tensor, targets: Tensor, temperature: float) -> float:
    """Return the expected calibration error: how far shares of right predictions are from their probabilities.

    Args:
        kind: What the outputs are: of classes, the predicted class of each row counts; of labels,
            each label, whose probability is compared with how often it is 1.
        outputs: Logits ``(n, m)``.
        targets: Classes ``(n,)``, or labels ``(n, m)``.
        temperature: By which logits are divided.

    Returns:
        The mean over predictions, in 15 bins of equal width, of the difference between the share
        that is right and the mean probability of a bin.
    """
    if kind == CLASS_LOGITS:
        probabilities, predictions = (outputs.double() / temperature).softmax(1).max(1)
        is_right = predictions == targets
    else:
        probabilities = (outputs.double() / temperature).sigmoid().flatten()
        is_right = targets.flatten() == 1
    confidences = probabilities.numpy()
    bin_numbers = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    differences = np.bincount(
        bin_numbers, weights=is_right.double().numpy() - confidences, minlength=NUM_BINS
    )
    return float(np.abs(differences).sum() / len(confidences))


def calibrated(
    kind: str,
    held_out: tuple[Tensor, Tensor] | None,
    tested: tuple[Tensor, Tensor] | None,
    shared: float,
) -> dict[str, Any]:
    """Return a model's calibration as an export has it.

    Args:
        kind: What the outputs are.
        held_out: Outputs and targets of the validation rows.
        tested: Outputs and targets of the test rows; None if there are none.
        shared: The temperature of all models together.

    Returns:
        The temperature, from how many rows it is, whether these are those of all models, and the
        calibration error and the loss on the test rows before and after.
    """
    num_rows = 0 if held_out is None else len(held_out[1])
    has_own = held_out is not None and num_rows >= MIN_OWN_ROWS
    temperature = shared
    if held_out is not None and has_own:
        temperature = best_temperature(kind, *held_out)
    entry: dict[str, Any] = {
        "temperature": temperature,
        "rows": num_rows,
        "shared": not has_own,
        "test_rows": 0,
    }
    if tested is not None:
        entry["test_rows"] = len(tested[1])
        for state, used_temperature in (("before", 1.0), ("after", temperature)):
            entry[f"error_{state}"] = calibration_error(kind, *tested, used_temperature)
            losses = row_losses(kind, *tested, used_temperature)
            entry[f"loss_{state}"] = float(losses.mean())
    return entry


def probabilities(kind: str, outputs: Tensor, temperature: float) -> Tensor:
    """Return what a net predicts: probabilities of classes or labels ``(n, m)``, or the numbers themselves."""
    if kind == CLASS_LOGITS:
        return (outputs / temperature).softmax(-1)
    return (outputs / temperature).sigmoid() if kind == LABEL_LOGITS else outputs
