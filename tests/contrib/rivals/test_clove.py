"""CLoVE: groups and their models from the definitions; stable groups; its reduction; a world in which IFCA collapses."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.contrib.rivals import CLoVE
from coterie.contrib.rivals.clove import CLoVEState, estimated
from coterie.contrib.rivals.clove import grouped as grouped_by_losses
from coterie.core import Client, Cohort, Plan
from coterie.data.scenario import SCENARIOS
from coterie.engines.rounds import rounds
from coterie.methods import IFCA, FedAvg
from worlds import THREE, Pull, grouped, last


def silent_never(exchange: int, client: Client) -> bool:
    return False


def steps(
    method: CLoVE, world: Pull, count: int, state: CLoVEState | None = None
) -> list[tuple[Plan, CLoVEState]]:
    """The plan of each exchange, and the state after it."""
    state, found = state or method.init(world.federation()), []
    for exchange in range(count):
        plan = method.plan(state, Cohort(present=world.clients, exchange=exchange, seed=0))
        state = method.step(
            state, replace(world.replies(plan, exchange, silent_never), ends_round=plan.ends_round)
        )
        found.append((plan, state))
    return found


# -- groups by losses, and their models
# --------------------------------------------------------------------------------------

LOSSES = arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.integers(1, 3)),
    elements=st.integers(0, 40).map(lambda i: i / 8),
)


@pytest.mark.slow
@given(LOSSES)
def test_groups_have_the_models_that_cost_least(losses: np.ndarray) -> None:
    found = grouped_by_losses(losses)
    groups = [[i for i, at in enumerate(found) if at == model] for model in sorted(set(found))]
    k = losses.shape[1]

    def cost(models: tuple[int, ...]) -> float:
        return sum(losses[group, model].sum() for group, model in zip(groups, models, strict=True))

    least = min(cost(models) for models in permutations(range(k), len(groups)))
    assert cost(tuple(sorted(set(found)))) == pytest.approx(least)
    assert len(groups) == min(k, len(np.unique(losses, axis=0)))


@pytest.mark.slow
@given(LOSSES)
def test_groups_are_those_of_k_means(losses: np.ndarray) -> None:
    """No other partition into as many groups has a smaller sum of squares."""
    found = np.array(grouped_by_losses(losses))

    def within(labels: np.ndarray) -> float:
        return sum(
            ((losses[labels == g] - losses[labels == g].mean(0)) ** 2).sum()
            for g in set(labels.tolist())
        )

    if len(losses) <= 5:
        least = min(within(np.array(way)) for way in np.ndindex(*(losses.shape[1],) * len(losses)))
        assert within(found) == pytest.approx(least, abs=1e-9)


def test_clients_whose_least_losses_agree_are_separated_by_all_losses() -> None:
    """The paper's figure: all clients prefer model 0, so IFCA has one group."""
    losses = np.array([[1.0, 5.1], [1.1, 5.0], [2.1, 3.5], [2.0, 3.6]])
    assert losses.argmin(axis=1).tolist() == [0, 0, 0, 0]
    assert grouped_by_losses(losses) == [0, 0, 1, 1]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_number_of_groups_is_estimated(k: int) -> None:
    rng = np.random.default_rng(k)
    centres = 10 * np.eye(6)[:k]
    losses = np.repeat(centres, 5, axis=0) + 0.1 * rng.standard_normal((5 * k, 6))
    assert (
        estimated(losses, 6) == k if k > 1 else estimated(losses, 6) in range(1, 7)
    )  # a silhouette cannot tell one group
    assert len(set(grouped_by_losses(losses, estimate=True))) == estimated(losses, 6)
    assert estimated(losses[:2], 6) == 1


# -- rounds
# ------------------------------------------------------------------------------------------------------------------


def test_a_round_measures_and_then_trains() -> None:
    world = grouped(THREE)
    done = steps(CLoVE(models=3, first="losses"), world, 4)
    for (measure, grouped_state), (train, after) in zip(done[::2], done[1::2], strict=True):
        assert not measure.ends_round
        assert train.ends_round
        assert {task.offered for task in measure.tasks.values()} == {(0, 1, 2)}
        assert {task.epochs for task in measure.tasks.values()} == {0}
        assert {c: task.offered for c, task in train.tasks.items()} == {
            c: (at,) for c, at in grouped_state.row.items()
        }
        assert after.row == grouped_state.row
    assert [state.round for _, state in done] == [0, 1, 1, 2]


def test_a_model_is_the_mean_of_what_its_clients_trained() -> None:
    world = replace(grouped(THREE), noise=0.0, rate=0.5)
    (_, before), (_, after) = steps(CLoVE(models=3, first="losses"), world, 2)
    for row in set(after.row.values()):
        targets = torch.stack([world.targets[c] for c, at in after.row.items() if at == row])
        torch.testing.assert_close(after.models[row], ((before.models[row] + targets) / 2).mean(0))


