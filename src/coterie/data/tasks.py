"""What the clients predict, found from the target columns: a class, several labels, or numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coterie.data.columns import values as column_values_of
from coterie.data.examples import check_distinct
from coterie.data.objective import CLASSIFICATION, MULTILABEL, REGRESSION, Objective
from coterie.settings import SettingError, UserError

TASKS = ("auto", "classification", "regression")
"""What a user can ask for; with ``auto``, the type of the target decides."""

FEW_CLASSES = 100
"""More classes than this, and more than half as many as rows, are taken for ids or for
measurements."""

WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
"""Text that stands for a whole number of at most 63 bits."""


@dataclass(frozen=True)
class PredictionTask:
    """What the clients predict.

    Attributes:
        kind: classification, multi-label or regression.
        outputs: Number of outputs of the model: classes, labels or predicted numbers.
        classes: Names of the classes, in the order of the outputs; empty if there are none.
    """

    kind: str
    outputs: int
    classes: tuple[str, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """The entries for the description of a world."""
        facts: dict[str, Any] = {"task": self.kind}
        if self.classes:
            facts["classes"] = list(self.classes)
        return facts


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names; if all are whole numbers, as numbers.

    Example:
        >>> in_order(["10", "9"]), in_order(["ward 10", "ward 9"])
        (['9', '10'], ['ward 10', 'ward 9'])
    """
    names = list(names)
    are_whole_numbers = all(WHOLE_NUMBER.fullmatch(name) for name in names)
    return sorted(names, key=lambda name: (int(name) if are_whole_numbers else 0, name))


