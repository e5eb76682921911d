"""The Separation Theorem's numbers, its misprints, and its Figure 3."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import (
    H,
    cosine,
    gamma_bound,
    gram,
    guaranteed_gamma,
    optimal_bipartition,
    passes_gamma,
    separation_bound,
    separation_gap,
)

gammas = st.floats(0, 1)


def test_gap_by_hand():
    similarity = np.array(
        [[1.0, 0.9, 0.1, 0.0], [0.9, 1.0, 0.2, 0.1], [0.1, 0.2, 1.0, 0.5], [0.0, 0.1, 0.5, 1.0]]
    )
    assert separation_gap(similarity, [0, 0, 1, 1]) == pytest.approx(min(0.9, 0.5) - 0.2)
    assert separation_gap(similarity, ["b", "b", "a", "a"]) == pytest.approx(0.5 - 0.2)
    assert separation_gap(similarity, [0, 1, 2, 3]) == pytest.approx(1 - 0.2)  # each is like itself
    assert separation_gap(similarity, [0, 0, 0, 0]) == pytest.approx(0.0 - 0.2)


@given(st.integers(0, 10_000))
def test_gap_by_definition(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    similarity, labels = cosine(gram(rng.normal(size=(n, 3)))), rng.integers(3, size=n)
    within = min(similarity[i, j] for i in range(n) for j in range(n) if labels[i] == labels[j])
    lefts = [left for size in range(1, n) for left in combinations(range(n), size)]
    cross = min(
        max(similarity[i, j] for i in left for j in range(n) if j not in left) for left in lefts
    )
    assert separation_gap(similarity, labels) == pytest.approx(within - cross)


@given(st.integers(0, 10_000))
def test_congruent_clients_have_no_gap(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    assert separation_gap(cosine(gram(rng.normal(size=(n, 3)))), np.zeros(n)) <= 1e-12


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1], "positions"),
        ([[0, 1, 2], [0, 1, 2]], "labels_of"),
        ([(0, 1), (2,)], "labels_of"),
        ([0.0, np.nan, 1.0], "client 1"),
    ],
)
def test_what_is_no_label_is_refused(labels, says):
    with pytest.raises(ValueError, match=says):
        separation_gap(np.eye(3), labels)


def test_gap_refuses_distances():
    with pytest.raises(ValueError, match="looks like a matrix of distances"):
        separation_gap(1 - np.eye(3), [0, 0, 1])


@given(gammas, gammas)
def test_h_is_the_cosine_of_the_sum_of_angles(one, two):
    assert H(one, two) == pytest.approx(math.cos(math.asin(one) + math.asin(two)), abs=1e-7)
    assert H(one, one) == pytest.approx(1 - 2 * one**2)
    assert H(one, two) >= 1 - 2 * max(one, two) ** 2 - 1e-9  # eq. 38


@given(st.integers(1, 50), gammas, gammas)
def test_the_bound_is_the_cosine_of_the_difference_of_angles(k, one, two):
    bound, h = separation_bound(k, one, two), min(H(one, two), 1.0)
    if k == 1:
        assert bound == 1  # congruent: nothing to separate, and no π/0
    elif abs(h - math.cos(math.pi / (k - 1))) > 1e-9:
        within = h > math.cos(math.pi / (k - 1))
        assert bound == pytest.approx(
            math.cos(math.pi / (k - 1) - math.acos(h)) if within else 1, abs=1e-7
        )


@given(gammas, gammas)
def test_two_distributions_are_bounded_by_minus_h(one, two):
    assert separation_bound(2, one, two) == -H(one, two)  # Remark 1, exactly


def test_three_distributions():
    assert separation_bound(3, 0.0, 0.6) == pytest.approx(0.6)  # H = 0.8: sqrt(1 - 0.8^2)
    assert separation_bound(3, 0.0, 1.0) == 1.0  # H = 0 and cos(π/2) = 0: sqrt(1 - 0)
    assert separation_bound(3, 0.8, 0.8) == 1.0  # H = -0.28 < 0


def test_lemma_3_with_the_right_denominator():
    """With ‖v‖² printed for ‖v‖‖w‖, the lemma's h is 0.296 and its bound, -0.296, is below what there is."""
    v, w, x, y = (np.array(p) for p in [(1.0, 0.0), (-0.1, 0.0), (-0.64, 0.48), (0.064, 0.048)])
    alike = cosine(gram(np.stack([v + x, w + y])))[0, 1]
    norm = np.linalg.norm
    h = H(norm(x) / norm(v), norm(y) / norm(w))
    assert h == pytest.approx(-0.8 * 0.8 + 0.6 * 0.6)  # -0.28
    assert alike == pytest.approx(-h)  # tight
    printed = -norm(x) * norm(y) / norm(v) ** 2 + 0.6 * 0.6
    assert printed == pytest.approx(0.296)
    assert alike > -printed


