"""Similarities layer by layer: what they are by definition, and how they add up to the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import cosine, gram, layer_cosines, layer_grams, layer_similarities

COLUMNS = {"conv1": (0, 3), "conv2": (3, 4), "fc": (4, 9)}


@given(st.integers(1, 7), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_layers_grams_add_up_to_the_whole_one(n: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((n, 9))
    grams = layer_grams(rows, COLUMNS)
    assert list(grams) == list(COLUMNS)
    assert np.allclose(sum(grams.values()), gram(rows), atol=1e-12)
    assert np.allclose(layer_cosines(grams)["all"], cosine(gram(rows)), atol=1e-12)


@given(st.integers(1, 7), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_similarity_is_the_cosine_of_that_layers_columns(n: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((n, 9)) + 1
    found = layer_similarities(rows, COLUMNS)
    assert set(found) == {*COLUMNS, "all"}
    for name, (start, stop) in {**COLUMNS, "all": (0, 9)}.items():
        part = rows[:, start:stop]
        for i in range(n):
            for j in range(n):
                by_hand = part[i] @ part[j] / (np.linalg.norm(part[i]) * np.linalg.norm(part[j]))
                assert found[name][i, j] == pytest.approx(by_hand, abs=1e-12)


def test_columns_of_no_layer_do_not_count() -> None:
    rows = torch.tensor([[1.0, 0.0, 5.0], [1.0, 0.0, -5.0]])
    assert layer_similarities(rows, {"only": (0, 2)})["all"][0, 1] == 1


def test_a_layer_that_nobody_moved_is_alike_to_nobody() -> None:
    found = layer_similarities(
        np.array([[0.0, 1.0], [0.0, 2.0]]), {"still": (0, 1), "moved": (1, 2)}
    )
    assert (found["still"][0, 1], found["moved"][0, 1], found["all"][0, 1]) == (0, 1, 1)


def test_rows_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1"):
        layer_similarities(np.array([[1.0, 1.0], [np.nan, 1.0]]), {"a": (0, 2)})
    with pytest.raises(ValueError, match="not a range of columns"):
        layer_similarities(np.ones((2, 2)), {"a": (0, 3)})
