"""A boundary as a Flower client mod: rotation, clipping, noise and compression without a change to the app."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire, spent, update_number
from coterie.engines.flower import boundary_check, messages, schemas
from coterie.engines.flower.client import FOLDER
from coterie.engines.flower.messages import (
    ARRAYS,
    CONFIG,
    FIRST_MODEL,
    METRICS_RECORD,
    NAME,
    NO_TEST,
    QUERY,
    SCHEMA,
    WHO,
)
from coterie.engines.flower.names import claim_in_config
from coterie.engines.flower.sums import flower_sums
from coterie.models.layout import Layout
from coterie.randomness import Purpose, numpy_generator, seeded
from coterie.records.store import write_whole
from coterie.settings import SettingError
from coterie.settings.calls import public

UNCOVERED = (
    "with noise, this client only trains: measurements on its data would be sent without noise"
)
FAILED = (
    "the app failed; with noise or masks, it does not send the reason, which may reveal its data"
)

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

log = logging.getLogger("flwr.coterie")


@public
def boundary_mod(
    boundary: Boundary,
    model: Callable[[], nn.Module],
    *,
    simulated: int | None = None,
    budget: float | None = None,
) -> Mod:
    """Make a mod for any ClientApp, whether it knows Coterie or not.

    The mod opens the models that arrive. It clips, noises, seals and compresses the updates that
    leave, with the boundary's settings. The server's
    :class:`~coterie.engines.flower.MethodStrategy` receives the same boundary without the secret.
    Under a rotation the clients draw the first model, and the server sees sealed rows only. With
    noise, only updates leave the client: a reply to a test is empty, and a failure has no reason.

    Args:
        boundary: The server's boundary, with the secret that the clients share.
        model: Function that makes the app's net.
        simulated: Seed of a simulated run that must be repeatable; replies to tests are then not
            empty. None is for real nodes: every message gets new noise from this machine's random
            source, and a rotation needs a long secret. The reason is that the server knows the
            run's seed and a digest of the secret. It could undo draws whose seed it can guess.
        budget: The greatest ε, at the boundary's δ, that the updates of this client may spend in
            all runs together. It is counted in the folder ``keep-dir`` of the node's config. Beyond
            it the client refuses to train.

    Returns:
        The mod.

    Raises:
        SettingError: The boundary does not protect a real node, or there is a budget without noise.
    """
    # A secret that the server could guess protects nothing.
    if simulated is None:
        _check_secret(boundary)
    privacy_budget = None if budget is None else Budget(budget, boundary)
    # With noise or masks, nothing of this client alone may be sent.
    hides_client = bool(boundary.noise) or boundary.masks
    with seeded(0):
        net_module = model()
    layout = Layout(net_module)
    other_tensors = messages.OtherTensors.of(net_module, layout)
    all_columns = torch.ones(layout.size, dtype=torch.bool)

    # The last wire. Flower's simulation pickles the mod, and functools' cache cannot be pickled.
    last_wires: dict[int, Wire] = {}

    def wire_of(seed: int) -> Wire:
        if seed not in last_wires:
            new_wire = Wire(boundary, layout, seed)
            last_wires.clear()
            last_wires[seed] = new_wire
        return last_wires[seed]

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if message.metadata.message_type == QUERY:
            return reply_to_query(message, context, call_next)
        category = message.metadata.message_type.partition(".")[0]
        if category not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        # Messages that the app does not see: steps of the masks' protocol, and the first model.
        if boundary.masks:
            answers_once = simulated is None
            step_reply = flower_sums().reply_to_step(
                message.content, context, boundary, answers_once
            )
            if step_reply is not None:
                return Message(with_boundary(dict(step_reply)), reply_to=message)
        message_config = message.content.get(CONFIG)
        if isinstance(message_config, ConfigRecord) and FIRST_MODEL in message_config:
            return first_model(message_config, message)
        # The models that arrive are opened for the app.
        orders = messages.orders_of(message.content)
        wire = wire_of(orders[0].seed)
        opened_models = open_models(wire, message)
        if category == MessageType.EVALUATE:
            return tested(message, context, call_next)
        # Refuse to send what noise does not cover, and what the privacy budget does not allow.
        if boundary.noise and not all(map(is_covered, orders)):
            raise ValueError(UNCOVERED)
        if privacy_budget:
            released_updates = sum(wire.releases(order.task, order.hidden) for order in orders)
            if released_updates:
                # Before the app runs: a failure after this still counts.
                privacy_budget.spend(context, released_updates)
        # The app trains, and the boundary protects what leaves the node.
        model_names = map(messages.name_of, range(len(orders[0].task.offered)))
        offered = [
            opened_models[model_name] for model_name in model_names if model_name in opened_models
        ]
        return trained(wire, orders, offered, call_next, message, context)

    def open_models(wire: Wire, message: Message) -> dict[str, Tensor]:
        """Open the models of a message in place; return them by their names."""
        opened_models = {}
        for record_name in list(message.content.array_records):
            if record_name.partition("-")[0] != ARRAYS:
                continue
            sealed_row = messages.unpacked(
                message.content[record_name], layout, may_lack=all_columns
            )
            opened_row = wire.open(sealed_row)
            opened_models[record_name] = opened_row
            message.content[record_name] = messages.packed(
                opened_row, layout, other_tensors, without=opened_row.isnan()
            )
        return opened_models

    def is_covered(order: messages.Order) -> bool:
        """Whether noise covers everything that a reply to an order has; without masks, a client only trains."""
        task = order.task
        trains = task.trains or task.personal is not None
        return boundary.covers(task, order.hidden) and (boundary.masks or trains)

    def reply_to_query(message: Message, context: Context, call_next: Any) -> Message:
        """The app's reply to the query for its client id, with its name and schema, without the results of a test.

        Names of classes and constants come from the client's data: under noise or masks only their
        digests are sent.
        """
        try:
            reply: Message = call_next(message, context)
        except Exception as error:
            raise (
                RuntimeError(FAILED) if hides_client and str(error) != NO_TEST else error
            ) from None
        if reply.has_content():
            sent_records = {
                record_name: record
                for record_name, record in reply.content.items()
                if record_name in (WHO, NAME, SCHEMA)
            }
            if hides_client:
                sent_records |= schemas.digests_only(reply.content)
            # Any other record of the app's reply stays at the node.
            reply.content = RecordDict(sent_records)
        elif hides_client:
            raise RuntimeError(FAILED)
        return reply

    def trained(
        wire: Wire,
        orders: Sequence[messages.Order],
        offered_models: list[Tensor],
        call_next: Any,
        message: Message,
        context: Context,
    ) -> Message:
        """The app's reply without the parts that the boundary does not let out."""
        try:
            # The app must not see what the masks' protocol has added to the message.
            mask_config = flower_sums().pop_config(message.content) if boundary.masks else {}
            reply: Message = call_next(message, context)
            if reply.has_content() and boundary.masks:
                sent_records = masked_records(
                    wire, orders, offered_models, reply.content, mask_config, context
                )
                reply.content = with_boundary(sent_records)
            elif reply.has_content():
                sent_records = {}
                if reply.content.array_records:
                    sent_records |= _sealed(wire, reply.content, offered_models, orders, simulated)
                # With noise, the server does not learn numbers of examples or measurements.
                if wire.counts:
                    sent_records |= dict(reply.content.metric_records)
                else:
                    sent_records[METRICS_RECORD] = MetricRecord({"num-examples": 1})
                reply.content = with_boundary(sent_records)
        except Exception as error:
            raise (RuntimeError(FAILED) if hides_client else error) from None
        if hides_client and not reply.has_content():
            raise RuntimeError(FAILED)
        return reply

    def masked_records(
        wire: Wire,
        orders: Sequence[messages.Order],
        offered_models: list[Tensor],
        content: RecordDict,
        mask_config: Mapping[str, Any],
        context: Context,
    ) -> dict[str, Any]:
        """The records of an app's reply with everything under masks."""
        updates: list[Tensor | None] = []
        for task_place in range(len(orders)):
            updates_of_task = _updates(layout, content, offered_models, orders, task_place)
            updates.append(updates_of_task[0] if updates_of_task else None)
        noise_seed = secrets.randbits(128) if simulated is None else simulated
        noise_generator = numpy_generator(
            noise_seed, Purpose.NOISE, orders[0].exchange, orders[0].client
        )
        answers_once = simulated is None
        return flower_sums().masked_reply(
            content, orders, updates, mask_config, context, wire, noise_generator, answers_once
        )

    def tested(message: Message, context: Context, call_next: Any) -> Message:
        """The app's test results; with noise an empty reply. The app may still store its results at this node."""
        if not hides_client or simulated is not None:
            reply: Message = call_next(message, context)
            if reply.has_content():
                reply.content = with_boundary(dict(reply.content.metric_records))
            return reply
        try:
            call_next(message, context)
        except Exception:
            log.warning("the app's test failed; the server gets an empty reply", exc_info=True)
        return Message(with_boundary({METRICS_RECORD: MetricRecord()}), reply_to=message)

    def first_model(request_config: ConfigRecord, message: Message) -> Message:
        """Draw and seal the first model without the app."""
        wire = wire_of(int(request_config["seed"]))  # type: ignore[arg-type]
        model_row = wire.first_model(int(request_config[FIRST_MODEL]), model)  # type: ignore[arg-type]
        sealed_model = messages.packed(wire.seal(model_row), layout)
        return Message(with_boundary({ARRAYS: sealed_model}), reply_to=message)

    def with_boundary(records: dict[str, Any]) -> RecordDict:
        """The records with the description of the boundary."""
        return RecordDict({**records, boundary_check.BOUNDARY: boundary_check.stated(boundary)})

    return mod


