"""Data sets by name, read from a folder of files in their upstream layouts: ``load("mnist", "/data")``."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from coterie.data import readers
from coterie.data.drift import STREAMS, drawn
from coterie.data.examples import Dataset, Pool, pool
from coterie.data.matching import check_scale
from coterie.data.spelling import check_unlike
from coterie.files import available_memory, expanded, reason
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, UserError, nearest, no_setting

# ----------------------------------------------------------------------------------------------------
# AG News for next-word prediction: from articles to sequences of tokens.


UNKNOWN, END = "<unknown>", "<end>"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def text_files(folder: Path) -> tuple[Path, ...]:
    """Find ``train.csv`` and ``test.csv`` of AG News under ``folder``."""
    places = ("ag_news_csv", "ag_news", "")
    return tuple(
        readers.find(folder, places, (name,), "ag_news") for name in ("train.csv", "test.csv")
    )


def read_text(paths: tuple[Path, ...], vocabulary: int = 10_000, length: int = 30) -> Dataset:
    """Read AG News as a data set for next-word prediction.

    A row of a file is a class (1-4), a title and a description. Inputs and targets have shape ``(N,
    length)``; targets are the inputs shifted by one word. The vocabulary is ``<unknown>``,
    ``<end>`` and the most frequent lower-case words of the training articles. The articles of one
    topic, each followed by ``<end>``, are joined and cut every ``length`` words, so no sequence is
    padded.

    Args:
        paths: The training file and the test file.
        vocabulary: Number of words, ``<unknown>`` and ``<end>`` included.
        length: Words of one sequence.

    Returns:
        The data set. Its meta ``topic`` is 0 World, 1 Sports, 2 Business or 3 Sci/Tech.

    Raises:
        UserError: A file is not such a csv file, has another class, or is too short for one
            sequence.
    """
    articles = [_articles(path) for path in paths]
    counts = Counter(word for _, words in articles[0] for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = (UNKNOWN, END, *ranked[: max(vocabulary - 2, 0)])
    number = {word: i for i, word in enumerate(words)}
    train, test = (
        _sequences(some, number, length, path) for some, path in zip(articles, paths, strict=True)
    )
    return Dataset(name="ag_news", train=train, test=test, classes=len(words), words=words)


def tokens(text: str) -> list[str]:
    r"""Return the lower-case words and numbers of a text.

    Example:
        >>> tokens("It's 28\\\\000 strong.")
        ["it's", '28', '000', 'strong']
    """
    return _WORD.findall(text.lower().replace("\\", " "))


def _articles(path: Path) -> list[tuple[int, list[str]]]:
    """The topic (0-3) and the words of each article."""
    out = []
    for number, (topic, title, description) in enumerate(readers.rows(path, 3), 1):
        if topic not in ("1", "2", "3", "4"):
            raise UserError(
                f"{path} is mislabelled: row {number} has class {topic!r} where 1 to 4 were expected"
            )
        out.append((int(topic) - 1, tokens(f"{title} {description}")))
    return out


def _sequences(
    articles: Iterable[tuple[int, list[str]]], number: dict[str, int], length: int, path: Path
) -> Pool:
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
        raise UserError(
            f"{path} holds fewer than {length + 1} words of any topic, too few for one sequence"
        )
    whole = [torch.from_numpy(np.concatenate(parts)) for parts in (inputs, targets, topics)]
    return Pool(whole[0], whole[1], {"topic": whole[2]})


# ----------------------------------------------------------------------------------------------------
# LEAF's FEMNIST: handwritten digits and letters of 62 classes, by writer, in JSON (S. Caldas et
# al., arXiv 1812.01097).
#
# Each file has ``users``, the names of writers, and ``user_data``: name -> ``x``, lists of 784
# numbers in [0, 1], and ``y``, classes. LEAF splits the images of a writer into a training and a
# test file. Here they are one pool, and scenarios hold out their own test data.


CLASSES, SIDE = 62, 28

PLACES = ("femnist/data", "leaf/data/femnist/data", "femnist", "")
PARTS = (("train", "test"), ("all_data",))


def leaf_files(folder: Path) -> tuple[Path, ...]:
    """Find LEAF's JSON files under a folder: those of the split data, otherwise those of all data.

    Args:
        folder: The data folder.

    Returns:
        The paths, at least one.

    Raises:
        UserError: There are none.
    """
    for place in PLACES:
        for parts in PARTS:
            found = [
                path for part in parts for path in sorted((folder / place / part).glob("*.json*"))
            ]
            if found:
                return tuple(found)
    looked = ", ".join(
        str(folder / place / part) for place in PLACES for part in ("train", "all_data")
    )
    raise UserError(f"femnist needs LEAF's .json files, and there are none in: {looked}")


def read_leaf(paths: tuple[Path, ...]) -> Dataset:
    """Read all images of LEAF's FEMNIST as one training pool.

    Args:
        paths: The JSON files.

    Returns:
        The data set. Its meta ``writer`` is the number of the writer, in the order of their names.

    Raises:
        UserError: A file is not LEAF's, is mislabelled, or no file holds an example.
    """
    inputs, targets, writers = [], [], []
    for path in paths:
        for name, images, labels in _writers(path):
            inputs.append(images)
            targets.append(labels)
            writers += [name] * len(labels)
    if not writers:
        raise UserError(f"{paths[0].parent} holds no examples")
    names, numbers = np.unique(writers, return_inverse=True)
    check_unlike(names.tolist(), f"writers in {paths[0].parent}")
    whole = pool(
        np.concatenate(inputs), np.concatenate(targets), paths[0].parent, CLASSES, writer=numbers
    )
    return Dataset(name="femnist", train=whole, test=None, classes=CLASSES)


def _writers(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images ``(m, 28, 28)`` float32 and labels ``(m,)`` of each writer in a file with at least one example."""
    try:
        data: dict[str, Any] = json.loads(readers.content(path), object_pairs_hook=_once)[
            "user_data"
        ]
        found = [
            (name, _images(own["x"]), np.array(own["y"])) for name, own in data.items() if own["y"]
        ]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UserError(
            f"{path} is not a LEAF FEMNIST file: {type(error).__name__}, {error}"
        ) from error
    for name, images, labels in found:
        if labels.shape != (len(images),):
            raise UserError(
                f"{path} is mislabelled: writer {name!r} has {len(images)} images but labels {list(labels.shape)}"
            )
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON, in which no name occurs twice: the parser would keep the last one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(
            name for name, times in Counter(name for name, _ in pairs).items() if times > 1
        )
        raise ValueError(f"the name {twice!r} occurs twice")
    return found


