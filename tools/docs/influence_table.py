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
COST = ROOT / "benchmarks" / "results" / "protection-cost.jsonl"
HOSTILE_LEVEL = ROOT / "benchmarks" / "results" / "hostile-level.json"
BACKDOOR = ROOT / "benchmarks" / "results" / "backdoor.jsonl"

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
    """A row per world and method: what protection changes where no client is hostile."""
    scores: dict[tuple[str, str], dict[int, dict[int, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in _rows_of_file(COST):
        scores[row["world"], row["method"]][row["seed"]][row["protected"]] = row["score"]
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    methods = set()
    for (world, method), score_of_seed in scores.items():
        differences = []
        for score in score_of_seed.values():
            if len(score) == 2:
                differences.append(score[0] - score[1])
        if differences:
            cells[world][method] = _with_error(differences)
            methods.add(method)
    lines = []
    for world in sorted(cells):
        lines.append((f"`{world}`", *(cells[world].get(method, "") for method in sorted(methods))))
    head = ("world", *(f"`{method}`" for method in sorted(methods)))
    return table(head, lines, "l" + "r" * len(methods))


def _with_error(differences: list[float]) -> str:
    """The mean over seeds with its standard error, and the number of seeds: ``.010 ± .004 (5)``."""
    # No minus sign before a mean that rounds to zero.
    mean = round(statistics.mean(differences), 3) + 0.0
    if len(differences) == 1:
        return f"{mean:.3f} (1)"
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return f"{mean:.3f} ± {error:.3f} ({len(differences)})"


def backdoor() -> str:
    """A row per method: the success of a backdoor, and the accuracy on clean images."""
    values: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows_of_file(BACKDOOR):
        values[row["method"], row["hostile"], row["protected"]].append(row)
    lines = []
    for method in sorted({method for method, _, _ in values}):
        cells = []
        for hostile, protected in ((0, 0), (1, 0), (1, 1)):
            rows = values[method, hostile, protected]
            for name in ("success", "accuracy"):
                cells.append(f"{statistics.mean(row[name] for row in rows):.3f}" if rows else "")
        seeds = len(values[method, 1, 1])
        lines.append((f"`{method}`", *cells, str(seeds)))
    head = (
        "method",
        "none hostile: success",
        "accuracy",
        "without protection: success",
        "accuracy",
        "with protection: success",
        "accuracy",
        "seeds",
    )
    return table(head, lines, "lrrrrrrr")


def _rows_of_file(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _lines() -> list[str]:
    return MEASURED.read_text().splitlines() if MEASURED.is_file() else []


def hostile_level() -> str:
    """A row per ``robust.hostile``: how often a test splits clients that are alike, and finds two or three that differ."""
    lines = []
    for row in json.loads(HOSTILE_LEVEL.read_text()):
        lines.append(
            (
                str(row["hostile"]),
                f"{row['split_alike']:.4f}",
                f"{row['found_2']:.3f}",
                f"{row['found_3']:.3f}",
            )
        )
    head = (
        "`robust.hostile`",
        "one distribution: split",
        "two differ: found",
        "three differ: found",
    )
    return table(head, lines, "rrrr")
