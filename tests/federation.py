"""A Flower federation in tests: a SuperLink and SuperNodes on loopback, of which nothing is left when the test ends.

Every message to a real SuperNode starts a process that imports torch, so a round takes as long as
that for all nodes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from alone import alone

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
PATIENCE = 600.0
"""Seconds anything may take; the processes end with the test."""

MARK = "COTERIE_FEDERATION"
"""Variable in the environment of every process of a federation: those that leave their group are
found by it."""


def free_ports(count: int, together: bool = False) -> list[int]:
    """Ports nobody listens on; consecutive ones if they are to be together. Skips the test where none can be bound."""
    reason = ""
    for _ in range(100):
        with ExitStack() as stack:
            try:
                ports: list[int] = []
                for i in range(count):
                    one = stack.enter_context(closing(socket.socket()))
                    one.bind(("127.0.0.1", ports[0] + i if together and i else 0))
                    ports.append(one.getsockname()[1])
                return ports
            except (OSError, OverflowError) as error:
                reason = str(error)
    pytest.skip(f"no ports can be bound on loopback here: {reason}")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of a federation's processes. One thread each: there are more processes than cores, and threads would only wait."""
    return {
        **os.environ,
        MARK: str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        **more,
    }


class Federation:
    """A SuperLink and SuperNodes, in a folder of their own. app: the folder of the app that runs there. parts: how many
    nodes the data are divided among."""

    def __init__(self, folder: Path, app: Path, parts: int) -> None:
        self.folder, self.parts = folder, parts
        self.link, *self.ports = free_ports(parts + 1)
        home = folder / "home"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        )
        shutil.copytree(app, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = environment(folder, FLWR_HOME=str(home))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start(
            "link",
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            self.link,
        )
        until(lambda: reachable(self.link), "the SuperLink listens", self.failed)

    def start(self, name: str, *command: Any) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def node(self, i: int, **config: str | int) -> None:
        """Start the SuperNode that has part i of the data. config: what else its node config tells."""
        told = {"partition-id": i, "num-partitions": self.parts, **config}
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in told.items())
        where = ("--superlink", f"127.0.0.1:{self.link}", "--port", self.ports[i])
        self.start(f"node{i}", "flower-supernode", "--insecure", *where, "--node-config", words)

    def run(self, name: str, **config: str | float) -> None:
        """``flwr run``, with a run config; the ServerApp is a process of the SuperLink's."""
        words = " ".join(
            f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items()
        )
        self.start(
            name, "flwr", "run", self.folder / "app", "here", "--stream", "--run-config", words
        )

    def kill(self, name: str) -> None:
        """The process with all that it has started, at once."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_server(self) -> None:
        """The process of the ServerApp, which the SuperLink has had started."""
        pids = [pid for pid in marked(self.folder) if b"flwr-serverapp" in told(pid, "cmdline")]
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def failed(self) -> str | None:
        """What a process said that has failed."""
        return next(
            (
                f"{name}: {self.log(name)}"
                for name, process in self.processes.items()
                if process.poll()
            ),
            None,
        )

    def await_end(self, name: str) -> None:
        """Of a process, which must succeed."""
        assert self.processes[name].wait(PATIENCE) == 0, self.log(name)


F = TypeVar("F", bound=Federation)


@contextmanager
def federation(folder: Path, app: Path, parts: int, kind: type[F]) -> Iterator[F]:
    """A SuperLink that listens, alone on this machine; SuperNodes are started by the test, and end with it."""
    with alone(), ended(folder):
        made = kind(folder, app, parts)
        yield made
    for process in made.processes.values():
        process.wait()


@contextmanager
def ended(folder: Path) -> Iterator[None]:
    """Kill, in the end, every process of the federation in ``folder``: those that are about to start others come first."""
    try:
        yield
    finally:
        while pids := list(marked(folder)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def marked(folder: Path) -> Iterator[int]:
    """The processes of the federation in ``folder`` that have not ended."""
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if f"{MARK}={folder}".encode() in told(pid, "environ").split(b"\0"):
            yield pid


def told(pid: int, what: str) -> bytes:
    """``cmdline`` or ``environ`` of a process; nothing of one that is gone or ends."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{what}").read_bytes()
    return b""


def reachable(port: int) -> bool:
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
        return True
    return False


def until(
    there: Callable[[], bool], what: str, failed: Callable[[], str | None] = lambda: None
) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        assert not (reason := failed()), reason
        assert time.monotonic() < end, f"after {PATIENCE:g} s it is not so that {what}"
        time.sleep(0.2)


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """What is recorded so far; a line that is being written is left out."""
    path = run / "rounds.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def accuracies(line: Mapping[str, Any]) -> list[float]:
    return [
        client["accuracy"]
        for client in line["clients"].values()
        if client.get("accuracy") is not None
    ]
