"""Auto: the default method. It needs no choice: it runs one model for all beside groups, and keeps what held-out loss favours.

It is a :class:`~coterie.methods.race.Race` of FedAvg and a method that finds groups, each with personal models
(:class:`~coterie.methods.tuned.Tuned`):

- *FedAvg*: one model for all.
- *Split-half* where most clients answer. Until it finds groups it is FedAvg, and costs no more than its probes.
- *HCCT* where few clients answer: split-half tests clients that answer in the same round, and HCCT remembers.
  The share of clients that answered in the first :data:`LISTEN` rounds decides between these two.

A client is served by its personal model, which its own training makes of its group's model in each round, where this lowers
held-out loss. Means are uniform: a client with many examples already makes more steps, and weights by examples would count
this twice.

Coterie's own. Choosing between one model and local models by the evidence is optimal up to constants under heterogeneity
(S. Chen, Q. Zheng, Q. Long, W. Su, "A Theorem of the Alternative for Personalized Federated Learning", arXiv 2103.01901).
Shared models are also an incentive: clients join that do not lose by it (K. Donahue, J. Kleinberg, arXiv 2010.00753).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from coterie.core import Assignment, Client, Cohort, Criterion, Federation, Note, Plan, Replies, Task
from coterie.methods.fedavg import FedAvg
from coterie.methods.hcct import HCCT
from coterie.methods.race import Race, RaceState, cost, without_arm
from coterie.methods.split_half import SplitHalf
from coterie.methods.tuned import Tuned
from coterie.settings import check, setting

LISTEN = 3
"""Rounds in which the answers are counted."""


@dataclass(frozen=True, kw_only=True)
class Auto:
    """One model, groups or personal models: what held-out loss favours. The default."""

    name: ClassVar[str] = "auto"
    measures: ClassVar[bool] = True

    level: float = setting(1e-4, "probability that split-half splits clients that are alike (α)", gt=0, lt=1)
    patience: int = setting(12, "reports of each client, on average, before one model or groups are given up", ge=1)
    few: float = setting(0.5, "share of answering clients below which groups are found by hcct, not split-half", ge=0, le=1)
    tuning: int = setting(2, "passes over a client's data, after those of a round, that make its personal model", ge=0)
    holdout: float = setting(
        0.15, "share of the training examples that clients without a validation part hold out", gt=0, le=0.5
    )
    fraction: float = setting(1.0, "fraction of each group's clients sampled in a round, at least one", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def race(self) -> Race:
        """The race that this method runs."""
        arms = (
            FedAvg(weighting="uniform", fraction=self.fraction),
            SplitHalf(weighting="uniform", fraction=self.fraction, level=self.level),
            HCCT(fraction=self.fraction),
        )
        tuned = tuple(Tuned(method=arm, epochs=self.tuning, holdout=self.holdout) for arm in arms)
        return Race(methods=tuned, patience=self.patience, holdout=self.holdout)

    @property
    def asks(self) -> tuple[Task, ...]:
        """Tasks of later rounds that the first round may not have."""
        return self.race.asks

    # -- the contract ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> RaceState:
        return self.race.init(federation)

    def plan(self, state: RaceState, cohort: Cohort) -> Plan:
        return self.race.plan(state, cohort)

    def step(self, state: RaceState, replies: Replies) -> RaceState:
        new = self.race.step(state, replies)
        if new.round != LISTEN or state.round == LISTEN or len(new.arms) < len(self.race.methods):
            return new
        _, halves, memory = self.race.named
        asked = LISTEN * self.fraction * len(self.assignment(new).row)
        share = min(new.spent.get(memory, 0) / max(asked, 1.0), 1.0)
        gone, stays = (memory, halves) if share >= self.few else (halves, memory)
        note = self._choice(new, self.race.called[stays], self.race.called[gone], share, cost(new, gone))
        left = without_arm(new, gone)
        return replace(left, dropped={}, notes=(*new.notes, note))  # it does not start again

    def _choice(self, state: RaceState, stays: str, gone: str, share: float, paid: tuple[str, dict[str, float]]) -> Note:
        many = Criterion("share of answers", share, ">=", self.few, "few", "many clients answer", "few clients answer")
        bound = f"{'at least' if many.held else 'less than'} the setting few, {self.few:.0%}"
        text = f"clients stop training {gone}: {share:.0%} of them answered in the first {LISTEN} rounds, {bound}"
        return Note(
            kind="arms",
            clients=tuple(sorted(self.assignment(state).row)),
            text=f"{text}; {paid[0]}",
            criteria=(many,),
            otherwise=f"clients would have stopped training {stays} instead",
            numbers={"answered": share, **paid[1]},
        )

    def assignment(self, state: RaceState) -> Assignment:
        return self.race.assignment(state)

    def explain(self, state: RaceState) -> tuple[Note, ...]:
        return self.race.explain(state)

    def admit(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        return self.race.admit(state, clients)

    def retire(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        return self.race.retire(state, clients)
