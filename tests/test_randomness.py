"""Every draw is a function of its key: nothing else moves it, and it moves nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from coterie.randomness import GlobalStates, Purpose, generator, numpy_generator, seeded

# As the code makes them: seed, purpose, exchange, client.
KEYS = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from(Purpose),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


def draws(key: tuple[int, ...]) -> tuple[float, float, float]:
    with seeded(*key):
        inside = float(torch.rand(1, dtype=torch.float64))
    drawn = float(torch.rand(1, generator=generator(*key), dtype=torch.float64))
    return float(numpy_generator(*key).random()), drawn, inside


@given(KEYS, KEYS)
def test_draws_depend_on_the_key_alone(key: tuple[int, ...], other: tuple[int, ...]) -> None:
    first = draws(key)
    assert draws(key) == first
    assume(other != key)
    assert all(a != b for a, b in zip(draws(other), first, strict=True))


def test_every_place_of_a_key_counts() -> None:
    base = (3, int(Purpose.TRAIN), 1, 2)
    near = [
        base,
        *(tuple(k + (i == j) for j, k in enumerate(base)) for i in range(4)),
        (3, 6, 2, 1),
        (*base, 1),
    ]
    near += [(3,), (3, 0), (3, 0, 0), (0, 3)]  # NumPy takes trailing zeros for nothing
    for found in zip(*map(draws, near), strict=True):
        assert len(set(found)) == len(near)


def test_a_scope_leaves_the_global_generators_as_they_were() -> None:
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    with seeded(1, 2):
        torch.rand(10)
    with pytest.raises(RuntimeError), seeded(1, 2):
        torch.rand(10) @ torch.rand(3)  # fails after it has drawn
    generator(1, 2), numpy_generator(1, 2).random()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002


def test_scopes_nest() -> None:
    with seeded(1):
        torch.rand(3)
        alone = torch.rand(1)
    with seeded(1):
        torch.rand(3)
        with seeded(2):
            torch.rand(7)
        assert torch.equal(torch.rand(1), alone)


@pytest.mark.parametrize("drawn_before", [0, 1, 700])
@pytest.mark.parametrize("drawn_within", [0, 3])
def test_scopes_of_own_code_nest(drawn_before: int, drawn_within: int) -> None:
    """The user's generators continue behind an inner scope, whether or not they had drawn before it."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002

    def drawn() -> list[float]:
        return [float(np.random.normal()), random.gauss(0.0, 1.0)]  # noqa: NPY002

    def within(inner: bool) -> list[list[float]]:
        with seeded(1) as outer:
            numbers = [drawn() for _ in range(drawn_before)]
            if inner:
                with seeded(2) as scope:
                    assert not scope.moved
                    numbers_within = [drawn() for _ in range(drawn_within)]
                    assert scope.moved == bool(drawn_within)
                with seeded(2):
                    assert [drawn() for _ in range(drawn_within)] == numbers_within
            assert outer.moved == bool(drawn_before)
            return [*numbers, drawn(), drawn()]

    assert within(inner=True) == within(inner=False)
    assert random.getstate() == python_state
    assert str(np.random.get_state()) == str(numpy_state)  # noqa: NPY002


def test_code_may_seed_a_generator_itself_around_a_scope() -> None:
    with seeded(1):
        np.random.seed(5)  # noqa: NPY002
        alone = np.random.random()  # noqa: NPY002
    with seeded(1):
        np.random.seed(5)  # noqa: NPY002
        with seeded(2):
            np.random.random()  # noqa: NPY002
        assert np.random.random() == alone  # noqa: NPY002


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        random.random,
        lambda: random.gauss(0.0, 1.0),
        np.random.random,
        np.random.normal,
    ],
)
def test_global_states_show_a_draw_and_set_it_back(draw: Callable[[], Any]) -> None:
    with seeded(1):
        numbers = [draw() for _ in range(3)]
    with seeded(1):
        assert draw() == numbers[0]
        states = GlobalStates()
        assert not states.moved
        assert draw() == numbers[1]
        assert states.moved
        states.restore()
        assert not states.moved
        assert draw() == numbers[1]


def test_another_global_generator_of_numpy_stays() -> None:
    twister = np.random.get_bit_generator()  # type: ignore[attr-defined]
    other = np.random.PCG64(3)
    np.random.set_bit_generator(other)  # type: ignore[attr-defined]
    try:
        with seeded(1) as scope:
            assert not scope.moved
            assert np.random.random() == draw_of_numpy(1)  # noqa: NPY002
            assert scope.moved
        assert np.random.get_bit_generator() is other  # type: ignore[attr-defined]
    finally:
        np.random.set_bit_generator(twister)  # type: ignore[attr-defined]


def draw_of_numpy(key: int) -> float:
    with seeded(key):
        return float(np.random.random())  # noqa: NPY002


def test_a_negative_key_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        generator(0, -1)


def test_no_two_ends_share_a_number() -> None:
    assert len({int(p) for p in Purpose}) == len(Purpose)
