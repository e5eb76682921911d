"""Products in tiles and over blocks, and of some rows only, against plain products."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import (
    closeness,
    distances,
    geometry,
    gram,
    gram_update,
    halves_gram,
    noise_levels,
)


def rows(seed: int, n: int = 30, d: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_tiles_are_put_together_rightly(seed: int, n: int, tile: int, few: bool) -> None:
    x = rows(seed, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "_TILE_ROWS", tile)
        patch.setattr(
            geometry, "_MIN_NUMPY_ROWS", 1000 if few else 1
        )  # torch's products, or NumPy's
        found = gram(x)
    assert np.allclose(found, x @ x.T, atol=1e-12)
    assert np.array_equal(found, found.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_clients_in_low_precisions(dtype: torch.dtype) -> None:
    x = torch.from_numpy(rows(1, n=2500, d=70)).to(dtype)
    exact = x.double().numpy() @ x.double().numpy().T
    assert np.abs(gram(x) - exact).max() < 1e-5 * np.diagonal(exact).max()


def test_many_rows_that_overflow_or_are_not_finite_are_named() -> None:
    x = np.ones((300, 3), dtype=np.float32)
    x[211, 1] = np.nan
    with pytest.raises(ValueError, match="row 211"):
        gram(x)
    with pytest.raises(ValueError, match="overflow"):
        gram(np.full((300, 3), 1e200))


def test_rows_on_disk_are_read_in_place(tmp_path: Path) -> None:
    x = rows(2, n=250, d=3000).astype(np.float32)
    x.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="r", shape=x.shape)
    tensor = torch.from_file(str(tmp_path / "rows"), shared=False, size=x.size).view(x.shape)
    assert np.array_equal(gram(mapped), gram(x))
    assert np.array_equal(gram(tensor), gram(x))
    assert np.array_equal(gram(mapped, sketch=64), gram(x, sketch=64))


@settings(max_examples=40)
@given(st.integers(0, 1000), st.lists(st.integers(0, 29), unique=True))
def test_an_updated_matrix_is_the_one_made_anew(seed: int, changed: list[int]) -> None:
    x = rows(seed)
    before = gram(x)
    kept = before.copy()
    x[changed] = rows(seed + 1, n=len(changed))
    found = gram_update(before, x, changed)
    assert np.allclose(found, gram(x), atol=1e-12)
    assert np.array_equal(found, found.T)
    assert np.array_equal(before, kept)
    others = np.setdiff1d(np.arange(30), changed)
    assert np.array_equal(found[np.ix_(others, others)], before[np.ix_(others, others)])


def test_an_update_takes_the_same_columns() -> None:
    x = rows(3)
    before = gram(x, (5, 20))
    x[[2, 7]] += 1
    assert np.allclose(gram_update(before, x, [7, 2], (5, 20)), gram(x, (5, 20)))


def test_an_update_reads_the_changed_rows_only_against_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is m n products: as many entries of tiles are added up."""
    x, added = rows(4), []
    before, add = gram(x), geometry._add_products
    monkeypatch.setattr(
        geometry,
        "_add_products",
        lambda total, a, i, b, j: (added.append(total[i, j].size), add(total, a, i, b, j)),
    )
    gram_update(before, x, [3, 4])
    assert sum(added) == 2 * 30


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ([30], "changed must be positions 0 to 29, got 30"),
        ([1, 1], "changed contains a position twice"),
        ([0.5], "changed"),
    ],
)
def test_wrong_positions_are_refused(changed: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        gram_update(gram(rows(5)), rows(5), changed)


def test_a_matrix_of_others_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gram must be \(30, 30\), for the 30 updates"):
        gram_update(gram(rows(6, n=29)), rows(6), [1])
    x = rows(6)
    before = gram(x)
    x[4, 4] = np.nan
    with pytest.raises(ValueError, match="row 4"):
        gram_update(before, x, [4])


PEAK = """
import resource, numpy as np
from coterie.clustering import gram
gram(np.ones((300, 300), dtype=np.float32))
x = np.ones((4000, 40_000), dtype=np.float32)  # 640 MB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert (gram(x) == 40_000).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
def test_memory_is_that_of_the_result_and_a_block() -> None:
    """In a process of its own, as a process keeps the peak of all that it did."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 * 4000**2 + 200e6


# -- rows with a large common part
# ----------------------------------------------------------------------------------------


def with_common_part(ratio: float, n: int = 12, d: int = 30_000, seed: int = 0) -> torch.Tensor:
    """Rows (n, d) that differ by about 1, from a common row of norm ``ratio``."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(d, generator=generator)
    return torch.randn(n, d, generator=generator) / (2 * d) ** 0.5 + ratio * common / common.norm()


def exact_distances(x: torch.Tensor) -> np.ndarray:
    """Differences of all pairs, written out in float64."""
    return np.array([[float((one.double() - two.double()).norm()) for two in x] for one in x])


def assert_close_distances(found: np.ndarray, exact: np.ndarray) -> None:
    off = ~np.eye(len(exact), dtype=bool)
    assert np.abs(found[off] / exact[off] - 1).max() < 1e-4


@pytest.mark.parametrize("ratio", [1, 10, 100, 600, 1e3, 1e4, 1e5])
def test_a_common_part_does_not_cancel_in_distances(ratio: float) -> None:
    """Published code takes them from float32 products: 8 to 14 % wrong where the common part is 600 times as large."""
    x = with_common_part(ratio)
    assert_close_distances(distances(gram(x)), exact_distances(x))
    plain = x @ x.T
    assert np.allclose(gram(x), plain.double(), rtol=1e-4)


@pytest.mark.parametrize("ratio", [600, 1e4])
def test_a_common_part_of_each_group_does_not_cancel(ratio: float) -> None:
    """Two groups with opposite common parts, whose mean is none; a row far larger than all others, one of zeros, equal ones."""
    one, two = with_common_part(ratio), -with_common_part(ratio, seed=1)
    x = torch.stack([pair[side] for pair in zip(one, two, strict=True) for side in (0, 1)])
    x = torch.cat((x, 1e6 * ratio * x[:1].flip(1), torch.zeros_like(x[:1]), x[:2], x[:2]))
    found, exact = distances(gram(x)), exact_distances(x)
    assert_close_distances(found[:24, :24], exact[:24, :24])
    assert found[26, 28] < 1e-3
    assert gram(x)[25].tolist() == [0.0] * len(x)


def test_an_updated_matrix_keeps_small_distances() -> None:
    x = with_common_part(1e3)
    before = gram(x)
    x[3], x[7] = x[4] + (x[5] - x[6]), 0.0
    found = gram_update(before, x, [3, 7])
    assert np.array_equal(found, found.T)
    assert_close_distances(distances(found), exact_distances(x))


def test_noise_of_halves_with_a_large_common_part() -> None:
    a, b = with_common_part(1e3), with_common_part(1e3, seed=0).roll(1, 0)
    exact = ((a.double() - b.double()) / 2).square().sum(1).numpy()
    assert np.allclose(noise_levels(halves_gram(a, b)), exact, rtol=1e-4)


def test_rows_that_are_not_close_are_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(7)
    monkeypatch.setattr(geometry, "products_around_mean", None)
    assert np.allclose(gram(x), x @ x.T, atol=1e-12)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 8))
def test_close_rows_are_the_connected_ones(seed: int, n: int) -> None:
    """By brute force: the classes of the relation that close pairs generate."""
    generator = np.random.default_rng(seed)
    x = np.array([1.0, 0.0]) + generator.choice(
        [0.0, 0.1, 0.5, 2.0], size=(n, 1)
    ) * generator.normal(size=(n, 2))
    near = np.array(
        [
            [np.linalg.norm(p - q) < min(np.linalg.norm(p), np.linalg.norm(q)) / 8 for q in x]
            for p in x
        ]
    )
    reach = np.linalg.matrix_power(near.astype(int) + np.eye(n, dtype=int), n) > 0
    expected = {tuple(np.flatnonzero(row)) for row in reach if row.sum() > 1}
    assert {tuple(group) for group in geometry.close_rows(x @ x.T)} == expected


@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-23, 1e-15, 1.0, 1e20, 1e30])
def test_rows_of_any_length_in_float32(scale: float) -> None:
    """Squares of numbers below 1e-23 are zero in float32, and those above 1e19 infinite."""
    x = rows(2, n=9).astype(np.float32) * np.float32(scale)
    exact = x.astype(np.float64) @ x.astype(np.float64).T
    assert np.allclose(gram(x) / scale**2, exact / scale**2, rtol=1e-4, atol=1e-4)
    assert np.allclose(
        gram_update(np.eye(9), x, range(9)) / scale**2, exact / scale**2, rtol=1e-4, atol=1e-4
    )


def test_short_and_long_rows_together_leave_the_others_as_they_are() -> None:
    x = rows(3, n=8).astype(np.float32)
    plain = gram(x)
    x[2], x[5], x[6] = x[2] * np.float32(1e-25), x[5] * np.float32(1e25), 0.0
    found, exact = gram(x), x.astype(np.float64) @ x.astype(np.float64).T
    usual = [0, 1, 3, 4, 7]
    assert np.array_equal(found[np.ix_(usual, usual)], plain[np.ix_(usual, usual)])  # bit for bit
    lengths = np.sqrt(np.diagonal(exact))
    assert (
        np.allclose(found, exact, rtol=1e-4, atol=0)
        or (abs(found - exact) <= 1e-5 * np.outer(lengths, lengths)).all()
    )
    assert np.allclose(np.sqrt(np.diagonal(found)), lengths, rtol=1e-6)


def test_close_rows_of_tiny_numbers_keep_their_distance() -> None:
    x = np.float32(1e-25) * (np.ones((3, 4), np.float32) + np.float32([[0.0], [0.01], [0.02]]))
    exact = np.linalg.norm(x[0].astype(np.float64) - x[1])
    assert distances(gram(x) * 1e50)[0, 1] == pytest.approx(exact * 1e25, rel=1e-4)


@pytest.mark.parametrize("scale", [1e-25, 1e20, 1e30])
@pytest.mark.parametrize("metric", ["l2", "l1"])
def test_closeness_of_tiny_and_large_updates(scale: float, metric: str) -> None:
    x = torch.from_numpy(rows(4, n=3).astype(np.float32)) * scale
    order = 2 if metric == "l2" else 1
    exact = -(x[1:].double() - x[0].double()).norm(p=order, dim=1)
    assert torch.allclose(closeness(x[0], x[1:], metric) / scale, exact / scale, rtol=1e-4)


def test_cosines_of_large_updates() -> None:
    x = torch.from_numpy(rows(5, n=3).astype(np.float32))
    assert torch.allclose(closeness(x[0] * 1e25, x[1:] * 1e25), closeness(x[0], x[1:]), atol=1e-6)
