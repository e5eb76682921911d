"""The study of clustering without thresholds: its worlds can be made, its runs go on where they stopped, its tables add up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.engines import rounds
from coterie.methods import METHODS
from coterie.settings import build

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools" / "docs")]

import evidence_tables  # noqa: E402
import study_tables  # noqa: E402
from result_file import read_results  # noqa: E402
from study import calibration, null, run  # noqa: E402
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
    *_, last = rounds.rounds(METHODS["fedavg"](), world, rounds=1, workers=1)
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
        "left out, because files are missing: mnist-iid, domains-4; give --data DIR or set COTERIE_DATA\n"
    )
    assert not path.exists()


def test_adversaries_are_in_nobodys_group() -> None:
    groups = ((0, 1, 2), (3, 4), (5,))
    assert run.among(groups, [0, 2, 3, 4]) == ((0, 2), (3, 4))
    assert run.cut(((0, 1), (2, 3)), ((0, 1, 2, 3),)) is True
    assert run.cut(((0, 1, 2, 3),), ((0, 1), (2, 3))) is False


def test_runs_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    call = [
        "--out",
        str(tmp_path / "study.jsonl"),
        "--only",
        "iid,dirichlet",
        "--methods",
        "split-half,cfl",
    ]
    call += ["--sizes", "few", "--seeds", "0,1"]
    assert run.main([*call, "--part", "0/2"]) == 0
    first = (tmp_path / "study.jsonl").read_text()
    assert run.main(call) == 0
    rows = [json.loads(line) for line in (tmp_path / "study.jsonl").read_text().splitlines()]
    assert (tmp_path / "study.jsonl").read_text().startswith(first)
    assert len(rows) == 4  # of dirichlet, whose sizes are its own, there is no small one
    assert {(row["ari"], row["groups"], row["cut"]) for row in rows} == {(1.0, 1, False)}


def row(method: str, seed: int, **more: Any) -> dict[str, Any]:
    usual = {
        "kind": "swaps-4",
        "size": "many",
        "participation": 1.0,
        "true_groups": 4,
        "cut": False,
        "worst": 0.5,
    }
    usual |= {"settings": {}, "ari": 1.0, "right_from": 7, "accuracy": 0.9, "bytes": 2e6}
    return {**usual, "method": method, "seed": seed, **more}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts rows in the place of those that were measured."""
    path = tmp_path / "study.jsonl"
    monkeypatch.setattr(study_tables, "STUDY", path)
    return lambda *rows: path.write_text("".join(json.dumps(one) + "\n" for one in rows))


def test_tables_say_what_was_measured(measured: Callable[..., None]) -> None:
    wrong = {"ari": 0.5, "right_from": None, "cut": True, "bytes": 4e6}
    large = row("split-half", 0, kind="populations-2-large", size="large", ari=0.25)
    measured(
        large, row("cfl", 0, right_from=20), row("split-half", 0), row("split-half", 1, **wrong)
    )
    assert (
        "| `swaps-4` | many | 0.75 | 1.00 |\n| `populations-2-large` | large | 0.25 | – |"
        in study_tables.study("ari", "large", "many")
    )
    assert "| `swaps-4` | many | 7 (1 of 2) | 20 (1 of 1) |" in study_tables.study("rounds", "many")
    assert "| `swaps-4` | many | 1 of 2 | 0 of 1 |" in study_tables.study("cut", "many")
    assert "| `swaps-4` | many | 3.0 MB | 2.0 MB |" in study_tables.study("bytes", "many")
    assert "populations" not in study_tables.study("ari", "many")
    assert "Not measured yet" in study_tables.study("ari", "few", "tiny")
    # Of populations-2-large not all methods were measured, so no method is summed up over it.
    assert "| `split-half` | 0.75 | 0.75 (`swaps-4`) | 1 of 2 | 7 |" in study_tables.summary()


def test_runs_in_which_few_answer_have_a_table_of_their_own(measured: Callable[..., None]) -> None:
    measured(row("split-half", 0, ari=0.8), row("cfl", 0))
    assert "--participation 0.3` does it" in study_tables.silent()
    measured(row("split-half", 0, ari=0.8), row("split-half", 0, ari=0.4, participation=0.3))
    assert "| `swaps-4` | many | 0.40 |" in study_tables.silent()
    assert "| `swaps-4` | many | 0.80 |" in study_tables.study("ari", "many")


