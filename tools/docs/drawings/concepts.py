"""The concepts: a round, a round with groups, the split-half test, and auto over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from tools.docs.drawings.canvas import SHARED, STRONG, Drawing, Point
from tools.docs.drawings.parts import (
    bar,
    between,
    client,
    column,
    cross,
    hull,
    link,
    model,
    server,
    step,
)

WIDTH = 720

# -- a round

FRAME_WIDTH = 160
FRAME_LEFTS = (18, 193, 368, 543)
FRAME_TOP = 18
CLIENT_PLACES = (30, 80, 130)
"""Where the three clients of a frame are, from its left side."""

EXAMPLES = (30, 12, 18)
"""Training examples of the three clients, so that their weights are 0.5, 0.2 and 0.3."""

UPDATES = ((-44, -64), (46, -40), (20, -98))
"""The clients' updates, as ways on the sheet."""

CLIENTS_Y = 206


def concept_round() -> Drawing:
    """One round of federated averaging in four steps."""
    drawing = Drawing(
        WIDTH,
        318,
        "A round: send, train, return, average",
        "Four steps. First the server sends its model to the clients. Second, each client trains "
        "the model on its own data, which stay with it. Third, the clients send their updates, "
        "the changes by the training, to the server. Fourth, the server moves the model by the "
        "weighted mean of the updates; in the picture three clients have 30, 12 and 18 examples "
        "and so the weights 0.5, 0.2 and 0.3. Then the next round begins.",
    )
    heads = ("send", "train", "return", "average")
    captions = (
        ("the server sends", "its model"),
        ("on data that stay", "with the client"),
        ("updates go back,", "data do not"),
        ("by the number of", "examples"),
    )
    for place, left in enumerate(FRAME_LEFTS):
        drawing.box(left, FRAME_TOP, FRAME_WIDTH, 258, fill="panel", stroke="line")
        step(drawing, left + 22, FRAME_TOP + 22, place + 1)
        drawing.text(left + 42, FRAME_TOP + 28, heads[place], size=16, bold=True)
        drawing.lines(left + 12, FRAME_TOP + 224, captions[place], colour="quiet")
        if place:
            drawing.arrow((left - 14, 130), (left - 1, 130))
    _send(drawing, FRAME_LEFTS[0])
    _train(drawing, FRAME_LEFTS[1])
    _return(drawing, FRAME_LEFTS[2])
    _average(drawing, FRAME_LEFTS[3])
    last = FRAME_LEFTS[3] + FRAME_WIDTH / 2
    first = FRAME_LEFTS[0] + FRAME_WIDTH / 2
    drawing.arrow((last, 277), (last, 297), (first, 297), (first, 278))
    drawing.box(310, 286, 100, 22, fill="ground")
    drawing.text(360, 302, "next round", anchor="middle", colour="quiet")
    return drawing


def _server_with_model(drawing: Drawing, left: float) -> Point:
    middle = left + FRAME_WIDTH / 2
    server(drawing, left + 14, 64, FRAME_WIDTH - 28, 44)
    drawing.text(left + 24, 91, "server", colour="quiet")
    model(drawing, middle + 36, 86)
    return middle, 108


def _send(drawing: Drawing, left: float) -> None:
    below = _server_with_model(drawing, left)
    for place in CLIENT_PLACES:
        start = (below[0] + (left + place - below[0]) / 3, below[1])
        between(drawing, start, (left + place, CLIENTS_Y), gaps=(8, 16))
        client(drawing, left + place, CLIENTS_Y, "c0")


def _train(drawing: Drawing, left: float) -> None:
    for place, examples in zip(CLIENT_PLACES, EXAMPLES, strict=True):
        x = left + place
        model(drawing, x, 84, side=22)
        drawing.arrow((x, 180 - 2 * examples - 6), (x, 102), colour="c0")
        column(drawing, x, 182, 2 * examples, "c0", width=20)
        client(drawing, x, CLIENTS_Y, "c0")


