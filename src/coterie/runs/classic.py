"""Classic models of tables: scikit-learn's gradient boosting and linear models, as references that federate nothing.

Each is trained on the training examples of one client, of a group of clients, or of all clients,
and scored by the world's main metric on the test examples of each client. Its settings are chosen
on a fifth of the training examples, which it is trained on afterwards; test examples and the
validation parts of the clients choose nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from coterie.core import Client, Groups
from coterie.data.constant import Kind, target_kind
from coterie.data.objective import Metric
from coterie.data.world import Split, World
from coterie.pooling import ErrorSums
from coterie.randomness import Purpose
from coterie.settings import UserError
from coterie.training.splits import taken_out

Family = Literal["gradient boosting", "linear"]
"""Gradient boosting of trees, or logistic regression of classes and labels and ridge regression of numbers."""

MODEL_FAMILIES: Sequence[Family] = ("gradient boosting", "linear")

Scope = Literal["client", "group", "all"]
"""Whose training examples a model is trained on."""

VALIDATION_SHARE = 0.2
"""The share of each client's training examples on which settings are chosen."""

MIN_LEAVES = (20, 5)
"""The least examples of a leaf of gradient boosting that are tried; the first is scikit-learn's default."""

MOST_TREES = 100
"""The greatest number of boosting rounds, scikit-learn's default; the best number up to it is chosen."""

PENALTIES = (1.0, 0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)
"""Weights of the squared coefficients that are tried (alpha of ridge regression, 1 / C of logistic
regression); the first is scikit-learn's default."""

MIN_PROBABILITY = 1e-12
"""Probabilities are at least this: that of a class without training examples would be 0."""

Outputs = np.ndarray
"""Probabilities of classes ``(b, classes)``, or numbers ``(b,)``."""

Predict = Callable[[np.ndarray], Outputs]
"""Function of inputs ``(b, d)``."""


@dataclass(frozen=True)
class ClassicScores:
    """The scores of one classic model.

    Attributes:
        model: Its name, such as ``logistic regression``.
        scope: Whose training examples it was trained on.
        scores: Client -> the main metric on its test examples; without clients that have none.
        sums: Client -> the sums of the main metric, if that is pooled over clients.
    """

    model: str
    scope: Scope
    scores: Mapping[Client, float]
    sums: Mapping[Client, ErrorSums]


def classic_scores(
    world: World, groups: Groups, seed: int, step: Callable[[], None] = lambda: None
) -> list[ClassicScores]:
    """Train classic models for each client, each group and all clients, and score them on the clients' tests.

    Args:
        world: The clients; hostile ones are neither trained on nor scored.
        groups: Groups of clients. Groups of one client each, and a single group, have no scores of
            their own: they are those of the clients, or of all.
        seed: The seed of the run.
        step: Called after each model.

    Returns:
        For each scope, gradient boosting and the linear model.

    Raises:
        UserError: The clients have no tables: see :func:`check_tables`.
    """
    check_tables(world)
    honest = [client for client in sorted(world.clients) if client not in world.attacks]
    present = [client for group in groups for client in group if client in honest]
    honest_groups = []
    for group in groups:
        members = [client for client in group if client in honest]
        if members:
            honest_groups.append(members)
    partitions: dict[Scope, list[list[Client]]] = {"client": [[client] for client in present]}
    if 1 < len(honest_groups) < len(present):
        partitions["group"] = honest_groups
    if len(present) > 1:
        partitions["all"] = [present]
    kind = target_kind(world)
    num_classes = class_count(world) if kind == "classes" else 0
    results = []
    for scope, parts in partitions.items():
        for family in MODEL_FAMILIES:
            scores: dict[Client, float] = {}
            sums: dict[Client, ErrorSums] = {}
            for part in parts:
                splits = [world.clients[client].train for client in part]
                keys = [(seed, Purpose.HOLDOUT, client) for client in part]
                outputs_of = fitted(MODEL_OF_FAMILY[family], kind, splits, keys, num_classes)
                for client in part:
                    test = world.clients[client].test
                    if len(test):
                        outputs, targets = outputs_of(test)
                        metric = world.objective.named[world.objective.main]
                        scores[client], sums[client] = scored(metric, outputs, targets)
                step()
            results.append(
                ClassicScores(
                    model=name_of(family, kind),
                    scope=scope,
                    scores={
                        client: value for client, value in scores.items() if not math.isnan(value)
                    },
                    sums={client: value for client, value in sums.items() if value},
                )
            )
    return results


def name_of(family: Family, kind: Kind) -> str:
    """Return what a model is called for targets of a kind."""
    if family == "gradient boosting":
        return family
    return "ridge regression" if kind == "numbers" else "logistic regression"


