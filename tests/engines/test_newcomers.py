"""Newcomers and a returning client in a trained federation of eight groups, with real local training."""

from __future__ import annotations

from dataclasses import replace

import pytest

import coterie
from coterie.core import Training, as_groups
from coterie.data.scenario import Scenario
from coterie.methods import CFL

METHOD = CFL(
    eps2=0.25
)  # the last of seven splits separates clients whose updates have come to a third of their peak
ROUNDS = 24  # all seven splits are made by then

BASE = Scenario(
    dataset="synthetic", shift="label-permutation", clients=58, groups=8, examples=58 * 120, features=20, classes=8,
    model="mlp", training=Training(lr=0.1, batch=10, epochs=3),
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 1])
def test_ten_newcomers_and_one_who_returns_reach_their_true_leaves(seed: int) -> None:
    away = BASE.attendance.patience + 2
    scenario = replace(
        BASE, newcomers=10, join_round=ROUNDS + 1, leavers=1, leave=(ROUNDS + 1 - away, ROUNDS)
    )
    truth, present = scenario.build(seed).truth, scenario.build(seed).attendance
    assert truth is not None
    done = list(coterie.run(METHOD, scenario, rounds=ROUNDS + 8, seed=seed, eval_every=100))
    before, after = done[ROUNDS - 1], done[-1]
    gone = {*present.joins, *present.away}
    assert before.assignment.groups == as_groups([c for c in g if c not in gone] for g in truth)
    tree = before.position.state.tree
    assert sum(node.model is not None for node in tree.nodes) == 7
    assert (
        max(len(tree.path(leaf.node)) for leaf in before.position.state.leaves) >= 4
    )  # three levels below the root
    arrived = {
        c
        for one in done[ROUNDS:]
        for n in one.notes
        if n.kind == "join" and "node" in n.labels
        for c in n.clients
    }
    assert arrived == gone  # all of them walked
    assert after.assignment.groups == truth


def test_three_who_join_in_the_round_their_leaf_splits_reach_their_true_leaves() -> None:
    scenario = replace(BASE, newcomers=3, join_round=1000)
    world = scenario.build(0)
    truth, new = world.truth, tuple(world.attendance.joins)
    assert truth is not None
    done = list(coterie.run(METHOD, scenario, rounds=ROUNDS, seed=0, eval_every=100))
    # The rounds in which a leaf splits that is on the way of one of the three.
    mates = {c: set(next(g for g in truth if c in g)) - set(new) for c in new}
    splits = {
        one.number
        for one in done
        for note in one.notes
        if note.kind == "split" and any(mates[c] <= set(note.clients) for c in new)
    }
    assert len(splits) >= 3
    for number in (min(splits), sorted(splits)[len(splits) // 2], max(splits)):
        joining = replace(scenario, join_round=number)
        rest = list(
            coterie.run(
                METHOD,
                joining,
                rounds=ROUNDS + 8,
                seed=0,
                eval_every=100,
                start=done[number - 2].position,
            )
        )
        assert any(note.kind == "split" for note in rest[0].notes)
        assert {c for note in rest[0].notes if note.kind == "arrive" for c in note.clients} >= set(
            new
        )
        assert rest[-1].assignment.groups == truth, number
