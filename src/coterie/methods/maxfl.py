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
from typing import ClassVar

import numpy as np
import torch

from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Federation,
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
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MAXFL:
    """A global model of those who find it appealing; the others train alone."""

    name: ClassVar[str] = "maxfl"

    rule: str = setting(
        "distance",
        "which clients take part: by distance (HCCT), local-loss (ours), or cho (all, by weights)",
        choices=("distance", "local-loss", "cho"),
    )
    pretrain_epochs: int = setting(
        10, "epochs each client trains alone before the first round; ours", ge=1
    )
    server_lr: float = setting(1.0, "cho: step of the server (η_g)", gt=0)
    epsilon: float = setting(1e-8, "cho: added to the sum of weights (ε); ours", gt=0)
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
        first = federation.draw(0)
        no_rows = first.new_zeros(0, len(first))
        return MAXFLState(
            clients=federation.clients,
            parameters=federation.parameters.stop,
            round=0,
            stage="alone",
            first=first,
            model=first,
            start=first,
            own=no_rows,
            prior=no_rows,
        )

    def plan(self, state: MAXFLState, cohort: Cohort) -> Plan:
        if state.stage == "train" and self.rule != "cho" and state.round:
            return self._plan_round(state, cohort)
        # Row 0 is w, row 1 is w_0, and a row for each ŵ_n follows.
        models = torch.cat([state.model[None], state.first[None], state.prior])
        prior_row = {client: 2 + i for i, client in enumerate(state.alone)}
        asked = cohort.present
        if state.stage not in ("alone", "bars"):
            asked = cohort.sample(state.clients, self.fraction)
        tasks = {}
        for client in asked:
            task = self._task(self._part(state, client), prior_row.get(client, -1))
            if task is not None:
                tasks[client] = task
        return Plan(models=models, tasks=tasks, ends_round=state.stage == "train")

    def step(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        parts = {client: self._part(state, client) for client in replies.clients}
        match state.stage:
            case "alone":
                stage = "bars" if self.rule == "cho" else "train"
            case "bars" | "measure":
                stage = "train"
            case _:
                stage = "train" if self.rule == "cho" else "measure"
        new = replace(self._learn(state, replies, parts), stage=stage, notes=())
        if state.stage == "measure":
            measured = [client for client, part in parts.items() if part in ("measure", "both")]
            return self._decide(new, replies.of(measured))
        if state.stage == "train":
            trained = replies.of([client for client, part in parts.items() if part == "train"])
            new = self._cho(new, trained) if self.rule == "cho" else self._train(new, trained)
            return replace(new, round=state.round + 1, joins=(), rests=())
        return new

    def assignment(self, state: MAXFLState) -> Assignment:
        # Row 0 is w; a row for each client that trains alone follows.
        sharing = without(state.clients, state.apart)
        row = dict.fromkeys(sharing, 0)
        for i, client in enumerate(state.apart):
            row[client] = 1 + i
        single = [(client,) for client in state.apart]
        groups = as_groups([sharing, *single] if sharing else single)
        return Assignment(models=torch.cat([state.model[None], state.own]), row=row, groups=groups)

    def explain(self, state: MAXFLState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: MAXFLState, clients: tuple[Client, ...]) -> MAXFLState:
        return replace(state, clients=joined(state.clients, clients))

    def retire(self, state: MAXFLState, clients: tuple[Client, ...]) -> MAXFLState:
        """Remove clients; their ŵ_n or ρ_n are kept, so that on return they need not train alone again."""
        apart, own = rows_without(state.apart, state.own, clients)
        return replace(state, clients=without(state.clients, clients), apart=apart, own=own)

    # -- a client's task in an exchange
    # ---------------------------------------------------------------------------------

    def _part(self, state: MAXFLState, client: Client) -> str | None:
        """alone: train ŵ_n; bar: measure it; measure: measure w; both: these two; train: train; None: rest."""
        if state.stage == "train" and self.rule != "cho":
            return "train"  # in the first round all of them
        kept = client in state.alone
        if client in state.bars or (kept and self.rule == "distance"):
            return state.stage if state.stage in ("measure", "train") else None
        if not kept:
            return "alone"
        return {"bars": "bar", "train": "bar", "measure": "both"}.get(state.stage)

    def _task(self, part: str | None, prior: int) -> Task | None:
        """A part as a task, where w is row 0, w_0 row 1 and the client's ŵ_n row ``prior``."""
        match part:
            case "alone":
                return Task(offered=(1,), epochs=self.pretrain_epochs, lr_round=0)
            case "bar":
                return Task(offered=(prior,), epochs=0, measure="train")
            case "measure":
                return Task(offered=(0,), epochs=0, measure="train")
            case "both":
                return Task(offered=(0, prior), choose=2, epochs=0, measure="train")
            case "train":
                return Task(offered=(0,), measure="train" if self.rule == "cho" else None)
        return None

    def _learn(
        self, state: MAXFLState, replies: Replies, parts: Mapping[Client, str | None]
    ) -> MAXFLState:
        """Store every ŵ_n and ρ_n in the replies; where ρ_n is known and sufficient, delete ŵ_n."""
        measured = replies.of([c for c, part in parts.items() if part in ("bar", "both")])
        bars = dict(state.bars)
        for client, losses in zip(measured.clients, measured.losses, strict=True):
            bars[client] = losses[-1]
        alone, prior = rows_without(state.alone, state.prior, measured.clients)
        pretrained = replies.of([client for client, part in parts.items() if part == "alone"])
        if pretrained.clients:
            alone = (*alone, *pretrained.clients)
            prior = torch.cat([prior, state.first + pretrained.all_updates])
        return replace(state, bars=bars, alone=alone, prior=prior)

    # -- distance and local-loss: some clients take part, the others train alone
    # ----------------------------------------

    def _decide(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        """Choose the participants by their losses with w, and the model that they start from."""
        losses = _first_losses(replies)
        bars = {client: self._bar(state, client) for client in losses}
        joins = tuple(client for client in losses if losses[client] < bars[client])
        rests = tuple(client for client in losses if client not in set(joins))
        # The participants start from the data-weighted mean of their current models: w plus the
        # mean difference of these from w.
        start = state.model
        if joins:
            current = dict(zip(state.apart, state.own, strict=True))
            differences = [current.get(client, state.model) - state.model for client in joins]
            data_weights = weights(replies.of(joins), "data")
            start = start + replies.averaging.of(torch.stack(differences), data_weights)
        note = self._note(losses, bars, joins, rests)
        return replace(
            state, start=start, joins=joins, rests=rests, notes=(note,) if losses else ()
        )

    def _bar(self, state: MAXFLState, client: Client) -> float:
        """ρ_n, or the squared distance of ŵ_n from w over trainable parameters."""
        if self.rule == "local-loss":
            return state.bars[client]
        difference = (state.prior[state.alone.index(client)] - state.model)[: state.parameters]
        return float(difference.double().square().sum())

    def _plan_round(self, state: MAXFLState, cohort: Cohort) -> Plan:
        """Participants train from their mean, row 0; the others from their current models."""
        present = set(cohort.present)
        models = torch.cat([state.start[None], state.model[None], state.own])
        row = {client: 2 + i for i, client in enumerate(state.apart)}
        tasks = {client: Task(offered=(0,)) for client in state.joins if client in present}
        for client in state.rests:
            if client in present:
                tasks[client] = Task(offered=(row.get(client, 1),))
        return Plan(models=models, tasks=tasks)

    def _train(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        """Clients that rest keep their trained models; the others' are averaged. In the first round no client rests."""
        if not replies.clients:
            return state
        current = dict(zip(state.apart, state.own, strict=True))
        resting = replies.of(state.rests)
        joining = replies.of(set(replies.clients) - set(state.rests))
        clients, models = rows_without(state.apart, state.own, replies.clients)
        if resting.clients:
            starts = torch.stack([current.get(client, state.model) for client in resting.clients])
            clients = (*clients, *resting.clients)
            models = torch.cat([models, starts + resting.all_updates])
        global_model = state.model
        if joining.clients:
            global_model = state.start + joining.mean(weights(joining, "data"))
        return replace(state, model=global_model, apart=clients, own=models)

    # -- cho: all clients take part, with weights
    # -----------------------------------------------------------------------

    def _cho(self, state: MAXFLState, replies: Replies) -> MAXFLState:
        if not replies.clients:
            return state
        losses = _first_losses(replies)
        bars = {client: state.bars[client] for client in losses}
        # w <- w + η_g Σ q_n Δ_n / (Σ q_n + ε), with the weights q_n = σ(z_n)(1 - σ(z_n)).
        q = appeal(np.array([*losses.values()]) - np.array([*bars.values()]))
        step = replies.mean(q / (q.sum() + self.epsilon))
        # The step size not for BatchNorm's statistics: a long step could make a variance negative.
        step[: state.parameters] *= self.server_lr
        model = state.model + step
        met = sum(losses[client] < bars[client] for client in losses)
        text = f"the global model is better than their own for {met} of {len(losses)} clients; weights sum to {q.sum():.3g}"
        values = {
            "loss": losses,
            "own_loss": bars,
            "weight": dict(zip(losses, q.tolist(), strict=True)),
        }
        return replace(
            state,
            model=model,
            notes=(
                Note(
                    kind="keep", effect="keeps", clients=replies.clients, text=text, values=values
                ),
            ),
        )

    def _note(
        self,
        losses: Mapping[Client, float],
        bars: Mapping[Client, float],
        joins: tuple[Client, ...],
        rests: tuple[Client, ...],
    ) -> Note:
        """Describe who takes part, that is, has model 0, the global one; a client's own is model 1."""
        bar = (
            "the squared distance to their own" if self.rule == "distance" else "that of their own"
        )
        text = f"{len(joins)} of {len(losses)} clients take part: the global model's training loss is below {bar}"
        parts = as_groups(
            [joins, *((client,) for client in rests)] if joins else [(client,) for client in rests]
        )
        return Note(
            kind="cluster" if len(parts) > 1 else "keep",
            effect="divides" if len(parts) > 1 else "keeps",
            clients=tuple(losses),
            text=text,
            parts=parts,
            values={
                "loss": losses,
                "bar": bars,
                "model": {c: 0.0 if c in set(joins) else 1.0 for c in losses},
            },
        )


def _first_losses(replies: Replies) -> dict[Client, float]:
    """Client -> its loss with the first model that it measured, w."""
    return {c: losses[0] for c, losses in zip(replies.clients, replies.losses, strict=True)}


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
    small = np.exp(-np.abs(z))
    return np.nan_to_num(small / (1 + small) ** 2, nan=0.0)
