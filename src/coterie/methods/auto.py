"""Auto: the default method. It needs no choice: it runs one model, groups and training alone, and keeps what is best.

It is a :class:`~coterie.methods.race.Race` by held-out loss of FedAvg, one model for all, and
split-half, which finds groups, each with personal models (:class:`~coterie.methods.tuned.Tuned`),
and of training alone, if all clients train in each round. Until split-half finds groups it is
FedAvg, and sends no more than its probes.

A client has a personal model, which it trains on in each round, pulled to the model of its group
(Ditto, arXiv 2012.04221). It is served by the personal model where this lowers held-out loss. If
less than half of the clients train in a round, it makes its personal model of its group's model
anew. Means are uniform: a client with many examples already makes more steps, and weights by
examples would count this twice.

Coterie's own. Choosing between one model and local models by the evidence is optimal up to
constants under heterogeneity (S. Chen, Q. Zheng, Q. Long, W. Su, "A Theorem of the Alternative for
Personalized Federated Learning", arXiv 2103.01901). Shared models are also an incentive: clients
join that do not lose by it (K. Donahue, J. Kleinberg, arXiv 2010.00753).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from coterie.core import Assignment, Client, Cohort, Federation, Needs, Note, Plan, Replies, Task
from coterie.methods.fedavg import FedAvg
from coterie.methods.independent import Independent
from coterie.methods.race import Race, RaceState
from coterie.methods.split_half import SplitHalf
from coterie.methods.tuned import Tuned
from coterie.settings import check, setting


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The default: one model, groups, personal models or training alone, by the loss on held-out examples."""

    name: ClassVar[str] = "auto"

    level: float = setting(
        1e-4,
        "probability that split-half splits clients with the same data distribution (α)",
        gt=0,
        lt=1,
    )
    patience: int = setting(
        10,
        "reports of each client, on average, before a method that may catch up is given up; after twice as many, one goes on",
        ge=1,
    )
    tuning: int = setting(
        2,
        "passes over a client's data in a round that train its personal model; 0: no such model",
        ge=0,
    )
    pull: float = setting(
        0.2,
        "weight of the term that pulls a personal model to that of its group (λ of Ditto)",
        ge=0,
        lt=1e9,
        not_with={"tuning": (0,)},
    )
    neighbours: int = setting(
        10,
        "nearest training examples of a client that may take part in its predictions (k); 0: none",
        ge=0,
    )
    holdout: float = setting(
        0.15,
        "share of the training examples that clients without a validation part hold out",
        gt=0,
        le=0.5,
    )
    fraction: float = setting(
        1.0, "fraction of each group's clients sampled in a round, at least one", gt=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def race(self) -> Race:
        """The race that this method runs."""
        # One model for all, and groups.
        arms: tuple[Any, ...] = (
            FedAvg(weighting="uniform", fraction=self.fraction),
            SplitHalf(
                weighting="uniform",
                fraction=self.fraction,
                level=self.level,
                alert=True,
                alert_with_training=True,
            ),
        )
        if self.tuning:
            # Clients train personal models in both. Training alone asks all clients in each round, so
            # it takes part only if the others do too.
            arms = tuple(map(self._with_personal_models, arms))
            if self.fraction == 1:
                arms = (*arms, Independent())
        return Race(methods=arms, patience=self.patience, holdout=self.holdout)

    def _with_personal_models(self, arm: Any) -> Tuned:
        return Tuned(
            method=arm,
            epochs=self.tuning,
            start="either",
            pull=self.pull,
            neighbours=self.neighbours,
            holdout=self.holdout,
        )

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine: what its race needs."""
        needs = Needs(unchanged_by="rotation", fraction=self.fraction)
        return needs.with_inner((), self.race)

    def serving_tasks(self, state: RaceState, cohort: Cohort) -> tuple[Task, ...]:
        """Return the next tasks of the race's leader."""
        return self.race.serving_tasks(state, cohort)

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> RaceState:
        return self.race.init(federation)

    def plan(self, state: RaceState, cohort: Cohort) -> Plan:
        return self.race.plan(state, cohort)

    def step(self, state: RaceState, replies: Replies) -> RaceState:
        return self.race.step(state, replies)

    def assignment(self, state: RaceState) -> Assignment:
        return self.race.assignment(state)

    def explain(self, state: RaceState) -> tuple[Note, ...]:
        return self.race.explain(state)

    def admit(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        return self.race.admit(state, clients)

    def retire(self, state: RaceState, clients: tuple[Client, ...]) -> RaceState:
        return self.race.retire(state, clients)
