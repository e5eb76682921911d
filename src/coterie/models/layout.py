"""The layout of a model as a flat row. This is the only file that knows both ``nn.Module`` and flat rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch

from coterie.settings import SettingError
from coterie.settings.calls import public


@dataclass(frozen=True)
class Piece:
    """One tensor of a model and its position in the row.

    Attributes:
        name: Name in the ``state_dict``.
        shape: Shape of the tensor.
        start: First position in the row.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """Position after the last one."""
        return self.start + math.prod(self.shape)


@public
class Layout:
    """Converts the float tensors of a model to a row ``(d,)`` and back.

    Trainable parameters come first, in ``named_parameters`` order. Float buffers (BatchNorm's
    running statistics) follow: they are sent and averaged, but similarities do not use them;
    :func:`~coterie.models.layout.averaging` leaves some out. Frozen parameters and integer buffers
    are not part of a row: nobody sends them, and :meth:`load` does not change them.

    Args:
        module: The model. A complex trainable parameter, or no trainable parameter, raises
            ``ValueError``.

    Attributes:
        pieces: The tensors, in the order of the row.
        size: Length d of a row.
        trainable: Number of entries of trainable parameters, which come first.
        statistics: Names of the float buffers.
        variances: Positions of BatchNorm's running variances.
        columns: Layer -> first column and column after the last one of its trainable parameters.
        tensors: Trainable parameter -> first column and column after the last one.
        dense: Names of the layers that are ``nn.Linear``.

    Example:
        >>> layout = Layout(torch.nn.Linear(3, 2, device="meta"))
        >>> layout.size, dict(layout.columns)
        (8, {'': (0, 8)})
    """

    def __init__(self, module: torch.nn.Module) -> None:
        trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        buffers = _sent_buffers(module)
        pieces = []
        start = 0
        for name, tensor in [*trainable.items(), *buffers.items()]:
            piece = Piece(name, tuple(tensor.shape), start)
            pieces.append(piece)
            start = piece.stop
        if any(parameter.is_complex() for parameter in trainable.values()):
            raise ValueError(
                f"{type(module).__name__} has a complex parameter, and only real ones are supported"
            )
        if not trainable:
            raise ValueError(f"{type(module).__name__} has no trainable parameter")
        self.pieces: tuple[Piece, ...] = tuple(pieces)
        self.size: int = start
        self.trainable: int = sum(parameter.numel() for parameter in trainable.values())
        self.statistics: tuple[str, ...] = tuple(buffers)
        self.variances: tuple[slice, ...] = tuple(
            slice(p.start, p.stop) for p in pieces if p.name.rpartition(".")[2] == "running_var"
        )
        self.columns: Mapping[str, tuple[int, int]] = self._layers(set(trainable))
        self.tensors: Mapping[str, tuple[int, int]] = {
            p.name: (p.start, p.stop) for p in pieces if p.name in trainable
        }
        self.dense: tuple[str, ...] = tuple(
            name
            for name, part in module.named_modules()
            if isinstance(part, torch.nn.Linear) and name in self.columns
        )

    def _layers(self, trainable: set[str]) -> dict[str, tuple[int, int]]:
        """Layer -> columns; a layer is the module that owns the parameters, so weight and bias are together."""
        layers: dict[str, tuple[int, int]] = {}
        for piece in self.pieces:
            if piece.name in trainable:
                layer = piece.name.rpartition(".")[0]
                first = layers.get(layer, (piece.start, 0))[0]
                layers[layer] = (first, piece.stop)
        return layers

    def mask(self, layers: Iterable[str]) -> torch.Tensor:
        """Return the mask of the columns of some layers, with their buffers; all columns if all layers are named.

        Args:
            layers: Names of the layers.

        Returns:
            The mask ``(d,)`` bool.

        Raises:
            ValueError: The model has no such layer.
        """
        named = set(layers)
        unknown = sorted(named - set(self.columns))
        if unknown:
            raise ValueError(
                f"the model has no layer {unknown[0]!r} (layers: {', '.join(self.columns)})"
            )
        mask = torch.zeros(self.size, dtype=torch.bool)
        if named == set(self.columns):
            return ~mask
        for piece in self.pieces:
            if piece.name.rpartition(".")[0] in named:
                mask[piece.start : piece.stop] = True
        return mask

    def row(self, source: torch.nn.Module | Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Copy the tensors of a module or state dict to one row.

        Args:
            source: The module or state dict.

        Returns:
            The row ``(d,)`` float32.

        Raises:
            ValueError: The state dict lacks a tensor, or a tensor has another shape.
        """
        tensors = source.state_dict() if isinstance(source, torch.nn.Module) else source
        missing = [p.name for p in self.pieces if p.name not in tensors]
        if missing:
            raise ValueError(f"the state dict lacks {missing[0]!r}; it is from another model")
        for piece in self.pieces:
            if tuple(tensors[piece.name].shape) != piece.shape:
                raise ValueError(
                    f"{piece.name} has shape {tuple(tensors[piece.name].shape)} where the model has {piece.shape}"
                )
        return torch.cat(
            [tensors[p.name].detach().reshape(-1).to(torch.float32) for p in self.pieces]
        )

    def state_dict(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of a row by name, for ``load_state_dict(..., strict=False)``.

        Args:
            row: The row ``(d,)``.

        Returns:
            Name -> view.

        Raises:
            ValueError: The row has another shape.
        """
        if row.shape != (self.size,):
            raise ValueError(
                f"a row of this model has shape ({self.size},), got {tuple(row.shape)}"
            )
        return {p.name: row[p.start : p.stop].view(p.shape) for p in self.pieces}

    def raise_variances(self, row: torch.Tensor) -> None:
        """Set negative running variances of a row to zero, in place: no training makes them, and their roots are NaN."""
        for part in self.variances:
            row[part].clamp_(min=0.0)

    def load(self, module: torch.nn.Module, row: torch.Tensor) -> None:
        """Copy a row into the tensors of a module, in place."""
        tensors = module.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, value in self.state_dict(row).items():
                tensors[name].copy_(value)


def _sent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The float buffers of a module that are sent: those of its ``state_dict`` and of :func:`averaging`."""
    stored = module.state_dict()
    patterns = getattr(module, AVERAGED, ("*",))
    sent = {}
    for name, buffer in module.named_buffers():
        if not buffer.is_floating_point() or name not in stored:
            continue
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            sent[name] = buffer
    return sent


AVERAGED = "averaged_buffers"
"""Attribute of a module with the names of its float buffers that are sent and averaged; without it,
all are."""


@public
def averaging(
    model: Callable[[], torch.nn.Module], buffers: Iterable[str]
) -> Callable[[], torch.nn.Module]:
    """Return a function that makes the same modules, of which only some float buffers are sent and averaged.

    The other buffers have the values with which the module is made, in every round and at every
    client. This suits a frozen part with running statistics of its own.

    Args:
        model: Function that makes a module.
        buffers: Names of the buffers, in which ``*`` stands for any text; no name for no buffer.

    Returns:
        The function; ``model`` itself if ``buffers`` has ``*``.
    """
    names = tuple(buffers)
    return model if "*" in names else partial(averaged, model, names)


def averaged(model: Callable[[], torch.nn.Module], names: tuple[str, ...]) -> torch.nn.Module:
    """Make a module of which only the float buffers with these names are sent and averaged."""
    module = model()
    floats = [name for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    for pattern in names:
        if not any(fnmatchcase(name, pattern) for name in floats):
            raise SettingError(
                f"buffers: {pattern!r} is no float buffer of the model "
                f"(these are: {', '.join(floats) or 'none'})"
            )
    setattr(module, AVERAGED, names)
    return module


def with_weight(values: torch.Tensor, weight: float | None) -> torch.Tensor:
    """Return a client's own values ``(d,)`` with the weight of a mixture as one more entry; without one, as they are."""
    return values if weight is None else torch.cat([values, torch.tensor([weight])])


def without_weight(kept: torch.Tensor, size: int) -> tuple[torch.Tensor, float | None]:
    """Return a client's own values ``(d,)``, and the weight of their mixture, None without one: see :func:`with_weight`.

    Args:
        kept: The values, and perhaps the weight behind them.
        size: Number of values d.
    """
    return kept[:size], float(kept[size]) if len(kept) > size else None


def own_layers(row: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Put a client's own values into a model.

    Args:
        row: The model ``(d,)``.
        kept: The client's own values ``(d,)``, with NaN where the model's value is used; None for
            no own values. With one entry more, its last is the weight of the values in a mixture
            with the model.

    Returns:
        The model of the client ``(d,)``.
    """
    if kept is None:
        return row
    if len(kept) > len(row):
        return row + kept[-1] * (kept[:-1] - row)
    return torch.where(kept.isnan(), row, kept)
