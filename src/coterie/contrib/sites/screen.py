"""A proposed schema in a terminal: the doubts first, then a row for each column."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.contrib.sites.columns import (
    BooleanColumn,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from coterie.contrib.sites.inferring import ColumnFinding, Proposal
from coterie.notebook.tables import count
from coterie.printable import printable

SHOWN_VALUES = 3
"""Most values of a column that are shown."""


def screen(proposal: Proposal) -> Group:
    """Return a proposal as a rich object."""
    parts: list[RenderableType] = []
    doubts = proposal.doubts
    if doubts:
        parts.append(Text(f"Look first at {count(len(doubts), 'column')}:", style="bold"))
    for name, sentences in doubts.items():
        for sentence in sentences:
            parts.append(Text(f"  {printable(name)} {printable(sentence)}"))
    if doubts:
        parts.append("")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("column", "kind", "missing", "values", "features"):
        table.add_column(title, justify="right" if title in ("missing", "features") else "left")
    for finding in proposal.findings:
        features = 0
        if finding.column is not None and not finding.role:
            features = len(finding.column.features(finding.name))
        table.add_row(
            Text(printable(finding.name)),
            finding.role or (finding.column.kind if finding.column else ""),
            str(finding.missing_rows or ""),
            Text(printable(_values(finding))),
            str(features or ""),
        )
    parts.append(table)
    all_features = proposal.schema.features
    parts.append(f"\n{count(proposal.rows, 'row')}, at most {count(len(all_features), 'feature')}")
    return Group(*parts)


def _values(finding: ColumnFinding) -> str:
    """The values of a column, in a few words."""
    examples = [
        example if len(example) <= 24 else f"{example[:21]}..."
        for example in finding.examples[:SHOWN_VALUES]
    ]
    more = ", ..." if finding.distinct > len(examples) else ""
    return f"{', '.join(examples)}{more}{_reading(finding.column)}"


def _reading(column: Column | None) -> str:
    """How the values are read, where that is not plain."""
    match column:
        case NumberColumn(decimal=","):
            return "  (decimal comma)"
        case BooleanColumn() if column.false:
            return f"  (true: {', '.join(column.true)})"
        case DateColumn():
            return f"  ({column.format}; {', '.join(column.parts)})"
        case CategoryColumn() if column.levels:
            return f"  ({count(len(column.levels), 'level')})"
        case TextColumn():
            return f"  (bag of {column.words} hashed words)"
        case _:
            return ""


def as_json(proposal: Proposal) -> list[dict[str, Any]]:
    """Return a proposal for ``--json``: an entry for each column."""
    entries = []
    for finding in proposal.findings:
        entries.append(
            {
                "column": finding.name,
                "role": finding.role,
                "kind": finding.column.kind if finding.column else "",
                "missing": finding.missing_rows,
                "distinct": finding.distinct,
                "doubts": list(finding.doubts),
            }
        )
    return entries
