"""How long it will take: from the rounds that have been and the rounds that are left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median

RECENT = 10
"""Rounds of the present run whose median is what a round takes."""


def duration(seconds: float) -> str:
    """About how long.

    >>> duration(40), duration(150), duration(5400), duration(400_000)
    ('40 s', '2 min', '1.5 h', '4.6 days')
    """
    for unit, length, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Pace:
    """Of the runs of an experiment, one after the other. kinds: what each is, such as its method: those of one kind take
    about as long. rounds: of each, at most."""

    def __init__(self, kinds: Sequence[str], rounds: int) -> None:
        self.kinds, self.rounds = kinds, rounds
        self.number, self.done, self.first = 0, 0, True
        self.ended_runs: set[int] = set()
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.known: dict[str, float] = {}
        self.began = self.at = time.monotonic()

    def begin(self, number: int, done: int) -> None:
        """The run with this ``number`` begins, after ``done`` rounds."""
        self.number, self.done = number, done
        self.recent.clear()
        self.first = True  # it has the making of data and workers in it, and counts until there is another
        self.began = self.at = time.monotonic()

    def ended(self, round: int) -> None:
        """So has a round of it."""
        now = time.monotonic()
        if self.first and self.recent:
            self.recent.clear()
            self.first = False
        self.recent.append(now - self.at)
        self.known[self.kinds[self.number]] = median(self.recent)
        self.at, self.done = now, round

    def finish(self) -> None:
        """So has the run."""
        self.ended_runs.add(self.number)

    def taken(self) -> str:
        """How long the present run has taken by now."""
        return duration(self.at - self.began)

    def left(self) -> str:
        """How long the present run will take, to be put after other words; nothing where that cannot be told."""
        rounds = self.rounds - self.done
        return f", {duration(median(self.recent) * rounds)} left" if self.recent and rounds else ""

    def left_of_all(self) -> str:
        """The same of all runs. One of a kind not seen yet is taken to be as the mean of those seen."""
        if not self.known:
            return ""
        waiting = [kind for i, kind in enumerate(self.kinds) if i != self.number and i not in self.ended_runs]
        mean = fmean(self.known.values())
        seconds = sum(self.known.get(kind, mean) * self.rounds for kind in waiting)
        if self.number not in self.ended_runs:
            seconds += self.known.get(self.kinds[self.number], mean) * (self.rounds - self.done)
        return f", {duration(seconds)} left" if seconds else ""

    def share(self) -> float:
        """Of all rounds, those that are done."""
        here = 0 if self.number in self.ended_runs else self.done / self.rounds
        return (len(self.ended_runs) + here) / len(self.kinds)
