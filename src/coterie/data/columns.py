"""Columns of a table in memory: their names, and their values as arrays of one kind.

:func:`coterie.from_frame` and table files read their columns here, ``matching`` the tables of
:func:`coterie.from_lists`. Refused are lazy frames, columns that are missing or have two uses, missing
values, dates where numbers are needed, and values of mixed types.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from coterie.data.arrays import ordinary
from coterie.data.spelling import check_unlike
from coterie.settings import UserError, nearest

MAKE_NUMBERS = "list the columns to use as features, or make numbers of it"
"""What to do with a column that has none."""


MAX_LISTED_NAMES = 20
"""Most names that a message lists in full."""

DTYPE_OF_TYPES: tuple[tuple[Any, Any], ...] = (
    ((bool, np.bool_), bool),
    (numbers.Integral, np.int64),
    ((numbers.Real, Decimal), np.float64),
)
"""Types of Python's objects -> the type of an array of them; the first that fits."""


def of_dates(name: Any) -> str:
    """What to do with a column of dates where numbers are needed."""
    return f"{MAKE_NUMBERS}; order={str(name)!r} would test on later rows, and is no feature"


def names_of(frame: Any, context: str) -> list[Any]:
    """Return the names of a table's columns.

    Args:
        frame: As for :func:`~coterie.data.frames.from_frame`.
        context: The table, for messages.

    Raises:
        UserError: It is no table.
    """
    if hasattr(frame, "collect"):
        raise UserError(f"{context} is lazy: pass frame.collect()")
    if isinstance(frame, Mapping):
        return list(frame)
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(
            f"{context} must be a data frame of pandas, polars or pyarrow, or a mapping from names to arrays, "
            f"got {type(frame).__name__}"
        )
    # The columns of pyarrow are arrays, and it has names besides.
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def check_columns(
    names: Sequence[Any], taken_names: Sequence[Any], features: Sequence[Any], context: str
) -> None:
    """Check the use of a table's columns.

    Args:
        names: All columns.
        taken_names: The columns of the client, the targets and the subject.
        features: The features.
        context: The table, for messages.

    Raises:
        UserError: A column is missing, occurs twice, or has two uses; or there are no features.
    """
    # Each column that is used must be there, and only once.
    for name in (*taken_names, *features):
        if name not in names:
            raise UserError(
                f"{context} has no column {name!r}{nearest(name, map(str, names))} (columns: {listed(names)})"
            )
        if names.count(name) > 1:
            raise UserError(f"{context} has {names.count(name)} columns with the name {name!r}")
    # Each column has one use: a target among the features would be known to the model.
    for name in taken_names:
        if taken_names.count(name) > 1:
            raise UserError(
                f"{context}: the column {name!r} has two uses; client, targets and subject must be different columns"
            )
        if name in features:
            raise UserError(
                f"{context}: features must not contain {name!r}, which is the client, a target or the subject"
            )
    # Names such as "age" and "age " would be two columns that a reader takes for one.
    used_names = {*taken_names, *features}
    check_unlike([name for name in names if name in used_names], f"columns of {context}")
    if not features or len(set(features)) < len(features):
        raise UserError(
            f"{context} must have at least one feature, and each once, got {listed(features) or 'none'}"
        )


def listed(names: Sequence[Any]) -> str:
    """Return the names for a message; of many, the first and the last ones."""
    if len(names) > MAX_LISTED_NAMES:
        names = [*names[:15], "...", *names[-5:]]
    return ", ".join(map(str, names))


