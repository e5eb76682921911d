"""A proposal for the schema of a table: what each column seems to be, and what is doubtful about that.

All rules look at texts alone. A rule that could be wrong leaves a doubt: a sentence for the person who
reads and edits the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.contrib.sites.cells import Cells, Table
from coterie.contrib.sites.columns import (
    OTHER,
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    IgnoredColumn,
    MeasuredColumn,
    NumberColumn,
    TextColumn,
)
from coterie.contrib.sites.table_schema import MISSING_MARKS, TableSchema
from coterie.data.tasks import in_order

BOOLEAN_PAIRS = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"), ("1", "0"))
"""Texts in lower case that are read as true and false."""

DATE_FORMATS = (
    "iso",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
)
"""Formats that are tried, each also with a time of day; of two that fit, the first is taken."""

TIMES_OF_DAY = ("", " %H:%M", " %H:%M:%S")

MIN_FITTING_SHARE = 0.95
"""Share of a column's rows that must be numbers, or dates, for the others to count as missing marks."""

MAX_OTHER_TEXTS = 5
"""Most distinct texts among the numbers, or dates, of a column."""

MAX_TRIED_TEXTS = 500
"""Distinct texts on which the formats of dates are tried first."""

MAX_LEVELS = 100
"""More distinct texts than this are no category."""

MIN_WORDS_OF_TEXT = 4
"""Mean number of words from which on more than a few distinct texts are no category."""

MAX_LEVELS_OF_WORDS = 20
"""Most distinct texts of so many words that are a category."""

FEW_NUMBERS = 6
"""At most so many distinct whole numbers may be codes."""

SENTINEL = re.compile(r"(-?9{2,5}|-9{1,5}|-1)(\.0)?")
"""Numbers by which people write that a value is missing."""

MIN_ROWS_OF_UNIT = 10
"""Rows of a client, and of the others, from which on their typical numbers are compared."""

MIN_RATIO_OF_UNITS = 4.0
"""Typical numbers that differ by this factor, and ranges that are apart, may be in other units."""

ID_WORDS = frozenset(("id", "ids", "uuid", "guid", "key", "index", "nr", "number", "no", "code"))
"""Parts of names of columns that number the rows."""

MIN_ROWS_OF_IDS = 20
"""With fewer rows, values that all differ may be chance."""

MANY_MISSING_SHARE = 0.5
"""Share of missing values from which on there is a doubt."""

LISTED_TEXTS = 4
"""Most texts that a doubt lists."""


@dataclass(frozen=True)
class ColumnFinding:
    """What was found out about a column.

    Attributes:
        name: The column.
        role: client, target, subject or order; empty for a feature.
        column: What it is; None for a client and a subject, which are names.
        missing_rows: Number of rows without a value.
        distinct: Number of distinct values.
        examples: Some values, the most frequent first.
        doubts: Sentences.
    """

    name: str
    role: str
    column: Column | None
    missing_rows: int
    distinct: int
    examples: tuple[str, ...]
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Proposal:
    """A proposed schema.

    Attributes:
        schema: The schema.
        findings: What was found out about each column, in the order of the table.
        rows: Number of rows.
    """

    schema: TableSchema
    findings: tuple[ColumnFinding, ...]
    rows: int

    @property
    def doubts(self) -> dict[str, tuple[str, ...]]:
        """Column -> its doubts, of columns that have some."""
        return {finding.name: finding.doubts for finding in self.findings if finding.doubts}


@dataclass
class _Values:
    """The values of a column, without the missing ones.

    Attributes:
        name: The column.
        counts: Text -> the number of its rows.
        missing: Text that stands for a missing value -> the number of its rows.
        doubts: Sentences, which the rules add.
    """

    name: str
    counts: dict[str, int]
    missing: dict[str, int]
    doubts: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def how_missing(self) -> str:
        return "indicator" if self.missing else "fill"

    def by_frequency(self) -> list[str]:
        return sorted(self.counts, key=lambda text: (-self.counts[text], text))


