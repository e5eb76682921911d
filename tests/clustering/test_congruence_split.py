"""Cuts, recursion, contrasts and newcomers, against brute force on small cases and known groups on larger ones."""

import dataclasses

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.clustering import (
    congruence,
    congruent_groups,
    contrast,
    geometry,
    gram,
    halves_gram,
    member_contrasts,
    newcomer_contrasts,
    same_partition,
    signal_cut,
    signal_gram,
)
from coterie.clustering.labels import labels_of

rows = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 7), st.just(3)), elements=st.integers(-9, 9).map(float)
)


def grouped_halves(seed: int, truth: list[int], apart: float, d: int = 60) -> np.ndarray:
    """The Gram matrix of halves whose groups' signals are ``apart`` in directions of their own; noise of unit variance."""
    rng = np.random.default_rng(seed)
    signal = apart * np.linalg.qr(rng.normal(size=(d, d)))[0][truth]
    return halves_gram(*(signal + rng.normal(size=(2, len(truth), d))))


def within(coordinates: list[float]) -> float:
    return sum((x - sum(coordinates) / len(coordinates)) ** 2 for x in coordinates)


@given(rows)
def test_the_cut_leaves_least_variance_along_the_leading_direction(points):
    apart = points - points.mean(axis=0)
    _, values, directions = np.linalg.svd(apart)
    if values[0] < 1e-6 or values[0] - values[1] < 1e-6 * values[0]:
        return  # all the same, or no one leading direction
    coordinates = (apart @ directions[0]).tolist()
    left, right = signal_cut(gram(points))
    found = within([coordinates[i] for i in left]) + within([coordinates[i] for i in right])
    ranked = sorted(coordinates)
    gaps = [
        k for k in range(1, len(ranked)) if ranked[k] - ranked[k - 1] > 1e-9 * max(map(abs, ranked))
    ]
    best = min(within(ranked[:k]) + within(ranked[k:]) for k in gaps)
    assert found == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert left[0] == 0
    assert sorted(left + right) == list(range(len(points)))


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_the_cut_keeps_with_order_scale_and_shift(seed, n):
    rng = np.random.default_rng(seed)
    points, order = rng.normal(size=(n, 4)), rng.permutation(n)
    before = labels_of(signal_cut(gram(points)))
    after = labels_of(signal_cut(gram(7 * points[order] + 1)))
    assert same_partition(before[order], after)


def test_equal_clients_stay_together_and_ties_are_settled():
    line = np.array(
        [[0.0], [0.0], [1.0], [2.0], [2.0]]
    )  # {0, 1} | {2, 3, 4} is as good as {0, 1, 2} | {3, 4}
    left, right = signal_cut(gram(line))
    assert {left, right} in ({(0, 1), (2, 3, 4)}, {(0, 1, 2), (3, 4)})
    assert signal_cut(gram(line)) == (left, right)
    assert signal_cut(np.array([[1.0, 0.0], [0.0, 1.0]])) == ((0,), (1,))


def test_a_cut_of_a_matrix_that_is_not_positive():
    square = np.array([[-1.0, 0.5, -3.0], [0.5, -1.0, -3.0], [-3.0, -3.0, -2.0]])
    left, right = signal_cut(square)
    assert sorted(left + right) == [0, 1, 2]
    assert (
        signal_cut(-np.eye(4) + np.ones((4, 4)) * 0.1)[0][0] == 0
    )  # the constant vector has the largest eigenvalue


