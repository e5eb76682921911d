"""Whatever limits on single clients change is said: in the record, the console, the summary, explanations and Flower's log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.core import Training
from coterie.data.adversaries import Attack
from coterie.engines.flower.limited import LimitLog
from coterie.engines.rounds import rounds
from coterie.methods import FedAvg, FedFA
from coterie.methods._fences import fence_note
from coterie.records.record import Record
from coterie.records.round_line import line_of_round
from coterie.report.explain import explain
from coterie.report.limits import Limit, limit_sentences, limited
from coterie.report.summary import summary
from coterie.robust import Robust
from coterie.runs.experiment import make
from coterie.runs.folders import begin
from flowered import Here, a_run, app_of, strategy_of
from small import linear, world

SCALED = {
    "scenario": {"name": "synthetic/iid", "clients": 8},
    "methods": ["fedavg"],
    "rounds": 3,
    "workers": 1,
}


def recorded(folder: Path, **more: Any) -> Path:
    (run,) = begin(make({**SCALED, **more}), folder)
    list(run.rounds())
    return run.folder


def test_a_run_without_limits_says_nothing(tmp_path: Path) -> None:
    lines = Record(recorded(tmp_path / "run")).shown()[1]
    assert (limited(lines), limit_sentences([], len(lines))) == ([], [])


def test_scaled_updates_are_counted_by_client_and_round(tmp_path: Path) -> None:
    """An attack of 100 times the update: who, how often, by how much and which setting, in all places."""
    scenario = {**SCALED["scenario"], "adversaries": 0.1, "attack": "scale", "attack_scale": 100}
    folder = recorded(tmp_path / "run", scenario=scenario)
    description, lines = Record(folder).shown()
    (hostile,) = description["world"]["adversaries"]
    (limit,) = limited(lines)
    factors = [line["scaled"][str(hostile)] for line in lines]
    assert limit == Limit(hostile, "robust.norms", "scaled", 3, tuple(factors))
    assert all(0 < factor < 1 for factor in factors)
    (sentence,) = limit_sentences(limited(lines), len(lines))
    assert sentence.startswith(
        f"robust.norms scaled down updates of 1 client: client {hostile} (in 3 of 3 rounds, to 0."
    )
    assert sentence.endswith("This is not the published algorithm; robust.norms=none is.")
    (told,) = summary(folder)["limited"]
    assert told == {
        "client": hostile,
        "setting": "robust.norms",
        "effect": "scaled",
        "rounds": 3,
        "least": min(factors),
        "most": max(factors),
    }


def test_explanations_say_what_limits_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(
        tmp_path / "run", scenario={**SCALED["scenario"], "adversaries": 0.1, "attack": "examples"}
    )
    description, lines = Record(folder).shown()
    (hostile,) = description["world"]["adversaries"]
    claim, counted = (lines[0][key][str(hostile)] for key in ("claimed", "counted"))
    assert explain(folder)["limited"][0] | {"rounds": 0} == {
        "client": hostile,
        "setting": "robust.share",
        "effect": "counted",
        "rounds": 0,
        "least": counted,
        "most": counted,
        "claimed": claim,
    }
    assert main(["explain", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"With fedavg, robust.share counted fewer examples than reported of 1 client: client {hostile}"
        in shown
    )
    assert f"{counted:,} for {claim:,}" in shown
    assert main(["explain", str(folder), "--client", str(hostile)]) == 0
    assert "robust.share counted fewer examples than it reported" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_console_says_it_once_and_in_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "run",
        "--scenario",
        "synthetic/iid",
        "--method",
        "fedavg",
        "--rounds",
        "3",
        "--set",
        "adversaries=0.1",
    ]
    assert (
        main(
            [
                *words,
                "--set",
                "attack=scale",
                "--set",
                "attack_scale=100",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    assert captured.err.count("robust.norms scaled down updates of") == 1
    assert "in 3 of 3 rounds" in " ".join(captured.out.split())
    assert main(["run", *words[1:7], "--out", str(tmp_path / "calm")]) == 0
    captured = capsys.readouterr()
    assert "robust." not in captured.out + captured.err


def test_weights_that_a_method_limits_are_counted(tmp_path: Path) -> None:
    """FedFA weighs wrong clients most: of one with exchanged labels the weight is limited, in a scenario with adversaries."""
    scenario = {"name": "synthetic/iid", "clients": 20, "adversaries": 0.05, "attack": "label-flip"}
    folder = recorded(tmp_path / "run", scenario=scenario, methods=["fedfa"], rounds=6)
    lines = Record(folder).shown()[1]
    notes = [note for line in lines for note in line["notes"] if note["kind"] == "bound"]
    assert notes
    (limit,) = (
        each
        for each in limited(lines)
        if each.effect == "bound" and each.client in notes[0]["clients"]
    )
    assert limit.setting == "robust.share"
    assert limit.rounds == sum(limit.client in note["clients"] for note in notes)


def test_a_federation_logs_each_limit_once_and_totals(caplog: pytest.LogCaptureFixture) -> None:
    sizes = [20] * 5 + [30_000]
    tried = world(range(6), model=linear, sizes=sizes, training=Training(lr=0.1, batch=0))
    with (
        a_run(),
        caplog.at_level(logging.WARNING, "flwr.coterie"),
    ):  # another test may have silenced Flower
        strategy_of(FedAvg(), tried, robust={}).start(Here(app_of(tried), 6), num_rounds=3)
    told = [record.getMessage() for record in caplog.records if "robust." in record.getMessage()]
    assert told == [
        "client 5: robust.share counted 20 of the 30,000 examples that it reports (first in round 1; robust.share=1 turns it "
        "off)",
        "robust.share limited client 5 in 3 of 3 rounds: this is not the published algorithm",
    ]


def test_totals_of_a_run_that_continues_are_of_all_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [20] * 5 + [30_000]
    tried = world(range(6), model=linear, sizes=sizes, training=Training(lr=0.1, batch=0))
    grid = Here(app_of(tried), 6)
    with a_run(), caplog.at_level(logging.INFO, "flwr.coterie"):
        strategy_of(FedAvg(), tried, robust={}, out=tmp_path / "run").start(grid, num_rounds=2)
        caplog.clear()
        strategy_of(FedAvg(), tried, robust={}, out=tmp_path / "run").start(grid, num_rounds=3)
    assert f"{tmp_path / 'run'} continues after round 2" in caplog.messages
    # The first limit was told of in the server before; the total is that of the records.
    assert [text for text in caplog.messages if "robust." in text] == [
        "robust.share limited client 5 in 3 of 3 rounds: this is not the published algorithm"
    ]
    (limit,) = limited(Record(tmp_path / "run").shown()[1])
    assert limit.rounds == 3


def test_limits_on_reports_are_told_of_as_usual() -> None:
    tried = world(range(6), model=linear, training=Training(lr=0.1, batch=0))
    done = next(strategy_of(FedAvg(), tried).rounds(Here(app_of(tried), 6), 1))
    done = replace(done, notes=(fence_note([5]),), names={5: "west"})
    log = LimitLog()
    ((said, warns),) = log.new_limits(done)
    assert said.startswith("client west: robust.share limited what the method makes of its reports")
    assert "usual for a client that differs from all others" in said
    assert not warns
    ((total, warns),) = log.totals()
    assert total.startswith("robust.share limited reports of client west in 1 of 1 rounds: usual")
    assert not warns
    # Records of these rounds say the same.
    recorded_line = line_of_round(done)
    assert LimitLog.of_records([recorded_line], {5: "west"}) == log


@pytest.mark.parametrize("hostile", [False, True])
def test_fedfa_notes_whose_weight_it_limits(hostile: bool) -> None:
    tried = world(range(20), model=linear, training=Training(lr=0.5, batch=0))
    tried = replace(tried, attacks={3: Attack(kind="label-flip")} if hostile else {})
    done = list(
        rounds(
            FedFA(),
            tried,
            rounds=30,
            workers=1,
            eval_every=30,
            robust=Robust(share=0.1) if hostile else None,
        )
    )
    notes = [note for each in done for note in each.notes if note.kind == "bound"]
    assert bool(notes) == hostile
    for note in notes:
        assert f"the weight of client {note.clients[0]}" in note.text
        assert "(robust.share)" in note.text
