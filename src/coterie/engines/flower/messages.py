"""The format of tasks, models and replies in Flower's records.

A model is sent as an ``ArrayRecord`` with the names of its state dict, so any app can load it. If
several models are offered, the first one is ``arrays``, as everywhere in Flower, and the others are
``arrays-1``, ``arrays-2`` and so on. The rest of a task is one line of JSON in the ``config``. Apps
that do not know Coterie ignore it.

A client gets its tasks of all parts of a plan in one message, and answers them in one reply. The
models of its first task come first. In the reply, metrics of the second task have names with ``-1``
at the end, those of the third ``-2``. Its updates are ``update-2`` and, of a second half,
``update-3``, and so on. Held-out losses are those of all tasks.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from coterie.boundary import update_number
from coterie.core import (
    FEATURES,
    WORST_LOSS,
    Candidate,
    Client,
    Feature,
    HeldOutLosses,
    Holdout,
    Method,
    Neighbours,
    Personal,
    Plan,
    PrivateTask,
    Stage,
    Statistic,
    Task,
    Training,
    needs_of,
)
from coterie.core.needs import IN_WORDS, features_of
from coterie.engines.flower.sums import flower_sums
from coterie.models.layout import Layout
from coterie.pooling import SIGN, ErrorSums, parted, sound
from coterie.settings import SettingError
from coterie.training import Order as Order

ARRAYS = "arrays"
CONFIG = "config"
METRICS_RECORD = "metrics"
UPDATE = "update"
"""Record of a reply with the trained model minus the offered one; ``arrays`` contains the trained
model itself."""

TASK = "coterie"
"""Key of the task in the config."""

QUERY = "evaluate.default"
"""Type of the message that asks a node which client it is.

For Flower this is the same as ``evaluate``: a test of the model in the message, which any app can
do. An app that knows Coterie tests nothing, and replies with the record :data:`WHO`. An app without
a function for a message would fail, with a traceback in its log.
"""

WHO = "coterie"
"""Record of the reply to a query by an app that knows Coterie: ``client``, its client id if it has
one, and ``functions``."""

NAME = "coterie-name"
"""Record of that reply with the client's ``name``, if it has one."""

SCHEMA = "coterie-schema"
"""Record of that reply with what the node states about its data, see :mod:`.schemas`."""

REFUSED = "coterie-refused"
"""Key of the config in a query that tells a node why it does not take part."""

NO_TEST = "No evaluate function registered with name 'default'"
"""Flower's error if an app has no function for tests."""

FUNCTIONS = "functions"
"""Key of that record: 1 if the app trains by a function of its own."""

ANSWER = "answer"
"""Record of a reply, and its only array: the answer to a task's question."""

CELL = "cell"
"""Key of the metrics: the client's cell."""

STORED_AT = "kept"
"""Key of the metrics: the exchange after which a client stored the own values that it trained from,
-1 if it had none."""

STATISTIC = "statistic"
"""Prefix of the keys of the metrics with what a client tells about its training data."""

PERSONAL = "personal"
"""Key of the metrics: 1 if a client has stored the personal model of a task, 0 if this model or the
update is not finite."""

HELD_OUT_COUNT = "held-out"
HELD_OUT_SUMS = "held-out-sums"
HELD_OUT_PRODUCTS = "held-out-products"
"""Keys of the metrics for held-out losses: the number of examples, the sums of each model's losses,
and the sums of products of two models' losses: row after row of the upper triangle of
:attr:`~coterie.core.HeldOutLosses.products`."""

CALIBRATION = "calibration"
"""Key of the config in a test message that asks for the sums of
:class:`~coterie.training.calibration_sums.CalibrationSums` in place of the scores; and prefix of the
keys of the metrics with them."""

FIRST_MODEL = "first"
"""Key of the config in a message that asks a boundary's mod for the i-th first model, sealed."""


MAX_TEXT_LENGTH = 300
"""Most characters of a text from a client that are recorded."""

MAX_FAILURE_LENGTH = MAX_TEXT_LENGTH - len("its app failed: ")
"""Most characters of the reason after these words."""

