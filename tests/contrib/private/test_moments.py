"""The split-half test from sums over clients: its statistics are those of the Gram matrix, and it keeps its level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import congruence, contrast, halves_gram
from coterie.contrib.private.moments import (
    Crossed,
    Moments,
    axis,
    congruence_from_sums,
    contrast_from_sums,
    crossed_axis,
    crossed_congruence,
    crossed_length,
    histogram_cut,
    length,
)


def rows(
    seed: int, n: int, k: int, groups: int = 1, size: float = 0.0, levels: np.ndarray | float = 1.0
) -> np.ndarray:
    """Halves ``(2, n, k)`` of clients in groups, client i in group ``i % groups``."""
    draw = np.random.default_rng(seed)
    signal = size * draw.normal(size=(groups, k))[np.arange(n) % groups]
    return signal + np.sqrt(np.broadcast_to(levels, n))[:, None] * draw.normal(size=(2, n, k))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_vectors_of_clients_add_up_to_the_sums_of_their_group(n: int, k: int, seed: int) -> None:
    a, b = rows(seed, n, k)
    vectors = [Moments.of(a[i : i + 1], b[i : i + 1]).vector() for i in range(n)]
    assert {len(one) for one in vectors} == {length(k)}
    found, whole = Moments.from_vector(np.sum(vectors, axis=0), k), Moments.of(a, b)
    for name in ("count", "total", "products", "noise", "fourth"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(whole, name), rtol=1e-10, atol=1e-10
        )
    mean = (a + b) / 2
    np.testing.assert_allclose(
        whole.scatter, (mean - mean.mean(0)).T @ (mean - mean.mean(0)), atol=1e-10
    )


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="sums of sketches of 3 numbers have 17 numbers, got 4"):
        Moments.from_vector(np.zeros(4), 3)


@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("size", [0.0, 0.5])
def test_the_spread_is_that_of_the_gram_matrix(n: int, size: float) -> None:
    a, b = rows(3, n, 60, groups=2, size=size)
    found, other = congruence_from_sums(Moments.of(a, b)), congruence(halves_gram(a, b))
    assert found.clients == other.clients
    assert found.spread == pytest.approx(other.spread)
    assert found.dimension == pytest.approx(
        other.dimension, rel=0.2
    )  # that is the smaller one of two estimates
    assert found.z == pytest.approx(other.z, rel=0.2, abs=0.1)


def test_a_linear_map_for_all_clients_changes_no_decision() -> None:
    """A sketch of signals that are the same is the same; of those that differ it differs."""
    table = np.random.default_rng(1).normal(size=(900, 64))
    alike, apart = rows(2, 20, 900), rows(2, 20, 900, groups=4, size=0.8)
    assert congruence_from_sums(Moments.of(*(alike @ table))).p > 0.01
    assert congruence_from_sums(Moments.of(*(apart @ table))).p < 1e-6


@pytest.mark.parametrize(
    ("n", "k", "levels"),
    [(2, 20, 1.0), (4, 50, 1.0), (20, 64, 1.0), (20, 50, 1 / np.linspace(1 / 3, 2, 20))],
    ids=str,
)
def test_false_alarms(n: int, k: int, levels: np.ndarray | float) -> None:
    draws = 2000
    ps = np.array(
        [
            congruence_from_sums(Moments.of(*rows(1000 + i, n, k, levels=levels))).p
            for i in range(draws)
        ]
    )
    for level in (0.05, 0.01, 0.001):
        assert (ps < level).mean() <= 1.5 * level + 3 * np.sqrt(level / draws)
    assert (ps < 0.5).mean() == pytest.approx(0.5, abs=0.06)


def test_without_noise_any_difference_counts_and_none_is_none() -> None:
    same, other = np.ones((5, 3)), np.arange(15.0).reshape(5, 3)
    assert congruence_from_sums(Moments.of(same, same)).p == 1.0
    assert congruence_from_sums(Moments.of(other, other)).p == 0.0
    assert congruence_from_sums(Moments.of(other[:1], other[:1] + 1)).p == 1.0


def test_the_axis_is_that_between_two_groups_whatever_the_noise() -> None:
    """Noise is greatest in the first direction, groups differ along the last."""
    draw = np.random.default_rng(0)
    scale = np.array([6.0, *[1.0] * 18, 1.0])
    signal = np.zeros((200, 20))
    signal[::2, -1] = 3.0
    v = axis(Moments.of(*(signal + scale * draw.normal(size=(2, 200, 20)))))
    assert abs(v[-1]) > 0.9
    assert np.linalg.norm(v) == pytest.approx(1)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_the_cut_has_the_least_variance_within(counts: list[int]) -> None:
    places = np.repeat(np.arange(len(counts)), counts).astype(float)

    def within(cut: int) -> float:
        sides = places[places < cut], places[places >= cut]
        return sum(float(((side - side.mean()) ** 2).sum()) for side in sides if len(side))

    found = histogram_cut(np.array(counts))
    cuts = [cut for cut in range(1, len(counts)) if 0 < (places < cut).sum() < len(places)]
    if not cuts:
        assert found is None
    else:
        assert found in cuts
        assert within(found) == pytest.approx(min(map(within, cuts)), abs=1e-9)


def test_bins_that_noise_made_negative_have_no_clients() -> None:
    assert histogram_cut(np.array([5.0, -2.0, 0.0, 6.0])) in (1, 2, 3)
    assert histogram_cut(np.array([5.0, -2.0])) is None


@pytest.mark.parametrize(("n", "m", "k"), [(5, 5, 30), (3, 8, 64), (2, 2, 50)])
def test_a_contrast_is_that_of_the_gram_matrix_and_rarely_alarms(n: int, m: int, k: int) -> None:
    ps = []
    for i in range(250):
        halves = rows(3000 + i, n + m, k)
        one, other = (
            Moments.of(*(half[at] for half in halves)) for at in (slice(n), slice(n, None))
        )
        found = contrast_from_sums(one, other)
        same = contrast(halves_gram(*halves), range(n), range(n, n + m))
        assert found.distance == pytest.approx(same.distance, rel=1e-6, abs=1e-9)
        ps.append(found.p)
    assert np.mean(np.array(ps) < 0.01) <= 0.03


def test_further_groups_tell_more_of_the_noise() -> None:
    """Two groups of two are known to differ only with the noise of others."""
    halves = rows(7, 12, 40)
    halves[:, 2:4] += 1.2
    groups = [Moments.of(*(half[i : i + 2] for half in halves)) for i in range(0, 12, 2)]
    alone, together = contrast_from_sums(*groups[:2]), contrast_from_sums(*groups[:2], groups[2:])
    assert together.distance == alone.distance
    assert together.p < alone.p / 2


def test_sums_of_groups_add_up() -> None:
    a, b = rows(9, 6, 5)
    both = Moments.of(a[:2], b[:2]) + Moments.of(a[2:], b[2:])
    np.testing.assert_allclose(both.vector(), Moments.of(a, b).vector())


# -- crossed sums, for differential privacy
# ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_crossed_vectors_add_up_and_have_norm_one_at_most(n: int, k: int, seed: int) -> None:
    a, b = (half / np.linalg.norm(half, axis=1, keepdims=True) for half in rows(seed, n, k))
    vectors = [Crossed.of(a[i : i + 1], b[i : i + 1]).vector() for i in range(n)]
    assert {len(one) for one in vectors} == {crossed_length(k)}
    assert max(np.linalg.norm(one) for one in vectors) <= 1 + 1e-12
    found, whole = Crossed.from_vector(np.sum(vectors, axis=0)), Crossed.of(a, b)
    for name in ("count", "totals", "dot", "square", "products"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(whole, name), rtol=1e-10, atol=1e-10
        )


DRAWS = 4000


@pytest.mark.parametrize("n", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["equal-levels", "unequal-levels"])
@pytest.mark.parametrize("deviation", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_crossed_congruence_keeps_its_level(n: int, spread: float, deviation: float) -> None:
    """No more false alarms than the level, within what the draws show; of equal levels without noise about as many."""
    draw, found = np.random.default_rng(n), []
    for _ in range(DRAWS):
        levels = np.exp(spread * draw.normal(size=n))
        halves = 0.1 * levels[:, None] * draw.normal(size=(2, n, 6))
        vector = Crossed.of(*halves).vector()
        found.append(
            crossed_congruence(
                Crossed.from_vector(vector + deviation * draw.normal(size=len(vector))), deviation
            )[1]
        )
    for level in (0.05, 0.01):
        share, error = np.mean(np.array(found) < level), (level / DRAWS) ** 0.5
        assert share < level + 4 * error
        if not spread and not deviation:
            assert share > level - 4 * error


def test_crossed_congruence_finds_groups_and_their_axis_through_noise() -> None:
    halves = rows(3, 1000, 16, groups=2, size=0.1, levels=0.01)
    halves = halves - halves.mean(axis=(0, 1))
    between = halves[:, ::2].mean(axis=(0, 1)) - halves[:, 1::2].mean(axis=(0, 1))
    vector = Crossed.of(*halves).vector()
    noisy = Crossed.from_vector(vector + 3.0 * np.random.default_rng(0).normal(size=len(vector)))
    assert crossed_congruence(noisy, 3.0)[1] < 1e-3
    direction, variance = crossed_axis(noisy)
    assert abs(direction @ between) > 0.9 * np.linalg.norm(between)
    assert variance == pytest.approx(float(between @ between) / 4, rel=0.5)
