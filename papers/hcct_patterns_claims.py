"""What HCCT's table II says, beside what came out here; its numbers are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.report.summary import interval
from coterie.report.words import plus_minus
from papers.comparing import labels, of
from papers.drawing import COLOURS, COLUMN, GREY, MARKERS, panels
from papers.hcct_claims import WITH_MEMORY
from papers.hcct_tables import error, said
from papers.numbers import found, spread
from papers.study import Claim, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALONE, ALL, ALIKE, FIRST, SECOND = "alone", "all together", "1 with 2", "1 with 3", "2 with 3"
PATTERNS = (ALONE, ALL, ALIKE, FIRST, SECOND)


def of_client(rows: Sequence[Row], name: str, client: int) -> float:
    """The mean error of client 1, 2 or 3 in a pattern, in percent."""
    return float(100 * (1 - found(of(rows, name), "each")[:, client - 1].mean()))


def of_patterns(rows: Sequence[Row]) -> tuple[Claim, ...]:
    mean = {name: error(of(rows, name)) for name in PATTERNS}
    best = min(mean, key=lambda name: mean[name])
    alone, alike, apart = (of_client(rows, name, 2) for name in (ALONE, ALIKE, SECOND))
    third, joint = (of_client(rows, name, 3) for name in (ALONE, ALL))
    claims = [
        Claim(
            what="the best pattern, by the mean of errors",
            printed="clients 1 and 2 together, client 3 alone",
            ours=", ".join(f"{name} {each:.1f} %" for name, each in mean.items()),
            rule=f"least is {ALIKE}",
            holds=best == ALIKE,
        ),
        Claim(
            what="client 2, which has few data",
            printed="suffers when it trains alone",
            ours=f"{alone:.1f} % alone, {alike:.1f} % with client 1",
            rule="above by 1 point or more alone",
            holds=alone - alike >= 1,
        ),
        Claim(
            what="client 3 in one model for all",
            printed="degraded by heterogeneous data",
            ours=f"{joint:.1f} %, {third:.1f} % alone",
            rule="above that alone",
            holds=joint > third,
        ),
        Claim(
            what="client 2 with client 3, which is unlike it",
            printed="can be severely impaired",
            ours=f"{apart:.1f} %, {alike:.1f} % with client 1",
            rule="above by 5 points or more",
            holds=apart - alike >= 5,
        ),
    ]
    for name, aside in (("HCCT as printed", ""), ("HCCT", WITH_MEMORY)):
        own = of(rows, name)
        right = sum(row["found"]["ari"] == 1 for row in own)
        claims.append(
            Claim(
                what=f"{name} finds that pattern",
                printed="the aim of HCCT",
                ours=f"in {right} of {len(own)} runs; error {said(own)} %",
                rule="in every run",
                holds=right == len(own),
                aside=aside,
            )
        )
    return tuple(claims)


def table_of_patterns(rows: Sequence[Row]) -> Table:
    """A row per pattern or method: each client's error, mean and standard deviation."""
    lines = []
    for name in labels(rows):
        own = of(rows, name)
        each = [
            plus_minus(interval((100 * (1 - found(own, "each")[:, i])).tolist()), 1)
            for i in range(3)
        ]
        lines.append(
            (
                name,
                *each,
                said(own),
                f"{100 * found(own, 'std').mean():.1f}",
                spread(own, "groups", digits=1),
            )
        )
    head = ("who trains with whom", "client 1, %", "client 2", "client 3", "mean", "std", "groups")
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def patterns(rows: Sequence[Row]) -> Figure:
    """Each client's error, a line of text per pattern or method."""
    names = labels(rows)
    made, ((axis,),) = panels(1, width=COLUMN + 0.8, height=0.24 * len(names) + 0.9)
    for place, name in enumerate(reversed(names)):
        for client in (1, 2, 3):
            each = 100 * (1 - found(of(rows, name), "each")[:, client - 1])
            look = {"color": COLOURS[client - 1]}
            axis.plot([each.min(), each.max()], [place] * 2, linewidth=1, **look)
            axis.plot(
                [each.mean()],
                [place],
                marker=MARKERS[client - 1],
                linestyle="",
                label=f"client {client}" if place == 0 else None,
                **look,
            )
    axis.set(yticks=range(len(names)), yticklabels=list(reversed(names)))
    axis.set_xlabel("test error, %; bars: least and greatest of seeds")
    axis.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    made.legend(loc="outside upper center", ncols=3)
    return made
