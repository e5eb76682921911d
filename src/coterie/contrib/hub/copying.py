"""A data set of the hub, written in the layout in which Coterie reads it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import datasets
from coterie.data.datasets.hub import HUB_PREFIX
from coterie.data.examples import Dataset, Pool
from coterie.files import reason
from coterie.records.store import write_whole
from coterie.settings import UserError, known_list, nearest

Labels = Mapping[str, np.ndarray]
"""Column of labels -> the labels ``(N,)`` of a pool."""

Files = dict[str, bytes]
"""Path below the data folder -> content of the file."""

TRAINING_FILES_OF_CIFAR10 = 5


@dataclass(frozen=True)
class HubCopy:
    """A built-in data set, and where the hub has it.

    Attributes:
        hub_name: Its name on the hub.
        files: Makes its files from a pool, its labels, and whether it is the training pool.
        label_columns: Columns of labels that the files hold, in their order.
    """

    hub_name: str
    files: Callable[[np.ndarray, Labels, bool], Files]
    label_columns: tuple[str, ...] = ("label",)


def copy(name: str, to: Path | str, source: str = "") -> list[Path]:
    """Write a data set of the hub into a data folder.

    Args:
        name: A built-in data set (:data:`HUB_COPIES`), or ``hub:NAME``, which becomes ``NAME.npz``.
        to: The data folder, which is made if it does not exist.
        source: What to read in place of the hub's data set: another name on the hub, or a local folder in
            the hub's layout. Empty for the hub's own.

    Returns:
        The files, as read by ``--data DIR``.

    Raises:
        UserError: The name is unknown, the hub has no such data set or cannot be reached, or a file exists.
    """
    if name == HUB_PREFIX:
        raise UserError(
            f"{HUB_PREFIX} needs the name of a data set on the hub, such as hub:ylecun/mnist"
        )
    if name not in HUB_COPIES and not name.startswith(HUB_PREFIX):
        known_names = [*HUB_COPIES, "hub:NAME"]
        raise UserError(
            f"coterie data knows no data set {name!r}{nearest(name, known_names)}{known_list(known_names)}"
        )
    files = _files(name, source)
    # Nothing is written if a file would be replaced.
    folder = Path(to).expanduser()
    paths = [folder / file_name for file_name in files]
    for path in paths:
        if path.exists():
            raise UserError(f"{path} exists: choose another folder, or remove it")
    try:
        for path, content in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written: {reason(error)}") from error
    return paths


def _files(name: str, source: str) -> Files:
    """The files of a data set."""
    hub_copy = HUB_COPIES.get(name)
    if hub_copy is None:
        return npz_file(name, datasets.load(_on_hub(source or name)))
    # A data set is read once for each column of labels: CIFAR-100 has two.
    hub_name = _on_hub(source or hub_copy.hub_name)
    by_column: dict[str, Dataset] = {}
    for column in hub_copy.label_columns:
        by_column[column] = datasets.load(hub_name, label_column=column)
    first_dataset = by_column[hub_copy.label_columns[0]]
    files: Files = {}
    for part in ("train", "test"):
        pool: Pool | None = getattr(first_dataset, part)
        if pool is None:
            continue
        labels = {
            column: getattr(dataset, part).targets.numpy() for column, dataset in by_column.items()
        }
        files |= hub_copy.files(_bytes_of(pool, name), labels, part == "train")
    return files


def _on_hub(name: str) -> str:
    return name if name.startswith(HUB_PREFIX) else f"{HUB_PREFIX}{name}"


def _bytes_of(pool: Pool, name: str) -> np.ndarray:
    """The images ``(N, C, H, W)`` of a pool as bytes, as the hub has them."""
    images: np.ndarray = pool.inputs.numpy()
    if images.ndim != 4:
        raise UserError(f"{name} must have images, and its inputs have shape {images.shape[1:]}")
    return np.rint(images * 255).astype(np.uint8)


# -- the layouts
# ----------------------------------------------------------------------------------------------------


def cifar_files(
    folder: str, names_of_parts: Mapping[bool, tuple[str, ...]]
) -> Callable[[np.ndarray, Labels, bool], Files]:
    """Return the function that makes files of CIFAR's binary version: label bytes, then red, green and blue, for each image.

    Args:
        folder: The folder of the files.
        names_of_parts: Whether a part is the training part -> its files, among which images are divided.
    """

    def files(images: np.ndarray, labels: Labels, is_training: bool) -> Files:
        _check_shape(images, (3, 32, 32))
        label_bytes = [values.astype(np.uint8)[:, None] for values in labels.values()]
        table = np.concatenate([*label_bytes, images.reshape(len(images), -1)], axis=1)
        names = names_of_parts[is_training]
        parts = np.array_split(table, len(names))
        return {f"{folder}/{name}": rows.tobytes() for name, rows in zip(names, parts, strict=True)}

    return files


def idx_files(folder: str) -> Callable[[np.ndarray, Labels, bool], Files]:
    """Return the function that makes idx files, as MNIST has them: a header, then bytes.

    Args:
        folder: The folder of the files.
    """

    def files(images: np.ndarray, labels: Labels, is_training: bool) -> Files:
        _check_shape(images, (1, 28, 28))
        (label_values,) = labels.values()
        start = "train" if is_training else "t10k"
        return {
            f"{folder}/{start}-images-idx3-ubyte": _idx(images[:, 0]),
            f"{folder}/{start}-labels-idx1-ubyte": _idx(label_values.astype(np.uint8)),
        }

    return files


def _idx(array: np.ndarray) -> bytes:
    """An array of bytes as an idx file: its type (8), its number of dimensions, and each of them, big-endian."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + np.ascontiguousarray(array).tobytes()


def npz_file(name: str, dataset: Dataset) -> Files:
    """Make ``NAME.npz`` with the training and the test pool of any data set.

    Args:
        name: The name on the hub; a slash in it becomes an underscore.
        dataset: The data set.
    """
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        pool: Pool | None = getattr(dataset, part)
        if pool is not None:
            is_image = pool.inputs.ndim == 4
            arrays[f"x_{part}"] = _bytes_of(pool, name) if is_image else pool.inputs.numpy()
            arrays[f"y_{part}"] = pool.targets.numpy()
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    hub_name = name.removeprefix(HUB_PREFIX)
    # A local folder has its own name.
    is_folder = Path(hub_name).is_dir()
    file_name = Path(hub_name).resolve().name if is_folder else hub_name.replace("/", "_")
    return {f"{file_name}.npz": content.getvalue()}


def _check_shape(images: np.ndarray, shape: tuple[int, ...]) -> None:
    if images.shape[1:] != shape:
        raise UserError(f"the images must have shape {shape}, got {images.shape[1:]}")


HUB_COPIES: Mapping[str, HubCopy] = {
    "cifar10": HubCopy(
        "uoft-cs/cifar10",
        cifar_files(
            "cifar-10-batches-bin",
            {
                True: tuple(f"data_batch_{n}.bin" for n in range(1, TRAINING_FILES_OF_CIFAR10 + 1)),
                False: ("test_batch.bin",),
            },
        ),
    ),
    "cifar100": HubCopy(
        "uoft-cs/cifar100",
        cifar_files("cifar-100-binary", {True: ("train.bin",), False: ("test.bin",)}),
        label_columns=("coarse_label", "fine_label"),
    ),
    "mnist": HubCopy("ylecun/mnist", idx_files("MNIST/raw")),
    "fashion_mnist": HubCopy("zalando-datasets/fashion_mnist", idx_files("FashionMNIST/raw")),
}
"""Built-in data set -> its copy on the hub."""
