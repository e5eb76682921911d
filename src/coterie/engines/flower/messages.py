"""What tasks, models and replies look like in Flower's records.

A model travels as an ``ArrayRecord`` under the names of its state dict, so any app can load it; of several models offered
the first is ``arrays``, as everywhere in Flower, and the others are ``arrays-1``, ``arrays-2``, ... What a task asks beyond
that is one line of JSON in the ``config``, which an app that knows nothing of Coterie leaves alone.
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
"""Record of a reply that holds trained less offered; ``arrays`` holds what was trained."""

UPDATES = UPDATE, f"{UPDATE}-1"
"""The same of both halves, where a task asks for them."""

TASK = "coterie"
"""Key of the config under which a task lies."""

QUERY = "query.coterie"
"""Type of the message that asks a node which client it is."""

KEPT = "kept"
"""Key of the metrics: the exchange after which a client kept the layers that it trained from, -1 if it had none."""

FIRST = "first"
"""Key of the config of a message that asks a boundary's mod for the i-th first model, sealed."""


LONGEST = 300
"""Characters of a stranger's words that come into the records."""

LARGEST = float(np.finfo(np.float32).max)
"""No loss or metric is greater: clients train and test in single precision."""


class Unfit(ValueError):
    """A reply that cannot be used; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task as a client is told it. key: (seed, exchange, round), of which everything random follows. run: tells what a
    client keeps in this run from what it keeps in others."""

    task: Task
    training: Training
    lr: float
    key: tuple[int, int, int]
    client: int
    run: str = ""

    def to_json(self) -> str:
        return json.dumps({
            "task": {**asdict(self.task), "training": None}, "training": asdict(self.training), "lr": self.lr,
            "key": self.key, "client": self.client, "run": self.run,
        })  # fmt: skip

    @classmethod
    def of(cls, text: str) -> Order:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no task."""
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
    """Of the record of the i-th model offered."""
    return ARRAYS if i == 0 else f"{ARRAYS}-{i}"


@dataclass(frozen=True)
class Rest:
    """What a state dict has besides the tensors of a row. others: integer buffers and such. tied: second name -> first name
    of tensors that have several."""

    others: Mapping[str, Tensor] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> Rest:
        whole = module.state_dict(keep_vars=True)  # the parameters themselves: those that are the same are one object
        first = {id(whole[piece.name]): piece.name for piece in layout.pieces}
        more = {name: tensor for name, tensor in whole.items() if first.get(id(tensor)) != name}
        tied = {name: first[id(tensor)] for name, tensor in more.items() if id(tensor) in first}
        return cls({name: tensor.detach().clone().contiguous() for name, tensor in more.items() if name not in tied}, tied)


def packed(row: Tensor, layout: Layout, rest: Rest | None = None, without: Tensor | None = None) -> ArrayRecord:
    """A row ``(d,)`` as arrays; with ``rest``, a whole state dict. without: mask of columns that are left out."""
    there = [p.name for p in layout.pieces if without is None or not without[p.start : p.stop].all()]
    tensors, rest = layout.state_dict(row.detach().cpu()), rest or Rest()
    tied = {name: tensors[first] for name, first in rest.tied.items() if first in there}
    return ArrayRecord({**{name: tensors[name] for name in there}, **tied, **rest.others})


def unpacked(record: Any, layout: Layout, may_lack: Tensor | None = None) -> Tensor:
    """The row ``(d,)`` of arrays; NaN where an array is not there that ``may_lack``, a mask of columns. Raises
    :class:`Unfit`."""
    row = torch.full((layout.size,), torch.nan)
    for piece in layout.pieces:
        if piece.name in record:
            values = array_of(record, piece.name, piece.shape)
            with np.errstate(over="ignore"):  # what is too large for single precision is infinite, and refused
                row[piece.start : piece.stop] = torch.from_numpy(values.astype(np.float32).reshape(-1))
        elif may_lack is None or not may_lack[piece.start : piece.stop].all():
            raise Unfit(f"its arrays lack {piece.name!r}; they are of another model")
    return row


def array_of(record: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of a record, of real numbers in this machine's byte order, and of floating-point numbers and ``shape`` where
    that is given. It may be from a stranger: nothing is read before its header fits, and nothing is ever unpickled. Raises
    :class:`Unfit`."""
    try:
        data = bytes(record[name].data)
        found, order, dtype, start = _header(data)
    except Exception as error:  # whatever a malformed header makes NumPy raise
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
    except ValueError as error:  # more dimensions than NumPy has
        raise Unfit(f"its array {name!r} cannot be read: {error}") from None
    return values.astype(dtype.newbyteorder("="))


