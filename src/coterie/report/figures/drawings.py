"""The figures of a run, by kind. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from coterie.records.shown import ClientId, shown_as
from coterie.report.figures.looks import Looks, numbered
from coterie.report.figures.style import COLUMN, DASHES, GREY, PAGE, panels
from coterie.report.gathered import Gathered
from coterie.report.page.charts import Chart, arranged, charts, load, measure
from coterie.report.page.document import pooled_scores, rounds, scored, tests
from coterie.report.words import count
from coterie.report.words import rounds as in_words
from coterie.settings import UserError

FEW = 48
"""What is drawn one by one if there are at most this many: names and lines of clients, borders and
changes of groups."""

GROUPS = 24
"""The greatest number of groups with a curve: those tested in most rounds."""

ENTRIES = 8
"""The greatest number of groups in the legend of criteria: those of the most recent rounds."""

VECTORS = 2000
"""More blocks of clients and rounds than this are drawn as pixels, so that the file stays small."""

LEAST, MOST, LINE = 1.5, 4.6, 0.14
"""Heights in inches: the least and the greatest of all rows of clients, and that of a line of small
print."""

SEVERAL: dict[str, Any] = {"color": "black", "marker": "x"}
"""The style of numbers about several groups, next to numbers about one."""


def figure(run: Gathered, kind: str, round: int | None = None) -> Figure:
    """Draw a figure of a run.

    Args:
        run: The run.
        kind: One of :data:`coterie.report.figures.KINDS`.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.

    Raises:
        UserError: If the run has no such numbers.
    """
    if kind in ("score", "accuracy", "loss"):
        return _scores(run, shown_as(run.lines[-1]).main if kind == "score" else kind)
    if kind == "similarity":
        return _similarity(run, round)
    return {"groups": _groups, "criteria": _criteria, "traffic": _traffic}[kind](run)


def _grid(number: int, square: bool = False) -> tuple[Figure, np.ndarray]:
    """Create a figure with this number of axes, at most three side by side: a column wide for one, else a page."""
    columns = 2 if number == 4 else min(number, 3)
    width = COLUMN if number == 1 else PAGE
    made, axes = panels(
        columns,
        math.ceil(number / columns),
        width=width,
        height=width / columns * 0.86 if square else 2.2,
    )
    for unused in axes.flat[number:]:
        unused.remove()
    return made, axes.flat[:number]


def _over_rounds(axes: Axes, run: Gathered) -> None:
    axes.set(xlabel="round", xlim=(1, max(2, len(run.lines))))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(
        MaxNLocator(7, steps=[1, 2, 5, 10])
    )  # "auto" can change the width of labels after layout


def _curve(axes: Axes, rounds: Sequence[int], values: Any, **look: Any) -> None:
    """Draw a line with about eight markers."""
    axes.plot(rounds, values, markevery=math.ceil(len(rounds) / 8), **look)


def blocks(members: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int, int]]:
    """Return rectangles of adjacent clients that are in one group in the same rounds.

    Args:
        members: Per client, the id of its node in each round, or -1; see
            :class:`~coterie.report.gathered.Gathered`.

    Returns:
        node, first and last row, first and last column of each, counted from 0; sorted by first row
        and first column.

    Example:
        >>> blocks([[0, 0, 1], [0, 0, 1], [0, 0, 2], [-1, -1, 2]])
        [(0, 0, 2, 0, 1), (1, 0, 1, 2, 2), (2, 2, 3, 2, 2)]
    """
    out: list[tuple[int, int, int, int, int]] = []
    open_: dict[
        tuple[int, int, int], int
    ] = {}  # (node, first column, last column) -> the row at which the block begins
    for row, places in enumerate([*members, ()]):
        starts = [i for i in range(len(places)) if i == 0 or places[i] != places[i - 1]]
        ends = [*starts[1:], len(places)]
        here = [
            (places[i], i, end - 1) for i, end in zip(starts, ends, strict=False) if places[i] >= 0
        ]
        out += [
            (span[0], top, row - 1, *span[1:]) for span, top in open_.items() if span not in here
        ]
        open_ = {span: open_.get(span, row) for span in here}
    return sorted(out, key=lambda block: (block[1], block[3]))


def _groups(run: Gathered) -> Figure:
    """Draw the groups over the rounds: a row per client, a block per group."""
    found, looks = blocks(run.members), Looks(run)
    if not found:
        raise UserError(
            f"{run.folder} has no groups recorded: in none of its {len(run.lines)} rounds was anybody in one"
        )
    clients = len(run.clients)
    height = min(max(LINE * clients, LEAST), MOST)
    row = height / clients
    made, ((axes,),) = panels(1, width=PAGE, height=height + 0.45)
    ends = np.array(
        [
            [first + 0.5, last + 1.5, top - 0.5, bottom + 0.5]
            for _, top, bottom, first, last in found
        ]
    )
    corners = ends[:, [[0, 2], [1, 2], [1, 3], [0, 3]]]  # (blocks, 4, 2)
    colours = [looks.area(block[0]) for block in found]
    drawn = PolyCollection(
        list(corners), facecolor=colours, edgecolor="white", linewidth=min(0.8, 18 * row)
    )
    drawn.set_rasterized(len(found) > VECTORS)
    axes.add_collection(drawn)
    _over_rounds(axes, run)
    axes.set(xlim=(0.5, len(run.lines) + 0.5), ylim=(clients - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    if clients <= FEW:
        axes.set_yticks(range(clients), [str(client) for client in run.clients])
        axes.set_ylabel("client")
    else:
        axes.set_yticks(
            [clients / 2], [f"{clients:,} clients"], rotation=90, va="center", fontsize=8
        )
    axes.tick_params(axis="y", length=0, pad=18 if looks.truth else 4)
    _inside(axes, run, looks, found, row)
    _beside(axes, run, row)
    return made


def _inside(
    axes: Axes, run: Gathered, looks: Looks, found: Sequence[Sequence[int]], row: float
) -> None:
    """Write the names of groups that ended into their blocks, and draw the true groups at the left, where there is room."""
    middle: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    column = PAGE / len(run.lines) * 0.75  # about, in inches
    for node, top, bottom, first, last in found:
        wide, high = (last - first + 1) * column, (bottom - top + 1) * row
        if node not in looks.now and high > LINE and wide > 0.08 * len(f"G{node}"):
            axes.text((first + last) / 2 + 1, (top + bottom) / 2, f"G{node}", **middle)
    for number, start, end in _stripes(run, run.clients):
        axes.axhspan(
            start, end, -0.03, -0.008, color=looks.truth[number], linewidth=0, clip_on=False
        )
        if (end - start) * row > LINE * 0.8:
            letter = chr(ord("A") + number) if number < 26 else f"T{number}"
            axes.text(
                -0.019, (start + end) / 2, letter, transform=axes.get_yaxis_transform(), **middle
            )


def _stripes(run: Gathered, clients: Sequence[ClientId]) -> Iterator[tuple[int, float, float]]:
    """Yield (number, first edge, last edge) of the true groups of clients in adjacent rows; nothing if they are not known."""
    truth = run.truth
    for number, first, last, *_ in blocks([[truth.get(client, -1)] for client in clients]):
        yield number, first - 0.5, last + 0.5


def _beside(axes: Axes, run: Gathered, row: float) -> None:
    """Write name, size and last tested mean score to the right of the current groups that are large enough."""
    rows: dict[int, list[int]] = {}
    for i, places in enumerate(run.members):
        rows.setdefault(places[-1], []).append(i)
    rows.pop(-1, None)
    labels = {}
    for node, inside in rows.items():
        if len(inside) * row > LINE * 0.8:
            score = scored(run.nodes[node], run)["score"]
            words = f"G{node}, {count(len(inside), 'client')}"
            labels[(inside[0] + inside[-1]) / 2] = (
                words if score is None else f"{words}, {score:.2f}"
            )
    right = axes.secondary_yaxis("right")
    right.spines[:].set_visible(False)
    right.set_yticks(list(labels), list(labels.values()))
    right.tick_params(length=0)
    if len(labels) < len(rows):
        small = f"{len(rows) - len(labels)} {'smaller groups' if labels else 'groups, all small'}"
        axes.text(1.01, -0.01, small, transform=axes.transAxes, va="top", fontsize=7)


def _scores(run: Gathered, metric: str) -> Figure:
    """Draw a metric of the honest members of each group, its mean or pooled, and behind it the clients or a band."""
    tested, adversaries = tests(run.lines), set(run.facts.get("adversaries", ()))
    single: list[
        tuple[int, dict[int, float]]
    ] = []  # present node of each client, and its values by round
    found: dict[int, dict[int, list[float]]] = {}  # node -> round -> values of honest members
    for client, places in zip(run.clients, run.members, strict=True):
        entries = tested.get(client, {})
        values = {
            at + 1: value
            for at, entry in entries.items()
            if (value := entry.get(metric)) is not None
        }
        single.append((places[-1], values))
        for round, value in values.items() if client not in adversaries else ():
            if places[round - 1] >= 0:
                found.setdefault(places[round - 1], {}).setdefault(round, []).append(value)
    if not found:
        tried = len(
            {at for entries in tested.values() for at, entry in entries.items() if metric in entry}
        )
        why = f"{tried} of its {len(run.lines)} rounds were tested for it, and gave no value of an honest client in a group"
        why = why if tried else f"none of its {len(run.lines)} rounds was tested for it"
        raise UserError(f"{run.folder} has no {metric} recorded: {why}")
    shown = sorted(sorted(found, key=lambda node: (-len(found[node]), node))[:GROUPS])
    made, ((axes,),) = panels(1, width=COLUMN, height=2.1 + LINE * math.ceil((len(shown) + 2) / 2))
    few, looks = len(run.clients) <= FEW, Looks(run)
    for i, (node, values) in enumerate(single if few else ()):
        label = "single clients" if i == 0 else None
        axes.plot(
            list(values),
            list(values.values()),
            color=looks.area(node),
            linewidth=0.5,
            alpha=0.6,
            label=label,
        )
    pools = pooled_scores(run).get(metric)
    for node in shown:
        by_round = dict(sorted(found[node].items()))
        means = None if pools is None else pools.get(str(node), {})
        _group(axes, run, looks, node, by_round, means, band=not few and len(shown) <= GROUPS // 2)
    splits = sorted({round for round, _, note in run.notes if len(note["parts"]) > 1})
    for round in splits if len(splits) <= FEW else ():
        label = "groups changed" if round == splits[0] else None
        axes.axvline(round, color="black", linestyle=":", linewidth=0.7, label=label, zorder=1)
    axes.set_ylabel(metric)
    _over_rounds(axes, run)
    made.legend(
        loc="outside lower center", ncols=2, handlelength=2.6, columnspacing=1.2, labelspacing=0.3
    )
    return made


def _group(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    node: int,
    values: Mapping[int, list[float]],
    pools: Mapping[int, float] | None,
    band: bool,
) -> None:
    """Draw the means of a group's values by round, or its pooled values, and the middle 80 % of the values as a band."""
    if band:
        low, high = np.transpose([np.quantile(row, (0.1, 0.9)) for row in values.values()])
        axes.fill_between(
            list(values), low, high, color=looks.line(node)["color"], alpha=0.18, linewidth=0
        )
    now = node in looks.now
    until = "" if now else f", until {run.nodes[node].last}"
    label = f"G{node} ({count(len(run.nodes[node].clients), 'client')}{until})"
    means = [
        float(np.mean(row)) if pools is None else pools.get(round, math.nan)
        for round, row in values.items()
    ]
    _curve(axes, list(values), means, **looks.line(node), label=label, zorder=3 if now else 2.5)