def infer(
    table: Table,
    *,
    client: str = "",
    target: Sequence[str] = (),
    subject: str = "",
    order: str = "",
    min_level_rows: int = CategoryColumn.least,
) -> Proposal:
    """Propose a schema for a table.

    Args:
        table: The columns.
        client: The column that names the clients; empty if that is not known yet.
        target: The columns to predict.
        subject: The column of the subject.
        order: The column of the time.
        min_level_rows: Least number of training rows of a level.

    Returns:
        The schema and the doubts.
    """
    role_of = {client: "client", subject: "subject", order: "order"} | dict.fromkeys(
        target, "target"
    )
    findings = []
    columns: dict[str, Column] = {}
    rows = 0
    for name, cells in table.items():
        rows = len(cells)
        role = role_of.get(name, "")
        values = _values(name, cells)
        column = None
        if role not in ("client", "subject"):
            column = _column(values, min_level_rows, role)
            columns[name] = column
            _doubt_missing(values, role, rows, isinstance(column, CategoryColumn | TextColumn))
            if role == "target":
                _doubt_one_class(values)
            elif isinstance(column, CategoryColumn | TextColumn | IgnoredColumn):
                _doubt_other_forms(values)
        if not role and isinstance(column, Column) and not isinstance(column, IgnoredColumn):
            if client in table:
                _doubt_clients(values, cells, table[client])
                if isinstance(column, NumberColumn):
                    _doubt_units(values, column, cells, table[client])
            for target_name in target:
                if target_name in table:
                    _doubt_target(values, cells, target_name, table[target_name])
        findings.append(
            ColumnFinding(
                name=name,
                role=role,
                column=column,
                missing_rows=sum(values.missing.values()),
                distinct=len(values.counts),
                examples=tuple(values.by_frequency()[:LISTED_TEXTS]),
                doubts=tuple(values.doubts),
            )
        )
    schema = TableSchema(
        columns=columns, client=client, target=tuple(target), subject=subject, order=order
    )
    return Proposal(schema, tuple(findings), rows)


def _values(name: str, cells: Cells) -> _Values:
    counts: dict[str, int] = {}
    missing: dict[str, int] = {}
    for text, rows in cells.counts().items():
        if rows:
            (missing if text.casefold() in MISSING_MARKS else counts)[text] = rows
    return _Values(name, counts, missing)


# ----------------------------------------------------------------------------------------------------
# What a column is. The first rule that fits decides.


def _column(values: _Values, min_level_rows: int, role: str) -> Column:
    """What a column is; a target or an order is never ignored, nor a text."""
    if not values.counts:
        values.doubts.append("has no value at all: ignored")
        return IgnoredColumn()
    rules = [_boolean, _number, _date]
    if not role:
        rules = [_single_value, _identifier, *rules, _text]
    for rule in rules:
        column = rule(values)
        if column is not None:
            return column
    return _category(values, 0 if role else min_level_rows)


def _single_value(values: _Values) -> Column | None:
    if len(values.counts) > 1:
        return None
    (text,) = values.counts
    if not values.missing:
        values.doubts.append(f"has the same value in every row, {text!r:.40}: ignored")
        return IgnoredColumn()
    values.doubts.append(f"has {text!r:.40} or nothing: read as true and false")
    return BooleanColumn(true=(text,), false=(), fill=0.0)


def _identifier(values: _Values) -> Column | None:
    """A column with another value in each row, which nothing can be learned from."""
    if values.rows < MIN_ROWS_OF_IDS or len(values.counts) < values.rows:
        return None
    words = re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", values.name)
    has_name_of_id = not ID_WORDS.isdisjoint(word.lower() for word in words)
    are_whole = all(re.fullmatch(r"[0-9]+", text) for text in values.counts)
    are_single_words = all(" " not in text for text in values.counts)
    number = NumberColumn()
    date = DateColumn()
    is_measured = all(
        number.value_of(text) is not None or date.value_of(text) is not None
        for text in list(values.counts)[:MAX_TRIED_TEXTS]
    )
    if (are_whole and has_name_of_id) or (
        are_single_words
        and not is_measured
        and _date_format(values) is None
        and not _is_decimal_comma(values)
    ):
        values.doubts.append("has another value in every row, as ids have: ignored")
        return IgnoredColumn()
    return None


def _boolean(values: _Values) -> Column | None:
    # The most frequent spelling of each of the two, such as Y and N.
    spelling = {text.casefold(): text for text in reversed(values.by_frequency())}
    for true, false in BOOLEAN_PAIRS:
        if set(spelling) == {true, false}:
            return BooleanColumn(
                true=(spelling[true],), false=(spelling[false],), missing=values.how_missing
            )
    return None


