"""Runs in bf16 beside those in fp32: only missing runs are made, and the table compares pairs."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import bf16  # noqa: E402
import speed_tables  # noqa: E402


def test_only_missing_runs_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = {"scenario": {"name": "digits/iid", "clients": 4}, "rounds": 2, "methods": ["fedavg"]}
    monkeypatch.setattr(bf16, "WORLDS", {"small": world})
    out = tmp_path / "bf16.jsonl"
    bf16.main(["--seeds", "1", "--out", str(out)])
    first = [json.loads(line) for line in out.read_text().splitlines()]
    bf16.main(["--seeds", "2", "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["precision"], row["seed"]) for row in rows] == [
        ("fp32", 0),
        ("bf16", 0),
        ("fp32", 1),
        ("bf16", 1),
    ]
    assert rows[:2] == first
    assert all(row["groups"] == [[0, 1, 2, 3]] and 0 < row["accuracy"] <= 1 for row in rows)


def test_the_table_compares_pairs(tmp_path: Path) -> None:
    assert "not been measured" in speed_tables.precision(tmp_path / "speed")

    def row(
        precision: str, seed: int, accuracy: float, groups: list[list[int]], seconds: float
    ) -> str:
        known = {"world": "w", "method": "m", "precision": precision, "seed": seed}
        return (
            json.dumps({**known, "accuracy": accuracy, "groups": groups, "seconds": seconds}) + "\n"
        )

    whole, apart = [[0, 1]], [[0], [1]]
    lines = [
        row("fp32", 0, 0.5, whole, 2.0),
        row("bf16", 0, 0.6, whole, 1.0),
        row("fp32", 1, 0.7, apart, 2.0),
    ]
    path = tmp_path / "bf16.jsonl"
    path.write_text(lines[0])
    assert "| w |" not in speed_tables.precision(tmp_path / "speed")
    path.write_text("".join(lines))
    assert "| w | `m` | 1 | 0.500 | 0.600 | 0.100 | 1 of 1 | 0.50 × |" in speed_tables.precision(
        tmp_path / "speed"
    )
    path.write_text("".join(lines) + row("bf16", 1, 0.8, whole, 1.0))
    assert "| w | `m` | 2 |" in (told := speed_tables.precision(tmp_path / "speed"))
    assert "| 0.100 ± 0.000 | 1 of 2 | 0.50 × |" in told
