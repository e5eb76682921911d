"""The table of accuracy by the ε of a row, of what ``benchmarks/row_privacy.py`` measured; :mod:`generate` puts it in."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from measured import table

from coterie.runs.model_cards import mean_interval

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "row-privacy.jsonl"

DATA = {72: "digits", 625: "MNIST"}
"""Training rows of a client -> the data set."""

MIN_SEEDS = 2
"""Fewest seeds of a row of the table, which gives intervals."""


def row_privacy() -> str:
    """A row per size of client and ε, a column per method: the mean over seeds with its 95 % interval by Student's t."""
    if not RESULTS.is_file():
        return "Not measured yet: `python benchmarks/row_privacy.py` does it.\n"
    runs: dict[tuple[int, float], dict[str, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in RESULTS.read_text().splitlines():
        run = json.loads(line)
        runs[run["rows"], run["epsilon"]][run["method"]].append(run)
    lines = []
    seeds_of_rows: dict[int, int] = {}
    # No privacy first, then from the weakest to the strongest.
    for rows, epsilon in sorted(runs, key=lambda cell: (cell[0], cell[1] > 0, -cell[1])):
        of_methods = runs[rows, epsilon]
        groups = of_methods["flhc"]
        if len(groups) < MIN_SEEDS:
            continue
        seeds_of_rows[rows] = len(groups)
        lines.append(
            (
                f"{rows} ({DATA[rows]})",
                f"{epsilon:g}" if epsilon else "none",
                f"{groups[0]['noise']:.2f}" if epsilon else "-",
                _mean_with_interval([run["accuracy"] for run in of_methods["fedavg"]]),
                _mean_with_interval([run["accuracy"] for run in of_methods["independent"]]),
                _mean_with_interval([run["accuracy"] for run in groups]),
                _mean_with_interval([run["ari"] for run in groups]),
            )
        )
    head = (
        "training rows of a client",
        "ε of a row",
        "σ",
        "one model (FedAvg)",
        "alone",
        "groups (FL+HC)",
        "index",
    )
    seeds = " and ".join(f"{count} seeds of {DATA[rows]}" for rows, count in seeds_of_rows.items())
    about = f"Means over {seeds}, with 95 % intervals over seeds (Student's t)."
    return f"{textwrap.fill(about, 125, break_on_hyphens=False)}\n\n{table(head, lines, 'lrrrrrr')}"


def _mean_with_interval(values: list[float]) -> str:
    """The mean, and half of its interval."""
    interval = mean_interval(values)
    mean = float(np.mean(values))
    assert interval is not None
    return f"{mean:.3f} ± {mean - interval[0]:.3f}"
