"""docs/deploy/tables.md, followed to the letter: eight hospitals with TLS and keys, each a SuperNode on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

from alone import alone
from coterie.records.record import Record
from federation import PATIENCE, ROOT, ended, environment, free_ports, rounds_of

PAGE = (ROOT / "docs" / "deploy" / "tables.md").read_text()
STEPS = PAGE.partition("\n## A database")[0]
BLOCKS = re.findall(r"^```(python|sh|bash)\n(.*?)^```$", STEPS, re.MULTILINE | re.DOTALL)
"""(kind, content) of what a reader copies, in order; outputs are ```text."""

HOSPITALS = ("aar", "bern", "como", "delft", "esbo", "faro", "graz", "hull")


MAX_LOAD_OF_CORE = 1.5
"""Processes for each core, beyond which SuperNodes lose their connections: they answer too late."""


@pytest.mark.slow
def test_the_page_leads_from_eight_tables_to_predictions(tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    if os.getloadavg()[0] > MAX_LOAD_OF_CORE * cores:
        pytest.skip("the machine is too busy for eight SuperNodes")
    port, *_ = free_ports(len(HOSPITALS) + 1, together=True)
    folder = tmp_path / "federation"
    programs = tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    command = f'exec {sys.executable} -m coterie "$@"'
    (programs / "coterie").write_text(f"#!/bin/bash\n{command}\n")
    (programs / "coterie").chmod(0o755)
    variables = environment(tmp_path, HOME=str(tmp_path))
    variables["PATH"] = f"{programs}:{variables['PATH']}"
    variables.pop("FLWR_HOME", None)
    script = ""
    for kind, content in BLOCKS:
        if kind == "python":
            content = f"{sys.executable} - <<'END_OF_PYTHON'\n{content}END_OF_PYTHON\n"
        script += content
    changed = script.replace("export PORT=8000", f"export PORT={port}")
    changed = changed.replace("rounds=3", "rounds=2")
    # The log of a run may end before the run, where the machine is busy.
    rounds = "$(cat run/rounds.jsonl 2> /dev/null | wc -l)"
    changed = changed.replace(
        "coterie compare", f"until [ {rounds} = 2 ]; do sleep 2; done\ncoterie compare"
    )
    assert changed.count(f"={port}") == 1
    assert "rounds=2" in changed
    with alone(), ended(tmp_path):
        done = subprocess.run(
            ["bash", "-e", "-c", changed],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert "8 sites agreed on the constants of 13 features" in said
    lines = rounds_of(folder / "run")
    assert [line["answered"] for line in lines] == [8, 8]
    # The same constants as the simulation's, and the default method.
    about = Record(folder / "run").description()["world"]["about"]
    simulated = Record(folder / "sim").description()["world"]["about"]
    assert about["table_schema"] == simulated["table_schema"]
    assert about["means"] == pytest.approx(simulated["means"], rel=1e-9, abs=1e-12)
    assert Record(folder / "run").description()["methods"][0]["name"] == "auto"
    predictions = (folder / "predictions.csv").read_text().splitlines()
    assert predictions[0] == "ill,well,prediction"
    assert len(predictions) == len((folder / "tables" / "aar.csv").read_text().splitlines())


def test_the_page_starts_each_hospital() -> None:
    assert ", ".join(f'"{name}"' for name in HOSPITALS) in STEPS
    for kind, content in BLOCKS:
        if kind == "bash" and "for site in aar" in content:
            assert f"for site in {' '.join(HOSPITALS)}; do" in content
