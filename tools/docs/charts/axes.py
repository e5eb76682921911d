"""Axes and legends that several charts share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.docs.drawings.canvas import Drawing


@dataclass(frozen=True)
class Axis:
    """From values to pixels.

    Attributes:
        start: The pixel of ``low``.
        end: The pixel of ``high``; less than ``start`` for an axis that points upwards.
        low: The least value.
        high: The greatest value.
        log: Equal ratios have equal lengths.
        root: The axis is that of square roots, which shows small values.
    """

    start: float
    end: float
    low: float
    high: float
    log: bool = False
    root: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value; those beyond the ends are drawn there."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low)
        if self.root:
            share = math.sqrt(share)
        return self.start + share * (self.end - self.start)


def upright_lines(
    drawing: Drawing, axis: Axis, marks: Mapping[float, str], top: float, bottom: float
) -> None:
    """A thin line from top to bottom at each mark, with its words below."""
    for value, words in marks.items():
        x = axis.at(value)
        drawing.line((x, top), (x, bottom), colour="line", width=1.0)
        drawing.text(x, bottom + 20, words, anchor="middle", colour="quiet")


def level_lines(
    drawing: Drawing, axis: Axis, marks: Mapping[float, str], left: float, right: float
) -> None:
    """A thin line from left to right at each mark, with its words on the left."""
    for value, words in marks.items():
        y = axis.at(value)
        drawing.line((left, y), (right, y), colour="line", width=1.0)
        if words:
            drawing.text(left - 8, y + 5, words, anchor="end", colour="quiet")


def dot_legend(
    drawing: Drawing, y: float, entries: Sequence[tuple[str, str]], steps: Sequence[float]
) -> None:
    """Coloured dots with words in one line: each ``(colour, words)`` begins at its step."""
    for (colour, words), x in zip(entries, steps, strict=True):
        drawing.circle(x, y - 5, 5, fill=colour)
        drawing.text(x + 11, y, words, colour="quiet")
