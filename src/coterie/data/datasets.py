"""Data sets by name, from a folder of files in their upstream layouts: ``load("mnist", "/data")``."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from coterie.data import readers
from coterie.data.examples import Dataset, Pool, pool
from coterie.files import available_memory, expanded, reason
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError, nearest

# ----------------------------------------------------------------------------------------------------
# AG News as next-word prediction: articles in, sequences of tokens out.


UNKNOWN, END = "<unknown>", "<end>"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def text_files(folder: Path) -> tuple[Path, ...]:
    """train.csv and test.csv of AG News under ``folder``."""
    places = ("ag_news_csv", "ag_news", "")
    return tuple(readers.find(folder, places, (name,), "ag_news") for name in ("train.csv", "test.csv"))


def read_text(paths: tuple[Path, ...], vocabulary: int = 10_000, length: int = 30) -> Dataset:
    """Rows of class (1-4), title, description -> inputs and targets ``(N, length)``, targets one word ahead.

    The vocabulary is the most frequent lower-case words of the training articles, after ``<unknown>`` and ``<end>``. A
    topic's articles, each closed by ``<end>``, are joined and cut every ``length`` words, so no sequence is padded.
    meta ``topic``: 0 World, 1 Sports, 2 Business, 3 Sci/Tech.
    """
    articles = [_articles(path) for path in paths]
    counts = Counter(word for _, words in articles[0] for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = (UNKNOWN, END, *ranked[: max(vocabulary - 2, 0)])
    number = {word: i for i, word in enumerate(words)}
    train, test = (_sequences(some, number, length, path) for some, path in zip(articles, paths, strict=True))
    return Dataset(name="ag_news", train=train, test=test, classes=len(words), words=words)


def tokens(text: str) -> list[str]:
    """Lower-case words and numbers.

    >>> tokens("It's 28\\\\000 strong.")
    ["it's", '28', '000', 'strong']
    """
    return _WORD.findall(text.lower().replace("\\", " "))


def _articles(path: Path) -> list[tuple[int, list[str]]]:
    """(topic, words) of each article."""
    out = []
    for number, (topic, title, description) in enumerate(readers.rows(path, 3), 1):
        if topic not in ("1", "2", "3", "4"):
            raise UserError(f"{path} is mislabelled: row {number} has class {topic!r} where 1 to 4 were expected")
        out.append((int(topic) - 1, tokens(f"{title} {description}")))
    return out


def _sequences(articles: Iterable[tuple[int, list[str]]], number: dict[str, int], length: int, path: Path) -> Pool:
    streams: dict[int, list[int]] = {}
    for topic, words in articles:
        streams.setdefault(topic, []).extend([number.get(word, 0) for word in words] + [1])
    inputs, targets, topics = [], [], []
    for topic, stream in sorted(streams.items()):
        count = (len(stream) - 1) // length
        inputs.append(np.array(stream[: count * length], np.int64).reshape(count, length))
        targets.append(np.array(stream[1 : count * length + 1], np.int64).reshape(count, length))
        topics.append(np.full(count, topic, np.int64))
    if not sum(map(len, inputs)):
        raise UserError(f"{path} holds fewer than {length + 1} words of any topic, too few for one sequence")
    whole = [torch.from_numpy(np.concatenate(parts)) for parts in (inputs, targets, topics)]
    return Pool(whole[0], whole[1], {"topic": whole[2]})


# ----------------------------------------------------------------------------------------------------
# LEAF's FEMNIST: handwritten digits and letters of 62 classes, by writer, in JSON (S. Caldas et al., arXiv 1812.01097).
#
# Each file has ``users``, names of writers, and ``user_data``: name -> ``x``, lists of 784 numbers in [0, 1], and ``y``,
# classes. LEAF deals a writer's images to a training and a test file; here they are one pool, and scenarios hold out their
# own.


CLASSES, SIDE = 62, 28

PLACES = ("femnist/data", "leaf/data/femnist/data", "femnist", "")
PARTS = (("train", "test"), ("all_data",))


def leaf_files(folder: Path) -> tuple[Path, ...]:
    """LEAF's JSON files under a folder: of the split data, else of all data."""
    for place in PLACES:
        for parts in PARTS:
            found = [path for part in parts for path in sorted((folder / place / part).glob("*.json*"))]
            if found:
                return tuple(found)
    looked = ", ".join(str(folder / place / part) for place in PLACES for part in ("train", "all_data"))
    raise UserError(f"femnist needs LEAF's .json files, and there are none in: {looked}")


