"""Is one default as good as the best method, in every world? Every method over every world, a line of JSON per run.

    python benchmarks/study/regret.py --out benchmarks/results/regret.jsonl.gz [--only KIND,...]
        [--methods NAME,...] [--sizes many,few] [--participation 1.0,0.3] [--seeds 0,1] [--data DIR]
        [--part 0/2]
    python benchmarks/study/regret.py --summary benchmarks/results/regret.jsonl.gz [--of auto]

As :mod:`study.run`, whose runs these are, but that in all of them clients hold out validation data,
and that accuracies are written of each client. Runs that the file already has are left out; methods
that Coterie does not have are, with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from result_file import append_result, read_results

from coterie.contrib.bench.held_out import distinct_tests
from coterie.contrib.bench.kinds import SIZES, WORLD_KINDS, needs_files, scenario, sizes
from coterie.core import Note, Round
from coterie.data.world import World
from coterie.methods import METHODS
from coterie.robust import AS_PUBLISHED, Robust
from coterie.settings import build
from study import regret_summary
from study.frozen import frozen
from study.run import KEY, Run, followed, with_files

SETTINGS = tomllib.loads((Path(__file__).parent / "regret.toml").read_text())

CHOICES = {"lead": "the clients now use ", "drop": "clients stop training "}
"""Kinds of notes that say what a method chose -> the words before that."""


def measured(run: Run, folder: str | None = None) -> dict[str, Any]:
    """One run, as :data:`study.run.KEY` says it."""
    kind, size, participation, method, how, seed = run
    world = scenario(kind, size, participation).build(seed, folder)
    # With adversaries, every method has the limits that a run has by default then.
    robust = Robust() if world.attacks else AS_PUBLISHED
    built = build(METHODS[method], how)
    row, last, notes = followed(built, world, seed, SETTINGS["rounds"], robust)
    clients = {"accuracies": accuracies(last, world), "tests": distinct_tests(world.clients)}
    return {**dict(zip(KEY, run, strict=True)), **row, **clients, "chosen": chosen(notes)}


def accuracies(last: Round, world: World) -> list[float | None]:
    """The accuracy of each client after the last round, by id; None of adversaries."""
    scores = last.scores or {}
    return [
        None if client in world.attacks else scores[client]["accuracy"]
        for client in sorted(world.clients)
    ]


def chosen(notes: Iterable[Note]) -> list[list[str]]:
    """What was chosen, in order: the kind of the note, and what began to serve clients or was trained no more."""
    return [
        [note.kind, note.text.removeprefix(CHOICES[note.kind]).partition(":")[0]]
        for note in notes
        if note.kind in CHOICES
    ]


def known(methods: Sequence[str]) -> list[str]:
    """The methods that Coterie has; the others are named on stderr."""
    missing = [method for method in methods if method not in METHODS]
    if missing:
        print(
            f"left out, because Coterie does not have them: {', '.join(missing)}", file=sys.stderr
        )
    return [method for method in methods if method in METHODS]


def runs(asked: argparse.Namespace, kinds: Sequence[str], methods: Sequence[str]) -> list[Run]:
    """All that was asked for, one seed after the other."""
    return [
        (kind, size, share, method, frozen(SETTINGS, kind, method), seed)
        for seed in map(int, asked.seeds.split(","))
        for share in map(float, asked.participation.split(","))
        for size in asked.sizes.split(",")
        for kind in kinds
        if size in sizes(kind)
        for method in methods
    ]


def joined(values: Iterable[Any]) -> str:
    """Values as an option's text."""
    return ",".join(map(str, values))


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and append to this file")
    what.add_argument("--summary", type=Path, help="print the tables of this file")
    parser.add_argument("--of", default="auto", help="the method that is judged")
    parser.add_argument("--only", default=joined(WORLD_KINDS))
    parser.add_argument("--methods", default=joined(SETTINGS["frozen"]))
    parser.add_argument("--sizes", default=joined(SIZES))
    parser.add_argument("--participation", default=joined(SETTINGS["participation"]))
    parser.add_argument("--seeds", default=joined(SETTINGS["seeds"]))
    parser.add_argument(
        "--data",
        default=os.environ.get("COTERIE_DATA"),
        help="folder of MNIST and the like (COTERIE_DATA)",
    )
    parser.add_argument("--part", default="0/1")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options().parse_args(arguments)
    if asked.summary:
        print(regret_summary.page(read_results(asked.summary), asked.of), end="")
        return 0
    torch.set_num_threads(1)
    place, parts = map(int, asked.part.split("/"))
    kinds = with_files(asked.only.split(","), asked.data, needs_files)
    there = {_key([row[key] for key in KEY]) for row in read_results(asked.out)}
    for run in runs(asked, kinds, known(asked.methods.split(",")))[place::parts]:
        if _key(run) not in there:
            row = measured(run, asked.data)
            append_result(asked.out, row)
            print(
                *(
                    row[key]
                    for key in (
                        "kind",
                        "size",
                        "participation",
                        "method",
                        "seed",
                        "accuracy",
                        "seconds",
                    )
                ),
                flush=True,
            )
    return 0


def _key(run: Sequence[Any]) -> str:
    return json.dumps(list(run))


if __name__ == "__main__":
    raise SystemExit(main())
