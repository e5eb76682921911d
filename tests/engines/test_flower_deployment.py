"""The example app on a real SuperLink and SuperNodes on this machine: processes are killed, and the run goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 300.0
"""Seconds anything may take; the processes end with the test."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found by /proc"),
    pytest.mark.skipif(not (BIN / "flower-superlink").exists(), reason="Flower's commands are not beside Python's"),
]


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Federation:
    """A SuperLink and SuperNodes on loopback, in a folder of their own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.count = folder, nodes
        self.link, *self.ports = free_ports(nodes + 1)
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        )
        shutil.copytree(ROOT / "examples" / "flower", folder / "app")
        self.environment = {
            **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("link", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", self.link)
        until(lambda: reachable(self.link), "the SuperLink listens")
        for i in range(nodes):
            self.node(i)

    def start(self, name: str, *command: Any) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command], cwd=self.folder, env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def node(self, i: int) -> None:
        config = f"partition-id={i} num-partitions={self.count}"
        where = ("--superlink", f"127.0.0.1:{self.link}", "--port", self.ports[i])
        self.start(f"node{i}", "flower-supernode", "--insecure", *where, "--node-config", config)

    def run(self, name: str, config: str) -> None:
        self.start(name, "flwr", "run", self.folder / "app", "here", "--stream", "--run-config", config)

    def kill(self, name: str) -> None:
        """The process with all that it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def kill_server(self) -> None:
        """The process of the ServerApp, which the SuperLink has had started."""
        pids = [pid for pid, words in commands() if "flwr-serverapp" in words and f"127.0.0.1:{self.link}" in words]
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def failed(self, name: str) -> str | None:
        """What a process said that has failed."""
        return self.log(name) if self.processes[name].poll() else None


def commands() -> Iterator[tuple[int, str]]:
    """(process id, command line) of everything that runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def reachable(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def until(there: Callable[[], bool], what: str, failed: Callable[[], str | None] = lambda: None) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        assert not (reason := failed()), reason
        assert time.monotonic() < end, f"after {PATIENCE:g} s it is not so that {what}"
        time.sleep(0.2)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, 4)
    try:
        yield made
    finally:
        for name in reversed(made.processes):
            made.kill(name)


def rounds_of(run: Path) -> list[dict[str, Any]]:
    path = run / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_cfl_finds_the_groups_whoever_is_killed(federation: Federation) -> None:
    run = federation.folder / "run"
    settings = f"out='{run}' timeout=75 eval-every=100"
    federation.run("first", f"rounds=6 {settings}")
    until(lambda: len(rounds_of(run)) >= 2, "two rounds are recorded", lambda: federation.failed("first"))
    federation.kill_server()
    kept = rounds_of(run)
    federation.kill("first")

    federation.run("second", f"rounds=7 {settings}")
    until(lambda: len(rounds_of(run)) >= 4, "it has gone on", lambda: federation.failed("second"))
    federation.kill("node3")
    until(lambda: any(line["answered"] == 3 for line in rounds_of(run)), "a client was missed")
    federation.node(3)  # with another node id, and by its partition who it was
    assert federation.processes["second"].wait(PATIENCE) == 0, federation.log("second")

    lines = rounds_of(run)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["groups"] for line in lines[: len(kept)]] == [line["groups"] for line in kept]
    assert lines[-1]["groups"] == [[0, 2], [1, 3]]
    accuracy = [client["accuracy"] for client in lines[-1]["clients"].values() if client["accuracy"] is not None]
    assert min(accuracy) > 0.6
    assert all(line["asked"] in (3, 4) for line in lines)
