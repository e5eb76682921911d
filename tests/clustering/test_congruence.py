"""The split-half test: every number against its definition on explicit rows, and the laws it keeps."""

import importlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from coterie.clustering import Congruence, congruence, halves_gram, repeated_p
from coterie.clustering.congruence import (
    MIN_HALF_TEST_CLIENTS,
    TAIL_BOUND_SCORE,
    congruence_of,
    noise_of,
)
from coterie.clustering.halves import direction_test, halves, odd_one_out_test

module = importlib.import_module("coterie.clustering.congruence")  # the name is the function's, too


def random_halves(
    seed: int, n: int = 6, d: int = 30, signal: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Half of the clients differ from the others in one direction; unequal noise."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(0.5, 2.0, size=(n, 1))
    means = np.zeros((n, d))
    means[: n // 2, 0] = signal
    return means + level * rng.normal(size=(n, d)), means + level * rng.normal(size=(n, d))


def spread_by_hand(a: np.ndarray, b: np.ndarray) -> Congruence:
    """From the module's head, in loops over rows."""
    n = len(a)
    whole, noise = (a + b) / 2, (a - b) / 2
    apart = whole - sum(whole) / n
    level = [row @ row for row in noise]
    cosines, products, norms = [], 0.0, 0.0
    for i in range(n):
        for j in range(n):
            cosines.append((apart[i] @ noise[j]) ** 2 / (apart[i] @ apart[i]) / level[j])
            products += (apart[i] @ noise[j]) ** 2
            norms += (apart[i] @ apart[i]) * level[j]
    share = max(sum(cosines) / n**2, products / norms)
    centre = np.eye(n) - np.ones((n, n)) / n
    covariance = centre @ np.diag(level) @ centre
    squares = sum(
        covariance[i, j] ** 2 / covariance[i, i] / covariance[j, j]
        for i in range(n)
        for j in range(n)
    )
    df = n**3 / squares
    x = sum(row @ row for row in apart)
    y = (1 - 1 / n) * sum(level)
    both = [value + row @ row * n / (n - 1) for value, row in zip(level, apart, strict=True)]
    level = [value * sum(level) / sum(both) for value in both]
    square = [
        max(value**2 / (1 + share), value**2 * np.mean(level) ** 2 / np.mean(np.square(level)))
        for value in level
    ]
    var_x = var_y = 0.0
    for i in range(n):
        var_y += 2 * share * centre[i, i] ** 2 * square[i]
        for j in range(n):
            var_x += 2 * share * centre[i, j] ** 2 * (square[i] if i == j else level[i] * level[j])
    score = stats.norm.isf(stats.f.sf(x / y, 2 * y**2 / var_x, 2 * y**2 / var_y))
    z = (x - y) / np.sqrt(var_x + var_y)
    p = stats.t.sf(score, df)
    return Congruence(n, x - y, z, 1 / share, df, p, None, None, p)


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_spread_is_what_its_definition_says(n, signal):
    a, b = random_halves(n, n, signal=signal)
    found, expected = congruence(halves_gram(a, b)), spread_by_hand(a, b)
    for name in ("clients", "spread", "z", "dimension", "df", "p_spread", "p"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9), name
    assert found.p_direction is None
    assert found.p_odd is None


def scaled_by_hand(
    a: np.ndarray, b: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scaled rows of both halves, and the vector that takes the place of the ones."""
    noise = [np.linalg.norm((x - y) / 2) for x, y in zip(a, b, strict=True)]
    mean_a, mean_b = (np.average(rows, axis=0, weights=1 / np.array(noise)) for rows in (a, b))
    logs = np.log(np.square(noise))
    spread = max(np.var(logs, ddof=1), (max(logs) - np.median(logs)) ** 2 / np.log(len(logs)) / 2)
    k = np.clip(2 * (1 - 2 * share / spread), 0, 1)
    square = [
        (x - mean_a) @ (x - mean_a) + (y - mean_b) @ (y - mean_b) for x, y in zip(a, b, strict=True)
    ]
    one = np.array([value ** (-k / 2) for value in square])
    return a * one[:, None], b * one[:, None], one


def regression(y: np.ndarray, u: np.ndarray, one: np.ndarray) -> tuple[float, float]:
    """Slope of y on u besides ``one``, for u of unit length and orthogonal to it, and the sum of squares that is left."""
    design = np.stack((u, one), axis=1)
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    return float(solution[0]), float(((y - design @ solution) ** 2).sum())


@pytest.mark.parametrize("n", [3, 5, 12])
@pytest.mark.parametrize("signal", [0.0, 4.0])
@pytest.mark.parametrize(
    "share", [0.0, 0.3, 10.0]
)  # of halves scaled fully, in part, and not at all
def test_direction_is_a_regression_of_one_half_along_what_the_other_found(n, signal, share):
    a, b = random_halves(n, n, signal=signal)
    rows_a, rows_b, one = scaled_by_hand(a, b, share)
    ps = []
    for chooser, tested in ((rows_a, rows_b), (rows_b, rows_a)):
        inside = chooser - np.outer(one, one @ chooser) / (one @ one)
        u = np.linalg.svd(inside, full_matrices=False)[0][:, 0]
        slope, left = regression(tested @ (u @ chooser), u, one)
        ps.append(stats.t.sf(slope / np.sqrt(left / (n - 2)), n - 2))
    assert direction_test(halves(halves_gram(a, b)), share) == pytest.approx(
        min(1.0, 2 * min(ps)), rel=1e-6
    )


@pytest.mark.parametrize("n", [3, 5, 12])
@pytest.mark.parametrize("share", [0.0, 0.3, 10.0])
def test_the_odd_one_out_is_a_regression_for_every_client(n, share):
    a, b = random_halves(n, n)
    a[1, 3] += 6
    b[1, 3] += 6
    rows_a, rows_b, one = scaled_by_hand(a, b, share)
    ps = []
    for i in range(n):
        alone = np.eye(n)[i] - one * one[i] / (one @ one)
        u = alone / np.linalg.norm(alone)
        slopes, rest = zip(
            *(regression(y @ (u @ x), u, one) for x, y in ((rows_a, rows_b), (rows_b, rows_a))),
            strict=True,
        )
        assert slopes[0] == pytest.approx(slopes[1])
        ps.append(stats.t.sf(slopes[0] / np.sqrt(max(rest) / (n - 2)), 2 * (n - 2)))
    assert odd_one_out_test(halves(halves_gram(a, b)), share) == pytest.approx(
        min(1.0, n * min(ps)), rel=1e-6
    )


def test_three_tests_make_one_p_value_from_few_clients_on():
    below, from_there = (
        congruence(halves_gram(*random_halves(0, n, signal=3)))
        for n in (MIN_HALF_TEST_CLIENTS - 1, MIN_HALF_TEST_CLIENTS)
    )
    assert below.p == below.p_spread
    assert below.p_direction is None
    ps = (from_there.p_spread, from_there.p_direction, from_there.p_odd)
    assert from_there.p == min(1.0, 3 * min(ps))


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_order_maps_scale_a_common_shift_and_the_halves_names_do_not_matter(seed, n):
    rng = np.random.default_rng(seed)
    a, b = random_halves(seed, n, d=10, signal=2)
    order, rotation, shift = (
        rng.permutation(n),
        np.linalg.qr(rng.normal(size=(10, 10)))[0],
        rng.normal(size=10),
    )
    before = congruence(halves_gram(a, b))
    after = congruence(
        halves_gram(5 * (b + shift)[order] @ rotation, 5 * (a + shift)[order] @ rotation)
    )
    assert after.spread == pytest.approx(25 * before.spread, rel=1e-6, abs=1e-6)
    for name in ("z", "dimension", "df", "p_spread", "p_direction", "p_odd", "p"):
        expected = getattr(before, name)
        assert getattr(after, name) == (
            expected if expected is None else pytest.approx(expected, rel=1e-5)
        ), name


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_spread_does_not_ask_which_of_a_clients_halves_came_first(seed, n):
    a, b = random_halves(seed, n, d=10)
    swapped = (np.random.default_rng(seed).random(n) < 0.5)[:, None]
    one, two = (
        congruence(halves_gram(*pair))
        for pair in ((a, b), (np.where(swapped, b, a), np.where(swapped, a, b)))
    )
    assert two.p == pytest.approx(one.p, rel=1e-9)


def test_members_are_tested_by_their_own_halves_alone():
    a, b = random_halves(1, 12)
    found, expected = (
        congruence(halves_gram(a, b), [7, 0, 3]),
        congruence(halves_gram(a[[0, 3, 7]], b[[0, 3, 7]])),
    )
    assert found.clients == 3
    assert (found.spread, found.z, found.df, found.p) == pytest.approx(
        (expected.spread, expected.z, expected.df, expected.p)
    )


@pytest.mark.parametrize("n", [2, 3, 20])
def test_without_noise_any_difference_counts(n):
    rows = np.random.default_rng(n).normal(size=(n, 30))
    found = congruence(halves_gram(rows, rows))
    assert found.p == found.p_spread == 0.0
    assert found.z == np.inf
    assert found.spread == pytest.approx(
        ((rows - rows.mean(axis=0)) ** 2).sum()
    )  # the plain sum of squares
    same = np.tile(rows[:1], (n, 1))
    assert congruence(halves_gram(same, same)).p == 1.0
    assert congruence(halves_gram(0 * same, 0 * same)).p == 1.0


def test_one_client_is_congruent():
    found = congruence(halves_gram(np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])))
    assert (found.clients, found.p, found.spread) == (1, 1.0, 0.0)


@pytest.mark.parametrize(("n", "df"), [(2, 2), (3, 6), (4, 12), (10, 90)])
def test_equal_noise_has_a_degree_of_freedom_for_every_independent_product(n, df):
    noise = np.linalg.qr(np.random.default_rng(n).normal(size=(50, 50)))[0][:n]
    whole = np.random.default_rng(n + 1).normal(size=(n, 50))
    assert congruence(halves_gram(whole + noise, whole - noise)).df == pytest.approx(df)


def test_one_client_of_much_noise_leaves_few_degrees_of_freedom():
    rng = np.random.default_rng(0)
    level = np.array([100.0] + [1.0] * 9)[:, None]
    found = congruence(halves_gram(*(level * rng.normal(size=(2, 10, 500)))))
    assert found.df < 12  # all M_i - M̄ hold its noise: ten products, where equal noise has 90


@pytest.mark.parametrize("dimension", [5, 50, 500])
def test_the_effective_dimension_is_found(dimension):
    rng = np.random.default_rng(dimension)
    found = [
        congruence(halves_gram(*rng.normal(size=(2, 12, dimension)))).dimension for _ in range(40)
    ]
    assert np.mean(found) == pytest.approx(dimension, rel=0.08)


def test_a_known_dimension_lets_two_clients_be_told_apart():
    rng = np.random.default_rng(2)
    signal = np.array([[3.0], [-3.0]]) * np.ones((2, 40))
    g = halves_gram(*(signal + rng.normal(size=(2, 2, 40))))
    assert congruence(g).p > 1e-4
    known = congruence(g, dimension=40)
    assert known.p < 1e-6
    assert known.df == np.inf
    assert (
        congruence(g, dimension=1e9).dimension <= congruence(g).dimension + 1e-9
    )  # what is seen counts where it is less


@given(st.floats(1, 1e4), st.floats(1, 1e4), st.sampled_from([2, 6, 30.5, np.inf]))
def test_the_reference_is_f_then_t_and_its_tail_has_no_seam(one, two, df):
    ratios = np.concatenate(([0.0], np.geomspace(1e-3, 1e12, 60)))
    ps = [module._p_value(ratio, one, two, df) for ratio in ratios]
    assert ps[0] == 1.0
    assert all(later <= before * (1 + 1e-6) for before, later in pairwise(ps))
    score = stats.norm.isf(stats.f.sf(1.5, one, two))
    if score < 30:
        assert module._p_value(1.5, one, two, df) == pytest.approx(
            stats.norm.sf(score) if np.isinf(df) else stats.t.sf(score, df), rel=1e-6
        )


def test_two_clients_far_apart_have_a_small_p_that_is_not_zero():
    rng = np.random.default_rng(0)
    signal = 1e4 * np.array([[1.0], [-1.0]]) * np.ones((2, 1000))
    assert 0 < congruence(halves_gram(*(signal + rng.normal(size=(2, 2, 1000))))).p < 1e-3


def test_noise_of_other_groups_makes_the_test_split_what_is_one():
    """What the documentation warns of: pairs across groups, whose noise lives in other directions, are no measure."""
    rng = np.random.default_rng(5)
    right, wrong = [], []
    for _ in range(400):
        halved = np.zeros((2, 12, 80))
        for group in range(4):
            halved[:, 3 * group : 3 * group + 3, 20 * group : 20 * group + 20] = rng.normal(
                size=(2, 3, 20)
            )
        h = halves(halves_gram(*halved), [0, 1, 2])
        right.append(congruence(halves_gram(*halved), [0, 1, 2]).p)
        everyone = noise_of(
            halves(halves_gram(*halved))
        )  # effective dimension 80, where the group's is 20
        wrong.append(congruence_of(h, everyone).p_spread)
    assert np.mean(np.array(right) < 0.01) <= 0.02
    assert np.mean(np.array(wrong) < 0.01) >= 0.05


def test_repeated_p_is_that_of_two_correlated_scores():
    """Against the bivariate normal law itself: rho of two clients is 2/3, of many 1/2."""
    for p, clients, rho in (
        (0.3, 2, 2 / 3),
        (0.01, 2, 2 / 3),
        (0.01, 10**9, 0.5),
        (1e-4, 10**9, 0.5),
    ):
        z = -stats.norm.ppf(p)
        exact = stats.multivariate_normal.cdf(
            [-z, -z], cov=[[1, rho], [rho, 1]], abseps=1e-12, releps=1e-9
        )
        assert repeated_p(p, p / 10, clients) == pytest.approx(exact, rel=1e-3)
    assert repeated_p(0.0, 0.0, 5) == 0.0
    assert repeated_p(1.0, 0.2, 5) == 1.0
    assert repeated_p(0.02, 0.2, 1) == 0.2  # of one client nothing is known


@given(st.floats(1e-300, 1.0), st.floats(1e-300, 1.0), st.integers(2, 1000))
def test_repeated_p_lies_between_the_product_and_the_greater(one, other, clients):
    greater = max(one, other)
    assert greater**2 * (1 - 1e-9) <= repeated_p(one, other, clients) <= greater * (1 + 1e-12)
    assert repeated_p(one, other, clients) == repeated_p(other, one, clients)


def test_repeated_p_has_no_step_where_the_bound_takes_over():
    p = special.ndtr(-TAIL_BOUND_SCORE)
    below, above = repeated_p(p * 1.001, p, 20), repeated_p(p * 0.999, p, 20)
    assert below < above < 20 * below  # the bound is the greater


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: congruence(np.eye(3)), "gram must be (2n, 2n)"),
        (lambda: congruence(np.eye(4), members=[0, 5]), "members must be positions 0 to 1, got 5"),
        (lambda: congruence(np.eye(4), dimension=0.5), "dimension must be an effective dimension"),
        (
            lambda: congruence(np.eye(4), dimension=float("nan")),
            "dimension must be an effective dimension",
        ),
        (lambda: congruence(np.full((4, 4), np.inf)), "not finite"),
        (lambda: repeated_p(0.5, 1.5, 3), "a p-value must be 0 to 1, got 1.5"),
        (lambda: repeated_p(float("nan"), 0.5, 3), "a p-value must be 0 to 1, got nan"),
        (lambda: repeated_p(0.5, 0.5, 0), "clients must be a number of clients, at least 1, got 0"),
    ],
)
def test_wrong_input_gets_one_sentence(call, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")) as caught:
        call()
    assert "\n" not in str(caught.value)
