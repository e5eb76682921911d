"""A row for each client: its newest result in one run, or its score with each method."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coterie.cli import main
from coterie.report import terminal
from coterie.report.client_results import NewestResult, results_of_run
from coterie.report.compared import compare
from told_runs import recorded

ALL = [[0, 1], [2]]


def shown(renderable: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Client 2 was refused in round 1, silent in round 2 and away in round 3, where it has no score."""
    third = {
        "0": {"group": 0, "accuracy": 0.5},
        "1": {"group": 0, "accuracy": 0.25},
        "2": {"group": 1, "accuracy": None},
    }
    return recorded(
        tmp_path / "run",
        {"name": "fedavg"},
        [(ALL, []), (ALL, []), (ALL, [])],
        refused={1: {"2": "why"}},
        silent={1: [2], 2: [2]},
        absent={3: {"2": 2}},
        clients={3: third},
    )


def test_the_newest_result_of_each_client(run: Path) -> None:
    results = results_of_run(run)
    assert results[0] == NewestResult(group=1, score=0.5, tested=3)
    # Its score is that of the round in which it was last tested.
    assert results[2] == NewestResult(group=2, score=0.2, tested=2, missed=2, refused=1)


def test_a_run_has_a_row_per_client_and_names_its_worst(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "worst client: 1 with fedavg" in shown(terminal.comparison(compare(run)))
    assert main(["compare", str(run), "--clients"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["0", "1", "0.500", "-", "3", "0", "0"],
        ["1", "1", "0.250", "-", "3", "0", "0"],
        ["2", "2", "0.200", "-", "2", "2", "1"],
    ]
    assert main(["compare", str(run), "--clients", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["client"] for row in rows] == [0, 1, 2]
    assert rows[2]["missed"] == 2


def test_several_runs_have_a_column_per_method(tmp_path: Path) -> None:
    for method, rounds in (("fedavg", 1), ("cfl", 2)):
        recorded(tmp_path / method, {"name": method}, [(ALL, [])] * rounds)
    text = shown(terminal.client_tables(compare(tmp_path)))
    assert "by-hand" in text.splitlines()[0]
    assert text.splitlines()[1].split() == ["client", "cfl", "fedavg"]
    assert text.splitlines()[2].split() == ["0", "0.200", "0.100"]
