"""An exported model as an ONNX file, which onnxruntime and others run without PyTorch and without Coterie."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import Client
from coterie.randomness import seeded
from coterie.records.store import write_whole
from coterie.runs.calibration import probabilities
from coterie.runs.loading import load, read_document, served_files
from coterie.runs.predicting import temperature_of
from coterie.runs.site_rows import scaled
from coterie.settings import UserError
from coterie.settings.calls import public

TOLERANCE = 1e-5
"""Greatest difference between an output of onnxruntime and one of PyTorch, relative to outputs above 1."""

CHECKED_ROWS = (1, 7)
"""Sizes of the batches on which an ONNX file is checked."""


class _Predicting(nn.Module):
    """A net from the inputs as they are measured to calibrated probabilities, or numbers."""

    def __init__(
        self, net: nn.Module, about_data: dict[str, Any], kind: str, temperature: float
    ) -> None:
        super().__init__()
        self.net = net
        self.about_data = about_data
        self.kind = kind
        self.temperature = temperature

    def forward(self, inputs: Tensor) -> Tensor:
        return probabilities(self.kind, self.net(scaled(inputs, self.about_data)), self.temperature)


@public
def to_onnx(
    export: Path | str,
    to: Path | str,
    client: Client | str | None = None,
    *,
    group: int | None = None,
    model: Callable[[], nn.Module] | None = None,
    secret: int | None = None,
    trust_code: bool = False,
) -> Path:
    """Write a model of an export as an ONNX file, which is checked by onnxruntime before it is written.

    The file takes ``inputs`` ``(n, ...)`` of float32 as they are measured, before any scaling, and
    gives ``outputs``: calibrated probabilities of classes or labels, or numbers in their unit.

    Args:
        export: The export, as :func:`coterie.save` has written it.
        to: The file, such as ``group-1.onnx``.
        client: See :func:`coterie.predict`.
        group: See :func:`coterie.predict`.
        model: See :func:`coterie.load`.
        secret: See :func:`coterie.load`.
        trust_code: See :func:`coterie.load`.

    Returns:
        The path of the file.

    Raises:
        UserError: ONNX is not installed, there is no such model, the shape of its inputs is not
            known, or it cannot be written as ONNX with the same outputs up to 1e-5.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError("to_onnx needs pip install 'coterie[onnx]'") from error
    folder = Path(export)
    document = read_document(folder)
    file_names = served_files(folder, document, client, group)
    net = load(folder, client, group=group, model=model, secret=secret, trust_code=trust_code)
    if document["model"] is None:
        raise UserError(
            f"{folder} does not say the shape of its model's inputs; call torch.onnx.export with coterie.load"
        )
    temperature = temperature_of(document, file_names) or 1.0
    predicting_net = _Predicting(
        net, document["data"] or {}, document["outputs"], temperature
    ).eval()
    shape = tuple(document["model"]["shape"])
    with seeded(0):
        batches = [torch.rand(num_rows, *shape) for num_rows in CHECKED_ROWS]
    try:
        file_bytes = _onnx_bytes(predicting_net, batches[-1])
        session = onnxruntime.InferenceSession(file_bytes, providers=["CPUExecutionProvider"])
        for inputs in batches:
            (onnx_outputs,) = session.run(None, {"inputs": inputs.numpy()})
            with torch.no_grad():
                outputs = predicting_net(inputs)
            difference = float((torch.from_numpy(onnx_outputs) - outputs).abs().max())
            if not difference <= TOLERANCE * max(1.0, float(outputs.abs().max())):
                raise UserError(
                    f"the ONNX file of {folder} has other outputs than the model (by {difference:.2g})"
                )
    except UserError:
        raise
    # The exporter and the runtime raise errors of many kinds, for what they do not support.
    except Exception as error:
        raise UserError(f"the model of {folder} cannot be written as ONNX: {error}") from error
    path = Path(to)
    try:
        write_whole(path, file_bytes)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _onnx_bytes(net: nn.Module, example: Tensor) -> bytes:
    """The bytes of an ONNX file for any number of rows."""
    # The exporter reports operators of packages that are not installed.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                net,
                (example,),
                dynamo=True,
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("rows")},),
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    file_bytes: bytes = program.model_proto.SerializeToString()
    return file_bytes
