"""FedFA: one model for all, in which the clients that it serves badly weigh more.

W. Huang, T. Li, D. Wang, S. Du, J. Zhang, "Fairness and accuracy in federated learning", arXiv
2012.10069, in the form of the baseline in Y. Sun, M. Kountouris, J. Zhang, "How to Collaborate"
(HCCT), arXiv 2401.13236, section VII:

    p_n = -log2(Acc_n) / Σ_m -log2(Acc_m),    Acc_n: accuracy of the current model on client n's
    training data

Deviations
- From the original: no momentum, neither at clients nor at the server, and no term for how often a
  client took part. HCCT leaves them out so that all its baselines train in the same way; the
  formula is that of the code published with it.
- An accuracy of 0 counts as 1e-7, as in that code. If every accuracy is 1 the weights are 0 / 0;
  then FedAvg's weights are used (ours).
- Weights are renormalised over the clients that answered.
- In a federation, or with adversaries, no client's weight exceeds a tenth (``robust.share``), or
  twice the average weight if that is more (ours): a client with wrong labels would get the greatest
  weight of all. A note says whose weight was limited.
- A client that reports an accuracy below 0 or above 1 is left out (ours).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    joined,
    state,
    weights,
    without,
)
from coterie.settings import SettingError, check, setting

MIN_ACCURACY = 1e-7
"""Value that replaces an accuracy of zero."""

MAX_NAMED_CLIENTS = 3
"""Clients that a note names as examples."""


@state("fedfa")
class FedFAState:
    """State of FedFA.

    Attributes:
        clients: all ids.
        model: ``(d,)``, the model of all clients.
        notes: notes of the last exchange, with its weights.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class FedFA:
    """One model for all, weighted towards the clients on whose training data it is least accurate."""

    name: ClassVar[str] = "fedfa"

    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round (C), at least one", gt=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(features=("losses",), unchanged_by="rotation", fraction=self.fraction)

    def init(self, federation: Federation) -> FedFAState:
        return FedFAState(clients=federation.clients, model=federation.draw(0))

    def plan(self, state: FedFAState, cohort: Cohort) -> Plan:
        task = Task(offered=(0,), measure="train")
        return Plan(
            models=state.model[None],
            tasks=dict.fromkeys(cohort.sample(state.clients, self.fraction), task),
        )

    def step(self, state: FedFAState, replies: Replies) -> FedFAState:
        """Average the updates; a client whose accuracy is not 0 to 1 is left out.

        Args:
            state: the state before the exchange.
            replies: replies of the exchange.

        Raises:
            SettingError: the accuracy is not 0 to 1 for all clients that answered, and they are
                more than half of the federation; then the objective has no such accuracy.
        """
        if not replies.clients:
            return replace(state, notes=())
        accuracies = _accuracies(replies)
        invalid = {
            client: accuracy for client, accuracy in accuracies.items() if not 0 <= accuracy <= 1
        }
        notes = _left_out(invalid)
        # Nobody is left. If that is most of the federation, the metric is no accuracy.
        if len(invalid) == len(accuracies):
            if len(invalid) > len(state.clients) / 2:
                raise _no_accuracy(invalid)
            return replace(state, notes=notes)
        valid_replies = replies.of(set(accuracies) - set(invalid))
        # p_n = -log2(Acc_n) / Σ_m -log2(Acc_m)
        fair_shares = fair_weights(valid_replies)
        # In a federation, or with adversaries, no weight is above its limit.
        bounded_shares = valid_replies.averaging.bounded(fair_shares)
        shares = fair_shares
        if bounded_shares is not fair_shares:
            shares = bounded_shares / bounded_shares.sum()
            notes = (_limited(valid_replies.clients, fair_shares, shares), *notes)
        # w <- w + Σ p_n Δ_n
        model = state.model + valid_replies.mean(shares)
        return replace(state, model=model, notes=(_note(valid_replies, shares), *notes))

    def assignment(self, state: FedFAState) -> Assignment:
        groups = (state.clients,) if state.clients else ()
        return Assignment(
            models=state.model[None], row=dict.fromkeys(state.clients, 0), groups=groups
        )

    def explain(self, state: FedFAState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: FedFAState, clients: tuple[Client, ...]) -> FedFAState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: FedFAState, clients: tuple[Client, ...]) -> FedFAState:
        return replace(state, clients=without(state.clients, clients))