def _images(rows: Any) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, SIDE, SIDE)


# ----------------------------------------------------------------------------------------------------
# Data sets of the Hugging Face hub, through flwr-datasets (``pip install 'coterie[hub]'``).


INPUTS = ("image", "img", "images", "x", "pixel_values", "features", "inputs", "input")
LABELS = ("label", "labels", "fine_label", "y", "target", "class", "digit", "character")
WRITERS = ("writer_id", "writer", "user_id", "client_id", "hsf_id")


def read_hub(
    paths: tuple[Path, ...],
    name: str,
    input_column: str | None = None,
    label_column: str | None = None,
) -> Dataset:
    """Read ``hub:NAME``, where NAME is a data set of the hub or a local folder of parquet files in the hub's layout.

    It takes the ``train`` split and, if there is one, the ``test`` (or ``validation``) split. A
    column of writers becomes the meta ``writer``.

    Args:
        paths: Not used; the hub's own cache keeps the files.
        name: ``hub:NAME``.
        input_column: Column of the inputs. By default it is found by its type (an image) or by a
            usual name.
        label_column: Column of the labels. By default it is found by its type (a class label) or by
            a usual name.

    Returns:
        The data set.

    Raises:
        UserError: flwr-datasets is not installed, the data set is unknown, or it is unclear which
            column is meant.
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
    """The training split, and the split for tests or None."""
    # Otherwise flwr-datasets reports the names of data sets to its developers.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise UserError(f"{name} needs flwr-datasets: pip install 'coterie[hub]'") from error
    _check_regular(Path(name.removeprefix("hub:")))
    data = FederatedDataset(dataset=name.removeprefix("hub:"), partitioners={}, shuffle=False)
    try:
        train = data.load_split("train")
    except Exception as error:
        # The errors are of many kinds: unknown, private, unreachable, no such split, broken. The
        # first line has the reason.
        raise UserError(f"{name} cannot be loaded: {_first_line(error)}") from error
    for held in ("test", "validation", "valid"):
        try:
            return train, data.load_split(held)
        except ValueError:  # there is no such split
            continue
    return train, None


def _check_regular(folder: Path) -> None:
    """Check that a local folder holds only folders and regular files: the library would wait forever on a named pipe."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(
    name: str,
    features: Mapping[str, Any],
    kind: str,
    usual: tuple[str, ...],
    given: str | None,
    setting: str,
) -> str:
    """The given column, or the only one that has this type or a usual name."""
    have = ", ".join(features)
    if given is not None:
        if given not in features:
            raise UserError(f"{name} has no column {given!r} ({setting}); it has {have}")
        return given
    typed = [column for column, feature in features.items() if type(feature).__name__ == kind]
    likely = (
        typed if len(typed) == 1 else [column for column in usual if column in (typed or features)]
    )
    if not likely:
        raise UserError(f"{name}: the column is ambiguous, set {setting}; it has {have}")
    return likely[0]


