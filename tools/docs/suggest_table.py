"""Tables of what methods find with suggested settings, of what ``benchmarks/suggest.py`` and ``benchmarks/agreement.py``
measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measured import table

SUGGEST = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "suggest.json"
MISSING = "Not measured yet: `python benchmarks/suggest.py` does it.\n"
AGREEMENT = SUGGEST.with_name("agreement.json")
NO_AGREEMENT = "Not measured yet: `python benchmarks/agreement.py --data DIR` does it.\n"
SURE = ("clear", "narrow", "none")

Run = Mapping[str, Any]


def worlds() -> str:
    """A row per world and method: how sure the suggestions were, and what came of them."""
    if not SUGGEST.is_file():
        return MISSING
    found, rows, title = json.loads(SUGGEST.read_text()), [], ""
    for row in found["rows"]:
        runs, new = row["runs"], row["world"] != title
        title = row["world"]
        given = [run for run in runs if "same" in run]
        rows.append(
            (
                title if new else "",
                f"{row['found']} of {len(runs)}" if new else "",
                f"`{row['method']}`",
                ", ".join(str(sum(run["sure"] == sure for run in runs)) for sure in SURE),
                _of(run["same"]["found"] for run in given),
                _of(run["other"]["found"] for run in given),
                _of(run["same"]["true"] for run in given),
                _of(run["default"]["true"] for run in runs),
            )
        )
    head = (
        "digits, 20 clients",
        "finding is the truth",
        "method",
        "clear, narrow, none",
        "finds the finding",
        "from another first model",
        "finds the truth",
        "with its defaults",
    )
    return table(head, rows, "lrlrrrrr")


def sureness() -> str:
    """How often a method found the groups again, by how sure its suggestion was: both first models counted."""
    if not SUGGEST.is_file():
        return MISSING
    kept = json.loads(SUGGEST.read_text())["rows"]
    methods = list(dict.fromkeys(row["method"] for row in kept))
    rows = []
    for sure in SURE[:2]:
        cells = []
        for method in methods:
            runs: Sequence[Run] = [
                run
                for row in kept
                if row["method"] == method
                for run in row["runs"]
                if run["sure"] == sure
            ]
            cells.append(_of(run[first]["found"] for run in runs for first in ("same", "other")))
        rows.append((sure, *cells))
    return table(("sure", *(f"`{method}`" for method in methods)), rows, "l" + "r" * len(methods))


def agreement() -> str:
    """A row per world: how often suggestions and split-half, by itself and with the options suggested, found the groups."""
    if not AGREEMENT.is_file():
        return NO_AGREEMENT
    found = json.loads(AGREEMENT.read_text())
    rows = []
    for world in dict.fromkeys(row["world"] for row in found["rows"]):
        runs = [row for row in found["rows"] if row["world"] == world]
        early, late = (
            _of(run["default"][str(found[name])]["right"] for run in runs)
            for name in ("probed_after", "rounds")
        )
        led = _of(run["suggested"]["right"] for run in runs if "suggested" in run)
        cells = (
            _of(run["suggest"]["right"] for run in runs),
            early,
            late,
            led,
            _of(run["of its run"]["same"] for run in runs),
        )
        rows.append((world, *cells))
    head = (
        "8 clients",
        f"suggestion after {found['probed_after']} rounds",
        f"split-half, {found['probed_after']} rounds",
        f"split-half, {found['rounds']} rounds",
        "split-half as suggested",
        f"suggestion for split-half's {found['rounds']} rounds: its groups",
    )
    return table(head, rows, "lrrrrr")


def _of(right: Iterable[bool]) -> str:
    all_ = list(right)
    return f"{sum(all_)} of {len(all_)}" if all_ else "–"


PARTS: Mapping[str, Callable[..., str]] = {
    "suggested-worlds": worlds,
    "suggested-sure": sureness,
    "agreement": agreement,
}
