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
import secrets
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
from coterie.boundary import Boundary, Wire
from coterie.core import HALVES, OPTIMIZER, Client
from coterie.data.described import described
from coterie.data.objective import VALIDATION, Objective
from coterie.data.schema import Schema, checked
from coterie.data.world import ClientData, Split
from coterie.engines.exchange import held_losses
from coterie.engines.flower import messages, schemas
from coterie.engines.flower.functions import FunctionLearner, Functions, Test, Train, client_data
from coterie.engines.flower.messages import (
    ANSWER,
    ARRAYS,
    CALIBRATION,
    CELL,
    FUNCTIONS,
    METRICS_RECORD,
    PERSONAL,
    QUERY,
    REFUSED,
    SCHEMA,
    STATISTIC,
    STORED_AT,
    Order,
)
from coterie.engines.flower.names import Claim, claim_in_config, claim_of, id_reply
from coterie.engines.flower.sums import flower_sums
from coterie.engines.served import Nets
from coterie.extensions import entry_points, provided
from coterie.files import read_within, within
from coterie.models.layout import Layout, own_layers, without_weight
from coterie.printable import printable
from coterie.randomness import Purpose, seeded
from coterie.records.record import versions
from coterie.records.store import write_whole
from coterie.settings import SettingError
from coterie.settings.calls import public
from coterie.training.calibration_sums import calibration_sums
from coterie.training.outputs import output_kind

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
        functions = self.functions
        schema = functions.described() if functions else described(self.data, self.objective)
        return schema if self.schema is None else schema.overridden(self.schema)

    def learner(self) -> training.Learner:
        """Make the learner that trains and tests this node's models."""
        if self.functions is not None:
            return FunctionLearner(self.model(), self.functions, self.objective)
        return training.Learner(self.model(), self.objective, self.augment)


_LAST_PARTICIPANT: dict[tuple[str, int], tuple[Participant, training.Learner]] = {}
"""The last node's part and learner, kept for the next message if one process handles several."""


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
    # The arguments must describe one participant, in one of the ways.
    if (participant is None) == (model is None or data is None):
        raise TypeError("client_app takes model and data, or participant")
    if (train is None) != (test is None) or (train is not None and participant is not None):
        raise TypeError("client_app takes train and test together, with model and data")

    # A simulation unpickles the app, and this token with it, for every message.
    app_token = uuid4().hex

    def load(context: Context) -> tuple[Participant, training.Learner]:
        """The node's part and learner, made for the first of several messages."""
        participant_key = app_token, context.node_id
        if participant_key not in _LAST_PARTICIPANT:
            _LAST_PARTICIPANT.clear()
            claim = claim_of_node(context)
            node = abs(context.node_id) if claim is None else claim.client
            # A node gets the same data each time, and other data than another node.
            with seeded(Purpose.OWN_CODE, node):
                load_participant = participant or participant_of_arguments
                loaded_participant = load_participant(context)
            app_schema = schema_of_app(context)
            if app_schema is not None:
                loaded_participant = replace(loaded_participant, schema=app_schema)
            with seeded(0):
                _LAST_PARTICIPANT[participant_key] = (
                    loaded_participant,
                    loaded_participant.learner(),
                )
        return _LAST_PARTICIPANT[participant_key]

    def schema_of_app(context: Context) -> Schema | None:
        """The schema that the app gives, besides what the data show."""
        app_schema = schema(context) if callable(schema) else schema
        return None if app_schema is None else checked(app_schema, "client_app: schema")

    def participant_of_arguments(context: Context) -> Participant:
        assert data is not None
        assert model is not None
        # With functions of its own, the app has data sets in place of Coterie's splits.
        if train is None or test is None:
            return Participant(data(context), model, objective or Objective())
        splits, example_pool = client_data(data(context))
        functions = Functions(train, test, example_pool)
        return Participant(splits, model, objective or Objective(), functions=functions)

    app = ClientApp(mods=list(mods))

    def claim_of_node(context: Context) -> Claim | None:
        if client is not None:
            return claim_of(client(context), "client")
        return claim_in_config(context.node_config)

    @app.train()
    def train_task(message: Message, context: Context) -> Message:
        node_participant, learner = load(context)
        content = trained(node_participant, learner, message.content, context)
        return Message(content, reply_to=message)

    @app.evaluate()
    def test_task(message: Message, context: Context) -> Message:
        if message.metadata.message_type == QUERY:
            # The query tells the server who this node is, whether it trains by itself, and what its
            # data are.
            content = id_reply(claim_of_node(context), **{FUNCTIONS: int(train is not None)})
            schema_record = introduced(load, message.content, context)
            if schema_record is not None:
                content[SCHEMA] = schema_record
            return Message(content, reply_to=message)
        node_participant, learner = load(context)
        if CALIBRATION in message.content[messages.CONFIG]:
            content = calibration_reply(node_participant, learner, message.content)
        else:
            content = tested(node_participant, learner, message.content, context)
        return Message(content, reply_to=message)

    return app


