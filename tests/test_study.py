"""The study of clustering without thresholds: its worlds can be made, its runs go on where they stopped, its tables add up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.engines import inprocess
from coterie.methods import METHODS
from coterie.settings import build

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs")]

import study_tables  # noqa: E402
from study import run  # noqa: E402
from study.frozen import frozen  # noqa: E402
from study.worlds import KINDS, needs_files, scenario, sizes  # noqa: E402

IN_FILES = [kind for kind in KINDS if needs_files(kind)]
NUMBERS = {"dirichlet": 0, "adversaries": 4}
"""Groups of worlds whose name does not end in their number, nor stands for one group."""


def assert_is_what_its_name_says(kind: str, folder: Path | None) -> None:
    """Clients, groups and sizes; and one round of training in it goes well."""
    world = scenario(kind, sizes(kind)[0]).build(0, folder)
    named, clients = kind.removesuffix("-large").removesuffix("-60"), 60 if "-60" in kind else 20
    assert len(world.clients) == clients
    number = named.rpartition("-")[2]
    groups = 0 if world.truth is None else len(world.truth)
    assert groups == (int(number) if number.isdigit() else NUMBERS.get(named, 1))
    assert bool(world.attacks) == (kind == "adversaries")
    least = {"large": 600, "many": 80, "tiny": 25}[sizes(kind)[0]]
    assert least <= sum(len(data.train) for data in world.clients.values()) / clients < 3 * least
    *_, last = inprocess.rounds(METHODS["fedavg"](), world, rounds=1, workers=1)
    assert last.scores is not None
    assert len(last.scores) == clients


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in IN_FILES])
def test_every_world_is_what_its_name_says(kind: str) -> None:
    assert_is_what_its_name_says(kind, None)


@pytest.mark.parametrize("kind", IN_FILES)
def test_every_world_of_files_is_what_its_name_says(kind: str, data_folder: Path) -> None:
    assert_is_what_its_name_says(kind, data_folder)


def test_settings_are_those_of_methods() -> None:
    for kind in KINDS:
        for method, how in run.settings(kind, list(run.SETTINGS["frozen"]), oracle=False):
            build(METHODS[method], how)
    for method, how in run.settings("iid", list(METHODS), oracle=True):
        build(METHODS[method], how)


def test_what_a_paper_prints_for_a_world_comes_before_what_is_frozen_for_all() -> None:
    printed = {"swaps-4": {"flhc": {"threshold": 3.0}}}
    of_all = {"frozen": {"flhc": {"warmup": 10, "threshold": 2.0}}, "frozen-by-world": printed}
    assert frozen(of_all, "swaps-4", "flhc") == {"warmup": 10, "threshold": 3.0}
    assert frozen(of_all, "iid", "flhc") == {"warmup": 10, "threshold": 2.0}
    assert set(run.SETTINGS["frozen-by-world"]) <= set(KINDS)


def test_worlds_without_their_files_are_left_out_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    path = tmp_path / "study.jsonl"
    assert run.main(["--out", str(path), "--only", "mnist-iid,domains-4"]) == 0
    assert capsys.readouterr().err == (
        "left out, for want of files: mnist-iid, domains-4; give --data DIR or set COTERIE_DATA\n"
    )
    assert not path.exists()


def test_adversaries_are_in_nobodys_group() -> None:
    groups = ((0, 1, 2), (3, 4), (5,))
    assert run.among(groups, [0, 2, 3, 4]) == ((0, 2), (3, 4))
    assert run.cut(((0, 1), (2, 3)), ((0, 1, 2, 3),)) is True
    assert run.cut(((0, 1, 2, 3),), ((0, 1), (2, 3))) is False


def test_runs_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    call = ["--out", str(tmp_path / "study.jsonl"), "--only", "iid,dirichlet", "--methods", "split-half,cfl"]
    call += ["--sizes", "few", "--seeds", "0,1"]
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
