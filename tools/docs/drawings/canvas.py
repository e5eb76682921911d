"""A sheet to draw on, with the project's colours, in SVG that is read in light and in dark.

Sizes are pixels; x grows to the right and y downwards. Colours are names of the report page's
style sheet (``c0`` to ``c7`` for groups, ``text``, ``quiet``, ``line``, ...), so that a group has
the same colours in all pictures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

ROOT = Path(__file__).resolve().parents[3]
STYLE_SHEET = ROOT / "src" / "coterie" / "report" / "assets" / "page.css"

FONT = "system-ui, sans-serif"
TEXT_SIZE = 14
LEADING = 18
"""From one line of text to the next."""

STROKE = 1.75
STRONG = 3.0
DASHES = "5 4"
HEAD_LENGTH = 8.0
HEAD_WIDTH = 8.0

GROUPS = ("c0", "c1", "c2", "c3")
SHARED = "i2"
"""The colour of a model that all clients share."""

Point = tuple[float, float]


def _palettes() -> tuple[dict[str, str], dict[str, str]]:
    """The colours of the report page by name: in light, and in dark."""
    light, dark = STYLE_SHEET.read_text().split(':root[data-theme="dark"]', 1)
    colours = re.compile(r"--(\w+): (#[0-9a-f]{6})")
    by_name = dict(colours.findall(light))
    return by_name, by_name | dict(colours.findall(dark.split("}", 1)[0]))


LIGHT, DARK = _palettes()


def number(value: float) -> str:
    """A coordinate as SVG has it: a tenth of a pixel is enough."""
    return f"{round(value, 1) + 0:g}"


class Drawing:
    """One picture: a rounded sheet with a title, a description and what is drawn on it."""

    def __init__(
        self, width: int, height: int, title: str, description: str, *, sheet: bool = True
    ) -> None:
        self.width = width
        self.height = height
        self.title = title
        self.description = description
        self.elements: list[str] = []
        self.fills: set[str] = set()
        self.strokes: set[str] = set()
        if sheet:
            self.box(0.5, 0.5, width - 1, height - 1, fill="ground", stroke="line", radius=12)

    def element(self, tag: str, content: str | None = None, **attributes: object) -> None:
        """Add an element; a ``_`` in an attribute's name stands for ``-``, and None leaves it out."""
        written = "".join(
            f" {name.rstrip('_').replace('_', '-')}="
            + quoteattr(number(value) if isinstance(value, float) else str(value))
            for name, value in attributes.items()
            if value is not None
        )
        self.elements.append(
            f"<{tag}{written}/>" if content is None else f"<{tag}{written}>{content}</{tag}>"
        )

    def paint(self, fill: str | None = None, stroke: str | None = None) -> str:
        """The classes of an element that is filled and outlined with these colours."""
        classes = []
        if fill is not None:
            self.fills.add(fill)
            classes.append(f"fill-{fill}")
        else:
            classes.append("hollow")
        if stroke is not None:
            self.strokes.add(stroke)
            classes.append(f"stroke-{stroke}")
        return " ".join(classes)

    # -- words

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = TEXT_SIZE,
        anchor: str = "start",
        colour: str = "text",
        bold: bool = False,
        italic: bool = False,
    ) -> None:
        """Words whose baseline is at ``y``; anchor: start, middle or end of the line is at ``x``."""
        self.element(
            "text",
            escape(words),
            x=float(x),
            y=float(y),
            class_=self.paint(colour),
            font_size=size if size != TEXT_SIZE else None,
            font_weight=700 if bold else None,
            font_style="italic" if italic else None,
            text_anchor=anchor if anchor != "start" else None,
        )

    def lines(
        self,
        x: float,
        y: float,
        lines: Iterable[str],
        *,
        size: int = TEXT_SIZE,
        leading: float = LEADING,
        anchor: str = "start",
        colour: str = "text",
        bold: bool = False,
    ) -> None:
        """Several lines of text; the first has its baseline at ``y``."""
        for row, words in enumerate(lines):
            self.text(
                x,
                y + row * leading,
                words,
                size=size,
                anchor=anchor,
                colour=colour,
                bold=bold,
            )

    def spans(
        self,
        x: float,
        y: float,
        spans: Iterable[tuple[str, str]],
        *,
        anchor: str = "start",
    ) -> None:
        """A line of words of which each has its colour; words in the colour ``text`` are bold."""
        written = "".join(
            f'<tspan class="{self.paint(colour)}"'
            + (' font-weight="700"' if colour == "text" else "")
            + f">{escape(words)}</tspan>"
            for words, colour in spans
        )
        self.element(
            "text",
            written,
            x=float(x),
            y=float(y),
            text_anchor=anchor if anchor != "start" else None,
        )

    # -- shapes

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        radius: float = 8,
        stroke_width: float = STROKE,
        dashed: bool = False,
        opacity: float | None = None,
    ) -> None:
        """A rounded rectangle; opacity: that of its filling."""
        self.element(
            "rect",
            x=float(x),
            y=float(y),
            width=float(width),
            height=float(height),
            rx=float(radius),
            class_=self.paint(fill, stroke),
            stroke_width=stroke_width if stroke is not None else None,
            stroke_dasharray=DASHES if dashed else None,
            fill_opacity=opacity,
        )

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        *,
        fill: str | None = None,
        stroke: str | None = None,
        stroke_width: float = STROKE,
        dashed: bool = False,
        opacity: float | None = None,
    ) -> None:
        """A circle; opacity: that of its filling."""
        self.element(
            "circle",
            cx=float(x),
            cy=float(y),
            r=float(radius),
            class_=self.paint(fill, stroke),
            stroke_width=stroke_width if stroke is not None else None,
            stroke_dasharray=DASHES if dashed else None,
            fill_opacity=opacity,
        )

    def line(
        self,
        *points: Point,
        colour: str = "quiet",
        width: float = STROKE,
        dashed: bool = False,
    ) -> None:
        """A line through all points."""
        self.path(straight(points), colour=colour, width=width, dashed=dashed)

    def path(
        self,
        data: str,
        *,
        colour: str | None = "quiet",
        fill: str | None = None,
        width: float = STROKE,
        dashed: bool = False,
        opacity: float | None = None,
    ) -> None:
        """A path in SVG's own words."""
        self.element(
            "path",
            d=data,
            class_=self.paint(fill, colour),
            stroke_width=width if colour is not None else None,
            stroke_linecap="round" if fill is None and not dashed else None,
            stroke_linejoin="round" if fill is None else None,
            stroke_dasharray=DASHES if dashed else None,
            fill_opacity=opacity,
        )

    def arrow(
        self,
        *points: Point,
        colour: str = "quiet",
        width: float = STROKE,
        bend: float = 0.0,
        dashed: bool = False,
        both: bool = False,
    ) -> None:
        """An arrow through all points. Between two points it may bend, to the right of its way if ``bend`` > 0.

        both: it has a head at its beginning as well.
        """
        control = None
        if bend:
            (x, y), (to_x, to_y) = points
            length = math.dist(*points)
            control = (
                (x + to_x) / 2 - bend * (to_y - y) / length,
                (y + to_y) / 2 + bend * (to_x - x) / length,
            )
        tip, before = points[-1], control or points[-2]
        tail, after = points[0], control or points[1]
        end = toward(tip, before, HEAD_LENGTH * 0.8)
        start = toward(tail, after, HEAD_LENGTH * 0.8) if both else tail
        curve = control and f"M{_pair(start)} Q{_pair(control)} {_pair(end)}"
        data = curve or straight([start, *points[1:-1], end])
        self.path(data, colour=colour, width=width, dashed=dashed)
        self._head(tip, before, colour, width)
        if both:
            self._head(tail, after, colour, width)

    def _head(self, tip: Point, before: Point, colour: str, width: float) -> None:
        scale = 1 + (width - STROKE) / 5
        base = toward(tip, before, HEAD_LENGTH * scale)
        across = ((tip[1] - base[1]) / HEAD_LENGTH, (base[0] - tip[0]) / HEAD_LENGTH)
        half = HEAD_WIDTH / 2
        corners = [
            tip,
            (base[0] + half * across[0], base[1] + half * across[1]),
            (base[0] - half * across[0], base[1] - half * across[1]),
        ]
        self.path(straight(corners) + " Z", colour=None, fill=colour)

    # -- the whole

    def svg(self) -> str:
        """The file."""
        rules = [
            ".hollow { fill: none; }",
            *self._colours(LIGHT, ""),
            "@media (prefers-color-scheme: dark) {",
            *self._colours(DARK, "  "),
            "}",
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
                f' width="{self.width}" height="{self.height}" font-family="{FONT}"'
                f' font-size="{TEXT_SIZE}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="desc">{escape(self.description)}</desc>',
                "<style>",
                *rules,
                "</style>",
                *self.elements,
                "</svg>",
                "",
            ]
        )

    def _colours(self, palette: dict[str, str], indent: str) -> Sequence[str]:
        fills = [
            f"{indent}.fill-{name} {{ fill: {palette[name]}; }}" for name in sorted(self.fills)
        ]
        strokes = [
            f"{indent}.stroke-{name} {{ stroke: {palette[name]}; }}"
            for name in sorted(self.strokes)
        ]
        return fills + strokes


def _pair(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"


def straight(points: Iterable[Point]) -> str:
    """The path of a line through all points."""
    return "M" + " L".join(_pair(point) for point in points)


def toward(start: Point, goal: Point, distance: float) -> Point:
    """The point at this distance from ``start`` on the way to ``goal``."""
    share = distance / (math.dist(start, goal) or 1.0)
    return (
        start[0] + share * (goal[0] - start[0]),
        start[1] + share * (goal[1] - start[1]),
    )
