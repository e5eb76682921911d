"""The example app under ``flwr run`` in simulation, by the commands of its page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

from alone import alone
from federation import PATIENCE, ROOT, ended, environment, free_ports, rounds_of

PAGE = (ROOT / "docs" / "deploy" / "flower.md").read_text()


@pytest.mark.slow
def test_the_pages_commands_run_the_example_in_simulation(tmp_path: Path) -> None:
    free_ports(1)  # or skip
    found = re.search(r"## The example, in simulation\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert found
    out = tmp_path / "run"
    commands = found[1].replace("rounds=3", f"rounds=3 out='{out}'")
    assert commands != found[1]
    where = environment(tmp_path, FLWR_HOME=str(tmp_path / "home"))
    with alone(), ended(tmp_path):
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=ROOT,
            env=where,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        lines = rounds_of(out)
    said = done.stdout + done.stderr
    assert [line["answered"] for line in lines] == [4, 4, 4], said
    assert "round 3: 4 of 4 answered" in said
