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

# Upstream: a data set of the Hugging Face hub, which consists of splits (train, test, validation)
# with typed columns. The package flwr-datasets downloads it, and keeps its files in the hub's own
# cache.
#
# From columns to pools: one column becomes the inputs and one the labels. Which ones follows from
# their types or usual names, unless the user says it. The split ``train`` is the training pool;
# ``test`` or else ``validation`` is the test pool.
#
# From pools to clients: a scenario divides the training pool. A column of writers becomes the meta
# ``writer``, by which the partition ``writer`` makes one client of each writer.
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
    dataset_name = options.name
    # Step 1: load the splits.
    train_split, test_split = _splits(dataset_name)
    # Step 2: decide which column holds the inputs and which the labels.
    features = train_split.features
    input_column = options.input_column or _column(
        dataset_name, features, "Image", USUAL_INPUTS, "input_column"
    )
    label_column = options.label_column or _column(
        dataset_name, features, "ClassLabel", USUAL_LABELS, "label_column"
    )
    for column, setting_name in ((input_column, "input_column"), (label_column, "label_column")):
        if column not in features:
            raise UserError(
                f"{dataset_name} has no column {column!r} ({setting_name}); it has {', '.join(features)}"
            )
    # Step 3: make arrays of the columns, in both splits.
    writer_column = next((column for column in USUAL_WRITERS if column in features), None)
    train_pool = _pool(train_split, input_column, label_column, writer_column, dataset_name)
    test_pool = None
    if test_split is not None:
        test_pool = _pool(test_split, input_column, label_column, writer_column, dataset_name)
    # Step 4: count the classes. The hub knows them for a class label; for other columns the
    # greatest label tells.
    classes = getattr(features[label_column], "num_classes", None)
    if not classes:
        highest_label = int(train_pool.targets.max())
        if test_pool is not None:
            highest_label = max(highest_label, int(test_pool.targets.max()))
        classes = 1 + highest_label
    return Dataset(name=dataset_name, train=train_pool, test=test_pool, classes=classes)


def _splits(dataset_name: str) -> tuple[Any, Any | None]:
    """The training split, and the split for tests or None."""
    # Otherwise flwr-datasets reports the names of data sets to its developers.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise UserError(
            f"{dataset_name} needs flwr-datasets: pip install 'coterie[hub]'"
        ) from error
    hub_name = dataset_name.removeprefix(HUB_PREFIX)
    _check_regular(Path(hub_name))
    # Without partitioners the library only downloads; Coterie divides the data itself.
    federated_dataset = FederatedDataset(dataset=hub_name, partitioners={}, shuffle=False)
    try:
        train_split = federated_dataset.load_split("train")
    except Exception as error:
        # The errors are of many kinds: unknown, private, unreachable, no such split, broken. The
        # first line has the reason.
        raise UserError(f"{dataset_name} cannot be loaded: {_first_line(error)}") from error
    # Take the first split that can serve for tests, by its usual names.
    for test_split in ("test", "validation", "valid"):
        try:
            return train_split, federated_dataset.load_split(test_split)
        except ValueError:
            # There is no such split.
            continue
    return train_split, None


def _check_regular(folder: Path) -> None:
    """Check that a folder holds only regular files: the library would wait for a named pipe."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(
    dataset_name: str,
    features: Mapping[str, Any],
    column_type: str,
    usual_names: tuple[str, ...],
    setting_name: str,
) -> str:
    """The only column that has this type, or the first that has a usual name."""
    # A type, such as an image, says more than a name: names only choose between several of one
    # type.
    columns_of_type = [
        column for column, feature in features.items() if type(feature).__name__ == column_type
    ]
    if len(columns_of_type) == 1:
        return columns_of_type[0]
    for column in usual_names:
        if column in (columns_of_type or features):
            return column
    raise UserError(
        f"{dataset_name}: the column is ambiguous, set {setting_name}; it has {', '.join(features)}"
    )


def _pool(
    hub_split: Any,
    input_column: str,
    label_column: str,
    writer_column: str | None,
    dataset_name: str,
) -> Pool:
    try:
        arrays = [np.asarray(value) for value in hub_split[input_column]]
    except Exception as error:
        # The errors are of many kinds, for example that of a broken image.
        raise UserError(
            f"{dataset_name}: the inputs in {input_column!r} cannot be read: {_first_line(error)}"
        ) from error
    # Images of different sizes, or grey and coloured ones, cannot be one array.
    if len({(array.shape, array.dtype.kind) for array in arrays}) > 1:
        raise UserError(
            f"{dataset_name}: the inputs in {input_column!r} differ in shape; Coterie needs one shape"
        )
    # Writers have names or ids upstream; here they are numbered in the order of these.
    meta: dict[str, Any] = {}
    if writer_column is not None:
        meta["writer"] = np.unique(np.asarray(hub_split[writer_column]), return_inverse=True)[1]
    return pool(
        np.stack(arrays) if arrays else arrays, hub_split[label_column][:], dataset_name, **meta
    )


_SOURCE = Source("a data set of the Hugging Face hub", read_hub, options=HubSettings)


def _on_hub(name: str, folder: Path | None) -> Source | None:
    # The hub's own cache keeps the files.
    del folder
    return _SOURCE if name.startswith(HUB_PREFIX) else None


register_family(Family("hub:NAME", _on_hub, HUB_PREFIX, HubSettings))
