"""The default method with many clients and large models: seconds of the server and memory, round by round.

    python benchmarks/scale.py                     up to 10,000 clients and 100,000 parameters, in about half an hour
    python benchmarks/scale.py --scale small --out FILE     tiny sizes: that the code works, no measurement

Clients have synthetic data of four groups whose labels are permuted, 50 examples each. In twelve rounds, the groups are found
and reviewed twice. Every row is a run in a process of its own, so that its peak of memory is its own: that of the process in
which the server and the engine are. A row that ``results/scale.json`` has is not measured again. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def default(clients: int, features: int) -> dict[str, Any]:
    """A run: seconds of the server and of training in each round, memory, and from which round on the groups are right."""
    scenario = replace(
        SCENARIOS["synthetic/groups"], clients=clients, examples=EXAMPLES * clients, features=features, classes=CLASSES
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


def measure(scale: str, out: Path) -> None:
    """Measure the rows that are missing."""
    about = {"scale": scale, "machine": machine.described("cpu"), "versions": machine.versions()}
    rows = json.loads(out.read_text())["rows"] if out.is_file() else []
    for clients, features in SIZES[scale]:
        if (clients, CLASSES * (features + 1)) not in {(row["clients"], row["parameters"]) for row in rows}:
            rows.append(alone(default, clients, features))
            out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> None:
    chosen = options(argv, __doc__, OUT)
    measure(chosen.scale, chosen.out)


if __name__ == "__main__":
    main()
