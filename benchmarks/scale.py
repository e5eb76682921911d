"""The default method with many clients and large models: seconds of the server and memory, round by round.

    python benchmarks/scale.py                     up to 10,000 clients and 100,000 parameters, in
                                                   about half an hour; then the memory of 100,000
                                                   clients, in as much again
    python benchmarks/scale.py --only growth       a thousand to a million clients whose data are
                                                   made on demand, in a quarter of an hour
    python benchmarks/scale.py --only placement    after such a run of auto, groups for all clients
                                                   that wait for one: an hour for a million
    python benchmarks/scale.py --scale small --out FILE     tiny sizes: that the code works, no
    measurement

Clients have synthetic data of four groups whose labels are permuted, 50 examples each. In twelve
rounds, the groups are found and reviewed once. Every row is a run in a process of its own, so that
its peak of memory is its own: that of the process in which the server and the engine are. The
memory of 100,000 clients is that of all processes of ``coterie run`` together, the workers
included: the greatest sum of their proportional set sizes, in which shared pages count once. A row
that ``results/scale.json`` has is not measured again. Nothing else should run meanwhile.

The rows of growth have 50 training and 10 test examples for each client, made from the seed and the
client's number whenever they are needed. A thousand clients train in a round, and a thousand are
tested after the last one. FedAvg keeps the data of as many, so that hardly any are made once for two
rounds; auto those of four thousand. Their seconds are those of the processors of all processes, so that other
work on the machine changes them little. The same holds for the rows of placement.
"""

from __future__ import annotations

import json
import multiprocessing
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

import numpy as np
from speed import machine

import coterie
from clustering import alone, options, peak, resident
from coterie.data.scenario import SCENARIOS
from coterie.engines import rounds as inprocess
from coterie.methods import Auto
from coterie.methods.fedavg import FedAvg
from coterie.methods.split_half import SplitHalfState
from coterie.report.summary import agreement
from coterie.settings import UserError

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
GROWTH: dict[str, list[tuple[str, int, int]]] = {
    "full": [
        (method, clients, 8)
        for clients in (1000, 10_000, 100_000, 1_000_000)
        for method in ("fedavg", "auto")
    ],
    "small": [("fedavg", 100, 2)],
}
"""(method, clients, rounds) of the runs whose clients' data are made on demand."""
PLACEMENT: dict[str, list[tuple[int, int]]] = {
    "full": [(clients, 8) for clients in (10_000, 100_000, 1_000_000)],
    "small": [(100, 2)],
}
"""(clients, rounds) of the runs of auto after which all waiting clients are placed."""
COHORT = 1000
"""Clients that train in a round of these runs, and that are tested at their end."""
MOST_TASKS = 4 * COHORT
"""More than the tasks of a round of auto, in which two methods run and clients look for their group."""
FEATURES, TRAINING_EXAMPLES, TEST_EXAMPLES, GROUPS = 20, 50, 10, 4
LABELLED_BY = np.random.default_rng(0).normal(size=(FEATURES, CLASSES))
"""The label of an example is the largest of its products with these columns, plus the number of
the client's group."""