def _check_secret(boundary: Boundary) -> None:
    """Check the secret of a real node. Raises :class:`~coterie.settings.SettingError`."""
    if boundary.rotation == "none" or (
        boundary.secret is not None and boundary.secret >= boundary_check.SMALLEST_SECRET
    ):
        return
    problem = (
        "got a smaller one: the server has its digest, and could try all secrets of this length"
    )
    if boundary.secret is None:
        problem = "got none: otherwise the server knows the seed of the map"
    raise SettingError(
        f"Boundary.rotation {boundary.rotation} needs Boundary.secret >= 2^64 at a real node, {problem}; "
        "secrets.randbits(128) makes a secret for all clients"
    )


def _sealed(
    wire: Wire,
    content: RecordDict,
    offered_models: list[Tensor],
    orders: Sequence[messages.Order],
    simulated: int | None,
) -> dict[str, ArrayRecord]:
    """The updates after the boundary's operations; no other array of the app's reply leaves the node.

    ``offered_models`` are those of the first task. An app that does not know Coterie has only this
    task.
    """
    layout = wire.layout
    sealed_records = {}
    for task_place, order in enumerate(orders):
        record_names = messages.updates_of(task_place)
        keep_mask = layout.mask(order.task.local_layers) if order.task.local_layers else None
        updates = _updates(layout, content, offered_models, orders, task_place)
        if not order.task.trains:
            continue
        for half_number, update in enumerate(updates):
            if keep_mask is not None:
                update = update.masked_fill(keep_mask, 0.0)
            noise_number = update_number(order.number, half_number)
            noise_seed = secrets.randbits(128) if simulated is None else simulated
            sent_update = wire.protected(
                update, order.client, order.exchange, keep_mask, noise_number, noise_seed
            )
            if wire.boundary.compress == "none":
                array_record = messages.packed(sent_update, layout, without=keep_mask)
            else:
                array_record = ArrayRecord(
                    wire.pack(sent_update, order.client, order.exchange, noise_number, keep_mask)
                )
            sealed_records[record_names[half_number]] = array_record
    return sealed_records


