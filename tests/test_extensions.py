"""Extensions of other packages: methods, commands and trackers by entry points; a broken one costs a warning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie.cli import main
from coterie.cli.arguments import EXTENSIONS
from coterie.contrib.tracking import TRACKERS
from coterie.extensions import BrokenExtension, ExtensionWarning, entry_points
from coterie.methods import METHODS, method_class
from coterie.records.record import Record
from coterie.settings import UserError
from coterie.testing import check_method

MODULE = '''
import argparse
from dataclasses import dataclass
from coterie.cli.arguments import Command
from coterie.contrib.tracking import Tracker
from coterie.methods import FedAvg
from coterie.settings import setting

@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    """A method of another package."""
    name = "mine"
    zeal: int = setting(3, "how much", ge=1)

class Diary(Tracker):
    name = "diary"
    def write(self, round, numbers, text, pictures):
        with open(self.folder / "diary.txt", "a") as file:
            print(round, file=file)
    def close(self):
        pass

def run(arguments):
    print("hello", arguments.whom)
    return 0

COMMAND = Command("say hello", "Say hello.", lambda p: p.add_argument("whom", metavar="WHOM"), run)
'''

ENTRY_POINTS = {
    "coterie.methods": {"mine": "their_module:Mine"},
    "coterie.commands": {"hello": "their_module:COMMAND"},
    "coterie.trackers": {"diary": "their_module:Diary"},
}


def install(
    site: Path, package: str, points: dict[str, dict[str, str]], module: str = MODULE
) -> None:
    """Make a folder of packages in which one is installed, as pip leaves it."""
    metadata = site / f"{package}-1.2.dist-info"
    metadata.mkdir(parents=True)
    text = "[console_scripts]\ntheirs = their_module:main\n"
    for group, lines in points.items():
        text += f"\n[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in lines.items())
    (metadata / "entry_points.txt").write_text(text)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (site / "their_module.py").write_text(module)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages on ``sys.path``, in which none is installed yet."""
    folder = tmp_path / "site"
    folder.mkdir()
    for registry in (METHODS, EXTENSIONS, TRACKERS):
        monkeypatch.setattr(registry, "_extensions", {})
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delitem(sys.modules, "their_module", raising=False)
    yield folder
    sys.modules.pop("their_module", None)


def test_those_of_coterie_itself_are_found_the_same_way() -> None:
    assert set(entry_points("coterie.methods")) >= {
        "cfl-gp",
        "clove",
        "feddrift",
        "pfedgraph",
    }
    assert set(entry_points("coterie.trackers")) >= {"mlflow", "tensorboard", "wandb"}
    for group in ("methods", "commands", "trackers", "hooks"):
        for point in entry_points(f"coterie.{group}").values():
            assert point.load() is not None
            assert point.target.startswith("coterie.contrib.")


def test_a_method_of_another_package_is_listed_set_run_and_resumed(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "theirs", ENTRY_POINTS)
    assert "mine" in coterie.METHODS
    assert next(iter(coterie.METHODS)) == "auto"  # Coterie's own come first
    assert main(["methods"]) == 0
    assert "mine" in capsys.readouterr().out
    run = ["--scenario", "synthetic/groups", "--method", "mine", "--set", "zeal=7", "--workers=1"]
    assert main(["run", *run, "--rounds", "1", "--out", str(tmp_path / "run")]) == 0
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert method_class("mine")(zeal=7).zeal == 7
    with pytest.raises(UserError, match="zeal"):
        method_class("mine")(zeel=7)


@pytest.mark.slow
def test_the_package_of_the_examples_registers_its_method(site: Path, tmp_path: Path) -> None:
    tree = tmp_path / "method_package"
    shutil.copytree(Path(__file__).parents[1] / "examples" / "method_package", tree)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tree)], check=True)
    assert method_class("damped")(damping=0.5).damping == 0.5
    check_method(method_class("damped")())
    run = ["--scenario", "synthetic/groups", "--method", "damped", "--rounds", "1", "--workers=1"]
    assert main(["run", *run, "--out", str(tmp_path / "run")]) == 0
    assert "class" not in Record(tmp_path / "run").description()["methods"][0]
    assert main(["resume", str(tmp_path / "run")]) == 0
    sys.modules.pop("damped_fedavg")


def test_a_command_of_another_package(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "theirs", ENTRY_POINTS)
    assert main(["hello", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert main([]) == 0
    assert "say hello" in capsys.readouterr().out
    assert main(["helo", "you"]) == 2
    assert "did you mean hello?" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tracker_of_another_package_follows_a_run(site: Path, tmp_path: Path) -> None:
    install(site, "theirs", ENTRY_POINTS)
    out = tmp_path / "run"
    run = ["run", "--scenario", "synthetic/groups", "--method", "fedavg", "--workers", "1"]
    assert main([*run, "--rounds", "2", "--out", str(out), "--track", "diary"]) == 0
    assert (out / "diary.txt").read_text().split() == ["1", "2"]


BROKEN = {
    "an import that is missing": ("import no_such_module", "no_such_module"),
    "an exit": ("raise SystemExit(1)", "SystemExit"),
    "no such attribute": ("", "has no attribute"),
    "another kind": ("Mine = COMMAND = 17", "is not a"),
    "another name": ("class Mine: name = 'yours'\nCOMMAND = None", "is not a"),
}


@pytest.mark.filterwarnings("always::coterie.extensions.ExtensionWarning")
@pytest.mark.parametrize(("module", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_package_costs_a_warning_that_names_it(
    site: Path, module: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "theirs", ENTRY_POINTS, module)
    for arguments in ([], ["methods"]):
        assert main(arguments) == 0
        out, errors = capsys.readouterr()
        assert "fedavg" in out or "compare" in out
        (line,) = errors.splitlines()
        assert line.startswith("coterie: ")
        assert "theirs 1.2" in line
        assert reason in line
    assert main(["methods"]) == 0
    assert capsys.readouterr().err == ""  # once in a process
    assert "mine" not in coterie.METHODS
    for arguments in (["hello", "you"], ["run", "--method", "mine"]):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "theirs 1.2" in line
    with pytest.raises(BrokenExtension, match="theirs"):
        method_class("mine")


def test_no_package_replaces_a_method_or_one_of_another_package(site: Path) -> None:
    fedavg = coterie.METHODS["fedavg"]
    install(site, "a_theirs", {"coterie.methods": {"fedavg": "their_module:Mine"}})
    install(site, "b_theirs", {"coterie.methods": {"mine": "their_module:Mine"}})
    install(site, "c_theirs", {"coterie.methods": {"mine": "os:getcwd"}})
    with pytest.warns(ExtensionWarning, match="c_theirs 1.2 is ignored: b_theirs 1.2"):
        assert coterie.METHODS["mine"].__module__ == "their_module"
    assert coterie.METHODS["fedavg"] is fedavg


def test_nothing_is_read_from_the_current_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a run directory from another person."""
    install(site, "theirs", ENTRY_POINTS)
    monkeypatch.chdir(site)
    assert "mine" not in coterie.METHODS


@pytest.mark.slow
def test_no_extension_is_imported_for_a_command_of_coterie(site: Path) -> None:
    install(site, "theirs", ENTRY_POINTS, "raise SystemExit('imported')")
    for arguments in (["run", "--help"], ["scenarios"]):
        command = [sys.executable, "-W", "error", "-m", "coterie", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=site.parent)
        assert (done.returncode, done.stderr) == (0, "")
