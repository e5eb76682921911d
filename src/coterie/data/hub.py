"""Data sets of the Hugging Face hub, through flwr-datasets (``pip install 'coterie[hub]'``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.pool import Dataset, Pool, pool
from coterie.settings import UserError

INPUTS = ("image", "img", "images", "x", "pixel_values", "features", "inputs", "input")
LABELS = ("label", "labels", "fine_label", "y", "target", "class", "digit", "character")
WRITERS = ("writer_id", "writer", "user_id", "client_id", "hsf_id")


def read(paths: tuple[Path, ...], name: str, input_column: str | None = None, label_column: str | None = None) -> Dataset:
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
