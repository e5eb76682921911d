"""What HTTP adds to Flower's messages: the example app on a SuperLink and two SuperNodes here, whose connections are read.

    python benchmarks/flower_link.py      adds to benchmarks/results/flower-traffic.json

The SuperNodes reach the SuperLink through a relay in this process, without TLS. Of every request
and response the header and the body are counted, by path. notes/flower.md quotes the headers of
those that carry an object of a message.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(__file__).parent / "results" / "flower-traffic.json"
SCRIPTS = Path(sysconfig.get_path("scripts"))
NODES, ROUNDS = 2, 3
PATIENCE = 600.0
END = b"\r\n\r\n"

Flow = tuple[bytearray, bytearray]
"""A connection: what went up it, and what came down."""


class Relay:
    """Listens on a port, and hands on to another; ``flows`` has all that passed."""

    def __init__(self, to: int) -> None:
        self.to, self.flows = to, list[Flow]()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listening.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            flow: Flow = (bytearray(), bytearray())
            self.flows.append(flow)
            for source, target, kept in ((near, far, flow[0]), (far, near, flow[1])):
                threading.Thread(target=_pump, args=(source, target, kept), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while got := source.recv(1 << 16):
            kept += got
            target.sendall(got)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def messages(stream: bytes) -> Iterator[tuple[str, int, int]]:
    """(first line, bytes of the header, bytes of the body) of each HTTP message that is there as a whole."""
    start = 0
    while (stop := stream.find(END, start)) >= 0:
        head = stream[start:stop].decode("latin-1").splitlines()
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        if "transfer-encoding" in fields:
            raise ValueError("a body without a content length is not supported")
        stop, body = stop + len(END), int(fields.get("content-length", "0"))
        if stop + body > len(stream):
            return
        yield head[0], stop - start, body
        start = stop + body


def counted(flows: list[Flow]) -> dict[str, dict[str, int]]:
    """Path -> how many requests, and the bytes of headers and bodies both ways."""
    found: dict[str, dict[str, int]] = {}
    for up, down in flows:
        for (line, *asked), (_, *answered) in zip(
            messages(bytes(up)), messages(bytes(down)), strict=False
        ):
            row = found.setdefault(line.split()[1].rpartition("/")[2], {})
            names = (
                "requests",
                "request_heads",
                "request_bodies",
                "response_heads",
                "response_bodies",
            )
            for name, value in zip(names, (1, *asked, *answered), strict=True):
                row[name] = row.get(name, 0) + value
    return found


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        return int(one.getsockname()[1])


def federation(folder: Path) -> dict[str, dict[str, int]]:
    """Run the app in ``folder`` with FedAvg, and count."""
    link = free_port()
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    shutil.copytree(ROOT / "examples" / "flower", folder / "app")
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(*command: object) -> subprocess.Popen[bytes]:
        with open(folder / "log", "ab") as log:
            processes.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        return processes[-1]

    try:
        start(
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            link,
        )
        _until_listening(link)
        relay = Relay(link)
        for i in range(NODES):
            where = ("--superlink", f"127.0.0.1:{relay.port}", "--port", free_port())
            start(
                "flower-supernode",
                "--insecure",
                *where,
                "--node-config",
                f"partition-id={i} num-partitions={NODES}",
            )
        config = f"nodes={NODES} rounds={ROUNDS} method='fedavg' eval-every={ROUNDS}"
        status = start(
            "flwr", "run", folder / "app", "here", "--stream", "--run-config", config
        ).wait(PATIENCE)
        if status:
            raise SystemExit((folder / "log").read_text(errors="replace")[-4000:])
        return counted(relay.flows)
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until_listening(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
            return
        time.sleep(0.2)
    raise SystemExit("the SuperLink does not listen")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {
            "nodes": NODES,
            "rounds": ROUNDS,
            "paths": federation(Path(folder)),
        }
    document = json.loads(OUT.read_text()) if OUT.is_file() else {}
    OUT.write_text(json.dumps({**document, "http": found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
