"""Partitions: two notations, and comparisons that do not see labels."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import adjusted_rand, groups_of, labels_of, purity, same_partition

labellings = st.lists(st.integers(-3, 4), min_size=1, max_size=9)
pairs_of_labellings = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 2), min_size=n, max_size=n)] * 2)
)


def together(labels):
    return {(i, j) for i, j in combinations(range(len(labels)), 2) if labels[i] == labels[j]}


@given(labellings)
def test_there_and_back(labels):
    groups = groups_of(labels)
    assert [g[0] for g in groups] == sorted(g[0] for g in groups)
    assert all(labels[i] == labels[g[0]] for g in groups for i in g)
    firsts = sorted({labels.index(x) for x in labels})
    assert labels_of(groups).tolist() == [firsts.index(labels.index(x)) for x in labels]
    assert groups_of(labels_of(groups)) == groups


@pytest.mark.slow
@given(pairs_of_labellings)
def test_the_same_partition_is_the_same_pairs_together(both):
    one, two = both
    assert same_partition(one, two) == same_partition(two, one) == (together(one) == together(two))


def test_scipys_counterexample():
    """SciPy 1.17's ``is_isomorphic`` says True of these, and False the other way round."""
    assert not same_partition([1, 1, 2, 2, 3, 3, 4, 4], [1, 1, 2, 2, 1, 1, 2, 2])
    assert not same_partition([1, 1, 2, 2, 1, 1, 2, 2], [1, 1, 2, 2, 3, 3, 4, 4])


@given(pairs_of_labellings)
def test_adjusted_rand_by_pairs(both):
    """(agreement - chance) / (most - chance), counted on pairs of clients (Hubert and Arabie, 1985)."""
    one, two = (together(x) for x in both)
    n = len(both[0])
    chance = len(one) * len(two) / max(n * (n - 1) / 2, 1)
    most = (len(one) + len(two)) / 2
    expected = 1.0 if most == chance else (len(one & two) - chance) / (most - chance)
    assert adjusted_rand(*both) == pytest.approx(expected)


def test_adjusted_rand_of_trivial_partitions():
    assert (
        adjusted_rand([0, 0, 0], [1, 1, 1])
        == adjusted_rand([0, 1, 2], [2, 1, 0])
        == adjusted_rand([0], [5])
        == 1.0
    )
    assert adjusted_rand([0, 0, 0], [0, 1, 2]) == 0.0


def test_purity_counts_the_most_common():
    assert purity([0, 0, 0, 1, 1], [0, 0, 1, 1, 1]) == (2 + 2) / 5
    assert purity([0, 1, 2], [0, 0, 0]) == 1.0
    assert purity([0, 0, 0, 0], list("aabb")) == 2 / 4


def test_labels_of_any_kind():
    for labels in (
        np.array([3, 1, 3]),
        torch.tensor([3, 1, 3]),
        ["x", "a", "x"],
        [0.5, 0.1, 0.5],
        (True, False, True),
    ):
        assert groups_of(labels) == ((0, 2), (1,))


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([(0, 1), (1, 2)], "once"),
        ([(10, 20), (30,)], "client ids are not positions"),
        ([], "empty"),
        ([(0,), ()], "empty"),
    ],
)
def test_what_are_no_groups_is_refused(groups, says):
    with pytest.raises(ValueError, match=says):
        labels_of(groups)


@pytest.mark.parametrize("labels", [[(0, 1), (2,)], [[0, 1], [2, 3]], 3, {"a": 1}])
def test_what_are_no_labels_is_refused(labels):
    with pytest.raises(ValueError, match="one label per client"):
        groups_of(labels)


def test_labellings_of_other_clients_are_refused():
    for compare in (same_partition, adjusted_rand, purity):
        with pytest.raises(ValueError, match="got 2 and 3 labels"):
            compare([0, 1], [0, 1, 2])
    with pytest.raises(ValueError, match="no clients"):
        groups_of([])
