"""Tables of FLUX's grid of heterogeneity, of what ``benchmarks/flux.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import table

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import flux
import flux_unlabeled

NOTHING = "–"
NOT_YET = "Not measured yet: `python benchmarks/flux.py --data DIR` does it.\n"
NOT_YET_UNLABELED = "Not measured yet: `python benchmarks/flux_unlabeled.py --data DIR` does it.\n"

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


UNLABELED: Sequence[tuple[str, str, str]] = (
    ("fedavg", "default", "FedAvg"),
    ("cfl", "default", "CFL"),
    ("ifca", "default", "IFCA"),
    ("ifca", "confident", "IFCA, most confident model"),
    ("ifca", "place", "IFCA, placed"),
    ("split-half", "place", "`split-half`, placed"),
    ("split-half", "own", "`split-half`, group known"),
)
"""What the tables of clients without labels show: method, rule and name."""

MAIN_UNLABELED = tuple(
    kind for kind in UNLABELED if kind[:2] not in (("ifca", "default"), ("ifca", "place"))
)
"""What the short table shows."""

PRINTED_UNLABELED: Mapping[str, str] = {
    "fedavg": "FedAvg",
    "cfl": "CFL",
    "ifca": "IFCA",
    "flux": "FLUX",
}
"""The printed numbers of clients without labels -> their names."""

NAMES: Mapping[str, str] = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
"""Data set -> its name in a table."""


def unlabeled(scale: str) -> str:
    """Clients without labels: the means over three shifts, a row for each data set and level, beside the printed ones."""
    lines = []
    for dataset, name in NAMES.items():
        found = flux_unlabeled.means(dataset, scale)
        for level in flux.LEVELS:
            cells = []
            for method, rule, _ in MAIN_UNLABELED:
                value = found.get((method, rule, level, "mean"))
                cells.append(NOTHING if value is None else f"{value:.3f}")
            if set(cells) == {NOTHING}:
                continue
            for method in PRINTED_UNLABELED:
                cells.append(f"{flux_unlabeled.PRINTED[dataset][method][level - 1]:.3f}")
            lines.append([name, str(level), *cells])
    if not lines:
        return NOT_YET_UNLABELED
    head = ["data", "level", *(name for _, _, name in MAIN_UNLABELED)]
    head += [f"printed: {name}" for name in PRINTED_UNLABELED.values()]
    return table(head, lines, "l" + "r" * (len(head) - 1))


def unlabeled_shifts(dataset: str, scale: str) -> str:
    """Clients without labels: the mean over folds of each method and rule for each level and shift."""
    found = flux_unlabeled.means(dataset, scale)
    columns = [*flux_unlabeled.SHIFTS_OF_MEAN, "mean", "py-x"]
    lines = []
    for level in flux.LEVELS:
        for method, rule, name in UNLABELED:
            cells = []
            for shift in columns:
                value = found.get((method, rule, level, shift))
                cells.append(NOTHING if value is None else f"{value:.3f}")
            if set(cells) != {NOTHING}:
                lines.append([str(level), name, *cells])
    if not lines:
        return NOT_YET_UNLABELED
    head = ["level", "model"]
    for shift in columns:
        head.append("mean" if shift == "mean" else flux.SHIFTS[shift].replace("|", "\\|"))
    return table(head, lines, "rl" + "r" * len(columns))


PARTS: Mapping[str, Callable[..., str]] = {
    "flux-levels": levels,
    "flux-shifts": shifts,
    "flux-unlabeled": unlabeled,
    "flux-unlabeled-shifts": unlabeled_shifts,
}
