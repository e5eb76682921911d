"""What FL+HC's tables III and VI say of clients who are one writer each: sooner good, in the end no better."""

from __future__ import annotations

from collections.abc import Sequence

from papers.flhc_claims import last, order
from papers.flhc_printed import TABLE_3, TABLE_6
from papers.numbers import mean, picked, values
from papers.study import Claim, Row

MAIN = (0.2, 5)
"""Client fraction and round of clustering of a row that did not collapse, of which the paper has neighbours."""

LIKE_FL = (0.95, 1.05)
"""Ratios that the paper, with one decimal, prints as 1.0."""

COLLAPSED = 0.5
"""A ratio to FL below which a run counts as collapsed."""


def of_fractions(rows: Sequence[Row]) -> tuple[Claim, ...]:
    end = last(rows)
    places = [(c, n) for c in values(rows, "fraction") for n in values(rows, "rounds_before") if n]
    final = {place: _ratio(rows, place, end) for place in places}
    after = {place: _ratio(rows, place, str(place[1] + 1)) for place in places}
    c, n = MAIN
    fallen = [place for place in places if final[place] < COLLAPSED]
    return (
        _like_fl(
            f"C = {c:g}, n = {n}: accuracy at the end beside FL", f"{TABLE_3[MAIN][1]:g} % on FEMNIST, 1.0 of FL", final[MAIN]
        ),
        Claim(
            what=f"n = {n}: directly after clustering beside FL",
            printed="1.3 to 1.4 of FL",
            ours=", ".join(f"{after[place]:.2f} (C = {place[0]:g})" for place in places if place[1] == n),
            rule="above FL in that round, at every C",
            holds=all(after[place] > 1 for place in places if place[1] == n),
        ),
        Claim(
            what="runs that collapse",
            printed="3 of 15, to 5.1 % (C = 0.2, n = 10), 17.2 % and 32.3 %",
            ours=f"{len(fallen)} of {len(places)}",
            rule="none to hold: the paper does not say why",
            holds=None,
        ),
    )


def _ratio(rows: Sequence[Row], place: tuple[float, int], when: str) -> float:
    own, joint = (picked(rows, fraction=place[0], rounds_before=n) for n in (place[1], 0))
    return mean(own, when, "accuracy") / mean(joint, when, "accuracy")


def _like_fl(what: str, printed: str, ratio: float) -> Claim:
    (low, high), ours = LIKE_FL, f"{ratio:.3f} of FL"
    return Claim(what=what, printed=printed, ours=ours, rule=f"{low:g} to {high:g} of FL", holds=low <= ratio <= high)


def of_linkages(rows: Sequence[Row]) -> tuple[Claim, ...]:
    names = [name for name in rows[0]["cell"]["linkages"] if name in TABLE_6]
    mine = {name: mean(rows, name, "end", "accuracy") for name in names}
    joint, best = mean(rows, "fedavg", "end", "accuracy"), max(mine, key=lambda name: mine[name])
    cosine = max((name for name in names if name.startswith("cosine")), key=lambda name: mine[name])
    return (
        _like_fl(
            "the best metric and linkage at the end, beside FL",
            "78.7 % (L2 complete, L1 single), 1.0 of FL",
            mine[best] / joint,
        ),
        Claim(
            what="cosine beside FL at the end",
            printed="64.3 to 74.2 %, 0.8 to 0.9 of FL",
            ours=f"{mine[cosine] / joint:.3f} of FL ({cosine}, the best)",
            rule="0.95 of FL at most",
            holds=mine[cosine] / joint <= LIKE_FL[0],
        ),
        order(mine, {name: TABLE_6[name][1] for name in names}),
    )
