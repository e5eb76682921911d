"""FedAvg whose step is damped: a method in a package of its own, which Coterie finds by its entry point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.core import Replies
from coterie.methods import FedAvg
from coterie.methods.fedavg import FedAvgState
from coterie.settings import check, setting


@dataclass(frozen=True, kw_only=True)
class Damped(FedAvg):
    """FedAvg that applies a part of the mean update."""

    name: ClassVar[str] = "damped"

    damping: float = setting(0.7, "share of the mean update that is applied", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)

    def step(self, state: FedAvgState, replies: Replies) -> FedAvgState:
        """Move the model by a part of the mean update."""
        averaged = super().step(state, replies)
        return replace(averaged, model=state.model + self.damping * (averaged.model - state.model))
