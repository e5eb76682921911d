"""The table of a paper: a row per method, means over seeds with half their interval.

In each column the best mean is bold, and so is every mean that does not differ from it
significantly: by the paired t-test over the seeds that both methods have, from three seeds on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.data.objective import METRICS, metric_of
from coterie.report.over_seeds import paired_p_value
from coterie.report.setting_differences import world_titles
from coterie.report.words import plus_minus
from coterie.settings import UserError, known_list, nearest

Entry = Mapping[str, Any]
"""A row of :func:`coterie.compare`."""

TABLE_FORMATS = ("markdown", "latex", "csv")

SIGNIFICANCE_LEVEL = 0.05
"""A mean whose difference from the best has at least this p-value is as good as the best."""

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
    """A mean in words.

    Attributes:
        text: The mean and its spread.
        is_best: Whether it is the best of its column, or not significantly different from it.
        tested: The number of seeds of the paired test with the best; 0 if there was none.
    """

    text: str
    is_best: bool
    tested: int = 0


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
    seeds_of_tests = {cell.tested for cells in cells_of_columns for cell in cells} - {0}
    note = _note(sorted(seeds_of_tests))
    return (
        markdown_table(titles, rows, note)
        if form == "markdown"
        else latex_table(titles, rows, note)
    )


def _note(seeds_of_tests: Sequence[int]) -> str:
    """What bold means, if there were tests; otherwise an empty text."""
    if not seeds_of_tests:
        return ""
    num_seeds = " or ".join(map(str, seeds_of_tests))
    return (
        "Bold: the best mean of a column, and each that does not differ from it significantly "
        f"(paired t-test over {num_seeds} seeds, p >= {SIGNIFICANCE_LEVEL:g})."
    )


def _check(compared: Sequence[Entry], form: str, columns: Sequence[str]) -> None:
    if form not in TABLE_FORMATS:
        raise UserError(
            f"the form of a table must be {', '.join(TABLE_FORMATS[:-1])} or {TABLE_FORMATS[-1]}, got {form!r}"
        )
    if not compared:
        raise UserError("there are no runs to make a table of")
    scenarios = sorted(set(world_titles(compared)))
    if len(scenarios) > 1:
        raise UserError(
            f"a table is of one scenario, and these runs are of {len(scenarios)}: {'; '.join(scenarios)}; "
            "name the runs of one of them"
        )
    check_columns(compared, columns)


def check_columns(compared: Sequence[Entry], columns: Sequence[str]) -> None:
    """Check that a comparison has these numbers.

    Args:
        compared: The rows of :func:`coterie.compare`.
        columns: Numbers of a comparison.

    Raises:
        UserError: It does not have one of them.
    """
    interval_columns = [
        name
        for name, value in compared[0].items()
        if isinstance(value, Mapping) and {"mean", "low"} <= set(value)
    ]
    for column in columns:
        if column not in interval_columns:
            raise UserError(
                f"a table has no column {column!r}{nearest(column, interval_columns)}{known_list(interval_columns)}"
            )


def _title(entry: Entry, column: str) -> str:
    title = COLUMN_TITLES.get(column, column) or str(entry["metric"])
    # Only means of metrics are over clients or test examples.
    is_mean = column in ("score", "loss", entry["metric"], *entry.get("others", ()))
    return f"{title} over {entry['by']}" if is_mean and "by" in entry else title


def _cells(compared: Sequence[Entry], column: str, spread: str) -> list[Cell]:
    """A column: the mean over seeds ± half the 95 % interval; all that are as good as the best are marked."""
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
    cells = []
    for entry, text, mean in zip(compared, texts, means, strict=True):
        is_best = mean is not None and mean == best
        tested = 0
        # A paired test with the best decides whether another mean is as good.
        if best is not None and mean is not None and not is_best:
            differences = _differences(entry, compared[means.index(best)], column)
            p_value = paired_p_value(differences)
            if p_value is not None:
                is_best = p_value >= SIGNIFICANCE_LEVEL
                tested = len(differences)
        cells.append(Cell(text, is_best, tested))
    return cells


def _differences(entry: Entry, compared_entry: Entry, column: str) -> list[float]:
    """The differences of a number between two rows, with each seed that both have."""
    values_of_rows = []
    for row in (entry, compared_entry):
        values = row[column].get("values", ())
        values_of_rows.append(dict(zip(row["seeds"], values, strict=False)))
    values_of_entry, values_of_compared = values_of_rows
    differences = []
    for seed, value in values_of_entry.items():
        other_value = values_of_compared.get(seed)
        if value is not None and other_value is not None:
            differences.append(value - other_value)
    return differences


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
    present_means = [mean for mean in means if mean is not None]
    if not present_means or better is None:
        return None
    return min(present_means) if better == "smaller" else max(present_means)


def markdown_table(
    titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], note: str
) -> str:
    """A table in Markdown: the titles of its columns, the label and cells of each row, and a note below."""
    lines = [
        f"| {' | '.join(titles)} |",
        f"| --- |{' ---: |' * (len(titles) - 1)}",
    ]
    for label, cells in rows:
        texts = [f"**{cell.text}**" if cell.is_best else cell.text for cell in cells]
        lines.append(f"| {' | '.join([label, *texts])} |")
    if note:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def latex_table(
    titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], note: str
) -> str:
    """The same in LaTeX, for the package booktabs; the note is a comment."""
    lines = [f"% {note}"] if note else []
    lines += [
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
