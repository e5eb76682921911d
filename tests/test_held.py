"""Held-out losses as sums: what the server makes of them is what single losses would give; and plans of several parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import small
from coterie.core import (
    WORST_LOSS,
    Candidate,
    HeldOutLosses,
    Holdout,
    Personal,
    Plan,
    Replies,
    Task,
    Training,
)
from coterie.engines.exchange import held_losses, together
from coterie.engines.rounds import rounds
from coterie.methods import Race
from scripted import Scripted, everyone, play, shown

NAMES: tuple[Candidate, ...] = (("a", 0), ("a", 1), ("b", 0), ("ab", 0), ("a/b", 0), ("a/b/c", 1))
SIZE = 75
LOSSES = st.tuples(st.integers(1, 6), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0, 100))
)


# -- sums
# ---------------------------------------------------------------------------------------------------------------


@given(LOSSES, st.data())
def test_a_difference_is_that_of_single_losses(losses: np.ndarray, data: st.DataObject) -> None:
    models = NAMES[: len(losses)]
    one, other = (data.draw(st.sampled_from(range(len(models)))) for _ in range(2))
    held = HeldOutLosses.of(models, losses)
    apart, n = losses[one] - losses[other], losses.shape[1]
    found = held.difference(models[one], models[other])
    assert found is not None
    assert found[0] == pytest.approx(apart.mean(), abs=1e-9)
    assert (
        found[1] == pytest.approx(apart.var(ddof=1) / n, rel=1e-6, abs=1e-9)
        if n > 1
        else found[1] == math.inf
    )
    alone = held.difference(models[one], None)
    assert alone is not None
    assert alone[0] == pytest.approx(losses[one].mean(), abs=1e-9)


@given(LOSSES)
def test_a_model_and_itself_differ_by_nothing(losses: np.ndarray) -> None:
    held = HeldOutLosses.of(NAMES[: len(losses)], losses)
    expected = (0.0, 0.0) if losses.shape[1] > 1 else (0.0, math.inf)
    assert held.difference(NAMES[0], NAMES[0]) == expected


def test_a_difference_by_rounding_is_no_certainty() -> None:
    losses = np.full((2, 50), 3.1)
    losses[1] += 1e-12
    found = HeldOutLosses.of(NAMES[:2], losses).difference(*NAMES[:2])
    assert found is not None
    mean, variance = found
    assert abs(mean) < 2 * math.sqrt(variance)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_loss_that_is_no_number_is_the_worst_one(bad: float) -> None:
    held = HeldOutLosses.of(NAMES[:2], np.array([[1.0, bad], [1.0, 2.0]]))
    assert np.isfinite(held.products).all()
    found = held.difference(*NAMES[:2])
    assert found is not None
    assert found[0] == pytest.approx((WORST_LOSS - 2) / 2)


def test_no_example_or_model_no_difference() -> None:
    none = HeldOutLosses.of(NAMES[:2], np.zeros((2, 0)))
    assert none.difference(*NAMES[:2]) is None
    assert none.difference(NAMES[0], None) is None
    held = HeldOutLosses.of(NAMES[:2], np.ones((2, 3)))
    assert held.difference(NAMES[0], NAMES[2]) is None
    assert held.difference(NAMES[2], None) is None


def test_within_a_part_are_its_own_names() -> None:
    losses = np.arange(24.0).reshape(6, 4)
    held = HeldOutLosses.of(NAMES, losses)
    assert held.within("") is held
    inner = held.within("a")
    assert inner.models == (("", 0), ("", 1), ("b", 0), ("b/c", 1))
    assert inner.difference(("b/c", 1), ("", 0)) == held.difference(("a/b/c", 1), ("a", 0))
    assert inner.within("b").models == (("", 0), ("c", 1))
    assert held.within("a").within("b").within("c").difference(("", 1), None) == held.difference(
        ("a/b/c", 1), None
    )
    assert held.within("nobody").models == ()


def test_losses_of_all_parts_are_of_the_same_examples() -> None:
    rows = np.arange(8.0).reshape(2, 4)
    one_model = Task(offered=(0,), holdout=Holdout(report_losses=True))
    tasks = {
        "a": {3: replace(one_model, personal=Personal())},
        "b": {3: one_model, 5: one_model},
    }
    held = held_losses({"a": {3: rows}, "b": {3: rows[:1], 5: rows[1:]}}, tasks)
    assert held[3].models == (("a", 0), ("a", 1), ("b", 0))
    assert held[3].difference(("a", 0), ("b", 0)) == (0.0, 0.0)
    assert held[5].models == (("b", 0),)


# -- plans of several parts
# -------------------------------------------------------------------------------------------------


def plan_of(*shares: float, **more: Any) -> Plan:
    return Plan(
        models=torch.zeros(1, 3),
        tasks={c: Task(offered=(0,), holdout=Holdout(share=s)) for c, s in enumerate(shares)},
        **more,
    )


def test_parts_hold_out_the_same_examples() -> None:
    outer = Plan(
        models=torch.zeros(0, 3), tasks={}, parts={"a": plan_of(0.1, 0.2), "b": plan_of(0.1, 0.2)}
    )
    assert outer.asked == (0, 1)
    with pytest.raises(
        ValueError,
        match=r"Holdout.share of client 1 must be the same in all parts of a plan, got 0.2 and 0.3",
    ):
        Plan(models=torch.zeros(0, 3), tasks={}, parts={"a": outer, "b": plan_of(0.1, 0.3)})


def test_parts_of_parts_end_too() -> None:
    inner = Plan(
        models=torch.zeros(0, 3),
        tasks={},
        parts={"c": plan_of(0.1, ended_parts=("x",))},
        ended_parts=("old",),
    )
    outer = Plan(models=torch.zeros(0, 3), tasks={}, parts={"b": inner}, ended_parts=("a",))
    assert outer.all_ended_parts == ("a", "b/old", "b/c/x")


def test_what_a_client_kept_for_an_ended_part_of_a_part_is_dropped() -> None:
    def say(exchange: int, clients: tuple[int, ...]) -> dict[str, Any]:
        models, task = torch.zeros(1, SIZE), Task(offered=(0,), personal=Personal())
        leaf = Plan(models=models, tasks=dict.fromkeys(clients, task))
        ended = ("leaf0",) if exchange else ()
        return {
            "tasks": {},
            "parts": {
                "outer": Plan(
                    models=models[:0], tasks={}, parts={f"leaf{exchange}": leaf}, ended_parts=ended
                )
            },
        }

    done = play(Scripted(say), small.world(), 2)
    assert [set(one.position.kept) for one in done] == [{"outer/leaf0"}, {"outer/leaf1"}]


def test_a_reply_refused_in_one_part_counts_in_the_others() -> None:
    plan = Plan(
        models=torch.zeros(0, 3), tasks={}, parts={"a": plan_of(0.1, 0.1), "b": plan_of(0.1, 0.1)}
    )
    replies = {
        "a": Replies(clients=(0, 1), examples=np.array([5, 7]), ends_round=True),
        "b": Replies(clients=(1,), examples=np.array([7]), refused={0: "its update has a NaN"}),
    }
    task = Task(offered=(0,), holdout=Holdout(report_losses=True))
    held = held_losses(
        {"a": {0: np.ones((1, 2)), 1: np.ones((1, 2))}, "b": {1: np.ones((1, 2))}},
        {"a": {0: task, 1: task}, "b": {1: task}},
    )
    both = together(plan, replies, held)
    assert both.clients == (0, 1)
    assert both.examples.tolist() == [5, 7]
    assert both.refused == {0: "its update has a NaN"}
    assert sorted(both.parts["b"].held_out_losses) == [1]
    assert both.held_out_losses[0].difference(("a", 0), ("b", 0)) is None


# -- examples that are held out
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("train", "held"), [(1, 0), (2, 1), (3, 1), (20, 3), (7, 1)])
def test_held_out_examples_are_a_share_at_least_one_at_most_half(train: int, held: int) -> None:
    world = small.world(
        ids=(2, 3), clients={c: small.client(c, train=train, validation=0) for c in (2, 3)}
    )
    task = Task(offered=(0,), holdout=Holdout(share=0.15, report_losses=True))
    (seen,) = shown([everyone(task, need="rows")(0, (2, 3))], world)
    assert {c: one.count for c, one in seen.held_out_losses.items()} == {2: held, 3: held}


def test_validation_examples_are_held_out_before_others() -> None:
    world = small.world(ids=(2,))
    (seen,) = shown(
        [everyone(Task(offered=(0,), holdout=Holdout(share=0.4, report_losses=True)))(0, (2,))],
        world,
    )
    assert seen.held_out_losses[2].count == len(world.clients[2].validation)


def test_a_client_whose_update_one_part_refuses_counts_in_the_other() -> None:
    task = Task(offered=(0,), holdout=Holdout(report_losses=True))
    wild = replace(task, training=Training(lr=9e8, weight_decay=1e9, epochs=5, batch=4))

    def say(exchange: int, clients: tuple[int, ...]) -> dict[str, Any]:
        models, tasks = torch.ones(1, SIZE), dict.fromkeys(clients, task)
        parts = {
            "a": Plan(models=models, tasks=tasks),
            "b": Plan(models=models, tasks={**tasks, 3: wild}),
        }
        return {"tasks": {}, "parts": parts}

    method = Scripted(say)
    (done,) = play(method, small.world(), 1)
    (seen,) = method.seen
    assert seen.clients == seen.parts["a"].clients == (2, 3, 7, 11)
    assert seen.parts["b"].clients == (2, 7, 11)
    assert set(done.refused) == set(seen.parts["b"].refused) == {3}
    assert seen.held_out_losses[3].models == (("a", 0),)
    assert seen.held_out_losses[2].models == (("a", 0), ("b", 0))


def test_a_race_goes_on_where_a_client_is_always_refused() -> None:
    world = small.world(ids=range(6))
    world = replace(world, clients={**world.clients, 5: small.spoiled(world.clients[5], "train")})
    done = list(rounds(Race(methods=("fedavg", "ifca")), world, rounds=3, workers=1))
    assert set(done[-1].refused) == {5}
    assert {c for reports in done[-1].position.state.seen.values() for c in reports} == set(
        range(5)
    )
