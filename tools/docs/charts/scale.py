"""Seconds of the server in a round of the default method, by clients and by parameters."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from scale_table import MEASURED

from tools.docs.charts.axes import Axis, dot_legend, level_lines
from tools.docs.drawings.canvas import Drawing

TOP = 96
BOTTOM = 316
SECONDS = Axis(BOTTOM, TOP, 0.03, 6.0, log=True)
SERIES: Mapping[str, tuple[str, str, Callable[[list[float]], float]]] = {
    "median": ("accent", "median round", statistics.median),
    "longest": ("c1", "longest round", max),
}


def scale_chart() -> Drawing:
    """Two panels: many clients with a small model, and large models of 300 clients."""
    rows: list[dict[str, Any]] = json.loads(MEASURED.read_text())["rows"]
    least = min(row["parameters"] for row in rows)
    fixed = next(
        row["clients"]
        for row in rows
        if row["parameters"] == max(row["parameters"] for row in rows)
    )
    panels = (
        (
            "clients",
            f"clients, {least} parameters",
            [row for row in rows if row["parameters"] == least],
        ),
        (
            "parameters",
            f"parameters, {fixed} clients",
            [row for row in rows if row["clients"] == fixed],
        ),
    )
    drawing = Drawing(
        720,
        BOTTOM + 62,
        "Seconds of the server in a round",
        "Two panels with lines for the median and the longest of twelve rounds, on logarithmic scales. "
        + " ".join(
            f"{row[by]:,} {by}: median {statistics.median(row['server']):.2g} s, longest {max(row['server']):.2g} s."
            for by, _, own in panels
            for row in own
        ),
    )
    drawing.text(20, 30, "Seconds of the server in a round of auto", size=16, bold=True)
    dot_legend(drawing, 56, [of[:2] for of in SERIES.values()], (25, 160))
    drawing.line((300, 51), (324, 51), colour="quiet", dashed=True)
    drawing.text(332, 56, "proportional growth", colour="quiet")
    for (by, words, own), start in zip(panels, (62, 410), strict=True):
        end = start + 270
        across = Axis(start + 14, end - 22, own[0][by], own[-1][by], log=True)
        marks = {0.1: "0.1", 1.0: "1", 5.0: "5"}
        level_lines(drawing, SECONDS, marks, start, end)
        for value in (row[by] for row in own):
            if f"{value:,}"[0] == "1" or value in (own[0][by], own[-1][by]):
                drawing.text(
                    across.at(value), BOTTOM + 20, f"{value:,}", anchor="middle", colour="quiet"
                )
        first = statistics.median(own[0]["server"])
        # Up to where the line of proportional growth leaves the panel.
        last = min(own[-1][by], own[0][by] * SECONDS.high / first)
        drawing.line(
            (across.at(own[0][by]), SECONDS.at(first)),
            (across.at(last), SECONDS.at(first * last / own[0][by])),
            colour="quiet",
            dashed=True,
        )
        for colour, _, measure in SERIES.values():
            points = [(across.at(row[by]), SECONDS.at(measure(row["server"]))) for row in own]
            drawing.line(*points, colour=colour, width=2.5)
            for x, y in points:
                drawing.circle(x, y, 4, fill=colour)
        drawing.text((start + end) / 2, BOTTOM + 44, words, anchor="middle", colour="quiet")
    return drawing
