"""Your own data: a table, a CSV or Parquet file with a column that names the client.

Parquet needs pyarrow (``pip install 'coterie[tables]'``).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from coterie.data import readers
from coterie.data.columns import MAKE_NUMBERS, Missing, Problems, check_columns, listed
from coterie.data.datasets.source import DatasetSettings, OwnSource, register
from coterie.data.frames import (
    NUMBER_PATTERN,
    FrameColumns,
    check_order,
    clients_of,
)
from coterie.data.own import OwnData
from coterie.data.tasks import TASKS
from coterie.data.times import TIME_HINT_END, check_gap, hint_of_dates
from coterie.extensions import provided
from coterie.files import check_unpacked, reason
from coterie.settings import SettingError, UserError, setting

# The file: CSV (comma, semicolon or tab; also gzipped) or Parquet. A row is an example, and one
# column names its client.
#
# From the file to columns: CSV and Parquet have a reader each, which gives the needed columns as
# arrays of one kind: booleans, whole numbers, floats, texts or dates.
#
# From columns to clients: ``frames.clients_of`` groups the rows by the column that names the
# client, makes numbers of the features and the targets, and keeps the rows of a subject together.
# Nothing is divided among clients; ``OwnData.world`` cuts each client's rows into training,
# validation and test rows, at random or by the order column.
MAX_CSV_COLUMNS = 100_000
"""The maximum number of columns of a CSV file."""

START_ROWS = 1000
"""Number of first rows of a Parquet file in which dates are looked for."""

CSV_BLOCK_ROWS = 10_000
"""Rows of a CSV file that are parsed together."""


@dataclass(frozen=True, kw_only=True)
class TableSettings(DatasetSettings):
    """The columns of a table."""

    has_targets: ClassVar[bool] = True

    client: str | None = setting(None, "column that names the client of each row")
    target: str | tuple[str, ...] | None = setting(None, "column to predict, or several")
    columns: tuple[str, ...] = setting((), "columns of the inputs; empty: all others")
    subject: str | None = setting(
        None,
        "column that names the subject of each row, such as a patient, whose rows stay together",
    )
    order: str | None = setting(
        None,
        "column of the times of the rows, of which the latest are for tests; none: rows at random",
    )
    gap: float | str | None = setting(
        None,
        "later parts are later by more than this: a number, or for dates such as 7D or 12h; "
        "none: no gap",
    )
    task: str = setting(
        "auto",
        "classification or regression; auto: by the type of the target",
        choices=TASKS,
    )
    schema: str | None = setting(
        None,
        "file of what the columns are, from coterie schema: text, dates and missing values become "
        "features; the data may be a folder of one file per client; none: numbers alone",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.gap)
        if self.gap is not None and self.order is None:
            raise SettingError(
                f"Scenario.gap {self.gap} needs Scenario.order, a column by which rows are early "
                "or late (table)"
            )

    @property
    def takes_folder(self) -> bool:
        """Whether the data may be a folder with a file per client: a schema makes these alike."""
        return self.schema is not None

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target or ())


def clients_of_table(path: Path, options: TableSettings, takes_tokens: bool = False) -> OwnData:
    """Read the clients of a table.

    The last table stays in memory, and is read again only if the file has changed.

    Args:
        path: A .csv or .parquet file; with a schema also a folder of them, one per client.
        options: The columns, see :func:`~coterie.data.frames.from_frame`.
        takes_tokens: Not used: the columns are features.

    Returns:
        The clients' data.

    Raises:
        UserError: The file or a column is not valid, see also
            :func:`~coterie.data.frames.from_frame`.
    """
    del takes_tokens
    if options.schema is not None:
        own_data: OwnData = provided("coterie.hooks", "table-schema").clients_of_path(path, options)
        return own_data
    if ending(path) not in TABLE_ENDINGS:
        raise UserError(
            f"{path} must be a table, with a name that ends in .csv, .csv.gz or .parquet"
        )
    try:
        # The time and the size of the file show whether the table in memory is still the file's.
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    return _clients(path, (status.st_mtime_ns, status.st_size), options)


@lru_cache(maxsize=1)
def _clients(path: Path, file_stamp: tuple[int, int], options: TableSettings) -> OwnData:
    # The file's time and size are only a key of the cache.
    del file_stamp
    client_column = options.client
    target_columns = options.targets
    order_column = options.order
    # Read the names of the columns first: a wrong name in the settings is found before the data are
    # read.
    if ending(path) == ".parquet":
        column_names, read_columns, read_start = _parquet(path)
    else:
        column_names, read_columns, read_start = _csv(
            path, text_columns=(client_column, options.subject)
        )
    for setting_name, columns_of_role in (("client", client_column), ("target", target_columns)):
        if not columns_of_role:
            raise SettingError(
                f"Scenario.{setting_name} must name a column of {path}, which has {listed(column_names)}"
            )

    # The use of each column: those with a role, the order, and the features, by default all others.
    role_columns = [str(client_column), *target_columns]
    if options.subject is not None:
        role_columns.append(options.subject)
    order_columns = [] if order_column is None else [order_column]
    feature_columns = list(options.columns)
    if not feature_columns:
        used_columns = (*role_columns, *order_columns)
        feature_columns = [name for name in column_names if name not in used_columns]
    check_columns(column_names, role_columns, feature_columns, str(path))
    check_order(
        column_names,
        role_columns,
        order_columns,
        options.gap if order_column is None else None,
        str(path),
    )
    # The order may also be a feature, and is then read once.
    order_alone = [name for name in order_columns if name not in feature_columns]
    # Read the columns and make clients of their rows.
    columns = FrameColumns(
        client=client_column,
        target=target_columns,
        features=feature_columns,
        task=options.task,
        subject=options.subject,
        order=order_column,
        gap=options.gap,
    )
    read_frame = read_columns([*role_columns, *feature_columns, *order_alone])
    own_data = clients_of(read_frame, columns, str(path))
    # With an order, or a hint about times already, there is nothing more to say.
    if order_column is not None or any(hint.endswith(TIME_HINT_END) for hint in own_data.hints):
        return own_data

    # The rows have no order: say it if a column that is not used has dates.
    unused_columns = [
        name for name in column_names if name not in (*role_columns, *feature_columns)
    ]
    hints = [*own_data.hints]
    if unused_columns:
        hints += _date_hints(read_start(unused_columns))
    return replace(own_data, hints=hints)


def read_texts(path: Path) -> Mapping[str, Any]:
    """Read all columns of a table, with missing values: for a table schema, which says what they are.

    Args:
        path: A .csv or .parquet file.

    Returns:
        Column -> its values: of a CSV file a list of texts, as they are in the file; of a Parquet
        file an array.

    Raises:
        UserError: The file cannot be read, has no rows, or has two columns with one name.
    """
    if ending(path) == ".parquet":
        column_names, read_columns, _ = _parquet(path)
        return read_columns(column_names)
    content, delimiter, column_names = _opened_csv(path)
    if len(set(column_names)) < len(column_names):
        raise UserError(f"{path} has two columns with one name (columns: {listed(column_names)})")
    texts: dict[str, list[str]] = {name: [] for name in column_names}
    for block in _blocks(path, content, delimiter, column_names):
        for column_name, fields in block.items():
            texts[column_name] += fields
    if not texts[column_names[0]]:
        raise UserError(f"{path} has no rows below the names of its columns")
    return texts


def _date_hints(first_values: Columns) -> list[str]:
    """A hint about the first of some columns that has dates; none if no column has."""
    for column_name, column_start in first_values.items():
        if sentence := hint_of_dates(column_name, column_start):
            return [sentence]
    return []


TABLE_ENDINGS = (".csv", ".parquet")
"""Endings of the names of tables."""


def is_table_file(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return ending(path) in TABLE_ENDINGS


def ending(path: Path) -> str:
    """The ending of a table's name, without that of a gzipped CSV file."""
    file_name = path.name.lower()
    if file_name.endswith(".csv.gz"):
        file_name = file_name.removesuffix(".gz")
    return Path(file_name).suffix


