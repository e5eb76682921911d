"""From a world to groups of clients with classic models, their scores, and a group for a new client."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.contrib.trees.grouping import (
    Candidate,
    HeldOutPredictions,
    Predictions,
    candidates,
    chosen,
    ensemble,
    losses_of,
)
from coterie.contrib.trees.models import model_of
from coterie.core import Client
from coterie.data.constant import Kind, target_kind
from coterie.data.world import Split, World
from coterie.notebook.tables import count, frame
from coterie.randomness import Purpose
from coterie.runs.classic import VALIDATION_SHARE, check_tables, class_count, fitted, scored
from coterie.settings import SettingError, UserError
from coterie.settings.calls import public
from coterie.training.splits import taken_out

ARRANGEMENTS: Mapping[str, str] = {
    "alone": "each client's own model",
    "groups": "the ensemble of each group",
    "all": "one ensemble for all",
}
"""What serves a client -> in words."""

WORDS_WIDTH = 100
"""Columns of a line of text."""

OutputsOf = Callable[[Split], tuple[Tensor, Tensor]]
"""Function of a split: a model's outputs for it, and its targets."""


@dataclass(frozen=True)
class TreePlacement:
    """The group of a client that took no part, by its labelled rows.

    Attributes:
        losses: The mean loss of each group's ensemble on the rows.
        behind: How much more that is than with the best group.
        standard_errors: Of these differences.
        rows: The number of rows.
    """

    losses: Sequence[float]
    behind: Sequence[float]
    standard_errors: Sequence[float]
    rows: int

    @property
    def best(self) -> int:
        """The group with the least loss."""
        return int(np.argmin(self.losses))

    @property
    def is_sure(self) -> bool:
        """Whether all other groups are behind by more than two standard errors."""
        return all(
            difference > 2 * error
            for group, (difference, error) in enumerate(
                zip(self.behind, self.standard_errors, strict=True)
            )
            if group != self.best
        )

    def __str__(self) -> str:
        lines = ["group   loss of its ensemble"]
        for group, loss in enumerate(self.losses):
            lines.append(f"{group:<6}  {loss:.3f}")
        sure = "is of" if self.is_sure else "is most likely of"
        lines += [
            "",
            f"By its labels ({count(self.rows, 'row')}), the client {sure} group {self.best}.",
        ]
        return "\n".join(lines)


