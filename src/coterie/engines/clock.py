"""How long the phases of a round take."""

from __future__ import annotations

import time
from typing import Literal

Phase = Literal["train", "server", "evaluate"]
"""A phase of a round: clients train, the server computes, clients test."""


class Clock:
    """Adds up the seconds of each phase: ``with clock("train"): ...``.

    Attributes:
        seconds: Phase -> seconds.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"train": 0.0, "server": 0.0, "evaluate": 0.0}

    def __call__(self, phase: Phase) -> Clock:
        self._phase = phase
        return self

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._phase] += time.perf_counter() - self._begun
