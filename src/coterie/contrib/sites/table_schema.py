"""The file of a table's columns, ``schema.toml``: read, checked, written, and applied to rows.

The same file is a schema with rules (``fill = "median"``) before a run, and with constants (``fill =
61.0``) once they are agreed. It is not the :class:`~coterie.data.schema.Schema` of a federation's node,
which says what the numbers mean that this one makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.contrib.sites.cells import Table
from coterie.contrib.sites.columns import (
    COLUMN_CLASSES,
    Column,
    IgnoredColumn,
    MeasuredColumn,
    NumberColumn,
)
from coterie.data.columns import Problems, listed
from coterie.data.examples import check_distinct
from coterie.files import read_toml_file
from coterie.printable import printable
from coterie.settings import SettingError, UserError, build, known_list, nearest, plain

MISSING_MARKS = ("", "na", "n/a", "#n/a", "nan", "nat", "null", "none", "-", "?", ".")
"""Texts that stand for a missing value in any column, in lower case."""

MAX_TABLE_SCHEMA_BYTES = 1 << 24
"""Most bytes of a table schema."""

MAX_LIST_LENGTH = 100
"""Most characters of a list that the file has in one line."""

ROLES = ("client", "target", "subject", "order")
"""Columns that a run needs besides the features; its own settings of these names come first."""

NO_WEIGHTS = "none"
BALANCED = "balanced"
CLASS_WEIGHTS = (NO_WEIGHTS, BALANCED)
"""How the classes of a target count in the loss."""

OPTIONAL_SETTINGS = ("missing_marks", "plausible", "least_clients", "find")
"""Settings of a column that the file leaves out where they have their defaults."""

HEADER = """\
# What each column of the table is, for coterie run --set schema=schema.toml. Edit it.
# kind: number, boolean, category, date, text or ignore.
# missing: indicator (filled, and a feature says so), fill, or refuse.
"""


@dataclass(frozen=True, kw_only=True)
class TableSchema:
    """What the columns of a table are.

    Attributes:
        columns: Name -> column. Columns of the table that are not here are not used.
        missing_marks: Texts that stand for a missing value in any column, in lower case.
        client: The column that names the client of each row; empty if the run says it.
        target: The columns to predict; empty if the run says it.
        subject: The column of the subject; empty for none.
        order: The column of the time; empty for none.
        class_weights: ``none``, or ``balanced``: the loss of a row counts by the inverse share of its
            class among the training rows of all clients together.
    """

    columns: Mapping[str, Column]
    missing_marks: tuple[str, ...] = MISSING_MARKS
    client: str = ""
    target: tuple[str, ...] = ()
    subject: str = ""
    order: str = ""
    class_weights: str = NO_WEIGHTS

    def feature_columns(self, without: Iterable[str] = ()) -> dict[str, Column]:
        """The columns that become features: not ignored, and no client, target, subject or order."""
        roles = {self.client, *self.target, self.subject, self.order, *without}
        used_columns: dict[str, Column] = {}
        for name, column in self.columns.items():
            if name not in roles and not isinstance(column, IgnoredColumn):
                used_columns[name] = column
        return used_columns

    @property
    def marks(self) -> frozenset[str]:
        """The texts that stand for a missing value, in lower case."""
        return frozenset(mark.casefold() for mark in self.missing_marks)

    @property
    def rules(self) -> dict[str, str]:
        """Column -> the rule by which its constant is still to be agreed; empty if all are."""
        return {name: column.rule for name, column in self.feature_columns().items() if column.rule}

    def only(self, names: Iterable[str]) -> TableSchema:
        """This schema with these columns alone, and no roles."""
        kept = set(names)
        return TableSchema(
            columns={name: column for name, column in self.columns.items() if name in kept},
            missing_marks=self.missing_marks,
        )

    @property
    def features(self) -> list[str]:
        """The names of all features, in order.

        Raises:
            SettingError: Two features have one name.
        """
        names: list[str] = []
        for name, column in self.feature_columns().items():
            names += column.features(name)
        for name in names if len(set(names)) < len(names) else ():
            if names.count(name) > 1:
                raise SettingError(
                    f"two features of the table schema are called {name!r}: rename a column"
                )
        return names

    def encoded(self, table: Table, context: str) -> np.ndarray:
        """Return the features of the rows of a table.

        Args:
            table: The columns, in any order; further ones are not used.
            context: The table, for messages.

        Returns:
            The features ``(N, d)`` float32, in the order of :attr:`features`.

        Raises:
            UserError: A column is missing, or has a text that is not what the schema says; or a
                constant is not agreed yet.
        """
        if self.rules:
            name, rule = next(iter(self.rules.items()))
            raise UserError(
                f"the constants of the table schema are not agreed yet: the column {name} has the rule {rule}"
            )
        columns = self.feature_columns()
        check_has_columns(table, columns, context)
        blocks = [
            column.encoded(table[name], name, self.marks, context)
            for name, column in columns.items()
        ]
        return np.column_stack(blocks).astype(np.float32)

    def check(self, table: Table, context: str) -> None:
        """Check that the columns of a table are what the schema says, in all rows.

        Args:
            table: The columns.
            context: The table, for messages.

        Raises:
            UserError: A column is missing, has a text that it must not have, or has numbers of which
                float32 makes one, such as long ids. All columns at fault are named.
        """
        columns = self.feature_columns()
        check_has_columns(table, columns, context)
        problems = Problems(context)
        for name, column in columns.items():
            with problems.noted():
                is_missing_text = column.is_missing(table[name], self.marks)
                column.check_missing(table[name], is_missing_text, name, context)
                if isinstance(column, MeasuredColumn):
                    values = column.values(table[name], is_missing_text, name, context)
                    if isinstance(column, NumberColumn):
                        column.check_plausible(table[name], values, name, context)
                        present = values[~np.isnan(values)]
                        check_distinct(present[:, None], f"{context}: the column", [name])
        problems.check()

    def document(self) -> dict[str, Any]:
        """The schema as a TOML document."""
        document: dict[str, Any] = {"missing_marks": list(self.missing_marks)}
        for role in ROLES:
            value = getattr(self, role)
            if value:
                document[role] = list(value) if isinstance(value, tuple) else value
        if self.class_weights != NO_WEIGHTS:
            document["class_weights"] = self.class_weights
        document["columns"] = {
            name: _column_document(column) for name, column in self.columns.items()
        }
        return document

    def toml(self, doubts: Mapping[str, Sequence[str]] | None = None) -> str:
        """The text of the file.

        Args:
            doubts: Column -> sentences that become comments above it.
        """
        document = self.document()
        column_documents = document.pop("columns")
        parts = [HEADER, toml_text(document)]
        for name, column_document in column_documents.items():
            comments = [f"# {printable(doubt)}\n" for doubt in (doubts or {}).get(name, ())]
            table = toml_text({"columns": {name: column_document}})
            parts.append("\n" + "".join(comments) + table)
        # Without columns, the file still has the table of columns.
        if not column_documents:
            parts.append("\n[columns]\n")
        return "".join(parts)

    @classmethod
    def of(cls, document: Any, context: str) -> TableSchema:
        """Read a schema from a TOML or JSON document.

        Args:
            document: The document, possibly edited by hand, or from an unknown sender.
            context: Where it comes from, for messages.

        Raises:
            SettingError: It is no schema: the message says what is wrong.
        """
        try:
            return cls._of(document)
        except SettingError as error:
            raise SettingError(f"{context}: {error}") from None

    @classmethod
    def _of(cls, document: Any) -> TableSchema:
        if not isinstance(document, Mapping):
            raise SettingError(f"a table schema must be a mapping, got {document!r:.60}")
        known_entries = ("missing_marks", *ROLES, "class_weights", "columns")
        for entry in document:
            if entry not in known_entries:
                raise SettingError(
                    f"a table schema has no entry {entry!r}{nearest(entry, known_entries)}"
                    f"{known_list(known_entries)}"
                )
        column_documents = document.get("columns")
        if not isinstance(column_documents, Mapping):
            raise SettingError("a table schema must have a table [columns.NAME] for each column")
        columns = {}
        for name, column_document in column_documents.items():
            columns[str(name)] = _column_of(str(name), column_document)
        target = document.get("target", ())
        class_weights = document.get("class_weights", NO_WEIGHTS)
        if class_weights not in CLASS_WEIGHTS:
            suggestion = (
                nearest(class_weights, CLASS_WEIGHTS) if isinstance(class_weights, str) else ""
            )
            raise SettingError(
                f"class_weights must be {' or '.join(CLASS_WEIGHTS)}, got {class_weights!r:.60}{suggestion}"
            )
        roles = {role: _text(document, role) for role in ROLES if role != "target"}
        return cls(
            columns=columns,
            missing_marks=_texts("missing_marks", document.get("missing_marks", MISSING_MARKS)),
            target=(target,) if isinstance(target, str) and target else _texts("target", target),
            class_weights=class_weights,
            **roles,
        )

    @classmethod
    def from_file(cls, path: Path | str) -> TableSchema:
        """Read a schema from a TOML file.

        Raises:
            SettingError: The file cannot be read, or is no schema.
        """
        document = read_toml_file(path, "the table schema", MAX_TABLE_SCHEMA_BYTES)
        return cls.of(document, f"the table schema {path}")


def check_has_columns(table: Mapping[str, Any], names: Iterable[str], context: str) -> None:
    """Raise :class:`~coterie.settings.UserError` if a table lacks some columns."""
    lacking = [name for name in names if name not in table]
    if lacking:
        noun = "column" if len(lacking) == 1 else "columns"
        suggestion = nearest(lacking[0], table) if len(lacking) == 1 else ""
        raise UserError(
            f"{context} lacks the {noun} {listed(lacking)} of the table schema{suggestion} "
            f"(columns: {listed(list(table))})"
        )


_LONG_LIST = re.compile(r"= \[\n((?:    .*\n)+)\]")
"""A list as tomli_w writes it, an entry a line. In texts, line breaks are escaped."""


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a document as TOML, with each list that is short in one line."""
    import tomli_w

    def in_one_line(match: re.Match[str]) -> str:
        entries = [line.strip().removesuffix(",") for line in match[1].split("\n")[:-1]]
        line = f"= [{', '.join(entries)}]"
        return line if len(line) <= MAX_LIST_LENGTH else match[0]

    return _LONG_LIST.sub(in_one_line, tomli_w.dumps(document))


