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

SMALLEST_SECRET = 1 << 64
"""A real node refuses a smaller secret: the server has a digest of it and could try out all smaller
ones."""

BOUNDARY = "coterie.boundary"
SETTINGS = "settings"
SECRET = "secret"
"""The record in a reply with a node's boundary, and its entries."""


def stated(boundary: Boundary) -> ConfigRecord:
    """Describe a node's boundary for its replies: the settings, and a digest of the secret for comparisons.

    With the digest, anyone can check a guess of the secret. So the secret must be long, see
    :data:`SMALLEST_SECRET`.

    Args:
        boundary: The node's boundary.

    Returns:
        The record.
    """
    secret_digest = ""
    if boundary.secret is not None:
        secret_digest = hashlib.sha256(f"coterie boundary {boundary.secret}".encode()).hexdigest()
    return ConfigRecord({SETTINGS: _settings(boundary), SECRET: secret_digest})


def unlike(content: RecordDict, boundary: Boundary, expected_secret: str | None) -> str | None:
    """Compare the boundary and the secret of a reply with those expected.

    Args:
        content: The content of the reply.
        boundary: The server's boundary.
        expected_secret: The digest of the other clients' secret. None if it is unknown.

    Returns:
        Why the reply cannot be used, or None if it can.
    """
    if BOUNDARY not in content:
        if boundary == Boundary():
            return None
        return "it has no boundary, but the server's strategy has one; its app needs the mod boundary_mod"
    # The settings must be equal, and the secret must be that of the other clients.
    node_settings = _stated(content)
    server_settings = _settings(boundary)
    if node_settings != server_settings:
        return (
            f"its boundary is {_changed_settings(node_settings)}, "
            f"and the server's is {_changed_settings(server_settings)}"
        )
    if expected_secret is not None and secret_of(content) != expected_secret:
        return "its boundary's secret differs from the other clients'"
    return None


def secret_of(content: RecordDict) -> str:
    """Return the digest of a node's secret; empty if it has none."""
    boundary_record = content.get(BOUNDARY)
    return str(boundary_record.get(SECRET, "")) if isinstance(boundary_record, ConfigRecord) else ""


def most_common(digests: Iterable[str]) -> str | None:
    """Return the digest that most clients report; None if there is none."""
    most_common_digests = Counter(digests).most_common(1)
    return most_common_digests[0][0] if most_common_digests else None


def agrees(content: RecordDict, boundary: Boundary) -> bool:
    """Whether a reply reports the settings of ``boundary``."""
    return bool(_stated(content) == _settings(boundary))


def _stated(content: RecordDict) -> Any:
    """The settings that a reply reports; None without them."""
    boundary_record = content.get(BOUNDARY)
    return boundary_record.get(SETTINGS) if isinstance(boundary_record, ConfigRecord) else None


def _settings(boundary: Boundary) -> str:
    """All settings but the secret, as one line of JSON."""
    return json.dumps(asdict(replace(boundary, secret=None)), sort_keys=True)


def _changed_settings(settings_text: Any) -> str:
    """The settings in a line of JSON that differ from the defaults, in words."""
    defaults = asdict(Boundary())
    try:
        settings = json.loads(str(settings_text)[:10_000])
        changed = [
            f"{setting_name} {setting_value}"
            for setting_name, setting_value in settings.items()
            if defaults.get(setting_name) != setting_value
        ]
    except (ValueError, AttributeError, RecursionError):
        return "unreadable"
    return ", ".join(changed) or "none"


# ----------------------------------------------------------------------------------------------------
# First models under a rotation: several clients draw and seal the same model, and the majority
# decides.
#
# The server cannot make such a model for comparison. But a rotation does not change norms, and the
# norms of an initialiser vary little. So the norms of nets that the server makes itself show which
# norms are plausible.


COMPARED_NETS = 3
"""Nets that the server makes to find the range of plausible norms."""

MAX_NORM_FACTOR = 4.0
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
    # The range of plausible norms.
    drawn_norms = torch.stack(
        [
            norms(wire.first_model(model_number, model), wire)
            for model_number in range(COMPARED_NETS)
        ]
    )
    smallest_norms = drawn_norms.amin(0) / MAX_NORM_FACTOR - 1e-6
    largest_norms = drawn_norms.amax(0) * MAX_NORM_FACTOR + 1e-6
    # The first usable offer of each node.
    offer_of_node: dict[int, tuple[Tensor, str]] = {}
    for reply in replies:
        try:
            offer = _offer(reply, wire, smallest_norms, largest_norms)
        except Exception:
            # A reply that raises any error is not an offer.
            continue
        offer_of_node.setdefault(reply.metadata.src_node_id, offer)
    offers = list(offer_of_node.values())
    if not offers:
        return None
    # The offer with which most of the others agree; of equal ones the first.
    equal_counts = [
        sum(_are_equal(offer, other_offer) for other_offer in offers) for offer in offers
    ]
    largest_count = max(equal_counts)
    if 2 * largest_count <= len(offers):
        raise EngineError(
            f"only {largest_count} of {len(offers)} clients drew the same first model under rotation "
            f"{wire.boundary.rotation}; all clients need the same secret, and the same function that makes the net"
        )
    return offers[equal_counts.index(largest_count)]


def norms(model_row: Tensor, wire: Wire) -> Tensor:
    """Return the norms of the two parts of a row that a rotation does not mix: trainable parameters, and the rest.

    Args:
        model_row: The row ``(d,)``.
        wire: The wire between clients and server.

    Returns:
        The two norms ``(2,)``.
    """
    trainable = wire.layout.trainable
    return torch.stack(
        [model_row[:trainable].double().norm(), model_row[trainable:].double().norm()]
    )


def _offer(
    reply: Message, wire: Wire, smallest_norms: Tensor, largest_norms: Tensor
) -> tuple[Tensor, str]:
    """The first model in a reply, and the digest of the secret with which it is sealed."""
    difference = unlike(reply.content, wire.boundary, None)
    if difference:
        raise Unfit(difference)
    array_record = messages.only(reply.content.array_records, ARRAYS, "array records")
    model_row = messages.unpacked(array_record, wire.layout)
    row_norms = norms(model_row, wire)
    # NaN fails, too.
    if not bool(((row_norms >= smallest_norms) & (row_norms <= largest_norms)).all()):
        raise Unfit("its first model is not plausible for a newly initialised net")
    return model_row, secret_of(reply.content)


def _are_equal(offer: tuple[Tensor, str], other_offer: tuple[Tensor, str]) -> bool:
    """Whether two offers are equal up to rounding, which differs between machines."""
    model_row, secret_digest = offer
    other_row, other_digest = other_offer
    scale = float(model_row.double().square().mean().sqrt())
    return secret_digest == other_digest and torch.allclose(
        model_row, other_row, rtol=1e-3, atol=1e-4 * scale
    )