def encoded(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Number the distinct values of a column.

    Args:
        values: Whole numbers, booleans or text, ``(N,)``.

    Returns:
        The number of each row's value ``(N,)``, and the values as text, in the order of
        :func:`in_order`.
    """
    distinct_values, code_of_row = np.unique(values, return_inverse=True)
    distinct_names = [str(value) for value in distinct_values]
    ordered_names = in_order(distinct_names)
    number_of_name = {name: number for number, name in enumerate(ordered_names)}
    number_of_code = np.array([number_of_name[name] for name in distinct_names], np.int64)
    return number_of_code[code_of_row], ordered_names


def label_texts(frame: Any, target: Any, context: str = "the table") -> np.ndarray:
    """Return a column of labels as the names of their classes, in the form of a world's and a schema's classes.

    A site that reads its own file finds the agreed classes by these names, whatever type its reader
    gives the column: ``0``, ``0.0`` and ``"0"`` are the class "0".

    Args:
        frame: As for :func:`~coterie.data.frames.from_frame`.
        target: The column: text, booleans or whole numbers.
        context: The table, for messages.

    Returns:
        The name of each row's class ``(N,)``, as objects.

    Raises:
        UserError: The column has missing values, or values of another kind.

    Example:
        >>> label_texts({"ill": [1, 0, 1]}, "ill").tolist(), label_texts({"ill": [True]}, "ill").tolist()
        (['1', '0', '1'], ['True'])
    """
    labels = column_values_of(frame, target, context)
    if labels.dtype.kind == "f":
        labels = _whole_labels(f"{context}: the column {target}", labels)
    return labels.astype(str).astype(object)


def targets(
    columns: Mapping[str, np.ndarray], task: str, source: str, least_classes: int = 2
) -> tuple[torch.Tensor, PredictionTask]:
    """Find what the clients predict.

    One column of text, booleans or whole numbers has classes, and one of floats has numbers to
    predict. Several columns have labels, each 0 or 1, or numbers to predict.

    Args:
        columns: Name of each target column -> its values ``(N,)``: booleans, int64, float64, or
            text as objects.
        task: One of :data:`TASKS`.
        source: The table, for messages.
        least_classes: Fewer classes than this are refused.

    Returns:
        The targets, ``(N,)`` int64 of classes or ``(N, outputs)`` float32, and the task.

    Raises:
        UserError: The values do not fit the task.
    """
    if task not in TASKS:
        raise SettingError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    # Decide what the columns are: the task says it, or their type does.
    type_kinds = {column_values.dtype.kind for column_values in columns.values()}
    predicts_numbers = task == "regression" or (task == "auto" and type_kinds == {"f"})
    if task == "auto" and predicts_numbers and len(columns) == 1:
        ((column_name, column_values),) = columns.items()
        if np.isin(column_values, (0, 1)).all():
            raise UserError(
                f"{source}: the target {column_name} has floats, all of them 0 or 1: set task = "
                "classification, or regression if they are numbers to predict"
            )
    # One column with classes.
    if len(columns) == 1 and not predicts_numbers:
        ((column_name, column_values),) = columns.items()
        return _classes(f"{source}: the target {column_name}", column_values, least_classes)
    # Otherwise each column is one output, a number or a label of 0 or 1.
    for column_name, column_values in columns.items():
        if column_values.dtype.kind == "O":
            advice = "a target of its own" if len(columns) > 1 else "for classification"
            raise UserError(
                f"{source}: the target {column_name} is text ({column_values[0]!r}), which can only be {advice}"
            )
        if not predicts_numbers and not np.isin(column_values, (0, 1)).all():
            raise UserError(
                f"{source}: several targets must be labels of 0 and 1, or floats, and {column_name} is "
                "neither; if they are numbers to predict, set task = regression"
            )
    if predicts_numbers:
        for column_name, column_values in columns.items():
            # Others are refused below.
            if np.isfinite(column_values).all():
                check_distinct(column_values[:, None], f"{source}: the target", [column_name])
    # Numbers that are too large for float32 become infinite, and are refused.
    with np.errstate(over="ignore"):
        float32_columns = [values.astype(np.float32) for values in columns.values()]
    target_matrix = np.column_stack(float32_columns)
    if not np.isfinite(target_matrix).all():
        raise UserError(
            f"{source}: the targets {', '.join(columns)} must be finite numbers in float32"
        )
    task_kind = "regression" if predicts_numbers else "multi-label"
    return torch.from_numpy(target_matrix), PredictionTask(task_kind, len(columns))


MANY_CLASSES = 20
"""More classes than this, of whole numbers, may be numbers to predict."""

FEW_PER_CLASS = 10
"""So may more than :data:`SOME_CLASSES` classes with fewer rows each, in the mean."""

SOME_CLASSES = 5


def like_numbers(distinct_count: int, row_count: int) -> bool:
    """Whether whole numbers look like numbers to predict, and not like classes.

    Args:
        distinct_count: How many different numbers there are.
        row_count: In how many rows.
    """
    return distinct_count > MANY_CLASSES or (
        distinct_count > SOME_CLASSES and row_count < FEW_PER_CLASS * distinct_count
    )


def hint(values: np.ndarray, task: PredictionTask, name: str, classes: str, numbers: str) -> str:
    """Return a sentence if the type of a target decided between classes and numbers, and its values suggest the other.

    Args:
        values: The target ``(N,)``.
        task: What was decided.
        name: The target, for the sentence.
        classes: What a user does to predict classes.
        numbers: What a user does to predict a number.

    Returns:
        The sentence; empty if there is nothing to say.
    """
    if values.dtype.kind not in "iuf" or values.ndim != 1:
        return ""
    # Only the values are looked at; what was decided stays.
    distinct_count = len(np.unique(values))
    look_like_numbers = like_numbers(distinct_count, len(values))
    if task.kind == "classification" and values.dtype.kind in "iu" and look_like_numbers:
        return (
            f"{name} holds whole numbers: {distinct_count:,} classes; {numbers} predicts a number"
        )
    are_whole = bool((values == np.floor(values)).all())
    if task.kind == "regression" and are_whole and not look_like_numbers:
        return (
            f"{name} holds floats that are whole numbers, {distinct_count:,} different ones, as "
            f"numbers to predict; {classes}"
        )
    return ""


def _classes(
    source: str, values: np.ndarray, least_classes: int
) -> tuple[torch.Tensor, PredictionTask]:
    """The targets and the task of a column of classes; ``source`` is what messages call it."""
    if values.dtype.kind == "f":
        values = _whole_labels(source, values)
    # Very many classes, or a single one, are probably another kind of column.
    code_of_row, class_names = encoded(values)
    if len(class_names) < least_classes:
        raise UserError(
            f"{source} must have at least two classes, and all rows have {class_names[0]!r}"
        )
    if len(class_names) > max(FEW_CLASSES, len(values) // 2):
        raise UserError(
            f"{source} has {len(class_names):,} different values in {len(values):,} rows, too many "
            "to be classes; is it an id? For numbers to predict, set task = regression"
        )
    return torch.from_numpy(code_of_row), PredictionTask(
        "classification", len(class_names), tuple(class_names)
    )


def _whole_labels(source: str, values: np.ndarray) -> np.ndarray:
    """Floats that stand for classes as whole numbers; ``source`` is what messages call them."""
    if (values != np.floor(values)).any() or np.abs(values).max() > 2**53:
        raise UserError(
            f"{source} must hold whole numbers to be classes; for numbers to predict, set task = regression"
        )
    return values.astype(np.int64)


def as_before(
    outputs: torch.Tensor, task: PredictionTask, earlier: Mapping[str, Any], source: str
) -> tuple[torch.Tensor, PredictionTask]:
    """Number the classes as an earlier world does.

    Args:
        outputs: The targets, as :func:`targets` returns them.
        task: Their task.
        earlier: The facts of the earlier world.
        source: The target, for messages.

    Returns:
        The targets and the task with the earlier world's classes.

    Raises:
        UserError: A class is new, or the task is another.
    """
    # The task must be that of the earlier world, and its classes must all be known there.
    if earlier.get("task", task.kind) != task.kind:
        raise UserError(
            f"{source} is for {task.kind}, and that of the earlier world for {earlier['task']}: set task, or its type"
        )
    earlier_classes = list(earlier.get("classes", task.classes))
    new_classes = [name for name in task.classes if name not in earlier_classes]
    if new_classes:
        raise UserError(
            f"{source} has the class {new_classes[0]!r}, which is none of the model's classes: "
            f"{', '.join(earlier_classes)}"
        )
    if not earlier_classes:
        return outputs, task
    # From this table's numbers to the earlier world's.
    output_of_class = torch.tensor([earlier_classes.index(name) for name in task.classes])
    earlier_task = PredictionTask(task.kind, len(earlier_classes), tuple(earlier_classes))
    return output_of_class[outputs], earlier_task


def objective_for(task: PredictionTask) -> Objective:
    """Return the loss and the metrics of a task."""
    objectives = {"multi-label": MULTILABEL, "regression": REGRESSION}
    return objectives.get(task.kind, CLASSIFICATION)
