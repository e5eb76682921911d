"""All methods on three data sets: a dot for each method and data set, with its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from measured import recorded

from tools.docs.charts.axes import Axis, dot_legend, upright_lines
from tools.docs.drawings.canvas import Drawing

DATA_SETS: Mapping[str, tuple[str, float, float, tuple[float, ...]]] = {
    "all-methods-digits": ("Digits", 0.3, 1.0, (0.4, 0.6, 0.8)),
    "all-methods-mnist": ("MNIST", 0.7, 0.95, (0.75, 0.8, 0.85, 0.9)),
    "all-methods-fashion": ("Fashion-MNIST", 0.6, 0.85, (0.65, 0.7, 0.75, 0.8)),
}
"""Name of the results -> title of the panel, ends of its axis, and marks."""

GROUPS = {
    "split-half", "acfl", "hcct", "hcct-e", "hcct-p", "flsc 1", "flsc 2", "ifca", "cfl", "flhc"
}  # fmt: skip
PERSONAL = {"fedper", "fedrep", "knn-per", "tuned", "apfl", "ditto", "fedbabu", "independent"}

LEFT = 130
PANEL = 172
GAP = 22
TOP = 92
ROW_HEIGHT = 22


def colour_of(method: str) -> str:
    """By what a client gets: a group's model, one of its own, the one of all, or what held-out loss favours."""
    if method == "auto":
        return "accent"
    if method in GROUPS:
        return "c2"
    return "c1" if method in PERSONAL else "ended"


def numbers_of(label: str, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The mean accuracy of a method on each data set."""
    return [f"{of[label]['accuracy']['mean']:.3f}" for of in found.values()]


def comparison_chart() -> Drawing:
    """A row per method, best mean over the data sets first; a panel per data set."""
    found = {name: recorded(name) for name in DATA_SETS}
    methods = sorted(
        found["all-methods-digits"],
        key=lambda label: -mean(of[label]["accuracy"]["mean"] for of in found.values()),
    )
    bottom = TOP + ROW_HEIGHT * len(methods)
    drawing = Drawing(
        720,
        bottom + 58,
        "Accuracy of all methods on three data sets",
        f"For each of {len(methods)} methods, a dot in each of three panels: the mean accuracy of clients on digits, "
        "MNIST and Fashion-MNIST. "
        + " ".join(f"{label}: {', '.join(numbers_of(label, found))}." for label in methods),
    )
    drawing.text(20, 30, "Mean accuracy of clients", size=16, bold=True)
    entries = (
        ("accent", "auto, the default"),
        ("c2", "groups"),
        ("c1", "a model per client"),
        ("ended", "one model"),
    )
    dot_legend(drawing, 56, entries, (25, 190, 290, 460))
    for place, (name, (title, low, high, marks)) in enumerate(DATA_SETS.items()):
        start = LEFT + place * (PANEL + GAP)
        axis = Axis(start, start + PANEL, low, high)
        drawing.text(start, TOP - 10, title, bold=True)
        upright_lines(drawing, axis, {mark: f"{mark:g}" for mark in marks}, TOP, bottom)
        for row, label in enumerate(methods):
            y = TOP + ROW_HEIGHT * (row + 0.5)
            one = found[name][label]["accuracy"]
            colour = colour_of(label)
            drawing.line(
                (axis.at(one["low"]), y), (axis.at(one["high"]), y), colour=colour, width=2.0
            )
            drawing.circle(axis.at(one["mean"]), y, 5, fill=colour)
    for row, label in enumerate(methods):
        y = TOP + ROW_HEIGHT * (row + 0.5) + 5
        drawing.text(20, y, label, bold=label == "auto")
    drawing.text(LEFT, bottom + 44, "lines: 95 % intervals over seeds", colour="quiet")
    return drawing
