"""The constants that must be the same at all clients, from sums over clients.

Means, medians, the levels that are common enough, class weights, and the constants by which inputs and
numbers to predict are standardized. The one who agrees on constants asks questions, and learns the
**sum** of the clients' answers alone (:class:`SumQuestion`). So it does not matter whether the sum is
taken in one process, over a network, or under masks.

A median is exact. The distinct numbers of float64 have an order, and each question divides those among
which the median can be into :data:`MEDIAN_PARTS`: how many values are at most this one? The columns are
divided together, so the number of questions does not depend on that of the columns.

A level that no schema lists is found in two steps. Clients count the rows of the places among which the
texts are hashed; then those that have a text in a place with enough rows and clients write it as numbers,
and the sum over the clients, divided by their number, is the text. So nobody learns a text that too few
rows or clients have, nor who has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.contrib.sites.cells import Table
from coterie.contrib.sites.columns import (
    HASH_BUCKETS,
    MAX_FOUND_LEVEL_BYTES,
    CategoryColumn,
    MeasuredColumn,
    hash_bucket,
)
from coterie.contrib.sites.table_schema import BALANCED, TableSchema
from coterie.data.tasks import in_order
from coterie.printable import printable
from coterie.settings import SettingError

MEDIAN_PARTS = 1024
"""Into so many parts a question divides the numbers among which a median can be."""

FEATURE_SUMS = "(features)"
TARGETS = "(targets)"
"""Entries of an answer that are not about one column; no column has such a name."""


@dataclass(frozen=True, kw_only=True)
class SumQuestion:
    """What all clients are asked.

    Attributes:
        about: ``columns``, ``texts``, ``at-most``, ``features`` or ``squares``, see :data:`Answer`.
        buckets: For ``texts``: column -> places of hashed texts.
        bounds: For ``at-most``: column -> numbers in ascending order.
        schema: For ``features`` and ``squares``: the table schema with constants.
        means: For ``squares``: entry of an answer -> the means of its numbers.
    """

    about: str
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    schema: TableSchema | None = None
    means: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The question as a value for JSON."""
        entries: dict[str, Any] = {
            "about": self.about,
            "schema": None if self.schema is None else self.schema.document(),
        }
        for key in ("buckets", "bounds", "means"):
            entries[key] = {name: list(numbers) for name, numbers in getattr(self, key).items()}
        return entries

    @classmethod
    def of(cls, entries: Any) -> SumQuestion:
        """Read a value of :meth:`to_json`. Nothing in it is trusted.

        Raises:
            SettingError: It has another form.
        """
        try:
            schema = entries["schema"]
            question = cls(
                about=str(entries["about"]),
                buckets=_numbers_by_name(entries["buckets"], int),
                bounds=_numbers_by_name(entries["bounds"], float),
                schema=None if schema is None else TableSchema.of(schema, "a question"),
                means=_numbers_by_name(entries["means"], float),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingError(f"a question about sums cannot be read: {error}") from None
        if question.about not in ("columns", "texts", "at-most", "features", "squares"):
            raise SettingError(f"there is no question about {question.about!r:.40}")
        return question


def _numbers_by_name(
    entries: Mapping[Any, Any], number_type: type[int] | type[float]
) -> dict[str, tuple[Any, ...]]:
    """Name -> numbers, of entries that nobody has checked."""
    return {str(name): tuple(map(number_type, numbers)) for name, numbers in entries.items()}


Answer = dict[str, np.ndarray]
"""Entry -> numbers that are added up over the clients; whole numbers are counts.

=========== =====================================================================================
question    entries
=========== =====================================================================================
columns     of a column with levels: rows ``(1, levels)`` or, if a least number of clients counts,
            rows and clients ``(2, levels)``, followed, if levels are to be found, by those of each
            place of hashed texts; of a column with numbers: how many, and their sum ``(2,)``;
            :data:`TARGETS`: rows of each class ``(classes,)``, or the number of rows and the sums of
            the numbers to predict ``(1 + outputs,)``
texts       of a column: for each place a 1 and the bytes of a text, or zeros ``(places, 1 + bytes)``
at-most     of a column: how many values are at most each bound ``(bounds,)``
features    :data:`FEATURE_SUMS`: the number of rows, and the sums of the features ``(1 + d,)``
squares     :data:`FEATURE_SUMS`, :data:`TARGETS`: sums of squared differences from the means
=========== =====================================================================================
"""

Ask = Callable[[SumQuestion], Answer]
"""Ask all clients, and return the sum of their answers."""

COLUMN_QUESTION = SumQuestion(about="columns")


class Client:
    """The training rows of a client, which answers questions about them.

    Args:
        schema: The schema, with rules.
        table: The client's training rows.
        context: The table, for messages.
        class_counts: The rows of each class ``(classes,)``; None if the targets are no classes.
        targets: Numbers to predict ``(n, outputs)``; None if nobody asks about them.
    """

    def __init__(
        self,
        schema: TableSchema,
        table: Table,
        context: str,
        class_counts: np.ndarray | None = None,
        targets: np.ndarray | None = None,
    ) -> None:
        self._schema = schema
        self._table = table
        self._context = context
        self._class_counts = class_counts
        self._targets = targets
        self._values: dict[str, np.ndarray] = {}
        for name, column in schema.feature_columns().items():
            if isinstance(column, MeasuredColumn) and column.rule:
                cells = table[name]
                is_missing_text = column.is_missing(cells, schema.marks)
                text_values = column.values(cells, is_missing_text, name, context)
                row_values = text_values[cells.text_of_row]
                # Sorted, so that values up to a bound are found without a look at all.
                self._values[name] = np.sort(row_values[~np.isnan(row_values)])

    def answer(self, question: SumQuestion) -> Answer:
        """The client's answer to a question."""
        match question.about:
            case "columns":
                return self._about_columns()
            case "texts":
                return {
                    name: self._texts(name, buckets) for name, buckets in question.buckets.items()
                }
            case "at-most":
                return {
                    name: np.searchsorted(self._values[name], bounds, side="right").astype(np.int64)
                    for name, bounds in question.bounds.items()
                }
            case "features":
                features = self._features(question)
                return {FEATURE_SUMS: np.array([len(features), *features.sum(0)])}
            case _:
                return self._squares(question)

    def _about_columns(self) -> Answer:
        answer: Answer = {}
        for name, column in self._schema.feature_columns().items():
            if isinstance(column, CategoryColumn) and column.rule:
                rows = column.level_rows(self._table[name])
                if column.find:
                    rows = np.concatenate([rows, self._bucket_rows(name, column)])
                clients = np.minimum(rows, 1)
                answer[name] = np.stack([rows, clients]) if column.counts_clients else rows[None]
        for name, values in self._values.items():
            answer[name] = np.array([len(values), math.fsum(values)])
        if self._class_counts is not None:
            answer[TARGETS] = self._class_counts.astype(np.int64)
        elif self._targets is not None:
            answer[TARGETS] = np.array([len(self._targets), *self._targets.sum(0)])
        return answer

    def _bucket_rows(self, name: str, column: CategoryColumn) -> np.ndarray:
        """The rows of the texts of each place ``(HASH_BUCKETS,)``; of several texts of a place, of the most frequent."""
        bucket_rows = np.zeros(HASH_BUCKETS, np.int64)
        for level, rows in self._findable(name, column).values():
            bucket_rows[hash_bucket(name, level)] = rows
        return bucket_rows

    def _findable(self, name: str, column: CategoryColumn) -> dict[int, tuple[str, int]]:
        """Place -> the most frequent unlisted text of it that can be found, and its rows."""
        rows_of_text = column.unlisted_rows(self._table[name], self._schema.marks)
        text_of_bucket: dict[int, tuple[str, int]] = {}
        for level, rows in sorted(rows_of_text.items()):
            bucket = hash_bucket(name, level)
            if (
                len(level.encode()) <= MAX_FOUND_LEVEL_BYTES
                and rows > text_of_bucket.get(bucket, ("", 0))[1]
            ):
                text_of_bucket[bucket] = level, rows
        return text_of_bucket

    def _texts(self, name: str, buckets: tuple[int, ...]) -> np.ndarray:
        """For each place a 1 and the bytes of this client's text, or zeros."""
        column = self._schema.columns[name]
        assert isinstance(column, CategoryColumn)
        text_of_bucket = self._findable(name, column)
        texts = np.zeros((len(buckets), 1 + MAX_FOUND_LEVEL_BYTES), np.int64)
        for place, bucket in enumerate(buckets):
            if bucket in text_of_bucket:
                level_bytes = text_of_bucket[bucket][0].encode()
                texts[place, : 1 + len(level_bytes)] = [1, *level_bytes]
        return texts

    def _features(self, question: SumQuestion) -> np.ndarray:
        assert question.schema is not None
        return question.schema.encoded(self._table, self._context).astype(np.float64)

    def _squares(self, question: SumQuestion) -> Answer:
        answer: Answer = {}
        if FEATURE_SUMS in question.means:
            differences = self._features(question) - np.array(question.means[FEATURE_SUMS])
            answer[FEATURE_SUMS] = np.square(differences).sum(0)
        if TARGETS in question.means and self._targets is not None:
            differences = self._targets - np.array(question.means[TARGETS])
            answer[TARGETS] = np.square(differences).sum(0)
        return answer


def summed(clients: Iterable[Client]) -> Ask:
    """Return how clients in one process are asked."""
    asked_clients = list(clients)

    def ask(question: SumQuestion) -> Answer:
        return sum_of([client.answer(question) for client in asked_clients])

    return ask


def sum_of(answers: list[Answer]) -> Answer:
    """Return the sum of answers, which have the same entries."""
    return {name: sum(answer[name] for answer in answers) for name in answers[0]}  # type: ignore[misc]


# ----------------------------------------------------------------------------------------------------
# The one who agrees on the constants.


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all clients have agreed on.

    Attributes:
        schema: The table schema with constants.
        scaling: Means and deviations of the features; None if they are not standardized by these.
        target_scaling: The same of the numbers to predict.
        class_weights: The weight of each class in the loss; empty for none.
    """

    schema: TableSchema
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    target_scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    class_weights: tuple[float, ...] = ()


def agree(
    schema: TableSchema, ask: Ask, *, scales_inputs: bool = False, scales_targets: bool = False
) -> Agreed:
    """Agree on all constants.

    Args:
        schema: The schema; it may have rules.
        ask: Asks all clients for sums over their training rows.
        scales_inputs: Whether the features are standardized by constants of the training rows of all
            clients together.
        scales_targets: The same for the numbers to predict.
    """
    is_weighted = schema.class_weights == BALANCED
    answer: Answer = {}
    if schema.rules or is_weighted or scales_targets:
        answer = ask(COLUMN_QUESTION)
    constant_schema = _with_constants(schema, answer, ask)
    # The means first, from sums and counts; then the deviations, from squared differences.
    means: dict[str, np.ndarray] = {}
    counts: dict[str, float] = {}
    sums = answer if scales_targets else {}
    if scales_inputs:
        sums = {**sums, **ask(SumQuestion(about="features", schema=constant_schema))}
    for entry in (FEATURE_SUMS, TARGETS):
        if entry in sums:
            counts[entry] = float(sums[entry][0])
            means[entry] = sums[entry][1:] / max(counts[entry], 1.0)
    scaling = {}
    if means:
        squares = ask(
            SumQuestion(
                about="squares",
                schema=constant_schema,
                means={entry: tuple(entry_means.tolist()) for entry, entry_means in means.items()},
            )
        )
        for entry, entry_means in means.items():
            deviations = np.sqrt(squares[entry] / max(counts[entry], 1.0))
            # A number that never changes has the deviation 1; rounding may leave a trace of one.
            is_constant = deviations <= 1e-12 * np.abs(entry_means)
            deviations = np.where(is_constant, 1.0, deviations)
            scaling[entry] = (tuple(entry_means.tolist()), tuple(deviations.tolist()))
    return Agreed(
        schema=constant_schema,
        scaling=scaling.get(FEATURE_SUMS),
        target_scaling=scaling.get(TARGETS),
        class_weights=balanced(answer[TARGETS]) if is_weighted else (),
    )


def agreed(schema: TableSchema, ask: Ask) -> TableSchema:
    """Return a schema with constants in place of its rules.

    Args:
        schema: The schema.
        ask: Asks all clients for sums over their training rows.

    Returns:
        The schema, the same at all clients. A column without any value is filled with 0 (a date with
        2000-01-01).
    """
    return _with_constants(schema, ask(COLUMN_QUESTION) if schema.rules else {}, ask)


def balanced(class_counts: np.ndarray) -> tuple[float, ...]:
    """Return the weight of each class: n / (classes n_c), as scikit-learn's ``balanced``; 1 for a class without rows.

    Args:
        class_counts: n_c, the training rows of each class over all clients ``(classes,)``.

    Example:
        >>> balanced(np.array([30, 10]))
        (0.6666666666666666, 2.0)
    """
    counts = np.asarray(class_counts, np.float64)
    weights = np.where(counts > 0, counts.sum() / (len(counts) * np.maximum(counts, 1.0)), 1.0)
    return tuple(weights.tolist())


def _with_constants(schema: TableSchema, sums: Answer, ask: Ask) -> TableSchema:
    columns = dict(schema.columns)
    value_counts: dict[str, int] = {}
    levels_of_column = _found_levels(schema, sums, ask)
    for name, rule in schema.rules.items():
        column = schema.columns[name]
        if isinstance(column, CategoryColumn):
            counts = sums[name][:, : len(column.levels)].T.tolist()
            common = [
                level
                for level, level_counts in zip(column.levels, counts, strict=True)
                if column.is_common(*level_counts)
            ]
            columns[name] = column.with_levels((*common, *levels_of_column.get(name, ())))
        elif isinstance(column, MeasuredColumn):
            value_count, value_sum = sums[name].tolist()
            if not value_count:
                columns[name] = column.filled_with(0.0)
            elif rule == "mean":
                columns[name] = column.filled_with(value_sum / value_count)
            else:
                value_counts[name] = int(value_count)
    for name, median in medians(value_counts, ask).items():
        column = columns[name]
        assert isinstance(column, MeasuredColumn)
        columns[name] = column.filled_with(median)
    return replace(schema, columns=columns)


def _found_levels(schema: TableSchema, sums: Answer, ask: Ask) -> dict[str, tuple[str, ...]]:
    """Column -> levels that it does not list and that are common enough, in order."""
    buckets: dict[str, tuple[int, ...]] = {}
    clients_of_bucket: dict[str, list[int]] = {}
    for name in schema.rules:
        column = schema.columns[name]
        if not isinstance(column, CategoryColumn) or not column.find:
            continue
        rows, clients = sums[name][:, len(column.levels) :].tolist()
        common = [
            place for place in range(HASH_BUCKETS) if column.is_common(rows[place], clients[place])
        ]
        if common:
            buckets[name] = tuple(common)
            clients_of_bucket[name] = [clients[place] for place in common]
    if not buckets:
        return {}
    texts = ask(SumQuestion(about="texts", buckets=buckets))
    levels_of_column: dict[str, tuple[str, ...]] = {}
    for name, places in buckets.items():
        levels = []
        for place, expected, (clients_with_text, *byte_sums) in zip(
            places, clients_of_bucket[name], texts[name].tolist(), strict=True
        ):
            level = (
                _text_of(byte_sums, clients_with_text) if clients_with_text == expected else None
            )
            # Several texts in one place add up to no text of that place: they stay other.
            if level is not None and hash_bucket(name, level) == place:
                levels.append(level)
        levels_of_column[name] = tuple(in_order(levels))
    return levels_of_column


def _text_of(byte_sums: list[int], clients: int) -> str | None:
    """The text that all clients have written, from the sums of their bytes; None if they wrote several."""
    if any(byte_sum % clients or byte_sum // clients > 255 for byte_sum in byte_sums):
        return None
    written = bytes(byte_sum // clients for byte_sum in byte_sums).rstrip(b"\0")
    try:
        text = written.decode()
    except UnicodeDecodeError:
        return None
    return text if text and printable(text) == text else None


def medians(value_counts: Mapping[str, int], ask: Ask) -> dict[str, float]:
    """Return the medians of columns; of an even number of values, the mean of the middle two.

    Args:
        value_counts: Column -> the number of its values, > 0.
        ask: Asks all clients how many of their values are at most some bounds.
    """
    # The middle two are the smallest values with at least so many values up to them. A range has
    # the places, in the order of all numbers, among which such a value can be.
    needed: dict[str, tuple[int, int]] = {}
    ranges: dict[str, list[tuple[int, int]]] = {}
    for name, count in value_counts.items():
        needed[name] = ((count + 1) // 2, count // 2 + 1)
        ranges[name] = [(-GREATEST_PLACE, GREATEST_PLACE)] * 2
    # Divide the ranges of both middle values of all columns until each has one number.
    while any(low < high for pair in ranges.values() for low, high in pair):
        places_of_column: dict[str, np.ndarray] = {}
        bounds: dict[str, tuple[float, ...]] = {}
        for name, pair in ranges.items():
            all_places = {place for limits in set(pair) for place in _dividing(*limits)}
            places_of_column[name] = np.array(sorted(all_places), np.int64)
            bounds[name] = tuple(_numbers(places_of_column[name]).tolist())
        counts_at_most = ask(SumQuestion(about="at-most", bounds=bounds))
        for name, pair in ranges.items():
            places = places_of_column[name]
            for side, (low, high) in enumerate(pair):
                # The first place with enough values up to it is an upper limit; the one before it
                # has too few, so that the value is beyond that.
                position = int(np.searchsorted(counts_at_most[name], needed[name][side]))
                if position < len(places):
                    high = min(high, int(places[position]))
                if position > 0:
                    low = max(low, int(places[position - 1]) + 1)
                pair[side] = (min(low, high), high)
    median_of_column: dict[str, float] = {}
    for name, ((lower, _), (upper, _)) in ranges.items():
        lower_number, upper_number = _numbers(np.array([lower, upper], np.int64)).tolist()
        median_of_column[name] = (lower_number + upper_number) / 2
    return median_of_column


def _dividing(low: int, high: int) -> list[int]:
    """Places that divide a range into :data:`MEDIAN_PARTS` parts: the last of each part but the last."""
    length = high - low + 1
    parts = min(MEDIAN_PARTS, length)
    return [low + length * part // parts - 1 for part in range(1, parts)]


GREATEST_PLACE = int(np.array(np.finfo(np.float64).max).view(np.int64))
"""The place of the greatest number in the order of all float64 numbers; that of 0 is 0."""


def _numbers(places: np.ndarray) -> np.ndarray:
    """The numbers at some places in that order: negative places have negative numbers."""
    return np.copysign(np.abs(places).view(np.float64), places.astype(np.float64))
