"""Charts of the numbers that a method compared before it acted, from its notes alone.

These are its criteria, with their bounds, the dendrograms of a method with a linkage, and the
further numbers of its notes.

A chart has title, about (a sentence), y (the axis label), log (whether that axis is logarithmic),
series, levels (bounds to compare with), and ``links`` (lines of a dendrogram) in place of series. A
series has name, dash (0 is solid), node (its group, or None) and points ``[round, value]``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from coterie.clustering import dendrogram
from coterie.records.codec import DamagedError
from coterie.records.record import Line, load_matrices
from coterie.records.shown import ClientId, truth_at
from coterie.report.gathered import PlacedNotes
from coterie.report.summary import agreement_at

Chart = dict[str, Any]
NODES = 12
"""The greatest number of groups in a chart; those with the most points are shown."""

LEAVES = 400
"""The greatest number of clients in a dendrogram."""

FLOOR = 1e-30
"""Smaller numbers are drawn at this value on a logarithmic axis."""

WIDE = 1e4
"""The axis of a criterion is logarithmic if its greatest number is more than this times its least
positive one."""

MANY = 6
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
    of_groups = [one for one in notes if len(one[2]["clients"]) > 1]
    made = [
        *_index(world or {}, lines),
        *_criteria(of_groups),
        *_dendrograms(method, folder, lines, notes),
        *_numbers(of_groups),
        *_values(of_groups),
    ]
    return [
        chart
        for chart in made
        if chart.get("links") or any(one["points"] for one in chart["series"])
    ]


def _index(world: Mapping[str, Any], lines: Sequence[Line]) -> Iterable[Chart]:
    """Draw the agreement with the true groups of each round, and their number, where data drift."""
    if "drift" not in world:
        return
    numbers = {
        "adjusted Rand index": (agreement_at(world, line) for line in lines),
        "true groups": (float(len(truth_at(world, line["round"]) or ())) for line in lines),
    }
    titles = {
        "adjusted Rand index": "Agreement with the true groups of each round: 1 if they are the same."
    }
    for name, values in numbers.items():
        points = [
            [line["round"], round_(value)]
            for line, value in zip(lines, values, strict=True)
            if value is not None
        ]
        series = [{"name": name, "dash": 0, "node": None, "points": points}]
        yield _chart(
            _title(name),
            titles.get(name, "Concepts that clients have in each round, as the data drift."),
            name,
            series,
        )


def _criteria(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw a chart for each criterion: its value for every group, and the bound as a level, or as a curve if it varies."""
    found: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = {}
    for round, node, note in notes:
        for criterion in note["criteria"]:
            found.setdefault(criterion["name"], []).append((round, node, criterion))
    for name, entries in found.items():
        newest = entries[-1][2]
        bounds, bound = {one["bound"] for _, _, one in entries}, newest["setting"] or "bound"
        numbers = [
            one[key] for _, _, one in entries for key in ("value", "bound") if one[key] is not None
        ]
        small = [number for number in numbers if number > 0]
        log = bool(small) and min(numbers) >= 0 and max(small) > WIDE * min(small)
        fixed = len(bounds) == 1 and None not in bounds
        names = {"value": name} if fixed else {"value": name, "bound": bound}
        than = newest["setting"] or (format(newest["bound"], ".3g") if fixed else "a bound")
        meaning = f": {newest['met']}" if newest["met"] else ""
        yield _chart(
            _title(name),
            f"Required for the decision: {name} {newest['sign']} {than}{meaning}.",
            name,
            _series(entries, names, (lambda v: max(v, FLOOR)) if log else float),
            [{"name": bound, "value": newest["bound"]}] if fixed else [],
            log,
        )


def _dendrograms(
    method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes
) -> Iterable[Chart]:
    """Draw the clusterings of a method with a linkage: its distances, or 1 minus its cosines."""
    if "linkage" not in method:
        return
    for round, _, note in notes:
        with suppress(DamagedError):  # a lost file
            clients, matrices = (
                load(folder, lines[round - 1], note) if note["similarity"] else ([], {})
            )
            compared = matrices.get("compared", matrices.get("all"))
            if compared is not None and 2 <= len(clients) <= LEAVES and np.isfinite(compared).all():
                yield _tree(method, round, clients, compared)


