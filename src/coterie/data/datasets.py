"""Data sets by name, from a folder of files in their upstream layouts: ``load("mnist", "/data")``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from coterie.data import hub, readers, text
from coterie.data.pool import Dataset, Pool, pool
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError, nearest

Paths = tuple[Path, ...]


@dataclass(frozen=True)
class Source:
    """How one data set is had: the files it needs under a folder (None: none at all), and how they are read.

    options: names of the settings that ``read`` takes after the paths.
    """

    about: str
    read: Callable[..., Dataset]
    files: Callable[[Path], Paths] | None = None
    options: tuple[str, ...] = ()


def load(name: str, folder: Path | str | None = None, **options: Any) -> Dataset:
    """The data set called ``name``: one of :data:`DATASETS`, ``hub:NAME``, or the ``NAME.npz`` of the folder.

    folder: where its files lie; None takes the environment's COTERIE_DATA. Each file is looked for in the folder itself
    and in upstream's own subfolders. The last two data sets stay in memory and are not read again unless a file has
    changed. Raises :class:`UserError` for an unknown name, a missing folder or file, and a file that is not what it
    should be.
    """
    source = find(name, folder)
    unknown = [option for option in options if option not in source.options]
    if unknown:
        raise SettingError(f"the data set {name} has no setting {unknown[0]!r}{nearest(unknown[0], source.options)}")
    paths = source.files(resolve(folder, name)) if source.files else ()
    stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    return _read(source, stamps, tuple(sorted(options.items())))


def find(name: str, folder: Path | str | None = None) -> Source:
    """The :class:`Source` of a data set; raises :class:`UserError` with the nearest known name."""
    if name in DATASETS:
        return DATASETS[name]
    if name.startswith("hub:"):
        return _hub(name)
    given = folder or os.environ.get("COTERIE_DATA")
    if given and Path(name).name == name and (resolve(folder, name) / f"{name}.npz").is_file():
        return _npz(name)
    known = f"{', '.join(DATASETS)}, hub:NAME, or the NAME of a NAME.npz in the data folder"
    raise UserError(f"there is no data set {name!r}{nearest(name, DATASETS)} (known: {known})")


def resolve(folder: Path | str | None, name: str) -> Path:
    """The data folder: the one given, else the environment's COTERIE_DATA; raises :class:`UserError` for none."""
    given = folder or os.environ.get("COTERIE_DATA")
    if not given:
        raise UserError(f"{name} is read from files: give their folder with --data DIR or set COTERIE_DATA")
    path = Path(given).expanduser()
    if not path.is_dir():
        raise UserError(f"the data folder {path} does not exist")
    return path


@lru_cache(maxsize=2)
def _read(source: Source, stamps: tuple[tuple[Path, int, int], ...], options: tuple[tuple[str, Any], ...]) -> Dataset:
    return source.read(tuple(path for path, _, _ in stamps), **dict(options))


@cache
def _npz(name: str, classes: int | None = None) -> Source:
    """A .npz with x_train, y_train, x_test, y_test, or with x and y alone."""
    return Source(
        f"{name}.npz: x_train, y_train and, where there is one, x_test, y_test",
        partial(_read_npz, name=name, classes=classes),
        lambda folder: (readers.find(folder, ("", name), (f"{name}.npz",), name),),
    )


def _read_npz(paths: Paths, name: str, classes: int | None) -> Dataset:
    train, test = npz_pools(paths[0], classes)
    tops = [int(p.targets.max()) for p in (train, test) if p is not None]
    return Dataset(name=name, train=train, test=test, classes=classes or max(tops) + 1)


def npz_pools(path: Path, classes: int | None = None) -> tuple[Pool, Pool | None]:
    """Training and test pool of a .npz file by its keys: x_train, y_train (or x, y), and x_test, y_test if there."""
    arrays = readers.npz(path)
    x, y = ("x_train", "y_train") if "x_train" in arrays else ("x", "y")
    if x not in arrays or y not in arrays or ("x_test" in arrays) != ("y_test" in arrays):
        found = ", ".join(arrays) or "nothing"
        raise UserError(f"{path} must hold x_train and y_train (or x and y), x_test with y_test; it holds {found}")
    test = pool(arrays["x_test"], arrays["y_test"], path, classes) if "x_test" in arrays else None
    return pool(arrays[x], arrays[y], path, classes), test


