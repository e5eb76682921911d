"""The idea in one picture: one model for all, one for each group, or one for each client, with measured accuracies."""

from __future__ import annotations

from tools.docs.drawings.canvas import GROUPS, SHARED, Drawing
from tools.docs.drawings.parts import bar, client, hull, model

SHARED_ACCURACY = 0.383
"""`fedavg` in the demonstration, as README records it."""

GROUPS_ACCURACY = 0.978
"""`auto` in the demonstration, as README records it."""

ALONE_ACCURACY = 0.906
"""`coterie run --method independent`: the same scenario, seed 0 and 40 rounds."""

SITES = ("c2", "c0", "c3", "c1", "c0", "c2", "c1", "c3")
"""The groups of the eight sites, in no order."""

PANEL_WIDTH = 166
PANEL_LEFTS = (180, 358, 536)


def idea() -> Drawing:
    """Eight sites, and three ways to give them models."""
    drawing = Drawing(
        720,
        312,
        "One shared model, a model for each group, or one for each site",
        "Eight sites have data of four kinds, shown by four colours. One shared model for all of "
        "them has a mean test accuracy of 0.383, a model for each group of alike sites 0.978, and "
        "a model that each site trains alone 0.906. The numbers are those of the demonstration, "
        "'coterie run' without arguments: 20 clients in four groups, 40 rounds, seed 0, with "
        "FedAvg and auto as the README records it; training alone is the same run with "
        "'--method independent'.",
    )
    _sites(drawing)
    _panel(drawing, 0, "one model for all", SHARED_ACCURACY, SHARED)
    _panel(drawing, 1, "one per group", GROUPS_ACCURACY, "accent")
    _panel(drawing, 2, "each alone", ALONE_ACCURACY, SHARED)
    _one_for_all(drawing, PANEL_LEFTS[0])
    _one_per_group(drawing, PANEL_LEFTS[1])
    _each_alone(drawing, PANEL_LEFTS[2])
    drawing.text(
        698,
        296,
        "mean test accuracy in the demonstration: 20 clients, 40 rounds",
        anchor="end",
        colour="quiet",
    )
    return drawing


def _sites(drawing: Drawing) -> None:
    drawing.text(78, 42, "eight sites", size=16, anchor="middle", bold=True)
    for place, colour in enumerate(SITES):
        client(drawing, 54 + 48 * (place % 2), 76 + 38 * (place // 2), colour, 12)
    drawing.lines(
        78, 234, ["four kinds of", "data; nobody", "knows which"], anchor="middle", colour="quiet"
    )
    drawing.arrow((134, 133), (168, 133), width=2.5)


def _panel(drawing: Drawing, place: int, head: str, accuracy: float, colour: str) -> None:
    x = PANEL_LEFTS[place]
    best = accuracy == GROUPS_ACCURACY
    drawing.box(
        x,
        16,
        PANEL_WIDTH,
        258,
        fill="panel",
        stroke="accent" if best else "line",
        stroke_width=2.5 if best else 1.75,
    )
    drawing.text(x + PANEL_WIDTH / 2, 42, head, size=15, anchor="middle", bold=True)
    drawing.text(x + PANEL_WIDTH / 2, 236, f"{accuracy:.3f}", size=24, anchor="middle", bold=True)
    bar(drawing, x + 18, 250, PANEL_WIDTH - 36, accuracy, colour)


def _one_for_all(drawing: Drawing, left: float) -> None:
    middle = left + PANEL_WIDTH / 2
    hull(drawing, left + 10, 58, PANEL_WIDTH - 20, 148, SHARED)
    model(drawing, middle, 88, side=34)
    for place, colour in enumerate(SITES):
        row, column = divmod(place, 4)
        client(drawing, left + 26 + 38 * column, 142 + 38 * row, colour)


def _one_per_group(drawing: Drawing, left: float) -> None:
    for place, colour in enumerate(GROUPS):
        x = left + 26 + 38 * place
        hull(drawing, x - 16, 58, 32, 148, colour)
        model(drawing, x, 88, colour, side=22)
        client(drawing, x, 142, colour)
        client(drawing, x, 180, colour)


def _each_alone(drawing: Drawing, left: float) -> None:
    for place, colour in enumerate(SITES):
        row, column = divmod(place, 4)
        x, y = left + 26 + 38 * column, 58 + 78 * row
        hull(drawing, x - 16, y, 32, 70, colour)
        model(drawing, x, y + 21, colour, side=18)
        client(drawing, x, y + 50, colour)
