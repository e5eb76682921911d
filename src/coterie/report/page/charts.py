"""Charts of the numbers that a method compared before it acted, from its notes alone.

These are its criteria, with their bounds, the dendrograms of a method with a linkage, and the
further numbers of its notes.

A chart has title, about (a sentence), y (the axis label), log (whether that axis is logarithmic),
series, levels (bounds to compare with), and ``links`` (lines of a dendrogram) in place of series. A
series has name, dash (0 is solid), node (its group, or None) and points ``[round, value]``. The
chart of a decision, which has a bound, also has ``outcomes``: its comparisons of the last rounds, at
most :data:`MAX_OUTCOMES`, each in words (``text``) and whether it held for "all", "some" or "none"
of the groups; and ``rounds``, the number of rounds in which it was made.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy

from coterie.clustering import dendrogram
from coterie.records.codec import DamagedError
from coterie.records.round_line import load_matrices
from coterie.records.shown import ClientId, Line, truth_at
from coterie.report.gathered import PlacedNotes
from coterie.report.summary import agreement_at
from coterie.report.words import is_p_value, readable, readable_number, short

Chart = dict[str, Any]


class PlacedNumbers(NamedTuple):
    """Numbers of a note, with its place in a run.

    Attributes:
        round: The round of the note.
        node: The group that it is about, or -1 for several groups together.
        numbers: The numbers by their keys.
    """

    round: int
    node: int
    numbers: Mapping[str, Any]


MAX_GROUPS_IN_CHART = 12
"""The greatest number of groups in a chart; those with the most points are shown."""

MAX_DENDROGRAM_CLIENTS = 400
"""The greatest number of clients in a dendrogram."""

MAX_OUTCOMES = 2
"""The greatest number of comparisons of a criterion that are in words, the last ones."""

MIN_ON_LOG_AXIS = 1e-16
"""Smaller numbers are drawn at this value on a logarithmic axis."""

MIN_LOG_RATIO = 1e4
"""The axis of a criterion is logarithmic if its greatest number is more than this times its least
positive one."""

MAX_FURTHER_CHARTS = 6
"""The greatest number of charts of further numbers, and of clients' values."""


def charts(
    method: Mapping[str, Any],
    folder: Path,
    lines: Sequence[Line],
    notes: PlacedNotes,
    world: Mapping[str, Any] | None = None,
) -> list[Chart]:
    """Return the charts of a run; charts without data are left out.

    Args:
        method: The method's table in ``run.toml``.
        folder: The run directory.
        lines: The completed rounds.
        notes: The notes of the run.
        world: The world's table in ``run.toml``; None leaves out the agreement with the true groups
            of a drift.
    """
    # Notes about a single client have no numbers of groups.
    notes_of_groups = [placed_note for placed_note in notes if len(placed_note.note["clients"]) > 1]
    all_charts = [
        *_agreement_charts(world or {}, lines),
        *_criterion_charts(notes_of_groups),
        *_dendrogram_charts(method, folder, lines, notes),
        *_number_charts(notes_of_groups),
        *_client_value_charts(notes_of_groups),
    ]
    return [chart for chart in all_charts if _has_data(chart)]


def _has_data(chart: Chart) -> bool:
    return bool(chart.get("links")) or any(series["points"] for series in chart["series"])


def _agreement_charts(world: Mapping[str, Any], lines: Sequence[Line]) -> Iterable[Chart]:
    """Draw the agreement with the true groups of each round, and their number, where data drift."""
    if "drift" not in world:
        return
    agreement_points = []
    group_points = []
    for line in lines:
        rand_index = agreement_at(world, line)
        if rand_index is not None:
            agreement_points.append([line["round"], five_digits(rand_index)])
        num_true_groups = len(truth_at(world, line["round"]) or ())
        group_points.append([line["round"], float(num_true_groups)])
    yield _chart(
        "adjusted Rand index",
        "Agreement with the true groups of each round: 1 if they are the same.",
        [_single_series("adjusted Rand index", agreement_points)],
    )
    yield _chart(
        "true groups",
        "Concepts that clients have in each round, as the data drift.",
        [_single_series("true groups", group_points)],
    )


