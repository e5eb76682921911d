"""The guide that compares a method with the baselines, walked as its reader walks it: all of its files and commands."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

from coterie.cli import main
from coterie.contrib.bench import suites
from coterie.contrib.bench.rows import read_rows
from coterie.records.text_files import to_toml

PAGE = (ROOT / "docs/research/compare-your-method.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DIGITS = {"name": "digits/dirichlet", "clients": 5, "samples": 30}
CIFAR = {"clients": 4, "samples": 20}


def files_of_page() -> dict[str, str]:
    """Name -> content of the files that the reader saves: those whose first line names them."""
    files = {}
    for kind, content in FENCE.findall(PAGE):
        named = re.match(r"# (\w+\.(?:py|toml))\n", content)
        if kind in ("python", "toml") and named:
            files[named[1]] = content
    return files


def commands_of_page() -> list[list[str]]:
    """The arguments of each command on the page, in order."""
    found = []
    for kind, content in FENCE.findall(PAGE):
        for line in content.splitlines():
            if kind == "text" and line.startswith("coterie "):
                found.append(shlex.split(line)[1:])
    return found


def small(experiment: dict[str, Any], scenario: dict[str, Any]) -> dict[str, Any]:
    """The experiment of the page with fewer rounds, and with a few settings of its scenario changed."""
    base = {} if "name" in scenario else experiment["scenario"]
    return {**experiment, "rounds": 2, "eval_every": 1, "scenario": {**base, **scenario}}


def walk(folder: Path, scenario: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the page's files in an empty folder, and give its commands there, with few rounds, trials and worlds."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "mymethod", raising=False)
    for name, content in files_of_page().items():
        Path(name).write_text(content)
    experiment = tomllib.loads(Path("cifar.toml").read_text())
    Path("cifar.toml").write_text(to_toml(small(experiment, scenario)))
    # Three worlds in place of fifteen.
    worlds = tuple(world for world in suites.QUICK if world.family == "silos")
    monkeypatch.setattr(suites, "SUITES", {"quick": worlds})
    for arguments in commands_of_page():
        given = list(arguments)
        if given[0] == "tune":
            given[given.index("--trials") + 1] = "2"
        if given[0] in ("tune", "run", "bench"):
            given += ["--workers", "1"]
        assert main(given) == 0, shlex.join(arguments)


def check_results(folder: Path) -> None:
    """What the commands left behind."""
    assert sorted(path.name for path in (folder / "runs/tuned").iterdir()) == [
        "damped",
        "ditto",
        "fedavg",
        "fedper",
    ]
    for method in ("damped", "fedavg"):
        tuned = tomllib.loads((folder / f"runs/tuning/tuned-{method}.toml").read_text())
        # The seeds of the test were not those of the tuning.
        assert tuned["seeds"] == [1, 2, 3, 4, 5]
        assert len(list((folder / "runs/tuned" / method).glob("*/rounds.jsonl"))) == 5
    for figure in ("score", "clients", "loss", "partition"):
        assert (folder / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    rows = read_rows(folder / "runs/bench/damped.jsonl")
    assert {row.method for row in rows} == {"damped"}


def test_the_page_has_the_whole_job() -> None:
    assert set(files_of_page()) == {"mymethod.py", "cifar.toml"}
    commands = [arguments[0] for arguments in commands_of_page()]
    assert set(commands) == {"tune", "run", "compare", "plot", "bench"}
    experiment = tomllib.loads(files_of_page()["cifar.toml"])
    assert experiment["scenario"]["name"] == "cifar10/dirichlet"
    assert commands.count("run") == len(experiment["methods"])


@pytest.mark.slow
def test_its_commands_do_it_on_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    walk(tmp_path, DIGITS, monkeypatch)
    printed = capsys.readouterr().out
    assert "\\toprule" in printed
    assert "Compared with damped in round 2" in printed
    check_results(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif("COTERIE_DATA" not in os.environ, reason="it needs CIFAR-10 in COTERIE_DATA")
def test_its_commands_do_it_on_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk(tmp_path, CIFAR, monkeypatch)
    check_results(tmp_path)
