"""Where a run stands, and what happened in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.core.method import Assignment, Note
from coterie.core.state import Client, state


@state("position")
class Position:
    """Where a run stands: with the method, the world and the seed, all it takes to go on.

    round, exchange: how many are completed. state: the method's. kept: client -> its own values ``(d,)`` of layers that
    stay with it (NaN in the other columns). members: who takes part. missed: rounds in a row without an answer.
    """

    round: int
    exchange: int
    state: Any
    kept: Mapping[Client, Tensor] = field(default_factory=dict)
    members: tuple[Client, ...] = ()
    missed: Mapping[Client, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.round, self.exchange) < 0:  # of a file that was forged
            raise ValueError(f"rounds and exchanges are counted from 0, got {self.round} and {self.exchange}")


@dataclass(frozen=True, kw_only=True)
class Round:
    """One communication round: its number (from 1), the position after it, and what happened.

    assignment: who is served by which model now. notes: of all its exchanges. asked, answered: tasks sent and replies
    taken. refused: client -> why its reply was turned away. claimed: client -> the examples that it says it has, where it
    counted for fewer. scaled: client -> the factor by which its update was scaled down. released: client -> updates it sent
    that noise has to cover. scores: client -> test loss and metrics, or None where this round was not evaluated. bytes: of
    this round, both ways. evaluations: of a model on one client's data that the plans asked for, tests not counted. seconds:
    ``train``, ``server``, ``evaluate``. adversaries: clients that are hostile. silent: clients asked in this round of whom no
    reply was taken.
    """

    number: int
    position: Position
    assignment: Assignment
    notes: tuple[Note, ...]
    exchanges: int
    asked: int
    answered: int
    refused: Mapping[Client, str]
    released: Mapping[Client, int]
    scores: Mapping[Client, Mapping[str, float]] | None
    bytes_up: int
    bytes_down: int
    evaluations: int
    seconds: Mapping[str, float]
    adversaries: tuple[Client, ...] = ()
    silent: tuple[Client, ...] = ()
    claimed: Mapping[Client, int] = field(default_factory=dict)
    scaled: Mapping[Client, float] = field(default_factory=dict)