def check_tables(world: World) -> None:
    """Check that the clients have tables: a row of numbers for each example, and one target or several.

    Raises:
        UserError: They have other inputs or targets, or data that change over rounds.
    """
    requirement = "classic models need a table: a row of numbers for each example"
    if world.drift is not None:
        raise UserError(f"{requirement}; these data change over rounds")
    for data in world.clients.values():
        inputs = data.train.inputs
        if (
            not isinstance(inputs, torch.Tensor)
            or inputs.ndim != 2
            or not inputs.is_floating_point()
        ):
            shape = (
                f"of shape {tuple(inputs.shape[1:])}"
                if isinstance(inputs, torch.Tensor)
                else "of another form"
            )
            raise UserError(f"{requirement}; these inputs are {shape}")
        targets = data.train.targets
        has_classes = target_kind(world) == "classes"
        most_dimensions = 1 if has_classes else 2
        if (
            not isinstance(targets, torch.Tensor)
            or targets.ndim > most_dimensions
            or (has_classes and bool((targets < 0).any()))
        ):
            raise UserError(
                f"{requirement}, and a target for each; these targets have another form"
            )


def class_count(world: World) -> int:
    """The number of classes in any part of any client."""
    greatest = 1
    for data in world.clients.values():
        for split in (data.train, data.test):
            if len(split):
                greatest = max(greatest, int(split.targets.max()))
    return greatest + 1


def scored(metric: Metric, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, ErrorSums]:
    """Return a metric of a client's whole test set, and its sums if it is pooled over clients.

    Args:
        metric: The metric.
        outputs: Logits of classes ``(b, classes)`` or labels ``(b, m)``, or numbers ``(b, m)``.
        targets: The targets.
    """
    if metric.whole:
        value = metric.of(outputs, targets).get("", math.nan)
    else:
        values = metric.function(outputs, targets)
        value = metric.final(float(values.double().mean())) if values.numel() else math.nan
    return value, metric.error_sums(outputs, targets)


# ----------------------------------------------------------------------------------------------------
# One model of some clients.


