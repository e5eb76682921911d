"""The format of tasks, models and replies in Flower's records.

A model is sent as an ``ArrayRecord`` with the names of its state dict, so any app can load it. If several models are
offered, the first one is ``arrays``, as everywhere in Flower, and the others are ``arrays-1``, ``arrays-2`` and so on. The
rest of a task is one line of JSON in the ``config``. Apps that do not know Coterie ignore it.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from coterie.core import Client, Method, Plan, Task, Training
from coterie.models.layout import Layout
from coterie.settings import SettingError

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
UPDATE = "update"
"""Record of a reply with the trained model minus the offered one; ``arrays`` contains the trained model itself."""

UPDATES = UPDATE, f"{UPDATE}-1"
"""The update records of both halves, if a task asks for halves."""

TASK = "coterie"
"""Key of the task in the config."""

QUERY = "evaluate.default"
"""Type of the message that asks a node which client it is.

For Flower this is the same as ``evaluate``: a test of the model in the message, which any app can do. An app that knows
Coterie tests nothing, and replies with the record :data:`WHO`. An app without a function for a message would fail, with a
traceback in its log.
"""

WHO = "coterie"
"""Record of the reply to a query by an app that knows Coterie: ``client``, its client id if it has one, and ``functions``."""

NAME = "coterie-name"
"""Record of that reply with the client's ``name``, if it has one."""

NO_TEST = "No evaluate function registered with name 'default'"
"""Flower's error if an app has no function for tests."""

FUNCTIONS = "functions"
"""Key of that record: 1 if the app trains by a function of its own."""

KEPT = "kept"
"""Key of the metrics: the exchange after which a client stored the own layers that it trained from, -1 if it had none."""

FIRST = "first"
"""Key of the config in a message that asks a boundary's mod for the i-th first model, sealed."""


LONGEST = 300
"""Most characters of a text from a client that are recorded."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest possible loss or metric: clients train and test in single precision."""


class Unfit(ValueError):
    """A reply cannot be used. The message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task in the form that a client receives.

    Attributes:
        task: The task.
        training: Training settings.
        lr: Learning rate.
        key: (seed, exchange, round), which determines all random draws.
        client: The client's id.
        run: Name of the run, under which the client stores its own layers.
    """

    task: Task
    training: Training
    lr: float
    key: tuple[int, int, int]
    client: int
    run: str = ""

    def to_json(self) -> str:
        """Return the order as one line of JSON."""
        return json.dumps(
            {
                "task": {**asdict(self.task), "training": None},
                "training": asdict(self.training),
                "lr": self.lr,
                "key": self.key,
                "client": self.client,
                "run": self.run,
            }
        )

    @classmethod
    def of(cls, text: str) -> Order:
        """Read an order from JSON.

        Args:
            text: The text of :meth:`to_json`.

        Returns:
            The order.

        Raises:
            ValueError: The text is not JSON, or a value is not allowed.
            KeyError: An entry is missing.
            TypeError: An entry has the wrong type.
        """
        found = json.loads(text)
        task: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in found["task"].items()}
        seed, exchange, number = (int(value) for value in found["key"])
        return cls(
            task=Task(**task),
            training=Training(**found["training"]),
            lr=float(found["lr"]),
            key=(seed, exchange, number),
            client=int(found["client"]),
            run=str(found["run"]),
        )


def name_of(i: int) -> str:
    """Return the name of the record of the i-th offered model."""
    return ARRAYS if i == 0 else f"{ARRAYS}-{i}"


@dataclass(frozen=True)
class Rest:
    """The parts of a state dict that are not in a row.

    Attributes:
        others: Other tensors, such as integer buffers.
        tied: Second name -> first name of tensors that have several names.
    """

    others: Mapping[str, Tensor] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> Rest:
        """Return those parts of a net's state dict."""
        whole = module.state_dict(keep_vars=True)  # the parameters themselves: tied ones are the same object
        first = {id(whole[piece.name]): piece.name for piece in layout.pieces}
        more = {name: tensor for name, tensor in whole.items() if first.get(id(tensor)) != name}
        tied = {name: first[id(tensor)] for name, tensor in more.items() if id(tensor) in first}
        return cls({name: tensor.detach().clone().contiguous() for name, tensor in more.items() if name not in tied}, tied)


