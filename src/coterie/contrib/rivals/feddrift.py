"""FedDrift: at each time step, clients whose least loss rose train a new model, and models that serve alike are merged.

E. Jothimurugesan, K. Hsieh, J. Wang, G. Joshi, P. B. Gibbons, "Federated Learning under Distributed
Concept Drift", AISTATS 2023, arXiv 2206.00799, and its published code.

Deviations
- Clients have the data of the current time step only. The published code also trains a model on the
  data of earlier time steps that were assigned to it, and measures cluster distances on them. No
  method here sees earlier data.
- A model without a client in the current time step is therefore not merged. It stays, because its
  concept may come back.
- A client compares with its least loss at the end of the time step before, on the data of that time
  step. The published code compares with the least loss at that step's beginning, before training,
  so that nothing is known of a new concept at first.
- A new model is a copy of the client's best one, as in the published code.
- ``measure="accuracy"`` is what the published code compares, ``1 - accuracy`` in place of the loss.
- Weights are renormalised over the clients that answered. A client that does not answer the
  measurement keeps its model.
- With an infinite ``delta`` nothing is measured, and all is FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering import cut_dendrogram, dendrogram, groups_of
from coterie.core import (
    Assignment,
    Client,
    Cohort,
    Criterion,
    Federation,
    Needs,
    Note,
    Plan,
    Replies,
    Task,
    Weighting,
    groups_by,
    joined,
    state,
    without,
)
from coterie.methods._model_choice import MOST_MODELS, of_all
from coterie.settings import check, setting
from coterie.settings.calls import public


@state("feddrift")
class FedDriftState:
    """State of FedDrift.

    Attributes:
        clients: all ids.
        models: ``(k, d)``, all models.
        phase: what the next exchange does: ``detect``, ``train`` or ``remember``.
        round: number of rounds completed.
        row: client -> its model, for clients that have one.
        last: client -> its least loss at the end of the last time step.
        examples: client -> its number of training examples.
        seen: for each model, the examples of the clients that trained it, summed over completed
            time steps.
        used: for each model, the last time step in which a client had it.
        notes: notes of the last exchange.
    """

    clients: tuple[Client, ...]
    models: torch.Tensor
    phase: str = "train"
    round: int = 0
    row: Mapping[Client, int] = field(default_factory=dict)
    last: Mapping[Client, float] = field(default_factory=dict)
    examples: Mapping[Client, int] = field(default_factory=dict)
    seen: tuple[float, ...] = (0.0,)
    used: tuple[int, ...] = (0,)
    notes: tuple[Note, ...] = ()

    def members(self, row: int) -> tuple[Client, ...]:
        """The clients of a model."""
        return tuple(sorted(client for client, at in self.row.items() if at == row))

    def weight(self, row: int) -> float:
        """The examples from which a model has come, with those of its clients in the current time step."""
        return self.seen[row] + sum(self.examples.get(client, 1) for client in self.members(row))


DIVERGED = 1e9
"""Value that replaces a loss that is not finite, and the distance between a diverged model and
every other."""


def cluster_distances(losses: np.ndarray) -> np.ndarray:
    """Return FedDrift's distances of clusters.

    ``L_ij`` is the loss of model i on the data of cluster j. The distance of i and j is ``max(L_ij
    - L_ii, L_ji - L_jj, 0)``: how much worse one of the two models serves the other cluster's data
    than the data of its own cluster. This is the paper's definition, and distance ``A`` of the
    published code, which its commands use.

    Args:
        losses: Shape ``(k, k)``: entry (i, j) is ``L_ij``. A loss that is not finite counts as
            enormous.

    Returns:
        Shape ``(k, k)``: the distances, symmetric, with a zero diagonal. A model whose loss on the
        data of its own cluster is not finite is far from every other.

    Example:
        >>> cluster_distances(np.array([[1.0, 3.0], [1.5, 2.0]]))  # 3 - 1 is more than 1.5 - 2
        array([[0., 2.],
               [2., 0.]])
    """
    bounded = np.nan_to_num(losses, nan=DIVERGED, posinf=DIVERGED, neginf=-DIVERGED)
    worse = (
        bounded - bounded.diagonal()[:, None]
    )  # row i: model i on each cluster's data, and less than on its own
    distances = np.maximum(np.maximum(worse, worse.T), 0.0)
    diverged = ~np.isfinite(
        losses.diagonal()
    )  # equally bad everywhere, so that its distances would be zero
    distances[diverged, :] = DIVERGED
    distances[:, diverged] = DIVERGED
    np.fill_diagonal(distances, 0.0)
    return distances


def drifted(
    losses: Mapping[Client, np.ndarray], last: Mapping[Client, float], delta: float
) -> tuple[Client, ...]:
    """Return the clients whose least loss is more than ``delta`` above their last one; one without a last one has not drifted.

    Args:
        losses: Client -> the losses ``(k,)`` of all models on its new data.
        last: Client -> its least loss at the end of the last time step.
        delta: The threshold.
    """
    return tuple(
        sorted(c for c, row in losses.items() if c in last and float(row.min()) - last[c] > delta)
    )


@public
@dataclass(frozen=True, kw_only=True)
class FedDrift:
    """New models for clients whose loss rises at a time step, and a merge of models that serve alike."""

    name: ClassVar[str] = "feddrift"

    period: int = setting(20, "rounds of a time step, after which data may change", ge=1)
    delta: float = setting(
        0.1, "rise of the loss that is a drift, and distance below which models merge (δ)", gt=0
    )
    measure: str = setting(
        "loss", "what is compared: the loss, or 1 - accuracy", choices=("loss", "accuracy")
    )
    models: int = setting(
        30,
        "maximum number of models; then the one unused for longest is replaced",
        ge=1,
        le=MOST_MODELS,
    )
    fraction: float = setting(
        1.0, "fraction of each model's clients sampled in a round, at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "data", "weights of means: by training examples, or uniform", choices=("data", "uniform")
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

    def init(self, federation: Federation) -> FedDriftState:
        return FedDriftState(
            clients=federation.clients,
            models=federation.draw(0)[None],
            row=dict.fromkeys(federation.clients, 0),
        )

    def plan(self, state: FedDriftState, cohort: Cohort) -> Plan:
        known = tuple(row for row, step in enumerate(state.used) if step >= 0)
        if state.phase != "train":
            task = Task(offered=known, epochs=0, measure="train")
            tasks = dict.fromkeys(sorted(cohort.present), task)
            return Plan(
                models=state.models, tasks=tasks, need="mean", ends_round=state.phase == "remember"
            )
        groups = [(row, state.members(row)) for row in known]
        tasks = {
            c: Task(offered=(row,))
            for row, members in groups
            if members
            for c in cohort.sample(members, self.fraction)
        }
        new = [c for c in state.clients if c not in state.row and c in cohort.present]
        tasks |= dict.fromkeys(new, Task(offered=known, measure="train"))
        ends = not self._completes(state)
        return Plan(
            models=state.models, tasks=tasks, need="mean", weighting=self.weighting, ends_round=ends
        )

    def _completes(self, state: FedDriftState) -> bool:
        """Whether the round is the last of its time step, at whose end clients measure the models."""
        return not math.isinf(self.delta) and (state.round + 1) % self.period == 0

    def step(self, state: FedDriftState, replies: Replies) -> FedDriftState:
        counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        state = replace(state, examples={**state.examples, **counts}, notes=())
        if state.phase == "detect":
            return self._detect(state, self._measured(state, replies))
        if state.phase == "remember":
            least = {c: float(row.min()) for c, row in self._measured(state, replies).items()}
            seen = tuple(state.weight(row) for row in range(len(state.models)))
            return replace(
                state,
                phase="detect",
                round=state.round + 1,
                seen=seen,
                last={**state.last, **least},
            )
        models = state.models if replies.means is None else state.models + replies.mean_updates
        chosen = {c: rows[0] for c, rows in zip(replies.clients, replies.chosen, strict=True)}
        new = replace(state, models=models, row={**state.row, **chosen})
        return (
            replace(new, phase="remember")
            if self._completes(state)
            else replace(new, round=state.round + 1)
        )

    def _measured(self, state: FedDriftState, replies: Replies) -> dict[Client, np.ndarray]:
        """Client -> the losses ``(k,)`` of all models on its data; infinite for those that are not a number, or not in use."""
        values = replies.losses if self.measure == "loss" else replies.accuracies
        known = [row for row, step in enumerate(state.used) if step >= 0]
        found = {}
        for client, row in zip(replies.clients, values, strict=True):
            losses = np.full(len(state.models), np.inf)
            losses[known] = row if self.measure == "loss" else 1 - np.array(row)
            found[client] = np.nan_to_num(losses, nan=np.inf)
        return found

    # -- a time step begins
    # ---------------------------------------------------------------------------------------------

    def _detect(self, state: FedDriftState, losses: Mapping[Client, np.ndarray]) -> FedDriftState:
        """Give each client its best model, or a new one if it has drifted; then merge the other models."""
        step, away = state.round // self.period, drifted(losses, state.last, self.delta)
        best = {client: int(row.argmin()) for client, row in losses.items()}
        new = replace(state, phase="train", row={**state.row, **best})
        new = self._used(new, step)
        isolated = []
        for client in away:
            new, row = self._new_model(new, client, best[client], step)
            isolated += [] if row is None else [row]
        rows = [row for row in sorted(set(new.row.values())) if row not in isolated]
        new, merges = self._merge(new, rows, losses)
        note = self._note(new, losses, state.last, away, merges)
        return replace(new, notes=() if note is None else (note,))

    def _used(self, state: FedDriftState, step: int) -> FedDriftState:
        now = set(state.row.values())
        return replace(
            state, used=tuple(step if row in now else was for row, was in enumerate(state.used))
        )

    def _new_model(
        self, state: FedDriftState, client: Client, best: int, step: int
    ) -> tuple[FedDriftState, int | None]:
        """The state in which a client has a copy of its best model, and its row; None if all models are in use."""
        models, used, seen = state.models.clone(), list(state.used), list(state.seen)
        row = min(
            range(len(used)), key=lambda at: used[at]
        )  # a free one, or the one unused for longest
        if used[row] >= 0 and len(used) < self.models:
            row, models, used, seen = (
                len(used),
                torch.cat([models, models[:1]]),
                [*used, step],
                [*seen, 0.0],
            )
        elif used[row] == step:
            return state, None
        models[row] = state.models[best]
        used[row], seen[row] = step, 0.0
        return replace(
            state, models=models, used=tuple(used), seen=tuple(seen), row={**state.row, client: row}
        ), row

    def _merge(
        self, state: FedDriftState, rows: list[int], losses: Mapping[Client, np.ndarray]
    ) -> tuple[FedDriftState, int]:
        """Merge models by complete linkage of their distances; the number of models that are gone."""
        heard = {row: [c for c in state.members(row) if c in losses] for row in rows}
        rows = [row for row in rows if heard[row]]
        if len(rows) < 2:
            return state, 0
        matrix = np.empty((len(rows), len(rows)))
        for j, row in enumerate(rows):
            sizes = [state.examples.get(c, 1) for c in heard[row]]
            matrix[:, j] = np.average([losses[c][rows] for c in heard[row]], axis=0, weights=sizes)
        labels = cut_dendrogram(
            dendrogram(cluster_distances(matrix), "complete"), threshold=self.delta
        )
        parts = [[rows[i] for i in part] for part in groups_of(labels)]
        for part in parts:
            state = _merged(state, part)
        return state, len(rows) - len(parts)

    def _note(
        self,
        state: FedDriftState,
        losses: Mapping[Client, np.ndarray],
        last: Mapping[Client, float],
        away: tuple[Client, ...],
        merges: int,
    ) -> Note | None:
        """Describe the beginning of a time step; None if no client could be compared."""
        rises = {c: float(row.min()) - last[c] for c, row in losses.items() if c in last}
        finite = [rise for rise in rises.values() if math.isfinite(rise)]
        if not finite:
            return None
        criterion = Criterion(
            "largest rise of a least loss",
            max(finite),
            ">",
            self.delta,
            "delta",
            key="loss_rise",
            met="drift",
            unmet="no drift",
        )
        groups = self.assignment(state).groups
        step = state.round // self.period + 1
        drifted = f"{len(away)} clients drifted, {merges} models merged"
        text = f"time step {step}: {drifted}; {criterion.text}"
        return Note(
            kind="cluster" if away or merges else "keep",
            effect="divides" if away or merges else "keeps",
            clients=state.clients,
            text=text,
            parts=groups,
            criteria=(criterion,),
            numbers={
                "drifted": float(len(away)),
                "merged": float(merges),
                "groups": float(len(groups)),
            },
            values={
                "rise of the least loss": rises,
                "model": {c: float(row) for c, row in state.row.items()},
            },
        )

    # -- the rest of the contract
    # ---------------------------------------------------------------------------------------

    def assignment(self, state: FedDriftState) -> Assignment:
        row = of_all(state.clients, state.row, 0)
        return Assignment(models=state.models, row=row, groups=groups_by(row))

    def explain(self, state: FedDriftState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: FedDriftState, clients: tuple[Client, ...]) -> FedDriftState:
        """Admit clients; they choose the model of least loss when they first train."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: FedDriftState, clients: tuple[Client, ...]) -> FedDriftState:
        """Forget the clients; what the models learned from them stays."""
        gone = set(clients)
        row = {c: at for c, at in state.row.items() if c not in gone}
        last = {c: loss for c, loss in state.last.items() if c not in gone}
        return replace(state, clients=without(state.clients, clients), row=row, last=last, notes=())


def _merged(state: FedDriftState, part: list[int]) -> FedDriftState:
    """Replace models by their mean, weighted by the examples that they have come from; it is in the first one's row.

    The other rows are free for new models.
    """
    if len(part) < 2:
        return state
    weights = np.array([state.weight(row) for row in part])
    models = state.models.clone()
    models[part[0]] = (
        torch.as_tensor(weights / weights.sum(), dtype=models.dtype) @ state.models[part]
    )
    gone, seen, used = set(part[1:]), list(state.seen), list(state.used)
    seen[part[0]] = sum(state.seen[row] for row in part)
    for row in gone:
        seen[row], used[row] = 0.0, -1
    at = {client: part[0] if row in gone else row for client, row in state.row.items()}
    return replace(state, models=models, seen=tuple(seen), used=tuple(used), row=at)
