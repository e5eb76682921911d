"""Honest clients get the published algorithm with default settings, whatever their sizes and steps, in every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie import SCENARIOS, run
from coterie.boundary import Boundary
from coterie.contrib.private import SplitHalfSums
from coterie.core import Training
from coterie.data.world import World
from coterie.engines.rounds import setup
from coterie.methods import FedAvg, FedFA, Race
from coterie.methods.fedfa import MIN_ACCURACY
from coterie.models.layout import Layout
from coterie.randomness import seeded
from coterie.robust import AS_PUBLISHED, Robust
from flowered import Here, a_run, foreign, over_flower, strategy_of
from method_examples import slow_cases
from small import linear, mlp, world

UNEQUAL = [20] * 9 + [2000]


def full_batches(sizes: Sequence[int] = UNEQUAL) -> World:
    """Clients that make one full-batch step in each round, which is easy to write down."""
    return world(range(len(sizes)), model=linear, sizes=sizes, training=Training(lr=0.5, batch=0))


def first_model(tried: World) -> torch.Tensor:
    return setup(FedAvg(), tried, 0, Boundary())[1].draw(0)


def by_definition(tried: World, rounds: int, weights: str = "examples") -> torch.Tensor:
    """The model of FedAvg, or of FedFA, after some rounds: full-batch steps and their weighted mean, in float64."""
    with seeded(0):
        module = tried.model()
        layout = Layout(module)
    row = first_model(tried).double()
    module.double()
    for _ in range(rounds):
        steps, weigh = [], []
        for client in tried.clients.values():
            layout.load(module, row)
            inputs, targets = (
                client.train.inputs[client.train.index].double(),
                client.train.targets[client.train.index],
            )
            outputs = module(inputs)
            gradients = torch.autograd.grad(
                nn.functional.cross_entropy(outputs, targets), list(module.parameters())
            )
            steps.append(
                -tried.training.lr * torch.cat([gradient.flatten() for gradient in gradients])
            )
            accuracy = float((outputs.argmax(1) == targets).double().mean())
            weigh.append(
                len(targets) if weights == "examples" else -np.log2(max(accuracy, MIN_ACCURACY))
            )
        row = row + torch.tensor(weigh, dtype=torch.float64) / sum(weigh) @ torch.stack(steps)
    return row


@pytest.mark.parametrize(
    ("engine", "large"),
    [
        ("inprocess", 2000),
        ("flower", 2000),
        ("flower", 200_000),
        *slow_cases(("inprocess", 200_000)),
    ],
)
def test_fedavg_of_unequal_clients_is_fedavg(engine: str, large: int) -> None:
    """One client of 2,000 among nine of 20 once counted for a fifth of what it has: the models differed by 1.8e-2.

    In a federation, which cannot know who is honest, sizes that differ ten thousandfold are not
    believed.
    """
    tried = full_batches([20] * 9 + [large])
    expected = by_definition(tried, 5)
    if engine == "inprocess":
        *_, done = run(FedAvg(), tried, rounds=5, workers=1)
    else:
        with a_run():
            *_, done = over_flower(FedAvg(), tried, 5, robust=Robust())
    difference = float((done.assignment.models[0].double() - expected).abs().max())
    if engine == "flower" and large == 200_000:
        assert difference > 1e-3
        assert done.claimed == {9: large}
    else:
        assert difference < 1e-5
        assert (done.claimed, done.scaled) == ({}, {})


def test_fedfa_of_honest_clients_is_fedfa() -> None:
    """Its greatest weight was limited to a tenth, or twice the average."""
    tried = full_batches([20] * 29 + [400])
    *_, done = run(FedFA(), tried, rounds=3, workers=1)
    assert (
        float(
            (done.assignment.models[0].double() - by_definition(tried, 3, "accuracy")).abs().max()
        )
        < 1e-5
    )


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("digits/quantity", "fedavg"),
        ("digits/quantity", "cfl"),
        ("digits/dirichlet", "fedfa"),
        *slow_cases(
            ("digits/quantity", "ifca"),
            ("digits/quantity", "fedfa"),
            ("digits/quantity", "hcct"),
            ("digits/dirichlet", "fedavg"),
            ("digits/dirichlet", "cfl"),
            ("digits/dirichlet", "ifca"),
            ("digits/dirichlet", "hcct"),
        ),
    ],
)
def test_default_limits_change_no_bit_of_an_honest_scenario(name: str, method: str) -> None:
    def last(**how: Any) -> torch.Tensor:
        *_, done = run(method, SCENARIOS[name], rounds=2, workers=1, eval_every=2, **how)
        assert not done.scaled
        assert not done.claimed
        return done.assignment.models

    assert torch.equal(last(), last(robust=AS_PUBLISHED))


@pytest.mark.parametrize(
    "sizes",
    [
        [20] * 9 + [500],
        pytest.param([2000] * 5 + [20] * 5, marks=pytest.mark.slow),
        pytest.param([20, 40, 80, 160, 320, 640, 2000], marks=pytest.mark.slow),
    ],
)
def test_a_federation_does_not_touch_clients_of_unequal_sizes_and_epochs(sizes: list[int]) -> None:
    """Sizes 1:25 and 1:100, and an app that makes 20 epochs beside apps that make one, of which the server knows nothing."""
    tried = world(range(len(sizes)), model=mlp, sizes=sizes, training=Training(lr=0.1, batch=10))
    models = []
    for robust in (Robust(), AS_PUBLISHED):
        with a_run():
            grid = Here(
                foreign(tried, epochs={len(sizes) - 1: 20}, batch=10), len(sizes), named=False
            )
            *_, done = strategy_of(FedAvg(), tried, robust=robust).rounds(grid, 2)
        assert (done.scaled, done.claimed, done.refused) == ({}, {}, {})
        models.append(done.assignment.models)
    assert torch.equal(*models)


def test_limits_of_a_setting_act_without_adversaries() -> None:
    tried = replace(full_batches(), training=Training(lr=0.1, batch=10))
    *_, done = run(FedAvg(), tried, rounds=1, workers=1, robust=Robust(share=0.1))
    assert done.claimed == {9: 2000}
    assert done.counted[9] < 100


@pytest.mark.parametrize("engine", ["inprocess", "flower"])
@pytest.mark.parametrize("inside_race", [False, True])
def test_a_limited_claim_is_said_of_sums_as_of_updates(engine: str, inside_race: bool) -> None:
    """Methods of sums counted a client for fewer examples than it reports, and nothing said so."""
    tried = full_batches()
    by_sums = Race(methods=("fedavg", SplitHalfSums())) if inside_race else SplitHalfSums()
    rounds = []
    for method in (FedAvg(), by_sums):
        if engine == "inprocess":
            *_, done = run(method, tried, rounds=1, workers=1, robust=Robust(share=0.1))
        else:
            with a_run():
                *_, done = over_flower(method, tried, 1, robust=Robust(share=0.1))
        rounds.append(done)
    expected, done = rounds
    assert done.claimed == expected.claimed == {9: 2000}
    assert done.counted == expected.counted
    assert 1 < done.counted[9] < 100
