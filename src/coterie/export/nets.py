"""The net of a run: from a row of the server's to the tensors of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from coterie import models
from coterie.boundary import Wire
from coterie.checksum import digest
from coterie.codec import DamagedError, from_stored
from coterie.core import Cohort
from coterie.engines.inprocess import Position
from coterie.files import read_within
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.record import RUN
from coterie.runs import Run, world_facts
from coterie.settings import UserError

LARGEST_INPUT = 2**28
"""Numbers in an input, and classes; a net for more is none that fits into a memory."""

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Net:
    """A run's net. about: name, shape and classes; None of one that Coterie has no name for. sealed: the map, where the
    clients alone know its secret. stays: layers that are at the clients, of which the server has nothing. layers: all that
    train. named: row ``(d,)`` -> all tensors by name, a copy."""

    about: Mapping[str, Any] | None
    sealed: Mapping[str, Any] | None
    stays: tuple[str, ...]
    layers: tuple[str, ...]
    named: Callable[[Tensor], Tensors]

    def tensors(self, row: Tensor) -> Tensors:
        """What goes into a file of a model; nothing if all of it stays at the clients."""
        if set(self.stays) == set(self.layers):
            return {}
        return {name: value for name, value in self.named(row).items() if name.rpartition(".")[0] not in self.stays}


def net_of(run: Run, position: Position, numbers: int) -> Net:
    """The net of ``run``, as it stands. numbers: in a row of its models.

    Raises :class:`~coterie.settings.UserError` if nobody knows it any more."""
    world, boundary = run.record.description()["world"], run.experiment.boundary
    elsewhere = of_federation(run)
    sealed = {"rotation": boundary.rotation, "block": boundary.block} if elsewhere and boundary.rotation != "none" else None
    stays = _stays(run, position) if elsewhere or run.experiment.engine == "flower" else ()
    if elsewhere and "model" not in world:
        return Net(None, sealed, stays, *_described(run, whole=sealed is not None))
    about = world.get("model") or world_facts(run.experiment.world(run.seed))["model"]
    run.experiment.check_consent(str(about.get("name")))
    module = fresh(about, run.folder / RUN, numbers)
    layout = Layout(module)
    plain: Callable[[Tensor], Tensor] = (lambda row: row) if sealed else plain_rows(run, layout)

    def named(row: Tensor) -> Tensors:
        layout.load(module, plain(row))
        # Copies: safetensors takes no two names of one memory, as tied layers have.
        return {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}

    return Net(about, sealed, stays, tuple(layout.columns), named)


def of_federation(run: Run) -> bool:
    """Whether the clients were nodes of a federation: then their data were never here."""
    return "data" not in run.record.description()["world"]


def plain_rows(run: Run, layout: Layout) -> Callable[[Tensor], Tensor]:
    """From a row ``(d,)`` of the server's to the clients': the one place here where the boundary's map is undone."""
    return Wire(run.experiment.boundary, layout, run.seed).open


def fresh(about: Mapping[str, Any], file: Path, numbers: int) -> nn.Module:
    """A new net by its name, shape and classes, as ``file`` has them; what no file holds is as engines have it.

    numbers: those that are there for it. A larger net is refused before it takes memory.
    """
    try:
        shape, classes = tuple(int(size) for size in about["shape"]), int(about["classes"])
        sizes = math.prod(shape) if shape and min(shape) > 0 else 0
        if not 0 < sizes <= LARGEST_INPUT or not 0 < classes <= LARGEST_INPUT:
            raise ValueError(f"inputs of shape {list(shape)} and {classes} classes")
        if str(about["name"]) in models.MODELS:
            with torch.device("meta"):
                needed = sum(one.numel() for one in models.make(str(about["name"]), shape, classes).parameters())
            if needed > numbers:
                raise ValueError(f"a net of {needed:,} numbers, and its models have {numbers:,}")
        with seeded(0):
            return models.make(str(about["name"]), shape, classes)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{file} describes no net that can be made: {error}") from error


def _stays(run: Run, position: Position) -> tuple[str, ...]:
    """The layers that stay at the clients, by what the method would ask next."""
    with from_stored(run.record.checkpoints.path(position.round)):
        plan = run.method.plan(position.state, Cohort(present=position.members, exchange=position.exchange, seed=run.seed))
        return tuple(sorted({layer for task in plan.tasks.values() for layer in task.keep}))


def _described(run: Run, whole: bool) -> tuple[tuple[str, ...], Callable[[Tensor], Tensors]]:
    """``layers`` and ``named``, by what the server of a federation has told of its net: ``tensors``, in the order of a row;
    ``trainable``, how many of them are; ``tied``, the other names of those that have several; ``others``, the file of tensors
    that have no place in a row. whole: keep all digits of a row."""
    world = run.record.description()["world"]
    if "net" not in world:
        raise UserError(
            f"{run.folder} does not tell which tensors its net has: an earlier Coterie recorded it; start its ServerApp again "
            "with the same settings, and it does"
        )
    try:
        net = world["net"]
        pieces = [(one["name"], tuple(one["shape"]), _dtype(one["dtype"])) for one in net["tensors"]]
        layers = tuple({name.rpartition(".")[0]: None for name, _, _ in pieces[: net["trainable"]]})
        tied, others = dict(net.get("tied", {})), {}
        if "others" in net:
            data = read_within(run.folder, Path(net["others"]).name)
            if net.get("others_checksum") not in (None, digest(data)):
                raise ValueError(f"{net['others']} is not what was written")
            others = safetensors.torch.load(data)
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise DamagedError(f"{run.folder} does not tell its net's tensors as it should ({error}); it is damaged") from error

    def named(row: Tensor) -> Tensors:
        out, start = dict(others), 0
        for name, shape, dtype in pieces:
            stop = start + math.prod(shape)
            out[name] = row[start:stop].reshape(shape).to(torch.float32 if whole else dtype, copy=True)
            start = stop
        return {**out, **{name: out[other].clone() for name, other in tied.items()}}

    return layers, named


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no type of numbers")
    return found
