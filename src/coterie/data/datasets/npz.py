"""Data sets in one .npz file: USPS, MNIST-M, and any ``NAME.npz`` in the data folder."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from coterie.data import readers
from coterie.data.datasets.source import (
    DatasetSettings,
    Family,
    Paths,
    Source,
    register,
    register_family,
)
from coterie.data.examples import Dataset, Pool, pool
from coterie.data.matching import check_scale
from coterie.settings import UserError


# The file: NumPy's .npz format, with the arrays x_train, y_train and, if upstream divides the data,
# x_test, y_test; or x and y. USPS and MNIST-M are such files, and so is any other NAME.npz in the
# data folder.
#
# From the file to pools: x_train and y_train are the training pool, x_test and y_test the test
# pool. Bytes and whole numbers of three or more dimensions are images; see ``examples.pool``.
#
# From pools to clients: partitions divide by label or at random.
def read_npz(
    paths: Paths, options: DatasetSettings, seed: int = 0, classes: int | None = None
) -> Dataset:
    """Read a .npz file; without ``classes``, the number of classes is the greatest label + 1."""
    del seed
    train_pool, test_pool = npz_pools(paths[0], classes)
    # Nobody has told the number of classes: they are 0 to the greatest label of either pool.
    if classes is None:
        highest_label = int(train_pool.targets.max())
        if test_pool is not None:
            highest_label = max(highest_label, int(test_pool.targets.max()))
        classes = highest_label + 1
    return Dataset(name=options.name, train=train_pool, test=test_pool, classes=classes)


def npz_pools(path: Path, classes: int | None = None) -> tuple[Pool, Pool | None]:
    """Read the training pool and the test pool of a .npz file.

    Args:
        path: A file with x_train, y_train (or x, y) and, optionally, x_test, y_test.
        classes: Number of classes, if it is known.

    Returns:
        The training pool, and the test pool or None.

    Raises:
        UserError: The file is not readable or has other keys.
    """
    # Training and test images must have the same scale, 0 to 1 or 0 to 255.
    arrays = readers.npz(path)
    check_scale({str(path): arrays})
    # The names of the arrays are those of a divided data set, or x and y.
    ending = "_train" if "x_train" in arrays else ""
    input_key = f"x{ending}"
    target_key = f"y{ending}"
    if (
        input_key not in arrays
        or target_key not in arrays
        or ("x_test" in arrays) != ("y_test" in arrays)
    ):
        held_keys = ", ".join(arrays) or "nothing"
        raise UserError(
            f"{path} must hold x_train and y_train (or x and y), x_test with y_test; it holds {held_keys}"
        )
    train_pool = pool(arrays[input_key], arrays[target_key], path, classes)
    if "x_test" not in arrays:
        return train_pool, None
    return train_pool, pool(arrays["x_test"], arrays["y_test"], path, classes)


def npz_files(folder: Path, name: str) -> Paths:
    """Find ``NAME.npz``."""
    return (readers.find(folder, ("", name), (f"{name}.npz",), name),)


# Equal names are one source, whose data set stays in memory.
@cache
def npz_source(name: str, classes: int | None = None) -> Source:
    """Return the data set of ``NAME.npz``."""
    return Source(
        f"{name}.npz: x_train, y_train and, where there is one, x_test, y_test",
        partial(read_npz, classes=classes),
        partial(npz_files, name=name),
    )


def _in_folder(name: str, folder: Path | None) -> Source | None:
    # A name with a folder in it could lead out of the data folder.
    if folder is None or Path(name).name != name or not (folder / f"{name}.npz").is_file():
        return None
    return npz_source(name)


register("usps", npz_source("usps", 10))
register("mnist_m", npz_source("mnist_m", 10))
register_family(Family("or the NAME of a NAME.npz in the data folder", _in_folder))
