"""Tables of what published code's bugs and choices change, of the rows that studies recorded in docs/results/studies;
:mod:`generate` puts them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from measured import table

from coterie.clustering import adjusted_rand
from coterie.core import as_groups, row_of
from coterie.report.summary import interval
from coterie.report.words import plus_minus

ROWS = Path(__file__).resolve().parents[2] / "docs" / "results" / "studies"
NOTHING = "–"

Row = Mapping[str, Any]


def rows(name: str) -> list[Row]:
    """What study and scale ``name`` recorded, such as ``cfl-fig8.small``."""
    path = ROWS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def by_label(name: str) -> dict[str, list[Row]]:
    """label of the method -> what its runs found, a seed each."""
    found: dict[str, list[Row]] = {}
    for row in rows(name):
        found.setdefault(row["cell"]["method"]["label"], []).append(row["found"])
    return found


def over(runs: Iterable[Row], key: str, digits: int = 3, factor: float = 1.0) -> str:
    """Mean over seeds ± half its interval."""
    values = [None if run[key] is None else factor * run[key] for run in runs]
    return NOTHING if None in values else plus_minus(interval(values), digits)


def error(runs: Sequence[Row]) -> str:
    """Mean error of clients in percent."""
    return plus_minus(interval([100 * (1 - run["accuracy"]) for run in runs]), 1)


def ids() -> str:
    """CFL with the published code's two ways to cut, CFL and FedAvg: figure 8 at the small scale."""
    lines = [
        (
            label,
            str(len(runs)),
            over(runs, "accuracy"),
            over(runs, "worst"),
            over(runs, "ari", 2),
            over(runs, "groups", 1),
        )
        for label, runs in by_label("cfl-fig8.small").items()
    ]
    return table(
        ("", "seeds", "accuracy", "worst client", "adjusted Rand", "groups"), lines, "lrrrrr"
    )


def mixed_up() -> str:
    """What counts of that table: CFL as published, CFL and FedAvg."""
    found = by_label("cfl-fig8.small")
    lines = [
        (label, over(found[label], "accuracy"), over(found[label], "ari", 2))
        for label in ("FedAvg", "CFL, by criteria", "CFL, ids mixed up")
    ]
    return table(("", "accuracy", "adjusted Rand"), lines, "lrr")


TABLE_IV = {
    "hcct-table4-digit.small": "digits in four rotations",
    "hcct-table4-digit.data": "digits of four data sets",
    "hcct-table4-fmnist.data": "Fashion-MNIST, IID",
    "hcct-table4-cifar.small": "digits by shards",
    "hcct-table4-cifar.data": "CIFAR-10 by shards",
}
"""Study and scale of HCCT's table IV -> what its clients have."""


def starts() -> str:
    """IFCA and FLSC whose models start as one, as in HCCT's code, those that start apart, and FedAvg."""
    lines = []
    for name, what in TABLE_IV.items():
        found = by_label(name)
        for method in ("IFCA", "FLSC"):
            if same := found.get(f"{method}, identical start"):
                apart, one = found[method], found["FedAvg"]
                groups = (over(same, "groups", 1), over(apart, "groups", 1))
                lines.append(
                    (
                        what,
                        method,
                        str(len(same)),
                        groups[0],
                        groups[1],
                        error(same),
                        error(apart),
                        error(one),
                    )
                )
    head = (
        "clients",
        "",
        "seeds",
        "groups, one start",
        "apart",
        "error in %, one start",
        "apart",
        "FedAvg's",
    )
    return table(head, lines, "llrrrrrr")


def tradeoff() -> str:
    """HCCT with the share of λ that its code's default comes to, with Coterie's default, and training alone."""
    lines = []
    for name, what in TABLE_IV.items():
        found = by_label(name)
        label = "0.001" if "HCCT as printed, λ 0.001" in found else "0.1"  # the least that was run
        least, alone, usual = (
            found[f"HCCT as printed, λ {label}"],
            found["Independent"],
            found["HCCT"],
        )
        lines.append(
            (
                what,
                str(alone[0]["groups"]),
                label,
                over(least, "groups", 1),
                error(least),
                error(alone),
                over(usual, "groups", 1),
                error(usual),
            )
        )
    head = ("", "clients", "share", "groups", "error in %", "alone", "groups at 0.7", "error in %")
    return table(head, lines, "lrrrrrrr")


def best_epochs() -> str:
    """How much less an error is that takes each client's best epoch, over all methods of a study."""
    lines = []
    for name, what in TABLE_IV.items():
        gains = {
            label: 100 * mean(run["best_epoch"] - run["accuracy"] for run in runs)
            for label, runs in by_label(name).items()
        }
        if not gains:
            continue
        most = max(gains, key=lambda label: gains[label])
        least = min(gains, key=lambda label: gains[label])
        told = (
            f"{mean(gains.values()):.1f}",
            f"{gains[least]:.1f} ({least})",
            f"{gains[most]:.1f} ({most})",
        )
        lines.append((what, str(len(gains)), *told))
    return table(("", "methods", "points less, mean", "least", "most"), lines, "lrrrr")


def weights() -> str:
    """How ACFL's clusters by weights at 0.9 change with the epochs of training before: a row per set of classes."""
    cells: dict[str, dict[int, list[float]]] = {}
    for row in rows("acfl-fig3.small"):
        truth = row_of(as_groups(row["found"]["truth"]))
        for epochs, groups in row["found"]["groups"].items():
            found = row_of(as_groups(groups))
            alike = adjusted_rand(
                [truth[client] for client in truth], [found[client] for client in truth]
            )
            cells.setdefault(row["cell"]["problem"], {}).setdefault(int(epochs), []).append(alike)
    epochs = sorted({number for own in cells.values() for number in own})
    lines = [
        (what, *(f"{mean(own[number]):.2f}" for number in epochs)) for what, own in cells.items()
    ]
    return table(
        ("classes", *(f"{number} epoch{'s' * (number > 1)}" for number in epochs)),
        lines,
        "l" + "r" * len(epochs),
    )


def remark() -> str:
    """How often there is a gap above zero, and how often the cut is right: figure 3, stationary gradients."""
    found = [row for row in rows("cfl-fig3.small") if row["cell"]["stationary"]]
    gammas = [gamma for gamma in sorted({row["cell"]["gamma"] for row in found}) if gamma >= 1]
    lines = []
    for k in sorted({row["cell"]["k"] for row in found}):
        own = {row["cell"]["gamma"]: row["found"] for row in found if row["cell"]["k"] == k}
        lines.append(
            (str(k), *(f"{own[gamma]['gap']:.2f}, {own[gamma]['correct']:.2f}" for gamma in gammas))
        )
    return table(("k", *(f"γ = {gamma:g}" for gamma in gammas)), lines, "r" * (1 + len(gammas)))


TABLES = {
    "ids": ids,
    "mixed-up": mixed_up,
    "starts": starts,
    "tradeoff": tradeoff,
    "best-epochs": best_epochs,
    "weights": weights,
    "remark": remark,
}


def published(name: str) -> str:
    """One of :data:`TABLES`."""
    return TABLES[name]()


PARTS: Mapping[str, Callable[..., str]] = {"published": published}
