"""HCCT's clients that are silent, come, or go; one-shot partitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hcct import PAPER, SOME, cohort, directions

from coterie.core import Replies, as_groups
from coterie.methods import HCCT
from coterie.methods._hcct_partition import follow
from worlds import THREE, TRUTH, Pull, grouped, last, play

# -- silent clients
# ---------------------------------------------------------------------------------------------------


def test_follow_goes_with_most_data_of_the_old_group() -> None:
    old, sizes = [[1, 2, 3, 4], [5, 6], [7]], {1: 5, 2: 3, 3: 3, 5: 1}
    assert as_groups(follow([[1], [2, 3], [5]], old, sizes)) == ((1,), (2, 3, 4), (5, 6), (7,))
    assert as_groups(follow([[1], [2], [5]], old, {**sizes, 1: 3})) == (
        (1, 3, 4),
        (2,),
        (5, 6),
        (7,),
    )
    assert as_groups(follow([], old, sizes)) == as_groups(old)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_follow_is_a_partition_that_keeps_the_parts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = rng.permutation(12).tolist()
    labels, new, heard = rng.integers(4, size=12), rng.integers(3, size=12), rng.random(12) < 0.6
    old = [[c for c, g in zip(clients, labels, strict=True) if g == j] for j in range(4)]
    parts = [
        p
        for p in (
            [c for c, g, h in zip(clients, new, heard, strict=True) if h and g == j]
            for j in range(3)
        )
        if p
    ]
    result = follow(parts, old, dict.fromkeys(clients, 1))
    assert sorted(c for group in result for c in group) == sorted(clients)
    assert [group[: len(part)] for group, part in zip(result, parts, strict=False)] == parts


def test_a_silent_client_goes_with_its_group_and_keeps_its_weight() -> None:
    world = grouped(THREE, noise=0.0, examples=SOME)
    silent = lambda e, c: c == 40 and e >= 2  # noqa: E731
    *_, before, end = play(HCCT(**PAPER), world, 6, silent=silent)
    assert end.groups == TRUTH
    assert end.assignment.row[40] == end.assignment.row[2]
    assert not torch.equal(
        end.assignment.models[end.assignment.row[40]],
        before.assignment.models[before.assignment.row[40]],
    )


def test_a_group_that_is_silent_stays_as_it_is() -> None:
    gone = {3, 5, 50, 51}
    *_, before, end = play(
        HCCT(**PAPER), grouped(THREE), 5, silent=lambda e, c: e >= 3 and c in gone
    )
    assert end.groups == TRUTH
    for c in gone:
        assert torch.equal(
            end.assignment.models[end.assignment.row[c]],
            before.assignment.models[before.assignment.row[c]],
        )


def test_an_epoch_without_answers_changes_nothing() -> None:
    *_, before, end = play(HCCT(), grouped(THREE), 4, silent=lambda e, c: e == 3)
    assert end.notes == ()
    assert torch.equal(before.assignment.models, end.assignment.models)
    assert before.state.next == end.state.next


def test_remembered_cosines_place_those_who_are_silent() -> None:
    # Two of each group are silent in every epoch, other ones each time: the definition would see
    # halves of groups.
    silent = lambda e, c: (c + e) % 2 == 0 and e > 0  # noqa: E731
    for seed in range(3):
        history = list(play(HCCT(), grouped(THREE, seed=seed), 40, silent=silent))
        assert all(p.groups == TRUTH for p in history[1:])


# -- one shot
# ---------------------------------------------------------------------------------------------------------


def test_one_shot_asks_everyone_once_and_never_needs_more_than_means() -> None:
    first, *later = play(HCCT(one_shot=True, fraction=0.5), grouped(THREE), 6)
    assert len(first.plan.tasks) == 12
    assert {len(p.plan.tasks) for p in later} == {6}
    assert {p.groups for p in later} == {TRUTH}
    assert {p.plan.need for p in later} == {"mean"}
    assert all(not p.notes for p in later)


def test_one_shot_places_those_silent_in_it_when_they_are_heard() -> None:
    late = (17, 19)
    history = list(
        play(HCCT(one_shot=True), grouped(THREE), 7, silent=lambda e, c: c in late and e < 3)
    )
    assert history[0].state.waiting == late
    assert {g for g in history[1].groups if set(g) & set(late)} == {(17,), (19,)}
    for c in late:  # never heard: the first model
        assert torch.equal(
            history[2].assignment.models[history[2].assignment.row[c]],
            grouped(THREE).federation().draw(0),
        )
    assert history[-1].groups == TRUTH
    assert [n.kind for n in history[3].notes] == ["join", "join", "partition"]
    assert {p.plan.need for p in history[4:]} == {"mean"}


# -- clients that come and go
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        (HCCT(), ["join", "partition"]),
        (HCCT(newcomers="partition"), ["partition"]),
        (HCCT(one_shot=True, newcomers="partition"), ["join", "partition"]),
    ],
)
def test_a_newcomer_trains_alone_from_the_first_model_and_finds_its_group(
    method: HCCT, kinds: list[str]
) -> None:
    world = grouped(THREE)
    before = Pull(targets={c: t for c, t in world.targets.items() if c != 31}, noise=world.noise)
    state = method.admit(last(method, before, 2).state, (31,))
    assert (31,) in method.assignment(state).groups
    assert torch.equal(state.models[state.row[31]], world.federation().draw(0))
    alone, together = play(method, world, 2, state=state, first=2)
    assert torch.equal(
        alone.plan.models[alone.plan.tasks[31].offered[0]], world.federation().draw(0)
    )
    assert (31,) in alone.groups
    assert [n.kind for n in alone.notes] == kinds
    assert kinds[0] != "join" or "client 31 joins the group of client 2," in alone.notes[0].text
    assert together.groups == TRUTH


@pytest.mark.parametrize("method", [HCCT(), HCCT(newcomers="partition"), HCCT(one_shot=True)])
def test_a_newcomer_finds_its_group_when_the_others_are_at_their_optimum(method: HCCT) -> None:
    world = grouped(THREE)
    before = Pull(
        targets={c: t for c, t in world.targets.items() if c not in (31, 99)}, noise=world.noise
    )
    state = method.admit(last(method, before, 40).state, (31, 99))
    alone, *_, end = play(method, world, 4, state=state, first=40)
    assert alone.plan.need == "rows"
    assert {alone.plan.tasks[c].lr_round for c in (31, 99)} == {0}
    assert end.groups == TRUTH


def test_a_newcomer_that_nobody_gains_by_stays_alone() -> None:
    world = directions((1.0, 0.0), (1.0, 0.1), (-1.0, 0.0), examples=(50, 50, 50))
    two = directions((1.0, 0.0), (1.0, 0.1), examples=(50, 50))
    for method in (HCCT(), HCCT(one_shot=True)):
        state = method.admit(last(method, two, 2).state, (30,))
        alone, after = play(method, world, 2, state=state, first=2)
        assert "stays alone" in alone.notes[0].text
        assert alone.notes[0].numbers["gain"] < 0
        assert after.groups == ((10, 20), (30,))


@pytest.mark.parametrize("one_shot", [True, False])
def test_newcomers_make_no_more_groups_than_were_asked_for(one_shot: bool) -> None:
    world, method = (
        grouped(THREE),
        HCCT(groups=3, tradeoff=0.0, one_shot=one_shot),
    )  # no price, so nobody gains
    founders = Pull(
        targets={c: t for c, t in world.targets.items() if c not in (31, 99)}, noise=world.noise
    )
    state = method.admit(last(method, founders, 3).state, (31, 99))
    first, after = play(method, world, 2, state=state, first=3)
    assert after.groups == TRUTH
    assert "as many as asked for" in first.notes[0].text
    assert first.notes[0].numbers["gain"] < 0


def test_those_who_leave_are_in_no_group_and_come_back_as_new() -> None:
    method, world = HCCT(), grouped(THREE)
    state = method.retire(last(method, world, 3).state, (2, 17))
    assert sorted(method.assignment(state).row) == sorted(set(world.clients) - {2, 17})
    assert (31, 40) in method.assignment(state).groups
    state = method.admit(state, (2, 17))
    assert {(2,), (17,)} <= set(method.assignment(state).groups)
    assert last(method, world, 2, state=state, first=3).groups == TRUTH


def test_everyone_may_leave_and_come_back() -> None:
    for method in (HCCT(), HCCT(one_shot=True), HCCT(tradeoff=math.inf)):
        world = grouped(THREE)
        state = method.retire(last(method, world, 3).state, world.clients)
        plan = method.plan(state, cohort(world))
        assert not plan.tasks
        state = method.step(state, Replies(clients=(), examples=np.zeros(0, dtype=np.int64)))
        end = last(method, world, 2, state=method.admit(state, world.clients), first=3)
        assert end.groups == (TRUTH if method.tradeoff < math.inf else (world.clients,))
