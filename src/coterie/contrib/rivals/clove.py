"""CLoVE: k models; clients are grouped by k-means on their losses with all of them, and each group trains the model it fits.

R. Bhatia, N. Papadis, M. Kodialam, T. V. Lakshman, S. Chakrabarty, "CLoVE: Personalized Federated
Learning through Clustering of Loss Vector Embeddings", ICML 2026, arXiv 2506.22427, Algorithm 1,
and the code published with it. At the beginning of a round, clients measure all models on their
training examples. The losses of a client are its embedding. The server clusters the embeddings, and
matches groups and models so that the sum of all clients' losses is least. Clients train the model
of their group. When no client has changed its model for some rounds, clients no longer measure.

Deviations
- Losses far above all others are limited, see :func:`~coterie.methods._model_choice.capped`, so
  that no client decides alone.
- A client without a finite loss with each model is not clustered. It keeps its model, or gets the
  one of its least loss.
- A client that is asked for the first time when the groups are stable gets the model of least loss.
  In the published code it gets the model whose number is that of the nearest centre of the last
  k-means, which is not the number of the model to which that group was matched.
- k-means begins ten times and keeps the best result.
- Weights are renormalised over the clients that answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering import cut_dendrogram, dendrogram, distances, gram
from coterie.contrib.rivals.cflgp import k_means
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
    groups_by,
    joined,
    state,
    without,
)
from coterie.methods._hostile_few import labels_without_few
from coterie.methods._leavers import entries_without
from coterie.methods._model_choice import MOST_MODELS, capped, losses_of, of_all
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import check, setting
from coterie.settings.calls import public

MIN_SILHOUETTE_GAIN = 1.1
"""A larger number of groups needs a silhouette this many times as large (the published code)."""


@state("clove")
class CLoVEState:
    """State of CLoVE.

    Attributes:
        clients: all ids.
        models: ``(k, d)``, all models.
        measured: the clients that measured in this round and now train; None before they have.
        round: number of rounds completed.
        row: client -> its model, for clients that have one.
        steady: client -> the number of groupings in a row that gave it this model.
        stable: whether the groups are final.
        notes: notes of the last exchange.
    """

    clients: tuple[Client, ...]
    models: torch.Tensor
    measured: tuple[Client, ...] | None = None
    round: int = 0
    row: Mapping[Client, int] = field(default_factory=dict)
    steady: Mapping[Client, int] = field(default_factory=dict)
    stable: bool = False
    notes: tuple[Note, ...] = field(default=(), metadata=NOT_STORED)


@public
@dataclass(frozen=True, kw_only=True)
class CLoVE:
    """Groups clients by k-means on their losses with all models; a group trains the model that fits it."""

    name: ClassVar[str] = "clove"

    models: int = setting(
        4, "number of models (k), or its maximum if it is estimated", ge=1, le=MOST_MODELS
    )
    estimate: bool = setting(False, "estimate the number of groups by silhouettes")
    first: str = setting(
        "random",
        "groups of the first round: random, or by the losses of the first draws",
        choices=("random", "losses"),
    )
    patience: int | None = setting(
        3,
        "groupings in a row that leave every asked client its model, after which groups are final; none: never",
        ge=1,
    )
    fraction: float = setting(
        1.0, "fraction of the clients sampled in each round, at least one", gt=0, le=1
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

    def init(self, federation: Federation) -> CLoVEState:
        models = torch.stack([federation.draw(draw) for draw in range(self.models)])
        return CLoVEState(clients=federation.clients, models=models)

    def plan(self, state: CLoVEState, cohort: Cohort) -> Plan:
        all_rows = tuple(range(self.models))
        # Clients that have measured in this round train in the same round.
        if state.measured is None:
            asked_clients = cohort.sample(state.clients, self.fraction)
        else:
            asked_clients = tuple(client for client in state.measured if client in cohort.present)
        # Algorithm 1 measures the losses with all models first, unless groups are drawn or final.
        draws_groups = state.round == 0 and self.first == "random"
        needs_no_losses = draws_groups or state.stable or self.models == 1
        if state.measured is None and not needs_no_losses:
            task = Task(offered=all_rows, epochs=0, measure="train")
            return Plan(
                models=state.models,
                tasks=dict.fromkeys(asked_clients, task),
                need="mean",
                ends_round=False,
            )
        # Then each client trains its group's model, or the best one if it has none.
        row_of_client = self._random(asked_clients, cohort) if draws_groups else state.row
        tasks = {}
        for client in asked_clients:
            if client in row_of_client:
                tasks[client] = Task(offered=(row_of_client[client],))
            else:
                tasks[client] = Task(offered=all_rows, measure="train")
        return Plan(models=state.models, tasks=tasks, need="mean", weighting=self.weighting)

    def _random(self, asked_clients: Sequence[Client], cohort: Cohort) -> dict[Client, int]:
        """A random model for each client; no model is without a client if there are enough."""
        rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange)
        # Each model once, then models at random.
        drawn_rows = rng.integers(self.models, size=len(asked_clients))
        model_rows = np.concatenate([np.arange(self.models), drawn_rows])[: len(asked_clients)]
        return dict(zip(asked_clients, rng.permutation(model_rows).tolist(), strict=True))

    def step(self, state: CLoVEState, replies: Replies) -> CLoVEState:
        if not replies.ends_round:
            return self._grouped(state, replies)
        # Each model takes the mean update of the clients that trained it.
        models = state.models if replies.means is None else state.models + replies.mean_updates
        chosen_row = {}
        for client, chosen_rows in zip(replies.clients, replies.chosen, strict=True):
            chosen_row[client] = chosen_rows[0]
        # Groups drawn in the first round count as the first grouping.
        groupings_in_a_row = state.steady
        if not state.round and self.first == "random":
            groupings_in_a_row = dict.fromkeys(chosen_row, 1)
        return replace(
            state,
            models=models,
            row={**state.row, **chosen_row},
            steady=groupings_in_a_row,
            round=state.round + 1,
            measured=None,
            notes=(),
        )

    def _grouped(self, state: CLoVEState, replies: Replies) -> CLoVEState:
        """The state in which clients have the models that fit their losses."""
        # Clients whose losses are all finite are grouped.
        losses = np.array(replies.losses, float).reshape(len(replies.clients), self.models)
        is_finite = np.isfinite(losses).all(axis=1)
        clients = list(compress(replies.clients, is_finite))
        if not clients:
            return replace(state, measured=replies.clients, notes=())
        # Algorithm 1: k-means on the loss vectors, and a match of groups and models.
        hostile = replies.averaging.hostile
        new_rows = grouped(capped(losses[is_finite]), self.estimate, hostile)
        new_row = dict(zip(clients, new_rows, strict=True))
        # For how many groupings in a row each client has had this model.
        groupings_in_a_row = {}
        for client, model_row in new_row.items():
            keeps_model = state.row.get(client) == model_row
            groupings_in_a_row[client] = 1 + (state.steady.get(client, 0) if keeps_model else 0)
        # Groups are final after some groupings that moved none of these clients, but a few hostile ones.
        least_groupings = sorted(groupings_in_a_row.values())[min(hostile, len(clients) - 1)]
        is_stable = self.patience is not None and least_groupings >= self.patience
        new_state = replace(
            state,
            row={**state.row, **new_row},
            steady={**state.steady, **groupings_in_a_row},
            stable=is_stable,
            measured=replies.clients,
        )
        return replace(new_state, notes=(self._note(state, new_state, replies, new_row),))

    def _note(
        self,
        state_before: CLoVEState,
        state_after: CLoVEState,
        replies: Replies,
        new_row: Mapping[Client, int],
    ) -> Note:
        """Describe a grouping, after which the clients in ``new_row`` have these models."""
        groups = self.assignment(state_after).groups
        has_changed = not state_before.row or groups != self.assignment(state_before).groups
        num_moved = 0
        for client, model_row in new_row.items():
            num_moved += state_before.row.get(client, model_row) != model_row
        num_groups = len(set(new_row.values()))
        description = (
            f"{len(new_row)} clients in {num_groups} groups by their losses with {self.models} models; "
            f"{num_moved} moved"
        )
        if state_after.stable:
            description += (
                f"; each has had its model in {self.patience} groupings: groups are final"
            )
        model_numbers = {client: float(row) for client, row in new_row.items()}
        return Note(
            kind="cluster" if has_changed else "keep",
            effect="divides" if has_changed else "keeps",
            clients=state_after.clients,
            text=description,
            parts=groups if has_changed else (),
            numbers={"moved": float(num_moved)},
            values={"model": model_numbers, **losses_of(replies)},
        )

    def assignment(self, state: CLoVEState) -> Assignment:
        row_of_client = of_all(state.clients, state.row, 0)
        return Assignment(models=state.models, row=row_of_client, groups=groups_by(row_of_client))

    def explain(self, state: CLoVEState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: CLoVEState, clients: tuple[Client, ...]) -> CLoVEState:
        """Admit clients; the most frequent model serves them until they are asked."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: CLoVEState, clients: tuple[Client, ...]) -> CLoVEState:
        """Forget the clients; what the models learned from them stays."""
        leavers = set(clients)
        return replace(
            state,
            clients=without(state.clients, clients),
            measured=None if state.measured is None else without(state.measured, leavers),
            row=entries_without(state.row, leavers),
            steady=entries_without(state.steady, leavers),
            notes=(),
        )


