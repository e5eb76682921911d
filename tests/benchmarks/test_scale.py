"""The benchmark of the default method with many clients, at tiny sizes; and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]

import scale  # noqa: E402
import scale_table  # noqa: E402


def test_a_row_has_every_round_and_the_table_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = scale.default(8, 20)
    assert (row["clients"], row["parameters"]) == (8, 84)
    assert len(row["server"]) == len(row["train"]) == len(row["index"]) == scale.ROUNDS
    assert row["peak_bytes"] >= row["world_bytes"] > 0
    monkeypatch.setattr(scale_table, "MEASURED", tmp_path / "scale.json")
    assert scale_table.scale().startswith("Not measured yet")
    about = {"machine": {"system": "Linux", "processor": "one", "cores": 2}, "versions": {"torch": "2"}}
    rows = [{**row, "server": [1.0, 2.0, 6.0], "index": [0.0, 1.0, 1.0]}, {**row, "index": [0.0, 0.25]}]
    (tmp_path / "scale.json").write_text(json.dumps({**about, "rows": rows}))
    *_, first, second = scale_table.scale().splitlines()
    assert first.startswith("| 8 | 84 | 2.00 s | 6.00 s |")
    assert first.endswith("| right from round 2 on |")
    assert second.endswith("| index 0.250 |")
    monkeypatch.setattr(scale_table, "FIGURE", tmp_path / "scale.png")
    scale_table.figure()
    assert (tmp_path / "scale.png").stat().st_size > 1000