FLOWERS_WRAPPER = "Exception ClientAppException occurred. Message: "
"""What precedes the message of an app's exception in a simulation of Flower."""

MAX_ROUNDING_ERROR = 1e-9
"""Greatest relative error, by rounding, of sums of losses."""

MAX_MEASURED = float(np.finfo(np.float32).max)
"""The largest possible loss or metric: clients train and test in single precision."""


class Unfit(ValueError):
    """A reply cannot be used. The message is one sentence."""


def order_to_json(order: Order) -> dict[str, Any]:
    """Return an order as a value for JSON. A client divides it into halves itself."""
    # Fields that the client derives itself are left out.
    field_values = {
        order_field.name: getattr(order, order_field.name) for order_field in fields(order)
    }
    del field_values["half"]
    del field_values["beside_halves"]
    task = asdict(replace(order.task, private=PrivateTask()))
    # The order's settings have the changes of the task.
    task["training"] = None
    # Apps of earlier versions know no statistics.
    if not order.task.statistics:
        del task["statistics"]
    question = order.task.private.question
    task["private"] = {
        "question": None if question is None else flower_sums().question_to_json(question),
        "sends_update": order.task.private.sends_update,
    }
    training = asdict(order.training)
    # Nor do they know optimizers that keep their state. Augmentation is the client's own.
    if not order.training.keep_optimizer:
        del training["keep_optimizer"]
    del training["augment"]
    neighbours = None if order.neighbours is None else asdict(order.neighbours)
    return {
        **field_values,
        "task": task,
        "training": training,
        "neighbours": neighbours,
    }


def order_from_json(entries: Any) -> Order:
    """Read an order from JSON.

    Args:
        entries: The value of :func:`order_to_json`.

    Returns:
        The order.

    Raises:
        ValueError: A value is not allowed.
        KeyError: An entry is missing.
        TypeError: An entry has the wrong type.
    """
    seed, exchange, round = (int(key_number) for key_number in entries["key"])
    first_column, end_column = entries["columns"]
    training = Training(**entries["training"])
    # A server must not make a node import code.
    if "optimizer" in training.own_code:
        raise ValueError(
            f"the optimizer {training.optimizer!r:.80} is code, which no server may name"
        )
    return Order(
        task=_task(entries["task"]),
        training=training,
        lr=float(entries["lr"]),
        key=(seed, exchange, round),
        client=int(entries["client"]),
        run=str(entries["run"]),
        part=str(entries["part"]),
        number=int(entries["number"]),
        since=int(entries["since"]),
        plain=bool(entries["plain"]),
        neighbours=_neighbours(entries["neighbours"]),
        ended={str(part_name): int(exchange) for part_name, exchange in entries["ended"].items()},
        sums=bool(entries["sums"]),
        sketch=int(entries["sketch"]),
        columns=(int(first_column), int(end_column)),
        hidden=bool(entries["hidden"]),
        clip=None if entries["clip"] is None else float(entries["clip"]),
    )


def _task(entries: Mapping[str, Any]) -> Task:
    """Read a task from JSON. Raises :class:`ValueError` or :class:`TypeError` if a value is not allowed."""
    # JSON has lists where a task has tuples.
    field_values: dict[str, Any] = {
        entry_name: tuple(entry_value) if isinstance(entry_value, list) else entry_value
        for entry_name, entry_value in entries.items()
    }
    # Entries that are objects themselves are read one by one, and each is checked.
    holdout = field_values["holdout"]
    personal = field_values["personal"]
    private = field_values["private"]
    question = private["question"]
    field_values["holdout"] = Holdout(
        share=holdout["share"],
        report_losses=holdout["report_losses"],
        neighbours=_neighbours(holdout["neighbours"]),
    )
    field_values["stages"] = tuple(_stage(stage) for stage in field_values["stages"])
    if personal is not None:
        field_values["personal"] = _personal(personal)
    field_values["private"] = PrivateTask(
        question=None if question is None else flower_sums().question_from_json(question),
        sends_update=bool(private["sends_update"]),
    )
    return Task(**field_values)


