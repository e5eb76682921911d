"""Tables of FLUX's grid of heterogeneity, of what ``benchmarks/flux.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measured import table

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import flux

NOTHING = "–"
NOT_YET = "Not measured yet: `python benchmarks/flux.py --data DIR` does it.\n"

ELSEWHERE: Mapping[str, str] = {
    "flux": "FLUX",
    "flux-prior": "FLUX-prior",
    "pfedme": "pFedMe",
    "fesem": "FeSEM",
}
"""Methods that Coterie does not have, of which there are printed numbers -> their names."""


def rows_of(dataset: str, scale: str) -> list[dict[str, Any]]:
    """The measured runs of a data set at a scale."""
    return [row for row in flux.known() if (row["dataset"], row["scale"]) == (dataset, scale)]


def levels(dataset: str, scale: str) -> str:
    """The mean over the shifts at each level, and the printed one; of levels at which a method has runs of all shifts."""
    found = flux.means(rows_of(dataset, scale))
    at = sorted({level for _, level in found})
    if not at:
        return NOT_YET
    printed = flux.PRINTED[dataset]
    lines = []
    for name in [*flux.SETTINGS, *ELSEWHERE]:
        if any((name, level) in found for level in at) or name in printed:
            cells = [f"`{name}`" if name in flux.SETTINGS else ELSEWHERE[name]]
            for level in at:
                cells.append(f"{found[name, level]:.3f}" if (name, level) in found else NOTHING)
                cells.append(f"{printed[name][level - 1]:.3f}" if name in printed else NOTHING)
            lines.append(cells)
    head = ["method", *(cell for level in at for cell in (f"level {level}, here", "printed"))]
    return table(head, lines, "l" + "r" * 2 * len(at))


def shifts(dataset: str, scale: str) -> str:
    """The mean over folds of each method for each level and shift."""
    rows = rows_of(dataset, scale)
    if not rows:
        return NOT_YET
    lines = []
    for level in flux.LEVELS:
        for name in flux.SETTINGS:
            own = {
                shift: [
                    row["accuracy"]
                    for row in rows
                    if (row["method"], row["level"], row["shift"]) == (name, level, shift)
                ]
                for shift in flux.SHIFTS
            }
            if any(own.values()):
                each = [f"{np.mean(values):.3f}" if values else NOTHING for values in own.values()]
                mean = (
                    f"{np.mean([np.mean(values) for values in own.values()]):.3f}"
                    if all(own.values())
                    else NOTHING
                )
                lines.append((str(level), f"`{name}`", *each, mean))
    names = (name.replace("|", "\\|") for name in flux.SHIFTS.values())
    return table(("level", "method", *names, "mean"), lines, "rlrrrrr")


PARTS: Mapping[str, Callable[..., str]] = {"flux-levels": levels, "flux-shifts": shifts}
