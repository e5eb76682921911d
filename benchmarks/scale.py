"""The default method with many clients and large models: seconds of the server and memory, round by round.

    python benchmarks/scale.py                     up to 10,000 clients and 100,000 parameters, in
                                                   about half an hour; then the memory of 100,000
                                                   clients, in as much again
    python benchmarks/scale.py --scale small --out FILE     tiny sizes: that the code works, no
    measurement

Clients have synthetic data of four groups whose labels are permuted, 50 examples each. In twelve
rounds, the groups are found and reviewed once. Every row is a run in a process of its own, so that
its peak of memory is its own: that of the process in which the server and the engine are. The
memory of 100,000 clients is that of all processes of ``coterie run`` together, the workers
included: the greatest sum of their proportional set sizes, in which shared pages count once. A row
that ``results/scale.json`` has is not measured again. Nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from speed import machine

from clustering import alone, options, peak, resident
from coterie.data.scenario import SCENARIOS
from coterie.engines import rounds as inprocess
from coterie.methods import Auto
from coterie.report.summary import agreement

OUT = Path(__file__).resolve().parent / "results" / "scale.json"
ROUNDS, EXAMPLES, CLASSES = 12, 50, 4
SIZES: dict[str, list[tuple[int, int]]] = {
    "full": [
        *((clients, 20) for clients in (100, 300, 1000, 2000, 5000, 10_000)),
        *((300, features) for features in (250, 2500, 25_000)),
    ],
    "small": [(8, 20), (8, 40)],
}
"""(clients, features). The model is linear."""
TOGETHER: dict[str, list[tuple[int, tuple[str, ...]]]] = {
    "full": [
        (100_000, ("--method", "fedavg", "--rounds", "3", "--eval-every", "3")),
        (
            100_000,
            (
                "--method",
                "auto",
                "--rounds",
                "12",
                "--eval-every",
                "12",
                "--set",
                "auto.fraction=0.1",
            ),
        ),
    ],
    "small": [(20, ("--method", "fedavg", "--rounds", "1"))],
}
"""(clients, options of ``coterie run``) of the runs whose memory is that of all processes."""
WORKERS = 2


def default(clients: int, features: int) -> dict[str, Any]:
    """A run: seconds of the server and of training in each round, memory, and from which round on the groups are right."""
    scenario = replace(
        SCENARIOS["synthetic/groups"],
        clients=clients,
        examples=EXAMPLES * clients,
        features=features,
        classes=CLASSES,
    )
    world, used, alike = scenario.build(0), resident(), []
    server, train = [], []
    for done in inprocess.rounds(Auto(), world, rounds=ROUNDS, eval_every=ROUNDS):
        alike.append(agreement(done.assignment.groups, world.true_groups(1)))
        server.append(round(done.seconds["server"], 3))
        train.append(round(done.seconds["train"], 3))
    return {
        "clients": clients,
        "parameters": CLASSES * (features + 1),
        "server": server,
        "train": train,
        "world_bytes": used,
        "peak_bytes": peak(),
        "index": alike,
    }


def run_of(clients: int, options: Sequence[str]) -> list[str]:
    """The command of a run with this many clients."""
    scenario = [
        "--scenario",
        "synthetic/groups",
        "--set",
        f"clients={clients}",
        "--set",
        f"examples={EXAMPLES * clients}",
    ]
    return ["coterie", "run", *scenario, *options, "--workers", str(WORKERS)]


def together(command: Sequence[str]) -> dict[str, Any]:
    """A run by the command line: the most memory that its processes had together, read twice a second."""
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = [sys.executable, "-m", *command, "--json", "--out", str(Path(folder) / "run")]
        with subprocess.Popen(whole, stdout=subprocess.DEVNULL, start_new_session=True) as run:
            try:
                while run.poll() is None:
                    most = max(most, proportional(run.pid))
                    time.sleep(0.5)
            except BaseException:
                os.killpg(run.pid, signal.SIGKILL)  # its session does not get Ctrl-C
                raise
    if run.returncode or not most:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit status {run.returncode}, memory {most}"
        )
    return {"command": list(command), "bytes": most}


def proportional(session: int) -> int:
    """Bytes of the proportional set sizes of all processes of a session."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, TypeError):  # a process that has just ended
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                pss = re.search(
                    r"^Pss:\s+(\d+) kB$", (folder / "smaps_rollup").read_text(), re.MULTILINE
                )
                found += int(pss[1]) * 1024  # type: ignore[index]
    return found


def measure(scale: str, out: Path) -> None:
    """Measure the rows that are missing."""
    about = {"scale": scale, "machine": machine.described("cpu"), "versions": machine.versions()}
    found = json.loads(out.read_text()) if out.is_file() else {"rows": []}
    rows, memory = found["rows"], found.setdefault("memory", [])
    for clients, features in SIZES[scale]:
        if (clients, CLASSES * (features + 1)) not in {
            (row["clients"], row["parameters"]) for row in rows
        }:
            rows.append(alone(default, clients, features))
            found |= about
            out.write_text(json.dumps(found, indent=1) + "\n")
    for clients, how in TOGETHER[scale]:
        command = run_of(clients, how)
        if command not in [row["command"] for row in memory]:
            memory.append({**together(command), "machine": about["machine"]})
            out.write_text(json.dumps({**about, **found}, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    chosen = options(argv, __doc__, OUT)
    measure(chosen.scale, chosen.out)


if __name__ == "__main__":
    main()
