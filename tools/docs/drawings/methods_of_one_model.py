"""Pictures of the methods with one model for all, with and without something of each client's own."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.drawings.canvas import SHARED, STRONG, Drawing
from tools.docs.drawings.method_sheet import MIDDLE, sheet
from tools.docs.drawings.parts import (
    bar,
    between,
    client,
    crowd,
    hull,
    lock,
    model,
    slider,
    spring,
    step,
    tick,
)

THREE = (70, 180, 290)
"""Where three clients are, from the left."""


def _weighted_mean(drawing: Drawing, weights: Sequence[float], radii: Sequence[float]) -> None:
    """Arrows from three clients to the model, as strong as their weights."""
    model(drawing, MIDDLE, 36, side=32)
    for x, weight, radius in zip(THREE, weights, radii, strict=True):
        client(drawing, x, 128, "c0", radius)
        between(
            drawing,
            (x, 128),
            (MIDDLE + (x - MIDDLE) / 6, 44),
            gaps=(20, 14),
            colour="c0",
            width=1 + 6 * weight,
        )


def fedavg() -> Drawing:
    """One model, the mean of what clients of different size have trained."""
    drawing = sheet(
        "FedAvg",
        "the mean, weighted by examples",
        "Three clients send their updates to one model. A client with more training examples has "
        "a greater dot, a thicker arrow and a greater weight: 0.2, 0.5 and 0.3.",
    )
    _weighted_mean(drawing, (0.2, 0.5, 0.3), (9, 15, 11))
    for x, y, words in ((88, 84, "0.2"), (202, 90, "0.5"), (272, 84, "0.3")):
        drawing.text(x, y, words, anchor="middle")
    return drawing


def fedprox() -> Drawing:
    """Clients that differ, each on a spring to the model that it was sent."""
    drawing = sheet(
        "FedProx",
        "not far from the shared model",
        "Three clients train towards data that lie in different directions. A spring of strength "
        "mu holds each near the model that it was sent.",
    )
    model(drawing, MIDDLE, 40, side=36)
    for x, colour in zip(THREE, ("c0", "c1", "c2"), strict=True):
        client(drawing, x, 140, colour)
        between(drawing, (x, 140), (MIDDLE + (x - MIDDLE) / 5, 52), gaps=(20, 16), colour=colour)
    spring(drawing, 206, 40, 72)
    drawing.text(242, 24, "μ", anchor="middle", italic=True, size=16)
    return drawing


def scaffold() -> Drawing:
    """Steps that lead to a client's own optimum, and the correction back to that of all."""
    drawing = sheet(
        "SCAFFOLD",
        "each step corrected towards all",
        "From the shared model, the steps of a client lead to its own optimum. An arrow, c minus "
        "c-i, turns each step towards the optimum of all clients.",
    )
    model(drawing, 48, 128, side=36)
    drawing.circle(300, 40, 9, fill="c0")
    drawing.text(300, 22, "its own", anchor="middle")
    drawing.circle(300, 128, 9, fill=SHARED)
    drawing.text(300, 156, "of all", anchor="middle")
    for start in (76, 140, 204):
        height = 128 - (start - 76) * 0.06
        drawing.arrow((start, height), (start + 54, height - 26), colour="c0")
        drawing.arrow(
            (start + 54, height - 26), (start + 56, height - 4), colour="accent", width=STRONG
        )
    drawing.text(196, 78, "c − cᵢ", anchor="middle", italic=True, size=16)
    return drawing


def fedopt() -> Drawing:
    """The mean update of each group goes through an optimizer of its own."""
    drawing = sheet(
        "FedOpt",
        "an optimizer moves each group's model",
        "The mean update of a group's clients goes into an optimizer at the server, which remembers "
        "m and v. The optimizer moves the group's model. A second group has an optimizer of its own.",
    )
    for y, colour in ((54, "c0"), (128, "c1")):
        for x, height in ((36, y - 16), (58, y + 2), (34, y + 18)):
            client(drawing, x, height, colour, 8)
        drawing.arrow((76, y), (136, y), colour=colour, width=STRONG)
        drawing.text(106, y - 10, "Δ", anchor="middle", italic=True, size=16)
        drawing.box(140, y - 22, 84, 44, fill="panel", stroke="accent", stroke_width=STRONG)
        drawing.text(182, y + 6, "m, v", anchor="middle", italic=True, size=16)
        drawing.arrow((228, y), (286, y), colour=colour, width=STRONG)
        model(drawing, 312, y, colour, side=40)
    return drawing