def _return(drawing: Drawing, left: float) -> None:
    below = _server_with_model(drawing, left)
    for place in CLIENT_PLACES:
        end = (below[0] + (left + place - below[0]) / 3, below[1])
        between(drawing, (left + place, CLIENTS_Y), end, gaps=(15, 5), colour="c0", width=2.5)
        client(drawing, left + place, CLIENTS_Y, "c0")
    drawing.text(left + 26, 162, "Δ₁", anchor="middle")
    drawing.text(left + 96, 178, "Δ₂", anchor="middle")
    drawing.text(left + 136, 162, "Δ₃", anchor="middle")


def _average(drawing: Drawing, left: float) -> None:
    start = (left + 78, 204)
    shares = [examples / sum(EXAMPLES) for examples in EXAMPLES]
    model(drawing, start[0] - 26, start[1] - 3)
    labels = ((-14, -6), (18, 0), (20, 2))
    for update, share, label in zip(UPDATES, shares, labels, strict=True):
        tip = (start[0] + update[0], start[1] + update[1])
        drawing.arrow(start, tip, colour="c0", width=1 + 3 * share)
        drawing.text(tip[0] + label[0], tip[1] + label[1], f"{share:.1f}", anchor="middle")
    mean_x, mean_y = (
        sum(share * update[axis] for share, update in zip(shares, UPDATES, strict=True))
        for axis in (0, 1)
    )
    drawing.arrow(start, (start[0] + mean_x, start[1] + mean_y), colour="text", width=STRONG)
    drawing.text(start[0] - 10, start[1] - 82, "mean", anchor="middle", bold=True)


# -- a round with groups

GROUP_BOXES = (
    ("c0", "group A", 18, 264, 4),
    ("c1", "group B", 300, 206, 3),
    ("c2", "group C", 524, 178, 2),
)
"""The colour of each group, its name, its left side, its width and the number of its clients."""

GROUP_CLIENTS_Y = 214


def concept_groups() -> Drawing:
    """A round in which every group has its own model."""
    drawing = Drawing(
        WIDTH,
        334,
        "A round with groups: a model for each",
        "The server has three models, one for each of three groups with four, three and two "
        "clients. Each client gets the model of its group and trains it; its update counts in the "
        "mean of its own group only. Between the rounds the method compares clients, by updates "
        "or losses, and may split a group, merge two or move a client, as one of group A is moved "
        "to group B.",
    )
    server(drawing, 18, 18, WIDTH - 36, 88)
    drawing.text(360, 43, "the server has a model for each group", anchor="middle")
    for colour, name, left, width, size in GROUP_BOXES:
        middle = left + width / 2
        model(drawing, middle, 76, colour, side=34)
        hull(drawing, left, 184, width, 82, colour)
        drawing.arrow((middle - 9, 110), (middle - 9, 180), colour=colour, width=2.5)
        drawing.arrow((middle + 9, 180), (middle + 9, 110), colour=colour, width=2.5, dashed=True)
        drawing.text(middle - 20, 150, "model", anchor="end", colour="quiet")
        drawing.text(middle + 20, 150, "updates", colour="quiet")
        for place in range(size):
            client(drawing, _client_x(left, width, size, place), GROUP_CLIENTS_Y, colour, 11)
        drawing.text(middle, 254, name, anchor="middle")
    _moving_client(drawing)
    drawing.lines(
        360,
        292,
        [
            "Between rounds the method compares clients, by updates or by losses.",
            "It may split a group, merge two, or move a client.",
        ],
        leading=20,
        anchor="middle",
        colour="quiet",
    )
    return drawing


def _client_x(left: float, width: float, size: int, place: int) -> float:
    return left + width * (place + 0.5) / size


def _moving_client(drawing: Drawing) -> None:
    """The last client of group A goes to group B."""
    (_, _, left, width, size), (_, _, to_left, to_width, to_size), _ = GROUP_BOXES
    start = (_client_x(left, width, size, size - 1), GROUP_CLIENTS_Y)
    end = (_client_x(to_left, to_width, to_size, 0), GROUP_CLIENTS_Y)
    between(drawing, start, end, gaps=(16, 16), colour="text", dashed=True)


# -- split-half

