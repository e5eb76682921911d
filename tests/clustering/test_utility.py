"""HCCT's merge against its definition on the gradients themselves."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie.clustering import (
    benefit,
    benefits,
    cosine,
    gram,
    norms,
    same_partition,
    utility,
    utility_merge,
    utility_optimum,
)
from coterie.clustering.labels import labels_of


def definition(g, sizes, tradeoff, group):
    """Summed utility of a group: cos(g_n, mean) - λ_n / N_G for each member; alone, the cosine is 1."""
    group = list(group)
    total = sizes[group].sum()
    mean = sum(sizes[i] * g[i] for i in group) / total

    def alike(x):
        if len(group) == 1:
            return 1.0
        both = np.linalg.norm(x), np.linalg.norm(mean)
        return 0.0 if min(both) < 1e-12 else x @ mean / both[0] / both[1]

    return sum(alike(g[i]) - tradeoff[i] / total for i in group)


def literal(g, sizes, tradeoff, fixed=None):
    """Algorithm 2 as it is printed; ties by the smallest first members. Also: how near any decision came to a tie."""
    groups, clearance = [(i,) for i in range(len(g))], np.inf
    while len(groups) > (fixed or 1):
        gains = []
        for a, b in combinations(range(len(groups)), 2):
            parts = [
                definition(g, sizes, tradeoff, x)
                for x in (groups[a] + groups[b], groups[a], groups[b])
            ]
            gains.append((parts[0] - parts[1] - parts[2], a, b))
        ranked = sorted(gains, key=lambda t: (-t[0], t[1:]))
        gain, a, b = ranked[0]
        if len(ranked) > 1:
            clearance = min(clearance, gain - ranked[1][0])
        if fixed is None:
            clearance = min(clearance, abs(gain))
            if gain <= 0:
                break
        groups[a] = tuple(sorted(groups[a] + groups.pop(b)))
        groups.sort()
    return tuple(groups), clearance


def case(seed, vector=True):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 9)), int(rng.integers(1, 12))
    g = rng.normal(size=(n, d)) + 2 * rng.normal(size=(3, d))[rng.integers(3, size=n)]
    if rng.random() < 0.3:
        g[rng.integers(n)] = 0.0
    sizes = rng.integers(1, 200, size=n).astype(float)
    scale = sizes.mean() * rng.choice([0.03, 0.3, 1.0, 3.0])
    return g, sizes, scale * (rng.uniform(0.2, 2, size=n) if vector else np.ones(n))


@settings(max_examples=60)
@given(st.integers(0, 100_000), st.booleans(), st.booleans())
def test_merging_is_that_of_the_definition(seed, vector, fix):
    g, sizes, tradeoff = case(seed, vector)
    fixed = len(g) // 2 + 1 if fix else None
    expected, clearance = literal(g, sizes, tradeoff, fixed)
    assume(clearance > 1e-9)  # two ways of rounding may break ties differently
    given_as = tradeoff if vector else float(tradeoff[0])
    assert utility_merge(gram(g), sizes, given_as, groups=fixed) == expected


@pytest.mark.parametrize("seed", range(4))
def test_larger_cases_merge_as_the_definition(seed):
    """Many merges, so that every kept maximum is outdated at some time."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(18, 6)) + rng.normal(size=(4, 6))[rng.integers(4, size=18)]
    sizes, tradeoff = rng.integers(1, 200, size=18).astype(float), rng.uniform(5, 80, size=18)
    assert utility_merge(gram(g), sizes, tradeoff) == literal(g, sizes, tradeoff)[0]
    assert utility_merge(gram(g), sizes, tradeoff, groups=2) == literal(g, sizes, tradeoff, 2)[0]


@given(st.integers(0, 100_000))
def test_utility_is_that_of_the_definition(seed):
    g, sizes, tradeoff = case(seed)
    for group in [range(len(g)), [0], [len(g) - 1, 0]]:
        ours = utility(gram(g), sizes, tradeoff, group)
        assert ours.shape == (len(set(group)),)
        assert ours.sum() == pytest.approx(
            definition(g, sizes, tradeoff, sorted(set(group))), abs=1e-6
        )


def two(c):
    return np.array([[1.0, c], [c, 1.0]])


