"""Runs in bf16 beside the same runs in fp32: the accuracy at the end, the groups, and the time.

    python benchmarks/bf16.py --data DIR [--seeds 5] [--world digits]      adds to
    benchmarks/results/bf16.jsonl

A line per run; only runs without a line are made, so the script can be interrupted. Changed
settings need a new file. Nothing else should run meanwhile, for the times. notes/speed.md
shows the table. A processor without instructions for bf16 takes many times as long.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from result_file import append_result, read_results

from coterie.engines.rounds import rounds
from coterie.runs.experiment import make

OUT = Path(__file__).parent / "results" / "bf16.jsonl"

WORLDS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        "scenario": {"name": "digits/label-permutation"},
        "rounds": 40,
        "methods": ["fedavg", "cfl", "split-half"],
    },
    "MNIST": {
        "scenario": {"name": "mnist/label-swap", "clients": 40, "samples": 300, "model": "cfl-cnn"},
        "training": {"lr": 0.1, "batch": 10, "epochs": 3},
        "rounds": 30,
        "methods": [
            {"name": "fedavg", "fraction": 0.2},
            {"name": "flhc", "fraction": 0.2, "warmup": 5},
        ],
    },
    "CIFAR-10": {
        "scenario": {"name": "cifar10/half-normal", "model": "hcct-cnn-narrow"},
        "training": {"lr": 0.1, "lr_decay": 0.995, "batch": 64, "epochs": 1},
        "rounds": 25,
        "methods": ["fedavg", "hcct"],
    },
}
"""Name -> an experiment's settings."""

PRECISIONS = ("fp32", "bf16")
KEY = ("world", "method", "precision", "seed")
"""What a run is known by."""


def measured(
    world: str, number: int, precision: str, seed: int, data: str | None
) -> dict[str, Any]:
    """One run's end; ``number``: of the world's method."""
    place = {"data": data} if data else {}
    experiment = make({**WORLDS[world], **place, "precision": precision, "workers": 1})
    method, length = experiment.methods[number], experiment.rounds
    world_of_seed, how = experiment.world(seed), asdict(experiment.hardware())
    began = time.perf_counter()
    *_, last = rounds(method, world_of_seed, rounds=length, seed=seed, eval_every=length, **how)
    return {
        "world": world,
        "method": method.name,
        "precision": precision,
        "seed": seed,
        "accuracy": round(mean(score["accuracy"] for score in (last.scores or {}).values()), 4),
        "groups": [list(group) for group in last.assignment.groups],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--data", help="folder of the data sets' files")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--world", choices=WORLDS, help="only this one")
    options.add_argument("--out", type=Path, default=OUT)
    chosen = options.parse_args(argv)
    known = {tuple(row[name] for name in KEY) for row in read_results(chosen.out)}
    for world in [chosen.world] if chosen.world else WORLDS:
        methods = make(WORLDS[world]).methods
        for seed, number, precision in product(
            range(chosen.seeds), range(len(methods)), PRECISIONS
        ):
            if (world, methods[number].name, precision, seed) not in known:
                row = measured(world, number, precision, seed, chosen.data)
                append_result(chosen.out, row)
                print(row, flush=True)


if __name__ == "__main__":
    main()
