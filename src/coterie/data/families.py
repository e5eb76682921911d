"""Data sets by family of files: the paths of one in, the :class:`~coterie.data.pool.Dataset` out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from coterie.data import readers
from coterie.data.pool import Dataset, Pool, pool
from coterie.files import available_memory
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError

Paths = tuple[Path, ...]


def read_npz(paths: Paths, name: str, classes: int | None) -> Dataset:
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


def digits(paths: Paths) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8, in one piece."""
    from sklearn.datasets import load_digits

    del paths  # they come with scikit-learn
    images, labels = load_digits(return_X_y=True)
    return Dataset(name="digits", train=pool(images.reshape(-1, 8, 8) / 16, labels, "digits"), test=None, classes=10)


def synthetic(
    paths: Paths, examples: int = 2000, features: int = 20, classes: int = 4, spread: float = 1.0, seed: int = 0
) -> Dataset:
    """Gaussian classes: means drawn from ``N(0, 1)`` per feature, examples around them, ``spread`` times as wide."""
    del paths
    _check_size(8 * (classes * features + examples * (features + 1)), examples, features, classes)
    rng = numpy_generator(seed, Purpose.DATA)
    means = rng.standard_normal((classes, features))
    labels = rng.permutation(np.arange(examples) % classes)
    inputs = rng.standard_normal((examples, features))
    inputs *= spread  # in place: the bound above leaves room for one copy
    inputs += means[labels]
    return Dataset(name="synthetic", train=pool(inputs, labels, "synthetic", classes), test=None, classes=classes)


def _check_size(needed: int, examples: int, features: int, classes: int) -> None:
    """Raises :class:`~coterie.settings.SettingError` if drawn data take more than half of the free memory, ``needed`` bytes."""
    if needed > (memory := available_memory() / 2):
        raise SettingError(
            f"Scenario.examples {examples:,}, features {features:,} and classes {classes:,} take {needed:,} bytes, and half of "
            f"the free memory is {memory:,.0f} bytes"
        )


def read_idx(paths: Paths, name: str) -> Dataset:
    pools = []
    for number in (0, 2):
        images, labels = readers.idx(paths[number], 3), readers.idx(paths[number + 1], 1)
        meta = _hands(paths[4 + number // 2], labels) if len(paths) > 4 else {}
        pools.append(pool(images, labels, paths[number + 1], 10, **meta))
    return Dataset(name=name, train=pools[0], test=pools[1], classes=10)


def _hands(path: Path, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Whose hand each digit is, ``(N,)``: its writer, and its population, 0 Census employees or 1 high-school students.

    Columns 2 and 1 of QMNIST's table; its first rows are MNIST's images, and column 0 must agree with their labels. Column 1
    numbers the series of NIST's forms: 4 is the students', those before it the employees'.
    """
    table = readers.idx(path, 2)
    if len(table) < len(labels) or table.shape[1] < 3 or (table[: len(labels), 0] != labels).any():
        raise UserError(f"{path} does not belong to these MNIST labels: its classes differ from them")
    return {"writer": table[: len(labels), 2], "population": np.equal(table[: len(labels), 1], 4)}


def read_cifar(paths: Paths, name: str, classes: int) -> Dataset:
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


def read_mat(paths: Paths, name: str) -> Dataset:
    """Street numbers (SVHN) or SynthDigits: ``X (32, 32, 3, N)``, ``y (N, 1)``, where SVHN calls the digit 0 10."""
    pools = []
    for path in paths:
        images, labels = readers.mat(path, ("X", "y"))
        if images.ndim != 4 or images.shape[2] != 3:
            raise UserError(f"{path} must hold colour images X of shape (height, width, 3, N), got {images.shape}")
        labels = labels.ravel()
        pools.append(pool(images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels), path, 10))
    return Dataset(name=name, train=pools[0], test=pools[1], classes=10)


def read_domains(paths: Paths, per_domain: int = 5000) -> Dataset:
    """Four kinds of digits as 3 x 28 x 28, the first ``per_domain`` training and a fifth as many test images of each.

    meta ``domain``: 0 MNIST, 1 USPS, 2 MNIST-M, 3 scikit-learn's digits, of which the last fifth is the test pool.
    """
    sets = [read_idx(paths[:4], "mnist"), read_npz(paths[4:5], "usps", 10), read_npz(paths[5:6], "mnist_m", 10)]
    own = digits(()).train
    cut = len(own) - len(own) // 5
    last = Dataset(name="digits", train=own.first(cut), test=Pool(own.inputs[cut:], own.targets[cut:]), classes=10)
    return _domains("digit_domains", [*sets, last], per_domain)


def read_five(paths: Paths, per_domain: int = 5000) -> Dataset:
    """HCCT's and FedBN's five kinds of digits, as :func:`read_domains`: 0 MNIST, 1 SVHN, 2 USPS, 3 SynthDigits, 4 MNIST-M."""
    mnist, svhn = read_idx(paths[:4], "mnist"), read_mat(paths[4:6], "svhn")
    usps, synth = read_npz(paths[6:7], "usps", 10), read_mat(paths[7:9], "synth_digits")
    return _domains("digit_five", [mnist, svhn, usps, synth, read_npz(paths[9:10], "mnist_m", 10)], per_domain)


def _domains(name: str, sets: list[Dataset], per_domain: int) -> Dataset:
    pools = [(s.train.first(per_domain), s.test.first(per_domain // 5)) for s in sets if s.test is not None]
    train, test = (_one_shape([pair[side] for pair in pools]) for side in (0, 1))
    return Dataset(name=name, train=train, test=test, classes=10)


def _one_shape(pools: list[Pool]) -> Pool:
    resized = [interpolate(p.inputs, (28, 28), mode="bilinear").expand(-1, 3, -1, -1).clamp(0, 1) for p in pools]
    domain = torch.cat([torch.full((len(p),), number) for number, p in enumerate(pools)])
    return Pool(torch.cat(resized), torch.cat([p.targets for p in pools]), {"domain": domain})
