"""docs/deploy/tables.md, followed to the letter: eight hospitals with TLS and keys, each a SuperNode on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def run_script(folder: Path, changes: dict[str, str], **variables: str) -> str:
    """Run the page's blocks in a folder with some texts replaced, two rounds in place of three; returns what was printed."""
    cores = os.cpu_count() or 1
    if os.getloadavg()[0] > MAX_LOAD_OF_CORE * cores:
        pytest.skip("the machine is too busy for SuperNodes")
    port, *_ = free_ports(len(HOSPITALS) + 1, together=True)
    programs = folder.parent / "bin"
    folder.mkdir()
    programs.mkdir()
    command = f'exec {sys.executable} -m coterie "$@"'
    (programs / "coterie").write_text(f"#!/bin/bash\n{command}\n")
    (programs / "coterie").chmod(0o755)
    environment_of_all = environment(folder.parent, HOME=str(folder.parent), **variables)
    environment_of_all["PATH"] = f"{programs}:{environment_of_all['PATH']}"
    environment_of_all.pop("FLWR_HOME", None)
    script = ""
    for kind, content in BLOCKS:
        if kind == "python":
            content = f"{sys.executable} - <<'END_OF_PYTHON'\n{content}END_OF_PYTHON\n"
        script += content
    # The log of a run may end before the run, where the machine is busy.
    rounds = "$(cat run/rounds.jsonl 2> /dev/null | wc -l)"
    all_changes = {
        "export PORT=8000": f"export PORT={port}",
        "rounds=3": "rounds=2",
        "coterie compare": f"until [ {rounds} = 2 ]; do sleep 2; done\ncoterie compare",
        **changes,
    }
    for old, new in all_changes.items():
        assert old in script
        script = script.replace(old, new)
    with alone(), ended(folder.parent):
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment_of_all,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return said


@pytest.mark.slow
def test_the_page_leads_from_eight_tables_to_predictions(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    said = run_script(folder, {})
    assert "8 sites agreed on the constants of 13 features" in said
    lines = rounds_of(folder / "run")
    assert [line["answered"] for line in lines] == [8, 8]
    # The same constants as the simulation's, and the default method.
    check_constants(folder)
    assert Record(folder / "run").description()["methods"][0]["name"] == "auto"
    predictions = (folder / "predictions.csv").read_text().splitlines()
    assert predictions[0] == "ill,well,prediction"
    assert len(predictions) == len((folder / "tables" / "aar.csv").read_text().splitlines())


def rounded(value: Any) -> Any:
    """A table of a record with its numbers to nine digits: sums of sites are rounded in another order."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def check_constants(folder: Path) -> None:
    """The constants of the federation are those of the simulation."""
    about = Record(folder / "run").description()["world"]["about"]
    simulated = Record(folder / "sim").description()["world"]["about"]
    assert rounded(about["table_schema"]) == rounded(simulated["table_schema"])
    assert about["means"] == pytest.approx(simulated["means"], rel=1e-9, abs=1e-12)


TO_DATABASE = """
import os
import sqlite3

import pandas as pd

table = pd.read_csv("tables/bern.csv", dtype=str, keep_default_na=False)
with sqlite3.connect(os.environ["CLINIC"].removeprefix("sqlite:///")) as connection:
    table.assign(ward="3").to_sql("visits", connection, index=False)
query = "SELECT age, smoker, admitted, temperature, finding FROM visits WHERE ward = '3'"
open("visits.sql", "w").write(query)
os.remove("tables/bern.csv")
"""


@pytest.mark.slow
def test_with_masks_and_a_database_at_one_hospital(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    pytest.importorskip("cryptography", reason="masks need cryptography")
    folder = tmp_path / "federation"
    csv_node = "--data tables/$site.csv"
    database_node = 'DATA="--data tables/$site.csv"; [ $site != bern ] || DATA="--data env:CLINIC --query visits.sql"\n'
    changes = {
        # Three hospitals, of which one has its rows in a database.
        '"aar", "bern", "como", "delft", "esbo", "faro", "graz", "hull"': '"aar", "bern", "como"',
        "aar bern como delft esbo faro graz hull": "aar bern como",
        "bern como delft esbo faro graz hull": "bern como",
        "  coterie node app/federation.toml --client $site " + csv_node: "  "
        + database_node
        + "  coterie node app/federation.toml --client $site $DATA",
        "--method auto": "--method fedavg",
        # A median under masks takes 16 exchanges, which the tests in one process have.
        "--target finding -o schema.toml": "--target finding -o schema.toml\n"
        """sed -i 's/"median"/"mean"/' schema.toml""",
        "coterie federation sim -o app": "coterie federation sim -o app --masks\n"
        + f"{sys.executable} - <<'END_OF_PYTHON'{TO_DATABASE}END_OF_PYTHON",
    }
    said = run_script(folder, changes, CLINIC=f"sqlite:///{folder}/clinic.db")
    assert "3 sites agreed on the constants" in said
    lines = rounds_of(folder / "run")
    assert [line["answered"] for line in lines] == [3, 3]
    assert not any(line["refused"] for line in lines)
    check_constants(folder)
    # The rows of the database are those that the simulation had, in a file.
    examples = Record(folder / "sim").description()["world"]["examples"]
    document = json.loads((folder / "models" / "models.json").read_text())
    assert sum(document["calibration"]["group-0.safetensors"][name] for name in ("rows",)) > 0
    assert len(examples) == 3
    # No address of a database is in what the server has, nor in the node's config.
    for path in (*(folder / "run").rglob("*"), folder / "bern.toml", folder / "superlink.log"):
        if path.is_file():
            assert b"clinic.db" not in path.read_bytes()
    assert "env:CLINIC" in (folder / "bern.toml").read_text()


def test_the_page_starts_each_hospital() -> None:
    assert ", ".join(f'"{name}"' for name in HOSPITALS) in STEPS
    for kind, content in BLOCKS:
        if kind == "bash" and "for site in aar" in content:
            assert f"for site in {' '.join(HOSPITALS)}; do" in content
