"""The rows of a site in a file, as the nets of an export take them: .csv, .npz or .npy.

Columns of a table are taken by their names, and the inputs get the scaling of the clients' inputs;
both are in ``models.json``. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from coterie.data import readers
from coterie.data.target_scale import sound
from coterie.extensions import provided
from coterie.records.codec import DamagedError
from coterie.settings import UserError, brief, known_list, nearest
from coterie.training.outputs import CLASS_LOGITS

TRUTH_WORDS = {"true": 1.0, "false": 0.0}
"""Texts of booleans, in small letters -> numbers."""

MAX_LISTED_COLUMNS = 6
"""Most columns that a message lists."""


@dataclass(frozen=True)
class SiteRows:
    """The rows of a site.

    Attributes:
        inputs: As the nets take them, ``(n, ...)``.
        targets: Of the rows that ``labelled`` names: classes ``(m,)``, or numbers ``(m, t)``; None
            if the labels were not asked for.
        labelled: Positions of the rows with a label, ``(m,)``.
        cautions: Sentences on what is unusual in the rows, such as values in another unit.
    """

    inputs: Tensor
    targets: Tensor | None
    labelled: Tensor
    cautions: tuple[str, ...] = ()


def read_rows(
    path: Path, document: Mapping[str, Any], labels: Sequence[str] | None = None
) -> SiteRows:
    """Read the rows of a site.

    Args:
        path: A .csv file, also gzipped, with the names of its columns in the first row; an .npz
            file with an array x, and y for labels; or an .npy file with the inputs.
        document: The entries of ``models.json``.
        labels: The columns with the labels, of which some may be empty; of an .npz file the name of
            the array. None if labels are not needed.

    Returns:
        The rows.

    Raises:
        UserError: The file cannot be read, or has other columns or labels than the nets.
    """
    about_data = document["data"] or {}
    name = path.name.lower()
    label_values: np.ndarray | None = None
    if name.endswith((".csv", ".csv.gz")):
        inputs, label_values = _table(path, about_data, document, labels)
    elif name.endswith(".npz"):
        arrays = readers.npz(path)
        inputs = _array(arrays, "x", path)
        if labels is not None:
            if len(labels) != 1:
                raise UserError(
                    f"{path}: labels of an .npz file are one array, got {', '.join(labels)}"
                )
            label_values = _array(arrays, labels[0], path)
    elif name.endswith(".npy"):
        inputs = _npy(path)
        if labels is not None:
            raise UserError(f"{path} holds one array; for labels, use an .npz file with x and y")
    else:
        raise UserError(f"{path} must be a .csv, .csv.gz, .npz or .npy file")
    if not len(inputs):
        raise UserError(f"{path} has no rows")
    tensor = scaled(_shaped(inputs, path, document), about_data)
    cautions = _cautions(path, inputs, tensor, about_data)
    if label_values is None:
        return SiteRows(tensor, None, torch.arange(0), cautions)
    if len(label_values) != len(inputs):
        raise UserError(f"{path} has {len(inputs)} rows, and {len(label_values)} labels")
    targets, labelled = _targets(label_values, path, document, labels or ())
    return SiteRows(tensor, targets, labelled, cautions)


def class_names(document: Mapping[str, Any]) -> list[str]:
    """The names of the classes, or of the labels or numbers that are predicted; by number where they have none."""
    about_data = document["data"] or {}
    names = (
        about_data.get("classes")
        if document["outputs"] == CLASS_LOGITS
        else about_data.get("targets")
    )
    num_outputs = (document["model"] or {}).get("classes")
    if isinstance(names, list) and (num_outputs is None or len(names) == num_outputs):
        return list(map(str, names))
    return [str(number) for number in range(num_outputs or 0)]


def _table(
    path: Path,
    about_data: Mapping[str, Any],
    document: Mapping[str, Any],
    labels: Sequence[str] | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The inputs ``(n, columns)`` and labels ``(n, t)`` of a table, by the names of its columns."""
    try:
        text = readers.content(path).decode("utf-8-sig")
        first_line = text.partition("\n")[0]
        # The separator that is most frequent in the first line.
        separator = max(",;\t", key=first_line.count)
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error
    lines = [line for line in lines if line]
    if not lines:
        raise UserError(f"{path} is empty")
    header, *table_rows = lines
    for number, line in enumerate(table_rows, 2):
        if len(line) != len(header):
            raise UserError(
                f"{path}: row {number} has {len(line)} fields where {len(header)} were expected"
            )
    for column in header:
        if header.count(column) > 1:
            raise UserError(f"{path} has two columns {column!r}")
    for label in labels or ():
        if label not in header:
            raise UserError(
                f"{path} has no column {label!r}{nearest(label, header)}{known_list(header)}"
            )
    if "table_schema" in about_data:
        # Text, dates and missing values become features by the constants of the run.
        schema_hook = provided("coterie.hooks", "table-schema")
        inputs = schema_hook.features_of_rows(path, about_data["table_schema"])
    else:
        inputs = _numbers_of_columns(path, header, table_rows, about_data, document, labels)
    if labels is None:
        return inputs, None
    label_positions = [header.index(label) for label in labels]
    label_values = [[line[position].strip() for position in label_positions] for line in table_rows]
    return inputs, np.array(label_values, dtype=object).reshape(len(table_rows), len(labels))


