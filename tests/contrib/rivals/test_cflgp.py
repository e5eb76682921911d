"""CFL-GP: profiles, groups and models from their definitions; its reductions; groups of digits after one round."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.contrib.rivals import CFLGP
from coterie.contrib.rivals.cflgp import PROFILE, TRAIN, CFLGPState, clusters, matched
from coterie.core import Client, Cohort, Plan
from coterie.data.scenario import SCENARIOS
from coterie.engines.rounds import rounds
from coterie.methods import FedAvg
from coterie.randomness import generator
from worlds import THREE, Pull, grouped, last


def silent_never(exchange: int, client: Client) -> bool:
    return False


def steps(method: CFLGP, world: Pull, count: int) -> list[tuple[Plan, CFLGPState]]:
    """The plan of each round, and the state after it."""
    state, found = method.init(world.federation()), []
    for exchange in range(count):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=0))
        state = method.step(state, world.replies(plan, exchange, silent_never))
        found.append((plan, state))
    return found


# -- one round by hand
# --------------------------------------------------------------------------------------------------------


def test_models_take_turns_as_the_criterion() -> None:
    done = steps(CFLGP(models=2, period=2, until=6), grouped(THREE), 8)
    asked = [plan.parts[PROFILE].models[0].tolist() if plan.parts else None for plan, _ in done]
    before = [CFLGP(models=2).init(grouped(THREE).federation()), *(state for _, state in done)]
    for round, criterion in enumerate([0, None, 1, None, 0, None, None, None]):
        assert asked[round] == (
            None if criterion is None else before[round].models[criterion].tolist()
        )
    # Who has the criterion as its own model trains once.
    third, state = done[2][0], done[1][1]
    assert set(third.parts[TRAIN].tasks) == {c for c, row in state.row.items() if row != 1}
    assert set(third.parts[PROFILE].tasks) == set(grouped(THREE).clients)


def test_a_profile_is_the_mean_of_a_clients_updates_from_each_model() -> None:
    world = replace(grouped(THREE), noise=0.1)
    method, sums = (
        CFLGP(models=2, period=1, until=9),
        dict[tuple[Client, int], list[torch.Tensor]](),
    )
    state = method.init(world.federation())
    for exchange, (plan, after) in enumerate(steps(method, world, 5)):
        replies = world.replies(plan, exchange, silent_never).parts[PROFILE]
        for client, update in zip(replies.clients, replies.all_updates, strict=True):
            sums.setdefault((client, exchange % 2), []).append(update)
        state = after
    assert state.counts.tolist() == [[3, 2]] * len(world.clients)
    for i, client in enumerate(state.known):
        for model in (0, 1):
            torch.testing.assert_close(
                state.profiles[i, model], torch.stack(sums[client, model]).mean(0)
            )


def test_a_model_is_the_mean_of_what_its_clients_trained() -> None:
    world = replace(grouped(THREE), noise=0.0, rate=0.5)
    (plan, first), (_, second) = steps(CFLGP(models=3, period=2), world, 2)
    trained = (
        plan.parts[PROFILE].models[0] + torch.stack([world.targets[c] for c in world.clients])
    ) / 2
    for row in set(first.row.values()):
        members = [world.clients.index(c) for c, at in first.row.items() if at == row]
        torch.testing.assert_close(first.models[row], trained[members].mean(0))
        targets = torch.stack([world.targets[world.clients[i]] for i in members])
        torch.testing.assert_close(second.models[row], ((first.models[row] + targets) / 2).mean(0))
    assert second.row == first.row


# -- groups
# -------------------------------------------------------------------------------------------------------------------


def test_groups_of_equal_clients_are_found_after_one_round() -> None:
    world = grouped(THREE)
    state = last(CFLGP(models=3), world, 1).state
    assert {frozenset(c for c, at in state.row.items() if at == row) for row in range(3)} == set(
        map(frozenset, THREE)
    )


def test_singular_directions_are_those_of_the_matrix() -> None:
    rows = torch.randn(8, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, values, _ = np.linalg.svd(
        rows.numpy().T, full_matrices=False
    )  # columns are profiles, as in the paper
    points = (left[:, :3].T @ rows.numpy().T).T
    labels, singular = clusters(rows, 3)
    np.testing.assert_allclose(singular, values[:3], rtol=1e-9)

    def within(groups: np.ndarray) -> float:
        return sum(
            ((points[groups == g] - points[groups == g].mean(0)) ** 2).sum()
            for g in set(groups.tolist())
        )

    assert within(labels) == pytest.approx(
        min(within(np.array(way)) for way in np.ndindex(*(3,) * 8))
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3)), min_size=1, max_size=12))
def test_numbers_of_groups_are_those_that_most_clients_keep(pairs: list[tuple[int, int]]) -> None:
    new, old = zip(*pairs, strict=True)
    found = matched(new, old, 4)
    kept = max(sum(way[a] == b for a, b in pairs) for way in permutations(range(4)))
    assert sum(a == b for a, b in zip(found, old, strict=True)) == kept
    assert len(set(zip(new, found, strict=True))) == len(set(new)) == len(set(found))


def test_clients_that_are_all_the_same_are_one_group() -> None:
    for row in (torch.ones(8), torch.randn(300, generator=generator(1)), torch.zeros(8)):
        assert set(clusters(row.expand(5, -1), 3)[0]) == {0}
    assert sorted(clusters(torch.eye(2, 8), 3)[0]) == [0, 1]  # fewer clients than groups


def test_one_model_is_fedavg() -> None:
    world = replace(SCENARIOS["digits/label-permutation"], clients=6, groups=2).build(0)
    ours, theirs = (
        [one.assignment.models[0] for one in rounds(method, world, rounds=4, workers=1)]
        for method in (CFLGP(models=1), FedAvg(weighting="uniform"))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layer", ["all", "last"])
def test_groups_of_digits_are_right_after_the_first_round(layer: str) -> None:
    world = replace(SCENARIOS["digits/label-permutation"], clients=20, groups=4).build(0)
    done = list(rounds(CFLGP(layer=layer), world, rounds=3, workers=1))
    assert all(one.assignment.groups == world.truth for one in done)
    assert [one.exchanges for one in done] == [1, 1, 1]


# -- clients that join and leave
# ----------------------------------------------------------------------------------------------


def test_a_newcomer_has_the_largest_groups_model_until_it_is_grouped() -> None:
    world, method = grouped(THREE), CFLGP(models=3, period=2)
    away = world.clients[0]
    before = method.retire(last(method, world, 1).state, (away,))
    assert away not in {*before.clients, *before.known, *before.row}
    state = method.admit(before, (away,))
    rows = list(state.row.values())
    assert method.assignment(state).row[away] == max(sorted(set(rows)), key=rows.count)
    end = last(
        method, world, 2, state=state, first=1
    ).state  # the third round is a clustering round
    group = next(group for group in THREE if away in group)
    assert {end.row[c] for c in group} == {end.row[away]}