def test_an_oracle_takes_the_settings_of_the_best_mean(measured: Callable[..., None]) -> None:
    few, many = {"warmup": 10, "threshold": 1.0}, {"warmup": 10, "threshold": 5.0}
    measured(
        row("split-half", 0, ari=0.9),
        row("split-half", 1, ari=0.9),
        row("split-half", 2, ari=0.3),
        *(
            row("flhc", seed, ari=0.6, settings={"warmup": 10}) for seed in range(3)
        ),  # of one seed more, which does not count
        row("flhc", 0, ari=1.0, settings=few),
        row("flhc", 1, ari=0.0, settings=few),  # once the best, on average not
        row("flhc", 0, ari=0.7, settings=many),
        row("flhc", 1, ari=0.8, settings=many),
        row("flhc", 0, ari=1.0, settings={"warmup": 10, "threshold": 7.0}),  # of one seed alone
        *(
            row("ifca", seed, ari=0.5, settings={"models": models})
            for seed in (0, 1)
            for models in (8, 4)
        ),
        row("cfl", 0, kind="iid", true_groups=1),  # which no oracle has tried
    )
    assert "| setting | size | `split-half` | `flhc` | `ifca` |" in study_tables.oracle()
    assert "| `swaps-4` | many | 0.90 | 0.75 (threshold 5) | 0.50 |" in study_tables.oracle()
    assert "`iid`" not in study_tables.oracle()
    assert "| `swaps-4` | many | 0.70 | – | 0.60 | 0.50 |" in study_tables.study(
        "ari", "many"
    )  # as frozen
    measured(row("split-half", 0))
    assert "--oracle` does it" in study_tables.oracle()


def test_what_is_frozen_for_one_world_is_no_oracles_choice(measured: Callable[..., None]) -> None:
    printed = {"warmup": 10, "threshold": 3.0}
    measured(
        row("flhc", 0, kind="mnist-swaps-4", settings=printed), row("flhc", 0, settings=printed)
    )
    assert study_tables.study("ari", "many").endswith("| `mnist-swaps-4` | many | 1.00 |\n")
    assert "`swaps-4`" not in study_tables.study("ari", "many")
    assert "| `swaps-4` | many | 1.00 (threshold 3) |" in study_tables.oracle()


def test_runs_in_which_nobody_differs_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    path = tmp_path / "null.jsonl"
    for seeds in ("0", "0,1"):
        assert null.main(["--out", str(path), "--only", "digits", "--seeds", seeds]) == 0
    rows = read_results(path)
    assert [(one["world"], one["seed"]) for one in rows] == [("digits", 0), ("digits", 1)]
    assert all(len(one["p"]) == 1 and 0 < one["p"][0] <= 1 and one["splits"] == 0 for one in rows)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["momentum", "batchnorm"])
def test_worlds_in_which_nobody_differs(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    assert len(null.measured(world, 0, None)["p"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("world", ["mnist", "lstm"])
def test_worlds_of_files_in_which_nobody_differs(
    world: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.SETTINGS, "rounds", 2)
    assert len(null.measured(world, 0, str(data_folder))["p"]) == 1


def test_p_values_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_tables, "RESULTS", tmp_path)
    assert "Not measured yet" in evidence_tables.null()
    rows = [
        {"world": "digits", "splits": 0, "p": [1.0, 0.02]},
        {"world": "digits", "splits": 2, "p": [0.5, 0.0005]},
    ]
    (tmp_path / "null.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert evidence_tables.null().endswith(
        "| `digits` | 2 | 4 | 2 (50.00%) | 1 (25.00%) | 1 (25.00%) | 0 | 0.0005 | 1 of 2 | – |\n"
    )


def test_scores_of_successive_probes_are_correlated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_tables, "RESULTS", tmp_path)
    rows = [{"world": "digits", "splits": 0, "p": [p, p, p]} for p in (0.1, 0.4, 0.8)]
    (tmp_path / "null.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert evidence_tables.null().endswith("| 0 of 3 | 1.00 |\n")


def test_the_simulation_finds_what_is_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_tables, "RESULTS", tmp_path)
    assert "Not measured yet" in evidence_tables.calibration() + evidence_tables.power()
    assert calibration.main(["--out", str(tmp_path / "calibration.json"), "--scale", "0.001"]) == 0
    found = json.loads((tmp_path / "calibration.json").read_text())
    assert {one["draws"] for one in found["null"]} == {20}
    assert all(one["rates"][-1] == 0 for one in found["null"])
    assert all(
        one["rates"][0] == 0 for one in found["power"] if one["n"] == 4
    )  # little signal, few clients
    assert all(one["rates"][-1] == 1 for one in found["power"] if one["n"] == 60)
    assert "| 4 | one client 3x | 20 | " in evidence_tables.calibration()
    twice = evidence_tables.calibration("twice")
    assert "| 4 | one client 3x | 10 | " in twice
    assert "heavy tails" not in twice
    assert "| 4 | 1000 | 2 | 0.00 | " in evidence_tables.power()
