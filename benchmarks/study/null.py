"""Does split-half keep its level? Many runs in which nobody differs, a line of JSON per run.

    python benchmarks/study/null.py --out benchmarks/results/null.jsonl [--only digits,mnist,...]
        [--seeds 0,1] [--data DIR] [--part 0/2]

Runs that the file already has are left out, so it can be stopped and started again. Worlds: digits
and MNIST as in the study, 50 seeds each; and ten seeds each of what may upset a test that takes
noise for Gaussian and steps for independent: momentum, BatchNorm, an LSTM. What is written: the
p-values of all probes, in turn, and how often a group was split.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import append_result, read_results

from coterie.core import Training
from coterie.data.scenario import Scenario
from coterie.engines import rounds as inprocess
from coterie.methods import SplitHalf
from coterie.robust import AS_PUBLISHED
from study.run import SETTINGS, with_files
from study.worlds import in_files, scenario

_DIGITS, _MNIST = scenario("iid", "many"), scenario("mnist-iid", "many")
_WORDS = {
    "dataset": "ag_news",
    "vocabulary": 1000,
    "length": 10,
    "samples": 178,
    "model": "study.nets:words",
}

WORLDS: Mapping[str, tuple[Scenario, int]] = {
    "digits": (_DIGITS, 50),
    "mnist": (_MNIST, 50),
    "momentum": (
        replace(_DIGITS, training=Training(lr=0.02, momentum=0.9, batch=10, epochs=3)),
        10,
    ),
    "batchnorm": (replace(_DIGITS, model="study.nets:normed"), 10),
    "lstm": (
        replace(_DIGITS, **_WORDS, training=Training(lr=1.0, clip=0.25, batch=20, epochs=1)),
        10,
    ),
}
"""Name -> scenario, and how many seeds."""

PROBES = ("keep", "hold", "split")
"""Kinds of notes that say what a probe found; those of reviews are others."""


def measured(name: str, seed: int, folder: str | None = None) -> dict[str, Any]:
    """One run of split-half at its defaults; each probe's p-value, kept to three digits, is in its note."""
    began, notes, rounds = time.perf_counter(), [], SETTINGS["rounds"]
    world = WORLDS[name][0].build(seed, folder)
    for done in inprocess.rounds(
        SplitHalf(),
        world,
        rounds=rounds,
        seed=seed,
        workers=1,
        eval_every=1000,
        robust=AS_PUBLISHED,
    ):
        notes += [note for note in done.notes if note.kind in PROBES and "p" in note.numbers]
    return {
        "world": name,
        "seed": seed,
        "rounds": rounds,
        "splits": sum(note.kind == "split" for note in notes),
        "p": [float(f"{note.numbers['p']:.3g}") for note in notes],
        "seconds": round(time.perf_counter() - began, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(WORLDS))
    parser.add_argument("--seeds", help="in place of each world's own")
    parser.add_argument(
        "--data",
        default=os.environ.get("COTERIE_DATA"),
        help="folder of MNIST and AG News (COTERIE_DATA)",
    )
    parser.add_argument("--part", default="0/1")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    place, parts = map(int, asked.part.split("/"))
    names = with_files(asked.only.split(","), asked.data, lambda name: in_files(WORLDS[name][0]))
    there = {(row["world"], row["seed"]) for row in read_results(asked.out)}
    runs = [(name, seed) for name in names for seed in _seeds(asked.seeds, WORLDS[name][1])]
    for name, seed in runs[place::parts]:
        if (name, seed) not in there:
            row = measured(name, seed, asked.data)
            append_result(asked.out, row)
            print(
                name,
                seed,
                "least p",
                min(row["p"]),
                "splits",
                row["splits"],
                row["seconds"],
                flush=True,
            )
    return 0


def _seeds(asked: str | None, count: int) -> Sequence[int]:
    return range(count) if asked is None else [int(seed) for seed in asked.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
