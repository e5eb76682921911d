"""Pictures of the methods in which losses decide, and of those that see sums alone."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.drawings.canvas import SHARED, STRONG, Drawing
from tools.docs.drawings.method_sheet import sheet
from tools.docs.drawings.parts import (
    bar,
    between,
    client,
    column,
    cross,
    link,
    matrix,
    model,
    tick,
)

OFFERED = ("c0", "c1", "c2")
LOSSES = (0.8, 0.25, 0.4)
"""Of one client, with the three models that it is offered."""

MODELS_Y = (40, 90, 140)


def _offer(drawing: Drawing, taken: Sequence[int]) -> None:
    """Three models, and the loss of a client with each."""
    drawing.text(160, 20, "loss", anchor="middle", colour="quiet")
    for place, (y, colour, loss) in enumerate(zip(MODELS_Y, OFFERED, LOSSES, strict=True)):
        model(drawing, 54, y, colour, side=34)
        drawing.arrow((80, y), (102, y))
        bar(drawing, 112, y - 5, 96, loss, colour, 10)
        if place in taken:
            tick(drawing, 228, y)


def ifca() -> Drawing:
    """Several models, of which a client takes the one with its least loss."""
    drawing = sheet(
        "IFCA",
        "each client takes the model of least loss",
        "A client is offered three models and measures its loss with each. It takes the second, "
        "with the least loss, and trains it.",
    )
    _offer(drawing, (1,))
    client(drawing, 310, 90, "c1", 14)
    drawing.arrow((244, 90), (288, 90), colour="c1", width=STRONG)
    return drawing


def flsc() -> Drawing:
    """Several models, of which a client trains the mean of its best."""
    drawing = sheet(
        "FLSC",
        "each trains the mean of its best models",
        "A client is offered three models and measures its loss with each. It takes the two with "
        "the least losses, the second and the third, and trains their mean; both models learn "
        "from it.",
    )
    _offer(drawing, (1, 2))
    drawing.arrow((244, 92), (278, 108), colour="c1", width=STRONG)
    drawing.arrow((244, 138), (278, 122), colour="c2", width=STRONG)
    model(drawing, 300, 115, "c2", head="c1", side=30)
    client(drawing, 336, 115, SHARED)
    return drawing


def clove() -> Drawing:
    """All losses of all clients, clustered; each group gets the model that fits it."""
    drawing = sheet(
        "CLoVE",
        "k-means on losses, a model for each group",
        "A matrix of the losses of six clients with three models. K-means finds three groups of "
        "two clients with like rows, and each group gets a model of its own.",
    )
    rows = [
        [1.0 if place == group else 0.2 for place in range(3)] for group in range(3) for _ in (0, 1)
    ]
    losses = [[1.15 - value for value in row] for row in rows]
    colours = [OFFERED[row // 2] for row in range(6)]
    drawing.text(90, 22, "losses with 3 models", anchor="middle", colour="quiet")
    for row, colour in enumerate(colours):
        client(drawing, 40, 44 + 21 * row, colour, 7)
    matrix(drawing, 60, 34, 21, losses, (SHARED,) * 6)
    for place, colour in enumerate(OFFERED):
        y = 54 + 42 * place
        drawing.line(
            (132, y - 16), (142, y - 16), (142, y + 15), (132, y + 15), colour=colour, width=2.5
        )
        drawing.arrow((150, y), (236, y), colour=colour, width=2.5)
        model(drawing, 262, y, colour, side=30)
    return drawing


def feddrift() -> Drawing:
    """Models that appear when losses rise, and merge when they serve alike."""
    drawing = sheet(
        "FedDrift",
        "losses rise: new models; alike: merged",
        "Three time steps. In the first one, one model serves all clients. In the second, the "
        "losses of two clients have risen, and each gets a new model. In the third, these two "
        "models serve alike and are merged.",
    )
    for x, words in ((62, "step 1"), (180, "step 2"), (298, "step 3")):
        drawing.text(x, 30, words, anchor="middle", colour="quiet")
    for x in (121, 239):
        drawing.line((x, 18), (x, 158), colour="line", dashed=True)
    model(drawing, 62, 96, "c0", side=30)
    model(drawing, 180, 58, "c0", side=30)
    model(drawing, 180, 100, "c1", side=30)
    model(drawing, 180, 142, "c3", side=30)
    model(drawing, 298, 58, "c0", side=30)
    model(drawing, 298, 121, "c1", side=30)
    between(drawing, (62, 96), (180, 58), gaps=(24, 24))
    between(drawing, (62, 96), (180, 100), gaps=(24, 24), dashed=True)
    between(drawing, (62, 96), (180, 142), gaps=(24, 24), dashed=True)
    between(drawing, (180, 58), (298, 58), gaps=(24, 24))
    between(drawing, (180, 100), (298, 121), gaps=(24, 24))
    between(drawing, (180, 142), (298, 121), gaps=(24, 24))
    return drawing


def race() -> Drawing:
    """Methods as runners on lanes."""
    drawing = sheet(
        "Race",
        "the lowest held-out loss serves",
        "Three methods on lanes. The one that is ahead on held-out examples serves the clients; "
        "one that has fallen behind is dropped.",
    )
    lanes = (("fedavg", 0.72, SHARED), ("cfl", 0.95, "c0"), ("ifca", 0.4, "c1"))
    for row, (name, share, colour) in enumerate(lanes):
        y = 44 + 46 * row
        drawing.text(20, y + 5, name)
        drawing.line((84, y), (336, y), colour="line", width=STRONG)
        end = 84 + 210 * share
        drawing.line((84, y), (end, y), colour=colour, width=5)
        if colour == "c1":
            cross(drawing, end + 2, y)
            drawing.text(end + 16, y - 8, "dropped", colour="quiet")
        else:
            drawing.circle(end, y, 9, fill=colour)
    drawing.text(316, 78, "serves", anchor="middle", bold=True)
    return drawing


def auto() -> Drawing:
    """One model, groups and training alone over the rounds."""
    drawing = sheet(
        "Auto",
        "begins with one model, keeps the better",
        "Three lanes over the rounds. One model serves the clients first. Once the groups have a "
        "lower loss on held-out examples, they serve. One model and training alone are dropped "
        "later.",
    )
    switch, drop, end = 156, 262, 336
    lanes = (("one model", SHARED), ("groups", "c0"), ("alone", "c1"))
    for row, (name, colour) in enumerate(lanes):
        y = 44 + 42 * row
        last = end if name == "groups" else drop
        drawing.text(18, y + 5, name)
        drawing.line((104, y), (last, y), colour=colour, width=2)
        if name != "groups":
            cross(drawing, last, y)
    drawing.line((104, 44), (switch, 44), colour=SHARED, width=9)
    drawing.arrow((switch, 52), (switch, 78), colour="text")
    drawing.line((switch, 86), (end, 86), colour="c0", width=9)
    drawing.text(250, 72, "serves", anchor="middle", bold=True)
    drawing.arrow((104, 156), (end, 156))
    drawing.text(98, 161, "rounds", anchor="end", colour="quiet")
    return drawing


# -- sums alone

COUNTS = (2, 5, 6, 3, 0, 1, 4, 6, 4)
"""A histogram of clients on the axis on which they differ."""


def split_half_sums() -> Drawing:
    """Clients behind masks; the server sees a histogram and cuts it."""
    drawing = sheet(
        "Split-half from sums",
        "groups from sums over all clients",
        "Clients behind masks answer a question about themselves. The server sees only the sum, a "
        "histogram of all clients on the axis on which they differ, and cuts it where it is thin.",
    )
    for y in (34, 70, 106, 142):
        client(drawing, 40, y, SHARED)
        drawing.circle(40, y, 14, stroke="text", dashed=True)
        between(drawing, (40, y), (124, 88), gaps=(20, 22))
    _sum(drawing, 124, 88)
    drawing.arrow((146, 88), (172, 88))
    for place, count in enumerate(COUNTS):
        colour = "c0" if place < 4 else "c1"
        column(drawing, 192 + 17 * place, 146, 15 * count + 2, colour, 13)
    drawing.line((260, 36), (260, 156), colour="text", dashed=True, width=2)
    return drawing


def _sum(drawing: Drawing, x: float, y: float) -> None:
    drawing.circle(x, y, 17, fill="panel", stroke="quiet")
    drawing.text(x, y + 7, "Σ", anchor="middle", size=20)


def split_half_private() -> Drawing:
    """A slot for each model, of which a client fills one; the server sees the sum with noise."""
    drawing = sheet(
        "Private split-half",
        "one slot of each client, sums with noise",
        "Each client has a slot for each of three models and puts its update into the slot of the "
        "one that it takes; the others are zero. Behind masks all slots look alike. The server "
        "sees the sum of every slot, with noise.",
    )
    for row, taken in enumerate((0, 2, 1, 0)):
        y = 34 + 36 * row
        client(drawing, 32, y, SHARED)
        for slot in range(3):
            x = 56 + 30 * slot
            drawing.box(x, y - 11, 26, 22, fill="panel", stroke="line", radius=3)
            if slot == taken:
                drawing.box(x + 3, y - 8, 20, 16, fill=OFFERED[slot], radius=2)
            else:
                drawing.text(x + 13, y + 5, "0", anchor="middle", colour="quiet")
        link(drawing, (152, y), (192, 88), gaps=(2, 20))
    drawing.line((150, 18), (150, 158), colour="text", dashed=True, width=2)
    drawing.text(160, 30, "masks", colour="quiet")
    _sum(drawing, 196, 88)
    drawing.arrow((218, 88), (238, 88))
    for slot, colour in enumerate(OFFERED):
        y = 34 + 36 * slot + 18
        drawing.box(250, y - 11, 40, 22, fill=colour, radius=3)
        drawing.path(f"M298 {y} q4 -9 8 0 t8 0 t8 0 t8 0", colour=colour, width=2)
    drawing.text(300, 150, "noise", colour="quiet")
    return drawing
