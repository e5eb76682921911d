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


def pictures(folder: Path, round_line: Line) -> Iterator[Picture]:
    """One picture per matrix of a round's notes, with rows and columns ordered by the parts in the note.

    Args:
        folder: The run directory.
        round_line: The record of the round.
    """
    for note in round_line["notes"]:
        if note["similarity"] is None:
            continue
        clients, matrices = load_matrices(folder, round_line, note)
        row_order = _rows_by_part(clients, note["parts"])
        for layer_name, layer_matrix in sorted(matrices.items()):
            # Members of a part are next to each other, so parts show as squares.
            ordered_matrix = layer_matrix[np.ix_(row_order, row_order)]
            # The diagonal carries no information.
            off_diagonal = ~np.eye(len(row_order), dtype=bool)
            similarities = ordered_matrix[off_diagonal & np.isfinite(ordered_matrix)]
            smallest_value = float(similarities.min()) if similarities.size else 0.0
            largest_value = float(similarities.max()) if similarities.size else 0.0
            yield Picture(
                name=f"similarity/{name_of(note['clients'])}/{layer_name}",
                pixels=shaded(ordered_matrix, smallest_value, largest_value),
                caption=f"round {round_line['round']}, {note['kind']}: {len(row_order)} clients; "
                f"black {smallest_value:.3g}, white {largest_value:.3g}",
            )


def _rows_by_part(clients: Sequence[ClientId], parts: Sequence[Sequence[ClientId]]) -> list[int]:
    """The rows of these clients, part by part; clients that are in none come last."""
    # A dictionary keeps the order, and each row once.
    row_of_client = {client: row_number for row_number, client in enumerate(clients)}
    ordered_rows: dict[int, None] = {}
    for part in parts:
        ordered_rows |= {row_of_client[client]: None for client in part if client in row_of_client}
    ordered_rows |= dict.fromkeys(row_of_client.values())
    return list(ordered_rows)


def shaded(matrix: np.ndarray, black_value: float, white_value: float) -> np.ndarray:
    """Show a matrix in shades of grey.

    Args:
        matrix: The matrix ``(n, n)``.
        black_value: The number that is black.
        white_value: The number that is white.

    Returns:
        The pixels ``(SIDE_PIXELS, SIDE_PIXELS, 3)`` uint8; numbers that are not finite are red.
    """
    # Each pixel has the nearest entry of the matrix.
    nearest_rows = np.arange(SIDE_PIXELS) * len(matrix) // SIDE_PIXELS
    matrix = matrix[np.ix_(nearest_rows, nearest_rows)]
    brightness = np.clip((matrix - black_value) / ((white_value - black_value) or 1.0), 0.0, 1.0)
    grey_pixels = (
        np.nan_to_num(brightness * 255).round().astype(np.uint8)[..., None].repeat(3, axis=2)
    )
    grey_pixels[~np.isfinite(matrix)] = (255, 0, 0)
    return grey_pixels
