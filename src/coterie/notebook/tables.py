"""Short texts, HTML tables and data frames of what an object holds.

Names come from clients, so they are untrusted: texts are made printable, and tables are escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from coterie.printable import printable
from coterie.settings import UserError

MAX_TABLE_ROWS = 20
"""Of an HTML table."""

MAX_LISTED = 6
"""Entries of a list in a text."""

MAX_ENTRY_LENGTH = 40
"""Characters of an entry of such a list."""


def labels(names: Mapping[int, str], ids: Iterable[int] = ()) -> dict[int, int | str]:
    """Client -> its name as people read it. Names that are all whole numbers become numbers.

    ``ids`` are clients that may have no name. They have their ids, as text if others have a name in
    words.

    Example:
        >>> labels({0: "10", 1: "7"}), labels({0: "10", 1: "north"})
        ({0: 10, 1: 7}, {0: '10', 1: 'north'})
        >>> labels({}, [0, 1]), labels({0: "north"}, [0, 1])
        ({0: 0, 1: 1}, {0: 'north', 1: '1'})
    """
    # Numbers sort as numbers, but only if no client has a name in words.
    are_numbers = all(
        re.fullmatch("0|[1-9][0-9]{0,17}", client_name) for client_name in names.values()
    )
    shown_names: dict[int, int | str] = {}
    for client in ids:
        shown_names[client] = client if are_numbers else str(client)
    for client, client_name in names.items():
        shown_names[client] = int(client_name) if are_numbers else client_name
    return shown_names


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> count(1, "group"), count(1440, "example")
        ('1 group', '1,440 examples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(values: Collection[Any], limit: int = MAX_LISTED) -> str:
    """Return the first values in words, each printable and cut to 40 characters.

    Example:
        >>> some([0, 1, 2]), some(range(9), limit=3)
        ('0, 1, 2', '0, 1, 2, ...')
    """
    entry_texts = []
    for value in islice(values, limit):
        printable_text = printable(str(value))
        if len(printable_text) > MAX_ENTRY_LENGTH:
            printable_text = f"{printable_text[: MAX_ENTRY_LENGTH - 3]}..."
        entry_texts.append(printable_text)
    return ", ".join(entry_texts) + (", ..." if len(values) > limit else "")


def partition(groups: Collection[Sequence[Any]]) -> str:
    """Return the number of groups in words, and their sizes.

    Example:
        >>> partition([[0, 1], [2]]), partition([[0, 1]])
        ('2 groups of 2, 1', '1 group of 2')
    """
    return f"{count(len(groups), 'group')} of {some([len(group) for group in groups])}"


def by_group(
    groups: Iterable[Sequence[Any]],
    metric: str = "",
    value: Callable[[Sequence[Any]], float | None] | None = None,
) -> list[dict[str, Any]]:
    """Return one row per group.

    Args:
        groups: The clients of each group.
        metric: The name of a metric.
        value: The clients of a group -> their value of the metric, or None.

    Returns:
        The rows: the group's number, its size, its clients and their value of the metric.
    """
    group_rows = []
    for number, group in enumerate(groups):
        group_row: dict[str, Any] = {
            "group": number,
            "size": len(group),
            "clients": some(group, limit=2 * MAX_LISTED),
        }
        if value is not None:
            group_row[metric] = value(group)
        group_rows.append(group_row)
    return group_rows


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, which are neither None nor NaN; None if none is.

    Example:
        >>> mean([1.0, None, 2.0]), mean([])
        (1.5, None)
    """
    known_values = [value for value in values if value is not None and not math.isnan(value)]
    return sum(known_values) / len(known_values) if known_values else None


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table of at most :data:`MAX_TABLE_ROWS` rows, below a title; all text is escaped.

    Args:
        title: The title.
        rows: The rows, all with the same columns.

    Returns:
        The HTML.
    """
    column_names = rows[0] if rows else ()
    header_cells = "".join(f"<th>{_cell(name)}</th>" for name in column_names)
    body_rows = ""
    for table_row in rows[:MAX_TABLE_ROWS]:
        row_cells = "".join(f"<td>{_cell(value)}</td>" for value in table_row.values())
        body_rows += f"<tr>{row_cells}</tr>"
    # A note says how many rows are not shown.
    hidden_rows = len(rows) - MAX_TABLE_ROWS
    hidden_rows_note = f"<p>… and {hidden_rows:,} more</p>" if hidden_rows > 0 else ""
    html_table = f"<table><thead><tr>{header_cells}</tr></thead><tbody>{body_rows}</tbody></table>"
    return f"<p>{_cell(title)}</p>{html_table}{hidden_rows_note}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        # Scores have three decimals, and numbers of thousands none.
        value = f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return "–" if value is None else escape(printable(str(value)))


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a pandas data frame.

    Args:
        rows: Its rows; a value that is None or missing is NaN.

    Returns:
        The data frame.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UserError("to_pandas needs pandas: pip install 'coterie[notebook]'") from error
    # pandas makes a column of objects where a value is None; with NaN it is a column of numbers.
    filled_rows = []
    for table_row in rows:
        filled_row = dict(table_row)
        for column_name, value in table_row.items():
            if value is None:
                filled_row[column_name] = math.nan
        filled_rows.append(filled_row)
    return pandas.DataFrame(filled_rows)
