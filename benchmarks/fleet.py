"""Accuracy by virtual time: rounds, deadlines and buffers, with and without groups.

    python benchmarks/fleet.py [--seeds 3] [--devices "measured phones"] [--scale small --out FILE]

Twenty clients of digits, a quarter of them with fast and a quarter with slow devices, or with
measured phones in the shares of a trace. All runs of a
method see about as many replies. The measure is the virtual time at which the mean accuracy first
is at a target, a share of what rounds that wait for all clients end with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import coterie
from coterie.contrib.fleet import MEASURED_PHONES, Timed
from coterie.report.virtual_time import IDLE_SECONDS, JOULES, LOST_SECONDS, SECONDS
from coterie.settings import UserError

OUT = Path(__file__).resolve().parent / "results" / "fleet.jsonl"

SCENARIOS = ("digits/iid", "digits/label-permutation")
METHODS = ("fedavg", "split-half")
NUM_CLIENTS = 20
REPLIES_OF_RUN = {"full": 800, "small": 40}
"""Scale -> replies that a run without losses has."""

FLEETS: Mapping[str, dict[str, Any]] = {
    "round numbers": {},
    "measured phones": {"devices": MEASURED_PHONES, "spread": 0.5},
}
"""Devices -> settings. The spread is that of the measured network."""

WAYS: Mapping[str, tuple[dict[str, Any], int]] = {
    "rounds": ({}, 20),
    "rounds, deadline 0.2 s": ({"deadline": 0.2}, 20),
    "rounds, 4 of 5 clients": ({"over_selection": 1.25}, 20),
    "buffer of 10": ({"mode": "buffered", "buffer": 10}, 10),
    "buffer of 5": ({"mode": "buffered", "buffer": 5}, 5),
    "asynchronous": ({"mode": "buffered", "buffer": 1}, 1),
}
"""Way of waiting -> settings, and replies for a step of the server."""


def measured(
    scenario: str, method: str, devices: str, way: str, seed: int, num_replies: int
) -> dict[str, Any]:
    """Run a method in virtual time: the row of results."""
    settings, replies_of_step = WAYS[way]
    # A step of the server counts as a round: periods in rounds become as long as before.
    if method == "split-half":
        longer = NUM_CLIENTS // replies_of_step
        inner: Any = coterie.METHODS[method](probe_every=4 * longer, review_every=8 * longer)
    else:
        inner = method
    num_rounds = num_replies // replies_of_step
    curve = []
    lost = 0.0
    idle = 0.0
    joules = 0.0
    world = coterie.SCENARIOS[scenario].build(seed)
    every = max(num_rounds // 40, 1)
    for done in coterie.run(
        Timed(method=inner, **FLEETS[devices], **settings),
        world,
        rounds=num_rounds,
        seed=seed,
        workers=1,
        eval_every=every,
    ):
        numbers = [note.numbers for note in done.notes if SECONDS in note.numbers]
        lost += sum(number[LOST_SECONDS] for number in numbers)
        idle += sum(number[IDLE_SECONDS] for number in numbers)
        joules += sum(number[JOULES] for number in numbers)
        if done.scores:
            accuracies = [score["accuracy"] for score in done.scores.values()]
            curve.append([round(numbers[-1][SECONDS], 3), round(fmean(accuracies), 4)])
    return {
        "scenario": scenario,
        "method": method,
        "devices": devices,
        "way": way,
        "seed": seed,
        "groups": len(done.groups),
        "curve": curve,
        "worst": round(min(accuracies), 4),
        "seconds": round(numbers[-1][SECONDS], 3),
        "lost": round(lost, 2),
        "idle": round(idle, 2),
        "joules": round(joules, 2),
    }


def case_of(row: Mapping[str, Any]) -> tuple[str, str, str, str, int]:
    """What tells a row from the others: the first five arguments of :func:`measured`."""
    return row["scenario"], row["method"], row["devices"], row["way"], row["seed"]


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--devices", choices=tuple(FLEETS), action="append", help="may be repeated (all)"
    )
    parser.add_argument("--scale", choices=tuple(REPLIES_OF_RUN), default="full")
    parser.add_argument("--out", type=Path, default=OUT)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options().parse_args(arguments)
    if asked.scale == "small" and asked.out == OUT:
        raise UserError("--scale small measures nothing: give another --out")
    rows = []
    if asked.out.is_file():
        rows = [json.loads(line) for line in asked.out.read_text().splitlines()]
    done = {case_of(row) for row in rows}
    for case in product(SCENARIOS, METHODS, asked.devices or FLEETS, WAYS, range(asked.seeds)):
        if case in done:
            continue
        row = measured(*case, REPLIES_OF_RUN[asked.scale])
        rows.append(row)
        print(*case, row["curve"][-1], row["groups"], flush=True)
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
