"""A large net takes seconds to make: the checks before the first round make it a fixed number of times."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import coterie
from coterie.data.cautions import cautions
from coterie.data.world import World
from coterie.runs.run import Caution


class Maker:
    """Makes nets and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> nn.Module:
        self.made += 1
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))

    def taken(self) -> int:
        """The number of nets since this was asked before."""
        made, self.made = self.made, 0
        return made


def world(maker: Any) -> World:
    """Clients with large targets, and a loss of their own: checks of inputs, outputs, targets and the loss look at the net."""
    generator = np.random.default_rng(0)
    clients: list[tuple[np.ndarray, ...]] = []
    for _ in range(4):
        inputs = generator.normal(size=(30, 5)).astype("f")
        targets = (inputs[:, :1] * 300).astype("f")
        clients.append((inputs[:24], targets[:24], inputs[24:], targets[24:]))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # Not torch's, and no mean over examples.
        return (outputs - targets).square().mean().sqrt()

    objective = coterie.Objective(
        loss=loss, metrics=["MeanAbsoluteError"], combine=coterie.data.objective.mean_output
    )
    return coterie.from_lists(clients, model=maker, objective=objective)


def test_all_warnings_about_a_net_make_it_once() -> None:
    maker = Maker()
    tried = world(maker)
    maker.taken()
    said = cautions(tried)
    assert len(said) >= 2, "the test needs warnings about the net"
    assert maker.taken() == 1


def test_the_checks_before_the_first_round_make_three_nets(tmp_path: Path) -> None:
    """Two must differ, so the trial makes both; the third has the warnings."""
    maker = Maker()
    tried = world(maker)
    maker.taken()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caution)
        rounds = coterie.run("fedavg", tried, rounds=1, workers=1)
        assert maker.taken() == 3
        list(rounds)
        maker.taken()
        # Of an experiment, each method draws its first model besides, and the settings of the
        # machine and the wire are checked once for all methods. A single run is described at once,
        # with its warnings.
        counts = []
        for number in (1, 3):
            methods = [coterie.methods.FedAvg(fraction=share) for share in (1.0, 0.5, 0.75)][
                :number
            ]
            coterie.begin(tried, tmp_path / str(number), methods, rounds=1, workers=1)
            counts.append(maker.taken())
    assert counts == [3 + 2 + 1 + 1, 3 + 2 + 3]