def made_on_demand(client: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The training and test examples of a client."""
    inputs = generator.normal(size=(TRAINING_EXAMPLES + TEST_EXAMPLES, FEATURES)).astype("f")
    labels = ((inputs @ LABELLED_BY).argmax(1) + client % GROUPS) % CLASSES
    train, test = slice(TRAINING_EXAMPLES), slice(TRAINING_EXAMPLES, None)
    return inputs[train], labels[train], inputs[test], labels[test]


def fleet(clients: int, kept: int) -> coterie.World:
    """Clients made on demand; the data of at most ``kept`` of them are in memory."""
    return coterie.from_function(
        made_on_demand,
        clients,
        model="linear",
        classes=CLASSES,
        kept=kept,
        truth=[range(group, clients, GROUPS) for group in range(GROUPS)],
    )


def grown(method: str, clients: int, rounds: int) -> dict[str, Any]:
    """A run of clients made on demand: processor seconds of each round, and how well the groups are found."""
    fraction = min(1.0, COHORT / clients)
    world = fleet(clients, kept=COHORT if method == "fedavg" else MOST_TASKS)
    chosen = FedAvg(fraction=fraction) if method == "fedavg" else Auto(fraction=fraction)
    row: dict[str, Any] = {"method": method, "clients": clients, "rounds": rounds}
    processor, server, asked = [], [], []
    before = processor_seconds()
    for done in inprocess.rounds(
        chosen, world, rounds=rounds, eval_every=rounds, eval_clients=COHORT, workers=WORKERS
    ):
        now = processor_seconds()
        processor.append(round(now - before, 3))
        server.append(round(done.seconds["server"], 3))
        asked.append(done.asked)
        before = now
    truth = world.true_groups(rounds)
    return {
        **row,
        "processor": processor,
        "server": server,
        "asked": asked,
        "accuracy": done.mean(),
        "groups": sorted(map(len, done.groups), reverse=True)[:10],
        "index": agreement(done.assignment.groups, truth),
        "waiting": waiting(chosen, done.position.state),
    }


def placed(clients: int, rounds: int) -> dict[str, Any]:
    """A recorded run of auto, after which all waiting clients are placed: processor seconds, and the groups."""
    world = fleet(clients, kept=MOST_TASKS)
    method = Auto(fraction=min(1.0, COHORT / clients))
    with tempfile.TemporaryDirectory() as folder:
        runs = coterie.begin(
            world,
            Path(folder) / "run",
            [method],
            rounds=rounds,
            eval_every=rounds,
            eval_clients=min(COHORT, clients),
            workers=WORKERS,
        )
        before_run = processor_seconds()
        run = runs.finish()[0]
        run_seconds = processor_seconds() - before_run
        truth = world.true_groups(rounds)
        index_before = agreement(run.groups(), truth)
        before_placement = processor_seconds()
        result = run.place_waiting(batch=COHORT, workers=WORKERS)
        placement_seconds = processor_seconds() - before_placement
    return {
        "clients": clients,
        "rounds": rounds,
        "run_processor": round(run_seconds, 1),
        "placement_processor": round(placement_seconds, 1),
        "placed": result.placed,
        "without": len(result.without),
        "groups": sorted(map(len, result.groups), reverse=True)[:10],
        "index_before": index_before,
        "index": agreement(result.groups, truth),
    }


def waiting(method: Any, state: Any) -> int:
    """How many clients have no group yet, because they have not been asked since a group split."""
    if isinstance(method, FedAvg):
        return 0
    for arm_state in state.arms.values():
        inner = getattr(arm_state, "inner", arm_state)
        if isinstance(inner, SplitHalfState):
            return len(inner.walkers)
    return 0


def processor_seconds() -> float:
    """Seconds that the processors have spent on this process and its children."""
    used = os.times()
    total = used.user + used.system + used.children_user + used.children_system
    # Children that have not ended yet are not in these.
    for child in multiprocessing.active_children():
        with suppress(OSError):
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


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
    with tempfile.TemporaryDirectory() as folder:
        whole = [sys.executable, "-m", *command, "--json", "--out", str(Path(folder) / "run")]
        most, _ = watched(whole)
    return {"command": list(command), "bytes": most}


def watched(command: Sequence[str]) -> tuple[int, str]:
    """Run a command: the most memory that its processes had together, and what it printed."""
    most = 0
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(command, stdout=printed, start_new_session=True) as run,
    ):
        try:
            while run.poll() is None:
                most = max(most, proportional(run.pid))
                time.sleep(0.5)
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)  # its session does not get Ctrl-C
            raise
        printed.seek(0)
        text = printed.read()
    if run.returncode or not most:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit status {run.returncode}, memory {most}"
        )
    return most, text


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


def measure_growth(scale: str, out: Path) -> None:
    """Measure the rows of growth that are missing, each in a process of its own."""
    found = json.loads(out.read_text()) if out.is_file() else {"rows": []}
    growth = found.setdefault("growth", [])
    for method, clients, rounds in GROWTH[scale]:
        if (method, clients) in {(row["method"], row["clients"]) for row in growth}:
            continue
        command = [sys.executable, __file__, "--grown", method, str(clients), str(rounds)]
        most, printed = watched(command)
        row = json.loads(printed.splitlines()[-1])
        print(json.dumps({**row, "bytes": most}), flush=True)
        about = {"machine": machine.described("cpu"), "versions": machine.versions()}
        growth.append({**row, "bytes": most, **about})
        out.write_text(json.dumps(found, indent=1) + "\n")


def measure_placement(scale: str, out: Path) -> None:
    """Measure the rows of placement that are missing, each in a process of its own."""
    for clients, rounds in PLACEMENT[scale]:
        found = json.loads(out.read_text()) if out.is_file() else {"rows": []}
        if clients in {row["clients"] for row in found.get("placement", [])}:
            continue
        command = [sys.executable, __file__, "--placed", str(clients), str(rounds)]
        most, printed = watched(command)
        row = json.loads(printed.splitlines()[-1])
        print(json.dumps({**row, "bytes": most}), flush=True)
        about = {"machine": machine.described("cpu"), "versions": machine.versions()}
        found.setdefault("placement", []).append({**row, "bytes": most, **about})
        out.write_text(json.dumps(found, indent=1) + "\n")


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


MEASURES = {"default": measure, "growth": measure_growth, "placement": measure_placement}
"""Name of a part -> what measures it."""


def main(argv: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["--grown"]:
        method, clients, rounds = given[1:]
        print(json.dumps(grown(method, int(clients), int(rounds))))
        return
    if given[:1] == ["--placed"]:
        clients, rounds = given[1:]
        print(json.dumps(placed(int(clients), int(rounds))))
        return
    only = None
    if given[:1] == ["--only"] and given[1:2]:
        only = given[1]
        given = given[2:]
    if only not in (None, *MEASURES):
        raise UserError(f"--only is {' or '.join(MEASURES)}, got {only}")
    chosen = options(given, __doc__, OUT)
    for name, measure_part in MEASURES.items():
        if only in (None, name):
            measure_part(chosen.scale, chosen.out)


if __name__ == "__main__":
    main()
