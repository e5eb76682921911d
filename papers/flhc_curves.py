"""FL+HC over the rounds, and where there is nothing to find: C. Briggs, Z. Fan, P. Andras, arXiv 2004.11791, figures 1 to 6 and
what section III says of IID data and of plain Federated Learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.comparing import ONE_MODEL, curves, labels, method_table, of, train
from papers.drawing import PAGE, band, panels
from papers.numbers import found, mean, picked, surely_less, values
from papers.study import Claim, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, ON_IID = "FL+HC", f"{ONE_MODEL}, IID data"
SAMPLED = f"{ONE_MODEL}, C = 0.2"
TENTH = 0.0015
"""By which an accuracy may be lower where the paper prints a difference of 0.1 points."""

APART = 0.002
"""By which accuracies may differ where the paper prints one number, in percent with one decimal,
for all."""

LIKE_FL = 0.03
"""By which accuracies may differ and count as alike where the paper prints a factor of 1.0."""

CAPPED = 0.82
"""What one model can hardly pass where each quarter of the clients has two of ten labels otherwise:
0.8, and chance."""


def figure_of(problem: str) -> int:
    """Which of the paper's figures a problem is of."""
    return int(problem.partition(":")[0])


def round_of(rows: Sequence[Row], level: float) -> int | None:
    """The first round in which the mean curve is at a level."""
    mean_curve = found(rows, "curve").mean(axis=0)
    reached = np.flatnonzero(mean_curve >= level)
    return int(rows[0]["found"]["tested"][reached[0]]) if len(reached) else None


def curve_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    problems = {figure_of(problem): problem for problem in values(rows, "problem")}

    def own(number: int, label: str) -> list[Row]:
        return of(rows, label, problem=problems[number])

    swap, iid = (found(own(3, label), "accuracy") for label in (OURS, ON_IID))
    return (
        Claim(
            what="figure 3, exchanged labels: at the end beside FL on IID data",
            printed="within 0.1 points in most cases",
            ours=f"{swap.mean():.3f} and {iid.mean():.3f}",
            rule=f"{TENTH:g} below at most; undecided where the interval of the difference contains it",
            holds=surely_less(iid - TENTH, swap),
        ),
        _capped("figure 3: FL at the end", mean(own(3, ONE_MODEL), "accuracy")),
        _fewer_rounds(own(5, OURS), own(5, ON_IID)),
        _sooner([(number, own(number, OURS), own(number, ONE_MODEL)) for number in (1, 2, 3, 5)]),
        *(
            _alike(number, own(number, OURS), own(number, ONE_MODEL))
            for number in (4, 6)
            if number in problems
        ),
    )


def _capped(what: str, accuracy: float) -> Claim:
    """Exchanged labels: one model for all."""
    rule, ours = f"{CAPPED:g} at most", f"{accuracy:.3f}"
    aside = "any one model is below it"
    return Claim(
        what=what,
        printed="a maximum of 80 %",
        ours=ours,
        rule=rule,
        holds=accuracy <= CAPPED,
        aside=aside,
    )


def _fewer_rounds(own: Sequence[Row], iid: Sequence[Row]) -> Claim:
    """Figure 5: "5x fewer rounds" than Federated Learning on IID data."""
    last, clustered = own[0]["cell"]["rounds"], own[0]["cell"]["method"]["warmup"]
    reached, level = round_of(own, mean(iid, "accuracy")), mean(iid, "accuracy")
    return Claim(
        what="figure 5, two labels: rounds to what FL has on IID data at the end",
        printed=f"{clustered} in place of {last}: five times fewer",
        ours=f"{reached or 'not reached'} ({level:.3f})",
        rule=f"{clustered + 1} or fewer: directly after clustering",
        holds=reached is not None and reached <= clustered + 1,
    )


def _sooner(pairs: Sequence[tuple[int, Sequence[Row], Sequence[Row]]]) -> Claim:
    rounds = {
        number: (round_of(own, mean(joint, "accuracy")), round_of(joint, mean(joint, "accuracy")))
        for number, own, joint in pairs
    }
    return Claim(
        what="figures 1, 2, 3 and 5: rounds to what FL has at the end",
        printed="fewer than FL",
        ours=", ".join(
            f"figure {number}: {mine} and {its}" for number, (mine, its) in rounds.items()
        ),
        rule="fewer than FL in each",
        holds=all(mine and its and mine < its for mine, its in rounds.values()),
    )


def _alike(number: int, own: Sequence[Row], joint: Sequence[Row]) -> Claim:
    mine, its = mean(own, "accuracy"), mean(joint, "accuracy")
    return Claim(
        what=f"figure {number}, writers: at the end beside FL",
        printed="1.0 of FL",
        ours=f"{mine:.3f} and {its:.3f}",
        rule=f"{LIKE_FL:g} apart at most; undecided where a run has one group, which is FL",
        holds=abs(mine - its) <= LIKE_FL if (found(own, "groups") > 1).all() else None,
    )


