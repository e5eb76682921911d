"""SVHN and SynthDigits, in MATLAB files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool
from coterie.settings import UserError


def matlab_files(folder: Path, name: str, prefix: str) -> Paths:
    """Find the training file and the test file."""
    places = (name, prefix.strip("_"), "")
    return tuple(
        readers.find(folder, places, (f"{prefix}{part}_32x32.mat",), name)
        for part in ("train", "test")
    )


def read_matlab(paths: Paths, options: DatasetSettings, seed: int = 0) -> Dataset:
    """Read SVHN or SynthDigits: ``X (32, 32, 3, N)``, ``y (N, 1)``.

    Args:
        paths: The training file and the test file.
        options: The name.
        seed: Not used.

    Returns:
        The data set.

    Raises:
        UserError: A file is not readable or its images have another shape.
    """
    del seed
    pools = []
    for path in paths:
        images, labels = readers.mat(path, ("X", "y"))
        if images.ndim != 4 or images.shape[2] != 3:
            raise UserError(
                f"{path} must hold colour images X of shape (height, width, 3, N), "
                f"got {images.shape}"
            )
        labels = labels.ravel()
        digits = np.where(labels == 10, 0, labels)  # SVHN labels the digit 0 as 10
        pools.append(pool(images.transpose(3, 2, 0, 1), digits, path, 10))
    return Dataset(name=options.name, train=pools[0], test=pools[1], classes=10)


for _name, _prefix, _about in (
    ("svhn", "", "73,257 + 26,032 house numbers, 32x32 in colour (MATLAB files)"),
    ("synth_digits", "synth_", "synthetic digits, 32x32 in colour (MATLAB files)"),
):
    register(_name, Source(_about, read_matlab, partial(matlab_files, name=_name, prefix=_prefix)))
