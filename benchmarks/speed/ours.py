"""Coterie's in-process engine, a round at a time."""

from __future__ import annotations

import time
from typing import Any

from coterie.engines import rounds
from coterie.methods import FedAvg

from .workloads import Workload, world

FOREVER = 10**9


class Coterie:
    """FedAvg on a workload. ``seconds()``: wall time of the next whole round, nobody tested.

    options: what :func:`coterie.engines.rounds.rounds` takes: workers, width, device, precision.
    train: seconds of each round so far in which the clients trained.
    """

    def __init__(self, work: Workload, **options: Any) -> None:
        method = FedAvg(fraction=work.fraction)
        self.work, self.train = work, list[float]()
        self.rounds = rounds.rounds(
            method, world(work), rounds=FOREVER, eval_every=FOREVER, **options
        )

    def seconds(self) -> float:
        since = time.perf_counter()
        done = next(self.rounds)
        taken = time.perf_counter() - since
        if done.answered != self.work.asked:
            raise RuntimeError(
                f"{done.answered} of {self.work.asked} clients answered: {dict(done.refused)}"
            )
        self.train.append(done.seconds["train"])
        return taken

    def close(self) -> None:
        """End the worker processes."""
        self.rounds.close()
