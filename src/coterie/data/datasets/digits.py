"""scikit-learn's handwritten digits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool


def read_digits(
    paths: Paths = (), options: DatasetSettings | None = None, seed: int = 0
) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, all of them in the training pool."""
    del paths, options, seed  # they come with scikit-learn
    pixels, labels = _pixels_and_labels()
    images = pixels.reshape(-1, 8, 8) / 16
    return Dataset(name="digits", train=pool(images, labels, "digits"), test=None, classes=10)


def _pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """The pixels ``(1797, 64)`` and the labels ``(1797,)``."""
    # To import scikit-learn takes longer than a short run, so we read its file.
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(int)
    from sklearn.datasets import load_digits  # the file has moved

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


register(
    "digits", Source("1,797 handwritten digits, 8x8, that come with scikit-learn", read_digits)
)
