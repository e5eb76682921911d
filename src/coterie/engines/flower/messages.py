"""What tasks, models and replies look like in Flower's records.

A model travels as an ``ArrayRecord`` under the names of its state dict, so any app can load it; of several models offered
the first is ``arrays``, as everywhere in Flower, and the others are ``arrays-1``, ``arrays-2``, ... What a task asks beyond
that is one line of JSON in the ``config``, which an app that knows nothing of Coterie leaves alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from coterie.core import Task, Training
from coterie.layout import Layout

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
UPDATE = "update"
"""Record of a reply that holds trained less offered; ``arrays`` holds what was trained."""

UPDATES = UPDATE, f"{UPDATE}-1"
"""The same of both halves, where a task asks for them."""

TASK = "coterie"
"""Key of the config under which a task lies."""

QUERY = "query.coterie"
"""Type of the message that asks a node which client it is."""

FIRST = "first"
"""Key of the config of a message that asks a boundary's mod for the i-th first model, sealed."""


class Unfit(ValueError):
    """A reply that cannot be used; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task as a client is told it. key: (seed, exchange, round), of which everything random follows."""

    task: Task
    training: Training
    lr: float
    key: tuple[int, int, int]
    client: int

    def to_json(self) -> str:
        return json.dumps({
            "task": {**asdict(self.task), "training": None}, "training": asdict(self.training), "lr": self.lr,
            "key": self.key, "client": self.client,
        })  # fmt: skip

    @classmethod
    def of(cls, text: str) -> Order:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no task."""
        found = json.loads(text)
        task: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in found["task"].items()}
        seed, exchange, number = (int(value) for value in found["key"])
        return cls(
            task=Task(**task), training=Training(**found["training"]), lr=float(found["lr"]), key=(seed, exchange, number),
            client=int(found["client"]),
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


def unpacked(record: Any, layout: Layout, lacking: float | None = None) -> Tensor:
    """The row ``(d,)`` of arrays. lacking: what stands for tensors that are not there. Raises :class:`Unfit`."""
    row = torch.full((layout.size,), 0.0 if lacking is None else lacking)
    for piece in layout.pieces:
        if piece.name not in record:
            if lacking is not None:
                continue
            raise Unfit(f"its arrays lack {piece.name!r}; they are of another model")
        try:
            values = record[piece.name].numpy()
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise Unfit(f"its array {piece.name!r} cannot be read: {error}") from None
        if tuple(values.shape) != piece.shape:
            raise Unfit(f"its array {piece.name!r} has shape {tuple(values.shape)} where the model has {piece.shape}")
        if values.dtype.kind != "f":
            raise Unfit(f"its array {piece.name!r} is of {values.dtype}, not of floating-point numbers")
        row[piece.start : piece.stop] = torch.from_numpy(values.astype(np.float32).reshape(-1))
    return row


def only(records: Mapping[str, Any], name: str, kind: str) -> Any:
    """The record called ``name``, or the only one there is. Raises :class:`Unfit`."""
    if name in records:
        return records[name]
    if len(records) == 1:
        return next(iter(records.values()))
    raise Unfit(f"its reply has {len(records)} {kind} and none is called {name!r}")


def number(metrics: MetricRecord, names: Iterable[str]) -> float:
    """The first of ``names`` that is there, as one number; NaN where none is."""
    for name in names:
        if name in metrics:
            value = metrics[name]
            return float(value) if not isinstance(value, list) else float("nan")
    return float("nan")


def numbers(metrics: MetricRecord, name: str) -> tuple[float, ...]:
    value = metrics.get(name, [])
    return tuple(float(v) for v in (value if isinstance(value, Sequence) else [value]))


def config_of(order: Order) -> ConfigRecord:
    """What Flower's quickstart reads (``lr``, ``server-round``), and the task for those who know of it."""
    return ConfigRecord({"lr": order.lr, "server-round": order.key[2] + 1, TASK: order.to_json()})


def order_of(content: RecordDict) -> Order:
    """The task in a message. Raises ``ValueError`` where there is none."""
    config = content.get(CONFIG)
    if not isinstance(config, ConfigRecord) or TASK not in config:
        raise ValueError("this app does the tasks of Coterie's MethodStrategy, and the message has none")
    return Order.of(str(config[TASK]))


def content(models: Mapping[str, ArrayRecord], config: ConfigRecord) -> RecordDict:
    return RecordDict({**models, CONFIG: config})
