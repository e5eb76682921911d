"""What makes groups differ."""

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import shift
from coterie.data.shift import Shift
from coterie.settings import SettingError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(clients=st.integers(1, 50), groups=st.integers(1, 10), seed=st.integers(0, 99))
def test_groups_are_equal_and_complete(clients: int, groups: int, seed: int) -> None:
    if groups > clients:
        with pytest.raises(
            SettingError, match=f"{groups} groups need at least as many clients, got {clients}"
        ):
            shift.deal(clients, groups, rng(seed))
        return
    sizes = np.bincount(shift.deal(clients, groups, rng(seed)), minlength=groups)
    assert sizes.sum() == clients
    assert len(sizes) == groups
    assert sizes.max() - sizes.min() <= 1


def test_ids_reveal_nothing_unless_asked() -> None:
    assert shift.deal(8, 4, None).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert shift.deal(20, 4, rng()).tolist() != shift.deal(20, 4, None).tolist()


def test_permutations_are_distinct() -> None:
    shifts = shift.label_permutations(6, 3, rng())  # all there are
    assert sorted(s.labels.tolist() for s in shifts if s.labels is not None) == [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ]
    with pytest.raises(SettingError, match="3 classes have too few permutations for 7 groups"):
        shift.label_permutations(7, 3, rng())
    first = shift.label_permutations(3, 10, rng(), identity=True)[0]
    assert first.labels is not None
    assert first.labels.tolist() == list(range(10))


def test_swaps_exchange_two_labels() -> None:
    shifts = shift.label_swaps(4, 10)
    assert shifts[0].targets(torch.arange(10)).tolist() == [0, 7, 2, 3, 4, 5, 6, 1, 8, 9]  # 1-7
    assert shifts[1].targets(torch.arange(10)).tolist() == [0, 1, 2, 5, 4, 3, 6, 7, 8, 9]  # 3-5
    assert shifts[2].targets(torch.tensor([0, 8])).tolist() == [8, 0]
    assert shifts[3].targets(torch.tensor([2, 6])).tolist() == [6, 2]


@pytest.mark.parametrize(
    ("groups", "classes", "pairs", "sentence"),
    [
        (5, 10, shift.SWAPS, "label-swap with 5 groups needs as many pairs of labels, got 4"),
        (1, 4, [(1, 7)], r"two different labels from 0 to 3, got \[1, 7\]"),
        (1, 4, [(1, 1)], "two different labels"),
        (1, 4, [(1, 2, 3)], "two different labels"),
        (2, 4, [(1, 2), (2, 1)], "two groups would swap the same labels"),
    ],
)
def test_swaps_that_are_none(
    groups: int, classes: int, pairs: list[tuple[int, ...]], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        shift.label_swaps(groups, classes, pairs)


def test_rotations_turn_counter_clockwise() -> None:
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
    turned = [s.inputs(image)[0, 0].tolist() for s in shift.rotations(4, (1, 2, 2))]
    assert turned == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert [s.angle for s in shift.rotations(2, (1, 2, 2))] == [0, 180]
    assert [s.angle for s in shift.rotations(2, (1, 2, 2), (90, -90))] == [90, 270]
    assert [s.angle for s in shift.rotations(5, (1, 2, 2))] == [0, 72, 144, 216, 288]


@pytest.mark.parametrize("angle", [15, 130, 285])
def test_other_angles_are_those_of_scipy(angle: int) -> None:
    """Away from the border, where SciPy blends with what is outside in another way."""
    image = torch.rand(1, 1, 21, 21, generator=torch.Generator().manual_seed(0)) - 0.5
    ours = shift.rotated(image, angle)[0, 0].numpy()
    black = float(image.min())
    theirs = scipy.ndimage.rotate(image[0, 0].numpy(), angle, reshape=False, order=1, cval=black)
    y, x = np.mgrid[-10:11, -10:11]
    inside = x**2 + y**2 < 9**2
    np.testing.assert_allclose(ours[inside], theirs[inside], atol=1e-4)


def test_what_was_outside_is_black_and_many_images_are_rotated_as_few() -> None:
    images = torch.rand(5000, 1, 6, 6, generator=torch.Generator().manual_seed(0)) - 0.5
    images[0, 0, 0, 0] = images[4500, 0, 0, 0] = -1.0
    made = shift.rotated(images, 45)
    torch.testing.assert_close(made[:, 0, 0, 0], torch.full((5000,), -1.0))
    torch.testing.assert_close(made[4500:4501], shift.rotated(images[4500:4501], 45))


@pytest.mark.parametrize(
    ("groups", "shape", "angles", "sentence"),
    [
        (2, (1, 8, 6), (), "needs square images"),
        (2, (20,), (), "needs square images"),
        (2, (1, 8, 8), (0, 360), r"2 angles that differ by more than whole turns, got \[0, 360\]"),
        (2, (1, 8, 8), (45, 405), "2 angles that differ"),
        (3, (1, 8, 8), (0, 90), "3 angles that differ"),
    ],
)
def test_rotations_that_are_none(
    groups: int, shape: tuple[int, ...], angles: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        shift.rotations(groups, shape, angles)


def test_a_shift_of_nothing_copies_nothing() -> None:
    images, labels = torch.zeros(3, 1, 2, 2), torch.arange(3)
    assert Shift().inputs(images) is images
    assert Shift().targets(labels) is labels
