"""The tables of the default method with many clients, of what ``benchmarks/scale.py`` measured;
:mod:`generate` puts them in.
"""

from __future__ import annotations

import json
import shlex
import statistics
import textwrap
from pathlib import Path
from typing import Any

from measured import table
from speed_tables import seconds, size

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "scale.json"


def scale() -> str:
    """A row per run: seconds of the server in a round, memory, and from which round on the groups are the true ones."""
    if not MEASURED.is_file():
        return "Not measured yet: `python benchmarks/scale.py` does it.\n"
    found = json.loads(MEASURED.read_text())
    rows = [
        (
            f"{row['clients']:,}",
            f"{row['parameters']:,}",
            *(seconds(made(row["server"])) for made in (statistics.median, max)),
            *(seconds(made(row["train"])) for made in (statistics.median, max)),
            size(row["peak_bytes"] - row["world_bytes"]),
            right(row["index"]),
        )
        for row in found["rows"]
    ]
    head = (
        "clients",
        "parameters",
        "server, median round",
        "longest round",
        "training, median round",
        "longest round",
        "memory without the data",
        "groups",
    )
    on = found["machine"]
    about = f"On {on['system']}, {on['processor']}, {on['cores']} cores; torch {found['versions']['torch']}."
    return f"{textwrap.fill(about, 125)}\n\n{table(head, rows, 'r' * 7 + 'l')}"


def memory() -> str:
    """A row per run of very many clients: the memory of all its processes."""
    found = json.loads(MEASURED.read_text()).get("memory", []) if MEASURED.is_file() else []
    if not found:
        return "Not measured yet: `python benchmarks/scale.py` does it.\n"
    rows = [(f"`{shlex.join(row['command'])}`", size(row["bytes"])) for row in found]
    return table(("command", "memory of all processes"), rows, "lr")


def growth_rows() -> list[dict[str, Any]]:
    """The runs of clients whose data are made on demand: method by method, from few clients to many."""
    found = json.loads(MEASURED.read_text()).get("growth", []) if MEASURED.is_file() else []
    return sorted(found, key=lambda row: (row["method"] != "fedavg", row["clients"]))


def growth() -> str:
    """A row per run of clients whose data are made on demand: processor seconds of a round, and memory."""
    found = growth_rows()
    if not found:
        return "Not measured yet: `python benchmarks/scale.py --only growth` does it.\n"
    rows = [
        (
            f"{row['clients']:,}",
            f"`{row['method']}`",
            f"{statistics.median(row['asked']):,.0f}",
            *(seconds(made(row["processor"])) for made in (statistics.mean, max)),
            size(row["bytes"]),
            f"{row['waiting']:,}",
        )
        for row in found
    ]
    head = (
        "clients",
        "method",
        "tasks in a round",
        "processor time, mean round",
        "longest round",
        "memory of all processes",
        "without a group yet",
    )
    return table(head, rows, "rlrrrrr")


def placement() -> str:
    """A row per run after which all waiting clients were placed: how many, processor time, memory, the index."""
    found = json.loads(MEASURED.read_text()).get("placement", []) if MEASURED.is_file() else []
    if not found:
        return "Not measured yet: `python benchmarks/scale.py --only placement` does it.\n"
    rows = [
        (
            f"{row['clients']:,}",
            f"{row['placed']:,}",
            seconds(row["placement_processor"]),
            size(row["bytes"]),
            f"{row['index_before']:.3f}",
            f"{row['index']:.3f}",
        )
        for row in found
    ]
    head = (
        "clients",
        "placed",
        "processor time",
        "memory of all processes",
        "adjusted Rand index before",
        "after",
    )
    return table(head, rows, "rrrrrr")


def right(index: list[float]) -> str:
    """From which round on the groups were the true ones, or the index at the end."""
    wrong = max((number for number, each in enumerate(index, 1) if each < 1), default=0)
    return f"right from round {wrong + 1} on" if wrong < len(index) else f"index {index[-1]:.3f}"