def introduced(
    load_participant: Callable[[Context], tuple[Participant, training.Learner]],
    query_content: RecordDict,
    context: Context,
) -> ConfigRecord | None:
    """Return what a node states about its data, and log it if the server refuses the node.

    Args:
        load_participant: Function that returns the node's part and its learner.
        query_content: The content of the server's query. Its arrays are a model of the server.
        context: Flower's context of the node.

    Returns:
        The record; None if the node states nothing, or its data cannot be loaded. Training then
        fails with the reason.

    Raises:
        SettingError: The node's config says something else than how much to state.
    """
    # What the node may state, and whether the server refuses it.
    sharing = schemas.sharing_of(context.node_config)
    query_config = query_content.get(messages.CONFIG)
    refusal = str(query_config.get(REFUSED, "")) if isinstance(query_config, ConfigRecord) else ""
    try:
        participant, learner = load_participant(context)
        # To read an example may draw random numbers.
        with seeded(0):
            schema = participant.described()
    except Exception:
        # The user's code can raise anything.
        log.exception(
            "this node's data cannot be described, so the server cannot compare them with the other nodes'"
        )
        return None
    if refusal:
        schema_text = json.dumps(schema.to_json())
        log.warning(
            printable(
                f"the server refuses this node: {refusal}; this node's schema is {schema_text}"
            )
        )
    # The schema goes to the server only as far as the node's operator allows.
    if sharing == schemas.NOTHING or not participant.compared:
        return None
    server_model = query_content.get(ARRAYS)
    difference = ""
    if isinstance(server_model, ArrayRecord):
        node_tensors = learner.module.state_dict()
        difference = schemas.model_difference(
            {tensor_name: tuple(tensor.shape) for tensor_name, tensor in node_tensors.items()},
            {tensor_name: tuple(array.shape) for tensor_name, array in server_model.items()},
        )
    return schemas.record_of(schemas.Stated.of(schema, sharing, difference, versions()))


