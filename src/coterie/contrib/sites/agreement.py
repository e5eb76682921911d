"""The constants of a table schema, from sums over clients: means, medians, and the levels that are common enough.

The one who agrees on constants asks questions, and learns the **sum** of the clients' answers alone
(:class:`SumQuestion`). So it does not matter whether the sum is taken in one process, over a network, or
under masks. Answers are counts, but for the sums of a mean.

A median is exact. The distinct numbers of float64 have an order, and each of at most 64 questions
halves those among which the median can be: how many values are at most this one? The columns are
halved together, so the number of questions does not depend on that of the columns.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from coterie.contrib.sites.cells import Table
from coterie.contrib.sites.columns import CategoryColumn, MeasuredColumn
from coterie.contrib.sites.table_schema import TableSchema


@dataclass(frozen=True)
class SumQuestion:
    """What all clients are asked.

    Attributes:
        about: ``sums`` or ``at-most``.
        bounds: Column -> two numbers, for ``at-most``.
    """

    about: str
    bounds: Mapping[str, tuple[float, float]]


Answer = dict[str, np.ndarray]
"""Column -> numbers that are added up over the clients. To ``sums``, a column with levels has the number of
rows of each level, and any other the number of its values and their sum. To ``at-most``, a column has the
number of its values that are at most each of two bounds."""

Ask = Callable[[SumQuestion], Answer]
"""Ask all clients, and return the sum of their answers."""

SUMS = SumQuestion("sums", {})


class Client:
    """The training rows of a client, which answers questions about them.

    Args:
        schema: The schema, with rules.
        table: The client's training rows.
        context: The table, for messages.
    """

    def __init__(self, schema: TableSchema, table: Table, context: str) -> None:
        self._values: dict[str, np.ndarray] = {}
        self._level_rows: dict[str, np.ndarray] = {}
        for name, column in schema.feature_columns().items():
            if isinstance(column, CategoryColumn) and column.rule:
                self._level_rows[name] = column.level_rows(table[name])
            if isinstance(column, MeasuredColumn) and column.rule:
                cells = table[name]
                is_missing_text = column.is_missing(cells, schema.marks)
                text_values = column.values(cells, is_missing_text, name, context)
                row_values = text_values[cells.text_of_row]
                # Sorted, so that values up to a bound are found without a look at all.
                self._values[name] = np.sort(row_values[~np.isnan(row_values)])

    def answer(self, question: SumQuestion) -> Answer:
        """The client's answer to a question."""
        if question.about == "at-most":
            return {
                name: np.searchsorted(self._values[name], bounds, side="right").astype(np.float64)
                for name, bounds in question.bounds.items()
            }
        answer: Answer = dict(self._level_rows)
        for name, values in self._values.items():
            answer[name] = np.array([len(values), math.fsum(values)])
        return answer


def summed(clients: Iterable[Client]) -> Ask:
    """Return how clients in one process are asked."""
    asked_clients = list(clients)

    def ask(question: SumQuestion) -> Answer:
        answers = [client.answer(question) for client in asked_clients]
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}  # type: ignore[misc]

    return ask


def agreed(schema: TableSchema, ask: Ask) -> TableSchema:
    """Return a schema with constants in place of its rules.

    Args:
        schema: The schema.
        ask: Asks all clients for sums over their training rows.

    Returns:
        The schema, the same at all clients. A column without any value is filled with 0 (a date with
        2000-01-01).
    """
    if not schema.rules:
        return schema
    sums = ask(SUMS)
    columns = dict(schema.columns)
    value_counts: dict[str, int] = {}
    for name, rule in schema.rules.items():
        column = schema.columns[name]
        if isinstance(column, CategoryColumn):
            row_counts = dict(zip(column.levels, sums[name].astype(int).tolist(), strict=True))
            columns[name] = column.with_common_levels(row_counts)
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


def medians(value_counts: Mapping[str, int], ask: Ask) -> dict[str, float]:
    """Return the medians of columns; of an even number of values, the mean of the middle two.

    Args:
        value_counts: Column -> the number of its values, > 0.
        ask: Asks all clients how many of their values are at most two bounds.
    """
    # The middle two are the smallest values with at least so many values up to them.
    needed: dict[str, tuple[int, int]] = {}
    ranges: dict[str, list[list[int]]] = {}
    for name, count in value_counts.items():
        needed[name] = ((count + 1) // 2, count // 2 + 1)
        full_range = [_place(-np.finfo(np.float64).max), _place(np.finfo(np.float64).max)]
        ranges[name] = [list(full_range), list(full_range)]
    # Halve the ranges of both middle values of all columns until each has one number.
    while any(low < high for pair in ranges.values() for low, high in pair):
        middles = {name: [(low + high) // 2 for low, high in pair] for name, pair in ranges.items()}
        bounds = {
            name: (_number(lower), _number(upper)) for name, (lower, upper) in middles.items()
        }
        counts_at_most = ask(SumQuestion("at-most", bounds))
        for name, pair in ranges.items():
            for side, middle in enumerate(middles[name]):
                if counts_at_most[name][side] >= needed[name][side]:
                    pair[side][1] = middle
                else:
                    pair[side][0] = min(middle + 1, pair[side][1])
    median_of_column: dict[str, float] = {}
    for name, ((lower, _), (upper, _)) in ranges.items():
        median_of_column[name] = (_number(lower) + _number(upper)) / 2
    return median_of_column


def _place(number: float) -> int:
    """The place of a number in the order of all float64 numbers; that of 0 is 0."""
    (bits,) = struct.unpack("<q", struct.pack("<d", abs(number)))
    return -bits if number < 0 else bits


def _number(place: int) -> float:
    """The number at a place, see :func:`_place`."""
    (number,) = struct.unpack("<d", struct.pack("<q", abs(place)))
    return -number if place < 0 else float(number)
