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
    METRICS,
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
    if simulated is None:
        _check_secret(boundary)
    own = None if budget is None else Budget(budget, boundary)
    hides = bool(boundary.noise) or boundary.masks  # nothing of this client alone may be sent
    with seeded(0):
        module = model()
    layout = Layout(module)
    rest, anything = (
        messages.OtherTensors.of(module, layout),
        torch.ones(layout.size, dtype=torch.bool),
    )

    known: dict[int, Wire] = {}

    def wire(seed: int) -> Wire:  # functools' cache cannot be pickled, as Flower's simulation does
        found = known.get(seed)
        if found is None:
            found = Wire(boundary, layout, seed)
            known.clear()
            known[seed] = found
        return found

    def mod(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if message.metadata.message_type == QUERY:
            return named_only(message, context, call_next)
        category = message.metadata.message_type.partition(".")[0]
        if category not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        if boundary.masks:
            once = simulated is None
            step_reply = flower_sums().reply_to_step(message.content, context, boundary, once)
            if step_reply is not None:
                return Message(sent(dict(step_reply)), reply_to=message)
        asked = message.content.get(CONFIG)
        if isinstance(asked, ConfigRecord) and FIRST_MODEL in asked:
            return first_model(asked, message)
        orders, offered = messages.orders_of(message.content), {}
        here = wire(orders[0].key[0])
        for name in [n for n in message.content.array_records if n.partition("-")[0] == ARRAYS]:
            row = offered[name] = here.open(
                messages.unpacked(message.content[name], layout, may_lack=anything)
            )
            message.content[name] = messages.packed(row, layout, rest, without=row.isnan())
        if category == MessageType.EVALUATE:
            return tested(message, context, call_next)
        tasks = [order.task for order in orders]
        if boundary.noise and not all(map(covered, orders)):
            raise ValueError(UNCOVERED)
        if own and (updates := sum(here.releases(order.task, order.hidden) for order in orders)):
            own.spend(context, updates)  # before the app runs: a failure after this still counts
        first = [
            offered[name]
            for i in range(len(tasks[0].offered))
            if (name := messages.name_of(i)) in offered
        ]
        return trained(here, orders, first, call_next, message, context)

    def covered(order: messages.Order) -> bool:
        """Whether noise covers everything that a reply to an order has; without masks, a client only trains."""
        task = order.task
        return boundary.covers(task, order.hidden) and bool(
            boundary.masks or task.trains or task.personal
        )

    def named_only(message: Message, context: Context, call_next: Any) -> Message:
        """The app's reply to the query for its client id, with its name and schema, without the results of a test.

        Names of classes and constants come from the client's data: under noise or masks only their
        digests are sent.
        """
        try:
            reply: Message = call_next(message, context)
        except Exception as error:
            raise (RuntimeError(FAILED) if hides and str(error) != NO_TEST else error) from None
        if reply.has_content():
            records = {
                name: record
                for name, record in reply.content.items()
                if name in (WHO, NAME, SCHEMA)
            }
            reply.content = RecordDict(
                {**records, **schemas.digests_only(reply.content)} if hides else records
            )
        elif hides:
            raise RuntimeError(FAILED)
        return reply

    def trained(
        here: Wire,
        orders: Sequence[messages.Order],
        offered: list[Tensor],
        call_next: Any,
        *asked: Any,
    ) -> Message:
        """The app's reply without the parts that the boundary does not let out."""
        try:
            masks = flower_sums().pop_config(asked[0].content) if boundary.masks else {}
            reply: Message = call_next(*asked)
            if reply.has_content() and boundary.masks:
                updates = [
                    _updates(layout, reply.content, offered, orders, place)
                    for place in range(len(orders))
                ]
                rows = [each[0] if each else None for each in updates]
                noise = secrets.randbits(128) if simulated is None else simulated
                rng = numpy_generator(noise, Purpose.NOISE, orders[0].key[1], orders[0].client)
                once = simulated is None
                reply.content = sent(
                    flower_sums().masked_reply(
                        reply.content, orders, rows, masks, asked[1], here, rng, once
                    )
                )
            elif reply.has_content():
                out = (
                    _sealed(here, reply.content, offered, orders, simulated)
                    if reply.content.array_records
                    else {}
                )
                counted = {METRICS: MetricRecord({"num-examples": 1})}
                reply.content = sent(
                    {**out, **(dict(reply.content.metric_records) if here.counts else counted)}
                )
        except Exception as error:
            raise (RuntimeError(FAILED) if hides else error) from None
        if hides and not reply.has_content():
            raise RuntimeError(FAILED)
        return reply

    def tested(message: Message, context: Context, call_next: Any) -> Message:
        """The app's test results; with noise an empty reply. The app may still store its results at this node."""
        if not hides or simulated is not None:
            reply: Message = call_next(message, context)
            if reply.has_content():
                reply.content = sent(dict(reply.content.metric_records))
            return reply
        try:
            call_next(message, context)
        except Exception:
            log.warning("the app's test failed; the server gets an empty reply", exc_info=True)
        return Message(sent({METRICS: MetricRecord()}), reply_to=message)

    def first_model(asked: ConfigRecord, message: Message) -> Message:
        """Draw and seal the first model without the app."""
        here = wire(int(asked["seed"]))  # type: ignore[arg-type]
        row = here.first_model(int(asked[FIRST_MODEL]), model)  # type: ignore[arg-type]
        return Message(sent({ARRAYS: messages.packed(here.seal(row), layout)}), reply_to=message)

    def sent(records: dict[str, Any]) -> RecordDict:
        """The records with the description of the boundary."""
        return RecordDict({**records, boundary_check.BOUNDARY: boundary_check.stated(boundary)})

    return mod


def _check_secret(boundary: Boundary) -> None:
    """Check the secret of a real node. Raises :class:`~coterie.settings.SettingError`."""
    if boundary.rotation == "none" or (
        boundary.secret is not None and boundary.secret >= boundary_check.SHORT
    ):
        return
    why = (
        "got none: otherwise the server knows the seed of the map"
        if boundary.secret is None
        else "got a smaller one: the server has its digest, and could try all secrets of this length"
    )
    raise SettingError(
        f"Boundary.rotation {boundary.rotation} needs Boundary.secret >= 2^64 at a real node, {why}; secrets.randbits(128) "
        "makes a secret for all clients"
    )


def _sealed(
    wire: Wire,
    content: RecordDict,
    offered: list[Tensor],
    orders: Sequence[messages.Order],
    simulated: int | None,
) -> dict[str, ArrayRecord]:
    """The updates after the boundary's operations; no other array of the app's reply leaves the node.

    ``offered`` are the models of the first task. An app that does not know Coterie has only this
    task.
    """
    layout, out = wire.layout, {}
    for place, order in enumerate(orders):
        both, exchange = messages.updates_of(place), order.key[1]
        keep = layout.mask(order.task.local_layers) if order.task.local_layers else None
        updates = _updates(layout, content, offered, orders, place)
        for half, update in enumerate(updates if order.task.trains else []):
            update = update if keep is None else update.masked_fill(keep, 0.0)
            number = update_number(order.number, half)
            noise = secrets.randbits(128) if simulated is None else simulated
            sent = wire.protected(update, order.client, exchange, keep, number, noise)
            if wire.boundary.compress == "none":
                out[both[half]] = messages.packed(sent, layout, without=keep)
            else:
                out[both[half]] = ArrayRecord(wire.pack(sent, order.client, exchange, number, keep))
    return out


def _updates(
    layout: Layout,
    content: RecordDict,
    offered: list[Tensor],
    orders: Sequence[messages.Order],
    place: int,
) -> list[Tensor]:
    """The updates in an app's reply to the task at a place: at most as many as were asked for and counted."""
    task, both = orders[place].task, messages.updates_of(place)
    keep = layout.mask(task.local_layers) if task.local_layers else None
    if both[0] in content.array_records:
        names = both[: 2 if task.halves else 1]
        return [
            messages.unpacked(content[name], layout, may_lack=keep)
            for name in names
            if name in content
        ]
    if (
        len(orders) > 1
        or not content.array_records
        or not (task.trains and task.private.sends_update)
    ):
        return []
    trained = messages.unpacked(
        messages.only(content.array_records, ARRAYS, "array records"), layout
    )
    return [trained - torch.stack(offered).mean(0)]


# ----------------------------------------------------------------------------------------------------
# The privacy budget of a client, counted by the client itself: a server that asks more often does
# not receive more.
#
# The count is in a file at the client. No information from a server is part of its name, so a new
# run or another seed, exchange or client number does not start a new count. Flower's node state is
# not suitable, because each run has its own.


SINGLE, SUMS = "updates", "sums"
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
        value = self.epsilon
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not 0 < value < math.inf
        ):
            raise SettingError(
                f"boundary_mod's budget must be a number > 0, the maximum ε, got {value!r}"
            )
        if not self.boundary.noise:
            raise SettingError(
                f"boundary_mod's budget {value:g} needs Boundary.noise, got 0: every update would exceed it"
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
        path = _path(context)
        try:
            with _alone(path.parent):
                self._count(path, updates)
        except OSError:  # its text would reveal this machine's folders to the server
            log.warning("the count of the privacy budget cannot be saved", exc_info=True)
            raise ValueError(
                "the count of this client's privacy budget cannot be saved; see its log"
            ) from None

    def _count(self, path: Path, updates: int) -> None:
        counts, noise = _counted(path), repr(self.boundary.noise)
        own = counts[SUMS if self.boundary.masks else SINGLE]
        own[noise] = own.get(noise, 0) + updates
        epsilon = _epsilon(counts, self.boundary.delta)
        if epsilon > self.epsilon * (1 + 1e-9):
            raise ValueError(
                f"this client's privacy budget is spent: one more answer would raise ε to {epsilon:.4g}, above "
                f"{self.epsilon:g} at δ {self.boundary.delta:g}"
            )
        write_whole(path, json.dumps(counts).encode())


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
    except ValueError:  # an entry of another app, which is neither an id nor a name
        claim = None
    return (
        Path(folder) / f"budget-{'node' if claim is None else claim.client}.json"
    )  # a name may not fit a file system


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder for one process, because two messages may arrive at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _counted(path: Path) -> dict[str, dict[str, int]]:
    """RequestKind of update -> noise multiplier -> number of updates. Raises ``ValueError`` if the file is damaged."""
    if not path.exists():
        return {SINGLE: {}, SUMS: {}}
    try:
        counts = {SUMS: {}, **json.loads(path.read_bytes())}
        right = set(counts) == {SINGLE, SUMS} and all(
            0 < float(noise) < math.inf and type(count) is int and count >= 0
            for own in counts.values()
            for noise, count in own.items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = False
    if not right:
        raise ValueError(
            "the count of this client's privacy budget is damaged; its operator must repair it"
        )
    return counts


def _epsilon(counts: Mapping[str, Mapping[str, int]], delta: float) -> float:
    """The ε spent: T Gaussian releases with multipliers z_t reveal as much as a single one with 1 / z² = Σ 1 / z_t².

    An update in a sum changes it by half as much as a single update changes, see
    :func:`~coterie.boundary.spent`.
    """
    inverse = sum(
        count / (float(noise) * (2 if kind == SUMS else 1)) ** 2
        for kind, own in counts.items()
        for noise, count in own.items()
    )
    return spent(1 / math.sqrt(inverse), 1, delta) if inverse else 0.0
