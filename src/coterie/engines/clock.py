"""Where a round's time goes."""

from __future__ import annotations

import time


class Clock:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("train", "server", "evaluate"), 0.0)

    def __call__(self, name: str) -> Clock:
        self.name = name
        return self

    def __enter__(self) -> None:
        self.since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] += time.perf_counter() - self.since