@public
@dataclass(frozen=True)
class TreeFederation:
    """Clients with models of scikit-learn or XGBoost, in groups: printed, it is a table and a sentence.

    Attributes:
        family: The kind of models.
        clients: The clients' names, in the order of matrices.
        groups: The names of the clients of each group.
        cross_losses: Shape ``(n, n)``: the mean loss of the model of client i on the held-out rows of
            client j.
        candidates: Each number of groups, and how well its ensembles do on held-out rows.
        metric: The main metric of the scores.
        better: Whether a greater or a smaller value is better.
        scores: ``alone``, ``groups`` or ``all`` -> the metric on each client's test rows, NaN without
            such rows.
    """

    family: str
    clients: list[int | str]
    groups: list[list[int | str]]
    cross_losses: np.ndarray
    candidates: list[Candidate]
    metric: str
    better: str
    scores: Mapping[str, np.ndarray]
    kind: Kind = field(repr=False)
    _models: Sequence[OutputsOf] = field(repr=False)
    _weights: np.ndarray = field(repr=False)

    def place(self, inputs: Any, targets: Any) -> TreePlacement:
        """Return the group of a client that took no part, by the losses of the groups' ensembles on its rows.

        Args:
            inputs: Its rows ``(b, d)``, with the features of the clients.
            targets: Their targets, as the clients have them.

        Raises:
            UserError: There are no rows, or not as many targets.
        """
        rows = torch.as_tensor(np.asarray(inputs), dtype=torch.float32)
        row_targets = torch.as_tensor(np.asarray(targets))
        if not len(rows) or len(rows) != len(row_targets):
            raise UserError(
                f"a client is placed by labelled rows: got {count(len(rows), 'row')} and {count(len(row_targets), 'target')}"
            )
        split = Split(rows, torch.arange(len(rows)), row_targets)
        losses = []
        for members in self.groups:
            positions = [self.clients.index(member) for member in members]
            losses.append(self._losses_at(positions, split))
        means = [float(row_losses.mean()) for row_losses in losses]
        best = int(np.argmin(means))
        errors = []
        for row_losses in losses:
            differences = row_losses - losses[best]
            spread = float(differences.std(ddof=1)) if len(differences) > 1 else math.inf
            errors.append(spread / math.sqrt(len(differences)))
        behind = [mean - means[best] for mean in means]
        return TreePlacement(means, behind, errors, len(rows))

    def _losses_at(self, positions: Sequence[int], split: Split) -> np.ndarray:
        """The losses ``(b,)`` of the ensemble of some clients on the rows of a split."""
        predictions = []
        for position in positions:
            predictions.append(predicted(self.kind, self._models[position], split)[0])
        targets = _targets(self.kind, split.batch(torch.arange(len(split)))[1])
        return losses_of(self.kind, ensemble(predictions, self._weights[list(positions)]), targets)

    def to_pandas(self) -> Any:
        """Return a pandas data frame with a row for each client: its group, and its scores.

        Raises:
            UserError: pandas is not installed.
        """
        return frame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return a table for each client: client, group, and its scores."""
        group_of_client = {
            client: group for group, members in enumerate(self.groups) for client in members
        }
        return [
            {
                "client": client,
                "group": group_of_client[client],
                **{name: float(values[position]) for name, values in self.scores.items()},
            }
            for position, client in enumerate(self.clients)
        ]

    def __str__(self) -> str:
        lines = [
            f"{self.family}: {count(len(self.groups), 'group')} of {count(len(self.clients), 'client')}"
        ]
        for group, members in enumerate(self.groups):
            names = ", ".join(map(str, members))
            lines.append(f"  group {group}: {names}")
        lines += ["", f"{'':<28}  {self.metric:>10}  worst client"]
        for name, words in ARRANGEMENTS.items():
            values = self.scores[name][~np.isnan(self.scores[name])]
            if len(values):
                worst = values.min() if self.better == "greater" else values.max()
                lines.append(f"{words:<28}  {values.mean():>10.3f}  {worst:>12.3f}")
        return "\n".join([*lines, "", self.verdict()])

    def verdict(self) -> str:
        """Return whether the groups' ensembles are better than one for all, and than each client alone."""
        sentences = []
        for arrangement in ("all", "alone"):
            difference, error = self._gain(arrangement)
            if math.isnan(difference):
                continue
            words = "not shown to differ from that of"
            if abs(difference) > 2 * error:
                words = "better than with" if difference > 0 else "worse than with"
            sentences.append(
                f"With groups, the mean {self.metric} is {words} {ARRANGEMENTS[arrangement]} "
                f"(gain {difference:+.3f} ± {error:.3f})."
            )
        return textwrap.fill(" ".join(sentences), WORDS_WIDTH) or "No client has test rows."

    def _gain(self, arrangement: str) -> tuple[float, float]:
        """How much better groups are than another arrangement in the mean over clients, and its standard error over them."""
        sign = 1 if self.better == "greater" else -1
        gains = sign * (self.scores["groups"] - self.scores[arrangement])
        gains = gains[~np.isnan(gains)]
        if len(gains) < 2:
            return math.nan, math.nan
        return float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(len(gains)))


