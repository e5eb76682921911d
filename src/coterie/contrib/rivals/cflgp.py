"""CFL-GP: k models; clients are grouped by the updates that they make from several models, averaged over rounds.

H. Kim, H. Kim, G. de Veciana, "Clustered Federated Learning via Gradient-based Partitioning", ICML
2024, PMLR 235, and the code published with it. In a *clustering round* all clients train from one
model, the criterion; the models take turns. The mean of a client's updates from a model is a part
of its profile, which has one part for each of the k models. The matrix of profiles is reduced to
its k leading singular directions, and k-means finds k groups in it. A group takes the model of the
earlier group with which it has most clients in common. In each round every client also trains its
group's model, and each model is then the mean of what the clients of its group made.

Deviations
- The criterion rotates, as the paper has it, and clients train it from its own model. In the
  published code it is always model 0: of a profile only that part is ever filled, and a client of
  another group trains its own model for it.
- The mean of a client's updates from a model is over all of them. In the published code the weights
  of the first ones differ.
- A model is the mean of the models that its clients trained. In the published code, of which the
  first round trains one model only, the others then add these updates to draws of their own.
- The server keeps sketches of the updates. The published code keeps all parameters; with an option,
  those of the last layer, see ``layer``. Coordinates in the singular directions come from the Gram
  matrix, and are equal up to a rotation, which k-means does not see. k-means begins ten times and
  keeps the best result.
- A client without an update from the criterion of the first round, such as a newcomer, is served by
  the model of the largest group, and grouped when it has a profile of its own.
- The number of models is given. How the published code estimates it, from gaps of singular values
  and silhouettes, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering import gram, sketch
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
    Weighting,
    amounts,
    groups_by,
    joined,
    rows_without,
    state,
    without,
)
from coterie.methods._hostile_few import labels_without_few
from coterie.methods._leavers import entries_without
from coterie.methods._model_choice import MOST_MODELS
from coterie.methods._positions import positions_of
from coterie.settings import check, setting
from coterie.settings.calls import public

PROFILE = "profile"
"""The part of a clustering round's plan in which all clients train the criterion."""

TRAIN = "train"
"""The part in which clients of other groups train their own model."""


@state("cfl-gp")
class CFLGPState:
    """State of CFL-GP.

    Attributes:
        clients: all ids.
        models: ``(k, d)``, all models.
        columns: the columns of the last layer, from which profiles are made.
        row: client -> its model, for clients that have been grouped.
        round: number of rounds completed.
        known: the m clients that have a profile, sorted.
        profiles: ``(m, k, p)``, the mean update of each of them from each model, or its sketch;
            zeros where there is none.
        counts: ``(m, k)``, the number of updates in each mean.
        notes: notes of the last round.
    """

    clients: tuple[Client, ...]
    models: torch.Tensor
    columns: tuple[int, int]
    row: Mapping[Client, int] = field(default_factory=dict)
    round: int = 0
    known: tuple[Client, ...] = ()
    profiles: torch.Tensor
    counts: torch.Tensor
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)

    def row_for(self, client: Client) -> int:
        """The model of a client: that of its group, or of the largest group."""
        if client in self.row:
            return self.row[client]
        if not self.row:
            return 0
        # Of equally large groups, the first model counts.
        rows_in_use = list(self.row.values())
        return max(sorted(set(rows_in_use)), key=rows_in_use.count)

    def rows_for(self, clients: Sequence[Client]) -> list[int]:
        """The models of some clients."""
        return [self.row_for(client) for client in clients]


