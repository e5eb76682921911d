"""The tables of the page that helps to choose a method say what was recorded, and its table of answers names what there is."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from documents import ROOT, anchors

from coterie import METHODS

PAGE = (ROOT / "docs" / "sites" / "choosing.md").read_text()
NOTES = (ROOT / "notes" / "choosing.md").read_text()


@pytest.fixture(name="tables")
def _tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module that makes the tables, with what it reads in an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "docs"))
    tables = importlib.import_module("choosing_tables")
    monkeypatch.setattr(importlib.import_module("published_tables"), "ROWS", tmp_path)
    monkeypatch.setattr(tables.study_tables, "STUDY", tmp_path / "study.jsonl")
    monkeypatch.setattr(importlib.import_module("measured"), "RESULTS", tmp_path)
    return tables


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_method_is_considered() -> None:
    assert not [
        name for name in METHODS if f"methods/{name}.md" not in PAGE and f"`{name}" not in PAGE
    ]


def test_every_answer_leads_to_its_evidence_in_the_order_of_the_notes() -> None:
    _, _, *rows = re.findall(
        r"^\|.+\|$", PAGE.partition("\n## Method by situation\n")[2], re.MULTILINE
    )
    evidence = [re.search(r" \| \[[^]]+\]\(([^)]+)\) \|$", row) for row in rows]
    assert all(evidence)
    answers = re.findall(r"notes/choosing\.md#([\w-]+)\) \|$", "\n".join(rows), re.MULTILINE)
    titles = anchors(NOTES, "##")
    assert len(set(answers)) >= 10
    assert list(dict.fromkeys(answers)) == [title for title in titles if title in answers]
    assert titles[-1] == "open-questions"


def test_a_studied_world_is_a_mean_over_seeds_at_frozen_settings(
    tables: ModuleType, tmp_path: Path
) -> None:
    frozen = tables.study_tables.frozen(tables.study_tables.SETTINGS, "iid", "cfl")
    row = {
        "kind": "iid",
        "size": "many",
        "participation": 1.0,
        "method": "cfl",
        "settings": frozen,
        "ari": 0.5,
        "groups": 2,
    }
    other = {**row, "ari": 1.0, "groups": 1, "accuracy": 0.75}
    lines(
        tmp_path / "study.jsonl",
        [{**row, "accuracy": 0.25}, other, {**other, "settings": {"eps1": 7}, "ari": 0.0}],
    )
    head, _, alike = tables.groups("many", "iid").splitlines()
    assert (head, alike) == ("| adjusted Rand, accuracy | `cfl` |", "| all alike | 0.75, 0.500 |")
    head, _, alike = tables.pieces("iid").splitlines()
    assert (head, alike) == ("| number of groups, accuracy | `cfl` |", "| all alike | 1.5, 0.500 |")
    lines(tmp_path / "study.jsonl", [{**other, "participation": 0.3, "ari": None}])
    assert tables.silent("iid").splitlines()[2] == "| all alike | –, 0.750 |"


def test_the_least_error_is_bold(tables: ModuleType, tmp_path: Path) -> None:
    for name in tables.SINGLE:
        found = [("FedAvg", 0.75), ("Independent", 0.5), ("HCCT", 0.25)]
        lines(
            tmp_path / f"{name}.jsonl",
            [
                {"cell": {"method": {"label": label}}, "found": {"accuracy": accuracy}}
                for label, accuracy in found
            ],
        )
    assert tables.whether().splitlines()[2].endswith("| **25.0** | 50.0 | – | – | 75.0 | – |")


def test_costs_are_multiples_of_fedavgs(tables: ModuleType, tmp_path: Path) -> None:
    one = {"method": "fedavg", "exchanges": {"mean": 30}, "evaluations": {"mean": 0}}
    usual = {**one, "bytes_up": {"mean": 100.0}, "bytes_down": {"mean": 200.0}}
    more = {**usual, "method": "ifca", "bytes_down": {"mean": 800.0}, "evaluations": {"mean": 12}}
    (tmp_path / "all-methods-mnist.json").write_text(json.dumps([more, usual]))
    assert tables.costs().splitlines()[2:] == [
        "| `fedavg` | 30 | 1.00 | 1.00 | 0 |",
        "| `ifca` | 30 | 1.00 | 4.00 | 12 |",
    ]


def test_newcomers_are_counted_and_groups_compared_as_partitions(
    tables: ModuleType, tmp_path: Path
) -> None:
    found = {"groups": [[1, 0], [2]], "truth": [[2], [0, 1]], "newcomers": {"1": True, "2": False}}
    lines(
        tmp_path / "cfl-fig4.small.jsonl",
        [{"found": found}, {"found": {**found, "truth": [[0, 2], [1]]}}],
    )
    cell = {"method": {"label": "HCCT"}, "joiners": 1}
    lines(tmp_path / "hcct-fig3.small.jsonl", [{"cell": cell, "found": {"accuracy": 0.75}}])
    text = tables.newcomers()
    assert (
        "2 of 4 newcomers in their true group, and exactly the true groups at the end of 1 of 2 runs"
        in text
    )
    assert text.endswith("| HCCT | 25.0 |\n")


def test_what_is_hidden_is_told_with_what_it_cost(
    tables: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tables, "BOUNDARY", tmp_path / "boundary.json")
    row = {
        "method": "cfl",
        "boundary": "nothing",
        "exact": 3,
        "runs": 3,
        "accuracy": 0.9,
        "epsilon": None,
    }
    noised = {**row, "boundary": "clip 1, noise 10", "exact": 0, "accuracy": 0.1, "epsilon": 5.76}
    tables.BOUNDARY.write_text(
        json.dumps({"rows": [row, noised, {**row, "boundary": "topk, share 0.1"}]})
    )
    told = ["| nothing | 3 of 3, 0.900 |", "| clip 1, noise 10 | 0 of 3, 0.100, ε 5.76 |"]
    assert tables.hidden().splitlines()[2:] == told
