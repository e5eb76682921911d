"""Methods against one that is named: differences by seed, the paired test, and who is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import scipy

import coterie
from coterie.cli import main
from coterie.settings import UserError
from page_runs import line, write

ACCURACIES = {"cfl": (0.5, 0.625, 0.75), "fedavg": (0.25, 0.5, 0.5), "ifca": (0.5, 0.625, 0.75)}


def recorded(folder: Path, seeds: int = 3) -> Path:
    """Runs of three methods, in which both clients have the same accuracy."""
    for method, accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies[:seeds]):
            lines = [line(number, [[0, 1]]) for number in (1, 2)]
            for recorded_line in lines:
                for client in recorded_line["clients"].values():
                    client["accuracy"] = accuracy
            write(folder / f"{method}-seed{seed}", lines, method, seed=seed, rounds=2)
    return folder


def test_each_other_method_is_compared_with_the_named_one_by_a_paired_test(tmp_path: Path) -> None:
    found = coterie.compare(recorded(tmp_path)).against("fedavg")
    entry = next(entry for entry in found if entry["method"] == "cfl")
    assert (entry["against"], entry["seeds"]) == ("fedavg", [0, 1, 2])
    assert entry["values"] == pytest.approx([0.25, 0.125, 0.25])
    expected = scipy.stats.ttest_rel(ACCURACIES["cfl"], ACCURACIES["fedavg"])
    interval = expected.confidence_interval()
    assert entry["p"] == pytest.approx(expected.pvalue)
    assert (entry["low"], entry["high"]) == pytest.approx((interval.low, interval.high))
    assert "paired t-test p = 0.038" in str(found)
    assert "+0.250, +0.125, +0.250" in str(found)
    # Every other method has an entry, and equal values have no test.
    others = coterie.compare(tmp_path).against("ifca")
    assert {entry["method"]: entry["p"] is None for entry in others} == {
        "cfl": True,
        "fedavg": False,
    }
    assert list(others.to_pandas()["method"]) == [entry["method"] for entry in others]


def test_two_seeds_have_no_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(recorded(tmp_path, seeds=2)), "--against", "fedavg"]) == 0
    assert "a paired t-test needs three seeds" in capsys.readouterr().out


def test_who_is_meant_is_said(tmp_path: Path) -> None:
    comparison = coterie.compare(recorded(tmp_path, seeds=1))
    with pytest.raises(UserError, match=r"'fedagv' in these runs; did you mean fedavg\?"):
        comparison.against("fedagv")
    # Two entries of one method have labels.
    write(tmp_path / "again", [line(1, [[0, 1]])], "cfl", seed=0, rounds=1)
    comparison = coterie.compare(tmp_path)
    with pytest.raises(UserError, match="several methods are called cfl: write cfl 1 or cfl 2"):
        comparison.against("cfl")
    assert {entry["against"] for entry in comparison.against("cfl 1")} == {"cfl 1"}
