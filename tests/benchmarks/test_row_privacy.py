"""The benchmark of privacy for single rows, at a tiny size."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import row_privacy  # noqa: E402


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_noise_follows_epsilon_and_lines_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_privacy, "ROUNDS", 2)
    # Fewer clients, each with the 72 training rows (of 90) that the noise is made for.
    world = {**row_privacy.WORLDS[72], "clients": 4, "samples": 90}
    monkeypatch.setitem(row_privacy.WORLDS, 72, world)
    out = tmp_path / "rows.jsonl"
    call = ["--out", str(out), "--rows", "72", "--methods", "fedavg", "--seeds", "1"]
    row_privacy.main([*call, "--epsilons", "0,8"])
    row_privacy.main([*call, "--epsilons", "0,2,8"])
    lines = {line["epsilon"]: line for line in lines_of(out)}
    assert [line["epsilon"] for line in lines_of(out)] == [0, 8, 2]
    # Plain SGD has no noise and spends nothing that is counted.
    assert (lines[0]["noise"], lines[0]["spent"], lines[0]["sampling"]) == (0, None, "shuffled")
    # A smaller epsilon needs more noise, and what is spent stays below it.
    assert lines[2]["noise"] > lines[8]["noise"] > 0
    for epsilon in (2, 8):
        assert 0.9 * epsilon < lines[epsilon]["spent"] <= epsilon * 1.001
        assert lines[epsilon]["sampling"] == "poisson"
    assert {(line["rows"], line["method"], line["seed"]) for line in lines.values()} == {
        (72, "fedavg", 1)
    }
    # The means of four clients' tests, each of nine rows.
    for line in lines.values():
        assert round(line["accuracy"] * 36) / 36 == pytest.approx(line["accuracy"], abs=1e-4)
        assert line["groups"] == 1
