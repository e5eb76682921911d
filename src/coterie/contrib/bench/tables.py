"""The ranking of a suite as tables: in Markdown, in LaTeX, and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.contrib.bench.ranking import CLOSE, LEVEL, Against, Results, Standing
from coterie.notebook.tables import count
from coterie.report.paper_table import Cell, latex_table, markdown_table

TITLES = (
    "method",
    "mean rank",
    "mean gap",
    "cross-validated gap",
    "greatest gap",
    f"within {CLOSE:g}",
    "worst client",
    "below one model",
    "bytes",
)
"""Columns of a ranking."""

TITLES_AGAINST = ("against", "wins", "ties", "losses", "median difference", "p", "p (Holm)")
"""Columns of the comparisons of one method."""

FORMS = {"markdown": markdown_table, "latex": latex_table}

MISSING_CELL = "-"


def _number(value: float | None, digits: int) -> str:
    return MISSING_CELL if value is None else f"{value:.{digits}f}"


def _texts(standing: Standing, num_worlds: int) -> list[str]:
    """The cells of a method."""
    return [
        _number(standing.rank, 2),
        _number(standing.gap, 4),
        _number(standing.crossed, 4),
        f"{standing.greatest_gap:.3f} ({standing.greatest_world})",
        f"{standing.close} of {num_worlds}",
        _number(standing.worst, 3),
        _number(standing.below_one_model, 2),
        _number(standing.traffic, 2),
    ]


def ranking_table(standings: Sequence[Standing], num_worlds: int, form: str = "markdown") -> str:
    """The ranking as text, with the best of the first three columns and of the worst clients in bold.

    Args:
        standings: The methods.
        num_worlds: The number of worlds.
        form: ``markdown``, or ``latex`` for the package booktabs.
    """
    texts_of_rows = [_texts(standing, num_worlds) for standing in standings]
    columns = list(zip(*texts_of_rows, strict=True))
    best_of_column = {
        0: min(columns[0], key=float),
        1: min(columns[1], key=float),
        5: max(columns[5], key=float),
    }
    rows = []
    for standing, texts in zip(standings, texts_of_rows, strict=True):
        cells = [
            Cell(text, is_best=best_of_column.get(column) == text)
            for column, text in enumerate(texts)
        ]
        rows.append((standing.method, cells))
    return FORMS[form](TITLES, rows, "")


def against_table(comparisons: Sequence[Against], form: str = "markdown") -> str:
    """The comparisons of one method with all others; significant ones are bold."""
    rows = []
    for comparison in comparisons:
        texts = _texts_against(comparison)
        is_significant = comparison.corrected < LEVEL
        cells = [Cell(text, is_best=False) for text in texts[:-1]]
        cells.append(Cell(texts[-1], is_best=is_significant))
        rows.append((comparison.opponent, cells))
    return FORMS[form](TITLES_AGAINST, rows, "")


def _texts_against(comparison: Against) -> list[str]:
    return [
        str(comparison.wins),
        str(comparison.ties),
        str(comparison.losses),
        f"{comparison.difference:+.4f}",
        f"{comparison.p:.2g}",
        f"{comparison.corrected:.2g}",
    ]


def screen(
    compared: Results, standings: Sequence[Standing], judged: Sequence[Sequence[Against]]
) -> Together:
    """The ranking for a terminal, the comparisons of the judged methods, and a sentence about each."""
    judged_methods = [comparisons[0].method for comparisons in judged if comparisons]
    table = _table(TITLES)
    for standing in standings:
        style = "bold" if standing.method in judged_methods else None
        table.add_row(standing.method, *_texts(standing, len(compared.worlds)), style=style)
    parts: list[RenderableType] = [
        Text(f"{count(len(compared.methods), 'method')} in {count(len(compared.worlds), 'world')}"),
        table,
    ]
    for comparisons in judged:
        if comparisons:
            parts += [
                Text(""),
                Text(verdict(comparisons), style="bold"),
                _against_table(comparisons),
            ]
    for method, lacking in compared.incomplete.items():
        parts.append(Text(f"{method} is left out: it lacks {count(lacking, 'run')}", style="dim"))
    return Together(*parts)


def verdict(comparisons: Sequence[Against]) -> str:
    """What the tests of one method say, as a sentence."""
    better = [c.opponent for c in comparisons if c.corrected < LEVEL and c.difference > 0]
    worse = [c.opponent for c in comparisons if c.corrected < LEVEL and c.difference < 0]
    return (
        f"{comparisons[0].method} is significantly better than {len(better)} of {len(comparisons)} methods, "
        f"and significantly worse than {', '.join(worse) or 'none'} "
        f"(Wilcoxon over worlds, Holm, level {LEVEL:g})"
    )


def _against_table(comparisons: Sequence[Against]) -> Table:
    table = _table(TITLES_AGAINST)
    for comparison in comparisons:
        table.add_row(comparison.opponent, *_texts_against(comparison))
    return table


def _table(titles: Sequence[str]) -> Table:
    """An empty table, whose first column are names and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left")
    return table