Columns = dict[str, np.ndarray]
Read = Callable[[list[str]], Columns]
"""Function of the names of the needed columns that returns them, ``(N,)`` each."""


# ----------------------------------------------------------------------------------------------------
# CSV: read twice, by blocks of rows, first for the types of the columns. Only an array per column
# stays in memory.


_BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def _opened_csv(path: Path) -> tuple[bytes, str, list[str]]:
    """The content of a CSV file, its delimiter, and the names of its columns."""
    # The whole file, unpacked, is in memory; rows are parsed from it block by block.
    content = readers.content(path)
    if not content.strip():
        raise UserError(f"{path} is empty")
    # The delimiter is the mark that the line of names has most often.
    first_line = content.partition(b"\n")[0]
    delimiter = max((",", ";", "\t"), key=lambda candidate: first_line.count(candidate.encode()))
    # Each column becomes an array, so a broken file could make any number of them.
    if first_line.count(delimiter.encode()) >= MAX_CSV_COLUMNS:
        raise UserError(f"{path} has more than {MAX_CSV_COLUMNS:,} columns")
    column_names = next(_rows(path, content, delimiter))
    if "" in column_names:
        raise UserError(
            f"{path}: column {column_names.index('') + 1} has no name; name it, or, if it has row numbers, "
            "write the file without them (index=False in pandas)"
        )
    return content, delimiter, column_names


