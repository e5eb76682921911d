"""A matrix as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open

import page_runs
from coterie.contrib.tracking.pictures import SIDE_PIXELS, pictures, shaded
from coterie.records.checksum import digest
from coterie.records.record import Record


def test_a_picture_shows_the_parts_as_blocks(whole: Path) -> None:
    line = next(line for line in Record(whole).lines() if len(line["groups"]) > 1)
    (picture,) = pictures(whole, line)
    assert picture.name == "similarity/of-0/all"
    with safe_open(whole / f"similarity/round-{line['round']}.safetensors", framework="np") as file:
        matrix = file.get_tensor("all")
    assert picture.pixels.shape == (SIDE_PIXELS, SIDE_PIXELS, 3)
    middle = (np.arange(20) * 2 + 1) * SIDE_PIXELS // 40
    seen = picture.pixels[np.ix_(middle, middle)][..., 1].astype(int)
    first = len(line["groups"][0])
    off = ~np.eye(20, dtype=bool)
    block = np.zeros((20, 20), dtype=bool)
    block[:first, :first] = block[first:, first:] = True
    assert seen[block & off].mean() > seen[~block].mean() + 30
    order = [client for group in line["groups"] for client in group]  # ids are 0 to 19, as places
    low, high = matrix[off].min(), matrix[off].max()
    np.testing.assert_array_equal(picture.pixels, shaded(matrix[np.ix_(order, order)], low, high))
    assert f"black {low:.3g}, white {high:.3g}" in picture.caption


def test_a_picture_has_all_clients_of_the_matrix_and_no_others(tmp_path: Path) -> None:
    matrix = np.array([[1.0, -0.5, np.nan], [-0.5, 1.0, 0.5], [np.nan, 0.5, 1.0]])
    folder = page_runs.write(tmp_path / "run", [])
    name = page_runs.matrices(folder, "round-1.safetensors", [4, 7, 9], all=matrix)
    note = page_runs.note(
        "split", [4, 7, 8, 9], [[9, 8], [4]], similarity=name
    )  # 8 was not heard, and 7 is in no part
    files = {name: digest((folder / name).read_bytes())}
    (picture,) = pictures(folder, page_runs.line(1, [[9, 8], [4], [7]], note, files=files))
    np.testing.assert_array_equal(
        picture.pixels, shaded(matrix[np.ix_([2, 0, 1], [2, 0, 1])], -0.5, 0.5)
    )
    assert picture.caption == "round 1, split: 3 clients; black -0.5, white 0.5"


def test_shades() -> None:
    found = shaded(np.array([[0.0, 1.0], [np.nan, 0.5]]), 0.0, 1.0)
    corners = found[[0, 0, -1, -1], [0, -1, 0, -1]].tolist()
    assert corners == [[0, 0, 0], [255, 255, 255], [255, 0, 0], [128, 128, 128]]
    assert (
        found.shape
        == shaded(np.ones((1201, 1201)), 0.0, 1.0).shape
        == (SIDE_PIXELS, SIDE_PIXELS, 3)
    )
    assert (shaded(np.ones((3, 3)), 1.0, 1.0) == 0).all()  # a single number
