"""What a site asks: does it gain over training alone, how sure are the groups, and what do the other seeds say?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.cli import main
from coterie.core import P_VALUE
from coterie.report.explain import explain, words
from coterie.report.page import document
from coterie.report.page.document import title
from coterie.report.ranking import contests
from coterie.report.trials import read
from coterie.report.verdict import verdict
from page_runs import line, note, write

CLIENTS = range(4)
SCORES = {
    "fedavg": (0.50, 0.50, 0.80, 0.80),
    "independent": (0.60, 0.70, 0.75, 0.80),
    "cfl": (0.95, 0.90, 0.80, 0.80),
}
GROUPS = {"fedavg": [[0, 1, 2, 3]], "independent": [[0], [1], [2], [3]], "cfl": [[0, 1], [2, 3]]}


def runs(folder: Path, seeds: int = 1, metric: str = "accuracy", p: float = 1e-9) -> Path:
    """Runs of three methods, in which the first two of four clients gain by groups."""
    for seed in range(seeds):
        for method, scores in SCORES.items():
            evidence = {"key": P_VALUE, "name": "p", "value": p, "sign": "<", "bound": 0.01}
            evidence |= {"setting": "level", "met": "", "unmet": "", "held": True}
            split = note("split", [*CLIENTS], GROUPS["cfl"], criteria=[evidence])
            made = line(1, GROUPS[method], *([split] if method == "cfl" else []))
            for client, score in zip(CLIENTS, scores, strict=True):
                entry = made["clients"][str(client)]
                entry.pop("accuracy")
                entry[metric] = score + 0.001 * seed * (client + 1)
            other = (
                {} if metric == "accuracy" else {"metric": {"main": metric, "better": "greater"}}
            )
            write(
                folder / f"{method}-seed{seed}", [made], method, seed=seed, tests=[100] * 4, **other
            )
    return folder


def test_the_table_has_each_clients_gain_over_training_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs(tmp_path)
    (contest,) = contests(map(read, sorted(folder.iterdir())))
    said = verdict(contest)
    assert said["table"]["alone"] == "cfl"
    gains = {row["client"]: row["over_alone"] for row in said["table"]["rows"]}
    assert [gains[client][0] for client in CLIENTS] == pytest.approx([0.35, 0.2, 0.05, 0.0])
    assert [gains[client][2] for client in CLIENTS] == [1, 1, 0, 0]
    # The clients are named where it is not all of them.
    assert all(
        "for 2 of 4 clients (0, 1) and significantly worse" in text for text in said["better"]
    )
    main(["compare", str(folder)])
    text = capsys.readouterr().out
    assert "training alone" in text
    assert "+0.350 ▲" in text
    assert "+0.050 ≈" in text


def test_one_sentence_says_how_sure_the_groups_are(tmp_path: Path) -> None:
    (contest,) = contests(map(read, sorted(runs(tmp_path / "one").iterdir())))
    assert verdict(contest)["sure"] == (
        "How sure are the groups? Clients differ beyond chance (p = 1e-09); one seed was run, so it is not known "
        "whether others find the same groups; one model for all is significantly worse in the mean, "
        "by 0.213 accuracy."
    )
    (contest,) = contests(map(read, sorted(runs(tmp_path / "two", seeds=2).iterdir())))
    assert (
        "p = 1e-09, or less with each seed); each of 2 seeds found the same groups"
        in (verdict(contest)["sure"])
    )
    (contest,) = contests(map(read, sorted(runs(tmp_path / "weak", p=0.2).iterdir())))
    assert "the evidence that clients differ beyond chance is weak (p = 0.2)" in (
        verdict(contest)["sure"].lower()
    )
    # A baseline has no groups that it found.
    assert verdict(contest, contest.find("independent"))["sure"] == ""


def test_one_seed_asks_the_seeds_beside_it(tmp_path: Path) -> None:
    single = runs(tmp_path / "single", metric="R2Score") / "cfl-seed0"
    (said,) = explain(single, client=0)["verdict"]
    assert "whether that is significant is not known" in said
    assert said.endswith("Runs with three seeds or more in one folder (--seeds 3) would tell.")
    first = runs(tmp_path / "several", seeds=3, metric="R2Score") / "cfl-seed0"
    (said,) = explain(first, client=0)["verdict"]
    assert "In the mean over the 3 seeds in this folder: Client 0 has R2Score 0.951" in said
    assert "With fedavg it has 0.501: significantly worse." in said
    # The error of an accuracy is known from one seed.
    (said,) = explain(runs(tmp_path / "known", seeds=3) / "cfl-seed0", client=0)["verdict"]
    assert "seeds" not in said


def test_ones_own_data_have_their_targets_name_on_the_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = {"site": ["a", "b"] * 20, "age": rng.random(40), "readmitted": [0, 1, 1, 0] * 10}
    world = coterie.from_frame(table, client="site", target="readmitted", model="linear")
    (run,) = coterie.begin(world, tmp_path / "run", "fedavg", rounds=1, workers=1).finish()
    assert coterie.summary(run)["title"] == "readmitted, 2 clients"
    shown = document([run.folder])
    assert shown["verdicts"][0]["title"] == "readmitted, 2 clients"
    assert title(shown) == "fedavg, readmitted, 2 clients – Coterie"
    assert "fedavg in readmitted, 2 clients, seed 0" in words(run.folder)
    # A named scenario is enough.
    assert coterie.summary(runs(tmp_path / "named") / "cfl-seed0")["title"] == "synthetic/groups"