def _column_document(column: Column) -> dict[str, Any]:
    """A column as a TOML table, without settings that say nothing there."""
    settings = plain(column)
    defaults = plain(type(column)())
    for name in OPTIONAL_SETTINGS:
        if name in settings and settings[name] == defaults[name]:
            del settings[name]
    if isinstance(column, IgnoredColumn):
        del settings["missing"]
    lists = {
        key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()
    }
    return {"kind": column.kind, **lists}


def _column_of(name: str, column_document: Any) -> Column:
    if not isinstance(column_document, Mapping):
        raise SettingError(f"[columns.{name}] must be a table, got {column_document!r:.60}")
    settings = dict(column_document)
    kind = settings.pop("kind", None)
    if kind not in COLUMN_CLASSES:
        suggestion = nearest(kind, COLUMN_CLASSES) if isinstance(kind, str) else ""
        raise SettingError(
            f"[columns.{name}]: kind must be one of {', '.join(COLUMN_CLASSES)}, got {kind!r:.60}{suggestion}"
        )
    try:
        column: Column = build(COLUMN_CLASSES[kind], settings, owner=f"a column of kind {kind}")  # type: ignore[arg-type]
    except SettingError as error:
        raise SettingError(f"[columns.{name}]: {error}") from None
    return column


def _text(document: Mapping[str, Any], entry: str) -> str:
    value = document.get(entry, "")
    if not isinstance(value, str):
        raise SettingError(f"{entry} must be the name of a column, got {value!r:.60}")
    return value


def _texts(entry: str, values: Any) -> tuple[str, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not all(isinstance(value, str) for value in values):
        raise SettingError(f"{entry} must be a list of texts, got {values!r:.60}")
    return tuple(values)
