"""Your own data: a table, a CSV or Parquet file with a column that names the client.

Parquet needs pyarrow (``pip install 'coterie[tables]'``).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from coterie.data import readers
from coterie.data.columns import MAKE_NUMBERS, Missing, check_columns, listed
from coterie.data.datasets.source import DatasetSettings, OwnSource, register
from coterie.data.frames import (
    NUMBER_PATTERN,
    TIME_HINT_END,
    check_order,
    clients_of,
    looks_like_time,
)
from coterie.data.own import OwnData
from coterie.data.tasks import TASKS
from coterie.data.times import check_gap, is_date_column
from coterie.files import check_unpacked, reason
from coterie.settings import SettingError, UserError, setting

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gap(self.gap)
        if self.gap is not None and self.order is None:
            raise SettingError(
                f"Scenario.gap {self.gap} needs Scenario.order, a column by which rows are early "
                "or late (table)"
            )

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target or ())


def clients_of_table(path: Path, options: TableSettings, takes_tokens: bool = False) -> OwnData:
    """Read the clients of a table.

    The last table stays in memory, and is read again only if the file has changed.

    Args:
        path: A .csv or .parquet file.
        options: The columns, see :func:`~coterie.data.frames.from_frame`.
        takes_tokens: Not used: the columns are features.

    Returns:
        The clients' data.

    Raises:
        UserError: The file or a column is not valid, see also
            :func:`~coterie.data.frames.from_frame`.
    """
    del takes_tokens
    if ending(path) not in TABLE_ENDINGS:
        raise UserError(
            f"{path} must be a table, with a name that ends in .csv, .csv.gz or .parquet"
        )
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    return _clients(path, (status.st_mtime_ns, status.st_size), options)


@lru_cache(maxsize=1)
def _clients(path: Path, file_stamp: tuple[int, int], options: TableSettings) -> OwnData:
    # The file's time and size are only a key of the cache.
    del file_stamp
    client = options.client
    targets = options.targets
    order = options.order
    if ending(path) == ".parquet":
        names, read_columns, read_start = _parquet(path)
    else:
        names, read_columns, read_start = _csv(path, text_columns=(client, options.subject))
    for setting_name, value in (("client", client), ("target", targets)):
        if not value:
            raise SettingError(
                f"Scenario.{setting_name} must name a column of {path}, which has {listed(names)}"
            )

    # The use of each column: those with a role, the order, and the features, by default all others.
    role_columns = [str(client), *targets]
    if options.subject is not None:
        role_columns.append(options.subject)
    order_columns = [] if order is None else [order]
    features = list(options.columns)
    if not features:
        used = (*role_columns, *order_columns)
        features = [name for name in names if name not in used]
    check_columns(names, role_columns, features, str(path))
    check_order(
        names, role_columns, order_columns, options.gap if order is None else None, str(path)
    )
    # The order may also be a feature, and is then read once.
    order_alone = [name for name in order_columns if name not in features]
    data = clients_of(
        read_columns([*role_columns, *features, *order_alone]),
        client,
        targets,
        features,
        options.task,
        str(path),
        options.subject,
        order,
        options.gap,
    )
    if order is not None or any(text.endswith(TIME_HINT_END) for text in data.hints):
        return data

    # The rows have no order: say it if a column that is not used has dates.
    unused = [name for name in names if name not in (*role_columns, *features)]
    first_values = read_start(unused) if unused else {}
    for name, values in first_values.items():
        if is_date_column(values):
            return replace(data, hints=[*data.hints, looks_like_time(name)])
    return replace(data, hints=[*data.hints])


TABLE_ENDINGS = (".csv", ".parquet")
"""Endings of the names of tables."""


def is_table_file(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return ending(path) in TABLE_ENDINGS


def ending(path: Path) -> str:
    """The ending of a table's name, without that of a gzipped CSV file."""
    name = path.name.lower()
    if name.endswith(".csv.gz"):
        name = name.removesuffix(".gz")
    return Path(name).suffix


Columns = dict[str, np.ndarray]
Read = Callable[[list[str]], Columns]
"""Function of the names of the needed columns that returns them, ``(N,)`` each."""


# ----------------------------------------------------------------------------------------------------
# CSV: read twice, by blocks of rows, first for the types of the columns. Only an array per column
# stays in memory.


_BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def _csv(path: Path, text_columns: Collection[str | None]) -> tuple[list[str], Read, Read]:
    """The names of a CSV file's columns, and the functions that read it, or their start."""
    content = readers.content(path)
    if not content.strip():
        raise UserError(f"{path} is empty")
    # The delimiter is the mark that the line of names has most often.
    first_line = content.partition(b"\n")[0]
    delimiter = max((",", ";", "\t"), key=lambda candidate: first_line.count(candidate.encode()))
    if first_line.count(delimiter.encode()) >= MAX_CSV_COLUMNS:
        raise UserError(f"{path} has more than {MAX_CSV_COLUMNS:,} columns")
    names = next(_rows(path, content, delimiter))
    if "" in names:
        raise UserError(
            f"{path}: column {names.index('') + 1} has no name; name it, or, if it has row numbers, "
            "write the file without them (index=False in pandas)"
        )
    blocks = partial(_blocks, path, content, delimiter)

    def read(columns: list[str]) -> Columns:
        return _read_csv(path, partial(blocks, columns), len(content), text_columns)

    def read_start(columns: list[str]) -> Columns:
        first_block = next(blocks(columns))
        return {name: np.array(fields, object) for name, fields in first_block.items()}

    return names, read, read_start