def _number(values: _Values) -> Column | None:
    # 007 is a code, whose zeros would be lost.
    if any(re.fullmatch(r"0[0-9]+", text) for text in values.counts):
        return None
    decimal = "," if _is_decimal_comma(values) else "."
    column = NumberColumn(decimal=decimal)
    unfit_texts = _unfit_texts(values, column)
    if unfit_texts is None:
        return None
    if decimal == ",":
        values.doubts.append("has decimal commas")
    elif any("," in text for text in values.counts if text not in unfit_texts):
        example = next(text for text in values.counts if "," in text and text not in unfit_texts)
        values.doubts.append(
            f"has commas between thousands, such as {example!r}: if they are decimal marks, write "
            'decimal = ","'
        )
    _doubt_unfit_texts(values, unfit_texts, "numbers")
    numbers = {text: column.value_of(text) for text in values.counts if text not in unfit_texts}
    _doubt_codes(values, {text: value for text, value in numbers.items() if value is not None})
    missing = "indicator" if unfit_texts else values.how_missing
    return NumberColumn(decimal=decimal, missing=missing, missing_marks=unfit_texts)


def _is_decimal_comma(values: _Values) -> bool:
    """Whether numbers have decimal commas: more of them fit so than with decimal points."""
    with_point = NumberColumn()
    with_comma = NumberColumn(decimal=",")
    point_rows = comma_rows = 0
    for text, rows in values.counts.items():
        point_rows += rows * (with_point.value_of(text) is not None)
        comma_rows += rows * (with_comma.value_of(text) is not None)
    return comma_rows > point_rows


def _unfit_texts(values: _Values, column: MeasuredColumn) -> tuple[str, ...] | None:
    """The texts that are no values of a column of this kind; None if these are too many."""
    unfit_texts = []
    other_rows = 0
    for text, rows in values.counts.items():
        if column.value_of(text) is None:
            unfit_texts.append(text)
            other_rows += rows
            if other_rows > (1 - MIN_FITTING_SHARE) * values.rows:
                return None
    return tuple(sorted(unfit_texts)) if len(unfit_texts) <= MAX_OTHER_TEXTS else None


def _doubt_unfit_texts(values: _Values, unfit_texts: Sequence[str], plural: str) -> None:
    if unfit_texts:
        rows = sum(values.counts[text] for text in unfit_texts)
        values.doubts.append(
            f"has {plural} but for {_quoted(unfit_texts)} in {_rows(rows)}: read as missing"
        )


def _doubt_codes(values: _Values, number_of_text: Mapping[str, float]) -> None:
    """Doubts about numbers that may be codes, or stand for a missing value."""
    numbers = np.array(list(number_of_text.values()))
    if 2 < len(numbers) <= FEW_NUMBERS and (numbers == np.round(numbers)).all():
        values.doubts.append(
            f"has {len(numbers)} whole numbers ({', '.join(in_order(number_of_text)[:FEW_NUMBERS])}): if they are codes "
            'without an order, write kind = "category"'
        )
    rows = np.array([values.counts[text] for text in number_of_text])
    for text, number in number_of_text.items():
        if not SENTINEL.fullmatch(text) or len(numbers) < 3 or values.counts[text] < 2:
            continue
        # Far from all others: more than three times their range from quartile to quartile.
        low, high = np.quantile(
            np.repeat(numbers, rows)[np.repeat(numbers, rows) != number], (0.25, 0.75)
        )
        if not low - 3 * (high - low) <= number <= high + 3 * (high - low):
            values.doubts.append(
                f"has {text} in {_rows(values.counts[text])}, far from the rest: if it means missing, "
                f'write missing_marks = ["{text}"] and missing = "indicator"'
            )


def _date_format(values: _Values) -> str | None:
    tried_texts = list(values.counts)[:MAX_TRIED_TEXTS]
    for date_format in _all_formats():
        column = DateColumn(format=date_format)
        fitting = sum(column.value_of(text) is not None for text in tried_texts)
        if (
            fitting >= MIN_FITTING_SHARE * len(tried_texts)
            and _unfit_texts(values, column) is not None
        ):
            return date_format
    return None


def _all_formats() -> list[str]:
    formats = []
    for date_format in DATE_FORMATS:
        ends = ("",) if date_format == "iso" else TIMES_OF_DAY
        formats += [date_format + end for end in ends]
    return formats


