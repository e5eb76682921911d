"""Methods on data that change: how far each is behind an oracle, a row per stream."""

from __future__ import annotations

from collections.abc import Mapping

import drift
from drift_tables import by_world, called

from tools.docs.charts.axes import Axis, dot_legend, upright_lines
from tools.docs.drawings.canvas import Drawing

METHODS: Mapping[str, tuple[str, str]] = {
    "tuned alert": ("accent", "split-half, alert, personal models"),
    "feddrift": ("c4", "FedDrift, best of six δ"),
    "auto": ("c2", "auto"),
    "fedavg": ("ended", "FedAvg"),
}
"""Method -> its colour and label. FedDrift: with the best threshold of each stream."""

LEFT = 150
TOP = 78
ROW_HEIGHT = 32
GREATEST = 20.0


def behind(name: str, rows: list[dict[str, object]]) -> float:
    """Points behind the better oracle of a stream: the mean over seeds, of several settings the least."""
    found = []
    for method in {str(row["method"]) for row in rows}:
        if method == name or (name == "feddrift" and method.startswith("feddrift")):
            value = drift.mean([row for row in rows if row["method"] == method], "behind")
            if value is not None:
                found.append(value)
    return min(found)


def drift_chart() -> Drawing:
    """A row per stream, a dot per method. Greater distances are drawn at the right end."""
    streams = by_world(drift.measured())
    values = {name: [behind(name, rows) for rows in streams.values()] for name in METHODS}
    bottom = TOP + ROW_HEIGHT * len(streams)
    axis = Axis(LEFT, 650, 0.0, GREATEST)
    drawing = Drawing(
        720,
        bottom + 62,
        "Accuracy behind an oracle on data that change",
        f"For each of {len(streams)} streams, a dot for each method: points of accuracy behind an oracle that knows "
        "each client's concept. "
        + " ".join(
            f"{METHODS[name][1]}: " + ", ".join(f"{value:.1f}" for value in each) + "."
            for name, each in values.items()
        ),
    )
    drawing.text(20, 30, "Points of accuracy behind an oracle", size=16, bold=True)
    dot_legend(drawing, 56, list(METHODS.values()), (25, 295, 480, 545))
    marks = {0.0: "0", 5.0: "5", 10.0: "10", 15.0: "15", GREATEST: "20 or more"}
    upright_lines(drawing, axis, marks, TOP, bottom)
    for place, (schedule, stream) in enumerate(streams):
        y = TOP + ROW_HEIGHT * (place + 0.5)
        drawing.text(20, y + 5, f"{called(stream)}, {schedule}")
        for number, (name, (colour, _)) in enumerate(METHODS.items()):
            # One below the other, so that equal ones do not hide each other.
            drawing.circle(axis.at(values[name][place]), y + 6 * (number - 1.5), 4.5, fill=colour)
    drawing.text(LEFT, bottom + 46, "0: as accurate as the oracle", colour="quiet")
    return drawing
