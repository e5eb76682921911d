"""FedProx is FedAvg with the proximal term, by its paper's name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import coterie
from coterie.methods import FedAvg, FedProx
from coterie.settings import SettingError


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_it_is_fedavg_with_the_term(mu: float) -> None:
    world = replace(coterie.SCENARIOS["digits/dirichlet"], clients=4).build(1)
    training = replace(world.training, steps=3)
    named = coterie.run(FedProx(mu=mu), replace(world, training=training), rounds=2, workers=1)
    training = replace(training, proximal=mu)
    plain = coterie.run(FedAvg(), replace(world, training=training), rounds=2, workers=1)
    for round_of_named, round_of_plain in zip(named, plain, strict=True):
        assert torch.equal(round_of_named.assignment.models, round_of_plain.assignment.models)
        assert round_of_named.bytes_down == round_of_plain.bytes_down


def test_a_term_that_would_lengthen_steps_is_refused() -> None:
    world = replace(coterie.SCENARIOS["digits/dirichlet"], clients=4).build(1)
    with pytest.raises(SettingError, match=r"FedProx\.mu must be at most 2 / lr"):
        next(coterie.run(FedProx(mu=1e4), world, rounds=1, workers=1))