def _traffic(run: Gathered) -> Figure:
    """Draw the cumulative traffic up to each round, in MB, and the seconds of each round."""
    spent = {name: np.array(values, dtype=float) for name, values in rounds(run.lines).items()}
    sent = {"by clients (up)": spent["bytes_up"], "to clients (down)": spent["bytes_down"]}
    drawn = {
        "MB sent so far": {name: np.cumsum(values) / 1e6 for name, values in sent.items()},
        "seconds of each round": {
            name[8:]: values for name, values in spent.items() if name.startswith("seconds_")
        },
    }
    made, places = _grid(2)
    for axes, (label, series) in zip(places, drawn.items(), strict=True):
        for i, (name, values) in enumerate(series.items()):
            _curve(axes, range(1, len(run.lines) + 1), values, **numbered(i), label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        _over_rounds(axes, run)
        axes.legend()
    return made


def _similarity(run: Gathered, round: int | None) -> Figure:
    """Draw every layer of every matrix of a round."""
    named = _with_matrix(run, round)
    drawn: list[
        tuple[str, str, Any, Any, Any, np.ndarray]
    ] = []  # title, measure, clients, groups, edges, matrix
    for line, note in named:
        heard, matrices = load(run.folder, line, note)
        clients, inside, edges, layers = arranged(heard, matrices, line, run.clients)
        title = f"round {line['round']}" + (f", {len(clients)} clients" if len(named) > 1 else "")
        drawn += [
            (
                title if len(layers) == 1 else f"{title}, {name}",
                measure(matrices[name]),
                clients,
                inside,
                edges,
                matrix,
            )
            for name, matrix in layers.items()
        ]
    looks = Looks(run)
    made, places = _grid(len(drawn), square=True)
    for axes, one in zip(places, drawn, strict=True):
        _matrix(axes, run, looks, *one)
    return made


def _with_matrix(run: Gathered, round: int | None) -> list[tuple[Any, Any]]:
    """Return (line, note) of the matrices of a round; None for the last one that has some."""
    named = [(line, note) for line in run.lines for note in line["notes"] if note.get("similarity")]
    having = sorted({line["round"] for line, _ in named})
    if not having:
        method = run.description["methods"][0]["name"]
        raise UserError(
            f"{run.folder} has no similarities recorded: its method, {method}, kept no matrix in any round"
        )
    if round is not None and round not in having:
        raise UserError(
            f"--round {round} has no matrix recorded; there is one of {in_words(having)}"
        )
    return [
        (line, note)
        for line, note in named
        if line["round"] == (having[-1] if round is None else round)
    ]


def scale(matrix: np.ndarray) -> dict[str, Any]:
    """Return the colour scale of a matrix.

    For cosines it is symmetric about zero, for other values it reaches from the least to the
    greatest. Both ignore values that are not finite, such as those of single clients on the
    diagonal.

    Args:
        matrix: The matrix ``(n, n)``.
    """
    known = matrix[np.isfinite(matrix)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if -1.001 <= low < 0 and high <= 1.001:
        reach = max(-low, high)
        return {"cmap": "PuOr_r", "vmin": -reach, "vmax": reach}
    return {"cmap": "YlGnBu", "vmin": low, "vmax": high if high > low else low + 1}


def _matrix(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    title: str,
    what: str,
    clients: Any,
    inside: Any,
    edges: Any,
    matrix: Any,
) -> None:
    shown = matrix.astype(np.float64)
    if edges is None:
        np.fill_diagonal(shown, np.nan)
    axes.set_facecolor("#808080")
    image = axes.imshow(shown, interpolation="nearest", **scale(shown))
    metric = run.description["methods"][0].get("metric", "")
    label = f"{metric} distance".strip() if what == "distance" else "cosine similarity"
    axes.figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=label)
    first = range(len(shown)) if edges is None else edges[:-1]
    borders = [i for i in range(1, len(shown)) if inside[first[i]] != inside[first[i] - 1]]
    for i in borders if len(borders) <= FEW else ():
        axes.axhline(i - 0.5, color="black", linewidth=0.9)
        axes.axvline(i - 0.5, color="black", linewidth=0.9)
    for number, start, end in _stripes(run, [clients[i] for i in first]):
        same = {"color": looks.truth[number], "linewidth": 0, "clip_on": False}
        axes.axhspan(start, end, -0.045, -0.015, **same)
        axes.axvspan(start, end, 1.015, 1.045, **same)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, pad=14 if looks.truth else None)
    axes.set_ylabel(
        f"{len(clients):,} clients" + ("" if edges is None else ", means over blocks"), labelpad=12
    )
    axes.label_outer()
    axes.spines[:].set_visible(True)


