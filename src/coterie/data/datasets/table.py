"""Your own data: a table, a CSV or Parquet file with a column that names the client.

Parquet needs pyarrow (``pip install 'coterie[tables]'``).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
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

MOST_COLUMNS = 100_000
"""The most columns of a CSV file."""

FIRST = 1000
"""Rows of a Parquet file in which dates are looked for."""

AT_ONCE = 10_000
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
    if ending(path) not in KINDS:
        raise UserError(
            f"{path} must be a table, with a name that ends in .csv, .csv.gz or .parquet"
        )
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    return _clients(path, (status.st_mtime_ns, status.st_size), options)


@lru_cache(maxsize=1)
def _clients(path: Path, stamp: tuple[int, int], options: TableSettings) -> OwnData:
    del stamp  # only a key of the cache: the file's time and size
    client, targets = options.client, options.targets
    subject, order = options.subject, options.order
    if ending(path) == ".parquet":
        names, read, first = _parquet(path)
    else:
        names, read, first = _csv(path, text_columns=(client, subject))
    for setting_name, value in (("client", client), ("target", targets)):
        if not value:
            raise SettingError(
                f"Scenario.{setting_name} must name a column of {path}, which has {listed(names)}"
            )
    taken = [str(client), *targets]
    if subject is not None:
        taken.append(subject)
    ordering = [] if order is None else [order]
    features = list(options.columns) or [name for name in names if name not in (*taken, *ordering)]
    check_columns(names, taken, features, str(path))
    check_order(names, taken, ordering, options.gap if order is None else None, str(path))
    times = [name for name in ordering if name not in features]
    data = clients_of(
        read([*taken, *features, *times]),
        client,
        targets,
        features,
        options.task,
        str(path),
        subject,
        order,
        options.gap,
    )
    if order is not None or any(text.endswith(TIME_HINT_END) for text in data.hints):
        return data
    # Rows without an order: say it if a column that is not used has dates.
    unused = [name for name in names if name not in (*taken, *features)]
    values_of = first(unused) if unused else {}
    dates = [name for name, values in values_of.items() if is_date_column(values)]
    return replace(data, hints=[*data.hints, *(looks_like_time(name) for name in dates[:1])])


KINDS = (".csv", ".parquet")
"""Endings of the names of tables."""


def is_table_file(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return ending(path) in KINDS


def ending(path: Path) -> str:
    """The ending of a table's name, without that of a gzipped CSV file."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix if name.endswith(".csv.gz") else Path(name).suffix


Columns = dict[str, np.ndarray]
Read = Callable[[list[str]], Columns]
"""Function of the names of the needed columns that returns them, ``(N,)`` each."""


# ----------------------------------------------------------------------------------------------------
# CSV: read twice, by blocks of rows, first for the types of the columns. Only an array per column
#     stays in memory.


