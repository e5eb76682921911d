"""Clustering without thresholds, measured: every method over every world, a line of JSON per run.

    python benchmarks/study/run.py --out benchmarks/results/study.jsonl [--only KIND,...] [--methods
        NAME,...] [--oracle] [--sizes many,few] [--participation 1.0,0.3] [--seeds 0,1] [--data DIR]
        [--part 0/2]

Runs that the file already has are left out, so it can be stopped and started again. ``--part i/n``
does every n-th run, for n processes at a time. Worlds whose files are nowhere are left out too,
with a sentence. What is written: the adjusted Rand index of the last round's groups, the round from
which they are right until the end, whether ever a true group was cut, accuracies, bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import append_result, read_results

from coterie.contrib.bench.kinds import SIZES
from coterie.core import Groups, Method, Note, Round, as_groups
from coterie.data.world import World
from coterie.engines import rounds
from coterie.methods import METHODS
from coterie.report.summary import agreement
from coterie.robust import AS_PUBLISHED, Robust
from coterie.settings import build
from study.frozen import frozen
from study.worlds import KINDS, needs_files, scenario, sizes

SETTINGS = tomllib.loads((Path(__file__).parent / "settings.toml").read_text())


def settings(
    kind: str, methods: Sequence[str], oracle: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(method, its settings) in a world: frozen, or every combination that an oracle may choose from."""
    for method in methods:
        if not oracle:
            yield method, frozen(SETTINGS, kind, method)
            continue
        grid = SETTINGS["oracle"].get(method, {})
        for values in itertools.product(*grid.values()) if grid else ():
            yield method, dict(zip(grid, values, strict=True))


Run = tuple[str, str, float, str, dict[str, Any], int]


def among(groups: Groups, clients: Sequence[int]) -> Groups:
    """The groups of some clients: adversaries are nobody's, wherever they are."""
    return as_groups(part for group in groups if (part := [c for c in group if c in clients]))


def cut(groups: Groups, truth: Groups) -> bool:
    """Whether a true group is in several groups."""
    return any(
        len({i for i, group in enumerate(groups) if set(group) & set(true)}) > 1 for true in truth
    )


def measured(run: Run, folder: str | None = None) -> dict[str, Any]:
    """One run, as :data:`KEY` says it."""
    kind, size, participation, method, how, seed = run
    world = scenario(kind, size, participation).build(seed, folder)
    row, _, _ = followed(build(METHODS[method], how), world, seed, SETTINGS["rounds"])
    return {**dict(zip(KEY, run, strict=True)), **row}


def followed(
    method: Method[Any], world: World, seed: int, last: int, robust: Robust = AS_PUBLISHED
) -> tuple[dict[str, Any], Round, list[Note]]:
    """Run a method in a world for ``last`` rounds: its row, its last round, and all notes."""
    clients, began = sorted(set(world.clients) - set(world.attacks)), time.perf_counter()
    truth = None if world.truth is None else among(world.truth, clients)
    right, false, total, notes = None, False, 0, list[Note]()
    options = {
        "rounds": last,
        "seed": seed,
        "workers": 1,
        "eval_every": 1000,
        "robust": robust,
    }
    for done in rounds.rounds(method, world, **options):
        total += done.bytes_up + done.bytes_down
        notes += done.notes
        if truth is None:
            continue
        groups = among(done.assignment.groups, clients)
        right = (right or done.number) if groups == truth else None
        false = false or cut(groups, truth)
    honest = [
        score["accuracy"]
        for client, score in (done.scores or {}).items()
        if client not in done.adversaries
    ]
    row = {
        "ari": agreement(among(done.assignment.groups, clients), truth),
        "groups": len(done.assignment.groups),
        "true_groups": len(truth) if truth else None,
        "right_from": right,
        "cut": false,
        "accuracy": float(np.mean(honest)),
        "worst": float(np.min(honest)),
        "bytes": total,
        "seconds": round(time.perf_counter() - began, 2),
    }
    return row, done, notes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--methods", default=",".join(SETTINGS["frozen"]))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--participation", default="1.0")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--seeds", default=",".join(map(str, SETTINGS["seeds"])))
    parser.add_argument(
        "--data",
        default=os.environ.get("COTERIE_DATA"),
        help="folder of MNIST and the like (COTERIE_DATA)",
    )
    parser.add_argument("--part", default="0/1")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    place, parts = map(int, asked.part.split("/"))
    kinds = with_files(asked.only.split(","), asked.data)
    there = {json.dumps([row[key] for key in KEY]) for row in read_results(asked.out)}
    for run in runs(asked, kinds)[place::parts]:
        if json.dumps(list(run)) not in there:
            row = measured(run, asked.data)
            append_result(asked.out, row)
            print(
                *(
                    row[key]
                    for key in ("kind", "size", "method", "seed", "ari", "right_from", "seconds")
                ),
                flush=True,
            )
    return 0


def runs(asked: argparse.Namespace, kinds: Sequence[str]) -> list[Run]:
    """All that was asked for."""
    return [
        (kind, size, share, method, how, seed)
        for kind in kinds
        for size in asked.sizes.split(",")
        if size in sizes(kind)
        for share in map(float, asked.participation.split(","))
        for method, how in settings(kind, asked.methods.split(","), asked.oracle)
        for seed in map(int, asked.seeds.split(","))
    ]


def with_files(
    worlds: Sequence[str], folder: str | None, needed: Callable[[str], bool] = needs_files
) -> list[str]:
    """The worlds whose data are there."""
    without = [world for world in worlds if needed(world) and not folder]
    if without:
        print(
            f"left out, because files are missing: {', '.join(without)}; give --data DIR or set COTERIE_DATA",
            file=sys.stderr,
        )
    return [world for world in worlds if world not in without]


KEY = ("kind", "size", "participation", "method", "settings", "seed")
"""The key of a run."""

if __name__ == "__main__":
    raise SystemExit(main())
