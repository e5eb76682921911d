"""Split-half from sums: it finds what split-half finds, asks for sums only, and mends what noise has put in a wrong place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attack import influence
from coterie.contrib.private import SplitHalfSums
from coterie.core import Assignment, Groups, as_groups
from coterie.methods import FedAvg
from coterie.settings import SettingError
from method_examples import slow
from worlds import THREE, TRUTH, Played, Pull, grouped, last, play

QUICK = SplitHalfSums(level=1e-3, probe_every=2, review_every=6, smallest=2)
ALL = tuple(sorted(c for group in THREE for c in group))


def at_random(seed: int, share: float) -> Any:
    draws = np.random.default_rng(seed).random((300, 100)) < share
    return lambda exchange, client: bool(draws[exchange, client])


def kinds(history: list[Played]) -> list[str]:
    return [note.kind for played in history for note in played.notes]


def divided(world: Pull, groups: Groups, exchanges: int = 40) -> Any:
    """A state in which the clients of a world are in these groups, whatever was found."""
    state = last(QUICK, world, exchanges).state
    model = state.groups[0].model
    leaves = tuple(
        replace(state.groups[0], node=10 + i, clients=group, model=model)
        for i, group in enumerate(groups)
    )
    watched = {
        leaf.node: replace(next(iter(state.watched.values())), due=state.round + 100)
        for leaf in leaves
    }
    return replace(
        state,
        groups=leaves,
        watched=watched,
        stage="train",
        searches={},
        review=(state.round + 50, 6),
        moves=10**6,
    )


def test_without_probes_it_is_fedavg() -> None:
    world = grouped(THREE, examples={2: 5, 17: 1, 99: 3})
    ours, theirs = (
        last(method, world, 6) for method in (SplitHalfSums(first_probe=1000), FedAvg())
    )
    torch.testing.assert_close(ours.assignment.models, theirs.assignment.models)
    assert ours.groups == theirs.groups == (ALL,)


@pytest.mark.parametrize("seed", range(4))
def test_two_probes_and_one_search_find_the_groups(seed: int) -> None:
    history = list(play(QUICK, grouped(THREE, seed=seed), 40))
    assert history[-1].groups == TRUTH
    assert kinds(history)[:2] == ["hold", "split"]
    split = next(note for played in history for note in played.notes if note.kind == "split")
    assert as_groups(split.parts) == TRUTH
    assert all(one.held for one in split.criteria)


def test_every_plan_asks_for_sums() -> None:
    for played in play(QUICK, grouped(THREE), 60, silent=at_random(3, 0.3)):
        assert played.plan.need == "sums"
        assert played.replies.updates is played.replies.gram is played.replies.halves is None
        assert not any(len(task.offered) > 1 and task.trains for task in played.plan.tasks.values())
        assert set(played.replies.examples.tolist()) <= {1}


@pytest.mark.parametrize("seed", [0, 1, 2, *slow(*range(3, 10))])
def test_clients_that_are_alike_stay_together(seed: int) -> None:
    assert last(QUICK, grouped([ALL], noise=0.5, seed=seed), 80).groups == (ALL,)


def test_no_group_is_smaller_than_the_smallest() -> None:
    """Three groups of four: none can be told from the rest if the smallest has five."""
    history = list(play(replace(QUICK, smallest=5), grouped(THREE), 60))
    assert history[-1].groups == (ALL,)
    assert "but no cut of its members was found" in " ".join(
        note.text for played in history for note in played.notes
    )
    assert last(replace(QUICK, smallest=4), grouped(THREE), 60).groups == TRUTH


def test_a_group_too_small_to_be_divided_does_not_probe() -> None:
    plans = [p.plan for p in play(replace(QUICK, smallest=7), grouped(THREE), 20)]
    assert not any(task.halves for plan in plans for task in plan.tasks.values())


def test_a_client_in_a_wrong_group_moves_where_its_loss_is_lowest() -> None:
    world = grouped(THREE)
    wrong = as_groups([(2, 17, 31), (3, 5, 50, 51, 40), (8, 19, 29, 99)])
    state = divided(world, wrong)
    state = last(QUICK, world, 8, state=state, first=40).state
    assert last(QUICK, world, 1, state=state, first=60).groups == wrong
    history = list(play(QUICK, world, 4, state=replace(state, moves=state.round), first=60))
    assert history[-1].groups == TRUTH
    (note,) = [note for played in history for note in played.notes if note.kind == "move"]
    assert note.clients == (40,)
    assert history[-1].state.moves > state.round


def test_all_stay_where_the_rest_would_be_too_few() -> None:
    world = grouped(THREE)
    wrong = as_groups([(2, 17), (3, 5, 50, 51, 31, 40), (8, 19, 29, 99)])
    state = last(QUICK, world, 8, state=divided(world, wrong), first=40).state
    far = replace(QUICK, smallest=5)
    assert last(far, world, 4, state=replace(state, moves=state.round), first=60).groups == wrong


def test_a_review_merges_groups_that_are_one() -> None:
    world = grouped([ALL], noise=0.3)
    apart = as_groups([ALL[:6], ALL[6:]])
    state = divided(world, apart, 20)
    history = list(play(QUICK, world, 6, state=replace(state, review=(state.round, 6)), first=20))
    assert "merge" in kinds(history)
    assert history[-1].groups == (ALL,)
    kept = list(
        play(
            QUICK,
            grouped(THREE),
            6,
            state=replace(divided(grouped(THREE), TRUTH), review=(0, 6)),
            first=40,
        )
    )
    assert kept[-1].groups == TRUTH
    assert "keep" in kinds(kept)


def test_few_answers_a_round_make_a_probe_last() -> None:
    history = list(play(QUICK, grouped(THREE), 150, silent=at_random(1, 0.7)))
    assert history[-1].groups == TRUTH
    lasting = [
        p.state
        for p in history
        if any(watch.probe is not None for watch in p.state.watched.values())
    ]
    assert lasting
    assert max(
        len(watch.probe.answered) for s in lasting for watch in s.watched.values() if watch.probe
    ) < len(ALL)


def test_who_was_away_walks_to_its_group_and_sends_nothing_meanwhile() -> None:
    away = (17, 51)
    world = grouped(THREE)
    state = last(QUICK, world, 40, silent=lambda exchange, client: client in away).state
    assert set(state.walkers) == set(away)
    served: Assignment = QUICK.assignment(state)
    assert as_groups(served.groups) == as_groups([*(without(group, away) for group in THREE), away])
    history = list(play(QUICK, world, 6, state=state, first=40))
    assert history[-1].groups == TRUTH
    aside = [p.plan.tasks[17] for p in history if 17 in p.plan.tasks and p.plan.tasks[17].halves]
    assert not aside[0].private.sends_update
    assert "join" in kinds(history)


def without(group: tuple[int, ...], gone: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(client for client in group if client not in gone)


def test_lost_sketches_are_made_again() -> None:
    world = grouped(THREE)
    state = last(QUICK, world, 40, silent=lambda exchange, client: client == 17).state
    state = last(QUICK, world, 1, state=state, first=40).state  # it trains on halves
    world.sketches.pop(17)
    assert last(QUICK, world, 8, state=state, first=41).groups == TRUTH


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"sketch": 130},
            "SplitHalfSums.sketch must be >= 4 and <= 1024 and a positive multiple of 4, got 130",
        ),
        ({"smallest": 0}, "SplitHalfSums.smallest must be >= 1, got 0"),
        ({"level": 0.0}, "SplitHalfSums.level must be > 0 and < 1, got 0.0"),
    ],
    ids=str,
)
def test_wrong_settings_get_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as error:
        SplitHalfSums(**settings)
    assert str(error.value) == sentence


# -- hostile clients
# ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["against-mean", "opposite-difference"])
def test_one_hostile_client_of_twenty_without_masks(attack: str) -> None:
    """The server sees single updates and answers then, and limits them."""
    scenario = "digits/label-permutation"
    calm = influence.honest_accuracy("split-half-sums", "none", 20, 0, scenario)
    attacked = influence.honest_accuracy("split-half-sums", attack, 20, 0, scenario)
    protected = influence.honest_accuracy("split-half-sums", attack, 20, 0, scenario, protected=1)
    assert attacked < calm - 0.2  # or the attack would show nothing
    assert protected >= calm - 0.02
