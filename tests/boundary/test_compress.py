"""Compression: what arrives, by hand; how many bytes it takes; and that it goes with maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.boundary import Boundary, Wire, pack, packed_bytes, unpack
from coterie.models.layout import Layout
from coterie.randomness import seeded
from small import mlp, normed

KINDS = ("none", "topk", "sign", "8bit")
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)


def arrives(values: list[float], kind: str, share: float = 1.0) -> list[float]:
    sent = torch.tensor(values)
    return unpack(pack(sent, kind, share), kind, len(values)).tolist()


def test_what_arrives_by_hand() -> None:
    assert arrives([1.0, -4.0, 0.5, 3.0], "topk", 0.5) == [0.0, -4.0, 0.0, 3.0]
    assert arrives([1.0, -4.0, 0.5, 3.0], "topk", 0.01) == [0.0, -4.0, 0.0, 0.0]  # at least one
    assert arrives([1.0, -4.0, 0.0, 3.0], "sign") == [2.0, -2.0, 2.0, 2.0]
    assert arrives([127.0, -63.6, 0.4, 0.0], "8bit") == [127.0, -64.0, 0.0, 0.0]
    assert arrives([1.0, -4.0], "none") == [1.0, -4.0]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_comes_of_nothing(kind: str) -> None:
    assert arrives([0.0] * 9, kind) == [0.0] * 9


@pytest.mark.slow
@given(values=numbers, share=st.floats(0.01, 0.5))
@settings(max_examples=60)
def test_the_largest_entries_are_exact_and_no_error_is_larger(
    values: list[float], share: float
) -> None:
    x, y = torch.tensor(values), torch.tensor(arrives(values, "topk", share))
    sent = y != 0
    assert torch.equal(y[sent], x[sent])
    if sent.any() and not sent.all():
        assert x[~sent].abs().max() <= x[sent].abs().min()


@given(values=numbers)
@settings(max_examples=60)
def test_eight_bits_are_off_by_half_a_step_at_most(values: list[float]) -> None:
    x, y = torch.tensor(values).double(), torch.tensor(arrives(values, "8bit")).double()
    step = x.abs().max() / 127
    assert (x - y).abs().max() <= 0.5001 * step + 1e-30


@given(values=numbers)
@settings(max_examples=60)
def test_signs_keep_the_mean_magnitude(values: list[float]) -> None:
    x, y = torch.tensor(values), torch.tensor(arrives(values, "sign"))
    assert torch.allclose(y.abs(), x.abs().mean(), rtol=1e-5)
    assert torch.equal(y < 0, (x < 0) & (y != 0))


@seeded(0)
def test_signs_of_zeros_are_drawn_for_each_client_and_exchange() -> None:
    layout = Layout(mlp())
    row = torch.arange(layout.size).remainder(2).float()  # every other entry is zero
    wire = Wire(Boundary(compress="sign"), layout, 0)
    sent = [
        wire.send(row, client, exchange) for client, exchange in ((1, 0), (2, 0), (1, 1), (1, 0))
    ]
    zeros = row == 0
    assert torch.equal(sent[0], sent[3])
    assert not any(torch.equal(sent[i][zeros], sent[j][zeros]) for i in range(3) for j in range(i))
    assert all(0.2 < (part[zeros] > 0).double().mean() < 0.8 for part in sent)
    assert all((part[~zeros] > 0).all() for part in sent)


@given(count=st.integers(1, 300), share=st.floats(0.001, 0.5), kind=st.sampled_from(KINDS))
@settings(max_examples=60)
def test_bytes_are_those_of_the_arrays(count: int, share: float, kind: str) -> None:
    sent = pack(torch.linspace(-1, 2, count), kind, share)
    assert packed_bytes(kind, count, share) == sum(
        part.numel() * part.element_size() for part in sent.values()
    )


def test_no_entry_costs_nothing() -> None:
    assert [packed_bytes(kind, 0, 0.1) for kind in KINDS] == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ["topk", "8bit", "sign"])
@pytest.mark.parametrize("rotation", ["permute", "permute-tensors"])
@seeded(0)
def test_compression_commutes_with_permutations_and_signs(kind: str, rotation: str) -> None:
    layout = Layout(mlp())
    row = torch.randn(layout.size, generator=torch.Generator().manual_seed(1))
    plain = Wire(Boundary(compress=kind), layout, 3).send(row, 1, 0)
    wire = Wire(Boundary(compress=kind, rotation=rotation), layout, 3)
    torch.testing.assert_close(wire.open(wire.send(row, 1, 0)), plain, rtol=1e-6, atol=0)


@seeded(0)
def test_buffers_travel_as_they_are_and_layers_that_stay_are_left_alone() -> None:
    layout = Layout(normed())
    row = torch.randn(layout.size, generator=torch.Generator().manual_seed(1))
    for kind in ("topk", "sign", "8bit"):
        sent = Wire(Boundary(compress=kind, clip=0.1), layout, 0).send(row, 1, 0)
        assert torch.equal(sent[layout.trainable :], row[layout.trainable :])
        keep = layout.mask(["3"])
        sent = Wire(Boundary(compress=kind), layout, 0).send(row, 1, 0, keep)
        assert torch.equal(sent[keep], row[keep])
        others = row[: layout.trainable][~keep[: layout.trainable]]
        expected = unpack(pack(others, kind, 0.1), kind, len(others))
        assert torch.equal(sent[: layout.trainable][~keep[: layout.trainable]], expected)