def _updates(
    layout: Layout,
    content: RecordDict,
    offered_models: list[Tensor],
    orders: Sequence[messages.Order],
    task_place: int,
) -> list[Tensor]:
    """The updates in an app's reply to the task at a place: at most as many as were asked for and counted."""
    task = orders[task_place].task
    keep_mask = layout.mask(task.local_layers) if task.local_layers else None
    record_names = messages.updates_of(task_place)
    if record_names[0] in content.array_records:
        return [
            messages.unpacked(content[record_name], layout, may_lack=keep_mask)
            for record_name in record_names[: 2 if task.halves else 1]
            if record_name in content
        ]
    # An app that does not know Coterie has one task, and sends its trained model.
    sends_update = task.trains and task.private.sends_update
    if len(orders) > 1 or not content.array_records or not sends_update:
        return []
    trained_arrays = messages.only(content.array_records, ARRAYS, "array records")
    return [messages.unpacked(trained_arrays, layout) - torch.stack(offered_models).mean(0)]


# ----------------------------------------------------------------------------------------------------
# The privacy budget of a client, counted by the client itself: a server that asks more often does
# not receive more.
#
# The count is in a file at the client. No information from a server is part of its name, so a new
# run or another seed, exchange or client number does not start a new count. Flower's node state is
# not suitable, because each run has its own.


SINGLE_UPDATES = "updates"
UPDATES_IN_SUMS = "sums"
"""The entries of the file: updates that were sent one by one, and updates in sums (``masks``)."""


