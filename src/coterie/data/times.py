"""Single times: numbers, dates and ISO dates in text as one array of numbers; gaps; columns that look like times.

``time_order`` divides examples by these times. Every door that takes an order reads it here: an array
of :func:`coterie.from_lists` or of a .npz file, a column of :func:`coterie.from_frame` or of a table
file. Refused are missing, infinite and mixed times, and gaps of another unit than the times.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from coterie.data.arrays import ordinary
from coterie.data.columns import Missing, is_missing
from coterie.settings import SettingError, UserError

EPOCH = datetime(1970, 1, 1)
"""Dates are microseconds from here."""

SECONDS_OF_UNIT = {"W": 604800.0, "D": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
"""Unit of a duration -> its seconds. Months and years have none: they differ in length."""

_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(SECONDS_OF_UNIT)})")
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


def times_of(times: Any, context: str) -> Times:
    """Make times of an array or a column.

    Args:
        times: Numbers, dates (of NumPy, pandas, polars or Python), or text that is an ISO date such
            as 2024-03-31, 2024-03-31T12:00 or 2024-03; all of one kind, ``(N,)`` or ``(N, 2)``.
        context: The array or column, for messages.

    Returns:
        The times.

    Raises:
        UserError: A value is missing, infinite or not of these kinds, or kinds are mixed.
    """
    # One time per example, or the first and the last time that it shows.
    array = times.to_numpy() if hasattr(times, "to_numpy") else np.asarray(ordinary(times, context))
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 2):
        raise UserError(
            f"{context} must hold one time per example, or its first and last time (N, 2), got shape {array.shape}"
        )
    if not len(array):
        raise UserError(f"{context} has no rows")
    # A row is missing if one of its times is.
    flat_values = array.reshape(-1)
    is_missing_row = _missing(flat_values).reshape(len(array), -1).max(1)
    Missing().plus(is_missing_row).check(context)
    flat_times, are_dates = _ordered(flat_values, context)
    if flat_times.dtype.kind == "f" and not np.isfinite(flat_times).all():
        infinite_time = flat_times[~np.isfinite(flat_times)][0]
        raise UserError(f"{context} must hold finite times, got {infinite_time}")
    values = flat_times.reshape(array.shape)
    if values.ndim == 2:
        is_reversed = values[:, 0] > values[:, 1]
        if is_reversed.any():
            raise UserError(
                f"{context} must hold the first and the last time of each example, "
                f"and in row {int(is_reversed.argmax()) + 1:,} the last is first"
            )
    return Times(values, are_dates)


def _missing(flat_values: np.ndarray) -> np.ndarray:
    """Which values are missing, ``(N,)``."""
    kind = flat_values.dtype.kind
    if kind in "Mm":
        return np.isnat(flat_values)
    if kind == "f":
        return np.isnan(flat_values)
    if kind in "OUST":
        return np.array([is_missing(value) for value in flat_values], bool)
    return np.zeros(len(flat_values), bool)


def _ordered(flat_values: np.ndarray, context: str) -> tuple[np.ndarray, bool]:
    """Values ``(N,)`` without missing ones as numbers, and whether they are dates."""
    kind = flat_values.dtype.kind
    # Dates are microseconds; a duration, such as one since admission, counts as a date, too.
    if kind == "M":
        return flat_values.astype("datetime64[us]").astype(np.int64), True
    if kind == "m":
        return flat_values.astype("timedelta64[us]").astype(np.int64), True
    fits_int64 = kind == "i" or (
        kind == "u" and (not len(flat_values) or int(flat_values.max()) < 2**63)
    )
    if fits_int64:
        return flat_values.astype(np.int64), False
    if kind == "f":
        return flat_values.astype(np.float64), False
    if kind in "OUST":
        return _of_objects(flat_values, context)
    type_words = "true and false" if kind == "b" else flat_values.dtype
    raise UserError(f"{context} must hold numbers or dates to be the order, got {type_words}")


def _of_objects(flat_values: np.ndarray, context: str) -> tuple[np.ndarray, bool]:
    """Objects of one kind as numbers, and whether they are dates."""
    # Many rows have few different dates, so each distinct value is read once.
    time_of_value: dict[Any, Any] = {}
    kinds: set[str] = set()
    have_time_zone: set[bool] = set()
    for row, value in enumerate(flat_values, 1):
        if value in time_of_value:
            continue
        try:
            time = _of_object(value)
        except (ValueError, OverflowError):
            raise UserError(
                f"{context} cannot be ordered in time: {str(value)!r:.40} in row {row:,} is no number and no date; "
                "write dates as 2024-03-31 (ISO 8601), or make numbers of it"
            ) from None
        time_of_value[value] = time
        kinds.add("dates" if isinstance(time, datetime) else "numbers")
        if isinstance(time, datetime):
            have_time_zone.add(time.tzinfo is not None)

    # Times of two kinds have no order between them.
    if len(kinds) > 1:
        raise UserError(f"{context} mixes numbers and dates: use one kind for all rows")
    if len(have_time_zone) > 1:
        raise UserError(
            f"{context} mixes dates with a time zone and dates without: give all rows one, or none"
        )

    are_dates = kinds == {"dates"}
    if are_dates:
        time_of_value = {value: _microseconds(time) for value, time in time_of_value.items()}
    are_whole = all(isinstance(time, int) for time in time_of_value.values())
    numbers_in_order = [time_of_value[value] for value in flat_values]
    return np.array(numbers_in_order, np.int64 if are_whole else np.float64), are_dates


def _of_object(value: Any) -> datetime | int | float:
    """A date or a number; raises ValueError for anything else."""
    # Timestamps and periods of pandas, which is not loaded here.
    if hasattr(value, "to_pydatetime"):
        timestamp: datetime = value.to_pydatetime(warn=False)
        return timestamp
    if hasattr(value, "to_timestamp"):
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
    # Python reads no date without a day.
    if _YEAR.fullmatch(text):
        text += "-01"
    if _MONTH.fullmatch(text):
        text += "-01"
    return datetime.fromisoformat(text)


def _microseconds(moment: datetime) -> int:
    # Dates with a time zone are compared in UTC.
    naive = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return (naive - EPOCH) // timedelta(microseconds=1)


def gap_of(gap: Any, are_dates: bool) -> float:
    """Return a gap in the unit of the times.

    Args:
        gap: A number in the unit of the times; of dates a duration such as "7D", "12h" or "30min",
            or a timedelta. None for no gap.
        are_dates: Whether the times are dates, whose unit is a microsecond.

    Returns:
        The gap, >= 0.

    Raises:
        SettingError: It is not of the kind that the times need.
    """
    check_gap(gap)
    if gap is None:
        return 0.0
    seconds = _seconds(gap)
    is_duration = seconds is not None
    # A gap of 0 has no unit.
    if are_dates != is_duration and gap != 0:
        wanted = "a number, as the order holds"
        if are_dates:
            wanted = "a duration such as 7D, 12h or 30min, since the order holds dates"
        raise SettingError(f"gap must be {wanted}, got {gap!r}")
    return float(gap) if seconds is None else 1e6 * seconds


def check_gap(gap: Any) -> None:
    """Raise :class:`~coterie.settings.SettingError` if a gap is neither a number >= 0 nor a duration."""
    # A duration for dates, or a number for anything else.
    seconds = None if gap is None else _seconds(gap)
    if seconds is not None or gap is None:
        value = seconds or 0.0
    elif isinstance(gap, float | int | np.number) and not isinstance(gap, bool):
        value = float(gap)
    else:
        hint = ""
        if isinstance(gap, str) and gap[-1:] in "MYy":
            hint = "; months and years differ in length: use days"
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
    duration = _DURATION.fullmatch(gap.strip()) if isinstance(gap, str) else None
    return None if duration is None else float(duration[1]) * SECONDS_OF_UNIT[duration[2]]


# ----------------------------------------------------------------------------------------------------
# Columns that look like times.


DATE_WORDS = ("date", "datetime", "timestamp", "ts", "epoch", "time", "datum", "zeit", "fecha")
PERIOD_WORDS = ("year", "quarter", "month", "week", "day", "hour", "jahr", "monat", "woche")
FRENCH_PERIOD_WORDS = ("annee", "année", "mois")
TIME_WORDS = frozenset((*DATE_WORDS, *PERIOD_WORDS, *FRENCH_PERIOD_WORDS))
"""Names of columns, or their parts, that are hints of time where the values never fall."""

OTHER_TIME_WORDS = frozenset(("per", "birth", "survival", "response", "duration", "spent"))
"""Parts of a name by which a word of time in it means something else, as in hours_per_week."""

UNIX_SECONDS = (0.8e9, 2.2e9)
"""Seconds since 1970 of the years 1995 to 2039."""

UNIX_WORDS = frozenset(
    ("at", "created", "updated", "modified", "started", "ended", "seen", "recorded", "unix", "t")
)
"""Names of columns, or their parts, in which such numbers are times where they never fall. Numbers
of patients and of telephones are as large."""

MONTHS_IN_WORDS = (
    "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?"
    "|nov(ember)?|dec(ember)?)"
)
YEAR_IN_DIGITS = r"(19|20)\d{2}"

WRITTEN_DATE = re.compile(
    "|".join(
        (
            rf"\d{{1,2}}(?P<mark>[./-])\d{{1,2}}(?P=mark){YEAR_IN_DIGITS}( .*)?",  # 31.12.2024
            r"\d{1,2}/\d{1,2}/\d{2}( .*)?|\d{2}\.\d{2}\.\d{2}( .*)?",  # 12/31/24, 31.12.24
            rf"{YEAR_IN_DIGITS}(?P<sign>[./])\d{{1,2}}(?P=sign)\d{{1,2}}( .*)?",  # 2024/12/31
            rf"{YEAR_IN_DIGITS}[ -]?q[1-4]|q[1-4][ -]?{YEAR_IN_DIGITS}",  # 2024Q4
            rf"(\d{{1,2}}[. -]+)?{MONTHS_IN_WORDS}[. -]+(\d{{1,2}}, )?{YEAR_IN_DIGITS}",  # 31 Dec 2024
            rf"\d{{1,2}}[. -]+{MONTHS_IN_WORDS}[. -]+\d{{2}}",  # 31-Dec-24
        )
    )
)
"""A date that is written in another way than ISO's, in lower case."""

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
    return _are_mostly(_is_date, array)