def read_leaf(paths: tuple[Path, ...]) -> Dataset:
    """All images; meta ``writer`` numbers the writers by name."""
    inputs, targets, writers = [], [], []
    for path in paths:
        for name, images, labels in _writers(path):
            inputs.append(images)
            targets.append(labels)
            writers += [name] * len(labels)
    if not writers:
        raise UserError(f"{paths[0].parent} holds no examples")
    numbers = np.unique(writers, return_inverse=True)[1]
    whole = pool(np.concatenate(inputs), np.concatenate(targets), paths[0].parent, CLASSES, writer=numbers)
    return Dataset(name="femnist", train=whole, test=None, classes=CLASSES)


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(name, images ``(m, 28, 28)`` float32, labels ``(m,)``) of each writer in a file who has any."""
    try:
        data: dict[str, Any] = json.loads(readers.content(path))["user_data"]
        found = [(name, _images(own["x"]), np.array(own["y"])) for name, own in data.items() if own["y"]]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is no file of LEAF's FEMNIST: {type(error).__name__}, {error}") from error
    for name, images, labels in found:
        if labels.shape != (len(images),):
            raise UserError(f"{path} is mislabelled: writer {name!r} has {len(images)} images but labels {list(labels.shape)}")
    return found


def _images(rows: Any) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, SIDE, SIDE)


# ----------------------------------------------------------------------------------------------------
# Data sets of the Hugging Face hub, through flwr-datasets (``pip install 'coterie[hub]'``).


INPUTS = ("image", "img", "images", "x", "pixel_values", "features", "inputs", "input")
LABELS = ("label", "labels", "fine_label", "y", "target", "class", "digit", "character")
WRITERS = ("writer_id", "writer", "user_id", "client_id", "hsf_id")


def read_hub(paths: tuple[Path, ...], name: str, input_column: str | None = None, label_column: str | None = None) -> Dataset:
    """``hub:NAME``, where NAME is a data set of the hub, or a local folder of parquet files in the hub's layout.

    Its ``train`` split, and its ``test`` (or ``validation``) split where there is one. The input and label columns are
    found by type (an image; a class label) or by usual names, unless they are given; a column of writers becomes the
    meta ``writer``. Raises :class:`UserError` without flwr-datasets, for an unknown set, and where a column is unclear.
    """
    del paths  # the hub's own cache keeps the files
    train_split, held = _splits(name)
    features = train_split.features
    x = _column(name, features, "Image", INPUTS, input_column, "input_column")
    y = _column(name, features, "ClassLabel", LABELS, label_column, "label_column")
    writer = next((column for column in WRITERS if column in features), None)
    train = _pool(train_split, x, y, writer, name)
    test = None if held is None else _pool(held, x, y, writer, name)
    named = getattr(features[y], "num_classes", None)
    top = max(int(some.targets.max()) for some in (train, test) if some is not None)
    return Dataset(name=name, train=train, test=test, classes=named or top + 1)


def _splits(name: str) -> tuple[Any, Any | None]:
    """The training split, and the one to test on or None."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # else names of data sets are sent to flwr-datasets' makers
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise UserError(f"{name} needs flwr-datasets: pip install 'coterie[hub]'") from error
    _check_regular(Path(name.removeprefix("hub:")))
    data = FederatedDataset(dataset=name.removeprefix("hub:"), partitioners={}, shuffle=False)
    try:
        train = data.load_split("train")
    except Exception as error:  # unknown, private, out of reach, no such split, broken: of many kinds, told in the first line
        raise UserError(f"{name} cannot be loaded: {_first_line(error)}") from error
    for held in ("test", "validation", "valid"):
        try:
            return train, data.load_split(held)
        except ValueError:  # it has no such split
            continue
    return train, None