@pytest.mark.parametrize(("c", "critical"), [(0.5, 0.267949), (0.0, 0.585786), (-0.5, 1.0)])
def test_two_equal_clients_merge_above_the_critical_tradeoff(c, critical):
    exact = 2 * (1 - np.sqrt((1 + c) / 2))
    assert exact == pytest.approx(critical, abs=1e-6)
    for size in (1, 100, 1e6):
        assert utility_merge(two(c), [size, size], exact * size) == (
            (0,),
            (1,),
        )  # strict: no gain, no merge
        assert utility_merge(two(c), [size, size], exact * size * (1 - 1e-9)) == ((0,), (1,))
        assert utility_merge(two(c), [size, size], exact * size * (1 + 1e-9)) == ((0, 1),)


def test_no_tradeoff_keeps_everyone_alone_and_a_huge_one_joins_all():
    g, sizes = np.random.default_rng(0).normal(size=(7, 5)), np.arange(1.0, 8.0)
    assert utility_merge(gram(g), sizes, 0) == tuple((i,) for i in range(7))
    assert utility_merge(gram(g), sizes, 1e6) == (tuple(range(7)),)


@pytest.mark.parametrize("tradeoff", [1e-6, 1.0, 1e6])
def test_identical_gradients_are_one_group(tradeoff):
    g, n, size = gram(np.tile([[0.3, -0.1, 0.7]], (6, 1))), 6, 50.0
    assert utility_merge(g, np.full(n, size), tradeoff) == (tuple(range(n)),)
    total = utility(g, np.full(n, size), tradeoff, range(n)).sum()
    assert total == pytest.approx(n - n * tradeoff / (n * size))


def test_identical_gradients_do_not_merge_for_rounding_alone():
    same = gram(np.tile([[0.3, -0.1, 0.7]], (6, 1)))
    assert utility_merge(same, np.arange(1.0, 7.0), 0) == tuple((i,) for i in range(6))


def test_two_orthogonal_blocks():
    """3 clients share u, 3 share v; N = 100, λ = 10: 6 (1 - 10/300) = 5.8."""
    g = gram(np.repeat(np.eye(2), 3, axis=0))
    groups = utility_merge(g, [100] * 6, 10)
    assert groups == ((0, 1, 2), (3, 4, 5))
    assert sum(utility(g, [100] * 6, 10, group).sum() for group in groups) == pytest.approx(5.8)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_scale_of_gradients_and_unit_of_data_do_not_matter(seed, factor):
    g, sizes, tradeoff = case(seed)
    assume(literal(g, sizes, tradeoff)[1] > 1e-9)
    groups = utility_merge(gram(g), sizes, tradeoff)
    assert utility_merge(gram(g * factor), sizes, tradeoff) == groups
    assert utility_merge(gram(g), sizes * factor, tradeoff * factor) == groups


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.randoms())
def test_relabelled_clients_are_the_same_groups(seed, random):
    g, sizes, tradeoff = case(seed)
    assume(literal(g, sizes, tradeoff)[1] > 1e-9)
    order = random.sample(range(len(g)), len(g))
    before = labels_of(utility_merge(gram(g), sizes, tradeoff))
    after = labels_of(utility_merge(gram(g[order]), sizes[order], tradeoff[order]))
    assert same_partition(before[order], after)


def test_equal_gains_go_to_the_smallest_first_members():
    assert utility_merge(np.ones((4, 4)), [1] * 4, 1, groups=3) == ((0, 1), (2,), (3,))
    blocks = np.kron(np.eye(2), np.ones((2, 2)))
    assert utility_merge(blocks, [1] * 4, 0.1, groups=3) == ((0, 1), (2,), (3,))


@pytest.mark.parametrize("m", range(1, 6))
def test_a_fixed_number_of_groups(m):
    g = np.random.default_rng(1).normal(size=(5, 3))
    for tradeoff in (0.0, 1e6):
        assert len(utility_merge(gram(g), [10] * 5, tradeoff, groups=m)) == m