@pytest.mark.parametrize(
    "truth",
    [[0] * 8 + [1] * 8, [0, 1, 2] * 5, [0] * 14 + [1], [0, 1, 1, 1, 2, 2], [3, 2, 1, 0] * 6],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_far_apart_are_found_exactly(truth, seed):
    found = congruent_groups(grouped_halves(seed, truth, apart=40.0, d=400), alpha=1e-3)
    assert same_partition(labels_of(found.groups), truth)


@pytest.mark.parametrize("seed", range(5))
def test_congruent_clients_stay_whole(seed):
    found = congruent_groups(grouped_halves(seed, [0] * 15, apart=40.0))
    assert found.groups == (tuple(range(15)),)
    assert len(found.decisions) == 1
    assert found.decisions[0].parts == ()
    assert found.decisions[0].test.p > 1e-4


@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.sampled_from([0.0, 0.05, 0.9, 1.0]))
def test_decisions_are_a_tree_whose_leaves_are_the_groups(seed, n, alpha):
    rng = np.random.default_rng(seed)
    g = grouped_halves(
        seed, rng.integers(0, 3, size=n).tolist(), apart=float(rng.uniform(0, 20)), d=20
    )
    found = congruent_groups(g, alpha=alpha)
    assert sorted(i for group in found.groups for i in group) == list(range(n))
    assert found.decisions[0].members == tuple(range(n))
    leaves, waiting = [], [found.decisions[0].members]
    for decision in found.decisions:  # a group before its parts, the first part first
        assert waiting.pop() == decision.members
        assert decision.test == congruence(g, decision.members)
        assert bool(decision.parts) == (decision.test.p < alpha)
        if decision.parts:
            assert sorted(decision.parts[0] + decision.parts[1]) == list(decision.members)
            assert decision.parts[0][0] == decision.members[0]
            waiting += reversed(decision.parts)
        else:
            leaves.append(decision.members)
    assert found.groups == tuple(sorted(leaves))
    assert not waiting


def test_members_bound_the_search():
    g = grouped_halves(0, [0, 1] * 8, apart=30.0)
    found = congruent_groups(g, members=[1, 3, 5, 7, 0, 2, 4, 6])
    assert found.groups == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_without_noise_every_different_client_is_its_own_group():
    points = np.array([[0.0], [0.0], [1.0], [5.0]])
    assert congruent_groups(halves_gram(points, points)).groups == ((0, 1), (2,), (3,))


def test_a_contrast_is_what_its_definition_says():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 7, 30)) + 1
    left, right, n = [5, 1], [0, 3, 6], 7
    w = np.zeros(n)
    w[left], w[right] = 1 / 2, -1 / 3
    found = contrast(halves_gram(a, b), left, right)
    expected = sum(
        w[i] * w[j] * (a[i] @ b[i] if i == j else (a[i] + b[i]) @ (a[j] + b[j]) / 4)
        for i in range(n)
        for j in range(n)
    )
    assert found.distance == pytest.approx(expected)
    assert found.distance == pytest.approx(w @ signal_gram(halves_gram(a, b)) @ w)
    delta, noise = w @ (a + b) / 2, (a - b) / 2
    assert (
        found.error
        >= 2 * np.sqrt(sum(w[i] ** 2 * (noise[i] @ delta) ** 2 for i in range(n))) - 1e-12
    )
    turned = contrast(halves_gram(a, b), right, left)
    assert (turned.distance, turned.error, turned.z, turned.p) == pytest.approx(
        (found.distance, found.error, found.z, found.p)
    )


@pytest.mark.parametrize("seed", range(3))
def test_two_single_clients_in_contrast_are_a_group_of_two(seed):
    g = grouped_halves(seed, [0, 1, 2], apart=5.0)
    assert contrast(g, [0], [2]).distance == pytest.approx(2 * congruence(g, [0, 2]).spread)
    assert contrast(g, [0], [2]).p == pytest.approx(
        congruence(g, [0, 2]).p, rel=0.1
    )  # noise levels are taken otherwise


@pytest.mark.slow
def test_distances_are_unbiased_and_their_errors_right_in_size():
    rng = np.random.default_rng(1)
    signal = np.zeros((9, 50))
    signal[:4, 0] = 6.0
    found = [
        contrast(halves_gram(*(signal + rng.normal(size=(2, 9, 50)))), range(4), range(4, 9))
        for _ in range(1500)
    ]
    distance = np.array([each.distance for each in found])
    assert distance.mean() == pytest.approx(36.0, abs=4 * distance.std() / np.sqrt(1500))
    assert np.sqrt(np.mean([each.error**2 for each in found])) == pytest.approx(
        distance.std(), rel=0.15
    )


