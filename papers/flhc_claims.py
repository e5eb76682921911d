"""What FL+HC's tables say, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from papers.flhc_printed import ByLinkage, Printed
from papers.numbers import mean, picked, spread, values
from papers.study import Claim, Row

SAME = "MNIST"
"""The problem that the paper's numbers are of; another one's are not held against them."""

NEAR, EACH_NEAR = 0.5, 1.0
"""Percentage points within which an accuracy is the printed one: the main one, and every one of a table."""

TIE = 0.005
"""Accuracies nearer than this are in no order."""

SLACK = 0.01
"""By which an accuracy may be lower and not count as lower: the paper's factors have one decimal."""

MAIN = (0.2, 10)
"""Client fraction and round of clustering that the paper goes on with."""


def last(rows: Sequence[Row]) -> str:
    """The last round tested, as rows name it."""
    return str(rows[0]["cell"]["tested"][-1])


# -- tables I and II -------------------------------------------------------------------------------------------------------


def of_fractions(rows: Sequence[Row], printed: Printed, gain: float) -> tuple[Claim, ...]:
    end, problem = last(rows), rows[0]["cell"]["problem"]
    fractions, befores = values(rows, "fraction"), [n for n in values(rows, "rounds_before") if n]
    joint = {c: mean(picked(rows, fraction=c, rounds_before=0), end, "accuracy") for c in fractions}
    mine = {(c, n): mean(picked(rows, fraction=c, rounds_before=n), end, "accuracy") for c in fractions for n in befores}
    least = min(mine, key=lambda place: mine[place] - joint[place[0]])
    main = picked(rows, fraction=MAIN[0], rounds_before=MAIN[1])
    return (
        _main(
            main,
            (end, "accuracy"),
            f"C = {MAIN[0]:g}, n = {MAIN[1]}: accuracy in round {end}",
            printed[MAIN][1],
            problem,
            joint[MAIN[0]],
            gain,
        ),
        Claim(
            what="FL+HC beside FL, every C and n",
            printed=_factors(printed, problem),
            ours=f"at least {mine[least] - joint[least[0]]:+.3f} (C = {least[0]:g}, n = {least[1]}: {mine[least]:.3f} beside "
            f"{joint[least[0]]:.3f})",
            rule=f"nowhere less accurate than FL by {SLACK:g} or more",
            holds=mine[least] - joint[least[0]] > -SLACK,
        ),
        _at_once(rows, fractions, befores, printed),
    )


def _factors(printed: Printed, problem: str) -> str:
    least, most = (pick(end for _, end, _, _ in printed.values()) for pick in (min, max))
    return f"at least as accurate everywhere, {least:g} to {most:g} %" + (f" on {SAME}" if problem != SAME else "")


def _at_once(rows: Sequence[Row], fractions: Sequence[float], befores: Sequence[int], printed: Printed) -> Claim:
    """Clustering later gives better models at once."""

    def post(n: int) -> float:
        return sum(mean(picked(rows, fraction=c, rounds_before=n), str(n + 1), "accuracy") for c in fractions) / len(fractions)

    def paper(n: int) -> float:
        known = [printed[place][0] for place in printed if place[1] == n]
        return sum(known) / len(known)

    first, final = befores[0], befores[-1]
    return Claim(
        what="directly after clustering, early and late",
        printed=f"n = {first}: {paper(first):.1f} %, n = {final}: {paper(final):.1f} %",
        ours=f"{post(first):.3f} and {post(final):.3f}",
        rule="more accurate with the later one",
        holds=post(final) > post(first),
    )


def _main(
    rows: Sequence[Row], path: tuple[str, ...], what: str, printed: float, problem: str, joint: float, gain: float
) -> Claim:
    """One printed accuracy; where the problem is another, that FL+HC is above FL, whose accuracy is ``joint``, by ``gain``."""
    ours = f"{spread(rows, *path, digits=3)} (FL {joint:.3f})"
    got = mean(rows, *path)
    if problem == SAME:
        return Claim(
            what=what,
            printed=f"{printed:g} %",
            ours=ours,
            rule=f"within {NEAR:g} points of it",
            holds=abs(100 * got - printed) <= NEAR,
        )
    return Claim(
        what=what,
        printed=f"{printed:g} % on {SAME}",
        ours=ours,
        rule=f"above FL by {gain:g} or more",
        holds=got - joint >= gain,
    )


