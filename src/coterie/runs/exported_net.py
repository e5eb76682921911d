"""The net of a run: from a row of the server's model matrix to the tensors of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.core import Cohort, Position, Task, serving_tasks
from coterie.data.scenario import OwnWorld
from coterie.files import read_within
from coterie.models import nets
from coterie.models.layout import Layout, averaging
from coterie.randomness import seeded
from coterie.records import checksum
from coterie.records.codec import DamagedError, from_stored
from coterie.records.record import RUN_FILE
from coterie.runs.run import Run
from coterie.settings import UserError

MAX_INPUT_NUMBERS = 2**28
"""Most numbers in an input, and most classes. A net for more would not fit into memory."""


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Net:
    """A run's net.

    Attributes:
        about: Its name, input shape and number of classes; None for a net that Coterie has no name
            for.
        sealed: The map of the models, if only the clients know its secret.
        stays: Layers that stay at the clients. The server does not have them.
        layers: All layers that are trained.
        untrained: Names of tensors that are not part of a row: frozen parameters and integer
            buffers.
        named: Function from a row ``(d,)`` to all tensors by name, as copies.
    """

    about: Mapping[str, Any] | None
    sealed: Mapping[str, Any] | None
    stays: tuple[str, ...]
    layers: tuple[str, ...]
    untrained: tuple[str, ...]
    named: Callable[[Tensor], Tensors]

    def tensors(self, row: Tensor) -> Tensors:
        """The tensors that go into the file of a model ``row`` ``(d,)``; empty if all layers stay at the clients."""
        if set(self.stays) == set(self.layers):
            return {}
        return {
            tensor_name: tensor
            for tensor_name, tensor in self.named(row).items()
            if tensor_name.rpartition(".")[0] not in self.stays
        }

    def shared(self, tensors: Tensors) -> Tensors:
        """Those of a model's tensors that all models share and that are large, so that a file of their own has them."""
        untrained_tensors = {
            tensor_name: tensors[tensor_name]
            for tensor_name in self.untrained
            if tensor_name in tensors
        }
        return (
            untrained_tensors
            if sum(tensor.nbytes for tensor in untrained_tensors.values()) > MAX_COPIED_BYTES
            else {}
        )


def net_of(run: Run, position: Position, numbers: int) -> Net:
    """The net of a run at a position.

    Args:
        run: The run.
        position: The position of the run, from a checkpoint.
        numbers: Numbers in a row of its models.

    Returns:
        The net.

    Raises:
        UserError: The net is no longer known, or cannot be made.
    """
    world = run.record.description()["world"]
    boundary = run.experiment.boundary
    elsewhere = of_federation(run)
    # The server of a federation does not know the secret of its clients' map.
    sealed = None
    if elsewhere and boundary.rotation != "none":
        sealed = {"rotation": boundary.rotation, "block": boundary.block}
    stays = _stays(run, position) if elsewhere or run.experiment.engine == "flower" else ()
    # The net by its name, by the user's world, or by the description of a federation's server.
    about = world.get("model")
    if about is not None:
        run.experiment.check_consent(str(about.get("name")))
        module = fresh(about, run.folder / RUN_FILE, numbers)
    elif isinstance(run.experiment.setup, OwnWorld):
        with seeded(0):
            module = run.experiment.world(run.seed).model()
    else:
        return Net(None, sealed, stays, *_described(run, whole=sealed is not None))
    layout = Layout(module)
    opened = None if sealed else plain_rows(run, layout)

    def named(row: Tensor) -> Tensors:
        layout.load(module, row if opened is None else opened(row))
        # Copies: safetensors does not accept two names for the same memory, which tied layers have.
        return {
            tensor_name: tensor.detach().clone().contiguous()
            for tensor_name, tensor in module.state_dict().items()
        }

    # Which tensors no client trains, such as those of a frozen backbone.
    trained_names = {piece.name for piece in layout.pieces}
    # The parameters themselves: tied ones are the same object.
    all_tensors = module.state_dict(keep_vars=True)
    trained = {id(all_tensors[tensor_name]) for tensor_name in trained_names}
    untrained = tuple(
        tensor_name for tensor_name, value in all_tensors.items() if id(value) not in trained
    )
    return Net(about, sealed, stays, tuple(layout.columns), untrained, named)


def of_federation(run: Run) -> bool:
    """Whether the clients were nodes of a federation, whose data were never on this machine."""
    return "data" not in run.record.description()["world"]


