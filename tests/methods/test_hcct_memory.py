"""HCCT's memory of cosines: by hand, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_hcct import PAPER

from coterie.clustering import gram
from coterie.methods import HCCT
from coterie.methods._hcct_memory import begin, forget, recall, remember
from worlds import THREE, TRUTH, grouped, last, play


@pytest.mark.slow
def test_without_memory_noise_dissolves_a_group_at_its_optimum() -> None:
    world = grouped(THREE)
    assert all(p.groups == TRUTH for p in list(play(HCCT(), world, 60))[1:])
    assert last(HCCT(**PAPER), world, 60).groups != TRUTH


def test_memory_by_hand() -> None:
    # Norms 2 and 1, cosine 1/2; then 1 and 1, cosine -1. β = 1/2: (1/2 · 1 - 1) / (1/2 · 2 + 1) =
    # -1/4.
    first = remember(None, (7, 3), np.array([[4.0, 1.0], [1.0, 1.0]]), 0.5)
    clients, matrix = recall(first, (3, 7))
    assert clients == (3, 7)
    assert matrix.tolist() == [[1.0, 1.0], [1.0, 4.0]]
    second = remember(first, (3, 7), np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.5)
    # Mean norms: 7 has (1/2 · 4 + 1) / (1/2 · 2 + 1) = 1.5, 3 has 1.
    assert recall(second, (3, 7))[1].tolist() == [[1.0, -0.25 * 1.5], [-0.25 * 1.5, 1.5**2]]


def test_memory_tells_of_silent_clients_only_what_was_seen() -> None:
    memory = remember(None, (1, 2), np.eye(2), 0.9)
    memory = remember(memory, (2, 3), np.ones((2, 2)), 0.9)
    assert recall(memory, (2, 3))[0] == (2, 3)  # 1 and 3 were never heard together
    assert recall(memory, (2,))[0] == (1, 2)
    assert recall(memory, (3,))[0] == (2, 3)
    left = forget(memory, {2})
    assert left is not None
    assert left.clients == (1, 3)
    assert left.weights[0, 1] == 0
    assert forget(left, {1, 3}) is None


def test_a_first_update_is_compared_with_first_updates() -> None:
    axes = torch.eye(2)
    memory = begin(remember(None, (1, 2), np.eye(2), 0.9), (1, 2), axes)
    memory = remember(memory, (1, 2), np.array([[1.0, -1.0], [-1.0, 1.0]]), 0.9)
    # Now 5 comes, and moves as 1 did at first. What 1 and 2 say in this epoch is another matter.
    memory = begin(remember(memory, (1, 2, 5), np.diag([1.0, 1.0, 4.0]), 0.9), (5,), 2 * axes[:1])
    clients, matrix = recall(memory, (1, 2, 5))
    cosines = matrix / np.sqrt(np.outer(np.diagonal(matrix), np.diagonal(matrix)))
    assert clients == (1, 2, 5)
    assert cosines[2].tolist() == [1.0, 0.0, 1.0]
    assert memory.began == (1, 2, 5)
    left = forget(memory, {1})
    assert left is not None
    assert left.firsts is not None
    assert left.began == (2, 5)
    assert left.firsts.tolist() == [[0.0, 1.0], [2.0, 0.0]]


def test_memory_of_one_epoch_is_its_gram_matrix() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    rows[2] = 0.0
    np.testing.assert_allclose(
        recall(remember(None, tuple(range(6)), gram(rows), 0.9), range(6))[1],
        gram(rows),
        atol=1e-12,
    )
