"""CIFAR-10 and CIFAR-100 in their binary versions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, Pool, pool
from coterie.settings import UserError


def cifar10_files(folder: Path) -> Paths:
    """Find those of the five training files that exist, at least one, and the test file if any."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    place = readers.find(folder, ("cifar-10-batches-bin", "cifar10", ""), names, "cifar10").parent
    paths: list[Path] = []
    for name in (*names, "test_batch.bin"):
        spellings = (place / name, place / f"{name}.gz")
        paths += [path for path in spellings if path.is_file()][:1]
    return tuple(paths)


def cifar100_files(folder: Path) -> Paths:
    """Find the training file and the test file."""
    places = ("cifar-100-binary", "cifar100", "")
    return tuple(
        readers.find(folder, places, (name,), "cifar100") for name in ("train.bin", "test.bin")
    )


def read_cifar(paths: Paths, options: DatasetSettings, seed: int, classes: int) -> Dataset:
    """Read CIFAR-10 or CIFAR-100 (fine labels); some of the upstream rows are enough.

    Args:
        paths: The files; names that start with ``test`` belong to the test pool.
        options: The name.
        seed: Not used.
        classes: 10 or 100.

    Returns:
        The data set; its test pool is None without a test file.

    Raises:
        UserError: A file is incomplete or mislabelled.
    """
    del seed
    train: list[tuple[np.ndarray, np.ndarray]] = []
    test: list[tuple[np.ndarray, np.ndarray]] = []
    for path in paths:
        # CIFAR-100 has two labels an image, of which the second is the fine one.
        labels_per_image = 1 if classes == 10 else 2
        images, labels = readers.cifar(path, labels_per_image)
        if labels.max() >= classes:
            raise UserError(
                f"{path} is mislabelled: labels must be 0 to {classes - 1}, found {labels.max()}"
            )
        pool_parts = test if path.name.startswith("test") else train
        pool_parts.append((images, labels))
    return Dataset(
        name=options.name,
        train=_joined(train, options.name, classes),
        test=_joined(test, options.name, classes) if test else None,
        classes=classes,
    )


def _joined(parts: list[tuple[np.ndarray, np.ndarray]], name: str, classes: int) -> Pool:
    images = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    return pool(images, labels, name, classes)


for _classes, _files in ((10, cifar10_files), (100, cifar100_files)):
    register(
        f"cifar{_classes}",
        Source(
            f"colour photographs of {_classes} classes, 32x32 (binary version)",
            partial(read_cifar, classes=_classes),
            _files,
        ),
    )