@public
@dataclass(frozen=True, kw_only=True)
class CFLGP:
    """Groups clients by k-means on their updates from several models, averaged over rounds."""

    name: ClassVar[str] = "cfl-gp"

    models: int = setting(4, "number of models (k)", ge=1, le=MOST_MODELS)
    period: int = setting(2, "rounds from one clustering round to the next", ge=1)
    until: int = setting(10, "rounds after which there is no further clustering", ge=1)
    layer: str = setting(
        "all",
        "the layers from which profiles are made: all, or the last one",
        choices=("all", "last"),
    )
    sketch: int = setting(
        4096,
        "numbers that the server keeps of an update, for each client and model",
        ge=4,
        multiple=4,
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
    )
    weighting: Weighting = setting(
        "uniform", "weights of means: uniform, or by training examples", choices=("uniform", "data")
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> Needs:
        """What the method needs from an engine."""
        return Needs(features=("several-tasks",), unchanged_by="rotation", fraction=self.fraction)

    def init(self, federation: Federation) -> CFLGPState:
        models = torch.stack([federation.draw(draw) for draw in range(self.models)])
        # Profiles are made from all parameters, or from those of the last layer.
        if self.layer == "last" and federation.dense:
            start, stop = federation.columns[federation.dense[-1]]
        else:
            start = federation.parameters.start or 0
            stop = federation.parameters.stop
        return CFLGPState(
            clients=federation.clients,
            models=models,
            columns=(start, stop),
            profiles=torch.zeros(0, self.models, min(self.sketch, stop - start)),
            counts=torch.zeros(0, self.models, dtype=torch.int64),
        )

    def criterion(self, state: CFLGPState) -> int | None:
        """The model that all clients train in the next round; None if it is no clustering round."""
        if state.round % self.period or state.round >= self.until:
            return None
        # The models take turns from one clustering round to the next.
        return state.round // self.period % self.models

    def plan(self, state: CFLGPState, cohort: Cohort) -> Plan:
        asked_clients = cohort.sample(state.clients, self.fraction)
        tasks = {client: Task(offered=(state.row_for(client),)) for client in asked_clients}
        train_plan = Plan(models=state.models, tasks=tasks, need="rows")
        criterion = self.criterion(state)
        if criterion is None:
            return train_plan
        # A clustering round: all clients train the criterion, and those of other groups also their own
        # group's model.
        profile_plan = Plan(
            models=state.models[criterion][None],
            tasks=dict.fromkeys(asked_clients, Task(offered=(0,))),
            need="rows",
        )
        other_tasks = {}
        for client, task in tasks.items():
            if task.offered != (criterion,):
                other_tasks[client] = task
        return Plan(
            models=state.models[:0],
            tasks={},
            parts={PROFILE: profile_plan, TRAIN: replace(train_plan, tasks=other_tasks)},
        )

    def step(self, state: CFLGPState, replies: Replies) -> CFLGPState:
        criterion = self.criterion(state)
        state = replace(state, round=state.round + 1, notes=())
        if criterion is None:
            start_models = state.models[state.rows_for(replies.clients)]
            return replace(state, models=self._means(state, [(replies, start_models)], state))
        # A clustering round: the updates from the criterion enter the profiles. Those of the
        # criterion's own group count for its model, too.
        profile_replies = replies.parts[PROFILE]
        train_replies = replies.parts[TRAIN]
        own_group = [
            client for client in profile_replies.clients if state.row_for(client) == criterion
        ]
        group_replies = profile_replies.of(own_group)
        trained = [
            (group_replies, state.models[criterion][None]),
            (train_replies, state.models[state.rows_for(train_replies.clients)]),
        ]
        new_state = state
        if profile_replies.clients:
            profiled = self._profiled(state, profile_replies, criterion)
            new_state = self._grouped(profiled, replies.averaging.hostile)
        return replace(new_state, models=self._means(state, trained, new_state))

    def _means(
        self,
        state_before: CFLGPState,
        trained: Sequence[tuple[Replies, torch.Tensor]],
        state_after: CFLGPState,
    ) -> torch.Tensor:
        """The models: of each group, the mean of the models that its clients trained.

        Args:
            state_before: the state with the models from which clients trained.
            trained: replies, and the models ``(n, d)`` from which their n clients trained, or the
                one from which all did.
            state_after: the state with the groups.
        """
        # The models that the clients trained, their numbers of examples, and the clients' groups.
        trained_parts = []
        example_parts = []
        group_rows: list[int] = []
        for replies, start_models in trained:
            if replies.clients:
                trained_parts.append(start_models + replies.all_updates)
                example_parts.append(replies.examples)
                group_rows += state_after.rows_for(replies.clients)
        models = state_before.models.clone()
        if not group_rows:
            return models
        trained_models = torch.cat(trained_parts)
        # The mean of the models that the clients of a group have trained; other models stay.
        client_weights = amounts(np.concatenate(example_parts), self.weighting)
        row_of_reply = np.array(group_rows)
        # The rule by which the run averages is the same for all replies.
        averaging = trained[0][0].averaging
        for model_row in sorted(set(group_rows)):
            members = np.flatnonzero(row_of_reply == model_row)
            shares = client_weights[members] / client_weights[members].sum()
            models[model_row] = averaging.around(models[model_row], trained_models[members], shares)
        return models

    def _profiled(self, state: CFLGPState, replies: Replies, criterion: int) -> CFLGPState:
        """The state with the updates of clients from the criterion in their profiles."""
        # The tables grow by the clients that have had no profile.
        profiled_clients = joined(state.known, replies.clients)
        num_profiled = len(profiled_clients)
        profiles = state.profiles.new_zeros(num_profiled, *state.profiles.shape[1:])
        update_counts = state.counts.new_zeros(num_profiled, self.models)
        earlier = positions_of(state.known, among=profiled_clients)
        profiles[earlier] = state.profiles
        update_counts[earlier] = state.counts
        # Each new update moves the mean of the client's updates from the criterion.
        updates = replies.all_updates[:, slice(*state.columns)]
        if updates.shape[1] > self.sketch:
            updates = sketch(updates, self.sketch)
        answered = positions_of(replies.clients, among=profiled_clients)
        update_counts[answered, criterion] += 1
        differences = updates - profiles[answered, criterion]
        profiles[answered, criterion] += differences / update_counts[answered, criterion, None]
        return replace(state, known=profiled_clients, profiles=profiles, counts=update_counts)

    def _grouped(self, state: CFLGPState, hostile: int) -> CFLGPState:
        """The state with the groups of k-means; clients keep the number of the group that they share most clients with."""
        # k-means on the profiles, and groups with the numbers of those that they have most in
        # common with, so that a group keeps its model.
        profiles = state.profiles.flatten(1)
        _, singular_values = clusters(profiles, self.models)

        def labels_of(points: np.ndarray) -> np.ndarray:
            return clusters(torch.from_numpy(points), self.models)[0]

        labels, _ = labels_without_few(profiles.numpy(), labels_of, hostile)
        former_rows = [state.row.get(client, -1) for client in state.known]
        new_rows = matched(labels, former_rows, self.models)
        row_of_client = dict(zip(state.known, new_rows, strict=True))
        groups = groups_by(row_of_client)
        has_changed = groups != groups_by(state.row)
        # Before the first groups, no client has a model to move from.
        num_moved = 0
        if state.row:
            for client, model_row in row_of_client.items():
                num_moved += state.row.get(client, model_row) != model_row
        num_criteria = int((state.counts.sum(0) > 0).sum())
        numbers = {"moved": float(num_moved)}
        for rank, singular_value in enumerate(singular_values, 1):
            numbers[f"singular value {rank}"] = float(singular_value)
        note = Note(
            kind="cluster" if has_changed else "keep",
            effect="divides" if has_changed else "keeps",
            clients=state.clients,
            text=(
                f"{len(row_of_client)} clients in {len(groups)} groups by their updates from "
                f"{num_criteria} models; {num_moved} moved"
            ),
            parts=groups if has_changed else (),
            numbers=numbers,
        )
        return replace(state, row=row_of_client, notes=(note,))

    def assignment(self, state: CFLGPState) -> Assignment:
        row_of_client = dict(zip(state.clients, state.rows_for(state.clients), strict=True))
        return Assignment(models=state.models, row=row_of_client, groups=groups_by(row_of_client))

    def explain(self, state: CFLGPState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: CFLGPState, clients: tuple[Client, ...]) -> CFLGPState:
        """Admit clients; the largest group's model serves them until a clustering round."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: CFLGPState, clients: tuple[Client, ...]) -> CFLGPState:
        leavers = set(clients)
        # A client that leaves loses its profile; the models keep what they learned from it.
        profiled_clients, profiles = rows_without(state.known, state.profiles, leavers)
        _, update_counts = rows_without(state.known, state.counts, leavers)
        return replace(
            state,
            clients=without(state.clients, leavers),
            known=profiled_clients,
            profiles=profiles,
            counts=update_counts,
            row=entries_without(state.row, leavers),
            notes=(),
        )


def clusters(profiles: torch.Tensor, group_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find k groups of profiles by k-means in their k leading singular directions.

    Args:
        profiles: Shape ``(n, p)``, one row per client.
        group_count: Number of groups (k); n if that is less.

    Returns:
        The number of each client's group, shape ``(n,)``, and the leading singular values, in
        falling order.

    Example:
        >>> labels, _ = clusters(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]), 2)
        >>> labels.tolist() in ([0, 1, 0], [1, 0, 1])
        True
    """
    group_count = min(group_count, len(profiles))
    # The squares of the singular values, and the singular directions, from the Gram matrix.
    eigenvalues, eigenvectors = np.linalg.eigh(gram(profiles))
    # Clients that are all the same have one direction; the others are rounding errors.
    rounding = len(eigenvalues) * np.finfo(eigenvalues.dtype).eps * eigenvalues[-1]
    descending = np.where(eigenvalues > rounding, eigenvalues, 0.0)[::-1]
    singular_values = np.sqrt(descending[:group_count])
    # Each client's coordinates in the k leading directions.
    points = eigenvectors[:, ::-1][:, :group_count] * singular_values
    return k_means(points, group_count), singular_values


def k_means(points: np.ndarray, group_count: int) -> np.ndarray:
    """Find groups by k-means, the best of ten starts.

    Args:
        points: Shape ``(n, p)``.
        group_count: Number of groups; the number of different points if that is less.

    Returns:
        The number of each point's group, shape ``(n,)``.
    """
    from sklearn.cluster import KMeans

    # There are no more groups than different points.
    num_distinct = len(np.unique(points.round(12), axis=0))
    clustering = KMeans(n_clusters=min(group_count, num_distinct), n_init=10, random_state=0)
    labels: np.ndarray = clustering.fit_predict(points)
    return labels


def matched(
    new_groups: Sequence[int] | np.ndarray, former_groups: Sequence[int], group_count: int
) -> list[int]:
    """Number groups so that most clients keep the number that they had.

    Args:
        new_groups: Each client's new group.
        former_groups: Its former one; -1 for none.
        group_count: Number of groups.

    Returns:
        Each client's new group, with the numbers of the former ones.

    Example:
        >>> matched([0, 0, 1, 1], [1, 1, 1, 0], 2)
        [1, 1, 0, 0]
    """
    from scipy.optimize import linear_sum_assignment

    # The clients that each new group has in common with each former one.
    num_common = np.zeros((group_count, group_count))
    for new_group, former_group in zip(new_groups, former_groups, strict=True):
        if former_group >= 0:
            num_common[new_group, former_group] += 1
    # One former number for each new group, with the most clients in common over all groups.
    _, numbers = linear_sum_assignment(num_common, maximize=True)
    return [int(numbers[new_group]) for new_group in new_groups]