def fitted(
    model: ClassicModel,
    kind: Kind,
    splits: Sequence[Split],
    keys: Sequence[tuple[int, ...]],
    num_classes: int,
) -> Callable[[Split], tuple[torch.Tensor, torch.Tensor]]:
    """Return a function of a split that returns the outputs of a trained model for it, and its targets.

    Args:
        model: How the model is made.
        kind: What the targets are.
        splits: The training examples of each client.
        keys: The seed of each client's draw of validation examples.
        num_classes: Number of classes.
    """
    # Settings are chosen on examples of each client that the model is not trained on at first.
    chosen_on = []
    remaining = []
    for split, key in zip(splits, keys, strict=True):
        division = taken_out(split, VALIDATION_SHARE, key)
        if division is None:
            remaining.append(split)
            continue
        chosen_on.append(division.held_out)
        remaining.append(division.remaining)
    # One model for each column of the targets; classes have one column.
    num_classes_of_kind: Mapping[Kind, int] = {"classes": num_classes, "labels": 2, "numbers": 0}
    _, targets = _table(splits)
    predicts = []
    for column in range(targets.shape[1]):
        predicts.append(
            _fit_column(model, num_classes_of_kind[kind], splits, remaining, chosen_on, column)
        )

    def outputs_of(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        rows, _ = _table([split])
        split_targets = split.batch(torch.arange(len(split)))[1]
        if kind == "classes":
            return torch.from_numpy(np.log(predicts[0](rows))), split_targets
        outputs = np.stack([predict(rows) for predict in predicts], axis=1)
        if kind == "labels":
            # The logit of each label.
            outputs = np.log(outputs[:, :, 1]) - np.log(outputs[:, :, 0])
        return torch.from_numpy(outputs), split_targets

    return outputs_of


def _table(splits: Sequence[Split]) -> tuple[np.ndarray, np.ndarray]:
    """The inputs ``(n, d)`` and targets ``(n, m)`` of some splits together."""
    all_inputs = []
    all_targets = []
    for split in splits:
        inputs, targets = split.batch(torch.arange(len(split)))
        all_inputs.append(inputs.double().numpy())
        all_targets.append(targets.double().numpy().reshape(len(split), -1))
    return np.concatenate(all_inputs), np.concatenate(all_targets)


def _fit_column(
    model: ClassicModel,
    num_classes: int,
    splits: Sequence[Split],
    remaining: Sequence[Split],
    chosen_on: Sequence[Split],
    column: int,
) -> Predict:
    """Train a model of one column of the targets.

    Args:
        model: How the model is made.
        num_classes: Number of classes; 0 for numbers.
        splits: All training examples of each client.
        remaining: Those to train on while settings are chosen.
        chosen_on: The others.
        column: The column.
    """
    inputs, targets = _table(splits)
    column_targets = targets[:, column]
    setting = model.default
    if chosen_on:
        train_inputs, train_targets = _table(remaining)
        other_inputs, other_targets = _table(chosen_on)
        # A model of one class has no settings to choose.
        if not num_classes or len(np.unique(train_targets[:, column])) > 1:
            setting = model.choose(
                (train_inputs, train_targets[:, column]),
                (other_inputs, other_targets[:, column]),
                num_classes,
            )
    # After the choice, the model is trained on all training examples.
    return model.fit(setting, (inputs, column_targets), num_classes)


Rows = tuple[np.ndarray, np.ndarray]
"""Inputs ``(n, d)`` and one target for each ``(n,)``."""


def _fit_boosting(setting: tuple[int, int], rows: Rows, num_classes: int) -> Predict:
    """Train gradient boosting.

    Args:
        setting: The least examples of a leaf, and the number of boosting rounds.
        rows: The training examples.
        num_classes: Number of classes; 0 for numbers.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    min_leaf, num_trees = setting
    make = HistGradientBoostingClassifier if num_classes else HistGradientBoostingRegressor
    model = make(
        min_samples_leaf=min_leaf, max_iter=num_trees, early_stopping=False, random_state=0
    )
    return trained(model, rows, num_classes)


def _choose_boosting(rows: Rows, validation_rows: Rows, num_classes: int) -> tuple[int, int]:
    """Return the setting with the least loss on other examples: each number of boosting rounds is tried."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    inputs, targets = validation_rows
    losses: dict[tuple[int, int], float] = {}
    for min_leaf in MIN_LEAVES:
        make = HistGradientBoostingClassifier if num_classes else HistGradientBoostingRegressor
        model = make(
            min_samples_leaf=min_leaf, max_iter=MOST_TREES, early_stopping=False, random_state=0
        )
        model.fit(*rows)
        staged = model.staged_predict_proba(inputs) if num_classes else model.staged_predict(inputs)
        for num_trees, outputs in enumerate(staged, start=1):
            predictions = _of_all_classes(outputs, model, num_classes)
            losses[min_leaf, num_trees] = mean_loss(predictions, targets, num_classes)
    return min(losses, key=lambda setting: losses[setting])


def _fit_linear(penalty: float, rows: Rows, num_classes: int) -> Predict:
    """Train logistic regression, or ridge regression of numbers, on standardized inputs."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model: Any = Ridge(alpha=penalty)
    if num_classes:
        model = LogisticRegression(C=1 / penalty, max_iter=1000)
    return trained(make_pipeline(StandardScaler(), model), rows, num_classes)


def _choose_linear(rows: Rows, validation_rows: Rows, num_classes: int) -> float:
    """Return the penalty with the least loss on other examples."""
    inputs, targets = validation_rows
    losses = {}
    for penalty in PENALTIES:
        predictions = _fit_linear(penalty, rows, num_classes)(inputs)
        losses[penalty] = mean_loss(predictions, targets, num_classes)
    return min(losses, key=lambda penalty: losses[penalty])


@dataclass(frozen=True)
class ClassicModel:
    """A family of models.

    Attributes:
        default: The setting where there are too few examples to choose it.
        choose: Function of examples to train on, other examples, and the number of classes; returns
            the setting with the least loss on the others.
        fit: Function of a setting, examples and the number of classes.
    """

    default: Any
    choose: Callable[[Rows, Rows, int], Any]
    fit: Callable[[Any, Rows, int], Predict]


MODEL_OF_FAMILY: Mapping[Family, ClassicModel] = {
    "gradient boosting": ClassicModel((MIN_LEAVES[0], MOST_TREES), _choose_boosting, _fit_boosting),
    "linear": ClassicModel(PENALTIES[0], _choose_linear, _fit_linear),
}
"""Family -> how its models are made."""


def trained(model: Any, rows: Rows, num_classes: int) -> Predict:
    """Train a model with scikit-learn's interface, and return its predictions as a function."""
    inputs, targets = rows
    # A model cannot learn from one class: it predicts this one.
    if num_classes and len(np.unique(targets)) == 1:
        probabilities = np.full(num_classes, MIN_PROBABILITY)
        probabilities[int(targets[0])] = 1.0
        return lambda other_inputs: np.tile(probabilities, (len(other_inputs), 1))
    with warnings.catch_warnings():
        # A model that has not quite converged is as good a reference.
        warnings.simplefilter("ignore")
        model.fit(inputs, targets)
    if not num_classes:
        return lambda other_inputs: np.asarray(model.predict(other_inputs))
    return lambda other_inputs: _of_all_classes(
        model.predict_proba(other_inputs), model, num_classes
    )


def _of_all_classes(outputs: np.ndarray, model: Any, num_classes: int) -> Outputs:
    """Probabilities of all classes ``(b, classes)``, from those of the classes that a model has seen; numbers as they are."""
    if not num_classes:
        return outputs
    probabilities = np.full((len(outputs), num_classes), MIN_PROBABILITY)
    probabilities[:, model.classes_.astype(int)] = np.maximum(outputs, MIN_PROBABILITY)
    return probabilities


def mean_loss(predictions: Outputs, targets: np.ndarray, num_classes: int) -> float:
    """The mean cross entropy of classes, or the mean squared error of numbers."""
    if num_classes:
        return float(-np.log(predictions[np.arange(len(targets)), targets.astype(int)]).mean())
    return float(((predictions - targets) ** 2).mean())
