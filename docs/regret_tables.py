"""Tables of the study of regret, of what ``benchmarks/study/regret.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from measured import table

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from study import regret_summary  # noqa: E402
from study.frozen import frozen  # noqa: E402
from study.regret_summary import Row  # noqa: E402
from study.regret_worlds import KINDS, SIZES  # noqa: E402

REGRET = BENCHMARKS / "results" / "regret.jsonl"
SETTINGS = tomllib.loads((BENCHMARKS / "study" / "regret.toml").read_text())
COMMAND = "python benchmarks/study/regret.py --out benchmarks/results/regret.jsonl --data DIR"
JUDGED = "auto"

ANSWERS: Mapping[str, float] = {"all": 1.0, "three-in-ten": 0.3}
"""How many answer, in a marker -> their share."""


def rows() -> list[Row]:
    """All runs at the frozen settings, in the order of worlds and of methods."""
    found = [json.loads(line) for line in REGRET.read_text().splitlines()] if REGRET.is_file() else []
    found = [row for row in found if row["settings"] == frozen(SETTINGS, row["kind"], row["method"])]
    kinds, sizes, methods = list(KINDS), list(SIZES), list(SETTINGS["frozen"])

    def place(row: Row) -> tuple[int, int, float, int]:
        return kinds.index(row["kind"]), sizes.index(row["size"]), -row["participation"], methods.index(row["method"])

    return sorted(found, key=place)


def regret(what: str, answers: str, *sizes: str) -> str:
    """The ``totals``, ``accuracies`` or what is ``judged``, of worlds in which so many answer; of all sizes, or of some."""
    seen = [row for row in rows() if row["participation"] == ANSWERS[answers] and (not sizes or row["size"] in sizes)]
    if not seen:
        return f"Not measured yet: `{COMMAND}` does it.\n"
    of: Mapping[str, Callable[[], str]] = {
        "totals": lambda: regret_summary.totals(seen),
        "accuracies": lambda: regret_summary.accuracies(seen),
        "judged": lambda: regret_summary.judged(seen, JUDGED),
    }
    return of[what]()


def choices() -> str:
    """What the judged method chose at last in each world, and in how many runs."""
    lines = []
    for world, runs in regret_summary.by_world(rows()).items():
        last = [own["chosen"][-1] for own in runs.get(JUDGED, {}).values() if own["chosen"]]
        texts = [f"{text} ({last.count(text)})" if len(last) > 1 else text for text in dict.fromkeys(last)]
        if last:
            lines.append((regret_summary.named(world), "; ".join(texts)))
    return table(("world", "chosen"), lines) if lines else f"Not measured yet: `{COMMAND}` does it.\n"


PARTS: Mapping[str, Callable[..., str]] = {"regret": regret, "regret-choices": choices}
