"""Presets: settings of a method under one name, in Python, in files, with --set, and over a resume."""

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import nn

import coterie
from coterie import METHODS
from coterie.cli import main
from coterie.engines.flower.strategy import MethodStrategy
from coterie.methods import CFL, FLHC, HCCT, HCCTE, FedAvg, Presets, made, preset
from coterie.methods._presets import built, presets_of
from coterie.runs.experiment import make, normal
from coterie.runs.set_option import assign, presets_first
from coterie.settings import UserError, setting

NOTEBOOK = CFL(
    scale="absolute",
    eps1=0.4,
    eps2=1.6,
    gamma_max=0.0,
    persistence=1,
    warmup=20,
)

ALL = [(name, preset_name) for name, cls in METHODS.items() for preset_name in presets_of(cls)]


@pytest.mark.parametrize(("name", "preset_name"), ALL, ids=":".join)
def test_every_preset_makes_its_method(name: str, preset_name: str) -> None:
    method = preset(name, preset_name)
    assert type(method) is METHODS[name]
    for setting_name, value in presets_of(METHODS[name])[preset_name].items():
        assert getattr(method, setting_name) == value


def test_methods_of_papers_have_the_preset_of_the_paper() -> None:
    with_a_paper = {name for name, preset_name in ALL if preset_name == "paper"}
    assert {"cfl", "flhc", "hcct", "hcct-e", "hcct-p", "acfl", "maxfl", "flsc"} <= with_a_paper


def test_in_python() -> None:
    assert preset("cfl") == NOTEBOOK
    assert preset("cfl", eps2=1.2).eps2 == 1.2
    assert made({"name": "cfl", "preset": "paper"}) == NOTEBOOK
    assert preset("hcct-e", "paper-code") == HCCTE(
        scale="absolute",
        tradeoff=1.0,
        memory=0.0,
        layer="paper-code",
        newcomers="partition",
    )


def methods_of(document: dict[str, Any], *texts: str) -> tuple[Any, ...]:
    """The methods of an experiment, after values of --set."""
    spec = normal({"scenario": "synthetic/groups", **document})
    for text in presets_first(texts):
        spec = assign(spec, text)
    return make(spec).methods


def test_in_a_file() -> None:
    tables = [
        "cfl",
        {"name": "cfl", "preset": "paper"},
        {"name": "cfl", "preset": "paper", "eps1": 0.3},
    ]
    default, of_paper, changed = methods_of({"methods": tables})
    assert default == CFL()
    assert of_paper == NOTEBOOK
    assert (changed.eps1, changed.eps2) == (0.3, 1.6)


def test_set_gives_a_preset_to_each_method_that_has_one() -> None:
    of_paper = methods_of({"methods": ["cfl", "fedavg", "hcct"]}, "preset=paper")
    assert of_paper == (NOTEBOOK, FedAvg(), HCCT(scale="absolute", tradeoff=1.0, memory=0.0))
    assert methods_of({"methods": ["cfl", "hcct"]}, "cfl.preset=paper") == (NOTEBOOK, HCCT())


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_set_besides_wins_in_any_order(order: int) -> None:
    texts = ["preset=paper", "cfl.eps1=0.3"][::order]
    (method,) = methods_of({"methods": ["cfl"]}, *texts)
    assert (method.eps1, method.eps2) == (0.3, 1.6)


def test_a_preset_that_is_set_wins_over_the_settings_of_a_file() -> None:
    (method,) = methods_of(
        {"methods": [{"name": "flhc", "threshold": 4.0, "quorum": 0.7}]}, "preset=paper"
    )
    assert method == FLHC(threshold=3.0, quorum=0.7)


def test_in_a_flower_run_config() -> None:
    config = {"method": "cfl", "cfl.preset": "paper", "cfl.eps1": 0.3}
    method = MethodStrategy.from_config(config, lambda: nn.Linear(2, 2)).settings.method
    assert isinstance(method, CFL)
    assert (method.eps1, method.eps2) == (0.3, 1.6)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"name": "cfl", "preset": "papr"},
            "cfl.preset must be one of paper, got 'papr'; did you mean paper?",
        ),
        ({"name": "cfl", "preset": 1}, "cfl.preset must be one of paper, got 1"),
        ({"name": "fedavg", "preset": "paper"}, "fedavg has no presets, got preset 'paper'"),
    ],
    ids=["slip", "number", "none"],
)
def test_a_wrong_preset_is_one_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        methods_of({"methods": [table]})
    assert str(raised.value) == sentence
    with pytest.raises(UserError, match="preset"):
        made(table)


def test_set_says_which_methods_have_presets() -> None:
    with pytest.raises(
        UserError, match=r"setting 'preset'; it is a setting of fedopt, cfl, flhc, hcct"
    ):
        methods_of({"methods": ["fedavg"]}, "preset=paper")


class Extension:
    """A method of a package, as far as its settings go."""

    name: ClassVar[str] = "extension"
    presets: ClassVar[Presets] = {"fast": {"pace": 2}, "wrong": {"paces": 2}}


def test_presets_of_extensions() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Mine(Extension):
        pace: int = setting(1, "the pace", ge=1)

    @dataclass(frozen=True, kw_only=True)
    class Own(Extension):
        preset: str = setting("slow", "a setting of its own that has this name")

    assert built(Mine, {"preset": "fast"}).pace == 2
    with pytest.raises(UserError, match="the preset 'wrong' of extension has no setting 'paces'"):
        built(Mine, {"preset": "wrong"})
    assert built(Own, {"preset": "fast"}).preset == "fast"
    assert presets_of(Own) == {}


# -- on the command line
# ------------------------------------------------------------------------------------------------------


def test_the_record_has_the_settings_of_the_preset(tmp_path: Path) -> None:
    command = ["run", "--scenario", "synthetic/groups", "--method", "cfl", "--workers", "1"]
    command += ["--rounds", "1", "--set", "training.epochs=1", "--out", str(tmp_path / "run")]
    assert main([*command, "--set", "eps1=0.3", "--set", "preset=paper"]) == 0
    (recorded,) = recorded_methods(tmp_path)
    assert "preset" not in recorded
    assert (recorded["eps1"], recorded["eps2"], recorded["warmup"]) == (0.3, 1.6, 20)


def test_a_resume_needs_no_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "scenario": "synthetic/groups",
        "methods": [{"name": "cfl", "preset": "paper"}],
        "rounds": 2,
        "workers": 1,
    }
    (interrupted,) = coterie.begin(make(normal(document)), tmp_path / "run")
    next(interrupted.rounds())
    # The class of today no longer has the preset.
    monkeypatch.setattr(CFL, "presets", {})
    before = recorded_methods(tmp_path)
    assert main(["resume", str(interrupted.folder), "--workers", "1"]) == 0
    assert recorded_methods(tmp_path) == before
    (rounds_file,) = tmp_path.rglob("rounds.jsonl")
    assert rounds_file.read_text().count('"round":') >= 2


def recorded_methods(folder: Path) -> list[dict[str, Any]]:
    """The methods in the one run.toml below a folder."""
    (run_file,) = folder.rglob("run.toml")
    recorded: list[dict[str, Any]] = tomllib.loads(run_file.read_text())["methods"]
    return recorded


def test_the_list_of_a_methods_settings_has_its_presets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["methods", "flhc"]) == 0
    printed = capsys.readouterr().out
    assert "preset=paper: warmup=10 fraction=0.2 metric=l2 linkage=ward threshold=3.0\n" in printed
    assert "preset=paper-femnist:" in printed
    assert main(["methods", "fedavg"]) == 0
    assert "preset" not in capsys.readouterr().out
