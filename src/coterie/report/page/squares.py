"""The matrices that decisions rested on, as a page shows them: ordered by group, and coarser where they are large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from coterie.codec import DamagedError
from coterie.record import Line, load_matrices
from coterie.report.page.packing import real

MOST = 40
"""Matrices on a page; of more, so many evenly chosen, the first and the last among them."""

CELLS = 200
"""Rows of a matrix on a page; larger ones are told by means over blocks."""


def squares(folder: Path, lines: Sequence[Line], order: Sequence[int]) -> tuple[list[dict[str, Any]], int, int]:
    """The matrices of a run, oldest first; how many there are in all, and how many of those chosen cannot be read.

    Each: round, kind, text (of the note), clients (of the rows), groups (number of each row's group after the round), edges
    (rows at which a block of several clients begins, None where every row is a client), layers: name -> packed matrix.
    order: clients as the page has them; rows are sorted by group, then by it.
    """
    named = [(line, note) for line in lines for note in line["notes"] if note.get("similarity")]
    chosen = named
    if len(named) > MOST:
        chosen = [named[i] for i in np.linspace(0, len(named) - 1, MOST).round().astype(int)]
    found = []
    for line, note in chosen:
        with suppress(DamagedError):  # one lost file is no reason to show nothing
            found.append(square(folder, line, note, order))
    return found, len(named), len(chosen) - len(found)


def square(folder: Path, line: Line, note: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """One note's matrices."""
    heard, matrices = load(folder, line, note)
    clients, groups, edges, layers = arranged(heard, matrices, line, order)
    apart = all(not np.diag(matrix).any() for matrix in matrices.values())  # clients from themselves
    return {
        "round": line["round"], "kind": note["kind"], "text": note["text"], "what": "distance" if apart else "cosine",
        "clients": clients, "groups": groups,
        "edges": edges, "layers": {name: real(matrix, bits=8) for name, matrix in layers.items()},
    }  # fmt: skip


def arranged(
    clients: Sequence[int], matrices: Mapping[str, np.ndarray], line: Line, order: Sequence[int]
) -> tuple[list[int], list[int], list[int] | None, dict[str, np.ndarray]]:
    """clients, groups, edges and layers of what :func:`load` has read as :func:`squares` tells them, matrices not packed."""
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
    """The clients of the rows of a note's matrices, and these ``(n, n)`` by name; ``all`` is the first."""
    clients, found = load_matrices(folder, line, note)
    return clients, {name: found[name].astype(np.float64) for name in sorted(found, key=lambda name: (name != "all", name))}


def blocks(matrix: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    """Means over blocks of rows and columns; clients' similarity to themselves is left out of the diagonal ones."""
    values, counts = matrix.astype(np.float64), np.ones_like(matrix)
    np.fill_diagonal(counts, 0)
    known = np.isfinite(values) & (counts > 0)
    sums = _added(np.where(known, values, 0.0), edges)
    number = _added(known.astype(np.float64), edges)
    return np.divide(sums, number, out=np.full_like(sums, np.nan), where=number > 0)


def _added(matrix: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    starts = list(edges[:-1])
    return np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