def plain_rows(run: Run, layout: Layout) -> Callable[[Tensor], Tensor]:
    """The function from the server's row ``(d,)`` to the clients' row.

    This is the only place in this module where the boundary's map is inverted.

    Args:
        run: The run.
        layout: The layout of its net.

    Returns:
        The function.
    """
    return Wire(run.experiment.boundary, layout, run.seed).open


def fresh(about: Mapping[str, Any], file: Path, numbers: int) -> nn.Module:
    """A new net from its name, input shape and number of classes.

    Tensors that no file holds have the values that they have in engines.

    Args:
        about: The name, shape and classes.
        file: The file in which they stand, for error messages.
        numbers: The numbers that are available for the net. A larger net is refused before memory
            is allocated.

    Returns:
        The net.

    Raises:
        UserError: No net can be made from the description.
    """
    try:
        # The description is not trusted: its sizes are bounded before anything is made.
        shape = tuple(int(size) for size in about["shape"])
        classes = int(about["classes"])
        sizes = math.prod(shape) if shape and min(shape) > 0 else 0
        if not 0 < sizes <= MAX_INPUT_NUMBERS or not 0 < classes <= MAX_INPUT_NUMBERS:
            raise ValueError(f"inputs of shape {list(shape)} and {classes} classes")
        # Counted without memory: a description may ask for any size.
        if str(about["name"]) in nets.MODELS:
            with torch.device("meta"):
                needed = sum(
                    parameter.numel()
                    for parameter in nets.make(str(about["name"]), shape, classes).parameters()
                )
            if needed > numbers:
                raise ValueError(f"a net of {needed:,} numbers, but its models have {numbers:,}")
        buffers = [str(buffer_name) for buffer_name in about.get("buffers", ["*"])]
        with seeded(0):
            return averaging(partial(nets.make, str(about["name"]), shape, classes), buffers)()
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"the net that {file} describes cannot be made: {error}") from error


def _stays(run: Run, position: Position) -> tuple[str, ...]:
    """The layers that stay at the clients, in the next tasks of the method that serves them."""
    with from_stored(run.record.checkpoints.path(position.round)):
        local_layers: set[str] = set()
        for task in next_tasks(run, position):
            local_layers.update(task.local_layers)
        return tuple(sorted(local_layers))


def next_tasks(run: Run, position: Position) -> tuple[Task, ...]:
    """The next tasks of the method that serves the clients."""
    cohort = Cohort(present=position.members, exchange=position.exchange, seed=run.seed)
    return serving_tasks(run.method, position.state, cohort)


def _described(
    run: Run, whole: bool
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[Tensor], Tensors]]:
    """The fields ``layers``, ``untrained`` and ``named`` of a federation's net, from its server's description.

    ``tensors``: in the order of a row. ``trainable``: how many of them are trainable. ``tied``: the
    further names of tensors that have several. ``others``: the file of the tensors that have no
    place in a row. With ``whole``, all tensors stay float32, so that a row keeps all its digits.
    """
    try:
        net = run.record.description()["world"]["net"]
        # The tensors of a row, and the layers of the trainable ones, each once and in order.
        pieces = [
            (tensor_entry["name"], tuple(tensor_entry["shape"]), _dtype(tensor_entry["dtype"]))
            for tensor_entry in net["tensors"]
        ]
        layers = tuple(
            {
                tensor_name.rpartition(".")[0]: None
                for tensor_name, _, _ in pieces[: net["trainable"]]
            }
        )
        tied_names = dict(net.get("tied", {}))
        other_tensors = {}
        if "others" in net:
            tensor_name = Path(net["others"]).name
            file_bytes = read_within(run.folder, tensor_name)
            checksum.check(file_bytes, run.folder / tensor_name, net.get("others_checksum"))
            other_tensors = safetensors.torch.load(file_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise DamagedError(
            f"{run.folder} has no valid list of its net's tensors ({error}); it is damaged"
        ) from error

    def named(row: Tensor) -> Tensors:
        tensors = dict(other_tensors)
        start = 0
        for tensor_name, shape, dtype in pieces:
            # Each tensor begins in the row where the one before ends.
            stop = start + math.prod(shape)
            tensors[tensor_name] = (
                row[start:stop].reshape(shape).to(torch.float32 if whole else dtype, copy=True)
            )
            start = stop
        return {
            **tensors,
            **{tensor_name: tensors[source].clone() for tensor_name, source in tied_names.items()},
        }

    return layers, tuple(other_tensors), named


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a numeric type")
    return dtype


MAX_COPIED_BYTES = 2**20
"""Bytes of such tensors up to which each model's file has them, so that it is complete."""
