"""benchmarks/clustering.py at tiny sizes: what it compares is the same, and what it measures is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import clustering as bench  # noqa: E402


def test_rows_are_the_same_made_in_parts() -> None:
    whole = bench.updates(6, 40, 20)
    assert torch.equal(whole, bench.updates(6, 40, 20))
    assert (
        torch.nn.functional.cosine_similarity(whole[1], bench.updates(1, 40, 31)[0], dim=0) > 0.2
    )  # of one group


def test_a_row_has_times_and_memory() -> None:
    row = bench.exact(30, 2000, 2)
    assert len(row["gram"]["values"]) == len(row["over_bare"]["values"]) == 2
    assert row["over_bare"]["values"][0] == pytest.approx(
        row["gram"]["values"][0] / row["bare"]["values"][0], rel=1e-3
    )
    assert set(row["steps"]) == {"cfl", "flhc", "hcct"}
    assert 0 <= row["extra_bytes"] < 100e6


def test_sketched_rows_come_and_go() -> None:
    row = bench.sketched(50, 3000, 64)
    assert (row["clients"], row["parameters"], row["size"]) == (50, 3000, 64)


def test_what_is_compared_comes_to_the_same() -> None:
    """They check it themselves, so that a wrong one could not be the faster one."""
    for row in (bench.pairwise(8, 500), bench.literal(8, 200)):
        assert (
            len(row["theirs"]["values"])
            == len(row["ours"]["values"])
            == len(row["faster"]["values"])
            == 3
        )
