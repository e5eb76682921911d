"""Every draw is a function of its key: nothing else moves it, and it moves nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from coterie.randomness import Purpose, generator, numpy_generator, seeded

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


def test_a_negative_key_is_refused() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        generator(0, -1)


def test_no_two_ends_share_a_number() -> None:
    assert len({int(p) for p in Purpose}) == len(Purpose)
