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
    NOT_STORED,
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
from coterie.methods._leavers import entries_without
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
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    def members(self, model_row: int) -> tuple[Client, ...]:
        """The clients of a model."""
        return tuple(
            sorted(client for client, client_row in self.row.items() if client_row == model_row)
        )

    def weight(self, model_row: int) -> float:
        """The examples from which a model has come, with those of its clients in the current time step."""
        current_examples = [self.examples.get(client, 1) for client in self.members(model_row)]
        return self.seen[model_row] + sum(current_examples)

    @property
    def models_in_use(self) -> tuple[int, ...]:
        """The rows of models that are not free."""
        return tuple(model_row for model_row, time_step in enumerate(self.used) if time_step >= 0)


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
    # L_ij - L_ii: how much worse model i is on the data of cluster j than on those of its own.
    excess = bounded - bounded.diagonal()[:, None]
    distances = np.maximum(np.maximum(excess, excess.T), 0.0)
    # A diverged model is equally bad everywhere, so that its distances would be zero.
    diverged = ~np.isfinite(losses.diagonal())
    distances[diverged, :] = DIVERGED
    distances[:, diverged] = DIVERGED
    np.fill_diagonal(distances, 0.0)
    return distances


def drifted(
    losses: Mapping[Client, np.ndarray], last_losses: Mapping[Client, float], delta: float
) -> tuple[Client, ...]:
    """Return the clients whose least loss is more than ``delta`` above their last one; one without a last one has not drifted.

    Args:
        losses: Client -> the losses ``(k,)`` of all models on its new data.
        last_losses: Client -> its least loss at the end of the last time step.
        delta: The threshold.
    """
    rises = loss_rises(losses, last_losses)
    return tuple(sorted(client for client, rise in rises.items() if rise > delta))


def loss_rises(
    losses: Mapping[Client, np.ndarray], last_losses: Mapping[Client, float]
) -> dict[Client, float]:
    """Return how much the least loss of each client has risen; clients without a last one are left out.

    Args:
        losses: Client -> the losses ``(k,)`` of all models on its new data.
        last_losses: Client -> its least loss at the end of the last time step.
    """
    # A newcomer, or a client that was silent, has nothing to compare with.
    rises = {}
    for client, client_losses in losses.items():
        if client in last_losses:
            rises[client] = float(client_losses.min()) - last_losses[client]
    return rises