def test_a_zero_gradient_is_like_nobody_but_itself():
    g = gram(np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert utility(g, [10, 10], 1, [1]).tolist() == [1 - 1 / 10]
    assert utility(g, [10, 10], 1, [0, 1]).tolist() == [1 - 1 / 20, 0 - 1 / 20]
    # Together 1 - 2λ/20, apart 2 - 2λ/10: they merge above λ = 10.
    assert utility_merge(g, [10, 10], 9.9) == ((0,), (1,))
    assert utility_merge(g, [10, 10], 10.1) == ((0, 1),)


def test_opposite_gradients_cancel():
    g = gram(np.array([[1.0, 1.0], [-1.0, -1.0]]))
    assert utility(g, [10, 10], 1, [0, 1]).tolist() == [-1 / 20, -1 / 20]


def test_a_merge_may_cost_a_member():
    """No member's own utility need rise: here the sum does, and the small client would be better off alone."""
    mean = np.sqrt(2 * 2 + 1 + 2 * 2 * 0.5)  # ‖2u + v‖ with <u, v> = 0.5
    together = utility(two(0.5), [2, 1], 0.362, [0, 1])
    assert together == pytest.approx(
        [(2 + 0.5) / mean - 0.362 / 3, (2 * 0.5 + 1) / mean - 0.362 / 3]
    )
    assert together[0] > 1 - 0.362 / 2
    assert together[1] < 1 - 0.362 / 1
    assert utility_merge(two(0.5), [2, 1], 0.362) == ((0, 1),)


def test_one_client():
    assert utility_merge([[4.0]], [3], 1) == ((0,),)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sizes": [1, 2]}, r"sizes .*\(3,\)"),
        ({"sizes": [1, 0, 2]}, "sizes must be > 0, got 0 for client 1"),
        ({"sizes": [1, -1, 2]}, "client 1"),
        ({"tradeoff": [1, 2]}, r"tradeoff .*\(3,\)"),
        ({"tradeoff": -1}, "tradeoff"),
        ({"tradeoff": np.inf}, "tradeoff"),
        ({"groups": 0}, "1 to 3"),
        ({"groups": 4}, "1 to 3"),
        ({"gram": 1 - np.eye(3)}, "looks like a matrix of distances"),
        ({"gram": np.ones((3, 5))}, r"gram\(updates\)"),
    ],
)
def test_slips_of_merging_are_refused(change, says):
    call = {"gram": np.eye(3), "sizes": [1, 2, 3], "tradeoff": 1.0, "groups": None} | change
    with pytest.raises(ValueError, match=says):
        utility_merge(call["gram"], call["sizes"], call["tradeoff"], groups=call["groups"])


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ([0, 0, 1], "labels are not positions"),
        ([0, 7], "0 to 2, got 7"),
        ([-1], "got -1"),
        ([], "positions"),
        ([0.5], "positions"),
    ],
)
def test_slips_of_a_group_are_refused(group, says):
    with pytest.raises(ValueError, match=says):
        utility(np.eye(3), [1, 2, 3], 1.0, group)


def test_the_arguments_are_left_alone():
    g, sizes, tradeoff = gram(case(5)[0]), case(5)[1], case(5)[2]
    before = g.copy(), sizes.copy(), tradeoff.copy()
    utility_merge(g, sizes, tradeoff)
    assert all(np.array_equal(a, b) for a, b in zip(before, (g, sizes, tradeoff), strict=True))


def test_a_thousand_clients_find_their_groups():
    rng = np.random.default_rng(0)
    truth = rng.integers(5, size=1000)
    g = gram(rng.normal(size=(1000, 64)) + 4 * rng.normal(size=(5, 64))[truth])
    assert norms(g).shape == cosine(g)[0].shape
    assert same_partition(
        labels_of(utility_merge(g, rng.integers(50, 150, size=1000), 50.0)), truth
    )


def partitions(n):
    """Every partition of 0..n-1."""
    if n == 0:
        yield []
        return
    for smaller in partitions(n - 1):
        for i in range(len(smaller)):
            yield [*smaller[:i], [*smaller[i], n - 1], *smaller[i + 1 :]]
        yield [*smaller, [n - 1]]


@settings(max_examples=25)
@given(st.integers(0, 100_000), st.booleans())
def test_the_optimum_is_that_of_all_partitions(seed, fix):
    g, sizes, tradeoff = case(seed)
    g, sizes, tradeoff = g[:6], sizes[:6], tradeoff[:6]
    fixed = len(g) // 2 + 1 if fix else None
    total = lambda groups: sum(definition(g, sizes, tradeoff, group) for group in groups)  # noqa: E731
    found = utility_optimum(gram(g), sizes, tradeoff, groups=fixed)
    assert found == tuple(sorted(found))
    assert sorted(i for group in found for i in group) == list(range(len(g)))
    assert fixed in (None, len(found))
    best = max(total(p) for p in partitions(len(g)) if fixed in (None, len(p)))
    assert total(found) == pytest.approx(best, abs=1e-9)
    assert total(utility_merge(gram(g), sizes, tradeoff, groups=fixed)) <= best + 1e-9


