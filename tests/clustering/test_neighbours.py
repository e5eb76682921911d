"""Closeness of a newcomer, by the definition, and sketches: short, linear, seeded, and right on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import closeness, cosine, distances, gram, manhattan, sketch


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_closeness_is_what_the_matrices_say(seed: int, m: int, d: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    rows = torch.randn(m + 1, d, generator=gen)
    matrix = gram(rows)
    expected = {"cosine": cosine(matrix), "l2": -distances(matrix), "l1": -manhattan(rows)}
    for metric, full in expected.items():
        assert closeness(rows[0], rows[1:], metric).numpy() == pytest.approx(full[0, 1:], abs=2e-3)


def test_a_zero_update_is_like_nobody() -> None:
    assert closeness(torch.zeros(2), torch.tensor([[1.0, 0.0]])).tolist() == [0.0]
    assert closeness(torch.tensor([1.0, 0.0]), torch.zeros(1, 2)).tolist() == [0.0]


@pytest.mark.parametrize("scale", [1e-11, 1e-7, 1e-3])
def test_small_updates_have_the_cosines_of_large_ones(scale: float) -> None:
    rows = scale * torch.tensor([[3.0, 4.0], [4.0, 3.0]])
    assert closeness(rows[0], rows).tolist() == pytest.approx(cosine(gram(rows.double()))[0].tolist(), abs=1e-5)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="metric must be one of cosine, l2, l1, got 'ward'"):
        closeness(torch.zeros(2), torch.zeros(1, 2), "ward")


def test_a_sketch_is_linear_and_the_same_for_the_same_seed() -> None:
    gen = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 300, generator=gen)
    both = sketch(torch.stack([x, y, x + 2 * y]), 64)
    assert torch.allclose(both[2], both[0] + 2 * both[1], atol=1e-4)
    assert torch.equal(both[0], sketch(x[None], 64)[0])  # whoever else is in the matrix
    assert not torch.equal(both[0], sketch(x[None], 64, seed=1)[0])
    assert sketch(x[None], 300).data_ptr() == x.data_ptr()


def test_the_sketch_of_a_unit_vector_has_one_entry_per_block() -> None:
    short = sketch(torch.eye(50)[:1].repeat(1, 3), 40)  # 150 numbers, three of them 1
    assert sketch(torch.eye(150)[7:8], 40).abs().sort().values[0, -4:].tolist() == [0.5] * 4
    assert int((sketch(torch.eye(150)[7:8], 40) != 0).sum()) == 4
    assert short.shape == (1, 40)


def test_inner_products_are_right_on_average_and_spread_as_the_bound_says() -> None:
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(400, generator=gen)
    y = 0.5 * x + torch.randn(400, generator=gen)
    found = []
    for seed in range(400):
        a, b = sketch(torch.stack([x, y]), 64, seed)
        found.append(float(a @ b))
    true = float(x @ y)
    bound = float(torch.sqrt((x @ x * (y @ y) + (x @ y) ** 2) / 64))
    assert abs(np.mean(found) - true) < 4 * bound / 20
    assert 0.5 * bound < np.std(found) < 1.15 * bound


@pytest.mark.parametrize("size", [0, 3, 6, -4])
def test_a_sketch_needs_a_size_that_is_a_multiple_of_four(size: int) -> None:
    with pytest.raises(ValueError, match="a sketch's size must be a positive multiple of 4"):
        sketch(torch.zeros(1, 10), size)
