"""FedAMP's mixtures against the gradient of its objective, and its rounds against the paper's two steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core import Training
from coterie.methods import FedAMP
from coterie.methods.fedamp import cosine_weights, distance_weights
from coterie.randomness import Purpose, generator
from coterie.settings import SettingError
from coterie.training.learner import Learner
from small import made, mlp, world
from worlds import grouped, last

GROUPS = ((1, 4, 6, 8), (2, 3, 5, 7))


@pytest.mark.parametrize(("sigma", "alpha"), [(1.0, 0.05), (3.0, 0.2)])
def test_a_mixture_is_a_step_down_the_attention_term(sigma: float, alpha: float) -> None:
    # u = w - α ∇A(W)/2, since the paper leaves the factor 2 of a square's derivative to α.
    rows = torch.from_numpy(np.random.default_rng(3).normal(size=(6, 4))).requires_grad_()
    squares = (rows[:, None] - rows[None]).square().sum(-1)
    attention = (1 - torch.exp(-squares / sigma)).triu(1).sum()
    (gradient,) = torch.autograd.grad(attention, rows)
    expected = (rows - alpha * gradient / 2).detach().numpy()
    weights = distance_weights(squares.detach().numpy() ** 0.5, sigma, alpha)
    np.testing.assert_allclose(weights @ rows.detach().numpy(), expected, rtol=1e-10)


def test_a_step_that_is_too_long_ends_at_the_mean_of_the_others() -> None:
    weights = distance_weights(np.zeros((3, 3)), 1.0, 50.0)
    np.testing.assert_allclose(weights, (1 - np.eye(3)) / 2)


@pytest.mark.parametrize("sigma", [1.0, 1e4])
def test_the_heuristic_weights_are_the_papers_formula(sigma: float) -> None:
    rows = np.random.default_rng(4).normal(size=(5, 3))
    weights = cosine_weights(rows @ rows.T, sigma, 0.3)
    for i in range(5):
        others = [j for j in range(5) if j != i]
        cosines = np.array(
            [rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j]) for j in others]
        )
        shares = np.exp(sigma * (cosines - cosines.max()))
        np.testing.assert_allclose(weights[i, others], 0.7 * shares / shares.sum(), atol=1e-12)
        assert weights[i, i] == 0.3


@pytest.mark.parametrize("rule", ["distance", "cosine"])
def test_similar_clients_weigh_more(rule: str) -> None:
    method = FedAMP(rule=rule, sigma=1.0 if rule == "distance" else 5.0)
    played = last(method, grouped(GROUPS, noise=0.05), 12)
    weights = method.collaboration(played.state)
    np.testing.assert_allclose(weights.sum(1), 1.0)
    assert (weights >= 0).all()
    order = played.state.trained
    same = np.array([[(a in GROUPS[0]) == (b in GROUPS[0]) for b in order] for a in order])
    off_diagonal = ~np.eye(len(order), dtype=bool)
    assert weights[same & off_diagonal].min() > 2 * weights[~same].max()


def test_a_round_is_a_mixture_then_training_near_it() -> None:
    few = world(sizes=(20, 17, 8, 31), model=mlp, training=Training(lr=0.1, batch=8))
    method = FedAMP(pull=0.5, sigma=10.0)
    first, second = coterie.run(method, few, rounds=2, seed=3, workers=1)
    # The first round is FedProx's from the first model; each client keeps what it trained.
    prox = coterie.run({"name": "fedprox", "mu": 0.5}, few, rounds=1, seed=3, workers=1)
    mean = next(iter(prox)).assignment.models[0]
    sizes = torch.tensor([20.0, 17.0, 8.0, 31.0])
    state = first.position.state
    own = torch.stack([state.models[state.trained.index(client)] for client in few.clients])
    torch.testing.assert_close((sizes[:, None] * own).sum(0) / 76, mean, rtol=1e-4, atol=1e-5)
    # In the second, each client trains from its mixture, with the pull to it.
    mixtures = torch.from_numpy(method.collaboration(state)).float() @ state.models
    learner = Learner(made(mlp), coterie.Objective())
    training = replace(few.training, proximal=0.5)
    after = second.position.state
    for client, mixture in zip(state.trained, mixtures, strict=True):
        data = few.clients[client].train
        draws = generator(3, Purpose.TRAIN, 1, client)
        expected = learner.train(mixture, data, training, 0.1, draws)
        found = after.models[after.trained.index(client)]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(second.groups) == 1


def test_a_pull_that_would_lengthen_steps_is_refused() -> None:
    with pytest.raises(SettingError, match=r"FedAMP\.pull must be at most 2 / lr"):
        next(coterie.run(FedAMP(pull=1e4), world(model=mlp), rounds=1, workers=1))
