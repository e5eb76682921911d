"""What leaves two clients, and what the server can read of it, at each level of protection."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.drawings.canvas import Drawing

WIDTH = 720
ROW_TOP = 62
ROW_HEIGHT = 88
GLYPH_WIDTH = 62
NAME_X = 32
SENT_X = 178
READ_X = 346
WORDS_X = 490

Update = Sequence[float]

FIRST: Update = (14, -6, 10, 4, -12)
SECOND: Update = (-8, 12, 9, -5, -10)
"""The updates of two clients, entry by entry."""

ORDER = (3, 0, 4, 1, 2)
SIGNS = (-1, 1, 1, -1, 1)
"""A secret map: where each entry comes from, and whether it is flipped."""

NOISE: Sequence[Update] = (
    (-7, -9, -16, 9, 5),
    (12, -6, -14, -9, 3),
)
"""Of each client, on its own update."""

SUM_NOISE: Update = (5, 4, -6, -6, 6)
"""On the sum of both."""

MASK: Update = (6, -8, -12, 14, 9)
"""Added by the first client and subtracted by the second."""

HIDDEN = "ended"

SCALE = 1.4
"""Pixels to a unit of an update."""


def privacy_levels() -> Drawing:
    """Five rows: the name of the level, what is sent, what is read, and what that is in words."""
    levels = _levels()
    drawing = Drawing(
        WIDTH,
        ROW_TOP + ROW_HEIGHT * len(levels) + 12,
        "What the server sees of two clients at each level of protection",
        "Each row shows what two clients send and what the server can read. Plain: both updates "
        "as they are. Secret map: both in another order and with flipped signs, so that norms and "
        "cosines are the same. Noise on each update: both, clipped and with noise. Masks: numbers "
        "that look random, of which the server can read the sum only. Masks and noise: the same, "
        "and the sum has noise, so that a client's part in it is bounded by epsilon.",
    )
    drawing.text(SENT_X, 40, "two clients send")
    drawing.text(READ_X, 40, "the server reads")
    drawing.text(WORDS_X, 40, "and so learns")
    for row, (name, setting, sent, read, words) in enumerate(levels):
        top = ROW_TOP + ROW_HEIGHT * row
        middle = top + ROW_HEIGHT / 2 - 4
        drawing.box(16, top, WIDTH - 32, ROW_HEIGHT - 8, fill="panel", stroke="line")
        drawing.text(NAME_X, middle - 3, name, bold=True)
        drawing.text(NAME_X, middle + 17, setting, colour="quiet")
        for place, (update, colour) in enumerate(sent):
            _glyph(drawing, SENT_X + 66 * place, middle, update, colour)
        drawing.arrow((SENT_X + 134, middle), (READ_X - 8, middle))
        for place, (update, colour) in enumerate(read):
            _glyph(drawing, READ_X + 66 * place, middle, update, colour)
        drawing.lines(WORDS_X, middle - 13, words)
    return drawing


Glyph = tuple[Update, str]
Level = tuple[str, str, Sequence[Glyph], Sequence[Glyph], Sequence[str]]


def _levels() -> Sequence[Level]:
    plain = [(FIRST, "c0"), (SECOND, "c1")]
    mapped = [(_mapped(FIRST), "c0"), (_mapped(SECOND), "c1")]
    noisy = [
        (_added(FIRST, NOISE[0]), "c0"),
        (_added(SECOND, NOISE[1]), "c1"),
    ]
    masked = [
        (_added(FIRST, MASK), HIDDEN),
        (_added(SECOND, [-entry for entry in MASK]), HIDDEN),
    ]
    total = _added(FIRST, SECOND)
    return (
        (
            "plain",
            "no setting",
            plain,
            plain,
            ("every update, losses,", "numbers of examples,", "test results"),
        ),
        (
            "secret map",
            "rotation",
            mapped,
            mapped,
            ("norms and cosines, so", "groups; not which", "weight is which"),
        ),
        (
            "noise on each",
            "clip, noise",
            noisy,
            noisy,
            ("noised updates; with an", "ε that protects, no", "groups are found"),
        ),
        (
            "masks",
            "masks",
            masked,
            [(total, "c2")],
            ("sums over a group, and", "which group's model a", "client takes"),
        ),
        (
            "masks and noise",
            "masks, clip, noise",
            masked,
            [(_added(total, SUM_NOISE), "c2")],
            ("sums with noise: a", "client's part in them", "is bounded by ε"),
        ),
    )


def _mapped(update: Update) -> Update:
    return [sign * update[place] for place, sign in zip(ORDER, SIGNS, strict=True)]


def _added(update: Update, other: Update) -> Update:
    return [entry + more for entry, more in zip(update, other, strict=True)]


def _glyph(drawing: Drawing, x: float, y: float, update: Update, colour: str) -> None:
    """An update as bars above and below a line."""
    update = [SCALE * entry for entry in update]
    for place, entry in enumerate(update):
        drawing.box(
            x + 3 + 11.5 * place,
            y - max(entry, 0),
            8,
            abs(entry),
            fill=colour,
            radius=1.5,
        )
    drawing.line((x, y), (x + GLYPH_WIDTH - 4, y), colour="quiet")