def timed() -> Drawing:
    """Three devices of different speed on one axis of time, and the server's steps."""
    drawing = sheet(
        "Timed",
        "who waits for whom",
        "Three clients on an axis of time. The first has done four tasks, the second two, the third, "
        "which is slow, one. The server takes a step when enough replies have arrived.",
    )
    lanes = ((46, (62, 126, 190, 254)), (86, (126, 254)), (126, (254,)))
    for number, (y, ends) in enumerate(lanes):
        colour = ("c0", "c1", "c2")[number]
        client(drawing, 34, y, colour)
        start = 62
        for end in ends:
            finish = end + 62
            drawing.arrow((start, y), (finish - 8, y), colour=colour, width=STRONG)
            start = finish
    for x in (188, 252, 316):
        drawing.line((x, 26), (x, 146), colour="accent", dashed=True)
    drawing.text(188, 166, "steps of the server", anchor="middle")
    return drawing


def fedfa() -> Drawing:
    """One model that looks to the clients that it fits badly."""
    drawing = sheet(
        "FedFA",
        "where it is less accurate, more weight",
        "Three clients send their updates to one model. The model is right on 90, 30 and 60 per "
        "cent of their training examples, shown by bars. The less accurate it is, the thicker is "
        "the client's arrow: the weights are 0.06, 0.66 and 0.28.",
    )
    _weighted_mean(drawing, (0.06, 0.66, 0.28), (9, 9, 9))
    for x, accuracy in zip(THREE, (0.9, 0.3, 0.6), strict=True):
        bar(drawing, x - 30, 148, 60, accuracy, SHARED)
    for x, y, words in ((80, 84, "0.06"), (206, 90, "0.66"), (276, 84, "0.28")):
        drawing.text(x, y, words, anchor="middle")
    return drawing


def independent() -> Drawing:
    """Every client with its own model, and nothing between them."""
    drawing = sheet(
        "Independent",
        "each trains alone, nothing is sent",
        "Four clients in separate boxes, each with a model of its own colour. No arrow joins them.",
    )
    for x, colour in zip((60, 140, 220, 300), ("c0", "c1", "c2", "c3"), strict=True):
        drawing.box(x - 32, 24, 64, 130, fill="panel", stroke="line")
        model(drawing, x, 62, colour, side=30)
        drawing.arrow((x, 110), (x, 84), colour=colour)
        client(drawing, x, 128, colour)
    return drawing


def maxfl() -> Drawing:
    """A global model of those whom it appeals to."""
    drawing = sheet(
        "MAXFL",
        "those it appeals to share, others do not",
        "Three clients that find the global model appealing share it. Two others train their own "
        "models alone.",
    )
    hull(drawing, 20, 24, 190, 132, SHARED)
    model(drawing, 115, 54, side=30)
    for x in (55, 115, 175):
        between(drawing, (x, 134), (115 + (x - 115) / 3, 62), gaps=(13, 14), both=True)
        client(drawing, x, 134, "c0")
    for x, colour in ((252, "c1"), (312, "c3")):
        drawing.box(x - 25, 24, 50, 132, fill="panel", stroke="line")
        model(drawing, x, 62, colour, side=26)
        client(drawing, x, 134, colour)
        drawing.arrow((x, 118), (x, 82), colour=colour)
    return drawing


def fedper() -> Drawing:
    """A shared body and a last layer of each client's own."""
    drawing = sheet(
        "FedPer",
        "a shared body, a last layer of one's own",
        "The server has the lower two layers of the model. Each of three clients has these and a "
        "last layer of its own colour, which it never sends.",
    )
    _body(drawing, MIDDLE, 42, 36)
    for x, colour in zip(THREE, ("c0", "c1", "c2"), strict=True):
        between(drawing, (x, 122), (MIDDLE + (x - MIDDLE) / 5, 54), gaps=(24, 12), both=True)
        model(drawing, x, 122, head=colour, side=32)
        client(drawing, x, 154, colour, 7)
    return drawing


