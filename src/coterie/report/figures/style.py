"""The style of figures for print, and the writing of their files.

Colours are chosen for readers with colour vision deficiency, and markers and dashes for prints in grey. Fonts are embedded,
and widths are those of a journal. The same numbers always make the same file.

Matplotlib is an optional dependency, imported when the first figure is drawn.
"""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.records.store import write_whole
from coterie.report.gathered import Gathered
from coterie.settings import UserError

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
    "savefig.dpi": 180, "svg.hashsalt": "coterie",
}  # fmt: skip

UNSAID = {".pdf": "CreationDate", ".png": "Software", ".svg": "Date"}
"""Suffix of a figure -> the metadata that it omits, so that the same numbers make the same file."""


def check_installed(what: str, extra: str) -> None:
    """Check that Matplotlib is installed.

    Args:
        what: What needs Matplotlib, for the message.
        extra: The extra of the package that installs it.

    Raises:
        UserError: If it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"{what} need Matplotlib: pip install 'coterie[{extra}]'")


def write(figure: Callable[[], Figure], files: Iterable[Path]) -> tuple[Path, ...]:
    """Draw ``figure`` in this style and write it to files, each completely or not at all.

    Args:
        figure: A function that draws the figure.
        files: Paths with a suffix in :data:`UNSAID`.

    Returns:
        The paths of the files.
    """
    import matplotlib

    written = []
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  # its keys can be any
        made = figure()
        for path in files:
            data = io.BytesIO()
            made.savefig(data, format=path.suffix[1:].lower(), metadata={UNSAID[path.suffix.lower()]: None})
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data.getvalue())
            written.append(path)
    return tuple(written)


def panels(columns: int, rows: int = 1, *, width: float = PAGE, height: float = 2.4, **share: Any) -> tuple[Figure, np.ndarray]:
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

    made = Figure(figsize=(width, height * rows))
    return made, made.subplots(rows, columns, squeeze=False, **share)


def over_rounds(axes: Axes, first: float, last: float) -> None:
    """Set up the horizontal axis for rounds, with integers as labels.

    Args:
        axes: The axes.
        first: The left limit.
        last: The right limit.
    """
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="round", xlim=(first, last))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


# ----------------------------------------------------------------------------------------------------
# Colours: current groups have a colour and a marker, groups that ended are grey, and a true group has the colour of the
# group that has most of its members. The page follows the same rule.


ENDED = "#BDBDBD"
"""The colour of areas of groups that ended; their lines are darker."""

MANY = 40
"""With more groups than this, groups that ended have colours too, so that adjacent ones can be distinguished."""


@dataclass(frozen=True)
class Looks:
    """The colours, markers and dashes of the groups of a run.

    Attributes:
        now: Node of a current group -> its number, from the top.
        truth: Number of a true group -> colour.
        many: Whether the run has more than :data:`MANY` groups.
    """

    now: Mapping[int, int]
    truth: Mapping[int, str]
    many: bool

    def area(self, node: int) -> str:
        """Return the colour of a group's block."""
        if node in self.now:
            return COLOURS[self.now[node] % len(COLOURS)]
        return COLOURS[node % len(COLOURS)] if self.many else ENDED

    def line(self, node: int | None, other: int = 0) -> dict[str, Any]:
        """Return the colour and marker of a line.

        Args:
            node: The group, or None for a line of no group.
            other: For a line of no group, its position in the figure.
        """
        if node is None:
            return {"color": COLOURS[other % len(COLOURS)], "marker": MARKERS[other % len(MARKERS)]}
        number = self.now.get(node, node)
        colour = COLOURS[number % len(COLOURS)] if node in self.now else GREY
        return {"color": colour, "marker": MARKERS[number % len(MARKERS)]}

    def dash(self, node: int) -> str:
        """Return the dash of a group's line.

        It is solid for the first groups. It is dashed for further groups once all colours are used, and for groups that
        ended.

        Args:
            node: The group.
        """
        return DASHES[self.now[node] // len(COLOURS) % len(DASHES)] if node in self.now else "--"


def looks(run: Gathered) -> Looks:
    """Return the colours, markers and dashes of the groups of a run."""
    now: dict[int, int] = {}
    for row in run.members:
        if row[-1] >= 0:
            now.setdefault(row[-1], len(now))
    return Looks(now, _truths(run, now), len(run.nodes) > MANY)


def letter(number: int) -> str:
    """Return the name of a true group.

    Example:
        >>> letter(1), letter(30)
        ('B', 'T30')
    """
    return chr(ord("A") + number) if number < 26 else f"T{number}"


def _truths(run: Gathered, now: Mapping[int, int]) -> dict[int, str]:
    """Give each true group the colour of the group that has most of its members: larger shares first, each colour once."""
    truth = run.truth
    shares: dict[int, Counter[int]] = {number: Counter() for number in set(truth.values())}
    for client, row in zip(run.clients, run.members, strict=True):
        if client in truth and row[-1] in now:
            shares[truth[client]][now[row[-1]]] += 1
    out: dict[int, str] = {}
    for number in sorted(shares, key=lambda i: (-max(shares[i].values(), default=0), i)):
        wanted = [COLOURS[group] for group, _ in shares[number].most_common() if group < len(COLOURS)]
        free = [colour for colour in [*wanted, *COLOURS] if colour not in out.values()]
        out[number] = free[0] if free else COLOURS[number % len(COLOURS)]
    return out
