"""Training on halves of clients' data whose updates will be compared: as many steps for one as for the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from coterie.core import Training


def of_equal_steps(training: Training, sizes: Iterable[int]) -> Training | None:
    """How everybody trains on a half, so that no update differs by the work in it: half the steps that a client of median
    size makes by ``training``.

    sizes: numbers of training examples, of those clients who have told theirs. None where they say nothing, as before the
    first round, or under noise, where everybody counts as one: a half then makes the passes of ``training``.
    """
    if training.steps is not None:
        return replace(training, steps=max(1, training.steps // 2))
    size = float(np.median(list(sizes) or [1]))
    if size <= 1:
        return None
    return replace(training, steps=max(1, round(training.epochs * size / (2 * (training.batch or size)))))