@public
@dataclass(frozen=True, kw_only=True)
class FedDrift:
    """For data that change: a new model for clients whose loss rises, and models that turn out equal are merged."""

    name: ClassVar[str] = "feddrift"

    period: int = setting(
        20,
        "rounds of a time step, after which data may change",
        ge=1,
        begins="the first time step in which data may change",
        rounds_later=1,
    )
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
        # Around the change of the time step, all clients measure all models.
        if state.phase != "train":
            task = Task(offered=state.models_in_use, epochs=0, measure="train")
            return Plan(
                models=state.models,
                tasks=dict.fromkeys(sorted(cohort.present), task),
                need="mean",
                ends_round=state.phase == "remember",
            )
        # A round: the clients of each model train it.
        tasks = {}
        for model_row in state.models_in_use:
            members = state.members(model_row)
            if members:
                sampled_clients = cohort.sample(members, self.fraction)
                tasks.update(dict.fromkeys(sampled_clients, Task(offered=(model_row,))))
        # Newcomers choose the model of least loss.
        without_model = without(state.clients, state.row)
        newcomers = [client for client in without_model if client in cohort.present]
        tasks.update(dict.fromkeys(newcomers, Task(offered=state.models_in_use, measure="train")))
        return Plan(
            models=state.models,
            tasks=tasks,
            need="mean",
            weighting=self.weighting,
            ends_round=not self._ends_time_step(state),
        )

    def _ends_time_step(self, state: FedDriftState) -> bool:
        """Whether the round is the last of its time step, at whose end clients measure the models."""
        return not math.isinf(self.delta) and (state.round + 1) % self.period == 0

    def step(self, state: FedDriftState, replies: Replies) -> FedDriftState:
        example_counts = dict(zip(replies.clients, map(int, replies.examples), strict=True))
        state = replace(state, examples={**state.examples, **example_counts}, notes=())
        match state.phase:
            case "detect":
                return self._detect(state, self._measured(state, replies))
            case "remember":
                return self._remember(state, self._measured(state, replies))
        # FedAvg in each model's group. A newcomer has chosen its model.
        models = state.models if replies.means is None else state.models + replies.mean_updates
        row_of_client = dict(state.row)
        for client, chosen_rows in zip(replies.clients, replies.chosen, strict=True):
            row_of_client[client] = chosen_rows[0]
        new_state = replace(state, models=models, row=row_of_client)
        if self._ends_time_step(state):
            return replace(new_state, phase="remember")
        return replace(new_state, round=state.round + 1)

    def _remember(
        self, state: FedDriftState, losses_of_client: Mapping[Client, np.ndarray]
    ) -> FedDriftState:
        """End a time step: keep each client's least loss, and the examples from which each model has come."""
        # In the next time step, a client has drifted if its least loss is far above this one.
        least_losses = {}
        for client, client_losses in losses_of_client.items():
            least_losses[client] = float(client_losses.min())
        return replace(
            state,
            phase="detect",
            round=state.round + 1,
            seen=tuple(state.weight(model_row) for model_row in range(len(state.models))),
            last={**state.last, **least_losses},
        )

    def _measured(self, state: FedDriftState, replies: Replies) -> dict[Client, np.ndarray]:
        """Client -> the losses ``(k,)`` of all models on its data; infinite for those that are not a number, or not in use."""
        # Models that are free have no loss, so that no client chooses them.
        by_accuracy = self.measure == "accuracy"
        measurements = replies.accuracies if by_accuracy else replies.losses
        losses_of_client = {}
        for client, measured in zip(replies.clients, measurements, strict=True):
            client_losses = np.full(len(state.models), np.inf)
            client_losses[list(state.models_in_use)] = (
                1 - np.array(measured) if by_accuracy else measured
            )
            losses_of_client[client] = np.nan_to_num(client_losses, nan=np.inf)
        return losses_of_client

    # -- a time step begins
    # ---------------------------------------------------------------------------------------------

    def _detect(
        self, state: FedDriftState, losses_of_client: Mapping[Client, np.ndarray]
    ) -> FedDriftState:
        """Give each client its best model, or a new one if it has drifted; then merge the other models."""
        time_step = state.round // self.period
        drifted_clients = drifted(losses_of_client, state.last, self.delta)
        # Every client gets the model that is best on its new data.
        best_row = {}
        for client, client_losses in losses_of_client.items():
            best_row[client] = int(client_losses.argmin())
        new_state = replace(state, phase="train", row={**state.row, **best_row})
        new_state = _mark_used(new_state, time_step)
        # Each client that has drifted gets a new model of its own, which starts as a copy of its best.
        isolated_rows = []
        for client in drifted_clients:
            new_state, new_row = self._new_model(new_state, client, best_row[client], time_step)
            if new_row is not None:
                isolated_rows.append(new_row)
        # The other models merge where one serves the other's clients as well.
        mergeable_rows = sorted(set(new_state.row.values()) - set(isolated_rows))
        new_state, num_merged = self._merge(new_state, mergeable_rows, losses_of_client)
        note = self._note(new_state, losses_of_client, state.last, drifted_clients, num_merged)
        return replace(new_state, notes=() if note is None else (note,))

    def _new_model(
        self, state: FedDriftState, client: Client, best_row: int, time_step: int
    ) -> tuple[FedDriftState, int | None]:
        """The state in which a client has a copy of its best model, and its row; None if all models are in use."""
        models = state.models.clone()
        last_used = list(state.used)
        example_counts = list(state.seen)
        # A free row, or the row that has been unused for longest.
        new_row = min(range(len(last_used)), key=last_used.__getitem__)
        if last_used[new_row] >= 0 and len(last_used) < self.models:
            # No row is free, and there is room for one more.
            new_row = len(last_used)
            models = torch.cat([models, models[:1]])
            last_used.append(time_step)
            example_counts.append(0.0)
        elif last_used[new_row] == time_step:
            # All models have clients: the client keeps its best one.
            return state, None
        models[new_row] = state.models[best_row]
        last_used[new_row] = time_step
        example_counts[new_row] = 0.0
        new_state = replace(
            state,
            models=models,
            used=tuple(last_used),
            seen=tuple(example_counts),
            row={**state.row, client: new_row},
        )
        return new_state, new_row

    def _merge(
        self,
        state: FedDriftState,
        model_rows: list[int],
        losses_of_client: Mapping[Client, np.ndarray],
    ) -> tuple[FedDriftState, int]:
        """Merge models by complete linkage of their distances; the number of models that are gone."""
        # The distance needs the losses of each cluster's own clients.
        measuring_clients = {}
        for model_row in model_rows:
            members = [client for client in state.members(model_row) if client in losses_of_client]
            if members:
                measuring_clients[model_row] = members
        model_rows = list(measuring_clients)
        if len(model_rows) < 2:
            return state, 0
        # L_ij: the loss of model i on the data of cluster j, weighted by its clients' examples.
        cluster_losses = np.empty((len(model_rows), len(model_rows)))
        for cluster, model_row in enumerate(model_rows):
            members = measuring_clients[model_row]
            sizes = [state.examples.get(client, 1) for client in members]
            member_losses = [losses_of_client[client][model_rows] for client in members]
            cluster_losses[:, cluster] = np.average(member_losses, axis=0, weights=sizes)
        # Models merge while no two of a group are farther apart than δ.
        tree = dendrogram(cluster_distances(cluster_losses), "complete")
        clusters = groups_of(cut_dendrogram(tree, threshold=self.delta))
        for positions in clusters:
            state = _merged(state, [model_rows[position] for position in positions])
        return state, len(model_rows) - len(clusters)

    def _note(
        self,
        state: FedDriftState,
        losses_of_client: Mapping[Client, np.ndarray],
        last_losses: Mapping[Client, float],
        drifted_clients: tuple[Client, ...],
        num_merged: int,
    ) -> Note | None:
        """Describe the beginning of a time step; None if no client could be compared."""
        # A loss that is not a number counts as infinite; such a rise cannot be compared with δ.
        rises = loss_rises(losses_of_client, last_losses)
        finite_rises = list(filter(math.isfinite, rises.values()))
        if not finite_rises:
            return None
        criterion = Criterion(
            "largest rise of a least loss",
            max(finite_rises),
            ">",
            self.delta,
            "delta",
            key="loss_rise",
            met="drift",
            unmet="no drift",
        )
        # Time steps count from 1 in notes.
        groups = self.assignment(state).groups
        time_step = state.round // self.period + 1
        has_changed = bool(drifted_clients) or num_merged > 0
        changes = f"{len(drifted_clients)} clients drifted, {num_merged} models merged"
        return Note(
            kind="cluster" if has_changed else "keep",
            effect="divides" if has_changed else "keeps",
            clients=state.clients,
            text=f"time step {time_step}: {changes}; {criterion.text}",
            parts=groups,
            criteria=(criterion,),
            numbers={
                "drifted": float(len(drifted_clients)),
                "merged": float(num_merged),
                "groups": float(len(groups)),
            },
            values={
                "rise of the least loss": rises,
                "model": {client: float(model_row) for client, model_row in state.row.items()},
            },
        )

    # -- the rest of the contract
    # ---------------------------------------------------------------------------------------

    def assignment(self, state: FedDriftState) -> Assignment:
        row_of_client = of_all(state.clients, state.row, 0)
        return Assignment(models=state.models, row=row_of_client, groups=groups_by(row_of_client))

    def explain(self, state: FedDriftState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: FedDriftState, clients: tuple[Client, ...]) -> FedDriftState:
        """Admit clients; they choose the model of least loss when they first train."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: FedDriftState, clients: tuple[Client, ...]) -> FedDriftState:
        """Forget the clients; what the models learned from them stays."""
        return replace(
            state,
            clients=without(state.clients, clients),
            row=entries_without(state.row, clients),
            last=entries_without(state.last, clients),
            notes=(),
        )


def _merged(state: FedDriftState, merging_rows: list[int]) -> FedDriftState:
    """Replace models by their mean, weighted by the examples that they have come from; it is in the first one's row.

    The other rows are free for new models.
    """
    if len(merging_rows) < 2:
        return state
    merged_row = merging_rows[0]
    freed_rows = set(merging_rows[1:])
    # Each model counts by the examples of all time steps that it has learned from.
    example_weights = np.array([state.weight(row) for row in merging_rows])
    shares = torch.as_tensor(example_weights / example_weights.sum(), dtype=state.models.dtype)
    models = state.models.clone()
    models[merged_row] = shares @ state.models[merging_rows]
    example_counts = list(state.seen)
    last_used = list(state.used)
    example_counts[merged_row] = sum(state.seen[row] for row in merging_rows)
    # Nobody has used a free model.
    for freed_row in freed_rows:
        example_counts[freed_row] = 0.0
        last_used[freed_row] = -1
    row_of_client = {}
    for client, model_row in state.row.items():
        row_of_client[client] = merged_row if model_row in freed_rows else model_row
    return replace(
        state,
        models=models,
        seen=tuple(example_counts),
        used=tuple(last_used),
        row=row_of_client,
    )


def _mark_used(state: FedDriftState, time_step: int) -> FedDriftState:
    """Store the time step as the last one of each model that a client has."""
    last_used = list(state.used)
    for model_row in set(state.row.values()):
        last_used[model_row] = time_step
    return replace(state, used=tuple(last_used))
