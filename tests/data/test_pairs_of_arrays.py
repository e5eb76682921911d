"""Pairs of arrays as a client's parts, and parts that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie
from coterie.settings import UserError

INPUTS = np.random.default_rng(0).random((40, 3), "f")
TARGETS = np.arange(40) % 2


def world(part: Any) -> coterie.World:
    return coterie.from_lists({"a": part, "b": part}, model="linear")


@pytest.mark.parametrize(
    "pair",
    [
        (INPUTS, TARGETS),
        [INPUTS, TARGETS],
        (torch.tensor(INPUTS), torch.tensor(TARGETS)),
        (pd.DataFrame(INPUTS), pd.Series(TARGETS)),
    ],
)
def test_a_pair_of_arrays_is_inputs_and_targets(pair: Any) -> None:
    made = world({"train": pair})
    assert len(made.clients[0].train) == 32
    inputs, targets = made.clients[0].train.batch(torch.arange(32))
    assert (inputs.shape, targets.unique().tolist()) == ((32, 3), [0, 1])


def test_pairs_may_be_given_for_each_part_with_subjects() -> None:
    made = world(
        {"train": (INPUTS, TARGETS), "test": (INPUTS[:9], TARGETS[:9]), "subject": TARGETS}
    )
    assert len(made.clients[0].test) == 9
    assert made.clients[0].train.subjects is not None
    next(iter(coterie.run("fedavg", made, rounds=1, workers=1)))


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            {"train": {"x": INPUTS, "y": TARGETS}},
            "client a: its train part must be a data set or a pair .inputs, targets., got a mapping "
            "with x, y; arrays may also be given by the keys x_train, y_train",
        ),
        ({"train": INPUTS}, "its train part must be .* got an array"),
        ({"train": (INPUTS, TARGETS[:30])}, "40"),
        (
            {
                "train": (INPUTS, TARGETS),
                "test": torch.utils.data.TensorDataset(torch.tensor(INPUTS), torch.tensor(TARGETS)),
            },
            "its test part is none: give pairs for all parts, or data sets",
        ),
    ],
)
def test_other_parts_are_refused_at_once(part: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        world(part)


def test_a_list_of_items_remains_a_data_set() -> None:
    items = [(torch.tensor(row), int(target)) for row, target in zip(INPUTS, TARGETS, strict=True)]
    made = coterie.from_lists([{"train": items}] * 2, model=lambda: torch.nn.Linear(3, 2))
    assert len(made.clients[0].train) == 32
