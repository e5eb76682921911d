"""The figures of a run, by kind. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from coterie.report.page.charts import (
    MIN_ON_LOG_AXIS,
    ArrangedMatrices,
    Chart,
    arrange,
    charts,
    load,
    measure,
)
from coterie.report.page.document import client_tests, last_scores, pooled_scores, round_columns
from coterie.report.summary import ABOUT
from coterie.report.words import count, is_p_value
from coterie.report.words import rounds as in_words
from coterie.settings import UserError, known_list, nearest

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


def figure(run: Gathered, kind: str, round: int | None = None, metric: str = "") -> Figure:
    """Draw a figure of a run.

    Args:
        run: The run.
        kind: One of :data:`coterie.report.figures.FIGURE_KINDS`.
        round: For ``similarity``, the round of the matrices; None for the last round that has one.
        metric: For ``score``, the metric; empty for the main one.

    Raises:
        UserError: If the run has no such numbers.
    """
    match kind:
        case "score":
            return _scores(run, metric or shown_as(run.lines[-1]).main)
        case "accuracy" | "loss":
            return _scores(run, kind)
        case "similarity":
            return _similarity(run, round)
        case "groups":
            return _groups(run)
        case "criteria":
            return _criteria(run)
        case "traffic":
            return _traffic(run)
    raise ValueError(f"there is no figure {kind!r}")


def _grid(num_axes: int, square: bool = False) -> tuple[Figure, np.ndarray]:
    """Create a figure with this number of axes, at most three side by side: a column wide for one, else a page."""
    # Four axes are two by two.
    num_columns = 2 if num_axes == 4 else min(num_axes, 3)
    num_rows = math.ceil(num_axes / num_columns)
    width = COLUMN if num_axes == 1 else PAGE
    height = width / num_columns * 0.86 if square else 2.2
    drawing, all_axes = panels(num_columns, num_rows, width=width, height=height)
    for unused_axes in all_axes.flat[num_axes:]:
        unused_axes.remove()
    return drawing, all_axes.flat[:num_axes]


def over_rounds(axes: Axes, num_rounds: int) -> None:
    """Make the horizontal axis that of rounds."""
    axes.set(xlabel="round", xlim=(1, max(2, num_rounds)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    # A fixed number of bins: "auto" can change the width of labels after layout.
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


def curve(axes: Axes, rounds: Sequence[float], values: Any, **look: Any) -> None:
    """Draw a line with about eight markers."""
    axes.plot(rounds, values, markevery=math.ceil(len(rounds) / 8), **look)


def legend_below(drawing: Figure, num_columns: int = 2) -> None:
    """Put a legend below the axes of a figure."""
    drawing.legend(
        loc="outside lower center",
        ncols=num_columns,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.3,
    )


class TreeBlock(NamedTuple):
    """A rectangle of adjacent clients (rows) that are in one group in adjacent rounds (columns), counted from 0."""

    node: int
    first_row: int
    last_row: int
    first_column: int
    last_column: int


def blocks(members: Sequence[Sequence[int]]) -> list[TreeBlock]:
    """Return rectangles of adjacent clients that are in one group in the same rounds.

    Args:
        members: Per client, the id of its node in each round, or -1; see
            :class:`~coterie.report.gathered.Gathered`.

    Returns:
        The blocks, sorted by first row and first column.

    Example:
        >>> [tuple(block) for block in blocks([[0, 0, 1], [0, 0, 1], [0, 0, 2], [-1, -1, 2]])]
        [(0, 0, 2, 0, 1), (1, 0, 1, 2, 2), (2, 2, 3, 2, 2)]
    """
    finished: list[TreeBlock] = []
    # (node, first column, last column) -> the row at which the block begins
    unfinished: dict[tuple[int, int, int], int] = {}
    # The empty row after the last one ends all blocks.
    for row, nodes in enumerate([*members, ()]):
        spans = _spans(nodes)
        for span, first_row in unfinished.items():
            if span not in spans:
                node, first_column, last_column = span
                finished.append(TreeBlock(node, first_row, row - 1, first_column, last_column))
        unfinished = {span: unfinished.get(span, row) for span in spans}
    return sorted(finished, key=lambda block: (block.first_row, block.first_column))


def _spans(nodes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (node, first column, last column) of adjacent columns with the same node."""
    spans: list[tuple[int, int, int]] = []
    for column, node in enumerate(nodes):
        if node < 0:
            continue
        if column and nodes[column - 1] == node:
            _, first_column, _ = spans[-1]
            spans[-1] = (node, first_column, column)
        else:
            spans.append((node, column, column))
    return spans