def trained(
    participant: Participant, learner: training.Learner, content: RecordDict, context: Context
) -> RecordDict:
    """Carry out the tasks of a message.

    Args:
        participant: The node's part.
        learner: The learner for its model.
        content: The content of the message with the task.
        context: Flower's context of the node.

    Returns:
        The content of the reply, the update and the measurements.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    # 1. Read the tasks. The server sends one for each part of the plan.
    orders = messages.orders_of(content)
    check_told(orders, context.node_config, is_simulated=not participant.compared)
    # Extensions may refuse tasks that the node's operator does not allow.
    for optimizer_name in sorted(entry_points("coterie.optimizers")):
        optimizer = provided("coterie.optimizers", optimizer_name)
        optimizer.check_orders(orders, learner.layout, participant.data, context.node_config)
    if isinstance(learner, FunctionLearner):
        learner.config = messages.app_config(content)
    # Own values of parts of the plan that have ended are deleted.
    for part_name, before_exchange in orders[0].ended.items():
        forget(context, orders[0], part_name, before_exchange)
    examples = len(participant.data.train)
    if participant.attack:
        examples = participant.attack.claimed(examples)
    metrics: dict[str, Any] = {"num-examples": examples}
    records: dict[str, Any] = {}
    held_losses_of_parts: dict[str, Mapping[Client, np.ndarray]] = {}
    results: list[tuple[ClientMemory, training.ClientResult]] = []
    # The models of the tasks are in the message one after the other.
    first_model = 0
    for task_place, order in enumerate(orders):
        client_memory = ClientMemory.of_order(context, learner.layout, order)
        array_records = _arrays(content, first_model, len(order.task.offered))
        first_model += len(order.task.offered)
        # 2. Carry out the task.
        result = _carried_out(participant, learner, order, array_records, client_memory)
        # 3. Put the results into records whose names contain the place of the task.
        keep_mask = None
        if order.task.local_layers:
            keep_mask = learner.layout.mask(order.task.local_layers)
        for record_name, update in zip(
            messages.updates_of(task_place), result.updates, strict=False
        ):
            records[record_name] = messages.packed(update, learner.layout, without=keep_mask)
        if result.answer is not None:
            answer_record = ArrayRecord({ANSWER: Array(result.answer)})
            records[messages.of_task(ANSWER, task_place)] = answer_record
        for metric_name, metric_value in _metrics(order, result).items():
            metrics[messages.of_task(metric_name, task_place)] = metric_value
        if result.held_losses is not None:
            held_losses_of_parts[order.part] = {order.client: result.held_losses}
        results.append((client_memory, result))
    # 4. Held-out losses of all tasks are reported together.
    if held_losses_of_parts:
        tasks_of_parts = {order.part: {order.client: order.task} for order in orders}
        losses_of_client = held_losses(held_losses_of_parts, tasks_of_parts)[orders[0].client]
        metrics |= messages.held_out_metrics(losses_of_client)
    # Own values are stored only if all tasks are done.
    for client_memory, result in results:
        client_memory.store(orders[0].exchange, result)
    return RecordDict({**records, METRICS_RECORD: MetricRecord(metrics)})


OWN_SEED_BITS = 126
"""Bits of the random numbers from which a real node draws the noise of its training."""


TOLD = "statistics"
"""Entry of a node's config: the statistics of its data that it tells, separated by commas."""


def check_told(
    orders: Sequence[Order], node_config: Mapping[str, Any], *, is_simulated: bool
) -> None:
    """Check that a node's operator allows it to tell the statistics of its data that tasks ask for.

    Args:
        orders: The tasks.
        node_config: The node's config. Without an entry, a node tells none.
        is_simulated: Whether this is a client of Coterie's simulation, which may tell all.

    Raises:
        SettingError: The node may not tell one of them.
    """
    allowed = list(map(str.strip, str(node_config.get(TOLD, "")).split(",")))
    for order in orders:
        for statistic in order.task.statistics:
            if not is_simulated and statistic not in allowed:
                raise SettingError(
                    f"this node does not tell {statistic}: its operator must allow it, "
                    f'{TOLD}="{statistic}" in the node config'
                )


def _carried_out(
    participant: Participant,
    learner: training.Learner,
    order: Order,
    array_records: Sequence[Any],
    client_memory: ClientMemory,
) -> training.ClientResult:
    """Carry out the task of one part of a plan."""
    layout = learner.layout
    task_of_plan = order.task
    stored_sketches = partial(client_memory.half_sketches_before, order.exchange)
    if order.hidden:
        # The client takes the model of its cell, which the server does not know.
        order = replace(order, task=flower_sums().task_as_taken(task_of_plan, stored_sketches()))
    task = order.task
    own_values = None
    if task.local_layers or task.personal is not None:
        own_values = client_memory.own_values_before(order.exchange)
    kept_layers = None
    if task.local_layers and own_values is not None:
        kept_layers = torch.where(
            layout.mask(task.local_layers), own_values[: layout.size], torch.nan
        )
    # The models of the task, with the client's own layers in place of those that it was not sent.
    offered_arrays = [
        array_records[task_of_plan.offered.index(offered_row)] for offered_row in task.offered
    ]
    offered_models = _models(layout, offered_arrays, kept_layers)
    if order.training.own_optimizer is not None and participant.compared:
        # The server knows the seed of the run, and could subtract noise that it gives.
        own_seed = secrets.randbits(OWN_SEED_BITS)
        order = replace(order, key=(own_seed, order.exchange, order.round))
    # Measure, choose and train, exactly as a client of the in-process engine does.
    client_job = _job(participant, layout, order, offered_models, own_values)
    if order.training.keep_optimizer:
        optimizer_state = client_memory.optimizer_state_before(order.exchange)
        client_job = replace(client_job, optimizer_state=optimizer_state)
    result = training.carry_out(learner, client_job, participant.attack, own_values)
    if own_values is not None:
        result = replace(result, stored_at=client_memory.stored_at(order.exchange))
    # The reply states positions in the offer of the plan, also of the model of a cell.
    positions = tuple(task_of_plan.offered.index(offered_row) for offered_row in result.chosen)
    result = replace(result, chosen=positions)
    if not order.sums:
        return result
    examples = len(participant.data.train)
    return flower_sums().client_result(result, order, stored_sketches, layout, examples)


