"""FL+HC's tables: all that was found, beside what is printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from papers.comparing import rand, sent
from papers.flhc_claims import last
from papers.flhc_printed import ByLinkage, Printed
from papers.numbers import at, by, mean, percent, picked, spread, values
from papers.study import Row, Table

NOT_PRINTED = ("–",) * 4

AFTER = ("paper, after", "after", "to FL")
END = ("paper, end", "end", "to FL", "paper, at target", "at target", "worst client")
COST = ("groups", "adjusted Rand", "exchanges", "MB")


def per_problem(table: Callable[..., Table]) -> Callable[..., Table]:
    """Put the tables of all problems together; a first column names the problem where there are several."""

    @wraps(table)
    def of(rows: Sequence[Row], **how: Any) -> Table:
        each = {problem: table(own, **how) for problem, own in by(rows, "problem").items()}
        first, *others = each.values()
        if not others:
            return first
        lines = tuple((problem, *line) for problem, one in each.items() for line in one.rows)
        return Table(("problem", *first.head), lines, f"l{first.align}")

    return of


@per_problem
def by_fraction(rows: Sequence[Row], printed: Printed) -> Table:
    """A row per C and n, and one of Federated Learning: directly after clustering, and at the end."""
    end, head, lines = last(rows), ("C", "n", *AFTER, *END, *COST), []
    for c in values(rows, "fraction"):
        joint = picked(rows, fraction=c, rounds_before=0)
        for n in [n for n in values(rows, "rounds_before") if n]:
            own, paper = picked(rows, fraction=c, rounds_before=n), printed.get((c, n), NOT_PRINTED)
            post = str(n + 1)
            lines.append(
                (
                    f"{c:g}",
                    str(n),
                    *_line(at(own, post), at(own, end), paper, at(joint, post), at(joint, end)),
                )
            )
        lines.append((f"{c:g}", "FL", *_line([], at(joint, end), NOT_PRINTED, [], [])))
    return Table(head, tuple(lines), "r" * len(head))


@per_problem
def by_linkage(rows: Sequence[Row], printed: ByLinkage) -> Table:
    """A row per metric and linkage with the thresholds that make its groups, one of Federated Learning, one of split-half."""
    names, cell, lines = list(rows[0]["found"]), rows[0]["cell"], []
    whole = rows[0]["found"]["fedavg"]["end"]["tested"][-1] == cell["rounds"]
    joint = at(rows, "fedavg")
    for name in names:
        own, paper = at(rows, name), printed.get(name, NOT_PRINTED)
        ends = _line(
            at(own, "post"),
            at(own, "end"),
            paper,
            at(joint, "post"),
            at(joint, "end") if whole else [],
        )
        lines.append(("FL" if name == "fedavg" else name, *ends, _merges(own)))
    head = ("metric, linkage", *AFTER, *END, *COST, "thresholds")
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def _line(
    post: Sequence[Row],
    end: Sequence[Row],
    paper: Sequence[float | str],
    joint: Sequence[Row],
    joint_end: Sequence[Row],
) -> tuple[str, ...]:
    """The columns :data:`AFTER`, :data:`END` and :data:`COST`; no rows are what was not run."""
    return (
        f"{paper[0]}",
        percent(post, "accuracy") if post else "–",
        _ratio(post, joint),
        f"{paper[1]}",
        percent(end, "accuracy"),
        _ratio(end, joint_end),
        f"{paper[3]}",
        percent(end, "share", digits=0),
        percent(end, "worst"),
        spread(end, "groups", digits=1),
        rand(end),
        f"{mean(end, 'exchanges'):.0f}",
        sent(end),
    )


def _ratio(own: Sequence[Row], joint: Sequence[Row]) -> str:
    return f"{mean(own, 'accuracy') / mean(joint, 'accuracy'):.2f}" if own and joint else "–"


def _merges(rows: Sequence[Row]) -> str:
    """Thresholds that make the same groups in every run: above each run's last merge, to the first that is not made."""
    ends = [row["found"].get("merges") for row in rows]
    if None in ends:
        return "–"
    low = max((made for made, _ in ends if made is not None), default=0.0)
    high = min((left for _, left in ends if left is not None), default=np.inf)
    return f"{low:.3g} to {high:.3g}" if low < high else "none for all runs"