def _stage(entries: Mapping[str, Any]) -> Stage:
    stage = Stage(layers=tuple(entries["layers"]), epochs=entries["epochs"])
    valid_epochs = stage.epochs is None or _is_count(stage.epochs)
    if not valid_epochs or not _are_texts(stage.layers):
        raise ValueError(f"Stage needs names of layers and a number of epochs, got {stage}")
    return stage


def _personal(entries: Mapping[str, Any]) -> Personal:
    personal = Personal(**{**entries, "layers": tuple(entries["layers"])})
    is_valid = (
        (personal.epochs is None or _is_count(personal.epochs))
        and _is_number(personal.pull)
        and 0 <= personal.pull <= MAX_MEASURED
        and (personal.mixture is None or _is_number(personal.mixture))
        and type(personal.adapt) is bool
        and _are_texts(personal.layers)
    )
    if not is_valid:
        raise ValueError(
            f"Personal needs numbers >= 0, a truth value as adapt and names of layers, got {personal}"
        )
    return personal


def _neighbours(entries: Mapping[str, Any] | None) -> Neighbours | None:
    if entries is None:
        return None
    neighbours = Neighbours(**{**entries, "weights": tuple(entries["weights"])})
    numbers = (neighbours.scale, neighbours.holdout, *neighbours.weights)
    has_valid_numbers = _is_count(neighbours.k) and all(map(_is_number, numbers))
    if not has_valid_numbers or not isinstance(neighbours.layer, str):
        raise ValueError(
            f"Neighbours needs a layer's name, a whole number k, and numbers, got {neighbours}"
        )
    return neighbours


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def name_of(model_number: int) -> str:
    """Return the name of the record of the i-th offered model."""
    return of_task(ARRAYS, model_number)


def of_task(base_name: str, task_place: int) -> str:
    """Return the name of a record or an entry of the reply to the task at a place among the client's tasks."""
    return f"{base_name}-{task_place}" if task_place else base_name


def updates_of(task_place: int) -> tuple[str, str]:
    """Return the names of the update records of the task at a place: the update, and that of the second half if asked."""
    return of_task(UPDATE, update_number(task_place)), of_task(UPDATE, update_number(task_place, 1))


@dataclass(frozen=True)
class OtherTensors:
    """The parts of a state dict that are not in a row.

    Attributes:
        outside_row: Other tensors, such as integer buffers.
        tied: Second name -> first name of tensors that have several names.
    """

    outside_row: Mapping[str, Tensor] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> OtherTensors:
        """Return those parts of a net's state dict."""
        # The parameters themselves: tied ones are the same object.
        state_dict = module.state_dict(keep_vars=True)
        name_in_row = {
            id(state_dict[row_piece.name]): row_piece.name for row_piece in layout.pieces
        }
        other_tensors = {}
        tied_names = {}
        for tensor_name, tensor in state_dict.items():
            first_name = name_in_row.get(id(tensor))
            if first_name is None:
                other_tensors[tensor_name] = tensor.detach().clone().contiguous()
            elif first_name != tensor_name:
                tied_names[tensor_name] = first_name
        return cls(other_tensors, tied_names)


def packed(
    model_row: Tensor,
    layout: Layout,
    other_tensors: OtherTensors | None = None,
    without: Tensor | None = None,
) -> ArrayRecord:
    """Convert a row to arrays.

    Args:
        model_row: The row ``(d,)``.
        layout: The layout of the model's parameters.
        other_tensors: The other parts of the state dict. With them the result is a complete state
            dict.
        without: Mask ``(d,)`` of columns to leave out; a tensor is left out if all its columns are.

    Returns:
        The record.
    """
    # The tensors of the row, without those whose columns are all left out.
    state_dict = layout.state_dict(model_row.detach().cpu())
    packed_tensors = {}
    for row_piece in layout.pieces:
        if without is None or not without[row_piece.start : row_piece.stop].all():
            packed_tensors[row_piece.name] = state_dict[row_piece.name]
    if other_tensors is None:
        return ArrayRecord(packed_tensors)
    # Tied tensors have the values of their first name.
    tied_tensors = {
        tied_name: state_dict[first_name]
        for tied_name, first_name in other_tensors.tied.items()
        if first_name in packed_tensors
    }
    return ArrayRecord({**packed_tensors, **tied_tensors, **other_tensors.outside_row})


