"""A method of the user's own by its place, ``module:Class``: in a folder of its own, wherever a method's name can stand."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli import main
from coterie.engines.flower.strategy import MethodStrategy
from coterie.methods import FedAvg, Tuned, method_class
from coterie.records.record import Record
from coterie.runs.experiment import make, normal, read
from coterie.runs.set_option import assign
from coterie.settings import UserError
from small import mlp

CODE = '''
from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.methods import FedAvg
from coterie.settings import check, setting


@dataclass(frozen=True, kw_only=True)
class Damped(FedAvg):
    """FedAvg that applies a part of the mean update."""

    name: ClassVar[str] = "damped"

    eta: float = setting(0.7, "share of the mean update that is applied", gt=0, le=1)

    def __post_init__(self) -> None:
        check(self)

    def step(self, state, replies):
        moved = super().step(state, replies)
        return replace(moved, model=state.model + self.eta * (moved.model - state.model))


class Nothing:
    pass


class Half:
    name = "half"
    init = plan = lambda self: None


class NoFields:
    name = "no-fields"
    init = plan = step = assignment = explain = lambda self: None


class Unnamed(NoFields):
    pass


Unnamed = dataclass(frozen=True)(Unnamed)
Unnamed.name = None


class Clash(FedAvg):
    pass


class Twin(FedAvg):
    name = "damped"


DAMPED = Damped()
'''

COMMON = ("--scenario", "synthetic/groups", "--rounds", "3", "--workers", "1")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with the method, alone in the current folder."""
    name = f"method_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def run(*words: str) -> None:
    assert main(list(words)) == 0, words


def lines(folder: str) -> list[dict[str, Any]]:
    """The records without what differs from run to run."""
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "checksum")}
        for line in Record(Path(folder)).lines()
    ]


def test_commands_take_it_as_they_take_a_name(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{module}:Damped"
    methods = ("--method", place, "--method", "fedavg")
    run("run", *COMMON, *methods, "--set", f"{module}.eta=.3", "--out", "both")
    run("run", *COMMON, *methods, "--estimate")
    capsys.readouterr()
    run("compare", "both", "--table", "markdown")
    assert "damped" in capsys.readouterr().out
    for words in (
        ["report", "both"],
        ["plot", "both", "score", "-o", "score.svg"],
        ["check", "both"],
        ["explain", "both/damped-seed0", "--client", "3"],
        ["export", "both/damped-seed0", "--to", "models", "--trust-code"],
        ["resume", "both", "--trust-code"],
        ["methods", place],
    ):
        run(*words)
    assert "share of the mean update that is applied" in capsys.readouterr().out
    assert json.loads(Path("models/models.json").read_text())["clients"]
    table = Record(Path("both/damped-seed0")).description()["methods"][0]
    assert table["name"] == "damped"
    assert table["class"] == place
    assert table["eta"] == 0.3


def test_a_file_names_it_and_its_record_can_be_run_again(module: str) -> None:
    Path("experiment.toml").write_text(
        f"""
        scenario = "synthetic/groups"
        rounds = 3
        workers = 1

        [[methods]]
        name = "{module}:Damped"
        eta = 0.25
        """
    )
    run("run", "experiment.toml", "--out", "first")
    shutil.copy("first/run.toml", "copied.toml")
    run("run", "copied.toml", "--trust-code", "--out", "second")
    # The user names the class himself, which is consent.
    run("run", "copied.toml", "--method", f"{module}:Damped", "--out", "third")
    assert lines("first") == lines("second") == lines("third")
    run("run", "copied.toml", "--trust-code", "--set", "damped.eta=0.5", "--out", "fourth")
    assert lines("first") != lines("fourth")


def test_runs_from_python_continue_by_the_place_that_they_record(module: str) -> None:
    damped = vars(__import__(module))["Damped"]
    common: dict[str, Any] = {"rounds": 3, "workers": 1}
    coterie.begin("synthetic/groups", "whole", damped(eta=0.5), **common).finish()
    for outer in (None, Tuned):
        method = vars(importlib.import_module(module))["Damped"](eta=0.5)
        if outer is not None:
            method = outer(method=method)
        folder = f"part-{method.name}"
        (part,) = coterie.begin("synthetic/groups", folder, method, **common)
        list(islice(part.rounds(), 1))
        sys.modules.pop(module)  # as in another process
        run("resume", folder, "--trust-code")
        assert len(lines(folder)) == 3
    assert lines("part-damped") == lines("whole")


def test_a_record_of_a_method_around_a_class_that_cannot_be_imported_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Local(FedAvg):
        """A method of a script."""

        name = "local-fedavg"

    (done,) = coterie.begin(
        "synthetic/groups", "runs", Tuned(method=Local()), rounds=1, workers=1
    ).finish()
    run("compare", "runs")
    assert not coterie.check("runs").damaged
    with pytest.raises(UserError, match="there is no method 'local-fedavg'"):
        coterie.reopen("runs")
    assert coterie.reopen(done)[0].finished()


def test_the_same_call_again_finds_its_runs_also_after_the_class_has_moved(module: str) -> None:
    damped = vars(__import__(module))["Damped"]
    common: dict[str, Any] = {"rounds": 2, "workers": 1}
    coterie.begin("synthetic/groups", "runs", ["fedavg", damped(eta=0.5)], **common).finish()
    (Path.cwd() / f"{module}_moved.py").write_text(CODE)
    moved = vars(__import__(f"{module}_moved"))["Damped"]
    methods = ["fedavg", moved(eta=0.5)]
    assert coterie.begin("synthetic/groups", "runs", methods, **common)[1].finished()
    methods.append("independent")
    assert len(coterie.begin("synthetic/groups", "runs", methods, **common)) == 3
    with pytest.raises(UserError, match=r"damped\.eta = 0\.5, and not 0.25"):
        coterie.begin(
            "synthetic/groups", "runs", ["fedavg", moved(eta=0.25), *methods[2:]], **common
        )


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "as a setting"])
def test_its_code_needs_consent_and_reading_never_imports_it(
    module: str, inside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"{module}:Damped"
    method = ["tuned", "--set", f"tuned.method={place}"] if inside else [place]
    run("run", *COMMON, "--method", *method, "--out", "run")
    sys.modules.pop(module)
    for words in (
        ["compare", "run"],
        ["report", "run"],
        ["explain", "run"],
        ["plot", "run", "groups", "-o", "groups.svg"],
        ["check", "run"],
    ):
        run(*words)
    for words in (
        ["resume", "run"],
        ["export", "run", "--to", "models"],
        ["run", "run/run.toml", "--out", "again"],
        ["run", "run/run.toml", "--set", "fraction=0.5", "--out", "again"],
    ):
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"names the method '{place}', which is code" in said
        assert "--trust-code" in said
        assert said.count("\n") == 1
    assert module not in sys.modules
    assert not Path("again").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing", "is not a method: it lacks init, plan, step, assignment, explain"),
        ("Half", "is not a method: it lacks step, assignment, explain"),
        ("NoFields", "must be a dataclass"),
        ("Unnamed", "must have a name"),
        ("Clash", "has the name 'fedavg', which another method has already"),
        ("DAMPED", "must be a class"),
        ("Dampd", "has no attribute 'Dampd'; did you mean Damped?"),
        ("Damped --set damped.eta=2", "Damped.eta must be > 0 and <= 1, got 2"),
        ("Damped --set etaa=.2", "did you mean eta?"),
    ],
)
def test_what_is_no_method_is_one_sentence_and_nothing_is_written(
    module: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *COMMON, "--method", *f"{module}:{name}".split(), "--out", "runs"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()


def test_a_module_that_there_is_not_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "no_such_module:Method"]) == 2
    assert "cannot be imported: No module named 'no_such_module'" in capsys.readouterr().err


