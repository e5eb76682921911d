"""CIFAR-10 and CIFAR-100 in their binary versions, and in the Python versions that torchvision downloads."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from coterie.data import pickle_data, readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, Pool, pool
from coterie.settings import UserError

# Upstream: the binary version of CIFAR. CIFAR-10 has data_batch_1.bin to data_batch_5.bin with
# 10,000 images each, and test_batch.bin with 10,000; CIFAR-100 has train.bin with 50,000 images and
# test.bin with 10,000. A row is one label byte (CIFAR-100: the coarse and the fine label) and 3 x
# 32 x 32 pixel bytes: all of red, then green, then blue. In the Python version, data_batch_1 to _5
# and test_batch, or train and test, are pickled dictionaries: "data" has the pixel bytes of the
# images, and "labels" (CIFAR-100: "fine_labels") their labels.
#
# From files to pools: the rows of all training files, one after the other, are the training pool,
# and those of the test file the test pool. Pixels become floats from 0 to 1.
#
# From pools to clients: upstream records nothing of an image but its label, so partitions divide by
# label (dirichlet, shards, half-normal, classes) or at random.
ImagesAndLabels = tuple[np.ndarray, np.ndarray]
"""Images ``(N, 3, 32, 32)`` and labels ``(N,)`` of one file."""


PYTHON_FOLDER_10 = "cifar-10-batches-py"
PYTHON_FOLDER_100 = "cifar-100-python"


def cifar10_files(folder: Path) -> Paths:
    """Find those of the five training files that exist, at least one, and the test file if any."""
    places = ("cifar-10-batches-bin", "cifar10", "", PYTHON_FOLDER_10)
    train_names = [f"data_batch_{number}" for number in range(1, 6)]
    # The first training file that exists says which folder and version the others are of.
    first_path = readers.find(
        folder, places, [*(f"{name}.bin" for name in train_names), *train_names], "cifar10"
    )
    cifar_folder = first_path.parent
    suffix = ".bin" if ".bin" in first_path.name else ""
    paths: list[Path] = []
    for name in (*train_names, "test_batch"):
        file_name = f"{name}{suffix}"
        # Each file may be gzipped; the plain one is preferred.
        for path in (cifar_folder / file_name, cifar_folder / f"{file_name}.gz"):
            if path.is_file():
                paths.append(path)
                break
    return tuple(paths)


def cifar100_files(folder: Path) -> Paths:
    """Find the training file and the test file."""
    places = ("cifar-100-binary", "cifar100", "")
    # Of both versions, the binary one is read.
    python_paths = tuple(folder / PYTHON_FOLDER_100 / name for name in ("train", "test"))
    has_binary = any((folder / place / "train.bin").is_file() for place in places)
    if not has_binary and all(path.is_file() for path in python_paths):
        return python_paths
    train_path = readers.find(folder, places, ("train.bin",), "cifar100")
    test_path = readers.find(folder, places, ("test.bin",), "cifar100")
    return train_path, test_path


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
    train_files: list[ImagesAndLabels] = []
    test_files: list[ImagesAndLabels] = []
    for path in paths:
        if ".bin" in path.name:
            # CIFAR-100 has two labels an image, of which the second is the fine one.
            images, labels = readers.cifar(path, labels=1 if classes == 10 else 2)
        else:
            images, labels = _python_version(path, "labels" if classes == 10 else "fine_labels")
        if labels.max() >= classes:
            raise UserError(
                f"{path} is mislabelled: labels must be 0 to {classes - 1}, found {labels.max()}"
            )
        files_of_pool = test_files if path.name.startswith("test") else train_files
        files_of_pool.append((images, labels))
    # Files follow one another in the order of their numbers, so positions in the pool are
    # upstream's.
    return Dataset(
        name=options.name,
        train=_joined(train_files, options.name, classes),
        test=_joined(test_files, options.name, classes) if test_files else None,
        classes=classes,
    )


def _python_version(path: Path, label_key: str) -> ImagesAndLabels:
    """Read a file of the Python version, without unpickling it."""
    try:
        entries = pickle_data.data_of(readers.content(path))
        # Keys of Python 2 are bytes when Python 3 has pickled them again.
        by_name = {
            key.decode("latin-1") if isinstance(key, bytes) else key: value
            for key, value in entries.items()
        }
        images = pickle_data.byte_array(by_name["data"])
        labels = np.array(by_name[label_key], dtype=np.int64)
        if images.shape != (len(labels), readers.CIFAR_PIXELS) or not len(labels):
            raise ValueError(
                f"its images have shape {images.shape}, and it has {len(labels)} labels"
            )
        if labels.min() < 0:
            raise ValueError(f"it has the label {labels.min()}")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is no file of CIFAR's Python version: {error}") from error
    return images.reshape(-1, 3, 32, 32), labels


def _joined(files_of_pool: list[ImagesAndLabels], dataset_name: str, classes: int) -> Pool:
    """One pool of the images and the labels of several files."""
    images, labels = zip(*files_of_pool, strict=True)
    return pool(np.concatenate(images), np.concatenate(labels), dataset_name, classes)


for _classes, _files in ((10, cifar10_files), (100, cifar100_files)):
    register(
        f"cifar{_classes}",
        Source(
            f"colour photographs of {_classes} classes, 32x32",
            partial(read_cifar, classes=_classes),
            _files,
        ),
    )
