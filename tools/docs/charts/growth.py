"""Processor seconds of a round, and memory, from a thousand to a million clients made on demand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from scale_table import growth_rows

from tools.docs.charts.axes import Axis, dot_legend, level_lines
from tools.docs.drawings.canvas import Drawing

TOP = 96
BOTTOM = 316
METHODS: Mapping[str, str] = {"fedavg": "c1", "auto": "accent"}
"""Method -> its colour."""


def growth_chart() -> Drawing:
    """Two panels by the number of clients: mean processor seconds of a round, and memory of all processes."""
    rows = growth_rows()
    panels: tuple[tuple[str, Axis, Mapping[float, str], Callable[[dict[str, Any]], float]], ...] = (
        (
            "processor seconds of the mean round",
            Axis(BOTTOM, TOP, 0.1, 30.0, log=True),
            {0.1: "0.1", 1.0: "1", 10.0: "10"},
            lambda row: statistics.mean(row["processor"]),
        ),
        (
            "memory of all processes, GB",
            Axis(BOTTOM, TOP, 0.1, 10.0, log=True),
            {0.1: "0.1", 1.0: "1", 4.0: "4", 10.0: "10"},
            lambda row: row["bytes"] / 1e9,
        ),
    )
    drawing = Drawing(
        720,
        BOTTOM + 62,
        "A thousand clients in a round, of a thousand to a million",
        "Two panels on logarithmic scales. "
        + " ".join(
            f"{row['method']}, {row['clients']:,} clients: mean round "
            f"{statistics.mean(row['processor']):.2g} s, {row['bytes'] / 1e9:.2g} GB."
            for row in rows
        ),
    )
    drawing.text(20, 30, "A thousand clients in a round, of so many", size=16, bold=True)
    legend = [(colour, method) for method, colour in METHODS.items()]
    dot_legend(drawing, 56, legend, (25, 120))
    for (words, upright, marks, measure), start in zip(panels, (62, 410), strict=True):
        end = start + 270
        across = Axis(start + 14, end - 40, 1000, 1_000_000, log=True)
        level_lines(drawing, upright, marks, start, end)
        for clients in (1000, 10_000, 100_000, 1_000_000):
            drawing.text(
                across.at(clients), BOTTOM + 20, f"{clients:,}", anchor="middle", colour="quiet"
            )
        for method, colour in METHODS.items():
            own = [row for row in rows if row["method"] == method]
            points = [(across.at(row["clients"]), upright.at(measure(row))) for row in own]
            drawing.line(*points, colour=colour, width=2.5)
            for x, y in points:
                drawing.circle(x, y, 4, fill=colour)
        drawing.text((start + end) / 2, BOTTOM + 44, words, anchor="middle", colour="quiet")
    return drawing
