"""The default method next to the best printed accuracy of five published tables."""

from __future__ import annotations

from standing_tables import comparisons

from tools.docs.charts.axes import Axis, dot_legend, upright_lines
from tools.docs.drawings.canvas import Drawing

LEFT = 236
TOP = 78
ROW_HEIGHT = 46


def published_chart() -> Drawing:
    """A row per table: the best printed accuracy, and here the default and the best other method."""
    lines = list(comparisons())
    bottom = TOP + ROW_HEIGHT * len(lines)
    axis = Axis(LEFT, 690, 0.4, 1.0)
    drawing = Drawing(
        720,
        bottom + 40,
        "The default method and published accuracies",
        f"For each of {len(lines)} published tables, three dots: the best printed accuracy, and measured here the default "
        "and the best other method. "
        + " ".join(
            f"{one.source}, {one.what}: printed {one.printed:.3f} ({one.printed_method.strip('`')}), auto {one.default:.3f}, "
            f"{one.other_method.strip('`')} {one.other:.3f}."
            for one in lines
        ),
    )
    drawing.text(20, 30, "Mean accuracy of clients", size=16, bold=True)
    entries = (("accent", "auto, here"), ("c1", "best other method, here"))
    dot_legend(drawing, 56, entries, (25, 135))
    drawing.circle(350, 51, 7, stroke="quiet")
    drawing.text(363, 56, "best printed, often at a larger size", colour="quiet")
    marks = {mark: f"{mark:g}" for mark in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)}
    upright_lines(drawing, axis, marks, TOP, bottom)
    for place, one in enumerate(lines):
        y = TOP + ROW_HEIGHT * (place + 0.5)
        drawing.text(20, y - 3, one.source, bold=True)
        drawing.text(20, y + 15, one.what, colour="quiet")
        values = (one.printed, one.other, one.default)
        drawing.line((axis.at(min(values)), y), (axis.at(max(values)), y), colour="line", width=2.0)
        drawing.circle(axis.at(one.other), y, 6, fill="c1")
        drawing.circle(axis.at(one.default), y, 6, fill="accent")
        drawing.circle(axis.at(one.printed), y, 9, stroke="quiet")
    return drawing