@cache
def _hub(name: str) -> Source:
    options = ("input_column", "label_column")
    return Source("a data set of the Hugging Face hub", partial(hub.read, name=name), options=options)


def _digits(paths: Paths) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8, in one piece."""
    from sklearn.datasets import load_digits

    del paths  # they come with scikit-learn
    images, labels = load_digits(return_X_y=True)
    return Dataset(name="digits", train=pool(images.reshape(-1, 8, 8) / 16, labels, "digits"), test=None, classes=10)


def _synthetic(
    paths: Paths, examples: int = 2000, features: int = 20, classes: int = 4, spread: float = 1.0, seed: int = 0
) -> Dataset:
    """Gaussian classes: means drawn from ``N(0, 1)`` per feature, examples around them, ``spread`` times as wide."""
    del paths
    rng = numpy_generator(seed, Purpose.DATA)
    means = rng.standard_normal((classes, features))
    labels = rng.permutation(np.arange(examples) % classes)
    inputs = means[labels] + spread * rng.standard_normal((examples, features))
    return Dataset(name="synthetic", train=pool(inputs, labels, "synthetic", classes), test=None, classes=classes)


_MNIST = ("MNIST/raw", "mnist", "")
_FASHION = ("FashionMNIST/raw", "fashion_mnist", "fashion", "")


def _idx_files(folder: Path, places: tuple[str, ...], name: str, writers: bool = False) -> Paths:
    """The four files of an MNIST-like set, and the two of QMNIST where the writers are wanted."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    # Some copies of the files have a dot where most have a hyphen.
    either: list[tuple[str, ...]] = [(f"{stem}-ubyte", f"{stem[:-5]}.{stem[-4:]}-ubyte") for stem in stems]
    if writers:
        either += [("qmnist-train-labels-idx2-int",), ("qmnist-test-labels-idx2-int",)]
    return tuple(readers.find(folder, places, names, name) for names in either)


