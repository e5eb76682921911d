"""Pictures of the methods that group clients by their updates."""

from __future__ import annotations

from tools.docs.drawings.canvas import SHARED, STRONG, Drawing, Point
from tools.docs.drawings.concepts import NOISE
from tools.docs.drawings.method_sheet import MIDDLE, sheet
from tools.docs.drawings.parts import (
    bar,
    client,
    cross,
    crowd,
    cycle,
    hull,
    link,
    matrix,
    model,
    slider,
    tick,
)

TWO_BLOCKS = (
    (1.0, 0.9, 0.8, 0.0, 0.1, 0.0),
    (0.9, 1.0, 0.9, 0.1, 0.0, 0.0),
    (0.8, 0.9, 1.0, 0.0, 0.0, 0.1),
    (0.0, 0.1, 0.0, 1.0, 0.4, 0.9),
    (0.1, 0.0, 0.0, 0.4, 1.0, 0.5),
    (0.0, 0.0, 0.1, 0.9, 0.5, 1.0),
)
"""Cosines of six clients' updates, in two blocks."""


def cfl() -> Drawing:
    """A tree of bipartitions, and the cosines that it is made of."""
    drawing = sheet(
        "CFL",
        "two blocks of cosines: split in two",
        "On the left, the matrix of the cosines of six clients' updates has two blocks. On the "
        "right, a tree: the group of all six splits in two groups of three, and one of these "
        "later in two and one.",
    )
    colours = ("c0", "c0", "c0", "c1", "c1", "c1")
    matrix(drawing, 20, 28, 21, TWO_BLOCKS, colours)
    drawing.arrow((154, 90), (180, 90))
    _node(drawing, 268, 38, (SHARED,) * 6)
    _branch(drawing, (268, 38), (222, 92))
    _branch(drawing, (268, 38), (310, 92))
    _node(drawing, 222, 92, ("c0",) * 3)
    _node(drawing, 310, 92, ("c1",) * 3)
    _branch(drawing, (310, 92), (286, 146))
    _branch(drawing, (310, 92), (334, 146))
    _node(drawing, 286, 146, ("c1",) * 2)
    _node(drawing, 334, 146, ("c2",))
    return drawing


def _node(drawing: Drawing, x: float, y: float, colours: tuple[str, ...]) -> None:
    """A group in the tree: its clients, in a row."""
    width = 13 * len(colours) + 8
    drawing.box(x - width / 2, y - 12, width, 24, fill="panel", stroke="line", radius=12)
    for place, colour in enumerate(colours):
        client(drawing, x + 13 * (place - (len(colours) - 1) / 2), y, colour, 5)


def _branch(drawing: Drawing, parent: Point, child: Point) -> None:
    link(drawing, (parent[0], parent[1] + 13), (child[0], child[1] - 13))


LEAVES = (50, 86, 122, 172, 208, 258, 294)
CUT_Y = 74
BASE_Y = 140


def flhc() -> Drawing:
    """A dendrogram of the updates, cut at a threshold."""
    drawing = sheet(
        "FL+HC",
        "one clustering of all updates, cut at t",
        "A dendrogram of seven clients' updates. A dashed line at the threshold t cuts it into "
        "three groups of three, two and two clients.",
    )
    first = _merge(drawing, (50, BASE_Y), (86, BASE_Y), 120, "c0")
    first = _merge(drawing, first, (122, BASE_Y), 100, "c0")
    second = _merge(drawing, (172, BASE_Y), (208, BASE_Y), 110, "c1")
    third = _merge(drawing, (258, BASE_Y), (294, BASE_Y), 92, "c2")
    upper = _merge(drawing, second, third, 50, SHARED)
    _merge(drawing, first, upper, 26, SHARED)
    drawing.line((22, CUT_Y), (318, CUT_Y), colour="text", dashed=True, width=2)
    drawing.text(330, CUT_Y + 5, "t", italic=True, size=16)
    crowd(
        drawing,
        [(x, BASE_Y + 10) for x in LEAVES],
        ("c0", "c0", "c0", "c1", "c1", "c2", "c2"),
    )
    return drawing


def _merge(drawing: Drawing, left: Point, right: Point, y: float, colour: str) -> Point:
    """Join two branches at the height ``y``; returns the middle, from which it goes on."""
    drawing.line(left, (left[0], y), (right[0], y), right, colour=colour, width=2.5)
    return (left[0] + right[0]) / 2, y


def acfl() -> Drawing:
    """One clustering, and a mixture of a client's model with its cluster's mean."""
    drawing = sheet(
        "ACFL",
        "one's own model, mixed with the cluster's",
        "After a brief training, clients are clustered once, in two clusters. From then on each "
        "client has a mixture of its own model and the mean of its cluster; a slider shows the "
        "weight lambda of its own.",
    )
    hull(drawing, 18, 22, 58, 134, "c1")
    hull(drawing, 86, 22, 58, 134, "c0")
    crowd(drawing, ((47, 66), (47, 112)), ("c1",) * 2)
    crowd(drawing, ((115, 46), (115, 90), (115, 132)), ("c0",) * 3)
    drawing.circle(115, 90, 14, stroke="text", dashed=True)
    drawing.arrow((132, 90), (166, 90), colour="text")
    model(drawing, 190, 90, "c0", side=32)
    drawing.text(190, 132, "cluster", anchor="middle")
    slider(drawing, 216, 94, 80, 0.5, "λ", "accent")
    model(drawing, 324, 90, "c0", side=32)
    drawing.text(324, 132, "own", anchor="middle")
    return drawing