def _criteria(run: Gathered) -> Figure:
    """Draw the numbers that the method compared: the charts of the page."""
    method = run.description["methods"][0]
    found = charts(method, run.folder, run.lines, run.notes, run.facts)
    if not found:
        raise UserError(
            f"{run.folder} has no criteria recorded: its method, {method['name']}, told no numbers in its notes"
        )
    made, places = _grid(len(found))
    looks = Looks(run)
    for axes, chart in zip(places, found, strict=True):
        for level in chart["levels"]:
            axes.axhline(level["value"], color=GREY, linestyle=(0, (5, 2)), linewidth=0.8, zorder=1)
            axes.annotate(
                f"{level['name']} {level['value']:g}",
                (1, level["value"]),
                xycoords=axes.get_yaxis_transform(),
                annotation_clip=True,
                ha="right",
                va="bottom",
                fontsize=7,
                color="#444444",
            )
        axes.set(title=textwrap.fill(chart["title"], 34), ylabel=chart["y"])
        (_tree if chart.get("links") else _chart)(axes, run, looks, chart)
    nodes = sorted({one["node"] for chart in found for one in chart["series"]} - {None})[-ENTRIES:]
    if len(nodes) > 1:
        handles = [
            Line2D([], [], **{**looks.line(node), "linestyle": ""}, label=f"G{node}")
            for node in nodes
        ]
        made.legend(
            handles=handles,
            loc="outside lower center",
            ncols=4 if len(found) == 1 else ENTRIES,
            handletextpad=0.2,
        )
    return made