def _groups(run: Gathered) -> Figure:
    """Draw the groups over the rounds: a row per client, a block per group."""
    group_blocks = blocks(run.members)
    looks = Looks(run)
    if not group_blocks:
        raise UserError(
            f"{run.folder} has no groups recorded: no client was in a group in any of its {len(run.lines)} rounds"
        )
    # Rows are as high as small print where there is room.
    num_clients = len(run.clients)
    height = min(max(LINE_HEIGHT * num_clients, MIN_HEIGHT), MAX_HEIGHT)
    row_height = height / num_clients
    drawing, ((axes,),) = panels(1, width=PAGE, height=height + 0.45)
    # 1. The blocks. Column c is round c + 1.
    edges = []
    for block in group_blocks:
        left = block.first_column + 0.5
        right = block.last_column + 1.5
        edges.append([left, right, block.first_row - 0.5, block.last_row + 0.5])
    corners = np.array(edges)[:, [[0, 2], [1, 2], [1, 3], [0, 3]]]  # (blocks, 4, 2)
    polygons = PolyCollection(
        list(corners),
        facecolor=[looks.area(block.node) for block in group_blocks],
        edgecolor="white",
        linewidth=min(0.8, 18 * row_height),
    )
    polygons.set_rasterized(len(group_blocks) > MAX_VECTOR_BLOCKS)
    axes.add_collection(polygons)
    # 2. The axes: the first client is at the top.
    over_rounds(axes, len(run.lines))
    axes.set(xlim=(0.5, len(run.lines) + 0.5), ylim=(num_clients - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    # Few clients have their names at the axis; many have their number.
    if num_clients <= MAX_SINGLE_ITEMS:
        axes.set_yticks(range(num_clients), list(map(str, run.clients)))
        axes.set_ylabel("client")
    else:
        axes.set_yticks(
            [num_clients / 2],
            [f"{num_clients:,} clients"],
            rotation=90,
            va="center",
            fontsize=8,
        )
    axes.tick_params(axis="y", length=0, pad=18 if looks.colour_of_truth else 4)
    # 3. Names, and the true groups.
    _name_ended_groups(axes, run, looks, group_blocks, row_height)
    _draw_true_groups(axes, run, looks, row_height)
    _name_current_groups(axes, run, row_height)
    return drawing


LETTER_WIDTH = 0.08
"""The width of a letter of a name, in inches."""

MIDDLE: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
"""The style of names in the middle of blocks."""


def _name_ended_groups(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    group_blocks: Sequence[TreeBlock],
    row_height: float,
) -> None:
    """Write the names of groups that ended into their blocks, where there is room."""
    # About three quarters of the width of the page are left for the blocks.
    column_width = PAGE / len(run.lines) * 0.75
    for block in group_blocks:
        if block.node in looks.number_of_node:
            continue
        group_name = run.group_name(block.node)
        block_width = (block.last_column - block.first_column + 1) * column_width
        block_height = (block.last_row - block.first_row + 1) * row_height
        if block_height > LINE_HEIGHT and block_width > LETTER_WIDTH * len(group_name):
            middle_round = (block.first_column + block.last_column) / 2 + 1
            middle_row = (block.first_row + block.last_row) / 2
            axes.text(middle_round, middle_row, group_name, **MIDDLE)


def _draw_true_groups(axes: Axes, run: Gathered, looks: Looks, row_height: float) -> None:
    """Draw the true groups as stripes at the left, with a letter where there is room."""
    for true_group, start, end in _stripes(run, run.clients):
        colour = looks.colour_of_truth[true_group]
        axes.axhspan(start, end, -0.03, -0.008, color=colour, linewidth=0, clip_on=False)
        if (end - start) * row_height > LINE_HEIGHT * 0.8:
            letter = chr(ord("A") + true_group) if true_group < 26 else f"T{true_group}"
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
    for block in blocks([[truth.get(client, -1)] for client in clients]):
        yield block.node, block.first_row - 0.5, block.last_row + 0.5


def _name_current_groups(axes: Axes, run: Gathered, row_height: float) -> None:
    """Write name, size and last tested mean score to the right of the current groups that are large enough."""
    rows_of_node: dict[int, list[int]] = {}
    for row, nodes in enumerate(run.members):
        rows_of_node.setdefault(nodes[-1], []).append(row)
    # Clients in no group.
    rows_of_node.pop(-1, None)
    labels = {}
    for node, rows in rows_of_node.items():
        if len(rows) * row_height > LINE_HEIGHT * 0.8:
            score = last_scores(run.nodes[node], run)["score"]
            label = f"{run.group_name(node)}, {count(len(rows), 'client')}"
            if score is not None:
                label = f"{label}, {score:.2f}"
            middle_row = (rows[0] + rows[-1]) / 2
            labels[middle_row] = label
    right_axis = axes.secondary_yaxis("right")
    right_axis.spines[:].set_visible(False)
    right_axis.set_yticks(list(labels), list(labels.values()))
    right_axis.tick_params(length=0)
    num_unnamed = len(rows_of_node) - len(labels)
    if num_unnamed:
        remark = f"{num_unnamed} {'smaller groups' if labels else 'groups, all small'}"
        axes.text(1.01, -0.01, remark, transform=axes.transAxes, va="top", fontsize=7)


def _scores(run: Gathered, metric: str) -> Figure:
    """Draw a metric of the honest members of each group, its mean or pooled, and behind it the clients or a band."""
    client_values = _values_by_round(run, metric)
    group_values = _honest_values(run, client_values)
    if not group_values:
        raise UserError(f"{run.folder} has no {metric} recorded: {why_no_scores(run, metric)}")
    most_tested_first = sorted(group_values, key=lambda node: (-len(group_values[node]), node))
    nodes = sorted(most_tested_first[:MAX_GROUP_CURVES])
    # The legend has two columns: of groups, clients and changes.
    height = 2.1 + LINE_HEIGHT * math.ceil((len(nodes) + 2) / 2)
    drawing, ((axes,),) = panels(1, width=COLUMN, height=height)
    looks = Looks(run)
    # 1. Behind: a thin line for each client, or for many clients a band around each of few groups.
    draws_clients = len(run.clients) <= MAX_SINGLE_ITEMS
    if draws_clients:
        _draw_clients(axes, run, looks, client_values)
    draws_bands = not draws_clients and len(nodes) <= MAX_GROUP_CURVES // 2
    # 2. A line for each group.
    pooled_values = pooled_scores(run).get(metric)
    for node in nodes:
        values_by_round = dict(sorted(group_values[node].items()))
        pooled_by_round = None if pooled_values is None else pooled_values.get(str(node), {})
        if draws_bands:
            _draw_band(axes, looks, node, values_by_round)
        _draw_group(axes, run, looks, node, values_by_round, pooled_by_round)
    # 3. The rounds in which groups changed.
    divisions = [placed_note for placed_note in run.notes if len(placed_note.note["parts"]) > 1]
    rounds_of_change = sorted({placed_note.round for placed_note in divisions})
    if len(rounds_of_change) <= MAX_SINGLE_ITEMS:
        for round in rounds_of_change:
            # The legend names the first line only.
            label = "groups changed" if round == rounds_of_change[0] else None
            axes.axvline(round, color="black", linestyle=":", linewidth=0.7, label=label, zorder=1)
    axes.set_ylabel(metric)
    over_rounds(axes, len(run.lines))
    legend_below(drawing)
    return drawing


def _values_by_round(run: Gathered, metric: str) -> dict[ClientId, dict[int, float]]:
    """Return client -> round -> its value of a metric."""
    tests_of_client = client_tests(run.lines)
    client_values: dict[ClientId, dict[int, float]] = {}
    for client in run.clients:
        value_of_round = {}
        for index, entry in tests_of_client.get(client, {}).items():
            value = entry.get(metric)
            if value is not None:
                # Rounds are numbered from 1.
                value_of_round[index + 1] = value
        client_values[client] = value_of_round
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
        for round, value in client_values[client].items():
            node = nodes[round - 1]
            if node >= 0:
                group_values.setdefault(node, {}).setdefault(round, []).append(value)
    return group_values


def why_no_scores(run: Gathered, metric: str) -> str:
    """Return why a run has no values of a metric to draw."""
    tested_indices: set[int] = set()
    for tests in client_tests(run.lines).values():
        tested_indices.update(index for index, entry in tests.items() if metric in entry)
    if not tested_indices:
        recorded = {
            name for line in run.lines for entry in line["clients"].values() for name in entry
        }
        metrics = sorted(recorded - set(ABOUT))
        return (
            f"none of its {len(run.lines)} rounds was tested for it"
            f"{nearest(metric, metrics)}{known_list(metrics)}"
        )
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
    # The legend names the first line only.
    label: str | None = "single clients"
    for client, nodes in zip(run.clients, run.members, strict=True):
        value_of_round = client_values[client]
        axes.plot(
            list(value_of_round),
            list(value_of_round.values()),
            color=looks.area(nodes[-1]),
            linewidth=0.5,
            alpha=0.6,
            label=label,
        )
        label = None


def _draw_band(
    axes: Axes, looks: Looks, node: int, values_by_round: Mapping[int, list[float]]
) -> None:
    """Draw the middle 80 % of a group's values by round as a band."""
    quantiles = [np.quantile(values, (0.1, 0.9)) for values in values_by_round.values()]
    lower, upper = np.transpose(quantiles)
    colour = looks.line(node)["color"]
    axes.fill_between(list(values_by_round), lower, upper, color=colour, alpha=0.18, linewidth=0)


def _draw_group(
    axes: Axes,
    run: Gathered,
    looks: Looks,
    node: int,
    values_by_round: Mapping[int, list[float]],
    pooled_by_round: Mapping[int, float] | None,
) -> None:
    """Draw the means of a group's values by round, or its pooled values, as a line."""
    heights = []
    for round, values in values_by_round.items():
        if pooled_by_round is None:
            heights.append(float(np.mean(values)))
        else:
            heights.append(pooled_by_round.get(round, math.nan))
    is_current = node in looks.number_of_node
    lifetime = "" if is_current else f", until {run.nodes[node].last}"
    label = f"{run.group_name(node)} ({count(len(run.nodes[node].clients), 'client')}{lifetime})"
    # Current groups are in front of those that ended.
    zorder = 3 if is_current else 2.5
    curve(axes, list(values_by_round), heights, **looks.line(node), label=label, zorder=zorder)


def _traffic(run: Gathered) -> Figure:
    """Draw the cumulative traffic up to each round, in MB, and the seconds of each round."""
    # 1. The values of both charts.
    columns = round_columns(run.lines)
    megabytes = {
        "by clients (up)": np.cumsum(np.array(columns["bytes_up"], dtype=float)) / 1e6,
        "to clients (down)": np.cumsum(np.array(columns["bytes_down"], dtype=float)) / 1e6,
    }
    seconds: dict[str, np.ndarray] = {}
    for column_name, column in columns.items():
        if column_name.startswith("seconds_"):
            # None, where a round has no such activity, becomes NaN and leaves a gap.
            seconds[column_name.removeprefix("seconds_")] = np.array(column, dtype=float)
    charts_by_label = {"MB sent so far": megabytes, "seconds of each round": seconds}
    # 2. One chart of each.
    drawing, all_axes = _grid(2)
    rounds = range(1, len(run.lines) + 1)
    for axes, (label, series) in zip(all_axes, charts_by_label.items(), strict=True):
        for series_number, (column_name, values) in enumerate(series.items()):
            curve(axes, rounds, values, **numbered(series_number), label=column_name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        over_rounds(axes, len(run.lines))
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
    # The layers of all notes of the round; a layer is drawn as one matrix.
    layers = []
    with_matrix = _with_matrix(run, round)
    for line, note in with_matrix:
        clients_of_matrix, matrices = load(run.folder, line, note)
        arranged = arrange(clients_of_matrix, matrices, line, run.clients)
        title = f"round {line['round']}"
        if len(with_matrix) > 1:
            title = f"{title}, {len(arranged.clients)} clients"
        for layer_name, values in arranged.layers.items():
            layer_title = title if len(matrices) == 1 else f"{title}, {layer_name}"
            layers.append(MatrixLayer(layer_title, measure(matrices[layer_name]), arranged, values))
    looks = Looks(run)
    drawing, all_axes = _grid(len(layers), square=True)
    for axes, layer in zip(all_axes, layers, strict=True):
        _matrix(axes, run, looks, layer)
    return drawing


def _with_matrix(run: Gathered, round: int | None) -> list[tuple[Any, Any]]:
    """Return (line, note) of the matrices of a round; None for the last one that has some."""
    notes_with_matrix = []
    for line in run.lines:
        notes_with_matrix += [(line, note) for note in line["notes"] if note.get("similarity")]
    rounds_with_matrix = sorted({line["round"] for line, _ in notes_with_matrix})
    if not rounds_with_matrix:
        method = run.description["methods"][0]["name"]
        raise UserError(
            f"{run.folder} has no similarities recorded: its method, {method}, kept no matrix in any round"
        )
    if round is None:
        round = rounds_with_matrix[-1]
    if round not in rounds_with_matrix:
        raise UserError(
            f"--round {round} has no matrix recorded; there is one of {in_words(rounds_with_matrix)}"
        )
    return [(line, note) for line, note in notes_with_matrix if line["round"] == round]


def scale(matrix: np.ndarray) -> dict[str, Any]:
    """Return the colour scale of a matrix.

    For cosines it is symmetric about zero, for other values it reaches from the least to the
    greatest. Both ignore values that are not finite, such as those of single clients on the
    diagonal.

    Args:
        matrix: The matrix ``(n, n)``.
    """
    finite_values = matrix[np.isfinite(matrix)]
    smallest = float(finite_values.min()) if len(finite_values) else 0.0
    largest = float(finite_values.max()) if len(finite_values) else 1.0
    # Cosines are from -1 to 1, up to rounding. Distances are not negative.
    if -1.001 <= smallest < 0 and largest <= 1.001:
        limit = max(-smallest, largest)
        return {"cmap": "PuOr_r", "vmin": -limit, "vmax": limit}
    # A scale needs two different ends.
    scale_end = largest if largest > smallest else smallest + 1
    return {"cmap": "YlGnBu", "vmin": smallest, "vmax": scale_end}


def _matrix(axes: Axes, run: Gathered, looks: Looks, layer: MatrixLayer) -> None:
    """Draw a matrix, the borders between its groups, and its true groups."""
    values = layer.values.astype(np.float64)
    clients = layer.arranged.clients
    groups = layer.arranged.groups
    # A row stands for a client, or for a block by its first client.
    edges = layer.arranged.edges
    first_clients = range(len(values)) if edges is None else edges[:-1]
    # Values that are not known are grey, and so is the diagonal.
    if edges is None:
        np.fill_diagonal(values, np.nan)
    axes.set_facecolor("#808080")
    image = axes.imshow(values, interpolation="nearest", **scale(values))
    # The colour bar names what the colours measure.
    metric = run.description["methods"][0].get("metric", "")
    label = "cosine similarity"
    if layer.measure == "distance":
        label = f"{metric} distance".strip()
    axes.figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02, label=label)
    # Borders between groups.
    borders = []
    for row in range(1, len(values)):
        first_client = first_clients[row]
        if groups[first_client] != groups[first_client - 1]:
            borders.append(row)
    if len(borders) <= MAX_SINGLE_ITEMS:
        for row in borders:
            axes.axhline(row - 0.5, color="black", linewidth=0.9)
            axes.axvline(row - 0.5, color="black", linewidth=0.9)
    # True groups: stripes at the left and at the top.
    for true_group, start, end in _stripes(run, [clients[i] for i in first_clients]):
        stripe = {"color": looks.colour_of_truth[true_group], "linewidth": 0, "clip_on": False}
        axes.axhspan(start, end, -0.045, -0.015, **stripe)
        axes.axvspan(start, end, 1.015, 1.045, **stripe)
    axes.set(xticks=[], yticks=[])
    axes.set_title(layer.title, pad=14 if looks.colour_of_truth else None)
    blocks_note = "" if edges is None else ", means over blocks"
    axes.set_ylabel(f"{len(clients):,} clients{blocks_note}", labelpad=12)
    axes.label_outer()
    axes.spines[:].set_visible(True)


def _criteria(run: Gathered) -> Figure:
    """Draw what the method compared with bounds, as charts of the page; if it has no bounds, its other numbers."""
    method = run.description["methods"][0]
    all_charts = charts(method, run.folder, run.lines, run.notes, run.facts)
    if not all_charts:
        raise UserError(
            f"{run.folder} has no criteria recorded: the notes of its method, {method['name']}, have no numbers"
        )
    decisive = [chart for chart in all_charts if "outcomes" in chart or chart.get("links")]
    drawn_charts = (decisive or all_charts)[:MAX_CRITERIA]
    drawing, all_axes = _wide_grid(len(drawn_charts))
    looks = Looks(run)
    for axes, chart in zip(all_axes, drawn_charts, strict=True):
        # Bounds are behind the values that are compared with them.
        for level in chart["levels"]:
            _level(axes, level["name"], level["value"])
        # The title says what the axis is, unless the chart names it otherwise.
        label = chart["y"]
        if label.replace("_", " ").lower() == chart["title"].lower():
            label = ""
        title_width = TITLE_LETTERS if len(drawn_charts) > 1 else TITLE_LETTERS * 9 // 10
        axes.set_title(textwrap.fill(chart["title"], title_width), loc="left", pad=8)
        axes.set_ylabel(label)
        draw = _tree if chart.get("links") else _chart
        draw(axes, run, looks, chart)
    _legend_of_groups(drawing, run, looks, drawn_charts)
    return drawing


P_TICKS = {1e-16: "< 1e-16", 1e-12: "1e-12", 1e-8: "1e-8", 1e-4: "1e-4", 1.0: "1"}
"""The ticks of p-values; smaller ones are drawn at the first of them."""

BOUND: dict[str, Any] = {"color": GREY, "marker": "_", "markersize": 8}
"""The style of a bound that changes."""

MAX_CRITERIA = 8
"""The greatest number of charts of criteria in a figure."""

TITLE_LETTERS = 52
"""The greatest number of letters in a line of a title above one of two columns."""


def _wide_grid(num_axes: int) -> tuple[Figure, np.ndarray]:
    """Create a figure with this number of axes, two side by side, for charts with long names."""
    if num_axes == 1:
        return _grid(1)
    num_rows = math.ceil(num_axes / 2)
    drawing, all_axes = panels(2, num_rows, width=PAGE, height=2.0)
    for unused_axes in all_axes.flat[num_axes:]:
        unused_axes.remove()
    return drawing, all_axes.flat[:num_axes]


def _legend_of_groups(
    drawing: Figure, run: Gathered, looks: Looks, drawn_charts: Sequence[Chart]
) -> None:
    """Put one legend of the groups below all charts, of those with the most recent rounds."""
    # The most recent groups have the greatest ids.
    drawn_nodes: set[int] = set()
    for chart in drawn_charts:
        nodes_of_chart = {series["node"] for series in chart["series"]}
        drawn_nodes |= nodes_of_chart - {None}
    named_nodes = sorted(drawn_nodes)[-MAX_GROUPS_IN_LEGEND:]
    if len(named_nodes) < 2:
        return
    handles = []
    for node in named_nodes:
        look = {**looks.line(node), "linestyle": ""}
        handles.append(Line2D([], [], **look, label=run.group_name(node)))
    drawing.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4 if len(drawn_charts) == 1 else MAX_GROUPS_IN_LEGEND,
        handletextpad=0.2,
    )


def _level(axes: Axes, bound_name: str, bound: float) -> None:
    """Draw a threshold, with its name at the right."""
    axes.axhline(bound, color=GREY, linestyle=(0, (5, 2)), linewidth=0.8, zorder=1)
    axes.annotate(
        f"{bound_name} {bound:g}",
        (1, bound),
        xycoords=axes.get_yaxis_transform(),
        annotation_clip=True,
        ha="right",
        va="bottom",
        fontsize=7,
        color="#444444",
    )


def _chart(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw the series of a chart; a legend explains dashes, and colours if these are not of groups."""
    # If no series is about a group, each series has its own colour; else colours are of groups.
    is_of_groups = any(series["node"] is not None for series in chart["series"])
    # What the legend explains -> its look.
    legend: dict[str, dict[str, Any]] = {}
    for series_number, series in enumerate(chart["series"]):
        node = series["node"]
        dash = {"linestyle": DASHES[series["dash"] % len(DASHES)]}
        if node is not None:
            look = looks.line(node)
        elif is_of_groups or len(chart["series"]) == 1:
            look = SEVERAL
        else:
            look = numbered(series_number)
        # The second number of a criterion is its bound.
        if "outcomes" in chart and series["dash"] == 1:
            look = BOUND
        # Where colours are of groups, the legend explains the dashes only.
        legend_look = {"color": "black", **dash} if is_of_groups else {**look, **dash}
        if look is BOUND:
            legend_look = {**BOUND, **dash}
        # The title has the name of the value already.
        is_value = series["name"].replace("_", " ").lower() == chart["title"].lower()
        legend.setdefault("value" if is_value else series["name"], legend_look)
        if look is SEVERAL and is_of_groups:
            legend["several groups together"] = {**SEVERAL, "linestyle": ""}
        curve(axes, *zip(*series["points"], strict=True), **{**look, **dash})
    over_rounds(axes, len(run.lines))
    if chart["log"]:
        axes.set_yscale("log")
        if is_p_value(chart["title"]):
            axes.set_yticks(list(P_TICKS), list(P_TICKS.values()))
            axes.set_ylim(MIN_ON_LOG_AXIS / 3, 3)
    if len(legend) > 1:
        handles = [
            Line2D([], [], **look, label=legend_name) for legend_name, look in legend.items()
        ]
        axes.legend(handles=handles, loc="best", handlelength=2.6, labelspacing=0.3)


def _tree(axes: Axes, run: Gathered, looks: Looks, chart: Chart) -> None:
    """Draw a dendrogram whose leaves have the colours and markers of the clients' current groups."""
    links = chart["links"]
    leaves = chart["leaves"]
    width = 0.7 if len(links) < 100 else 0.4
    axes.add_collection(LineCollection(links, color="black", linewidth=width))
    node_of_client = {
        client: nodes[-1] for client, nodes in zip(run.clients, run.members, strict=True)
    }
    # SciPy puts leaf i at 10 i + 5.
    positions_of_node: dict[int, list[int]] = {}
    for i, client in enumerate(leaves):
        positions_of_node.setdefault(node_of_client[client], []).append(10 * i + 5)
    for node, positions in positions_of_node.items():
        look = looks.line(node) if node >= 0 else {"color": GREY, "marker": "."}
        axes.plot(
            positions,
            [0] * len(positions),
            **{**look, "linestyle": "", "clip_on": False},
            markersize=3.5 if len(leaves) <= 100 else 1.5,
            zorder=4,
        )
    axes.set(xlabel="client", xlim=(0, 10 * len(leaves)))
    # A link is four points; its second and third are at the height of the merge.
    tree_height = max(link[1][1] for link in links)
    # A threshold far above would flatten the tree.
    levels = [level["value"] for level in chart["levels"]]
    visible_levels = [level for level in levels if level < 2 * tree_height]
    axes.set_ylim(0, 1.05 * max([tree_height, *visible_levels]))
    # Names of few clients fit at the axis.
    named_leaves = leaves if len(leaves) <= MAX_SINGLE_ITEMS // 2 else ()
    leaf_positions = range(5, 10 * len(named_leaves), 10)
    axes.set_xticks(leaf_positions, list(map(str, named_leaves)), fontsize=6, rotation=90)
