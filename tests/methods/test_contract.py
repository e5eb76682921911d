"""The contract, held against every method: a new method is a file and a row in tests/method_examples.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coterie.core import Method, Plan, Replies, as_groups
from coterie.methods import METHODS
from coterie.settings import build, documented, plain
from coterie.testing import LAWS
from method_examples import DECIDES, EXAMPLES, FINDS_GROUPS, of_each_kind, of_each_method
from worlds import THREE, TRUTH, Pull, grouped, last


@pytest.fixture(params=EXAMPLES, name="method")
def _method(request: pytest.FixtureRequest) -> Any:
    return EXAMPLES[request.param]


@pytest.fixture
def world() -> Pull:
    return grouped(THREE, examples={2: 5, 17: 1, 3: 7, 99: 2}, buffers=2)


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


@pytest.mark.parametrize("name", of_each_method(EXAMPLES))
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_keeps_the_law(name: str, law: Any) -> None:
    law(EXAMPLES[name])


@pytest.mark.parametrize("name", of_each_method(EXAMPLES))
def test_one_client_is_a_federation(name: str) -> None:
    method = EXAMPLES[name]
    if getattr(method, "groups", None):
        method = dataclasses.replace(method, groups=1)
    end = last(method, grouped([[7]]), 12)
    assert end.groups == ((7,),)


@pytest.mark.parametrize("name", of_each_kind(FINDS_GROUPS))
def test_finds_the_groups_of_an_easy_world(name: str) -> None:
    for seed in range(3):
        assert last(EXAMPLES[name], grouped(THREE, seed=seed), 60).groups == TRUTH


ASKS_ALL = [name for name in FINDS_GROUPS if EXAMPLES[name].fraction == 1]


@pytest.mark.parametrize("name", of_each_kind(DECIDES))
def test_leaves_one_congruent_group_whole(name: str) -> None:
    method = EXAMPLES[name]
    everyone = sorted(c for group in THREE for c in group)
    for seed in range(3):
        assert last(method, grouped([everyone], seed=seed), 60).groups == (tuple(everyone),)


@pytest.mark.parametrize("name", of_each_kind(ASKS_ALL))  # who is sampled depends on the ids
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
