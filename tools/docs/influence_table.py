"""The table of what hostile clients take from the honest ones, of what ``benchmarks/influence.py`` measured;
:mod:`generate` puts it in.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from measured import table

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "influence.jsonl"

GROUPS = "digits/label-permutation"


def rows_of(world: str) -> list[dict[str, Any]]:
    """The measured cases of a scenario."""
    return [row for row in map(json.loads, _lines()) if row["world"] == world]


def losses(rows: list[dict[str, Any]]) -> dict[tuple[int, str, bool], dict[str, list[float]]]:
    """(number of hostile clients, method, protected) -> attack -> what each seed loses, against no attack and no protection."""
    calm = {}
    for row in rows:
        if row["attack"] == "none" and not row["protected"]:
            calm[row["hostile"], row["method"], row["seed"]] = row["accuracy"]
    lost: dict[tuple[int, str, bool], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        before = calm.get((row["hostile"], row["method"], row["seed"]))
        if before is not None:
            case = (row["hostile"], row["method"], row["protected"] > 0)
            lost[case][row["attack"]].append(before - row["accuracy"])
    return lost


def influence() -> str:
    """A row per number of hostile clients and method: what the worst attack takes, without and with protection."""
    lost = losses(rows_of(GROUPS))
    if not lost:
        return "Not measured yet: `python benchmarks/influence.py` does it.\n"
    lines = []
    for hostile, method in sorted({(hostile, method) for hostile, method, _ in lost}):
        without = dict(lost.get((hostile, method, False), {}))
        protected = dict(lost.get((hostile, method, True), {}))
        without.pop("none", None)
        no_attack = protected.pop("none", None)
        if not protected:
            continue
        lines.append(
            (
                str(hostile),
                f"`{method}`",
                *_worst(without),
                *_worst(protected),
                "" if no_attack is None else f"{statistics.mean(no_attack):.3f}",
            )
        )
    head = (
        "hostile",
        "method",
        "without protection",
        "worst attack",
        "with protection",
        "worst attack",
        "no attack",
    )
    return table(head, lines, "rlrlrlr")


def _worst(lost: dict[str, list[float]]) -> tuple[str, str]:
    """The mean over seeds of what the worst attack takes, and how many attacks and seeds there were."""
    if not lost:
        return "", ""
    attack = max(lost, key=lambda name: statistics.mean(lost[name]))
    seeds = len(lost[attack])
    return (
        f"{statistics.mean(lost[attack]):.3f}",
        f"`{attack}` (of {len(lost)}; {seeds} {'seed' if seeds == 1 else 'seeds'})",
    )


def influence_honest() -> str:
    """A row per scenario: what protection changes where no client is hostile, for each method."""
    differences: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    worlds = sorted({json.loads(line)["world"] for line in _lines()})
    for world in worlds:
        rows = [row for row in rows_of(world) if row["attack"] == "none" and row["hostile"] == 1]
        accuracies = {
            (row["method"], row["seed"], row["protected"]): row["accuracy"] for row in rows
        }
        for (method, seed, protected), accuracy in accuracies.items():
            if protected == 1 and (method, seed, 0) in accuracies:
                differences[world][method].append(accuracies[method, seed, 0] - accuracy)
    methods = sorted({method for of_world in differences.values() for method in of_world})
    lines = []
    for world, of_world in differences.items():
        cells = []
        for method in methods:
            lost = of_world.get(method)
            cells.append(f"{statistics.mean(lost):.3f}" if lost else "")
        lines.append((f"`{world}`", *cells))
    head = ("scenario", *(f"`{method}`" for method in methods))
    return table(head, lines, "l" + "r" * len(methods))


def _lines() -> list[str]:
    return MEASURED.read_text().splitlines() if MEASURED.is_file() else []
