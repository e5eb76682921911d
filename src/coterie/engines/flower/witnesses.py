"""First models under a rotation: several clients draw and seal the same one, and the one that most of them agree on counts.

The server has no such model to compare with. But a map keeps norms, and an initialiser's norms vary little, so those of nets
that the server makes itself tell what is plausible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from flwr.app import Message
from torch import Tensor, nn

from coterie.boundary import Wire
from coterie.engines.flower import likeness, messages
from coterie.engines.flower.messages import ARRAYS, Unfit
from coterie.engines.workers import EngineError

DRAWS = 3
"""Nets that the server makes to learn what norms are plausible."""

FACTOR = 4.0
"""A norm so many times as great as any of theirs, or so many times as small, is not."""


def agreed(replies: Iterable[Message], wire: Wire, model: Callable[[], nn.Module]) -> tuple[Tensor, str] | None:
    """The first model of more than half of those who offer one that can be used, and the digest of their secret; None where
    nobody offers one. Raises :class:`~coterie.engines.workers.EngineError` where no more than half have the same."""
    drawn = torch.stack([norms(wire.first_model(i, model), wire) for i in range(DRAWS)])
    least, most = drawn.amin(0) / FACTOR - 1e-6, drawn.amax(0) * FACTOR + 1e-6
    offers: dict[int, tuple[Tensor, str]] = {}
    for reply in replies:
        try:
            offers.setdefault(reply.metadata.src_node_id, _offer(reply, wire, least, most))
        except Exception:  # whatever a stranger's reply makes Python raise, it is no offer
            continue
    if not offers:
        return None
    backers = [sum(_same(one, other) for other in offers.values()) for one in offers.values()]
    count, (row, digest) = max(zip(backers, offers.values(), strict=True), key=lambda each: each[0])
    if 2 * count <= len(offers):
        raise EngineError(
            f"of {len(offers)} clients that drew the first model under rotation {wire.boundary.rotation} no more than {count} "
            "have the same; they need one secret, and one function that makes the net"
        )
    return row, digest


def norms(row: Tensor, wire: Wire) -> Tensor:
    """Of the parts of a row that no map mixes: parameters, and what is behind them."""
    behind = row[wire.layout.trainable :].double()
    return torch.stack([row[: wire.layout.trainable].double().norm(), behind.norm()])


def _offer(reply: Message, wire: Wire, least: Tensor, most: Tensor) -> tuple[Tensor, str]:
    if why := likeness.unlike(reply.content, wire.boundary, None):
        raise Unfit(why)
    row = messages.unpacked(messages.only(reply.content.array_records, ARRAYS, "array records"), wire.layout)
    found = norms(row, wire)
    if not bool(((found >= least) & (found <= most)).all()):  # NaN is neither
        raise Unfit("its first model is not one that an initialiser draws")
    return row, likeness.secret_of(reply.content)


def _same(one: tuple[Tensor, str], other: tuple[Tensor, str]) -> bool:
    """Up to rounding, which is not the same on all machines."""
    scale = float(one[0].double().square().mean().sqrt())
    return one[1] == other[1] and torch.allclose(one[0], other[0], rtol=1e-3, atol=1e-4 * scale)