def _accuracies(replies: Replies) -> dict[Client, float]:
    """Client -> the accuracy of the one model that it was offered."""
    accuracies = {}
    for client, (accuracy,) in zip(replies.clients, replies.accuracies, strict=True):
        accuracies[client] = accuracy
    return accuracies


def _no_accuracy(invalid: Mapping[Client, float]) -> SettingError:
    """The error of an objective whose main metric is no accuracy, with an example that is a number."""
    client = min(invalid)
    example = ""
    if not math.isnan(invalid[client]):
        example = f", but client {client} measured {invalid[client]:g}"
    return SettingError(
        f"fedfa needs an objective whose main metric is 0 to 1, as an accuracy{example}"
    )


def fair_weights(replies: Replies) -> np.ndarray:
    """Return the weights p_n ``(n,)`` of the clients that answered, from their accuracies, 0 to 1; they sum to one."""
    # -log2(Acc_n): the less accurate the model is for a client, the more the client counts.
    information = []
    for accuracy in _accuracies(replies).values():
        information.append(0.0 - math.log2(max(accuracy, MIN_ACCURACY)))
    total_information = float(np.sum(information))
    # If every client is always right, the weights are those of FedAvg.
    if total_information <= 0:
        return weights(replies, "data")
    return np.array(information) / total_information


def _left_out(invalid: Mapping[Client, float]) -> tuple[Note, ...]:
    """Describe the clients that are left out, and why."""
    if not invalid:
        return ()
    examples = list(invalid.items())[:MAX_NAMED_CLIENTS]
    measured = ", ".join(f"client {client} ({accuracy:.3g})" for client, accuracy in examples)
    description = f"left out, as their training accuracy is not 0 to 1: {measured}"
    if len(invalid) > len(examples):
        description += ", ..."
    return (Note(kind="keep", effect="keeps", clients=tuple(invalid), text=description),)


def _limited(clients: Sequence[Client], fair_shares: np.ndarray, shares: np.ndarray) -> Note:
    """Describe whose weights were limited, from the weights ``(n,)`` before and after."""
    # The note names the client whose weight was the greatest.
    limited = {}
    for client, share_before, share_after in zip(clients, fair_shares, shares, strict=True):
        if share_after < share_before:
            limited[client] = (share_before, share_after)
    worst_client = max(limited, key=lambda client: limited[client][0])
    share_before, share_after = limited[worst_client]
    more_text = f", and of {len(limited) - 1} more" if len(limited) > 1 else ""
    description = (
        f"the weight of client {worst_client}{more_text} is limited to {share_after:.3g}, "
        f"from {share_before:.3g} (robust.share)"
    )
    return Note(kind="bound", effect="limits", clients=tuple(limited), text=description)


def _note(replies: Replies, shares: np.ndarray) -> Note:
    """Describe the least and the most accurate client, and their weights."""
    accuracies = _accuracies(replies)
    share_of_client = dict(zip(replies.clients, shares.tolist(), strict=True))
    worst = min(accuracies, key=accuracies.__getitem__)
    best = max(accuracies, key=accuracies.__getitem__)
    description = (
        f"training accuracy from {accuracies[worst]:.3g} "
        f"(client {worst}, weight {share_of_client[worst]:.3g}) "
        f"to {accuracies[best]:.3g} (client {best}, weight {share_of_client[best]:.3g})"
    )
    return Note(
        kind="keep",
        effect="keeps",
        clients=replies.clients,
        text=description,
        values={"accuracy": accuracies, "weight": share_of_client},
    )
