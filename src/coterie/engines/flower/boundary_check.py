"""Check that a node has the server's boundary and the other nodes' secret. One node that differs would spoil every mean."""

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
"""A real node refuses a smaller secret: the server has a digest of it and could try out all smaller
ones."""

BOUNDARY, SETTINGS, SECRET = "coterie.boundary", "settings", "secret"


def stated(boundary: Boundary) -> ConfigRecord:
    """Describe a node's boundary for its replies: the settings, and a digest of the secret for comparisons.

    With the digest, anyone can check a guess of the secret. So the secret must be long, see
    :data:`SHORT`.

    Args:
        boundary: The node's boundary.

    Returns:
        The record.
    """
    digest = hashlib.sha256(f"coterie boundary {boundary.secret}".encode()).hexdigest()
    return ConfigRecord(
        {SETTINGS: _settings(boundary), SECRET: digest if boundary.secret is not None else ""}
    )


def unlike(content: RecordDict, boundary: Boundary, secret: str | None) -> str | None:
    """Compare the boundary and the secret of a reply with those expected.

    Args:
        content: The content of the reply.
        boundary: The server's boundary.
        secret: The digest of the other clients' secret. None if it is unknown.

    Returns:
        Why the reply cannot be used, or None if it can.
    """
    if BOUNDARY not in content:
        if boundary == Boundary():
            return None
        return "it has no boundary, but the server's strategy has one; its app needs the mod boundary_mod"
    if (has := _stated(content)) != _settings(boundary):
        return f"its boundary is {_short(has)}, and the server's is {_short(_settings(boundary))}"
    if secret is not None and secret_of(content) != secret:
        return "its boundary's secret differs from the other clients'"
    return None


def secret_of(content: RecordDict) -> str:
    """Return the digest of a node's secret; empty if it has none."""
    found = content.get(BOUNDARY)
    return str(found.get(SECRET, "")) if isinstance(found, ConfigRecord) else ""


def most(digests: Iterable[str]) -> str | None:
    """Return the digest that most clients report; None if there is none."""
    common = Counter(digests).most_common(1)
    return common[0][0] if common else None


def agrees(content: RecordDict, boundary: Boundary) -> bool:
    """Whether a reply reports the settings of ``boundary``."""
    return bool(_stated(content) == _settings(boundary))


def _stated(content: RecordDict) -> Any:
    found = content.get(BOUNDARY)
    return found.get(SETTINGS) if isinstance(found, ConfigRecord) else None


def _settings(boundary: Boundary) -> str:
    """All settings but the secret, as one line of JSON."""
    return json.dumps(asdict(replace(boundary, secret=None)), sort_keys=True)


def _short(text: Any) -> str:
    """The settings that differ from the defaults."""
    try:
        found, usual = json.loads(str(text)[:10_000]), asdict(Boundary())
        return (
            ", ".join(
                f"{name} {value}" for name, value in found.items() if usual.get(name) != value
            )
            or "none"
        )
    except (ValueError, AttributeError, RecursionError):
        return "unreadable"


# ----------------------------------------------------------------------------------------------------
# First models under a rotation: several clients draw and seal the same model, and the majority
# decides.
#
# The server cannot make such a model for comparison. But a rotation does not change norms, and the
# norms of an initialiser vary little. So the norms of nets that the server makes itself show which
# norms are plausible.


DRAWS = 3
"""Nets that the server makes to find the range of plausible norms."""

FACTOR = 4.0
"""A norm is not plausible if it is greater than the largest of theirs by this factor, or smaller
than the least by it."""


def agreed(
    replies: Iterable[Message], wire: Wire, model: Callable[[], nn.Module]
) -> tuple[Tensor, str] | None:
    """Return the first model on which more than half of the clients that offer a usable one agree.

    Args:
        replies: The clients' replies.
        wire: The wire between clients and server.
        model: Function that makes the net.

    Returns:
        The model as a row ``(d,)`` and the digest of these clients' secret. None if no client
        offers a usable model.

    Raises:
        EngineError: No more than half of these clients have the same model.
    """
    drawn = torch.stack([norms(wire.first_model(i, model), wire) for i in range(DRAWS)])
    least, most = drawn.amin(0) / FACTOR - 1e-6, drawn.amax(0) * FACTOR + 1e-6
    offers: dict[int, tuple[Tensor, str]] = {}
    for reply in replies:
        try:
            offers.setdefault(reply.metadata.src_node_id, _offer(reply, wire, least, most))
        except Exception:  # a reply that raises any error is not an offer
            continue
    if not offers:
        return None
    backers = [sum(_same(one, other) for other in offers.values()) for one in offers.values()]
    count, (row, digest) = max(zip(backers, offers.values(), strict=True), key=lambda each: each[0])
    if 2 * count <= len(offers):
        raise EngineError(
            f"only {count} of {len(offers)} clients drew the same first model under rotation {wire.boundary.rotation}; all "
            "clients need the same secret, and the same function that makes the net"
        )
    return row, digest


def norms(row: Tensor, wire: Wire) -> Tensor:
    """Return the norms of the two parts of a row that a rotation does not mix: trainable parameters, and the rest.

    Args:
        row: The row ``(d,)``.
        wire: The wire between clients and server.

    Returns:
        The two norms ``(2,)``.
    """
    behind = row[wire.layout.trainable :].double()
    return torch.stack([row[: wire.layout.trainable].double().norm(), behind.norm()])


def _offer(reply: Message, wire: Wire, least: Tensor, most: Tensor) -> tuple[Tensor, str]:
    if why := unlike(reply.content, wire.boundary, None):
        raise Unfit(why)
    row = messages.unpacked(
        messages.only(reply.content.array_records, ARRAYS, "array records"), wire.layout
    )
    found = norms(row, wire)
    if not bool(((found >= least) & (found <= most)).all()):  # NaN fails, too
        raise Unfit("its first model is not plausible for a newly initialised net")
    return row, secret_of(reply.content)


def _same(one: tuple[Tensor, str], other: tuple[Tensor, str]) -> bool:
    """Whether two offers are equal up to rounding, which differs between machines."""
    scale = float(one[0].double().square().mean().sqrt())
    return one[1] == other[1] and torch.allclose(one[0], other[0], rtol=1e-3, atol=1e-4 * scale)
