"""What FL+HC's tables say, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from papers.flhc_printed import ByLinkage, Printed
from papers.numbers import by, mean, picked, spread, values
from papers.study import Claim, Row

SAME = "MNIST"
"""The problem that the paper's numbers are of; another one's are not held against them, but the
factors over FL are."""

NEAR = 0.5
"""Percentage points within which an accuracy is the printed one."""

HALF = 0.05
"""Half a place of the paper's factors over FL, which have one decimal: 1.15 prints as 1.2."""

TIE = 0.005
"""Accuracies nearer than this are in no order."""

ALIKE = 0.01
"""Rows that are all within this of each other do not tell which is the best."""

MAIN = (0.2, 10)
"""Client fraction and round of clustering that the paper goes on with."""

Everywhere = tuple[str, float]
"""A number that every row has, and its least printed factor over FL: the share of clients at the
target, or accuracy."""

NAMES = {"share": "clients at the target", "accuracy": "accuracy"}


def last(rows: Sequence[Row]) -> str:
    """The last round tested, as rows name it."""
    return str(rows[0]["cell"]["tested"][-1])


def times(own: float, joint: float) -> float:
    """How many times FL's number this is, which can be 0.

    >>> times(3.0, 2.0), times(0.1, 0.0), times(0.0, 0.0)
    (1.5, inf, 0.0)
    """
    return own / joint if joint else float("inf" if own else 0)


def over(rows: Sequence[Row], place: tuple[float, int], when: str, name: str = "accuracy") -> float:
    """What FL+HC has of FL's number, with this client fraction and round of clustering."""
    return times(
        *(mean(picked(rows, fraction=place[0], rounds_before=n), when, name) for n in (place[1], 0))
    )


def least(
    what: str, printed: str, ratios: Mapping[str, float], factors: Mapping[str, float]
) -> Claim:
    """Every ratio to FL is what prints as its least factor, or more."""
    worst = min(ratios, key=lambda name: ratios[name] - factors[name])
    return Claim(
        what=what,
        printed=printed,
        ours=f"{ratios[worst]:.2f} ({worst}), the least beside the paper's",
        rule=f"none less than the least printed factor by more than {HALF:g}",
        holds=all(ratios[name] >= factors[name] - HALF for name in ratios),
    )


def per_problem(claims: Callable[..., tuple[Claim, ...]]) -> Callable[..., tuple[Claim, ...]]:
    """Make the claims of each problem, which they name where there are several."""

    @wraps(claims)
    def of(rows: Sequence[Row], **how: Any) -> tuple[Claim, ...]:
        each = {problem: claims(own, **how) for problem, own in by(rows, "problem").items()}
        named = [
            replace(claim, what=f"{problem}: {claim.what}")
            for problem, own in each.items()
            for claim in own
        ]
        return tuple(named) if len(each) > 1 else next(iter(each.values()))

    return of


# -- tables I and II
# -------------------------------------------------------------------------------------------------------


@per_problem
def of_fractions(
    rows: Sequence[Row],
    printed: Printed,
    factor: float,
    everywhere: Everywhere,
    after: Mapping[int, float],
) -> tuple[Claim, ...]:
    """The main row's accuracy, or where the problem is another its ``factor`` over FL; all rows beside FL, at the end and
    directly ``after`` clustering, where the least factors are by the round of clustering."""
    end, (name, at_least) = last(rows), everywhere
    after = {n: after[n] for n in values(rows, "rounds_before") if n in after}
    places = {f"C = {c:g}, n = {n}": (c, n) for c in values(rows, "fraction") for n in after}
    joint = mean(picked(rows, fraction=MAIN[0], rounds_before=0), end, "accuracy")
    main = picked(rows, fraction=MAIN[0], rounds_before=MAIN[1])
    return (
        _main(
            main,
            (end, "accuracy"),
            f"C = {MAIN[0]:g}, n = {MAIN[1]}: accuracy in round {end}",
            printed[MAIN][1],
            joint,
            factor,
        ),
        least(
            f"{NAMES[name]} in round {end} beside FL, every row",
            f"{at_least:g} of FL or more",
            {text: over(rows, place, end, name) for text, place in places.items()},
            dict.fromkeys(places, at_least),
        ),
        least(
            "accuracy directly after clustering beside FL, every row",
            "at least " + ", ".join(f"{one:.1f} of FL (n = {n})" for n, one in after.items()),
            {text: over(rows, place, str(place[1] + 1)) for text, place in places.items()},
            {text: after[n] for text, (_, n) in places.items()},
        ),
    )


def _main(
    rows: Sequence[Row],
    path: tuple[str, ...],
    what: str,
    printed: float,
    joint: float,
    factor: float,
) -> Claim:
    """One printed accuracy; where the problem is another, its ``factor`` over FL, whose accuracy is ``joint``."""
    got, ours = mean(rows, *path), f"{spread(rows, *path, digits=3)} (FL {joint:.3f})"
    if rows[0]["cell"]["problem"] == SAME:
        rule, holds = f"within {NEAR:g} points of it", abs(100 * got - printed) <= NEAR
        return Claim(what=what, printed=f"{printed:g} %", ours=ours, rule=rule, holds=holds)
    said = f"{printed:g} % on {SAME}, {factor:.1f} of FL"
    return like_fl(what, said, got / joint, factor, ours)


def like_fl(what: str, printed: str, ratio: float, factor: float = 1.0, ours: str = "") -> Claim:
    """A ratio to FL that prints as 1.0, or as a greater factor or one above it."""
    alike = factor == 1
    return Claim(
        what=what,
        printed=printed,
        ours=f"{ratio:.2f} of FL{ours and ': '}{ours}",
        rule=f"{factor - HALF:g} to {factor + HALF:g} of FL"
        if alike
        else f"{factor - HALF:g} of FL or more",
        holds=ratio >= factor - HALF and (ratio <= factor + HALF or not alike),
    )


