"""CFL's Separation Theorem, tried: F. Sattler, K.-R. Müller, W. Samek, arXiv 1910.01991, figure 3 and equations (30), (31).

Gradients of k data distributions and the noise of m = 3k clients are drawn at random in d = 100
dimensions. Theorem 1 promises a right cut for γ below ``sin(π / (4(k - 1)))``, the green area. The
paper finds one nearly always far beyond, "even for large k > 10 and γ_max > 1", the blue area.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.clustering import cosine, gram, guaranteed_gamma, optimal_bipartition, separation_gap
from coterie.randomness import Purpose, numpy_generator
from papers import cfl_figures as figures
from papers.numbers import mean, picked, values
from papers.study import Claim, Resources, Row, Study, Table

KINDS = {True: "stationary", False: "free"}
"""Whether the gradients sum to zero over the distributions, as the theory has them, in words."""


def gradients(
    k: int, gamma: float, per_distribution: int, d: int, stationary: bool, rng: np.random.Generator
) -> np.ndarray:
    """``(k * per_distribution, d)``: normal gradients of k distributions, and on each client's noise of γ times their norm.

    stationary: they sum to zero over the distributions, as at a stationary point with as many
        clients of each.
    """
    true = rng.standard_normal((k, d))
    if stationary:
        true -= true.mean(0)
    own = np.repeat(true, per_distribution, 0)
    noise = rng.standard_normal(own.shape)
    noise *= (
        gamma
        * np.linalg.norm(own, axis=1, keepdims=True)
        / np.linalg.norm(noise, axis=1, keepdims=True)
    )
    return own + noise


def try_cuts(
    on: Resources,
    *,
    k: int,
    gamma: float,
    stationary: bool,
    d: int,
    per_distribution: int,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Of so many draws, the share with a gap g(α) > 0 and the share whose best cut is right."""
    rng = numpy_generator(seed, Purpose.DATA, k, round(1000 * gamma), int(stationary))
    labels = np.repeat(np.arange(k), per_distribution)
    gaps = right = 0
    for _ in range(draws):
        similarity = cosine(gram(gradients(k, gamma, per_distribution, d, stationary, rng)))
        gaps += separation_gap(similarity, labels) > 0
        cut = optimal_bipartition(similarity)
        right += not {int(labels[i]) for i in cut.left} & {int(labels[i]) for i in cut.right}
    return {"gap": gaps / draws, "correct": right / draws}


def claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    still = _points(picked(rows, stationary=True))
    green = [own for (k, gamma), own in still.items() if gamma < guaranteed_gamma(k)]
    right = sum(own["correct"] == 1 for own in green)
    most = max(still, key=lambda at: still[at]["correct"] - still[at]["gap"])
    return (
        *(_far(kind, own) for kind in KINDS if (own := picked(rows, stationary=kind))),
        Claim(
            what="γ below sin(π / (4(k − 1)))",
            printed="always correct (Theorem 1)",
            ours=f"correct in every draw at {right} of {len(green)} points",
            rule="at all of them",
            holds=right == len(green) if green else None,
        ),
        Claim(
            what="a gap above zero and a right cut",
            printed="the one if and only if the other (Remark 2)",
            ours=f"at {_where(most)} a gap in {still[most]['gap']:.2f} of the draws, a right cut in "
            f"{still[most]['correct']:.2f}",
            rule="the same shares everywhere",
            holds=all(own["correct"] <= own["gap"] for own in still.values()),
        ),
    )


def _far(stationary: bool, rows: Sequence[Row]) -> Claim:
    """What is claimed of many distributions and much noise."""
    beyond = {
        (k, gamma): own["gap"] for (k, gamma), own in _points(rows).items() if k > 10 and gamma > 1
    }
    k, gamma = max(beyond, key=lambda at: (beyond[at] >= 0.95, at[1], at[0]))
    return Claim(
        what=f"k > 10 and γ > 1, {KINDS[stationary]} gradients",
        printed="P[g(α) > 0] ≈ 1",
        ours=f"{beyond[k, gamma]:.2f} at {_where((k, gamma))}",
        rule="at least 0.95 at some such point",
        holds=beyond[k, gamma] >= 0.95,
        aside="" if stationary else "a second reading of the same words",
    )


Point = tuple[int, float]
"""k and γ."""


def _points(rows: Sequence[Row]) -> dict[Point, dict[str, float]]:
    """(k, γ) -> the mean over seeds of each share."""
    each: dict[Point, list[Row]] = {}
    for row in rows:
        each.setdefault((row["cell"]["k"], row["cell"]["gamma"]), []).append(row)
    return {at: {of: mean(own, of) for of in ("gap", "correct")} for at, own in each.items()}


def _where(at: Point) -> str:
    return f"k = {at[0]}, γ = {at[1]:g}"


def table(rows: Sequence[Row]) -> Table:
    """P[g(α) > 0] / P[correct]: a row per k and kind of gradients, a column per γ."""
    gammas = values(rows, "gamma")
    lines = []
    for stationary, kind in KINDS.items():
        for k in values(picked(rows, stationary=stationary), "k"):
            each = (picked(rows, k=k, stationary=stationary, gamma=gamma) for gamma in gammas)
            shares = (f"{mean(own, 'gap'):.2g} / {mean(own, 'correct'):.2g}" for own in each)
            lines.append(
                (kind, str(k), *shares, f"{guaranteed_gamma(k):.2f}" if stationary else "–")
            )
    head = ("gradients", "k", *(f"γ = {gamma:g}" for gamma in gammas), "guaranteed below")
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


STUDIES = (
    Study(
        name="cfl/fig3",
        where="figure 3",
        what="How often the best cut is right, by the number of distributions and the noise",
        measure=try_cuts,
        claims=claims,
        figure=figures.cuts,
        table=table,
    ),
)
