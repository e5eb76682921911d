"""The figures of a run, by kind. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from coterie.records.shown import ClientId, shown_as
from coterie.report.figures.looks import Looks, numbered
from coterie.report.figures.style import COLUMN, DASHES, GREY, LINE_HEIGHT, PAGE, panels
from coterie.report.gathered import Gathered
from coterie.report.page.charts import ArrangedMatrices, Chart, arrange, charts, load, measure
from coterie.report.page.document import client_tests, last_scores, pooled_scores, round_columns
from coterie.report.words import count
from coterie.report.words import rounds as in_words
from coterie.settings import UserError

MAX_SINGLE_ITEMS = 48
"""What is drawn one by one if there are at most this many: names and lines of clients, borders and
changes of groups."""

MAX_GROUP_CURVES = 24
"""The greatest number of groups with a curve: those tested in most rounds."""

MAX_GROUPS_IN_LEGEND = 8
"""The greatest number of groups in the legend of criteria: those of the most recent rounds."""

MAX_VECTOR_BLOCKS = 2000
"""More blocks of clients and rounds than this are drawn as pixels, so that the file stays small."""

MIN_HEIGHT = 1.5
"""The smallest height of all rows of clients, in inches."""

MAX_HEIGHT = 4.6
"""The greatest height of all rows of clients, in inches."""

SEVERAL: dict[str, Any] = {"color": "black", "marker": "x"}
"""The style of numbers about several groups, next to numbers about one."""


def figure(run: Gathered, kind: str, round: int | None = None) -> Figure:
    """Draw a figure of a run.

    Args:
        run: The run.
        kind: One of :data:`coterie.report.figures.FIGURE_KINDS`.
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
    drawing, axes = panels(
        columns,
        math.ceil(number / columns),
        width=width,
        height=width / columns * 0.86 if square else 2.2,
    )
    for unused in axes.flat[number:]:
        unused.remove()
    return drawing, axes.flat[:number]


def _over_rounds(axes: Axes, run: Gathered) -> None:
    axes.set(xlabel="round", xlim=(1, max(2, len(run.lines))))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    # A fixed number of bins: "auto" can change the width of labels after layout.
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


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
    finished: list[tuple[int, int, int, int, int]] = []
    # (node, first column, last column) -> the row at which the block begins
    unfinished: dict[tuple[int, int, int], int] = {}
    for row, nodes in enumerate([*members, ()]):  # after the last row, all blocks end
        spans = _spans(nodes)
        for span, top in unfinished.items():
            if span not in spans:
                node, first, last = span
                finished.append((node, top, row - 1, first, last))
        unfinished = {span: unfinished.get(span, row) for span in spans}
    return sorted(finished, key=lambda block: (block[1], block[3]))


