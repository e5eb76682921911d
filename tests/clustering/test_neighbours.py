"""Closeness of a newcomer, by the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import closeness, cosine, distances, gram, manhattan


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
    assert closeness(rows[0], rows).tolist() == pytest.approx(
        cosine(gram(rows.double()))[0].tolist(), abs=1e-5
    )


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="metric must be one of cosine, l2, l1, got 'ward'"):
        closeness(torch.zeros(2), torch.zeros(1, 2), "ward")
