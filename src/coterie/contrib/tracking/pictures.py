"""The similarity matrices of a round as pictures in shades of grey."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.contrib.tracking.metrics import name_of
from coterie.records.record import Line, load_matrices

SIDE = 512
"""Pixels of a picture's side."""


class Picture(NamedTuple):
    """A matrix as a picture: its name ``similarity/GROUP/LAYER``, its pixels ``(SIDE, SIDE, 3)`` uint8, and a caption."""

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
        row = {client: i for i, client in enumerate(clients)}
        parted = [row[client] for part in note["parts"] for client in part if client in row]
        order = list(dict.fromkeys([*parted, *row.values()]))
        for layer, values in sorted(matrices.items()):
            matrix = values[np.ix_(order, order)]
            known = matrix[
                ~np.eye(len(order), dtype=bool) & np.isfinite(matrix)
            ]  # the diagonal carries no information
            low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
            caption = f"round {line['round']}, {note['kind']}: {len(order)} clients; black {low:.3g}, white {high:.3g}"
            yield Picture(
                f"similarity/{name_of(note['clients'])}/{layer}", shaded(matrix, low, high), caption
            )


def shaded(matrix: np.ndarray, low: float, high: float) -> np.ndarray:
    """Show a matrix in shades of grey.

    Args:
        matrix: The matrix ``(n, n)``.
        low: The number that is black.
        high: The number that is white.

    Returns:
        The pixels ``(SIDE, SIDE, 3)`` uint8; numbers that are not finite are red.
    """
    nearest = np.arange(SIDE) * len(matrix) // SIDE
    matrix = matrix[np.ix_(nearest, nearest)]
    share = np.clip((matrix - low) / ((high - low) or 1.0), 0.0, 1.0)
    pixels = np.nan_to_num(share * 255).round().astype(np.uint8)[..., None].repeat(3, axis=2)
    pixels[~np.isfinite(matrix)] = (255, 0, 0)
    return pixels
