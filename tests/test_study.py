"""The study of clustering without thresholds: its worlds can be made, its runs go on where they stopped, its tables add up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.methods import METHODS
from coterie.settings import build

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]

import study_tables  # noqa: E402
from study import run  # noqa: E402
from study.worlds import KINDS, scenario  # noqa: E402


@pytest.mark.parametrize("kind", KINDS)
def test_every_world_is_what_its_name_says(kind: str) -> None:
    world = scenario(kind, "many").build(0)
    assert len(world.clients) == 20
    groups = 0 if world.truth is None else len(world.truth)
    named = kind.rpartition("-")[2]
    assert groups == (int(named) if named.isdigit() else {"dirichlet": 0, "adversaries": 4}.get(kind, 1))
    assert bool(world.attacks) == (kind == "adversaries")


def test_settings_are_those_of_methods() -> None:
    for method, how in [*run.settings(list(run.SETTINGS["frozen"]), False), *run.settings(list(METHODS), True)]:
        build(METHODS[method], how)


def test_adversaries_are_in_nobodys_group() -> None:
    groups = ((0, 1, 2), (3, 4), (5,))
    assert run.among(groups, [0, 2, 3, 4]) == ((0, 2), (3, 4))
    assert run.cut(((0, 1), (2, 3)), ((0, 1, 2, 3),)) is True
    assert run.cut(((0, 1, 2, 3),), ((0, 1), (2, 3))) is False


def test_runs_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    monkeypatch.setitem(run.SETTINGS, "seeds", [0, 1])
    call = ["--out", str(tmp_path / "study.jsonl"), "--only", "iid,dirichlet", "--methods", "split-half,cfl", "--sizes", "few"]
    assert run.main([*call, "--part", "0/2"]) == 0
    first = (tmp_path / "study.jsonl").read_text()
    assert run.main(call) == 0
    rows = [json.loads(line) for line in (tmp_path / "study.jsonl").read_text().splitlines()]
    assert (tmp_path / "study.jsonl").read_text().startswith(first)
    assert len(rows) == 4  # of dirichlet, whose sizes are its own, there is no small one
    assert {(row["ari"], row["groups"], row["cut"]) for row in rows} == {(1.0, 1, False)}


def row(method: str, seed: int, **more: Any) -> dict[str, Any]:
    usual = {"kind": "swaps-4", "size": "many", "participation": 1.0, "true_groups": 4, "cut": False, "worst": 0.5}
    usual |= {"settings": {}, "ari": 1.0, "right_from": 7, "accuracy": 0.9, "bytes": 2e6}
    return {**usual, "method": method, "seed": seed, **more}


def test_tables_say_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"ari": 0.5, "right_from": None, "cut": True, "bytes": 4e6}
    rows = [row("split-half", 0), row("split-half", 1, **wrong), row("cfl", 0, right_from=20)]
    path = tmp_path / "study.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    monkeypatch.setattr(study_tables, "STUDY", path)
    assert "| `swaps-4` | 0.75 | 1.00 |" in study_tables.study("ari", "many")
    assert "| `swaps-4` | 7 (1 of 2) | 20 (1 of 1) |" in study_tables.study("rounds", "many")
    assert "| `swaps-4` | 1 of 2 | 0 of 1 |" in study_tables.study("cut", "many")
    assert "| `swaps-4` | 3.0 MB | 2.0 MB |" in study_tables.study("bytes", "many")
    assert "| `split-half` | 0.75 | 0.75 (`swaps-4`) | 1 of 2 | 7 |" in study_tables.summary()
    assert "Not measured yet" in study_tables.study("ari", "few")
