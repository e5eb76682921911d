"""Runs with DP-SGD: what is refused, what is recorded and shown, and that equal seeds give equal bits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from coterie import begin
from coterie.boundary import Boundary
from coterie.cli import main
from coterie.core import Stage, Task, Training
from coterie.engines.rounds import rounds, wire_of
from coterie.methods import METHODS
from coterie.records.record import Record
from coterie.report.page import document
from coterie.runs.experiment import make
from coterie.settings import SettingError, UserError

pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")

SMALL: dict[str, Any] = {
    "scenario": {"name": "synthetic/groups", "clients": 6},
    "rounds": 2,
    "workers": 1,
    "training": {
        "optimizer": "dp-sgd",
        "optimizer_options": {"noise": 1.0},
        "epochs": 1,
        "batch": 40,
    },
}
ROWS = 267
"""Training rows of the first client."""

SHUFFLED = {**SMALL["training"], "optimizer_options": {"sampling": "shuffled"}}


def refusal(method: str | dict[str, Any], folder: Path, **changes: Any) -> str:
    table = {"name": method} if isinstance(method, str) else method
    with pytest.raises(SettingError) as caught:
        begin(make({**SMALL, "methods": [table], **changes}), folder)
    # Nothing is half-written.
    assert not folder.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("auto", "for the losses of single held-out examples"),
        ("ifca", "for the loss of a model"),
        ("fedfa", "for the loss of a model"),
        ("ditto", "to train a personal model"),
        ("apfl", "to train a personal model"),
        ("knn-per", "to hold examples out of training"),
        ({"name": "cfl", "similarity": "gradients", "post_split": "parent-mean"}, "for a gradient"),
    ],
)
def test_what_noise_would_not_cover_is_refused(
    method: str | dict[str, Any], asked: str, tmp_path: Path
) -> None:
    message = refusal(method, tmp_path / "run")
    assert asked in message
    assert "its noise does not cover" in message


def test_other_refusals(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "needs sampling shuffled" in refusal("split-half", folder)
    noise = {"clip": 1.0, "noise": 1.0}
    assert "one protects whole clients" in refusal("fedavg", folder, boundary=noise)
    drifting = {"name": "synthetic/groups", "clients": 6, "drift": "sudden"}
    assert "needs data that stay the same" in refusal("fedavg", folder, scenario=drifting)


def test_batchnorm_is_refused(tmp_path: Path) -> None:
    world = make({**SMALL, "methods": [{"name": "fedavg"}]}).world(0)
    features = world.clients[0].train.inputs.shape[1]
    normed = replace(
        world, model=lambda: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, 10))
    )
    with pytest.raises(UserError, match="GroupNorm"):
        begin(normed, tmp_path / "run", ["fedavg"], rounds=1, training=SMALL["training"])


@pytest.mark.parametrize(
    "method", ["fedavg", "flhc", "cfl", "hcct", "fedper", "fedrep", "independent", "fedprox"]
)
def test_methods_that_see_only_updates_run(method: str, tmp_path: Path) -> None:
    (one,) = begin(make({**SMALL, "methods": [{"name": method}]}), tmp_path / "run")
    for done in one.rounds():
        assert done.released


def test_split_half_runs_with_shuffled_batches(tmp_path: Path) -> None:
    spec = {**SMALL, "methods": [{"name": "split-half", "steps": 5}], "training": SHUFFLED}
    (one,) = begin(make(spec), tmp_path / "run")
    for done in one.rounds():
        assert done.released


def test_passes_and_steps_of_a_task_are_counted() -> None:
    def amounts(sampling: str, *tasks: Task) -> list[int]:
        options = {"sampling": sampling}
        training = {**SMALL["training"], "epochs": 2, "batch": 10, "optimizer_options": options}
        spec = {**SMALL, "methods": [{"name": "fedavg"}], "training": training}
        world = make(spec).world(0)
        assert len(world.clients[0].train) == ROWS
        wire = wire_of(world, 0, Boundary())
        return [wire.releases(task, client=0) for task in tasks]

    steps = Training(batch=10, steps=30)
    whole = Task(offered=(0,))
    in_steps = Task(offered=(0,), training=steps)
    halves = Task(offered=(0,), halves=True, training=steps)
    in_stages = Task(offered=(0,), stages=(Stage(layers=("fc",), epochs=3), Stage(layers=("fc",))))
    measuring = Task(offered=(0,), epochs=0)
    per_pass = math.ceil(ROWS / 10)
    per_half = math.ceil(ROWS // 2 / 10)
    assert amounts("poisson", whole, in_steps, in_stages, measuring) == [
        2 * per_pass,
        30,
        5 * per_pass,
        0,
    ]
    assert amounts("shuffled", whole, in_steps, halves, in_stages) == [
        2,
        math.ceil(30 / per_pass),
        math.ceil(30 / per_half),
        5,
    ]


def test_equal_seeds_give_equal_bits_with_any_number_of_workers_and_after_a_resume(
    tmp_path: Path,
) -> None:
    lines = []
    for name, workers, stop in (("one", 1, None), ("two", 2, None), ("halved", 1, 1)):
        spec = {**SMALL, "methods": [{"name": "fedavg"}], "workers": workers}
        (one,) = begin(make(spec), tmp_path / name)
        for done in one.rounds():
            if done.number == stop:
                break
        list(one.rounds())
        lines.append(
            [
                {key: value for key, value in line.items() if key not in ("seconds", "checksum")}
                for line in Record(tmp_path / name).lines()
            ]
        )
    assert lines[0] == lines[1] == lines[2]


def test_another_seed_draws_other_noise() -> None:
    world = make({**SMALL, "methods": [{"name": "fedavg"}]}).world(0)
    method = METHODS["fedavg"]()
    models = []
    for seed in (0, 1):
        (done,) = rounds(method, world, rounds=1, seed=seed, workers=1)
        models.append(done.assignment.models)
    assert not models[0].equal(models[1])


def test_epsilon_is_printed_explained_and_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "private.toml"
    file.write_text(
        'scenario = "synthetic/groups"\nmethods = ["fedavg"]\nrounds = 2\n[training]\noptimizer = "dp-sgd"\n'
        "optimizer_options = { noise = 2.0, clip = 0.5 }\n"
    )
    folder = tmp_path / "run"
    assert main(["run", str(file), "--out", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "each training row is protected with ε =" in printed
    assert "least" in printed
    assert "median" in printed
    assert main(["explain", str(folder), "--client", "3"]) == 0
    assert "Of this client, ε is" in capsys.readouterr().out
    privacy = document(folder)["runs"][0]["privacy"]
    assert privacy["unit"] == "row"
    assert privacy["label"].startswith("ε of a row")
