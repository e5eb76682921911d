"""Columns of a table as texts: what a CSV file has, and what a data frame would have if it were written to one.

Everything that a schema does with a column is done once for each distinct text, and then for the rows
that have it.
"""

from __future__ import annotations

import math
import numbers
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.columns import is_missing, listed, names_of
from coterie.data.datasets.table import ending, is_table_file, read_texts
from coterie.settings import UserError

CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Cells:
    """A column of a table.

    Attributes:
        texts: The distinct texts, without spaces around them, in the order of their first rows.
        text_of_row: The number of each row's text ``(N,)``.
    """

    texts: tuple[str, ...]
    text_of_row: np.ndarray

    @classmethod
    def of(cls, row_texts: Iterable[str]) -> Cells:
        """Make a column of the texts of its rows.

        Example:
            >>> cells = Cells.of(["no", " yes", "no"])
            >>> cells.texts, cells.text_of_row.tolist()
            (('no', 'yes'), [0, 1, 0])
        """
        number_of_text: dict[str, int] = {}
        number_of_raw_text: dict[str, int] = {}
        text_numbers = []
        for raw_text in row_texts:
            number = number_of_raw_text.get(raw_text)
            if number is None:
                # Spaces, control characters and the coding of accents make no difference.
                shown_text = CONTROL_CHARACTERS.sub(" ", raw_text)
                text = unicodedata.normalize("NFC", " ".join(shown_text.split()))
                number = number_of_text.setdefault(text, len(number_of_text))
                number_of_raw_text[raw_text] = number
            text_numbers.append(number)
        return cls(tuple(number_of_text), np.array(text_numbers, np.int64))

    def __len__(self) -> int:
        return len(self.text_of_row)

    def in_rows(self, rows: np.ndarray) -> Cells:
        """The column in some rows, given by their positions ``(n,)``."""
        used_texts, text_of_row = np.unique(self.text_of_row[rows], return_inverse=True)
        return Cells(tuple(self.texts[number] for number in used_texts.tolist()), text_of_row)

    def counts(self) -> dict[str, int]:
        """Text -> the number of rows that have it."""
        row_counts = np.bincount(self.text_of_row, minlength=len(self.texts))
        return dict(zip(self.texts, row_counts.tolist(), strict=True))

    def row_texts(self) -> list[str]:
        """The text of each row."""
        return [self.texts[number] for number in self.text_of_row.tolist()]

    def first_row(self, text_number: int) -> int:
        """The first row with a text, from 1; 0 if no row has it."""
        has_text = self.text_of_row == text_number
        return int(has_text.argmax()) + 1 if has_text.any() else 0


Table = Mapping[str, Cells]
"""Column -> its cells; all of one length."""


def of_frame(frame: Any, context: str) -> dict[str, Cells]:
    """Return the columns of a data frame as texts.

    Args:
        frame: A data frame of pandas, polars or pyarrow, or a mapping from names to arrays or lists
            ``(N,)``.
        context: The table, for messages.

    Raises:
        UserError: It is no table, two columns have one name, or the columns have different lengths.
    """
    names = [str(name) for name in names_of(frame, context)]
    if len(set(names)) < len(names):
        raise UserError(f"{context} has two columns with one name (columns: {listed(names)})")
    table: dict[str, Cells] = {}
    for name in names_of(frame, context):
        column = frame[name]
        array = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column, object)
        if array.ndim != 1:
            raise UserError(f"{context}: the column {name} must have one value for each row")
        # Times of NumPy are written as ISO dates by their text, all else by its own text.
        if array.dtype.kind == "M":
            iso_texts = np.datetime_as_string(array, unit="us").tolist()
            table[str(name)] = Cells.of("" if text == "NaT" else text for text in iso_texts)
        else:
            table[str(name)] = Cells.of(map(_text_of, array.tolist()))
    check_lengths(table, context)
    return table


def _text_of(value: Any) -> str:
    """A value as a file has it."""
    if is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    # Whole numbers are floats where another value of the column is missing.
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = float(value)
        return str(int(number)) if math.isfinite(number) and number.is_integer() else repr(number)
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def of_file(path: Path) -> dict[str, Cells]:
    """Return the columns of a CSV or Parquet file as texts.

    Raises:
        UserError: It cannot be read.
    """
    if not is_table_file(path):
        raise UserError(
            f"{path} must be a table, with a name that ends in .csv, .csv.gz or .parquet"
        )
    columns = read_texts(path)
    if ending(path) == ".parquet":
        return of_frame(columns, str(path))
    return {name: Cells.of(fields) for name, fields in columns.items()}


def of_files(paths: Sequence[Path], site_column: str = "") -> dict[str, Cells]:
    """Return the rows of several files as one table.

    Args:
        paths: The files. All must have the same columns, in any order.
        site_column: A further column, with the name of each row's file without its ending; empty for
            none.

    Raises:
        UserError: A file cannot be read, or has other columns than the first.
    """
    texts_of_column: dict[str, list[str]] = {}
    row_sites: list[str] = []
    for path in paths:
        table = of_file(path)
        if site_column in table and site_column:
            raise UserError(
                f"{path} has a column {site_column!r}, which is also the name for the sites of files"
            )
        if texts_of_column and set(table) != set(texts_of_column):
            lacking = sorted(set(texts_of_column) - set(table))
            further = sorted(set(table) - set(texts_of_column))
            differences = []
            if lacking:
                differences.append(f"lacks {listed(lacking)}")
            if further:
                differences.append(f"also has {listed(further)}")
            raise UserError(
                f"{path} has other columns than {paths[0]}: it {' and '.join(differences)}"
            )
        for name, cells in table.items():
            texts_of_column.setdefault(name, []).extend(cells.row_texts())
        row_count = len(next(iter(table.values())))
        row_sites += [path.name.partition(".")[0]] * row_count
    joined = {name: Cells.of(row_texts) for name, row_texts in texts_of_column.items()}
    if site_column:
        joined[site_column] = Cells.of(row_sites)
    return joined


def check_lengths(table: Table, context: str) -> None:
    """Raise :class:`~coterie.settings.UserError` for a table without rows, or with columns of several lengths."""
    length_of_column = {name: len(cells) for name, cells in table.items()}
    if not any(length_of_column.values()):
        raise UserError(f"{context} has no rows")
    first_name, first_length = next(iter(length_of_column.items()))
    for name, length in length_of_column.items():
        if length != first_length:
            raise UserError(
                f"{context}: the column {name} has {length} rows, and {first_name} has {first_length}"
            )
