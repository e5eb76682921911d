"""Charts of the numbers that each method compared before it acted.

These are CFL's norms beside eps1 and eps2, p-values of the split-half test, HCCT's utilities and gains, and the dendrograms
of FL+HC and ACFL. For any other method they are the numbers of its notes.

A chart has title, about (a sentence), y (the axis label), log (whether that axis is logarithmic), series, levels (settings
to compare with), and ``links`` (lines of a dendrogram) in place of series. A series has name, dash (0 is solid), node (its
group, or None) and points ``[round, value]``.
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
from coterie.methods.split_half import ALIKE
from coterie.records.codec import DamagedError
from coterie.records.record import Line, load_matrices
from coterie.report.gathered import PlacedNotes

Chart = dict[str, Any]
NODES = 12
"""The greatest number of groups in a chart; those with the most points are shown."""

LEAVES = 400
"""The greatest number of clients in a dendrogram."""

FLOOR = 1e-30
"""Smaller p-values are drawn at this value."""


def charts(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> list[Chart]:
    """Return the charts of a run; charts without data are left out.

    Args:
        method: The method's table in ``run.toml``.
        folder: The run directory.
        lines: The completed rounds.
        notes: The notes of the run.
    """
    made = MAKERS.get(method["name"], _numbers)(method, folder, lines, notes)
    return [chart for chart in made if chart.get("links") or any(one["points"] for one in chart["series"])]


def _cfl(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    relative = method.get("scale") == "relative"
    bounds = ("eps1 x greatest norm", "eps2 x greatest norm so far") if relative else ("eps1", "eps2")
    norms = {"mean_norm": "norm of the mean update", "eps1": bounds[0]}
    norms |= {"client_norm": "greatest norm of a client's update", "eps2": bounds[1]}
    yield _chart(
        "Stationary, and at odds?",
        "A group may split in a round in which the norm of its mean update is below its bound (eps1) while the greatest norm "
        "of a client's update is at least its own (eps2)."
        + (" Bounds are shares of the greatest norm of a client: in the same round, and so far." if relative else ""),
        "norm", _series(notes, norms),
    )  # fmt: skip
    gamma, levels = {"gamma_bound": "noise that the cosines allow for"}, []
    if isinstance(method.get("gamma_max"), float):
        levels = [{"name": "gamma_max", "value": method["gamma_max"]}]
    else:  # measured each time
        gamma["gamma_max"] = "gamma_max as measured"
    yield _chart(
        "Separable?",
        "Of a group that is stationary and at odds: how noisy clients of one kind could be and the cosines across the two "
        "sides still be as low. It splits where that is above gamma_max.",
        "noise over signal", _series(notes, gamma), levels,
    )  # fmt: skip
    yield _chart(
        "Greatest similarity across the two sides",
        "α_cross of the best bipartition of each group, in every round: 1 of clients that move alike, -1 of opposites.",
        "cosine", _series(notes, {"alpha_cross": "α_cross"}),
    )  # fmt: skip


def _split_half(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    names = {"p": "one probe", "p_together": "with the probe before"}
    reviews = [one for one in notes if _reviews(one[2])]
    series = _series([one for one in notes if not _reviews(one[2])], names, lambda value: max(value, FLOOR))
    levels = [{"name": "level", "value": method["level"]}] if isinstance(method.get("level"), float) else []
    yield _chart(
        "Are all clients of a group alike?",
        "p: how probable updates that differ as much would be among clients that are all alike. A group is split where two "
        f"probes together are below the level. What is smaller than {FLOOR:g} is drawn there.",
        "p", series, levels, log=True,
    )  # fmt: skip
    yield _chart(
        "Are two groups one?",
        "In reviews: how probable two groups that differ as much would be if they were one; of the nearest two. They are "
        f"merged where it is above {ALIKE:g}.",
        "p", _series(reviews, {"p": "the nearest two groups"}, lambda value: max(value, FLOOR), one_for_all=True),
        [{"name": "merge above", "value": ALIKE}], log=True,
    )  # fmt: skip


def _reviews(note: Mapping[str, Any]) -> bool:
    """Return whether a note compares groups with each other instead of the clients of one group."""
    return "other_node" in note["numbers"] or note["kind"] in ("merge", "move")


def _hcct(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    yield _chart(
        "Utility of the groups", "The sum over clients of similarity to their group less the price of little data.",
        "utility", _series(notes, {"utility": "utility"}, one_for_all=True),
    )  # fmt: skip
    yield _chart(
        "The best merge not made", "What merging the best two groups further would add to the utility; merging goes on while "
        "this is above zero.", "utility", _series(notes, {"best_open": "gain of the best merge"}, one_for_all=True),
        [{"name": "merge", "value": 0.0}],
    )  # fmt: skip
    gains: Mapping[str, Callable[..., Any]] = {"least": np.min, "mean": np.mean, "greatest": np.max}
    found = [(round, note["values"].get("gain", {})) for round, _, note in notes]
    rows = [(round, values) for round, gain in found if (values := [v for v in gain.values() if v is not None])]
    series = [
        {"name": name, "dash": dash, "node": None, "points": [[round, round_(of(values))] for round, values in rows]}
        for dash, (name, of) in enumerate(gains.items())
    ]
    yield _chart(
        "Clients' gains", "How much more utility a client has in its group than it would have alone.", "gain", series,
        [{"name": "alone", "value": 0.0}],
    )  # fmt: skip


def _dendrograms(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    """Draw FL+HC's distances, or 1 minus ACFL's similarities."""
    similar = method["name"] == "acfl"
    for round, _, note in notes:
        with suppress(DamagedError):  # a lost file
            clients, matrices = load(folder, lines[round - 1], note) if note.get("similarity") else ([], {})
            compared = matrices.get("compared" if similar else "all")  # older records of ACFL do not have it
            if compared is not None and 2 <= len(clients) <= LEAVES and np.isfinite(compared).all():
                yield _tree(method, round, clients, 1 - compared if similar else compared)


def _tree(method: Mapping[str, Any], round: int, clients: Sequence[int], apart: np.ndarray) -> Chart:
    merges = dendrogram((apart + apart.T) / 2 * (1 - np.eye(len(apart))), method["linkage"])
    what, threshold = f"{method.get('metric')} distances", method.get("threshold")
    if method["name"] == "acfl":
        what = "1 less the cosine similarity"
        threshold = 1 - threshold if isinstance(threshold, float) else None
    drawn = scipy.cluster.hierarchy.dendrogram(merges, no_plot=True)
    chart = _chart(
        f"Dendrogram of round {round}",
        f"Clients merged by {method['linkage']} linkage of {what}; groups are what hangs together below the threshold.",
        "distance", (), [{"name": "threshold", "value": threshold}] if isinstance(threshold, float) else [],
    )  # fmt: skip
    links = np.stack([drawn["icoord"], drawn["dcoord"]], axis=-1)  # (n - 1, 4, 2)
    shown = [[[round_(x), round_(y)] for x, y in link] for link in links]
    return {**chart, "links": shown, "leaves": [clients[i] for i in drawn["leaves"]]}


def round_(value: float) -> float:
    """Round to five digits, the precision of a page."""
    return float(f"{value:.5g}")


def _numbers(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    """Draw a chart for each number that the method's notes about groups contain in at least two rounds."""
    notes = [one for one in notes if len(one[2]["clients"]) > 1]
    rounds: dict[str, set[int]] = {}
    for round, _, note in notes:
        for name, value in note["numbers"].items():
            if value is not None:
                rounds.setdefault(name, set()).add(round)
    for name in sorted(name for name, seen in rounds.items() if len(seen) > 1)[:6]:
        yield _chart(name, "As the method's notes tell it.", name, _series(notes, {name: name}))