def _date(values: _Values) -> Column | None:
    date_format = _date_format(values)
    if date_format is None:
        return None
    column = DateColumn(format=date_format)
    unfit_texts = _unfit_texts(values, column) or ()
    # Days and months in the other order may fit as well.
    if date_format.startswith("%d/%m"):
        swapped = DateColumn(format=date_format.replace("%d/%m", "%m/%d"))
        if _unfit_texts(values, swapped) == unfit_texts:
            values.doubts.append(
                "has dates whose day and month cannot be told apart: read as day/month; if it is "
                f'month/day, write format = "{swapped.format}"'
            )
    _doubt_unfit_texts(values, unfit_texts, "dates")
    seconds = np.array([column.value_of(text) for text in values.counts if text not in unfit_texts])
    # A place in a year, week or day says something only if the dates fill it.
    span_days = (seconds.max() - seconds.min()) / 86400
    parts = ["years"]
    if span_days > 180:
        parts.append("year")
    if span_days > 14:
        parts.append("week")
    if (seconds % 86400).any():
        parts.append("day")
    missing = "indicator" if unfit_texts else values.how_missing
    return DateColumn(
        format=date_format, parts=tuple(parts), missing=missing, missing_marks=unfit_texts
    )


def _text(values: _Values) -> Column | None:
    words = sum(len(text.split()) * rows for text, rows in values.counts.items()) / values.rows
    is_prose = words >= MIN_WORDS_OF_TEXT and len(values.counts) > MAX_LEVELS_OF_WORDS
    if len(values.counts) <= MAX_LEVELS and not is_prose:
        return None
    values.doubts.append(
        f"has {len(values.counts):,} different texts of {words:.1f} words on average: read as a bag of words; "
        'if a text is a category, write kind = "category" with its levels, else "ignore"'
    )
    return TextColumn(missing=values.how_missing)


def _category(values: _Values, min_level_rows: int) -> Column:
    rows_of_key: dict[str, int] = {}
    spellings: dict[str, list[str]] = {}
    for text in values.by_frequency():
        rows_of_key[text.casefold()] = rows_of_key.get(text.casefold(), 0) + values.counts[text]
        spellings.setdefault(text.casefold(), []).append(text)
    spelling_variants = [texts for texts in spellings.values() if len(texts) > 1]
    if spelling_variants:
        values.doubts.append(
            f"has spellings that differ in upper and lower case, such as {_quoted(spelling_variants[0])}: read as one"
        )
    # Each level has its most frequent spelling.
    levels = in_order(texts[0] for texts in spellings.values() if texts[0] != OTHER)
    rare = [level for level in levels if rows_of_key[level.casefold()] < min_level_rows]
    if rare and len(rare) == len(levels):
        values.doubts.append(
            f"has fewer than {min_level_rows} rows of each level: all become {OTHER}; write a smaller least, "
            "or ignore the column"
        )
    elif rare:
        values.doubts.append(
            f"has {len(rare)} of {len(levels)} levels in fewer than {min_level_rows} rows, such as {rare[0]!r:.40}: "
            f"they become {OTHER}"
        )
    return CategoryColumn(
        levels=tuple(levels),
        least=min_level_rows,
        ignore_case=bool(spelling_variants),
        missing=values.how_missing,
    )


# ----------------------------------------------------------------------------------------------------
# Doubts that do not depend on what a column is.


def _doubt_missing(values: _Values, role: str, rows: int, has_words: bool) -> None:
    missing_rows = sum(values.missing.values())
    if role == "target" and missing_rows:
        values.doubts.append(f"has no value in {_rows(missing_rows)}: a run leaves these out")
    elif missing_rows > MANY_MISSING_SHARE * rows and values.counts:
        values.doubts.append(f"is missing in {missing_rows / rows:.0%} of the rows")
    # Words that may be values: no complication, sodium, Namibia.
    for mark, mark_rows in values.missing.items():
        if has_words and mark.casefold() in ("none", "na"):
            values.doubts.append(
                f"has {mark!r} in {_rows(mark_rows)}, read as missing: if it is a value, take it out of missing_marks"
            )


def _doubt_clients(values: _Values, cells: Cells, client_cells: Cells) -> None:
    """Doubts about columns that tell the client, or that a client does not have."""
    pairs = np.unique(np.column_stack([client_cells.text_of_row, cells.text_of_row]), axis=0)
    values_of_client: dict[int, set[str]] = {}
    for client_number, text_number in pairs.tolist():
        values_of_client.setdefault(client_number, set()).add(cells.texts[text_number])
    lacking = []
    for client_number, texts in values_of_client.items():
        if texts.isdisjoint(values.counts):
            lacking.append(client_cells.texts[client_number])
    if lacking:
        values.doubts.append(f"has no value at all at {_quoted(lacking)}")
    has_one_each = all(len(texts) == 1 for texts in values_of_client.values())
    if has_one_each and not lacking and len(values.counts) > 1:
        values.doubts.append(
            "has one value at each client, so it says which client it is: write "
            'kind = "ignore" if the model must not know'
        )