def test_one_group_that_was_split_is_seen_to_be_one_and_two_are_not():
    truth = [0] * 12 + [1] * 6
    p = [contrast(grouped_halves(seed, truth, 8.0), range(6), range(6, 12)).p for seed in range(20)]
    q = [
        contrast(grouped_halves(seed, truth, 8.0), range(6), range(12, 18)).p for seed in range(20)
    ]
    assert min(p) > 1e-3
    assert max(q) < 1e-6


def test_a_newcomer_finds_its_group_down_the_tree():
    truth = [0, 1, 2, 3] * 5 + [2]
    g = grouped_halves(4, truth, apart=12.0)
    groups = [[i for i in range(20) if truth[i] == k] for k in range(4)]
    found = newcomer_contrasts(g, 20, groups)
    assert min(range(4), key=lambda k: found[k].distance) == 2
    assert found[2].p > 1e-3
    assert max(found[k].p for k in (0, 1, 3)) < 1e-3
    tree = congruent_groups(g, members=range(20))
    at = tree.decisions[0]
    while at.parts:
        near = min(at.parts, key=lambda part: contrast(g, [20], part).distance)
        at = next(decision for decision in tree.decisions if decision.members == near)
    assert list(at.members) == groups[2]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: signal_cut(np.eye(1)), "signal must have at least 2 clients"),
        (lambda: signal_cut(np.ones((3, 3))), "signal cannot be split"),
        (lambda: signal_cut(np.zeros((3, 3))), "signal cannot be split"),
        (lambda: signal_cut(np.ones((2, 3))), "signal must be a matrix"),
        (
            lambda: congruent_groups(np.eye(4), alpha=2.0),
            "alpha must be the probability of a false split, 0 to 1, got 2",
        ),
        (lambda: congruent_groups(np.eye(4), alpha=float("nan")), "alpha must be"),
        (lambda: congruent_groups(np.eye(4), members=[4]), "members must be positions 0 to 1"),
        (
            lambda: contrast(np.eye(6), [0, 1], [1]),
            "left and right must have no client in common, got 1 in both",
        ),
        (lambda: contrast(np.eye(6), [], [1]), "left must be a list of positions"),
        (lambda: newcomer_contrasts(np.eye(6), 7, [[0]]), "left must be positions 0 to 2, got 7"),
    ],
)
def test_wrong_input_gets_one_sentence(call, said):
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


# -- many clients
# ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 8), st.sampled_from([0.0, 1.0]))
def test_members_contrasts_are_those_of_each_alone(seed: int, n: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    signal = apart * rng.normal(size=(n + 2, 6))
    products = halves_gram(*(signal + rng.normal(size=(2, n + 2, 6))))
    group = sorted(rng.permutation(n + 2)[:n].tolist())
    for i, found in zip(group, member_contrasts(products, group), strict=True):
        one = contrast(products, [i], [j for j in group if j != i])
        assert dataclasses.astuple(found) == pytest.approx(
            dataclasses.astuple(one), rel=1e-6, abs=1e-9
        )


@pytest.mark.slow
def test_many_clients_are_cut_by_iteration_as_by_all_eigenvectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    for apart in (0.0, 0.3):
        signal = apart * np.repeat(rng.normal(size=(4, 300)), 75, axis=0)
        products = halves_gram(*(signal + rng.normal(size=(2, 300, 300))))
        fast = congruence(products), signal_cut(signal_gram(products))
        with monkeypatch.context() as patch:
            patch.setattr(geometry, "MIN_ITERATED_ROWS", 1000)
            slow = congruence(products), signal_cut(signal_gram(products))
        assert dataclasses.astuple(fast[0]) == pytest.approx(dataclasses.astuple(slow[0]), rel=1e-6)
        assert fast[1] == slow[1]


def test_a_vector_that_iteration_does_not_find_is_computed_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise scipy.sparse.linalg.ArpackNoConvergence("", np.empty(0), np.empty((0, 0)))

    square = np.diag(np.r_[np.zeros(geometry.MIN_ITERATED_ROWS), 1.0])
    monkeypatch.setattr(scipy.sparse.linalg, "eigsh", lost)
    assert abs(geometry.leading_vector(square)[-1]) == 1
