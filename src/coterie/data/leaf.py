"""LEAF's FEMNIST: handwritten digits and letters of 62 classes, by writer, in JSON (S. Caldas et al., arXiv 1812.01097).

Each file has ``users``, names of writers, and ``user_data``: name -> ``x``, lists of 784 numbers in [0, 1], and ``y``, classes.
LEAF deals a writer's images to a training and a test file; here they are one pool, and scenarios hold out their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import readers
from coterie.data.pool import Dataset, pool
from coterie.settings import UserError

CLASSES, SIDE = 62, 28

PLACES = ("femnist/data", "leaf/data/femnist/data", "femnist", "")
PARTS = (("train", "test"), ("all_data",))


def files(folder: Path) -> tuple[Path, ...]:
    """LEAF's JSON files under a folder: of the split data, else of all data."""
    for place in PLACES:
        for parts in PARTS:
            found = [path for part in parts for path in sorted((folder / place / part).glob("*.json*"))]
            if found:
                return tuple(found)
    looked = ", ".join(str(folder / place / part) for place in PLACES for part in ("train", "all_data"))
    raise UserError(f"femnist needs LEAF's .json files, and there are none in: {looked}")


def read(paths: tuple[Path, ...]) -> Dataset:
    """All images; meta ``writer`` numbers the writers by name."""
    inputs, targets, writers = [], [], []
    for path in paths:
        for name, images, labels in _writers(path):
            inputs.append(images)
            targets.append(labels)
            writers += [name] * len(labels)
    if not writers:
        raise UserError(f"{paths[0].parent} holds no examples")
    numbers = np.unique(writers, return_inverse=True)[1]
    whole = pool(np.concatenate(inputs), np.concatenate(targets), paths[0].parent, CLASSES, writer=numbers)
    return Dataset(name="femnist", train=whole, test=None, classes=CLASSES)


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, images ``(m, 28, 28)`` float32, labels ``(m,)``) of each writer in a file who has any."""
    try:
        data: dict[str, Any] = json.loads(readers.content(path))["user_data"]
        found = [(name, _images(own["x"]), np.array(own["y"])) for name, own in data.items() if own["y"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is no file of LEAF's FEMNIST: {type(error).__name__}, {error}") from error
    for name, images, labels in found:
        if labels.shape != (len(images),):
            raise UserError(f"{path} is mislabelled: writer {name!r} has {len(images)} images but labels {list(labels.shape)}")
    return found


def _images(rows: Any) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, SIDE, SIDE)