def _doubt_units(values: _Values, column: NumberColumn, cells: Cells, client_cells: Cells) -> None:
    """A doubt about numbers of one client that are all far from those of the others, as in another unit."""
    number_of_text = [column.value_of(text) for text in cells.texts]
    number_of_row = np.array(
        [np.nan if number is None else number for number in number_of_text], dtype=float
    )[cells.text_of_row]
    is_known = np.isfinite(number_of_row)
    for client_number, client_name in enumerate(client_cells.texts):
        is_here = client_cells.text_of_row == client_number
        numbers_of_client = number_of_row[is_here & is_known]
        numbers_elsewhere = number_of_row[~is_here & is_known]
        if min(len(numbers_of_client), len(numbers_elsewhere)) < MIN_ROWS_OF_UNIT:
            continue
        # All but the extreme numbers, and the typical ones.
        low_here, typical_here, high_here = np.quantile(numbers_of_client, (0.05, 0.5, 0.95))
        low, typical, high = np.quantile(numbers_elsewhere, (0.05, 0.5, 0.95))
        smaller, larger = sorted((abs(typical_here), abs(typical)))
        is_apart = high_here < low or low_here > high
        # A column of one value at each client says which client it is, and another doubt says so.
        if is_apart and low_here < high_here and larger >= MIN_RATIO_OF_UNITS * smaller:
            values.doubts.append(
                f"is typically {typical_here:.3g} at {client_name!r:.40} and {typical:.3g} elsewhere: is it in another unit "
                "there? Convert it in one of the files"
            )


def _doubt_target(values: _Values, cells: Cells, target: str, target_cells: Cells) -> None:
    """A doubt about a column of few values each of which goes with one value of the target."""
    if not 1 < len(values.counts) <= MAX_LEVELS or values.rows < MIN_ROWS_OF_IDS:
        return
    is_missing = np.array([text.casefold() in MISSING_MARKS for text in target_cells.texts])
    known_rows = np.flatnonzero(~is_missing[target_cells.text_of_row])
    text_of_row = cells.text_of_row[known_rows]
    target_of_row = target_cells.text_of_row[known_rows]
    pairs = np.unique(np.column_stack([text_of_row, target_of_row]), axis=0)
    # A value of one row tells its target anyway; only rows that repeat a value are evidence.
    num_texts = len(np.unique(text_of_row))
    if len(text_of_row) - num_texts < MIN_ROWS_OF_IDS:
        return
    if len(pairs) == num_texts:
        values.doubts.append(
            f"tells the target {target!r} in every row: if it is only known afterwards, ignore it"
        )


def _doubt_one_class(values: _Values) -> None:
    """A doubt about a target that has the same class in every row."""
    if len(values.counts) == 1:
        values.doubts.append(
            f"has the same class in every row, {next(iter(values.counts))!r:.40}: there is nothing to predict"
        )


def _doubt_other_forms(values: _Values) -> None:
    """A doubt about a column of words whose texts begin with numbers, as dates or numbers in several forms do."""
    begins_with_number = [text for text in values.counts if BEGINS_WITH_NUMBER.match(text)]
    if len(values.counts) > MIN_ROWS_OF_IDS and len(begins_with_number) == len(values.counts):
        first_text, *_, last_text = sorted(begins_with_number)
        values.doubts.append(
            f"has texts that begin with numbers, from {first_text!r:.40} to {last_text!r:.40}: if they are numbers with "
            "units, or numbers or dates in several forms, write them in one form"
        )


BEGINS_WITH_NUMBER = re.compile(r"[-+−<>~$€£]?\s?[0-9]")
"""Texts that begin with a number, perhaps after a sign or the mark of a currency."""


def _quoted(texts: Sequence[str]) -> str:
    listed_texts = [repr(text[:40]) for text in texts[:LISTED_TEXTS]]
    more = len(texts) - len(listed_texts)
    return ", ".join(listed_texts) + (f" and {more} more" if more else "")


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
