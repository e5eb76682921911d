"""Curves over the rounds: accuracy or loss of every group, and the traffic and time of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.figures.style import COLUMN, DASHES, PAGE, Looks, looks, over_rounds, panels
from coterie.report.gathered import Gathered
from coterie.report.page.document import rounds as costs
from coterie.report.page.document import tests
from coterie.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = 60
"""Each client has a line if there are at most this many; otherwise a band shows the middle 80 % of each group."""

GROUPS, BANDS = 24, 12
"""The greatest number of groups drawn, those tested in most rounds; and the greatest number drawn with bands."""

SPLITS = 60
"""Rounds in which groups changed are marked if there are at most this many."""

LEGEND = 0.14
"""The height of a line of the legend, in inches."""


def figure(run: Gathered, metric: str) -> Figure:
    """Draw a metric of every group over the rounds.

    Args:
        run: The run.
        metric: accuracy or loss.

    Raises:
        UserError: If the metric was never measured.
    """
    found = groups(run, metric)
    if not found:
        raise UserError(f"{run.folder} has no {metric} recorded: {_why_not(run, metric)}")
    look = looks(run)
    entries = len(found) + (len(run.clients) <= LINES) + 1
    made, axes = panels(1, width=COLUMN, height=2.1 + LEGEND * math.ceil(entries / 2))
    draw(axes[0, 0], run, metric, found, look)
    made.legend(loc="outside lower center", ncols=2, handlelength=2.6, columnspacing=1.2, labelspacing=0.3)
    return made


def _why_not(run: Gathered, metric: str) -> str:
    tried = {at for entries in tests(run.lines).values() for at, entry in entries.items() if metric in entry}
    if not tried:
        return f"none of its {len(run.lines)} rounds was tested for it"
    return f"{len(tried)} of its {len(run.lines)} rounds were tested for it, and gave no value of an honest client in a group"


def groups(run: Gathered, metric: str) -> dict[int, dict[int, list[float]]]:
    """Return the values of each group's honest members in the tested rounds: node -> round -> values.

    Only the groups that were tested most often are included, at most :data:`GROUPS`.

    Args:
        run: The run.
        metric: accuracy or loss.
    """
    adversaries = set(run.facts.get("adversaries", ()))
    tested = tests(run.lines)
    found: dict[int, dict[int, list[float]]] = {}
    for client, places in zip(run.clients, run.members, strict=True):
        for at, entry in tested.get(client, {}).items():
            value = entry.get(metric)
            if value is not None and places[at] >= 0 and client not in adversaries:
                found.setdefault(places[at], {}).setdefault(run.lines[at]["round"], []).append(value)
    most = sorted(found, key=lambda node: (-len(found[node]), node))[:GROUPS]
    return {node: dict(sorted(found[node].items())) for node in sorted(most, key=lambda node: (node, len(found[node])))}


def draw(axes: Axes, run: Gathered, metric: str, found: Mapping[int, Mapping[int, list[float]]], look: Looks) -> None:
    """Draw the curves of the groups into ``axes``.

    Args:
        axes: The axes.
        run: The run.
        metric: accuracy or loss.
        found: The values of each group, from :func:`groups`.
        look: The style of the groups.
    """
    if len(run.clients) <= LINES:
        _clients(axes, run, metric, look)
    for node, by_round in found.items():
        rounds, values = list(by_round), list(by_round.values())
        if len(run.clients) > LINES and len(found) <= BANDS:
            low, high = (np.array([np.quantile(row, q) for row in values]) for q in (0.1, 0.9))
            axes.fill_between(rounds, low, high, color=look.line(node)["color"], alpha=0.18, linewidth=0)
        members = len(run.nodes[node].clients)
        until = "" if node in look.now else f", until {run.nodes[node].last}"
        axes.plot(
            rounds, [float(np.mean(row)) for row in values], **look.line(node), linestyle=look.dash(node),
            markevery=every(len(rounds)), label=f"G{node} ({members} client{'s' * (members > 1)}{until})",
            zorder=3 if node in look.now else 2.5,
        )  # fmt: skip
    splits = sorted({round for round, _, note in run.notes if len(note["parts"]) > 1})
    for i, round in enumerate(splits if len(splits) <= SPLITS else ()):
        axes.axvline(round, color="black", linestyle=":", linewidth=0.7, label="groups changed" if i == 0 else None, zorder=1)
    axes.set_ylabel(metric)
    over_rounds(axes, 1, max(2, len(run.lines)))


def every(points: int) -> int:
    """Return the distance between markers on a line with this many points: about eight markers."""
    return max(1, math.ceil(points / 8))


def _clients(axes: Axes, run: Gathered, metric: str, look: Looks) -> None:
    tested = tests(run.lines)
    label: str | None = "single clients"
    for client, places in zip(run.clients, run.members, strict=True):
        points = [(run.lines[at]["round"], entry.get(metric)) for at, entry in tested.get(client, {}).items()]
        known = [(round, value) for round, value in points if value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=look.area(places[-1]), linewidth=0.5, alpha=0.6, label=label)
            label = None


def traffic(run: Gathered) -> Figure:
    """Draw the cumulative traffic up to each round, in MB, and the seconds of each round."""
    spent = costs(run.lines)
    made, axes = panels(2, width=PAGE, height=2.2)
    rounds = [line["round"] for line in run.lines]
    sent = {"by clients (up)": spent["bytes_up"], "to clients (down)": spent["bytes_down"]}
    _lines(axes[0, 0], rounds, {name: np.cumsum(values) / 1e6 for name, values in sent.items()}, "MB sent so far")
    took = {name.partition("_")[2]: np.array(spent[name], dtype=float) for name in spent if name.startswith("seconds_")}
    _lines(axes[0, 1], rounds, took, "seconds of each round")
    return made


def _lines(axes: Axes, rounds: Sequence[int], series: Mapping[str, Any], label: str) -> None:
    for i, (name, values) in enumerate(series.items()):
        look: dict[str, Any] = {**Looks({}, {}, False).line(None, i), "linestyle": DASHES[i % len(DASHES)]}
        axes.plot(rounds, values, label=name, markevery=every(len(rounds)), **look)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    over_rounds(axes, 1, max(2, len(rounds)))
    axes.legend()