def _chart(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw the series of a chart; a legend explains dashes, and colours if these are not of groups."""
    of_groups = any(one["node"] is not None for one in chart["series"])
    legend: dict[str, dict[str, Any]] = {}
    for i, one in enumerate(chart["series"]):
        dash = {"linestyle": DASHES[one["dash"] % len(DASHES)]}
        look = (
            looks.line(one["node"])
            if one["node"] is not None
            else SEVERAL
            if of_groups
            else numbered(i)
        )
        legend.setdefault(
            one["name"], {"color": "black", **dash} if of_groups else {**look, **dash}
        )
        if look is SEVERAL:
            legend["several groups together"] = {**SEVERAL, "linestyle": ""}
        _curve(axes, *zip(*one["points"], strict=True), **{**look, **dash})
    _over_rounds(axes, run)
    if chart["log"]:
        axes.set_yscale("log")
    if len(legend) > 1:
        handles = [Line2D([], [], **look, label=name) for name, look in legend.items()]
        axes.legend(handles=handles, loc="best", handlelength=2.6, labelspacing=0.3)


def _tree(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw a dendrogram whose leaves have the colours and markers of the clients' current groups."""
    links, leaves = chart["links"], chart["leaves"]
    axes.add_collection(
        LineCollection(links, color="black", linewidth=0.7 if len(links) < 100 else 0.4)
    )
    now = {client: places[-1] for client, places in zip(run.clients, run.members, strict=True)}
    for node in dict.fromkeys(now[client] for client in leaves):
        at = [10 * i + 5 for i, client in enumerate(leaves) if now[client] == node]
        same = {
            **(looks.line(node) if node >= 0 else {"color": GREY, "marker": "."}),
            "linestyle": "",
            "clip_on": False,
        }
        axes.plot(
            at, [0] * len(at), **same, markersize=3.5 if len(leaves) <= 100 else 1.5, zorder=4
        )
    axes.set(xlabel="client", xlim=(0, 10 * len(leaves)))
    top = max(height for link in links for _, height in link)
    near = [
        level["value"] for level in chart["levels"] if level["value"] < 2 * top
    ]  # one far above would flatten the tree
    axes.set_ylim(0, 1.05 * max([top, *near]))
    named = leaves if len(leaves) <= FEW // 2 else ()
    axes.set_xticks(
        [10 * i + 5 for i in range(len(named))],
        [str(client) for client in named],
        fontsize=6,
        rotation=90,
    )
