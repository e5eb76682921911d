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

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
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

KEPT = "kept"
"""Key of the metrics: the exchange after which a client stored the own values that it trained from,
-1 if it had none."""

PERSONAL = "personal"
"""Key of the metrics: 1 if a client has stored the personal model of a task, 0 if this model or the
update is not finite."""

COUNT, SUMS, PRODUCTS = "held-out", "held-out-sums", "held-out-products"
"""Keys of the metrics for held-out losses: the number of examples, the sums of each model's losses,
and the sums of products of two models' losses: row after row of the upper triangle of
:attr:`~coterie.core.HeldOutLosses.products`."""

FIRST = "first"
"""Key of the config in a message that asks a boundary's mod for the i-th first model, sealed."""


LONGEST = 300
"""Most characters of a text from a client that are recorded."""

ROUNDED = 1e-9
"""Greatest relative error, by rounding, of sums of losses."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest possible loss or metric: clients train and test in single precision."""


class Unfit(ValueError):
    """A reply cannot be used. The message is one sentence."""


def order_to_json(order: Order) -> dict[str, Any]:
    """Return an order as a value for JSON. A client divides it into halves itself."""
    values = {f.name: getattr(order, f.name) for f in fields(order)}
    del values["half"], values["beside_halves"]
    task = asdict(replace(order.task, private=PrivateTask()))
    task["training"] = None  # the order's settings have the changes of the task
    question = order.task.private.question
    task["private"] = {
        "question": None if question is None else flower_sums().question_to_json(question),
        "sends_update": order.task.private.sends_update,
    }
    neighbours = None if order.neighbours is None else asdict(order.neighbours)
    return {
        **values,
        "task": task,
        "training": asdict(order.training),
        "neighbours": neighbours,
    }


def order_from_json(values: Any) -> Order:
    """Read an order from JSON.

    Args:
        values: The value of :func:`order_to_json`.

    Returns:
        The order.

    Raises:
        ValueError: A value is not allowed.
        KeyError: An entry is missing.
        TypeError: An entry has the wrong type.
    """
    seed, exchange, round = (int(value) for value in values["key"])
    first_column, end_column = values["columns"][0], values["columns"][1]
    return Order(
        task=_task(values["task"]),
        training=Training(**values["training"]),
        lr=float(values["lr"]),
        key=(seed, exchange, round),
        client=int(values["client"]),
        run=str(values["run"]),
        part=str(values["part"]),
        number=int(values["number"]),
        since=int(values["since"]),
        plain=bool(values["plain"]),
        neighbours=_neighbours(values["neighbours"]),
        ended={str(name): int(exchange) for name, exchange in values["ended"].items()},
        sums=bool(values["sums"]),
        sketch=int(values["sketch"]),
        columns=(int(first_column), int(end_column)),
        hidden=bool(values["hidden"]),
        clip=None if values["clip"] is None else float(values["clip"]),
    )


def _task(found: Mapping[str, Any]) -> Task:
    """Read a task from JSON. Raises :class:`ValueError` or :class:`TypeError` if a value is not allowed."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    own, private = values["personal"], values["private"]
    values["holdout"] = Holdout(
        share=values["holdout"]["share"], report_losses=values["holdout"]["report_losses"]
    )
    values["stages"] = tuple(_stage(stage) for stage in values["stages"])
    values["personal"] = (
        None if own is None else _personal(Personal(**{**own, "layers": tuple(own["layers"])}))
    )
    question = private["question"]
    values["private"] = PrivateTask(
        question=None if question is None else flower_sums().question_from_json(question),
        sends_update=bool(private["sends_update"]),
    )
    return Task(**values)


def _stage(found: Mapping[str, Any]) -> Stage:
    stage = Stage(layers=tuple(found["layers"]), epochs=found["epochs"])
    if not all(isinstance(layer, str) for layer in stage.layers) or not (
        stage.epochs is None or _count(stage.epochs)
    ):
        raise ValueError(f"Stage needs names of layers and a number of epochs, got {stage}")
    return stage


def _personal(own: Personal) -> Personal:
    right = (
        (own.epochs is None or _count(own.epochs)) and _real(own.pull) and 0 <= own.pull <= LARGEST
    )
    right = right and (own.mixture is None or _real(own.mixture)) and type(own.adapt) is bool
    if not right or not all(isinstance(layer, str) for layer in own.layers):
        raise ValueError(
            f"Personal needs numbers >= 0, a truth value as adapt and names of layers, got {own}"
        )
    return own


def _neighbours(found: Mapping[str, Any] | None) -> Neighbours | None:
    if found is None:
        return None
    near = Neighbours(**{**found, "weights": tuple(found["weights"])})
    real = _count(near.k) and all(map(_real, (near.scale, near.holdout, *near.weights)))
    if not real or not isinstance(near.layer, str):
        raise ValueError(
            f"Neighbours needs a layer's name, a whole number k, and numbers, got {near}"
        )
    return near


def _real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def name_of(i: int) -> str:
    """Return the name of the record of the i-th offered model."""
    return of_task(ARRAYS, i)


def of_task(name: str, place: int) -> str:
    """Return the name of a record or an entry of the reply to the task at a place among the client's tasks."""
    return f"{name}-{place}" if place else name


