"""``coterie completion`` and ``coterie --version``: what a shell is told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import coterie
from coterie.cli import main
from coterie.cli.arguments import SHELLS, parser
from coterie.methods import METHODS

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_coterie
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
    return tmp_path


def completed(scripts: Path, *words: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    (scripts / "experiment.toml").touch()
    (scripts / "a-run").mkdir(exist_ok=True)
    call = [bash, "-c", COMPLETE, "bash", str(scripts / "bash"), "coterie", *words]
    return subprocess.run(call, capture_output=True, text=True, check=True, cwd=scripts).stdout.split()


def test_bash_completes_commands_and_options(scripts: Path) -> None:
    assert set(completed(scripts, "")) == set(parser()[1])
    assert completed(scripts, "run", "--est") == ["--estimate"]
    assert completed(scripts, "completion", "z") == ["zsh"]


def test_bash_completes_names(scripts: Path) -> None:
    assert set(completed(scripts, "methods", "")) == set(METHODS)
    assert set(completed(scripts, "run", "--method", "hc")) == {"hcct", "hcct-e", "hcct-p"}
    assert "digits/label-swap" in completed(scripts, "run", "--scenario", "digits/")
    assert set(completed(scripts, "study", "cfl/fig5")) == {"cfl/fig5"}
    assert completed(scripts, "plot", "a-run", "sim") == ["similarity"]


def test_bash_completes_files_and_folders(scripts: Path) -> None:
    assert completed(scripts, "run", "exp") == ["experiment.toml"]
    assert completed(scripts, "resume", "a-") == ["a-run"]
    assert completed(scripts, "run", "--out", "exp") == []  # a file is no folder


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell: str, scripts: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([program, "-n", str(scripts / shell)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_shell_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "ksh"]) == 2
    assert "SHELL must be one of bash, zsh, fish, tcsh, got 'ksh'" in capsys.readouterr().err


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"coterie \d+\.\d+\.\d+, Python 3\.\d+\.\d+\S*, torch \S+\n", out)
    assert out.startswith(f"coterie {coterie.__version__}, ")
    assert torch.__version__.partition("+")[0] in out