def is_written_date_column(values: np.ndarray) -> bool:
    """Whether most values of a column are text of a date that is written in another way than ISO's, such as 31.12.2024."""
    if values.dtype.kind not in "OUT" or values.ndim != 1:
        return False
    return _are_mostly(_is_written_date, values)


def _are_mostly(is_kind: Callable[[Any], bool], values: np.ndarray) -> bool:
    """Whether most of the values ``(N,)`` that are not missing are of a kind; of a long column, some are tried."""
    if len(values):
        tried_count = min(MAX_TRIED_VALUES, len(values))
        values = values[np.linspace(0, len(values) - 1, tried_count).astype(int)]
    tried_values = [value for value in values if not is_missing(value)]
    kind_count = sum(map(is_kind, tried_values))
    return bool(tried_values) and kind_count >= MIN_DATE_SHARE * len(tried_values)


def _is_written_date(value: Any) -> bool:
    return WRITTEN_DATE.fullmatch(str(value).strip().lower()) is not None


def _is_date(value: Any) -> bool:
    # Digits are a number in a file that is not read for its type, and a year only by chance.
    if isinstance(value, str) and value.strip().isdigit():
        return False
    try:
        return isinstance(_of_object(value), datetime)
    except (ValueError, OverflowError):
        return False


def is_time_column(name: Any, values: np.ndarray, owners: np.ndarray) -> bool:
    """Whether a column of numbers has a name of time, or numbers of seconds since 1970, and never falls in a client's rows.

    Args:
        name: The column's name.
        values: Its values ``(N,)``.
        owners: The client's number of each row ``(N,)``.
    """
    if values.dtype.kind not in "iuf" or not len(values):
        return False
    words = set(re.split(r"[\W_]+", str(name).lower()))
    is_named = bool(words & TIME_WORDS) and not words & OTHER_TIME_WORDS
    if not is_named and not (words & UNIX_WORDS and _are_unix_times(values)):
        return False
    # Steps from one row to the next row of the same client.
    by_owner = np.argsort(owners, kind="stable")
    is_same_owner = np.diff(owners[by_owner]) == 0
    steps = np.diff(values[by_owner].astype(np.float64))[is_same_owner]
    return len(steps) > 0 and bool((steps >= 0).all()) and bool((steps > 0).any())


