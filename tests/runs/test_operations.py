"""The files of examples/operations: units that systemd accepts, a backup from which a run continues the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie
from coterie.contrib.tracking.prometheus import METRIC_FAMILIES
from coterie.records.record import Record
from coterie.runs.experiment import make

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "examples" / "operations"
UNITS = sorted(file.name for file in OPERATIONS.iterdir() if file.suffix in (".service", ".timer"))

SPEC: dict[str, Any] = {
    "scenario": {"name": "synthetic/groups", "clients": 6},
    "methods": [{"name": "cfl"}],
    "rounds": 4,
    "workers": 1,
}


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # The programs of a host stand in a folder of the test, so that they can be found.
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for program in ("flower-superlink", "flower-supernode", "python"):
        (programs / program).write_text("#!/bin/sh\n")
        (programs / program).chmod(0o755)
    for unit in UNITS:
        text = (OPERATIONS / unit).read_text()
        (tmp_path / unit).write_text(text.replace("/srv/federation/venv", f"{tmp_path}/venv"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    of_units = [
        line for line in verified.stderr.splitlines() if str(tmp_path) in line or "coterie" in line
    ]
    assert verified.returncode == 0, verified.stderr
    assert of_units == []


def test_the_page_shows_the_units_of_the_examples() -> None:
    page = (ROOT / "docs" / "deploy" / "operate.md").read_text()
    for unit in ("flower-superlink.service", "flower-supernode.service"):
        assert f"```text\n{(OPERATIONS / unit).read_text()}```" in page


def test_alerts_ask_for_metrics_that_exist() -> None:
    families = {family for family, _, _, _ in METRIC_FAMILIES}
    rules = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        named = {word for word in families if word in rule["expr"]}
        assert named, rule["expr"]


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "checksum")}
        for line in Record(run).lines()
    ]


def test_a_run_continues_from_a_backup_with_the_same_results(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.mkdir()
    (server / "clients.toml").write_text("# names of keys\n")
    # The script calls the programs of the server's environment.
    programs = server / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "coterie").write_text(f'#!/bin/sh\nexec {sys.executable} -m coterie "$@"\n')
    (programs / "coterie").chmod(0o755)
    # 1. A backup after round 2; the run goes on to its end.
    (one,) = coterie.begin(make(SPEC), server / "run")
    for done in one.rounds():
        if done.number == 2:
            break
    backed_up = subprocess.run(
        ["sh", str(OPERATIONS / "backup.sh"), str(tmp_path / "backup")],
        cwd=server,
        capture_output=True,
        text=True,
        check=False,
    )
    assert backed_up.returncode == 0, backed_up.stderr
    copy = Path(backed_up.stdout.splitlines()[-1])
    assert (copy / "clients.toml").is_file()
    list(one.rounds())
    # 2. The server is lost, and the copy continues.
    whole = lines_of(server / "run")
    shutil.rmtree(server)
    restored = tmp_path / "restored"
    shutil.copytree(copy / "run", restored)
    assert len(lines_of(restored)) == 2
    (continued,) = coterie.reopen(restored)
    list(continued.rounds())
    assert lines_of(restored) == whole
    assert len(whole) == SPEC["rounds"]
