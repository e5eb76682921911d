"""The critical-difference diagram: mean ranks of methods, and bars over those that do not differ significantly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.contrib.bench.ranking import Cliques
from coterie.report.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD_LINE_HEIGHT = 0.16
"""Height in inches of a method's line, and of a bar."""

BAR_GAP = 0.6
"""Height of a bar in lines of methods."""

AXIS_LINES = 2.2
"""Lines of the axis with its numbers."""


def draw(cliques: Cliques, path: Path, judged: tuple[str, ...] = ()) -> Path:
    """Draw the diagram of Demšar 2006, with bars as Benavoli et al. 2016 advise.

    Args:
        cliques: The ranks and which methods do not differ significantly.
        path: The figure, a .pdf, .png or .svg.
        judged: Methods whose names are bold.

    Returns:
        The path.

    Raises:
        UserError: Matplotlib is not installed.
    """
    style.check_installed("figures", "report")
    style.load()
    return style.write(lambda: _figure(cliques, judged), [path])[0]


def _figure(cliques: Cliques, judged: tuple[str, ...]) -> Figure:
    methods = list(cliques.ranks)
    # The better half has its names on the left, the other half on the right.
    left_count = (len(methods) + 1) // 2
    bar_lines = BAR_GAP * len(cliques.groups)
    num_lines = AXIS_LINES + bar_lines + left_count + 0.5
    figure, axes_grid = style.panels(
        1, width=style.PAGE, height=METHOD_LINE_HEIGHT * num_lines + 0.3
    )
    axes = axes_grid[0, 0]
    low = 1
    high = max(len(methods), 2)
    margin = 0.35 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    axes.set_ylim(num_lines, 0)
    axes.axis("off")
    # The axis of ranks.
    axis_line = AXIS_LINES - 0.4
    axes.plot([low, high], [axis_line, axis_line], color="black", linewidth=0.8)
    step = max(1, round((high - low) / 10))
    for mark in range(low, high + 1, step):
        axes.plot([mark, mark], [axis_line - 0.25, axis_line], color="black", linewidth=0.8)
        axes.text(mark, axis_line - 0.4, str(mark), ha="center", va="bottom", fontsize=7)
    axes.text((low + high) / 2, 0.1, "mean rank", ha="center", va="center", fontsize=7)
    # A bar over each group of methods that do not differ.
    for number, group in enumerate(cliques.groups):
        ranks = [cliques.ranks[method] for method in group]
        line = AXIS_LINES + BAR_GAP * (number + 0.3)
        axes.plot(
            [min(ranks) - 0.05, max(ranks) + 0.05],
            [line, line],
            color="black",
            linewidth=2.4,
            solid_capstyle="butt",
        )
    # From the axis down to the method's line, and out to its name.
    for place, method in enumerate(methods):
        is_left = place < left_count
        rank = cliques.ranks[method]
        line = AXIS_LINES + bar_lines + (place if is_left else len(methods) - 1 - place) + 0.5
        name_at = low - 0.05 * margin if is_left else high + 0.05 * margin
        colour = style.COLOURS[0] if method in judged else style.GREY
        axes.plot([rank, rank, name_at], [axis_line, line, line], color=colour, linewidth=0.7)
        axes.text(
            name_at,
            line,
            f"{method} {rank:.1f}  " if is_left else f"  {rank:.1f} {method}",
            ha="right" if is_left else "left",
            va="center",
            fontsize=7,
            fontweight="bold" if method in judged else "normal",
        )
    return figure
