"""The problems of a user's own in ``examples/problems``: few lines, the groups found, everything recorded and exported."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import coterie
from benchmarks.problems import PROBLEMS, TRUTH, lines_of
from coterie.cli import main
from coterie.randomness import seeded

NAMES = sorted(path.stem for path in PROBLEMS.glob("*.py"))
ROUNDS = {"regression": 8, "multi_label": 8, "rare_labels": 8}
"""Problems for the quick tests, and the rounds in which the groups are found."""
SLOW = {"language_model": 10, "forecasting": 20, "masks": 10, "lora": 12, "sequences": 12}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROBLEMS))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def found(name: str, rounds: int) -> coterie.Round:
    pytest.importorskip("transformers" if name in ("masks", "sequences", "lora") else "pandas")
    pytest.importorskip("peft" if name == "lora" else "numpy")
    world = importlib.import_module(name).world(0)
    *_, last = coterie.run("split-half", world, rounds=rounds, workers=1, eval_every=rounds)
    return last


def test_every_problem_is_tested() -> None:
    assert {**ROUNDS, **SLOW}.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_takes_at_most_25_lines_of_a_users_code(name: str) -> None:
    assert lines_of((PROBLEMS / f"{name}.py").read_text()) <= 25


def test_lines_are_counted_without_made_up_data() -> None:
    data = 'def data():\n    """Made up: y."""\n    return 1\n\n\n'
    source = f'"""Text."""\n\n# words\nx = 1\n\n\n{data}def f():\n    """Text."""\n    return (\n        2\n    )\n'
    assert lines_of(source) == 3


@pytest.mark.parametrize("name", ROUNDS)
def test_the_groups_are_found(name: str) -> None:
    assert found(name, ROUNDS[name]).assignment.groups == TRUTH


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
def test_the_groups_are_found_by_transformers_and_recurrent_nets(name: str) -> None:
    assert found(name, SLOW[name]).assignment.groups == TRUTH


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
@seeded(0)
def test_adapters_send_at_most_two_percent_of_the_model() -> None:
    pytest.importorskip("peft")
    world = importlib.import_module("lora").world(0)
    (done,) = coterie.run("fedavg", world, rounds=1, workers=1, eval_every=5)
    whole = 4 * sum(parameter.numel() for parameter in world.model().parameters())
    assert done.bytes_up / len(world.clients) < 0.02 * whole
    net = done.model("shop 0")
    assert sum(parameter.numel() for parameter in net.parameters()) * 4 == whole


@pytest.mark.parametrize("name", ["regression", "rare_labels"])
def test_commands_work_with_a_problem(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    methods = [
        word for method in ("independent", "fedavg", "split-half") for word in ("--method", method)
    ]
    run = [
        "run",
        "--scenario",
        f"{name}:world",
        *methods,
        "--rounds",
        "8",
        "--out",
        "run",
        "--workers",
        "1",
    ]
    assert main(run) == 0
    out = capsys.readouterr().out
    main_metric = {"regression": "MeanAbsoluteError", "rare_labels": "AUROC"}[name]
    assert main_metric in out
    assert "accuracy" not in out or name == "rare_labels"
    assert main(["report", "run", "-o", "page.html"]) == main(["compare", "run"]) == 0
    assert main_metric in capsys.readouterr().out
    client = {"regression": "Bergen", "rare_labels": "bank 1"}[name]
    assert main(["explain", "run/split-half-seed0", "--client", client]) == 0
    assert client in capsys.readouterr().out
    assert main(["export", "run/split-half-seed0", "--to", "models", "--trust-code"]) == 0
    assert client in json.loads(Path("models/models.json").read_text())["clients"]
    assert main(["plot", "run/split-half-seed0", "score", "-o", "score.svg"]) == 0
    assert main(["resume", "run", "--trust-code"]) == 0