def _metrics(order: Order, result: training.ClientResult) -> dict[str, Any]:
    """The metrics of a reply to one task."""
    metrics: dict[str, Any] = {"chosen": list(result.chosen)}
    if result.losses and not order.sums:
        metrics["losses"] = list(result.losses)
        metrics["accuracies"] = list(result.accuracies)
    if result.own_values is not None:
        metrics[STORED_AT] = result.stored_at
    if order.task.personal is not None:
        metrics[PERSONAL] = int(result.own_values is not None)
    if result.cell is not None:
        metrics[CELL] = result.cell
    for statistic, values in result.statistics.items():
        metrics[f"{STATISTIC}-{statistic}"] = values.tolist()
    return metrics


def _job(
    participant: Participant,
    layout: Layout,
    order: Order,
    offered_models: Sequence[Tensor],
    own_values: Tensor | None = None,
) -> training.Job:
    """An order with the models and this node's data."""
    # A personal model continues from the client's own values, if it has some and the task says so.
    client_data = training.held_out(
        participant.data, order.task.holdout.share, order.seed, order.client
    )
    personal = order.task.personal
    if own_values is None or personal is None or personal.start != "own":
        return training.Job(order, offered_models, client_data)
    personal_model, mixture_weight = without_weight(own_values, layout.size)
    return training.Job(order, offered_models, client_data, personal_model, mixture_weight)


def tested(
    participant: Participant, learner: training.Learner, content: RecordDict, context: Context
) -> RecordDict:
    """Test the model in a message, or the ensemble, on this node's test data, and on what is set aside for validation scores.

    Args:
        participant: The node's part.
        learner: The learner for its model.
        content: The content of the message.
        context: Flower's context of the node.

    Returns:
        The content of the reply, with loss, metrics and the number of test examples. Validation
        scores begin with :data:`~coterie.data.objective.VALIDATION`.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    order = messages.order_of(content)
    layout = learner.layout
    own_values = None
    if not order.plain:
        client_memory = ClientMemory.of_order(context, layout, order)
        own_values = client_memory.own_values_before(order.exchange)
    model_rows = _models(layout, _arrays(content, 0, len(order.task.offered)), own_values)
    if order.hidden and len(model_rows) > 1:
        # The client takes the model of lowest loss on its training data.
        choice_result = training.carry_out(learner, _job(participant, layout, order, model_rows))
        model_rows = [model_rows[choice_result.chosen[0]]]
    scores = _test_scores(participant, learner, order, model_rows, participant.data.test)
    # Rows that are set aside from training give validation scores.
    if participant.data.scoring is not None:
        for metric, value in _test_scores(
            participant, learner, order, model_rows, participant.data.scoring
        ).items():
            scores[VALIDATION + metric] = value
    example_count = len(participant.data.test)
    return RecordDict({METRICS_RECORD: MetricRecord({**scores, "num-examples": example_count})})


def _test_scores(
    participant: Participant,
    learner: training.Learner,
    order: Order,
    model_rows: Sequence[Tensor],
    test_split: Split,
) -> dict[str, float]:
    """The loss, the metrics and their sums of a model, or of an ensemble, on some of a node's examples."""
    neighbours = order.neighbours
    with seeded(0):
        if neighbours is None:
            metric_totals = learner.sums(
                model_rows, [(test_split.inputs, test_split.index, [test_split.targets])]
            )[0][0]
        else:
            client_data = training.held_out(
                participant.data, neighbours.holdout, order.seed, order.client
            )
            client_data = replace(client_data, test=test_split)
            metric_totals = training.sums_with_neighbours(
                learner, model_rows[0], client_data, neighbours
            )
    # Metrics without any example have no value.
    counted = {metric: totals for metric, totals in metric_totals.items() if totals[1]}
    objective = participant.objective
    return objective.scores(counted) | objective.error_sums(counted)


