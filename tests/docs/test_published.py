"""The page on published implementations names tests that are there, and its tables say what rows say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents import ROOT, anchors, load

PAGE = (ROOT / "docs" / "research" / "published-code.md").read_text()
DETAILS = (ROOT / "notes" / "published-code.md").read_text()


@pytest.fixture(name="tables")
def _tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module that makes the tables, with an empty folder of rows."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "docs"))
    module = load("tools/docs/published_tables.py", "published_tables_alone")
    monkeypatch.delitem(sys.modules, "measured", raising=False)
    monkeypatch.setattr(module, "ROWS", tmp_path)
    return module


def keep(folder: Path, name: str, label: str, **found: object) -> None:
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps({"cell": {"method": {"label": label}}, "found": found}) + "\n")


def test_every_test_that_is_named_is_there() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    for text in (PAGE, DETAILS):
        named = set(re.findall(r"`(test_\w+)`", text))
        assert len(named) > 20
        assert named <= there


def test_every_part_of_the_summary_leads_to_a_section() -> None:
    rows = re.findall(r"^\| \[[^]]+\]\(#([^)]+)\)", PAGE, re.MULTILINE)
    titles = anchors(PAGE, "###")
    assert set(rows) == {title for title in titles if not title.startswith("smaller-ones")}


def test_an_ablation_is_told_with_means_and_intervals(tables: ModuleType, tmp_path: Path) -> None:
    for accuracy, ari in ((0.8, 1.0), (0.9, 1.0), (1.0, 1.0)):
        keep(tmp_path, "cfl-fig8.small", "CFL", accuracy=accuracy, worst=0.5, ari=ari, groups=4)
    keep(tmp_path, "cfl-fig8.small", "FedAvg", accuracy=0.25, worst=0.1, ari=None, groups=1)
    _, _, cfl, fedavg = tables.published("ids").splitlines()
    # Half the interval of 0.8, 0.9 and 1 is 4.3027 * 0.1 / sqrt(3) = 0.248.
    assert cfl == "| CFL | 3 | 0.900 ± 0.248 | 0.500 ± 0.000 | 1.00 ± 0.00 | 4.0 ± 0.0 |"
    assert fedavg == "| FedAvg | 1 | 0.250 | 0.100 | – | 1.0 |"


def test_starts_are_told_where_both_were_run(tables: ModuleType, tmp_path: Path) -> None:
    for label, accuracy, groups in (
        ("FedAvg", 0.5, 1),
        ("IFCA", 0.75, 4),
        ("IFCA, identical start", 0.5, 1),
        ("FLSC", 0.7, 3),
    ):
        keep(tmp_path, "hcct-table4-digit.small", label, accuracy=accuracy, groups=groups)
    (only,) = tables.published("starts").splitlines()[2:]
    assert only == "| digits in four rotations | IFCA | 1 | 1.0 | 4.0 | 50.0 | 25.0 | 50.0 |"


def test_the_best_epochs_are_told_in_points(tables: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, "hcct-table4-digit.small", "IFCA", accuracy=0.5, best_epoch=0.52)
    keep(tmp_path, "hcct-table4-digit.small", "HCCT", accuracy=0.5, best_epoch=0.5)
    (only,) = tables.published("best-epochs").splitlines()[2:]
    assert only == "| digits in four rotations | 2 | 1.0 | 0.0 (HCCT) | 2.0 (IFCA) |"


def test_clusters_by_weights_are_held_against_the_truth(tables: ModuleType, tmp_path: Path) -> None:
    groups = {"1": [[0, 1, 2, 3]], "2": [[0, 2], [1, 3]]}
    row = {"cell": {"problem": "pairs"}, "found": {"truth": [[1, 3], [0, 2]], "groups": groups}}
    (tmp_path / "acfl-fig3.small.jsonl").write_text(json.dumps(row) + "\n")
    assert tables.published("weights").splitlines()[2:] == ["| pairs | 0.00 | 1.00 |"]
