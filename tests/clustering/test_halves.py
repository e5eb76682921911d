"""Signal and noise from half-updates, against their definitions on explicit rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import (
    cosine,
    gram,
    halves_gram,
    noise_levels,
    reliability,
    signal_cosine,
    signal_gram,
)
from coterie.clustering.halves import centred, halves


def random_halves(seed: int, n: int = 5, d: int = 30) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, d))
    return signal + rng.normal(size=(n, d)), signal + rng.normal(size=(n, d))


def test_the_gram_matrix_of_halves_is_that_of_both_stacked():
    a, b = random_halves(0)
    assert np.array_equal(halves_gram(a, b), gram(np.concatenate((a, b))))
    assert halves_gram(a, b, columns=(3, 9)) == pytest.approx(
        gram(np.concatenate((a[:, 3:9], b[:, 3:9])))
    )
    assert halves_gram(torch.tensor(a), b.tolist()) == pytest.approx(halves_gram(a, b))
    assert halves_gram(torch.tensor(a).float(), torch.tensor(b).float()).dtype == np.float64


def test_every_entry_is_what_its_definition_says():
    a, b = random_halves(1)
    h, estimate = halves(halves_gram(a, b)), signal_gram(halves_gram(a, b))
    for i in range(5):
        for j in range(5):
            whole_i, whole_j = (a[i] + b[i]) / 2, (a[j] + b[j]) / 2
            noise_i, noise_j = (a[i] - b[i]) / 2, (a[j] - b[j]) / 2
            assert h.mean[i, j] == pytest.approx(whole_i @ whole_j)
            assert h.first[i, j] == pytest.approx(a[i] @ a[j])
            assert h.second[i, j] == pytest.approx(b[i] @ b[j])
            assert h.cross[i, j] == pytest.approx(a[i] @ b[j])
            if i == j:
                assert h.levels[i] == pytest.approx(noise_i @ noise_i)
            assert h.mixed[i, j] == pytest.approx(whole_i @ noise_j)
            assert estimate[i, j] == pytest.approx(a[i] @ b[i] if i == j else whole_i @ whole_j)
    assert noise_levels(halves_gram(a, b)) == pytest.approx(
        [((x - y) ** 2).sum() / 4 for x, y in zip(a, b, strict=True)]
    )


def test_centring_is_taking_the_mean_row_off():
    a, _ = random_halves(2)
    rows = a - a.mean(axis=0)
    assert centred(a @ a.T) == pytest.approx(rows @ rows.T)


def test_members_are_restricted_to():
    a, b = random_halves(3)
    whole = signal_gram(halves_gram(a, b), members=[4, 1])
    assert whole == pytest.approx(signal_gram(halves_gram(a[[1, 4]], b[[1, 4]])))
    assert noise_levels(halves_gram(a, b), [2]) == pytest.approx(
        noise_levels(halves_gram(a, b))[[2]]
    )


def test_without_noise_the_plain_formulas():
    a, _ = random_halves(4)
    g = np.tile(gram(a), (2, 2))
    assert halves_gram(a, a) == pytest.approx(g)
    assert np.array_equal(signal_gram(g), gram(a))
    assert np.array_equal(noise_levels(g), np.zeros(5))
    assert np.array_equal(reliability(g), np.ones(5))
    assert signal_cosine(g) == pytest.approx(cosine(gram(a)), abs=1e-12)
    assert signal_cosine(g, centre=True) == pytest.approx(
        cosine(gram(a - a.mean(axis=0))), abs=1e-12
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_order_maps_scale_and_the_halves_names_do_not_matter(seed, n):
    rng = np.random.default_rng(seed)
    a, b = random_halves(seed, n, d=8)
    order, rotation = rng.permutation(n), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    swapped = rng.random(n) < 0.5
    a2, b2 = np.where(swapped[:, None], b, a), np.where(swapped[:, None], a, b)
    expected = signal_gram(halves_gram(a, b))
    assert signal_gram(
        halves_gram(3 * a2[order] @ rotation, 3 * b2[order] @ rotation)
    ) == pytest.approx(9 * expected[np.ix_(order, order)], abs=1e-9)
    assert reliability(halves_gram(3 * a2 @ rotation, 3 * b2 @ rotation)) == pytest.approx(
        reliability(halves_gram(a, b)), abs=1e-9
    )


def test_parts_of_the_columns_add_up():
    a, b = random_halves(5)
    parts = [signal_gram(halves_gram(a, b, columns=c)) for c in ((0, 11), (11, 30))]
    assert sum(parts) == pytest.approx(signal_gram(halves_gram(a, b)))


def test_the_estimate_is_unbiased_and_beats_the_cross_half_products():
    rng = np.random.default_rng(6)
    n, d, draws = 4, 12, 20_000
    signal = rng.normal(size=(n, d))
    level = np.array([0.5, 1.0, 2.0, 3.0])[:, None]  # unequal noise
    a, b = (signal + level * rng.normal(size=(draws, n, d)) for _ in range(2))
    whole = (a + b) / 2
    products = whole @ whole.transpose(0, 2, 1)
    own = np.einsum("rnd,rnd->rn", a, b)
    products[:, range(n), range(n)] = own
    assert products[0] == pytest.approx(
        signal_gram(halves_gram(a[0], b[0]))
    )  # what is averaged is the function's
    error = (products.mean(axis=0) - signal @ signal.T) / (products.std(axis=0) / np.sqrt(draws))
    assert np.abs(error).max() < 4  # standard errors, of 16 entries
    cross = a @ b.transpose(0, 2, 1)
    cross = (cross + cross.transpose(0, 2, 1)) / 2
    noise = (cross - products).var(axis=0)[
        0, 1
    ]  # (a_i - b_i)(a_j - b_j) / 4: what the cross products lack
    assert cross.var(axis=0)[0, 1] == pytest.approx(products.var(axis=0)[0, 1] + noise, rel=0.05)
    # Without signal the variance is τ / 4, where cross-half products have τ / 2 = 2 · τ / 4, with τ
    # = d level² level².
    assert noise == pytest.approx(d * 0.5**2 * 1.0**2 / 4, rel=0.05)


def test_cosines_lose_their_bias():
    rng = np.random.default_rng(7)
    signal = np.zeros((2, 400))
    signal[0, 0], signal[1, :2] = 10, (8, 6)  # cosine 0.8
    noise = rng.normal(size=(2, 200, 2, 400))
    corrected = [
        signal_cosine(halves_gram(signal + e, signal + f))[0, 1]
        for e, f in zip(*noise, strict=True)
    ]
    plain = [cosine(gram(signal + (e + f) / 2))[0, 1] for e, f in zip(*noise, strict=True)]
    assert np.mean(plain) == pytest.approx(
        0.8 * 100 / (100 + 400 / 2), abs=0.02
    )  # noise is two thirds of the norm
    assert np.median(corrected) == pytest.approx(0.8, abs=0.03)


def test_a_client_of_noise_alone_is_similar_to_nobody_and_unreliable():
    a, b = np.array([[1.0, 0.0], [2.0, 2.0]]), np.array([[-1.0, 0.0], [2.0, 2.0]])
    assert signal_cosine(halves_gram(a, b)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    noisy = np.array([[3.0, 0.0], [-3.0, 0.0]])
    assert reliability(halves_gram(noisy, -noisy)).tolist() == [1.0, 1.0]  # M = 0: nothing differs
    assert (
        reliability(
            halves_gram(np.array([[4.0, 0.0], [0.0, 0.0]]), np.array([[-3.0, 0.0], [0.0, 0.0]]))
        )[0]
        == 0.0
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: halves_gram(np.ones((2, 3)), np.ones((3, 3))),
            "a and b must be halves of the same clients",
        ),
        (lambda: halves_gram(np.ones(3), np.ones(3)), "a must be"),
        (lambda: halves_gram(np.array([[np.nan]]), np.array([[1.0]])), "not finite"),
        (lambda: signal_gram(np.eye(3)), "gram must be (2n, 2n)"),
        (lambda: signal_gram(np.ones((2, 4))), "gram must be a matrix"),
        (lambda: signal_gram(-np.eye(2)), "a squared norm is >= 0"),
        (lambda: reliability(np.eye(4), members=[2]), "members must be positions 0 to 1"),
        (lambda: signal_cosine(np.eye(4), members=[0, 0]), "members contains a position twice"),
        (lambda: noise_levels(np.eye(4), members=[]), "members must be a list of positions"),
    ],
)
def test_wrong_input_gets_one_sentence(call, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")) as caught:
        call()
    assert "\n" not in str(caught.value)