@dataclass(frozen=True)
class Budget:
    """The privacy budget of one client's noised updates over all runs.

    Attributes:
        epsilon: The greatest ε, at the boundary's δ.
        boundary: The client's boundary.

    Raises:
        SettingError: ``epsilon`` is not a number > 0, or the boundary has no noise: no budget is
            enough for updates without noise.
    """

    epsilon: float
    boundary: Boundary

    def __post_init__(self) -> None:
        greatest_epsilon = self.epsilon
        if (
            isinstance(greatest_epsilon, bool)
            or not isinstance(greatest_epsilon, (int, float))
            or not 0 < greatest_epsilon < math.inf
        ):
            raise SettingError(
                f"boundary_mod's budget must be a number > 0, the maximum ε, got {greatest_epsilon!r}"
            )
        if not self.boundary.noise:
            raise SettingError(
                f"boundary_mod's budget {greatest_epsilon:g} needs Boundary.noise, got 0: every update would exceed it"
            )

    def spend(self, context: Context, updates: int) -> None:
        """Count updates before they leave. The count is on the disk when this method returns.

        Args:
            context: Flower's context of the node.
            updates: Number of updates.

        Raises:
            ValueError: The updates would spend more than the budget, or the count cannot be stored.
                Nothing is counted then.
        """
        count_file = _path(context)
        try:
            with _locked(count_file.parent):
                self._count(count_file, updates)
        except OSError:
            # Its text would reveal this machine's folders to the server.
            log.warning("the count of the privacy budget cannot be saved", exc_info=True)
            raise ValueError(
                "the count of this client's privacy budget cannot be saved; see its log"
            ) from None

    def _count(self, count_file: Path, updates: int) -> None:
        update_counts = _read_counts(count_file)
        noise_key = repr(self.boundary.noise)
        # The count after these updates, of all noise multipliers that this client ever used.
        counts_of_kind = update_counts[UPDATES_IN_SUMS if self.boundary.masks else SINGLE_UPDATES]
        counts_of_kind[noise_key] = counts_of_kind.get(noise_key, 0) + updates
        spent_epsilon = _epsilon(update_counts, self.boundary.delta)
        if spent_epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"this client's privacy budget is spent: one more answer would raise ε to {spent_epsilon:.4g}, above "
                f"{self.epsilon:g} at δ {self.boundary.delta:g}"
            )
        write_whole(count_file, json.dumps(update_counts).encode())


def _path(context: Context) -> Path:
    """The file of this node's count, named after the client id in the node's config."""
    config = context.node_config
    folder = str(config.get(FOLDER, ""))
    if not folder:
        raise ValueError(
            f"a privacy budget needs a folder in the node's config, {FOLDER}: nothing else persists between Flower's runs"
        )
    try:
        claim = claim_in_config(config)
    except ValueError:
        # It is an entry of another app, which is neither an id nor a name.
        claim = None
    # The file has the id and not the name, which may not fit a file system.
    file_owner = "node" if claim is None else claim.client
    return Path(folder) / f"budget-{file_owner}.json"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder for one process, because two messages may arrive at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    folder_handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(folder_handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder_handle)


def _read_counts(count_file: Path) -> dict[str, dict[str, int]]:
    """Kind of update -> noise multiplier -> number of updates. Raises ``ValueError`` if the file is damaged."""
    if not count_file.exists():
        return {SINGLE_UPDATES: {}, UPDATES_IN_SUMS: {}}
    try:
        # An older file has no entry for sums.
        update_counts = {UPDATES_IN_SUMS: {}, **json.loads(count_file.read_bytes())}
        is_valid = _are_valid(update_counts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            "the count of this client's privacy budget is damaged; its operator must repair it"
        )
    return update_counts


def _are_valid(update_counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether counts from a file have the form of :func:`_read_counts`."""
    if set(update_counts) != {SINGLE_UPDATES, UPDATES_IN_SUMS}:
        return False
    for counts_of_kind in update_counts.values():
        for noise_key, update_count in counts_of_kind.items():
            if (
                not 0 < float(noise_key) < math.inf
                or type(update_count) is not int
                or update_count < 0
            ):
                return False
    return True


def _epsilon(update_counts: Mapping[str, Mapping[str, int]], delta: float) -> float:
    """The ε spent: T Gaussian releases with multipliers z_t reveal as much as a single one with 1 / z² = Σ 1 / z_t².

    An update in a sum changes it by half as much as a single update changes, see
    :func:`~coterie.boundary.spent`.
    """
    # The sum of 1 / z_t².
    precision = 0.0
    for update_kind, counts_of_kind in update_counts.items():
        sensitivity = 2 if update_kind == UPDATES_IN_SUMS else 1
        for noise_key, update_count in counts_of_kind.items():
            precision += update_count / (float(noise_key) * sensitivity) ** 2
    return spent(1 / math.sqrt(precision), 1, delta) if precision else 0.0