def _pool(split: Any, x: str, y: str, writer: str | None, name: str) -> Pool:
    try:
        inputs = [np.asarray(value) for value in split[x]]
    except Exception as error:  # many kinds, for example a broken image
        raise UserError(
            f"{name}: the inputs in {x!r} cannot be read: {_first_line(error)}"
        ) from error
    if len({(value.shape, value.dtype.kind) for value in inputs}) > 1:
        raise UserError(f"{name}: the inputs in {x!r} differ in shape; Coterie needs one shape")
    meta: dict[str, Any] = (
        {}
        if writer is None
        else {"writer": np.unique(np.asarray(split[writer]), return_inverse=True)[1]}
    )
    return pool(np.stack(inputs) if inputs else inputs, split[y][:], name, **meta)


# ----------------------------------------------------------------------------------------------------
# Readers by file format: from the paths of a data set to its
# :class:`~coterie.data.examples.Dataset`.


Paths = tuple[Path, ...]


def read_npz(paths: Paths, name: str, classes: int | None) -> Dataset:
    """Read a .npz file; without ``classes``, the number of classes is the greatest label + 1."""
    train, test = npz_pools(paths[0], classes)
    tops = [int(p.targets.max()) for p in (train, test) if p is not None]
    return Dataset(name=name, train=train, test=test, classes=classes or max(tops) + 1)


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
    x, y = ("x_train", "y_train") if "x_train" in arrays else ("x", "y")
    if x not in arrays or y not in arrays or ("x_test" in arrays) != ("y_test" in arrays):
        found = ", ".join(arrays) or "nothing"
        raise UserError(
            f"{path} must hold x_train and y_train (or x and y), x_test with y_test; it holds {found}"
        )
    test = pool(arrays["x_test"], arrays["y_test"], path, classes) if "x_test" in arrays else None
    return pool(arrays[x], arrays[y], path, classes), test


