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
        local_layers: Layers that stay at the clients. The server does not have them.
        layers: All layers that are trained.
        untrained: Names of tensors that are not part of a row: frozen parameters and integer
            buffers.
        named: Function from a row ``(d,)`` to all tensors by name, as copies.
    """

    about: Mapping[str, Any] | None
    sealed: Mapping[str, Any] | None
    local_layers: tuple[str, ...]
    layers: tuple[str, ...]
    untrained: tuple[str, ...]
    named: Callable[[Tensor], Tensors]

    def tensors(self, model_row: Tensor) -> Tensors:
        """The tensors that go into the file of a model ``model_row`` ``(d,)``; empty if all layers stay at the clients."""
        if set(self.local_layers) == set(self.layers):
            return {}
        sent_tensors = {}
        for tensor_name, tensor in self.named(model_row).items():
            # A tensor's name is that of its layer and its own, with a dot between.
            layer_name = tensor_name.rpartition(".")[0]
            if layer_name not in self.local_layers:
                sent_tensors[tensor_name] = tensor
        return sent_tensors

    def shared(self, tensors: Tensors) -> Tensors:
        """Those of a model's tensors that all models share and that are large, so that a file of their own has them."""
        untrained_tensors = {name: tensors[name] for name in self.untrained if name in tensors}
        untrained_bytes = sum(tensor.nbytes for tensor in untrained_tensors.values())
        return untrained_tensors if untrained_bytes > MAX_COPIED_BYTES else {}


def net_of(run: Run, position: Position, numbers_per_row: int) -> Net:
    """The net of a run at a position.

    Args:
        run: The run.
        position: The position of the run, from a checkpoint.
        numbers_per_row: Numbers in a row of its models.

    Returns:
        The net.

    Raises:
        UserError: The net is no longer known, or cannot be made.
    """
    world_table = run.record.description()["world"]
    boundary = run.experiment.boundary
    elsewhere = of_federation(run)
    # The server of a federation does not know the secret of its clients' map.
    sealed = None
    if elsewhere and boundary.rotation != "none":
        sealed = {"rotation": boundary.rotation, "block": boundary.block}
    local_layers = (
        _local_layers(run, position) if elsewhere or run.experiment.engine == "flower" else ()
    )
    # The net by its name, by the user's world, or by the description of a federation's server.
    net_description = world_table.get("model")
    if net_description is not None:
        run.experiment.check_consent(str(net_description.get("name")))
        module = fresh(net_description, run.folder / RUN_FILE, numbers_per_row)
    elif isinstance(run.experiment.setup, OwnWorld):
        with seeded(0):
            module = run.experiment.world(run.seed).model()
    else:
        return Net(None, sealed, local_layers, *_described(run, keeps_float32=sealed is not None))
    layout = Layout(module)
    open_row = None if sealed else plain_rows(run, layout)

    def named(model_row: Tensor) -> Tensors:
        layout.load(module, model_row if open_row is None else open_row(model_row))
        # Copies: safetensors does not accept two names for the same memory, which tied layers have.
        copies = {}
        for tensor_name, tensor in module.state_dict().items():
            copies[tensor_name] = tensor.detach().clone().contiguous()
        return copies

    # Which tensors no client trains, such as those of a frozen backbone.
    # Compared as objects: tied parameters are one object with several names.
    all_tensors = module.state_dict(keep_vars=True)
    trained_ids = {id(all_tensors[piece.name]) for piece in layout.pieces}
    untrained = tuple(name for name, tensor in all_tensors.items() if id(tensor) not in trained_ids)
    return Net(net_description, sealed, local_layers, tuple(layout.columns), untrained, named)


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


