"""The style of figures for print, and the writing of their files.

Colours are chosen for readers with colour vision deficiency, and markers and dashes for prints in
grey. Fonts are embedded, and widths are those of a journal. The same numbers always make the same
file.

Matplotlib is an optional dependency, imported when the first figure is drawn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.records.store import write_whole
from coterie.report.colours import PALETTE
from coterie.settings import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = PALETTE
GREY = "#777777"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")

COLUMN = 3.3
"""Width in inches of a column of a paper: the narrowest of ACM (3.33), ICML (3.25) and IEEE (3.5), nearly."""

PAGE = 7.2
"""Width in inches of a page of a journal, which has two columns."""

LINE_HEIGHT = 0.14
"""Height in inches of a line of small print."""

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    # Type 42 is TrueType, which journals take; Type 3 they do not.
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 180,
    # Ids of elements are the same in every file.
    "svg.hashsalt": "coterie",
}

OMITTED_METADATA = {".pdf": "CreationDate", ".png": "Software", ".svg": "Date"}
"""Suffix of a figure -> the metadata that it omits, so that the same numbers make the same file."""


def check_installed(user: str, extra: str) -> None:
    """Check that Matplotlib is installed.

    Args:
        user: What needs Matplotlib, for the message.
        extra: The extra of the package that installs it.

    Raises:
        UserError: If it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"{user} need Matplotlib: pip install 'coterie[{extra}]'")


def load() -> None:
    """Import Matplotlib, but not with the settings of the current folder.

    It reads a file ``matplotlibrc`` there, and versions below 3.11 evaluate a part of it. The
    current folder may be another person's run directory.
    """
    # The folder of this file has no matplotlibrc.
    with contextlib.chdir(Path(__file__).parent):
        import matplotlib  # noqa: F401


def write(figure: Callable[[], Figure], files: Iterable[Path]) -> tuple[Path, ...]:
    """Draw ``figure`` in this style and write it to files, each completely or not at all.

    Args:
        figure: A function that draws the figure.
        files: Paths with a suffix in :data:`OMITTED_METADATA`.

    Returns:
        The paths of the files.
    """
    import matplotlib

    files = tuple(files)
    # The user's own style stays as it is.
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  # its keys can be any
        drawing = figure()
        for path in files:
            suffix = path.suffix.lower()
            image = io.BytesIO()
            drawing.savefig(image, format=suffix[1:], metadata={OMITTED_METADATA[suffix]: None})
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, image.getvalue())
    return files


def panels(
    columns: int, rows: int = 1, *, width: float = PAGE, height: float = 2.4, **share: Any
) -> tuple[Figure, np.ndarray]:
    """Create a figure with a grid of axes.

    Args:
        columns: The number of columns.
        rows: The number of rows.
        width: The width of the figure, in inches.
        height: The height of each row, in inches.
        **share: Further arguments of Matplotlib's ``subplots``.

    Returns:
        The figure, and its axes ``(rows, columns)``.
    """
    from matplotlib.figure import Figure

    # This figure is not known to pyplot, so it needs no closing.
    drawing = Figure(figsize=(width, height * rows))
    return drawing, drawing.subplots(rows, columns, squeeze=False, **share)
