"""Whether losses still fall: made-up curves whose answer is plain."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from coterie.report.learning import Losses, still_falling


def losses(
    curve: Callable[[int], float], rounds: int, clients: int = 8, noise: float = 0.0, seed: int = 0
) -> Losses:
    """The losses of clients along a curve, each with an offset of its own and noise in each round."""
    rng = np.random.default_rng(seed)
    offsets = rng.normal(size=clients) * 0.2
    return {
        number: {
            client: curve(number) + offsets[client] + noise * float(rng.normal())
            for client in range(clients)
        }
        for number in range(1, rounds + 1)
    }


@pytest.mark.parametrize(
    ("curve", "rounds", "falls"),
    [
        (lambda t: 2 - 0.01 * t, 20, True),  # a straight line
        (lambda t: math.exp(-t / 10), 15, True),
        (lambda t: math.exp(-t / 10), 60, False),
        (lambda t: 1 / t, 20, False),
        (lambda t: 1.0, 20, False),
        (lambda t: 1 + 0.01 * t, 20, False),  # it rises
        (lambda t: abs(t - 10) / 10, 20, False),  # it has risen again
        (
            lambda t: 0.6931 - 0.0002 * t,
            5,
            True,
        ),  # 5 rounds at the loss of chance, 0.03 % lower in each
    ],
)
@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_curves_whose_answer_is_plain(
    curve: Callable[[int], float], rounds: int, falls: bool, noise: float
) -> None:
    assert (still_falling(losses(curve, rounds, noise=noise)) is not None) == falls


def test_the_fall_is_that_of_the_last_quarter_of_the_tested_rounds() -> None:
    found = still_falling(
        {number: {0: 3.0 - number / 10, 1: 2.0 - number / 10} for number in (2, 4, 6, 8, 10)}
    )
    assert found
    assert (found.first, found.last) == (8, 10)
    assert (found.before, found.after) == (pytest.approx(1.7), pytest.approx(1.5))


def test_noise_is_rarely_taken_for_a_fall() -> None:
    flat = [still_falling(losses(lambda t: 1.0, 12, noise=0.1, seed=seed)) for seed in range(400)]
    assert sum(one is not None for one in flat) / len(flat) < 0.05


@pytest.mark.parametrize("given", [{}, {1: {0: 1.0}}, {1: {0: 1.0}, 2: {1: 0.5}}])
def test_without_two_tests_of_a_client_nothing_is_said(given: Losses) -> None:
    assert still_falling(given) is None


def test_clients_that_came_late_do_not_make_a_fall() -> None:
    curve = losses(lambda t: 1.0, 8, clients=4)
    for number in range(5, 9):
        curve[number][99] = 0.0  # type: ignore[index]
    assert still_falling(curve) is None
