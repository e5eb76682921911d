"""pFedGraph's weights against quadratic programs, its rounds against the published code's steps, and its graph."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import coterie
from coterie.contrib.rivals import PFedGraph
from coterie.contrib.rivals.pfedgraph import graph_weights, nearest_in_simplex
from coterie.core import Training
from coterie.randomness import Purpose, generator
from coterie.settings import SettingError
from coterie.testing import check_method
from coterie.training.learner import Learner
from small import made, mlp, world
from worlds import grouped, last

GROUPS = ((1, 4, 6, 8), (2, 3, 5, 7))


def random_problem(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Shares of examples, and cosines of random directions that lean to one side."""
    draws = np.random.default_rng(seed)
    sizes = draws.integers(1, 50, count)
    rows = draws.normal(size=(count, 4)) + draws.uniform(0, 2)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return sizes / sizes.sum(), rows @ rows.T


@pytest.mark.parametrize("alpha", [0.05, 0.8, 20.0])
def test_weights_solve_the_published_quadratic_program(alpha: float) -> None:
    # As the code has it: α a·a + (d - 2 α p)·a on the simplex, here by a general solver.
    shares, cosines = random_problem(1, 7)
    weights = graph_weights(shares, cosines, alpha)
    for client in range(7):
        linear = -cosines[client] - 2 * alpha * shares
        found = minimize(
            lambda a, linear=linear: alpha * a @ a + linear @ a,
            np.full(7, 1 / 7),
            jac=lambda a, linear=linear: 2 * alpha * a + linear,
            method="SLSQP",
            bounds=[(0, 1)] * 7,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(weights[client], found.x, atol=2e-6)


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_who_takes_part_does_better(seed: int) -> None:
    # Brute force: for each set of clients with positive weights, the optimum without bounds.
    shares, cosines = random_problem(seed, 6)
    alpha = 0.3
    weights = graph_weights(shares, cosines, alpha)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    assert (weights >= 0).all()
    for client in range(6):
        target = shares + cosines[client] / (2 * alpha)
        least = np.inf
        for size in range(1, 7):
            for members in map(list, itertools.combinations(range(6), size)):
                a = np.zeros(6)
                a[members] = target[members] + (1 - target[members].sum()) / size
                if (a >= 0).all():
                    least = min(least, float(np.square(a - target).sum()))
        assert np.square(weights[client] - target).sum() == pytest.approx(least, abs=1e-12)


def test_a_point_of_the_simplex_is_its_own_nearest() -> None:
    points = np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(nearest_in_simplex(points), points, atol=1e-15)


def test_a_large_alpha_is_fedavgs_mixture_and_a_small_one_is_alone() -> None:
    shares, cosines = random_problem(5, 6)
    np.testing.assert_allclose(
        graph_weights(shares, cosines, 1e8), np.tile(shares, (6, 1)), atol=1e-7
    )
    np.testing.assert_allclose(graph_weights(shares, cosines, 1e-8), np.eye(6), atol=1e-7)


def test_clients_learn_from_those_alike() -> None:
    method = PFedGraph()
    played = last(method, grouped(GROUPS, noise=0.05), 12)
    weights = method.collaboration(played.state)
    order = played.state.trained
    same = np.array([[(a in GROUPS[0]) == (b in GROUPS[0]) for b in order] for a in order])
    assert weights[same].min() > 0.1
    assert weights[~same].max() < 0.05


def test_a_round_is_a_mixture_by_the_graph_then_training() -> None:
    sizes = (20, 17, 8, 31)
    few = world(sizes=sizes, model=mlp, training=Training(lr=0.1, batch=8))
    method = PFedGraph(alpha=0.5, alike=0.95)
    first, second = coterie.run(method, few, rounds=2, seed=3, workers=1)
    state = first.position.state
    # The published code, written out: cosines of what was learned, those above a limit as 1.
    learned = (state.models - state.first).double().numpy()
    count = len(sizes)
    expected_weights = np.zeros((count, count))
    examples = np.array([state.examples[client] for client in state.trained], dtype=float)
    assert sorted(examples) == sorted(sizes)
    for i in range(count):
        cosines = np.zeros(count)
        for j in range(count):
            norms = np.linalg.norm(learned[i]) * np.linalg.norm(learned[j])
            cosine = learned[i] @ learned[j] / norms
            cosines[j] = 1.0 if cosine > 0.95 else cosine
        target = examples / examples.sum() + cosines / (2 * 0.5)
        expected_weights[i] = nearest_in_simplex(target[None])[0]
    np.testing.assert_allclose(method.collaboration(state), expected_weights, atol=1e-5)
    # In the second round each client trains from its mixture.
    mixtures = torch.from_numpy(expected_weights).float() @ state.models
    learner = Learner(made(mlp), coterie.Objective())
    after = second.position.state
    for client, mixture in zip(state.trained, mixtures, strict=True):
        draws = generator(3, Purpose.TRAIN, 1, client)
        trained = learner.train(mixture, few.clients[client].train, few.training, 0.1, draws)
        found = after.models[after.trained.index(client)]
        torch.testing.assert_close(found, trained, rtol=1e-4, atol=1e-5)
    assert len(second.groups) == 1


def test_newcomers_and_leavers() -> None:
    method = PFedGraph()
    played = last(method, grouped(GROUPS), 3)
    left = method.retire(method.admit(played.state, (9,)), (1, 2))
    assert left.clients == (3, 4, 5, 6, 7, 8, 9)
    assert set(left.examples) == set(left.trained) == {3, 4, 5, 6, 7, 8}
    assert method.collaboration(left).shape == (6, 6)
    # The newcomer begins with the mean of all models.
    assignment = method.assignment(left)
    torch.testing.assert_close(assignment.models[assignment.row[9]], left.models.mean(0))


def test_it_keeps_the_laws() -> None:
    check_method(PFedGraph())
    check_method(replace(PFedGraph(), fraction=0.5, alpha=0.1, alike=1.0))


def test_a_pull_that_would_lengthen_steps_is_refused() -> None:
    with pytest.raises(SettingError, match=r"PFedGraph\.pull must be at most 2 / lr"):
        next(coterie.run(PFedGraph(pull=1e4), world(model=mlp), rounds=1, workers=1))
