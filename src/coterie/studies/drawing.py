"""Figures for print: colours that the colour-blind tell apart, and markers and dashes for who prints in grey.

Matplotlib is an extra, and imported when the first figure is drawn.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.summary import interval
from coterie.settings import UserError
from coterie.store import write_whole
from coterie.studies.study import Row, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# M. Okabe, K. Ito, "Color Universal Design", 2008.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY, YELLOW)
GREY = "#777777"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")

COLUMN, PAGE = 3.5, 7.2
"""Widths in inches: of one column of a journal, and of both."""

STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.3,
    "lines.markersize": 3.5, "legend.frameon": False, "pdf.fonttype": 42, "figure.constrained_layout.use": True,
    "savefig.dpi": 180,
}  # fmt: skip

SUFFIXES = (".pdf", ".png")


def check_installed() -> None:
    """Raises :class:`UserError` without Matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures of studies need Matplotlib: pip install 'coterie[studies]'")


def draw(study: Study, rows: Sequence[Row], stem: Path) -> tuple[Path, ...]:
    """Draw a study's figure to ``stem`` with each of :data:`SUFFIXES`; the same rows make the same files."""
    check_installed()
    import matplotlib

    written = []
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  # whose keys are any
        made = study.figure(rows)
        for suffix, unsaid in zip(SUFFIXES, ("CreationDate", "Software"), strict=True):
            data = io.BytesIO()
            made.savefig(data, format=suffix[1:], metadata={unsaid: None})
            stem.parent.mkdir(parents=True, exist_ok=True)
            path = stem.with_name(stem.name + suffix)
            write_whole(path, data.getvalue())
            written.append(path)
    return tuple(written)


def panels(columns: int, rows: int = 1, *, width: float = PAGE, height: float = 2.4, **share: Any) -> tuple[Figure, np.ndarray]:
    """A figure, and its axes ``(rows, columns)``; ``height`` of each row, in inches."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height * rows))
    return made, made.subplots(rows, columns, squeeze=False, **share)


def band(axes: Axes, x: Sequence[float], curves: np.ndarray, number: int, label: str, *, marked: bool = True) -> None:
    """The mean of curves ``(seeds, points)`` and its 95 % interval, in the colour, dash and marker of ``number``."""
    spread = [interval(list(column)) for column in np.asarray(curves).T]
    mean = [each["mean"] for each in spread]
    colour = COLOURS[number % len(COLOURS)]
    look: dict[str, Any] = {"color": colour, "linestyle": DASHES[number % len(DASHES)]}
    axes.plot(x, np.array(mean, dtype=float), label=label, marker=MARKERS[number % len(MARKERS)] if marked else "", **look)
    if spread[0]["low"] is not None:
        low, high = (np.array([each[side] for each in spread], dtype=float) for side in ("low", "high"))
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
