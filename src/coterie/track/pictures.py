"""The matrices that a clustering rested on, as pictures: arrays of RGB, made without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.record import Line, load_matrices

SIDE = 512
"""Pixels of a picture's side, about: small matrices are enlarged to it, those of more clients are averaged down to it."""

MAP = np.array([[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
                [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]], dtype=float)  # fmt: skip
"""Ten colours from dark to light, alike to the colour-blind: Matplotlib's viridis (CC0)."""


@dataclass(frozen=True)
class Picture:
    """name: of the matrix, ``similarity/all`` or a layer. pixels: ``(h, w, 3)`` uint8. caption: what is seen."""

    name: str
    pixels: np.ndarray
    caption: str


def pictures(folder: Path, line: Line) -> Iterator[Picture]:
    """One per matrix of the round's notes; rows and columns are ordered by the parts that the note made."""
    for note in line["notes"]:
        if note["similarity"] is None:
            continue
        group = f"of-{min(note['clients'])}"
        rows, matrices = load_matrices(folder, line, note)
        parts = _placed(rows, note["parts"])
        order = [place for part in parts for place in part]
        for layer, values in sorted(matrices.items()):
            matrix = values[np.ix_(order, order)]
            low, high = extent(matrix)
            about = f"round {line['round']}, {note['kind']}: {len(rows)} clients in {len(parts)} parts"
            caption = f"{about}; dark {low:.3g}, light {high:.3g}"
            yield Picture(f"similarity/{group}/{layer}", coloured(matrix, low, high), caption)


def _placed(rows: Sequence[int], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The places of the parts' clients among the rows; those of no part are the last part."""
    place = {client: i for i, client in enumerate(rows)}
    found = [[place[client] for client in part if client in place] for part in parts]
    left = sorted(set(place.values()) - {i for part in found for i in part})
    return [part for part in [*found, left] if part]


def extent(matrix: np.ndarray) -> tuple[float, float]:
    """The least and the greatest finite number off the diagonal, which says nothing; (0, 0) where there is none."""
    off = matrix[~np.eye(len(matrix), dtype=bool)]
    known = off[np.isfinite(off)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def coloured(matrix: np.ndarray, low: float, high: float) -> np.ndarray:
    """``(h, w, 3)`` uint8 of a matrix ``(n, n)``: ``low`` is dark, ``high`` light, what is not finite grey."""
    n = len(matrix)
    step = -(-n // SIDE)
    if step > 1:
        padded = np.pad(matrix, (0, -n % step), mode="edge")
        matrix = padded.reshape(len(padded) // step, step, -1, step).mean(axis=(1, 3))
    share = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.zeros_like(matrix)
    at = np.nan_to_num(share) * (len(MAP) - 1)
    colours = np.stack([np.interp(at, range(len(MAP)), channel) for channel in MAP.T], axis=-1)
    colours[~np.isfinite(matrix)] = 128
    times = max(1, SIDE // len(matrix))
    return colours.round().astype(np.uint8).repeat(times, axis=0).repeat(times, axis=1)