def packed(row: Tensor, layout: Layout, rest: Rest | None = None, without: Tensor | None = None) -> ArrayRecord:
    """Convert a row to arrays.

    Args:
        row: The row ``(d,)``.
        layout: The layout of the model's parameters.
        rest: The other parts of the state dict. With them the result is a complete state dict.
        without: Mask ``(d,)`` of columns to leave out; a tensor is left out if all its columns are.

    Returns:
        The record.
    """
    there = [p.name for p in layout.pieces if without is None or not without[p.start : p.stop].all()]
    tensors, rest = layout.state_dict(row.detach().cpu()), rest or Rest()
    tied = {name: tensors[first] for name, first in rest.tied.items() if first in there}
    return ArrayRecord({**{name: tensors[name] for name in there}, **tied, **rest.others})


def unpacked(record: Any, layout: Layout, may_lack: Tensor | None = None) -> Tensor:
    """Convert arrays to a row.

    Args:
        record: The record, possibly from an unknown sender.
        layout: The layout of the model's parameters.
        may_lack: Mask ``(d,)`` of columns whose arrays may be missing. None means that all must be there.

    Returns:
        The row ``(d,)``, NaN in the columns of missing arrays.

    Raises:
        Unfit: An array is missing or cannot be used.
    """
    row = torch.full((layout.size,), torch.nan)
    for piece in layout.pieces:
        if piece.name in record:
            values = array_of(record, piece.name, piece.shape)
            with np.errstate(over="ignore"):  # a value too large for single precision becomes infinite and is refused later
                row[piece.start : piece.stop] = torch.from_numpy(values.astype(np.float32).reshape(-1))
        elif may_lack is None or not may_lack[piece.start : piece.stop].all():
            raise Unfit(f"its arrays lack {piece.name!r}; they are from another model")
    return row


