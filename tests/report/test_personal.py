"""Personal models: every number of a client says whether it is of its personal model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import coterie
from coterie.cli import main
from coterie.records.record import Record
from coterie.report.explain import explain
from coterie.report.page import document
from coterie.report.terminal import table, tree
from page_runs import line, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four clients in two groups, of which two have personal models at last, and one model for comparison."""
    names = ["east", "hill", "north", "west"]
    together = [[0, 1, 2, 3]]
    lines = [
        line(1, together, personal=[0, 1, 2, 3]),
        line(2, together),
        line(3, [[0, 1], [2, 3]], personal=[0, 1]),
    ]
    write(
        tmp_path / "fedavg-seed0",
        [line(number, together) for number in (1, 2, 3)],
        "fedavg",
        names=names,
    )
    return write(tmp_path / "auto-seed0", lines, "auto", names=names)


def test_the_page_says_who_has_one(run: Path) -> None:
    shown = document([run.parent])
    (said,) = shown["verdicts"]
    assert said["personal"] == (
        "Clients east, hill (2 clients) are served by personal models, the others by that of their group."
    )
    about = [number["about"] for number in said["headline"]["numbers"]]
    assert "2 groups, 2 of the clients with a personal model" in about
    position = said["table"]["methods"].index("auto")
    marked = {row["client"]: row["personal"][position] for row in said["table"]["rows"]}
    assert marked == {"east": 1, "hill": 1, "north": 0, "west": 0}
    auto = next(entry for entry in shown["runs"] if entry["method"] == "auto")
    east, _, north, _ = sorted(auto["clients"], key=lambda row: str(row["id"]))
    assert (east["personal_now"], east["personal"], east["best"]) == (True, [3], None)
    # The group of all was last tested without personal models.
    assert (north["personal_now"], north["personal"]) == (False, [])
    assert north["best"] is not None


def test_commands_say_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", str(run), "--client", "east"])
    text = " ".join(capsys.readouterr().out.split())
    assert "It is served by its personal model, not by that of its group." in text
    assert "Round 3: clients east, hill (2 clients); accuracy 0.750 with its personal model" in text
    assert (
        "Rounds 1-2: clients east, hill, north, west (4 clients); accuracy 0.667 in round 2" in text
    )
    main(["explain", str(run)])
    text = " ".join(capsys.readouterr().out.split())
    assert "(2 clients), mean accuracy 0.775, each served by a personal model" in text
    main(["compare", str(run.parent)])
    assert "are served by personal models" in " ".join(capsys.readouterr().out.split())


def test_summaries_tables_and_trees_have_them(run: Path) -> None:
    summary = coterie.summary(run)
    assert summary["personal"] == ["east", "hill"]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table([summary]), tree(Record(run).shown()[1]))
    text = console.export_text()
    assert "own" in text.splitlines()[0]
    assert "2 with personal models" in text
    explained: Any = explain(run, client="hill")
    assert explained["score"]["personal"]


def test_a_run_records_who_is_served_by_a_personal_model(tmp_path: Path) -> None:
    inputs, targets = torch.zeros(12, 3), torch.arange(12) % 2
    world = coterie.from_lists([(inputs, targets)] * 3, model="linear")
    runs = coterie.begin(
        world, tmp_path / "runs", ["ditto", "fedavg"], rounds=2, workers=1
    ).finish()
    lines = {one.method.name: one.record.lines()[-1] for one in runs}
    assert lines["ditto"]["personal"] == [0, 1, 2]
    assert "personal" not in lines["fedavg"]