def _tree(
    method: Mapping[str, Any], round: int, clients: Sequence[ClientId], matrix: np.ndarray
) -> Chart:
    what, threshold, apart = "distances", method.get("threshold"), matrix
    if measure(matrix) == "cosine":
        what, apart = "1 minus the cosine", 1 - matrix
        threshold = 1 - threshold if isinstance(threshold, float) else None
    merges = dendrogram((apart + apart.T) / 2 * (1 - np.eye(len(apart))), method["linkage"])
    drawn = scipy.cluster.hierarchy.dendrogram(merges, no_plot=True)
    chart = _chart(
        f"Dendrogram of round {round}",
        f"Clients merged by {method['linkage']} linkage of {what}. Merges below the threshold make the groups.",
        "distance",
        (),
        [{"name": "threshold", "value": threshold}] if isinstance(threshold, float) else [],
    )
    links = np.stack([drawn["icoord"], drawn["dcoord"]], axis=-1)  # (n - 1, 4, 2)
    shown = [[[round_(x), round_(y)] for x, y in link] for link in links]
    return {**chart, "links": shown, "leaves": [clients[i] for i in drawn["leaves"]]}


def round_(value: float) -> float:
    """Round to five digits, the precision of a page."""
    return float(f"{value:.5g}")


def _numbers(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw a chart for each further number that notes have in at least two rounds."""
    rounds: dict[str, set[int]] = {}
    for round, _, note in notes:
        for name, value in note["numbers"].items():
            if value is not None:
                rounds.setdefault(name, set()).add(round)
    for name in [name for name, seen in rounds.items() if len(seen) > 1][:MANY]:
        series = _series(
            [(round, node, note["numbers"]) for round, node, note in notes], {name: name}
        )
        yield _chart(_title(name), "A number of the method's notes.", name, series)


def _values(notes: PlacedNotes) -> Iterable[Chart]:
    """Draw the least, the mean and the greatest of the clients' values in notes of at least two rounds."""
    found: dict[str, dict[int, list[float]]] = {}
    for round, _, note in notes:
        for name, values in note["values"].items():
            known = [value for value in values.values() if value is not None]
            if known and name != "model" and not name.rpartition(" ")[2].isdecimal():
                found.setdefault(name, {}).setdefault(round, []).extend(known)
    shown: Mapping[str, Callable[..., Any]] = {"least": np.min, "mean": np.mean, "greatest": np.max}
    for name in [name for name, rows in found.items() if len(rows) > 1][:MANY]:
        series = [
            {
                "name": which,
                "dash": dash,
                "node": None,
                "points": [[at, round_(of(row))] for at, row in found[name].items()],
            }
            for dash, (which, of) in enumerate(shown.items())
        ]
        yield _chart(
            f"{_title(name)} of the clients", "Over the clients that answered.", name, series
        )


def _title(name: str) -> str:
    return f"{name[:1].upper()}{name[1:]}".replace("_", " ")


def _chart(
    title: str,
    about: str,
    y: str,
    series: Sequence[Any],
    levels: Sequence[Any] = (),
    log: bool = False,
) -> Chart:
    return {
        "title": title,
        "about": about,
        "y": y,
        "log": log,
        "series": list(series),
        "levels": list(levels),
    }


def _series(
    entries: Sequence[tuple[int, int, Mapping[str, Any]]],
    names: Mapping[str, str],
    change: Any = float,
) -> list[dict[str, Any]]:
    """Return a series per group and number; if there are too many groups, those with the most rounds.

    Args:
        entries: (round, node of the group or -1, numbers by key).
        names: Key of a number -> name of its series.
        change: Applied to each number.
    """
    found: dict[tuple[int, str], list[list[float]]] = {}
    of_all = 2 * sum(node < 0 for _, node, _ in entries) > len(
        entries
    )  # most are about all groups together
    for round, node, numbers in entries:
        for key in names:
            if numbers.get(key) is not None:
                found.setdefault((-1 if of_all else node, key), []).append(
                    [round, round_(change(numbers[key]))]
                )
    most: dict[int, int] = {}
    for (node, _), points in found.items():
        most[node] = max(most.get(node, 0), len(points))
    shown = set(sorted(most, key=lambda node: (-most[node], node))[:NODES])
    dashes = list(names)
    return [
        {
            "name": names[key],
            "dash": dashes.index(key),
            "node": node if node >= 0 else None,
            "points": points,
        }
        for (node, key), points in found.items()
        if node in shown
    ]


# ----------------------------------------------------------------------------------------------------
# The matrices on which decisions were based, as a page shows them: ordered by group, and averaged
# if large.


MOST = 40
"""The greatest number of matrices on a page; of more, this many are chosen evenly, with the first
and the last."""

CELLS = 200
"""The greatest number of rows of a matrix on a page; a larger matrix is replaced by means over
blocks."""


def squares(
    folder: Path, lines: Sequence[Line], order: Sequence[ClientId]
) -> tuple[list[dict[str, Any]], int, int]:
    """Return the matrices of a run, oldest first.

    Args:
        folder: The run directory.
        lines: The completed rounds.
        order: The clients in the page's order; rows are sorted by group, then in this order.

    Returns:
        The matrices, their total number in the run, and the number of chosen ones that cannot be
        read. Each matrix has round, kind and text (of the note), what (distance or cosine), clients
        (of the rows), groups (number of each row's group after the round), edges (rows at which a
        block of several clients begins; None if every row is one client), and layers: name ->
        packed matrix.
    """
    named = [(line, note) for line in lines for note in line["notes"] if note["similarity"]]
    chosen = named
    if len(named) > MOST:
        chosen = [named[i] for i in np.linspace(0, len(named) - 1, MOST).round().astype(int)]
    found = []
    for line, note in chosen:
        with suppress(DamagedError):  # a lost file does not prevent showing the others
            found.append(square(folder, line, note, order))
    return found, len(named), len(chosen) - len(found)


def square(
    folder: Path, line: Line, note: Mapping[str, Any], order: Sequence[ClientId]
) -> dict[str, Any]:
    """Return the matrices of one note, as one entry of :func:`squares`."""
    heard, matrices = load(folder, line, note)
    clients, groups, edges, layers = arranged(heard, matrices, line, order)
    kinds = {measure(matrix) for matrix in matrices.values()}
    return {
        "round": line["round"],
        "kind": note["kind"],
        "text": note["text"],
        "what": "distance" if kinds == {"distance"} else "cosine",
        "clients": clients,
        "groups": groups,
        "edges": edges,
        "layers": {name: real(matrix, bits=8) for name, matrix in layers.items()},
    }


def arranged(
    clients: Sequence[ClientId],
    matrices: Mapping[str, np.ndarray],
    line: Line,
    order: Sequence[ClientId],
) -> tuple[list[ClientId], list[int], list[int] | None, dict[str, np.ndarray]]:
    """Order the matrices that :func:`load` has read by group, and average large ones over blocks.

    Args:
        clients: The n client ids of the rows.
        matrices: Name -> matrix ``(n, n)``.
        line: The record of the round.
        order: The clients in the page's order.

    Returns:
        clients, groups, edges and layers, as in :func:`squares`, with matrices that are not packed.
    """
    group = {client: i for i, members in enumerate(line["groups"]) for client in members}
    place = {client: i for i, client in enumerate(order)}
    by_group = sorted(
        range(len(clients)), key=lambda i: (group.get(clients[i], -1), place.get(clients[i], -1))
    )
    edges = None if len(clients) <= CELLS else [len(clients) * i // CELLS for i in range(CELLS + 1)]
    layers = {}
    for name, matrix in matrices.items():
        rows = matrix[np.ix_(by_group, by_group)]
        layers[name] = rows if edges is None else blocks(rows, edges)
    return (
        [clients[i] for i in by_group],
        [group.get(clients[i], -1) for i in by_group],
        edges,
        layers,
    )


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
    clients, found = load_matrices(folder, line, note)
    return clients, {
        name: found[name].astype(np.float64)
        for name in sorted(found, key=lambda name: (name != "all", name))
    }


def blocks(matrix: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    """Return means over blocks of rows and columns; the similarity of a client to itself is left out.

    Args:
        matrix: The matrix ``(n, n)``.
        edges: The row at which each block begins, and n.
    """
    values, counts = matrix.astype(np.float64), np.ones_like(matrix)
    np.fill_diagonal(counts, 0)
    known = np.isfinite(values) & (counts > 0)
    sums = _added(np.where(known, values, 0.0), edges)
    number = _added(known.astype(np.float64), edges)
    return np.divide(sums, number, out=np.full_like(sums, np.nan), where=number > 0)


def _added(matrix: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    starts = list(edges[:-1])
    return np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)


# ----------------------------------------------------------------------------------------------------
# Compact arrays of numbers in a JSON document: base64 of integers, little-endian.


Packed = dict[str, Any]


def whole(values: Any) -> Packed:
    """Pack integers from -1 on, exactly, as ``{"type", "shape", "data"}``."""
    array = np.asarray(values, dtype=np.int32)
    return {"type": "i32", "shape": list(array.shape), "data": _text(array.astype("<i4"))}


def real(values: Any, bits: int = 16) -> Packed:
    """Pack numbers in 2^bits - 1 codes; numbers that are not finite, and None, become missing.

    Args:
        values: The numbers.
        bits: 8 or 16.

    Returns:
        ``{"type", "shape", "low", "high", "data"}``. A code ``c`` stands for ``low + (high - low) *
        c / (2^bits - 2)``. The greatest code stands for a missing number.
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    low, high = (
        (float(array[known].min()), float(array[known].max())) if known.any() else (0.0, 0.0)
    )
    missing = 2**bits - 1
    part = (np.where(known, array, low) - low) / (high - low if high > low else 1.0)
    codes = np.where(known, np.rint(part * (missing - 1)), missing)
    kind = {8: "<u1", 16: "<u2"}[bits]
    return {
        "type": f"u{bits}",
        "shape": list(array.shape),
        "low": low,
        "high": high,
        "data": _text(codes.astype(kind)),
    }


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
