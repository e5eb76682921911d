"""Data sets by name, from a folder of files in their upstream layouts: ``load("mnist", "/data")``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.data import families, hub, leaf, readers, text
from coterie.data.families import Paths
from coterie.data.pool import Dataset
from coterie.files import expanded, reason
from coterie.settings import SettingError, UserError, nearest


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
    try:
        stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {reason(error)}") from error
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
    path = expanded(given)
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
        partial(families.read_npz, name=name, classes=classes),
        lambda folder: (readers.find(folder, ("", name), (f"{name}.npz",), name),),
    )


@cache
def _hub(name: str) -> Source:
    options = ("input_column", "label_column")
    return Source("a data set of the Hugging Face hub", partial(hub.read, name=name), options=options)


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


def _cifar10_files(folder: Path) -> Paths:
    """Those of the five training files that are there, at least one, and the test file if it is."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    place = readers.find(folder, ("cifar-10-batches-bin", "cifar10", ""), names, "cifar10").parent
    either = [(place / name, place / f"{name}.gz") for name in (*names, "test_batch.bin")]
    return tuple(path for pair in either for path in [p for p in pair if p.is_file()][:1])


def _cifar100_files(folder: Path) -> Paths:
    places = ("cifar-100-binary", "cifar100", "")
    return tuple(readers.find(folder, places, (name,), "cifar100") for name in ("train.bin", "test.bin"))


def _mat_files(folder: Path, name: str, stem: str) -> Paths:
    places = (name, stem.strip("_"), "")
    return tuple(readers.find(folder, places, (f"{stem}{part}_32x32.mat",), name) for part in ("train", "test"))


def _mat_source(about: str, name: str, stem: str = "") -> Source:
    return Source(about, partial(families.read_mat, name=name), partial(_mat_files, name=name, stem=stem))


_DOMAINS = ("mnist", "usps", "mnist_m", "digits")
_FIVE = ("mnist", "svhn", "usps", "synth_digits", "mnist_m")


def _domain_files(folder: Path, domains: tuple[str, ...] = _DOMAINS) -> Paths:
    needed = [DATASETS[name].files for name in domains]
    return tuple(path for files in needed if files for path in files(folder))


_SYNTHETIC = ("examples", "features", "classes", "spread", "seed")


def _idx_source(about: str, name: str, places: tuple[str, ...], writers: bool = False) -> Source:
    files = partial(_idx_files, places=places, name=name, writers=writers)
    return Source(about, partial(families.read_idx, name=name), files)


def _cifar_source(classes: int, files: Callable[[Path], Paths]) -> Source:
    read = partial(families.read_cifar, name=f"cifar{classes}", classes=classes)
    return Source(f"colour photographs of {classes} classes, 32x32 (binary version)", read, files)


DATASETS: Mapping[str, Source] = MappingProxyType(
    {
        "digits": Source("1,797 handwritten digits, 8x8, that come with scikit-learn", families.digits),
        "synthetic": Source("Gaussian classes of any size", families.synthetic, options=_SYNTHETIC),
        "mnist": _idx_source("60,000 + 10,000 handwritten digits, 28x28 (idx files)", "mnist", _MNIST),
        "qmnist": _idx_source("MNIST with each digit's writer and population (idx files)", "qmnist", _MNIST, writers=True),
        "fashion_mnist": _idx_source("60,000 + 10,000 pictures of clothing, 28x28 (idx)", "fashion_mnist", _FASHION),
        "cifar10": _cifar_source(10, _cifar10_files),
        "cifar100": _cifar_source(100, _cifar100_files),
        "usps": _npz("usps", 10),
        "mnist_m": _npz("mnist_m", 10),
        "digit_domains": Source(
            "digits of four origins as 3x28x28: MNIST, USPS, MNIST-M, scikit-learn's",
            families.read_domains,
            _domain_files,
            ("per_domain",),
        ),
        "svhn": _mat_source("73,257 + 26,032 house numbers, 32x32 in colour (MATLAB files)", "svhn"),
        "synth_digits": _mat_source("synthetic digits, 32x32 in colour (MATLAB files)", "synth_digits", "synth_"),
        "digit_five": Source(
            "digits of five origins as 3x28x28, as in HCCT: MNIST, SVHN, USPS, SynthDigits, MNIST-M",
            families.read_five,
            partial(_domain_files, domains=_FIVE),
            ("per_domain",),
        ),
        "femnist": Source("digits and letters of 62 classes by writer, 28x28 (LEAF's JSON)", leaf.read, leaf.files),
        "ag_news": Source(
            "news articles of four topics, for next-word prediction (csv)",
            text.read,
            text.files,
            ("vocabulary", "length"),
        ),
    }
)
