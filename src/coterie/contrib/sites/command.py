"""The command ``coterie schema``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.arguments import Command, Parser, UsageError, whole
from coterie.printable import say
from coterie.settings import UserError

if TYPE_CHECKING:
    from coterie.contrib.sites.cells import Table

SCHEMA_DESCRIPTION = """\
Propose what each column of a table is: a number, a boolean, a category, a date, a text, or nothing to learn from. What is
doubtful is shown first. Edit the file, then run with it: text, dates and missing values become features, by constants
of the training rows of all clients. Several files are several sites, and must have the same columns.

  coterie schema records.csv --client hospital --target finding -o schema.toml
  coterie schema records.csv --check schema.toml
  coterie run --scenario table/clients --data records.csv --set schema=schema.toml"""


def options(parser: Parser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="tables: .csv, .csv.gz or .parquet, or a folder of them",
    )
    parser.add_argument("-o", "--out", metavar="FILE.toml", help="the new file of the schema")
    parser.add_argument(
        "--check", metavar="FILE.toml", help="check tables against this schema; propose nothing"
    )
    parser.add_argument("--client", metavar="C", help="the column that names the client of a row")
    parser.add_argument(
        "--target", metavar="T", action="append", help="a column to predict; may be repeated"
    )
    parser.add_argument("--subject", metavar="S", help="the column of the subject of a row")
    parser.add_argument("--order", metavar="O", help="the column of the time of a row")
    parser.add_argument(
        "--least",
        metavar="N",
        type=whole,
        default=10,
        help="least number of training rows of a level; rarer ones become one feature (10)",
    )
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print a proposal, and write it; returns the exit status."""
    # Imported here, so that help appears immediately.
    from coterie.contrib.sites.cells import of_file, of_files
    from coterie.contrib.sites.inferring import infer
    from coterie.contrib.sites.screen import as_json, screen
    from coterie.contrib.sites.worlds import SITE
    from coterie.data.columns import check_columns
    from coterie.data.datasets.table import is_table_file
    from coterie.records.store import write_whole
    from coterie.records.text_files import to_json
    from coterie.report import terminal

    # Mistakes that are found without reading the tables.
    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.exists():
        raise UsageError(
            f"{out} exists, and may have been edited: choose another name, or remove it"
        )
    if arguments.check and out is not None:
        raise UsageError("--check proposes nothing to write: leave out -o")
    if arguments.least < 0:
        raise UsageError(f"--least: must be >= 0, got {arguments.least}")

    # Several files are several sites, unless a column of theirs names the clients.
    paths = []
    for path in map(Path, arguments.files):
        paths += sorted(filter(is_table_file, path.iterdir())) if path.is_dir() else [path]
    if not paths:
        raise UserError(f"{arguments.files[0]} holds no table: no .csv, .csv.gz or .parquet file")
    client = arguments.client or ""
    if len(paths) > 1:
        columns_of_first = of_file(paths[0])
        names_site = not client or client not in columns_of_first
        client = client or SITE
        table: Table = of_files(paths, site_column=client if names_site else "")
    else:
        table = of_file(paths[0])
    context = ", ".join(arguments.files[:3])
    if arguments.check:
        return _check(table, arguments.check, context)

    roles = [name for name in (client, *(arguments.target or ()), arguments.subject) if name]
    feature_names = [name for name in table if name not in roles]
    check_columns(list(table), roles, feature_names, context)
    if arguments.order:
        other_names = [name for name in feature_names if name != arguments.order]
        check_columns(list(table), [arguments.order], other_names[:1], context)
    proposal = infer(
        table,
        client=client,
        target=arguments.target or (),
        subject=arguments.subject or "",
        order=arguments.order or "",
        min_level_rows=arguments.least,
    )
    if out is not None:
        write_whole(out, proposal.schema.toml(proposal.doubts).encode())
    if arguments.json:
        say(to_json(as_json(proposal)))
        return 0
    terminal.console(sys.stdout).print(screen(proposal))
    if out is not None:
        say(f"written to {out}")
    return 0


def _check(table: Table, schema_file: str, context: str) -> int:
    """Check a table against a schema, and say how many features it makes."""
    from coterie.contrib.sites.table_schema import TableSchema
    from coterie.notebook.tables import count

    schema = TableSchema.from_file(schema_file)
    schema.check(table, context)
    rows = len(next(iter(table.values())))
    say(
        f"{context} fits {schema_file}: {count(rows, 'row')}, at most {count(len(schema.features), 'feature')}"
    )
    return 0


SCHEMA_COMMAND = Command(
    "propose what the columns of a table are", SCHEMA_DESCRIPTION, options, run
)
