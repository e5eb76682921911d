"""Temperature scaling of exported models: probabilities that say how often a prediction is right.

The logits of a trained net are often too large, so that its probabilities are too near 0 and 1. One
number, the temperature, divides them; it is the one with the least loss on rows that nobody trained
on (Guo, Pleiss, Sun and Weinberger, ICML 2017).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from torch import Tensor

from coterie.training.calibration_sums import (
    TRIED_TEMPERATURES,
    CalibrationSums,
    binned_differences,
)
from coterie.training.outputs import CLASS_LOGITS, LABEL_LOGITS, row_losses

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
    differences = binned_differences(kind, outputs, targets, temperature)
    num_predictions = len(targets) if kind == CLASS_LOGITS else targets.numel()
    return float(np.abs(differences).sum() / num_predictions)


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


def calibrated_by_sums(sums: Mapping[str, CalibrationSums]) -> dict[str, dict[str, Any]]:
    """Return the calibration of models as an export has it, from sums over their clients' rows.

    The temperature is that of :func:`best_temperature`, among those of the sums.

    Args:
        sums: Name of a net -> the sums over the rows of its clients.

    Returns:
        Name of a net -> its calibration, as :func:`calibrated` returns it; empty if no client has
        validation rows.
    """
    if not any(of_net.validation_rows for of_net in sums.values()):
        return {}
    # One temperature from the rows of all, for models with few rows.
    shared_place = _best_place(np.sum([of_net.validation_losses for of_net in sums.values()], 0))
    place_of_one = len(TRIED_TEMPERATURES) // 2
    entries = {}
    for name, of_net in sums.items():
        has_own = of_net.validation_rows >= MIN_OWN_ROWS
        place = _best_place(of_net.validation_losses) if has_own else shared_place
        entry: dict[str, Any] = {
            "temperature": float(TRIED_TEMPERATURES[place]),
            "rows": of_net.validation_rows,
            "shared": not has_own,
            "test_rows": of_net.test_rows,
        }
        if of_net.test_rows:
            for state, used_place in (("before", place_of_one), ("after", place)):
                total_difference = np.abs(of_net.test_bins[used_place]).sum()
                entry[f"error_{state}"] = float(total_difference / of_net.predictions)
                entry[f"loss_{state}"] = float(of_net.test_losses[used_place] / of_net.test_rows)
        entries[name] = entry
    return entries


def _best_place(losses: np.ndarray) -> int:
    """The place of the best temperature, with the prior of :func:`best_temperature`."""
    penalties = 0.5 * (np.log(TRIED_TEMPERATURES) / PRIOR_DEVIATION) ** 2
    return int((losses + penalties).argmin())


def probabilities(kind: str, outputs: Tensor, temperature: float) -> Tensor:
    """Return what a net predicts: probabilities of classes or labels ``(n, m)``, or the numbers themselves."""
    if kind == CLASS_LOGITS:
        return (outputs / temperature).softmax(-1)
    return (outputs / temperature).sigmoid() if kind == LABEL_LOGITS else outputs
