"""The Gram matrix and what follows from it, against sums written out."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import cdist

from coterie.clustering import cosine, distances, geometry, gram, manhattan, norm_of_mean, norms
from coterie.clustering.columns import blocks

WORLD = np.array([[3.0, 4.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-6.0, -8.0, 0.0]])

points = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 3)),
)


def random_rows(seed: int, n: int = 5, d: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_gram_is_every_inner_product():
    expected = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in WORLD] for x in WORLD]
    assert gram(WORLD).tolist() == expected
    assert gram(WORLD).dtype == np.float64


@pytest.mark.parametrize(
    "same",
    [
        torch.tensor(WORLD),
        torch.tensor(WORLD, dtype=torch.float32),
        torch.tensor(WORLD).bfloat16(),
        WORLD.astype(np.float16),
        WORLD.astype(int),
        WORLD.astype(">f8"),
        WORLD.tolist(),
        np.asfortranarray(WORLD),
        WORLD[:, ::-1],
    ],
)
def test_any_container_of_the_same_numbers(same):
    assert np.array_equal(gram(same), gram(WORLD))
    assert np.array_equal(manhattan(same), manhattan(WORLD))


def test_read_only_rows_and_rows_with_a_gradient():
    frozen = WORLD.copy()
    frozen.flags.writeable = False
    assert np.array_equal(gram(frozen), gram(WORLD))
    assert np.array_equal(gram(torch.tensor(WORLD, requires_grad=True)), gram(WORLD))


def test_blocks_of_columns_add_up_to_one_product(monkeypatch):
    rows = random_rows(0, n=6, d=1000)
    whole = rows @ rows.T
    assert np.allclose(gram(rows), whole, rtol=1e-12)
    for module in (geometry, geometry):
        monkeypatch.setattr(module, "blocks", lambda rows, columns, width: blocks(rows, columns, 7))
    assert np.allclose(gram(rows), whole, rtol=1e-12)
    assert np.allclose(manhattan(rows), cdist(rows, rows, "cityblock"), rtol=1e-12)


def test_float32_blocks_are_added_in_float64():
    # 2^13 in the first block, and 2^16 - 1 ones in the second: next to 2^26, float32 counts in
    # eights.
    rows = torch.zeros(1, 2 * 2**16)
    rows[0, 0] = 2.0**13
    rows[0, 2**16 + 1 :] = 1.0
    assert float(gram(rows)[0, 0]) == 2**26 + 2**16 - 1


@pytest.mark.parametrize(
    ("columns", "picked"),
    [
        (None, range(40)),
        (slice(3, 9), range(3, 9)),
        (slice(None, 5), range(5)),
        (slice(35, 99), range(35, 40)),
        ((3, 9), range(3, 9)),
        ([3, 9], range(3, 9)),
        ([(20, 30), (0, 4)], [*range(4), *range(20, 30)]),
        ([slice(0, 4), (7, 8)], [0, 1, 2, 3, 7]),
        (np.array([3, 9]), [3, 9]),
        (torch.tensor([9, 3, 5]), [9, 3, 5]),
        (np.arange(40) % 2 == 0, range(0, 40, 2)),
    ],
)
def test_columns(columns, picked):
    rows = random_rows(1)
    part = rows[:, list(picked)]
    assert np.allclose(gram(rows, columns), part @ part.T)
    assert np.allclose(gram(torch.tensor(rows), columns), part @ part.T)
    assert np.allclose(manhattan(rows, columns), cdist(part, part, "cityblock"))


def test_layers_add_up_to_the_model():
    rows = random_rows(2)
    assert np.allclose(sum(gram(rows, c) for c in [(0, 10), (10, 33), (33, 40)]), gram(rows))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([(0, 5), (4, 6)], "count twice"),
        (np.array([1, 1]), "twice"),
        ((5, 50), "0 to 40"),
        ((5, 5), "not a range"),
        (slice(0, 10, 2), "step 1"),
        ([1, 2, 3], "np.array"),
        ([], "empty"),
        (np.array([40]), "0 to 39"),
        (np.array([True, False]), "booleans"),
        (np.array([0.5]), "integers"),
    ],
)
def test_wrong_columns_are_refused(columns, says):
    with pytest.raises(ValueError, match=says):
        gram(random_rows(3), columns)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("of", [gram, manhattan])
def test_a_row_that_is_not_finite_is_named(of, bad):
    rows = random_rows(4)
    rows[3, 7] = bad
    with pytest.raises(ValueError, match="row 3"):
        of(rows)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (np.full((2, 3), 1e200), "overflow"),
        (np.zeros(3), r"\(n, d\)"),
        (np.zeros((0, 3)), "no clients"),
        (np.array([["a"]]), "numbers"),
        (np.array([[1j]]), "numbers"),
        (torch.ones(2, 2, dtype=torch.complex64), "real"),
    ],
)
def test_wrong_updates_are_refused(rows, says):
    with pytest.raises(ValueError, match=says):
        gram(rows)


def test_norms_and_cosines():
    g = gram(WORLD)
    assert norms(g).tolist() == [5, 2, 0, 10]
    c = 4 / 5  # (3, 4) and (0, 2)
    assert np.allclose(
        cosine(g), [[1, c, 0, -1], [c, 1, 0, -c], [0, 0, 1, 0], [-1, -c, 0, 1]], atol=1e-15
    )


def test_cosines_of_the_gram_matrix_are_those_of_the_rows():
    rows = random_rows(5, n=7, d=300)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.abs(cosine(gram(rows)) - unit @ unit.T).max() < 1e-10


@given(points, st.floats(0.01, 100))
def test_cosines_do_not_see_positive_scale(rows, factor):
    assert np.allclose(cosine(gram(rows)), cosine(gram(rows * factor)), atol=1e-7)


@given(points)
def test_what_every_matrix_is(rows):
    g = gram(rows)
    for matrix, diagonal in [
        (cosine(g), 1),
        (distances(g), 0),
        (distances(g, "cosine"), 0),
        (manhattan(rows), 0),
    ]:
        assert np.isfinite(matrix).all()
        assert np.array_equal(matrix, matrix.T)
        assert (np.diagonal(matrix) == diagonal).all()
    assert np.abs(cosine(g)).max() <= 1
    assert min(distances(g).min(), distances(g, "cosine").min()) >= 0
    # Differences of squares up to 9 * 100^2 cancel: an error of their rounding, under the root.
    assert np.allclose(distances(g), cdist(rows, rows), atol=np.sqrt(9 * 100**2 * 1e-15))
    assert np.allclose(manhattan(rows), cdist(rows, rows, "cityblock"))


@given(st.integers(0, 1000))
def test_an_orthonormal_map_of_the_rows_changes_nothing(seed):
    """CFL's privacy argument: clients may send transformed updates."""
    rows = random_rows(seed, d=12)
    q, _ = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(12, 12)))
    assert np.allclose(gram(rows @ q), gram(rows), atol=1e-11)


