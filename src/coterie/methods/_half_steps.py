"""Training on halves of clients' data whose updates will be compared: as many steps for one as for the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from coterie.core import Training


def of_equal_steps(training: Training, sizes: Iterable[int], share: float = 0.5) -> Training | None:
    """Set the number of steps on each half to a share of the steps that a client of median size makes in a round.

    So no two updates differ because of unequal work.

    Args:
        training: the experiment's training settings.
        sizes: numbers of training examples, of the clients that have reported them.
        share: the share; 0.5 takes as many steps on both halves together as a round does.

    Returns:
        The settings for every half. None if the sizes are unknown: before the first round, or with noise added for privacy,
        where every client counts as one example. A half then makes the passes of ``training``.
    """
    if training.steps is not None:
        return replace(training, steps=max(1, int(training.steps * share)))
    size = float(np.median(list(sizes) or [1]))
    if size <= 1:
        return None
    return replace(training, steps=max(1, round(share * training.epochs * size / (training.batch or size))))
