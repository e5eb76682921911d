"""SCAFFOLD: FedAvg whose clients correct every step by how their gradients differ from those of all.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic
Controlled Averaging for Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1 with option II
for the control variates. A client i makes steps ``y ← y - η (g_i(y) - c_i + c)``.

Deviations
- The server keeps the clients' control variates c_i and sends each client ``c - c_i`` with the
  model. Option II gives a new c_i from the update alone, ``c_i - c + (x - y) / (K η)``, so the numbers
  are those of Algorithm 1. A client then needs no memory and sends one row, not two, and a reply
  that is lost or refused changes neither.
- The number of steps K is each client's own: the server knows it from the number of examples.
- c is the mean of the c_i of the clients that are in the federation. Algorithm 1 adds the changes,
  which is the same while nobody joins or leaves.
- With momentum, K is the number of plain steps that move as far (J. Wang et al., "Tackling the
  Objective Inconsistency Problem in Heterogeneous Federated Optimization", arXiv 2007.07481, section
  4). Algorithm 1 has no momentum.
- Where reports are limited (``robust.share``, in a federation or with adversaries), a control variate
  whose norm is beyond the outer fences of the other clients' is forgotten, and a note says whose.
  Without this a client that sends ``-(y - x)`` doubles its c_i in every round, and moves c by it.
- With ``training.clip``, noise or compression, c_i is that of the update which the server receives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import ClassVar

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Client,
    Cohort,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Training,
    Weighting,
    state,
    weights,
)
from coterie.methods._fences import fence_note, fenced_positive
from coterie.methods._leavers import entries_without
from coterie.methods._one_model import OneModel
from coterie.settings import SettingError, check, setting

CONTROLS_FORGOTTEN = "control variates far longer than those of the other clients are forgotten"
"""What happened to clients whose control variates are beyond the fences."""


@state("scaffold")
class ScaffoldState:
    """State of SCAFFOLD.

    Attributes:
        clients: all ids.
        model: ``(d,)``, x, the model of all clients.
        controls: client -> c_i ``(d,)``, for clients that have answered; zero for the others, and in
            the columns of buffers.
        control: ``(d,)``, c, the mean of the controls of all clients.
        round: rounds completed.
        training: the experiment's training settings.
        parameters: the number of columns that are no buffers.
        least_batch: fewest examples of a batch: 2 if the model has BatchNorm.
        notes: about the last round.
    """

    clients: tuple[Client, ...]
    model: torch.Tensor
    control: torch.Tensor
    training: Training
    parameters: int
    controls: Mapping[Client, torch.Tensor] = field(default_factory=dict)
    round: int = 0
    least_batch: int = 1
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class Scaffold(OneModel[ScaffoldState]):
    """One model for all, whose clients correct their steps towards what all clients need."""

    name: ClassVar[str] = "scaffold"

    server_lr: float = setting(1.0, "server learning rate (η_g)", gt=0)
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "uniform",
        "weights of the mean of updates: uniform (the paper), or by training examples",
        choices=("uniform", "data"),
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(features=("correction",), unchanged_by="rotation", fraction=self.fraction)

    def init(self, federation: Federation) -> ScaffoldState:
        # Option II takes (x - y) / (K η) for the mean gradient, which it is of SGD alone.
        training = federation.training
        if training.optimizer != "sgd":
            raise SettingError(
                f"scaffold needs Training.optimizer sgd, got {training.optimizer}: its control variates are means of gradients"
            )
        model = federation.draw(0)
        return ScaffoldState(
            clients=federation.clients,
            model=model,
            control=torch.zeros_like(model),
            training=training,
            parameters=federation.parameters.stop,
            least_batch=2 if federation.norms else 1,
        )

    def plan(self, state: ScaffoldState, cohort: Cohort) -> Plan:
        # Row 0 is x, and each sampled client has a row c - c_i of its own.
        sampled_clients = cohort.sample(state.clients, self.fraction)
        rows = [state.model]
        tasks: dict[Client, Task] = {}
        for client in sampled_clients:
            tasks[client] = Task(offered=(0, len(rows)), corrected=True, lr_round=state.round)
            control = state.controls.get(client)
            rows.append(state.control if control is None else state.control - control)
        return Plan(models=torch.stack(rows), tasks=tasks, need="rows")

    def step(self, state: ScaffoldState, replies: Replies) -> ScaffoldState:
        state = replace(state, round=state.round + 1, notes=())
        if not replies.clients or replies.updates is None:
            return state
        # Lines 16 and 17: x ← x + η_g times the mean of y_i - x.
        mean_update = replies.mean(weights(replies, self.weighting))
        # Line 12, option II: c_i ← c_i - c + (x - y_i) / (K_i η).
        learning_rate = state.training.rate(state.round - 1)
        controls = dict(state.controls)
        zero = torch.zeros_like(state.control)
        for client, update, examples in zip(
            replies.clients, replies.updates, replies.examples, strict=True
        ):
            steps = steps_made(int(examples), state.training, state.least_batch)
            moved_steps = plain_steps(steps, state.training.momentum)
            mean_gradient = -update / (moved_steps * learning_rate)
            control = controls.get(client, zero) - state.control + mean_gradient
            # Buffers have no gradient.
            control[state.parameters :] = 0.0
            controls[client] = control
        notes: tuple[Note, ...] = ()
        if replies.averaging.limits_reports:
            # Whose control variate is beyond the fences is a client that has not answered yet.
            far_clients = clients_beyond(controls)
            if far_clients:
                controls = dict(entries_without(controls, tuple(far_clients)))
                notes = (fence_note(far_clients, CONTROLS_FORGOTTEN),)
        # Line 17: c ← c + the sum of the changes of c_i, divided by the number N of all clients.
        known_controls = torch.stack(list(controls.values()))
        equal_weights = np.full(len(controls), 1 / len(controls))
        known_share = len(controls) / len(state.clients)
        control = replies.averaging.of(known_controls, equal_weights) * known_share
        return replace(
            state,
            model=state.model + self.server_lr * mean_update,
            controls=controls,
            control=control,
            notes=notes,
        )

    def explain(self, state: ScaffoldState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: ScaffoldState, clients: tuple[Client, ...]) -> ScaffoldState:
        """Admit clients, whose control variates are zero."""
        return _of_members(super().admit(state, clients), len(state.clients))

    def retire(self, state: ScaffoldState, clients: tuple[Client, ...]) -> ScaffoldState:
        """Forget the clients with their control variates."""
        num_before = len(state.clients)
        left_controls = [state.controls[client] for client in clients if client in state.controls]
        if left_controls:
            left_sum = torch.stack(left_controls).sum(0)
            state = replace(state, control=state.control - left_sum / num_before)
        state = super().retire(state, clients)
        state = replace(state, controls=entries_without(state.controls, clients))
        return _of_members(state, num_before)


def _of_members(state: ScaffoldState, num_before: int) -> ScaffoldState:
    """The state after a change of the number of clients, by which the sum of controls is divided."""
    return replace(state, control=state.control * num_before / max(len(state.clients), 1))


def clients_beyond(controls: Mapping[Client, torch.Tensor]) -> list[Client]:
    """Return the clients whose control variates are longer than the fences of the other clients' allow.

    Args:
        controls: Client -> c_i ``(d,)``.
    """
    norms = torch.stack([control.double().norm() for control in controls.values()]).numpy()
    is_beyond = norms > fenced_positive(norms) * (1 + 1e-9)
    return list(compress(controls, is_beyond))


def steps_made(examples: int, training: Training, least_batch: int) -> int:
    """Return K, the number of steps of a client's local training.

    Args:
        examples: Its training examples.
        training: The settings of local training.
        least_batch: A last batch with fewer examples is left out.

    Example:
        >>> steps_made(20, Training(batch=8, epochs=2), 1), steps_made(17, Training(batch=8), 2)
        (6, 2)
    """
    if training.steps is not None:
        return training.steps
    batch_size = training.batch or max(examples, 1)
    batches = math.ceil(examples / batch_size)
    if batches > 1 and examples - (batches - 1) * batch_size < least_batch:
        batches -= 1
    return max(batches * training.epochs, 1)


def plain_steps(steps: int, momentum: float) -> float:
    """Return how many steps without momentum move as far as K steps with it, if all gradients are equal.

    Args:
        steps: K.
        momentum: μ; step k then moves by ``(1 - μ^k) / (1 - μ)`` times what it moves without.

    Example:
        >>> plain_steps(2, 0.0), plain_steps(2, 0.5)  # 1, and 1 + 0.5
        (2.0, 2.5)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
