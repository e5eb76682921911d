"""The example apps under ``flwr run`` in simulation, by the commands of their pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

from alone import alone
from federation import PATIENCE, ROOT, ended, environment, free_ports, rounds_of

PAGE = (ROOT / "docs" / "deploy" / "flower.md").read_text()
SITES = (ROOT / "docs" / "deploy" / "from-simulation.md").read_text()


@pytest.mark.slow
def test_the_pages_commands_run_the_example_in_simulation(tmp_path: Path) -> None:
    free_ports(1)  # or skip
    found = re.search(
        r"## Run an app with flwr\n\nIn simulation:\n\n```text\n(.*?)```", PAGE, re.DOTALL
    )
    assert found
    out = tmp_path / "run"
    commands = found[1].replace("rounds=3", f"rounds=3 out='{out}'")
    assert commands != found[1]
    said, lines = flower_ran(tmp_path, ROOT, commands, out)
    assert [line["answered"] for line in lines] == [4, 4, 4], said
    assert "round 3: 4 of 4 answered" in said


def flower_ran(folder: Path, start: Path, commands: str, out: Path) -> tuple[str, list[Any]]:
    """What ``flwr run`` printed that was started in a folder, and the rounds that it recorded."""
    with alone(), ended(folder):
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=start,
            env=environment(folder, FLWR_HOME=str(folder / "home")),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        lines = rounds_of(out)
    return done.stdout + done.stderr, lines


@pytest.mark.slow
def test_sites_read_their_files_and_one_that_differs_is_refused(tmp_path: Path) -> None:
    free_ports(1)  # or skip
    sites_are_made(tmp_path)
    found = re.search(r"^(export FLWR_[^`]*?)^coterie", SITES, re.DOTALL | re.MULTILINE)
    assert found
    command = found[1].replace("examples/flower_csv", str(ROOT / "examples" / "flower_csv"))
    # Two cores for each client are more than some machines have.
    command = command.replace("num-supernodes=3", "num-supernodes=3 client-resources-num-cpus=1")
    short = command.replace("out='$PWD/federated'", "out='$PWD/federated' rounds=2 method='fedavg'")
    assert short != command
    # West has other classes.
    west = tmp_path / "sites" / "west" / "records.csv"
    west.write_text(west.read_text().replace("yes", "positive").replace("no", "negative"))
    said, lines = flower_ran(tmp_path, tmp_path, short, tmp_path / "federated")
    assert [line["answered"] for line in lines] == [2, 2], said
    (refusal,) = re.findall(r"^(client west refused: .*classes.*)$", SITES, re.MULTILINE)
    assert refusal in said


def sites_are_made(folder: Path) -> None:
    """Run the page's code up to the agreed schema."""
    kinds = re.findall(r"^```(python|toml|sh)\n(.*?)^```$", SITES, re.DOTALL | re.MULTILINE)
    make, trial, run, carry = (content for _, content in kinds[:4])
    (folder / "trial.toml").write_text(trial)
    command = [sys.executable, "-m", "coterie", *run.split()[1:]]
    script = f"{make}\nimport subprocess\nsubprocess.run({command!r}, check=True)\n{carry}"
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment(folder), check=True)
