"""Margins: within them nothing changes, beyond them something does, and what sketches find inside is what updates say."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import (
    SketchWarning,
    agglomerative,
    bipartition,
    bipartition_margin,
    cosine,
    cut,
    cut_margin,
    dendrogram,
    distances,
    gram,
    optimal_bipartition,
    same_partition,
    sketch_error,
)

LINKAGES = ("single", "complete", "average")


def points(seed: int) -> np.ndarray:
    """A few clients in groups that are now far apart, now near."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    return rng.uniform(0, 8) * rng.normal(size=(3, 4))[rng.integers(3, size=n)] + rng.normal(
        size=(n, 4)
    )


def moved(matrix: np.ndarray, by: float, seed: int) -> np.ndarray:
    """Every entry off the diagonal moved up or down by as much as is allowed."""
    signs = np.triu(np.random.default_rng(seed).choice([-by, by], size=matrix.shape), 1)
    return matrix + signs + signs.T


@pytest.mark.parametrize("linkage", LINKAGES)
@given(seed=st.integers(0, 100_000), at=st.floats(0.05, 1.1), by_number=st.booleans())
def test_within_the_margin_a_cut_stays(linkage: str, seed: int, at: float, by_number: bool) -> None:
    apart = distances(gram(points(seed)))
    where = (
        {"groups": 1 + seed % len(apart)}
        if by_number
        else {"threshold": at * float(apart.max()) + 1e-9}
    )
    bears = cut_margin(apart, linkage=linkage, **where)
    if 0 < bears < np.inf:
        other = np.maximum(moved(apart, bears * 0.4999, seed), 0)
        assert same_partition(
            cut(apart, linkage=linkage, **where), cut(other, linkage=linkage, **where)
        )


@pytest.mark.parametrize("linkage", LINKAGES)
@given(seed=st.integers(0, 100_000))
def test_within_the_margin_a_bipartition_stays(linkage: str, seed: int) -> None:
    alike = cosine(gram(points(seed)))
    bears = bipartition_margin(alike, linkage)
    if 0 < bears < np.inf:
        other = moved(alike, bears * 0.4999, seed)
        assert bipartition(other, linkage)[:2] == bipartition(alike, linkage)[:2]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_margins_are_above_zero_where_groups_are_clear(linkage: str) -> None:
    apart = np.array(
        [[0.0, 1.0, 6.0, 7.0], [1.0, 0.0, 5.0, 6.0], [6.0, 5.0, 0.0, 2.0], [7.0, 6.0, 2.0, 0.0]]
    )
    assert cut_margin(apart, linkage=linkage, groups=2) == 5 - 2
    assert cut_margin(apart, linkage=linkage, threshold=3.0) == 2 * (3 - 2)
    assert cut_margin(apart, linkage=linkage, threshold=4.5) == 2 * (5 - 4.5)
    assert cut_margin(apart, linkage=linkage, threshold=0.25) == 2 * (1 - 0.25)
    assert (
        cut_margin(apart, linkage=linkage, groups=1)
        == cut_margin(apart, linkage=linkage, groups=4)
        == np.inf
    )
    assert cut_margin(apart, linkage=linkage, threshold=np.inf) == np.inf
    assert cut_margin(apart, linkage=linkage, groups=2, tree=dendrogram(apart, linkage)) == 3
    assert bipartition_margin(-apart, linkage) == 3


@settings(max_examples=60)
@given(seed=st.integers(0, 100_000), groups=st.integers(2, 4))
def test_the_margin_of_single_linkage_is_all_it_can_bear(seed: int, groups: int) -> None:
    """A little beyond it, distances can be moved such that the groups change."""
    apart = distances(gram(np.random.default_rng(seed).normal(size=(8, 3))))
    before = cut(apart, linkage="single", groups=groups)
    push = cut_margin(apart, linkage="single", groups=groups) / 2 * 1.0001
    across = before[:, None] != before
    other = np.maximum(np.where(across, apart - push, apart + push), 0)
    np.fill_diagonal(other, 0.0)
    assert not same_partition(cut(other, linkage="single", groups=groups), before)


def test_overlapping_groups_have_no_margin() -> None:
    chain = distances(gram(np.array([[0.0], [1.0], [2.0], [3.0], [4.5], [5.5]])))
    assert cut_margin(chain, linkage="single", groups=2) == 0.5
    assert (
        cut_margin(chain, linkage="complete", groups=2)
        == cut_margin(chain, linkage="average", groups=2)
        == 0
    )
    assert bipartition_margin(-chain, "complete") == 0