def _numbers_of_columns(
    path: Path,
    header: Sequence[str],
    table_rows: Sequence[Sequence[str]],
    about_data: Mapping[str, Any],
    document: Mapping[str, Any],
    labels: Sequence[str] | None,
) -> np.ndarray:
    """The inputs ``(n, columns)`` of a table whose features are numbers already."""
    features = about_data.get("features")
    if isinstance(features, list):
        missing = [feature for feature in features if feature not in header]
        if missing:
            shown_missing = ", ".join(map(str, missing[:MAX_LISTED_COLUMNS]))
            more = (
                f" and {len(missing) - MAX_LISTED_COLUMNS} more"
                if len(missing) > MAX_LISTED_COLUMNS
                else ""
            )
            raise UserError(
                f"{path} lacks {len(missing)} of the {len(features)} columns of the model: {shown_missing}{more}"
                f"{nearest(str(missing[0]), header)}"
            )
        columns = list(map(str, features))
    else:
        # Inputs without names are all columns, in their order.
        columns = [column for column in header if column not in (labels or ())]
        shape = (document["model"] or {}).get("shape")
        if shape is not None and math.prod(shape) != len(columns):
            raise UserError(
                f"{path} has {len(columns)} columns of inputs, and the model takes {math.prod(shape)} numbers"
            )
    positions = [header.index(column) for column in columns]
    inputs = np.empty((len(table_rows), len(columns)))
    for row_number, line in enumerate(table_rows):
        for column_number, position in enumerate(positions):
            inputs[row_number, column_number] = _number_in(
                line[position], path, row_number + 2, columns[column_number]
            )
    return inputs


def _number_in(cell: str, path: Path, row: int, column: str) -> float:
    """The finite number in a cell."""
    text = cell.strip()
    if text.lower() in TRUTH_WORDS:
        return TRUTH_WORDS[text.lower()]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        shown = repr(text[:20]) if text else "nothing"
        raise UserError(
            f"{path}: the column {column} must have a number in each row, and row {row} has {shown}"
        )
    return number


def _array(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in arrays:
        raise UserError(f"{path} has no array {name!r}{nearest(name, arrays)}{known_list(arrays)}")
    return arrays[name]


def _npy(path: Path) -> np.ndarray:
    """The array of an .npy file, without Python objects."""
    try:
        with readers.opened(path) as file:
            array: np.ndarray = npy.read_array(file, allow_pickle=False)
            return array
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} is not a readable .npy file of numbers ({error})") from error


def _shaped(inputs: np.ndarray, path: Path, document: Mapping[str, Any]) -> Tensor:
    """The inputs as a tensor in the shape of the model's inputs."""
    if inputs.dtype.kind not in "fiub" or not inputs.ndim:
        raise UserError(f"{path} must hold numbers, got an array of {inputs.dtype}")
    shape = (document["model"] or {}).get("shape")
    input_shape = tuple(inputs.shape[1:]) if shape is None else tuple(shape)
    if math.prod(input_shape) != math.prod(inputs.shape[1:]):
        raise UserError(
            f"{path} has rows of shape {list(inputs.shape[1:])}, and the model takes inputs of shape {list(input_shape)}"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(inputs.astype(np.float32)))
    if not bool(tensor.isfinite().all()):
        raise UserError(f"{path} has values that are missing or not finite")
    return tensor.reshape(len(inputs), *input_shape)