def test_a_name_stands_for_one_class(module: str) -> None:
    spec = normal({"methods": [f"{module}:Damped", f"{module}:Twin"]})
    with pytest.raises(UserError, match="two classes of the name 'damped'"):
        make(spec)
    wrong = normal({"methods": [{"name": "dampened", "class": f"{module}:Damped"}]})
    with pytest.raises(UserError, match="has the name 'damped', and not 'dampened'"):
        make(wrong)
    # One of Coterie's methods by its place is that method.
    assert method_class("coterie.methods:FedAvg") is FedAvg


@pytest.mark.parametrize("table", ["", "method.", "damped.", "{module}."])
def test_a_setting_has_the_names_that_settings_of_other_methods_have(
    module: str, table: str
) -> None:
    spec = normal({"methods": [f"{module}:Damped", "fedavg"]})
    changed = make(assign(spec, f"{table.format(module=module)}eta=.25"))
    assert changed.methods[0].eta == 0.25


def test_over_flower_a_run_config_names_it(module: str) -> None:
    strategy = MethodStrategy.from_config({"method": f"{module}:Damped", "damped.eta": 0.5}, mlp)
    assert strategy.settings.method == method_class(f"{module}:Damped")(eta=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--engine", "flower"), ("--workers", "2")])
def test_it_runs_the_same_on_every_engine(module: str, options: tuple[str, ...]) -> None:
    """Clients never need the class: it runs where the server is."""
    run("run", *COMMON, "--method", f"{module}:Damped", "--out", "here")
    run("run", *COMMON, "--method", f"{module}:Damped", *options, "--out", "there")
    for here, there in zip(lines("here"), lines("there"), strict=True):
        assert here["groups"] == there["groups"]
        assert here["tested"] == there["tested"]
    assert read("there/run.toml", trust_code=True)["methods"][0]["class"] == f"{module}:Damped"
