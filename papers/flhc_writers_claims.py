"""What FL+HC's tables III and VI say of clients who are one writer each: sooner good, in the end no better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from papers.flhc_claims import HALF, last, least, like_fl, order, over
from papers.flhc_printed import END_3, TABLE_6
from papers.numbers import found, mean, picked, values
from papers.study import Claim, Row

N, AFTER = 5, 1.3
"""A round of clustering after which no run collapsed, and the least factor over FL directly after
it."""

COLLAPSED = 0.5
"""A ratio to FL below which a run counts as collapsed."""


def of_fractions(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """All rows in groups that do not collapse in the paper beside FL at the end; directly after clustering; those that do."""
    end = last(rows)
    places = [(c, n) for c in values(rows, "fraction") for n in values(rows, "rounds_before") if n]
    final = {place: over(rows, place, end) for place in places}
    told = [
        place
        for place in places
        if END_3.get(place, 0) >= COLLAPSED and _grouped(_of(rows, place), end)
    ]
    most = max(told, key=lambda place: abs(final[place] - END_3[place]), default=None)
    after = {f"C = {c:g}": over(rows, (c, n), str(n + 1)) for c, n in places if n == N}
    fallen = [place for place in places if final[place] < COLLAPSED]
    return (
        Claim(
            what="at the end beside FL, every C and n that does not collapse in the paper",
            printed="1.0 of FL, 0.9 with C = 0.1, n = 3",
            ours=f"of {len(told)}, the furthest: "
            + (f"{final[most]:.2f} of FL (C = {most[0]:g}, n = {most[1]})" if most else "–"),
            rule=f"within {HALF:g} of the printed factor, each with two groups or more in every run",
            holds=abs(final[most] - END_3[most]) <= HALF if most else None,
        ),
        least(
            f"n = {N}: directly after clustering beside FL",
            "1.3 to 1.4 of FL",
            after,
            dict.fromkeys(after, AFTER),
        ),
        Claim(
            what="runs that collapse",
            printed="3 of 15, to 5.1 % (C = 0.2, n = 10), 17.2 % and 32.3 %",
            ours=f"{len(fallen)} of {len(places)}",
            rule=f"one or more below {COLLAPSED:g} of FL",
            holds=bool(fallen),
        ),
    )


def _of(rows: Sequence[Row], place: tuple[float, int]) -> list[Row]:
    return picked(rows, fraction=place[0], rounds_before=place[1])


def _grouped(rows: Sequence[Row], *path: str) -> bool:
    """Whether every run has two groups or more: one is FL itself."""
    return bool((found(rows, *path, "groups") > 1).all())


def of_linkages(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """The best beside FL, cosine beside FL, the order of the metrics. One group, if a cut makes it, is FL itself."""
    names = [name for name in rows[0]["cell"]["linkages"] if name in TABLE_6]
    mine = {name: mean(rows, name, "end", "accuracy") for name in names}
    joint, best = mean(rows, "fedavg", "end", "accuracy"), max(mine, key=lambda name: mine[name])
    cosine = max((name for name in names if name.startswith("cosine")), key=lambda name: mine[name])
    first = like_fl(
        "the best metric and linkage at the end, beside FL",
        "78.7 % (L2 complete, L1 single), 1.0 of FL",
        mine[best] / joint,
    )
    return (
        replace(
            first,
            rule=f"{first.rule}, in two groups or more in every run",
            holds=first.holds if _grouped(rows, best, "end") else None,
        ),
        Claim(
            what="cosine beside FL at the end",
            printed="64.3 to 74.2 %, 0.8 to 0.9 of FL",
            ours=f"{mine[cosine] / joint:.3f} of FL ({cosine}, the best)",
            rule=f"{1 - HALF:g} of FL at most; undecided where one group, which is FL, is among the cuts",
            holds=None if 1 in rows[0]["cell"]["counts"] else mine[cosine] / joint <= 1 - HALF,
        ),
        order(mine, {name: TABLE_6[name][1] for name in names}),
    )
