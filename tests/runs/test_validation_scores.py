"""Validation scores: on examples that nobody trains on, tests or chooses by, the same for every method."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.cli import main
from coterie.data.own import from_lists
from coterie.data.scenario import SCENARIOS
from coterie.data.world import Split, World
from coterie.runs.facts import digest
from coterie.settings import SettingError, UserError
from coterie.training import set_aside

SMALL = {"clients": 4, "samples": 40}


def small_world(seed: int) -> World:
    """Four clients of digits with different classes."""
    return replace(SCENARIOS["digits/dirichlet"], **SMALL).build(seed)


def rows_of(split: Split | None) -> set[int]:
    assert split is not None
    return set(split.index.tolist())


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0.01, 0.5), seed=st.integers(0, 2))
def test_parts_are_disjoint_and_only_training_rows_are_set_aside(share: float, seed: int) -> None:
    world = small_world(0)
    divided = set_aside(world, share, seed)
    for client, before in world.clients.items():
        data = divided.clients[client]
        taken = rows_of(data.scoring)
        assert len(taken) == min(max(round(share * len(before.train)), 1), len(before.train) // 2)
        assert rows_of(data.train) | taken == rows_of(before.train)
        assert not rows_of(data.train) & taken
        # What auto and others choose by, and what is tested, stay as they are.
        assert data.validation is before.validation
        assert data.test is before.test


def test_the_same_rows_for_every_method_and_others_for_another_seed() -> None:
    world = small_world(0)
    first, again, other = (set_aside(world, 0.3, seed) for seed in (1, 1, 2))
    assert digest(first) == digest(again) != digest(other)
    assert digest(first) != digest(world)


def test_data_that_drift_are_set_aside_in_each_time_step() -> None:
    world = replace(SCENARIOS["sine/drift"], clients=3).build(0)
    divided = set_aside(world, 0.25, 0)
    assert len(divided.steps) == len(world.steps) > 1
    assert divided.steps[0] == divided.clients
    for clients, before in zip(divided.steps, world.steps, strict=True):
        for client, data in clients.items():
            assert len(data.scoring or ()) == round(0.25 * len(before[client].train)) > 0


def test_examples_of_a_subject_stay_together_and_a_single_one_is_not_divided() -> None:
    inputs = torch.linspace(-1, 1, 24).reshape(12, 2)
    labels = torch.tensor([0, 1] * 6)
    patients = np.repeat([0, 1, 2, 3], 3)
    world = from_lists(
        {
            "a": {"x": inputs, "y": labels, "subject": patients},
            "b": {"x": inputs, "y": labels, "subject": np.zeros(12, int) + 9}
            | {"x_test": inputs, "y_test": labels},
        },
        model=lambda: torch.nn.Linear(2, 2),
        train=0.75,
        validation=0.0,
    )
    divided = set_aside(world, 0.3, 0)
    several, single = divided.clients.values()
    assert several.scoring is not None
    assert several.scoring.subjects is not None
    assert several.train.subjects is not None
    assert not set(several.scoring.subjects.tolist()) & set(several.train.subjects.tolist())
    assert not len(single.scoring or ())
    *_, last = coterie.run("fedavg", divided, rounds=1, workers=1)
    assert last.scores is not None
    assert 0 <= last.scores[0]["validation_accuracy"] <= 1
    assert math.isnan(last.scores[1]["validation_accuracy"])
    assert last.mean("validation_accuracy") == last.scores[0]["validation_accuracy"]


@pytest.mark.parametrize("method", ["fedavg", "knn-per", "fedper"])
def test_scores_are_those_of_a_test_on_these_rows(method: str) -> None:
    world = set_aside(small_world(3), 0.3, 3)
    clients = {
        client: replace(data, test=data.scoring, scoring=None)
        for client, data in world.clients.items()
    }
    *_, scored = coterie.run(method, world, rounds=2, seed=3, workers=1)
    *_, tested = coterie.run(method, replace(world, clients=clients), rounds=2, seed=3, workers=1)
    assert scored.scores is not None
    assert tested.scores is not None
    for client, scores in tested.scores.items():
        for metric, value in scores.items():
            assert scored.scores[client][f"validation_{metric}"] == pytest.approx(value)


def test_runs_record_them_and_compare_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = replace(SCENARIOS["digits/dirichlet"], **SMALL)
    runs = coterie.begin(
        scenario, tmp_path / "runs", ["fedavg", "independent"], rounds=2, workers=2,
        validation_share=0.25, seeds=2,
    ).finish()  # fmt: skip
    line = json.loads((runs[0].folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert {"accuracy", "validation_accuracy", "validation_loss"} <= set(line["clients"]["0"])
    assert len(runs[0].record.description()["world"]["validation_rows"]) == 4
    by_validation = coterie.compare(runs, metric="validation_loss")
    assert [entry["better"] for entry in by_validation] == ["smaller"] * 2
    assert (
        by_validation[0]["score"]["values"] == coterie.compare(runs)[0]["validation_loss"]["values"]
    )
    assert "validation_accuracy" in by_validation.to_table(columns=["validation_accuracy"])
    assert main(["compare", str(tmp_path / "runs"), "--metric", "validation_accuracy"]) == 0
    shown = capsys.readouterr().out
    assert "validation_accuracy" in shown
    # A verdict is by test scores.
    assert "Use " not in shown
    assert main(["compare", str(tmp_path / "runs"), "--metric", "validation_acuracy"]) == 2
    assert "did you mean validation_accuracy?" in capsys.readouterr().err


def test_r2_of_all_clients_together_is_a_validation_score_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sites = {}
    for site in "ab":
        inputs = rng.normal(size=(40, 3)).astype(np.float32)
        sites[site] = {"x": inputs, "y": inputs.sum(1) + rng.normal(size=40).astype(np.float32)}
    world = from_lists(sites, model=lambda: torch.nn.Linear(3, 1), objective=coterie.REGRESSION)
    runs = coterie.begin(world, tmp_path / "r", "fedavg", rounds=3, workers=1, validation_share=0.5)
    runs.finish()
    line = runs[0].record.lines()[-1]
    assert "validation_RootMeanSquaredError" in line["clients"]["0"] or "sums" in line
    for metric in coterie.compare(runs)[0]["others"]:
        assert coterie.compare(runs, metric=metric)[0]["score"]["mean"] is not None


def test_a_run_without_them_is_as_before_and_a_wrong_share_is_a_sentence(tmp_path: Path) -> None:
    world = small_world(0)
    *_, last = coterie.run("fedavg", world, rounds=1, workers=1)
    assert last.scores is not None
    assert set(last.scores[0]) == {"loss", "accuracy"}
    assert all(data.scoring is None for data in world.clients.values())
    with pytest.raises(SettingError, match=r"validation_share must be > 0 and <= 0\.5, got 0\.7"):
        coterie.run("fedavg", world, rounds=1, validation_share=0.7)
    with pytest.raises(UserError, match=r"validation_share must be > 0 and <= 0\.5"):
        coterie.begin("digits/iid", tmp_path / "x", "fedavg", validation_share=0.6)
    assert not list(tmp_path.iterdir())