def six(rows: Sequence[Row]) -> Figure:
    """A panel per figure of the paper that was run: mean accuracy by the rounds; the dotted line is the round of clustering."""
    problems = values(rows, "problem")
    made, axes = panels(-(-len(problems) // 2), 2, width=PAGE, height=2.2, sharey=True)
    names = dict.fromkeys(
        name for problem in problems for name in labels(picked(rows, problem=problem))
    )
    place = {name: number for number, name in enumerate(names)}
    for axis, problem in zip(axes.flat, problems, strict=True):
        for name in labels(picked(rows, problem=problem)):
            own = of(rows, name, problem=problem)
            band(
                axis,
                own[0]["found"]["tested"],
                found(own, "curve"),
                place[name],
                name,
                marked=False,
            )
        clustered = of(rows, OURS, problem=problem)[0]["cell"]["method"]["warmup"]
        axis.axvline(clustered, color="black", linewidth=0.6, linestyle=":")
        axis.set(title=problem, xlabel="round", ylabel="accuracy", ylim=(0, 1.02))
        axis.label_outer()
    known = {
        line.get_label(): line
        for axis in axes.flat
        for line in axis.lines
        if line.get_label() in place
    }
    made.legend(
        [known[name] for name in place], list(place), loc="outside upper center", ncols=len(place)
    )
    return made


# -- IID data
# --------------------------------------------------------------------------------------------------------------


def iid_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    alike = picked(rows, problem="IID")
    fractions = [name for name in labels(alike) if name.startswith(ONE_MODEL)]
    ends = {name: found(of(alike, name), "accuracy") for name in labels(alike)}
    whole = {name: (found(of(alike, name), "groups") == 1) for name in labels(alike)}
    first, *later = (f"{OURS}, n = {n}" for n in (1, 3, 5, 10))
    metrics, l1 = [f"{OURS}, l2 complete", f"{OURS}, cosine average"], f"{OURS}, l1 complete"
    return (
        Claim(
            what="IID, FL+HC by Ward after 1, 3, 5 and 10 rounds: the groups",
            printed="split after 1, one cluster after the others",
            ours=_text(whole, [first, *later]),
            rule="one group in every run, after 1 round in none",
            holds=all(whole[name].all() for name in later) and not whole[first].any(),
        ),
        Claim(
            what="IID, FL+HC by Ward after 1 round: accuracy beside FL",
            printed="very slightly reduced",
            ours=f"{ends[first].mean():.3f} and {ends[SAMPLED].mean():.3f}",
            rule="less; undecided where the interval of the difference contains 0",
            holds=surely_less(ends[first], ends[SAMPLED]),
        ),
        Claim(
            what="IID, L2 and cosine",
            printed="one cluster",
            ours=_text(whole, metrics),
            rule="one group in every run",
            holds=all(whole[name].all() for name in metrics),
            aside="a threshold that never splits passes",
        ),
        Claim(
            what="IID, L1",
            printed="split, and less accurate",
            ours=_text(whole, [l1]),
            rule="not one group in every run",
            holds=not whole[l1].all(),
        ),
        _by_fraction({name: ends[name] for name in fractions}),
        _capped(
            "exchanged labels, FL",
            max(mean(of(rows, name, problem="label swap"), "accuracy") for name in fractions),
        ),
    )


def _by_fraction(ends: Mapping[str, np.ndarray]) -> Claim:
    """The client fractions of the least and the most accurate model."""
    low, high = (pick(ends.values(), key=lambda each: float(each.mean())) for pick in (min, max))
    return Claim(
        what="IID, FL by client fraction",
        printed="99.1 % for all on MNIST",
        ours=", ".join(
            f"{end.mean():.3f} ({name.partition(', ')[2]})" for name, end in ends.items()
        ),
        rule=f"{APART:g} apart at most; undecided where the interval of the greatest difference contains it",
        holds=surely_less(high - APART, low),
    )


def _text(whole: Mapping[str, np.ndarray], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name.partition(', ')[2]}: one cluster in {whole[name].sum()} of {len(whole[name])}"
        for name in names
    )


STUDIES = (
    Study(
        name="flhc/fig1-6",
        where="figures 1 to 6",
        what="accuracy by the rounds, beside Federated Learning",
        measure=train,
        claims=curve_claims,
        figure=six,
        table=method_table,
    ),
    Study(
        name="flhc/iid",
        where="section III",
        what="clients who are all alike, and Federated Learning by client fraction",
        measure=train,
        claims=iid_claims,
        figure=curves,
        table=method_table,
    ),
)
