"""Tables of whether the split-half test keeps its level, in runs and in simulation: of what ``null.py`` and ``calibration.py``
in benchmarks/study measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, correlation
from typing import Any

from measured import table

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NOTHING = "–"
LEVELS = (0.05, 0.01, 1e-3, 1e-4)


def null() -> str:
    """A row per world in which nobody differs: how many probes had a p-value below each level, and how much their scores have
    in common with those of the same run's next probe."""
    path = RESULTS / "null.jsonl"
    if not path.is_file():
        return "Not measured yet: `python benchmarks/study/null.py --out benchmarks/results/null.jsonl` does it.\n"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = []
    for world in dict.fromkeys(row["world"] for row in found):
        own = [row for row in found if row["world"] == world]
        ps = [p for row in own for p in row["p"]]
        split = sum(row["splits"] > 0 for row in own)
        cells = (
            *_below(ps),
            f"{min(ps):.2g}",
            f"{split} of {len(own)}",
            _repeats([row["p"] for row in own]),
        )
        lines.append((f"`{world}`", str(len(own)), str(len(ps)), *cells))
    head = (
        "setting",
        "runs",
        "test rounds",
        *(f"p < {level:g}" for level in LEVELS),
        "least p",
        "runs split",
        "correlation",
    )
    return table(head, lines, "l" + "r" * (len(head) - 1))


def _below(ps: Sequence[float]) -> Iterable[str]:
    """How many are below each level, and what share."""
    for level in LEVELS:
        count = sum(p < level for p in ps)
        yield f"{count} ({count / len(ps):.2%})" if count else "0"


def _repeats(runs: Sequence[Sequence[float]]) -> str:
    """The correlation of the normal scores of successive probes."""
    pairs = [
        pair
        for ps in runs
        for pair in pairwise(NormalDist().inv_cdf(min(max(p, 1e-9), 0.999)) for p in ps)
    ]
    return f"{correlation(*zip(*pairs, strict=True)):.2f}" if len(pairs) > 2 else NOTHING


def calibration(key: str = "rates") -> str:
    """Simulated false alarms of one probe, or of two: a row per number of clients and kind of noise; in a cell one rate for
    each dimension."""
    found = _simulated()
    if found is None:
        return _MISSING
    cases: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in (row for row in found["null"] if key in row):
        cases.setdefault((row["n"], row["noise"]), []).append(row)
    lines = []
    for (n, noise), own in cases.items():
        cells = [
            ", ".join(f"{row[key][i]:.2g}" for row in own) for i in range(len(found["levels"]))
        ]
        lines.append((str(n), noise, f"{own[0]['draws'] // (1 + (key == 'twice')):,}", *cells))
    head = ("clients", "noise", "draws", *(f"p < {level:g}" for level in found["levels"]))
    return table(head, lines, "rl" + "r" * (len(head) - 2))


def power() -> str:
    """Simulated power at the least level: a row per number of clients and dimension, a column per ratio of signal to noise."""
    found = _simulated()
    if found is None:
        return _MISSING
    lines = [
        (
            str(row["n"]),
            str(row["dimension"]),
            f"{row['draws']:,}",
            *(f"{rate:.2f}" for rate in row["rates"]),
        )
        for row in found["power"]
    ]
    head = ("clients", "dimension", "draws", *(f"{ratio:g}" for ratio in found["ratios"]))
    return table(head, lines, "r" * len(head))


_MISSING = "Not measured yet: `python benchmarks/study/calibration.py --out benchmarks/results/calibration.json` does it.\n"


def _simulated() -> dict[str, Any] | None:
    path = RESULTS / "calibration.json"
    return json.loads(path.read_text()) if path.is_file() else None


PARTS: Mapping[str, Callable[..., str]] = {
    "study-null": null,
    "study-calibration": calibration,
    "study-power": power,
}
