"""scikit-learn's handwritten digits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from coterie.data.datasets.source import DatasetSettings, Paths, Source, register
from coterie.data.examples import Dataset, pool


# Upstream: digits.csv.gz inside the scikit-learn package, a row for each of 1,797 images: 64 pixels
# from 0 to 16 and the digit. Nothing is downloaded, so this is the data set of examples and tests.
#
# There is no upstream test file: all images are one pool, which a scenario divides among clients,
# and each client holds out its own test images.
def read_digits(
    paths: Paths = (), options: DatasetSettings | None = None, seed: int = 0
) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, all of them in the training pool."""
    # The images come with scikit-learn, so no path is needed.
    del paths, options, seed
    pixels, labels = _pixels_and_labels()
    # Pixels become floats from 0 to 1.
    images = pixels.reshape(-1, 8, 8) / 16
    return Dataset(name="digits", train=pool(images, labels, "digits"), test=None, classes=10)


def _pixels_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """The pixels ``(1797, 64)`` and the labels ``(1797,)``."""
    # To import scikit-learn takes longer than a short run, so we read its file.
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        digits_file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
        if digits_file.is_file():
            digits_table = np.loadtxt(digits_file, delimiter=",")
            return digits_table[:, :-1], digits_table[:, -1].astype(int)
    # A version of scikit-learn may move the file; its own function then finds it.
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels


register(
    "digits", Source("1,797 handwritten digits, 8x8, that come with scikit-learn", read_digits)
)
