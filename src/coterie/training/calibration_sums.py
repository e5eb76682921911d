"""What calibrates a model without its clients' rows: sums over rows, which clients of a federation report.

A temperature divides a net's logits (:mod:`coterie.runs.calibration`). A client computes, for each of
129 temperatures from 1/16 to 16, in equal steps of the logarithm:

* the sum of the losses of its validation rows, and of its test rows,
* for its test rows, in each of 15 bins of the confidence, the number of right predictions less the
  sum of the confidences: what the expected calibration error is made of.

Sums of several clients are added, number by number. The temperature with the least sum is within
2.2 % of the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from coterie.data.world import ClientData
from coterie.training.outputs import (
    CLASS_LOGITS,
    LABEL_LOGITS,
    outputs_and_targets,
    row_losses,
    suitable,
)

TRIED_TEMPERATURES = np.geomspace(1 / 16, 16, 129)
"""The temperatures; the middle one is 1."""

NUM_BINS = 15
"""Bins of the expected calibration error, of equal width (Guo et al., ICML 2017)."""

KINDS = (CLASS_LOGITS, LABEL_LOGITS)
"""What outputs can be calibrated; a client reports the place in this list."""

MAX_ROW_LOSS = 1e6
"""Greatest mean loss of a row that is believed."""


@dataclass(frozen=True)
class CalibrationSums:
    """Sums over the rows of one client, or of several.

    Attributes:
        kind: What the outputs are.
        validation_rows: Number of validation rows.
        validation_losses: Sum of their losses at each temperature ``(129,)``.
        test_rows: Number of test rows.
        test_losses: Sum of their losses at each temperature ``(129,)``.
        test_bins: Right predictions less confidences, in each bin at each temperature ``(129, 15)``.
        predictions: How many predictions of test rows there are: one a row, or one a label.
    """

    kind: str
    validation_rows: int
    validation_losses: np.ndarray
    test_rows: int
    test_losses: np.ndarray
    test_bins: np.ndarray
    predictions: int

    def __add__(self, added_sums: CalibrationSums) -> CalibrationSums:
        """The sums over the rows of both; raises ``ValueError`` if their outputs differ in kind."""
        if self.kind != added_sums.kind:
            raise ValueError(f"outputs of two kinds: {self.kind} and {added_sums.kind}")
        return CalibrationSums(
            self.kind,
            self.validation_rows + added_sums.validation_rows,
            self.validation_losses + added_sums.validation_losses,
            self.test_rows + added_sums.test_rows,
            self.test_losses + added_sums.test_losses,
            self.test_bins + added_sums.test_bins,
            self.predictions + added_sums.predictions,
        )

    def numbers(self) -> dict[str, Any]:
        """Return the sums as numbers and lists of numbers, for a message or a file."""
        return {
            "kind": KINDS.index(self.kind),
            "validation-rows": self.validation_rows,
            "validation-losses": self.validation_losses.tolist(),
            "test-rows": self.test_rows,
            "test-losses": self.test_losses.tolist(),
            "test-bins": self.test_bins.flatten().tolist(),
            "predictions": self.predictions,
        }

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, Any], most_rows: int) -> CalibrationSums:
        """Read sums from the numbers of :meth:`numbers`, which an unknown sender may have made.

        Args:
            numbers: Name -> a number, or a list of numbers.
            most_rows: The greatest number of rows that a client can have.

        Raises:
            ValueError: They are not sums over rows.
        """
        kind_place = _count(numbers, "kind", len(KINDS) - 1)
        validation_rows = _count(numbers, "validation-rows", most_rows)
        test_rows = _count(numbers, "test-rows", most_rows)
        kind = KINDS[kind_place]
        # Of several labels, each is a prediction.
        predictions = _count(numbers, "predictions", most_rows)
        if predictions < test_rows or (kind == CLASS_LOGITS and predictions != test_rows):
            raise ValueError(f"{predictions} predictions of {test_rows} test rows")
        losses = []
        for name, rows in (("validation-losses", validation_rows), ("test-losses", test_rows)):
            values = _array(numbers, name, len(TRIED_TEMPERATURES))
            if (values < 0).any() or (values > rows * MAX_ROW_LOSS).any():
                raise ValueError(f"{name} are no sums of losses of {rows} rows")
            losses.append(values)
        bins = _array(numbers, "test-bins", len(TRIED_TEMPERATURES) * NUM_BINS)
        bins = bins.reshape(len(TRIED_TEMPERATURES), NUM_BINS)
        if (np.abs(bins).sum(1) > predictions * (1 + 1e-9)).any():
            raise ValueError(f"test-bins are no differences of {predictions} predictions")
        return cls(kind, validation_rows, losses[0], test_rows, losses[1], bins, predictions)


def _count(numbers: Mapping[str, Any], name: str, greatest: int) -> int:
    """A whole number from 0 on."""
    value = numbers.get(name)
    if type(value) is not int or not 0 <= value <= greatest:
        raise ValueError(f"{name} must be a whole number from 0 to {greatest}")
    return value


def _array(numbers: Mapping[str, Any], name: str, length: int) -> np.ndarray:
    """Finite numbers, as many as are expected."""
    values = numbers.get(name)
    if not isinstance(values, list) or len(values) != length:
        raise ValueError(f"{name} must be {length} numbers")
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
        raise ValueError(f"{name} must be finite numbers")
    return np.array(values, float)


def calibration_sums(kind: str, net: nn.Module, data: ClientData) -> CalibrationSums | None:
    """Return the sums of a client for the net that serves it.

    Args:
        kind: What the net's outputs are.
        net: The net, in evaluation mode.
        data: The client's data.

    Returns:
        The sums; None if the outputs cannot be calibrated, such as those of sequences.
    """
    if kind not in KINDS:
        return None
    validation_pair = outputs_and_targets(net, [data.validation]) if len(data.validation) else None
    test_pair = outputs_and_targets(net, [data.test]) if len(data.test) else None
    for pair in (validation_pair, test_pair):
        if pair is not None and suitable(kind, pair) is None:
            return None
    bins = np.zeros((len(TRIED_TEMPERATURES), NUM_BINS))
    predictions = 0
    if test_pair is not None:
        predictions = len(test_pair[1]) if kind == CLASS_LOGITS else test_pair[1].numel()
        for place, temperature in enumerate(TRIED_TEMPERATURES.tolist()):
            bins[place] = binned_differences(kind, *test_pair, temperature)
    return CalibrationSums(
        kind,
        0 if validation_pair is None else len(validation_pair[1]),
        _losses(kind, validation_pair),
        0 if test_pair is None else len(test_pair[1]),
        _losses(kind, test_pair),
        bins,
        predictions,
    )


def _losses(kind: str, pair: tuple[Tensor, Tensor] | None) -> np.ndarray:
    """The sum of the losses of some rows at each temperature; zeros without rows."""
    sums = np.zeros(len(TRIED_TEMPERATURES))
    if pair is not None:
        outputs, targets = pair
        for place, temperature in enumerate(TRIED_TEMPERATURES.tolist()):
            sums[place] = float(row_losses(kind, outputs.double(), targets, temperature).sum())
    return sums


def binned_differences(
    kind: str, outputs: Tensor, targets: Tensor, temperature: float
) -> np.ndarray:
    """Return the number of right predictions less the sum of the confidences, in each bin of the confidence ``(15,)``.

    Args:
        kind: What the outputs are: of classes, the predicted class of each row counts; of labels,
            each label, whose probability is compared with how often it is 1.
        outputs: Logits ``(n, m)``.
        targets: Classes ``(n,)``, or labels ``(n, m)``.
        temperature: By which logits are divided.
    """
    if kind == CLASS_LOGITS:
        probabilities, predictions = (outputs.double() / temperature).softmax(1).max(1)
        is_right = predictions == targets
    else:
        probabilities = (outputs.double() / temperature).sigmoid().flatten()
        is_right = targets.flatten() == 1
    confidences = probabilities.numpy()
    bin_numbers = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    differences: np.ndarray = np.bincount(
        bin_numbers, weights=is_right.double().numpy() - confidences, minlength=NUM_BINS
    )
    return differences
