"""A suggestion in a terminal: the result of the probes, the settings that each method needs, and reasons for caution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.contrib.suggest.suggestion import Advice, Finding, Range, Suggestion
from coterie.methods import METHODS
from coterie.notebook.tables import labels
from coterie.records.shown import ClientId
from coterie.report.words import members

STYLES = {"clear": "green", "narrow": "yellow", "none": "red"}
MOST = 12
"""The greatest number of groups listed."""


def screen(said: Suggestion) -> Together:
    """Return all of a suggestion as a rich object."""
    head = Text(f"{said.scenario}, {said.method}, seed {said.seed}", style="bold")
    head.append(f": probed from {said.start}, after round {said.round}", style="not bold")
    parts: list[RenderableType] = [
        head,
        *_finding(said.finding, labels(said.names, said.finding.clients)),
        Text(said.split_half.text),
        Text(""),
        _table(said),
        Text(""),
    ]
    if said.split_half.rounds is not None:
        parts.append(_options("split-half", said.split_half.settings, said.split_half.rounds))
    for method in dict.fromkeys(one.method for one in said.advice):
        parts.append(_options(method, said.best(method).settings))
    notes = [
        *said.caveats,
        *(
            f"client {said.names.get(client, client)} was left out: {why}"
            for client, why in said.left_out.items()
        ),
    ]
    notes += [
        f"{one.method}: {one.text}"
        for one in said.advice
        if one.sure == "none" or len(one.ranges) > 1
    ]
    parts += (
        [Text(""), *(Text(note, style="dim") for note in dict.fromkeys(notes))] if notes else []
    )
    return Together(*parts)


def _finding(found: Finding, shown: Mapping[int, ClientId]) -> Iterator[Text]:
    count, ranked = len(found.groups), sorted(found.reliability)
    again = (
        "found by each of two probes"
        if found.same
        else "confirmed by two probes together, but not found by each"
    )
    again = "of the run" if found.of_run else again
    yield Text(
        f"{len(found.clients)} clients, p = {found.p:.2g} for a single group: {count} group{'s' * (count > 1)}, {again}"
    )
    for group in found.groups[:MOST]:
        yield Text(f"  {members(shown[client] for client in group)}", style="cyan")
    if count > MOST:
        yield Text(f"  and {count - MOST} more", style="cyan")
    median = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
    yield Text(
        f"share of signal in client differences: median {median:.2f}, minimum {ranked[0]:.2f} (the rest is noise)"
    )


def _table(said: Suggestion) -> Table:
    """Return a table with a row per range; if a method cannot find the groups, how near it comes (adjusted Rand index)."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    words = ("method", "compared", "setting", "sure")
    for name in (
        "method",
        "compared",
        "setting",
        "above",
        "below",
        "suggested",
        "room",
        "nearest",
        "sure",
    ):
        out.add_column(
            name, justify="left" if name in words else "right", no_wrap=name != "compared"
        )
    for one in said.advice:
        last = (f"{one.ari:.2f}", Text(one.sure, style=STYLES[one.sure]))
        if not one.ranges:
            out.add_row(one.method, one.compared, "-", "", "", "", "", *last)
        for i, each in enumerate(one.ranges):
            first, end = ((one.method, one.compared), last) if i == 0 else (("", ""), ("", ""))
            out.add_row(
                *first, each.setting, *_ends(each), _suggested(one, each), _room(each.margin), *end
            )
    return out


def _ends(each: Range) -> tuple[str, str]:
    """Return both ends of a range; empty for an end that does not exist.

    With one group, distances have no upper end, and similarities no lower one.
    """
    open_ = math.isinf(each.margin)
    low = "" if open_ and not math.isinf(each.high) and each.low <= 0 else f"{each.low:.3g}"
    return low, "" if math.isinf(each.high) else f"{each.high:.3g}"


def _suggested(advice: Advice, each: Range) -> str:
    return "" if each.value is None or not advice.settings else f"{each.value:g}"


def _room(margin: float) -> str:
    return "" if math.isinf(margin) else f"x {margin:.2f}"


def _options(method: str, settings: Mapping[str, Any], rounds: int | None = None) -> Text:
    """Return the options for ``coterie run``, without those that are a method's defaults."""
    if not settings:
        return Text(f"{method}: nothing to suggest")
    usual = METHODS[method]()
    changed = {name: value for name, value in settings.items() if getattr(usual, name) != value}
    if (
        "warmup" in changed and not rounds
    ):  # in a run of no more rounds, clients would not be clustered
        rounds = 2 * changed["warmup"]
    words = [f"--method {method}", *(f"--set {method}.{k}={v}" for k, v in changed.items())]
    return Text(" ".join([*words, *([f"--rounds {rounds}"] if rounds else [])]))
