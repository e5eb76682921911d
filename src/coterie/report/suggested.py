"""A suggestion for the eye: what was found, what every method would need, and why to trust it less."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from coterie.methods import METHODS
from coterie.report.terminal import members
from coterie.suggestion import Advice, Finding, Range, Suggestion

STYLES = {"clear": "green", "narrow": "yellow", "none": "red"}
MOST = 12
"""Groups are listed up to so many."""


def screen(said: Suggestion) -> Together:
    """All of a suggestion."""
    head = Text(f"{said.scenario}, {said.method}, seed {said.seed}", style="bold")
    head.append(f": probed from {said.start}, after round {said.round}", style="not bold")
    parts: list[RenderableType] = [head, *_finding(said.finding), Text(""), _table(said), Text("")]
    for method in dict.fromkeys(one.method for one in said.advice):
        parts.append(_options(said.best(method)))
    notes = [*said.caveats, *(f"client {client} was left out: {why}" for client, why in said.left_out.items())]
    notes += [f"{one.method}: {one.text}" for one in said.advice if one.sure == "none" or len(one.ranges) > 1]
    parts += [Text(""), *(Text(note, style="dim") for note in dict.fromkeys(notes))] if notes else []
    return Together(*parts)


def _finding(found: Finding) -> Iterator[Text]:
    count, ranked = len(found.groups), sorted(found.reliability)
    again = "found by each of two probes" if found.same else "confirmed by two probes, which alone find others"
    yield Text(f"{len(found.clients)} clients, all alike with p = {found.p:.2g}: {count} group{'s' * (count > 1)}, {again}")
    for group in found.groups[:MOST]:
        yield Text(f"  {members(group)}", style="cyan")
    if count > MOST:
        yield Text(f"  and {count - MOST} more", style="cyan")
    median = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
    yield Text(f"of what sets a client apart, {median:.2f} is signal and the rest noise (median; least {ranked[0]:.2f})")


def _table(said: Suggestion) -> Table:
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "compared", "setting", "right", "suggested", "room", "sure"):
        out.add_column(name, justify="right" if name in ("suggested", "room") else "left", no_wrap=True)
    for one in said.advice:
        style = STYLES[one.sure]
        if not one.ranges:
            near = f"nothing; nearest groups: adjusted Rand {one.ari:.2f}" if one.ari else "nothing"
            out.add_row(one.method, one.compared, "-", near, "", "", Text(one.sure, style=style))
        for i, each in enumerate(one.ranges):
            row = (one.method, one.compared) if i == 0 else ("", "")
            value = "" if each.value is None or not one.settings else f"{each.value:g}"
            sure = Text(one.sure, style=style) if i == 0 else ""
            out.add_row(*row, each.setting, _right(one, each), value, _room(each.margin), sure)
    return out


def _right(advice: Advice, each: Range) -> str:
    """The range in words; of what nothing bounds, the one end."""
    if math.isinf(each.margin) or not advice.settings:
        above = math.isinf(each.high)
        if above or each.low == -1:
            return f"above {each.low:.3g}" if above else f"below {each.high:.3g}"
    return f"{each.low:.3g} to {each.high:.3g}" if each.margin > 1 else f"up to {each.high:.3g}"


def _room(margin: float) -> str:
    return "" if math.isinf(margin) else f"x {margin:.2f}"


def _options(advice: Advice) -> Text:
    """What to add to ``coterie run``, but for what a method does by itself."""
    if not advice.settings:
        return Text(f"{advice.method}: nothing to suggest")
    usual = METHODS[advice.method]()
    changed = {name: value for name, value in advice.settings.items() if getattr(usual, name) != value}
    return Text(" ".join([f"--method {advice.method}", *(f"--set {advice.method}.{k}={v}" for k, v in changed.items())]))
