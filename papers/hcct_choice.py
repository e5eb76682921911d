"""λ by one rule in all tasks: of some runs of HCCT that differ in λ alone, the one whose clients validate best.

λ is a share of the mean training-set size. Each seed is a federation of its own, and chooses for
itself. What all of the runs have sent is what the choice has cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.methods import HCCT
from papers.study import Row

FIRST_GRID = 1.5
"""The greatest ρ of the first grid. A 4 was added after a look at results on digits, and is not
chosen there."""

PRINTED, OURS = "HCCT as printed, λ by validation", "HCCT, λ by validation"
"""Without memory, as in the paper; with Coterie's memory of cosines."""


def family(row: Row) -> str | None:
    """Which of the two a run can be chosen for; None of other methods, and of a ρ that was added later."""
    how, digits = row["cell"]["method"], row["cell"]["scenario"]["name"].startswith("digits/")
    if how["name"] != HCCT.name or not set(how) <= {"name", "label", "tradeoff", "memory"}:
        return None
    if digits and how.get("tradeoff", 0) > FIRST_GRID:
        return None
    return PRINTED if how.get("memory") == 0 else OURS


def tradeoff(row: Row) -> float | None:
    """λ of a run, as a share of the mean training-set size; None of methods that have none."""
    if not row["cell"]["method"]["name"].startswith(HCCT.name):
        return None
    return float(row["cell"]["method"].get("tradeoff", HCCT().tradeoff))


def chosen(runs: Sequence[Row], label: str) -> Row:
    """The run of greatest validation accuracy; of equal ones that of least validation loss. Sent: the sum of all."""
    best = max(runs, key=lambda row: (row["found"]["validation"], -row["found"]["validation_loss"]))
    sent = {
        name: sum(row["found"][name] for row in runs)
        for name in ("exchanges", "bytes_up", "bytes_down")
    }
    how = {"label": label, "name": HCCT.name, "tradeoff": tradeoff(best)}
    return {**best, "cell": {**best["cell"], "method": how}, "found": {**best["found"], **sent}}


def with_chosen(rows: Sequence[Row]) -> list[Row]:
    """All rows, and behind them those chosen of each seed."""
    runs: dict[tuple[str, Any], list[Row]] = {}
    for row in rows:
        name = family(row)
        if name is not None and row["found"]["validation"] is not None:
            runs.setdefault((name, row["cell"]["seed"]), []).append(row)
    picked = [chosen(several, name) for (name, _), several in runs.items()]
    return [
        *rows,
        *sorted(
            picked, key=lambda row: (row["cell"]["method"]["label"] == PRINTED, row["cell"]["seed"])
        ),
    ]
