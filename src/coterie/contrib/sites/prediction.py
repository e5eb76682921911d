"""Predictions for raw rows by exported models: the schema with constants is in the export's ``models.json``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.contrib.sites.table_schema import TableSchema
from coterie.contrib.sites.worlds import FACT, features_of_rows
from coterie.core import Client
from coterie.runs.export import MODELS_FILE
from coterie.runs.loading import load, read_document, served_files
from coterie.runs.predicting import temperature_of
from coterie.settings import UserError


def inputs_of(folder: Path | str, rows: Any) -> torch.Tensor:
    """Make the inputs of exported models from raw rows.

    Args:
        folder: The export of a run over a table with a schema, see :func:`coterie.save`.
        rows: A data frame, a mapping from columns to lists, or the path of a CSV or Parquet file.
            Columns may be in any order, and further ones are not used.

    Returns:
        The inputs ``(N, d)`` float32: the features by the constants of the training rows, and
        standardized as in the run. A level that is rare or unknown is ``(other)``.

    Raises:
        UserError: The run had no schema, or the rows do not fit it.
    """
    data = read_document(Path(folder))["data"]
    if FACT not in data:
        raise UserError(
            f"{Path(folder) / MODELS_FILE} has no table schema: its run had features that were numbers already"
        )
    schema = TableSchema.of(data[FACT], str(Path(folder) / MODELS_FILE))
    inputs = torch.from_numpy(features_of_rows(rows, schema))
    # In the same order of operations as in the run, so that the inputs are the same bits.
    if "means" in data:
        means = torch.tensor(data["means"], dtype=torch.float64).float()
        deviations = torch.tensor(data["deviations"], dtype=torch.float64).float()
        inputs = (inputs - means).div_(deviations)
    return inputs


def predict(
    folder: Path | str,
    client: Client | str,
    rows: Any,
    *,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> dict[str, np.ndarray]:
    """Predict the target of raw rows by the model that serves a client, with its calibration.

    Args:
        folder: As for :func:`inputs_of`.
        client: The client's name.
        rows: As for :func:`inputs_of`.
        model: As for :func:`coterie.load`.
        secret: As for :func:`coterie.load`.
        trust_code: As for :func:`coterie.load`.

    Returns:
        Column -> values ``(N,)``. One target of classes: ``prediction``, the likeliest class, and the
        probability of each class by its name. Several labels: the probability of each by its name.
        Numbers: each target by its name, in its own unit.

    Raises:
        UserError: As for :func:`inputs_of` and :func:`coterie.load`.
    """
    inputs = inputs_of(folder, rows)
    document = read_document(Path(folder))
    temperature = temperature_of(document, served_files(Path(folder), document, client, None))
    net = load(folder, client, model=model, secret=secret, trust_code=trust_code)
    data = document["data"]
    with torch.inference_mode():
        outputs = net(inputs)
    # Only logits have a temperature.
    outputs = outputs / (temperature or 1.0)
    if data.get("task") == "classification":
        classes = data["classes"]
        probabilities = outputs.softmax(1).numpy()
        likeliest = np.array(classes, object)[probabilities.argmax(1)]
        return {"prediction": likeliest, **dict(zip(classes, probabilities.T, strict=True))}
    if data.get("task") == "multi-label":
        outputs = outputs.sigmoid()
    columns = outputs.reshape(len(inputs), -1).numpy().T
    return dict(zip(data["targets"], columns, strict=True))
