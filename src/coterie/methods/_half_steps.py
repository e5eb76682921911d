"""Training on halves of clients' data whose updates will be compared: as many steps for one as for the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from coterie.core import Training


def of_equal_steps(training: Training, sizes: Iterable[int]) -> Training | None:
    """Set the number of steps on each half to half the steps that a client of median size makes.

    So no two updates differ because of unequal work.

    Args:
        training: the experiment's training settings.
        sizes: numbers of training examples, of the clients that have reported them.

    Returns:
        The settings for every half. None if the sizes are unknown: before the first round, or with noise added for privacy,
        where every client counts as one example. A half then makes the passes of ``training``.
    """
    if training.steps is not None:
        return replace(training, steps=max(1, training.steps // 2))
    size = float(np.median(list(sizes) or [1]))
    if size <= 1:
        return None
    return replace(training, steps=max(1, round(training.epochs * size / (2 * (training.batch or size)))))
