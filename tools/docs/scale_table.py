"""The table and the figure of the default method with many clients, of what ``benchmarks/scale.py`` measured;
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

from coterie.report.figures import style

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "scale.json"
FIGURE = ROOT / "docs" / "figures" / "scale.png"


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
        "memory beside the data",
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


def right(index: list[float]) -> str:
    """From which round on the groups were the true ones, or the index at the end."""
    wrong = max((number for number, each in enumerate(index, 1) if each < 1), default=0)
    return f"right from round {wrong + 1} on" if wrong < len(index) else f"index {index[-1]:.3f}"


def figure() -> None:
    """Draw the server's seconds in a round by clients and by parameters, with lines of proportional growth."""
    rows = json.loads(MEASURED.read_text())["rows"]
    few, large = (choose(row["parameters"] for row in rows) for choose in (min, max))
    fixed = next(row["clients"] for row in rows if row["parameters"] == large)

    def drawn() -> Any:
        made, ((left, right_),) = style.panels(2, sharey=True)
        _series(left, [row for row in rows if row["parameters"] == few], "clients")
        _series(right_, [row for row in rows if row["clients"] == fixed], "parameters")
        left.set(
            xlabel=f"clients, with {few} parameters", ylabel="seconds of the server in a round"
        )
        right_.set(xlabel=f"parameters, with {fixed} clients")
        left.legend()
        return made

    style.write(drawn, [FIGURE])


def _series(axes: Any, rows: list[dict[str, Any]], by: str) -> None:
    x = [row[by] for row in rows]
    for number, (name, made) in enumerate(
        (("longest round", max), ("median round", statistics.median))
    ):
        y, look = (
            [made(row["server"]) for row in rows],
            (style.COLOURS[number], style.MARKERS[number]),
        )
        axes.plot(x, y, color=look[0], marker=look[1], label=name)
    first = statistics.median(rows[0]["server"])
    axes.plot(
        x,
        [first * each / x[0] for each in x],
        style.DASHES[3],
        color=style.GREY,
        label="proportional",
    )
    axes.set(xscale="log", yscale="log")
