"""IFCA: k models; every client trains the one of least training loss, and each model is the mean of what its clients made.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran, "An Efficient Framework for Clustered Federated
Learning", NeurIPS 2020, arXiv 2006.04088, Algorithm 1, with either of its options:

- model averaging: ``θ_j <- mean of θ~_i`` over the clients i that chose j, each trained from θ_j;
- gradient averaging: ``θ_j <- θ_j - γ / |M_t| · Σ g_i``, with the sum over the clients that chose
  j, divided by the number of all participants.

Deviations
- In a federation, or with adversaries, the limits of :mod:`coterie.robust` act first (ours).
- Weights are renormalised over the clients that answered, and |M_t| is their number: the paper has
  no silent clients.
- ``weighting="data"`` weights by training examples, as in the code published for FEMNIST; the
  paper's mean is unweighted.
- Restarts and k-means++ are ours, see :mod:`coterie.methods._model_choice`. The paper requires a
  start near the optima, and the published code for CIFAR-10 draws again until clients choose every
  model. ``initial="same"`` is the start of the code published with HCCT (arXiv 2401.13236), in
  which all clients choose the first model.
- A client that was not asked keeps its last choice; the paper assigns none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coterie.core import Client, Cohort, Plan, Replies, Task, Weighting, weights
from coterie.methods._model_choice import Choice, Choosing, Start
from coterie.methods._presets import Presets
from coterie.settings import setting


@dataclass(frozen=True, kw_only=True)
class IFCA(Choosing):
    """k models; every client trains the one it has the least training loss with."""

    name: ClassVar[str] = "ifca"

    # The paper's rotations of MNIST, and of CIFAR-10.
    presets: ClassVar[Presets] = {
        "paper": {
            "models": 4,
            "fraction": 1.0,
        },
        "paper-cifar10": {
            "models": 2,
            "fraction": 0.1,
        },
    }

    averaging: str = setting(
        "models", "average trained models, or full-batch gradients", choices=("models", "gradients")
    )
    step_size: float = setting(
        0.1,
        "step along the averaged gradients (γ); used with averaging gradients",
        gt=0,
        only_with={"averaging": ("gradients",)},
    )
    weighting: Weighting = setting(
        "uniform",
        "weights of means: uniform (the paper), or by training examples",
        choices=("uniform", "data"),
    )

    def plan_round(self, start: Start, asked: tuple[Client, ...], cohort: Cohort) -> Plan:
        """Plan one round of a start for the clients ``asked``."""
        # Every asked client gets all k models. It computes their training losses, and trains the one of
        # least loss, or replies with the gradient at it.
        task = Task(
            offered=tuple(range(self.models)),
            measure="train",
            gradient=self.averaging == "gradients",
            lr_round=start.round,
        )
        return Plan(
            models=start.models,
            tasks=dict.fromkeys(asked, task),
            need="mean",
            weighting=self.weighting,
        )

    def aggregate(self, models: torch.Tensor, replies: Replies) -> torch.Tensor:
        """Return the models ``(k, d)`` after a round."""
        # Option II, model averaging: the mean of the models trained from θ_j is θ_j plus the mean
        # update.
        if self.averaging == "models":
            return models + replies.mean_updates
        # Option I, gradient averaging. mean_updates[j] is the mean gradient of the clients that
        # chose j; times their share of all participants, it is the paper's sum divided by |M_t|.
        chosen_rows = [chosen_row for (chosen_row,) in replies.chosen]
        client_shares = weights(replies, self.weighting)
        row_shares = np.bincount(chosen_rows, client_shares, minlength=len(models))
        participant_shares = torch.as_tensor(row_shares, dtype=models.dtype)[:, None]
        return models - self.step_size * participant_shares * replies.mean_updates

    def served(
        self, models: torch.Tensor, choices: Mapping[Client, Choice]
    ) -> tuple[torch.Tensor, dict[Client, int]]:
        """Return the models, and client -> the row of its choice."""
        return models, {client: chosen_row for client, (chosen_row,) in choices.items()}
