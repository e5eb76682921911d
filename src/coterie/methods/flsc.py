"""FLSC: IFCA with overlap; every client trains the mean of its n_s best models, and each of them learns from it.

C. Li, G. Li, P. K. Varshney, "Federated Learning With Soft Clustering", IEEE Internet of Things
Journal 9(10), 2022. Client i chooses the n_s models of least training loss, J_i, trains from their
unweighted mean and sends one model w_i. Then ``θ_j <- Σ N_i w_i / Σ N_i`` over the clients with j
in J_i; θ_j is unchanged if there are none.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- The mean of a client's models J_i after the aggregation serves it. The code published with HCCT
  (arXiv 2401.13236) tests the model that the client has just trained, which is one exchange ahead
  and which no other client has.
- With ``first="loss"`` (default) clients choose by loss from the first round on; in the original
  their first J_i are random.
- Learning rates decay as in all methods; in HCCT's code those of FLSC's clients do not. With
  restarts, they decay with the rounds of the start.
- Restarts and k-means++ are ours, see :mod:`coterie.methods._model_choice`.
- A group consists of the clients with the same first choice, the model of least loss; the paper has
  no groups.
- ``overlap`` equal to ``models`` is an error: all models would be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import torch

from coterie.core import Client, Cohort, Plan, Replies, Task
from coterie.methods._model_choice import Choice, Choosing, Start
from coterie.methods._presets import Presets
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, setting


@dataclass(frozen=True, kw_only=True)
class FLSC(Choosing):
    """k models; every client trains the mean of the ones it has the least training losses with."""

    name: ClassVar[str] = "flsc"

    # In the original method clients begin with random sets.
    presets: ClassVar[Presets] = {"paper": {"first": "random"}}

    overlap: int = setting(2, "number of models that a client chooses (n_s)", ge=1)
    first: str = setting(
        "loss",
        "the first choice: by loss, or at random as in the paper",
        choices=("loss", "random"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap >= self.models > 1 or self.overlap > self.models:
            raise SettingError(
                f"FLSC.overlap must be less than the {self.models} models, got {self.overlap}: all models would "
                "be the same; did you mean fedavg?"
            )

    @property
    def models_per_client(self) -> int:
        """The number of models that a client chooses."""
        return self.overlap

    def plan_round(self, start: Start, asked: tuple[Client, ...], cohort: Cohort) -> Plan:
        """Plan one round of a start for the clients ``asked``."""
        tasks: dict[Client, Task] = {}
        if self.first == "random" and start.round == 0:
            # The first J_i are drawn, as in the paper.
            for client in asked:
                drawn_rows = self._random_choice(client, cohort)
                tasks[client] = Task(offered=drawn_rows, choose=self.overlap, lr_round=0)
        else:
            # J_i are the n_s models of least training loss.
            task = Task(
                offered=tuple(range(self.models)),
                choose=self.overlap,
                measure="train",
                lr_round=start.round,
            )
            tasks = dict.fromkeys(asked, task)
        return Plan(models=start.models, tasks=tasks, need="mean", weighting="data")

    def _random_choice(self, client: Client, cohort: Cohort) -> Choice:
        """The first n_s of the models in a random order."""
        rng = numpy_generator(cohort.seed, Purpose.CHOICE, cohort.exchange, client)
        return tuple(int(model_row) for model_row in rng.permutation(self.models)[: self.overlap])

    def aggregate(self, models: torch.Tensor, replies: Replies) -> torch.Tensor:
        """Return the models ``(k, d)`` after a round: ``θ_j <- Σ N_i w_i / Σ N_i`` over i with j in J_i.

        The trained w_i is the mean of the client's models plus its update. The first is a mean of
        rows of ``models``, so only means of the updates are needed.

        Args:
            models: ``(k, d)``, the models before the round.
            replies: replies of the round, with mean updates.
        """
        # N_i where j in J_i, ``(n, k)``, and Σ N_i of each model.
        was_chosen = _membership(replies.chosen, len(models))
        examples = was_chosen * replies.examples[:, None]
        total_examples = examples.sum(axis=0)
        # Row j: the weight of each old model in the mean of the starts of the clients that chose j.
        start_weights = examples.T @ was_chosen / self.overlap
        start_weights /= np.maximum(total_examples, 1)[:, None]
        means_of_starts = torch.as_tensor(start_weights, dtype=models.dtype) @ models
        has_clients = torch.as_tensor(total_examples > 0)[:, None]
        return torch.where(has_clients, means_of_starts + replies.mean_updates, models)

    def served(
        self, models: torch.Tensor, choices: Mapping[Client, Choice]
    ) -> tuple[torch.Tensor, dict[Client, int]]:
        """Return the mean model of each set of models chosen, and client -> row."""
        # One row for each set of models that a client has chosen.
        distinct_sets = sorted({tuple(sorted(choice)) for choice in choices.values()})
        if not distinct_sets:
            return models, {}
        mean_models = torch.stack(
            [models[list(chosen_set)].mean(0) for chosen_set in distinct_sets]
        )
        row_of_set = dict(zip(distinct_sets, count(), strict=False))
        row_of_client = {}
        for client, choice in choices.items():
            row_of_client[client] = row_of_set[tuple(sorted(choice))]
        return mean_models, row_of_client


def _membership(chosen: tuple[Choice, ...], num_models: int) -> np.ndarray:
    """``(n, k)``: 1 where a client chose a model, else 0."""
    membership = np.zeros((len(chosen), num_models))
    for position, rows in enumerate(chosen):
        membership[position, list(rows)] = 1.0
    return membership
