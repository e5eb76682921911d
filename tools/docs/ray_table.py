"""The table of rounds on a Ray cluster, of what ``benchmarks/ray_nodes.py`` measured; :mod:`generate` puts it in."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from measured import table

NODES = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "ray.json"


def ray_nodes() -> str:
    """A row per way to run, a column per method: seconds of a round, and how many times as fast as with one worker."""
    if not NODES.is_file():
        return "The table has not been measured yet: `python benchmarks/ray_nodes.py` makes it.\n"
    found = json.loads(NODES.read_text())
    rows = {(row["method"], row["way"]): row for row in found["rows"]}
    methods, ways = (
        list(dict.fromkeys(row[key] for row in found["rows"])) for key in ("method", "way")
    )
    lines = []
    for way in ways:
        cells = []
        for method in methods:
            own, first = rows[method, way]["seconds"], rows[method, ways[0]]["seconds"]
            spread = f"{rows[method, way]['least']:.2f} to {rows[method, way]['most']:.2f}"
            cells += [f"{own:.2f} ({spread})", f"{first / own:.2f} ×"]
        lines.append((way, *cells))
    head = (
        "",
        *(text for method in methods for text in (f"`{method}`, seconds of a round", "speed")),
    )
    about = (
        f"{found['clients']} clients of `{found['scenario']}` with the net `{found['model']}`, {found['rounds']} rounds "
        f"without the first; medians of {found['repeats']} repeats, with the least and the most; "
        f"Ray {found['versions']['ray']}. The speed is relative to {ways[0]}."
    )
    return f"{textwrap.fill(about, 125, break_on_hyphens=False)}\n\n{table(head, lines, 'l' + 'r' * 2 * len(methods))}"
