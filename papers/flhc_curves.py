"""FL+HC over the rounds, and where there is nothing to find: C. Briggs, Z. Fan, P. Andras, arXiv 2004.11791, figures 1 to 6 and
what section III says of IID data and of plain Federated Learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.comparing import ONE_MODEL, curves, labels, method_table, of, train
from papers.drawing import PAGE, band, panels
from papers.numbers import found, mean, picked, values
from papers.study import Claim, Row, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, ON_IID = "FL+HC", f"{ONE_MODEL}, IID data"
SLACK = 0.01
"""By which an accuracy may be lower and still count as reached."""

LIKE_FL = 0.03
"""By which accuracies may differ and count as alike where the paper prints a factor of 1.0."""

CAPPED = 0.82
"""What one model can hardly pass where each quarter of the clients has two of ten labels otherwise: 0.8, and chance."""


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

    swap, capped = mean(own(3, OURS), "accuracy"), mean(own(3, ONE_MODEL), "accuracy")
    iid = mean(own(3, ON_IID), "accuracy")
    return (
        Claim(
            what="figure 3, exchanged labels: at the end beside FL on IID data",
            printed="within 0.1 points in most cases",
            ours=f"{swap:.3f} and {iid:.3f}",
            rule=f"{SLACK:g} below at most",
            holds=swap >= iid - SLACK,
        ),
        Claim(
            what="figure 3: FL at the end",
            printed="a maximum of 80 %",
            ours=f"{capped:.3f}",
            rule=f"{CAPPED:g} at most",
            holds=capped <= CAPPED,
        ),
        _fewer_rounds(own(5, OURS), own(5, ON_IID)),
        _sooner([(number, own(number, OURS), own(number, ONE_MODEL)) for number in (1, 2, 3, 5)]),
        *(_alike(number, own(number, OURS), own(number, ONE_MODEL)) for number in (4, 6)),
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
        ours=", ".join(f"figure {number}: {mine} and {its}" for number, (mine, its) in rounds.items()),
        rule="fewer than FL in each",
        holds=all(mine and its and mine < its for mine, its in rounds.values()),
    )


def _alike(number: int, own: Sequence[Row], joint: Sequence[Row]) -> Claim:
    mine, its = mean(own, "accuracy"), mean(joint, "accuracy")
    return Claim(
        what=f"figure {number}, writers: at the end beside FL",
        printed="1.0 of FL",
        ours=f"{mine:.3f} and {its:.3f}",
        rule=f"{LIKE_FL:g} apart at most",
        holds=abs(mine - its) <= LIKE_FL,
    )


def six(rows: Sequence[Row]) -> Figure:
    """A panel per figure of the paper: mean accuracy by the rounds; the dotted line is the round of clustering."""
    problems = values(rows, "problem")
    made, axes = panels(3, 2, width=PAGE, height=2.2, sharey=True)
    names = dict.fromkeys(name for problem in problems for name in labels(picked(rows, problem=problem)))
    place = {name: number for number, name in enumerate(names)}
    for axis, problem in zip(axes.flat, problems, strict=True):
        for name in labels(picked(rows, problem=problem)):
            own = of(rows, name, problem=problem)
            band(axis, own[0]["found"]["tested"], found(own, "curve"), place[name], name, marked=False)
        clustered = of(rows, OURS, problem=problem)[0]["cell"]["method"]["warmup"]
        axis.axvline(clustered, color="black", linewidth=0.6, linestyle=":")
        axis.set(title=problem, xlabel="round", ylabel="accuracy", ylim=(0, 1.02))
        axis.label_outer()
    known = {line.get_label(): line for axis in axes.flat for line in axis.lines if line.get_label() in place}
    made.legend([known[name] for name in place], list(place), loc="outside upper center", ncols=len(place))
    return made


# -- IID data --------------------------------------------------------------------------------------------------------------


def iid_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    alike = picked(rows, problem="IID")
    fractions = [name for name in labels(alike) if name.startswith(ONE_MODEL)]
    ends = {name: mean(of(alike, name), "accuracy") for name in fractions}
    capped = max(mean(of(rows, name, problem="label swap"), "accuracy") for name in fractions)
    whole = {name: _times_text(of(alike, name)) for name in labels(alike) if name not in fractions}
    runs = alike[-1]["cell"]["seed"] + 1
    later = [name for name in whole if name in ("FL+HC, n = 3", "FL+HC, n = 5", "FL+HC, n = 10")]
    metrics = ["FL+HC, l2 complete", "FL+HC, cosine average"]
    return (
        Claim(
            what="IID, FL+HC by Ward after 3, 5 and 10 rounds",
            printed="one cluster",
            ours=_text(whole, later, runs),
            rule="one group in every run",
            holds=all(whole[name] == runs for name in later),
        ),
        Claim(
            what="IID, L2 and cosine",
            printed="one cluster",
            ours=_text(whole, metrics, runs),
            rule="one group in every run",
            holds=all(whole[name] == runs for name in metrics),
        ),
        Claim(
            what="IID, L1",
            printed="split, and less accurate",
            ours=_text(whole, ["FL+HC, l1 complete"], runs),
            rule="not one group in every run",
            holds=whole["FL+HC, l1 complete"] < runs,
        ),
        Claim(
            what="IID, FL by client fraction",
            printed="99.1 % for all on MNIST",
            ours=", ".join(f"{end:.3f} ({name.partition(', ')[2]})" for name, end in ends.items()),
            rule=f"{2 * SLACK:g} apart at most",
            holds=max(ends.values()) - min(ends.values()) <= 2 * SLACK,
        ),
        Claim(
            what="exchanged labels, FL",
            printed="80 % at most",
            ours=f"{capped:.3f} at most",
            rule=f"{CAPPED:g} at most",
            holds=capped <= CAPPED,
        ),
    )


def _times_text(rows: Sequence[Row]) -> int:
    return sum(row["found"]["groups"] == 1 for row in rows)


def _text(whole: dict[str, int], names: Sequence[str], runs: int) -> str:
    return ", ".join(f"{name.partition(', ')[2]}: whole in {whole[name]} of {runs}" for name in names)


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
