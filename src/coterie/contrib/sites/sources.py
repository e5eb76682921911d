"""Where a site's rows are: a CSV or Parquet file, or the result of an SQL query.

Databases need SQLAlchemy (``pip install 'coterie[sql]'``) and the driver of the database. Nothing is
ever written: no transaction is committed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coterie.contrib.sites.cells import Table, of_file, of_frame
from coterie.files import expanded, read_regular, reason
from coterie.settings import SettingError, UserError, brief

VARIABLE = "env:"
"""What a source begins with whose path or address is in a variable of the environment."""

MAX_QUERY_BYTES = 1 << 20
"""Most bytes of a file with a query."""


def read_source(source: str, query: str = "") -> tuple[Table, str]:
    """Read a site's rows.

    Args:
        source: The path of a table (.csv, .csv.gz or .parquet), an address of a database as SQLAlchemy
            takes it, such as ``sqlite:////srv/clinic.db``, or ``env:NAME`` for either in the variable
            NAME of the environment, which keeps passwords out of command lines.
        query: For a database: an SQL query, or the path of a file with it, which ends in ``.sql``.

    Returns:
        Column -> its cells, and what messages call the table; no message has the address.

    Raises:
        UserError: There is no such source, or it cannot be read.
    """
    if source.startswith(VARIABLE):
        variable = source.removeprefix(VARIABLE)
        source = os.environ.get(variable, "")
        if not source:
            raise UserError(
                f"the data are env:{variable}, and the environment has no variable {variable}"
            )
    if "://" in source:
        return _of_database(source, _query_text(query))
    if query:
        raise SettingError("a query needs a database as data, such as sqlite:////srv/clinic.db")
    path = expanded(source)
    return of_file(path), path.name


def _query_text(query: str) -> str:
    if not query.strip():
        raise SettingError(
            "data in a database need a query, such as SELECT age, finding FROM visits"
        )
    if not query.strip().endswith(".sql"):
        return query
    path = expanded(query.strip())
    try:
        return read_regular(path, limit=MAX_QUERY_BYTES).decode()
    except OSError as error:
        raise UserError(f"the query {path} cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the query {path} is no text in UTF-8") from error


def _of_database(address: str, query: str) -> tuple[Table, str]:
    try:
        import sqlalchemy
    except ImportError:
        raise UserError(
            "a database needs SQLAlchemy: run pip install 'coterie[sql]', and install the database's driver"
        ) from None
    try:
        # Parameters of statements, and so values of patients, stay out of messages.
        engine = sqlalchemy.create_engine(address, hide_parameters=True)
        database_file = engine.url.database
        # SQLite would make a new, empty file.
        if engine.dialect.name == "sqlite" and database_file and not Path(database_file).is_file():
            raise UserError(f"there is no database {database_file}")
        with engine.connect() as connection:
            result = connection.execute(sqlalchemy.text(query))
            names = list(map(str, tuple(result.keys())))
            rows: list[Any] = list(map(tuple, result.fetchall()))
        engine.dispose()
    except ImportError as error:
        raise UserError(f"the database's driver is not installed: {brief(str(error))}") from None
    except sqlalchemy.exc.ResourceClosedError:
        raise UserError("the query returns no rows: it must be a SELECT") from None
    except sqlalchemy.exc.SQLAlchemyError as error:
        # The first line of the driver's own words: SQLAlchemy adds the statement and links.
        words = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise UserError(f"the query failed: {words:.300}") from None
    if len(set(names)) < len(names):
        raise UserError(f"the query returns two columns with one name: {', '.join(names)}")
    if not rows:
        raise UserError("the query returns no rows")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    for name, values in columns.items():
        if any(isinstance(value, bytes | memoryview) for value in values):
            raise UserError(f"the query's column {name} has bytes: leave it out")
    return of_frame(columns, "the query"), "the query"
