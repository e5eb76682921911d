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


def read_npz(
    paths: Paths, options: DatasetSettings, seed: int = 0, classes: int | None = None
) -> Dataset:
    """Read a .npz file; without ``classes``, the number of classes is the greatest label + 1."""
    del seed
    train, test = npz_pools(paths[0], classes)
    if classes is None:
        highest = [int(pool.targets.max()) for pool in (train, test) if pool is not None]
        classes = max(highest) + 1
    return Dataset(name=options.name, train=train, test=test, classes=classes)


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
    arrays = readers.npz(path)
    check_scale({str(path): arrays})
    ending = "_train" if "x_train" in arrays else ""
    input_key = f"x{ending}"
    target_key = f"y{ending}"
    if (
        input_key not in arrays
        or target_key not in arrays
        or ("x_test" in arrays) != ("y_test" in arrays)
    ):
        keys = ", ".join(arrays) or "nothing"
        raise UserError(
            f"{path} must hold x_train and y_train (or x and y), x_test with y_test; it holds {keys}"
        )
    train = pool(arrays[input_key], arrays[target_key], path, classes)
    if "x_test" not in arrays:
        return train, None
    return train, pool(arrays["x_test"], arrays["y_test"], path, classes)


def npz_files(folder: Path, name: str) -> Paths:
    """Find ``NAME.npz``."""
    return (readers.find(folder, ("", name), (f"{name}.npz",), name),)


@cache  # equal names are one source, whose data set stays in memory
def npz_source(name: str, classes: int | None = None) -> Source:
    """Return the data set of ``NAME.npz``."""
    return Source(
        f"{name}.npz: x_train, y_train and, where there is one, x_test, y_test",
        partial(read_npz, classes=classes),
        partial(npz_files, name=name),
    )


def _in_folder(name: str, folder: Path | None) -> Source | None:
    if folder is None or Path(name).name != name or not (folder / f"{name}.npz").is_file():
        return None
    return npz_source(name)


register("usps", npz_source("usps", 10))
register("mnist_m", npz_source("mnist_m", 10))
register_family(Family("or the NAME of a NAME.npz in the data folder", _in_folder))
