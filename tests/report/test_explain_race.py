"""Explanations of a race: what served the clients, what was trained, and that arms not in use changed nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.records.record import Record
from coterie.report.explain import explain, words
from coterie.report.trials import last_decision
from coterie.runs.experiment import make


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of auto that takes groups into use and then drops one model."""
    folder = tmp_path_factory.mktemp("race")
    method = {"name": "auto", "patience": 4}
    spec = {
        "scenario": "digits/label-permutation",
        "methods": [method],
        "rounds": 12,
        "workers": 1,
        "eval_every": 12,
    }
    (one,) = coterie.begin(make(spec), folder / "runs").finish()
    return Path(one.folder)


@pytest.mark.slow
def test_only_the_lead_changes_the_groups(run: Path) -> None:
    found = explain(run)
    assert [(one["kind"], one["round"], one["parts"]) for one in found["decisions"]] == [
        ("lead", 4, found["groups"])
    ]
    assert found["unexplained"] == []
    lines = Record(run).lines()
    served = {line["round"]: len(line["groups"]) for line in lines}
    assert (served[3], served[4]) == (1, 4)
    early = [note for line in lines[:3] for note in line["notes"]]
    assert (
        {"arm"} <= {note["kind"] for note in early} <= {"arm", "tune", "keep", "hold", "standing"}
    )
    assert not any(note["parts"] for note in early)
    assert "not in use" in next(note["text"] for note in early if note["kind"] == "arm")


def test_the_lead_has_its_numbers_and_how_its_groups_were_found(run: Path) -> None:
    (lead,) = explain(run)["decisions"]
    (criterion,) = lead["criteria"]
    assert (criterion["sign"], criterion["bound"], criterion["held"]) == (">", 0.0, True)
    # It is the only round in which the two were compared.
    assert criterion["value"] == pytest.approx(
        lead["numbers"]["loss of tuned-fedavg less tuned-split-half"]
        / lead["numbers"]["standard error of tuned-fedavg less tuned-split-half"]
    )
    (ground,) = lead["grounds"]
    assert ground.startswith(
        "Round 3, groups (split-half), not in use: 20 clients differ beyond chance: p of two probes"
    )
    assert lead["would_change"] == []


def test_what_was_chosen_when_on_which_numbers_and_at_which_cost(run: Path) -> None:
    local, drop, tune, neighbours = explain(run)["choices"]
    assert local["text"].startswith("clients stop training local models (independent)")
    assert (local["round"], drop["kind"], drop["round"]) == (4, "drop", 9)
    assert drop["text"].startswith(
        "clients stop training one model (fedavg): held-out loss with it is higher by"
    )
    assert drop["numbers"]["models trained for it"] == 120.0  # alone in rounds 4 to 9
    assert drop["numbers"]["share of the models trained"] == pytest.approx(120 / (120 + 180 + 80))
    assert "at most 32% of the models that clients have trained were for it" in drop["text"]
    assert tune["text"].startswith("groups (split-half): personal models are better for")
    assert neighbours["text"].startswith("groups (split-half): nearest training examples help")


def test_a_client_is_told_which_model_serves_it(run: Path) -> None:
    found: dict[str, Any] = explain(run, client=3)
    (step,) = found["steps"]
    assert (step["kind"], step["side"] if "side" in step else step["client"]["side"]) == (
        "lead",
        found["group"],
    )
    does = (
        "It uses its personal model"
        if found["personal"]["serves"]
        else "It does not use its personal model"
    )
    assert does in words(run, client=3, width=10_000)


def test_the_words_name_methods_that_users_know(run: Path) -> None:
    text = words(run, width=10_000)
    assert "tuned-" not in text
    assert (
        "WHICH MODELS WERE TRAINED AND USED\n  Round 4: clients stop training local models (independent)"
        in text
    )
    assert "no reason was recorded" not in text
    assert last_decision(Record(run).shown()[1]).startswith(
        "Round 4: The clients now use groups (split-half)"
    )