def test_the_first_groups_are_random_and_none_is_empty() -> None:
    world = grouped(THREE)
    seen = set()
    for seed in range(5):
        method = CLoVE(models=3)
        plan = method.plan(
            method.init(world.federation()), Cohort(present=world.clients, exchange=0, seed=seed)
        )
        rows = [plan.tasks[c].offered[0] for c in world.clients]
        assert plan.ends_round
        assert set(rows) == {0, 1, 2}
        seen.add(tuple(rows))
    assert len(seen) > 1
    few = method.plan(
        method.init(world.federation()), Cohort(present=world.clients[:2], exchange=0, seed=0)
    )
    assert len({task.offered for task in few.tasks.values()}) == 2


def test_groups_of_equal_clients_are_found_and_then_no_client_measures() -> None:
    world = grouped(THREE)
    done = steps(CLoVE(models=3, first="losses", patience=3), world, 10)
    final = next(i for i, (_, state) in enumerate(done) if state.stable)
    measured = [not plan.ends_round for plan, _ in done]
    assert final == 4  # the third grouping that leaves all their models
    assert measured == [True, False] * 3 + [False] * 4
    groups = {frozenset(c for c, at in done[-1][1].row.items() if at == row) for row in range(3)}
    assert groups == set(map(frozenset, THREE))
    never = steps(CLoVE(models=3, first="losses", patience=None), world, 10)
    assert [not plan.ends_round for plan, _ in never] == [True, False] * 5


def test_a_client_without_finite_losses_is_not_grouped() -> None:
    world, method = grouped(THREE), CLoVE(models=3, first="losses")
    state = method.init(world.federation())
    plan = method.plan(state, Cohort(present=world.clients, exchange=0, seed=0))
    replies = world.replies(plan, 0, silent_never)
    losses = (tuple([float("nan")] * 3), (0.1, float("inf"), 0.2), *replies.losses[2:])
    after = method.step(state, replace(replies, losses=losses, ends_round=False))
    lost = replies.clients[:2]
    assert not {*lost} & {*after.row}
    assert len(after.row) == len(world.clients) - 2
    train = method.plan(after, Cohort(present=world.clients, exchange=1, seed=0))
    assert {train.tasks[c].offered for c in lost} == {
        (0, 1, 2)
    }  # it trains the model of its least loss
    nobody = method.step(
        state,
        replace(
            replies, losses=tuple([(float("nan"),) * 3] * len(replies.clients)), ends_round=False
        ),
    )
    assert not nobody.row
    assert method.assignment(nobody).groups == (world.clients,)


def test_a_loss_far_above_all_others_does_not_take_a_model() -> None:
    world, method = grouped(THREE), CLoVE(models=3, first="losses")
    state = method.init(world.federation())
    plan = method.plan(state, Cohort(present=world.clients, exchange=0, seed=0))
    replies = world.replies(plan, 0, silent_never)
    losses = ((3e38,) * 3, *replies.losses[1:])
    after = method.step(state, replace(replies, losses=losses, ends_round=False))
    honest = {at for c, at in after.row.items() if c != replies.clients[0]}
    assert len(honest) > 1


# -- reductions, and whole runs
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["random", "losses"])
def test_one_model_is_fedavg(first: str) -> None:
    world = replace(SCENARIOS["digits/label-permutation"], clients=6, groups=2).build(0)
    ours, theirs = (
        [one.assignment.models[0] for one in rounds(method, world, rounds=4, workers=1)]
        for method in (CLoVE(models=1, first=first), FedAvg(weighting="data"))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_groups_are_found_where_ifca_has_one() -> None:
    """From equal first models all clients of IFCA choose the first for ever; here the random first round helps."""
    world = replace(SCENARIOS["digits/label-permutation"], clients=20, groups=4).build(0)
    *_, ours = rounds(CLoVE(), world, rounds=12, workers=1)
    *_, theirs = rounds(IFCA(initial="same"), world, rounds=12, workers=1)
    assert ours.assignment.groups == world.truth
    assert len(theirs.assignment.groups) == 1


# -- clients that join and leave
# ---------------------------------------------------------------------------------------------


def test_a_newcomer_after_the_last_grouping_gets_the_model_of_its_least_loss() -> None:
    world, method = grouped(THREE), CLoVE(models=3, first="losses", patience=1)
    away = world.clients[0]
    before = method.retire(last(method, world, 3).state, (away,))
    assert away not in {*before.clients, *before.row, *before.steady}
    state = method.admit(before, (away,))
    assert state.stable
    (plan, after), *_ = steps(method, world, 1, state)
    assert plan.tasks[away].offered == (0, 1, 2)
    assert plan.ends_round
    group = next(group for group in THREE if away in group)
    assert {after.row[c] for c in group} == {after.row[away]}


def test_a_client_that_leaves_between_measuring_and_training_is_not_asked() -> None:
    world, method = grouped(THREE), CLoVE(models=3, first="losses")
    (_, state), *_ = steps(method, world, 1)
    away, other = world.clients[:2]
    after = method.retire(state, (away,))
    present = tuple(client for client in world.clients if client not in (away, other))
    plan = method.plan(after, Cohort(present=present, exchange=1, seed=0))
    assert set(plan.tasks) == set(present)
