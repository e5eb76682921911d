"""Personalized methods on two published settings: accuracy here, and as printed."""

from __future__ import annotations

from measured import recorded
from standing_tables import PERSONAL

from tools.docs.charts.axes import Axis, dot_legend, upright_lines
from tools.docs.drawings.canvas import Drawing

STARTS = {"personal-cifar10": 130, "personal-cifar100": 490}
WIDTH = 200
LABELS = {"personal-cifar10": 20, "personal-cifar100": 382}
TOP = 92
ROW_HEIGHT = 24
AXES = {"personal-cifar10": (0.3, 0.9), "personal-cifar100": (0.2, 0.7)}


def personal_chart() -> Drawing:
    """A panel per published table, a row per method, best first."""
    found = {name: recorded(name) for name in PERSONAL}
    bottom = TOP + ROW_HEIGHT * max(map(len, found.values()))
    words = []
    for name, of in found.items():
        means = ", ".join(f"{label} {one['accuracy']['mean']:.3f}" for label, one in of.items())
        words.append(f"{PERSONAL[name].what}: {means}.")
    drawing = Drawing(
        720,
        bottom + 36,
        "Accuracy of personalized methods",
        "Two panels, a row for each method: its mean accuracy here, and as printed. "
        + " ".join(words),
    )
    drawing.text(20, 30, "Mean accuracy of clients", size=16, bold=True)
    entries = (("accent", "auto, the default"), ("c1", "other methods here"))
    dot_legend(drawing, 56, entries, (25, 190))
    drawing.circle(370, 51, 4.5, stroke="quiet")
    drawing.text(381, 56, "printed, at full size", colour="quiet")
    for name, of in found.items():
        low, high = AXES[name]
        start = STARTS[name]
        axis = Axis(start, start + WIDTH, low, high)
        drawing.text(start, TOP - 10, PERSONAL[name].what, bold=True)
        marks = [round(low + 0.1 * step, 1) for step in range(round((high - low) / 0.1) + 1)]
        upright_lines(drawing, axis, {mark: f"{mark:g}" for mark in marks}, TOP, bottom)
        ordered = sorted(of.items(), key=lambda pair: -pair[1]["accuracy"]["mean"])
        for row, (label, one) in enumerate(ordered):
            y = TOP + ROW_HEIGHT * (row + 0.5)
            drawing.text(LABELS[name], y + 5, label, bold=label == "auto")
            colour = "accent" if label == "auto" else "c1"
            printed = PERSONAL[name].methods.get(label)
            if printed is not None:
                drawing.circle(axis.at(printed), y, 4.5, stroke="quiet")
            drawing.circle(axis.at(one["accuracy"]["mean"]), y, 5, fill=colour)
    return drawing
