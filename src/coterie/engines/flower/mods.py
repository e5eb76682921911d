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
    rest = messages.Rest.of(module, layout)

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
            offered.append(here.open(messages.unpacked(message.content[name], layout, lacking=torch.nan)))
            message.content[name] = messages.packed(offered[-1], layout, rest, without=offered[-1].isnan())
        reply = call_next(message, context)
        if category == MessageType.TRAIN and reply.has_content():
            if reply.content.array_records:
                _seal(here, reply.content, offered, order, simulated)
            reply.content[likeness.BOUNDARY] = likeness.told(boundary)
        return reply

    def first_model(asked: ConfigRecord, message: Message) -> Message:
        """Draw and seal it; the app is not asked."""
        here = wire(int(asked["seed"]))  # type: ignore[arg-type]
        with seeded(*here.first_key(int(asked[FIRST]))):  # type: ignore[arg-type]
            row = layout.row(model())
        told: dict[str, Any] = {ARRAYS: messages.packed(here.seal(row), layout), likeness.BOUNDARY: likeness.told(boundary)}
        return Message(RecordDict(told), reply_to=message)

    return mod


def _seal(wire: Wire, content: Any, offered: list[Tensor], order: messages.Order, simulated: int | None) -> None:
    """Put the update as the boundary lets it out in place of what the app replied."""
    layout = wire.layout
    keep = layout.mask(order.task.keep) if order.task.keep else None
    if UPDATE in content.array_records:
        updates = [messages.unpacked(content[name], layout, lacking=0.0) for name in UPDATES if name in content]
    else:
        trained = messages.unpacked(messages.only(content.array_records, ARRAYS, "array records"), layout)
        updates = [trained - torch.stack(offered).mean(0)]
    for name in list(content.array_records):
        del content[name]
    if not wire.counts:  # what an app tells of its training, and on how much, no noise covers
        for name in list(content.metric_records):
            del content[name]
        content[METRICS] = MetricRecord({"num-examples": 1})
    exchange = order.key[1]
    noise = secrets.randbits(128) if simulated is None else simulated
    for half, update in enumerate(updates):
        sent = wire.protected(update, order.client, exchange, keep, half, noise)
        if wire.boundary.compress == "none":
            content[UPDATES[half]] = messages.packed(sent, layout, without=keep)
        else:
            content[UPDATES[half]] = ArrayRecord(wire.pack(sent, order.client, exchange, half, keep))
