"""FLSC: IFCA with overlap. Choices and means from the definition, its limit, and what clients are served."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import Replies, Training
from coterie.methods import FLSC, IFCA, FedAvg
from coterie.settings import SettingError
from scripted import play as run
from small import world as small_world
from worlds import THREE, TRUTH, grouped, last, play

SIZES = {2: 5, 17: 1, 3: 7, 99: 2}


@pytest.mark.parametrize(
    "how", [{"models": 4}, {"models": 3, "initial": "kmeans++", "restarts": 2}, {"fraction": 0.4}]
)
def test_without_overlap_it_is_ifca_weighted_by_data(how: dict[str, Any]) -> None:
    world = grouped(THREE, examples=SIZES)
    silence = np.random.default_rng(0).random((30, 100)) < 0.2
    ways = [
        play(method, world, 30, silent=lambda e, c: bool(silence[e, c]))
        for method in (FLSC(overlap=1, **how), IFCA(weighting="data", **how))
    ]
    for ours, theirs in zip(*ways, strict=True):
        assert torch.equal(ours.state.starts[0].models, theirs.state.starts[0].models)
        assert ours.groups == theirs.groups
        for client in world.clients:
            served = (p.assignment.models[p.assignment.row[client]] for p in (ours, theirs))
            assert torch.equal(*served)


def test_without_overlap_it_is_ifca_through_the_engine() -> None:
    tried = small_world(sizes=(20, 3, 50, 9), training=Training(lr=0.2, lr_decay=0.5, batch=8))
    how: dict[str, Any] = {"models": 3, "initial": "kmeans++"}
    ways = (run(FLSC(overlap=1, **how), tried, 3), run(IFCA(weighting="data", **how), tried, 3))
    for ours, theirs in zip(*ways, strict=True):
        assert (ours.scores, ours.bytes_up, ours.bytes_down) == (
            theirs.scores,
            theirs.bytes_up,
            theirs.bytes_down,
        )
        assert ours.assignment.groups == theirs.assignment.groups


def test_one_model_is_fedavg() -> None:
    world = grouped(THREE, examples=SIZES)
    ways = (play(FLSC(models=1, overlap=1), world, 8), play(FedAvg(), world, 8))
    for ours, theirs in zip(*ways, strict=True):
        assert torch.equal(ours.assignment.models, theirs.assignment.models)


# -- a round
# ----------------------------------------------------------------------------------------------------------


@given(data=st.data(), n=st.integers(1, 8), k=st.integers(2, 5), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_models_are_means_of_trained_models(data: st.DataObject, n: int, k: int, seed: int) -> None:
    """θ_j = Σ N_i w_i / Σ N_i over i with j in J_i, with w_i the mean of the chosen models and the update."""
    overlap = data.draw(st.integers(1, k - 1))
    rng = np.random.default_rng(seed)
    models, updates = (
        torch.tensor(rng.standard_normal((m, 6)), dtype=torch.float32) for m in (k, n)
    )
    sizes = rng.integers(1, 9, n)
    chosen = tuple(tuple(int(r) for r in rng.permutation(k)[:overlap]) for _ in range(n))
    trained = [models[list(rows)].mean(0) + updates[i] for i, rows in enumerate(chosen)]
    means, heard, expected = torch.zeros(k, 6), np.zeros(k, int), models.clone()
    for row in range(k):
        members = [i for i in range(n) if row in chosen[i]]
        heard[row] = len(members)
        if members:
            share = sizes[members] / sizes[members].sum()
            means[row] = sum(float(s) * updates[i] for s, i in zip(share, members, strict=True))  # type: ignore[assignment]
            expected[row] = sum(float(s) * trained[i] for s, i in zip(share, members, strict=True))  # type: ignore[assignment]
    replies = Replies(
        clients=tuple(range(n)), examples=sizes, chosen=chosen, means=means, mean_counts=heard
    )
    found = FLSC(models=k, overlap=overlap).aggregate(models, replies)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for row in np.flatnonzero(heard == 0):
        assert torch.equal(found[row], models[row])


def test_a_round_from_the_definition() -> None:
    world = grouped(THREE, examples=SIZES, noise=0.0)
    method = FLSC(models=5, overlap=2, initial="kmeans++")
    *_, before, after = play(method, world, 14)
    models = before.state.starts[0].models
    for client in world.clients:
        losses = ((models - world.targets[client]) ** 2).sum(1)
        assert after.state.starts[0].chosen[client] == tuple(
            sorted(range(5), key=lambda row: float(losses[row]))[:2]
        )
    for row in range(5):
        parts = [
            (SIZES.get(c, 1), start + world.rate * (world.targets[c] - start))
            for c, rows in after.state.starts[0].chosen.items()
            if row in rows
            for start in [models[list(rows)].mean(0)]
        ]
        whole = sum(size for size, _ in parts)
        wanted = sum(size / whole * trained for size, trained in parts) if parts else models[row]
        torch.testing.assert_close(after.state.starts[0].models[row], wanted, rtol=1e-4, atol=1e-5)


def test_clients_are_served_the_mean_of_their_models() -> None:
    world = grouped(THREE)
    end = last(FLSC(models=6, overlap=3), world, 5)
    start, served = end.state.starts[0], end.assignment
    for client in world.clients:
        mean = start.models[sorted(start.chosen[client])].mean(0)
        assert torch.equal(served.models[served.row[client]], mean)
    assert len(served.models) == len({frozenset(rows) for rows in start.chosen.values()})
    first = {c: rows[0] for c, rows in start.chosen.items()}
    for group in end.groups:
        assert len({first[c] for c in group}) == 1
    assert len(end.groups) == len(set(first.values()))


def test_models_that_the_same_clients_take_are_one() -> None:
    """Why ``overlap`` models per group are needed, and ``overlap == models`` is refused."""
    end = last(FLSC(models=6, initial="kmeans++"), grouped(THREE), 30)
    start = end.state.starts[0]
    takers = {row: {c for c, rows in start.chosen.items() if row in rows} for row in range(6)}
    pairs = [(a, b) for a, b in combinations(range(6), 2) if takers[a] and takers[a] == takers[b]]
    assert pairs
    for a, b in pairs:
        torch.testing.assert_close(start.models[a], start.models[b])
    assert end.groups == TRUTH


def test_the_first_choice_may_be_random() -> None:
    world, method = grouped(THREE), FLSC(models=4, first="random", initial="same")
    first, second = play(method, world, 2)
    offered = {task.offered for task in first.plan.tasks.values()}
    assert all(
        len(set(rows)) == 2 and task.measure is None
        for rows in offered
        for task in first.plan.tasks.values()
    )
    assert len(offered) > 3
    assert dict(zip(first.replies.clients, first.replies.chosen, strict=True)) == {
        c: task.offered for c, task in first.plan.tasks.items()
    }
    assert all(
        task.offered == (0, 1, 2, 3) and task.measure == "train"
        for task in second.plan.tasks.values()
    )
    assert "loss" not in first.notes[0].values
    again = next(play(method, world, 1))
    assert first.plan.tasks == again.plan.tasks
    assert first.plan.tasks != next(play(method, world, 1, seed=1)).plan.tasks


def test_random_sets_are_all_as_likely() -> None:
    world, counts = grouped(THREE), dict.fromkeys(combinations(range(4), 2), 0)
    for seed in range(100):
        for task in next(
            play(FLSC(models=4, first="random"), world, 1, seed=seed)
        ).plan.tasks.values():
            counts[tuple(sorted(task.offered))] += 1  # type: ignore[index]
    assert sum(counts.values()) == 1200
    assert all(140 < count < 260 for count in counts.values())


def test_one_draw_for_all_models_and_choices_by_loss_gathers_everyone() -> None:
    everyone = tuple(sorted(c for group in THREE for c in group))
    for played in play(FLSC(initial="same"), grouped(THREE), 6):
        assert played.groups == (everyone,)
        assert set(played.state.starts[0].chosen.values()) <= {(0, 1), (1, 0)}
    assert len(last(FLSC(initial="same", first="random"), grouped(THREE), 6).groups) > 1


@pytest.mark.parametrize(
    "wrong", [{"models": 3, "overlap": 3}, {"models": 2, "overlap": 5}, {"models": 1, "overlap": 2}]
)
def test_overlap_must_leave_a_choice(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        SettingError,
        match=r"FLSC\.overlap must be less than the . models, got .*did you mean fedavg",
    ):
        FLSC(**wrong)