@given(st.integers(0, 10_000))
def test_no_two_noisy_opposites_exceed_the_bound(seed):
    rng = np.random.default_rng(seed)
    v, (a, b) = rng.normal(size=3), rng.uniform(0, 1, size=2)
    noise = rng.normal(size=(2, 3))
    noise *= np.array([[a], [b]]) * np.linalg.norm(v) / np.linalg.norm(noise, axis=1, keepdims=True)
    rows = np.stack([v, -rng.uniform(0.1, 10) * v])
    noise[1] *= np.linalg.norm(rows[1]) / np.linalg.norm(v)
    assert cosine(gram(rows + noise))[0, 1] <= separation_bound(2, a, b) + 1e-9


TABLE = [(2, 0.7071), (3, 0.3827), (4, 0.2588), (5, 0.1951), (10, 0.0872), (20, 0.0413)]


@pytest.mark.parametrize(("k", "limit"), TABLE)
def test_guaranteed_gamma_is_where_the_bounds_cross(k, limit):
    assert (
        guaranteed_gamma(k)
        == pytest.approx(math.sin(math.pi / (4 * (k - 1))))
        == pytest.approx(limit, abs=5e-5)
    )
    for gamma, correct in [
        (guaranteed_gamma(k) * 0.999, True),
        (guaranteed_gamma(k) * 1.001, False),
    ]:
        assert (H(gamma, gamma) > separation_bound(k, gamma, gamma)) is correct


def test_no_gamma_makes_a_cut_of_congruent_clients_right():
    assert guaranteed_gamma(1) == 0.0


@given(st.floats(-1, 1), gammas)
def test_the_gamma_test(cross, gamma):
    assert passes_gamma(cross, gamma) == (gamma < math.sqrt((1 - cross) / 2))


def test_the_gamma_test_is_strict_and_forgives_rounding():
    assert not passes_gamma(-1.0, 1.0)
    assert not passes_gamma(1.0, 0.0)
    assert gamma_bound(1 + 1e-7) == 0.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: H(1.2, 0), "gamma_i"),
        (lambda: separation_bound(3, 0, float("nan")), "gamma_j"),
        (lambda: separation_bound(0, 0, 0), "k, the number of data distributions, must"),
        (lambda: guaranteed_gamma(2.5), "k must be an integer, got 2.5"),
        (lambda: gamma_bound(1.5), "cosine similarity"),
        (lambda: passes_gamma(0.0, -0.1), "gamma_max"),
    ],
)
def test_numbers_outside_the_theorem_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


# Figure 3 with d = 100, m = 3k, gradients that sum to zero, as at a stationary point: P[gap > 0],
# P[cut correct], from 200 draws of a separate script.
FIGURE_3 = [
    (2, 1.5, 1.00, 1.00),
    (2, 2.5, 0.52, 0.84),
    (4, 1.0, 1.00, 1.00),
    (4, 2.0, 0.37, 0.85),
    (6, 1.5, 0.88, 0.98),
    (6, 2.0, 0.04, 0.55),
    (10, 1.0, 1.00, 1.00),
    (10, 1.5, 0.42, 0.92),
]


@pytest.mark.parametrize(("k", "gamma", "gap", "right"), FIGURE_3)
def test_figure_3(k, gamma, gap, right):
    """Noise γ times the gradient's norm; 100 draws: three standard errors are at most 0.15, of the table's 0.11."""
    rng, draws = np.random.default_rng(k), 100
    truth = np.repeat(np.arange(k), 3)
    gaps, rights = 0, 0
    for _ in range(draws):
        v = rng.normal(size=(k, 100))
        v = (v - v.mean(axis=0))[truth]
        noise = rng.normal(size=v.shape)
        noise *= (
            gamma
            * np.linalg.norm(v, axis=1, keepdims=True)
            / np.linalg.norm(noise, axis=1, keepdims=True)
        )
        similarity = cosine(gram(v + noise))
        left, right_side, _ = optimal_bipartition(similarity)
        correct = not set(truth[list(left)]) & set(truth[list(right_side)])
        above = separation_gap(similarity, truth) > 0
        assert correct or not above  # a gap suffices ...
        gaps, rights = gaps + above, rights + correct
    assert gaps / draws == pytest.approx(gap, abs=0.18)
    assert rights / draws == pytest.approx(
        right, abs=0.18
    )  # ... but is not needed: Remark 2 is no "if and only if"
