"""The example of a method that asks clients about their data keeps the contract, and finds who has the same classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from documents import load

import coterie
from coterie.cli import main
from coterie.testing import check_method


def test_the_example_keeps_the_contract_and_finds_who_has_the_same_classes(tmp_path: Path) -> None:
    # Loaded here: the pages that show it define its state once more.
    example = load("examples/label_groups.py", "label_groups_example")
    (decided,) = check_method(example.LabelGroups(groups=3))
    assert decided.startswith("round 1: cluster: k-means of the shares")
    with_labels = {}
    for name, labels in (("a", [0, 1]), ("b", [2, 3]), ("c", [0, 1]), ("d", [2, 3])):
        x = np.random.default_rng(ord(name)).normal(size=(60, 4)).astype(np.float32)
        with_labels[name] = (x, np.array(labels * 30))
    made = coterie.from_lists(with_labels, classes=4)
    (run,) = coterie.begin(
        made, tmp_path / "run", example.LabelGroups(groups=2), rounds=2, workers=1
    ).finish()
    assert coterie.summary(run)["groups"] == [["a", "c"], ["b", "d"]]
    notes = run.record.lines()[0]["notes"]
    assert [note["kind"] for note in notes] == ["cluster", "statistic"]
    assert main(["explain", str(tmp_path / "run")]) == 0