CLOUD_MIDDLES = (181, 539)
CLOUD_Y = 132
LONGEST = 150
"""The mean distance that would fill a bar."""

NOISE: Sequence[tuple[Point, Point]] = (
    ((8, -18), (-44, 42)),
    ((-5, -6), (-39, -13)),
    ((-23, 30), (15, 43)),
    ((-5, -49), (42, -43)),
    ((-43, 18), (25, -55)),
    ((-11, -34), (21, 24)),
)
"""Of six clients, what chance adds to the updates of both halves: the same on the left and the right."""

SIGNALS = {
    "alike": (0, 0, 0, 0, 0, 0),
    "different": (-84, -84, -84, 84, 84, 84),
}
"""Where the clients' updates would be without chance, from the middle to the right."""


def concept_split_half() -> Drawing:
    """Half-updates of clients that are alike, and of clients that differ."""
    drawing = Drawing(
        WIDTH,
        340,
        "The split-half test: within a client, and between clients",
        "Every client trains twice, on two halves of its data, and sends both updates: a filled "
        "dot and a ring, joined by a line. On the left, six clients that are alike: the halves of "
        "one client are as far apart as those of different clients, so the group stays. On the "
        "right, three clients of one kind and three of another: the halves of a client are near "
        "each other, and the two kinds are far apart, so the group splits.",
    )
    alike, different = _placed("alike"), _placed("different")
    _cloud(drawing, 0, "alike", alike, "chance explains it: the group stays")
    _cloud(drawing, 1, "of two kinds", different, "chance does not: the group splits")
    _halves_legend(drawing)
    return drawing


def _placed(kind: str) -> Sequence[tuple[Point, Point]]:
    return [
        ((x + signal, y), (other_x + signal, other_y))
        for ((x, y), (other_x, other_y)), signal in zip(NOISE, SIGNALS[kind], strict=True)
    ]


def _cloud(
    drawing: Drawing, place: int, head: str, pairs: Sequence[tuple[Point, Point]], verdict: str
) -> None:
    middle = CLOUD_MIDDLES[place]
    left = middle - 163
    drawing.box(left, 18, 326, 270, fill="panel", stroke="line")
    drawing.text(left + 16, 45, f"six clients, {head}", size=16, bold=True)
    for row, pair in enumerate(pairs):
        first, second = ((middle + x, CLOUD_Y + y) for x, y in pair)
        colour = SHARED if place == 0 else "c0" if row < 3 else "c1"
        link(drawing, first, second, gaps=(7, 7), colour=colour)
        drawing.circle(*first, 6.5, fill=colour)
        drawing.circle(*second, 5.5, fill="panel", stroke=colour, stroke_width=2.5)
    within = _mean([math.dist(*pair) for pair in pairs])
    across = _mean(
        [
            math.dist(half, other_half)
            for pair, other_pair in combinations(pairs, 2)
            for half in pair
            for other_half in other_pair
        ]
    )
    for row, (words, length) in enumerate((("within", within), ("between", across))):
        y = 230 + 20 * row
        drawing.text(left + 16, y + 4, words, colour="quiet")
        bar(drawing, left + 92, y - 4, 218, length / LONGEST, "accent")
    drawing.text(left + 16, 278, verdict)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _halves_legend(drawing: Drawing) -> None:
    y = 314
    drawing.circle(40, y - 5, 6.5, fill=SHARED)
    drawing.circle(86, y - 5, 6, fill="ground", stroke=SHARED, stroke_width=2.5)
    link(drawing, (40, y - 5), (86, y - 5), gaps=(7, 7), colour=SHARED)
    drawing.text(
        102, y, "two updates of one client, each from one half of its data", colour="quiet"
    )


# -- auto

ROUNDS = 16
CHART_LEFT = 64
CHART_RIGHT = 540
CHART_TOP = 52
CHART_BASE = 232
LOSS_TOP = 2.4

ONE_MODEL = (2.27, 2.22, 2.14, 2.06, 1.99, 1.91, 1.86, 1.81, 1.80)
"""Mean test loss of `fedavg` until `auto` drops it: digits/label-permutation, seed 0."""

