"""A Flower ClientApp that can do every task of every method: measure, choose, keep layers, train a personal model.

    app = client_app(model=Net, data=load)

``load(context)`` returns this node's :class:`~coterie.data.world.ClientData`. The server sends the
training settings.

    app = client_app(model=Net, data=load, train=train, test=test)

An app with functions of its own, as in Flower's quickstart; ``load(context)`` then returns two
PyTorch data sets.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from coterie import training
from coterie.core import HALVES, Client
from coterie.data.described import described
from coterie.data.objective import Objective
from coterie.data.schema import Schema, checked
from coterie.data.world import ClientData
from coterie.engines.exchange import held_losses
from coterie.engines.flower import messages, schemas
from coterie.engines.flower.functions import FunctionLearner, Functions, Test, Train, client_data
from coterie.engines.flower.messages import (
    ANSWER,
    ARRAYS,
    CELL,
    FUNCTIONS,
    KEPT,
    METRICS,
    PERSONAL,
    QUERY,
    REFUSED,
    SCHEMA,
    Order,
)
from coterie.engines.flower.names import Claim, claim_in_config, claim_of, id_reply
from coterie.engines.flower.sums import flower_sums
from coterie.files import read_within, within
from coterie.models.layout import Layout, own_layers, without_weight
from coterie.printable import printable
from coterie.randomness import Purpose, seeded
from coterie.records.record import versions
from coterie.records.store import write_whole
from coterie.settings.calls import public

log = logging.getLogger("flwr.coterie")


@public
@dataclass(frozen=True)
class Participant:
    """One node's part in a federation.

    Attributes:
        data: The node's examples.
        model: Function that makes the net.
        objective: Loss and metrics.
        augment: Augmentation of training batches. None means none.
        attack: The node's attack if it simulates an adversary.
        functions: The app's own functions, in place of Coterie's training and tests. None means
            Coterie's.
        schema: What the node's numbers mean, in place of what the data show; see
            :class:`~coterie.data.schema.Schema`.
        compared: Whether the node states its schema. In a simulation, all clients are of one world.
    """

    data: ClientData
    model: Callable[[], nn.Module]
    objective: Objective = Objective()  # noqa: RUF009  (frozen)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None
    attack: Any = None
    functions: Functions | None = None
    schema: Schema | None = None
    compared: bool = True

    def described(self) -> Schema:
        """The schema of the node's data, as far as it is known."""
        found = (
            described(self.data, self.objective)
            if self.functions is None
            else self.functions.described()
        )
        return found if self.schema is None else found.overridden(self.schema)

    def learner(self) -> training.Learner:
        """Make the learner that trains and tests this node's models."""
        if self.functions is not None:
            return FunctionLearner(self.model(), self.functions, self.objective)
        return training.Learner(self.model(), self.objective, self.augment)


_PARTS: dict[tuple[str, int], tuple[Participant, training.Learner]] = {}
"""The part of the last node, kept for the next message if one process handles several."""