def grouped(losses: np.ndarray, estimate: bool = False, hostile: int = 0) -> list[int]:
    """Group clients by their losses with k models, and give each group the model that fits it.

    Args:
        losses: Shape ``(n, k)``: each client's loss with each model, all finite.
        estimate: Whether the number of groups is estimated; otherwise it is k, or the number of
            different rows if that is less.
        hostile: The most clients that may be left out, so that they are no group of their own.

    Returns:
        Each client's model. Groups have different models, so that the sum of the clients' losses is
        least.

    Example:
        Clients 0 and 1 have the least loss with model 0, and so have clients 2 and 3. But the
        losses of the two pairs differ, and model 1 costs the second pair less than the first.

        >>> grouped(np.array([[1.0, 5.1], [1.1, 5.0], [2.1, 3.5], [2.0, 3.6]]))
        [0, 0, 1, 1]
    """
    from scipy.optimize import linear_sum_assignment

    # The losses of a client with all models are its embedding.
    num_models = losses.shape[1]

    def labels_of(embeddings: np.ndarray) -> np.ndarray:
        num_groups = estimated(embeddings, num_models) if estimate else num_models
        return k_means(embeddings, num_groups)

    labels, decided = labels_without_few(losses, labels_of, hostile)
    # The sum of the losses of each group's clients with each model.
    group_losses = []
    for group_number in range(labels.max() + 1):
        group_losses.append(losses[decided & (labels == group_number)].sum(axis=0))
    # Different models for the groups, so that the sum of all clients' losses is least.
    _, model_of_group = linear_sum_assignment(np.stack(group_losses))
    return [int(model_of_group[group_number]) for group_number in labels]


def estimated(losses: np.ndarray, max_groups: int) -> int:
    """Estimate the number of groups by silhouettes of Ward's clustering, as the published code does.

    Args:
        losses: Shape ``(n, k)``: each client's losses.
        max_groups: The maximum number.

    Returns:
        The number from 2 to ``max_groups`` with the greatest mean silhouette. A larger number must be
        better by a tenth. 1 if there are not three clients, or ``max_groups`` is 1.

    Example:
        >>> estimated(np.array([[1.0, 5.1], [1.1, 5.0], [2.1, 3.5], [2.0, 3.6]]), 3)
        2
    """
    from sklearn.metrics import silhouette_score

    # The published code measures each number of groups on cuts of one dendrogram.
    tree = dendrogram(distances(gram(losses)), "ward")
    # A larger number counts only if its silhouette is clearly better.
    best_score = -1.0
    best_number = 1
    for group_count in range(2, min(max_groups, len(losses) - 1) + 1):
        silhouette = silhouette_score(losses, cut_dendrogram(tree, groups=group_count))
        if silhouette > best_score * MIN_SILHOUETTE_GAIN:
            best_score = silhouette
            best_number = group_count
    return best_number
