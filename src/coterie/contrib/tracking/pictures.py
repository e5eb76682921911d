"""The similarity matrices of a round as pictures in shades of grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.contrib.tracking.metrics import name_of
from coterie.records.round_line import load_matrices
from coterie.records.shown import ClientId, Line

SIDE_PIXELS = 512
"""Pixels of a picture's side."""


class Picture(NamedTuple):
    """A matrix as a picture.

    Attributes:
        name: ``similarity/GROUP/LAYER``.
        pixels: ``(SIDE_PIXELS, SIDE_PIXELS, 3)`` uint8.
        caption: The round, the kind of note, and what black and white are.
    """

    name: str
    pixels: np.ndarray
    caption: str


def pictures(folder: Path, line: Line) -> Iterator[Picture]:
    """One picture per matrix of a round's notes, with rows and columns ordered by the parts in the note.

    Args:
        folder: The run directory.
        line: The record of the round.
    """
    for note in line["notes"]:
        if note["similarity"] is None:
            continue
        clients, matrices = load_matrices(folder, line, note)
        order = _rows_by_part(clients, note["parts"])
        for layer, values in sorted(matrices.items()):
            matrix = values[np.ix_(order, order)]
            # The diagonal carries no information.
            off_diagonal = ~np.eye(len(order), dtype=bool)
            similarities = matrix[off_diagonal & np.isfinite(matrix)]
            low = float(similarities.min()) if similarities.size else 0.0
            high = float(similarities.max()) if similarities.size else 0.0
            yield Picture(
                name=f"similarity/{name_of(note['clients'])}/{layer}",
                pixels=shaded(matrix, low, high),
                caption=f"round {line['round']}, {note['kind']}: {len(order)} clients; "
                f"black {low:.3g}, white {high:.3g}",
            )


def _rows_by_part(clients: Sequence[ClientId], parts: Sequence[Sequence[ClientId]]) -> list[int]:
    """The rows of these clients, part by part; clients that are in none come last."""
    row_of_client = {client: row for row, client in enumerate(clients)}
    rows: dict[int, None] = {}
    for part in parts:
        rows |= {row_of_client[client]: None for client in part if client in row_of_client}
    rows |= dict.fromkeys(row_of_client.values())
    return list(rows)


def shaded(matrix: np.ndarray, low: float, high: float) -> np.ndarray:
    """Show a matrix in shades of grey.

    Args:
        matrix: The matrix ``(n, n)``.
        low: The number that is black.
        high: The number that is white.

    Returns:
        The pixels ``(SIDE_PIXELS, SIDE_PIXELS, 3)`` uint8; numbers that are not finite are red.
    """
    # Each pixel has the nearest entry of the matrix.
    rows = np.arange(SIDE_PIXELS) * len(matrix) // SIDE_PIXELS
    matrix = matrix[np.ix_(rows, rows)]
    share = np.clip((matrix - low) / ((high - low) or 1.0), 0.0, 1.0)
    pixels = np.nan_to_num(share * 255).round().astype(np.uint8)[..., None].repeat(3, axis=2)
    pixels[~np.isfinite(matrix)] = (255, 0, 0)
    return pixels
