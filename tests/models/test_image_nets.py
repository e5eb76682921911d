"""Residual networks and the vision transformer, and torchvision's models by name."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie.core import Training
from coterie.data.world import whole
from coterie.models import nets
from coterie.models.layout import Layout
from coterie.randomness import generator, seeded
from coterie.settings import UserError
from coterie.training.blocks import Block
from coterie.training.learner import Learner


@pytest.mark.parametrize(("name", "mixes"), [("resnet20-bn", True), ("resnet20-gn", False)])
@seeded(0)
def test_only_batchnorm_mixes_examples(name: str, mixes: bool) -> None:
    net = nets.make(name, (3, 16, 16), 5).train()
    images = torch.randn(4, 3, 16, 16)
    alone = torch.cat([net(image[None]) for image in images])
    assert torch.allclose(net(images), alone, atol=1e-4) != mixes
    assert bool(Layout(net).norms) == mixes


@seeded(0)
def test_a_block_whose_convolutions_are_zero_is_its_shortcut() -> None:
    net: Any = nets.make("resnet20-gn", (3, 8, 8), 5)
    block = net.stage2[0]
    nn.init.zeros_(block.norm2.weight)
    images = torch.randn(2, 16, 8, 8)
    found = block(images)
    # Every second pixel, with eight channels of zeros on each side.
    assert found.shape == (2, 32, 4, 4)
    torch.testing.assert_close(found[:, 8:24], images[:, :, ::2, ::2].relu())
    assert not found[:, :8].any()
    assert not found[:, 24:].any()


@seeded(0)
def test_attention_is_torchs() -> None:
    net: Any = nets.make("vit", (3, 8, 8), 5)
    block = net.blocks[0]
    tokens = torch.randn(2, 5, 96)
    theirs = nn.MultiheadAttention(96, 3, bias=True, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": block.queries_keys_values.weight,
            "in_proj_bias": block.queries_keys_values.bias,
            "out_proj.weight": block.projection.weight,
            "out_proj.bias": block.projection.bias,
        }
    )
    expected, _ = theirs(tokens, tokens, tokens)
    torch.testing.assert_close(block.projection(block.attention(tokens)), expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet20-bn", (2, 8, 8)), ("resnet20-gn", (1, 8, 8)), ("vit", (2, 8, 8))],
)
def test_it_trains_in_blocks_as_alone(name: str, shape: tuple[int, ...]) -> None:
    with seeded(0):
        learner = Learner(nets.make(name, shape, 3), coterie.Objective())
        rows = [learner.layout.row(nets.make(name, shape, 3)) for _ in range(2)]
    splits = []
    for client in range(2):
        draws = generator(client, 99)
        images = torch.randn(8, *shape, generator=draws)
        splits.append(whole(images, torch.randint(0, 3, (8,), generator=draws)))
    training = Training(batch=4)
    alone = [
        learner.train(row.clone(), split, training, 0.01, generator(client))
        for client, (row, split) in enumerate(zip(rows, splits, strict=True))
    ]
    block = Block(learner, rows).train(splits, training, 0.01, [generator(0), generator(1)])
    torch.testing.assert_close(block, torch.stack(alone), rtol=1e-2, atol=1e-3)
    assert not torch.equal(alone[0], rows[0])


def test_clients_may_train_it_and_keep_its_batchnorm() -> None:
    scenario = replace(coterie.SCENARIOS["digits/iid"], clients=4, model="resnet20-bn")
    world = replace(scenario.build(0), training=Training(lr=0.05, batch=16, steps=1))
    first = next(coterie.run("fedbn", world, rounds=1, workers=1))
    kept = first.position.kept[""]
    assert len(kept) == 4
    # 19 BatchNorm layers of 688 channels in all: scale, shift, mean and variance.
    assert {int((~row.isnan()).sum()) for row in kept.values()} == {4 * 688}


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("resnet20-gn", (20,), "resnet20 needs images"),
        ("vit", (3, 30, 30), "sides that are multiples of 4, got inputs of shape"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    name: str, shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        nets.factory(name, shape, 10)


def fake_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the interface of torchvision.models that is used."""
    models = types.ModuleType("torchvision.models")

    def get_model(name: str, *, weights: Any, num_classes: int) -> nn.Module:
        assert (name, weights) == ("resnet18", None)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))

    vars(models).update(get_model=get_model, list_models=lambda: ["resnet18", "resnet34"])
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_torchvisions_models_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torchvision(monkeypatch)
    make = nets.factory("torchvision.models:resnet18", (3, 8, 8), 7)
    with seeded(0):
        assert make()(torch.zeros(2, 3, 8, 8)).shape == (2, 7)
    with pytest.raises(
        UserError, match="torchvision has no model 'resnet81'; did you mean resnet18"
    ):
        nets.factory("torchvision.models:resnet81", (3, 8, 8), 7)
    with pytest.raises(UserError, match=r"needs images of three channels, got .*\(1, 8, 8\)"):
        nets.factory("torchvision.models:resnet18", (1, 8, 8), 7)
    assert not nets.takes_tokens("torchvision.models:resnet18")


def test_without_torchvision_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UserError, match="needs torchvision: pip install torchvision"):
        nets.factory("torchvision.models:resnet18", (3, 8, 8), 7)
