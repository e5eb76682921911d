"""The kinds of models that a client can train: those of the classic references, random forests, and XGBoost."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from coterie.runs.classic import MODEL_OF_FAMILY, ClassicModel, Predict, Rows, mean_loss, trained
from coterie.settings import UserError, known_list, nearest

MIN_FOREST_LEAVES = (1, 5, 20)
"""The least examples of a leaf of a random forest that are tried."""

FOREST_TREES = 100

MAX_XGBOOST_DEPTHS = (3, 6, 1)
"""The greatest depths of XGBoost's trees that are tried."""

XGBOOST_ROUNDS = 100


def model_of(family: str) -> ClassicModel:
    """Return how models of a family are made.

    Args:
        family: ``gradient boosting``, ``linear``, ``random forest`` or ``xgboost``.

    Raises:
        UserError: There is no such family, or its package is not installed.
    """
    if family not in TREE_FAMILIES:
        raise UserError(
            f"there is no family of models {family!r}{nearest(family, TREE_FAMILIES)} {known_list(TREE_FAMILIES)}"
        )
    if family == "xgboost" and importlib.util.find_spec("xgboost") is None:
        raise UserError("the family xgboost needs XGBoost: pip install 'coterie[trees]'")
    return TREE_FAMILIES[family]


def _fit_forest(min_leaf: int, rows: Rows, num_classes: int) -> Predict:
    """Train a random forest.

    Args:
        min_leaf: The least examples of a leaf.
        rows: The training examples.
        num_classes: Number of classes; 0 for numbers.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    make = RandomForestClassifier if num_classes else RandomForestRegressor
    model = make(n_estimators=FOREST_TREES, min_samples_leaf=min_leaf, random_state=0)
    return trained(model, rows, num_classes)


def _choose_forest(rows: Rows, validation_rows: Rows, num_classes: int) -> int:
    """Return the least size of a leaf with the least loss on other examples."""
    return _setting_of_least_loss(
        MIN_FOREST_LEAVES, _fit_forest, rows, validation_rows, num_classes
    )


def _fit_xgboost(max_depth: int, rows: Rows, num_classes: int) -> Predict:
    """Train XGBoost.

    Args:
        max_depth: The greatest depth of a tree.
        rows: The training examples.
        num_classes: Number of classes; 0 for numbers.
    """
    import numpy as np
    import xgboost

    settings = {
        "max_depth": max_depth,
        "n_estimators": XGBOOST_ROUNDS,
        "learning_rate": 0.1,
        "random_state": 0,
        "n_jobs": 1,
    }
    if not num_classes:
        return trained(xgboost.XGBRegressor(**settings), rows, num_classes)
    # XGBoost takes classes 0, 1, 2 and so on, each with an example.
    inputs, targets = rows
    classes = np.unique(targets)
    model = _OfClasses(xgboost.XGBClassifier(**settings), classes)
    return trained(model, (inputs, targets), num_classes)


class _OfClasses:
    """A classifier of the classes that it has seen, whatever their numbers are.

    Args:
        model: A classifier of classes from 0 on.
        classes: The classes ``(k,)``, in ascending order.
    """

    def __init__(self, model: Any, classes: Any) -> None:
        self.model = model
        self.classes_ = classes

    def fit(self, inputs: Any, targets: Any) -> None:
        """Train on inputs ``(n, d)`` and targets ``(n,)``."""
        self.model.fit(inputs, self.classes_.searchsorted(targets))

    def predict_proba(self, inputs: Any) -> Any:
        """Return probabilities ``(n, k)``."""
        return self.model.predict_proba(inputs)


def _choose_xgboost(rows: Rows, validation_rows: Rows, num_classes: int) -> int:
    """Return the greatest depth with the least loss on other examples."""
    return _setting_of_least_loss(
        MAX_XGBOOST_DEPTHS, _fit_xgboost, rows, validation_rows, num_classes
    )


def _setting_of_least_loss(
    settings: tuple[int, ...], fit: Any, rows: Rows, validation_rows: Rows, num_classes: int
) -> int:
    """The setting with the least loss on other examples, the first of equal ones."""
    inputs, targets = validation_rows
    losses = {}
    for setting in settings:
        predictions = fit(setting, rows, num_classes)(inputs)
        losses[setting] = mean_loss(predictions, targets, num_classes)
    return min(losses, key=lambda setting: losses[setting])


TREE_FAMILIES: Mapping[str, ClassicModel] = {
    "gradient boosting": MODEL_OF_FAMILY["gradient boosting"],
    "linear": MODEL_OF_FAMILY["linear"],
    "random forest": ClassicModel(MIN_FOREST_LEAVES[0], _choose_forest, _fit_forest),
    "xgboost": ClassicModel(MAX_XGBOOST_DEPTHS[0], _choose_xgboost, _fit_xgboost),
}
"""Family -> how its models are made; settings are chosen on a fifth of the training rows."""