def array_of(record: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Read an array of a record.

    The record may be from an unknown sender. The numbers are read only if the header fits, and nothing is ever unpickled.

    Args:
        record: The record.
        name: Name of the array.
        shape: The shape that the array must have; it must then contain floating-point numbers. None allows any shape and
            any real numbers.

    Returns:
        The array in this machine's byte order.

    Raises:
        Unfit: The array cannot be read, or has another shape or type.
    """
    try:
        data = bytes(record[name].data)
        found, order, dtype, start = _header(data)
    except Exception as error:  # a malformed header can make NumPy raise any error
        raise Unfit(f"its array {name!r} cannot be read: {type(error).__name__} {error}") from None
    if shape is not None and found != shape:
        raise Unfit(f"its array {name!r} has shape {found} where the model has {shape}")
    if shape is not None and dtype.kind != "f":
        raise Unfit(f"its array {name!r} is of {dtype}, not of floating-point numbers")
    held = len(data) - start
    if dtype.kind not in "fiu" or min(found, default=0) < 0 or math.prod(found) * dtype.itemsize != held:
        raise Unfit(f"its array {name!r} cannot be read: {found} of {dtype} in {held} bytes")
    try:
        values = np.frombuffer(data, dtype, offset=start).reshape(found, order=order)
    except ValueError as error:  # more dimensions than NumPy allows
        raise Unfit(f"its array {name!r} cannot be read: {error}") from None
    return values.astype(dtype.newbyteorder("="))


def _header(data: bytes) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]:
    """Shape, order and type in the header of an ``.npy`` file, and the position of its numbers."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unknown sender's header must not print warnings on this terminal
        shape, fortran, dtype = read(stream)
    return tuple(int(size) for size in shape), "F" if fortran else "C", dtype, stream.tell()


def only(records: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return the record with a name, or the only record.

    Args:
        records: The records.
        name: The name.
        kind: Kind of the records, for the error.

    Returns:
        The record.

    Raises:
        Unfit: There are several records or none, and none has this name.
    """
    if name in records:
        return records[name]
    if len(records) == 1:
        return next(iter(records.values()))
    raise Unfit(f"its reply has {len(records)} {kind} and none is called {name!r}")


def number(metrics: MetricRecord, names: Iterable[str]) -> float:
    """Return the first metric found as one number.

    Args:
        metrics: The metrics.
        names: The names to try, in order.

    Returns:
        The number; NaN if no name is found, or if a client cannot have measured this value.
    """
    value = next((metrics[name] for name in names if name in metrics), math.nan)
    return float(value) if isinstance(value, (int, float)) and abs(value) <= LARGEST else math.nan


def numbers(metrics: MetricRecord, name: str) -> tuple[float, ...]:
    """Return the numbers of a metric.

    Args:
        metrics: The metrics.
        name: The name of the metric.

    Returns:
        The numbers; empty if the metric is missing.

    Raises:
        Unfit: The values are not numbers.
    """
    value = metrics.get(name, [])
    found = tuple(value if isinstance(value, list) else [value])
    if not all(isinstance(each, (int, float)) for each in found):
        raise Unfit(f"its {name} are not numbers")
    return found


def whole(value: Any) -> int | None:
    """Return a non-negative integer of at most 63 bits, such as an id or a count; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


def brief(reason: Any) -> str:
    """Shorten a text from an unknown sender to one line, without characters that control a terminal or text direction."""
    seen = "".join(char if char.isprintable() else " " for char in str(reason)[: 10 * LONGEST])
    return " ".join(seen.split())[:LONGEST]


def config_of(order: Order) -> ConfigRecord:
    """Return a config with the keys of Flower's quickstart (``lr``, ``server-round``) and the task for Coterie's apps."""
    return ConfigRecord({"lr": order.lr, "server-round": order.key[2] + 1, TASK: order.to_json()})


def told(content: RecordDict) -> dict[str, Any]:
    """Return the entries of a message's config besides the task, as an app without Coterie receives them."""
    config = content.get(CONFIG)
    return {name: value for name, value in config.items() if name != TASK} if isinstance(config, ConfigRecord) else {}


def order_of(content: RecordDict) -> Order:
    """Return the task in a message.

    Args:
        content: The content of the message.

    Returns:
        The task.

    Raises:
        ValueError: The message has no task.
    """
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord) or TASK not in config:
        raise ValueError("this app needs a task of Coterie's MethodStrategy, and the message has none")
    return Order.of(str(config[TASK]))


# ----------------------------------------------------------------------------------------------------
# Apps that do not know Coterie: the tasks that they can do, and the errors for methods that need others.


ABLE = ("fedavg", "cfl", "flhc", "hcct", "hcct-e")
"""Methods in which such apps can take part, with the methods' default settings."""


def ignored(task: Task) -> str | None:
    """Return the part of a task that such an app would ignore, in words.

    Such an app trains from one model, in its own way.

    Args:
        task: The task.

    Returns:
        The words, or None if the app can do the task.
    """
    return (
        "to choose among several models"
        if len(task.offered) > 1
        else "for the loss of a model"
        if task.measure
        else "for a gradient instead of an update"
        if task.gradient
        else "to keep some layers"
        if task.keep
        else "for updates of both halves of its data"
        if task.halves
        else "to train differently in some rounds"
        if task.training is not None or task.epochs is not None
        else None
    )


def sentence(method: str, task: Task, client: Client | str, functions: bool = False) -> str | None:
    """Explain why a client whose app does not know Coterie, or trains by a function of its own, cannot do a task.

    Args:
        method: Name of the method.
        task: The task.
        client: The client's id or name.
        functions: Whether the app knows Coterie and trains by a function of its own.

    Returns:
        One sentence, or None if the client can do the task.
    """
    if functions:
        lacks = f"which client {client}'s app does not support, because it trains by a function of its own"
        return f"{method} asks a client for a gradient instead of an update, {lacks}" if task.gradient else None
    wants = ignored(task)
    able = f"{', '.join(ABLE[:-1])} or {ABLE[-1]}"
    return wants and (
        f"{method} asks a client {wants}, which client {client}'s app does not support; make the app with "
        f"coterie.engines.flower.client_app, or use {able} with default settings"
    )


def check(
    method: Method[Any],
    first: Plan,
    aware: Collection[Client],
    functions: Collection[Client] = (),
    names: Mapping[Client, str] | None = None,
) -> None:
    """Check before the first training that the clients' apps can do the method's tasks.

    If no client's app knows Coterie, or all that do train by functions of their own, the checked tasks are those of the first
    plan, those in the method's ``asks``, and measuring the loss if the method's ``measures`` is true. If some apps can do
    every task, nothing is checked here: the other clients are then left out of tasks that they cannot do.

    Args:
        method: The method.
        first: Its first plan.
        aware: Clients whose apps know Coterie.
        functions: Those of them whose apps train by a function of their own.
        names: Client -> its name, for the message.

    Raises:
        SettingError: The clients' apps would ignore a part of a task.
    """
    if set(aware) - set(functions):
        return
    later: tuple[Task, ...] = getattr(method, "asks", ())
    if getattr(method, "measures", False):
        later = (*later, Task(offered=(0,), measure="train"))
    client = min(first.tasks, default=0)
    for task in (*first.tasks.values(), *later):
        if refusal := sentence(method.name, task, (names or {}).get(client, client), bool(aware)):
            raise SettingError(refusal)
