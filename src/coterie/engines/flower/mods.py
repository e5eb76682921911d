"""A boundary as a Flower client mod: rotation, clipping, noise and compression without a change of the app."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.engines.flower import likeness, messages
from coterie.engines.flower.messages import ARRAYS, CONFIG, FIRST, METRICS, UPDATE, UPDATES
from coterie.layout import Layout
from coterie.randomness import seeded
from coterie.settings import SettingError

UNCOVERED = "under noise this client only trains: what it measures on its data would leave without noise"
FAILED = "the app failed; under noise it does not say why, as that may tell of its data"

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def boundary_mod(boundary: Boundary, model: Callable[[], nn.Module], *, simulated: int | None = None) -> Mod:
    """A mod for a ClientApp, one that knows of Coterie or any other.

    What comes is opened, what goes is clipped, noised, sealed and compressed as the boundary says. The server's
    :class:`~coterie.engines.flower.MethodStrategy` is given the same boundary without the secret: under a rotation the
    clients draw the first model, and the server sees no row that is not sealed. model: makes the app's net.

    simulated: the seed of a run that is to be repeated. By itself the noise is drawn anew in every message from this
    machine's randomness, and a rotation has to have a secret: the server knows the run's seed, and could undo what it draws.
    Raises :class:`~coterie.settings.SettingError`.
    """
    if boundary.rotation != "none" and boundary.secret is None and simulated is None:
        raise SettingError(
            f"Boundary.rotation {boundary.rotation} needs Boundary.secret at a real node, got none: the server knows the seed "
            "that draws the map otherwise; secrets.randbits(128) makes a secret for all clients"
        )
    with seeded(0):
        module = model()
    layout = Layout(module)
    rest, anything = messages.Rest.of(module, layout), torch.ones(layout.size, dtype=torch.bool)

    @lru_cache(maxsize=2)
    def wire(seed: int) -> Wire:
        return Wire(boundary, layout, seed)

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        category = message.metadata.message_type.partition(".")[0]
        if category not in (MessageType.TRAIN, MessageType.EVALUATE):
            return call_next(message, context)
        asked = message.content.get(CONFIG)
        if isinstance(asked, ConfigRecord) and FIRST in asked:
            return first_model(asked, message)
        order, offered = messages.order_of(message.content), []
        here = wire(order.key[0])
        for name in sorted(n for n in message.content.array_records if n.partition("-")[0] == ARRAYS):
            offered.append(here.open(messages.unpacked(message.content[name], layout, may_lack=anything)))
            message.content[name] = messages.packed(offered[-1], layout, rest, without=offered[-1].isnan())
        if boundary.noise and category == MessageType.TRAIN and (order.task.measure or not order.task.trains):
            raise ValueError(UNCOVERED)
        try:
            reply = call_next(message, context)
        except Exception as error:
            raise (RuntimeError(FAILED) if boundary.noise else error) from None
        if reply.has_content():
            trained = category == MessageType.TRAIN and reply.content.array_records
            out = _sealed(here, reply.content, offered, order, simulated) if trained else {}
            told = _metrics(here, reply.content, category)
            reply.content = RecordDict({**out, **told, likeness.BOUNDARY: likeness.told(boundary)})
        return reply

    def first_model(asked: ConfigRecord, message: Message) -> Message:
        """Draw and seal it; the app is not asked."""
        here = wire(int(asked["seed"]))  # type: ignore[arg-type]
        row = here.first_model(int(asked[FIRST]), model)  # type: ignore[arg-type]
        told: dict[str, Any] = {ARRAYS: messages.packed(here.seal(row), layout), likeness.BOUNDARY: likeness.told(boundary)}
        return Message(RecordDict(told), reply_to=message)

    return mod


def _metrics(wire: Wire, content: RecordDict, category: str) -> dict[str, Any]:
    """What the app tells besides arrays; with noise, nothing of its training: no noise covers that."""
    if category == MessageType.TRAIN and not wire.counts:
        return {METRICS: MetricRecord({"num-examples": 1})}
    return dict(content.metric_records)


def _sealed(
    wire: Wire, content: RecordDict, offered: list[Tensor], order: messages.Order, simulated: int | None
) -> dict[str, ArrayRecord]:
    """The updates as the boundary lets them out; nothing else of the arrays that the app replied with leaves."""
    layout = wire.layout
    keep = layout.mask(order.task.keep) if order.task.keep else None
    if UPDATE in content.array_records:
        updates = [messages.unpacked(content[name], layout, may_lack=keep) for name in UPDATES if name in content]
    else:
        trained = messages.unpacked(messages.only(content.array_records, ARRAYS, "array records"), layout)
        updates = [trained - torch.stack(offered).mean(0)]
    exchange, out = order.key[1], {}
    noise = secrets.randbits(128) if simulated is None else simulated
    for half, update in enumerate(updates):
        update = update if keep is None else update.masked_fill(keep, 0.0)
        sent = wire.protected(update, order.client, exchange, keep, half, noise)
        if wire.boundary.compress == "none":
            out[UPDATES[half]] = messages.packed(sent, layout, without=keep)
        else:
            out[UPDATES[half]] = ArrayRecord(wire.pack(sent, order.client, exchange, half, keep))
    return out