_BOOLEAN = re.compile(r"true|false", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def _csv(path: Path, text_columns: Collection[str | None]) -> tuple[list[str], Read, Read]:
    """The names of a CSV file's columns, and the functions that read it, or their start."""
    raw = readers.content(path)
    if not raw.strip():
        raise UserError(f"{path} is empty")
    head = raw.partition(b"\n")[0]
    mark = max((",", ";", "\t"), key=lambda one: head.count(one.encode()))
    if head.count(mark.encode()) >= MOST_COLUMNS:
        raise UserError(f"{path} has more than {MOST_COLUMNS:,} columns")
    names = next(_rows(path, raw, mark))
    if "" in names:
        raise UserError(
            f"{path}: column {names.index('') + 1} has no name; name it, or, if it has row numbers, write the file without "
            "them (index=False in pandas)"
        )
    blocks = partial(_blocks, path, raw, mark)

    def read(needed: list[str]) -> Columns:
        return _read_csv(path, partial(blocks, needed), len(raw), text_columns)

    def first(needed: list[str]) -> Columns:
        return {name: np.array(fields, object) for name, fields in next(blocks(needed)).items()}

    return names, read, first


def _rows(path: Path, raw: bytes, mark: str) -> Iterator[list[str]]:
    """The rows that are not blank, first the names of the columns."""
    lines = io.TextIOWrapper(io.BytesIO(raw), "utf-8-sig", newline="")
    try:
        yield from (row for row in csv.reader(lines, delimiter=mark, strict=True) if row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a csv file in UTF-8 ({error})") from error


Block = dict[str, tuple[str, ...]]
"""Column -> its fields in some rows."""


def _blocks(path: Path, raw: bytes, mark: str, needed: list[str]) -> Iterator[Block]:
    """The needed columns, some rows after the others."""
    rows = _rows(path, raw, mark)
    names, before = next(rows), 0
    while block := list(islice(rows, AT_ONCE)):
        for number, row in enumerate(block, before + 1):
            if len(row) != len(names):
                raise UserError(
                    f"{path}: row {number} has {len(row)} fields where {len(names)} were expected"
                )
        columns = dict(zip(names, zip(*block, strict=True), strict=True))
        yield {name: columns[name] for name in needed}
        before += len(block)


def _read_csv(
    path: Path, blocks: Callable[[], Iterator[Block]], size: int, text: Collection[str | None]
) -> Columns:
    """The columns of a file of ``size`` bytes."""
    types: dict[str, str] = {}
    missing: dict[str, Missing] = {}
    for block in blocks():
        for name, fields in block.items():
            missing[name] = missing.get(name, Missing()).plus(
                np.array([not field for field in fields])
            )
            found = "O" if name in text or types.get(name) == "O" else _type(fields)
            types[name] = (
                found
                if types.get(name, found) == found
                else "f"
                if {types[name], found} == {"i", "f"}
                else "O"
            )
    if not missing:
        raise UserError(f"{path} has no rows below the names of its columns")
    for name, some in missing.items():
        some.check(f"{path}: the column {name}")
    check_unpacked(path, size, sum(8 * some.rows for some in missing.values()))
    parts: dict[str, list[np.ndarray]] = {name: [] for name in types}
    known: dict[str, str] = {}  # equal texts are one object
    for block in blocks():
        for name, fields in block.items():
            parts[name].append(_array(fields, types[name], known))
    return {name: np.concatenate(some) for name, some in parts.items()}


def _type(fields: Sequence[str]) -> str:
    """The kind of array that holds the fields, of which some may be empty: b, i, f, or O for text."""
    fields = [field for field in fields if field]
    for kind, pattern in (("b", _BOOLEAN), ("i", _INTEGER), ("f", NUMBER_PATTERN)):
        if all(map(pattern.fullmatch, fields)):
            return kind
    return "O"


def _array(fields: Sequence[str], kind: str, known: dict[str, str]) -> np.ndarray:
    if kind == "O":
        return np.array([known.setdefault(field, field) for field in fields], object)
    if kind == "b":
        return np.array([field.lower() == "true" for field in fields])
    return np.array(
        list(map(int if kind == "i" else float, fields)), np.int64 if kind == "i" else np.float64
    )


# ----------------------------------------------------------------------------------------------------
# Parquet.


INDEX = re.compile(r"__index_level_[0-9]+__")
"""Name of a column in which pandas stores the numbers of a frame's rows: it is not one of the
user's."""


def _parquet(path: Path) -> tuple[list[str], Read, Read]:
    """The names of the columns of a Parquet file, and the functions that read it, or the start of its dates and texts."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow: pip install 'coterie[tables]'") from error
    with _opened(path) as file:
        names = parquet.ParquetFile(file).schema_arrow.names
    readings = partial(_read_parquet, path), partial(_first_of_parquet, path)
    return [name for name in names if not INDEX.fullmatch(name)], *readings


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The open file; what pyarrow raises becomes one sentence."""
    try:
        with readers.opened(path) as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # pyarrow raises errors of many kinds
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a readable Parquet file ({why})") from error


def _read_parquet(path: Path, needed: list[str]) -> Columns:
    from pyarrow import parquet

    with _opened(path) as raw:
        schema = parquet.ParquetFile(raw).schema_arrow
        texts = [name for name in needed if _is_text(path, name, schema.field(name).type)]
        # Texts stay numbered: a long one that is repeated a million times would fill the memory.
        file = parquet.ParquetFile(raw, read_dictionary=texts)
        groups = sum(
            file.metadata.row_group(number).total_byte_size
            for number in range(file.metadata.num_row_groups)
        )
        check_unpacked(
            path,
            os.fstat(raw.fileno()).st_size,
            max(groups, 8 * file.metadata.num_rows * len(needed)),
        )
        table = file.read(columns=needed, use_threads=False)
        return {name: _of_chunks(table.column(name)) for name in needed}


def _first_of_parquet(path: Path, needed: list[str]) -> Columns:
    """The columns of dates and of text in the first rows."""
    from pyarrow import parquet, types

    fits = (types.is_date, types.is_timestamp, types.is_string, types.is_large_string)
    with _opened(path) as raw:
        file = parquet.ParquetFile(raw)
        asked = [
            name
            for name in needed
            if any(test(file.schema_arrow.field(name).type) for test in fits)
        ]
        batch = (
            next(file.iter_batches(FIRST, columns=asked, use_threads=False), None)
            if asked
            else None
        )
        return (
            {}
            if batch is None
            else {name: batch.column(name).to_numpy(zero_copy_only=False) for name in asked}
        )


def _is_text(path: Path, name: str, kind: Any) -> bool:
    """Whether a column is of text; raises :class:`UserError` if it is not of text, numbers, booleans or dates."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if not any(fits(kind) for fits in (*numeric, types.is_date, types.is_timestamp)):
        raise UserError(f"{path}: the column {name} holds values of type {kind}: {MAKE_NUMBERS}")
    return False


def _of_chunks(column: Any) -> np.ndarray:
    """A column of Parquet ``(N,)``; missing values are NaN or None."""
    from pyarrow import types

    if not types.is_dictionary(column.type):
        return column.to_numpy()
    parts = [np.empty(0, object)]
    for chunk in column.chunks:
        names = np.array([*chunk.dictionary.to_pylist(), None], object)
        parts.append(names[chunk.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


register("table", OwnSource("one per name", clients_of_table, TableSettings, is_file=True))