@public
def client_app(
    *,
    model: Callable[[], nn.Module] | None = None,
    data: Callable[[Context], Any] | None = None,
    train: Train | None = None,
    test: Test | None = None,
    objective: Objective | None = None,
    participant: Callable[[Context], Participant] | None = None,
    client: Callable[[Context], int | str] | None = None,
    schema: Schema | Mapping[str, Any] | Callable[[Context], Schema] | None = None,
    mods: Sequence[Any] = (),
) -> ClientApp:
    """Make a ClientApp for :class:`~coterie.engines.flower.MethodStrategy` and any method.

    Args:
        model: Function that makes the net.
        data: Function that returns this node's examples as :class:`~coterie.data.world.ClientData`.
            With ``train`` and ``test`` it returns two PyTorch data sets, for training and for
            tests, which can be indexed.
        train: Function of (net, data set, config) that trains the net in place, instead of
            Coterie's training. The data set is the client's, or half of it. The config has ``lr``,
            ``epochs``, ``batch`` and the other settings of :class:`~coterie.Training`,
            ``server-round``, and what the ServerApp passes as ``train_config``.
        test: Function of (net, data set) that returns the mean loss and the accuracy. The loss also
            serves to choose a model.
        objective: Loss and metrics. None means cross entropy and accuracy.
        participant: Function that returns all of this, in place of ``model``, ``data`` and
            ``objective``.
        client: Function that returns the client's name, or its id, an integer; it stays the same
            when a node returns. None takes ``client-id`` or ``partition-id`` of the node's config;
            without these the server assigns an id.
        schema: What the node's numbers mean, such as ``Schema(columns=("age", "bp"), classes=("no",
            "yes"))``, or a function that returns it. Its known fields take precedence over what the
            data show. The server refuses a node whose schema differs from the federation's. How
            much of it a node states is ``schema`` in its node config: ``words`` (the default),
            ``digest`` or ``none``.
        mods: Flower's client mods, such as :func:`~coterie.engines.flower.boundary_mod`.

    Returns:
        The app.

    Raises:
        TypeError: Neither ``model`` and ``data`` nor ``participant`` are given, or both; or only
            one of ``train`` and ``test``.
    """
    if (participant is None) == (model is None or data is None):
        raise TypeError("client_app takes model and data, or participant")
    if (train is None) != (test is None) or (train is not None and participant is not None):
        raise TypeError("client_app takes train and test together, with model and data")

    token = uuid4().hex  # a simulation unpickles the app, and this with it, for every message

    def part(context: Context) -> tuple[Participant, training.Learner]:
        key = token, context.node_id
        if key not in _PARTS:
            _PARTS.clear()
            claim = name(context)
            node = abs(context.node_id) if claim is None else claim.client
            with seeded(
                Purpose.OWN_CODE, node
            ):  # each time the same data for a node, and others than for another one
                made = participant(context) if participant is not None else own(context)
            if (more := stated(context)) is not None:
                made = replace(made, schema=more)
            with seeded(0):
                _PARTS[key] = made, made.learner()
        return _PARTS[key]

    def stated(context: Context) -> Schema | None:
        """The schema that the app gives, besides what the data show."""
        given = schema(context) if callable(schema) else schema
        return None if given is None else checked(given, "client_app: schema")

    def own(context: Context) -> Participant:
        assert data is not None
        assert model is not None
        if train is None or test is None:
            return Participant(data(context), model, objective or Objective())
        described, pool = client_data(data(context))
        return Participant(
            described, model, objective or Objective(), functions=Functions(train, test, pool)
        )

    app = ClientApp(mods=list(mods))

    def name(context: Context) -> Claim | None:
        return (
            claim_of(client(context), "client")
            if client is not None
            else claim_in_config(context.node_config)
        )

    @app.train()
    def train_task(message: Message, context: Context) -> Message:
        me, learner = part(context)
        return Message(trained(me, learner, message.content, context), reply_to=message)

    @app.evaluate()
    def test_task(message: Message, context: Context) -> Message:
        if message.metadata.message_type == QUERY:
            answer = id_reply(name(context), **{FUNCTIONS: int(train is not None)})
            if (record := introduced(part, message.content, context)) is not None:
                answer[SCHEMA] = record
            return Message(answer, reply_to=message)
        me, learner = part(context)
        return Message(tested(me, learner, message.content, context), reply_to=message)

    return app


def introduced(
    part: Callable[[Context], tuple[Participant, training.Learner]],
    query: RecordDict,
    context: Context,
) -> ConfigRecord | None:
    """Return what a node states about its data, and log it if the server refuses the node.

    Args:
        part: Function that returns the node's part and its learner.
        query: The content of the server's query. Its arrays are a model of the server.
        context: Flower's context of the node.

    Returns:
        The record; None if the node states nothing, or its data cannot be loaded. Training then
        fails with the reason.

    Raises:
        SettingError: The node's config says something else than how much to state.
    """
    sharing = schemas.sharing_of(context.node_config)
    config = query.get(messages.CONFIG)
    refusal = str(config.get(REFUSED, "")) if isinstance(config, ConfigRecord) else ""
    try:
        me, learner = part(context)
        with seeded(0):  # to read an example may draw random numbers
            schema = me.described()
    except Exception:  # the user's code can raise anything
        log.exception(
            "this node's data cannot be described, so the server cannot compare them with the other nodes'"
        )
        return None
    if refusal:
        own = json.dumps(schema.to_json())
        log.warning(
            printable(f"the server refuses this node: {refusal}; this node's schema is {own}")
        )
    if sharing == schemas.NOTHING or not me.compared:
        return None
    served = query.get(ARRAYS)
    model = ""
    if isinstance(served, ArrayRecord):
        names = {name: tuple(tensor.shape) for name, tensor in learner.module.state_dict().items()}
        model = schemas.model_difference(
            names, {name: tuple(array.shape) for name, array in served.items()}
        )
    return schemas.record_of(schemas.Stated.of(schema, sharing, model, versions()))