def fresh(
    net_description: Mapping[str, Any], described_in: Path, available_numbers: int
) -> nn.Module:
    """A new net from its name, input shape and number of classes.

    Tensors that no file holds have the values that they have in engines.

    Args:
        net_description: The name, shape and classes.
        described_in: The file in which they stand, for error messages.
        available_numbers: The numbers that are available for the net. A larger net is refused before memory
            is allocated.

    Returns:
        The net.

    Raises:
        UserError: No net can be made from the description.
    """
    try:
        # The description is not trusted: its sizes are bounded before anything is made.
        input_shape = tuple(int(size) for size in net_description["shape"])
        num_classes = int(net_description["classes"])
        input_numbers = math.prod(input_shape) if input_shape and min(input_shape) > 0 else 0
        if not 0 < input_numbers <= MAX_INPUT_NUMBERS or not 0 < num_classes <= MAX_INPUT_NUMBERS:
            raise ValueError(f"inputs of shape {list(input_shape)} and {num_classes} classes")
        # Counted without memory: a description may ask for any size.
        if str(net_description["name"]) in nets.MODELS:
            with torch.device("meta"):
                needed_numbers = sum(
                    parameter.numel()
                    for parameter in nets.make(
                        str(net_description["name"]), input_shape, num_classes
                    ).parameters()
                )
            if needed_numbers > available_numbers:
                raise ValueError(
                    f"a net of {needed_numbers:,} numbers, but its models have {available_numbers:,}"
                )
        buffer_names = [str(buffer_name) for buffer_name in net_description.get("buffers", ["*"])]
        with seeded(0):
            return averaging(
                partial(nets.make, str(net_description["name"]), input_shape, num_classes),
                buffer_names,
            )()
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"the net that {described_in} describes cannot be made: {error}") from error


def _local_layers(run: Run, position: Position) -> tuple[str, ...]:
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
    run: Run, keeps_float32: bool
) -> tuple[tuple[str, ...], tuple[str, ...], Callable[[Tensor], Tensors]]:
    """The fields ``layers``, ``untrained`` and ``named`` of a federation's net, from its server's description.

    ``tensors``: in the order of a row. ``trainable``: how many of them are trainable. ``tied``: the
    further names of tensors that have several. ``others``: the file of the tensors that have no
    place in a row. With ``keeps_float32``, all tensors stay float32, so that a row keeps all its digits.
    """
    try:
        net_table = run.record.description()["world"]["net"]
        # The tensors of a row, and the layers of the trainable ones, each once and in order.
        row_pieces = []
        for tensor_entry in net_table["tensors"]:
            shape = tuple(tensor_entry["shape"])
            row_pieces.append((tensor_entry["name"], shape, _dtype(tensor_entry["dtype"])))
        # A dict keeps the order, and a layer of several tensors only once.
        trained_layers: dict[str, None] = {}
        for tensor_name, _, _ in row_pieces[: net_table["trainable"]]:
            trained_layers[tensor_name.rpartition(".")[0]] = None
        tied_names = dict(net_table.get("tied", {}))
        other_tensors = {}
        if "others" in net_table:
            tensor_name = Path(net_table["others"]).name
            file_bytes = read_within(run.folder, tensor_name)
            checksum.check(file_bytes, run.folder / tensor_name, net_table.get("others_checksum"))
            other_tensors = safetensors.torch.load(file_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise DamagedError(
            f"{run.folder} has no valid list of its net's tensors ({error}); it is damaged"
        ) from error

    def named(model_row: Tensor) -> Tensors:
        tensors = dict(other_tensors)
        start = 0
        for tensor_name, shape, dtype in row_pieces:
            # Each tensor begins in the row where the one before ends.
            stop = start + math.prod(shape)
            tensors[tensor_name] = (
                model_row[start:stop]
                .reshape(shape)
                .to(torch.float32 if keeps_float32 else dtype, copy=True)
            )
            start = stop
        # Copies: safetensors does not accept two names for the same memory.
        for tensor_name, source_name in tied_names.items():
            tensors[tensor_name] = tensors[source_name].clone()
        return tensors

    return tuple(trained_layers), tuple(other_tensors), named


def _dtype(dtype_name: str) -> torch.dtype:
    torch_dtype = getattr(torch, dtype_name)
    if not isinstance(torch_dtype, torch.dtype):
        raise TypeError(f"{dtype_name} is not a numeric type")
    return torch_dtype


MAX_COPIED_BYTES = 2**20
"""Bytes of such tensors up to which each model's file has them, so that it is complete."""
