"""Times of examples: numbers, dates, or text that is an ISO date, as one array of numbers that can be ordered."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from coterie.data.arrays import ordinary
from coterie.data.columns import Missing, is_missing
from coterie.settings import SettingError, UserError

EPOCH = datetime(1970, 1, 1)
"""Dates are microseconds from here."""

UNITS = {"W": 604800.0, "D": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
"""Unit of a duration -> its seconds. Months and years have none: they differ in length."""

_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(UNITS)})")
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
_YEAR = re.compile(r"[0-9]{4}")


@dataclass(frozen=True)
class Times:
    """The times of some examples.

    Attributes:
        values: ``(N,)``, or ``(N, 2)`` for the first and last time that each example shows: int64
            or float64; of dates, microseconds in UTC.
        dates: Whether they are dates.
    """

    values: np.ndarray
    dates: bool


def times_of(given: Any, where: str) -> Times:
    """Make times of an array or a column.

    Args:
        given: Numbers, dates (of NumPy, pandas, polars or Python), or text that is an ISO date such
            as 2024-03-31, 2024-03-31T12:00 or 2024-03; all of one kind, ``(N,)`` or ``(N, 2)``.
        where: The array or column, for messages.

    Returns:
        The times.

    Raises:
        UserError: A value is missing, infinite or not of these kinds, or kinds are mixed.
    """
    array = given.to_numpy() if hasattr(given, "to_numpy") else np.asarray(ordinary(given, where))
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 2):
        raise UserError(
            f"{where} must hold one time per example, or its first and last time (N, 2), got shape {array.shape}"
        )
    if not len(array):
        raise UserError(f"{where} has no rows")
    flat = array.reshape(-1)
    missing = _missing(flat)
    Missing().plus(missing.reshape(len(array), -1).max(1)).check(where)
    found, dates = _ordered(flat, where)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UserError(f"{where} must hold finite times, got {found[~np.isfinite(found)][0]}")
    made = found.reshape(array.shape)
    if made.ndim == 2 and (made[:, 0] > made[:, 1]).any():
        row = int((made[:, 0] > made[:, 1]).argmax())
        raise UserError(
            f"{where} must hold the first and the last time of each example, and in row {row + 1:,} the last is first"
        )
    return Times(made, dates)


def _missing(flat: np.ndarray) -> np.ndarray:
    """Which values are missing, ``(N,)``."""
    if flat.dtype.kind in "Mm":
        return np.isnat(flat)
    if flat.dtype.kind == "f":
        return np.isnan(flat)
    return (
        np.array([is_missing(value) for value in flat], bool)
        if flat.dtype.kind in "OUST"
        else np.zeros(len(flat), bool)
    )


def _ordered(flat: np.ndarray, where: str) -> tuple[np.ndarray, bool]:
    """Values ``(N,)`` without missing ones as numbers, and whether they are dates."""
    kind = flat.dtype.kind
    if kind == "M":
        return flat.astype("datetime64[us]").astype(np.int64), True
    if kind == "m":
        return flat.astype("timedelta64[us]").astype(np.int64), True
    if kind in "iu" and (kind == "i" or not len(flat) or int(flat.max()) < 2**63):
        return flat.astype(np.int64), False
    if kind == "f":
        return flat.astype(np.float64), False
    if kind in "OUST":
        return _of_objects(flat, where)
    raise UserError(
        f"{where} must hold numbers or dates to be the order, got {'true and false' if kind == 'b' else flat.dtype}"
    )


def _of_objects(flat: np.ndarray, where: str) -> tuple[np.ndarray, bool]:
    """Objects of one kind as numbers, and whether they are dates."""
    known: dict[Any, Any] = {}  # few dates, many rows
    zoned: set[bool] = set()
    kinds: set[str] = set()
    for row, value in enumerate(flat, 1):
        if value in known:
            continue
        try:
            known[value] = made = _of_object(value)
        except (ValueError, OverflowError):
            odd = f"{str(value)!r:.40} in row {row:,} is no number and no date"
            hint = "write dates as 2024-03-31 (ISO 8601), or make numbers of it"
            raise UserError(f"{where} cannot be ordered in time: {odd}; {hint}") from None
        kinds.add("dates" if isinstance(made, datetime) else "numbers")
        if isinstance(made, datetime):
            zoned.add(made.tzinfo is not None)
    if len(kinds) > 1:
        raise UserError(f"{where} mixes numbers and dates: use one kind for all rows")
    if len(zoned) > 1:
        raise UserError(
            f"{where} mixes dates with a time zone and dates without: give all rows one, or none"
        )
    if kinds == {"dates"}:
        known = {value: _microseconds(made) for value, made in known.items()}
        return np.array([known[value] for value in flat], np.int64), True
    whole = all(isinstance(made, int) for made in known.values())
    return np.array([known[value] for value in flat], np.int64 if whole else np.float64), False


def _of_object(value: Any) -> datetime | int | float:
    """A date or a number; raises ValueError for anything else."""
    if hasattr(value, "to_pydatetime"):  # pandas's Timestamp
        made: datetime = value.to_pydatetime(warn=False)
        return made
    if hasattr(value, "to_timestamp"):  # pandas's Period
        return _of_object(value.to_timestamp())
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, np.datetime64):
        return EPOCH + timedelta(microseconds=int(value.astype("datetime64[us]").astype(np.int64)))
    if isinstance(value, str):
        return of_text(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise ValueError(value)
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def of_text(text: str) -> datetime:
    """Read an ISO date; a year or a month stands for its first day.

    Raises:
        ValueError: It is none.
    """
    text = text.strip()
    if _YEAR.fullmatch(text):
        text += "-01"
    if _MONTH.fullmatch(text):
        text += "-01"
    return datetime.fromisoformat(text)


def _microseconds(moment: datetime) -> int:
    naive = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return (naive - EPOCH) // timedelta(microseconds=1)


def gap_of(gap: Any, dates: bool) -> float:
    """Return a gap in the unit of the times.

    Args:
        gap: A number in the unit of the times; of dates a duration such as "7D", "12h" or "30min",
            or a timedelta. None for no gap.
        dates: Whether the times are dates, whose unit is a microsecond.

    Returns:
        The gap, >= 0.

    Raises:
        SettingError: It is not of the kind that the times need.
    """
    check_gap(gap)
    if gap is None:
        return 0.0
    seconds = _seconds(gap)
    if dates == (seconds is None) and gap != 0:
        wanted = (
            "a duration such as 7D, 12h or 30min, since the order holds dates"
            if dates
            else "a number, as the order holds"
        )
        raise SettingError(f"gap must be {wanted}, got {gap!r}")
    return float(gap) if seconds is None else 1e6 * seconds


def check_gap(gap: Any) -> None:
    """Raise :class:`~coterie.settings.SettingError` if a gap is neither a number >= 0 nor a duration."""
    seconds = None if gap is None else _seconds(gap)
    if seconds is not None or gap is None:
        value = seconds or 0.0
    elif isinstance(gap, float | int | np.number) and not isinstance(gap, bool):
        value = float(gap)
    else:
        hint = (
            "; months and years differ in length: use days"
            if isinstance(gap, str) and gap[-1:] in "MYy"
            else ""
        )
        raise SettingError(
            f"gap must be a number, or for dates a duration such as 7D, 12h or 30min, got {gap!r:.60}{hint}"
        )
    if not (math.isfinite(value) and value >= 0):
        raise SettingError(f"gap must be >= 0, got {gap!r}")


def _seconds(gap: Any) -> float | None:
    """The seconds of a duration; None if it is none."""
    if isinstance(gap, timedelta):
        return gap.total_seconds()
    if isinstance(gap, np.timedelta64):
        return float(gap / np.timedelta64(1, "s"))
    found = _DURATION.fullmatch(gap.strip()) if isinstance(gap, str) else None
    return None if found is None else float(found[1]) * UNITS[found[2]]


# ----------------------------------------------------------------------------------------------------
# Columns that look like times.


TIME_WORDS = frozenset(
    ("date", "datetime", "timestamp", "year", "month", "week", "day", "time", "hour")
)
"""Names of columns, or their parts, that are hints of time where the values never fall."""

MIN_DATE_SHARE = 0.95
"""Share of the values of a text column that are ISO dates where it counts as dates."""

MAX_TRIED_VALUES = 1000
"""Values of a text column that are tried."""


def is_date_column(values: Sequence[Any] | np.ndarray) -> bool:
    """Whether a column, as an array or a column of pandas or polars, holds dates, or text of which most are ISO dates."""
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.dtype.kind == "M":
        return True
    if array.dtype.kind not in "OUST" or array.ndim != 1:
        return False
    tried = (
        array[np.linspace(0, len(array) - 1, min(MAX_TRIED_VALUES, len(array))).astype(int)]
        if len(array)
        else array
    )
    there = [value for value in tried if not is_missing(value)]
    return bool(there) and sum(map(_is_date, there)) >= MIN_DATE_SHARE * len(there)


def _is_date(value: Any) -> bool:
    if isinstance(value, str) and value.strip().isdigit():
        return False  # a number in a file that is not read for its type, and a year only by chance
    try:
        return isinstance(_of_object(value), datetime)
    except (ValueError, OverflowError):
        return False


def is_time_column(name: Any, values: np.ndarray, owners: np.ndarray) -> bool:
    """Whether a column of numbers has a name of time and never falls in the rows of a client.

    Args:
        name: The column's name.
        values: Its values ``(N,)``.
        owners: The client's number of each row ``(N,)``.
    """
    words = re.split(r"[\W_]+", str(name).lower())
    if not TIME_WORDS.intersection(words) or values.dtype.kind not in "iuf":
        return False
    order = np.argsort(owners, kind="stable")
    steps, same = np.diff(values[order].astype(np.float64)), np.diff(owners[order]) == 0
    return bool(same.any()) and bool((steps[same] >= 0).all()) and bool((steps[same] > 0).any())