def scaled(inputs: Tensor, about_data: Mapping[str, Any]) -> Tensor:
    """Return inputs ``(n, ...)`` scaled by the constants of the clients' inputs, one per column or channel.

    Args:
        inputs: As they are measured.
        about_data: Facts about the clients' data, with ``means`` and ``deviations``, or without.

    Raises:
        DamagedError: The constants do not fit the inputs.
    """
    if "means" not in about_data:
        return inputs
    constants = {"means": about_data["means"], "deviations": about_data.get("deviations")}
    channels = inputs.shape[1] if inputs.dim() > 1 else 1
    if not sound(constants) or len(constants["means"]) not in (1, channels):
        raise DamagedError(
            f"models.json has means and deviations that do not fit inputs of shape {list(inputs.shape[1:])}"
        )
    shape = (1, -1, *[1] * (inputs.dim() - 2))
    means = torch.tensor(constants["means"], dtype=torch.float32).view(shape)
    deviations = torch.tensor(constants["deviations"], dtype=torch.float32).view(shape)
    return (inputs - means) / deviations


def _cautions(
    path: Path, inputs: np.ndarray, scaled_inputs: Tensor, about_data: Mapping[str, Any]
) -> tuple[str, ...]:
    """What is unusual in the rows: values far from those of training, and what a schema says of its columns."""
    cautions: list[str] = []
    is_table = path.name.lower().endswith((".csv", ".csv.gz"))
    if is_table and "table_schema" in about_data:
        schema_hook = provided("coterie.hooks", "table-schema")
        cautions += schema_hook.cautions_of_rows(path, about_data["table_schema"])
    features = about_data.get("features")
    num_inputs = inputs.reshape(len(inputs), -1).shape[1]
    if not isinstance(features, list) or len(features) != num_inputs:
        return tuple(cautions)
    if "means" not in about_data or scaled_inputs.dim() != 2:
        return tuple(cautions)
    # Features of 0 and 1 may be rare, and then are far from their mean.
    is_far = scaled_inputs.abs().numpy() > FAR_DEVIATIONS
    is_far &= (inputs != 0) & (inputs != 1)
    for place, feature in enumerate(features):
        far_rows = np.flatnonzero(is_far[:, place])
        if len(far_rows):
            cautions.append(
                f"{feature} is more than {FAR_DEVIATIONS} standard deviations from the mean of the training rows in "
                f"{len(far_rows):,} of {len(inputs):,} rows, such as {inputs[far_rows[0], place]:g} "
                f"(mean {about_data['means'][place]:.4g}): is it in another unit, or written with another decimal mark?"
            )
    return tuple(cautions)


FAR_DEVIATIONS = 10
"""Standard deviations from the mean of training beyond which a value is unusual."""


def _targets(
    label_values: np.ndarray, path: Path, document: Mapping[str, Any], labels: Sequence[str]
) -> tuple[Tensor, Tensor]:
    """The targets of the rows that have a label, and the positions of these rows."""
    rows = label_values.reshape(len(label_values), -1)
    # The first row of a table has the names of its columns.
    first_row = 1 if path.name.lower().endswith(".npz") else 2
    is_labelled = np.array([all(value != "" for value in row) for row in rows], bool)
    labelled = torch.from_numpy(np.flatnonzero(is_labelled))
    if not is_labelled.any():
        raise UserError(f"{path}: no row has a label in {', '.join(labels)}")
    if document["outputs"] != CLASS_LOGITS:
        numbers = [
            [
                _number_in(str(value), path, int(number) + first_row, labels[0])
                for value in rows[number]
            ]
            for number in np.flatnonzero(is_labelled)
        ]
        return torch.tensor(numbers, dtype=torch.float32), labelled
    if rows.shape[1] != 1:
        raise UserError(
            f"the model predicts one class, so it needs one column of labels, got {', '.join(labels)}"
        )
    # A class by its name; whole numbers of an array are the numbers of the classes.
    names = class_names(document)
    number_of_name = {name: number for number, name in enumerate(names)}
    classes = []
    for position in np.flatnonzero(is_labelled):
        label = rows[position, 0]
        name = str(label).strip()
        if name.endswith(".0"):
            name = name[:-2]
        if name not in number_of_name and np.issubdtype(label_values.dtype, np.integer):
            name = names[int(label)] if 0 <= int(label) < len(names) else name
        if name not in number_of_name:
            raise UserError(
                f"{path}: row {position + first_row} has the class {brief(name)}, which the model does not know"
                f"{nearest(name, names)}{known_list(names)}"
            )
        classes.append(number_of_name[name])
    return torch.tensor(classes), labelled