def calibration_reply(
    participant: Participant, learner: training.Learner, content: RecordDict
) -> RecordDict:
    """Return the sums by which the server calibrates the model in a message, or the ensemble.

    Args:
        participant: The node's part.
        learner: The learner for its model.
        content: The content of the message.

    Returns:
        The content of the reply, with the sums and the numbers of rows; with neither if the outputs
        are no logits of rows, or the app tests with a function of its own.

    Raises:
        ValueError: The message has no task, or its models do not fit.
    """
    order = messages.order_of(content)
    model_rows = _models(learner.layout, _arrays(content, 0, len(order.task.offered)), None)
    sums = None
    if participant.functions is None:
        wire = Wire(Boundary(), learner.layout, order.seed)
        make_net = Nets(participant.model, wire, participant.objective, {})
        net = make_net(model_rows, None, order.client)
        with seeded(0):
            sums = calibration_sums(output_kind(participant.objective), net, participant.data)
    numbers = {} if sums is None else sums.numbers()
    metrics: dict[str, Any] = {"num-examples": len(participant.data.train)}
    for name, value in numbers.items():
        metrics[f"{CALIBRATION}-{name}"] = value
    return RecordDict({METRICS_RECORD: MetricRecord(metrics)})


def _arrays(content: RecordDict, first_model: int, model_count: int) -> list[Any]:
    """The records of some of the offered models."""
    return [
        content[messages.name_of(model_number)]
        for model_number in range(first_model, first_model + model_count)
    ]


def _models(
    layout: Layout, array_records: Sequence[Any], own_values: Tensor | None
) -> list[Tensor]:
    """The offered models with this client's own values in them; the server need not send layers that the client has."""
    # Arrays may be missing only in columns of which the client has own values.
    own_columns = torch.zeros(layout.size, dtype=torch.bool)
    if own_values is not None:
        own_columns = ~own_values[: layout.size].isnan()
    try:
        model_rows = [
            messages.unpacked(array_record, layout, may_lack=own_columns)
            for array_record in array_records
        ]
    except messages.Unfit as error:
        raise ValueError(
            f"invalid offered model: {error}; or this client has lost its personal layers"
        ) from None
    return [own_layers(model_row, own_values) for model_row in model_rows]


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


MAX_STORED_EXCHANGES = 8
"""Number of the last exchanges whose values are stored."""


MIXTURE = ".mixture"
"""Name of the array with the weight of a personal model in a mixture. No tensor of a state dict
begins with a point."""


