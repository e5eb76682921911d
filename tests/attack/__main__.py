"""``make attack``: the whole campaign, with a seed and a budget of time.

python -m attack [--seed N] [--minutes M] [--attempts N] [--only SUBJECT] [--json FILE]      from
the folder tests
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attack

SHOWN = 5
"""Failures of a point that are told."""


def subjects() -> list[str]:
    """The modules of the campaign, by name."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(attack.__path__)
        if not module.name.startswith("_")
    )


def play(subject: str, seed: int, seconds: float, most: int) -> dict[str, Any]:
    """What came of a subject's attempts, by point: how many, how many failed, and why the first; it ends in time."""
    module = importlib.import_module(f"attack.{subject}")
    tried: Counter[str] = Counter()
    failed: dict[str, list[str]] = {point: [] for point in module.POINTS}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for one in module.attempts(random.Random(seed), Path(folder)):
            tried[one.point] += 1
            if (why := one.failure()) is not None:
                failed[one.point].append(f"{one.name}: {why}")
            if time.monotonic() > end or tried.total() >= most:
                break
    return {
        point: {
            "promise": promise,
            "attempts": tried[point],
            "failed": len(failed[point]),
            "failures": failed[point][:SHOWN],
        }
        for point, promise in module.POINTS.items()
    }


def without(counts: dict[str, Any]) -> dict[str, Any]:
    """What is counted, without the failures' own words."""
    return {key: value for key, value in counts.items() if key != "failures"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all subjects together")
    parser.add_argument(
        "--attempts", type=int, default=sys.maxsize, help="at most so many of each subject"
    )
    parser.add_argument("--only", choices=subjects(), help="one subject alone")
    parser.add_argument(
        "--json", type=Path, help="write the counts here; those of other subjects stay"
    )
    asked = parser.parse_args()
    names = [asked.only] if asked.only else subjects()
    found: dict[str, Any] = {}
    for name in names:
        found[name] = play(name, asked.seed, 60 * asked.minutes / len(names), asked.attempts)
        for point, counts in found[name].items():
            print(
                f"{name}: {point}: {counts['attempts']} attempts, {counts['failed']} failures",
                flush=True,
            )
            for why in counts["failures"]:
                print(f"    {why}", flush=True)
    if asked.json:
        before = json.loads(asked.json.read_text())["subjects"] if asked.json.is_file() else {}
        counts = {
            name: {point: without(one) for point, one in points.items()}
            for name, points in found.items()
        }
        asked.json.write_text(
            json.dumps({"seed": asked.seed, "subjects": {**before, **counts}}, indent=1) + "\n"
        )
    return any(counts["failed"] for points in found.values() for counts in points.values())


if __name__ == "__main__":
    sys.exit(main())