def trained(
    me: Participant, learner: training.Learner, content: RecordDict, context: Context
) -> RecordDict:
    """Carry out a task.

    Args:
        me: The node's part.
        learner: The learner for its model.
        content: The content of the message with the task.
        context: Flower's context of the node.

    Returns:
        The content of the reply, the update and the measurements.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    orders = messages.orders_of(content)
    if isinstance(learner, FunctionLearner):
        learner.config = messages.app_config(content)
    for name, before in orders[0].ended.items():
        forget(context, orders[0], name, before)
    examples, first = len(me.data.train), 0
    metrics: dict[str, Any] = {
        "num-examples": me.attack.claimed(examples) if me.attack else examples
    }
    records: dict[str, Any] = {}
    held: dict[str, Mapping[Client, np.ndarray]] = {}
    stored: list[tuple[ClientMemory, training.ClientResult]] = []
    for place, order in enumerate(orders):
        memory = ClientMemory.of_order(context, learner.layout, order)
        arrays = _arrays(content, first, len(order.task.offered))
        first += len(order.task.offered)
        result = _carried_out(me, learner, order, arrays, memory)
        keep_mask = (
            learner.layout.mask(order.task.local_layers) if order.task.local_layers else None
        )
        for name, update in zip(messages.updates_of(place), result.updates, strict=False):
            records[name] = messages.packed(update, learner.layout, without=keep_mask)
        if result.answer is not None:
            answer = ArrayRecord({ANSWER: Array(result.answer)})
            records[messages.of_task(ANSWER, place)] = answer
        for name, value in _metrics(order, result).items():
            metrics[messages.of_task(name, place)] = value
        if result.held_losses is not None:
            held[order.part] = {order.client: result.held_losses}
        stored.append((memory, result))
    if held:
        metrics |= messages.held_out_metrics(held_losses(held)[orders[0].client])
    for memory, result in stored:  # only if all tasks are done
        memory.store(orders[0].exchange, result)
    return RecordDict({**records, METRICS: MetricRecord(metrics)})


def _carried_out(
    me: Participant,
    learner: training.Learner,
    order: Order,
    arrays: Sequence[Any],
    memory: ClientMemory,
) -> training.ClientResult:
    """Carry out the task of one part of a plan."""
    layout, asked = learner.layout, order.task
    stored_sketches = partial(memory.half_sketches_before, order.exchange)
    if order.hidden:
        order = replace(order, task=flower_sums().task_as_taken(asked, stored_sketches()))
    task = order.task
    own_values = None
    if task.local_layers or task.personal is not None:
        own_values = memory.own_values_before(order.exchange)
    kept_layers = None
    if task.local_layers and own_values is not None:
        kept_layers = torch.where(
            layout.mask(task.local_layers), own_values[: layout.size], torch.nan
        )
    offered_arrays = [arrays[asked.offered.index(row)] for row in task.offered]
    offered = _models(layout, offered_arrays, kept_layers)
    job = _job(me, layout, order, offered, own_values)
    result = training.carry_out(learner, job, me.attack, own_values)
    if own_values is not None:
        result = replace(result, stored_at=memory.stored_at(order.exchange))
    # A model of a cell was one of those that the plan offers.
    places = tuple(asked.offered.index(row) for row in result.chosen)
    result = replace(result, chosen=places)
    if not order.sums:
        return result
    return flower_sums().client_result(result, order, stored_sketches, layout, len(me.data.train))


def _metrics(order: Order, result: training.ClientResult) -> dict[str, Any]:
    """The metrics of a reply to one task."""
    metrics: dict[str, Any] = {"chosen": list(result.chosen)}
    if result.losses and not order.sums:
        metrics["losses"] = list(result.losses)
        metrics["accuracies"] = list(result.accuracies)
    if result.own_values is not None:
        metrics[KEPT] = result.stored_at
    if order.task.personal is not None:
        metrics[PERSONAL] = int(result.own_values is not None)
    if result.cell is not None:
        metrics[CELL] = result.cell
    return metrics


def _job(
    me: Participant,
    layout: Layout,
    order: Order,
    offered: Sequence[Tensor],
    own_values: Tensor | None = None,
) -> training.Job:
    """An order with the models and this node's data."""
    data = training.held_out(me.data, order.task.holdout.share, order.seed, order.client)
    personal = order.task.personal
    if own_values is None or personal is None or personal.start != "own":
        return training.Job(order, offered, data)
    model, weight = without_weight(own_values, layout.size)
    return training.Job(order, offered, data, model, weight)