def _rows(path: Path, content: bytes, delimiter: str) -> Iterator[list[str]]:
    """The rows that are not blank, first the names of the columns."""
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    try:
        yield from (row for row in csv.reader(lines, delimiter=delimiter, strict=True) if row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error


Fields = tuple[str, ...]

Block = dict[str, Fields]
"""Column -> its fields in some rows."""


def _blocks(path: Path, content: bytes, delimiter: str, wanted: list[str]) -> Iterator[Block]:
    """The needed columns, some rows after the others."""
    rows = _rows(path, content, delimiter)
    names = next(rows)
    rows_before = 0
    while block_rows := list(islice(rows, CSV_BLOCK_ROWS)):
        for row_number, row in enumerate(block_rows, rows_before + 1):
            if len(row) != len(names):
                raise UserError(
                    f"{path}: row {row_number} has {len(row)} fields where {len(names)} were expected"
                )
        columns = dict(zip(names, zip(*block_rows, strict=True), strict=True))
        yield {name: columns[name] for name in wanted}
        rows_before += len(block_rows)


def _read_csv(
    path: Path,
    blocks: Callable[[], Iterator[Block]],
    size: int,
    text_columns: Collection[str | None],
) -> Columns:
    """The columns of a file of ``size`` bytes."""
    # First reading: the kind of array for each column, and its missing values.
    kinds: dict[str, str] = {}
    missing: dict[str, Missing] = {}
    for block in blocks():
        for name, fields in block.items():
            is_missing = np.array([not field for field in fields])
            missing[name] = missing.get(name, Missing()).plus(is_missing)
            if name in text_columns:
                kinds[name] = "O"
            else:
                kinds[name] = _common_kind(kinds.get(name), fields)
    if not missing:
        raise UserError(f"{path} has no rows below the names of its columns")
    for name, column_missing in missing.items():
        column_missing.check(f"{path}: the column {name}")
    unpacked_bytes = sum(8 * column_missing.rows for column_missing in missing.values())
    check_unpacked(path, size, unpacked_bytes)

    # Second reading: the arrays. Equal texts are one object.
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
    known_texts: dict[str, str] = {}
    for block in blocks():
        for name, fields in block.items():
            arrays[name].append(_array(fields, kinds[name], known_texts))
    return {name: np.concatenate(blocks_of_column) for name, blocks_of_column in arrays.items()}


def _common_kind(earlier_kind: str | None, fields: Fields) -> str:
    """The kind of array that holds the earlier fields of a column and these ones."""
    if earlier_kind == "O":
        return "O"
    kind = _kind(fields)
    if earlier_kind in (None, kind):
        return kind
    return "f" if {earlier_kind, kind} == {"i", "f"} else "O"


def _kind(fields: Fields) -> str:
    """The kind of array that holds the fields, of which some may be empty: b, i, f, or O for text."""
    filled = [field for field in fields if field]
    for kind, pattern in (("b", _BOOLEAN), ("i", _INTEGER), ("f", NUMBER_PATTERN)):
        if all(map(pattern.fullmatch, filled)):
            return kind
    return "O"


def _array(fields: Fields, kind: str, known_texts: dict[str, str]) -> np.ndarray:
    """The fields as an array of a kind; ``known_texts`` has the texts so far, each as one object."""
    match kind:
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
    with _opened(path) as file:
        all_names = parquet.ParquetFile(file).schema_arrow.names
    names = [name for name in all_names if not PANDAS_INDEX.fullmatch(name)]
    return names, partial(_read_parquet, path), partial(_start_of_parquet, path)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The open file; what pyarrow raises becomes one sentence."""
    try:
        with readers.opened(path) as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds
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
        table = parquet_file.read(columns=columns, use_threads=False)
        return {name: _of_chunks(table.column(name)) for name in columns}


def _start_of_parquet(path: Path, columns: list[str]) -> Columns:
    """The columns of dates and of text in the first rows."""
    from pyarrow import parquet, types

    date_or_text = (types.is_date, types.is_timestamp, types.is_string, types.is_large_string)
    with _opened(path) as raw_file:
        parquet_file = parquet.ParquetFile(raw_file)
        shown_columns = []
        for name in columns:
            column_type = parquet_file.schema_arrow.field(name).type
            if any(is_type(column_type) for is_type in date_or_text):
                shown_columns.append(name)
        if not shown_columns:
            return {}
        batches = parquet_file.iter_batches(START_ROWS, columns=shown_columns, use_threads=False)
        batch = next(batches, None)
        if batch is None:
            return {}
        return {name: batch.column(name).to_numpy(zero_copy_only=False) for name in shown_columns}


def _is_text(path: Path, name: str, column_type: Any) -> bool:
    """Whether a column is of text; raises :class:`UserError` if it is not of text, numbers, booleans or dates."""
    from pyarrow import types

    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    if types.is_string(column_type) or types.is_large_string(column_type):
        return True
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if not any(is_type(column_type) for is_type in (*numeric, types.is_date, types.is_timestamp)):
        raise UserError(
            f"{path}: the column {name} holds values of type {column_type}: {MAKE_NUMBERS}"
        )
    return False


def _of_chunks(column: Any) -> np.ndarray:
    """A column of Parquet ``(N,)``; missing values are NaN or None."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        return column.to_numpy()
    arrays = [np.empty(0, object)]
    for chunk in column.chunks:
        texts = np.array([*chunk.dictionary.to_pylist(), None], object)
        # A missing text has the number of the last entry, None.
        numbers = chunk.indices.fill_null(len(texts) - 1)
        arrays.append(texts[numbers.to_numpy(zero_copy_only=False)])
    return np.concatenate(arrays)


register("table", OwnSource("one per name", clients_of_table, TableSettings, is_file=True))
