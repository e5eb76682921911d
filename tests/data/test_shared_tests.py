"""How many clients test an example: by rows of a pool, by content, and in the scenarios whose clients share test sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie
from coterie.data.adversaries import Attack
from coterie.data.shared_tests import times_tested
from coterie.data.world import ClientData, Split, World, whole

POOL = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def world(tests: list[Split], attacks: dict[int, Attack] | None = None) -> World:
    def train() -> Split:
        return whole(torch.zeros(4, 4), torch.tensor([0, 1, 0, 1]))

    clients = {
        i: ClientData(train=train(), validation=train().at(slice(0)), test=test)
        for i, test in enumerate(tests)
    }
    return World(clients=clients, model=lambda: torch.nn.Linear(4, 2), attacks=attacks or {})


def of_pool(rows: list[int]) -> Split:
    return Split(POOL, torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64))


def copied(rows: list[int]) -> Split:
    """The same examples in a pool of its own."""
    return whole(POOL[rows].clone(), torch.zeros(len(rows), dtype=torch.int64))


@pytest.mark.parametrize("make", [of_pool, copied])
def test_each_example_counts_the_clients_that_test_it(make: object) -> None:
    assert callable(make)
    found = times_tested(world([make([0, 1, 2, 3]), make([2, 3]), make([3, 4]), make([7])]))
    assert found == {0: (1 + 1 + 2 + 3) / 4, 1: (2 + 3) / 2, 2: (3 + 1) / 2, 3: 1.0}


def test_equal_rows_of_a_client_whose_rows_repeat_are_several_examples() -> None:
    """Three answers to two questions: many people give the same."""
    rows = [
        torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
    ]
    splits = [whole(one, torch.zeros(len(one), dtype=torch.int64)) for one in rows]
    assert times_tested(world(splits)) == {0: 1.0, 1: 1.0}
    assert times_tested(
        world([splits[0], whole(rows[0].clone(), splits[0].targets), splits[1]])
    ) == {0: 2.0, 1: 2.0, 2: 1.0}


def test_hostile_clients_do_not_count() -> None:
    found = times_tested(
        world([of_pool([0, 1]), of_pool([0, 1]), of_pool([0, 1])], {2: Attack(kind="sign-flip")})
    )
    assert found == {0: 2.0, 1: 2.0}


def test_lists_of_clients_with_the_same_test_arrays() -> None:
    rng = np.random.default_rng(0)
    test = rng.normal(size=(10, 3)), rng.integers(0, 2, 10)
    clients = [
        {
            "train": (rng.normal(size=(8, 3)), rng.integers(0, 2, 8)),
            "test": (test[0].copy(), test[1].copy()),
        }
        for _ in range(3)
    ]
    given = [
        {"x": c["train"][0], "y": c["train"][1], "x_test": c["test"][0], "y_test": c["test"][1]}
        for c in clients
    ]
    assert set(times_tested(coterie.from_lists(given, classes=2)).values()) == {3.0}


def test_scenarios_with_whole_test_sets_share_and_others_do_not() -> None:
    shared = coterie.SCENARIOS["digits/label-permutation"].build(0)
    others = coterie.SCENARIOS["synthetic/groups"].build(0)
    assert (max(times_tested(shared).values()) > 1) == (
        coterie.SCENARIOS["digits/label-permutation"].holdout.test == "whole"
    )
    assert set(times_tested(others).values()) == {1.0}
