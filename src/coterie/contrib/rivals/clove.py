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
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering import cut_dendrogram, dendrogram, distances, gram
from coterie.contrib.rivals.cflgp import k_means
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
    groups_by,
    joined,
    state,
    without,
)
from coterie.methods._model_choice import MOST_MODELS, capped, losses_of, of_all
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import check, setting
from coterie.settings.calls import public

BETTER = 1.1
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
    notes: tuple[Note, ...] = ()


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
        models = torch.stack([federation.draw(row) for row in range(self.models)])
        return CLoVEState(clients=federation.clients, models=models)

    def plan(self, state: CLoVEState, cohort: Cohort) -> Plan:
        if state.measured is None:
            asked = cohort.sample(state.clients, self.fraction)
        else:
            asked = tuple(client for client in state.measured if client in cohort.present)
        random = state.round == 0 and self.first == "random"
        if state.measured is None and not (random or state.stable or self.models == 1):
            task = Task(offered=tuple(range(self.models)), epochs=0, measure="train")
            return Plan(
                models=state.models, tasks=dict.fromkeys(asked, task), need="mean", ends_round=False
            )
        row = self._random(asked, cohort) if random else state.row
        best = Task(
            offered=tuple(range(self.models)), measure="train"
        )  # of a client without a model
        tasks = {
            client: Task(offered=(row[client],)) if client in row else best for client in asked
        }
        return Plan(models=state.models, tasks=tasks, need="mean", weighting=self.weighting)

    def _random(self, asked: Sequence[Client], cohort: Cohort) -> dict[Client, int]:
        """A random model for each client; no model is without a client if there are enough."""
        rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange)
        rows = np.concatenate([np.arange(self.models), rng.integers(self.models, size=len(asked))])[
            : len(asked)
        ]
        return dict(zip(asked, rng.permutation(rows).tolist(), strict=True))

    def step(self, state: CLoVEState, replies: Replies) -> CLoVEState:
        if not replies.ends_round:
            return self._grouped(state, replies)
        models = state.models if replies.means is None else state.models + replies.mean_updates
        chosen = {
            client: rows[0] for client, rows in zip(replies.clients, replies.chosen, strict=True)
        }
        steady = (
            dict.fromkeys(chosen, 1) if not state.round and self.first == "random" else state.steady
        )
        row = {**state.row, **chosen}
        return replace(
            state,
            models=models,
            row=row,
            steady=steady,
            round=state.round + 1,
            measured=None,
            notes=(),
        )

    def _grouped(self, state: CLoVEState, replies: Replies) -> CLoVEState:
        """The state in which clients have the models that fit their losses."""
        losses = np.array(replies.losses, float).reshape(len(replies.clients), self.models)
        whole = np.isfinite(losses).all(axis=1)
        heard = [client for client, fine in zip(replies.clients, whole, strict=True) if fine]
        if not heard:
            return replace(state, measured=replies.clients, notes=())
        new = dict(zip(heard, grouped(capped(losses[whole]), self.estimate), strict=True))
        steady = {
            client: 1 + state.steady.get(client, 0) * (state.row.get(client) == at)
            for client, at in new.items()
        }
        stable = self.patience is not None and min(steady.values()) >= self.patience
        row, steady = {**state.row, **new}, {**state.steady, **steady}
        after = replace(state, row=row, steady=steady, stable=stable, measured=replies.clients)
        return replace(after, notes=(self._note(state, after, replies, new),))

    def _note(
        self, before: CLoVEState, after: CLoVEState, replies: Replies, new: Mapping[Client, int]
    ) -> Note:
        parts = self.assignment(after).groups
        changed = not before.row or parts != self.assignment(before).groups
        moved = sum(1 for client, at in new.items() if before.row.get(client, at) != at)
        text = f"{len(new)} clients in {len(set(new.values()))} groups by their losses with {self.models} models; {moved} moved"
        return Note(
            kind="cluster" if changed else "keep",
            effect="divides" if changed else "keeps",
            clients=after.clients,
            text=text
            + f"; each has had its model in {self.patience} groupings: groups are final"
            * after.stable,
            parts=parts if changed else (),
            numbers={"moved": float(moved)},
            values={
                "model": {client: float(at) for client, at in new.items()},
                **losses_of(replies),
            },
        )

    def assignment(self, state: CLoVEState) -> Assignment:
        row = of_all(state.clients, state.row, 0)
        return Assignment(models=state.models, row=row, groups=groups_by(row))

    def explain(self, state: CLoVEState) -> tuple[Note, ...]:
        return state.notes

    def admit(self, state: CLoVEState, clients: tuple[Client, ...]) -> CLoVEState:
        """Admit clients; the most frequent model serves them until they are asked."""
        return replace(state, clients=joined(state.clients, clients), notes=())

    def retire(self, state: CLoVEState, clients: tuple[Client, ...]) -> CLoVEState:
        """Forget the clients; what the models learned from them stays."""
        gone = set(clients)
        row, steady = (
            {c: at for c, at in of.items() if c not in gone} for of in (state.row, state.steady)
        )
        measured = (
            None if state.measured is None else tuple(c for c in state.measured if c not in gone)
        )
        left = without(state.clients, clients)
        return replace(state, clients=left, measured=measured, row=row, steady=steady, notes=())


def grouped(losses: np.ndarray, estimate: bool = False) -> list[int]:
    """Group clients by their losses with k models, and give each group the model that fits it.

    Args:
        losses: Shape ``(n, k)``: each client's loss with each model, all finite.
        estimate: Whether the number of groups is estimated; otherwise it is k, or the number of
            different rows if that is less.

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

    most = losses.shape[1]
    labels = k_means(losses, estimated(losses, most) if estimate else most)
    costs = np.stack([losses[labels == label].sum(axis=0) for label in range(labels.max() + 1)])
    _, model = linear_sum_assignment(costs)
    return [int(model[label]) for label in labels]


def estimated(losses: np.ndarray, most: int) -> int:
    """Estimate the number of groups by silhouettes of Ward's clustering, as the published code does.

    Args:
        losses: Shape ``(n, k)``: each client's losses.
        most: The maximum.

    Returns:
        The number from 2 to ``most`` with the greatest mean silhouette. A larger number must be
        better by a tenth. 1 if there are not three clients, or ``most`` is 1.

    Example:
        >>> estimated(np.array([[1.0, 5.1], [1.1, 5.0], [2.1, 3.5], [2.0, 3.6]]), 3)
        2
    """
    from sklearn.metrics import silhouette_score

    tree = dendrogram(distances(gram(losses)), "ward")
    best, found = -1.0, 1
    for k in range(2, min(most, len(losses) - 1) + 1):
        score = silhouette_score(losses, cut_dendrogram(tree, groups=k))
        if score > best * BETTER:
            best, found = score, k
    return found
