"""Clustering by sums: what a client answers, what the server makes of the sums, and that sums are enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.contrib.private.cells import (
    COORDINATE_BINS,
    COVERED,
    CellQuestion,
    centres_of,
    coordinates,
    cuts,
    norms_of,
    sizes_of,
    two_centres,
)
from coterie.contrib.private.moments import Crossed, Moments

ASKS: dict[str, Any] = {
    "sizes": CellQuestion(ask="sizes"),
    "moments": CellQuestion(ask="moments", scale=3.0, centres=np.eye(2, 4), cells=(0, 1)),
    "coordinates": CellQuestion(
        ask="coordinates",
        scale=3.0,
        centres=np.eye(2, 4),
        cells=(1,),
        axis=np.eye(4)[0],
        low=-1.0,
        high=1.0,
    ),
    "means": CellQuestion(ask="means", scale=3.0, centres=np.eye(2, 4)),
    "cell": CellQuestion(ask="cell", scale=3.0, centres=np.eye(2, 4)),
    "norms": CellQuestion(ask="norms", scale=3.0),
    "distances": CellQuestion(ask="distances", scale=3.0, centres=np.eye(2, 4)),
    "crossed": CellQuestion(ask="crossed", scale=3.0, centres=np.eye(2, 4), cells=(1,)),
    "places": CellQuestion(
        ask="places", scale=3.0, centres=np.eye(2, 4), cells=(0, 1), axis=np.eye(2, 4)
    ),
}


def drawn(seed: int, n: int = 6, k: int = 4) -> np.ndarray:
    """Sketches of both halves of n clients: ``(n, 2, k)``."""
    return np.random.default_rng(seed).normal(size=(n, 2, k))


@pytest.mark.parametrize("name", ASKS)
@given(seed=st.integers(0, 10_000), size=st.floats(1e-3, 1e6))
def test_an_answer_has_its_length_and_no_number_beyond_one(
    name: str, seed: int, size: float
) -> None:
    question = ASKS[name]
    answer = question.answer(size * drawn(seed)[0], norm=size, examples=seed)
    assert answer.shape == (question.length(4),)
    assert answer.dtype == np.float32
    assert (np.abs(answer) <= 1 + 1e-6).all()


@pytest.mark.parametrize("name", COVERED)
@given(seed=st.integers(0, 10_000), size=st.floats(1e-3, 1e6))
def test_noise_covers_an_answer_of_norm_one_at_most(name: str, seed: int, size: float) -> None:
    answer = ASKS[name].answer(size * drawn(seed)[0], norm=size, examples=seed)
    assert np.linalg.norm(answer.astype(np.float64)) <= 1 + 1e-6


@pytest.mark.parametrize("name", [name for name in ASKS if name not in ("sizes", "norms")])
def test_a_client_without_sketches_has_no_answer(name: str) -> None:
    assert ASKS[name].answer(None, norm=1.0, examples=3) is None
    assert ASKS["sizes"].answer(None, norm=None, examples=3) is None
    assert ASKS["norms"].answer(None, norm=None, examples=3) is None


def test_crossed_sums_of_a_cell_are_those_of_its_clients_around_its_centre() -> None:
    question, halves = ASKS["crossed"], drawn(3, n=40)
    total = sum(question.answer(own).astype(np.float64) for own in halves)
    within = [
        own / 3 - np.eye(2, 4)[1] for own in halves if ((own / 3).mean(0) @ [1, -1, 0, 0]) < 0
    ]
    assert 0 < len(within) < 40
    cut = [own / np.maximum(1, np.linalg.norm(own, axis=1, keepdims=True)) for own in within]
    expected = Crossed.of(*np.stack(cut, axis=1)).vector()
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)


def test_a_histogram_of_places_cuts_between_two_groups() -> None:
    axis = np.array([[0.0, 0.25, 0.0, 0.0]])  # a histogram that is four wide
    question = CellQuestion(ask="places", scale=1.0, centres=np.zeros((1, 4)), axis=axis)
    halves = [np.array([[0.0, sign * 0.8, 0.0, 0.0]] * 2) for sign in (-1, -1, 1)]
    (two,) = cuts(question, sum(question.answer(own) for own in halves), 0.0)
    assert two is not None
    np.testing.assert_allclose(two[:, 1], [-0.8, 0.8], atol=4 / COORDINATE_BINS)
    assert cuts(question, np.eye(1, COORDINATE_BINS)[0], 0.0) == [None]


def test_a_median_from_a_noisy_histogram_is_too_large_rather_than_too_small() -> None:
    norms = np.random.default_rng(0).lognormal(size=2000)
    question = CellQuestion(ask="norms", scale=8.0)
    counts = sum(question.answer(None, float(norm), 50).astype(np.float64) for norm in norms)
    bound, examples = norms_of(counts, 8.0)
    assert np.median(norms) <= bound <= np.median(norms) * 2**0.5
    assert 50 / 2**0.5 <= examples <= 50 * 2**0.5
    draws = np.random.default_rng(1).normal(size=(200, len(counts))) * 20
    found = np.array([norms_of(counts + one, 8.0)[0] for one in draws])
    assert np.quantile(found, 0.05) >= np.median(norms) / 2**0.5
    assert np.quantile(found, 0.95) <= np.median(norms) * 2


def test_moments_of_each_cell_are_those_of_its_clients() -> None:
    question, halves = replace(ASKS["moments"], scale=100.0), drawn(3, n=9)
    total = sum(question.answer(own).astype(np.float64) for own in halves).reshape(2, -1)
    cells = np.array([question.cell(own) for own in halves])
    assert 0 < cells.sum() < 9
    for cell in (0, 1):
        own = halves[cells == cell] / 100
        expected = Moments.of(own[:, 0], own[:, 1]).vector()
        np.testing.assert_allclose(total[cell], expected, rtol=1e-5, atol=1e-9)


def test_means_by_cell_are_a_step_of_lloyd() -> None:
    question, halves = replace(ASKS["means"], scale=100.0), drawn(4, n=9)
    counts, means = centres_of(sum(question.answer(own) for own in halves), 2)
    cells, mean = np.array([question.cell(own) for own in halves]), halves.mean(axis=1) / 100
    np.testing.assert_allclose(counts, np.bincount(cells, minlength=2))
    for cell in (0, 1):
        np.testing.assert_allclose(
            means[cell], mean[cells == cell].mean(axis=0), rtol=1e-4, atol=1e-7
        )


def test_the_cell_is_that_of_the_nearest_centre() -> None:
    halves = drawn(5, n=20)
    for own in halves:
        mean = own.mean(axis=0) / 3
        mean /= max(1.0, np.linalg.norm(mean))
        distances = [np.linalg.norm(mean - centre) for centre in np.eye(2, 4)]
        assert ASKS["cell"].cell(own) == int(np.argmin(distances))
    assert CellQuestion(ask="means").cell(halves[0]) == 0


def test_longer_sketches_are_shortened_to_the_scale_mean_and_noise_apart() -> None:
    mean, noise = np.array([30.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.3, 0.0, 0.0])
    question = CellQuestion(ask="moments", scale=3.0)
    sums = Moments.from_vector(question.answer(np.stack([mean + noise, mean - noise])), 4)
    np.testing.assert_allclose(
        sums.total, [1.0, 0, 0, 0], atol=1e-6
    )  # 10 times the scale, now once
    np.testing.assert_allclose(
        sums.noise[1, 1], 0.01, rtol=1e-5
    )  # a tenth of the scale, and stays so


def test_two_clouds_are_cut_between_them() -> None:
    rng = np.random.default_rng(6)
    signal = np.repeat([[0.2, 0, 0, 0.1], [0.0, 0.2, 0, 0.1]], 10, axis=0)
    halves = np.stack([signal + rng.normal(size=signal.shape) * 0.02 for _ in (0, 1)], axis=1)
    sums = Moments.from_vector(
        sum(CellQuestion(ask="moments").answer(own).astype(np.float64) for own in halves), 4
    )
    question = coordinates(0, sums, 1.0, None)
    counts = sum(question.answer(own) for own in halves)
    assert counts.sum() == 20
    centres = two_centres(question, counts, sums.total / sums.count)
    assert centres is not None
    cells = [CellQuestion(ask="cell", centres=centres).cell(own) for own in halves]
    assert set(cells[:10]) != set(cells[10:])
    assert len(set(cells[:10])) == len(set(cells[10:])) == 1


def test_a_histogram_in_one_bin_cannot_be_cut() -> None:
    counts = np.zeros(COORDINATE_BINS)
    counts[7] = 5
    assert two_centres(ASKS["coordinates"], counts, np.zeros(4)) is None


@given(norms=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=30), counts=st.integers(1, 10_000))
def test_sizes_are_known_to_half_an_octave(norms: list[float], counts: int) -> None:
    total = sum(ASKS["sizes"].answer(None, norm, counts) for norm in norms)
    bound, examples = sizes_of(total)
    assert max(norms) < bound * (1 + 1e-6)
    assert bound < max(norms) * 2**0.5 * (1 + 1e-6)
    assert 2**-0.25 * (1 - 1e-6) <= examples / counts <= 2**0.25 * (1 + 1e-6)


def test_a_bound_on_most_norms() -> None:
    total = sum(ASKS["sizes"].answer(None, norm, 1) for norm in [1.1] * 9 + [100.0])
    assert sizes_of(total, quantile=0.9)[0] < 2 < 100 < sizes_of(total)[0]
