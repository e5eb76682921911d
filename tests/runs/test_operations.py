"""The files of examples/operations: units that systemd accepts, a backup from which a run continues the same."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie
from coterie.cli import main
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


TINY_RUN = ["run", "--scenario", "synthetic/groups", "--method", "fedavg", "--rounds", "2"]
"""The command of a run with few rounds."""


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


METRIC_IN_RULE = re.compile(r"(coterie_\w+)(?:\{([^}]*)\})?")
"""A metric in a rule of Prometheus, and its labels."""

SAMPLE = re.compile(r"^(\w+)\{(.*)\} \S+$")
"""A line of a file for Prometheus."""


def test_alerts_ask_for_metrics_that_a_tracked_run_has(tmp_path: Path) -> None:
    # What a run really writes: the names, and the values of their labels.
    folder = tmp_path / "run"
    assert main([*TINY_RUN, "--workers", "1", "--track", "prometheus", "--out", str(folder)]) == 0
    (file,) = folder.rglob("*.prom")
    label_sets: dict[str, list[dict[str, str]]] = {}
    for line in file.read_text().splitlines():
        if sample := SAMPLE.match(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample[2]))
            label_sets.setdefault(sample[1], []).append(labels)
    assert "coterie_round" in label_sets
    document = yaml.safe_load((OPERATIONS / "alerts.yml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 3
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        metrics = METRIC_IN_RULE.findall(rule["expr"])
        assert metrics, rule["expr"]
        for name, selector in metrics:
            wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector))
            matching = [labels for labels in label_sets[name] if wanted.items() <= labels.items()]
            assert matching, (name, selector)
        # Its sentence names labels that the metrics have.
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert all(label in label_sets[name][0] for name, _ in metrics)


def test_the_page_lists_the_metrics_that_exist() -> None:
    page = (ROOT / "docs" / "deploy" / "operate.md").read_text()
    listed = set(re.findall(r"`(coterie_\w+)`", page))
    assert {family for family, _, _, _ in METRIC_FAMILIES} <= listed


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
