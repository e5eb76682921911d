"""Frozen run directories still open, are told and exported, and go on."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli import main
from coterie.randomness import seeded
from coterie.records.store import SCHEMA_VERSION
from coterie.records.text_files import read_toml, to_toml
from coterie.report import terminal
from coterie.runs.checking import accept

HERE = Path(__file__).parent
OLD = sorted(folder for folder in HERE.glob("schema-*/*") if folder.is_dir())
TRUTH = [[0, 4, 6, 7], [1, 2, 3, 5]]


@pytest.fixture(params=OLD, ids=[str(folder.relative_to(HERE)) for folder in OLD])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a frozen run: nothing may change what is committed."""
    folder: Path = tmp_path / request.param.name
    shutil.copytree(request.param, folder)
    return folder


def drawn(lines: list[dict[str, Any]]) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal.tree(lines))
    return console.export_text()


def change(file: Path, **settings: Any) -> None:
    """As a user edits and accepts it, unless its schema is changed."""
    file.write_text(to_toml({**read_toml(file), **settings}))
    if "schema" not in settings:
        accept(file.parent)


def test_there_are_runs_of_the_present_schema() -> None:
    assert f"schema-{SCHEMA_VERSION}" in {folder.parent.name for folder in OLD}


def test_it_opens_and_is_told(old: Path) -> None:
    (run,) = coterie.reopen(old)
    assert run.finished()
    lines = run.record.lines()
    assert [list(group) for group in lines[-1]["groups"]] == TRUTH
    told = coterie.summary(old)
    assert (told["method"], told["ari"]) == (old.name, 1.0)
    assert told["accuracy"]["mean"] > 0.9
    assert coterie.compare([old])[0]["method"] == old.name
    assert "0, 4, 6, 7 (4 clients)  accuracy" in drawn(lines)
    matrices = [
        note["similarity"] for line in lines for note in line["notes"] if note["similarity"]
    ]
    assert all((old / name).is_file() for name in matrices)


@seeded(0)
def test_its_models_can_be_taken_out(old: Path, tmp_path: Path) -> None:
    coterie.save(old, tmp_path / "models")
    net = coterie.load(tmp_path / "models", client=3)
    assert net(torch.rand(5, 8)).shape == (5, 4)


def test_it_is_finished(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.stat().st_mtime_ns for file in old.rglob("*")}
    assert main(["resume", str(old)]) == 0
    assert "there is nothing to do" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in old.rglob("*")} == before


def test_it_goes_on_from_its_checkpoint(old: Path) -> None:
    made = len(coterie.reopen(old)[0].record.lines())
    change(old / "run.toml", rounds=made + 2)
    (run,) = coterie.reopen(old)
    assert [round.number for round in run.rounds()] == [made + 1, made + 2]
    assert [list(group) for group in run.record.lines()[-1]["groups"]] == TRUTH


@pytest.mark.parametrize("command", ["resume", "compare", "export"])
def test_a_run_of_a_later_schema_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OLD[0], tmp_path / "run")
    change(tmp_path / "run" / "run.toml", schema=SCHEMA_VERSION + 1)
    more = ("--to", str(tmp_path / "models")) if command == "export" else ()
    assert main([command, str(tmp_path / "run"), *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        f"has schema version {SCHEMA_VERSION + 1}, this version of Coterie reads up to {SCHEMA_VERSION}"
        in err
    )
    assert len(err.splitlines()) == 1


def test_so_is_a_later_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(OLD[0], tmp_path / "run")
    for file in (tmp_path / "run" / "state").glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "schema": SCHEMA_VERSION + 1}))
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "models")]) == 2
    assert "use a newer Coterie" in capsys.readouterr().err
