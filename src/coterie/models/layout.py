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
        norms: Names of the BatchNorm layers that have parameters.

    Example:
        >>> layout = Layout(torch.nn.Linear(3, 2, device="meta"))
        >>> layout.size, dict(layout.columns)
        (8, {'': (0, 8)})
    """

    def __init__(self, module: torch.nn.Module) -> None:
        # Parameters first, then buffers: each piece begins where the one before ends.
        trainable: dict[str, torch.Tensor] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                trainable[name] = parameter
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
        # Where each trainable tensor and each running variance is in a row.
        tensor_columns: dict[str, tuple[int, int]] = {}
        variance_columns: list[slice] = []
        for piece in pieces:
            if piece.name in trainable:
                tensor_columns[piece.name] = (piece.start, piece.stop)
            if piece.name.rpartition(".")[2] == "running_var":
                variance_columns.append(slice(piece.start, piece.stop))
        self.tensors: Mapping[str, tuple[int, int]] = tensor_columns
        self.variances: tuple[slice, ...] = tuple(variance_columns)
        # The layers, and which of them are dense.
        self.columns: Mapping[str, tuple[int, int]] = self._layers(set(trainable))
        dense_layers: list[str] = []
        for name, submodule in module.named_modules():
            if isinstance(submodule, torch.nn.Linear) and name in self.columns:
                dense_layers.append(name)
        self.dense: tuple[str, ...] = tuple(dense_layers)
        norm_layers: list[str] = []
        for name, submodule in module.named_modules():
            is_batchnorm = isinstance(submodule, torch.nn.modules.batchnorm._BatchNorm)
            if is_batchnorm and name in self.columns:
                norm_layers.append(name)
        self.norms: tuple[str, ...] = tuple(norm_layers)

    def _layers(self, trainable: set[str]) -> dict[str, tuple[int, int]]:
        """Layer -> columns; a layer is the module that owns the parameters, so weight and bias are together."""
        layers: dict[str, tuple[int, int]] = {}
        for piece in self.pieces:
            if piece.name in trainable:
                layer = piece.name.rpartition(".")[0]
                # The first piece of a layer says where it begins, the last one where it ends.
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
        layer_names = set(layers)
        unknown_layers = sorted(layer_names - set(self.columns))
        if unknown_layers:
            raise ValueError(
                f"the model has no layer {unknown_layers[0]!r} (layers: {', '.join(self.columns)})"
            )
        column_mask = torch.zeros(self.size, dtype=torch.bool)
        # All layers are the whole row, also buffers of modules without parameters.
        if layer_names == set(self.columns):
            return ~column_mask
        for piece in self.pieces:
            if piece.name.rpartition(".")[0] in layer_names:
                column_mask[piece.start : piece.stop] = True
        return column_mask

    def row(self, source: torch.nn.Module | Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Copy the tensors of a module or state dict to one row.

        Args:
            source: The module or state dict.

        Returns:
            The row ``(d,)`` float32.

        Raises:
            ValueError: The state dict lacks a tensor, or a tensor has another shape.
        """
        # The state dict must have every tensor of the row, in its shape.
        tensor_by_name = source.state_dict() if isinstance(source, torch.nn.Module) else source
        for piece in self.pieces:
            if piece.name not in tensor_by_name:
                raise ValueError(f"the state dict lacks {piece.name!r}; it is from another model")
        for piece in self.pieces:
            if tuple(tensor_by_name[piece.name].shape) != piece.shape:
                raise ValueError(
                    f"{piece.name} has shape {tuple(tensor_by_name[piece.name].shape)} where the model has {piece.shape}"
                )
        return torch.cat(
            [
                tensor_by_name[piece.name].detach().reshape(-1).to(torch.float32)
                for piece in self.pieces
            ]
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
        return {
            piece.name: row[piece.start : piece.stop].view(piece.shape) for piece in self.pieces
        }

    def raise_variances(self, row: torch.Tensor) -> None:
        """Set negative running variances of a row to zero, in place: no training makes them, and their roots are NaN."""
        for variance_columns in self.variances:
            row[variance_columns].clamp_(min=0.0)

    def load(self, module: torch.nn.Module, row: torch.Tensor) -> None:
        """Copy a row into the tensors of a module, in place."""
        # `keep_vars` gives the module's own tensors, so that a copy changes the module.
        module_tensors = module.state_dict(keep_vars=True)
        with torch.no_grad():
            for tensor_name, new_values in self.state_dict(row).items():
                module_tensors[tensor_name].copy_(new_values)


def _sent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The float buffers of a module that are sent: those of its ``state_dict`` and of :func:`averaging`."""
    stored_tensors = module.state_dict()
    # A module that ``averaging`` made says which buffers are sent; all others send all.
    patterns = getattr(module, AVERAGED, ("*",))
    sent_buffers = {}
    for buffer_name, buffer in module.named_buffers():
        if not buffer.is_floating_point() or buffer_name not in stored_tensors:
            continue
        if any(fnmatchcase(buffer_name, pattern) for pattern in patterns):
            sent_buffers[buffer_name] = buffer
    return sent_buffers


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
    patterns = tuple(buffers)
    return model if "*" in patterns else partial(averaged, model, patterns)


def averaged(model: Callable[[], torch.nn.Module], patterns: tuple[str, ...]) -> torch.nn.Module:
    """Make a module of which only the float buffers with these names are sent and averaged."""
    # A pattern that fits no buffer is probably misspelled.
    module = model()
    float_buffer_names = [
        buffer_name for buffer_name, buffer in module.named_buffers() if buffer.is_floating_point()
    ]
    for pattern in patterns:
        if not any(fnmatchcase(buffer_name, pattern) for buffer_name in float_buffer_names):
            raise SettingError(
                f"buffers: {pattern!r} is no float buffer of the model "
                f"(these are: {', '.join(float_buffer_names) or 'none'})"
            )
    setattr(module, AVERAGED, patterns)
    return module


def with_weight(values: torch.Tensor, weight: float | None) -> torch.Tensor:
    """Return a client's own values ``(d,)`` with the weight of a mixture as one more entry; without one, as they are."""
    return values if weight is None else torch.cat([values, torch.tensor([weight])])


def without_weight(own_values: torch.Tensor, value_count: int) -> tuple[torch.Tensor, float | None]:
    """Return a client's own values ``(d,)``, and the weight of their mixture, None without one: see :func:`with_weight`.

    Args:
        own_values: The values, and perhaps the weight behind them.
        value_count: Number of values d.
    """
    weight = float(own_values[value_count]) if len(own_values) > value_count else None
    return own_values[:value_count], weight


def own_layers(row: torch.Tensor, own_values: torch.Tensor | None) -> torch.Tensor:
    """Put a client's own values into a model.

    Args:
        row: The model ``(d,)``.
        own_values: The client's own values ``(d,)``, with NaN where the model's value is used; None for
            no own values. With one entry more, its last is the weight of the values in a mixture
            with the model.

    Returns:
        The model of the client ``(d,)``.
    """
    # The client has stored nothing yet.
    if own_values is None:
        return row
    # A mixture: model + weight * (own values - model).
    if len(own_values) > len(row):
        return row + own_values[-1] * (own_values[:-1] - row)
    return torch.where(own_values.isnan(), row, own_values)
