"""A boundary as a Flower client mod: rotation, clipping, noise and compression without a change of the app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.engines.flower import messages
from coterie.engines.flower.messages import ARRAYS, UPDATE
from coterie.layout import Layout
from coterie.randomness import seeded

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def boundary_mod(boundary: Boundary, model: Callable[[], nn.Module], seed: int = 0) -> Mod:
    """A mod for a ClientApp, one that knows of Coterie or any other.

    What comes is opened, what goes is clipped, noised, sealed and compressed as the boundary says. model: makes the app's
    net. seed: the run's. The server's :class:`~coterie.engines.flower.MethodStrategy` is given the same boundary, a
    rotation's secret too: it draws the first model, and seals it.
    """
    with seeded(0):
        module = model()
    layout = Layout(module)
    wire = Wire(boundary, layout, seed)
    in_row = {piece.name for piece in layout.pieces}
    others = {name: value.clone() for name, value in module.state_dict().items() if name not in in_row}

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        category = message.metadata.message_type.partition(".")[0]
        if category not in ("train", "evaluate"):
            return call_next(message, context)
        offered = []
        for name in sorted(n for n in message.content.array_records if n.partition("-")[0] == ARRAYS):
            offered.append(wire.open(messages.unpacked(message.content[name], layout)))
            message.content[name] = messages.packed(offered[-1], layout, others)
        order = messages.order_of(message.content)
        reply = call_next(message, context)
        if category == "train" and reply.has_content() and reply.content.array_records:
            _seal(reply.content, offered, order)
        return reply

    def _seal(content: Any, offered: list[Tensor], order: messages.Order) -> None:
        """Put the update as the boundary lets it out in place of what the app replied."""
        keep = layout.mask(order.task.keep) if order.task.keep else None
        if UPDATE in content.array_records:
            update = messages.unpacked(content[UPDATE], layout, lacking=0.0)
        else:
            trained = messages.unpacked(messages.only(content.array_records, ARRAYS, "array records"), layout)
            update = trained - torch.stack(offered).mean(0)
        for name in list(content.array_records):
            del content[name]
        sent = wire.send(update, order.client, order.key[1], keep)
        content[UPDATE] = messages.packed(sent, layout, without=keep)

    return mod
