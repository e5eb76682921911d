"""Figures of studies, in the style of :mod:`coterie.report.figures.style`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.colours import BLUE, GREEN, ORANGE
from coterie.report.figures import style
from coterie.report.figures.style import (
    COLOURS,
    COLUMN,
    DASHES,
    GREY,
    MARKERS,
    PAGE,
    panels,
)
from coterie.report.summary import interval
from papers.study import Row, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BLUE",
    "COLOURS",
    "COLUMN",
    "DASHES",
    "GREEN",
    "GREY",
    "MARKERS",
    "ORANGE",
    "PAGE",
    "band",
    "check_installed",
    "draw",
    "panels",
]

SUFFIXES = (".pdf", ".png")


def check_installed() -> None:
    """Raises :class:`~coterie.settings.UserError` without Matplotlib."""
    style.check_installed("figures of studies", "report")


def draw(study: Study, rows: Sequence[Row], stem: Path) -> tuple[Path, ...]:
    """Draw a study's figure to ``stem`` with each of :data:`SUFFIXES`; the same rows make the same files."""
    check_installed()
    return style.write(
        lambda: study.figure(rows), [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    )


def band(
    axes: Axes,
    x: Sequence[float],
    curves: np.ndarray,
    number: int,
    label: str,
    *,
    marked: bool = True,
) -> None:
    """The mean of curves ``(seeds, points)`` and its 95 % interval, in the colour, dash and marker of ``number``."""
    spread = [interval(list(column)) for column in np.asarray(curves).T]
    mean = [each["mean"] for each in spread]
    colour = COLOURS[number % len(COLOURS)]
    look: dict[str, Any] = {"color": colour, "linestyle": DASHES[number % len(DASHES)]}
    axes.plot(
        x,
        np.array(mean, dtype=float),
        label=label,
        marker=MARKERS[number % len(MARKERS)] if marked else "",
        **look,
    )
    if spread[0]["low"] is not None:
        low, high = (
            np.array([each[side] for each in spread], dtype=float) for side in ("low", "high")
        )
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
