"""MAXFL: clients take part in the global model only if they find it appealing, against a model they trained alone.

Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi, "Maximizing Global Model Appeal in Federated
Learning", arXiv 2205.14840 (``rule`` cho); and the form of the baseline in Y. Sun, M. Kountouris,
J. Zhang, "How to Collaborate" (HCCT), arXiv 2401.13236, section VII (``rule`` distance). F_n is
client n's mean training loss, w the global model, ŵ_n the model that client n trains alone from the
first model, before the first round, and ρ_n = F_n(ŵ_n).

- distance: client n takes part iff ``F_n(w) < ‖ŵ_n - w‖²``. Participants start from the
  data-weighted mean of their current models and are averaged as in FedAvg; the others continue from
  their own current models. The first round is FedAvg of all.
- local-loss: the same, with ``F_n(w) < ρ_n``.
- cho: all train from w; ``w ← w + η_g / (Σ q_k + ε) · Σ q_k Δ_k`` with ``q_k = σ(z)(1 - σ(z))``,
  ``z = F_k(w) - ρ_k``.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- ``rule`` distance compares a loss with a squared length, as both the text and the published code
  of HCCT do; local-loss, which compares two losses, is ours.
- HCCT trains ŵ_n for as many epochs as the whole run. Here a method does not know the length of a
  run, so ŵ_n is trained for ``pretrain_epochs``, with the learning rate of the first round.
- The distance is over trainable parameters; the published code includes BatchNorm's statistics and
  counters.
- cho: η_g applies to trainable parameters; BatchNorm's statistics move by their weighted mean
  alone.
- If no client takes part, w does not change; the published code stops with a KeyError.
- q_k is the derivative of the relaxed objective, as in Cho et al.; a published port leaves out the
  factor 1 - σ(z).
- Silent clients: a client that did not answer when losses were measured is not asked to train; the
  model of a client that did not answer in training does not change. A client without ŵ_n trains it
  in the first exchange of the next round in which it is asked, and rests in that round (cho: in the
  next two rounds, one for ŵ_n, one for ρ_n). With local-loss, ρ_n is measured together with w.
  Newcomers are such clients; until then they have w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

import numpy as np
import torch

from coterie.core import (
    NOT_STORED,
    Assignment,
    Client,
    Cohort,
    Federation,
    Groups,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    as_groups,
    joined,
    rows_without,
    state,
    weights,
    without,
)
from coterie.methods._presets import Presets
from coterie.settings import check, setting


@state("maxfl")
class MAXFLState:
    """State of MAXFL.

    Attributes:
        clients: all ids.
        parameters: number of trainable parameters, which are the first columns of a model.
        round: number of rounds completed.
        stage: the next exchange: ``alone``, ``bars``, ``measure`` or ``train``.
        first: ``(d,)``, the first model.
        model: ``(d,)``, the global model w.
        start: ``(d,)``, the model that this round's participants train from.
        own: ``(m, d)``, models of the clients in ``apart``; all other clients have w.
        prior: ``(m, d)``, ŵ_n of the clients in ``alone``.
        apart: clients that train alone.
        alone: clients whose ŵ_n is kept.
        bars: client -> ρ_n.
        joins: clients that take part in this round.
        rests: clients that do not take part in this round.
        notes: notes of the last exchange.
    """

    clients: tuple[Client, ...]
    parameters: int
    round: int
    stage: str
    first: torch.Tensor
    model: torch.Tensor
    start: torch.Tensor
    own: torch.Tensor
    prior: torch.Tensor
    apart: tuple[Client, ...] = ()
    alone: tuple[Client, ...] = ()
    bars: Mapping[Client, float] = field(default_factory=dict)
    joins: tuple[Client, ...] = ()
    rests: tuple[Client, ...] = ()
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@dataclass(frozen=True, kw_only=True)
class MAXFL:
    """One model of the clients that it suits; the others train alone."""

    name: ClassVar[str] = "maxfl"

    # Cho et al.; the default is the form that HCCT compares with.
    presets: ClassVar[Presets] = {"paper": {"rule": "cho"}}

    rule: str = setting(
        "distance",
        "which clients take part: by distance (HCCT), local-loss (not in the papers), or cho (all, by weights)",
        choices=("distance", "local-loss", "cho"),
    )
    pretrain_epochs: int = setting(
        10, "epochs each client trains alone before the first round; not in the paper", ge=1
    )
    server_lr: float = setting(
        1.0, "cho: step of the server (η_g)", gt=0, only_with={"rule": ("cho",)}
    )
    epsilon: float = setting(
        1e-8,
        "cho: added to the sum of weights (ε); not in the paper",
        gt=0,
        only_with={"rule": ("cho",)},
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(
            features=("losses",),
            occasional=("model-choice", "training"),
            unchanged_by="rotation",
            fraction=self.fraction,
        )

    # -- the contract
    # ---------------------------------------------------------------------------------------------------

    def init(self, federation: Federation) -> MAXFLState:
        first_model = federation.draw(0)
        no_rows = first_model.new_zeros(0, len(first_model))
        return MAXFLState(
            clients=federation.clients,
            parameters=federation.parameters.stop,
            round=0,
            stage="alone",
            first=first_model,
            model=first_model,
            start=first_model,
            own=no_rows,
            prior=no_rows,
        )

    def plan(self, state: MAXFLState, cohort: Cohort) -> Plan:
        if state.stage == "train" and self.rule != "cho" and state.round:
            return self._plan_round(state, cohort)
        # Row 0 is w, row 1 is w_0, and a row for each ŵ_n follows.
        models = torch.cat([state.model[None], state.first[None], state.prior])
        prior_rows = dict(zip(state.alone, count(2), strict=False))
        # Models are trained alone, and measured, by all clients; then a fraction is asked.
        asked_clients = cohort.present
        if state.stage not in ("alone", "bars"):
            asked_clients = cohort.sample(state.clients, self.fraction)
        tasks = {}
        for client in asked_clients:
            task = self._task(self._part(state, client), prior_rows.get(client, -1))
            if task is not None:
                tasks[client] = task
        return Plan(models=models, tasks=tasks, ends_round=state.stage == "train")

    def step(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        match state.stage:
            case "alone":
                next_stage = "bars" if self.rule == "cho" else "train"
            case "bars" | "measure":
                next_stage = "train"
            case _:
                next_stage = "train" if self.rule == "cho" else "measure"
        # Every exchange may contain a ŵ_n or a ρ_n, of clients that come late.
        part_of_client = {client: self._part(state, client) for client in replies.clients}
        new_state = self._learn(state, replies, part_of_client)
        new_state = replace(new_state, stage=next_stage, notes=())
        if state.stage == "measure":
            measuring_clients = _clients_of_parts(part_of_client, "measure", "both")
            return self._decide(new_state, replies.of(measuring_clients))
        if state.stage == "train":
            train_replies = replies.of(_clients_of_parts(part_of_client, "train"))
            aggregate = self._cho if self.rule == "cho" else self._train
            new_state = aggregate(new_state, train_replies)
            return replace(new_state, round=state.round + 1, joins=(), rests=())
        return new_state

    def assignment(self, state: MAXFLState) -> Assignment:
        # Row 0 is w; a row for each client that trains alone follows.
        sharing_clients = without(state.clients, state.apart)
        row_of_client = dict.fromkeys(sharing_clients, 0)
        row_of_client.update(zip(state.apart, count(1), strict=False))
        return Assignment(
            models=torch.cat([state.model[None], state.own]),
            row=row_of_client,
            groups=_groups(sharing_clients, state.apart),
        )

    def explain(self, state: MAXFLState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: MAXFLState, clients: tuple[Client, ...]) -> MAXFLState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: MAXFLState, clients: tuple[Client, ...]) -> MAXFLState:
        """Remove clients; their ŵ_n or ρ_n are kept, so that on return they need not train alone again."""
        apart_clients, apart_models = rows_without(state.apart, state.own, clients)
        return replace(
            state, clients=without(state.clients, clients), apart=apart_clients, own=apart_models
        )

    # -- a client's task in an exchange
    # ---------------------------------------------------------------------------------

    def _part(self, state: MAXFLState, client: Client) -> str | None:
        """alone: train ŵ_n; bar: measure it; measure: measure w; both: these two; train: train; None: rest."""
        # In the first round of distance and local-loss, all clients train.
        if state.stage == "train" and self.rule != "cho":
            return "train"
        has_model = client in state.alone
        # Nothing is missing that the rule compares with w.
        if client in state.bars or (has_model and self.rule == "distance"):
            return state.stage if state.stage in ("measure", "train") else None
        if not has_model:
            return "alone"
        return {"bars": "bar", "train": "bar", "measure": "both"}.get(state.stage)

    def _task(self, part: str | None, prior_row: int) -> Task | None:
        """A part as a task, where w is row 0, w_0 row 1 and the client's ŵ_n ``prior_row``."""
        match part:
            case "alone":
                return Task(offered=(1,), epochs=self.pretrain_epochs, lr_round=0)
            case "bar":
                return Task(offered=(prior_row,), epochs=0, measure="train")
            case "measure":
                return Task(offered=(0,), epochs=0, measure="train")
            case "both":
                return Task(offered=(0, prior_row), choose=2, epochs=0, measure="train")
            case "train":
                return Task(offered=(0,), measure="train" if self.rule == "cho" else None)
        return None

    def _learn(
        self, state: MAXFLState, replies: Replies, part_of_client: Mapping[Client, str | None]
    ) -> MAXFLState:
        """Store every ŵ_n and ρ_n in the replies; where ρ_n is known and sufficient, delete ŵ_n."""
        # ρ_n is the loss with the last model that the client was offered.
        bar_replies = replies.of(_clients_of_parts(part_of_client, "bar", "both"))
        bars = dict(state.bars)
        for client, losses in zip(bar_replies.clients, bar_replies.losses, strict=True):
            bars[client] = losses[-1]
        alone_clients, prior_models = rows_without(state.alone, state.prior, bar_replies.clients)
        # ŵ_n is trained from the first model.
        alone_replies = replies.of(_clients_of_parts(part_of_client, "alone"))
        if alone_replies.clients:
            alone_clients = (*alone_clients, *alone_replies.clients)
            prior_models = torch.cat([prior_models, state.first + alone_replies.all_updates])
        return replace(state, bars=bars, alone=alone_clients, prior=prior_models)

    # -- distance and local-loss: some clients take part, the others train alone
    # ----------------------------------------

    def _decide(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        """Choose the participants by their losses with w, and the model that they start from."""
        global_losses = _first_losses(replies)
        bars = {client: self._bar(state, client) for client in global_losses}
        # F_n(w) < ‖ŵ_n - w‖², or F_n(w) < ρ_n.
        joining = tuple(client for client in global_losses if global_losses[client] < bars[client])
        resting = without(tuple(global_losses), joining)
        # The participants start from the data-weighted mean of their current models: w plus the
        # mean difference of these from w.
        start_model = state.model
        if joining:
            differences = _current_models(state, joining) - state.model
            data_weights = weights(replies.of(joining), "data")
            start_model = start_model + replies.averaging.of(differences, data_weights)
        notes = (self._note(global_losses, bars, joining, resting),) if global_losses else ()
        return replace(state, start=start_model, joins=joining, rests=resting, notes=notes)

    def _bar(self, state: MAXFLState, client: Client) -> float:
        """ρ_n, or the squared distance of ŵ_n from w over trainable parameters."""
        if self.rule == "local-loss":
            return state.bars[client]
        prior_model = state.prior[state.alone.index(client)]
        difference = (prior_model - state.model)[: state.parameters]
        return float(difference.double().square().sum())

    def _plan_round(self, state: MAXFLState, cohort: Cohort) -> Plan:
        """Participants train from their mean, row 0; the others from their current models."""
        present_clients = set(cohort.present)
        # Row 0 is the participants' mean, row 1 is w, and the models of clients that train alone follow.
        models = torch.cat([state.start[None], state.model[None], state.own])
        apart_rows = dict(zip(state.apart, count(2), strict=False))
        # A client that rests trains its own model, or w if it has none yet.
        tasks = {}
        for client in state.joins:
            if client in present_clients:
                tasks[client] = Task(offered=(0,))
        for client in state.rests:
            if client in present_clients:
                tasks[client] = Task(offered=(apart_rows.get(client, 1),))
        return Plan(models=models, tasks=tasks)

    def _train(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        """Clients that rest keep their trained models; the others' are averaged. In the first round no client rests."""
        if not replies.clients:
            return state
        rest_replies = replies.of(state.rests)
        join_replies = replies.of(set(replies.clients) - set(state.rests))
        # Clients that rest keep the models that they have trained.
        apart_clients, apart_models = rows_without(state.apart, state.own, replies.clients)
        if rest_replies.clients:
            trained_models = _current_models(state, rest_replies.clients) + rest_replies.all_updates
            apart_clients = (*apart_clients, *rest_replies.clients)
            apart_models = torch.cat([apart_models, trained_models])
        # The models of the others are averaged, as in FedAvg, and these clients have w again.
        global_model = state.model
        if join_replies.clients:
            global_model = state.start + join_replies.mean(weights(join_replies, "data"))
        return replace(state, model=global_model, apart=apart_clients, own=apart_models)

    # -- cho: all clients take part, with weights
    # -----------------------------------------------------------------------

    def _cho(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        """A round of cho: w moves by the mean of all updates, weighted by how much each client may be won over."""
        if not replies.clients:
            return state
        global_losses = _first_losses(replies)
        bars = {client: state.bars[client] for client in global_losses}
        # w <- w + η_g Σ q_n Δ_n / (Σ q_n + ε), with the weights q_n = σ(z_n)(1 - σ(z_n)).
        appeals = appeal(np.array([*global_losses.values()]) - np.array([*bars.values()]))
        mean_update = replies.mean(appeals / (appeals.sum() + self.epsilon))
        # The step size not for BatchNorm's statistics: a long step could make a variance negative.
        mean_update[: state.parameters] *= self.server_lr
        num_better = sum(global_losses[client] < bars[client] for client in global_losses)
        note = Note(
            kind="keep",
            effect="keeps",
            clients=replies.clients,
            text=(
                f"the global model is better than their own for {num_better} of {len(global_losses)} clients; "
                f"weights sum to {appeals.sum():.3g}"
            ),
            values={
                "loss": global_losses,
                "own_loss": bars,
                "weight": dict(zip(global_losses, appeals.tolist(), strict=True)),
            },
        )
        return replace(state, model=state.model + mean_update, notes=(note,))

    def _note(
        self,
        global_losses: Mapping[Client, float],
        bars: Mapping[Client, float],
        joining: tuple[Client, ...],
        resting: tuple[Client, ...],
    ) -> Note:
        """Describe who takes part, that is, has model 0, the global one; a resting client's is model 1."""
        bar_text = "that of their own"
        if self.rule == "distance":
            bar_text = "the squared distance to their own"
        description = (
            f"{len(joining)} of {len(global_losses)} clients take part: "
            f"the global model's training loss is below {bar_text}"
        )
        parts = _groups(joining, resting)
        model_of_client = {**dict.fromkeys(global_losses, 1.0), **dict.fromkeys(joining, 0.0)}
        return Note(
            kind="cluster" if len(parts) > 1 else "keep",
            effect="divides" if len(parts) > 1 else "keeps",
            clients=tuple(global_losses),
            text=description,
            parts=parts,
            values={"loss": global_losses, "bar": bars, "model": model_of_client},
        )


def _first_losses(replies: Replies) -> dict[Client, float]:
    """Client -> its loss with the first model that it measured, w."""
    return {
        client: losses[0] for client, losses in zip(replies.clients, replies.losses, strict=True)
    }


def _current_models(state: MAXFLState, clients: tuple[Client, ...]) -> torch.Tensor:
    """The model ``(n, d)`` that each client has: the one that it trains alone, or w."""
    own_models = dict(zip(state.apart, state.own, strict=True))
    return torch.stack([own_models.get(client, state.model) for client in clients])


def _clients_of_parts(
    part_of_client: Mapping[Client, str | None], *parts: str
) -> tuple[Client, ...]:
    """The clients that had one of these parts in an exchange."""
    return tuple(client for client, part in part_of_client.items() if part in parts)


def _groups(sharing_clients: tuple[Client, ...], apart_clients: tuple[Client, ...]) -> Groups:
    """One group of the clients that share the global model, and each of the others alone."""
    single_groups = [(client,) for client in apart_clients]
    return as_groups([sharing_clients, *single_groups] if sharing_clients else single_groups)


def appeal(z: np.ndarray) -> np.ndarray:
    """Return the weight of each client's loss, ``σ(z)(1 - σ(z))`` (Cho et al.), without overflow.

    Args:
        z: ``(n,)``, the difference of each client's losses with the global model and with its own.

    Returns:
        ``(n,)``, the weights; 0 where z is NaN.

    Example:
        >>> appeal(np.array([0.0, 1e4]))
        array([0.25, 0.  ])
    """
    # σ(z)(1 - σ(z)) = e^-|z| / (1 + e^-|z|)²
    exponentials = np.exp(-np.abs(z))
    return np.nan_to_num(exponentials / (1 + exponentials) ** 2, nan=0.0)