def _choosing(method: Mapping[str, Any], folder: Path, lines: Sequence[Line], notes: PlacedNotes) -> Iterable[Chart]:
    yield _chart(
        "Least training loss", "Mean over the clients heard of the least loss that a model has on their training data.", "loss",
        _series(notes, {"loss": "mean of the least losses"}, one_for_all=True),
    )  # fmt: skip
    yield _chart(
        "Clients that changed their choice", "Those heard in a round that took another model than before.", "clients",
        _series(notes, {"moved": "changed"}, one_for_all=True),
    )  # fmt: skip


MAKERS = {
    "cfl": _cfl, "split-half": _split_half, "hcct": _hcct, "hcct-e": _hcct, "hcct-p": _hcct, "flhc": _dendrograms,
    "acfl": _dendrograms, "ifca": _choosing, "flsc": _choosing,
}  # fmt: skip


def _chart(title: str, about: str, y: str, series: Sequence[Any], levels: Sequence[Any] = (), log: bool = False) -> Chart:
    return {"title": title, "about": about, "y": y, "log": log, "series": list(series), "levels": list(levels)}


def _series(
    notes: PlacedNotes, names: Mapping[str, str], change: Any = float, one_for_all: bool = False
) -> list[dict[str, Any]]:
    """Return a series per group and name of a number; if there are too many groups, those with the most rounds."""
    found: dict[tuple[int, str], list[list[float]]] = {}
    for round, node, note in notes:
        for name in names:
            value = note["numbers"].get(name)
            if value is not None:
                found.setdefault((-1 if one_for_all else node, name), []).append([round, round_(change(value))])
    most: dict[int, int] = {}
    for (node, _), points in found.items():
        most[node] = max(most.get(node, 0), len(points))
    shown = set(sorted(most, key=lambda node: (-most[node], node))[:NODES])
    dashes = list(names)
    return [
        {"name": names[name], "dash": dashes.index(name), "node": node if node >= 0 else None, "points": points}
        for (node, name), points in found.items()
        if node in shown
    ]