def _criterion_charts(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw a chart for each criterion of these notes."""
    # Name of a criterion -> the criterion in each note that has it.
    criteria: dict[str, list[PlacedNumbers]] = {}
    for placed_note in notes:
        for criterion in placed_note.note["criteria"]:
            placed_criterion = PlacedNumbers(placed_note.round, placed_note.node, criterion)
            criteria.setdefault(criterion["name"], []).append(placed_criterion)
    for criterion_name, placed_criteria in criteria.items():
        yield _criterion_chart(criterion_name, placed_criteria)


def _criterion_chart(criterion_name: str, placed_criteria: Sequence[PlacedNumbers]) -> Chart:
    """Draw a criterion's value for every group, and its bound as a level, or as a curve if it varies."""
    criteria = [placed_criterion.numbers for placed_criterion in placed_criteria]
    newest = criteria[-1]
    bound_name = newest["setting"] or "bound"
    # A level is one line for all rounds; only a bound that never changes can be one.
    bounds = {criterion["bound"] for criterion in criteria}
    has_fixed_bound = len(bounds) == 1 and None not in bounds
    if has_fixed_bound:
        series_names = {"value": criterion_name}
        levels = [{"name": bound_name, "value": newest["bound"]}]
        bound_in_words = f"{newest['setting']} {short(newest['bound'])}".strip()
    else:
        series_names = {"value": criterion_name, "bound": bound_name}
        levels = []
        bound_in_words = newest["setting"] or "a bound that changes"
    is_logarithmic = _needs_log_axis(criteria)
    chart = _chart(
        criterion_name,
        _requirement(newest, bound_in_words),
        _group_series(
            placed_criteria, series_names, minimum=MIN_ON_LOG_AXIS if is_logarithmic else None
        ),
        levels,
        is_logarithmic,
    )
    rounds = sorted({placed_criterion.round for placed_criterion in placed_criteria})
    outcomes = [_outcome(round, placed_criteria) for round in rounds[-MAX_OUTCOMES:]]
    return {**chart, "outcomes": outcomes, "rounds": len(rounds)}


SIDES: Mapping[str, str] = {"<": "below", "<=": "at most", ">": "above", ">=": "at least"}
"""Signs of criteria in words."""


def _requirement(criterion: Mapping[str, Any], bound_in_words: str) -> str:
    """Return what a criterion needs and what it then means, as sentences."""
    needed = f"Needed: {SIDES[criterion['sign']]} {bound_in_words}."
    # The number of clients differs between groups.
    meaning = re.sub(r"^\d+ clients", "clients", criterion["met"]).removeprefix("which is ")
    return f"{needed} Then: {meaning}." if meaning else needed


def _outcome(round: int, placed_criteria: Sequence[PlacedNumbers]) -> dict[str, str]:
    """Return the comparisons of a criterion in a round: in words, and for which groups it held."""
    criteria = [placed.numbers for placed in placed_criteria if placed.round == round]
    num_held = sum(bool(criterion["held"]) for criterion in criteria)
    held = "some"
    if num_held in (0, len(criteria)):
        held = "all" if num_held else "none"
    # The values of all groups, as one or as a range.
    quantity = criteria[0]["name"]
    values = sorted(criterion["value"] for criterion in criteria if criterion["value"] is not None)
    shown_values = dict.fromkeys(
        readable_number(quantity, value) for value in values[:1] + values[-1:]
    )
    in_words = " to ".join(shown_values) or "not known"
    bound = criteria[0]["bound"]
    side = f"{SIDES[criteria[0]['sign']]} {'the bound' if bound is None else short(bound)}"
    if len(criteria) == 1:
        result = side if num_held else f"not {side}"
    else:
        result = f"{side} in {num_held or 'none'} of {len(criteria)} groups"
    return {"text": f"Round {round}: {in_words}, {result}.", "held": held}


def _needs_log_axis(criteria: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the values and bounds of a criterion span so many orders of magnitude, and none is negative."""
    numbers = []
    for criterion in criteria:
        for number_key in ("value", "bound"):
            if criterion[number_key] is not None:
                numbers.append(criterion[number_key])
    positive = [number for number in numbers if number > 0]
    if not positive or min(numbers) < 0:
        return False
    return bool(max(positive) > MIN_LOG_RATIO * min(positive))


def _dendrogram_charts(
    method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes
) -> Iterable[Chart]:
    """Draw the clusterings of a method with a linkage: its distances, or 1 minus its cosines."""
    if "linkage" not in method:
        return
    for placed_note in notes:
        if not placed_note.note["similarity"]:
            continue
        # Rounds are numbered from 1.
        line = lines[placed_note.round - 1]
        try:
            clients, matrices = load(folder, line, placed_note.note)
        except DamagedError:
            # The page says how many files cannot be read.
            continue
        # Some methods cluster by another matrix than the one of all layers.
        matrix = matrices.get("compared", matrices.get("all"))
        if matrix is None or not 2 <= len(clients) <= MAX_DENDROGRAM_CLIENTS:
            continue
        # Clients that were not compared have no distance.
        if np.isfinite(matrix).all():
            yield _dendrogram_chart(method, placed_note.round, clients, matrix)


def _dendrogram_chart(
    method: Mapping[str, Any], round: int, clients: Sequence[ClientId], matrix: np.ndarray
) -> Chart:
    compared = "distances"
    distances = matrix
    threshold = method.get("threshold")
    if measure(matrix) == "cosine":
        compared = "1 minus the cosine"
        distances = 1 - matrix
        threshold = 1 - threshold if isinstance(threshold, float) else None
    # Linkage needs a symmetric matrix with zeros on the diagonal.
    symmetric = (distances + distances.T) / 2 * (1 - np.eye(len(distances)))
    merges = dendrogram(symmetric, method["linkage"])
    drawn_tree = scipy.cluster.hierarchy.dendrogram(merges, no_plot=True)
    chart = _chart(
        f"Dendrogram of round {round}",
        f"Clients merged by {method['linkage']} linkage of {compared}. Merges below the threshold make the groups.",
        (),
        [{"name": "threshold", "value": threshold}] if isinstance(threshold, float) else [],
        axis_label="distance",
    )
    # Each merge is a bracket of four points (x, y).
    brackets = np.stack([drawn_tree["icoord"], drawn_tree["dcoord"]], axis=-1)  # (n - 1, 4, 2)
    links = []
    for bracket in brackets:
        links.append([[five_digits(x), five_digits(y)] for x, y in bracket])
    return {**chart, "links": links, "leaves": [clients[leaf] for leaf in drawn_tree["leaves"]]}


def five_digits(value: float) -> float:
    """Round to five significant digits, the precision of a page."""
    return float(f"{value:.5g}")


NUMBER_NAMES: Mapping[str, str] = {
    "own": "clients that use their personal models",
    "before": "clients that used their personal models before",
    "moved": "clients that moved",
    "z": "test statistic z",
    "spread": "spread of the clients",
    "dimension": "effective dimension of the updates",
}
"""Key of a number of notes -> what it is, where the key alone does not say it."""


def _number_charts(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw a chart for each further number that notes have in at least two rounds."""
    rounds_with_number: dict[str, set[int]] = {}
    for placed_note in notes:
        for quantity, number in placed_note.note["numbers"].items():
            if number is not None:
                rounds_with_number.setdefault(quantity, set()).add(placed_note.round)
    several_times = [quantity for quantity, rounds in rounds_with_number.items() if len(rounds) > 1]
    placed_numbers = []
    for placed_note in notes:
        numbers = placed_note.note["numbers"]
        placed_numbers.append(PlacedNumbers(placed_note.round, placed_note.node, numbers))
    for quantity in several_times[:MAX_FURTHER_CHARTS]:
        series = _group_series(placed_numbers, {quantity: quantity})
        title = NUMBER_NAMES.get(quantity, quantity)
        yield _chart(title, "A number that the method recorded; nothing was decided by it.", series)


def _client_value_charts(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw the least, the mean and the greatest of the clients' values in notes of at least two rounds."""
    values_of_quantity: dict[str, dict[int, list[float]]] = {}
    for placed_note in notes:
        for quantity, value_of_client in placed_note.note["values"].items():
            # Which model a client took, and its loss with one of several models, are no quantities
            # whose mean over clients says something.
            if quantity == "model" or quantity.rpartition(" ")[2].isdecimal():
                continue
            values = [value for value in value_of_client.values() if value is not None]
            if values:
                by_round = values_of_quantity.setdefault(quantity, {})
                by_round.setdefault(placed_note.round, []).extend(values)
    several_times = [
        quantity for quantity, by_round in values_of_quantity.items() if len(by_round) > 1
    ]
    for quantity in several_times[:MAX_FURTHER_CHARTS]:
        yield _chart(
            f"{quantity} of the clients",
            "Over the clients that answered.",
            _extremes_and_mean(values_of_quantity[quantity]),
            axis_label=quantity,
        )


def _extremes_and_mean(values_by_round: Mapping[int, Sequence[float]]) -> list[dict[str, Any]]:
    """Return three series: of each round's least, mean and greatest value."""
    statistics: Mapping[str, Callable[..., Any]] = {
        "least": np.min,
        "mean": np.mean,
        "greatest": np.max,
    }
    all_series = []
    for dash, (statistic_name, statistic) in enumerate(statistics.items()):
        points = []
        for round, values in values_by_round.items():
            points.append([round, five_digits(statistic(values))])
        all_series.append(_single_series(statistic_name, points, dash))
    return all_series


def _chart(
    quantity: str,
    explanation: str,
    series: Sequence[Any],
    levels: Sequence[Any] = (),
    is_logarithmic: bool = False,
    axis_label: str | None = None,
) -> Chart:
    """Return a chart, as the module describes it.

    Args:
        quantity: What it shows, in lower case: its title.
        explanation: A sentence about it.
        series: Its series.
        levels: Its levels.
        is_logarithmic: Whether its axis is logarithmic.
        axis_label: The label of its axis; None for ``quantity``.
    """
    return {
        "title": _title(quantity),
        "about": explanation,
        "y": quantity if axis_label is None else axis_label,
        "log": is_logarithmic,
        "series": list(series),
        "levels": list(levels),
    }


def _title(quantity: str) -> str:
    """Return a quantity as a title; p remains small."""
    words = quantity.replace("_", " ")
    return words if is_p_value(words) else f"{words[:1].upper()}{words[1:]}"


def _single_series(series_name: str, points: Sequence[Any], dash: int = 0) -> dict[str, Any]:
    """Return a series that is not about one group."""
    return {"name": series_name, "dash": dash, "node": None, "points": points}


def _group_series(
    placed_numbers: Sequence[PlacedNumbers],
    series_names: Mapping[str, str],
    minimum: float | None = None,
) -> list[dict[str, Any]]:
    """Return a series per group and number; if there are too many groups, those with the most rounds.

    Args:
        placed_numbers: The numbers, with their rounds and groups.
        series_names: Key of a number -> name of its series.
        minimum: Smaller numbers are replaced by this one; None to keep them.
    """
    # If most numbers are about several groups together, all are drawn as one series.
    num_about_several = sum(placed.node < 0 for placed in placed_numbers)
    joins_groups = 2 * num_about_several > len(placed_numbers)
    points_of_series: dict[tuple[int, str], list[list[float]]] = {}
    for round, node, numbers in placed_numbers:
        drawn_node = -1 if joins_groups else node
        for number_key in series_names:
            number = numbers.get(number_key)
            if number is None:
                continue
            if minimum is not None:
                number = max(number, minimum)
            points_of_series.setdefault((drawn_node, number_key), []).append(
                [round, five_digits(number)]
            )
    # A group counts by its longest series.
    num_points: dict[int, int] = {}
    for (node, _), points in points_of_series.items():
        num_points[node] = max(num_points.get(node, 0), len(points))
    longest_first = sorted(num_points, key=lambda node: (-num_points[node], node))
    drawn_nodes = set(longest_first[:MAX_GROUPS_IN_CHART])
    dash_of_key = {number_key: dash for dash, number_key in enumerate(series_names)}
    all_series = []
    for (node, number_key), points in points_of_series.items():
        if node in drawn_nodes:
            all_series.append(
                {
                    "name": series_names[number_key],
                    "dash": dash_of_key[number_key],
                    "node": node if node >= 0 else None,
                    "points": points,
                }
            )
    return all_series


# ----------------------------------------------------------------------------------------------------
# The matrices on which decisions were based, as a page shows them: ordered by group, and averaged
# if large.


MAX_MATRICES = 40
"""The greatest number of matrices on a page; of more, this many are chosen evenly, with the first
and the last."""

MAX_MATRIX_ROWS = 200
"""The greatest number of rows of a matrix on a page; a larger matrix is replaced by means over
blocks."""


def squares(
    folder: Path, lines: Sequence[Line], page_order: Sequence[ClientId]
) -> tuple[list[dict[str, Any]], int, int]:
    """Return the matrices of a run, oldest first.

    Args:
        folder: The run directory.
        lines: The completed rounds.
        page_order: The clients in the page's order; rows are sorted by group, then in this order.

    Returns:
        The matrices, their total number in the run, and the number of chosen ones that cannot be
        read. Each matrix has round, kind and text (of the note), what (distance or cosine), clients
        (of the rows), groups (number of each row's group after the round), edges (rows at which a
        block of several clients begins; None if every row is one client), and layers: name ->
        packed matrix.
    """
    # The matrices of a run may be too many for a page.
    with_matrices: list[tuple[Line, Mapping[str, Any]]] = []
    for line in lines:
        with_matrices += [(line, note) for note in line["notes"] if note["similarity"]]
    chosen = with_matrices
    if len(with_matrices) > MAX_MATRICES:
        chosen_indices = np.linspace(0, len(with_matrices) - 1, MAX_MATRICES).round().astype(int)
        chosen = [with_matrices[i] for i in chosen_indices]
    shown = []
    for line, note in chosen:
        # A lost file does not prevent showing the others.
        with suppress(DamagedError):
            shown.append(square(folder, line, note, page_order))
    return shown, len(with_matrices), len(chosen) - len(shown)


def square(
    folder: Path, line: Line, note: Mapping[str, Any], page_order: Sequence[ClientId]
) -> dict[str, Any]:
    """Return the matrices of one note, as one entry of :func:`squares`."""
    matrix_clients, matrices = load(folder, line, note)
    arranged = arrange(matrix_clients, matrices, line, page_order)
    measures = {measure(matrix) for matrix in matrices.values()}
    return {
        "round": line["round"],
        "kind": note["kind"],
        "text": readable(note["text"]),
        "what": "distance" if measures == {"distance"} else "cosine",
        "clients": arranged.clients,
        "groups": arranged.groups,
        "edges": arranged.edges,
        "layers": {name: real(matrix, bits=8) for name, matrix in arranged.layers.items()},
    }


@dataclass(frozen=True)
class ArrangedMatrices:
    """The matrices of a note, ordered by group.

    Attributes:
        clients: The n clients of the rows before these were averaged.
        groups: The number of each of these clients' group after the round, or -1.
        edges: The first client of each block, and n; None if every row is one client.
        layers: Name -> matrix ``(n, n)``, or ``(blocks, blocks)``.
    """

    clients: Sequence[ClientId]
    groups: Sequence[int]
    edges: Sequence[int] | None
    layers: Mapping[str, np.ndarray]


def arrange(
    clients: Sequence[ClientId],
    matrices: Mapping[str, np.ndarray],
    line: Line,
    page_order: Sequence[ClientId],
) -> ArrangedMatrices:
    """Order the matrices that :func:`load` has read by group, and average large ones over blocks.

    Args:
        clients: The n client ids of the rows.
        matrices: Name -> matrix ``(n, n)``.
        line: The record of the round.
        page_order: The clients in the page's order.
    """
    group_of_client: dict[ClientId, int] = {}
    for number, members in enumerate(line["groups"]):
        group_of_client.update(dict.fromkeys(members, number))
    position_of_client = {client: position for position, client in enumerate(page_order)}

    def group_then_position(row: int) -> tuple[int, int]:
        client = clients[row]
        return group_of_client.get(client, -1), position_of_client.get(client, -1)

    # Rows of one group are adjacent, in the order of the page.
    row_order = sorted(range(len(clients)), key=group_then_position)
    block_edges = None
    if len(clients) > MAX_MATRIX_ROWS:
        blocks = range(MAX_MATRIX_ROWS + 1)
        block_edges = [len(clients) * block // MAX_MATRIX_ROWS for block in blocks]
    layers = {}
    for layer_name, matrix in matrices.items():
        ordered_matrix = matrix[np.ix_(row_order, row_order)]
        layers[layer_name] = (
            ordered_matrix if block_edges is None else block_means(ordered_matrix, block_edges)
        )
    ordered_clients = [clients[row] for row in row_order]
    groups = [group_of_client.get(client, -1) for client in ordered_clients]
    return ArrangedMatrices(ordered_clients, groups, block_edges, layers)


def measure(matrix: np.ndarray) -> str:
    """Return what a note's matrix ``(n, n)`` holds, distance or cosine: the distance of a client from itself is 0."""
    return "cosine" if np.diag(matrix).any() else "distance"


def load(
    folder: Path, line: Line, note: Mapping[str, Any]
) -> tuple[list[ClientId], dict[str, np.ndarray]]:
    """Read the matrices of a note.

    Args:
        folder: The run directory.
        line: The record of the note's round.
        note: The note.

    Returns:
        The clients of the rows, and the matrices ``(n, n)`` by name; ``all`` is the first.
    """
    clients, matrices = load_matrices(folder, line, note)
    layer_names = sorted(matrices, key=lambda name: (name != "all", name))
    return clients, {name: matrices[name].astype(np.float64) for name in layer_names}


def block_means(matrix: np.ndarray, block_edges: Sequence[int]) -> np.ndarray:
    """Return means over blocks of rows and columns; the similarity of a client to itself is left out.

    Args:
        matrix: The matrix ``(n, n)``.
        block_edges: The row at which each block begins, and n.
    """
    values = matrix.astype(np.float64)
    is_known = np.isfinite(values)
    np.fill_diagonal(is_known, False)
    # A block without any known value stays NaN.
    block_sums = _block_sums(np.where(is_known, values, 0.0), block_edges)
    block_counts = _block_sums(is_known.astype(np.float64), block_edges)
    return np.divide(
        block_sums, block_counts, out=np.full_like(block_sums, np.nan), where=block_counts > 0
    )


def _block_sums(matrix: np.ndarray, block_edges: Sequence[int]) -> np.ndarray:
    starts = list(block_edges[:-1])
    sums_of_rows = np.add.reduceat(matrix, starts, axis=0)
    return np.add.reduceat(sums_of_rows, starts, axis=1)


# ----------------------------------------------------------------------------------------------------
# Compact arrays of numbers in a JSON document: base64 of integers, little-endian.


Packed = dict[str, Any]


def whole(values: Any) -> Packed:
    """Pack integers from -1 on, exactly, as ``{"type", "shape", "data"}``."""
    integers = np.asarray(values, dtype=np.int32)
    return {"type": "i32", "shape": list(integers.shape), "data": _base64(integers.astype("<i4"))}


def real(values: Any, bits: int = 16) -> Packed:
    """Pack numbers in 2^bits - 1 codes; numbers that are not finite, and None, become missing.

    Args:
        values: The numbers.
        bits: 8 or 16.

    Returns:
        ``{"type", "shape", "low", "high", "data"}``. A code ``c`` stands for ``low + (high - low) *
        c / (2^bits - 2)``. The greatest code stands for a missing number.
    """
    numbers = np.asarray(values, dtype=np.float64)
    # The codes reach from the least to the greatest known number.
    is_known = np.isfinite(numbers)
    lowest = float(numbers[is_known].min()) if is_known.any() else 0.0
    highest = float(numbers[is_known].max()) if is_known.any() else 0.0
    missing_code = 2**bits - 1
    fractions = (np.where(is_known, numbers, lowest) - lowest) / (
        highest - lowest if highest > lowest else 1.0
    )
    codes = np.where(is_known, np.rint(fractions * (missing_code - 1)), missing_code)
    # The type of the codes, least significant byte first.
    integer_type = {8: "<u1", 16: "<u2"}[bits]
    return {
        "type": f"u{bits}",
        "shape": list(numbers.shape),
        "low": lowest,
        "high": highest,
        "data": _base64(codes.astype(integer_type)),
    }


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