def hcct() -> Drawing:
    """Pairs of groups merge while their utility rises."""
    drawing = sheet(
        "HCCT",
        "merge while the sum of utilities rises",
        "Three clients. Merging the first two raises the sum of utilities by 0.29, so they merge. "
        "Merging the third with them would lower it by 0.24, so that it stays alone. This is done "
        "anew in each round.",
    )
    hull(drawing, 42, 84, 118, 72, "c0")
    pair = _merge(drawing, (72, 118), (130, 118), 98, "c0")
    client(drawing, 72, 132, "c0", 12)
    client(drawing, 130, 132, "c0", 12)
    drawing.line(pair, (pair[0], 52), (262, 52), (262, 116), dashed=True)
    client(drawing, 262, 132, "c1", 12)
    drawing.text(22, 72, "+0.29", bold=True)
    tick(drawing, 78, 67)
    drawing.text(192, 40, "−0.24", anchor="middle", bold=True)
    cross(drawing, 182, 52)
    cycle(drawing, 318, 92, 16)
    drawing.lines(318, 134, ["each", "round"], anchor="middle", colour="quiet")
    return drawing


def hcct_e() -> Drawing:
    """Only the layer in which updates differ most is compared."""
    drawing = sheet(
        "HCCT-E",
        "compares the layer that differs most",
        "The updates' relative variance in each of three layers is shown by bars. The layer with "
        "the greatest one is framed, and the cosines of this layer alone make the matrix on the "
        "right.",
    )
    for y, variance, colour in ((40, 0.85, "accent"), (84, 0.3, SHARED), (128, 0.45, SHARED)):
        drawing.box(24, y - 12, 56, 24, fill=SHARED, radius=4)
        bar(drawing, 92, y - 4, 92, variance, colour)
    drawing.box(14, 20, 180, 40, stroke="accent", stroke_width=STRONG)
    drawing.arrow((200, 40), (218, 40), (218, 88), (232, 88), colour="accent", width=2.5)
    rows = tuple(row[:4] for row in TWO_BLOCKS[1:5])
    block = tuple(
        tuple(1.0 if i == j else 0.8 if i // 2 == j // 2 else 0.08 for j in range(4))
        for i in range(len(rows))
    )
    matrix(drawing, 242, 42, 24, block, ("c0", "c0", "c1", "c1"))
    return drawing


def hcct_p() -> Drawing:
    """Groups share bodies; heads stay at the clients."""
    drawing = sheet(
        "HCCT-P",
        "a body for each group, one's own heads",
        "Two groups of clients. The lower layers of a model have the colour of its group; the "
        "last layer of each is the client's own and has another shade for each client.",
    )
    heads = iter(("c3", "c4", "c5", "c6", "c7"))
    for left, colour, size in ((18, "c0", 3), (216, "c1", 2)):
        width = 62 * size
        hull(drawing, left, 24, width, 132, colour)
        for place in range(size):
            x = left + 31 + 62 * place
            model(drawing, x, 74, colour, head=next(heads), side=40)
            client(drawing, x, 130, colour)
    return drawing


def split_half() -> Drawing:
    """Halves of one client are the yardstick for the distance of clients."""
    drawing = sheet(
        "Split-half",
        "halves of each client show what is chance",
        "Each client sends two updates from two halves of its data, a dot and a ring joined by a "
        "line. Three clients on the left and three on the right differ by more than their halves "
        "do, so that the group is cut between them.",
    )
    for row, pair in enumerate(NOISE):
        shift = 96 if row < 3 else 264
        colour = "c0" if row < 3 else "c1"
        first, second = ((shift + 0.95 * x, 92 + 0.95 * y) for x, y in pair)
        link(drawing, first, second, gaps=(7, 7), colour=colour)
        drawing.circle(*first, 6.5, fill=colour)
        drawing.circle(*second, 5.5, fill="ground", stroke=colour, stroke_width=2.5)
    drawing.line((MIDDLE, 44), (MIDDLE, 156), colour="text", dashed=True, width=2)
    drawing.text(MIDDLE, 34, "p < level", anchor="middle")
    return drawing


def cfl_gp() -> Drawing:
    """Clients as points: what they make of the first model, and of the second."""
    drawing = sheet(
        "CFL-GP",
        "k-means on updates from several models",
        "A plane of clients: to the right, their mean update from model 1; upwards, that from "
        "model 2. K-means finds two groups of clients, parted by a dashed line.",
    )
    drawing.arrow((84, 148), (84, 20))
    drawing.arrow((84, 148), (270, 148))
    drawing.lines(20, 34, ["from", "model 2"], colour="quiet")
    drawing.lines(278, 134, ["from", "model 1"], colour="quiet")
    first = ((108, 36), (132, 54), (112, 70), (146, 36))
    second = ((222, 128), (252, 112), (266, 134), (232, 100))
    crowd(drawing, first, ("c0",) * 4, 7)
    crowd(drawing, second, ("c1",) * 4, 7)
    drawing.line((104, 142), (252, 28), colour="text", dashed=True, width=2)
    return drawing