def updates_of(place: int) -> tuple[str, str]:
    """Return the names of the update records of the task at a place: the update, and that of the second half if asked."""
    return of_task(UPDATE, update_number(place)), of_task(UPDATE, update_number(place, 1))


@dataclass(frozen=True)
class OtherTensors:
    """The parts of a state dict that are not in a row.

    Attributes:
        others: Other tensors, such as integer buffers.
        tied: Second name -> first name of tensors that have several names.
    """

    others: Mapping[str, Tensor] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> OtherTensors:
        """Return those parts of a net's state dict."""
        whole = module.state_dict(
            keep_vars=True
        )  # the parameters themselves: tied ones are the same object
        first = {id(whole[piece.name]): piece.name for piece in layout.pieces}
        more = {name: tensor for name, tensor in whole.items() if first.get(id(tensor)) != name}
        tied = {name: first[id(tensor)] for name, tensor in more.items() if id(tensor) in first}
        return cls(
            {
                name: tensor.detach().clone().contiguous()
                for name, tensor in more.items()
                if name not in tied
            },
            tied,
        )


def packed(
    row: Tensor, layout: Layout, rest: OtherTensors | None = None, without: Tensor | None = None
) -> ArrayRecord:
    """Convert a row to arrays.

    Args:
        row: The row ``(d,)``.
        layout: The layout of the model's parameters.
        rest: The other parts of the state dict. With them the result is a complete state dict.
        without: Mask ``(d,)`` of columns to leave out; a tensor is left out if all its columns are.

    Returns:
        The record.
    """
    there = [
        p.name for p in layout.pieces if without is None or not without[p.start : p.stop].all()
    ]
    tensors, rest = layout.state_dict(row.detach().cpu()), rest or OtherTensors()
    tied = {name: tensors[first] for name, first in rest.tied.items() if first in there}
    return ArrayRecord({**{name: tensors[name] for name in there}, **tied, **rest.others})


def unpacked(record: Any, layout: Layout, may_lack: Tensor | None = None) -> Tensor:
    """Convert arrays to a row.

    Args:
        record: The record, possibly from an unknown sender.
        layout: The layout of the model's parameters.
        may_lack: Mask ``(d,)`` of columns whose arrays may be missing. None means that all must be
            there.

    Returns:
        The row ``(d,)``, NaN in the columns of missing arrays.

    Raises:
        Unfit: An array is missing or cannot be used.
    """
    row = torch.full((layout.size,), torch.nan)
    for piece in layout.pieces:
        if piece.name in record:
            values = array_of(record, piece.name, piece.shape)
            with np.errstate(
                over="ignore"
            ):  # a value too large for single precision becomes infinite and is refused later
                row[piece.start : piece.stop] = torch.from_numpy(
                    values.astype(np.float32).reshape(-1)
                )
        elif may_lack is None or not may_lack[piece.start : piece.stop].all():
            raise Unfit(f"its arrays lack {piece.name!r}; they are from another model")
    return row


