"""Data sets of the Hugging Face hub, through flwr-datasets (``pip install 'coterie[hub]'``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.datasets.source import (
    DatasetSettings,
    Family,
    Paths,
    Source,
    register_family,
)
from coterie.data.examples import Dataset, Pool, pool
from coterie.settings import UserError, setting

HUB_PREFIX = "hub:"

USUAL_INPUTS = ("image", "img", "images", "x", "pixel_values", "features", "inputs", "input")
USUAL_LABELS = ("label", "labels", "fine_label", "y", "target", "class", "digit", "character")
USUAL_WRITERS = ("writer_id", "writer", "user_id", "client_id", "hsf_id")
"""Usual names of columns, the most likely first."""


@dataclass(frozen=True, kw_only=True)
class HubSettings(DatasetSettings):
    """The columns of a data set of the hub."""

    input_column: str | None = setting(None, "column of the inputs; none: find it")
    label_column: str | None = setting(None, "column of the labels; none: find it")


def read_hub(paths: Paths, options: HubSettings, seed: int = 0) -> Dataset:
    """Read ``hub:NAME``: a data set of the hub, or a local folder of parquet files in its layout.

    It takes the ``train`` split and, if there is one, the ``test`` (or ``validation``) split. A
    column of writers becomes the meta ``writer``.

    Args:
        paths: Not used; the hub's own cache keeps the files.
        options: The name, and the columns. By default a column is found by its type (an image, a
            class label) or by a usual name.
        seed: Not used.

    Returns:
        The data set.

    Raises:
        UserError: flwr-datasets is not installed, the data set is unknown, or it is unclear which
            column is meant.
    """
    del paths, seed
    name = options.name
    train_split, test_split = _splits(name)
    features = train_split.features
    inputs = options.input_column or _column(name, features, "Image", USUAL_INPUTS, "input_column")
    labels = options.label_column or _column(
        name, features, "ClassLabel", USUAL_LABELS, "label_column"
    )
    for column, setting_name in ((inputs, "input_column"), (labels, "label_column")):
        if column not in features:
            raise UserError(
                f"{name} has no column {column!r} ({setting_name}); it has {', '.join(features)}"
            )
    writer = next((column for column in USUAL_WRITERS if column in features), None)
    train = _pool(train_split, inputs, labels, writer, name)
    test = None if test_split is None else _pool(test_split, inputs, labels, writer, name)
    classes = getattr(features[labels], "num_classes", None)
    if not classes:
        classes = 1 + max(int(pool.targets.max()) for pool in (train, test) if pool is not None)
    return Dataset(name=name, train=train, test=test, classes=classes)


def _splits(name: str) -> tuple[Any, Any | None]:
    """The training split, and the split for tests or None."""
    # Otherwise flwr-datasets reports the names of data sets to its developers.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise UserError(f"{name} needs flwr-datasets: pip install 'coterie[hub]'") from error
    hub_name = name.removeprefix(HUB_PREFIX)
    _check_regular(Path(hub_name))
    data = FederatedDataset(dataset=hub_name, partitioners={}, shuffle=False)
    try:
        train = data.load_split("train")
    except Exception as error:
        # The errors are of many kinds: unknown, private, unreachable, no such split, broken. The
        # first line has the reason.
        raise UserError(f"{name} cannot be loaded: {_first_line(error)}") from error
    for test_split in ("test", "validation", "valid"):
        try:
            return train, data.load_split(test_split)
        except ValueError:  # there is no such split
            continue
    return train, None


def _check_regular(folder: Path) -> None:
    """Check that a folder holds only regular files: the library would wait for a named pipe."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(
    name: str,
    features: Mapping[str, Any],
    kind: str,
    usual_names: tuple[str, ...],
    setting_name: str,
) -> str:
    """The only column that has this type, or the first that has a usual name."""
    typed = [column for column, feature in features.items() if type(feature).__name__ == kind]
    if len(typed) == 1:
        return typed[0]
    for column in usual_names:
        if column in (typed or features):
            return column
    raise UserError(
        f"{name}: the column is ambiguous, set {setting_name}; it has {', '.join(features)}"
    )


def _pool(split: Any, inputs: str, labels: str, writer: str | None, name: str) -> Pool:
    try:
        arrays = [np.asarray(value) for value in split[inputs]]
    except Exception as error:  # many kinds, for example a broken image
        raise UserError(
            f"{name}: the inputs in {inputs!r} cannot be read: {_first_line(error)}"
        ) from error
    if len({(array.shape, array.dtype.kind) for array in arrays}) > 1:
        raise UserError(
            f"{name}: the inputs in {inputs!r} differ in shape; Coterie needs one shape"
        )
    meta: dict[str, Any] = {}
    if writer is not None:
        meta["writer"] = np.unique(np.asarray(split[writer]), return_inverse=True)[1]
    return pool(np.stack(arrays) if arrays else arrays, split[labels][:], name, **meta)


_SOURCE = Source("a data set of the Hugging Face hub", read_hub, options=HubSettings)


def _on_hub(name: str, folder: Path | None) -> Source | None:
    del folder  # the hub's own cache keeps the files
    return _SOURCE if name.startswith(HUB_PREFIX) else None


register_family(Family("hub:NAME", _on_hub, HUB_PREFIX, HubSettings))
