"""The benchmark of the default's price, at tiny sizes; and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import bench  # noqa: E402
import price  # noqa: E402
import speed_tables  # noqa: E402


def test_both_methods_are_measured_in_each_part_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "price.json"
    price.main(["--scale", "small", "--repetitions", "2", "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["scale"] == "small"
    assert [row["clients"] for row in found["rows"]] == [3, 5]
    for row in found["rows"]:
        assert list(row["phases"]) == ["1 to 2", "3 to 4", "all"]
        for method in ("fedavg", "auto"):
            early, late, whole_run = (measured[method] for measured in row["phases"].values())
            assert whole_run["bytes"] == early["bytes"] + late["bytes"]
            for repetition in range(2):
                seconds = [part["seconds"]["values"][repetition] for part in (early, late)]
                assert min(seconds) > 0
                assert whole_run["seconds"]["values"][repetition] == pytest.approx(
                    sum(seconds), rel=1e-4
                )
    table = speed_tables.price(tmp_path)
    assert table.startswith("Medians of 2 repetitions. On ")
    assert "| MLP 64-64-10, 5 clients, 50 images | 1 to 2 |" in table


def test_the_price_is_a_part_of_the_bench() -> None:
    assert bench.SCRIPTS["l"] == ("price.py", "price.json")
    assert "l" in bench.PARTS
    assert list(price.phases(40)) == ["1 to 20", "21 to 40", "all"]


def measured(fedavg_seconds: float, auto_seconds: float, auto_bytes: int) -> dict[str, Any]:
    """One part of a run."""
    return {
        "fedavg": {"seconds": {"median": fedavg_seconds}, "bytes": 100},
        "auto": {"seconds": {"median": auto_seconds}, "bytes": auto_bytes},
    }


def test_the_table_has_times_of_fedavgs(tmp_path: Path) -> None:
    assert speed_tables.price(tmp_path) == speed_tables.price_in_short(tmp_path)
    assert speed_tables.price(tmp_path) == speed_tables.NONE
    phases = {
        "1 to 20": measured(1.0, 4.0, 150),
        "21 to 40": measured(1.0, 2.0, 100),
        "all": measured(2.0, 6.0, 125),
    }
    other_phases = {**phases, "21 to 40": measured(2.0, 2.5, 100)}
    found = {
        "machine": {"system": "Linux", "processor": "fast", "cores": 2, "bf16": []},
        "versions": {"torch": "2"},
        "rows": [
            {"title": "digits", "repetitions": 1, "phases": phases},
            {"title": "tables", "repetitions": 1, "phases": other_phases},
        ],
    }
    (tmp_path / "price.json").write_text(json.dumps(found))
    words, _, _, _, early, late, *_ = speed_tables.price(tmp_path).splitlines()
    assert words == "One repetition. On Linux, fast, 2 cores, no bf16 instructions; torch 2."
    assert early == "| digits | 1 to 20 | 1.00 s | 4.00 s | 4.00 × | 1.50 × |"
    assert late == "|  | 21 to 40 | 1.00 s | 2.00 s | 2.00 × | 1.00 × |"
    sentence = " ".join(speed_tables.price_in_short(tmp_path).split())
    assert "took 3.0 to 3.0 times the processor time of FedAvg in 2 kinds of data" in sentence
    assert "4.0 to 4.0 times in rounds 1 to 20" in sentence
    assert "1.2 to 2.0 times in rounds 21 to 40" in sentence
    assert "1.2 to 1.2 times the bytes" in sentence