def _are_unix_times(values: np.ndarray) -> bool:
    """Whether numbers are seconds since 1970, or milliseconds, microseconds or nanoseconds."""
    first_second, last_second = UNIX_SECONDS
    for units_of_second in (1.0, 1e3, 1e6, 1e9):
        seconds = values.astype(np.float64) / units_of_second
        if seconds.min() >= first_second and seconds.max() <= last_second:
            return True
    return False


TIME_HINT_END = "rows are divided at random, so models may learn from the future"
"""The end of a hint of time."""


def looks_like_time(name: Any) -> str:
    """The hint about a column of times."""
    return (
        f"column {str(name)!r} looks like time: order={str(name)!r} tests on later rows; "
        f"now {TIME_HINT_END}"
    )


def hint_of_dates(name: Any, values: Sequence[Any] | np.ndarray) -> str:
    """The hint about a column of dates; empty if it has none.

    Args:
        name: The column's name.
        values: Its values ``(N,)``, as an array or a column of pandas or polars.
    """
    if is_date_column(values):
        return looks_like_time(name)
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if is_written_date_column(array):
        return (
            f"column {str(name)!r} has dates in another form than 2024-03-31: converted by pandas.to_datetime, "
            f"order={str(name)!r} tests on later rows; now {TIME_HINT_END}"
        )
    return ""


def index_as_order(frame: Any) -> str:
    """Return how the times in the index of a data frame of pandas are an order; empty if it has none."""
    index_type = type(getattr(frame, "index", None)).__name__
    orders = {"DatetimeIndex": "frame.index", "PeriodIndex": "frame.index.to_timestamp()"}
    return orders.get(index_type, "")