# -- tables IV and V -------------------------------------------------------------------------------------------------------


def of_linkages(rows: Sequence[Row], printed: ByLinkage, gain: float) -> tuple[Claim, ...]:
    """The best row, the printed best, all rows beside FL, the order of the metrics; of the paper's own problem every row, and
    of groups that are known whether they are found."""
    problem, names = rows[0]["cell"]["problem"], rows[0]["cell"]["linkages"]
    mine = {name: mean(rows, name, "end", "accuracy") for name in names}
    paper = {name: printed[name][1] for name in names if name in printed}
    best, theirs = max(mine, key=lambda name: mine[name]), max(paper.values())
    top = [name for name in paper if paper[name] == theirs]
    behind = mine[best] - max(mine[name] for name in top)
    claims: tuple[Claim, ...] = (
        _main(
            rows,
            (best, "end", "accuracy"),
            "the best metric and linkage, at the end: accuracy",
            theirs,
            problem,
            mean(rows, "fedavg", "end", "accuracy"),
            gain,
        ),
        Claim(
            what="the paper's best beside the best here",
            printed=f"{', '.join(top)}: {theirs:g} %",
            ours=f"{best}: {mine[best]:.3f}; the paper's best are {behind:.3f} behind",
            rule="0.01 behind at most",
            holds=behind <= 0.01,
        ),
        _beside(rows, names, min(paper.values())),
    )
    if len({name.split()[0] for name in paper}) == len({name.split()[0] for name in printed}):
        claims += (order(mine, paper),)
    if problem == SAME:
        claims += (_each(rows, {name: printed[name] for name in paper}),)
    return claims if rows[0]["found"][best]["end"]["ari"] is None else (*claims, _right(rows, top))


def _beside(rows: Sequence[Row], names: Sequence[str], paper: float) -> Claim:
    """At the end; directly after clustering, where FL was not run to the end."""
    when = "end" if rows[0]["found"]["fedavg"]["end"]["tested"][-1] == rows[0]["cell"]["rounds"] else "post"
    mine = {name: mean(rows, name, when, "accuracy") for name in names}
    least, joint = min(mine, key=lambda name: mine[name]), mean(rows, "fedavg", when, "accuracy")
    where = "at the end" if when == "end" else "directly after clustering"
    return Claim(
        what=f"every metric and linkage beside FL, {where}",
        printed=f"{paper:g} % or more at the end, none behind FL",
        ours=f"least {mine[least]:.3f} ({least}), FL {joint:.3f}",
        rule=f"none less accurate than FL by {SLACK:g} or more",
        holds=mine[least] - joint > -SLACK,
    )


def order(mine: Mapping[str, float], paper: Mapping[str, float]) -> Claim:
    """The metrics by the mean accuracy over their linkages, at the end."""

    def means(of: Mapping[str, float]) -> dict[str, float]:
        metrics = dict.fromkeys(name.split()[0] for name in paper)
        return {one: float(np.mean([of[name] for name in paper if name.split()[0] == one])) for one in metrics}

    theirs, ours = means(paper), means(mine)
    tied = max(ours.values()) - min(ours.values()) < TIE
    wrong = [(a, b) for a in theirs for b in theirs if theirs[a] - theirs[b] >= 100 * TIE and ours[b] - ours[a] >= TIE]
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
        ours=f"{away[most]:+.2f} points at most ({most[0]}, {'after' if most[1] == 'post' else 'end'})",
        rule=f"within {EACH_NEAR:g} point of each",
        holds=abs(away[most]) <= EACH_NEAR,
    )


def _right(rows: Sequence[Row], top: Sequence[str]) -> Claim:
    """Whether the paper's best find the groups that there are."""
    exact = {name: sum(row["found"][name]["end"]["ari"] == 1 for row in rows) for name in top}
    return Claim(
        what="the groups",
        printed="four",
        ours=f"the true ones, in {len(rows)} runs: {', '.join(f'{name} {times}' for name, times in exact.items())}",
        rule="in every run by one of the paper's best",
        holds=len(rows) in exact.values(),
    )