def fedbn() -> Drawing:
    """Shared layers, and between them norms of each client's own."""
    drawing = sheet(
        "FedBN",
        "shared layers, BatchNorm of one's own",
        "The server has two layers of the model. Each of three clients has these, and between them "
        "a thin BatchNorm layer of its own colour, which it never sends.",
    )
    for row in (30, 50):
        drawing.box(MIDDLE - 22, row - 7, 44, 14, fill=SHARED, radius=3)
    for x, colour in zip(THREE, ("c0", "c1", "c2"), strict=True):
        between(drawing, (x, 100), (MIDDLE + (x - MIDDLE) / 5, 56), gaps=(8, 10), both=True)
        for row in (104, 130):
            drawing.box(x - 22, row - 7, 44, 14, fill=SHARED, radius=3)
        drawing.box(x - 22, 114, 44, 6, fill=colour, radius=2)
        client(drawing, x, 154, colour, 7)
    return drawing


def _body(drawing: Drawing, x: float, y: float, side: float) -> None:
    """The shared layers of a model, without the last one."""
    gap = side / 12
    layer = (side - 2 * gap) / 3
    drawing.box(
        x - side / 2, y - side / 2, side, layer, stroke="quiet", radius=side / 10, dashed=True
    )
    for row in (1, 2):
        drawing.box(
            x - side / 2,
            y - side / 2 + row * (layer + gap),
            side,
            layer,
            fill=SHARED,
            radius=side / 10,
        )


def fedrep() -> Drawing:
    """First the head is trained, then the body."""
    drawing = sheet(
        "FedRep",
        "first its own head, then the shared body",
        "A client's round in two steps. First only its last layer, the head, is trained, and the "
        "body is locked. Then only the body is trained, and the head is locked. The body's update "
        "goes to the server.",
    )
    for numeral, x in enumerate((92, 240)):
        step(drawing, x - 54, 38, numeral + 1)
        model(drawing, x, 84, head="c0", side=60)
    drawing.box(56, 48, 72, 25, stroke="accent", stroke_width=STRONG)
    lock(drawing, 140, 96)
    drawing.text(92, 140, "head", anchor="middle", bold=True)
    drawing.arrow((158, 84), (192, 84))
    drawing.box(204, 74, 72, 46, stroke="accent", stroke_width=STRONG)
    lock(drawing, 288, 64)
    drawing.text(240, 140, "body", anchor="middle", bold=True)
    drawing.arrow((284, 96), (336, 96), width=2.5)
    drawing.text(310, 120, "sent", anchor="middle", colour="quiet")
    return drawing


def fedbabu() -> Drawing:
    """A head that stays as it was drawn, and fine-tuning of everything at the clients."""
    drawing = sheet(
        "FedBABU",
        "the head waits, then all is fine-tuned",
        "The clients train the shared model's lower layers together; its last layer is locked at "
        "its first random values. Then each of three clients fine-tunes the whole model for "
        "itself, which gives it a model of its own colour.",
    )
    model(drawing, 84, 86, head="text", side=60)
    lock(drawing, 132, 68)
    drawing.text(84, 144, "trained by all", anchor="middle")
    for y, colour in zip((42, 90, 138), ("c0", "c1", "c2"), strict=True):
        between(drawing, (120, 90), (270, y), gaps=(32, 24))
        model(drawing, 272, y, colour, side=30)
        client(drawing, 316, y, colour)
    return drawing


def ditto() -> Drawing:
    """An own model between the client's data and the shared model."""
    drawing = sheet(
        "Ditto",
        "its own model, held near the shared one",
        "The client's own model v is trained towards the client's data, and a spring of strength "
        "lambda pulls it to the shared model w.",
    )
    model(drawing, 56, 84, side=46)
    drawing.text(56, 132, "w", anchor="middle", italic=True, size=16)
    spring(drawing, 88, 84, 72)
    drawing.text(124, 66, "λ", anchor="middle", italic=True, size=16)
    model(drawing, 192, 84, "c0", side=46)
    drawing.text(192, 132, "v", anchor="middle", italic=True, size=16)
    drawing.arrow((224, 84), (286, 84), colour="c0", width=STRONG)
    client(drawing, 310, 84, "c0", 13)
    drawing.text(310, 132, "its data", anchor="middle")
    return drawing


