"""HCCT with cosines of whole updates and of the signals in them, in worlds of the study, at three tradeoffs.

    python benchmarks/hcct_signals.py [SEEDS] [ROUNDS]      writes
    benchmarks/results/hcct-signals.json

A row per world, tradeoff and way to take cosines: the mean adjusted Rand index at the end, in how
many of the runs the groups were exactly the true ones, how many groups there were, the mean
accuracy, and the bytes sent up. The card docs/methods/hcct.md quotes the tables.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from coterie.engines import rounds as inprocess
from coterie.methods import HCCT
from coterie.report.summary import agreement

sys.path.insert(0, str(Path(__file__).resolve().parent))

from study.worlds import scenario

OUT = Path(__file__).parent / "results" / "hcct-signals.json"

WORLDS = ("iid", "permutations-4", "swaps-4", "rotations-4")
TRADEOFFS = (0.5, 0.7, 1.0)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "updates": {},
    "signals": {"cosines": "signals"},
    "signals in every epoch": {"cosines": "signals", "partition_every": 1},
}
"""Name -> settings. The last is measured at the tradeoff in the middle alone, and so is all with
few examples."""


def measured(kind: str, size: str, method: HCCT, seed: int, rounds: int) -> dict[str, Any]:
    """One run's end."""
    world = scenario(kind, size).build(seed)
    played = list(
        inprocess.rounds(method, world, rounds=rounds, seed=seed, workers=1, eval_every=rounds)
    )
    groups, scores = played[-1].assignment.groups, played[-1].scores or {}
    return {
        "ari": agreement(groups, world.truth),
        "exact": groups == world.truth,
        "groups": len(groups),
        "accuracy": mean(score["accuracy"] for score in scores.values()),
        "bytes_up": sum(done.bytes_up for done in played),
    }


def row(kind: str, size: str, way: str, tradeoff: float, seeds: int, rounds: int) -> dict[str, Any]:
    method = HCCT(tradeoff=tradeoff, **WAYS[way])
    runs = [measured(kind, size, method, seed, rounds) for seed in range(seeds)]
    return {
        "world": kind,
        "size": size,
        "way": way,
        "tradeoff": tradeoff,
        "runs": seeds,
        "ari": round(mean(run["ari"] for run in runs), 3),
        "exact": sum(run["exact"] for run in runs),
        "groups": sorted(run["groups"] for run in runs),
        "accuracy": round(mean(run["accuracy"] for run in runs), 4),
        "bytes_up": round(mean(run["bytes_up"] for run in runs)),
    }


def main(seeds: int = 5, rounds: int = 40) -> None:
    torch.set_num_threads(1)
    rows = []
    for size in ("many", "few"):
        for kind in WORLDS:
            for way in WAYS:
                for tradeoff in (
                    TRADEOFFS
                    if size == "many" and way in ("updates", "signals")
                    else TRADEOFFS[1:2]
                ):
                    rows.append(row(kind, size, way, tradeoff, seeds, rounds))
                    print(json.dumps(rows[-1]), flush=True)
    OUT.write_text(json.dumps({"method": "hcct", "rounds": rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
