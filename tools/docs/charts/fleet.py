"""Accuracy by virtual time, for ways in which a server waits for clients."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fleet_tables import CASES, fleet_rows, of_case

from tools.docs.charts.axes import Axis, dot_legend, level_lines, upright_lines
from tools.docs.drawings.canvas import Drawing

TOP = 96
BOTTOM = 300
LONGEST = 6.0
ACCURACY = Axis(BOTTOM, TOP, 0.5, 1.0)
COLOURS: Mapping[str, str] = {
    "rounds": "c0",
    "rounds, deadline 0.2 s": "c1",
    "buffer of 5": "c2",
    "asynchronous": "c3",
}
"""Way of waiting -> colour of its line."""


def fleet_chart() -> Drawing:
    """Two panels: one model for alike clients, and groups for clients that differ; one seed."""
    rows = fleet_rows()
    panels = (CASES[0], CASES[2])
    ends = []
    for scenario, method in panels:
        for way in COLOURS:
            accuracy = fmean(row["curve"][-1][1] for row in of_case(rows, scenario, method, way))
            ends.append(f"{method} on {scenario}, {way}: {accuracy:.2f} at the end.")
    drawing = Drawing(
        720,
        BOTTOM + 62,
        "Accuracy by virtual time",
        "Two panels with a line for each way of waiting. " + " ".join(ends),
    )
    drawing.text(20, 30, "Accuracy by virtual time, 20 devices, one seed", size=16, bold=True)
    dot_legend(drawing, 60, [(colour, way) for way, colour in COLOURS.items()], (25, 120, 320, 450))
    for (scenario, method), start in zip(panels, (62, 410), strict=True):
        end = start + 270
        across = Axis(start, end, 0.0, LONGEST)
        level_lines(drawing, ACCURACY, {0.5: "0.5", 0.75: "0.75", 1.0: "1"}, start, end)
        upright_lines(drawing, across, {0.0: "0", 2.0: "2", 4.0: "4", 6.0: "6 s"}, TOP, BOTTOM)
        for way, colour in COLOURS.items():
            first_seed = of_case(rows, scenario, method, way)[0]
            points = [
                (across.at(seconds), ACCURACY.at(accuracy))
                for seconds, accuracy in first_seed["curve"]
                if seconds <= LONGEST
            ]
            drawing.line(*points, colour=colour, width=2.5)
        words = f"{method}, {scenario}"
        drawing.text((start + end) / 2, BOTTOM + 48, words, anchor="middle", colour="quiet")
    return drawing
