"""Runs in a terminal: the tree of groups, tables, and one line per event, as functions from records to rich objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.console import Group as Together
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from coterie.pooling import MIN_ROWS_OF_WORST
from coterie.printable import printable
from coterie.records.shown import Line, mean_of, personal_clients, shown_as
from coterie.report.client_results import client_rows
from coterie.report.console import console as console
from coterie.report.group_tree import Group, history
from coterie.report.setting_differences import (
    labels_of_runs,
    lines_of_settings,
    unequal,
    world_titles,
)
from coterie.report.summary import Summary, last_tested
from coterie.report.virtual_time import Cells
from coterie.report.virtual_time import table_rows as virtual_rows
from coterie.report.words import decimals, members, numbered, plus_minus

MAX_WORST_CLIENTS = 4
"""The greatest number of methods for which a comparison names the worst client."""

MAX_PARTS_OF_EVENT = 4
"""The greatest number of groups that the line about a decision lists, and of client ranges in each."""


def tree(lines: Sequence[Line]) -> Tree:
    """Return the groups of a run as a tree of splits: members, mean score, and the round and reason of each split."""
    return _branch(history(lines), last_tested(lines), None)


def _branch(group: Group, tested_line: Line | None, parent: Tree | None) -> Tree:
    """Return a group and the groups below it as a branch of ``parent``, or as a tree of its own."""
    # A group that was not divided is bold: it exists now.
    label = Text(members(group.clients), style="" if group.parts else "bold")
    score = None if tested_line is None else mean_of(tested_line, group.clients)
    if tested_line is not None and score is not None:
        label.append(f"  {shown_as(tested_line).main} {score:.3f}", style="cyan")
        served_personally = personal_clients(tested_line) & set(group.clients)
        if served_personally and not group.parts:
            models = "model" if len(served_personally) == 1 else "models"
            label.append(f", {len(served_personally)} with personal {models}", style="cyan")
    # Why it was divided, or why not.
    if group.parts and group.round is not None:
        label.append(f"\nround {group.round}: ", style="yellow")
        label.append(printable(group.why or "groups of the last round"), style="dim")
    elif group.why:
        label.append(f"\n{printable(group.why)}", style="dim")
    branch = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    for part in group.parts:
        _branch(part, tested_line, branch)
    return branch


def event(note: Mapping[str, Any], round: int) -> Text | None:
    """Return one line about a note that changed groups.

    Args:
        note: The note.
        round: Its round.

    Returns:
        The line, or None if the note has fewer than two parts.
    """
    # Only divisions are worth a line of their own.
    if len(note["parts"]) < 2:
        return None
    shown_parts = note["parts"][:MAX_PARTS_OF_EVENT]
    part_names = [members(part, max_spans=MAX_PARTS_OF_EVENT) for part in shown_parts]
    if len(note["parts"]) > len(shown_parts):
        part_names.append(f"and {len(note['parts']) - len(shown_parts)} more")
    return Text.assemble(
        (f"round {round} ", "yellow"), (f"{note['kind']}: ", "bold"), " | ".join(part_names)
    )


FEW_TESTS_IN_WORDS = f"some clients have fewer than {MIN_ROWS_OF_WORST} test rows, so the worst client is mostly chance"


def table(summaries: Sequence[Summary]) -> Together:
    """Return a table with one row per run; below it, the settings in which runs of one method differ.

    The columns are the mean and worst score over clients, the groups, the number of clients with
    personal models (own) where there are some, the agreement with the true groups, traffic and
    time. With one metric the table fits into 80 columns.

    Args:
        summaries: The summaries of the runs.
    """
    # Columns that only some tables have.
    has_seeds = len({run["seed"] for run in summaries}) > 1
    has_adversaries = any(run.get("isolated") is not None for run in summaries)
    has_personal = any(run.get("personal") for run in summaries)
    other_metrics = _other_metrics(summaries)
    labels = labels_of_runs(summaries)
    rows = []
    for run, label in zip(summaries, labels, strict=True):
        score = run["score"] or {}
        cells = [("method", label)]
        if has_seeds:
            cells.append(("seed", str(run["seed"])))
        cells += [
            ("rounds", str(run["rounds"])),
            (title(summaries), decimals(score.get("mean"))),
            ("worst", f"{decimals(score.get('worst'))}{few_tests_mark(run)}"),
        ]
        cells += [(metric, decimals(run.get(metric))) for metric in other_metrics]
        cells.append(("groups", str(len(run["groups"]))))
        if has_personal:
            cells.append(("own", str(len(run["personal"]))))
        cells.append(("ARI", decimals(run["ari"], 2)))
        if has_adversaries:
            cells.append(("isolated", decimals(run["isolated"], 2)))
        cells += [
            ("up", size(run["bytes_up"])),
            ("down", size(run["bytes_down"])),
            ("seconds", decimals(run["seconds"], 1)),
        ]
        rows.append(cells)
    settings = [Text(line, style="dim") for line in lines_of_settings(labels, summaries)]
    times = _virtual_times(labels, summaries, [[run.get("virtual")] for run in summaries])
    return Together(_table_of(rows), *settings, *times)


def _virtual_times(
    labels: Sequence[str], entries: Sequence[Mapping[str, Any]], virtual: Sequence[Sequence[Any]]
) -> list[Text | Table]:
    """An empty line and a table of what runs on a simulated fleet take; nothing without such runs."""
    rows = virtual_rows(labels, entries, virtual)
    return [Text(""), _table_of(rows)] if rows else []


def _table_of(rows: Sequence[Cells]) -> Table:
    """Return a table of rows with the same headings; its first column is text, the others are numbers."""
    rich_table = Table(box=None, pad_edge=False, header_style="bold")
    # The first column is text, the others are numbers.
    for position, (heading, _) in enumerate(rows[0] if rows else ()):
        justify: Literal["left", "right"] = "right" if position else "left"
        rich_table.add_column(heading, justify=justify, vertical="bottom", no_wrap=True)
    for cells in rows:
        rich_table.add_row(*(cell for _, cell in cells))
    return rich_table


def _other_metrics(summaries: Sequence[Summary]) -> list[str]:
    """Return the metrics besides the loss and the main one; in a summary they follow the loss and precede the bytes."""
    other_metrics: dict[str, None] = {}  # an ordered set
    for run in summaries:
        # The order of a summary's keys says which of them are metrics.
        keys = list(run)
        metrics = keys[keys.index("loss") + 1 : keys.index("bytes_up")]
        other_metrics |= dict.fromkeys(metric for metric in metrics if metric != run["metric"])
    return list(other_metrics)


def title(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the heading of a column of main metrics: the metric's name, or "score" if there are several metrics."""
    metrics = {result["metric"] for result in results}
    return metrics.pop() if len(metrics) == 1 else "score"


