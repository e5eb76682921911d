"""SVHN and SynthDigits, in MATLAB files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from coterie.data import readers
from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool
from coterie.settings import UserError


# Upstream: two MATLAB files, for training and for tests. SVHN (house numbers) has train_32x32.mat
# and test_32x32.mat; SynthDigits has the same with the prefix synth_. Each holds ``X (32, 32, 3,
# N)``, the pixels as bytes with the images last, and ``y (N, 1)``, the digits.
#
# From files to pools: each file is one pool of images ``(N, 3, 32, 32)`` from 0 to 1.
#
# From pools to clients: partitions divide by label or at random. In ``digit_five`` each of the two
# is a domain.
def matlab_files(folder: Path, dataset_name: str, prefix: str) -> Paths:
    """Find the training file and the test file."""
    places = (dataset_name, prefix.strip("_"), "")
    train_path = readers.find(folder, places, (f"{prefix}train_32x32.mat",), dataset_name)
    test_path = readers.find(folder, places, (f"{prefix}test_32x32.mat",), dataset_name)
    return train_path, test_path


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
        # SVHN labels the digit 0 as 10.
        digits = np.where(labels == 10, 0, labels)
        # The images come first, then the channels, then rows and columns, as PyTorch has it.
        pools.append(pool(images.transpose(3, 2, 0, 1), digits, path, 10))
    return Dataset(name=options.name, train=pools[0], test=pools[1], classes=10)


for _name, _prefix, _about in (
    ("svhn", "", "73,257 + 26,032 house numbers, 32x32 in colour (MATLAB files)"),
    ("synth_digits", "synth_", "synthetic digits, 32x32 in colour (MATLAB files)"),
):
    register(
        _name,
        Source(_about, read_matlab, partial(matlab_files, dataset_name=_name, prefix=_prefix)),
    )