GROUPS_LOSS = (
    2.27, 2.01, 0.77, 0.61, 0.51, 0.33, 0.31, 0.29,
    0.26, 0.22, 0.22, 0.22, 0.20, 0.19, 0.19, 0.19,
)  # fmt: skip
"""The same of `split-half`."""

ALONE = (2.18, 1.94, 1.61, 1.34, 1.08, 0.87)
"""The same of `independent`."""

FOUND_ROUND = 3
LEAD_ROUND = 4
ALONE_DROP_ROUND = 6
DROP_ROUND = 9
"""What `auto` notes in the demonstration."""


def concept_auto() -> Drawing:
    """What auto trains and what serves the clients, over the first rounds of the demonstration."""
    drawing = Drawing(
        WIDTH,
        380,
        "Auto over time: one model first, groups when they are better",
        "Test losses over the first 16 rounds of the demonstration, seed 0, of one model (fedavg), "
        "groups (split-half) and training alone (independent), each measured in a run of its own. "
        "One model serves the clients first. A test in rounds 2 and 3 finds groups. From round 4 "
        "on the groups' models serve, because their loss on held-out examples is lower by more "
        "than a standard error. Training alone is dropped in round 6, and one model in round 9. Personal models, which auto "
        "trains beside the one model and the groups, are not shown.",
    )
    drawing.text(CHART_LEFT, 36, "loss", colour="quiet")
    drawing.line((CHART_LEFT, CHART_TOP), (CHART_LEFT, CHART_BASE), (CHART_RIGHT, CHART_BASE))
    for number in (1, 4, 8, 12, 16):
        drawing.text(_x(number), CHART_BASE + 20, str(number), anchor="middle", colour="quiet")
    drawing.text(CHART_RIGHT + 12, CHART_BASE + 20, "round", colour="quiet")
    for place, at in enumerate((FOUND_ROUND, LEAD_ROUND, DROP_ROUND)):
        drawing.line((_x(at), CHART_TOP - 4), (_x(at), CHART_BASE), colour="line", dashed=True)
        step(drawing, _x(at), CHART_TOP - 18, place + 1)
    for losses, colour, words in (
        (ONE_MODEL, SHARED, "one model"),
        (ALONE, "c1", "each alone"),
        (GROUPS_LOSS, "c0", "groups"),
    ):
        places = [(_x(row + 1), _y(loss)) for row, loss in enumerate(losses)]
        drawing.line(*places, colour=colour, width=2.5)
        if len(losses) < ROUNDS:
            cross(drawing, *places[-1])
        drawing.text(places[-1][0] + 14, places[-1][1] + 5, words, bold=True)
    _served(drawing)
    return drawing


def _served(drawing: Drawing) -> None:
    y = 266
    drawing.text(CHART_RIGHT + 12, y + 17, "serves the clients", colour="quiet")
    switch = _x(LEAD_ROUND)
    drawing.box(CHART_LEFT, y, switch - CHART_LEFT - 2, 24, fill=SHARED, radius=4, opacity=0.35)
    drawing.box(switch, y, CHART_RIGHT - switch, 24, fill="c0", radius=4, opacity=0.35)
    drawing.text((CHART_LEFT + switch) / 2, y + 17, "one model", anchor="middle")
    drawing.text((CHART_RIGHT + switch) / 2, y + 17, "groups", anchor="middle")
    for place, (x, words) in enumerate(
        (
            (30, "a test finds groups"),
            (226, "held-out loss is lower"),
            (450, "the others are dropped"),
        )
    ):
        step(drawing, x, 326, place + 1)
        drawing.text(x + 18, 331, words)
    drawing.text(
        19,
        362,
        "Not shown: personal models, beside the one model and beside the groups.",
        colour="quiet",
    )


def _x(number: float) -> float:
    return CHART_LEFT + (number - 0.5) / ROUNDS * (CHART_RIGHT - CHART_LEFT)


def _y(loss: float) -> float:
    return CHART_BASE - loss / LOSS_TOP * (CHART_BASE - CHART_TOP)