def comparison(compared: Sequence[Mapping[str, Any]]) -> Together:
    """Return a table per scenario and settings of it, with one row per method.

    A row shows means over seeds and, with more than one seed, half the 95% interval of the score.
    Several entries of one method are numbered. Below the table are the settings of methods in which
    these differ, and once all other settings that are not the same in all rows.

    Args:
        compared: The entries of :func:`coterie.compare`.
    """
    paragraphs: list[Text | Table | FittingTable] = []
    for world_title, entries in _of_worlds(compared):
        labels = numbered([entry["method"] for entry in entries])
        # An empty line between two scenarios.
        if paragraphs:
            paragraphs.append(Text(""))
        paragraphs += [Text(world_title, style="bold"), _comparison(entries, labels)]
        if worst_clients := _worst_clients(entries, labels):
            paragraphs.append(Text(worst_clients, style="dim"))
        paragraphs += [Text(line, style="dim") for line in lines_of_settings(labels, entries)]
        paragraphs += _virtual_times(
            labels, entries, [entry.get("virtual", ()) for entry in entries]
        )
        if any(map(few_tests_mark, entries)):
            paragraphs.append(Text(f"*: {FEW_TESTS_IN_WORDS}", style="yellow"))
        # Settings that make the comparison unfair.
        unequal_settings = "; ".join(unequal(entries, labels))
        if unequal_settings:
            warning = f"The rows differ in more than the method: {unequal_settings}"
            paragraphs.append(Text(warning, style="yellow"))
    return Together(*paragraphs)


