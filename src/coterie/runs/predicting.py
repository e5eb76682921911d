"""Calibrated predictions of an exported model for the rows of a file: ``coterie predict``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core import Client
from coterie.data.batches import call
from coterie.notebook.tables import frame
from coterie.records.store import write_whole
from coterie.runs.calibration import probabilities
from coterie.runs.loading import load, read_document, served_files
from coterie.runs.site_rows import class_names, read_rows
from coterie.settings import UserError
from coterie.settings.calls import public
from coterie.training.outputs import CLASS_LOGITS, LABEL_LOGITS, ROWS_AT_ONCE

PREDICTION = "prediction"
"""The column with the name of the likeliest class."""


@public
@dataclass(frozen=True)
class Predictions:
    """What a model predicts for some rows.

    Attributes:
        names: Names of the classes, or of the labels or numbers.
        values: Shape ``(n, m)``: probabilities of classes or labels, or the numbers themselves.
        classes: The likeliest class of each row; None if the model does not predict one class.
        temperature: By which logits were divided; 1.0 if the model is not calibrated.
        is_calibrated: Whether the temperature is from held-out rows.
        cautions: Sentences on what is unusual in the rows: values far from those of training, such
            as in another unit; levels that were rare or unknown; columns without any value.
    """

    names: list[str]
    values: np.ndarray
    classes: list[str] | None
    temperature: float
    is_calibrated: bool
    cautions: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a table of the predictions: for each row, column -> value."""
        table_rows = []
        for number, row_values in enumerate(self.values.tolist()):
            table_row: dict[str, Any] = dict(zip(self.names, row_values, strict=True))
            if self.classes is not None:
                table_row[PREDICTION] = self.classes[number]
            table_rows.append(table_row)
        return table_rows

    def to_pandas(self) -> Any:
        """Return the predictions as a pandas data frame.

        Raises:
            UserError: pandas is not installed.
        """
        return frame(self.rows())

    def to_csv(self) -> str:
        """Return the predictions as a csv table, with six digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        header = [*self.names]
        if self.classes is not None:
            header.append(PREDICTION)
        writer.writerow(header)
        for number, row_values in enumerate(self.values.tolist()):
            cells = [f"{value:.6g}" for value in row_values]
            if self.classes is not None:
                cells.append(self.classes[number])
            writer.writerow(cells)
        return text.getvalue()

    def write(self, path: Path | str) -> None:
        """Write the predictions as a csv file; the file is complete or not there."""
        write_whole(Path(path), self.to_csv().encode())


@public
def predict(
    export: Path | str,
    file: Path | str,
    client: Client | str | None = None,
    *,
    group: int | None = None,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> Predictions:
    """Predict the rows of a file with a model of an export, with its calibration.

    Args:
        export: The export, as :func:`coterie.save` has written it.
        file: The rows: a .csv file with the columns of the model, an .npz file with an array x, or
            an .npy file.
        client: The client whose model predicts; None, without ``group``, for the default model.
        group: The number of a group, for the model that a new site of the group gets.
        model: See :func:`coterie.load`.
        secret: See :func:`coterie.load`.
        trust_code: See :func:`coterie.load`.

    Returns:
        The predictions.

    Raises:
        UserError: There is no such model, or the file has other columns.
    """
    folder = Path(export)
    document = read_document(folder)
    file_names = served_files(folder, document, client, group)
    # The rows first: a wrong file is found before a net is made.
    site_rows = read_rows(Path(file), document)
    net = load(folder, client, group=group, model=model, secret=secret, trust_code=trust_code)
    temperature = temperature_of(document, file_names)
    outputs = outputs_of(net, site_rows.inputs, str(file))
    kind = document["outputs"]
    # An export without the kind of its outputs: logits, if there are classes.
    if not kind and (document["data"] or {}).get("classes"):
        kind = CLASS_LOGITS
    values = probabilities(kind, outputs, temperature or 1.0)
    names = class_names({**document, "outputs": kind})
    if len(names) != values.shape[1]:
        names = [str(number) for number in range(values.shape[1])]
    classes = (
        [names[number] for number in values.argmax(1).tolist()] if kind == CLASS_LOGITS else None
    )
    return Predictions(
        names,
        values.numpy(),
        classes,
        temperature or 1.0,
        temperature is not None,
        site_rows.cautions,
    )


def temperature_of(document: dict[str, Any], file_names: list[str]) -> float | None:
    """Return the temperature of a net by its files; None if it is not calibrated."""
    if document["outputs"] not in (CLASS_LOGITS, LABEL_LOGITS):
        return None
    entry = document["calibration"].get("+".join(file_names))
    try:
        return None if entry is None else float(entry["temperature"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"models.json has a calibration without a temperature ({error})") from error


@torch.no_grad()
def outputs_of(net: nn.Module, inputs: Tensor, file: str) -> Tensor:
    """Return the outputs of a net for rows of a file, ``(n, m)``."""
    parts = []
    try:
        for start in range(0, len(inputs), ROWS_AT_ONCE):
            parts.append(call(net, inputs[start : start + ROWS_AT_ONCE]))
        outputs = torch.cat(parts)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"the model does not take the rows of {file}: {error}") from error
    return outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]