def tested(
    me: Participant, learner: training.Learner, content: RecordDict, context: Context
) -> RecordDict:
    """Test the model in a message, or the ensemble, on this node's test data.

    Args:
        me: The node's part.
        learner: The learner for its model.
        content: The content of the message.
        context: Flower's context of the node.

    Returns:
        The content of the reply, with loss, metrics and the number of test examples.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    order = messages.order_of(content)
    own_values = None
    if not order.plain:
        own_values = ClientMemory.of_order(context, learner.layout, order).own_values_before(
            order.exchange
        )
    rows = _models(learner.layout, _arrays(content, 0, len(order.task.offered)), own_values)
    if order.hidden and len(rows) > 1:  # it takes the model of lowest loss
        result = training.carry_out(learner, _job(me, learner.layout, order, rows))
        rows = [rows[result.chosen[0]]]
    test, near = me.data.test, order.neighbours
    with seeded(0):
        if near is None:
            totals = learner.sums(rows, [(test.inputs, test.index, [test.targets])])[0][0]
        else:
            data = training.held_out(me.data, near.holdout, order.key[0], order.client)
            totals = training.sums_with_neighbours(learner, rows[0], data, near)
    counted = {name: part for name, part in totals.items() if part[1]}
    found = me.objective.scores(counted) | me.objective.error_sums(counted)
    return RecordDict({METRICS: MetricRecord({**found, "num-examples": len(test)})})


def _arrays(content: RecordDict, first: int, count: int) -> list[Any]:
    """The records of ``count`` offered models."""
    return [content[messages.name_of(i)] for i in range(first, first + count)]


def _models(layout: Layout, arrays: Sequence[Any], own: Tensor | None) -> list[Tensor]:
    """The offered models with this client's own values in them; the server need not send layers that the client has."""
    has = torch.zeros(layout.size, dtype=torch.bool) if own is None else ~own[: layout.size].isnan()
    try:
        rows = [messages.unpacked(each, layout, may_lack=has) for each in arrays]
    except messages.Unfit as error:
        raise ValueError(
            f"invalid offered model: {error}; or this client has lost its personal layers"
        ) from None
    return [own_layers(row, own) for row in rows]


# ----------------------------------------------------------------------------------------------------
# Own values: the layers or the personal model that stay at a client, stored after each of its last
# exchanges.
#
# They are stored by run, part of the plan, and exchange. So a server that returns to an earlier
# round finds the values of that round.


FOLDER = "keep-dir"
"""Key of the node config with a folder for them.

Without it they are in the node's state. Flower deletes this state when the node stops or ``flwr
run`` is called again.
"""


VERSIONS = 8
"""Number of the last exchanges whose values are stored."""


MIXTURE = ".mixture"
"""Name of the array with the weight of a personal model in a mixture. No tensor of a state dict
begins with a point."""