def _check_regular(folder: Path) -> None:
    """A folder of this machine holds folders and regular files alone: of a named pipe, the library would wait for an end."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(name: str, features: Mapping[str, Any], kind: str, usual: tuple[str, ...], given: str | None, setting: str) -> str:
    """The one column of that kind, or with a usual name."""
    have = ", ".join(features)
    if given is not None:
        if given not in features:
            raise UserError(f"{name} has no column {given!r} ({setting}); it has {have}")
        return given
    typed = [column for column, feature in features.items() if type(feature).__name__ == kind]
    likely = typed if len(typed) == 1 else [column for column in usual if column in (typed or features)]
    if not likely:
        raise UserError(f"{name}: which column is meant is unclear, set {setting}; it has {have}")
    return likely[0]


def _pool(split: Any, x: str, y: str, writer: str | None, name: str) -> Pool:
    try:
        inputs = [np.asarray(value) for value in split[x]]
    except Exception as error:  # of a broken image, say: of many kinds
        raise UserError(f"{name}: the inputs in {x!r} cannot be read: {_first_line(error)}") from error
    if len({(value.shape, value.dtype.kind) for value in inputs}) > 1:
        raise UserError(f"{name}: the inputs in {x!r} differ in shape; Coterie needs one shape")
    meta: dict[str, Any] = {} if writer is None else {"writer": np.unique(np.asarray(split[writer]), return_inverse=True)[1]}
    return pool(np.stack(inputs) if inputs else inputs, split[y][:], name, **meta)


# ----------------------------------------------------------------------------------------------------
# Data sets by family of files: the paths of one in, the :class:`~coterie.data.examples.Dataset` out.


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
        partial(read_npz, name=name, classes=classes),
        lambda folder: (readers.find(folder, ("", name), (f"{name}.npz",), name),),
    )


@cache
def _hub(name: str) -> Source:
    options = ("input_column", "label_column")
    return Source("a data set of the Hugging Face hub", partial(read_hub, name=name), options=options)


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
    return Source(about, partial(read_mat, name=name), partial(_mat_files, name=name, stem=stem))


_DOMAINS = ("mnist", "usps", "mnist_m", "digits")
_FIVE = ("mnist", "svhn", "usps", "synth_digits", "mnist_m")


def _domain_files(folder: Path, domains: tuple[str, ...] = _DOMAINS) -> Paths:
    needed = [DATASETS[name].files for name in domains]
    return tuple(path for files in needed if files for path in files(folder))


_SYNTHETIC = ("examples", "features", "classes", "spread", "seed")


def _idx_source(about: str, name: str, places: tuple[str, ...], writers: bool = False) -> Source:
    files = partial(_idx_files, places=places, name=name, writers=writers)
    return Source(about, partial(read_idx, name=name), files)


def _cifar_source(classes: int, files: Callable[[Path], Paths]) -> Source:
    read = partial(read_cifar, name=f"cifar{classes}", classes=classes)
    return Source(f"colour photographs of {classes} classes, 32x32 (binary version)", read, files)


DATASETS: Mapping[str, Source] = MappingProxyType(
    {
        "digits": Source("1,797 handwritten digits, 8x8, that come with scikit-learn", digits),
        "synthetic": Source("Gaussian classes of any size", synthetic, options=_SYNTHETIC),
        "mnist": _idx_source("60,000 + 10,000 handwritten digits, 28x28 (idx files)", "mnist", _MNIST),
        "qmnist": _idx_source("MNIST with each digit's writer and population (idx files)", "qmnist", _MNIST, writers=True),
        "fashion_mnist": _idx_source("60,000 + 10,000 pictures of clothing, 28x28 (idx)", "fashion_mnist", _FASHION),
        "cifar10": _cifar_source(10, _cifar10_files),
        "cifar100": _cifar_source(100, _cifar100_files),
        "usps": _npz("usps", 10),
        "mnist_m": _npz("mnist_m", 10),
        "digit_domains": Source(
            "digits of four origins as 3x28x28: MNIST, USPS, MNIST-M, scikit-learn's",
            read_domains,
            _domain_files,
            ("per_domain",),
        ),
        "svhn": _mat_source("73,257 + 26,032 house numbers, 32x32 in colour (MATLAB files)", "svhn"),
        "synth_digits": _mat_source("synthetic digits, 32x32 in colour (MATLAB files)", "synth_digits", "synth_"),
        "digit_five": Source(
            "digits of five origins as 3x28x28, as in HCCT: MNIST, SVHN, USPS, SynthDigits, MNIST-M",
            read_five,
            partial(_domain_files, domains=_FIVE),
            ("per_domain",),
        ),
        "femnist": Source("digits and letters of 62 classes by writer, 28x28 (LEAF's JSON)", read_leaf, leaf_files),
        "ag_news": Source(
            "news articles of four topics, for next-word prediction (csv)",
            read_text,
            text_files,
            ("vocabulary", "length"),
        ),
    }
)