# -- tables IV and V
# -------------------------------------------------------------------------------------------------------


@per_problem
def of_linkages(
    rows: Sequence[Row], printed: ByLinkage, factor: float, everywhere: Everywhere
) -> tuple[Claim, ...]:
    """The best row, the printed best, all rows beside FL, the order of the metrics; of the paper's own problem every row, and
    of groups that are known whether they are found."""
    names = rows[0]["cell"]["linkages"]
    mine = {name: mean(rows, name, "end", "accuracy") for name in names}
    paper = {name: printed[name][1] for name in names if name in printed}
    best, theirs = max(mine, key=lambda name: mine[name]), max(paper.values())
    top = [name for name in paper if paper[name] == theirs]
    joint = mean(rows, "fedavg", "end", "accuracy")
    claims: tuple[Claim, ...] = (
        _main(
            rows,
            (best, "end", "accuracy"),
            "the best metric and linkage, at the end: accuracy",
            theirs,
            joint,
            factor,
        ),
        _best(mine, top, theirs),
        _beside(rows, names, everywhere),
    )
    if len({name.split()[0] for name in paper}) == len({name.split()[0] for name in printed}):
        claims += (order(mine, paper),)
    if rows[0]["cell"]["problem"] == SAME:
        claims += (_each(rows, {name: printed[name] for name in paper}),)
    return claims if rows[0]["found"][best]["end"]["ari"] is None else (*claims, _right(rows, top))


def _best(mine: Mapping[str, float], top: Sequence[str], theirs: float) -> Claim:
    best = max(mine, key=lambda name: mine[name])
    behind = mine[best] - max(mine[name] for name in top)
    told = max(mine.values()) - min(mine.values()) > ALIKE and set(mine) != set(top)
    return Claim(
        what="the paper's best beside the best here",
        printed=f"{', '.join(top)}: {theirs:g} %",
        ours=f"{best}: {mine[best]:.3f}; the paper's best are {behind:.3f} behind",
        rule=f"{TIE:g} behind at most; the paper's best alone, or all within {ALIKE:g}, tell nothing",
        holds=behind <= TIE if told else None,
    )


def _beside(rows: Sequence[Row], names: Sequence[str], everywhere: Everywhere) -> Claim:
    """At the end; directly after clustering, where FL was not run to the end."""
    name, at_least = everywhere
    when = (
        "end"
        if rows[0]["found"]["fedavg"]["end"]["tested"][-1] == rows[0]["cell"]["rounds"]
        else "post"
    )
    return least(
        f"{NAMES[name]} {'at the end' if when == 'end' else 'directly after clustering'} beside FL, every metric and linkage",
        f"{at_least:g} of FL or more",
        {
            one: times(mean(rows, one, when, name), mean(rows, "fedavg", when, name))
            for one in names
        },
        dict.fromkeys(names, at_least),
    )


def order(mine: Mapping[str, float], paper: Mapping[str, float]) -> Claim:
    """The metrics by the mean accuracy over their linkages, at the end."""

    def means(of: Mapping[str, float]) -> dict[str, float]:
        metrics = dict.fromkeys(name.split()[0] for name in paper)
        return {
            one: float(np.mean([of[name] for name in paper if name.split()[0] == one]))
            for one in metrics
        }

    theirs, ours = means(paper), means(mine)
    tied = max(ours.values()) - min(ours.values()) < TIE
    wrong = [
        (a, b)
        for a in theirs
        for b in theirs
        if theirs[a] - theirs[b] >= 100 * TIE and ours[b] - ours[a] >= TIE
    ]
    return Claim(
        what="the order of the metrics",
        printed=_ranked(theirs, 1, " %"),
        ours=_ranked(ours, 3),
        rule=f"none ahead of one that is printed ahead of it by {TIE:g} or more; all within that tell nothing",
        holds=None if tied else not wrong,
    )


def _ranked(means: Mapping[str, float], digits: int, unit: str = "") -> str:
    order = sorted(means, key=lambda name: -means[name])
    return ", ".join(f"{name} {means[name]:.{digits}f}{unit}" for name in order)


def _each(rows: Sequence[Row], printed: ByLinkage) -> Claim:
    """Every printed accuracy, directly after clustering and at the end."""
    away = {
        (name, when): 100 * mean(rows, name, when, "accuracy") - paper[place]
        for name, paper in printed.items()
        for place, when in enumerate(("post", "end"))
    }
    most = max(away, key=lambda place: abs(away[place]))
    said = "; ".join(f"{name} {paper[0]:g} %, {paper[1]:g} %" for name, paper in printed.items())
    return Claim(
        what="every row, directly after clustering and at the end",
        printed=said,
        ours=f"{away[most]:+.3f} points at most ({most[0]}, {'after' if most[1] == 'post' else 'end'})",
        rule=f"within {NEAR:g} points of each",
        holds=abs(away[most]) <= NEAR,
    )


def _right(rows: Sequence[Row], top: Sequence[str]) -> Claim:
    """Whether the paper's best find the groups that there are."""
    exact = {name: sum(row["found"][name]["end"]["ari"] == 1 for row in rows) for name in top}
    return Claim(
        what="the groups",
        printed="four",
        ours=f"the true ones, in {len(rows)} runs: {', '.join(f'{name} {times}' for name, times in exact.items())}",
        rule="in every run, by each of the paper's best",
        holds=all(times == len(rows) for times in exact.values()),
    )