def test_slips_are_refused() -> None:
    apart = distances(gram(points(0)))
    with pytest.raises(ValueError, match="for which no margin is known"):
        cut_margin(apart, linkage="ward", groups=2)
    with pytest.raises(ValueError, match="tree must have the"):
        cut_margin(apart, linkage="single", groups=1, tree=np.zeros((0, 4)))
    with pytest.raises(ValueError, match="exactly one of threshold and groups"):
        cut_margin(apart, linkage="single")
    with pytest.raises(ValueError, match="one of single, complete, average, got 'ward'"):
        bipartition_margin(-apart, "ward")
    assert bipartition_margin([[1.0, 0.3], [0.3, 1.0]]) == np.inf


# -- sketches
# -------------------------------------------------------------------------------------------------------------


def updates(
    rng: np.random.Generator, n: int, d: int, signal: float, groups: int = 3
) -> tuple[torch.Tensor, np.ndarray]:
    """Rows with cosines of about signal²/(1 + signal²) within a group, and 0 across; heavy-tailed directions."""
    truth = np.concatenate([np.arange(groups), rng.integers(groups, size=n - groups)])
    directions = rng.standard_t(3, size=(groups, d)) / np.sqrt(3)
    rows = signal * directions[truth] + rng.normal(size=(n, d))
    return torch.from_numpy(rows).float(), truth


def silent(call) -> tuple[np.ndarray, bool]:
    """(labels, whether there was no warning)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        labels = call()
    assert all(one.category is SketchWarning for one in caught)
    return labels, not caught


CUTS = [
    ("cosine", "single", {"groups": 3}),
    ("cosine", "average", {"threshold": 0.6}),
    ("l2", "complete", {"groups": 3}),
]
"""Each metric, each linkage, and each way to say where to cut."""


@pytest.mark.parametrize(("metric", "linkage", "where"), CUTS)
def test_sketched_groups_are_the_exact_ones_in_all_draws_that_do_not_warn(
    metric: str, linkage: str, where: dict
) -> None:
    vouched = 0
    for draw in range(50):
        rng = np.random.default_rng(draw)
        x, _ = updates(rng, 12, 20_000, signal=(0.5, 1.0, 2.0, 3.0)[draw % 4])
        how = {"metric": metric, "linkage": linkage, **where}
        found, sure = silent(
            lambda x=x, how=how, seed=draw: agglomerative(x, **how, sketch=4096, seed=seed)
        )
        if sure:
            vouched += 1
            assert same_partition(found, agglomerative(x, **how))
    assert 10 < vouched < 50  # neither always nor never


def test_sketched_sides_are_the_exact_ones_wherever_the_margin_is_above_the_bound() -> None:
    vouched, eps = 0, sketch_error(4096, 12)
    for draw in range(50):
        x, _ = updates(
            np.random.default_rng(draw), 12, 20_000, signal=(0.3, 1.0, 3.0)[draw % 3], groups=2
        )
        found = cosine(gram(x, sketch=4096, seed=draw))
        if bipartition_margin(found) > 2 * eps:
            vouched += 1
            assert optimal_bipartition(found)[:2] == optimal_bipartition(cosine(gram(x)))[:2]
    assert 10 < vouched < 50


@pytest.mark.slow
def test_sketches_of_a_large_models_updates_find_the_exact_groups() -> None:
    x, truth = updates(np.random.default_rng(0), 20, 1_660_000, signal=1.5)
    exact = agglomerative(x, metric="cosine", linkage="single", groups=3)
    assert same_partition(exact, truth)
    for seed in range(50):
        found, sure = silent(
            lambda seed=seed: agglomerative(
                x, metric="cosine", linkage="single", groups=3, sketch=4096, seed=seed
            )
        )
        assert sure
        assert same_partition(found, exact)


def test_a_warning_is_one_sentence_with_the_numbers() -> None:
    x, _ = updates(np.random.default_rng(1), 12, 5000, signal=0.1)
    with pytest.warns(
        SketchWarning, match=r"a sketch of 256 numbers may change a cosine by 0\.\d+, more than"
    ):
        agglomerative(x, metric="cosine", linkage="average", threshold=0.9, sketch=256)
    with pytest.warns(SketchWarning, match="no margin is known for linkage ward"):
        agglomerative(x, metric="l2", linkage="ward", groups=3, sketch=256)


def test_there_is_no_warning_where_nothing_could_change() -> None:
    x, _ = updates(np.random.default_rng(2), 8, 300, signal=0.1)
    for groups, size in ((1, 16), (8, 16), (3, 300)):
        labels = agglomerative(x, metric="cosine", linkage="average", groups=groups, sketch=size)
        assert len(set(labels.tolist())) == groups


def test_manhattan_distances_have_no_sketch() -> None:
    with pytest.raises(ValueError, match="sketch needs metric l2 or cosine, got l1"):
        agglomerative(np.eye(3), metric="l1", linkage="single", groups=2, sketch=4)