def unpacked(array_record: Any, layout: Layout, may_lack: Tensor | None = None) -> Tensor:
    """Convert arrays to a row.

    Args:
        array_record: The record, possibly from an unknown sender.
        layout: The layout of the model's parameters.
        may_lack: Mask ``(d,)`` of columns whose arrays may be missing. None means that all must be
            there.

    Returns:
        The row ``(d,)``, NaN in the columns of missing arrays.

    Raises:
        Unfit: An array is missing or cannot be used.
    """
    model_row = torch.full((layout.size,), torch.nan)
    for row_piece in layout.pieces:
        if row_piece.name in array_record:
            values = array_of(array_record, row_piece.name, row_piece.shape)
            # A value too large for single precision becomes infinite and is refused later.
            with np.errstate(over="ignore"):
                single_precision = values.astype(np.float32).reshape(-1)
            model_row[row_piece.start : row_piece.stop] = torch.from_numpy(single_precision)
        elif may_lack is None or not may_lack[row_piece.start : row_piece.stop].all():
            raise Unfit(f"its arrays lack {row_piece.name!r}; they are from another model")
    return model_row


def array_of(
    array_record: Any, array_name: str, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Read an array of a record.

    The record may be from an unknown sender. The numbers are read only if the header fits, and
    nothing is ever unpickled.

    Args:
        array_record: The record.
        array_name: Name of the array.
        shape: The shape that the array must have; it must then contain floating-point numbers. None
            allows any shape and any real numbers.

    Returns:
        The array in this machine's byte order.

    Raises:
        Unfit: The array cannot be read, or has another shape or type.
    """
    try:
        file_bytes = bytes(array_record[array_name].data)
        stated_shape, order, dtype, data_start = _header(file_bytes)
    except Exception as error:
        # A malformed header can make NumPy raise any error.
        raise Unfit(
            f"its array {array_name!r} cannot be read: {type(error).__name__} {error}"
        ) from None
    # Check the header before any number is read.
    if shape is not None and stated_shape != shape:
        raise Unfit(
            f"its array {array_name!r} has shape {stated_shape} where the model has {shape}"
        )
    if shape is not None and dtype.kind != "f":
        raise Unfit(f"its array {array_name!r} is of {dtype}, not of floating-point numbers")
    number_bytes = len(file_bytes) - data_start
    if (
        dtype.kind not in "fiu"
        or min(stated_shape, default=0) < 0
        or math.prod(stated_shape) * dtype.itemsize != number_bytes
    ):
        raise Unfit(
            f"its array {array_name!r} cannot be read: {stated_shape} of {dtype} in {number_bytes} bytes"
        )
    try:
        values = np.frombuffer(file_bytes, dtype, offset=data_start).reshape(
            stated_shape, order=order
        )
    except ValueError as error:
        # It has more dimensions than NumPy allows.
        raise Unfit(f"its array {array_name!r} cannot be read: {error}") from None
    return values.astype(dtype.newbyteorder("="))


def _header(file_bytes: bytes) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]:
    """Shape, order and type in the header of an ``.npy`` file, and the position of its numbers."""
    # Versions 1 and 2 of the format differ in the header's length field.
    byte_stream = io.BytesIO(file_bytes)
    read_header = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(byte_stream) == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    # An unknown sender's header must not print warnings on this terminal.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stated_shape, is_fortran_order, dtype = read_header(byte_stream)
    order: Literal["C", "F"] = "F" if is_fortran_order else "C"
    return tuple(int(axis_length) for axis_length in stated_shape), order, dtype, byte_stream.tell()


def only(records: Mapping[str, Any], record_name: str, record_kind: str) -> Any:
    """Return the record with a name, or the only record.

    Args:
        records: The records.
        record_name: The name.
        record_kind: Kind of the records, for the error.

    Returns:
        The record.

    Raises:
        Unfit: There are several records or none, and none has this name.
    """
    if record_name in records:
        return records[record_name]
    if len(records) == 1:
        return next(iter(records.values()))
    raise Unfit(f"its reply has {len(records)} {record_kind} and none is called {record_name!r}")


def number(metrics: MetricRecord, metric_names: Iterable[str]) -> float:
    """Return the first metric found as one number.

    Args:
        metrics: The metrics.
        metric_names: The names to try, in order.

    Returns:
        The number; NaN if no name is found, or if a client cannot have measured this value.
    """
    metric_value = next(
        (metrics[metric_name] for metric_name in metric_names if metric_name in metrics), math.nan
    )
    if not isinstance(metric_value, (int, float)) or not abs(metric_value) <= MAX_MEASURED:
        return math.nan
    return float(metric_value)


def error_sums(metrics: MetricRecord, metric_names: Iterable[str]) -> ErrorSums:
    """Return the sums of a metric, from which it follows for several clients together.

    Args:
        metrics: The metrics.
        metric_names: The names of the metric to try, in order.

    Returns:
        The sums; empty if the client sent none, or none of the form and size that a client can have
        measured.
    """
    # The sums have the name of the metric, a sign, and a name of their own.
    metric_name = next((app_name for app_name in metric_names if app_name in metrics), "")
    if not metric_name:
        return {}
    stated_sums: dict[str, float] = {}
    for entry_name, entry_value in metrics.items():
        if entry_name.startswith(f"{metric_name}{SIGN}"):
            if not isinstance(entry_value, (int, float)) or not abs(entry_value) <= MAX_MEASURED:
                return {}
            stated_sums[entry_name] = float(entry_value)
    metric_sums = parted(stated_sums)[1].get(metric_name, {})
    return metric_sums if sound(metric_sums) else {}


def numbers(metrics: MetricRecord, metric_name: str) -> tuple[float, ...]:
    """Return the numbers of a metric.

    Args:
        metrics: The metrics.
        metric_name: The name of the metric.

    Returns:
        The numbers; empty if the metric is missing.

    Raises:
        Unfit: The values are not numbers.
    """
    stated_value = metrics.get(metric_name, [])
    stated_values = tuple(stated_value if isinstance(stated_value, list) else [stated_value])
    if not all(isinstance(stated_number, (int, float)) for stated_number in stated_values):
        raise Unfit(f"its {metric_name} are not numbers")
    return stated_values


def count_of(metrics: MetricRecord, metric_name: str, meaning: str, minimum: int = 1) -> int:
    """Return the number of things that a metric states.

    Args:
        metrics: The metrics of a reply, possibly from an unknown sender.
        metric_name: The name of the metric.
        meaning: What it counts, for the error.
        minimum: The smallest number.

    Returns:
        The number.

    Raises:
        Unfit: The metric is missing, is not a whole number, or is too small.
    """
    if metric_name not in metrics:
        raise Unfit(f"its reply has no {meaning} ({metric_name})")
    stated_count = whole(metrics[metric_name])
    if stated_count is None or stated_count < minimum:
        stated = brief(metrics[metric_name])[:40]
        raise Unfit(
            f"its {meaning} ({metric_name}) must be a whole number from {minimum} to 2^63 - 1, got {stated}"
        )
    return stated_count


def statistics_of(
    metrics: MetricRecord,
    task: Task,
    task_place: int,
    size_of_statistic: Mapping[Statistic, int],
) -> dict[Statistic, np.ndarray]:
    """Read what a client tells about its training data.

    Args:
        metrics: The metrics.
        task: Its task.
        task_place: The place of the task among the client's tasks.
        size_of_statistic: How many numbers each statistic has.

    Raises:
        Unfit: The numbers are missing or not finite, or no data have such counts.
    """
    values_of_statistic: dict[Statistic, np.ndarray] = {}
    for statistic in task.statistics:
        stated = np.array(numbers(metrics, of_task(f"{STATISTIC}-{statistic}", task_place)), float)
        if stated.shape != (size_of_statistic[statistic],):
            raise Unfit(
                f"its {statistic} has {len(stated)} numbers in place of {size_of_statistic[statistic]}"
            )
        if not (np.abs(stated) <= MAX_MEASURED).all():
            raise Unfit(f"its {statistic} has a number that is not finite")
        if statistic == "label-counts" and ((stated < 0).any() or (stated % 1).any()):
            raise Unfit("its label-counts are not whole numbers from 0")
        values_of_statistic[statistic] = stated
    return values_of_statistic


def held_out_metrics(held_out_losses: HeldOutLosses) -> dict[str, Any]:
    """Return the metrics that state a client's held-out losses."""
    upper_triangle = held_out_losses.products[np.triu_indices(len(held_out_losses.sums))]
    return {
        HELD_OUT_COUNT: held_out_losses.count,
        HELD_OUT_SUMS: held_out_losses.sums.tolist(),
        HELD_OUT_PRODUCTS: upper_triangle.tolist(),
    }


def held_out_losses_of(
    metrics: MetricRecord, models: Sequence[Candidate], most_examples: int
) -> HeldOutLosses:
    """Read a client's held-out losses.

    Args:
        metrics: The metrics of its reply, possibly from an unknown sender.
        models: The models of which it reports losses.
        most_examples: Greatest number of examples.

    Returns:
        The sums.

    Raises:
        Unfit: The numbers are missing, not finite or too large, or no losses have such sums and
            products.
    """
    # The sums are a vector, and the products come as the upper triangle of a symmetric matrix.
    model_count = len(models)
    loss_sums = np.array(numbers(metrics, HELD_OUT_SUMS), dtype=np.float64)
    upper_triangle = np.array(numbers(metrics, HELD_OUT_PRODUCTS), dtype=np.float64)
    if len(loss_sums) != model_count or len(upper_triangle) != model_count * (model_count + 1) // 2:
        raise Unfit(
            f"its held-out losses are {len(loss_sums)} sums and {len(upper_triangle)} products for {model_count} models"
        )
    example_count = count_of(metrics, HELD_OUT_COUNT, "number of held-out examples", minimum=0)
    if example_count > most_examples:
        raise Unfit(
            f"it claims {example_count:,} held-out examples, more than {most_examples:,} (robust.most_examples)"
        )
    # Restore the lower triangle.
    loss_products = np.zeros((model_count, model_count))
    loss_products[np.triu_indices(model_count)] = upper_triangle
    loss_products = np.triu(loss_products) + np.triu(loss_products, 1).T
    # No loss is counted above a bound. NaN fails these comparisons, too.
    largest_sum = (1 + MAX_ROUNDING_ERROR) * example_count * WORST_LOSS
    valid_sums = (np.abs(loss_sums) <= largest_sum).all()
    valid_products = (np.abs(loss_products) <= largest_sum * WORST_LOSS).all()
    if not valid_sums or not valid_products:
        raise Unfit(
            f"its held-out losses have sums that are not finite, or of more than {WORST_LOSS:g} for each example"
        )
    # The count, the sums and the products are the Gram matrix of the constant 1 and the losses of
    # each model, over the examples. So it has no negative eigenvalue, but for rounding.
    gram_matrix = np.block(
        [
            [np.full((1, 1), float(example_count)), loss_sums[None]],
            [loss_sums[:, None], loss_products],
        ]
    )
    norms = np.sqrt(gram_matrix.diagonal().clip(min=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.nan_to_num(gram_matrix / np.outer(norms, norms), posinf=2.0, neginf=-2.0)
    smallest_eigenvalue = np.linalg.eigvalsh(cosines)[0]
    if (gram_matrix.diagonal() < 0).any() or smallest_eigenvalue < -MAX_ROUNDING_ERROR * (
        model_count + 1
    ):
        raise Unfit("no held-out losses have the sums and products that it reports")
    return HeldOutLosses(
        models=tuple(models), count=example_count, sums=loss_sums, products=loss_products
    )


def whole(value: Any) -> int | None:
    """Return a non-negative integer of at most 63 bits, such as an id or a count; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


def brief(reason: Any) -> str:
    """Shorten a text from an unknown sender to one line, without characters that control a terminal or text direction."""
    return _printable_line(str(reason)[: 10 * MAX_TEXT_LENGTH])[:MAX_TEXT_LENGTH]


def _printable_line(text: str) -> str:
    """The text as one line, with spaces in place of characters that are not printable."""
    printable_text = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(printable_text.split())


def failure(error: Any) -> str:
    """Return why an app failed, in one line: of a traceback, the last line, which says what went wrong.

    Args:
        error: The error of Flower's message.
    """
    reason = str(error.reason or error.code)
    end_of_reason = reason[-10 * MAX_TEXT_LENGTH :]
    # In a simulation, Flower's exception has the app's message at its end, after two tracebacks.
    _, wrapper, message = end_of_reason.rpartition(FLOWERS_WRAPPER)
    if wrapper and message.strip():
        return brief(message.strip().removesuffix("'>"))
    lines = [line for line in end_of_reason.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in reason and lines:
        return brief(lines[-1])
    # Of any other long text, the end says more than the start.
    reason_line = _printable_line(end_of_reason)
    if len(reason_line) <= MAX_FAILURE_LENGTH:
        return reason_line
    return f"...{reason_line[3 - MAX_FAILURE_LENGTH :]}"


def config_of(*orders: Order) -> ConfigRecord:
    """Return a config with the keys of Flower's quickstart (``lr``, ``server-round``) and the tasks for Coterie's apps."""
    # All tasks of a message have the learning rate and the round of the first one in the keys that
    # any app reads.
    first_order = orders[0]
    tasks_json = json.dumps([order_to_json(order) for order in orders])
    return ConfigRecord(
        {"lr": first_order.lr, "server-round": first_order.round + 1, TASK: tasks_json}
    )


def app_config(content: RecordDict) -> dict[str, Any]:
    """Return the entries of a message's config besides the task, as an app without Coterie receives them."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord):
        return {}
    return {
        entry_name: entry_value for entry_name, entry_value in config.items() if entry_name != TASK
    }


def orders_of(content: RecordDict) -> tuple[Order, ...]:
    """Return the tasks in a message.

    Args:
        content: The content of the message.

    Returns:
        The tasks, at least one, all of the same client and exchange.

    Raises:
        ValueError: The message has no task, or a value is not allowed.
        KeyError: An entry is missing.
        TypeError: An entry has the wrong type.
    """
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord) or TASK not in config:
        raise ValueError(
            "this app needs a task of Coterie's MethodStrategy, and the message has none"
        )
    orders = tuple(
        order_from_json(order_entries) for order_entries in json.loads(str(config[TASK]))
    )
    # Results are stored by client, exchange and part, so these must be clear.
    origins = {(order.key, order.client, order.run) for order in orders}
    part_names = {order.part for order in orders}
    if len(origins) != 1 or len(part_names) < len(orders):
        raise ValueError(
            "the tasks of a message must be of one client and exchange, and of different parts of a plan"
        )
    return orders


def order_of(content: RecordDict) -> Order:
    """Return the first task in a message, see :func:`orders_of`."""
    return orders_of(content)[0]


# ----------------------------------------------------------------------------------------------------
# Apps that do not know Coterie: the tasks that they can do, and the errors for methods that need
# others.


METHODS_FOR_ANY_APP = ("fedavg", "fedopt", "cfl", "flhc", "hcct", "hcct-e")
"""Methods in which such apps can take part, with the methods' default settings."""


NOT_IN_A_PLAIN_APP = FEATURES
"""Features of a task that an app ignores if it does not know Coterie: it trains one model as it likes."""

NOT_IN_A_FUNCTION: tuple[Feature, ...] = (
    "correction",
    "held-out-losses",
    "gradients",
    "stages",
    "mixture",
    "pull",
    "label-counts",
    "feature-mean",
)
"""Features that an app cannot do if it trains by a function of its own: such a function trains all
layers of a net, and one that tests returns the mean loss only."""


def lacking_feature(tasks: Sequence[Task], lacked_features: Sequence[Feature]) -> str | None:
    """Return the first of some features that tasks of one client ask for, in words; None without one.

    Args:
        tasks: The tasks.
        lacked_features: What the client's app cannot do.
    """
    # Several tasks in one message are a feature by themselves.
    if len(tasks) > 1 and "several-tasks" in lacked_features:
        return IN_WORDS["several-tasks"]
    for task in tasks:
        features = features_of(task)
        for feature in lacked_features:
            if feature in features:
                return IN_WORDS[feature]
    return None


def why_not(
    method: str, tasks: Sequence[Task], client: Client | str, trains_by_function: bool = False
) -> str | None:
    """Explain why a client whose app does not know Coterie, or trains by a function of its own, cannot do its tasks.

    Args:
        method: Name of the method.
        tasks: The tasks of the client in one exchange.
        client: The client's id or name.
        trains_by_function: Whether the app knows Coterie and trains by a function of its own.

    Returns:
        One sentence, or None if the client can do the tasks.
    """
    lacked_features = NOT_IN_A_FUNCTION if trains_by_function else NOT_IN_A_PLAIN_APP
    feature = lacking_feature(tasks, lacked_features)
    return feature and _unsupported(method, feature, client, trains_by_function)


def _unsupported(method: str, feature: str, client: Client | str, trains_by_function: bool) -> str:
    problem = f"{method} asks a client {feature}, which client {client}'s app does not support"
    if trains_by_function:
        return f"{problem}, because it trains by a function of its own"
    methods = f"{', '.join(METHODS_FOR_ANY_APP[:-1])} or {METHODS_FOR_ANY_APP[-1]}"
    return (
        f"{problem}; make the app with "
        f"coterie.engines.flower.client_app, or use {methods} with default settings"
    )


def tasks_of(plan: Plan, client: Client) -> list[Task]:
    """Return the tasks of a client in a plan and its parts."""
    return [part.tasks[client] for _, part in plan.leaves() if client in part.tasks]


def check(
    method: Method[Any],
    first_plan: Plan,
    coterie_clients: Collection[Client],
    function_clients: Collection[Client] = (),
    client_names: Mapping[Client, str] | None = None,
    has_neighbours: bool = False,
) -> None:
    """Check before the first training that the clients' apps can do the method's tasks.

    If no client's app knows Coterie, or all that do train by functions of their own, the checked
    tasks are those of the first plan, and the features are those of the method's ``needs``. If some
    apps can do every task, nothing is checked here: the other clients are then left out of tasks
    that they cannot do.

    Args:
        method: The method.
        first_plan: Its first plan.
        coterie_clients: Clients whose apps know Coterie.
        function_clients: Those of them whose apps train by a function of their own.
        client_names: Client -> its name, for the message.
        has_neighbours: Whether the method serves clients by their nearest training examples.

    Raises:
        SettingError: The clients' apps would ignore a part of a task.
    """
    # Some app can do every task.
    if set(coterie_clients) - set(function_clients):
        return
    all_train_by_functions = bool(coterie_clients)
    if has_neighbours:
        raise SettingError(
            f"{method.name} serves clients by their nearest training examples, which no app here supports; make the apps with "
            "coterie.engines.flower.client_app, without train and test"
        )
    # The error names the client with the smallest id.
    client = min(first_plan.asked, default=0)
    shown_client = (client_names or {}).get(client, client)
    for asked_client in first_plan.asked:
        tasks = tasks_of(first_plan, asked_client)
        if refusal := why_not(method.name, tasks, shown_client, all_train_by_functions):
            raise SettingError(refusal)
    # Later plans may ask for more than the first one.
    for feature in NOT_IN_A_FUNCTION if all_train_by_functions else NOT_IN_A_PLAIN_APP:
        if feature in needs_of(method).features:
            refusal = _unsupported(
                method.name, IN_WORDS[feature], shown_client, all_train_by_functions
            )
            raise SettingError(refusal)