class ValueStore(Protocol):
    """A store for the own values after some exchanges."""

    def tags(self) -> list[int]:
        """The exchanges with stored values."""
        ...

    def take(self, tag: int) -> Any:
        """Return the values of an exchange."""
        ...

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        ...

    def drop(self, tag: int) -> None:
        """Delete the values of an exchange."""
        ...

    def forget(self, before: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        ...


def digests(part: str) -> list[str]:
    """Return names for the store of a part of a plan, one for each part that it is a part of; none for the empty name.

    The names of parts come from the server. So they are hashed before they become parts of paths.
    """
    return (
        [hashlib.sha256(name.encode()).hexdigest()[:32] for name in part.split("/")] if part else []
    )


class StateStore:
    """A store in records ``coterie-kept-<run>-<exchange>`` of a node's state; the run is followed by the digests of a part."""

    def __init__(self, state: RecordDict, run: str, part: str = "") -> None:
        self.state, self.name = state, ".".join([f"coterie-kept-{run}", *digests(part)])
        self.deep = bool(part)  # what has no part's name is only itself

    def tags(self) -> list[int]:
        """The exchanges with stored values."""
        prefix = f"{self.name}-"
        return [int(name.removeprefix(prefix)) for name in self.state if name.startswith(prefix)]

    def take(self, tag: int) -> Any:
        """Return the values of an exchange."""
        return self.state[f"{self.name}-{tag}"]

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        self.state[f"{self.name}-{tag}"] = record

    def drop(self, tag: int) -> None:
        """Delete the values of an exchange."""
        del self.state[f"{self.name}-{tag}"]

    def forget(self, before: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        its = (f"{self.name}-", *([f"{self.name}."] if self.deep else []))
        for name in [
            n for n in self.state if n.startswith(its) and int(n.rpartition("-")[2]) < before
        ]:
            del self.state[name]


class FolderStore:
    """A store in files ``<run>/<client>/<exchange>.safetensors``; the client is followed by the digests of a part."""

    def __init__(self, folder: Path, run: str, client: int, part: str = "") -> None:
        self.folder = within(
            folder, "/".join([*([run] if run else []), str(client), *digests(part)])
        )
        self.deep = bool(part)  # what has no part's name is only itself

    def tags(self) -> list[int]:
        """The exchanges with stored values."""
        return [
            tag for path in self.folder.glob("*.safetensors") if (tag := _tag(path)) is not None
        ]

    def take(self, tag: int) -> Any:
        """Return the values of an exchange."""
        data = read_within(self.folder, f"{tag}.safetensors")
        return ArrayRecord(safetensors.torch.load(data))

    def put(self, tag: int, record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
        write_whole(self.folder / f"{tag}.safetensors", safetensors.torch.save(tensors))

    def drop(self, tag: int) -> None:
        """Delete the values of an exchange."""
        (self.folder / f"{tag}.safetensors").unlink(missing_ok=True)

    def forget(self, before: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        places = [
            Path(place) for place, _, _ in os.walk(self.folder, topdown=False)
        ]  # it does not follow links
        for place in places if self.deep else [self.folder]:
            for path in place.glob("*.safetensors"):
                if (tag := _tag(path)) is not None and tag < before:
                    path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty, or there is none
                place.rmdir()


def _tag(path: Path) -> int | None:
    """The exchange of a file of own values; None for another file."""
    match = re.fullmatch(r"(0|[1-9][0-9]*)\.safetensors", path.name)
    return int(match[1]) if match else None


class ClientMemory:
    """What a client stores for its next exchange, for one part of the plan: own values and sketches.

    Args:
        context: Flower's context of the node.
        layout: The layout of the model's parameters.
        run: The name of the run, up to 32 hexadecimal digits.
        client: The client's id.
        part: The name of the part of the plan.
        since: What was stored before this exchange does not count.

    Raises:
        ValueError: The name of the run is not of this form.
    """

    def __init__(
        self,
        context: Context,
        layout: Layout,
        run: str,
        client: Client,
        part: str = "",
        since: int = 0,
    ) -> None:
        self.layout = layout
        self.since = since
        self._values = store_of(context, run, client, part)
        self._sketches = store_of(context, run, client, part + HALVES)

    @classmethod
    def of_order(cls, context: Context, layout: Layout, order: Order) -> ClientMemory:
        """Return the memory of the client and the part of an order."""
        return cls(context, layout, order.run, order.client, order.part, order.since)

    def stored_at(self, exchange: int) -> int:
        """Return the last exchange before ``exchange`` with stored own values, -1 if there is none."""
        last = self._last(self._values, exchange)
        return -1 if last is None else last

    def own_values_before(self, exchange: int) -> Tensor | None:
        """Return the client's own values before an exchange, see :class:`~coterie.core.Position`.

        Args:
            exchange: The exchange.

        Returns:
            The values ``(d,)``, NaN in the other columns; with one more entry if they are of a
            mixture, its weight. None if there are none.

        Raises:
            Unfit: The stored values are of another model, or damaged.
        """
        last = self._last(self._values, exchange)
        if last is None:
            return None
        record = self._values.take(last)
        any_column = torch.ones(self.layout.size, dtype=torch.bool)
        values = messages.unpacked(record, self.layout, may_lack=any_column)
        if MIXTURE not in record:
            return values
        weight = torch.from_numpy(messages.array_of(record, MIXTURE, (1,)).astype(np.float32))
        if not 0 <= float(weight) <= 1:
            raise messages.Unfit(
                f"the stored weight of a mixture must be from 0 to 1, got {float(weight):g}"
            )
        return torch.cat([values, weight])

    def half_sketches_before(self, exchange: int) -> np.ndarray | None:
        """Return the sketches ``(2, k)`` of the last halves before an exchange; None if there are none."""
        last = self._last(self._sketches, exchange)
        if last is None:
            return None
        return messages.array_of(self._sketches.take(last), ANSWER).astype(np.float32)

    def store(self, exchange: int, result: training.ClientResult) -> None:
        """Store what the result of an exchange says that the client keeps."""
        if result.half_sketches is not None:
            record = ArrayRecord({ANSWER: Array(result.half_sketches)})
            self._put(self._sketches, exchange, record)
        if result.own_values is not None:
            self.store_own_values(exchange, result.own_values)

    def store_own_values(self, exchange: int, values: Tensor) -> None:
        """Store own values after an exchange, in the form of :meth:`own_values_before`."""
        model, weight = values[: self.layout.size], values[self.layout.size :]
        record = messages.packed(model, self.layout, without=model.isnan())
        if len(weight):
            record[MIXTURE] = Array(weight.numpy())
        self._put(self._values, exchange, record)

    def _last(self, store: ValueStore, exchange: int) -> int | None:
        """The last exchange before ``exchange`` with stored values that count; None if there is none."""
        tags = [tag for tag in store.tags() if self.since <= tag < exchange]
        return max(tags, default=None)

    def _put(self, store: ValueStore, exchange: int, record: ArrayRecord) -> None:
        """Store values, and delete the oldest and those of later exchanges.

        There are later ones if the server has returned to an earlier round: they are not valid.
        """
        for tag in [tag for tag in store.tags() if tag > exchange]:
            store.drop(tag)
        store.put(exchange, record)
        for tag in sorted(store.tags())[:-VERSIONS]:
            store.drop(tag)


def store_of(context: Context, run: str, client: int, part: str = "") -> ValueStore:
    """Return the store for a client's own values, see :class:`ClientMemory`."""
    if not re.fullmatch(
        "[0-9a-f]{0,32}", run
    ):  # it comes from the server and becomes part of a path
        raise ValueError(f"a run's name must be up to 32 hexadecimal digits, got {run!r}")
    folder = str(context.node_config.get(FOLDER, ""))
    return (
        FolderStore(Path(folder), run, client, part)
        if folder
        else StateStore(context.state, run, part)
    )


def forget(context: Context, order: Order, part: str, before: int) -> None:
    """Delete a client's own values of a part of the plan that has ended.

    Args:
        context: Flower's context of the node.
        order: A task, which names the run and the client.
        part: The name of the part.
        before: Values of this exchange and of later ones stay.
    """
    store_of(context, order.run, order.client, part).forget(before)
