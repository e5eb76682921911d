"""The benchmark of two checkouts, at tiny sizes; and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import speed_tables  # noqa: E402
import two_versions  # noqa: E402


@pytest.mark.parametrize("title", two_versions.WORK)
def test_each_kind_of_work_takes_time(title: str) -> None:
    assert two_versions.WORK[title]("small") > 0


def test_both_checkouts_are_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measured_by(checkout: Path, scale: str, title: str) -> float:
        asked.append(checkout.name)
        return 2.0 if checkout == tmp_path else 1.0

    monkeypatch.setattr(two_versions, "measured_by", measured_by)
    monkeypatch.setattr(two_versions, "commit_of", lambda checkout: "c0ffee00")
    out = tmp_path / "two-versions.json"
    two_versions.measure(tmp_path, "small", 3, out)
    found = json.loads(out.read_text())
    assert [row["title"] for row in found["rows"]] == list(two_versions.WORK)
    # A warm-up of each, then turns in which each is first in its turn.
    own, other = ROOT.name, tmp_path.name
    assert asked[:8] == [other, own, other, own, own, other, other, own]
    lines = speed_tables.versions(tmp_path).splitlines()
    assert "of 3 pairs, commits c0ffee00 and c0ffee00" in lines[0]
    assert lines[-1].endswith("| 2.00 s | 1.00 s | 0.50 × | 0.50 × to 0.50 × |")


def test_a_folder_without_the_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        two_versions.main([str(tmp_path)])
    assert "before must be the folder of another checkout" in capsys.readouterr().err


def test_another_process_measures_its_own_checkout() -> None:
    title = "eigenvectors of a matrix of 1,000 clients"
    assert two_versions.measured_by(ROOT, "small", title) > 0
