"""What the clients predict, found from the target columns: a class, several labels, or numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coterie.data.examples import check_distinct
from coterie.data.objective import CLASSIFICATION, MULTILABEL, REGRESSION, Objective
from coterie.settings import SettingError, UserError

TASKS = ("auto", "classification", "regression")
"""What a user can ask for; with ``auto``, the type of the target decides."""

FEW_CLASSES = 100
"""More classes than this, and more than half as many as rows, are taken for ids or for
measurements."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True)
class Task:
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
        return {"task": self.kind, **({"classes": list(self.classes)} if self.classes else {})}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names; if all are whole numbers, as numbers.

    Example:
        >>> in_order(["10", "9"]), in_order(["ward 10", "ward 9"])
        (['9', '10'], ['ward 10', 'ward 9'])
    """
    names = list(names)
    whole = all(_WHOLE.fullmatch(name) for name in names)
    return sorted(names, key=lambda name: (int(name) if whole else 0, name))


def encoded(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Number the distinct values of a column.

    Args:
        values: Whole numbers, booleans or text, ``(N,)``.

    Returns:
        The number of each row's value ``(N,)``, and the values as text, in the order of
        :func:`in_order`.
    """
    found, codes = np.unique(values, return_inverse=True)
    names = [str(value) for value in found]
    order = in_order(names)
    place = {name: number for number, name in enumerate(order)}
    return np.array([place[name] for name in names], np.int64)[codes], order


def targets(columns: Mapping[str, np.ndarray], task: str, where: str) -> tuple[torch.Tensor, Task]:
    """Find what the clients predict.

    One column of text, booleans or whole numbers has classes, and one of floats has numbers to
    predict. Several columns have labels, each 0 or 1, or numbers to predict.

    Args:
        columns: Name of each target column -> its values ``(N,)``: booleans, int64, float64, or
            text as objects.
        task: One of :data:`TASKS`.
        where: The table, for messages.

    Returns:
        The targets, ``(N,)`` int64 of classes or ``(N, outputs)`` float32, and the task.

    Raises:
        UserError: The values do not fit the task.
    """
    if task not in TASKS:
        raise SettingError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    kinds = {values.dtype.kind for values in columns.values()}
    numbers = task == "regression" or (task == "auto" and kinds == {"f"})
    if (
        task == "auto"
        and numbers
        and len(columns) == 1
        and all(np.isin(values, (0, 1)).all() for values in columns.values())
    ):
        raise UserError(
            f"{where}: the target {next(iter(columns))} has floats, all of them 0 or 1: set task = classification, or "
            "regression if they are numbers to predict"
        )
    if len(columns) == 1 and not numbers:
        ((name, values),) = columns.items()
        return _classes(f"{where}: the target {name}", values)
    for name, values in columns.items():
        if values.dtype.kind == "O":
            hint = "a target of its own" if len(columns) > 1 else "for classification"
            raise UserError(
                f"{where}: the target {name} is text ({values[0]!r}), which can only be {hint}"
            )
        if not numbers and not np.isin(values, (0, 1)).all():
            raise UserError(
                f"{where}: several targets must be labels of 0 and 1, or floats, and {name} is neither; if they are numbers to "
                "predict, set task = regression"
            )
    if numbers:
        for name, values in columns.items():
            if np.isfinite(values).all():  # others are refused below
                check_distinct(values[:, None], f"{where}: the target", [name])
    with np.errstate(over="ignore"):
        matrix = np.column_stack([values.astype(np.float32) for values in columns.values()])
    if not np.isfinite(matrix).all():
        raise UserError(
            f"{where}: the targets {', '.join(columns)} must be finite numbers in float32"
        )
    return torch.from_numpy(matrix), Task("regression" if numbers else "multi-label", len(columns))


MANY_CLASSES = 20
"""More classes than this, of whole numbers, may be numbers to predict."""

FEW_PER_CLASS = 10
"""So may more than :data:`SOME_CLASSES` classes with fewer rows each, in the mean."""

SOME_CLASSES = 5


def like_numbers(different: int, rows: int) -> bool:
    """Whether whole numbers look like numbers to predict, and not like classes.

    Args:
        different: How many different ones there are.
        rows: In how many rows.
    """
    return different > MANY_CLASSES or (
        different > SOME_CLASSES and rows < FEW_PER_CLASS * different
    )


def hint(values: np.ndarray, task: Task, name: str, classes: str, numbers: str) -> str:
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
    different = len(np.unique(values))
    if (
        task.kind == "classification"
        and values.dtype.kind in "iu"
        and like_numbers(different, len(values))
    ):
        return f"{name} holds whole numbers: {different:,} classes; {numbers} predicts a number"
    whole = bool((values == np.floor(values)).all())
    if task.kind == "regression" and whole and not like_numbers(different, len(values)):
        return f"{name} holds floats that are whole numbers, {different:,} different ones, as numbers to predict; {classes}"
    return ""


def _classes(where: str, values: np.ndarray) -> tuple[torch.Tensor, Task]:
    if values.dtype.kind == "f":
        if (values != np.floor(values)).any() or np.abs(values).max() > 2**53:
            raise UserError(
                f"{where} must hold whole numbers to be classes; for numbers to predict, set task = regression"
            )
        values = values.astype(np.int64)
    codes, names = encoded(values)
    if len(names) < 2:
        raise UserError(f"{where} must have at least two classes, and all rows have {names[0]!r}")
    if len(names) > max(FEW_CLASSES, len(values) // 2):
        raise UserError(
            f"{where} has {len(names):,} different values in {len(values):,} rows, too many to be classes; is it an id? For "
            "numbers to predict, set task = regression"
        )
    return torch.from_numpy(codes), Task("classification", len(names), tuple(names))


def as_before(
    outputs: torch.Tensor, task: Task, earlier: Mapping[str, Any], where: str
) -> tuple[torch.Tensor, Task]:
    """Number the classes as an earlier world does.

    Args:
        outputs: The targets, as :func:`targets` returns them.
        task: Their task.
        earlier: The facts of the earlier world.
        where: The target, for messages.

    Returns:
        The targets and the task with the earlier world's classes.

    Raises:
        UserError: A class is new, or the task is another.
    """
    if earlier.get("task", task.kind) != task.kind:
        raise UserError(
            f"{where} is for {task.kind}, and that of the earlier world for {earlier['task']}: set task, or its type"
        )
    known = list(earlier.get("classes", task.classes))
    if new := [name for name in task.classes if name not in known]:
        raise UserError(
            f"{where} has the class {new[0]!r}, and the earlier world, whose model has an output per class, has only "
            f"{', '.join(known)}"
        )
    if not known:
        return outputs, task
    place = torch.tensor([known.index(name) for name in task.classes])
    return place[outputs], Task(task.kind, len(known), tuple(known))


# ----------------------------------------------------------------------------------------------------
# The loss and the metrics of each task.


def objective_for(task: Task) -> Objective:
    """Return the loss and the metrics of a task."""
    return {"multi-label": MULTILABEL, "regression": REGRESSION}.get(task.kind, CLASSIFICATION)
