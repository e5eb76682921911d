"""Whether a node's boundary is the server's, and its secret the other nodes': one that differs would spoil every mean."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor, nn

from coterie.boundary import Boundary, Wire
from coterie.engines.flower import messages
from coterie.engines.flower.messages import ARRAYS, Unfit
from coterie.engines.workers import EngineError

SHORT = 1 << 64
"""A secret below is refused at a real node: the server has its digest, and tries out shorter ones."""

BOUNDARY, SETTINGS, SECRET = "coterie.boundary", "settings", "secret"


def stated(boundary: Boundary) -> ConfigRecord:
    """What a node's replies tell of its boundary: the settings, and a digest of the secret, which tells equal from unequal.

    Who guesses a secret can check the guess, so it has to be long: see :data:`SHORT`.
    """
    digest = hashlib.sha256(f"coterie boundary {boundary.secret}".encode()).hexdigest()
    return ConfigRecord({SETTINGS: _settings(boundary), SECRET: digest if boundary.secret is not None else ""})


def unlike(content: RecordDict, boundary: Boundary, secret: str | None) -> str | None:
    """Why a reply cannot be used where the server has ``boundary`` and the clients a secret; None if it can."""
    if BOUNDARY not in content:
        if boundary == Boundary():
            return None
        return "it has no boundary, and the server's strategy has one; its app needs the mod boundary_mod"
    if (has := _told(content)) != _settings(boundary):
        return f"its boundary is {_short(has)}, and the server's is {_short(_settings(boundary))}"
    if secret is not None and secret_of(content) != secret:
        return "its boundary's secret is another than the other clients'"
    return None


def secret_of(content: RecordDict) -> str:
    """The digest of a node's secret; empty where it has none."""
    found = content.get(BOUNDARY)
    return str(found.get(SECRET, "")) if isinstance(found, ConfigRecord) else ""


def most(digests: Iterable[str]) -> str | None:
    """The digest that most clients tell; None where there are none."""
    common = Counter(digests).most_common(1)
    return common[0][0] if common else None


def agrees(content: RecordDict, boundary: Boundary) -> bool:
    """Whether a reply tells of the settings of ``boundary``."""
    return bool(_told(content) == _settings(boundary))


def _told(content: RecordDict) -> Any:
    found = content.get(BOUNDARY)
    return found.get(SETTINGS) if isinstance(found, ConfigRecord) else None


def _settings(boundary: Boundary) -> str:
    """All settings but the secret, as one line of JSON."""
    return json.dumps(asdict(replace(boundary, secret=None)), sort_keys=True)


def _short(text: Any) -> str:
    """The settings that are not the usual ones."""
    try:
        found, usual = json.loads(str(text)[:10_000]), asdict(Boundary())
        return ", ".join(f"{name} {value}" for name, value in found.items() if usual.get(name) != value) or "none"
    except (ValueError, AttributeError, RecursionError):
        return "unreadable"


# ----------------------------------------------------------------------------------------------------
# First models under a rotation: several clients draw and seal the same one, and the one that most of them agree on counts.
#
# The server has no such model to compare with. But a map keeps norms, and an initialiser's norms vary little, so those of nets
# that the server makes itself tell what is plausible.


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
    if why := unlike(reply.content, wire.boundary, None):
        raise Unfit(why)
    row = messages.unpacked(messages.only(reply.content.array_records, ARRAYS, "array records"), wire.layout)
    found = norms(row, wire)
    if not bool(((found >= least) & (found <= most)).all()):  # NaN is neither
        raise Unfit("its first model is not one that an initialiser draws")
    return row, secret_of(reply.content)


def _same(one: tuple[Tensor, str], other: tuple[Tensor, str]) -> bool:
    """Up to rounding, which is not the same on all machines."""
    scale = float(one[0].double().square().mean().sqrt())
    return one[1] == other[1] and torch.allclose(one[0], other[0], rtol=1e-3, atol=1e-4 * scale)