def values(frame: Any, name: Any, context: str) -> np.ndarray:
    """Return a column as an array of one kind.

    Args:
        frame: As for :func:`~coterie.data.frames.from_frame`.
        name: The column.
        context: The table, for messages.

    Returns:
        Booleans, integers, float64, or text as objects, ``(N,)``, without missing values.

    Raises:
        UserError: The column has missing values, or values of another kind.
    """
    column = frame[name]
    context = f"{context}: the column {name}"
    has_to_numpy = hasattr(column, "to_numpy")
    array = column.to_numpy() if has_to_numpy else np.asarray(ordinary(column, context))
    if array.ndim != 1:
        raise UserError(
            f"{context} must have one value for each row, got an array of shape {array.shape}"
        )
    # Kinds of NumPy: booleans, integers, floats, objects and three of text. M and m are times.
    kind = array.dtype.kind
    if kind in "Mm":
        raise UserError(f"{context} holds dates or times: {of_dates(name)}")
    if kind not in "biufOUST":
        raise UserError(f"{context} holds values of type {array.dtype}: {MAKE_NUMBERS}")
    if not len(array):
        raise UserError(f"{context} has no rows")

    # All text becomes objects, because only these can be missing, or of mixed kinds.
    if kind in "UST":
        array = array.astype(object)
    if kind == "f":
        Missing().plus(np.isnan(array)).check(context)
    elif array.dtype.kind == "O":
        Missing().plus(np.array([is_missing(value) for value in array])).check(context)
        return _of_one_kind(array, context)
    return array


class RowCountError(UserError):
    """Columns of a table have different numbers of rows: no column alone is at fault."""


class Problems:
    """What is wrong with the columns of a table: all of it is refused at once.

    Args:
        context: The table, for messages.
    """

    def __init__(self, context: str) -> None:
        self.context = context
        self.errors: list[UserError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A block about one column, whose refusal is kept for later."""
        try:
            yield
        except RowCountError:
            raise
        except UserError as error:
            self.errors.append(error)

    def check(self) -> None:
        """Raise :class:`~coterie.settings.UserError` with every refusal; a single one as it is."""
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        # Columns with the same advice share it.
        columns_of_advice: dict[str, list[str]] = {}
        for error in self.errors[:MAX_LISTED_NAMES]:
            sentence = str(error).removeprefix(f"{self.context}: the column ")
            problem, _, advice = sentence.partition(": ")
            columns_of_advice.setdefault(advice, []).append(problem)
        texts = []
        for advice, problems in columns_of_advice.items():
            texts.append(f"{', '.join(problems)}{f': {advice}' if advice else ''}")
        more = len(self.errors) - MAX_LISTED_NAMES
        rest = f"; and {more} more" if more > 0 else ""
        raise UserError(
            f"{self.context} has {len(self.errors)} columns that cannot be used as they are. "
            f"{'; '.join(texts)}{rest}"
        )


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

    def plus(self, is_missing_row: np.ndarray) -> Missing:
        """Count the next rows, of which those in the mask ``(n,)`` lack a value, and return this object."""
        # Rows count from 1, over all blocks before.
        if not self.count and is_missing_row.any():
            self.first = self.rows + int(is_missing_row.argmax()) + 1
        self.count += int(is_missing_row.sum())
        self.rows += len(is_missing_row)
        return self

    def check(self, context: str) -> None:
        """Raise :class:`~coterie.settings.UserError` if there are any."""
        if not self.count:
            return
        words = "a missing value, in"
        if self.count > 1:
            words = f"{self.count:,} missing values, the first in"
        raise UserError(
            f"{context} has {words} row {self.first:,}: remove such rows, or fill them in"
        )


def is_missing(value: Any) -> bool:
    """Whether an object stands for no value: None, NaN, an empty text, or the missing value of pandas."""
    if value is None or isinstance(value, str):
        return not value
    return type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, numbers.Real) and bool(value != value)
    )


def _of_one_kind(array: np.ndarray, context: str) -> np.ndarray:
    """Objects as booleans, int64 or float64, or as objects if they are text."""
    # Values of one kind, such as NumPy's and Python's integers, may have several types.
    types = {type(value) for value in array}
    if all(issubclass(value_type, str) for value_type in types):
        return array
    for accepted_types, dtype in DTYPE_OF_TYPES:
        if all(issubclass(value_type, accepted_types) for value_type in types):
            # Integers of more than 64 bits are of no kind.
            try:
                return array.astype(dtype)
            except OverflowError:
                break
    type_names = ", ".join(sorted(value_type.__name__ for value_type in types))
    raise UserError(
        f"{context} must hold numbers of at most 64 bits, booleans or text, all of one kind, got {type_names}"
    )