def _header(data: bytes) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]:
    """Shape, order and type that an ``.npy`` file tells, and where its numbers begin."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a stranger's header says nothing on this machine's terminal
        shape, fortran, dtype = read(stream)
    return tuple(int(size) for size in shape), "F" if fortran else "C", dtype, stream.tell()


def only(records: Mapping[str, Any], name: str, kind: str) -> Any:
    """The record called ``name``, or the only one there is. Raises :class:`Unfit`."""
    if name in records:
        return records[name]
    if len(records) == 1:
        return next(iter(records.values()))
    raise Unfit(f"its reply has {len(records)} {kind} and none is called {name!r}")


def number(metrics: MetricRecord, names: Iterable[str]) -> float:
    """The first of ``names`` that is there, as one number; NaN where none is, or none that a client can have measured."""
    value = next((metrics[name] for name in names if name in metrics), math.nan)
    return float(value) if isinstance(value, (int, float)) and abs(value) <= LARGEST else math.nan


def numbers(metrics: MetricRecord, name: str) -> tuple[float, ...]:
    """A metric's numbers; none where it is not there. Raises :class:`Unfit`."""
    value = metrics.get(name, [])
    found = tuple(value if isinstance(value, list) else [value])
    if not all(isinstance(each, (int, float)) for each in found):
        raise Unfit(f"its {name} are not numbers")
    return found


def whole(value: Any) -> int | None:
    """A whole number >= 0 of 63 bits, as ids and counts are; None of anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


def brief(reason: Any) -> str:
    """A stranger's words on one line, and not too many of them; without what steers a terminal or turns the line around."""
    seen = "".join(char if char.isprintable() else " " for char in str(reason)[: 10 * LONGEST])
    return " ".join(seen.split())[:LONGEST]


def config_of(order: Order) -> ConfigRecord:
    """What Flower's quickstart reads (``lr``, ``server-round``), and the task for those who know of it."""
    return ConfigRecord({"lr": order.lr, "server-round": order.key[2] + 1, TASK: order.to_json()})


def order_of(content: RecordDict) -> Order:
    """The task in a message. Raises ``ValueError`` where there is none."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord) or TASK not in config:
        raise ValueError("this app does the tasks of Coterie's MethodStrategy, and the message has none")
    return Order.of(str(config[TASK]))


# ----------------------------------------------------------------------------------------------------
# Apps that know nothing of Coterie: what they can do, and how a method is refused that asks for more.


ABLE = ("fedavg", "cfl", "flhc", "hcct", "hcct-e")
"""Methods that such apps take part in, with their default settings."""


def ignored(task: Task) -> str | None:
    """What of a task such an app would ignore, in words: it trains from one model, in its own way."""
    return (
        "to choose among several models" if len(task.offered) > 1
        else "the loss of a model" if task.measure
        else "a gradient in place of an update" if task.gradient
        else "to keep layers to itself" if task.keep
        else "for updates of both halves of its data" if task.halves
        else "to train in another way than in other rounds" if task.training is not None or task.epochs is not None
        else None
    )  # fmt: skip


def sentence(method: str, task: Task, client: Client) -> str | None:
    """Why a client cannot be asked to do a task; None where it can."""
    wants = ignored(task)
    able = f"{', '.join(ABLE[:-1])} or {ABLE[-1]}"
    return wants and (
        f"{method} asks a client {wants}, and client {client}'s app, which knows nothing of Coterie, would ignore that; make "
        f"the app with coterie.engines.flower.client_app, or take {able} with its default settings"
    )


def check(method: Method[Any], first: Plan, aware: Collection[Client]) -> None:
    """Raises :class:`~coterie.settings.SettingError` before anybody trains, where no client's app knows of Coterie and
    ``method`` will ask for what they would ignore: in its ``first`` plan; in tasks that it tells of in ``asks``; or for
    losses, as ``measures`` tells it for a boundary. Where some are ``aware``, the others are left out as they are asked."""
    if aware:
        return
    later: tuple[Task, ...] = getattr(method, "asks", ())
    if getattr(method, "measures", False):
        later = (*later, Task(offered=(0,), measure="train"))
    for task in (*first.tasks.values(), *later):
        if told := sentence(method.name, task, min(first.tasks, default=0)):
            raise SettingError(told)
