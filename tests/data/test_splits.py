"""Holding out, finding test examples, and sharing what is equal."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import splits
from coterie.data.augmentation import crop_and_flip
from coterie.data.examples import Pool
from coterie.data.shift import Shift, label_swaps, rotations
from coterie.data.splits import Selections, Views
from coterie.randomness import generator
from coterie.settings import SettingError, UserError


@given(
    count=st.integers(3, 500),
    train=st.floats(0.01, 0.98),
    validation=st.sampled_from([0.0, 0.01]),
    test=st.booleans(),
)
def test_pieces_are_disjoint_and_none_is_missing(
    count: int, train: float, validation: float, test: bool
) -> None:
    mine = np.arange(100, 100 + count)
    pieces = splits.hold_out(mine, train, validation, test)
    together = np.concatenate(pieces)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, mine).all()
    assert len(pieces[0]) >= 1
    assert bool(len(pieces[1])) == bool(validation)
    assert bool(len(pieces[2])) == test
    if test:
        assert len(together) == count
    assert abs(len(pieces[0]) - train * count) <= 2


def test_ninety_digits_make_72_9_and_9() -> None:
    assert [len(piece) for piece in splits.hold_out(np.arange(90), 0.8, 0.1, True)] == [72, 9, 9]
    assert [len(piece) for piece in splits.hold_out(np.arange(3000), 0.04, 0.0, True)] == [
        120,
        0,
        2880,
    ]


def test_too_few_to_hold_out() -> None:
    with pytest.raises(UserError, match="client 7 has 2 examples, too few to hold some out"):
        splits.hold_out(np.arange(2), 0.8, 0.1, True, "client 7")


@pytest.mark.parametrize(
    ("train", "validation", "test"), [(0.9, 0.1, "share"), (1.0, 0.0, "share"), (0.9, 0.2, "whole")]
)
def test_shares_must_leave_something(train: float, validation: float, test: str) -> None:
    with pytest.raises(SettingError, match="train and validation must"):
        splits.check_shares(train, validation, test)
    splits.check_shares(0.9, 0.1, "whole")


@pytest.mark.parametrize(
    ("train", "validation"), [(0.0, 0.1), (-1, 0.1), (0.8, -0.5), ("0.8", 0.1), (float("nan"), 0)]
)
def test_shares_are_fractions(train: Any, validation: Any) -> None:
    with pytest.raises(SettingError, match=r"(train|validation) must be a number >=? 0, <= 1"):
        splits.check_shares(train, validation, "share")


LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1, 2])
POOL = Pool(
    torch.rand(10, 1, 4, 4, generator=generator(0)),
    LABELS,
    {"domain": torch.tensor([0] * 5 + [1] * 5)},
)


def found(rule: str, mine: list[int], kind: tuple[str, int] | None = None) -> list[int]:
    return Selections(POOL).rows(rule, np.array(mine), kind).tolist()


def test_rules_for_test_examples() -> None:
    assert found("whole", [0]) == list(range(10))
    assert found("whole", [0], ("domain", 1)) == [5, 6, 7, 8, 9]
    assert found("classes", [0, 2, 2]) == [0, 1, 2, 9]
    assert found("classes", [0, 1], ("domain", 0)) == [0, 1, 2, 3, 4]
    assert found("own", [0, 1, 1]) == [0, 1, 2, 3, 4, 5, 6, 7, 8]  # 1 : 2, as 3 : 6
    assert found("own", [0, 0, 1]) == [0, 1, 2, 3]  # 2 : 1, as 3 : 1.5


def test_a_rare_class_does_not_starve_the_others() -> None:
    assert len(found("own", [0] * 150 + [1] * 150 + [2])) == 6


def test_no_test_example_is_told() -> None:
    with pytest.raises(UserError, match="has no example for one of the clients"):
        found("classes", [5])


def test_equal_selections_are_one_object() -> None:
    tests = Selections(POOL)
    assert tests.rows("whole", np.array([0]), None) is tests.rows("whole", np.array([1]), None)
    assert tests.rows("classes", np.array([0, 1]), None) is tests.rows(
        "classes", np.array([1, 0, 0]), None
    )
    assert tests.rows("classes", np.array([0]), None) is not tests.rows(
        "classes", np.array([1]), None
    )


def test_label_shifts_share_inputs_and_index() -> None:
    index, view = torch.arange(10), Views(POOL, label_swaps(2, 3, [(0, 1), (1, 2)]))
    a, b = view.split(index, 0), view.split(index, 1)
    assert view.split(index, 0) is a
    assert a.inputs is b.inputs is POOL.inputs
    assert a.index is b.index
    assert a.targets.tolist() != b.targets.tolist()


def test_rotations_share_one_training_pool() -> None:
    view = Views(POOL, rotations(2, (1, 4, 4), (0, 90)))
    parts = [np.array([0, 2, 4]), np.array([1, 3])]
    view.turn_each(parts, np.array([0, 1]))
    a, b = view.split(torch.from_numpy(parts[0]), 0), view.split(torch.from_numpy(parts[1]), 1)
    assert a.inputs is b.inputs
    assert torch.equal(a.batch(torch.arange(3))[0], POOL.inputs[[0, 2, 4]])
    assert torch.equal(b.batch(torch.arange(2))[0], torch.rot90(POOL.inputs[[1, 3]], 1, (2, 3)))


def test_rotations_of_a_shared_test_pool_are_one_pool_each() -> None:
    view, index = Views(POOL, [Shift(), Shift(angle=180)]), torch.arange(10)
    assert view.split(index, 0).inputs is POOL.inputs
    assert torch.equal(view.split(index, 1).inputs, POOL.inputs.flip(2, 3))


def test_augmentation_moves_and_mirrors() -> None:
    images = torch.zeros(200, 2, 9, 9)
    images[:, 0, 4, 4] = images[:, 1, 4, 3] = torch.arange(
        1.0, 201
    )  # the middle stays in whatever the move
    made = crop_and_flip(images, generator(0))
    assert made.shape == images.shape
    assert torch.equal(
        made[:, 0].amax((1, 2)), torch.arange(1.0, 201)
    )  # every image keeps its own pixels
    _, down, across = made[:, 0].nonzero(as_tuple=True)
    assert set(down.tolist()) == set(across.tolist()) == set(range(9))
    neighbour = {int(where) - int(across[image]) for image, _, where in made[:, 1].nonzero()}
    assert neighbour == {-1, 1}  # left of the middle, or right of it where mirrored
    again = crop_and_flip(images, generator(0))
    assert torch.equal(made, again)