def _spans(nodes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (node, first column, last column) of adjacent columns with the same node."""
    spans: list[tuple[int, int, int]] = []
    for column, node in enumerate(nodes):
        if node < 0:
            continue
        if column and nodes[column - 1] == node:
            spans[-1] = (node, spans[-1][1], column)
        else:
            spans.append((node, column, column))
    return spans


def _groups(run: Gathered) -> Figure:
    """Draw the groups over the rounds: a row per client, a block per group."""
    rectangles = blocks(run.members)
    looks = Looks(run)
    if not rectangles:
        raise UserError(
            f"{run.folder} has no groups recorded: no client was in a group in any of its {len(run.lines)} rounds"
        )
    num_clients = len(run.clients)
    height = min(max(LINE_HEIGHT * num_clients, MIN_HEIGHT), MAX_HEIGHT)
    row_height = height / num_clients
    drawing, ((axes,),) = panels(1, width=PAGE, height=height + 0.45)
    edges = np.array(
        [
            [first + 0.5, last + 1.5, top - 0.5, bottom + 0.5]
            for _, top, bottom, first, last in rectangles
        ]
    )
    corners = edges[:, [[0, 2], [1, 2], [1, 3], [0, 3]]]  # (blocks, 4, 2)
    polygons = PolyCollection(
        list(corners),
        facecolor=[looks.area(node) for node, *_ in rectangles],
        edgecolor="white",
        linewidth=min(0.8, 18 * row_height),
    )
    polygons.set_rasterized(len(rectangles) > MAX_VECTOR_BLOCKS)
    axes.add_collection(polygons)
    _over_rounds(axes, run)
    axes.set(xlim=(0.5, len(run.lines) + 0.5), ylim=(num_clients - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    if num_clients <= MAX_SINGLE_ITEMS:
        axes.set_yticks(range(num_clients), [str(client) for client in run.clients])
        axes.set_ylabel("client")
    else:
        axes.set_yticks(
            [num_clients / 2],
            [f"{num_clients:,} clients"],
            rotation=90,
            va="center",
            fontsize=8,
        )
    axes.tick_params(axis="y", length=0, pad=18 if looks.truth else 4)
    _name_ended_groups(axes, run, looks, rectangles, row_height)
    _draw_true_groups(axes, run, looks, row_height)
    _name_current_groups(axes, run, row_height)
    return drawing


MIDDLE: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
"""The style of names in the middle of blocks."""


def _name_ended_groups(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    rectangles: Sequence[Sequence[int]],
    row_height: float,
) -> None:
    """Write the names of groups that ended into their blocks, where there is room."""
    column_width = PAGE / len(run.lines) * 0.75  # about, in inches
    for node, top, bottom, first, last in rectangles:
        name = f"G{node}"
        width = (last - first + 1) * column_width
        height = (bottom - top + 1) * row_height
        if node not in looks.now and height > LINE_HEIGHT and width > 0.08 * len(name):
            axes.text((first + last) / 2 + 1, (top + bottom) / 2, name, **MIDDLE)


def _draw_true_groups(axes: Axes, run: Gathered, looks: Looks, row_height: float) -> None:
    """Draw the true groups as stripes at the left, with a letter where there is room."""
    for number, start, end in _stripes(run, run.clients):
        axes.axhspan(
            start, end, -0.03, -0.008, color=looks.truth[number], linewidth=0, clip_on=False
        )
        if (end - start) * row_height > LINE_HEIGHT * 0.8:
            letter = chr(ord("A") + number) if number < 26 else f"T{number}"
            axes.text(
                -0.019,
                (start + end) / 2,
                letter,
                transform=axes.get_yaxis_transform(),
                **MIDDLE,
            )


def _stripes(run: Gathered, clients: Sequence[ClientId]) -> Iterator[tuple[int, float, float]]:
    """Yield (number, first edge, last edge) of the true groups of clients in adjacent rows; nothing if they are not known."""
    truth = run.truth
    for number, first, last, *_ in blocks([[truth.get(client, -1)] for client in clients]):
        yield number, first - 0.5, last + 0.5


def _name_current_groups(axes: Axes, run: Gathered, row_height: float) -> None:
    """Write name, size and last tested mean score to the right of the current groups that are large enough."""
    rows_of: dict[int, list[int]] = {}
    for row, nodes in enumerate(run.members):
        rows_of.setdefault(nodes[-1], []).append(row)
    rows_of.pop(-1, None)  # clients in no group
    labels = {}
    for node, rows in rows_of.items():
        if len(rows) * row_height > LINE_HEIGHT * 0.8:
            score = last_scores(run.nodes[node], run)["score"]
            label = f"G{node}, {count(len(rows), 'client')}"
            if score is not None:
                label = f"{label}, {score:.2f}"
            labels[(rows[0] + rows[-1]) / 2] = label
    right = axes.secondary_yaxis("right")
    right.spines[:].set_visible(False)
    right.set_yticks(list(labels), list(labels.values()))
    right.tick_params(length=0)
    num_unnamed = len(rows_of) - len(labels)
    if num_unnamed:
        small = f"{num_unnamed} {'smaller groups' if labels else 'groups, all small'}"
        axes.text(1.01, -0.01, small, transform=axes.transAxes, va="top", fontsize=7)


def _scores(run: Gathered, metric: str) -> Figure:
    """Draw a metric of the honest members of each group, its mean or pooled, and behind it the clients or a band."""
    client_values = _values_by_round(run, metric)
    group_values = _honest_values(run, client_values)
    if not group_values:
        raise UserError(f"{run.folder} has no {metric} recorded: {_why_no_scores(run, metric)}")
    by_tests = sorted(group_values, key=lambda node: (-len(group_values[node]), node))
    nodes = sorted(by_tests[:MAX_GROUP_CURVES])
    height = 2.1 + LINE_HEIGHT * math.ceil((len(nodes) + 2) / 2)
    drawing, ((axes,),) = panels(1, width=COLUMN, height=height)
    looks = Looks(run)
    # 1. Behind: a thin line for each client, or for many clients a band around each of few groups.
    draws_clients = len(run.clients) <= MAX_SINGLE_ITEMS
    if draws_clients:
        _draw_clients(axes, run, looks, client_values)
    draws_bands = not draws_clients and len(nodes) <= MAX_GROUP_CURVES // 2
    # 2. A line for each group.
    pools = pooled_scores(run).get(metric)
    for node in nodes:
        by_round = dict(sorted(group_values[node].items()))
        group_pools = None if pools is None else pools.get(str(node), {})
        _group(axes, run, looks, node, by_round, group_pools, draws_bands)
    # 3. The rounds in which groups changed.
    changes = sorted({number for number, _, note in run.notes if len(note["parts"]) > 1})
    for number in changes if len(changes) <= MAX_SINGLE_ITEMS else ():
        label = "groups changed" if number == changes[0] else None
        axes.axvline(number, color="black", linestyle=":", linewidth=0.7, label=label, zorder=1)
    axes.set_ylabel(metric)
    _over_rounds(axes, run)
    drawing.legend(
        loc="outside lower center", ncols=2, handlelength=2.6, columnspacing=1.2, labelspacing=0.3
    )
    return drawing


def _values_by_round(run: Gathered, metric: str) -> dict[ClientId, dict[int, float]]:
    """Return client -> round -> its value of a metric."""
    tests_of_client = client_tests(run.lines)
    client_values: dict[ClientId, dict[int, float]] = {}
    for client in run.clients:
        values = {}
        for index, entry in tests_of_client.get(client, {}).items():
            value = entry.get(metric)
            if value is not None:
                values[index + 1] = value
        client_values[client] = values
    return client_values


def _honest_values(
    run: Gathered, client_values: Mapping[ClientId, Mapping[int, float]]
) -> dict[int, dict[int, list[float]]]:
    """Return node -> round -> the values of the honest clients that were members then."""
    adversaries = set(run.facts.get("adversaries", ()))
    group_values: dict[int, dict[int, list[float]]] = {}
    for client, nodes in zip(run.clients, run.members, strict=True):
        if client in adversaries:
            continue
        for number, value in client_values[client].items():
            node = nodes[number - 1]
            if node >= 0:
                group_values.setdefault(node, {}).setdefault(number, []).append(value)
    return group_values


def _why_no_scores(run: Gathered, metric: str) -> str:
    tested_indices: set[int] = set()
    for tests in client_tests(run.lines).values():
        tested_indices.update(index for index, entry in tests.items() if metric in entry)
    if not tested_indices:
        return f"none of its {len(run.lines)} rounds was tested for it"
    return (
        f"{len(tested_indices)} of its {len(run.lines)} rounds were tested for it, "
        "and gave no value of an honest client in a group"
    )


def _draw_clients(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    client_values: Mapping[ClientId, Mapping[int, float]],
) -> None:
    """Draw a thin line for each client, in the colour of its current group."""
    label: str | None = "single clients"
    for client, nodes in zip(run.clients, run.members, strict=True):
        values = client_values[client]
        axes.plot(
            list(values),
            list(values.values()),
            color=looks.area(nodes[-1]),
            linewidth=0.5,
            alpha=0.6,
            label=label,
        )
        label = None


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
    is_current = node in looks.now
    until = "" if is_current else f", until {run.nodes[node].last}"
    label = f"G{node} ({count(len(run.nodes[node].clients), 'client')}{until})"
    means = [
        float(np.mean(row)) if pools is None else pools.get(round, math.nan)
        for round, row in values.items()
    ]
    zorder = 3 if is_current else 2.5
    _curve(axes, list(values), means, **looks.line(node), label=label, zorder=zorder)


def _traffic(run: Gathered) -> Figure:
    """Draw the cumulative traffic up to each round, in MB, and the seconds of each round."""
    by_name = {
        name: np.array(values, dtype=float) for name, values in round_columns(run.lines).items()
    }
    seconds = {
        name.removeprefix("seconds_"): values
        for name, values in by_name.items()
        if name.startswith("seconds_")
    }
    megabytes = {
        "by clients (up)": np.cumsum(by_name["bytes_up"]) / 1e6,
        "to clients (down)": np.cumsum(by_name["bytes_down"]) / 1e6,
    }
    charts_by_label = {"MB sent so far": megabytes, "seconds of each round": seconds}
    drawing, grid = _grid(2)
    for axes, (label, series) in zip(grid, charts_by_label.items(), strict=True):
        for number, (name, values) in enumerate(series.items()):
            _curve(axes, range(1, len(run.lines) + 1), values, **numbered(number), label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        _over_rounds(axes, run)
        axes.legend()
    return drawing


@dataclass(frozen=True)
class MatrixLayer:
    """A matrix of similarities or distances to draw.

    Attributes:
        title: Its title.
        measure: What it contains, see :func:`coterie.report.page.charts.measure`.
        arranged: The matrices of its note, with the clients of the rows.
        values: The matrix.
    """

    title: str
    measure: str
    arranged: ArrangedMatrices
    values: np.ndarray


def _similarity(run: Gathered, round: int | None) -> Figure:
    """Draw every layer of every matrix of a round."""
    layers = []
    with_matrix = _with_matrix(run, round)
    for line, note in with_matrix:
        clients_of_matrix, matrices = load(run.folder, line, note)
        arranged = arrange(clients_of_matrix, matrices, line, run.clients)
        title = f"round {line['round']}"
        if len(with_matrix) > 1:
            title = f"{title}, {len(arranged.clients)} clients"
        for name, values in arranged.layers.items():
            layer_title = title if len(matrices) == 1 else f"{title}, {name}"
            layers.append(MatrixLayer(layer_title, measure(matrices[name]), arranged, values))
    looks = Looks(run)
    drawing, grid = _grid(len(layers), square=True)
    for axes, layer in zip(grid, layers, strict=True):
        _matrix(axes, run, looks, layer)
    return drawing


def _with_matrix(run: Gathered, round: int | None) -> list[tuple[Any, Any]]:
    """Return (line, note) of the matrices of a round; None for the last one that has some."""
    with_matrix = [
        (line, note) for line in run.lines for note in line["notes"] if note.get("similarity")
    ]
    numbers = sorted({line["round"] for line, _ in with_matrix})
    if not numbers:
        method = run.description["methods"][0]["name"]
        raise UserError(
            f"{run.folder} has no similarities recorded: its method, {method}, kept no matrix in any round"
        )
    if round is None:
        round = numbers[-1]
    if round not in numbers:
        raise UserError(
            f"--round {round} has no matrix recorded; there is one of {in_words(numbers)}"
        )
    return [(line, note) for line, note in with_matrix if line["round"] == round]


def scale(matrix: np.ndarray) -> dict[str, Any]:
    """Return the colour scale of a matrix.

    For cosines it is symmetric about zero, for other values it reaches from the least to the
    greatest. Both ignore values that are not finite, such as those of single clients on the
    diagonal.

    Args:
        matrix: The matrix ``(n, n)``.
    """
    finite = matrix[np.isfinite(matrix)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if -1.001 <= low < 0 and high <= 1.001:
        reach = max(-low, high)
        return {"cmap": "PuOr_r", "vmin": -reach, "vmax": reach}
    return {"cmap": "YlGnBu", "vmin": low, "vmax": high if high > low else low + 1}


def _matrix(axes: Axes, run: Gathered, looks: Looks, layer: MatrixLayer) -> None:
    values = layer.values.astype(np.float64)
    clients = layer.arranged.clients
    groups = layer.arranged.groups
    # A row stands for a client, or for a block by its first client.
    edges = layer.arranged.edges
    first_clients = range(len(values)) if edges is None else edges[:-1]
    if edges is None:
        np.fill_diagonal(values, np.nan)
    axes.set_facecolor("#808080")
    image = axes.imshow(values, interpolation="nearest", **scale(values))
    metric = run.description["methods"][0].get("metric", "")
    label = "cosine similarity"
    if layer.measure == "distance":
        label = f"{metric} distance".strip()
    axes.figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=label)
    # Borders between groups.
    borders = [
        row
        for row in range(1, len(values))
        if groups[first_clients[row]] != groups[first_clients[row] - 1]
    ]
    for row in borders if len(borders) <= MAX_SINGLE_ITEMS else ():
        axes.axhline(row - 0.5, color="black", linewidth=0.9)
        axes.axvline(row - 0.5, color="black", linewidth=0.9)
    # True groups: stripes at the left and at the top.
    for number, start, end in _stripes(run, [clients[i] for i in first_clients]):
        stripe = {"color": looks.truth[number], "linewidth": 0, "clip_on": False}
        axes.axhspan(start, end, -0.045, -0.015, **stripe)
        axes.axvspan(start, end, 1.015, 1.045, **stripe)
    axes.set(xticks=[], yticks=[])
    axes.set_title(layer.title, pad=14 if looks.truth else None)
    blocks_note = "" if edges is None else ", means over blocks"
    axes.set_ylabel(f"{len(clients):,} clients{blocks_note}", labelpad=12)
    axes.label_outer()
    axes.spines[:].set_visible(True)


def _criteria(run: Gathered) -> Figure:
    """Draw the numbers that the method compared: the charts of the page."""
    method = run.description["methods"][0]
    drawn_charts = charts(method, run.folder, run.lines, run.notes, run.facts)
    if not drawn_charts:
        raise UserError(
            f"{run.folder} has no criteria recorded: the notes of its method, {method['name']}, have no numbers"
        )
    drawing, grid = _grid(len(drawn_charts))
    looks = Looks(run)
    for axes, chart in zip(grid, drawn_charts, strict=True):
        for level in chart["levels"]:
            _level(axes, level["name"], level["value"])
        axes.set(title=textwrap.fill(chart["title"], 34), ylabel=chart["y"])
        draw = _tree if chart.get("links") else _chart
        draw(axes, run, looks, chart)
    nodes = {series["node"] for chart in drawn_charts for series in chart["series"]} - {None}
    named_nodes = sorted(nodes)[-MAX_GROUPS_IN_LEGEND:]
    if len(named_nodes) > 1:
        handles = [
            Line2D([], [], **{**looks.line(node), "linestyle": ""}, label=f"G{node}")
            for node in named_nodes
        ]
        drawing.legend(
            handles=handles,
            loc="outside lower center",
            ncols=4 if len(drawn_charts) == 1 else MAX_GROUPS_IN_LEGEND,
            handletextpad=0.2,
        )
    return drawing


def _level(axes: Axes, name: str, value: float) -> None:
    """Draw a threshold, with its name at the right."""
    axes.axhline(value, color=GREY, linestyle=(0, (5, 2)), linewidth=0.8, zorder=1)
    axes.annotate(
        f"{name} {value:g}",
        (1, value),
        xycoords=axes.get_yaxis_transform(),
        annotation_clip=True,
        ha="right",
        va="bottom",
        fontsize=7,
        color="#444444",
    )


def _chart(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw the series of a chart; a legend explains dashes, and colours if these are not of groups."""
    is_of_groups = any(series["node"] is not None for series in chart["series"])
    legend: dict[str, dict[str, Any]] = {}
    for number, series in enumerate(chart["series"]):
        node = series["node"]
        dash = {"linestyle": DASHES[series["dash"] % len(DASHES)]}
        if node is not None:
            look = looks.line(node)
        elif is_of_groups:
            look = SEVERAL
        else:
            look = numbered(number)
        legend_look = {"color": "black", **dash} if is_of_groups else {**look, **dash}
        legend.setdefault(series["name"], legend_look)
        if look is SEVERAL:
            legend["several groups together"] = {**SEVERAL, "linestyle": ""}
        _curve(axes, *zip(*series["points"], strict=True), **{**look, **dash})
    _over_rounds(axes, run)
    if chart["log"]:
        axes.set_yscale("log")
    if len(legend) > 1:
        handles = [Line2D([], [], **look, label=name) for name, look in legend.items()]
        axes.legend(handles=handles, loc="best", handlelength=2.6, labelspacing=0.3)


def _tree(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw a dendrogram whose leaves have the colours and markers of the clients' current groups."""
    links = chart["links"]
    leaves = chart["leaves"]
    width = 0.7 if len(links) < 100 else 0.4
    axes.add_collection(LineCollection(links, color="black", linewidth=width))
    node_of = {client: nodes[-1] for client, nodes in zip(run.clients, run.members, strict=True)}
    for node in dict.fromkeys(node_of[client] for client in leaves):
        # SciPy puts leaf i at 10 i + 5.
        places = [10 * i + 5 for i, client in enumerate(leaves) if node_of[client] == node]
        look = looks.line(node) if node >= 0 else {"color": GREY, "marker": "."}
        axes.plot(
            places,
            [0] * len(places),
            **{**look, "linestyle": "", "clip_on": False},
            markersize=3.5 if len(leaves) <= 100 else 1.5,
            zorder=4,
        )
    axes.set(xlabel="client", xlim=(0, 10 * len(leaves)))
    top = max(height for link in links for _, height in link)
    # A threshold far above would flatten the tree.
    visible_levels = [level["value"] for level in chart["levels"] if level["value"] < 2 * top]
    axes.set_ylim(0, 1.05 * max([top, *visible_levels]))
    named_leaves = leaves if len(leaves) <= MAX_SINGLE_ITEMS // 2 else ()
    axes.set_xticks(
        [10 * i + 5 for i in range(len(named_leaves))],
        [str(client) for client in named_leaves],
        fontsize=6,
        rotation=90,
    )
