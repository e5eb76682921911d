"""What the pictures are put together from: clients, models, servers, matrices, bars and numbers in circles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.docs.drawings.canvas import SHARED, STROKE, STRONG, Drawing, Point, number, toward

CLIENT = 9
"""Radius of a client."""

MODEL = 24
"""Side of a model."""


def client(drawing: Drawing, x: float, y: float, colour: str, radius: float = CLIENT) -> None:
    """A client is a dot."""
    drawing.circle(x, y, radius, fill=colour)


def model(
    drawing: Drawing,
    x: float,
    y: float,
    colour: str = SHARED,
    *,
    side: float = MODEL,
    head: str | None = None,
) -> None:
    """A model is a square of three layers, with its middle at (x, y); head: the colour of its last layer."""
    gap = side / 12
    layer = (side - 2 * gap) / 3
    for row in range(3):
        drawing.box(
            x - side / 2,
            y - side / 2 + row * (layer + gap),
            side,
            layer,
            fill=head if head and row == 0 else colour,
            radius=side / 10,
        )


def hull(drawing: Drawing, x: float, y: float, width: float, height: float, colour: str) -> None:
    """What is around those who share something: a shade of their colour."""
    drawing.box(x, y, width, height, fill=colour, radius=14, opacity=0.17)


def server(drawing: Drawing, x: float, y: float, width: float, height: float) -> None:
    """The server's box, with its upper left corner at (x, y)."""
    drawing.box(x, y, width, height, fill="panel", stroke="quiet")


def between(
    drawing: Drawing,
    start: Point,
    end: Point,
    *,
    gaps: tuple[float, float] = (CLIENT + 5, CLIENT + 5),
    colour: str = "quiet",
    width: float = STROKE,
    bend: float = 0.0,
    dashed: bool = False,
    both: bool = False,
) -> None:
    """An arrow from one thing to another, which leaves gaps around their middles."""
    drawing.arrow(
        toward(start, end, gaps[0]),
        toward(end, start, gaps[1]),
        colour=colour,
        width=width,
        bend=bend,
        dashed=dashed,
        both=both,
    )


def link(
    drawing: Drawing,
    start: Point,
    end: Point,
    *,
    gaps: tuple[float, float] = (0.0, 0.0),
    colour: str = "quiet",
    width: float = STROKE,
    dashed: bool = False,
) -> None:
    """A line from one thing to another, which leaves gaps around their middles."""
    drawing.line(
        toward(start, end, gaps[0]),
        toward(end, start, gaps[1]),
        colour=colour,
        width=width,
        dashed=dashed,
    )


def step(drawing: Drawing, x: float, y: float, numeral: int) -> None:
    """The number of a step, in a ring."""
    drawing.circle(x, y, 11, fill="panel", stroke="accent")
    drawing.text(x, y + 5, str(numeral), anchor="middle", bold=True)


def bar(
    drawing: Drawing,
    x: float,
    y: float,
    length: float,
    share: float,
    colour: str,
    thickness: float = 8,
) -> None:
    """A horizontal bar of which a share is filled."""
    drawing.box(x, y, length, thickness, fill="line", radius=thickness / 2)
    if share > 0:
        drawing.box(x, y, length * share, thickness, fill=colour, radius=thickness / 2)


def column(
    drawing: Drawing, x: float, base: float, height: float, colour: str, width: float = 10
) -> None:
    """A column that stands on ``base``, with its middle at ``x``."""
    drawing.box(x - width / 2, base - height, width, height, fill=colour, radius=2)


def matrix(
    drawing: Drawing,
    x: float,
    y: float,
    cell: float,
    rows: Sequence[Sequence[float]],
    colours: Sequence[str],
) -> None:
    """A matrix of values from 0 to 1: a cell has the colour of its row, the stronger the greater its value."""
    for i, values in enumerate(rows):
        for j, value in enumerate(values):
            drawing.box(x + j * cell, y + i * cell, cell - 2, cell - 2, fill="line", radius=2)
            if value > 0:
                drawing.box(
                    x + j * cell,
                    y + i * cell,
                    cell - 2,
                    cell - 2,
                    fill=colours[i],
                    radius=2,
                    opacity=value,
                )


def cross(drawing: Drawing, x: float, y: float, reach: float = 6, colour: str = "c4") -> None:
    """A cross: it ends here."""
    drawing.line((x - reach, y - reach), (x + reach, y + reach), colour=colour, width=STRONG)
    drawing.line((x - reach, y + reach), (x + reach, y - reach), colour=colour, width=STRONG)


def tick(drawing: Drawing, x: float, y: float, colour: str = "c2", reach: float = 6) -> None:
    """A tick: it holds."""
    drawing.line(
        (x - reach, y),
        (x - reach / 3, y + reach * 0.7),
        (x + reach, y - reach * 0.8),
        colour=colour,
        width=STRONG,
    )


def slider(
    drawing: Drawing, x: float, y: float, length: float, share: float, label: str, colour: str
) -> None:
    """A mixture: the knob is at its share of the way from left to right, with a label above."""
    drawing.line((x, y), (x + length, y), colour="line", width=5)
    knob = x + length * share
    drawing.line((x, y), (knob, y), colour=colour, width=5)
    drawing.circle(knob, y, 8, fill="ground", stroke=colour, stroke_width=STRONG)
    drawing.text(knob, y - 14, label, anchor="middle", bold=True)


def spring(drawing: Drawing, x: float, y: float, length: float, colour: str = "quiet") -> None:
    """A pull between two things at the same height."""
    turns = 7
    inner = [
        (x + 8 + (length - 16) * (turn + 0.5) / turns, y + (6 if turn % 2 else -6))
        for turn in range(turns)
    ]
    drawing.line((x, y), (x + 8, y), *inner, (x + length - 8, y), (x + length, y), colour=colour)


def lock(drawing: Drawing, x: float, y: float) -> None:
    """It does not change. Its body's middle is at (x, y)."""
    drawing.path(f"M{x - 4} {y - 4} V{y - 8} A4 4 0 0 1 {x + 4} {y - 8} V{y - 4}", colour="text")
    drawing.box(x - 7, y - 5, 14, 11, fill="text", radius=2)


def cycle(drawing: Drawing, x: float, y: float, radius: float) -> None:
    """Again and again: most of a circle, clockwise, with the head of an arrow."""
    start, end = math.radians(-60), math.radians(200)
    first = (x + radius * math.cos(start), y + radius * math.sin(start))
    last = (x + radius * math.cos(end), y + radius * math.sin(end))
    drawing.path(
        f"M{number(first[0])} {number(first[1])} A{number(radius)} {number(radius)} 0 1 1 "
        f"{number(last[0])} {number(last[1])}"
    )
    drawing.arrow(last, (last[0] + 5, last[1] - 10))


def crowd(
    drawing: Drawing, places: Sequence[Point], colours: Sequence[str], radius: float = CLIENT
) -> None:
    """Several clients, each with its colour."""
    for (x, y), colour in zip(places, colours, strict=True):
        client(drawing, x, y, colour, radius)
