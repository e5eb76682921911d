"""Early stopping: by validation scores alone, after which the best round can be compared and exported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cli import main
from coterie.data.scenario import SCENARIOS
from coterie.records.ending import Ending
from coterie.records.shown import SHOWN_KEY, Shown
from coterie.runs.export import save
from coterie.runs.folders import reopen
from coterie.runs.loading import load
from coterie.settings import SettingError, UserError

SMALL = replace(SCENARIOS["digits/dirichlet"], clients=4, samples=60)


def line(round: int, score: float | None, better: str = "greater") -> dict[str, Any]:
    """A tested round of one client; without a score, a round that was not tested."""
    clients = {"0": {"group": 0, "accuracy": 0.5}}
    if score is not None:
        clients["0"]["validation_accuracy"] = score
    return {
        "round": round,
        "tested": score is not None,
        "clients": clients,
        SHOWN_KEY: Shown(better=better),
    }


@given(
    scores=st.lists(st.none() | st.integers(0, 4).map(float), min_size=1, max_size=14),
    stop_after=st.integers(1, 5),
    better=st.sampled_from(["greater", "smaller"]),
)
def test_a_run_ends_at_the_first_tested_round_far_enough_after_the_best(
    scores: Sequence[float | None], stop_after: int, better: str
) -> None:
    ending = Ending(num_rounds=100, stop_after=stop_after)
    for number, score in enumerate(scores, start=1):
        ended = ending.follow(line(number, score, better))
        # From the definition: the first of the best scores until now.
        tested = [
            (value, at) for at, value in enumerate(scores[:number], start=1) if value is not None
        ]
        if not tested:
            assert not ended
            continue
        best = (max if better == "greater" else min)(value for value, _ in tested)
        best_round = next(at for value, at in tested if value == best)
        assert ending.best is not None
        assert (ending.best.round, ending.best.score) == (best_round, best)
        assert ended == ending.stopped == (score is not None and number - best_round >= stop_after)


def begin(folder: Path, **settings: Any) -> coterie.Runs:
    return coterie.begin(
        SMALL, folder, "fedavg", workers=1, validation_share=0.3, training={"lr": 0.5}, **settings
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    runs = begin(folder, rounds=60, stop_after=4, checkpoint_every=7)
    runs.finish()
    return runs[0].folder


def validation_means(run: Path) -> list[float]:
    means = []
    for text in (run / "rounds.jsonl").read_text().splitlines():
        clients = json.loads(text)["clients"].values()
        means.append(sum(entry["validation_accuracy"] for entry in clients) / len(clients))
    return means


def test_a_run_stops_and_keeps_its_best_round(stopped: Path) -> None:
    means = validation_means(stopped)
    best_round = means.index(max(means)) + 1
    assert len(means) == best_round + 4 < 60
    run = reopen(stopped)[0]
    assert run.finished()
    # The best round and the last one, whatever checkpoint_every is.
    assert {best_round, len(means)} <= set(run.record.checkpoints.rounds())
    result = coterie.summary(stopped)
    assert result["finished"]
    assert result["best_round"] == {
        "round": best_round,
        "metric": "validation_accuracy",
        "score": pytest.approx(max(means)),
    }


def test_it_is_the_beginning_of_the_run_without_stopping(stopped: Path, tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole", rounds=len(validation_means(stopped))).finish()[0]
    lines, stopped_lines = whole.record.lines(), reopen(stopped)[0].record.lines()
    assert [entry["clients"] for entry in lines] == [entry["clients"] for entry in stopped_lines]
    assert whole.record.checkpoints.rounds() == [len(lines) - 1, len(lines)]


def test_interrupted_and_resumed_it_stops_in_the_same_round(stopped: Path, tmp_path: Path) -> None:
    run = begin(tmp_path / "again", rounds=60, stop_after=4)[0]
    for finished_round in run.rounds():
        if finished_round.number == 3:
            break
    resumed = reopen(tmp_path / "again")[0]
    list(resumed.rounds())
    assert validation_means(resumed.folder) == validation_means(stopped)
    assert list(resumed.rounds()) == []


def test_the_best_round_is_compared_and_explained(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    means = validation_means(stopped)
    best_round = means.index(max(means)) + 1
    entry = coterie.compare(stopped, best_round=True)[0]
    best_line = reopen(stopped)[0].record.lines()[best_round - 1]
    accuracies = [client["accuracy"] for client in best_line["clients"].values()]
    assert entry["rounds"] == entry["best_rounds"] == [best_round]
    assert entry["score"]["mean"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert main(["compare", str(stopped)]) == 0
    assert "best" in capsys.readouterr().out
    assert main(["compare", str(stopped), "--best-round", "--markdown"]) == 0
    assert f"{entry['score']['mean']:.3f}" in capsys.readouterr().out
    assert main(["compare", str(stopped), "--best-round", "--against", "fedavg"]) == 2
    assert "--best-round changes the table alone" in capsys.readouterr().err
    told = str(coterie.explain(stopped))
    assert f"in round {best_round}." in told
    assert f"stopped in round {len(means)}, after 4 rounds without a better one." in told.replace(
        "\n", " "
    )


def test_the_best_round_is_exported(stopped: Path, tmp_path: Path) -> None:
    means = validation_means(stopped)
    save(stopped, tmp_path / "best", best_round=True)
    document = json.loads((tmp_path / "best" / "models.json").read_text())
    assert document["round"] == means.index(max(means)) + 1
    assert document["finished"]
    *_, at_best = coterie.run(
        "fedavg",
        SMALL,
        rounds=document["round"],
        workers=1,
        validation_share=0.3,
        training={"lr": 0.5},
    )
    net = at_best.model(0)
    exported = load(tmp_path / "best", 0)
    for name, tensor in net.state_dict().items():
        assert tensor.equal(exported.state_dict()[name])


def test_a_round_that_is_not_kept_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin(tmp_path / "whole", rounds=12, stop_after=None).finish()[0]
    means = validation_means(run.folder)
    best_round = means.index(max(means)) + 1
    assert best_round < 11
    command = ["export", str(run.folder), "--to", str(tmp_path / "models"), "--best-round"]
    assert main(command) == 2
    assert f"best validation score after round {best_round}, and models only of round 11, 12" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "models").exists()
    coterie.begin(SMALL, tmp_path / "none", "fedavg", rounds=1, workers=1).finish()
    with pytest.raises(UserError, match="has no validation scores"):
        coterie.compare(tmp_path / "none", best_round=True)


def test_a_stopped_run_goes_on_with_more_patience(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    settings_file = tmp_path / "run" / "run.toml"
    settings_file.write_text(settings_file.read_text().replace("stop_after = 4", "stop_after = 5"))
    assert main(["check", str(tmp_path / "run"), "--accept"]) == 0
    assert main(["resume", str(tmp_path / "run"), "--workers", "1", "--json"]) == 0
    means = validation_means(tmp_path / "run")
    assert len(means) > len(validation_means(stopped))
    assert len(means) == means.index(max(means)) + 1 + 5


def test_mistakes_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        SettingError, match="stop_after 3 needs validation scores: set validation_share"
    ):
        coterie.begin(SMALL, tmp_path / "a", "fedavg", stop_after=3)
    assert main(["run", "--stop-after", "0", "--out", str(tmp_path / "b")]) == 2
    assert "--stop-after must be at least 1, got 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
