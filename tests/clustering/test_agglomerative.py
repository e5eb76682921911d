"""Trees and cuts, against linkage written out on sets."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering

from coterie.clustering import (
    agglomerative,
    cosine,
    cut,
    cut_dendrogram,
    dendrogram,
    distances,
    gram,
    groups_of,
    same_partition,
)

RULE = {"single": np.min, "complete": np.max, "average": np.mean}
METRIC = {"l1": "cityblock", "l2": "euclidean", "cosine": "cosine"}


def literal(rows, metric, linkage, threshold):
    """Merge the two nearest groups while they are nearer than ``threshold``, distances by the linkage's definition."""
    apart = cdist(rows, rows, METRIC[metric])

    def between(a, b):
        if linkage == "ward":
            gap = np.linalg.norm(rows[a].mean(axis=0) - rows[b].mean(axis=0))
            return np.sqrt(2 * len(a) * len(b) / (len(a) + len(b))) * gap
        return RULE[linkage](apart[np.ix_(a, b)])

    groups = [[i] for i in range(len(rows))]
    while len(groups) > 1:
        d, i, j = min(
            (between(groups[i], groups[j]), i, j) for j in range(len(groups)) for i in range(j)
        )
        if not d < threshold:
            break
        groups[i] = groups[i] + groups.pop(j)
    return {frozenset(g) for g in groups}


SETTINGS = [
    (m, linkage) for m in METRIC for linkage in (*RULE, "ward") if linkage != "ward" or m == "l2"
]


@pytest.mark.parametrize(("metric", "linkage"), SETTINGS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), quantile=st.floats(0, 1.2))
def test_cuts_are_those_of_the_definition(metric, linkage, seed, quantile):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(1, 9), 4))
    threshold = quantile * 1e-9 + quantile * float(cdist(rows, rows, METRIC[metric]).max())
    labels = agglomerative(rows, metric=metric, linkage=linkage, threshold=threshold)
    assert {frozenset(g) for g in groups_of(labels)} == literal(rows, metric, linkage, threshold)


@pytest.mark.parametrize(("metric", "linkage"), SETTINGS)
def test_scikit_learn_agrees(metric, linkage):
    rows = np.random.default_rng(3).normal(size=(30, 6))
    for groups in (1, 2, 7, 30):
        theirs = AgglomerativeClustering(
            groups, metric=METRIC[metric], linkage=linkage
        ).fit_predict(rows)
        assert same_partition(
            agglomerative(rows, metric=metric, linkage=linkage, groups=groups), theirs
        )


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
def test_the_threshold_is_strict(linkage):
    two = np.array([[0.0], [3.0]])
    assert agglomerative(two, metric="l2", linkage=linkage, threshold=3.0).tolist() == [0, 1]
    assert agglomerative(two, metric="l2", linkage=linkage, threshold=3.001).tolist() == [0, 0]


def test_wards_convention():
    """2 + 2 points at distance 3: sqrt(2 * 2 * 2 / 4) * 3 = 4.2426, as in SciPy and scikit-learn."""
    four = np.array([[0.0], [0.0], [3.0], [3.0]])
    assert dendrogram(distances(gram(four)), "ward")[-1, 2] == pytest.approx(np.sqrt(2) * 3)
    assert agglomerative(four, metric="l2", linkage="ward", threshold=4.2426).tolist() == [
        0,
        0,
        1,
        1,
    ]
    assert agglomerative(four, metric="l2", linkage="ward", threshold=4.2427).tolist() == [
        0,
        0,
        0,
        0,
    ]


def test_labels_are_numbered_by_first_member():
    rows = np.array([[9.0], [0.0], [9.1], [5.0], [0.1]])
    assert agglomerative(rows, metric="l1", linkage="complete", groups=3).tolist() == [
        0,
        1,
        0,
        2,
        1,
    ]


def test_zero_infinite_and_in_between():
    rows = np.array([[0.0], [0.0], [1.0]])
    for threshold, expected in [(0.0, [0, 1, 2]), (0.5, [0, 0, 1]), (np.inf, [0, 0, 0])]:
        assert (
            agglomerative(rows, metric="l1", linkage="single", threshold=threshold).tolist()
            == expected
        )


def test_one_tree_serves_many_cuts():
    apart = distances(gram(np.random.default_rng(4).normal(size=(12, 3))))
    tree = dendrogram(apart, "average")
    for groups in range(1, 13):
        labels = cut_dendrogram(tree, groups=groups)
        assert len(set(labels.tolist())) == groups
        assert np.array_equal(labels, cut(apart, linkage="average", groups=groups))


