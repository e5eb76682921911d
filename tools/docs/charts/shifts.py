"""FLUX's four shifts at three levels: a panel per shift, a line per method."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

import flux
from flux_tables import rows_of

from tools.docs.charts.axes import Axis, dot_legend, level_lines
from tools.docs.drawings.canvas import Drawing

SHIFTS: Mapping[str, tuple[str, str]] = {
    "px": ("images differ", "P(X)"),
    "py": ("classes differ", "P(Y)"),
    "py-x": ("labels permuted", "P(Y|X)"),
    "px-y": ("classes rotated", "P(X|Y)"),
}
METHODS: Mapping[str, tuple[str, str]] = {
    "auto": ("accent", "auto, the default"),
    "independent": ("c3", "alone"),
    "apfl": ("c1", "APFL"),
    "ifca": ("c2", "IFCA"),
    "fedavg": ("ended", "FedAvg"),
}
"""Method -> its colour and label."""

LEFT = 62
PANEL = 138
GAP = 26
TOP = 112
BOTTOM = 332
LEVELS = (1, 4, 8)
AXIS = Axis(BOTTOM, TOP, 0.3, 1.0)


def shift_chart() -> Drawing:
    """Of MNIST at the small scale, the only one with several levels."""
    found = rows_of("mnist", "small")

    def accuracy(method: str, shift: str, level: int) -> float:
        return mean(
            row["accuracy"]
            for row in found
            if (row["method"], row["shift"], row["level"]) == (method, shift, level)
        )

    drawing = Drawing(
        720,
        BOTTOM + 62,
        "Accuracy under four kinds of shift",
        "Four panels, one for each kind of shift, with a line for each of five methods over levels 1, 4 and 8. "
        + " ".join(
            f"{label} at level 8: "
            + ", ".join(
                f"{accuracy(method, shift, 8):.3f} {flux.SHIFTS[shift]}" for shift in SHIFTS
            )
            + "."
            for method, (_, label) in METHODS.items()
        ),
    )
    drawing.text(20, 30, "Mean accuracy of clients, MNIST", size=16, bold=True)
    dot_legend(drawing, 56, list(METHODS.values()), (25, 190, 270, 350, 425))
    for place, (shift, (words, symbol)) in enumerate(SHIFTS.items()):
        start = LEFT + place * (PANEL + GAP)
        across = Axis(start + 8, start + PANEL - 8, 1, 8)
        drawing.text(start, TOP - 28, words, bold=True)
        drawing.text(start, TOP - 10, symbol, colour="quiet")
        marks = {mark: f"{mark:g}" if place == 0 else "" for mark in (0.4, 0.6, 0.8, 1.0)}
        level_lines(drawing, AXIS, marks, start, start + PANEL)
        for level in LEVELS:
            drawing.text(across.at(level), BOTTOM + 20, str(level), anchor="middle", colour="quiet")
        for method, (colour, _) in reversed(METHODS.items()):
            points = [
                (across.at(level), AXIS.at(accuracy(method, shift, level))) for level in LEVELS
            ]
            drawing.line(*points, colour=colour, width=3.0 if method == "auto" else 2.0)
            for x, y in points:
                drawing.circle(x, y, 4, fill=colour)
    drawing.text(LEFT, BOTTOM + 46, "level of the shift: 1 is the least of eight", colour="quiet")
    return drawing
