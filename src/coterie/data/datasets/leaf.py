"""LEAF's FEMNIST: handwritten digits and letters of 62 classes, by writer, in JSON.

S. Caldas et al., arXiv 1812.01097. Each file has ``users``, the names of writers, and
``user_data``: name -> ``x``, lists of 784 numbers in [0, 1], and ``y``, classes. LEAF splits the
images of a writer into a training and a test file. Here they are one pool, and scenarios hold out
their own test data.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool
from coterie.data.spelling import check_unlike
from coterie.settings import UserError

# From files to the pool: the images of all writers, of all files, follow one another in one
# training pool. The meta ``writer`` records whose they are.
#
# From the pool to clients: the partition ``writer`` makes one client of each drawn writer, with all
# of the writer's images. The handwriting makes clients differ, and there are no true groups.
FEMNIST_CLASSES = 62
IMAGE_SIDE = 28

FEMNIST_FOLDERS = ("femnist/data", "leaf/data/femnist/data", "femnist", "")
FEMNIST_SUBFOLDERS = (("train", "test"), ("all_data",))
"""Subfolders of LEAF's files, after its split into training and test data and before it."""


def leaf_files(folder: Path) -> Paths:
    """Find LEAF's JSON files under a folder: those of the split data, otherwise those of all data.

    Args:
        folder: The data folder.

    Returns:
        The paths, at least one.

    Raises:
        UserError: There are none.
    """
    searched: list[str] = []
    # The first folder that has files wins: data that LEAF has split come before data that it has
    # not.
    for femnist_folder in FEMNIST_FOLDERS:
        for subfolders in FEMNIST_SUBFOLDERS:
            searched.append(str(folder / femnist_folder / subfolders[0]))
            paths: list[Path] = []
            for subfolder in subfolders:
                paths += _json_files(folder / femnist_folder / subfolder)
            if paths:
                return tuple(paths)
    raise UserError(
        f"femnist needs LEAF's .json files, and there are none in: {', '.join(searched)}"
    )


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json*"))


def read_leaf(paths: Paths, options: DatasetSettings, seed: int = 0) -> Dataset:
    """Read all images of LEAF's FEMNIST as one training pool.

    Args:
        paths: The JSON files.
        options: The name.
        seed: Not used.

    Returns:
        The data set. Its meta ``writer`` is the number of the writer, in the order of their names.

    Raises:
        UserError: A file is not LEAF's, is mislabelled, or no file holds an example.
    """
    del seed
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    writer_of_image: list[str] = []
    for path in paths:
        # A writer may be in a training and in a test file; equal names are one writer.
        for writer, writer_images, writer_labels in _writers(path):
            images.append(writer_images)
            labels.append(writer_labels)
            writer_of_image += [writer] * len(writer_labels)
    folder = paths[0].parent
    if not writer_of_image:
        raise UserError(f"{folder} holds no examples")
    # The number of a writer is the place of its name among the sorted names.
    writer_names, writer_numbers = np.unique(writer_of_image, return_inverse=True)
    check_unlike(writer_names.tolist(), f"writers in {folder}")
    train = pool(
        np.concatenate(images),
        np.concatenate(labels),
        folder,
        FEMNIST_CLASSES,
        writer=writer_numbers,
    )
    return Dataset(name=options.name, train=train, test=None, classes=FEMNIST_CLASSES)


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images ``(m, 28, 28)`` float32 and labels ``(m,)`` of each writer with an example."""
    writers = []
    try:
        # The images are flat lists of 784 numbers, which become 28 x 28. Writers without images are
        # left out.
        document: dict[str, Any] = json.loads(
            readers.content(path), object_pairs_hook=_without_repeated_names
        )
        for writer_name, examples in document["user_data"].items():
            if examples["y"]:
                images = np.array(examples["x"], np.float32).reshape(-1, IMAGE_SIDE, IMAGE_SIDE)
                writers.append((writer_name, images, np.array(examples["y"])))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UserError(
            f"{path} is not a LEAF FEMNIST file: {type(error).__name__}, {error}"
        ) from error
    # Labels that do not match the images show a damaged file.
    for writer_name, images, labels in writers:
        if labels.shape != (len(images),):
            raise UserError(
                f"{path} is mislabelled: writer {writer_name!r} has {len(images)} images but labels "
                f"{list(labels.shape)}"
            )
    return writers


def _without_repeated_names(names_and_values: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON, in which no name occurs twice: the parser would keep the last one."""
    json_object = dict(names_and_values)
    if len(json_object) < len(names_and_values):
        counts = Counter(name for name, _ in names_and_values)
        repeated, _ = counts.most_common(1)[0]
        raise ValueError(f"the name {repeated!r} occurs twice")
    return json_object


register(
    "femnist",
    Source(
        "digits and letters of 62 classes by writer, 28x28 (LEAF's JSON)", read_leaf, leaf_files
    ),
)
