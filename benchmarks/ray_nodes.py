"""What nodes of a Ray cluster bring: the same rounds on one node with one core, on two, and in process.

    python benchmarks/ray_nodes.py                            in about three minutes on two cores
    python benchmarks/ray_nodes.py --scale small --out FILE     few clients: that the code works, no
    measurement

All run side by side: in each repeat one after the other, so that another program's load meets all
of them. The nodes are raylets of this machine, with one core each, and the last round is the only
one that is tested. The first round of each is left out: workers start in it. notes/cluster.md has
the table.
"""

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster as Raylets
from speed import machine

from clustering import options
from coterie import METHODS
from coterie.boundary import Boundary
from coterie.contrib.ray.cluster import Cluster
from coterie.core import Round
from coterie.engines import rounds as inprocess
from coterie.engines.workers import Hardware
from coterie.runs.run import world_of

OUT = Path(__file__).resolve().parent / "results" / "ray.json"
SIZES = {"full": (20, 4, 3), "small": (4, 2, 1)}
"""Clients, rounds, and repeats."""
SCENARIO = "digits/label-permutation"
MODEL = "acfl-cnn"
FEW = ("fedavg", "cfl")  # one whose means are made on the nodes, one whose updates travel
NODE: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 256 << 20}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each method in each way, and write the medians."""
    chosen = options(argv, __doc__, OUT)
    clients, rounds, repeats = SIZES[chosen.scale]
    maker = partial(
        world_of,
        json.dumps({"scenario": {"name": SCENARIO, "clients": clients, "model": MODEL}}),
        0,
    )
    world = maker()
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        for way, remote, workers in ways(maker):
            for method in FEW:
                made = inprocess.rounds(
                    METHODS[method](),
                    world,
                    rounds=rounds,
                    workers=workers,
                    eval_every=rounds,
                    remote=remote,
                )
                times.setdefault((method, way), []).append(seconds(made))
    found = {
        "scale": chosen.scale, "machine": machine.described("cpu"),
        "scenario": SCENARIO, "model": MODEL, "clients": clients, "rounds": rounds, "repeats": repeats,
        "versions": machine.versions(),
        "rows": [
            {"method": method, "way": way, "seconds": statistics.median(each), "least": min(each), "most": max(each)}
            for (method, way), each in times.items()
        ],
    }  # fmt: skip
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


def ways(maker: Any) -> Iterator[tuple[str, Cluster | None, int]]:
    """(name, cluster, workers) of each way to run; a cluster ends as the next way begins."""
    yield "in process, 1 worker", None, 1
    yield "in process, 2 workers", None, 2
    for count in (1, 2):
        with nodes(count, maker) as cluster:
            yield f"{count} node{'s' * (count > 1)} with one core", cluster, 1


@contextmanager
def nodes(count: int, maker: Any) -> Iterator[Cluster]:
    """A Ray cluster of some raylets with one core each."""
    raylets = Raylets(initialize_head=True, head_node_args=dict(NODE))
    for _ in range(count - 1):
        raylets.add_node(**NODE)
    ray.init(address=raylets.address, log_to_driver=False, logging_level="ERROR")
    try:
        with Cluster(maker, Boundary(), 0, Hardware()) as cluster:
            yield cluster
    finally:
        ray.shutdown()
        raylets.shutdown()


def seconds(rounds: Iterator[Round]) -> float:
    """Seconds per round, the first and the test left out."""
    next(rounds)
    start, last, number = time.perf_counter(), 0.0, 0
    for done in rounds:
        last, number = time.perf_counter() - done.seconds["evaluate"], number + 1
    return (last - start) / number


if __name__ == "__main__":
    main()
