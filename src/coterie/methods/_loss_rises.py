"""Training losses that rise: a sign that a client's data have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.core import Client, Replies

RISE_IN_USUAL_CHANGES = 10.0
"""A loss rises if it grows by more than this multiple of the usual change: the median over clients
in the round before, or half of the usual change then, if that is more. A wrong rise costs a probe
and a review, and splits no group."""


@dataclass(frozen=True)
class LossChanges:
    """What clients' training losses say, compared with those when they were last asked.

    Attributes:
        measured: Client -> its loss.
        risen: Client whose loss rose -> its change.
        usual_change: The usual change of losses from now on.
    """

    measured: Mapping[Client, float]
    risen: Mapping[Client, float]
    usual_change: float


def loss_changes(
    replies: Replies, losses_before: Mapping[Client, float], usual_change: float
) -> LossChanges:
    """Compare the losses of the model that clients were offered with those before.

    Args:
        replies: Replies of clients that measured one model each; others do not count.
        losses_before: Client -> its loss when it was last asked.
        usual_change: The usual change of losses; 0 if it is not known yet: then none has risen.
    """
    # 1. The loss of each client, and its change since the client was last asked.
    measured: dict[Client, float] = {}
    changes: dict[Client, float] = {}
    # Replies to a plan of several parts have no losses of their own.
    for client, client_losses in zip(replies.clients, replies.losses, strict=bool(replies.losses)):
        if len(client_losses) == 1 and np.isfinite(client_losses[0]):
            measured[client] = client_losses[0]
            if client in losses_before:
                changes[client] = client_losses[0] - losses_before[client]
    # 2. A loss has risen if it changed by far more than losses usually do.
    risen = {}
    for client, change in changes.items():
        if usual_change and change > RISE_IN_USUAL_CHANGES * usual_change:
            risen[client] = change
    # 3. A probe trains longer, so losses change more after it for some rounds.
    median_change = float(np.median(np.abs(list(changes.values())))) if changes else 0.0
    return LossChanges(measured, risen, max(median_change, usual_change / 2))