@pytest.mark.parametrize(("metric", "linkage"), SETTINGS)
def test_one_client_is_one_group(metric, linkage):
    assert agglomerative(
        np.ones((1, 3)), metric=metric, linkage=linkage, threshold=1.0
    ).tolist() == [0]
    assert cut([[0.0]], linkage=linkage, groups=1).tolist() == [0]
    assert dendrogram([[0.0]], linkage).shape == (0, 4)


def test_a_zero_update_has_a_cosine_distance():
    """scikit-learn refuses it; here it is at distance 1 from everyone."""
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [2.0, 0.1]])
    assert agglomerative(rows, metric="cosine", linkage="complete", threshold=0.9).tolist() == [
        0,
        1,
        0,
    ]
    assert agglomerative(rows, metric="cosine", linkage="complete", threshold=1.1).tolist() == [
        0,
        0,
        0,
    ]


def test_arrays_and_tensors_agree():
    rows = np.random.default_rng(5).normal(size=(9, 50)).astype(np.float32)
    for metric, linkage in SETTINGS:
        ours = agglomerative(rows, metric=metric, linkage=linkage, groups=3)
        assert np.array_equal(
            ours, agglomerative(torch.tensor(rows), metric=metric, linkage=linkage, groups=3)
        )


def test_a_large_common_part_does_not_drown_distances():
    """Weights in place of updates: without the mean taken off, float32 could not tell these apart."""
    rng = np.random.default_rng(6)
    apart = np.repeat([[0.0], [1.0]], 4, axis=0) * rng.normal(size=2000) * 0.01
    rows = (100 * rng.normal(size=2000) + apart).astype(np.float32)
    assert agglomerative(rows, metric="l2", linkage="ward", groups=2).tolist() == [0] * 4 + [1] * 4


@given(st.integers(0, 1000), st.floats(0.1, 10))
def test_scaled_updates_need_a_scaled_threshold(seed, factor):
    rows = np.random.default_rng(seed).normal(size=(7, 3))
    for metric in ("l1", "l2"):
        before = agglomerative(rows, metric=metric, linkage="average", threshold=2.0)
        after = agglomerative(
            rows * factor, metric=metric, linkage="average", threshold=2.0 * factor
        )
        assert same_partition(before, after)


SYMMETRIC = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0], [2.0, 2.0, 0.0]])


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (cosine(gram(np.eye(3) + 1)), "looks like a matrix of similarities"),
        (gram(np.eye(3) + 1), "looks like a Gram matrix"),
        ([[0.0, -0.5], [-0.5, 0.0]], "similarity"),
        ([[0.0, 1.0], [2.0, 0.0]], "not symmetric"),
        ([[0.0, np.inf], [np.inf, 0.0]], "row 0"),
        ([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]], r"gram\(updates\)"),
        ([1.0, 2.0, 2.0], "squareform"),
    ],
)
def test_what_is_no_distance_is_refused(matrix, says):
    """A similarity passed as a distance joins the least alike: a slip that published code makes in silence."""
    with pytest.raises(ValueError, match=says):
        dendrogram(np.array(matrix), "single")
    with pytest.raises(ValueError, match=says):
        cut(np.array(matrix), linkage="single", groups=1)


def test_distances_in_place_of_updates_are_refused():
    with pytest.raises(ValueError, match="pass that to cut"):
        agglomerative(SYMMETRIC, metric="l2", linkage="ward", groups=2)
    agglomerative(
        np.eye(3), metric="l2", linkage="ward", groups=2
    )  # symmetric and square, but may be updates
    agglomerative(np.zeros((3, 3)), metric="l2", linkage="ward", groups=2)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"metric": "l3"}, "one of l1, l2, cosine, got 'l3'"),
        ({"linkage": "centroid"}, "one of single, complete, average, ward, got 'centroid'"),
        ({"linkage": "ward", "metric": "l1"}, "needs metric l2, got l1"),
        ({"linkage": "ward", "metric": "cosine"}, "needs metric l2, got cosine"),
        ({"groups": 2}, "exactly one of threshold and groups"),
        ({"threshold": None}, "exactly one of threshold and groups"),
        ({"threshold": -1.0}, ">= 0"),
        ({"threshold": float("nan")}, ">= 0"),
        ({"threshold": None, "groups": 0}, "1 to 3"),
        ({"threshold": None, "groups": 4}, "1 to 3"),
        ({"threshold": None, "groups": 1.5}, "groups must be an integer or none"),
        ({"threshold": None, "groups": True}, "an integer"),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    call = {"metric": "l2", "linkage": "single", "threshold": 1.0} | wrong
    with pytest.raises(ValueError, match=says):
        agglomerative(np.arange(6.0).reshape(3, 2), **call)


def test_a_tree_has_four_columns():
    with pytest.raises(ValueError, match=r"\(n - 1, 4\)"):
        cut_dendrogram(np.zeros((3, 3)), groups=1)
