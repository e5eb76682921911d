"""Tables of methods in virtual time, of what ``benchmarks/fleet.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from measured import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import fleet  # noqa: E402

CASES = (
    ("digits/iid", "fedavg"),
    ("digits/iid", "split-half"),
    ("digits/label-permutation", "split-half"),
)
"""Scenario and method of each table."""

SHARE_OF_ACCURACY = 0.98
"""The target is this share of the accuracy at which rounds that wait for all clients end."""

Row = dict[str, Any]


def fleet_rows() -> list[Row]:
    """All runs."""
    return [json.loads(line) for line in fleet.OUT.read_text().splitlines()]


def of_case(
    rows: list[Row], scenario: str, method: str, way: str, devices: str = "round numbers"
) -> list[Row]:
    """The runs of one case, one per seed."""
    case = (scenario, method, devices, way)
    return [
        row for row in rows if (row["scenario"], row["method"], row["devices"], row["way"]) == case
    ]


def target_accuracy(rows: list[Row], scenario: str, method: str) -> float:
    """The accuracy that a case should reach."""
    whole_rounds = of_case(rows, scenario, method, "rounds")
    return SHARE_OF_ACCURACY * fmean(row["curve"][-1][1] for row in whole_rounds)


def seconds_to(row: Row, target: float) -> float | None:
    """The virtual time of the first test at or above the target; None without one."""
    for seconds, accuracy in row["curve"]:
        if accuracy >= target:
            return float(seconds)
    return None


def fleet_times(scenario: str, method: str) -> str:
    """Virtual seconds until the target, the accuracy at the end and the worst client's, means over seeds."""
    rows = fleet_rows()
    target = target_accuracy(rows, scenario, method)
    cells = []
    for way in fleet.WAYS:
        runs = of_case(rows, scenario, method, way)
        times = [time for row in runs if (time := seconds_to(row, target)) is not None]
        reached = f"{fmean(times):.1f} s" if times else "–"
        if times and len(times) < len(runs):
            reached = f"{reached} ({len(times)} of {len(runs)} seeds)"
        accuracy = fmean(row["curve"][-1][1] for row in runs)
        worst_client = fmean(row["worst"] for row in runs)
        cells.append((way, reached, f"{accuracy:.3f}", f"{worst_client:.3f}"))
    head = (
        "the server waits for",
        f"accuracy {target:.3f} after",
        "accuracy at the end",
        "worst client",
    )
    return table(head, cells, "lrrr")


def fleet_costs(scenario: str, method: str) -> str:
    """What runs on measured phones take: virtual seconds, idle and lost device seconds, energy; means over seeds."""
    rows = fleet_rows()
    cells = []
    for way in fleet.WAYS:
        runs = of_case(rows, scenario, method, way, "measured phones")
        seconds = fmean(row["seconds"] for row in runs)
        device_seconds = seconds * fleet.NUM_CLIENTS
        idle_share = fmean(row["idle"] for row in runs) / device_seconds
        lost_share = fmean(row["lost"] for row in runs) / device_seconds
        joules = fmean(row["joules"] for row in runs)
        accuracy = fmean(row["curve"][-1][1] for row in runs)
        cells.append(
            (
                way,
                f"{seconds:.1f} s",
                f"{idle_share:.0%}",
                f"{lost_share:.0%}",
                f"{joules:.0f} J",
                f"{accuracy:.3f}",
            )
        )
    head = ("the server waits for", "time", "idle", "lost", "energy", "accuracy at the end")
    return table(head, cells, "lrrrrr")


PARTS: Mapping[str, Callable[..., str]] = {"fleet-times": fleet_times, "fleet-costs": fleet_costs}
