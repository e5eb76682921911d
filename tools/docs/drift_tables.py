"""Tables of methods on data that drift, of what ``benchmarks/drift.py`` measured; :mod:`generate` puts them in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measured import table

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import drift  # noqa: E402
import label_rotations  # noqa: E402

CALLED: Mapping[str, str] = {
    "oracle": "oracle, new models from the first draw",
    "oracle warm": "oracle, new models from trained ones",
    "tuned alert": "split-half with `alert`, and personal models",
    "split-half alert": "split-half with `alert`",
    "split-half": "split-half",
    "auto": "auto",
    **{f"feddrift {delta:g}": f"FedDrift, δ = {delta:g}" for delta in drift.DELTAS},
    "ifca": "IFCA with four models",
    "hcct": "HCCT",
    "fedavg": "FedAvg",
}
"""Name in the results -> name in the tables, in their order."""

BEST = "FedDrift, the best δ of each column"
MOVES = ("sudden", "recurring")

Rows = list[dict[str, Any]]


def by_world(rows: Rows) -> dict[tuple[str, str], Rows]:
    """(schedule, stream) -> its rows, in the order of the columns."""
    worlds = [(schedule, stream) for schedule in MOVES for stream in drift.STREAMS]
    found = {
        world: [one for one in rows if (one["drift"], one["stream"]) == world] for world in worlds
    }
    return {world: own for world, own in found.items() if own}


def _means(key: str, rows: Rows) -> str:
    """A row per method and a column per world: the mean over seeds. The last row is the best of FedDrift in each column."""
    worlds = by_world(rows)
    means = {
        name: [
            drift.mean([one for one in found if one["method"] == name], key)
            for found in worlds.values()
        ]
        for name in CALLED
    }
    told = {name: means[name] for name in CALLED if any(value is not None for value in means[name])}
    swept = [values for name, values in told.items() if name.startswith("feddrift")]
    cells = [
        (CALLED[name], *map(number, values), _seeds(worlds, name)) for name, values in told.items()
    ]
    best = [
        min((value for value in column if value is not None), default=None)
        for column in zip(*swept, strict=True)
    ]
    cells.append((BEST, *map(number, best), ""))
    head = ("", *(f"{called(stream)}, {schedule}" for schedule, stream in worlds), "seeds")
    return table(head, cells, "l" + "r" * (len(head) - 1))


def _seeds(worlds: Mapping[tuple[str, str], Rows], name: str) -> str:
    counts = {n for found in worlds.values() if (n := sum(one["method"] == name for one in found))}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def called(stream: str) -> str:
    return "digits" if stream == "digits" else stream.upper()


def number(value: float | None) -> str:
    return "–" if value is None else f"{round(value, 1) + 0:.1f}"  # no -0.0


def behind() -> str:
    """Points of accuracy behind the better oracle."""
    return _means("behind", drift.measured())


def delays() -> str:
    """Rounds from a change until the groups are the true ones."""
    return _means("delay", drift.measured())


def alarms() -> str:
    """How many runs over data that are still had more than one group at any time."""
    still = [one for one in drift.measured() if one["drift"] == "still"]
    streams, cells = (
        [stream for stream in drift.STREAMS if any(one["stream"] == stream for one in still)],
        [],
    )
    for name in CALLED:
        own = [
            [one["alarm"] for one in still if (one["method"], one["stream"]) == (name, stream)]
            for stream in streams
        ]
        if any(own):
            cells.append(
                (CALLED[name], *(f"{sum(each)} of {len(each)}" if each else "–" for each in own))
            )
    return table(("", *map(called, streams)), cells, "l" + "r" * len(streams))


def rotations() -> str:
    """Methods on labels that rotate in two directions, by ``benchmarks/label_rotations.py``."""
    return label_rotations.table(label_rotations.known()) + "\n"


PARTS: Mapping[str, Callable[..., str]] = {
    "drift-behind": behind,
    "drift-delays": delays,
    "drift-alarms": alarms,
    "label-rotations": rotations,
}
