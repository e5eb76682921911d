"""Data sets in MNIST's idx files: MNIST, Fashion-MNIST, and QMNIST with the writer of each digit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool
from coterie.settings import UserError

# Upstream: the four idx files of MNIST and of data sets in its format. The files of images hold (N,
# 28, 28) bytes, those of labels (N,) bytes; 60,000 are for training and 10,000 for tests. QMNIST
# adds two tables of integers with facts about each digit, such as who wrote it.
#
# From files to pools: the images and labels of train-* are the training pool, those of t10k-* the
# test pool. Pixels become floats from 0 to 1.
#
# From pools to clients: partitions divide by label or at random. With QMNIST's tables the partition
# ``writer`` makes one client of each writer, and ``population`` makes two groups of clients, whose
# digits were written by Census employees or by students.
IMAGES_AND_LABELS = (
    "train-images-idx3",
    "train-labels-idx1",
    "t10k-images-idx3",
    "t10k-labels-idx1",
)
WRITER_TABLES = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")


def idx_files(
    folder: Path, dataset_name: str, places: tuple[str, ...], writers: bool = False
) -> Paths:
    """Find the four files of a data set like MNIST, and two more of QMNIST if it has writers."""
    # Some copies of the files have a dot where most have a hyphen.
    spellings: list[tuple[str, ...]] = [
        (f"{file_stem}-ubyte", f"{file_stem[:-5]}.{file_stem[-4:]}-ubyte")
        for file_stem in IMAGES_AND_LABELS
    ]
    if writers:
        spellings += [(table_name,) for table_name in WRITER_TABLES]
    return tuple(
        readers.find(folder, places, spellings_of_file, dataset_name)
        for spellings_of_file in spellings
    )


def read_idx(paths: Paths, options: DatasetSettings, seed: int = 0) -> Dataset:
    """Read the idx files of a data set like MNIST, and QMNIST's tables if they are given."""
    del seed
    pools = []
    # The order of the paths: images and labels to train, the same to test, and QMNIST's tables.
    has_tables = len(paths) > 4
    for pool_number in range(2):
        # Each pool has its images and its labels in two files.
        images_path = paths[2 * pool_number]
        labels_path = paths[2 * pool_number + 1]
        images = readers.idx(images_path, 3)
        labels = readers.idx(labels_path, 1)
        meta = _writers(paths[4 + pool_number], labels) if has_tables else {}
        pools.append(pool(images, labels, labels_path, 10, **meta))
    return Dataset(name=options.name, train=pools[0], test=pools[1], classes=10)


def _writers(path: Path, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The writer and population of each digit, ``(N,)``: 0 Census employees, 1 students.

    These are columns 2 and 1 of QMNIST's table. Its first rows are MNIST's images; column 0 must
    agree with their labels. Column 1 is the series of NIST's forms: 4 is the high-school students'
    series, smaller numbers are the employees'.
    """
    digit_table = readers.idx(path, 2)
    if (
        len(digit_table) < len(labels)
        or digit_table.shape[1] < 3
        or (digit_table[: len(labels), 0] != labels).any()
    ):
        raise UserError(
            f"{path} does not belong to these MNIST labels: its classes differ from them"
        )
    # QMNIST has more test digits than MNIST; those after MNIST's are not used.
    digit_table = digit_table[: len(labels)]
    return {"writer": digit_table[:, 2], "population": np.equal(digit_table[:, 1], 4)}


_MNIST_FOLDERS = ("MNIST/raw", "mnist", "")
_FASHION_FOLDERS = ("FashionMNIST/raw", "fashion_mnist", "fashion", "")

for _name, _about, _places in (
    ("mnist", "60,000 + 10,000 handwritten digits, 28x28 (idx files)", _MNIST_FOLDERS),
    ("qmnist", "MNIST with each digit's writer and population (idx files)", _MNIST_FOLDERS),
    ("fashion_mnist", "60,000 + 10,000 pictures of clothing, 28x28 (idx)", _FASHION_FOLDERS),
):
    _files = partial(idx_files, dataset_name=_name, places=_places, writers=_name == "qmnist")
    register(_name, Source(_about, read_idx, _files))
