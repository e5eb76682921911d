"""Answers of hostile clients where the server sees single answers: impossible ones are found, others limited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.contrib.private.answers import MAX_NOISE_RATIO, flaw_of, limited_answers
from coterie.contrib.private.cells import CellQuestion
from coterie.contrib.private.moments import Moments, congruence_from_sums

K = 6
QUESTIONS: dict[str, Any] = {
    "sizes": CellQuestion(ask="sizes"),
    "moments": CellQuestion(ask="moments", scale=3.0, centres=np.eye(2, K), cells=(0, 1)),
    "coordinates": CellQuestion(
        ask="coordinates", scale=3.0, axis=np.eye(K)[0], low=-1.0, high=1.0
    ),
    "means": CellQuestion(ask="means", scale=3.0, centres=np.eye(2, K)),
    "norms": CellQuestion(ask="norms", scale=3.0),
    "crossed": CellQuestion(ask="crossed", scale=3.0, centres=np.eye(2, K), cells=(1,)),
}


def answer_of(name: str, seed: int, size: float = 1.0) -> np.ndarray:
    """An honest answer, in double precision as the server reads it."""
    halves = size * np.random.default_rng(seed).normal(size=(2, K))
    answer = QUESTIONS[name].answer(halves, norm=size, examples=seed)
    return np.asarray(answer, dtype=np.float64)


# -- answers that no client can have
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUESTIONS)
@given(seed=st.integers(0, 10_000), size=st.floats(1e-3, 1e6))
def test_honest_answers_have_no_flaw(name: str, seed: int, size: float) -> None:
    assert flaw_of(QUESTIONS[name], answer_of(name, seed, size)) is None


@pytest.mark.parametrize("name", QUESTIONS)
def test_ones_everywhere_are_no_answer(name: str) -> None:
    """Each number is within -1 and 1: this is the most that a client can add to every sum."""
    flaw = flaw_of(QUESTIONS[name], np.ones_like(answer_of(name, 0)))
    assert flaw is not None
    assert flaw.startswith("its answer to a question")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 0.5),  # half a client
        (1, 0.9),  # the fourth moment of another noise
        (2, -0.9),  # another Σ M than that of Σ M Mᵀ
        (2 + K, 0.9),  # another Σ M Mᵀ
        (-1, 0.9),  # no product of a vector with itself
        (-1, -0.1),  # a negative variance
    ],
)
def test_moments_of_no_client_are_found(place: int, value: float) -> None:
    question = CellQuestion(ask="moments", scale=3.0)
    answer = question.answer(np.random.default_rng(1).normal(size=(2, K)))
    assert answer is not None
    assert flaw_of(question, answer) is None
    answer[place] = value
    assert flaw_of(question, answer) is not None


# -- answers that are limited by those of the others
# -----------------------------------------------------------------------------------------------------


def moments_of_groups(rng: np.random.Generator, distance: float) -> dict[int, np.ndarray]:
    """The answers of twelve clients in two groups."""
    question = CellQuestion(ask="moments", scale=10.0)
    signals = np.zeros((12, 30))
    signals[:6, 0] = distance
    answers = {}
    for client in range(12):
        halves = signals[client] + rng.normal(size=(2, 30)) / 4
        answer = question.answer(halves)
        assert answer is not None
        answers[client] = answer.astype(np.float64)
    return answers


def p_of(answers: dict[int, np.ndarray]) -> float:
    total = np.sum(list(answers.values()), axis=0)
    return congruence_from_sums(Moments.from_vector(total, 30)).p


def test_noise_of_one_client_does_not_hide_that_the_others_differ() -> None:
    question = CellQuestion(ask="moments", scale=10.0)
    answers = moments_of_groups(np.random.default_rng(3), distance=2.0)
    assert p_of(answers) < 1e-6
    long = np.zeros(30)
    long[0] = 10.0
    hostile_answer = question.answer(np.stack([long, -long]))
    assert hostile_answer is not None
    assert flaw_of(question, hostile_answer) is None
    answers[11] = hostile_answer.astype(np.float64)
    assert p_of(answers) > 0.01
    limited = limited_answers(question, answers, hostile=1)
    assert p_of(limited) < 1e-6
    assert not limited[11].any()


def test_noise_a_little_above_that_of_the_others_counts() -> None:
    question = CellQuestion(ask="moments", scale=10.0)
    answers = moments_of_groups(np.random.default_rng(4), distance=0.0)
    limited = limited_answers(question, answers, hostile=1)
    traces = []
    for answer in answers.values():
        traces.append(np.trace(Moments.from_vector(answer, 30).noise))
    assert max(traces) < MAX_NOISE_RATIO * np.sort(traces)[-2]
    for client, answer in answers.items():
        moments = Moments.from_vector(limited[client], 30)
        assert np.array_equal(moments.noise, Moments.from_vector(answer, 30).noise)


@pytest.mark.parametrize("ask", ["moments", "means"])
def test_no_signal_is_longer_than_that_of_all_but_one(ask: Any) -> None:
    question = CellQuestion(ask=ask, scale=10.0)
    answers = {}
    for client in range(5):
        signal = np.full((2, K), 0.1 + (client == 4))
        answer = question.answer(signal)
        assert answer is not None
        answers[client] = answer.astype(np.float64)
    limited = limited_answers(question, answers, hostile=1)
    for client in range(4):
        np.testing.assert_array_equal(limited[client], answers[client])
    # All have the same direction, so the longest becomes one of the others.
    np.testing.assert_allclose(limited[4], answers[0], rtol=1e-6)


@pytest.mark.parametrize("hostile", [0, 3])
def test_without_a_majority_or_without_hostile_clients_answers_stay(hostile: int) -> None:
    question = CellQuestion(ask="moments", scale=10.0)
    answers = moments_of_groups(np.random.default_rng(5), distance=2.0)
    some = {client: answers[client] for client in range(6)}
    limited = limited_answers(question, some, hostile)
    assert all(np.array_equal(limited[client], some[client]) for client in some)


@pytest.mark.parametrize("hostile", [0, 1, 2])
def test_clients_that_are_alike_are_as_rarely_told_apart(hostile: int) -> None:
    """False alarms at the 5 % level, of clients without a difference."""
    rng = np.random.default_rng(6)
    question = CellQuestion(ask="moments", scale=10.0)
    alarms = 0
    for _ in range(200):
        answers = moments_of_groups(rng, distance=0.0)
        alarms += p_of(limited_answers(question, answers, hostile)) < 0.05
    assert alarms <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)
