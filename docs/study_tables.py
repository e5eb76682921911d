"""Tables of the study of clustering without thresholds, of what ``benchmarks/study/run.py`` measured; :mod:`generate` puts
them in."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from measured import table

STUDY = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "study.jsonl"
SETTINGS = STUDY.parents[1] / "study" / "settings.toml"
NOTHING = "–"

Row = Mapping[str, Any]


def rows() -> list[Row]:
    """The runs at frozen settings in which everybody answers."""
    frozen = tomllib.loads(SETTINGS.read_text())["frozen"]
    found = [json.loads(line) for line in STUDY.read_text().splitlines()] if STUDY.is_file() else []
    return [row for row in found if row["settings"] == frozen[row["method"]] and row["participation"] == 1.0]


def study(what: str, size: str) -> str:
    """A table of one measure: a row per world, a column per method, at frozen settings with everybody answering."""
    of = {"ari": _ari, "rounds": _rounds, "accuracy": _accuracy, "cut": _cut, "bytes": _bytes}[what]
    seen = [row for row in rows() if row["size"] == size]
    methods = list(dict.fromkeys(row["method"] for row in seen))
    kinds = list(dict.fromkeys(row["kind"] for row in seen))
    if not seen:
        return "Not measured yet: `python benchmarks/study/run.py --out benchmarks/results/study.jsonl` does it.\n"
    lines = []
    for kind in kinds:
        cells = [of([row for row in seen if (row["kind"], row["method"]) == (kind, method)]) for method in methods]
        lines.append((f"`{kind}`", *cells))
    return table(("world", *(f"`{method}`" for method in methods)), lines, "l" + "r" * len(methods))


def _each(own: Sequence[Row], key: str) -> list[float]:
    return [row[key] for row in own if row[key] is not None]


def _ari(own: Sequence[Row]) -> str:
    values = _each(own, "ari")
    return f"{mean(values):.2f}" if values else NOTHING


def _rounds(own: Sequence[Row]) -> str:
    """The median round, of the seeds that came to be right, and how many did."""
    if not own or own[0]["true_groups"] is None:
        return NOTHING
    right = _each(own, "right_from")
    return f"{median(right):g} ({len(right)} of {len(own)})" if right else f"never (0 of {len(own)})"


def _cut(own: Sequence[Row]) -> str:
    return f"{sum(row['cut'] for row in own)} of {len(own)}" if own and own[0]["true_groups"] else NOTHING


def _accuracy(own: Sequence[Row]) -> str:
    return f"{mean(_each(own, 'accuracy')):.3f}, {mean(_each(own, 'worst')):.3f}" if own else NOTHING


def _bytes(own: Sequence[Row]) -> str:
    return f"{mean(_each(own, 'bytes')) / 1e6:.1f} MB" if own else NOTHING


def summary(part: str = "") -> str:
    """One line per method over the worlds that have true groups and enough examples."""
    seen = [row for row in rows() if row["size"] == "many" and (row["true_groups"] or 0) > 1 and row["kind"] != "adversaries"]
    methods = list(dict.fromkeys(row["method"] for row in seen))
    lines = []
    for method in methods:
        own = [row for row in seen if row["method"] == method]
        worlds = {kind: mean(row["ari"] for row in own if row["kind"] == kind) for kind in _kinds(own)}
        worst = min(worlds, key=lambda kind: worlds[kind])
        right = _each(own, "right_from")
        lines.append((
            f"`{method}`", f"{mean(worlds.values()):.2f}", f"{worlds[worst]:.2f} (`{worst}`)",
            f"{len(right)} of {len(own)}", f"{median(right):g}" if right else NOTHING,
            f"{mean(_each(own, 'accuracy')):.3f}", f"{mean(_each(own, 'bytes')) / 1e6:.1f} MB",
        ))  # fmt: skip
    head = ("method", "adjusted Rand", "least world", "right at the end", "from round", "accuracy", "bytes")
    return table(head, lines, "lrrrrrr") if lines else "Not measured yet.\n"


def _kinds(own: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["kind"] for row in own))


PARTS: Mapping[str, Callable[..., str]] = {"study": study, "study-summary": summary}