def apfl() -> Drawing:
    """A mixture of both models, whose weight the client learns."""
    drawing = sheet(
        "APFL",
        "a mixture whose weight is learned",
        "Two clients each mix the shared model w with their own model v. A slider shows the "
        "weight alpha of the own model, which each client learns: small at the one, great at the "
        "other.",
    )
    drawing.text(56, 30, "shared w", anchor="middle")
    drawing.text(304, 30, "own v", anchor="middle")
    for y, share, colour in ((74, 0.25, "c0"), (134, 0.8, "c1")):
        model(drawing, 56, y, side=36)
        model(drawing, 304, y, colour, side=36)
        slider(drawing, 96, y + 6, 168, share, "α", colour)
    return drawing


def fedamp() -> Drawing:
    """Models of clients, joined by lines as thick as their weights."""
    drawing = sheet(
        "FedAMP",
        "its own model, near those alike",
        "Four clients each have a model of their own. Thick lines join the two on the left, and the "
        "two on the right, whose models are similar; thin lines join the others.",
    )
    places = ((70, 46, "c0"), (110, 128, "c0"), (250, 46, "c1"), (290, 128, "c1"))
    for position, (x, y, _) in enumerate(places):
        for other_position, (other_x, other_y, _) in enumerate(places):
            if position < other_position:
                alike = position // 2 == other_position // 2
                drawing.line((x, y), (other_x, other_y), width=6 if alike else 1)
    for x, y, colour in places:
        model(drawing, x, y, colour, side=36)
    return drawing


def pfedgraph() -> Drawing:
    """A client's model and its three weights: to those alike, and to those with many examples."""
    drawing = sheet(
        "pFedGraph",
        "mixed with models that are alike",
        "Arrows from three clients lead to a fourth one's model. Two of them have models like its own "
        "and thick arrows, the thicker one that of more examples; from the third, whose model differs, "
        "no arrow leads there.",
    )
    # Row, colour, size of the model, and width of the arrow from it to the mixture.
    places = ((34, "c0", 40, 6), (88, "c0", 28, 3), (140, "c1", 40, 0))
    for y, colour, side, width in places:
        model(drawing, 60, y, colour, side=side)
        if width:
            drawing.arrow((94, y), (254, 64 if y < 80 else 80), width=width, colour=colour)
    model(drawing, 292, 74, "c0", side=50)
    drawing.text(292, 126, "its mixture", anchor="middle")
    return drawing


def knn_per() -> Drawing:
    """The nearest examples that the client remembers, mixed with the shared model."""
    drawing = sheet(
        "kNN-Per",
        "mixed with one's own nearest examples",
        "On the left, examples of two classes that a client remembers, by their features; a ring "
        "around a new input holds its nearest ones. On the right, the shared model. A slider "
        "between them is the weight lambda of the neighbours.",
    )
    drawing.box(18, 20, 140, 138, fill="panel", stroke="line")
    first = ((44, 46), (66, 62), (40, 84), (72, 92), (90, 57))
    second = ((98, 130), (124, 108), (136, 136), (128, 74), (140, 96))
    crowd(drawing, first, ("c0",) * 5, 5)
    crowd(drawing, second, ("c1",) * 5, 5)
    drawing.circle(84, 78, 33, stroke="text", dashed=True)
    drawing.text(84, 83, "?", anchor="middle", bold=True, size=16)
    slider(drawing, 176, 100, 76, 0.4, "λ", "accent")
    model(drawing, 302, 94, side=50)
    drawing.text(302, 142, "shared", anchor="middle")
    return drawing


def tuned() -> Drawing:
    """A method's model and what a client makes of it: the better one on held-out data serves."""
    drawing = sheet(
        "Tuned",
        "the better of two on held-out examples",
        "A client trains the model of any method further, to a personal model. Below, bars show "
        "the loss of both on held-out examples: that of the personal model is lower, so that it "
        "serves the client.",
    )
    model(drawing, 92, 62, side=46)
    drawing.arrow((128, 62), (228, 62), width=STRONG, colour="c0")
    drawing.text(178, 50, "trains on", anchor="middle")
    model(drawing, 268, 62, "c0", side=46)
    drawing.text(16, 128, "loss", colour="quiet")
    bar(drawing, 56, 118, 84, 0.85, SHARED, 10)
    bar(drawing, 226, 118, 84, 0.5, "c0", 10)
    drawing.text(98, 152, "any method's", anchor="middle")
    drawing.text(268, 152, "personal", anchor="middle")
    tick(drawing, 328, 122)
    return drawing