@given(st.permutations(range(5)))
def test_relabelled_clients_are_relabelled_entries(order):
    rows = random_rows(6)
    at = np.ix_(order, order)
    assert np.allclose(gram(rows[order]), gram(rows)[at])
    assert np.allclose(manhattan(rows[order]), manhattan(rows)[at])


@given(points, st.data())
def test_norm_of_mean_is_that_of_the_mean(rows, data):
    sizes = np.array(
        data.draw(st.lists(st.integers(1, 50), min_size=len(rows), max_size=len(rows)))
    )
    assert norm_of_mean(gram(rows)) == pytest.approx(np.linalg.norm(rows.mean(axis=0)), abs=1e-5)
    expected = np.linalg.norm(np.average(rows, axis=0, weights=sizes))
    assert norm_of_mean(gram(rows), sizes) == pytest.approx(expected, abs=1e-5)
    assert norm_of_mean(gram(rows), sizes / sizes.sum()) == pytest.approx(expected, abs=1e-5)


def test_the_mean_of_norms_is_not_the_norm_of_the_mean():
    """At a stationary point updates cancel and their norms do not: CFL splits on that difference."""
    g = gram(np.array([[3.0, 4.0], [-3.0, -4.0]]))
    assert norm_of_mean(g) == 0
    assert norms(g).mean() == 5


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([1, 1], r"shape \(4,\)"),
        ([1, 1, -1, 1], "client 2"),
        ([0, 0, 0, 0], "all be zero"),
        ([1, 1, 1, np.nan], "client 3"),
    ],
)
def test_wrong_weights_are_refused(weights, says):
    with pytest.raises(ValueError, match=says):
        norm_of_mean(gram(WORLD), weights)


def test_cosine_distance_to_a_zero_update_is_one():
    assert distances(gram(WORLD), "cosine")[2].tolist() == [1, 1, 0, 1]


def test_near_identical_rows_have_no_imaginary_distance():
    rows = np.full((3, 1000), 0.1) + 1e-12 * random_rows(7, n=3, d=1000)
    assert (distances(gram(rows)) >= 0).all()
    assert distances(gram(rows)).max() < 1e-6


def test_one_client():
    assert gram(WORLD[:1]).tolist() == [[25]]
    assert cosine([[25.0]]).tolist() == [[1]]
    assert manhattan(WORLD[:1]).tolist() == distances([[25.0]]).tolist() == [[0]]


@pytest.mark.parametrize(
    ("matrix", "says"),
    [
        (WORLD, r"pass|take gram\(updates\)"),
        (np.array([[0.0, 2.0], [2.0, 0.0]]), "looks like a matrix of distances"),
        (np.array([[1.0, 2.0], [3.0, 1.0]]), "not symmetric"),
        (np.array([[-1.0, 0.0], [0.0, 1.0]]), "squared norm"),
        (np.array([[1.0, 0.0], [0.0, np.nan]]), "row 1"),
        (np.ones(3), "squareform"),
        (np.ones((0, 0)), "no clients"),
        ([["a"]], "numbers"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(matrix, says):
    for of in (cosine, norms, distances, norm_of_mean):
        with pytest.raises(ValueError, match=says):
            of(matrix)


def test_metrics_are_named():
    with pytest.raises(ValueError, match="manhattan"):
        distances(gram(WORLD), "l1")
    with pytest.raises(ValueError, match="one of l2, cosine, got 'euclid'"):
        distances(gram(WORLD), "euclid")


def test_manhattan_in_float32_at_size():
    rows = torch.randn(8, 50_000, generator=torch.Generator().manual_seed(0))
    assert np.allclose(
        manhattan(rows), cdist(rows.double().numpy(), rows.double().numpy(), "cityblock"), rtol=1e-6
    )
