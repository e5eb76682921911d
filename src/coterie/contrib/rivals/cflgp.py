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
from coterie.methods._model_choice import MOST_MODELS
from coterie.settings import check, setting
from coterie.settings.calls import public

PROFILE, TRAIN = "profile", "train"
"""Parts of a plan of a clustering round: all clients train the criterion, and those of other groups
their own model."""


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
    notes: tuple[Note, ...] = ()

    def at(self, client: Client) -> int:
        """The model of a client: that of its group, or of the largest group."""
        if client in self.row or not self.row:
            return self.row.get(client, 0)
        rows = list(self.row.values())
        return max(sorted(set(rows)), key=rows.count)


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
        models = torch.stack([federation.draw(row) for row in range(self.models)])
        whole = federation.parameters
        columns = (
            federation.columns[federation.dense[-1]]
            if self.layer == "last" and federation.dense
            else None
        )
        first, stop = columns or (whole.start or 0, whole.stop)
        return CFLGPState(
            clients=federation.clients,
            models=models,
            columns=(first, stop),
            profiles=torch.zeros(0, self.models, min(self.sketch, stop - first)),
            counts=torch.zeros(0, self.models, dtype=torch.int64),
        )

    def criterion(self, state: CFLGPState) -> int | None:
        """The model that all clients train in the next round; None if it is no clustering round."""
        if state.round % self.period or state.round >= self.until:
            return None
        return state.round // self.period % self.models

    def plan(self, state: CFLGPState, cohort: Cohort) -> Plan:
        asked, criterion = cohort.sample(state.clients, self.fraction), self.criterion(state)
        tasks = {client: Task(offered=(state.at(client),)) for client in asked}
        train = Plan(models=state.models, tasks=tasks, need="rows")
        if criterion is None:
            return train
        own = {client: task for client, task in tasks.items() if task.offered != (criterion,)}
        profile = Plan(
            models=state.models[criterion][None],
            tasks=dict.fromkeys(asked, Task(offered=(0,))),
            need="rows",
        )
        return Plan(
            models=state.models[:0],
            tasks={},
            parts={PROFILE: profile, TRAIN: replace(train, tasks=own)},
        )

    def step(self, state: CFLGPState, replies: Replies) -> CFLGPState:
        criterion = self.criterion(state)
        state = replace(state, round=state.round + 1, notes=())
        if criterion is None:
            return replace(
                state,
                models=self._means(
                    state, [(replies, state.models[_rows(state, replies.clients)])], state
                ),
            )
        seen, own = replies.parts[PROFILE], replies.parts[TRAIN]
        mine = seen.of(client for client in seen.clients if state.at(client) == criterion)
        trained = [
            (mine, state.models[criterion][None]),
            (own, state.models[_rows(state, own.clients)]),
        ]
        new = self._grouped(self._profiled(state, seen, criterion)) if seen.clients else state
        return replace(new, models=self._means(state, trained, new))

    def _means(
        self, before: CFLGPState, trained: Sequence[tuple[Replies, torch.Tensor]], after: CFLGPState
    ) -> torch.Tensor:
        """The models: of each group, the mean of the models that its clients trained.

        Args:
            before: the state with the models from which clients trained.
            trained: replies, and the models ``(n, d)`` from which their n clients trained, or the
                one from which all did.
            after: the state with the groups.
        """
        heard = [
            (replies, starts + replies.all_updates)
            for replies, starts in trained
            if replies.clients
        ]
        models = before.models.clone()
        if not heard:
            return models
        clients = [client for replies, _ in heard for client in replies.clients]
        rows, at = (
            torch.cat([made for _, made in heard]),
            np.array([after.at(client) for client in clients]),
        )
        counts = amounts(np.concatenate([replies.examples for replies, _ in heard]), self.weighting)
        for row in sorted(set(at.tolist())):
            members = np.flatnonzero(at == row)
            share = counts[members] / counts[members].sum()
            models[row] = heard[0][0].averaging.around(models[row], rows[members], share)
        return models

    def _profiled(self, state: CFLGPState, seen: Replies, criterion: int) -> CFLGPState:
        """The state with the updates of clients from the criterion in their profiles."""
        known = joined(state.known, seen.clients)
        place = {client: i for i, client in enumerate(known)}
        profiles = state.profiles.new_zeros(len(known), *state.profiles.shape[1:])
        counts = state.counts.new_zeros(len(known), self.models)
        before = [place[client] for client in state.known]
        profiles[before], counts[before] = state.profiles, state.counts
        rows = seen.all_updates[:, slice(*state.columns)]
        rows = sketch(rows, self.sketch) if rows.shape[1] > self.sketch else rows
        at = [place[client] for client in seen.clients]
        counts[at, criterion] += 1
        profiles[at, criterion] += (rows - profiles[at, criterion]) / counts[at, criterion, None]
        return replace(state, known=known, profiles=profiles, counts=counts)

    def _grouped(self, state: CFLGPState) -> CFLGPState:
        """The state with the groups of k-means; clients keep the number of the group that they share most clients with."""
        labels, values = clusters(state.profiles.flatten(1), self.models)
        old = [state.row.get(client, -1) for client in state.known]
        row = dict(zip(state.known, matched(labels, old, self.models), strict=True))
        moved = sum(
            1 for client, at in row.items() if state.row and state.row.get(client, at) != at
        )
        parts = groups_by(row)
        changed = parts != groups_by(state.row)
        text = f"{len(row)} clients in {len(parts)} groups by their updates from {int((state.counts.sum(0) > 0).sum())} models"
        note = Note(
            kind="cluster" if changed else "keep",
            effect="divides" if changed else "keeps",
            clients=state.clients,
            text=f"{text}; {moved} moved",
            parts=parts if changed else (),
            numbers={
                "moved": float(moved),
                **{f"singular value {i + 1}": float(v) for i, v in enumerate(values)},
            },
        )
        return replace(state, row=row, notes=(note,))

    def assignment(self, state: CFLGPState) -> Assignment:
        row = {client: state.at(client) for client in state.clients}
        return Assignment(models=state.models, row=row, groups=groups_by(row))

    def explain(self, state: CFLGPState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: CFLGPState, clients: tuple[Client, ...]) -> CFLGPState:
        """Admit clients; the largest group's model serves them until a clustering round."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: CFLGPState, clients: tuple[Client, ...]) -> CFLGPState:
        gone = set(clients)
        known, profiles = rows_without(state.known, state.profiles, gone)
        _, counts = rows_without(state.known, state.counts, gone)
        row = {client: at for client, at in state.row.items() if client not in gone}
        left = without(state.clients, gone)
        return replace(
            state, clients=left, known=known, profiles=profiles, counts=counts, row=row, notes=()
        )


def _rows(state: CFLGPState, clients: Sequence[Client]) -> list[int]:
    return [state.at(client) for client in clients]


def clusters(profiles: torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find k groups of profiles by k-means in their k leading singular directions.

    Args:
        profiles: Shape ``(n, p)``, one row per client.
        k: Number of groups; n if that is less.

    Returns:
        The number of each client's group, shape ``(n,)``, and the leading singular values, in
        falling order.

    Example:
        >>> labels, _ = clusters(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]), 2)
        >>> labels.tolist() in ([0, 1, 0], [1, 0, 1])
        True
    """
    k = min(k, len(profiles))
    values, vectors = np.linalg.eigh(gram(profiles))
    rounding = len(values) * np.finfo(values.dtype).eps * values[-1]
    singular = np.sqrt(
        np.where(values > rounding, values, 0.0)[::-1][:k]
    )  # clients that are all the same have one direction
    points = vectors[:, ::-1][:, :k] * singular
    return k_means(points, k), singular


def k_means(points: np.ndarray, k: int) -> np.ndarray:
    """Find groups by k-means, the best of ten starts.

    Args:
        points: Shape ``(n, p)``.
        k: Number of groups; the number of different points if that is less.

    Returns:
        The number of each point's group, shape ``(n,)``.
    """
    from sklearn.cluster import KMeans

    distinct = len(np.unique(points.round(12), axis=0))
    labels: np.ndarray = KMeans(n_clusters=min(k, distinct), n_init=10, random_state=0).fit_predict(
        points
    )
    return labels


def matched(labels: Sequence[int] | np.ndarray, old: Sequence[int], k: int) -> list[int]:
    """Number groups so that most clients keep the number that they had.

    Args:
        labels: Each client's new group.
        old: Its old one; -1 for none.
        k: Number of groups.

    Returns:
        Each client's new group, with the numbers of the old ones.

    Example:
        >>> matched([0, 0, 1, 1], [1, 1, 1, 0], 2)
        [1, 1, 0, 0]
    """
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((k, k))
    for new, before in zip(labels, old, strict=True):
        if before >= 0:
            common[new, before] += 1
    _, number = linear_sum_assignment(common, maximize=True)
    return [int(number[label]) for label in labels]
