"""A small run, in which groups are parted twice, to be tracked; and the rest of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tracked import ROUNDS

import coterie
from coterie.runs.experiment import make


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of CFL on four groups, in its last round."""
    folder = tmp_path_factory.mktemp("tracked") / "cfl"
    spec = {
        "scenario": "synthetic/groups",
        "methods": ["cfl"],
        "rounds": ROUNDS,
        "workers": 1,
        "eval_every": 2,
    }
    for one in coterie.begin(make(spec), folder):
        for _ in one.rounds():
            pass
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, which may be changed."""
    return Path(shutil.copytree(whole, tmp_path / "cfl"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker's settings from outside, and none is told of tests."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
        "WANDB_MODE",
        "WANDB_DIR",
        "WANDB_PROJECT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
