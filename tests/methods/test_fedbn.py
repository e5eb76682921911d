"""FedBN against plain loops in which every client keeps its BatchNorm."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie
from coterie.core import Training
from coterie.methods import FedBN
from coterie.models.layout import Layout
from coterie.randomness import Purpose, generator
from coterie.settings import SettingError
from small import linear, made, normed, trained, world


@pytest.mark.parametrize("width", [1, 4])
def test_it_is_the_plain_loop_with_batchnorm_kept(width: int) -> None:
    few = world(sizes=(20, 20, 12, 20), model=normed, training=Training(lr=0.1, batch=10, epochs=2))
    rounds = list(coterie.run(FedBN(), few, rounds=3, seed=5, workers=1, width=width))
    # The first model, from a run that hardly trains.
    frozen = replace(few, training=replace(few.training, lr=1e-30))
    first = next(coterie.run(FedBN(), frozen, rounds=1, seed=5, workers=1))
    shared = first.assignment.models[0].clone()
    layout = Layout(made(normed))
    norm = layout.mask(layout.norms)
    assert layout.norms == ("1",)
    own = {client: shared.clone() for client in few.clients}
    for round, found in enumerate(rounds):
        updates, examples = [], []
        for client, data in few.clients.items():
            start = torch.where(norm, own[client], shared)
            module = _loaded(made(normed), layout, start)
            draws = generator(5, Purpose.TRAIN, round, client)
            after = layout.row(trained(module, data.train, few.training, 0.1, draws))
            own[client] = after
            updates.append((after - start).masked_fill(norm, 0.0))
            examples.append(float(len(data.train)))
        weights = torch.tensor(examples) / sum(examples)
        shared = shared + (weights[:, None] * torch.stack(updates)).sum(0)
        torch.testing.assert_close(
            found.assignment.models[0][~norm], shared[~norm], rtol=1e-4, atol=1e-5
        )
        for client in few.clients:
            kept = found.position.kept[""][client]
            torch.testing.assert_close(kept[norm], own[client][norm], rtol=1e-4, atol=1e-5)
            assert kept[~norm].isnan().all()
    # Each client is served with its own.
    nets = [rounds[-1].model(client) for client in few.clients]
    assert not torch.equal(nets[0][1].running_mean, nets[1][1].running_mean)
    assert torch.equal(nets[0][0].weight, nets[1][0].weight)


def _loaded(module: nn.Module, layout: Layout, row: torch.Tensor) -> nn.Module:
    module.load_state_dict(layout.state_dict(row), strict=False)
    return module


def test_without_batchnorm_it_says_that_it_is_fedavg() -> None:
    first, second = coterie.run("fedbn", world(model=linear), rounds=2, workers=1)
    plain = list(coterie.run("fedavg", world(model=linear), rounds=2, workers=1))
    assert [note.effect for note in first.notes] == ["warns"]
    assert second.notes == ()
    assert torch.equal(second.assignment.models, plain[1].assignment.models)


def test_layers_are_those_of_the_model() -> None:
    with pytest.raises(
        SettingError, match=r"FedBN\.layers must be layers of the model, one of 0, 1, 3"
    ):
        next(coterie.run(FedBN(layers=("bn",)), world(model=normed), rounds=1, workers=1))
