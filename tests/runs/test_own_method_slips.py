"""Mistakes in a method of one's own that ended in a traceback of the engine, or in a record that looked damaged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

import coterie
from coterie.boundary import Boundary
from coterie.core import Assignment, Cohort, Plan, Replies
from coterie.engines.rounds import rehearse
from coterie.methods import METHODS
from coterie.methods.fedavg import FedAvg
from coterie.settings import SettingError
from small import world


@dataclass(frozen=True, kw_only=True)
class Returnless(FedAvg):
    def step(self, state: Any, replies: Replies) -> Any:
        super().step(state, replies)


@dataclass(frozen=True, kw_only=True)
class Narrow(FedAvg):
    def step(self, state: Any, replies: Replies) -> Any:
        moved = super().step(state, replies)
        return replace(moved, model=moved.model[:5])


@dataclass(frozen=True, kw_only=True)
class Strange(FedAvg):
    def plan(self, state: Any, cohort: Cohort) -> Plan:
        plan = super().plan(state, cohort)
        return replace(plan, tasks={99: next(iter(plan.tasks.values()))})


@dataclass(frozen=True, kw_only=True)
class Twice(FedAvg):
    def assignment(self, state: Any) -> Assignment:
        assignment = super().assignment(state)
        return replace(assignment, groups=assignment.groups * 2)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Returnless(), "must return a state from step, got None: is a return missing"),
        (Narrow(), r"models must be rows of \d+ numbers, .* got shape \(1, 5\)"),
        (Strange(), "a task for client 99, and there is no such client"),
        (Twice(), r"must assign each client to one group, and client \d is in two"),
    ],
)
def test_the_sentence_names_the_method_and_the_function(method: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        list(coterie.run(method, world(), rounds=1, workers=1))


def test_a_class_with_a_dot_in_place_of_the_colon() -> None:
    with pytest.raises(coterie.UserError, match=r"did you mean my_module:MyMethod\?"):
        coterie.run("my_module.MyMethod", world(), rounds=1)
    assert "my_module.MyMethod" not in METHODS


def test_half_of_the_clients_cannot_be_hostile() -> None:
    tried = world()
    half = len(tried.clients) // 2
    with pytest.raises(SettingError, match=rf"less than half of the .* clients, got {half}"):
        rehearse(FedAvg(), tried, 0, Boundary(), robust=coterie.Robust(hostile=half))
    rehearse(FedAvg(), tried, 0, Boundary(), robust=coterie.Robust(hostile=1))


def test_the_error_of_a_user_has_a_public_name() -> None:
    assert issubclass(SettingError, coterie.UserError)
