"""Rows and state dicts: nothing lost on the way, everything in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.models.layout import Layout
from coterie.randomness import seeded


class Mixed(nn.Module):
    """Frozen and tied parameters, buffers of every kind, parameters of its own and of layers within layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.part = nn.Linear(4, 2)
        self.part.bias.requires_grad_(False)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.part.weight
        self.register_buffer("shift", torch.randn(1, 3))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("scratch", torch.randn(5), persistent=False)


LAYERS = st.sampled_from(
    [
        lambda: nn.Linear(3, 2), lambda: nn.Linear(2, 3, bias=False), lambda: nn.Conv2d(2, 3, 2), lambda: nn.BatchNorm1d(4),
        lambda: nn.Embedding(5, 2), lambda: nn.LSTM(2, 3), lambda: nn.LayerNorm(3), lambda: nn.ReLU(), Mixed,
    ]
)  # fmt: skip


@given(st.lists(LAYERS, min_size=1, max_size=4))
@seeded(0)
def test_a_row_holds_every_float_that_is_not_frozen_once(
    layers: list[Callable[[], nn.Module]],
) -> None:
    module = nn.Sequential(nn.Linear(1, 1), *(make() for make in layers))
    layout = Layout(module)
    for tensor in module.state_dict().values():  # numbers that are all different
        if tensor.is_floating_point():
            tensor.copy_(torch.randn_like(tensor))
    row = layout.row(module)
    frozen = {p.data_ptr() for p in module.parameters() if not p.requires_grad}
    tensors = [
        t
        for t in module.state_dict().values()
        if t.is_floating_point() and t.data_ptr() not in frozen
    ]
    distinct = {t.data_ptr(): t for t in tensors}
    assert layout.size == len(row) == sum(t.numel() for t in distinct.values())
    assert torch.equal(
        row.sort().values, torch.cat([t.reshape(-1) for t in distinct.values()]).sort().values
    )
    assert [p.start for p in layout.pieces] == [0, *(p.stop for p in layout.pieces[:-1])]
    for name, value in layout.state_dict(row).items():
        assert torch.equal(value, module.state_dict()[name])
    assert torch.equal(layout.row(layout.state_dict(row)), row)


@given(st.lists(LAYERS, max_size=4))
@seeded(0)
def test_columns_tile_the_trainable_parameters(layers: list[Callable[[], nn.Module]]) -> None:
    module = nn.Sequential(nn.Linear(1, 1), *(make() for make in layers))
    layout = Layout(module)
    wanted = [p for p in module.parameters() if p.requires_grad]
    spans = sorted(layout.columns.values())
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == layout.trainable == sum(p.numel() for p in wanted)
    assert torch.equal(
        layout.row(module)[: layout.trainable], torch.cat([p.detach().reshape(-1) for p in wanted])
    )


@seeded(0)
def test_load_is_the_inverse_of_row() -> None:
    source, target = Mixed(), Mixed()
    layout, order = Layout(source), target.order.clone()
    target.order += 3
    scratch = target.scratch.clone()
    layout.load(target, layout.row(source))
    assert torch.equal(layout.row(target), layout.row(source))
    assert target.tied.weight is target.part.weight
    assert torch.equal(target.order, order + 3)  # integers are left alone
    assert torch.equal(target.scratch, scratch)
    missing = source.load_state_dict(layout.state_dict(layout.row(target)), strict=False)
    assert not missing.unexpected_keys


@seeded(0)
def test_a_row_is_a_copy_and_a_state_dict_views() -> None:
    module = nn.Linear(3, 2, bias=False)  # a single piece
    layout = Layout(module)
    row = layout.row(module)
    row.fill_(7.0)
    assert not (module.weight == 7.0).any()
    layout.state_dict(row)["weight"][0, 0] = 1.0
    assert row[0] == 1.0
    assert not layout.row(module).requires_grad


@seeded(0)
def test_columns_and_mask_of_a_net_with_batchnorm() -> None:
    module = nn.Sequential()
    module.add_module("conv", nn.Conv2d(1, 2, 3))  # 2 * 9 + 2
    module.add_module("norm", nn.BatchNorm2d(2))  # 2 + 2 trainable, 2 + 2 statistics
    module.add_module("fc", nn.Linear(4, 3))  # 12 + 3
    layout = Layout(module)
    assert layout.columns == {"conv": (0, 20), "norm": (20, 24), "fc": (24, 39)}
    assert (layout.trainable, layout.size) == (39, 39 + 4)
    assert layout.mask(["norm"]).nonzero().flatten().tolist() == [20, 21, 22, 23, 39, 40, 41, 42]
    assert layout.mask(["fc", "conv"]).nonzero().flatten().tolist() == [*range(20), *range(24, 39)]
    assert not layout.mask([]).any()
    assert layout.mask(["conv", "norm", "fc"]).all()
    with pytest.raises(
        ValueError, match=r"the model has no layer 'fc2' \(layers: conv, norm, fc\)"
    ):
        layout.mask(["fc", "fc2"])


@seeded(0)
def test_all_layers_are_everything() -> None:
    layout = Layout(Mixed())
    every = layout.mask(layout.columns)
    assert (
        every.all()
    )  # the frozen layer and the root's buffer belong to no layer that can be named
    assert int(layout.mask([""]).sum()) == 2 + 3  # the root's own: scale and shift


@seeded(0)
def _wrong() -> list[tuple[Any, str]]:
    fits = nn.Linear(3, 2).state_dict()
    return [
        ({"weight": fits["weight"]}, "the state dict lacks 'bias'; it is from another model"),
        (
            {**fits, "weight": torch.zeros(3, 2)},
            r"weight has shape \(3, 2\) where the model has \(2, 3\)",
        ),
        (nn.Linear(3, 4), r"weight has shape \(4, 3\) where the model has \(2, 3\)"),
    ]


@pytest.mark.parametrize(("source", "text"), _wrong())
@seeded(0)
def test_a_state_dict_of_another_model_is_refused(source: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Layout(nn.Linear(3, 2)).row(source)


@pytest.mark.parametrize("row", [torch.zeros(9), torch.zeros(7), torch.zeros(1, 8)])
@seeded(0)
def test_a_row_of_another_model_is_refused(row: Tensor) -> None:
    with pytest.raises(ValueError, match=r"a row of this model has shape \(8,\), got"):
        Layout(nn.Linear(3, 2)).state_dict(row)


def test_models_that_cannot_be_trained_are_refused() -> None:
    with pytest.raises(ValueError, match="ReLU has no trainable parameter"):
        Layout(nn.ReLU())
    complex_one = nn.ParameterList(
        [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, dtype=torch.complex64))]
    )
    with pytest.raises(ValueError, match="has a complex parameter"):
        Layout(complex_one)


@seeded(0)
def test_other_precisions_become_float32() -> None:
    module = nn.Linear(3, 2).double()
    row = Layout(module).row(module)
    assert row.dtype == torch.float32
    assert torch.equal(row[:6], module.weight.detach().reshape(-1).float())
