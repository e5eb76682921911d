"""Training on halves of clients' data whose updates will be compared: as many steps for one as for the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from coterie.core import Needs, Training, Weighting
from coterie.settings import setting


def of_equal_steps(training: Training, sizes: Iterable[int], share: float = 0.5) -> Training | None:
    """Set the number of steps on each half to a share of the steps that a client of median size makes in a round.

    So no two updates differ because of unequal work.

    Args:
        training: the experiment's training settings.
        sizes: numbers of training examples, of the clients that have reported them.
        share: the share; 0.5 takes as many steps on both halves together as a round does.

    Returns:
        The settings for every half. None if the sizes are unknown: before the first round, or with
        noise added for privacy, where every client counts as one example.
    """
    # The experiment sets the number of steps of a round itself.
    if training.steps is not None:
        return replace(training, steps=max(1, int(training.steps * share)))
    # Otherwise it sets epochs: the steps of a round are epochs times size / batch; a batch of 0 is
    # all of a client's data.
    median_size = float(np.median(list(sizes) or [1]))
    if median_size <= 1:
        return None
    return replace(
        training,
        steps=max(
            1, round(share * training.epochs * median_size / (training.batch or median_size))
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Probing:
    """Settings of methods whose groups probe, and when the next probe of a group comes."""

    level: float = setting(
        1e-4,
        "probability that two test rounds split clients with the same data distribution (α)",
        gt=0,
        lt=1,
    )
    probe_every: int = setting(
        4,
        "rounds between test rounds of a group; up to four times as many if nothing is found",
        ge=1,
    )
    first_probe: int = setting(2, "the first test round", ge=2, begins="the first test round")
    review_every: int = setting(
        8,
        "rounds from a change of groups to a review of all groups; more if reviews change nothing; 0: never",
        ge=0,
    )
    steps: int | None = setting(
        None,
        "mini-batch steps on each half; none: four times those of a client of median size in a round, "
        "or, with noise, as many as a round has epochs",
        ge=1,
    )
    fraction: float = setting(
        1.0, "fraction of each group's clients sampled in a round, at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "data", "weights of means: by training examples, or uniform", choices=("data", "uniform")
    )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("halves",),
            occasional=("model-choice", "losses", "training"),
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    def _turn(self, round: int) -> int:
        """The first round after this one in which a probe is due."""
        if round < self.first_probe:
            return self.first_probe
        # The next of first_probe, first_probe + probe_every, ... that is after this round.
        return round + 1 + (self.first_probe - round - 1) % self.probe_every

    def _later(self, round: int, calm: int) -> int:
        """The round of the next probe of a group that stays whole: later, the more probes in a row showed no difference."""
        # 1, 2, then 4 intervals: the time doubles with each calm probe after the first.
        num_intervals = min(2 ** max(calm - 1, 0), 4)
        return self._turn(round + self.probe_every * (num_intervals - 1))
