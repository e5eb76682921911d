"""Maps are orthonormal, what is behind them is their layout alone, and permutations are exact."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.boundary.maps import draw_map
from coterie.boundary.rules import ROTATIONS
from coterie.clustering import manhattan
from coterie.methods._hcct_layers import paper_code_ratios
from coterie.models.layout import Layout
from coterie.randomness import seeded
from small import made, mlp, normed

MAPS = [name for name in ROTATIONS if name != "none"]
EXACT = ["permute", "permute-tensors"]


def rows(layout: Layout, count: int, seed: int) -> Tensor:
    return torch.randn(count, layout.size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rotation", MAPS)
@given(
    seed=st.integers(0, 2**40),
    inputs=st.integers(1, 9),
    hidden=st.integers(1, 40),
    block=st.integers(2, 64),
)
@settings(max_examples=25)
@seeded(0)
def test_norms_inner_products_and_rows_survive(
    rotation: str, seed: int, inputs: int, hidden: int, block: int
) -> None:
    layout = Layout(
        nn.Sequential(nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 2))
    )
    drawing, parameters = draw_map(rotation, layout, block, seed), slice(0, layout.trainable)
    x = rows(layout, 3, seed)
    sealed = torch.stack([drawing.seal(row) for row in x])
    inner, outer = (part[:, parameters].double() for part in (x, sealed))
    torch.testing.assert_close(outer @ outer.T, inner @ inner.T, rtol=1e-5, atol=1e-5)
    opened = torch.stack([drawing.open(row) for row in sealed])
    torch.testing.assert_close(opened, x, rtol=0, atol=0 if rotation in EXACT else 1e-6)
    # Buffers only change places, and among themselves.
    assert torch.equal(
        sealed[:, layout.trainable :].sort().values, x[:, layout.trainable :].sort().values
    )


@pytest.mark.parametrize("rotation", MAPS)
@seeded(0)
def test_a_map_is_linear_so_means_and_differences_commute_with_it(rotation: str) -> None:
    layout = Layout(mlp())
    drawing = draw_map(rotation, layout, 16, 5)
    x, y = rows(layout, 2, 0)
    torch.testing.assert_close(
        drawing.seal(0.3 * x - 0.7 * y), 0.3 * drawing.seal(x) - 0.7 * drawing.seal(y)
    )


@seeded(0)
def test_the_matrix_of_a_blocks_map_is_orthogonal() -> None:
    layout = Layout(nn.Linear(6, 3, bias=False))  # 18 parameters: blocks of 8, 8 and 2
    drawing = draw_map("blocks", layout, 8, 1)
    matrix = torch.stack([drawing.seal(row) for row in torch.eye(18)]).double()
    torch.testing.assert_close(
        matrix @ matrix.T, torch.eye(18, dtype=torch.float64), rtol=0, atol=1e-6
    )
    assert sorted(int((row.abs() > 1e-9).sum()) for row in matrix) == [2] * 2 + [8] * 16


@seeded(0)
def test_a_map_by_tensors_leaves_every_tensor_its_columns() -> None:
    layout = Layout(normed())
    row = torch.cat(
        [
            torch.full((piece.stop - piece.start,), float(i + 1))
            for i, piece in enumerate(layout.pieces)
        ]
    )
    assert torch.equal(draw_map("permute-tensors", layout, 2, 3).seal(row).abs(), row)
    assert not torch.equal(draw_map("permute", layout, 2, 3).seal(row).abs(), row)


@pytest.mark.parametrize("rotation", MAPS)
@seeded(0)
def test_a_map_is_its_key(rotation: str) -> None:
    layout = Layout(mlp())
    row = rows(layout, 1, 0)[0]
    sealed = [draw_map(rotation, layout, 16, key).seal(row) for key in (1, 1, 2)]
    assert torch.equal(sealed[0], sealed[1])
    # Of 75 numbers as good as none is where it was.
    assert (sealed[0] == sealed[2]).sum() < 8
    assert (sealed[0] == row).sum() < 8


@seeded(0)
def test_signs_and_places_are_even() -> None:
    layout = Layout(nn.Linear(100, 100))
    sealed = draw_map("permute", layout, 2, 4).seal(torch.arange(1.0, layout.size + 1))
    assert abs(float((sealed < 0).double().mean()) - 0.5) < 5 * 0.5 / layout.size**0.5
    assert (sealed.abs() == torch.arange(1.0, layout.size + 1)).sum() < 10  # one on average


@pytest.mark.parametrize("rotation", EXACT)
@seeded(0)
def test_distances_by_l1_survive_permutations_and_not_blocks(rotation: str) -> None:
    layout = Layout(mlp())
    x = rows(layout, 4, 1)
    seal = lambda name: torch.stack([draw_map(name, layout, 16, 2).seal(row) for row in x])  # noqa: E731
    torch.testing.assert_close(manhattan(seal(rotation)), manhattan(x), rtol=1e-6, atol=1e-6)
    assert abs(manhattan(seal("blocks")) - manhattan(x)).max() > 0.5


@seeded(0)
def test_signed_means_of_entries_survive_no_map() -> None:
    layout = Layout(mlp())
    x = rows(layout, 4, 1) + 1
    layers = {name: (span,) for name, span in layout.columns.items()}
    sealed = torch.stack([draw_map("permute-tensors", layout, 16, 2).seal(row) for row in x])
    plain, mapped = paper_code_ratios(x, layers), paper_code_ratios(sealed, layers)
    assert all(abs(plain[name] - mapped[name]) > 0.1 for name in layers)


def test_first_models_are_drawn_from_the_secret() -> None:
    layout = Layout(made(mlp))
    first = lambda seed=7, **how: Wire(Boundary(**how), layout, seed).first_model(2, mlp)  # noqa: E731
    assert torch.equal(first(rotation="permute"), first())
    drawn = [
        first(seed, rotation="permute", secret=secret)
        for secret in (1, 1 + 2**32, 1 + 2**64)
        for seed in (1, 2)
    ]
    for i, one in enumerate(drawn):
        assert not any(torch.equal(one, other) for other in [*drawn[:i], first(1), first(2)])
        # As large as an initialiser makes them, and no number is one that it drew.
        assert float(one.std()) == pytest.approx(float(first().std()), rel=0.3)
        assert not set(one.abs().tolist()) & set(first(1).abs().tolist())


def test_maps_and_noise_depend_on_every_bit_of_their_key() -> None:
    """PyTorch's generator takes 32 bits of a seed, and so few can all be tried."""
    layout, row = Layout(made(mlp)), torch.arange(Layout(made(mlp)).size, dtype=torch.float32)
    for rotation in ("permute", "permute-tensors", "blocks"):
        sealed = [
            Wire(Boundary(rotation=rotation, secret=5 + 2**bits), layout, 0).seal(row)
            for bits in (20, 32, 64, 100)
        ]
        assert len({tuple(one.tolist()) for one in sealed}) == 4
    wire = Wire(Boundary(clip=1.0, noise=1.0), layout, 0)
    noisy = [
        wire.protected(torch.zeros(layout.size), 1, 0, seed=5 + 2**bits)
        for bits in (20, 32, 64, 100)
    ]
    assert len({tuple(one.tolist()) for one in noisy}) == 4


@seeded(0)
def test_a_block_larger_than_the_model_is_the_model() -> None:
    layout = Layout(nn.Linear(3, 2))
    row = rows(layout, 1, 0)[0]
    assert torch.equal(
        draw_map("blocks", layout, 4096, 5).seal(row),
        draw_map("blocks", layout, layout.trainable, 5).seal(row),
    )