def client_tables(compared: Sequence[Mapping[str, Any]]) -> Together:
    """Return a table per scenario and settings of it, with one row per client.

    A row has the client's score with each method, the mean over seeds. For a single run it has the
    client's group, loss, and how many rounds it missed, too.

    Args:
        compared: The entries of :func:`coterie.compare`.
    """
    paragraphs: list[Text | Table] = []
    for world_title, entries in _of_worlds(compared):
        if paragraphs:
            paragraphs.append(Text(""))
        labels = numbered([entry["method"] for entry in entries])
        client_results = client_rows(entries, labels)
        if "group" in client_results[0]:
            rows = _rows_of_run(client_results, title(entries))
        else:
            world_title = f"{world_title}, {title(entries)}"
            rows = _rows_of_methods(client_results, labels)
        paragraphs += [Text(world_title, style="bold"), _table_of(rows)]
    return Together(*paragraphs)


def _rows_of_run(client_results: Sequence[Mapping[str, Any]], metric: str) -> list[Cells]:
    """One row per client of a single run."""
    rows = []
    for result in client_results:
        (score,) = result["scores"].values()
        rows.append(
            [
                ("client", printable(str(result["client"]))),
                ("group", _or_dash(result["group"])),
                (metric, decimals(score)),
                ("loss", decimals(result["loss"])),
                ("tested in\nround", _or_dash(result["tested"])),
                ("rounds\nmissed", str(result["missed"])),
                ("replies\nrefused", str(result["refused"])),
            ]
        )
    return rows