# ----------------------------------------------------------------------------------------------------
# The matrices on which decisions were based, as a page shows them: ordered by group, and averaged if large.


MOST = 40
"""The greatest number of matrices on a page; of more, this many are chosen evenly, with the first and the last."""

CELLS = 200
"""The greatest number of rows of a matrix on a page; a larger matrix is replaced by means over blocks."""


def squares(folder: Path, lines: Sequence[Line], order: Sequence[int]) -> tuple[list[dict[str, Any]], int, int]:
    """Return the matrices of a run, oldest first.

    Args:
        folder: The run directory.
        lines: The completed rounds.
        order: The clients in the page's order; rows are sorted by group, then in this order.

    Returns:
        The matrices, their total number in the run, and the number of chosen ones that cannot be read. Each matrix has
        round, kind and text (of the note), what (distance or cosine), clients (of the rows), groups (number of each row's
        group after the round), edges (rows at which a block of several clients begins; None if every row is one client),
        and layers: name -> packed matrix.
    """
    named = [(line, note) for line in lines for note in line["notes"] if note.get("similarity")]
    chosen = named
    if len(named) > MOST:
        chosen = [named[i] for i in np.linspace(0, len(named) - 1, MOST).round().astype(int)]
    found = []
    for line, note in chosen:
        with suppress(DamagedError):  # a lost file does not prevent showing the others
            found.append(square(folder, line, note, order))
    return found, len(named), len(chosen) - len(found)


def square(folder: Path, line: Line, note: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """Return the matrices of one note, as one entry of :func:`squares`."""
    heard, matrices = load(folder, line, note)
    clients, groups, edges, layers = arranged(heard, matrices, line, order)
    apart = all(not np.diag(matrix).any() for matrix in matrices.values())  # the distance of a client from itself is 0
    return {
        "round": line["round"], "kind": note["kind"], "text": note["text"], "what": "distance" if apart else "cosine",
        "clients": clients, "groups": groups,
        "edges": edges, "layers": {name: real(matrix, bits=8) for name, matrix in layers.items()},
    }  # fmt: skip


def arranged(
    clients: Sequence[int], matrices: Mapping[str, np.ndarray], line: Line, order: Sequence[int]
) -> tuple[list[int], list[int], list[int] | None, dict[str, np.ndarray]]:
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
    by_group = sorted(range(len(clients)), key=lambda i: (group.get(clients[i], -1), place.get(clients[i], -1)))
    edges = None if len(clients) <= CELLS else [len(clients) * i // CELLS for i in range(CELLS + 1)]
    layers = {}
    for name, matrix in matrices.items():
        rows = matrix[np.ix_(by_group, by_group)]
        layers[name] = rows if edges is None else blocks(rows, edges)
    return [clients[i] for i in by_group], [group.get(clients[i], -1) for i in by_group], edges, layers


def load(folder: Path, line: Line, note: Mapping[str, Any]) -> tuple[list[int], dict[str, np.ndarray]]:
    """Read the matrices of a note.

    Args:
        folder: The run directory.
        line: The record of the note's round.
        note: The note.

    Returns:
        The clients of the rows, and the matrices ``(n, n)`` by name; ``all`` is the first.
    """
    clients, found = load_matrices(folder, line, note)
    return clients, {name: found[name].astype(np.float64) for name in sorted(found, key=lambda name: (name != "all", name))}


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
        ``{"type", "shape", "low", "high", "data"}``. A code ``c`` stands for ``low + (high - low) * c / (2^bits - 2)``. The
        greatest code stands for a missing number.
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    low, high = (float(array[known].min()), float(array[known].max())) if known.any() else (0.0, 0.0)
    missing = 2**bits - 1
    part = (np.where(known, array, low) - low) / (high - low if high > low else 1.0)
    codes = np.where(known, np.rint(part * (missing - 1)), missing)
    kind = {8: "<u1", 16: "<u2"}[bits]
    return {
        "type": f"u{bits}", "shape": list(array.shape), "low": low, "high": high, "data": _text(codes.astype(kind)),
    }  # fmt: skip


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
