"""The groups of a run over its rounds: a row per client, a block per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.report.figures.style import PAGE, Looks, letter, looks, over_rounds, panels
from coterie.report.gathered import Gathered
from coterie.report.page.document import scored
from coterie.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW, LEAST, MOST = 0.13, 1.5, 4.6
"""Heights in inches: of a client's row, and the least and the greatest height of all rows."""

LINE = 0.125
"""The height of a line of small print, in inches."""

NAMED = 48
"""Clients are named if there are at most this many."""

VECTORS = 2000
"""More blocks than this are drawn as pixels, so that the file stays small."""

Block = tuple[int, int, int, int, int]
"""node, first and last row, first and last column, each counted from 0."""


def figure(run: Gathered) -> Figure:
    """Draw the groups of a run.

    Args:
        run: The run.

    Raises:
        UserError: If no client was in a group in any round.
    """
    if not any(place >= 0 for places in run.members for place in places):
        raise UserError(f"{run.folder} has no groups recorded: in none of its {len(run.lines)} rounds was anybody in one")
    height = max(LEAST, min(MOST, ROW * len(run.clients)))
    made, axes = panels(1, width=PAGE, height=height + 0.45)
    _draw(axes[0, 0], run, looks(run), height / len(run.clients))
    return made


def blocks(members: Sequence[Sequence[int]]) -> list[Block]:
    """Return rectangles of adjacent clients that are in one group in the same rounds.

    Args:
        members: Per client, the id of its node in each round, or -1; see :class:`~coterie.report.gathered.Gathered`.

    Returns:
        The rectangles, sorted by first row and first column.

    Example:
        >>> blocks([[0, 0, 1], [0, 0, 1], [0, 0, 2], [-1, -1, 2]])
        [(0, 0, 2, 0, 1), (1, 0, 1, 2, 2), (2, 2, 3, 2, 2)]
    """
    out: list[Block] = []
    open_: dict[tuple[int, int, int], int] = {}  # (node, first column, last column) -> the row at which the block begins
    for row in range(len(members) + 1):
        here = set(_runs(members[row])) if row < len(members) else set()
        out += [(run[0], top, row - 1, *run[1:]) for run, top in open_.items() if run not in here]
        open_ = {run: open_.get(run, row) for run in here}
    return sorted(out, key=lambda block: (block[1], block[3]))


def _runs(row: Sequence[int]) -> list[tuple[int, int, int]]:
    starts = [i for i in range(len(row)) if i == 0 or row[i] != row[i - 1]]
    return [(row[i], i, j - 1) for i, j in zip(starts, [*starts[1:], len(row)], strict=True) if row[i] >= 0]


def _draw(axes: Axes, run: Gathered, look: Looks, row: float) -> None:
    """Draw the blocks into ``axes``; ``row`` is the height of a client, in inches."""
    from matplotlib.collections import PolyCollection

    found = blocks(run.members)
    ends = np.array([[first + 0.5, last + 1.5, top - 0.5, bottom + 0.5] for _, top, bottom, first, last in found])
    corners = ends[:, [[0, 2], [1, 2], [1, 3], [0, 3]]]  # (blocks, 4, 2)
    edge = min(0.8, 72 * row * 0.25)
    drawn = PolyCollection(list(corners), facecolor=[look.area(block[0]) for block in found], edgecolor="white", linewidth=edge)
    drawn.set_rasterized(len(found) > VECTORS)
    axes.add_collection(drawn)
    rounds = len(run.lines)
    over_rounds(axes, 0.5, rounds + 0.5)
    axes.set_ylim(len(run.clients) - 0.5, -0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _inside(axes, found, look, row, PAGE / rounds * 0.75)
    _beside(axes, run, row)
    axes.tick_params(left=False)
    if len(run.clients) <= NAMED:
        axes.set_yticks(range(len(run.clients)), [str(client) for client in run.clients], fontsize=min(7, 72 * row * 0.8))
        axes.set_ylabel("client")
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(run.clients):,} clients")
    if run.facts.get("true_groups"):
        _stripe(axes, run, look, row)


def _inside(axes: Axes, found: Sequence[Block], look: Looks, row: float, column: float) -> None:
    """Write the names of groups that ended into their blocks, where there is room."""
    for node, top, bottom, first, last in found:
        if node not in look.now and (bottom - top + 1) * row > LINE and (last - first + 1) * column > 0.08 * len(f"G{node}"):
            axes.text((first + last) / 2 + 1, (top + bottom) / 2, f"G{node}", ha="center", va="center", fontsize=7)


def _beside(axes: Axes, run: Gathered, row: float) -> None:
    """Write name, size and last tested mean accuracy to the right of the current groups that are large enough."""
    tops: dict[int, list[int]] = {}
    for i, places in enumerate(run.members):
        if places[-1] >= 0:
            tops.setdefault(places[-1], []).append(i)
    large = {node: rows for node, rows in tops.items() if len(rows) * row >= LINE * 0.9}
    for node, rows in large.items():
        accuracy = scored(run.nodes[node], run)["accuracy"]
        said = f"G{node}, {len(rows)} client{'s' * (len(rows) > 1)}" + (f", {accuracy:.2f}" if accuracy is not None else "")
        _say(axes, said, (rows[0] + rows[-1]) / 2)
    if len(large) < len(tops):
        said = f"{len(tops) - len(large)} {'smaller groups' if large else 'groups, all small'}"
        _say(axes, said, len(run.clients) - 0.5 + LINE / row)


def _say(axes: Axes, text: str, row: float) -> None:
    axes.annotate(
        text, (1, row), xycoords=axes.get_yaxis_transform(), xytext=(4, 0), textcoords="offset points", va="center",
        fontsize=7, annotation_clip=False,
    )  # fmt: skip


def _stripe(axes: Axes, run: Gathered, look: Looks, row: float) -> None:
    """Draw the true groups to the left of the clients' rows."""
    truths = run.truth
    truth = [truths.get(client, -1) for client in run.clients]
    beside = axes.inset_axes((-0.03, 0, 0.022, 1))
    for _, top, bottom, *_ in blocks([[number] for number in truth]):
        number = truth[top]
        beside.axhspan(top - 0.5, bottom + 0.5, color=look.truth[number], linewidth=0)
        if (bottom - top + 1) * row > LINE * 0.9:
            beside.text(0.5, (top + bottom) / 2, letter(number), ha="center", va="center", fontsize=6.5)
    beside.set(xlim=(0, 1), ylim=axes.get_ylim(), xticks=[], yticks=[])
    beside.axis("off")
    axes.tick_params(axis="y", pad=16)
    axes.yaxis.labelpad = 4 if len(truth) <= NAMED else 16
