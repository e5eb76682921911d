"""The table of a paper: a row per method, means over seeds with half their interval, the best in bold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.data.objective import METRICS, metric_of
from coterie.report.setting_differences import world_titles
from coterie.report.words import plus_minus
from coterie.settings import UserError, nearest

Entry = Mapping[str, Any]
"""A row of :func:`coterie.compare`."""

TABLE_FORMATS = ("markdown", "latex")

SPREADS = ("interval", "sd")
"""What follows a mean: half its 95 % interval, or the standard deviation over the seeds."""

COLUMN_TITLES: Mapping[str, str] = {
    "score": "",  # the name of the main metric
    "worst": "worst client",
    "std": "std over clients",
    "ari": "ARI",
    "personal": "own models",
    "bytes_up": "MB up",
    "bytes_down": "MB down",
}
"""Number of a comparison -> the title of its column; others have their own name."""

LESS_IS_BETTER = ("std", "loss", "exchanges", "bytes_up", "bytes_down", "evaluations", "seconds")
NEITHER_IS_BETTER = ("groups", "personal", "isolated")
MEGABYTE = 1e6
"""The unit of columns of bytes; those with fewer bytes than this are shown to 1 kB."""


@dataclass(frozen=True)
class Cell:
    """A mean in words, and whether it is the best of its column."""

    text: str
    is_best: bool


def default_columns(compared: Sequence[Entry]) -> list[str]:
    """The main metric, its worst client, the adjusted Rand index where it is known, and what clients send."""
    columns = ["score", "worst"]
    if any(entry["ari"]["mean"] is not None for entry in compared):
        columns.append("ari")
    return [*columns, "bytes_up"]


def paper_table(
    compared: Sequence[Entry],
    labels: Sequence[str],
    form: str = "markdown",
    columns: Sequence[str] = (),
    spread: str = "interval",
) -> str:
    """The table of a comparison in Markdown or LaTeX.

    Args:
        compared: The rows of :func:`coterie.compare`, all of one scenario.
        labels: What each row is called.
        form: ``markdown`` or ``latex`` (for the package booktabs).
        columns: Numbers of a comparison, such as ``score`` (the main metric), ``worst``, ``std``,
            ``ari``, ``bytes_up``; none: :func:`default_columns`.
        spread: ``interval``, or ``sd`` for the standard deviation over the seeds.

    Raises:
        UserError: An unknown form or column, rows of several scenarios, or no rows.
    """
    _check(compared, form, columns)
    chosen_columns = list(columns) or default_columns(compared)
    titles = ["method", *(_title(compared[0], column) for column in chosen_columns)]
    if spread not in SPREADS:
        raise UserError(f"the spread of a table must be {' or '.join(SPREADS)}, got {spread!r}")
    cells_of_columns = [_cells(compared, column, spread) for column in chosen_columns]
    rows = []
    for number, label in enumerate(labels):
        rows.append((label, [cells[number] for cells in cells_of_columns]))
    return _markdown(titles, rows) if form == "markdown" else _latex(titles, rows)


def _check(compared: Sequence[Entry], form: str, columns: Sequence[str]) -> None:
    if form not in TABLE_FORMATS:
        raise UserError(f"the form of a table must be markdown or latex, got {form!r}")
    if not compared:
        raise UserError("there are no runs to make a table of")
    scenarios = sorted(set(world_titles(compared)))
    if len(scenarios) > 1:
        raise UserError(
            f"a table is of one scenario, and these runs are of {len(scenarios)}: {'; '.join(scenarios)}; "
            "name the runs of one of them"
        )
    known = [
        name
        for name, value in compared[0].items()
        if isinstance(value, Mapping) and "mean" in value
    ]
    for column in columns:
        if column not in known:
            raise UserError(f"a table has no column {column!r}{nearest(column, known)}")


def _title(entry: Entry, column: str) -> str:
    title = COLUMN_TITLES.get(column, column)
    return title or str(entry["metric"])


def _cells(compared: Sequence[Entry], column: str, spread: str) -> list[Cell]:
    """A column: the mean over seeds ± half the 95 % interval; equal best ones are all marked."""
    in_megabytes = column.startswith("bytes")
    scale = MEGABYTE if in_megabytes else 1.0
    digits = 1 if in_megabytes or column in NEITHER_IS_BETTER else 3
    if in_megabytes and _greatest(compared, column) < MEGABYTE:
        digits = 3
    texts = []
    means = []
    for entry in compared:
        value = {}
        for part in ("mean", "low", "high", "sd"):
            number = entry[column].get(part)
            value[part] = None if number is None else number / scale
        texts.append(plus_minus(value, digits, spread))
        means.append(None if value["mean"] is None else round(value["mean"], digits))
    best = _best(means, _better(compared[0], column))
    return [
        Cell(text, mean is not None and mean == best)
        for text, mean in zip(texts, means, strict=True)
    ]


def _greatest(compared: Sequence[Entry], column: str) -> float:
    return max((entry[column]["mean"] or 0.0 for entry in compared), default=0.0)


def _better(entry: Entry, column: str) -> str | None:
    """Whether a ``"greater"`` or a ``"smaller"`` number is better; None if neither is, or it is not known."""
    if column in ("score", "worst", entry["metric"]):
        return str(entry["better"])
    if column in entry.get("others", ()):
        # Records have no direction of further metrics; those with a name of Coterie's have its own.
        name = metric_of(column).split("/")[0]
        if name == entry["metric"]:
            return str(entry["better"])
        if name == "loss":
            return "smaller"
        metric = METRICS.get(name)
        return metric.better if metric is not None else None
    if column in NEITHER_IS_BETTER:
        return None
    return "smaller" if column in LESS_IS_BETTER else "greater"


def _best(means: Sequence[float | None], better: str | None) -> float | None:
    known = [mean for mean in means if mean is not None]
    if not known or better is None:
        return None
    return min(known) if better == "smaller" else max(known)


def _markdown(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    lines = [
        f"| {' | '.join(titles)} |",
        f"| --- |{' ---: |' * (len(titles) - 1)}",
    ]
    for label, cells in rows:
        texts = [f"**{cell.text}**" if cell.is_best else cell.text for cell in cells]
        lines.append(f"| {' | '.join([label, *texts])} |")
    return "\n".join(lines) + "\n"


def _latex(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
        r"\toprule",
        " & ".join(_escaped(title) for title in titles) + r" \\",
        r"\midrule",
    ]
    for label, cells in rows:
        texts = [_escaped(label)]
        for cell in cells:
            number = cell.text.replace("±", r"$\pm$")
            texts.append(rf"\textbf{{{number}}}" if cell.is_best else number)
        lines.append(" & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    r"""Text for LaTeX.

    >>> _escaped("k_1 (50 %)")
    'k\\_1 (50 \\%)'
    """
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text