@public
def federate(
    world: World,
    family: str = "gradient boosting",
    *,
    groups: int | None = None,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> TreeFederation:
    """Train a model of each client, group the clients by the losses of all models at all clients, and score ensembles.

    Args:
        world: The clients, with tables. Hostile clients are left out.
        family: ``gradient boosting`` or ``linear`` (scikit-learn's, as in ``coterie compare
            --classic``), ``random forest``, or ``xgboost`` (``coterie[trees]``).
        groups: The number of groups; None to choose it on held-out rows.
        seed: Seed of the draw of held-out rows.
        step: Called after each model.

    Returns:
        Groups, matrix of cross-losses, and scores.

    Raises:
        SettingError: There are not so many clients.
        UserError: The clients have no tables, fewer than two can hold rows out, or the family is
            not known or not installed.

    Example:
        >>> from coterie.runs.experiment import make
        >>> world = make({"scenario": {"name": "synthetic/groups", "clients": 6}, "methods": [{"name": "fedavg"}]}).world(0)
        >>> federation = federate(world, "linear")
        >>> sorted(federation.groups)
        [[0, 3], [1, 2], [4], [5]]
    """
    check_tables(world)
    model = model_of(family)
    kind = target_kind(world)
    num_classes = class_count(world) if kind == "classes" else 0
    clients = [client for client in sorted(world.clients) if client not in world.attacks]
    if groups is not None and not 1 <= groups <= len(clients):
        raise SettingError(f"groups must be 1 to the {len(clients)} clients, got {groups}")

    def model_of_client(client: Client, split: Split, draw: int) -> OutputsOf:
        """The model of a client, trained on some of its rows."""
        key = (seed, Purpose.HOLDOUT, client, draw)
        outputs_of = fitted(model, kind, [split], [key], num_classes)
        step()
        return outputs_of

    # 1. Each client holds rows out, and trains on the others.
    held_out_of_client: list[Split] = []
    first_models: list[OutputsOf] = []
    for client in clients:
        train_split = world.clients[client].train
        division = taken_out(train_split, VALIDATION_SHARE, (seed, Purpose.HOLDOUT, client))
        if division is None:
            raise UserError(
                f"client {world.name(client)} has too few training rows to hold one out: leave the client out"
            )
        held_out_of_client.append(division.held_out)
        first_models.append(model_of_client(client, division.remaining, 1))
    # 2. Each client scores all models on its held-out rows.
    predictions = []
    for outputs_of in first_models:
        predictions.append([predicted(kind, outputs_of, split)[0] for split in held_out_of_client])
    held_targets = [
        _targets(kind, split.batch(torch.arange(len(split)))[1]) for split in held_out_of_client
    ]
    weights = np.array([float(len(world.clients[client].train)) for client in clients])
    held_out = HeldOutPredictions(kind, predictions, held_targets, weights)
    cross_losses = held_out.cross_losses()
    # 3. The groups.
    partitions = candidates(held_out, cross_losses)
    labels = chosen(partitions).labels if groups is None else partitions[groups - 1].labels
    # 4. Each client trains again, on all of its training rows, and the ensembles are scored.
    final_models = [model_of_client(client, world.clients[client].train, 2) for client in clients]
    labels_of_arrangement = {
        "alone": np.arange(len(clients)),
        "groups": labels,
        "all": np.zeros(len(clients), dtype=int),
    }
    metric = world.objective.named[world.objective.main]
    scores = {name: np.full(len(clients), math.nan) for name in ARRANGEMENTS}
    for position, client in enumerate(clients):
        test = world.clients[client].test
        if not len(test):
            continue
        of_models = [predicted(kind, outputs_of, test)[0] for outputs_of in final_models]
        targets = test.batch(torch.arange(len(test)))[1]
        for name, all_labels in labels_of_arrangement.items():
            members = np.flatnonzero(all_labels == all_labels[position])
            mean = ensemble([of_models[member] for member in members], weights[members])
            scores[name][position], _ = scored(metric, _outputs(kind, mean), targets)
    names = [world.client_names.get(client, client) for client in clients]
    return TreeFederation(
        family=family,
        clients=names,
        groups=[
            [names[position] for position in np.flatnonzero(labels == group)]
            for group in range(labels.max() + 1)
        ],
        cross_losses=cross_losses,
        candidates=partitions,
        metric=world.objective.main,
        better=world.objective.better,
        scores=scores,
        kind=kind,
        _models=final_models,
        _weights=weights,
    )


def predicted(kind: Kind, outputs_of: OutputsOf, split: Split) -> tuple[Predictions, Tensor]:
    """Return a model's predictions for a split as probabilities or numbers, and its targets.

    Args:
        kind: What the targets are.
        outputs_of: The model.
        split: The examples.
    """
    outputs, targets = outputs_of(split)
    values = outputs.double().numpy()
    if kind == "classes":
        # Logarithms of probabilities.
        values = np.exp(values)
    elif kind == "labels":
        # Logits.
        values = 1 / (1 + np.exp(-values))
    return values, targets


def _outputs(kind: Kind, predictions: Predictions) -> Tensor:
    """Predictions as the outputs of a net: logits of classes or labels, or numbers."""
    if kind == "classes":
        return torch.from_numpy(np.log(np.maximum(predictions, 1e-12)))
    if kind == "labels":
        bounded = np.clip(predictions, 1e-12, 1 - 1e-12)
        return torch.from_numpy(np.log(bounded) - np.log(1 - bounded))
    return torch.from_numpy(predictions)


def _targets(kind: Kind, targets: Any) -> np.ndarray:
    """Targets as an array: classes ``(b,)``, or labels or numbers ``(b, m)``."""
    values = targets.double().numpy()
    return values if kind == "classes" else values.reshape(len(values), -1)