def digits(paths: Paths) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, all of them in the training pool."""
    del paths  # they come with scikit-learn
    pixels, labels = _digits()
    return Dataset(
        name="digits",
        train=pool(pixels.reshape(-1, 8, 8) / 16, labels, "digits"),
        test=None,
        classes=10,
    )


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The pixels ``(1797, 64)`` and labels of the digits. To import scikit-learn takes longer than a short run."""
    found = find_spec("sklearn")
    file = (
        Path(found.origin or "").with_name("datasets") / "data" / "digits.csv.gz"
        if found
        else Path()
    )
    if not file.is_file():  # it has moved
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        return pixels, labels
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def synthetic(
    paths: Paths,
    examples: int = 2000,
    features: int = 20,
    classes: int = 4,
    spread: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """Draw Gaussian classes.

    The class means are drawn from ``N(0, 1)`` in each feature; examples are drawn around them.

    Args:
        paths: Not used.
        examples: Number of examples.
        features: Number of features.
        classes: Number of classes; they have equal sizes, up to one example.
        spread: Standard deviation within a class.
        seed: Seed of all draws.

    Returns:
        The data set, all of it in the training pool.

    Raises:
        SettingError: The data would take more than half of the free memory.
    """
    del paths
    _check_size(8 * (classes * features + examples * (features + 1)), examples, features, classes)
    rng = numpy_generator(seed, Purpose.DATA)
    means = rng.standard_normal((classes, features))
    labels = rng.permutation(np.arange(examples) % classes)
    inputs = rng.standard_normal((examples, features))
    inputs *= spread  # in place: the limit above leaves memory for one copy
    inputs += means[labels]
    return Dataset(
        name="synthetic",
        train=pool(inputs, labels, "synthetic", classes),
        test=None,
        classes=classes,
    )


def _check_size(needed: int, examples: int, features: int, classes: int) -> None:
    """Raise :class:`~coterie.settings.SettingError` if ``needed`` bytes are more than half of the free memory."""
    if needed > (memory := available_memory() / 2):
        raise SettingError(
            f"Scenario.examples {examples:,}, features {features:,} and classes {classes:,} take {needed:,} bytes, and half of "
            f"the free memory is {memory:,.0f} bytes"
        )


def read_idx(paths: Paths, name: str) -> Dataset:
    """Read the idx files of a data set like MNIST, and QMNIST's tables if they are given."""
    pools = []
    for number in (0, 2):
        images, labels = readers.idx(paths[number], 3), readers.idx(paths[number + 1], 1)
        meta = _hands(paths[4 + number // 2], labels) if len(paths) > 4 else {}
        pools.append(pool(images, labels, paths[number + 1], 10, **meta))
    return Dataset(name=name, train=pools[0], test=pools[1], classes=10)


def _hands(path: Path, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The writer of each digit, ``(N,)``, and the writer's population: 0 Census employees, 1 high-school students.

    These are columns 2 and 1 of QMNIST's table. Its first rows are MNIST's images; column 0 must
    agree with their labels. Column 1 is the series of NIST's forms: 4 is the students' series,
    smaller numbers are the employees'.
    """
    table = readers.idx(path, 2)
    if len(table) < len(labels) or table.shape[1] < 3 or (table[: len(labels), 0] != labels).any():
        raise UserError(
            f"{path} does not belong to these MNIST labels: its classes differ from them"
        )
    return {"writer": table[: len(labels), 2], "population": np.equal(table[: len(labels), 1], 4)}


def read_cifar(paths: Paths, name: str, classes: int) -> Dataset:
    """Read CIFAR-10 or CIFAR-100 (fine labels); some of the upstream rows are enough.

    Args:
        paths: The files; names that start with ``test`` belong to the test pool.
        name: Name of the data set.
        classes: 10 or 100.

    Returns:
        The data set; its test pool is None without a test file.

    Raises:
        UserError: A file is incomplete or mislabelled.
    """
    read = {path: readers.cifar(path, 1 if classes == 10 else 2) for path in paths}
    for path, (_, labels) in read.items():
        if labels.max() >= classes:
            raise UserError(
                f"{path} is mislabelled: labels must be 0 to {classes - 1}, found {labels.max()}"
            )
    train, test = (
        [read[path] for path in paths if path.name.startswith("test") is held]
        for held in (False, True)
    )

    def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> Pool:
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return pool(images, labels, name, classes)

    return Dataset(
        name=name, train=joined(train), test=joined(test) if test else None, classes=classes
    )


def read_mat(paths: Paths, name: str) -> Dataset:
    """Read SVHN or SynthDigits: ``X (32, 32, 3, N)``, ``y (N, 1)``.

    SVHN labels the digit 0 as 10, which becomes 0.

    Args:
        paths: The training file and the test file.
        name: Name of the data set.

    Returns:
        The data set.

    Raises:
        UserError: A file is not readable or its images have another shape.
    """
    pools = []
    for path in paths:
        images, labels = readers.mat(path, ("X", "y"))
        if images.ndim != 4 or images.shape[2] != 3:
            raise UserError(
                f"{path} must hold colour images X of shape (height, width, 3, N), got {images.shape}"
            )
        labels = labels.ravel()
        pools.append(
            pool(images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels), path, 10)
        )
    return Dataset(name=name, train=pools[0], test=pools[1], classes=10)


def read_domains(paths: Paths, per_domain: int = 5000) -> Dataset:
    """Read four domains of digits as images of 3 x 28 x 28.

    Args:
        paths: Four files of MNIST, one of USPS and one of MNIST-M.
        per_domain: Number of training images of each domain, the first ones; a fifth as many are
            test images.

    Returns:
        The data set. Its meta ``domain`` is 0 MNIST, 1 USPS, 2 MNIST-M or 3 scikit-learn's digits,
        whose last fifth is the test pool.
    """
    sets = [
        read_idx(paths[:4], "mnist"),
        read_npz(paths[4:5], "usps", 10),
        read_npz(paths[5:6], "mnist_m", 10),
    ]
    own = digits(()).train
    cut = len(own) - len(own) // 5
    last = Dataset(
        name="digits",
        train=own.first(cut),
        test=Pool(own.inputs[cut:], own.targets[cut:]),
        classes=10,
    )
    return _domains("digit_domains", [*sets, last], per_domain)


def read_five(paths: Paths, per_domain: int = 5000) -> Dataset:
    """Read the five domains of digits of HCCT and FedBN, as :func:`read_domains` does.

    Args:
        paths: Four files of MNIST, two of SVHN, one of USPS, two of SynthDigits and one of MNIST-M.
        per_domain: Number of training images of each domain, the first ones; a fifth as many are
            test images.

    Returns:
        The data set. Its meta ``domain`` is 0 MNIST, 1 SVHN, 2 USPS, 3 SynthDigits or 4 MNIST-M.
    """
    mnist, svhn = read_idx(paths[:4], "mnist"), read_mat(paths[4:6], "svhn")
    usps, synth = read_npz(paths[6:7], "usps", 10), read_mat(paths[7:9], "synth_digits")
    return _domains(
        "digit_five", [mnist, svhn, usps, synth, read_npz(paths[9:10], "mnist_m", 10)], per_domain
    )


def _domains(name: str, sets: list[Dataset], per_domain: int) -> Dataset:
    pools = [
        (s.train.first(per_domain), s.test.first(per_domain // 5))
        for s in sets
        if s.test is not None
    ]
    train, test = (_one_shape([pair[side] for pair in pools]) for side in (0, 1))
    return Dataset(name=name, train=train, test=test, classes=10)


def _one_shape(pools: list[Pool]) -> Pool:
    resize = partial(torch.nn.functional.interpolate, size=(28, 28), mode="bilinear")
    resized = [resize(p.inputs).expand(-1, 3, -1, -1).clamp(0, 1) for p in pools]
    domain = torch.cat([torch.full((len(p),), number) for number, p in enumerate(pools)])
    return Pool(torch.cat(resized), torch.cat([p.targets for p in pools]), {"domain": domain})


@dataclass(frozen=True)
class Source:
    """How one data set is found and read.

    Attributes:
        about: A short description.
        read: Function of the paths and the options that returns the
            :class:`~coterie.data.examples.Dataset`.
        files: Function of a folder that returns the paths of the needed files; None for a data set
            without files.
        options: Names of the settings that ``read`` takes after the paths.
    """

    about: str
    read: Callable[..., Dataset]
    files: Callable[[Path], Paths] | None = None
    options: tuple[str, ...] = ()


def load(name: str, folder: Path | str | None = None, **options: Any) -> Dataset:
    """Load the data set called ``name``.

    The last two data sets stay in memory. They are read again only if a file has changed.

    Args:
        name: One of :data:`DATASETS`, ``hub:NAME``, or NAME for the ``NAME.npz`` of the folder.
        folder: Folder of its files; None takes the environment variable COTERIE_DATA. Each file is
            searched in the folder itself and in upstream's own subfolders.
        **options: Settings of the data set, see :attr:`Source.options`.

    Returns:
        The data set.

    Raises:
        UserError: The name is unknown, the folder or a file is missing, or a file is not valid.
        SettingError: The data set has no such option.
    """
    source = find(name, folder)
    unknown = [option for option in options if option not in source.options]
    if unknown:
        raise no_setting(f"the data set {name}", unknown[0], source.options, options[unknown[0]])
    paths = source.files(resolve(folder, name)) if source.files else ()
    try:
        stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {reason(error)}") from error
    return _read(source, stamps, tuple(sorted(options.items())))


def find(name: str, folder: Path | str | None = None) -> Source:
    """Return the :class:`Source` of a data set.

    Args:
        name: As for :func:`load`.
        folder: As for :func:`load`.

    Returns:
        The source.

    Raises:
        UserError: The name is unknown; the message has the nearest known name.
    """
    if name in DATASETS:
        return DATASETS[name]
    if name.startswith("hub:"):
        return _hub(name)
    given = folder or os.environ.get("COTERIE_DATA")
    if given and Path(name).name == name and (resolve(folder, name) / f"{name}.npz").is_file():
        return _npz(name)
    known = f"{', '.join(DATASETS)}, hub:NAME, or the NAME of a NAME.npz in the data folder"
    raise UserError(f"there is no data set {name!r}{nearest(name, DATASETS)} (known: {known})")


def resolve(folder: Path | str | None, name: str, *, file: bool = False) -> Path:
    """Return the data folder, or the file of a table: the given one, otherwise the environment variable COTERIE_DATA.

    Args:
        folder: The given folder or file, or None.
        name: Name of the data set, for the message.
        file: Whether it is a file.

    Returns:
        The path of an existing folder or file.

    Raises:
        UserError: No path is given, it does not exist, or it is a folder where a file is needed or
            the other way round.
    """
    what, usage = ("file", "--data FILE.csv") if file else ("folder", "--data DIR")
    given = folder or os.environ.get("COTERIE_DATA")
    if not given:
        whose = (
            "a table is read from a file: give it"
            if file
            else f"{name} is read from files: give their folder"
        )
        raise UserError(f"{whose} with {usage} or set COTERIE_DATA")
    path = expanded(given)
    if file and path.is_dir():
        raise UserError(f"{path} is a folder, and a table is one file: give it with {usage}")
    if not path.exists():
        raise UserError(f"the data {what} {path} does not exist")
    if not file and not path.is_dir():
        raise UserError(
            f"the data folder {path} is a file; for a table of your own, use the scenario table/clients"
        )
    return path


@lru_cache(maxsize=2)
def _read(
    source: Source, stamps: tuple[tuple[Path, int, int], ...], options: tuple[tuple[str, Any], ...]
) -> Dataset:
    return source.read(tuple(path for path, _, _ in stamps), **dict(options))


@cache
def _npz(name: str, classes: int | None = None) -> Source:
    """A .npz file with x_train, y_train, x_test, y_test, or only x and y."""
    return Source(
        f"{name}.npz: x_train, y_train and, where there is one, x_test, y_test",
        partial(read_npz, name=name, classes=classes),
        lambda folder: (readers.find(folder, ("", name), (f"{name}.npz",), name),),
    )


@cache
def _hub(name: str) -> Source:
    options = ("input_column", "label_column")
    return Source(
        "a data set of the Hugging Face hub", partial(read_hub, name=name), options=options
    )


_MNIST = ("MNIST/raw", "mnist", "")
_FASHION = ("FashionMNIST/raw", "fashion_mnist", "fashion", "")


def _idx_files(folder: Path, places: tuple[str, ...], name: str, writers: bool = False) -> Paths:
    """The four files of a data set like MNIST, and two more of QMNIST if the writers are wanted."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    # Some copies of the files have a dot where most have a hyphen.
    either: list[tuple[str, ...]] = [
        (f"{stem}-ubyte", f"{stem[:-5]}.{stem[-4:]}-ubyte") for stem in stems
    ]
    if writers:
        either += [("qmnist-train-labels-idx2-int",), ("qmnist-test-labels-idx2-int",)]
    return tuple(readers.find(folder, places, names, name) for names in either)


def _cifar10_files(folder: Path) -> Paths:
    """Those of the five training files that exist, at least one, and the test file if it exists."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    place = readers.find(folder, ("cifar-10-batches-bin", "cifar10", ""), names, "cifar10").parent
    either = [(place / name, place / f"{name}.gz") for name in (*names, "test_batch.bin")]
    return tuple(path for pair in either for path in [p for p in pair if p.is_file()][:1])


def _cifar100_files(folder: Path) -> Paths:
    places = ("cifar-100-binary", "cifar100", "")
    return tuple(
        readers.find(folder, places, (name,), "cifar100") for name in ("train.bin", "test.bin")
    )


def _mat_files(folder: Path, name: str, stem: str) -> Paths:
    places = (name, stem.strip("_"), "")
    return tuple(
        readers.find(folder, places, (f"{stem}{part}_32x32.mat",), name)
        for part in ("train", "test")
    )


def _mat_source(about: str, name: str, stem: str = "") -> Source:
    return Source(about, partial(read_mat, name=name), partial(_mat_files, name=name, stem=stem))


_DOMAINS = ("mnist", "usps", "mnist_m", "digits")
_FIVE = ("mnist", "svhn", "usps", "synth_digits", "mnist_m")


def _domain_files(folder: Path, domains: tuple[str, ...] = _DOMAINS) -> Paths:
    needed = [DATASETS[name].files for name in domains]
    return tuple(path for files in needed if files for path in files(folder))


_SYNTHETIC = ("examples", "features", "classes", "spread", "seed")
_STREAM = ("examples", "mislabelled", "seed")


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
        **{
            name: Source(about, partial(drawn, name=name), options=_STREAM)
            for name, (about, *_) in STREAMS.items()
        },
        "mnist": _idx_source(
            "60,000 + 10,000 handwritten digits, 28x28 (idx files)", "mnist", _MNIST
        ),
        "qmnist": _idx_source(
            "MNIST with each digit's writer and population (idx files)",
            "qmnist",
            _MNIST,
            writers=True,
        ),
        "fashion_mnist": _idx_source(
            "60,000 + 10,000 pictures of clothing, 28x28 (idx)", "fashion_mnist", _FASHION
        ),
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
        "svhn": _mat_source(
            "73,257 + 26,032 house numbers, 32x32 in colour (MATLAB files)", "svhn"
        ),
        "synth_digits": _mat_source(
            "synthetic digits, 32x32 in colour (MATLAB files)", "synth_digits", "synth_"
        ),
        "digit_five": Source(
            "digits of five origins as 3x28x28, as in HCCT: MNIST, SVHN, USPS, SynthDigits, MNIST-M",
            read_five,
            partial(_domain_files, domains=_FIVE),
            ("per_domain",),
        ),
        "femnist": Source(
            "digits and letters of 62 classes by writer, 28x28 (LEAF's JSON)", read_leaf, leaf_files
        ),
        "ag_news": Source(
            "news articles of four topics, for next-word prediction (csv)",
            read_text,
            text_files,
            ("vocabulary", "length"),
        ),
    }
)
