"""Columns of a table in memory: their names, and their values as arrays of one kind."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from coterie.data.arrays import ordinary
from coterie.data.spelling import check_unlike
from coterie.settings import UserError, nearest

MAKE_NUMBERS = "list the columns to use as features, or make numbers of it"
"""What to do with a column that has none."""


def of_dates(name: Any) -> str:
    """What to do with a column of dates where numbers are needed."""
    return f"{MAKE_NUMBERS}; order={str(name)!r} would test on later rows, and is no feature"


def names_of(frame: Any, where: str) -> list[Any]:
    """Return the names of a table's columns.

    Args:
        frame: As for :func:`~coterie.data.frames.from_frame`.
        where: The table, for messages.

    Raises:
        UserError: It is no table.
    """
    if hasattr(frame, "collect"):
        raise UserError(f"{where} is lazy: pass frame.collect()")
    if not isinstance(frame, Mapping) and not (
        hasattr(frame, "columns") and hasattr(frame, "__getitem__")
    ):
        kind = type(frame).__name__
        raise UserError(
            f"{where} must be a data frame of pandas, polars or pyarrow, or a mapping from names to arrays, got {kind}"
        )
    if isinstance(frame, Mapping):
        return list(frame)
    return list(
        frame.column_names if hasattr(frame, "column_names") else frame.columns
    )  # pyarrow has the first


def check_columns(
    names: Sequence[Any], taken: Sequence[Any], chosen: Sequence[Any], where: str
) -> None:
    """Check the use of a table's columns.

    Args:
        names: All columns.
        taken: The columns of the client, the targets and the subject.
        chosen: The features.
        where: The table, for messages.

    Raises:
        UserError: A column is missing, occurs twice, or has two uses; or there are no features.
    """
    for name in (*taken, *chosen):
        if name not in names:
            raise UserError(
                f"{where} has no column {name!r}{nearest(name, map(str, names))} (columns: {listed(names)})"
            )
        if names.count(name) > 1:
            raise UserError(f"{where} has {names.count(name)} columns with the name {name!r}")
    for name in taken:
        if taken.count(name) > 1:
            raise UserError(
                f"{where}: the column {name!r} has two uses; client, targets and subject must be different columns"
            )
        if name in chosen:
            raise UserError(
                f"{where}: features must not contain {name!r}, which is the client, a target or the subject"
            )
    check_unlike([name for name in names if name in {*taken, *chosen}], f"columns of {where}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise UserError(
            f"{where} must have at least one feature, and each once, got {listed(chosen) or 'none'}"
        )


def listed(names: Sequence[Any]) -> str:
    """Return the names for a message; of many, the first and the last ones."""
    shown = [*names[:15], "...", *names[-5:]] if len(names) > 20 else names
    return ", ".join(map(str, shown))


def values(frame: Any, name: Any, where: str) -> np.ndarray:
    """Return a column as an array of one kind.

    Args:
        frame: As for :func:`~coterie.data.frames.from_frame`.
        name: The column.
        where: The table, for messages.

    Returns:
        Booleans, integers, float64, or text as objects, ``(N,)``, without missing values.

    Raises:
        UserError: The column has missing values, or values of another kind.
    """
    column = frame[name]
    where = f"{where}: the column {name}"
    array = (
        column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(ordinary(column, where))
    )
    if array.ndim != 1:
        raise UserError(
            f"{where} must have one value for each row, got an array of shape {array.shape}"
        )
    if array.dtype.kind not in "biufOUST":
        if array.dtype.kind in "Mm":
            raise UserError(f"{where} holds dates or times: {of_dates(name)}")
        raise UserError(f"{where} holds values of type {array.dtype}: {MAKE_NUMBERS}")
    if not len(array):
        raise UserError(f"{where} has no rows")
    if array.dtype.kind in "UST":
        array = array.astype(object)
    if array.dtype.kind in "fO":
        missing = (
            np.isnan(array)
            if array.dtype.kind == "f"
            else np.array([is_missing(value) for value in array])
        )
        Missing().plus(missing).check(where)
    return _of_one_kind(array, where) if array.dtype.kind == "O" else array


@dataclass
class Missing:
    """Missing values of a column, counted over one block of rows after the other.

    Attributes:
        count: Their number.
        first: The row of the first one, from 1.
        rows: Number of rows that were counted.
    """

    count: int = 0
    first: int = 0
    rows: int = 0

    def plus(self, missing: np.ndarray) -> Missing:
        """Count the next rows, of which ``missing`` ``(n,)`` lack a value, and return this object."""
        if not self.count and missing.any():
            self.first = self.rows + int(missing.argmax()) + 1
        self.count += int(missing.sum())
        self.rows += len(missing)
        return self

    def check(self, where: str) -> None:
        """Raise :class:`~coterie.settings.UserError` if there are any."""
        if self.count:
            many = (
                "a missing value, in"
                if self.count == 1
                else f"{self.count:,} missing values, the first in"
            )
            raise UserError(
                f"{where} has {many} row {self.first:,}: remove such rows, or fill them in"
            )


def is_missing(value: Any) -> bool:
    """Whether an object stands for no value: None, NaN, an empty text, or the missing value of pandas."""
    if value is None or isinstance(value, str):
        return not value
    return type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, numbers.Real) and bool(value != value)
    )


def _of_one_kind(array: np.ndarray, where: str) -> np.ndarray:
    """Objects as booleans, int64 or float64, or as objects if they are text."""
    kinds = {type(value) for value in array}
    if all(issubclass(kind, str) for kind in kinds):
        return array
    for accepted, dtype in (
        ((bool, np.bool_), bool),
        (numbers.Integral, np.int64),
        ((numbers.Real, Decimal), np.float64),
    ):
        if all(issubclass(kind, accepted) for kind in kinds):
            try:
                return array.astype(dtype)
            except OverflowError:
                break
    got = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise UserError(
        f"{where} must hold numbers of at most 64 bits, booleans or text, all of one kind, got {got}"
    )