def array_of(record: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Read an array of a record.

    The record may be from an unknown sender. The numbers are read only if the header fits, and
    nothing is ever unpickled.

    Args:
        record: The record.
        name: Name of the array.
        shape: The shape that the array must have; it must then contain floating-point numbers. None
            allows any shape and any real numbers.

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
    if (
        dtype.kind not in "fiu"
        or min(found, default=0) < 0
        or math.prod(found) * dtype.itemsize != held
    ):
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
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # an unknown sender's header must not print warnings on this terminal
        shape, fortran, dtype = read(stream)
    return tuple(int(size) for size in shape), "F" if fortran else "C", dtype, stream.tell()


def only(records: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return the record with a name, or the only record.

    Args:
        records: The records.
        name: The name.
        kind: RequestKind of the records, for the error.

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


def error_sums(metrics: MetricRecord, names: Iterable[str]) -> ErrorSums:
    """Return the sums of a metric, from which it follows for several clients together.

    Args:
        metrics: The metrics.
        names: The names of the metric to try, in order.

    Returns:
        The sums; empty if the client sent none, or none of the form and size that a client can have
        measured.
    """
    name = next((name for name in names if name in metrics), "")
    given: dict[str, float] = {}
    for key, value in metrics.items() if name else ():
        if key.startswith(f"{name}{SIGN}"):
            if not isinstance(value, (int, float)) or not abs(value) <= LARGEST:
                return {}
            given[key] = float(value)
    sums = parted(given)[1].get(name, {})
    return sums if sound(sums) else {}


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


def count_of(metrics: MetricRecord, name: str, what: str, least: int = 1) -> int:
    """Return the number of things that a metric states.

    Args:
        metrics: The metrics of a reply, possibly from an unknown sender.
        name: The name of the metric.
        what: What it counts, for the error.
        least: The smallest number.

    Returns:
        The number.

    Raises:
        Unfit: The metric is missing, is not a whole number, or is too small.
    """
    if name not in metrics:
        raise Unfit(f"its reply has no {what} ({name})")
    count = whole(metrics[name])
    if count is None or count < least:
        raise Unfit(
            f"its {what} ({name}) must be a whole number from {least} to 2^63 - 1, got {brief(metrics[name])[:40]}"
        )
    return count


def held_metrics(held: HeldOutLosses) -> dict[str, Any]:
    """Return the metrics that state a client's held-out losses."""
    upper = held.products[np.triu_indices(len(held.sums))]
    return {COUNT: held.count, SUMS: held.sums.tolist(), PRODUCTS: upper.tolist()}


def held_of(metrics: MetricRecord, models: Sequence[Candidate], most: int) -> HeldOutLosses:
    """Read a client's held-out losses.

    Args:
        metrics: The metrics of its reply, possibly from an unknown sender.
        models: The models of which it reports losses.
        most: Greatest number of examples.

    Returns:
        The sums.

    Raises:
        Unfit: The numbers are missing, not finite or too large, or no losses have such sums and
            products.
    """
    m = len(models)
    sums, upper = (np.array(numbers(metrics, name), dtype=np.float64) for name in (SUMS, PRODUCTS))
    if len(sums) != m or len(upper) != m * (m + 1) // 2:
        raise Unfit(
            f"its held-out losses are {len(sums)} sums and {len(upper)} products for {m} models"
        )
    count = count_of(metrics, COUNT, "number of held-out examples", least=0)
    if count > most:
        raise Unfit(
            f"it claims {count:,} held-out examples, more than {most:,} (robust.most_examples)"
        )
    products = np.zeros((m, m))
    products[np.triu_indices(m)] = upper
    products = np.triu(products) + np.triu(products, 1).T
    bounds = (1 + ROUNDED) * count * WORST_LOSS
    if (
        not (np.abs(sums) <= bounds).all() or not (np.abs(products) <= bounds * WORST_LOSS).all()
    ):  # NaN fails, too
        raise Unfit(
            f"its held-out losses have sums that are not finite, or of more than {WORST_LOSS:g} for each example"
        )
    whole_matrix = np.block(
        [[np.full((1, 1), float(count)), sums[None]], [sums[:, None], products]]
    )
    scale = np.sqrt(whole_matrix.diagonal().clip(min=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = np.nan_to_num(whole_matrix / np.outer(scale, scale), posinf=2.0, neginf=-2.0)
    if (whole_matrix.diagonal() < 0).any() or np.linalg.eigvalsh(alike)[0] < -ROUNDED * (m + 1):
        raise Unfit("no held-out losses have the sums and products that it reports")
    return HeldOutLosses(models=tuple(models), count=count, sums=sums, products=products)


def whole(value: Any) -> int | None:
    """Return a non-negative integer of at most 63 bits, such as an id or a count; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


def brief(reason: Any) -> str:
    """Shorten a text from an unknown sender to one line, without characters that control a terminal or text direction."""
    seen = "".join(char if char.isprintable() else " " for char in str(reason)[: 10 * LONGEST])
    return " ".join(seen.split())[:LONGEST]


def config_of(*orders: Order) -> ConfigRecord:
    """Return a config with the keys of Flower's quickstart (``lr``, ``server-round``) and the tasks for Coterie's apps."""
    first, tasks = orders[0], json.dumps([order_to_json(order) for order in orders])
    return ConfigRecord({"lr": first.lr, "server-round": first.key[2] + 1, TASK: tasks})


def told(content: RecordDict) -> dict[str, Any]:
    """Return the entries of a message's config besides the task, as an app without Coterie receives them."""
    config = content.get(CONFIG)
    return (
        {name: value for name, value in config.items() if name != TASK}
        if isinstance(config, ConfigRecord)
        else {}
    )


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
    orders = tuple(order_from_json(values) for values in json.loads(str(config[TASK])))
    if len({(order.key, order.client, order.run) for order in orders}) != 1 or len(
        {o.part for o in orders}
    ) < len(orders):
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


ABLE = ("fedavg", "cfl", "flhc", "hcct", "hcct-e")
"""Methods in which such apps can take part, with the methods' default settings."""


NOT_IN_A_PLAIN_APP = FEATURES
"""Features of a task that an app ignores if it does not know Coterie: it trains one model as it likes."""

NOT_IN_A_FUNCTION: tuple[Feature, ...] = (
    "held-out-losses",
    "gradients",
    "stages",
    "mixture",
    "pull",
)
"""Features that an app cannot do if it trains by a function of its own: such a function trains all
layers of a net, and one that tests returns the mean loss only."""


def lacking(tasks: Sequence[Task], lacks: Sequence[Feature]) -> str | None:
    """Return the first of some features that tasks of one client ask for, in words; None without one.

    Args:
        tasks: The tasks.
        lacks: What the client's app cannot do.
    """
    if len(tasks) > 1 and "several-tasks" in lacks:
        return IN_WORDS["several-tasks"]
    for task in tasks:
        asked = features_of(task)
        for feature in lacks:
            if feature in asked:
                return IN_WORDS[feature]
    return None


def sentence(
    method: str, tasks: Sequence[Task], client: Client | str, functions: bool = False
) -> str | None:
    """Explain why a client whose app does not know Coterie, or trains by a function of its own, cannot do its tasks.

    Args:
        method: Name of the method.
        tasks: The tasks of the client in one exchange.
        client: The client's id or name.
        functions: Whether the app knows Coterie and trains by a function of its own.

    Returns:
        One sentence, or None if the client can do the tasks.
    """
    wants = lacking(tasks, NOT_IN_A_FUNCTION if functions else NOT_IN_A_PLAIN_APP)
    return wants and _unsupported(method, wants, client, functions)


def _unsupported(method: str, wants: str, client: Client | str, functions: bool) -> str:
    if functions:
        return (
            f"{method} asks a client {wants}, which client {client}'s app does not support, because it trains by a function "
            "of its own"
        )
    able = f"{', '.join(ABLE[:-1])} or {ABLE[-1]}"
    return (
        f"{method} asks a client {wants}, which client {client}'s app does not support; make the app with "
        f"coterie.engines.flower.client_app, or use {able} with default settings"
    )


def tasks_of(plan: Plan, client: Client) -> list[Task]:
    """Return the tasks of a client in a plan and its parts."""
    return [part.tasks[client] for _, part in plan.leaves() if client in part.tasks]


def check(
    method: Method[Any],
    first: Plan,
    aware: Collection[Client],
    functions: Collection[Client] = (),
    names: Mapping[Client, str] | None = None,
    near: bool = False,
) -> None:
    """Check before the first training that the clients' apps can do the method's tasks.

    If no client's app knows Coterie, or all that do train by functions of their own, the checked
    tasks are those of the first plan, and the features are those of the method's ``needs``. If some
    apps can do every task, nothing is checked here: the other clients are then left out of tasks
    that they cannot do.

    Args:
        method: The method.
        first: Its first plan.
        aware: Clients whose apps know Coterie.
        functions: Those of them whose apps train by a function of their own.
        names: Client -> its name, for the message.
        near: Whether the method serves clients by their nearest training examples.

    Raises:
        SettingError: The clients' apps would ignore a part of a task.
    """
    if set(aware) - set(functions):
        return
    client = min(first.asked, default=0)
    if near:
        raise SettingError(
            f"{method.name} serves clients by their nearest training examples, which no app here supports; make the apps with "
            "coterie.engines.flower.client_app, without train and test"
        )
    shown_client = (names or {}).get(client, client)
    for asked_client in first.asked:
        tasks = tasks_of(first, asked_client)
        if refusal := sentence(method.name, tasks, shown_client, bool(aware)):
            raise SettingError(refusal)
    for feature in NOT_IN_A_FUNCTION if aware else NOT_IN_A_PLAIN_APP:
        if feature in needs_of(method).features:
            raise SettingError(
                _unsupported(method.name, IN_WORDS[feature], shown_client, bool(aware))
            )
