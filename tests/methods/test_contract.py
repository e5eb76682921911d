"""The contract, held against every method: a new method is a file and a row in tests/method_examples.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import STATES, Cohort, Method, Plan, Replies, as_groups
from coterie.methods import METHODS
from coterie.records.codec import decode, encode
from coterie.settings import build, documented, plain
from method_examples import DECIDES, EXAMPLES, FINDS_GROUPS, check_assignment
from worlds import THREE, TRUTH, Pull, grouped, last, play


@pytest.fixture(params=EXAMPLES, name="method")
def _method(request: pytest.FixtureRequest) -> Any:
    return EXAMPLES[request.param]


@pytest.fixture
def world() -> Pull:
    return grouped(THREE, examples={2: 5, 17: 1, 3: 7, 99: 2}, buffers=2)


def same(a: Any, b: Any) -> bool:
    """Equal states, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def test_every_method_has_an_example_here() -> None:
    assert {type(m).name for m in EXAMPLES.values()} == set(METHODS)


def test_follows_the_protocol_and_explains_its_settings(method: Any) -> None:
    assert isinstance(method, Method)
    assert dataclasses.is_dataclass(method)
    assert type(method).__doc__
    assert len(documented(type(method))) == len(dataclasses.fields(method))
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1


def test_settings_survive_a_round_trip(method: Any) -> None:
    assert build(type(method), plain(method)) == method


def test_every_exchange_leaves_a_partition_and_a_model_for_everyone(
    method: Any, world: Pull
) -> None:
    for played in play(method, world, 25):
        check_assignment(played.assignment, world.clients)
        assert set(played.plan.tasks) <= set(world.clients)
        assert all(
            0 <= r < len(played.plan.models) for t in played.plan.tasks.values() for r in t.offered
        )
        assert all(note.text and set(note.clients) <= set(world.clients) for note in played.notes)
        for note in played.notes:
            if note.parts:
                members = [c for part in note.parts for c in part]
                assert len(set(members)) == len(members)
                assert set(members) <= set(note.clients)


def test_the_same_inputs_give_the_same_state_and_touch_nothing(method: Any, world: Pull) -> None:
    once, twice = (last(method, world, 15).state for _ in range(2))
    assert same(once, twice)
    plan = method.plan(once, Cohort(present=world.clients, exchange=15, seed=0))
    replies = world.replies(plan, 15, lambda *_: False)
    method.step(once, replies)
    method.assignment(once)
    assert same(once, twice)


def test_a_state_does_not_hold_on_to_the_updates_it_was_shown(method: Any, world: Pull) -> None:
    state = method.init(world.federation())
    for exchange in range(12):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=0))
        replies = world.replies(plan, exchange, lambda *_: False)
        state = method.step(state, replies)
        if replies.updates is not None:
            replies.updates.fill_(torch.nan)  # the engine's buffer is used again
        check_assignment(method.assignment(state), world.clients)


def test_a_stored_state_goes_on_as_if_nothing_had_happened(method: Any, world: Pull) -> None:
    halfway = last(method, world, 9).state
    blobs: dict[str, bytes] = {}
    restored = decode(encode(halfway, lambda data: _put(blobs, data)), blobs.__getitem__)
    assert same(halfway, restored)
    worlds = [
        dataclasses.replace(world, sketches=dict(world.sketches)) for _ in range(2)
    ]  # each with what clients have kept so far
    on, again = (
        last(method, w, 9, state=s, first=9).state
        for w, s in zip(worlds, (halfway, restored), strict=True)
    )
    assert same(on, again)
    assert type(halfway) in STATES.values()


def _put(blobs: dict[str, bytes], data: bytes) -> str:
    return blobs.setdefault(str(len(blobs)), data) and str(len(blobs) - 1)


def test_silent_clients_keep_the_partition_valid(method: Any, world: Pull) -> None:
    rng = np.random.default_rng(1)
    silence = rng.random((40, 100)) < 0.3
    for played in play(method, world, 40, silent=lambda e, c: bool(silence[e, c])):
        check_assignment(played.assignment, world.clients)


@pytest.mark.parametrize("speaks", [None, 8])
def test_nobody_or_one_client_answers(method: Any, world: Pull, speaks: int | None) -> None:
    end = last(method, world, 6, silent=lambda e, c: c != speaks)
    check_assignment(end.assignment, world.clients)
    if speaks is None:
        assert torch.equal(end.assignment.models[0], world.federation().draw(0))


def test_one_client_is_a_federation(method: Any) -> None:
    if getattr(method, "groups", None):
        method = dataclasses.replace(method, groups=1)
    end = last(method, grouped([[7]]), 12)
    assert end.groups == ((7,),)


@pytest.mark.parametrize("name", FINDS_GROUPS)
def test_finds_the_groups_of_an_easy_world(name: str) -> None:
    for seed in range(3):
        assert last(EXAMPLES[name], grouped(THREE, seed=seed), 60).groups == TRUTH


ASKS_ALL = [name for name in FINDS_GROUPS if EXAMPLES[name].fraction == 1]


@pytest.mark.parametrize("name", DECIDES)
def test_leaves_one_congruent_group_whole(name: str) -> None:
    method = EXAMPLES[name]
    everyone = sorted(c for group in THREE for c in group)
    for seed in range(3):
        assert last(method, grouped([everyone], seed=seed), 60).groups == (tuple(everyone),)


@pytest.mark.parametrize("name", ASKS_ALL)  # who is sampled depends on the ids
def test_groups_do_not_depend_on_ids_or_their_order(name: str) -> None:
    # The same targets under other ids, whose order is another: positions that leaked would show.
    world = grouped(THREE, noise=0.0)
    ids = dict(zip(world.clients, (70, 4, 66, 12, 0, 91, 33, 5, 28, 45, 1, 13), strict=True))
    renamed = Pull(targets={ids[c]: t for c, t in world.targets.items()}, noise=0.0)
    there = last(EXAMPLES[name], renamed, 40).groups
    assert there == as_groups(
        [ids[c] for c in group] for group in last(EXAMPLES[name], world, 40).groups
    )


def test_plans_and_replies_are_told_apart_by_type() -> None:
    assert {f.name for f in dataclasses.fields(Plan)} >= {"models", "tasks", "need", "ends_round"}
    assert {f.name for f in dataclasses.fields(Replies)} >= {
        "clients",
        "examples",
        "updates",
        "gram",
        "means",
    }