def test_the_greedy_merge_is_at_the_optimum_nearly_always():
    hits, rng = 0, np.random.default_rng(3)
    for _ in range(60):
        g = rng.normal(size=(6, 4)) + rng.normal(size=(2, 4))[rng.integers(2, size=6)]
        sizes, tradeoff = rng.integers(20, 200, size=6), 100 * rng.choice([0.1, 0.3, 0.5, 1.0, 2.0])
        hits += utility_merge(gram(g), sizes, tradeoff) == utility_optimum(gram(g), sizes, tradeoff)
    assert hits >= 54  # it is greedy, so not always


def test_of_equal_optima_the_one_with_most_groups_is_returned():
    same = gram(np.tile([[0.3, -0.1, 0.7]], (5, 1)))
    assert utility_optimum(same, [1] * 5, 0) == tuple((i,) for i in range(5))


def test_the_optimum_of_many_clients_is_refused():
    with pytest.raises(ValueError, match="at most 10 clients, got 11"):
        utility_optimum(np.eye(11), [1] * 11, 1.0)


@settings(max_examples=60)
@given(st.integers(0, 100_000))
def test_benefits_are_those_of_the_definition(seed):
    g, sizes, tradeoff = case(seed)
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 3, size=len(g))  # -1: in no group
    groups = [np.flatnonzero(labels == j).tolist() for j in range(3) if (labels == j).any()]
    assume(groups)
    found = benefits(gram(g), sizes, tradeoff, groups)
    for (i, a), (j, b) in combinations(enumerate(groups), 2):
        parts = [definition(g, sizes, tradeoff, sorted(x)) for x in (a + b, a, b)]
        assert found[i, j] == found[j, i] == pytest.approx(parts[0] - parts[1] - parts[2], abs=1e-6)
    assert np.diagonal(found).tolist() == [-np.inf] * len(groups)


def test_a_newcomer_gains_most_where_its_like_are():
    g = gram(np.repeat(np.eye(2), 3, axis=0))
    gains = benefit(g, [100] * 6, 10, [[0, 1], [3, 4, 5]], newcomer=2)
    # With its like: 3 (1 - 10/300) = 2.9 together, 2 (1 - 10/200) + 0.9 apart.
    assert gains[0] == pytest.approx(2.9 - 1.9 - 0.9)
    assert gains[0] > 0 > gains[1]


@pytest.mark.parametrize("groups", [[], [[0], [0, 1]]])
def test_groups_that_are_none_are_refused(groups):
    with pytest.raises(ValueError, match="groups must be one or more disjoint lists of positions"):
        benefits(np.eye(3), [1, 2, 3], 1.0, groups)


@pytest.mark.slow
def test_two_thousand_clients_fall_into_their_twenty_groups():
    # O(n²) from the Gram matrix: about a second, where the definition would take O(n³ d).
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 20, size=2000)
    updates = np.eye(20, 60)[truth] + 0.05 * rng.normal(size=(2000, 60))
    found = utility_merge(gram(updates), rng.integers(50, 150, size=2000), 50.0)
    assert same_partition(labels_of(found), truth)


def slow_merge(g, sizes, tradeoff):
    """The merge by the benefits of all pairs, taken anew after every merge; the first of the greatest ones."""
    groups = [[i] for i in range(len(g))]
    while len(groups) > 1:
        gains = np.triu(benefits(g, sizes, tradeoff, groups), 1)
        gains[np.tril_indices(len(groups))] = -np.inf
        a, b = np.unravel_index(gains.argmax(), gains.shape)
        if gains[a, b] <= 1e-12:
            break
        groups[a] += groups.pop(b)
    return tuple(tuple(sorted(group)) for group in groups)


@pytest.mark.parametrize("seed", range(5))
def test_kept_maxima_are_those_taken_anew(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(80, 10)) + 1.5 * rng.normal(size=(6, 10))[rng.integers(6, size=80)]
    sizes, tradeoff = rng.integers(1, 200, size=80).astype(float), rng.uniform(5, 80, size=80)
    found = utility_merge(gram(rows), sizes, tradeoff)
    assert 1 < len(found) < 80
    assert found == slow_merge(gram(rows), sizes, tradeoff)