def _read_idx(paths: Paths, name: str) -> Dataset:
    pools = []
    for number in (0, 2):
        images, labels = readers.idx(paths[number], 3), readers.idx(paths[number + 1], 1)
        meta = {"writer": _writers(paths[4 + number // 2], labels)} if len(paths) > 4 else {}
        pools.append(pool(images, labels, paths[number + 1], 10, **meta))
    return Dataset(name=name, train=pools[0], test=pools[1], classes=10)


def _writers(path: Path, labels: np.ndarray) -> np.ndarray:
    """Column 2 of QMNIST's table; its first rows are MNIST's images, and column 0 must agree with their labels."""
    table = readers.idx(path, 2)
    if len(table) < len(labels) or table.shape[1] < 3 or (table[: len(labels), 0] != labels).any():
        raise UserError(f"{path} does not belong to these MNIST labels: its classes differ from them")
    return table[: len(labels), 2]


def _cifar10_files(folder: Path) -> Paths:
    places = ("cifar-10-batches-bin", "cifar10", "")
    first = readers.find(folder, places, [f"data_batch_{i}.bin" for i in range(1, 6)], "cifar10")
    tests = [path for path in (first.parent / "test_batch.bin", first.parent / "test_batch.bin.gz") if path.is_file()]
    return (*sorted(first.parent.glob("data_batch_[1-5].bin*")), *tests[:1])


def _cifar100_files(folder: Path) -> Paths:
    places = ("cifar-100-binary", "cifar100", "")
    return tuple(readers.find(folder, places, (name,), "cifar100") for name in ("train.bin", "test.bin"))


def _read_cifar(paths: Paths, name: str, classes: int) -> Dataset:
    """Fine labels; a part of upstream's rows will do."""
    read = {path: readers.cifar(path, 1 if classes == 10 else 2) for path in paths}
    for path, (_, labels) in read.items():
        if labels.max() >= classes:
            raise UserError(f"{path} is mislabelled: labels must be 0 to {classes - 1}, found {labels.max()}")
    train, test = ([read[path] for path in paths if path.name.startswith("test") is held] for held in (False, True))

    def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> Pool:
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return pool(images, labels, name, classes)

    return Dataset(name=name, train=joined(train), test=joined(test) if test else None, classes=classes)


_DOMAINS = ("mnist", "usps", "mnist_m", "digits")


def _domain_files(folder: Path) -> Paths:
    needed = [DATASETS[name].files for name in _DOMAINS]
    return tuple(path for files in needed if files for path in files(folder))


def _read_domains(paths: Paths, per_domain: int = 5000) -> Dataset:
    """Four kinds of digits as 3 x 28 x 28, the first ``per_domain`` training and a fifth as many test images of each.

    meta ``domain``: 0 MNIST, 1 USPS, 2 MNIST-M, 3 scikit-learn's digits, of which the last fifth is the test pool.
    """
    sets = [_read_idx(paths[:4], "mnist"), _read_npz(paths[4:5], "usps", 10), _read_npz(paths[5:6], "mnist_m", 10)]
    digits = _digits(()).train
    cut = len(digits) - len(digits) // 5
    held = Pool(digits.inputs[cut:], digits.targets[cut:])
    pools = [(s.train.first(per_domain), s.test.first(per_domain // 5)) for s in sets if s.test is not None]
    pools.append((digits.first(min(cut, per_domain)), held.first(per_domain // 5)))
    train, test = (_one_shape([pair[side] for pair in pools]) for side in (0, 1))
    return Dataset(name="digit_domains", train=train, test=test, classes=10)


def _one_shape(pools: list[Pool]) -> Pool:
    resized = [interpolate(p.inputs, (28, 28), mode="bilinear").expand(-1, 3, -1, -1).clamp(0, 1) for p in pools]
    domain = torch.cat([torch.full((len(p),), number) for number, p in enumerate(pools)])
    return Pool(torch.cat(resized), torch.cat([p.targets for p in pools]), {"domain": domain})


_SYNTHETIC = ("examples", "features", "classes", "spread", "seed")


def _idx_source(about: str, name: str, places: tuple[str, ...], writers: bool = False) -> Source:
    files = partial(_idx_files, places=places, name=name, writers=writers)
    return Source(about, partial(_read_idx, name=name), files)


def _cifar_source(classes: int, files: Callable[[Path], Paths]) -> Source:
    read = partial(_read_cifar, name=f"cifar{classes}", classes=classes)
    return Source(f"colour photographs of {classes} classes, 32x32 (binary version)", read, files)


DATASETS: Mapping[str, Source] = MappingProxyType(
    {
        "digits": Source("1,797 handwritten digits, 8x8, that come with scikit-learn", _digits),
        "synthetic": Source("Gaussian classes of any size", _synthetic, options=_SYNTHETIC),
        "mnist": _idx_source("60,000 + 10,000 handwritten digits, 28x28 (idx files)", "mnist", _MNIST),
        "qmnist": _idx_source("MNIST with each digit's writer (idx files of both)", "qmnist", _MNIST, writers=True),
        "fashion_mnist": _idx_source("60,000 + 10,000 pictures of clothing, 28x28 (idx)", "fashion_mnist", _FASHION),
        "cifar10": _cifar_source(10, _cifar10_files),
        "cifar100": _cifar_source(100, _cifar100_files),
        "usps": _npz("usps", 10),
        "mnist_m": _npz("mnist_m", 10),
        "digit_domains": Source(
            "digits of four origins as 3x28x28: MNIST, USPS, MNIST-M, scikit-learn's",
            _read_domains,
            _domain_files,
            ("per_domain",),
        ),
        "ag_news": Source(
            "news articles of four topics, for next-word prediction (csv)",
            text.read,
            text.files,
            ("vocabulary", "length"),
        ),
    }
)