def _rows_of_methods(
    client_results: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> list[Cells]:
    """One row per client of several runs: its score with each method."""
    rows = []
    for result in client_results:
        cells = [("client", printable(str(result["client"])))]
        cells += [(label, decimals(result["scores"][label])) for label in labels]
        rows.append(cells)
    return rows


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _of_worlds(
    compared: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Each scenario with settings of it, and the entries of it."""
    entries_of_title: dict[str, list[Mapping[str, Any]]] = {}
    for world_title, entry in zip(world_titles(compared), compared, strict=True):
        entries_of_title.setdefault(world_title, []).append(entry)
    return list(entries_of_title.items())


def _worst_clients(entries: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Who the worst client is, with each method; empty for many methods, or where it differs between seeds."""
    phrases = []
    for entry, label in zip(entries, labels, strict=True):
        client = entry.get("worst_client")
        if client is not None:
            phrases.append(f"{printable(str(client))} with {label}")
    if not phrases or len(phrases) > MAX_WORST_CLIENTS:
        return ""
    return f"worst client: {', '.join(phrases)}; compare --clients shows all clients"


COSTS = ("exchanges", "up", "down", "client\nevals")
"""Headings of the columns that a narrow terminal shows in a table of their own."""


@dataclass(frozen=True)
class FittingTable:
    """A table of rows whose costs follow in a second table where the terminal is too narrow for one.

    Attributes:
        rows: The rows; their first column names them.
    """

    rows: Sequence[Cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if _width(self.rows) <= options.max_width:
            yield _table_of(self.rows)
            return
        results = []
        costs = []
        for name, *cells in self.rows:
            results.append([name, *(cell for cell in cells if cell[0] not in COSTS)])
            costs.append([name, *(cell for cell in cells if cell[0] in COSTS)])
        yield _table_of(results)
        yield Text("")
        yield _table_of(costs)


def _width(rows: Sequence[Cells]) -> int:
    """The columns of a terminal that a table of rows takes."""
    widths = []
    for column in zip(*rows, strict=True):
        lines = [line for cell in column for text in cell for line in text.split("\n")]
        widths.append(max(map(cell_len, lines)))
    # Two columns are between two of the table.
    return sum(widths) + 2 * (len(widths) - 1)


def _comparison(compared: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> FittingTable:
    """Return the table of one scenario: at most 116 columns for labels of 11 letters, or two of 72."""
    has_adversaries = any(entry["isolated"]["mean"] is not None for entry in compared)
    has_personal = any(entry["personal"]["mean"] for entry in compared)
    has_best_round = any(entry.get("best_rounds") for entry in compared)
    rows = []
    for entry, label in zip(compared, labels, strict=True):
        cells = [
            ("method", label),
            ("seeds", str(len(entry["seeds"]))),
            ("rounds", _range(entry["rounds"])),
        ]
        if has_best_round:
            cells.append(("best\nround", _range(entry["best_rounds"])))
        cells += [
            (title(compared), plus_minus(entry["score"])),
            ("worst\nclient", f"{decimals(entry['worst']['mean'])}{few_tests_mark(entry)}"),
            ("std of\nclients", decimals(entry["std"]["mean"])),
            ("adjusted\nRand", decimals(entry["ari"]["mean"], 2)),
            ("groups", decimals(entry["groups"]["mean"], 1)),
        ]
        # A client's own model is another kind of model than that of its group.
        if has_personal:
            num_personal = entry["personal"]["mean"] or 0
            num_clients = entry.get("clients")
            of_clients = f" of {num_clients}" if num_clients else ""
            in_words = f"{num_personal:.1f}".removesuffix(".0")
            cells.append(("own\nmodels", f"{in_words}{of_clients}"))
        cells += [
            ("exchanges", decimals(entry["exchanges"]["mean"], 0)),
            ("up", size(entry["bytes_up"]["mean"])),
            ("down", size(entry["bytes_down"]["mean"])),
            ("client\nevals", decimals(entry["evaluations"]["mean"], 0)),
        ]
        if has_adversaries:
            cells.append(("adversaries\nisolated", decimals(entry["isolated"]["mean"], 2)))
        rows.append(cells)
    return FittingTable(rows)


MAX_CLIENTS_IN_TABLE = 24
"""The greatest number of clients of which a comparison shows a row each; a page has all of them."""

MARKS: Mapping[int | None, str] = {1: "▲", 0: "≈", -1: "▼", None: "?"}
"""Sign of a gain -> its mark."""


def clients_by_method(verdict: Mapping[str, Any]) -> Together | None:
    """Return a table with one row per client: its score with each method, and its gain over training alone.

    Args:
        verdict: A verdict.

    Returns:
        The table and what its marks mean; None without a comparison, without training alone, or for many clients.
    """
    table_of_clients = verdict["table"]
    if table_of_clients is None or table_of_clients["alone"] is None:
        return None
    if len(table_of_clients["rows"]) > MAX_CLIENTS_IN_TABLE:
        return None
    has_marks = any(any(row["personal"]) for row in table_of_clients["rows"])
    rows = []
    for row in table_of_clients["rows"]:
        cells = [("client", printable(str(row["client"])))]
        if row["tests"] is not None:
            cells.append(("tests", f"{row['tests']:g}"))
        for method, value, num_personal in zip(
            table_of_clients["methods"], row["values"], row["personal"], strict=True
        ):
            # A number of a personal model is marked, others are aligned with it.
            mark = " own" if num_personal else "    "
            cells.append((method, f"{decimals(value)}{mark if has_marks else ''}"))
        gain = row["over_alone"]
        over_alone = "-" if gain is None else f"{gain[0]:+.3f} {MARKS[gain[2]]}"
        cells.append((f"{table_of_clients['alone']} over\ntraining alone", over_alone))
        rows.append(cells)
    own_model_legend = "; own: of the client's personal model" if has_marks else ""
    legend = (
        "▲ significantly better, ▼ significantly worse, ≈ no significant difference, "
        f"? noise is not known{own_model_legend}"
    )
    return Together(_table_of(rows), Text(legend, style="dim"))


def few_tests_mark(entry: Mapping[str, Any]) -> str:
    """Return the mark of a worst value where clients have so few test rows that it is mostly chance."""
    return "*" if entry.get("few_tests") else ""


def _range(numbers: Sequence[int]) -> str:
    """Return the first and the last of sorted numbers; a dash for none."""
    if not numbers:
        return "-"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def size(num_bytes: float | None) -> str:
    """Return a number of bytes in words, or a dash for None.

    Example:
        >>> size(999), size(1_234_567)
        ('999 B', '1.2 MB')
    """
    if num_bytes is None:
        return "-"
    # The largest unit in which the number is at least 1.
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
