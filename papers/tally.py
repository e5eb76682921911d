"""What every study of training tells of a run: how good the models are, for whom, when, and at what cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.core import Round
from coterie.data.world import World
from coterie.report.summary import agreement
from papers.numbers import short


@dataclass
class Tally:
    """Counts the rounds of a run as they come. target: the accuracy that a client is to reach; None if there is none.

    exchanges, bytes_up, bytes_down: so far; what came before the first round that is added can be
    put in.
    """

    world: World
    target: float | None = None
    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    tested: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    last: Round | None = None

    def add(self, done: Round) -> None:
        """Count a round."""
        self.exchanges += done.exchanges
        self.bytes_up += done.bytes_up
        self.bytes_down += done.bytes_down
        self.last = done
        if done.scores:
            self.tested.append(done.number)
            self.accuracy.append(
                short(float(np.mean([score["accuracy"] for score in done.scores.values()])))
            )

    def copy(self) -> Tally:
        """One to go on with from here, more than once."""
        return replace(self, tested=[*self.tested], accuracy=[*self.accuracy])

    def of(self, rounds: Iterable[Round]) -> Tally:
        """This, after counting all of these rounds."""
        for done in rounds:
            self.add(done)
        return self

    def found(self) -> dict[str, Any]:
        """Of the last round, which must have been tested: ``accuracy`` (mean over clients), ``worst`` (client's), ``best``,
        ``std`` (over clients) and the mean of each other score; ``share`` of the clients at the
        target; number of ``groups``, ``largest`` of them, and their ``ari`` with the true ones,
        None where there are none. ``reached``: the first tested round whose mean accuracy is the
        target or more. ``exchanges``, ``bytes_up``, ``bytes_down``. ``tested``: numbers of the
        rounds tested, and ``curve``, their mean accuracies.
        """
        assert self.last is not None
        assert self.last.scores
        scores, groups = list(self.last.scores.values()), self.last.assignment.groups
        own = np.array([score["accuracy"] for score in scores])
        spread = {"accuracy": own.mean(), "worst": own.min(), "best": own.max(), "std": own.std()}
        others = {
            name: np.mean([score[name] for score in scores])
            for name in scores[0]
            if name != "accuracy"
        }
        out: dict[str, Any] = {
            name: short(float(value)) for name, value in (spread | others).items()
        }
        if self.target is not None:
            reached = [
                number
                for number, mean in zip(self.tested, self.accuracy, strict=True)
                if mean >= self.target
            ]
            out |= {
                "share": float(np.mean(own >= self.target)),
                "reached": reached[0] if reached else None,
            }
        return out | {
            "groups": len(groups),
            "largest": max(map(len, groups)),
            "ari": agreement(groups, self.world.truth),
            "exchanges": self.exchanges,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "tested": [*self.tested],
            "curve": [*self.accuracy],
        }


def megabytes(found: Mapping[str, Any]) -> float:
    """All that was sent, both ways, in 10^6 bytes."""
    return float(found["bytes_up"] + found["bytes_down"]) / 1e6
