"""The numbers that a method compared before it acted: the charts of the page, for print."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.report.figures.curves import every
from coterie.report.figures.style import COLUMN, DASHES, GREY, PAGE, Looks, looks, over_rounds, panels
from coterie.report.gathered import Gathered
from coterie.report.page.charts import Chart, charts
from coterie.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 40
"""Leaves of a dendrogram are named if there are at most this many."""

ENTRIES = 8
"""The greatest number of groups in the legend; those of the most recent rounds are shown."""

SEVERAL: dict[str, Any] = {"color": "black", "marker": "x"}
"""The style of numbers about several groups, next to numbers about one."""

TITLE = 34
"""Letters in a line of a title."""

LEGEND = 0.14
"""The height of a line of a legend, in inches."""


def figure(run: Gathered) -> Figure:
    """Draw the numbers that the method of a run compared.

    Args:
        run: The run.

    Raises:
        UserError: If the notes of the run contain no numbers.
    """
    method = run.description["methods"][0]
    found = charts(method, run.folder, run.lines, run.notes)
    if not found:
        raise UserError(f"{run.folder} has no criteria recorded: its method, {method['name']}, told no numbers in its notes")
    columns = {1: 1, 2: 2, 4: 2}.get(len(found), 3)
    most = max(len(_names(chart)) for chart in found)
    nodes = sorted({one["node"] for chart in found for one in chart["series"] if one["node"] is not None})[-ENTRIES:]
    made, axes = panels(
        columns, math.ceil(len(found) / columns), width=COLUMN if columns == 1 else PAGE, height=2.2 + LEGEND * (most + 1)
    )
    look = looks(run)
    for i, place in enumerate(axes.flat):
        if i >= len(found):
            place.axis("off")
        elif found[i].get("links"):
            _tree(place, run, look, found[i])
        else:
            _chart(place, run, look, found[i])
    if len(nodes) > 1:
        _groups(made, look, nodes, 4 if columns == 1 else ENTRIES)
    return made


def _groups(made: Figure, look: Looks, nodes: Sequence[int], across: int) -> None:
    """Add a legend of the groups, for all charts."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look.line(node), linestyle="", label=f"G{node}") for node in nodes]
    made.legend(handles=handles, loc="outside lower center", ncols=across, handletextpad=0.2)


def _names(chart: Chart) -> dict[str, int]:
    """Return the dash of each line name, if there is more than one name."""
    names = {one["name"]: one["dash"] for one in chart["series"]}
    return names if len(names) > 1 else {}


def _chart(axes: Axes, run: Gathered, look: Looks, chart: Chart) -> None:
    from matplotlib.lines import Line2D

    of_groups = any(one["node"] is not None for one in chart["series"])
    mixed = any(one["node"] is None for one in chart["series"])
    for i, one in enumerate(chart["series"]):
        if one["points"]:
            rounds, values = zip(*one["points"], strict=True)
            same: dict[str, Any] = {**(SEVERAL if of_groups and one["node"] is None else look.line(one["node"], i))}
            same["linestyle"] = DASHES[one["dash"] % len(DASHES)]
            axes.plot(rounds, values, markevery=every(len(rounds)), **same)
    if chart["log"]:
        axes.set_yscale("log")
    _levels(axes, chart)
    axes.set(title=textwrap.fill(chart["title"], TITLE), ylabel=chart["y"])
    over_rounds(axes, 1, max(2, len(run.lines)))
    handles = [Line2D([], [], **SEVERAL, linestyle="", label="several groups together")] if of_groups and mixed else []
    for i, (name, dash) in enumerate(_names(chart).items()):
        same = {"color": "black"} if of_groups else look.line(None, i)
        handles.append(Line2D([], [], label=name, **{**same, "linestyle": DASHES[dash % len(DASHES)]}))
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(-0.15, -0.22), handlelength=2.6, labelspacing=0.3)


def _levels(axes: Axes, chart: Chart) -> None:
    for level in chart["levels"]:
        axes.axhline(level["value"], color=GREY, linestyle=(0, (5, 2)), linewidth=0.8, zorder=1)
        axes.annotate(
            f"{level['name']} {level['value']:g}", (1, level["value"]), xycoords=axes.get_yaxis_transform(), xytext=(0, 2),
            textcoords="offset points", ha="right", fontsize=7, color="#444444",
        )  # fmt: skip


def _tree(axes: Axes, run: Gathered, look: Looks, chart: Chart) -> None:
    """Draw a dendrogram whose leaves have the colours and markers of the clients' current groups."""
    from matplotlib.collections import LineCollection

    links = chart["links"]
    axes.add_collection(LineCollection(links, color="black", linewidth=0.7 if len(links) < 100 else 0.4))
    now = {client: places[-1] for client, places in zip(run.clients, run.members, strict=True)}
    leaves = chart["leaves"]
    for node in dict.fromkeys(now[client] for client in leaves):
        at = [10 * i + 5 for i, client in enumerate(leaves) if now[client] == node]
        same = {**(look.line(node) if node >= 0 else {"color": GREY, "marker": "."}), "linestyle": "", "clip_on": False}
        axes.plot(at, [0] * len(at), **same, markersize=3.5 if len(leaves) <= 100 else 1.5, zorder=4)
    _levels(axes, chart)
    axes.set(title=chart["title"], xlabel="client", ylabel=chart["y"], xlim=(0, 10 * len(leaves)))
    axes.set_ylim(0, 1.05 * max(height for link in links for _, height in link))
    named = leaves if len(leaves) <= NAMED else ()
    axes.set_xticks([10 * i + 5 for i in range(len(named))], [str(client) for client in named], fontsize=6)
