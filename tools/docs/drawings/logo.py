"""The mark: three pairs of dots, inside one ring. It has to be told at 16 pixels."""

from __future__ import annotations

import math

from tools.docs.drawings.canvas import DARK, LIGHT, Drawing

SIDE = 64
RING = 28.5
RING_WIDTH = 4.5
FROM_MIDDLE = 13.8
DOT = 6.6
APART = 12.4
"""Between the middles of the two dots of a pair."""

PAIRS = {
    "c0": -90,
    "c1": 30,
    "c2": 150,
}
"""The colour of a pair and its direction from the middle, in degrees, clockwise from the right."""

TITLE = "Coterie"
DESCRIPTION = "Three pairs of dots, each of one colour, inside a ring."


def favicon() -> Drawing:
    """The mark in the colours of the browser's theme."""
    drawing = Drawing(SIDE, SIDE, TITLE, DESCRIPTION, sheet=False)
    drawing.circle(SIDE / 2, SIDE / 2, RING, stroke="text", stroke_width=RING_WIDTH)
    for colour, degrees in PAIRS.items():
        direction = math.radians(degrees)
        along = (math.cos(direction), math.sin(direction))
        for side in (-APART / 2, APART / 2):
            drawing.circle(
                SIDE / 2 + FROM_MIDDLE * along[0] - side * along[1],
                SIDE / 2 + FROM_MIDDLE * along[1] + side * along[0],
                DOT,
                fill=colour,
            )
    return drawing


def logo(palette: dict[str, str] = LIGHT) -> str:
    """The mark in the colours of one theme: a site's switch is not the browser's."""
    text = favicon().svg()
    for name in (*PAIRS, "text"):
        text = text.replace(LIGHT[name], palette[name])
    start, end = text.index("@media"), text.index("</style>")
    return text[:start] + text[end:]


def logos() -> dict[str, str]:
    """All files of the mark by name."""
    return {
        "favicon.svg": favicon().svg(),
        "logo.svg": logo(LIGHT),
        "logo-dark.svg": logo(DARK),
    }
