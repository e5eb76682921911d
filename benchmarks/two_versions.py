"""The same work in two checkouts, in turns: what a change has gained.

    git worktree add --detach ../before COMMIT
    python benchmarks/two_versions.py ../before             about ten minutes; nothing else should run
    python benchmarks/two_versions.py ../before --scale small --out FILE     tiny sizes: that the code
                                                            works, no measurement

Each turn is a process of its own, which imports the package of its checkout. Seconds are those of
the processor, with one thread, so that other work on the machine changes them little. The work is
this file's, so it uses only what both checkouts have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed import machine, ours, workloads
from speed.clock import interleaved

from coterie.clustering import halves_gram
from coterie.core import HalvedUpdates, Replies, as_groups
from coterie.methods._cluster_tree import root
from coterie.methods._split_half_probes import Evidence, decide_probe
from coterie.methods._split_half_walks import split_probe, walk

HERE = Path(__file__).resolve()
OUT = HERE.parent / "results" / "two-versions.json"
REPETITIONS = 5
NUM_GROUPS = 4
LEVEL = 1e-3

SIZES: dict[str, dict[str, int]] = {
    "full": {"clients": 1000, "parameters": 400, "leaves": 15, "rounds": 20, "calls": 3},
    "small": {"clients": 32, "parameters": 400, "leaves": 5, "rounds": 1, "calls": 1},
}


def processor_seconds(work: Callable[[], object], num_calls: int) -> float:
    """The median of several calls, after one that loads and fills what is kept."""
    work()
    seconds = []
    for _ in range(num_calls):
        since = time.process_time()
        work()
        seconds.append(time.process_time() - since)
    return statistics.median(seconds)


def round_of(key: str, scale: str) -> float:
    """A round of one of the workloads of part c or h, in one process."""
    work = next(work for work in workloads.workloads(scale) if work.key == key)
    simulator = ours.Coterie(work, workers=1)
    seconds = processor_seconds(simulator.seconds, SIZES[scale]["rounds"])
    simulator.close()
    return seconds


def half_updates(num_clients: int, num_parameters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Updates ``(n, d)`` of both halves of clients in four equal groups: half the noise is signal."""
    signals = np.random.default_rng(0).normal(size=(NUM_GROUPS, num_parameters)) / 2
    signal = np.repeat(signals, num_clients // NUM_GROUPS, axis=0)
    noise = np.random.default_rng(seed).normal(size=(2, *signal.shape))
    first, second = signal + noise
    return first, second


def replies_of(first: np.ndarray, second: np.ndarray) -> Replies:
    """Replies of clients 0 to n - 1 that trained on halves."""
    clients = tuple(range(len(first)))
    return Replies(
        clients=clients,
        examples=np.ones(len(clients), dtype=np.int64),
        updates=torch.from_numpy((first + second) / 2),
        halves=HalvedUpdates(clients=clients, gram=halves_gram(first, second)),
    )


def first_probe(scale: str) -> float:
    """Decide on a first probe: one test of all clients."""
    sizes = SIZES[scale]
    replies = replies_of(*half_updates(sizes["clients"], sizes["parameters"], seed=1))
    return processor_seconds(lambda: decide_probe(LEVEL, replies, None), sizes["calls"])


def split_in_four(scale: str) -> float:
    """Decide on a second probe, which finds all four groups."""
    sizes = SIZES[scale]
    replies = [
        replies_of(*half_updates(sizes["clients"], sizes["parameters"], seed)) for seed in (1, 2)
    ]

    def decide() -> None:
        evidence = Evidence(
            clients=replies[0].clients, products=torch.from_numpy(replies[0].halves.gram)
        )
        decision = decide_probe(LEVEL, replies[1], evidence)
        assert decision is not None
        assert len(decision.action.parts) == NUM_GROUPS

    return processor_seconds(decide, sizes["calls"])


def walk_of_all(scale: str) -> float:
    """Let all clients walk down one level, to the nearest of several branches."""
    sizes = SIZES[scale]
    first, second = half_updates(sizes["clients"], sizes["parameters"], seed=1)
    replies = replies_of(first, second)
    # The branches are parts of the clients themselves, most of them of one group.
    parts = as_groups(np.array_split(range(sizes["clients"]), sizes["leaves"]))
    tree, _ = root(replies.clients, sizes["parameters"]).split(
        0, parts, torch.zeros(sizes["parameters"]), replies=replies, round=1
    )
    evidence = Evidence(clients=replies.clients, products=torch.from_numpy(replies.halves.gram))
    probed = {0: split_probe(3, evidence, parts)}
    walkers = dict.fromkeys(replies.clients, 0)
    return processor_seconds(lambda: walk(tree, walkers, probed, replies, LEVEL), sizes["calls"])


def eigenvectors(scale: str) -> float:
    """All eigenvectors of a matrix with a row for each client, to compare with."""
    sizes = SIZES[scale]
    first, _ = half_updates(sizes["clients"], sizes["parameters"], seed=1)
    products = first @ first.T
    return processor_seconds(lambda: np.linalg.eigh(products), sizes["calls"])


WORK: dict[str, Callable[[str], float]] = {
    "a round of LR-MNIST, 10 of 1,000 clients": partial(round_of, "h-lr"),
    "a round of 1,000 MLPs": partial(round_of, "c1000"),
    "split-half: test of 1,000 clients": first_probe,
    "split-half: 1,000 clients split in four groups": split_in_four,
    "split-half: 1,000 clients walk to the nearest of 15 branches": walk_of_all,
    "eigenvectors of a matrix of 1,000 clients": eigenvectors,
}


def measured_by(checkout: Path, scale: str, title: str) -> float:
    """Processor seconds of one kind of work in a checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "src"),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE), "--scale", scale, "--only", title]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(finished.stdout)


def commit_of(checkout: Path) -> str:
    """The commit that is checked out."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(before: Path, scale: str, repetitions: int, out: Path) -> None:
    """Measure both checkouts in turns; the file is written after each kind of work."""
    checkouts = {"before": before.resolve(), "now": HERE.parents[1]}
    found: dict[str, Any] = {
        "scale": scale,
        "machine": machine.described("cpu"),
        "versions": machine.versions(),
        "commits": {name: commit_of(checkout) for name, checkout in checkouts.items()},
        "rows": [],
    }
    for title in WORK:
        contestants = {
            name: partial(measured_by, checkout, scale, title)
            for name, checkout in checkouts.items()
        }
        found["rows"].append({"title": title, **interleaved(contestants, repetitions)})
        print(json.dumps(found["rows"][-1]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("before", nargs="?", type=Path, help="folder of the other checkout")
    command.add_argument("--scale", choices=tuple(SIZES), default="full")
    command.add_argument("--repetitions", type=int, default=REPETITIONS)
    command.add_argument("--out", type=Path, default=OUT)
    command.add_argument("--only", choices=tuple(WORK), help="measure this in this process")
    chosen = command.parse_args(argv)
    if chosen.only:
        torch.set_num_threads(1)
        print(WORK[chosen.only](chosen.scale))
        return
    if chosen.before is None or not (chosen.before / "src" / "coterie").is_dir():
        command.error(f"before must be the folder of another checkout, got {chosen.before}")
    measure(chosen.before, chosen.scale, chosen.repetitions, chosen.out)


if __name__ == "__main__":
    main()
