"""Studies for the eye, in a terminal: the list of them, and what one found beside what its paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from coterie.report.live import duration
from papers.reading import scales
from papers.running import Outcome, seconds_left
from papers.store import Rows
from papers.study import Scale, Study, Table

MARKS = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}


def listing(studies: Iterable[Study], folder: Path) -> RichTable:
    """One row per study: what it is, how long it takes at which scale, and what is missing in ``folder``."""
    out = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in ("study", "what", "scale", "time", "data", "recorded"):
        out.add_column(name, no_wrap=name != "what", justify="right" if name == "time" else "left")
    for study in studies:
        head = (Text(study.name, style="bold"), f"{study.where}: {study.what}")
        for scale in scales(study.source).values():
            recorded = _recorded(scale, Rows(folder / f"{study.source}.{scale.name}.jsonl"))
            out.add_row(
                *head,
                scale.name,
                duration(scale.seconds),
                ", ".join(scale.needs) or "none",
                recorded,
            )
            head = (Text(""), "")
    return out


def _recorded(scale: Scale, rows: Rows) -> str:
    """How many runs are, and how long the others take if it is not the time of all."""
    cells = scale.cells()
    known, left = len(rows.of(cells)), seconds_left(scale, rows, cells)
    return f"{known} of {len(cells)}" + (f", {duration(left)} left" if known and left else "")


def result(said: Outcome) -> Together:
    """What the paper says beside what came out, all numbers where there are more, and the verdict."""
    parts: list[RenderableType] = []
    if said.study.table:
        parts += [rich(said.study.table(said.rows)), Text("")]
    claims = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in ("", "paper", "here", "agrees", "if"):
        claims.add_column(name, overflow="fold")
    for claim in said.claims:
        word, style = MARKS[claim.holds]
        said_of = (Text(text) for text in (claim.what, claim.printed, claim.ours))
        rule = f"{claim.rule}; not counted: {claim.aside}" if claim.aside else claim.rule
        claims.add_row(*said_of, Text(word, style=style), Text(rule, style="dim"))
    seeds = (
        f"{said.seeds} seeds, ± is the 95 % interval of their mean"
        if said.seeds > 1
        else "one seed"
    )
    verdict = Text(f"verdict at scale {said.scale.name}: {said.verdict} ({seeds})", style="bold")
    return Together(*parts, claims, Text(""), verdict)


def rich(table: Table) -> RichTable:
    """A table for the terminal."""
    out = RichTable(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(table.head):
        out.add_column(name, justify="right" if table.align[place : place + 1] == "r" else "left")
    for row in table.rows:
        out.add_row(*map(Text, row))  # not as markup: P[g(α) > 0] has brackets
    return out


def as_json(said: Outcome) -> dict[str, object]:
    """What ``python -m papers run --json`` prints of one study."""
    claims: Sequence[dict[str, object]] = [vars(claim) for claim in said.claims]
    return {
        "study": said.study.name,
        "scale": said.scale.name,
        "seeds": said.seeds,
        "verdict": said.verdict,
        "claims": claims,
        "rows": said.rows,
    }