def _csv(path: Path, text_columns: Collection[str | None]) -> tuple[list[str], Read, Read]:
    """The names of a CSV file's columns, and the functions that read it, or their start."""
    content, delimiter, column_names = _opened_csv(path)
    blocks = partial(_blocks, path, content, delimiter)

    def read(columns: list[str]) -> Columns:
        return _read_csv(path, partial(blocks, columns), len(content), text_columns)

    def read_start(columns: list[str]) -> Columns:
        first_block = next(blocks(columns))
        return {name: np.array(fields, object) for name, fields in first_block.items()}

    return column_names, read, read_start


def _rows(path: Path, content: bytes, delimiter: str) -> Iterator[list[str]]:
    """The rows that are not blank, first the names of the columns."""
    text_lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    try:
        # The parser gives a blank line as an empty list.
        yield from filter(None, csv.reader(text_lines, delimiter=delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error


Fields = tuple[str, ...]

Block = dict[str, Fields]
"""Column -> its fields in some rows."""


def _blocks(
    path: Path, content: bytes, delimiter: str, needed_columns: list[str]
) -> Iterator[Block]:
    """The needed columns, some rows after the others."""
    file_rows = _rows(path, content, delimiter)
    column_names = next(file_rows)
    rows_before = 0
    while block_rows := list(islice(file_rows, CSV_BLOCK_ROWS)):
        for row_number, fields_of_row in enumerate(block_rows, rows_before + 1):
            if len(fields_of_row) != len(column_names):
                raise UserError(
                    f"{path}: row {row_number} has {len(fields_of_row)} fields where {len(column_names)} were expected"
                )
        # Turn the rows into columns, and keep those that are needed.
        columns = dict(zip(column_names, zip(*block_rows, strict=True), strict=True))
        yield {name: columns[name] for name in needed_columns}
        rows_before += len(block_rows)


def _read_csv(
    path: Path,
    blocks: Callable[[], Iterator[Block]],
    packed_bytes: int,
    text_columns: Collection[str | None],
) -> Columns:
    """The columns of a file of ``packed_bytes`` bytes."""
    # First reading: the kind of array for each column, and its missing values.
    kind_of_column: dict[str, str] = {}
    missing_values: dict[str, Missing] = {}
    for block in blocks():
        for column_name, fields in block.items():
            # An empty field is a missing value.
            is_missing = np.array([not field for field in fields])
            missing_values[column_name] = missing_values.get(column_name, Missing()).plus(
                is_missing
            )
            # What is needed as text, such as the names of clients, stays text: 007 is not 7.
            if column_name in text_columns:
                kind_of_column[column_name] = "O"
            else:
                kind_of_column[column_name] = _common_kind(kind_of_column.get(column_name), fields)
    if not missing_values:
        raise UserError(f"{path} has no rows below the names of its columns")
    problems = Problems(str(path))
    for column_name, missing_in_column in missing_values.items():
        with problems.noted():
            missing_in_column.check(f"{path}: the column {column_name}")
    problems.check()
    unpacked_bytes = sum(
        8 * missing_in_column.rows for missing_in_column in missing_values.values()
    )
    # The arrays take eight bytes for each field, which may be much more than the file.
    check_unpacked(path, packed_bytes, unpacked_bytes)

    # Second reading: the arrays. Equal texts are one object.
    blocks_of_columns: dict[str, list[np.ndarray]] = {name: [] for name in kind_of_column}
    known_texts: dict[str, str] = {}
    for block in blocks():
        for column_name, fields in block.items():
            blocks_of_columns[column_name].append(
                _array(fields, kind_of_column[column_name], known_texts)
            )
    return {
        name: np.concatenate(blocks_of_column)
        for name, blocks_of_column in blocks_of_columns.items()
    }


def _common_kind(earlier_kind: str | None, fields: Fields) -> str:
    """The kind of array that holds the earlier fields of a column and these ones."""
    if earlier_kind == "O":
        return "O"
    kind_of_fields = _kind(fields)
    # Whole numbers and floats together are floats; any other mixture is text.
    if earlier_kind in (None, kind_of_fields):
        return kind_of_fields
    return "f" if {earlier_kind, kind_of_fields} == {"i", "f"} else "O"


def _kind(fields: Fields) -> str:
    """The kind of array that holds the fields, of which some may be empty: b, i, f, or O for text."""
    filled = [field for field in fields if field]
    # Try the kinds from the narrowest to the widest.
    for array_kind, pattern in (("b", _BOOLEAN), ("i", _INTEGER), ("f", NUMBER_PATTERN)):
        if all(map(pattern.fullmatch, filled)):
            return array_kind
    return "O"


def _array(fields: Fields, array_kind: str, known_texts: dict[str, str]) -> np.ndarray:
    """The fields as an array of a kind; ``known_texts`` has the texts so far, each as one object."""
    match array_kind:
        case "O":
            return np.array([known_texts.setdefault(field, field) for field in fields], object)
        case "b":
            return np.array([field.lower() == "true" for field in fields])
        case "i":
            return np.array([int(field) for field in fields], np.int64)
        case _:
            return np.array([float(field) for field in fields], np.float64)


# ----------------------------------------------------------------------------------------------------
# Parquet.


PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
"""Name of a column in which pandas stores the numbers of a frame's rows: it is not one of the
user's."""


def _parquet(path: Path) -> tuple[list[str], Read, Read]:
    """The names of the columns of a Parquet file, and the functions that read it, or the start of its dates and texts."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: pip install 'coterie[tables]'") from error
    # Only the schema at the end of the file is read here.
    with _opened(path) as parquet_file:
        all_names = parquet.ParquetFile(parquet_file).schema_arrow.names
    column_names = [name for name in all_names if not PANDAS_INDEX.fullmatch(name)]
    return column_names, partial(_read_parquet, path), partial(_start_of_parquet, path)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The open file; what pyarrow raises becomes one sentence."""
    try:
        with readers.opened(path) as file:
            yield file
    except UserError:
        raise
    except Exception as error:
        # pyarrow raises errors of many kinds, and the first line has the reason.
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a readable Parquet file ({cause})") from error


def _read_parquet(path: Path, columns: list[str]) -> Columns:
    from pyarrow import parquet

    with _opened(path) as raw_file:
        schema = parquet.ParquetFile(raw_file).schema_arrow
        text_columns = [name for name in columns if _is_text(path, name, schema.field(name).type)]
        # Texts stay numbered: a long one that is repeated a million times would fill the memory.
        parquet_file = parquet.ParquetFile(raw_file, read_dictionary=text_columns)
        unpacked_bytes = sum(
            parquet_file.metadata.row_group(number).total_byte_size
            for number in range(parquet_file.metadata.num_row_groups)
        )
        array_bytes = 8 * parquet_file.metadata.num_rows * len(columns)
        packed_bytes = os.fstat(raw_file.fileno()).st_size
        check_unpacked(path, packed_bytes, max(unpacked_bytes, array_bytes))
        needed_columns = parquet_file.read(columns=columns, use_threads=False)
        return {name: _of_chunks(needed_columns.column(name)) for name in columns}


def _start_of_parquet(path: Path, columns: list[str]) -> Columns:
    """The columns of dates and of text in the first rows."""
    from pyarrow import parquet, types

    # Only these types can look like times.
    date_or_text = (types.is_date, types.is_timestamp, types.is_string, types.is_large_string)
    with _opened(path) as raw_file:
        parquet_file = parquet.ParquetFile(raw_file)
        shown_columns = []
        for column_name in columns:
            column_type = parquet_file.schema_arrow.field(column_name).type
            if any(is_type(column_type) for is_type in date_or_text):
                shown_columns.append(column_name)
        if not shown_columns:
            return {}
        batches = parquet_file.iter_batches(START_ROWS, columns=shown_columns, use_threads=False)
        first_batch = next(batches, None)
        if first_batch is None:
            return {}
        return {
            name: first_batch.column(name).to_numpy(zero_copy_only=False) for name in shown_columns
        }


def _is_text(path: Path, column_name: str, column_type: Any) -> bool:
    """Whether a column is of text; raises :class:`UserError` if it is not of text, numbers, booleans or dates."""
    from pyarrow import types

    # Texts that are stored once each, by number, count as texts.
    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    if types.is_string(column_type) or types.is_large_string(column_type):
        return True
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if not any(is_type(column_type) for is_type in (*numeric, types.is_date, types.is_timestamp)):
        raise UserError(
            f"{path}: the column {column_name} holds values of type {column_type}: {MAKE_NUMBERS}"
        )
    return False


def _of_chunks(column: Any) -> np.ndarray:
    """A column of Parquet ``(N,)``; missing values are NaN or None."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        return column.to_numpy()
    chunk_arrays = [np.empty(0, object)]
    for chunk in column.chunks:
        # Each chunk has its own list of texts.
        chunk_texts = np.array([*chunk.dictionary.to_pylist(), None], object)
        # A missing text has the number of the last entry, None.
        text_numbers = chunk.indices.fill_null(len(chunk_texts) - 1)
        chunk_arrays.append(chunk_texts[text_numbers.to_numpy(zero_copy_only=False)])
    return np.concatenate(chunk_arrays)


register("table", OwnSource("one per name", clients_of_table, TableSettings, is_file=True))
