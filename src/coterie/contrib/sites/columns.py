"""What a column of a table can be, and the features that it becomes.

======== ========================================================================================
kind     features
======== ========================================================================================
number   the number
boolean  1 for true, 0 for false
category a feature of 0 and 1 for each level, and one for levels that are rare or unknown
date     years since 2000, and the sine and cosine of the place in the year, the week and the day
text     a hashed bag of words: the words of a row, counted in so many features
ignore   none
======== ========================================================================================

A missing value is filled, by default with the median, and has a feature of its own that says so
(``missing = "indicator"``), or it is refused. A constant that must be the same at all clients (a
median, the levels that are common enough) is first a rule, such as ``fill = "median"``, and a number
once it is agreed (``agreement.py``): a column without rules encodes rows without seeing any others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np

from coterie.contrib.sites.cells import Cells
from coterie.settings import SettingError, UserError, check, setting

MISSING = ("indicator", "fill", "refuse")
"""indicator: filled, and a feature says that it was missing; fill: filled; refuse: an error."""

FILLS = ("median", "mean")
"""Rules by which missing values are filled; a constant is no rule."""

OTHER = "(other)"
"""In names of features: levels that are rare or unknown."""

DATE_PARTS = ("years", "year", "week", "day")
"""Features of a date: years since 2000; and the place in the year, the week and the day, each as a
sine and a cosine."""

YEAR_SECONDS = 365.2425 * 86400
CYCLE_SECONDS = {"year": YEAR_SECONDS, "week": 7 * 86400.0, "day": 86400.0}
"""Part of a date -> the seconds after which it begins again."""

MAX_FOUND_LEVEL_BYTES = 64
"""A level that no schema lists is found if its text has at most so many bytes in UTF-8."""

HASH_BUCKETS = 1 << 14
"""Number of places among which the texts of levels that no schema lists are hashed, so that they are
counted before anybody learns the texts."""

DATE_ORIGIN = datetime(2000, 1, 1)
"""Dates are seconds from here. It was a Saturday."""

ISO = "iso"
"""Format of dates such as 2024-03-31 and 2024-03-31T12:00."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        kind: What it is.
        plural: What its values are called in messages.
    """

    kind: ClassVar[str]
    plural: ClassVar[str]

    missing: str = setting(
        "fill",
        "what happens to missing values: indicator (filled, and a feature says so), fill or refuse",
        choices=MISSING,
    )
    missing_marks: tuple[str, ...] = setting(
        (), "texts of this column that stand for a missing value, besides those of the table"
    )

    def __post_init__(self) -> None:
        check(self, lambda name: name)

    @property
    def rule(self) -> str:
        """The constant that is still to be agreed: ``median``, ``mean``, ``levels``, or empty for none."""
        return ""

    def features(self, name: str) -> list[str]:
        """The names of the features that the column ``name`` becomes."""
        return [*self.own_features(name), *self._indicators(name)]

    def _indicators(self, name: str) -> list[str]:
        return [f"{name} is missing"] if self.missing == "indicator" else []

    def own_features(self, name: str) -> list[str]:
        """The names of the features without the one for missing values."""
        raise NotImplementedError

    def is_missing(self, cells: Cells, table_marks: frozenset[str]) -> np.ndarray:
        """Which of the distinct texts of a column stand for a missing value, ``(distinct,)``."""
        marks = table_marks | {mark.casefold() for mark in self.missing_marks}
        return np.array([text.casefold() in marks for text in cells.texts], bool)

    def check_missing(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> None:
        """Raise :class:`~coterie.settings.UserError` for a value that is missing and must not be."""
        missing_rows = is_missing_text[cells.text_of_row]
        if self.missing == "refuse" and missing_rows.any():
            row = int(missing_rows.argmax()) + 1
            raise UserError(
                f"{context}: the column {name} has no value in row {row:,}: write "
                'missing = "indicator" or "fill" into the schema, or leave the row out'
            )

    def encoded(
        self, cells: Cells, name: str, table_marks: frozenset[str], context: str
    ) -> np.ndarray:
        """Return the features of the rows.

        Args:
            cells: The column ``(N,)``.
            name: Its name.
            table_marks: Texts that stand for a missing value, in lower case.
            context: The table, for messages.

        Returns:
            The features ``(N, features)``, float64.

        Raises:
            UserError: A text is not what the column has, or a value is missing and must not be.
        """
        is_missing_text = self.is_missing(cells, table_marks)
        self.check_missing(cells, is_missing_text, name, context)
        # Each distinct text is encoded once, then each row gets the features of its text.
        features_of_text = self._of_texts(cells, is_missing_text, name, context)
        if self.missing == "indicator":
            features_of_text = np.column_stack([features_of_text, is_missing_text])
        return features_of_text[cells.text_of_row]

    def _of_texts(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        """The features of the distinct texts ``(distinct, features)``, without the one for missing values."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MeasuredColumn(Column):
    """A column whose values are numbers, or are read as numbers: missing ones are filled."""

    fill: float | str = setting(
        "median",
        "value in place of a missing one: median or mean of the training rows, or a constant",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fill()

    def _check_fill(self) -> None:
        if isinstance(self.fill, str) and self.fill not in FILLS:
            raise SettingError(f"fill must be {', '.join(FILLS)} or a number, got {self.fill!r}")
        if not isinstance(self.fill, str) and not np.isfinite(np.float32(self.fill)):
            raise SettingError(f"fill must be a finite number in float32, got {self.fill!r}")

    @property
    def rule(self) -> str:
        return str(self.fill) if self.fill in FILLS else ""

    def filled_with(self, value: float) -> MeasuredColumn:
        """This column with a constant in place of the rule by which missing values are filled."""
        return replace(self, fill=value)

    def own_features(self, name: str) -> list[str]:
        return [name]

    def values(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        """The numbers of the distinct texts ``(distinct,)``; those of missing values are NaN."""
        text_values = np.full(len(cells.texts), np.nan)
        for number, text in enumerate(cells.texts):
            if is_missing_text[number]:
                continue
            value = self.value_of(text)
            row = 0 if value is not None else cells.first_row(number)
            if value is not None:
                text_values[number] = value
            elif row:
                raise UserError(
                    f"{context}: the column {name} has {text!r:.60} in row {row:,}, and the schema "
                    f"says that it has {self.plural}: correct the row, add the text to missing_marks "
                    "of the column, or change its kind"
                )
        return text_values

    def value_of(self, text: str) -> float | None:
        """The number that a text stands for; None if it is no value of this column."""
        raise NotImplementedError

    def _of_texts(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        text_values = self.values(cells, is_missing_text, name, context)
        return np.where(np.isnan(text_values), float(self.fill), text_values)[:, None]


def _number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """Numbers with these marks; a space or an apostrophe may stand between thousands, too."""
    grouped_digits = rf"[0-9]{{1,3}}(?:[{thousands}' ][0-9]{{3}})+"
    return re.compile(
        rf"[+-]?(?:{grouped_digits}|[0-9]+)?(?:[{decimal}][0-9]*)?(?:[eE][+-]?[0-9]{{1,3}})?"
    )


NUMBER_PATTERNS = {".": _number_pattern(".", ","), ",": _number_pattern(",", ".")}
"""Decimal mark -> the numbers that are written with it."""


@dataclass(frozen=True, kw_only=True)
class NumberColumn(MeasuredColumn):
    """Numbers, also with a decimal comma and marks between thousands."""

    kind: ClassVar[str] = "number"
    plural: ClassVar[str] = "numbers"

    decimal: str = setting(
        ".", "decimal mark; the other one, a space or ' may stand between thousands", choices=".,"
    )
    plausible: tuple[float, ...] = setting(
        (), "least and greatest value that a row may have in the schema's unit; empty: any"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plausible and (
            len(self.plausible) != 2 or not self.plausible[0] < self.plausible[1]
        ):
            raise SettingError(
                f"plausible must be the least and the greatest value, got {list(self.plausible)}"
            )

    def check_plausible(
        self, cells: Cells, text_values: np.ndarray, name: str, context: str
    ) -> None:
        """Raise :class:`~coterie.settings.UserError` for values outside ``plausible``, as of another unit.

        Args:
            cells: The column ``(N,)``.
            text_values: The numbers of its distinct texts, NaN for missing ones.
            name: Its name.
            context: The table, for messages.
        """
        if not self.plausible:
            return
        low, high = self.plausible
        is_outside = (text_values < low) | (text_values > high)
        outside_rows = is_outside[cells.text_of_row]
        if outside_rows.any():
            row = int(outside_rows.argmax())
            text = cells.texts[cells.text_of_row[row]]
            raise UserError(
                f"{context}: the column {name} has values outside {low:g} to {high:g} in "
                f"{int(outside_rows.sum()):,} of {len(cells):,} rows, such as {text!r:.40} in row {row + 1:,}: "
                "is it in another unit than the schema's?"
            )

    def value_of(self, text: str) -> float | None:
        if not NUMBER_PATTERNS[self.decimal].fullmatch(text):
            return None
        thousands = "," if self.decimal == "." else "."
        digits = re.sub(f"[{thousands}' ]", "", text).replace(self.decimal, ".")
        # The pattern lets a text without digits pass, which is no number.
        try:
            value = float(digits)
        except ValueError:
            return None
        return value if abs(value) <= float(np.finfo(np.float32).max) else None


@dataclass(frozen=True, kw_only=True)
class BooleanColumn(MeasuredColumn):
    """Two values, one of them true."""

    kind: ClassVar[str] = "boolean"
    plural: ClassVar[str] = "true and false"

    true: tuple[str, ...] = setting(
        ("true",), "texts that are true; upper and lower case are the same"
    )
    false: tuple[str, ...] = setting(("false",), "texts that are false")

    def __post_init__(self) -> None:
        super().__post_init__()
        common_texts = {text.casefold() for text in self.true} & {
            text.casefold() for text in self.false
        }
        if common_texts:
            raise SettingError(
                f"true and false must have no text in common, got {min(common_texts)!r}"
            )

    def value_of(self, text: str) -> float | None:
        folded = text.casefold()
        if folded in map(str.casefold, self.true):
            return 1.0
        return 0.0 if folded in map(str.casefold, self.false) else None


@dataclass(frozen=True, kw_only=True)
class DateColumn(MeasuredColumn):
    """Dates, with or without a time of day. Times with a zone are read in UTC."""

    kind: ClassVar[str] = "date"
    plural: ClassVar[str] = "dates"

    format: str = setting(ISO, "iso, or Python's format of the dates, such as %d.%m.%Y")
    parts: tuple[str, ...] = setting(
        ("years", "year", "week"),
        "years (since 2000), and the place in the year, week and day, each a sine and a cosine",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.parts:
            if part not in DATE_PARTS:
                raise SettingError(f"parts must be some of {', '.join(DATE_PARTS)}, got {part!r}")
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise SettingError(f"parts must have each part once, got {list(self.parts)}")

    def _check_fill(self) -> None:
        if not isinstance(self.fill, str) or (
            self.fill not in FILLS and _seconds(self.fill) is None
        ):
            raise SettingError(f"fill must be median, mean or an ISO date, got {self.fill!r}")

    def own_features(self, name: str) -> list[str]:
        names = []
        for part in self.parts:
            if part == "years":
                names.append(f"{name}: years")
            else:
                names += [f"{name}: sine of the {part}", f"{name}: cosine of the {part}"]
        return names

    def filled_with(self, value: float) -> DateColumn:
        """This column with a date in place of the rule; ``value`` is in seconds since 2000."""
        since_epoch = (DATE_ORIGIN - datetime(1970, 1, 1)).total_seconds() + round(value)
        moment = datetime.fromtimestamp(since_epoch, UTC).replace(tzinfo=None)
        return replace(self, fill=moment.isoformat())

    def value_of(self, text: str) -> float | None:
        return _seconds(text, self.format)

    def _of_texts(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        text_seconds = self.values(cells, is_missing_text, name, context)
        are_missing = np.isnan(text_seconds)
        fill_seconds = _seconds(str(self.fill))
        # Encoding needs constants, and so the fill is a date.
        assert fill_seconds is not None
        text_seconds = np.where(are_missing, fill_seconds, text_seconds)
        features = []
        for part in self.parts:
            if part == "years":
                features.append(text_seconds / YEAR_SECONDS)
                continue
            # A missing date is in the middle of the circle: no place in the year is likelier.
            angle = 2 * np.pi * text_seconds / CYCLE_SECONDS[part]
            features += [
                np.where(are_missing, 0.0, np.sin(angle)),
                np.where(are_missing, 0.0, np.cos(angle)),
            ]
        return np.column_stack(features)


def _seconds(text: str, date_format: str = ISO) -> float | None:
    """Seconds since 2000 of a date; None if it is none."""
    try:
        if date_format == ISO:
            # 20240331 and 2024 are numbers, until a format says otherwise.
            moment = None if text.isdigit() else datetime.fromisoformat(text)
        else:
            moment = datetime.strptime(text, date_format)
    except ValueError:
        return None
    if moment is None:
        return None
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - DATE_ORIGIN).total_seconds()


@dataclass(frozen=True, kw_only=True)
class CategoryColumn(Column):
    """Some texts, each of which is a level: ``OneHotEncoder`` with given categories, and one for all others."""

    kind: ClassVar[str] = "category"
    plural: ClassVar[str] = "levels"

    levels: tuple[str, ...] = setting((), "texts that may become features; all others are one")
    least: int = setting(
        10, "least number of training rows of a level; rarer ones count as other", ge=0
    )
    ignore_case: bool = setting(False, "whether upper and lower case are the same level")
    least_clients: int = setting(
        1,
        "least number of clients that have a training row of a level; else it counts as other",
        ge=1,
    )
    find: bool = setting(
        False,
        "whether levels that are not listed are found among the clients, if they are common enough",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        keys = [self.key(level) for level in self.levels]
        for place, level in enumerate(self.levels):
            if keys.index(keys[place]) < place:
                earlier_level = self.levels[keys.index(keys[place])]
                raise SettingError(
                    f"levels has {earlier_level!r} and {level!r}, which are one level"
                )
            if level == OTHER:
                raise SettingError(
                    f"levels must not have {OTHER!r}, which is the name for all others"
                )

    @property
    def rule(self) -> str:
        return "levels" if self.least or self.counts_clients else ""

    @property
    def counts_clients(self) -> bool:
        """Whether it matters how many clients have a level."""
        return self.find or self.least_clients > 1

    def is_common(self, rows: int, clients: int = 1) -> bool:
        """Whether a level with so many rows, at so many clients, is one of its own and not other."""
        return rows >= max(self.least, 1) and clients >= self.least_clients

    def with_levels(self, levels: tuple[str, ...]) -> CategoryColumn:
        """This column with levels that are agreed, and no rule any more."""
        return replace(self, levels=levels, least=0, least_clients=1, find=False)

    def key(self, text: str) -> str:
        """What two texts of one level have in common."""
        return text.casefold() if self.ignore_case else text

    def own_features(self, name: str) -> list[str]:
        return [f"{name} = {level}" for level in (*self.levels, OTHER)]

    def level_rows(self, cells: Cells) -> np.ndarray:
        """The number of rows of each listed level ``(levels,)``."""
        number_of_key = {self.key(level): number for number, level in enumerate(self.levels)}
        row_counts = np.zeros(len(self.levels), np.int64)
        for text, rows in cells.counts().items():
            number = number_of_key.get(self.key(text))
            if number is not None:
                row_counts[number] += rows
        return row_counts

    def unlisted_rows(self, cells: Cells, table_marks: frozenset[str]) -> dict[str, int]:
        """Text that is neither a listed level nor missing -> its number of rows; equal keys are one text."""
        listed_keys = {self.key(level) for level in self.levels}
        is_missing_text = self.is_missing(cells, table_marks)
        rows_of_text: dict[str, int] = {}
        for (text, rows), missing in zip(cells.counts().items(), is_missing_text, strict=True):
            key = self.key(text)
            if rows and not missing and key not in listed_keys and text != OTHER:
                rows_of_text[key] = rows_of_text.get(key, 0) + rows
        return rows_of_text

    def _of_texts(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        number_of_key = {self.key(level): number for number, level in enumerate(self.levels)}
        features = np.zeros((len(cells.texts), len(self.levels) + 1))
        for text_number, text in enumerate(cells.texts):
            # A missing value has no level if a feature says that it is missing; else it is another one.
            if not is_missing_text[text_number] or self.missing != "indicator":
                features[text_number, number_of_key.get(self.key(text), -1)] = 1.0
        return features


def hash_bucket(column_name: str, level: str) -> int:
    """The place of a level's text among :data:`HASH_BUCKETS`, the same at all clients."""
    digest = hashlib.blake2b(f"{column_name}\0{level}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HASH_BUCKETS


@dataclass(frozen=True, kw_only=True)
class TextColumn(Column):
    """Texts of some words: a hashed bag of words, by scikit-learn's ``HashingVectorizer``."""

    kind: ClassVar[str] = "text"
    plural: ClassVar[str] = "texts"

    words: int = setting(64, "number of features into which words are hashed", ge=1, le=65_536)

    def own_features(self, name: str) -> list[str]:
        return [f"{name}: words {number}" for number in range(self.words)]

    def _of_texts(
        self, cells: Cells, is_missing_text: np.ndarray, name: str, context: str
    ) -> np.ndarray:
        from sklearn.feature_extraction.text import HashingVectorizer

        # Nothing is learned, so that all clients have the same features.
        vectorizer = HashingVectorizer(n_features=self.words, norm="l2", token_pattern=r"\w+")
        shown_texts = [
            "" if missing else text
            for text, missing in zip(cells.texts, is_missing_text, strict=True)
        ]
        hashed: np.ndarray = vectorizer.transform(shown_texts).toarray()
        return hashed


@dataclass(frozen=True, kw_only=True)
class IgnoredColumn(Column):
    """A column that is not used."""

    kind: ClassVar[str] = "ignore"
    plural: ClassVar[str] = "anything"

    def features(self, name: str) -> list[str]:
        return []

    def encoded(
        self, cells: Cells, name: str, table_marks: frozenset[str], context: str
    ) -> np.ndarray:
        return np.empty((len(cells), 0))


COLUMN_CLASSES: Mapping[str, Callable[..., Column]] = {
    column_class.kind: column_class
    for column_class in (
        NumberColumn,
        BooleanColumn,
        CategoryColumn,
        DateColumn,
        TextColumn,
        IgnoredColumn,
    )
}
"""Kind of a column -> its class."""
