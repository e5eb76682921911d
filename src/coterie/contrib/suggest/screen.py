"""A suggestion in a terminal: the result of the probes, the settings that each method needs, and reasons for caution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Literal

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.contrib.suggest.suggestion import (
    CLEAR,
    NARROW,
    NONE,
    Advice,
    Finding,
    Range,
    Suggestion,
)
from coterie.methods import METHODS
from coterie.notebook.tables import count, labels
from coterie.records.shown import ClientId
from coterie.report.words import members

CONFIDENCE_STYLES = {CLEAR: "green", NARROW: "yellow", NONE: "red"}
"""Confidence in an advice -> its colour."""

MAX_LISTED_GROUPS = 12
"""The greatest number of groups listed."""

TEXT_COLUMNS = ("method", "compared", "setting", "sure")
"""Columns of the table of advice whose entries are words."""

SCREEN_COLUMNS = (
    "method",
    "compared",
    "setting",
    "above",
    "below",
    "suggested",
    "room",
    "nearest",
    "sure",
)
"""Columns of the table of advice."""


def screen(suggestion: Suggestion) -> Together:
    """Return all of a suggestion as a rich object."""
    title_line = Text(
        f"{suggestion.scenario}, {suggestion.method}, seed {suggestion.seed}", style="bold"
    )
    title_line.append(
        f": probed from {suggestion.start}, after round {suggestion.round}", style="not bold"
    )
    screen_parts: list[RenderableType] = [
        title_line,
        *_finding(suggestion.finding, labels(suggestion.names, suggestion.finding.clients)),
        Text(suggestion.split_half.text),
        Text(""),
        _table(suggestion),
        Text(""),
    ]
    # The options to run, one line per method.
    split_half = suggestion.split_half
    if split_half.rounds is not None:
        screen_parts.append(_options("split-half", split_half.settings, split_half.rounds))
    for method in dict.fromkeys(advice.method for advice in suggestion.advice):
        screen_parts.append(_options(method, suggestion.best(method).settings))
    notes = _notes(suggestion)
    if notes:
        screen_parts.append(Text(""))
        screen_parts += [Text(note, style="dim") for note in dict.fromkeys(notes)]
    return Together(*screen_parts)


def _notes(suggestion: Suggestion) -> list[str]:
    """Reasons for caution, the clients left out, and the numbers behind advice that the table does not explain."""
    # Reasons for caution first: they concern all of the advice.
    notes = list(suggestion.caveats)
    for client, reason in suggestion.left_out.items():
        notes.append(f"client {suggestion.names.get(client, client)} was left out: {reason}")
    for advice in suggestion.advice:
        if advice.sure == NONE or len(advice.ranges) > 1:
            notes.append(f"{advice.method}: {advice.text}")
    return notes


def _finding(finding: Finding, shown_ids: Mapping[int, ClientId]) -> Iterator[Text]:
    """The groups and how they were found, line by line."""
    if finding.of_run:
        origin_words = "of the run"
    elif finding.same:
        origin_words = "found by each of two probes"
    else:
        origin_words = "confirmed by two probes together, but not found by each"
    group_count = count(len(finding.groups), "group")
    yield Text(
        f"{len(finding.clients)} clients, p = {finding.p:.2g} for a single group: {group_count}, {origin_words}"
    )
    # The first groups, then how many more there are.
    for group in finding.groups[:MAX_LISTED_GROUPS]:
        yield Text(f"  {members(shown_ids[client] for client in group)}", style="cyan")
    if len(finding.groups) > MAX_LISTED_GROUPS:
        yield Text(f"  and {len(finding.groups) - MAX_LISTED_GROUPS} more", style="cyan")
    yield Text(
        f"share of signal in client differences: median {median(finding.reliability):.2f}, "
        f"minimum {min(finding.reliability):.2f} (the rest is noise)"
    )


def _table(suggestion: Suggestion) -> Table:
    """Return a table with a row per range; if a method cannot find the groups, how near it comes (adjusted Rand index)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in SCREEN_COLUMNS:
        justify: Literal["left", "right"] = "left" if column in TEXT_COLUMNS else "right"
        table.add_column(column, justify=justify, no_wrap=column != "compared")
    for advice in suggestion.advice:
        # The first row of an advice names the method, and says how sure it is.
        first_cells: tuple[str, str] = (advice.method, advice.compared)
        last_cells: tuple[RenderableType, RenderableType] = (
            f"{advice.ari:.2f}",
            Text(advice.sure, style=CONFIDENCE_STYLES[advice.sure]),
        )
        # A method without a range cannot make the groups: only how near it comes is shown.
        if not advice.ranges:
            table.add_row(*first_cells, "-", "", "", "", "", *last_cells)
        for each_range in advice.ranges:
            table.add_row(*first_cells, *_range_cells(advice, each_range), *last_cells)
            first_cells = ("", "")
            last_cells = ("", "")
    return table


def _range_cells(advice: Advice, each_range: Range) -> tuple[str, ...]:
    """The cells for one range: setting, ends, suggested value, and room.

    With one group, distances have no upper end, and similarities no lower one. The cell of an end
    that does not exist is empty.
    """
    has_margin = not math.isinf(each_range.margin)
    has_high = not math.isinf(each_range.high)
    has_low = has_margin or not has_high or each_range.low > 0
    low_cell = f"{each_range.low:.3g}" if has_low else ""
    high_cell = f"{each_range.high:.3g}" if has_high else ""
    # No value helps if the settings together cannot make the groups.
    value_cell = ""
    if each_range.value is not None and advice.settings:
        value_cell = f"{each_range.value:g}"
    room_cell = f"x {each_range.margin:.2f}" if has_margin else ""
    return each_range.setting, low_cell, high_cell, value_cell, room_cell


def _options(method: str, settings: Mapping[str, Any], rounds: int | None = None) -> Text:
    """Return the options for ``coterie run``, without those that are a method's defaults."""
    if not settings:
        return Text(f"{method}: nothing to suggest")
    defaults = METHODS[method]()
    changed_settings = {
        setting_name: setting_value
        for setting_name, setting_value in settings.items()
        if getattr(defaults, setting_name) != setting_value
    }
    # In a run of no more rounds than the warm-up, clients would not be clustered.
    if "warmup" in changed_settings and not rounds:
        rounds = 2 * changed_settings["warmup"]
    # As they are typed after `coterie run SCENARIO`.
    option_words = [f"--method {method}"]
    option_words += [
        f"--set {method}.{setting_name}={setting_value}"
        for setting_name, setting_value in changed_settings.items()
    ]
    if rounds:
        option_words.append(f"--rounds {rounds}")
    return Text(" ".join(option_words))
