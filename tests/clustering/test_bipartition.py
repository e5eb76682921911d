"""CFL's cut in two, against brute force and against Algorithm 1 as it is printed."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import bipartition, cosine, gram, optimal_bipartition


def literal(similarity):
    """Algorithm 1 of arXiv 1910.01991: merge along the pairs, most similar first, until two clusters are left.

    Pairs off the diagonal, sorted stably, and two clients are not merged: the two slips of the
    printed loop.
    """
    m = len(similarity)
    pairs = sorted(combinations(range(m), 2), key=lambda p: -similarity[p])
    clusters = [{i} for i in range(m)]
    for i, j in pairs:
        if len(clusters) == 2:
            break
        one, two = (next(c for c in clusters if x in c) for x in (i, j))
        if one is not two:
            clusters.remove(two)
            one |= two
    left, right = sorted(tuple(sorted(c)) for c in clusters)
    return left, right, max(similarity[i, j] for i in left for j in right)


def least_cross(similarity):
    """The objective by brute force, over every bipartition."""
    m = len(similarity)
    best = np.inf
    for size in range(1, m):
        for left in combinations(range(m), size):
            right = [j for j in range(m) if j not in left]
            best = min(best, similarity[np.ix_(left, right)].max())
    return best


def symmetric(values, m):
    out = np.eye(m)
    out[np.triu_indices(m, 1)] = values
    return np.maximum(out, out.T) + np.minimum(out, out.T) - np.diag(np.diagonal(out))


@st.composite
def similarities(draw, levels=None, largest=8):
    """Random ones, or of a few levels, so that ties abound."""
    m = draw(st.integers(2, largest))
    level = st.floats(-1, 1, allow_subnormal=False) if levels is None else st.sampled_from(levels)
    size = m * (m - 1) // 2
    return symmetric(draw(st.lists(level, min_size=size, max_size=size)), m)


@given(similarities())
def test_no_bipartition_has_a_smaller_cross_similarity(similarity):
    left, right, cross = optimal_bipartition(similarity)
    assert cross == similarity[np.ix_(left, right)].max() == least_cross(similarity)


@settings(max_examples=100)
@given(
    similarities(levels=(-0.5, 0.0, 0.5))
    | similarities(levels=(0.0, 1.0), largest=12)
    | similarities()
)
def test_ties_fall_as_in_the_printed_algorithm(similarity):
    assert optimal_bipartition(similarity) == literal(similarity)


@pytest.mark.parametrize("m", [40, 90])
def test_larger_cases_equal_the_printed_algorithm(m):
    rng = np.random.default_rng(m)
    for similarity in (
        cosine(gram(rng.normal(size=(m, 5)))),
        symmetric(rng.integers(3, size=m * (m - 1) // 2) / 2, m),
    ):
        assert optimal_bipartition(similarity) == literal(similarity)


def test_two_clients_are_two_singletons_even_if_identical():
    for value in (1.0, 1.0000001, -1.0):
        assert optimal_bipartition(np.array([[1.0, value], [value, 1.0]])) == ((0,), (1,), value)


def test_all_equal_similarities_peel_off_the_last_client():
    # Pairs in order: (0, 1), (0, 2), ..., so all but the last client are joined first.
    assert optimal_bipartition(np.ones((5, 5))) == ((0, 1, 2, 3), (4,), 1.0)


def test_position_0_is_left():
    similarity = symmetric([0.1, 0.1, 0.9], 3)  # 1 and 2 belong together
    assert optimal_bipartition(similarity) == ((0,), (1, 2), 0.1)


@given(similarities(), st.randoms())
def test_relabelled_clients_are_the_same_cut(similarity, random):
    off = similarity[np.triu_indices(len(similarity), 1)]
    if len(np.unique(off)) < len(off):
        return  # ties fall by position
    order = random.sample(range(len(similarity)), len(similarity))
    cut = optimal_bipartition(similarity[np.ix_(order, order)])
    back = {frozenset(order[i] for i in side) for side in cut[:2]}
    assert back == {frozenset(side) for side in optimal_bipartition(similarity)[:2]}


def chain():
    """Clients 0 to 5 are a chain of neighbours 28 or 32 degrees apart, 6 and 7 a pair 57 beyond its end."""
    angles = np.deg2rad([0, 28, 60, 88, 120, 148, 205, 205])
    return cosine(gram(np.stack([np.cos(angles), np.sin(angles)], axis=1)))


def test_complete_linkage_is_not_optimal():
    """Published code cuts with complete linkage, which does not minimise the greatest cross similarity."""
    best, complete = optimal_bipartition(chain()), bipartition(chain(), "complete")
    assert best[:2] == ((0, 1, 2, 3, 4, 5), (6, 7))
    assert best.cross == pytest.approx(np.cos(np.deg2rad(205 - 148)))
    # It would rather have 120 to 205 in one group (85 degrees wide) than 60 to 148 (88 degrees):
    # the chain is broken.
    assert complete[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert complete.cross == pytest.approx(np.cos(np.deg2rad(120 - 88)))


@pytest.mark.parametrize("linkage", ["complete", "average"])
@given(similarity=similarities())
def test_alternatives_cut_in_two_and_are_never_better(linkage, similarity):
    left, right, cross = bipartition(similarity, linkage)
    assert sorted(left + right) == list(range(len(similarity)))
    assert 0 in left
    assert right
    assert cross == similarity[np.ix_(left, right)].max() >= optimal_bipartition(similarity).cross


def test_single_linkage_is_the_optimal_cut():
    assert bipartition(chain()) == bipartition(chain(), "single") == optimal_bipartition(chain())


@pytest.mark.parametrize(
    ("similarity", "says"),
    [
        ([[1.0]], "at least 2 clients"),
        ([[0.0, 0.3], [0.3, 0.0]], "looks like a matrix of distances"),
        ([[0.0, 0.0], [0.0, 0.0]], "looks like a matrix of distances"),
        ([[25.0, 8.0], [8.0, 4.0]], "looks like a Gram matrix"),
        ([[1.0, 0.3], [0.2, 1.0]], "not symmetric"),
        ([[1.0, np.nan], [np.nan, 1.0]], "row 0"),
        ([[1.0, 0.2, 0.3], [1.0, 0.2, 0.3]], r"gram\(updates\)"),
    ],
)
@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_slips_are_refused(similarity, says, linkage):
    with pytest.raises(ValueError, match=says):
        bipartition(np.array(similarity), linkage)


def test_linkages_are_named():
    with pytest.raises(ValueError, match="one of single, complete, average, got 'ward'"):
        bipartition(chain(), "ward")


def test_the_argument_is_left_alone():
    similarity = chain()
    before = similarity.copy()
    optimal_bipartition(similarity)
    bipartition(similarity, "average")
    assert np.array_equal(similarity, before)


@pytest.mark.slow
def test_ten_thousand_clients():
    rng = np.random.default_rng(0)
    similarity = cosine(
        gram(rng.normal(size=(10_000, 20)) + np.repeat([[3.0], [-3.0]], 5000, axis=0))
    )
    assert optimal_bipartition(similarity)[:2] == (tuple(range(5000)), tuple(range(5000, 10_000)))