class ValueStore(Protocol):
    """A store for the own values after some exchanges."""

    def exchanges(self) -> list[int]:
        """The exchanges with stored values."""
        ...

    def take(self, exchange: int) -> Any:
        """Return the values of an exchange."""
        ...

    def put(self, exchange: int, array_record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        ...

    def drop(self, exchange: int) -> None:
        """Delete the values of an exchange."""
        ...

    def forget(self, before_exchange: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        ...


def digests(part_name: str) -> list[str]:
    """Return names for the store of a part of a plan, one for each part that it is a part of; none for the empty name.

    The names of parts come from the server. So they are hashed before they become parts of paths.
    """
    if not part_name:
        return []
    return [
        hashlib.sha256(ancestor_name.encode()).hexdigest()[:32]
        for ancestor_name in part_name.split("/")
    ]


class StateStore:
    """A store in records ``coterie-kept-<run>-<exchange>`` of a node's state; the run is followed by the digests of a part."""

    def __init__(self, state: RecordDict, run: str, part_name: str = "") -> None:
        self.state = state
        self.name = ".".join([f"coterie-kept-{run}", *digests(part_name)])
        # Without a part name there are no sub-parts.
        self.has_sub_parts = bool(part_name)

    def exchanges(self) -> list[int]:
        """The exchanges with stored values."""
        prefix = f"{self.name}-"
        return [
            int(record_name.removeprefix(prefix))
            for record_name in self.state
            if record_name.startswith(prefix)
        ]

    def take(self, exchange: int) -> Any:
        """Return the values of an exchange."""
        return self.state[f"{self.name}-{exchange}"]

    def put(self, exchange: int, array_record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        self.state[f"{self.name}-{exchange}"] = array_record

    def drop(self, exchange: int) -> None:
        """Delete the values of an exchange."""
        del self.state[f"{self.name}-{exchange}"]

    def forget(self, before_exchange: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        prefixes = [f"{self.name}-"]
        if self.has_sub_parts:
            prefixes.append(f"{self.name}.")
        for record_name in list(self.state):
            if (
                record_name.startswith(tuple(prefixes))
                and int(record_name.rpartition("-")[2]) < before_exchange
            ):
                del self.state[record_name]


class FolderStore:
    """A store in files ``<run>/<client>/<exchange>.safetensors``; the client is followed by the digests of a part."""

    def __init__(self, folder: Path, run: str, client: int, part_name: str = "") -> None:
        parent_folders = [run] if run else []
        self.folder = within(folder, "/".join([*parent_folders, str(client), *digests(part_name)]))
        # Without a part name there are no sub-parts.
        self.has_sub_parts = bool(part_name)

    def exchanges(self) -> list[int]:
        """The exchanges with stored values."""
        exchanges = map(_exchange_of, self.folder.glob("*.safetensors"))
        return [exchange for exchange in exchanges if exchange is not None]

    def take(self, exchange: int) -> Any:
        """Return the values of an exchange."""
        file_bytes = read_within(self.folder, f"{exchange}.safetensors")
        return ArrayRecord(safetensors.torch.load(file_bytes))

    def put(self, exchange: int, array_record: ArrayRecord) -> None:
        """Store the values of an exchange."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            tensor_name: torch.from_numpy(array.numpy().copy())
            for tensor_name, array in array_record.items()
        }
        write_whole(self.folder / f"{exchange}.safetensors", safetensors.torch.save(tensors))

    def drop(self, exchange: int) -> None:
        """Delete the values of an exchange."""
        (self.folder / f"{exchange}.safetensors").unlink(missing_ok=True)

    def forget(self, before_exchange: int) -> None:
        """Delete the values from before an exchange, also those of parts of this part."""
        folders = [self.folder]
        if self.has_sub_parts:
            # Folders of sub-parts come first. Links are not followed.
            folders = [Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False)]
        for folder in folders:
            for file_path in folder.glob("*.safetensors"):
                exchange = _exchange_of(file_path)
                if exchange is not None and exchange < before_exchange:
                    file_path.unlink(missing_ok=True)
            # The folder may be missing, or have other files.
            with suppress(OSError):
                folder.rmdir()


def _exchange_of(file_path: Path) -> int | None:
    """The exchange of a file of own values; None for another file."""
    name_match = re.fullmatch(r"(0|[1-9][0-9]*)\.safetensors", file_path.name)
    return int(name_match[1]) if name_match else None


class ClientMemory:
    """What a client stores for its next exchange, for one part of the plan: own values, sketches, the state of its optimizer.

    Args:
        context: Flower's context of the node.
        layout: The layout of the model's parameters.
        run: The name of the run, up to 32 hexadecimal digits.
        client: The client's id.
        part_name: The name of the part of the plan.
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
        part_name: str = "",
        since: int = 0,
    ) -> None:
        self.layout = layout
        self.since = since
        self._values = store_of(context, run, client, part_name)
        self._sketches = store_of(context, run, client, part_name + HALVES)
        self._optimizers = store_of(context, run, client, part_name + OPTIMIZER)

    @classmethod
    def of_order(cls, context: Context, layout: Layout, order: Order) -> ClientMemory:
        """Return the memory of the client and the part of an order."""
        return cls(context, layout, order.run, order.client, order.part, order.since)

    def stored_at(self, exchange: int) -> int:
        """Return the last exchange before ``exchange`` with stored own values, -1 if there is none."""
        last_exchange = self._last(self._values, exchange)
        return -1 if last_exchange is None else last_exchange

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
        last_exchange = self._last(self._values, exchange)
        if last_exchange is None:
            return None
        # The stored tensors are those with own values; all other columns are NaN.
        array_record = self._values.take(last_exchange)
        any_column = torch.ones(self.layout.size, dtype=torch.bool)
        values = messages.unpacked(array_record, self.layout, may_lack=any_column)
        if MIXTURE not in array_record:
            return values
        mixture_weight = torch.from_numpy(
            messages.array_of(array_record, MIXTURE, (1,)).astype(np.float32)
        )
        if not 0 <= float(mixture_weight) <= 1:
            raise messages.Unfit(
                f"the stored weight of a mixture must be from 0 to 1, got {float(mixture_weight):g}"
            )
        return torch.cat([values, mixture_weight])

    def half_sketches_before(self, exchange: int) -> np.ndarray | None:
        """Return the sketches ``(2, k)`` of the last halves before an exchange; None if there are none."""
        last_exchange = self._last(self._sketches, exchange)
        if last_exchange is None:
            return None
        return messages.array_of(self._sketches.take(last_exchange), ANSWER).astype(np.float32)

    def optimizer_state_before(self, exchange: int) -> bytes | None:
        """Return the state of the client's optimizer before an exchange; None if there is none."""
        last_exchange = self._last(self._optimizers, exchange)
        if last_exchange is None:
            return None
        state_bytes: bytes = messages.array_of(
            self._optimizers.take(last_exchange), ANSWER
        ).tobytes()
        return state_bytes

    def store(self, exchange: int, result: training.ClientResult) -> None:
        """Store what the result of an exchange says that the client keeps."""
        if result.half_sketches is not None:
            array_record = ArrayRecord({ANSWER: Array(result.half_sketches)})
            self._put(self._sketches, exchange, array_record)
        if result.own_values is not None:
            self.store_own_values(exchange, result.own_values)
        if result.optimizer_state is not None:
            state_bytes = np.frombuffer(result.optimizer_state, dtype=np.uint8)
            self._put(self._optimizers, exchange, ArrayRecord({ANSWER: Array(state_bytes)}))

    def store_own_values(self, exchange: int, own_values: Tensor) -> None:
        """Store own values after an exchange, in the form of :meth:`own_values_before`."""
        # A mixture's weight follows the columns of the model.
        model_values = own_values[: self.layout.size]
        mixture_weight = own_values[self.layout.size :]
        array_record = messages.packed(model_values, self.layout, without=model_values.isnan())
        if len(mixture_weight):
            array_record[MIXTURE] = Array(mixture_weight.numpy())
        self._put(self._values, exchange, array_record)

    def _last(self, value_store: ValueStore, exchange: int) -> int | None:
        """The last exchange before ``exchange`` with stored values that count; None if there is none."""
        valid_exchanges = [
            stored_exchange
            for stored_exchange in value_store.exchanges()
            if self.since <= stored_exchange < exchange
        ]
        return max(valid_exchanges, default=None)

    def _put(self, value_store: ValueStore, exchange: int, array_record: ArrayRecord) -> None:
        """Store values, and delete the oldest and those of later exchanges.

        There are later ones if the server has returned to an earlier round: they are not valid.
        """
        for stored_exchange in value_store.exchanges():
            if stored_exchange > exchange:
                value_store.drop(stored_exchange)
        value_store.put(exchange, array_record)
        for oldest_exchange in sorted(value_store.exchanges())[:-MAX_STORED_EXCHANGES]:
            value_store.drop(oldest_exchange)


def store_of(context: Context, run: str, client: int, part_name: str = "") -> ValueStore:
    """Return the store for a client's own values, see :class:`ClientMemory`."""
    # The name comes from the server and becomes part of a path.
    if not re.fullmatch("[0-9a-f]{0,32}", run):
        raise ValueError(f"a run's name must be up to 32 hexadecimal digits, got {run!r}")
    # The operator chooses the store by giving a folder.
    folder = str(context.node_config.get(FOLDER, ""))
    if folder:
        return FolderStore(Path(folder), run, client, part_name)
    return StateStore(context.state, run, part_name)


def forget(context: Context, order: Order, part_name: str, before_exchange: int) -> None:
    """Delete a client's own values of a part of the plan that has ended.

    Args:
        context: Flower's context of the node.
        order: A task, which names the run and the client.
        part_name: The name of the part.
        before_exchange: Values of this exchange and of later ones stay.
    """
    store_of(context, order.run, order.client, part_name).forget(before_exchange)
