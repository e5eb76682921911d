"""Seconds of a round by simulator: a bar for each on a scale of ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speed_tables import OURS, SPEED, TRAINING, fastest, read, seconds

from tools.docs.charts.axes import Axis, upright_lines
from tools.docs.drawings.canvas import Drawing

WORKLOADS: Mapping[str, tuple[str, str]] = {
    "a": ("CNN on MNIST", "10 clients, 3 epochs"),
    "b": ("CNN on CIFAR-10", "10 clients"),
    "d": ("LSTM on text", "10 clients"),
    "h-cifar": ("CNN on CIFAR-10", "50 clients of 50 images"),
    "h-emnist": ("CNN on EMNIST", "10 clients"),
    "c1000": ("small dense net", "1,000 clients"),
    "c100": ("small dense net", "100 clients"),
    "h-lr": ("logistic regression", "10 clients"),
}
"""Part of the benchmark -> what is trained. The longest round first."""

CONTENDERS: Mapping[str, tuple[str, str]] = {
    "Coterie fp32": ("accent", "Coterie"),
    "plain": ("ended", "plain PyTorch loop"),
    "Flower simulation": ("c1", "Flower's simulation"),
    "pfl-research": ("c2", "pfl-research"),
}
"""How a contender's name begins -> its colour and label. Of several, the fastest."""

LEFT = 190
RIGHT = 610
TOP = 80
BAR = 13
ROW_HEIGHT = 66


def medians() -> dict[str, dict[str, float]]:
    """Part -> contender -> its median seconds of a round."""
    found = {}
    for part in TRAINING:
        for result in read(SPEED, [part]):
            measured: Mapping[str, Any] = result["measured"]
            of = {name: timing["median"] for name, timing in measured["seconds"].items()}
            each = {begins: fastest(of, begins) for begins in CONTENDERS} | {OURS: of[OURS]}
            found[part] = {name: value for name, value in each.items() if value is not None}
    return found


def speed_chart() -> Drawing:
    """Four bars per workload."""
    found = medians()
    bottom = TOP + ROW_HEIGHT * len(WORKLOADS)
    axis = Axis(LEFT, RIGHT, 0.003, 40.0, log=True)
    drawing = Drawing(
        720,
        bottom + 60,
        "Seconds of a round",
        "For each of eight workloads, four bars on a logarithmic scale: seconds of a round of federated averaging. "
        + " ".join(
            f"{what}, {size}: "
            + ", ".join(
                f"{CONTENDERS[name][1]} {seconds(value)}" for name, value in found[part].items()
            )
            + "."
            for part, (what, size) in WORKLOADS.items()
        ),
    )
    drawing.text(20, 30, "Seconds of a round, two CPU cores: shorter is better", size=16, bold=True)
    for (colour, label), x in zip(CONTENDERS.values(), (20, 115, 290, 470), strict=True):
        drawing.box(x, 45, 12, 12, fill=colour, radius=2)
        drawing.text(x + 18, 56, label, colour="quiet")
    marks = {0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10"}
    upright_lines(drawing, axis, marks, TOP - 6, bottom)
    for place, (part, (what, size)) in enumerate(WORKLOADS.items()):
        y = TOP + ROW_HEIGHT * place
        drawing.text(20, y + 22, what, bold=True)
        drawing.text(20, y + 40, size, colour="quiet")
        for row, (name, value) in enumerate(found[part].items()):
            top = y + row * (BAR + 1)
            end = axis.at(value)
            drawing.box(LEFT, top, end - LEFT, BAR, fill=CONTENDERS[name][0], radius=2)
            colour = "text" if row == 0 else "quiet"
            drawing.text(end + 6, top + 11, seconds(value), bold=row == 0, colour=colour)
    drawing.text(LEFT, bottom + 42, "seconds, on a scale of equal ratios", colour="quiet")
    return drawing
