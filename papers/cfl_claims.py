"""What CFL's figures 4 to 7 say, beside what came out here: the rules of the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from papers.halved import SPLIT_HALF
from papers.numbers import found, mean, picked, spread, stays_above, values
from papers.study import Claim, Row, Table
from papers.watched import GRADIENTS, UPDATES

ENOUGH_EXAMPLES = {"MNIST": 20, "CIFAR-10": 500}
"""The paper's problems -> how many examples of a client suffice for a right cut."""

ENOUGH_ROUNDS = 10
"""Rounds that suffice for a right cut, on both of the paper's problems."""

ABLATIONS = {
    "CIFAR-10, 500 examples": "with a third of the paper's examples",
    "CIFAR-10, learning rate 0.02": "a learning rate that was chosen after a look at the result",
}
"""Problems that are one of the paper's with another setting, and why they do not count."""

NOT_PRINTED = "the paper has no number of this problem"


# -- figure 4
# --------------------------------------------------------------------------------------------------------------


def tree_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    right = [row["found"]["groups"] == row["found"]["truth"] for row in rows]
    new = [
        _at_home(row["found"], int(client)) for row in rows for client in row["found"]["newcomers"]
    ]
    return (
        Claim(
            what="leaves of the tree",
            printed="groups of congruent clients (illustration)",
            ours=f"exactly the true groups in {sum(right)} of {len(right)} runs",
            rule="in all runs",
            holds=all(right),
        ),
        Claim(
            what="newcomers walk down the tree (Algorithm 4)",
            printed="to the most similar branch",
            ours=f"{sum(new)} of {len(new)} reach the leaf of their group",
            rule="all: a leaf with founders, and with no client of another group",
            holds=all(new),
        ),
    )


def _at_home(found: Mapping[str, Any], client: int) -> bool:
    """Whether a newcomer's leaf has founders and no client of another true group."""
    leaf, kin = (
        next(set(group) for group in found[of] if client in group) for of in ("groups", "truth")
    )
    return leaf <= kin and not leaf <= set(map(int, found["newcomers"]))


# -- figure 5
# --------------------------------------------------------------------------------------------------------------


def gap_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    return tuple(
        claim
        for problem in values(rows, "problem")
        for claim in _gap_claims(problem, picked(rows, problem=problem))
    )


def _gap_claims(problem: str, rows: Sequence[Row]) -> tuple[Claim, ...]:
    sizes = sorted(values(rows, "examples"))
    means = {
        of: [mean(picked(rows, examples=size), of, "gap") for size in sizes]
        for of in (UPDATES, GRADIENTS)
    }
    above = {of: stays_above(points) for of, points in means.items()}
    enough = {of: None if place is None else sizes[place] for of, place in above.items()}
    rises = all(after > before for before, after in pairwise(means[UPDATES]))
    printed = ENOUGH_EXAMPLES.get(problem)
    shares = [mean(picked(rows, examples=size), UPDATES, "correct") for size in sizes]
    correct_from = _correct_from(sizes, shares)
    of_updates, of_gradients = (enough[of] or np.inf for of in (UPDATES, GRADIENTS))
    better = sum(a > b for a, b in zip(means[UPDATES], means[GRADIENTS], strict=True))
    return (
        Claim(
            what=f"{problem}: examples for a correct bipartition",
            printed=f"≈ {printed}" if printed else "– (MNIST ≈ 20)",
            ours=f"{_number(correct_from)}; {_when_above(enough[UPDATES])}",
            rule=f"correct in most seeds at {printed}, and in every seed at all greater sizes"
            if printed
            else NOT_PRINTED,
            holds=(correct_from or np.inf) <= printed if printed else None,
        ),
        Claim(
            what=f"{problem}: the gap with more examples",
            printed="grows monotonically",
            ours=", ".join(f"{point:.2f}" for point in means[UPDATES]),
            rule="every mean above the one before",
            holds=rises,
        ),
        Claim(
            what=f"{problem}: weight-updates beside gradients",
            printed="better separation with fewer examples",
            ours=f"greater gap at {better} of {len(sizes)} sizes; above zero from {_number(enough[UPDATES])} beside "
            f"{_number(enough[GRADIENTS])}",
            rule="a greater gap at all sizes, and above zero at some size, with no more examples",
            holds=better == len(sizes) and of_updates <= min(of_gradients, max(sizes)),
        ),
    )


def _correct_from(sizes: Sequence[int], shares: Sequence[float]) -> int | None:
    """The least number of examples with a correct bipartition in most seeds, and in every seed with more examples."""
    enough = None
    for size, share in zip(reversed(sizes), reversed(shares), strict=True):
        if share <= 0.5:
            break
        enough = size
        if share < 1:
            break
    return enough


def gap_table(rows: Sequence[Row]) -> Table:
    """The gap and how often the best cut was right, and how often split-half's groups are the true ones: a row per size."""
    lines = []
    for problem in values(rows, "problem"):
        for size in sorted(values(picked(rows, problem=problem), "examples")):
            own = picked(rows, problem=problem, examples=size)
            cells = []
            for of in (UPDATES, GRADIENTS):
                right = sum(row["found"][of]["correct"] for row in own)
                cells += [spread(own, of, "gap"), f"{right:.0f} of {len(own)}"]
            tests = [row["found"][SPLIT_HALF] for row in own]
            alike = (
                "–"
                if any(each["p"] is None for each in tests)
                else f"{np.median([each['p'] for each in tests]):.1g}"
            )
            lines.append(
                (
                    problem,
                    str(size),
                    *cells,
                    alike,
                    f"{sum(each['ari'] == 1 for each in tests)} of {len(own)}",
                )
            )
    head = (
        "problem",
        "examples",
        "g(α) of updates",
        "right cut",
        "g(α) of gradients",
        "right cut",
        "split-half: p, median",
        "true groups",
    )
    return Table(head, tuple(lines), "l" + "r" * (len(head) - 1))


def _number(value: int | None) -> str:
    return "none tried" if value is None else str(value)


# -- figure 6
# --------------------------------------------------------------------------------------------------------------


def round_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    out: list[Claim] = []
    for problem in values(rows, "problem"):
        own = picked(rows, problem=problem)
        means = {of: found(own, of, "gap").mean(0) for of in (UPDATES, GRADIENTS)}
        rank = float(spearmanr(np.arange(len(means[UPDATES])), means[UPDATES]).statistic)
        first = {
            of: place + 1
            for of, points in means.items()
            if (place := stays_above(list(points))) is not None
        }
        rounds = {of: str(first.get(of, "never")) for of in means}
        # The share of seeds in which the best cut by updates is correct, round by round.
        correct_shares = found(own, UPDATES, "correct").mean(0)
        correct_place = stays_above(list(correct_shares), level=1 - 1e-9)
        correct_from = None if correct_place is None else correct_place + 1
        of_updates, of_gradients = (first.get(of, np.inf) for of in (UPDATES, GRADIENTS))
        aside = ABLATIONS.get(problem, "")
        printed = problem in ENOUGH_EXAMPLES or problem in ABLATIONS
        out += [
            Claim(
                what=f"{problem}: rounds for a correct bipartition",
                printed=f"≈ {ENOUGH_ROUNDS}"
                if printed
                else f"– (MNIST and CIFAR-10 ≈ {ENOUGH_ROUNDS})",
                ours=f"{correct_from or 'never'}; {_when_above(first.get(UPDATES))}",
                rule=f"correct in every seed from round {ENOUGH_ROUNDS} to the end"
                if printed
                else NOT_PRINTED,
                holds=(correct_from or np.inf) <= ENOUGH_ROUNDS if printed else None,
                aside=aside,
            ),
            Claim(
                what=f"{problem}: the gap with more rounds",
                printed="increases monotonically",
                ours=f"{means[UPDATES][0]:.2f} to {means[UPDATES][-1]:.2f}; rank correlation with the round {rank:.2f}",
                rule="rank correlation at least 0.9",
                holds=rank >= 0.9,
                aside=aside,
            ),
            Claim(
                what=f"{problem}: weight-updates beside gradients",
                printed="separate at a greater distance",
                ours=f"{rounds[UPDATES]} beside {rounds[GRADIENTS]}",
                rule="a gap above zero in an earlier round",
                holds=of_updates < of_gradients,
                aside=aside,
            ),
        ]
    return tuple(out)


def _when_above(first_round: int | None) -> str:
    if first_round is None:
        return "the gap is not above zero at the end"
    return f"the gap is above zero from {first_round}"


# -- figure 7
# --------------------------------------------------------------------------------------------------------------


def norm_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Of each norm, the mean over the last tenth of the rounds, as a share of the greatest, or of that in the middle tenth."""
    of = {kind: picked(rows, problem=kind) for kind in ("congruent", "incongruent")}
    still = {
        kind: [_late(row, "mean_norm") / max(row["found"]["mean_norm"]) for row in own]
        for kind, own in of.items()
    }
    falls = [
        _late(row, "client_norm") / max(row["found"]["client_norm"]) for row in of["congruent"]
    ]
    stays = [
        _late(row, "client_norm") / _late(row, "client_norm", 0.5) for row in of["incongruent"]
    ]
    return (
        Claim(
            what="incongruent: the greatest client norm (33)",
            printed="stagnates and even increases",
            ours=f"{np.mean(stays):.2f} of that in the middle of the rounds, {min(stays):.2f} in the worst seed",
            rule="at least 0.9 of that in the middle in every seed",
            holds=min(stays) >= 0.9,
        ),
        *(
            Claim(
                what=f"{kind}: the mean update (32)",
                printed="goes to zero",
                ours=f"{np.mean(shares):.2f} of its greatest, {max(shares):.2f} in the worst seed",
                rule="at most 0.1 of its greatest in every seed",
                holds=max(shares) <= 0.1,
            )
            for kind, shares in still.items()
        ),
        Claim(
            what="congruent: the greatest client norm (33)",
            printed="decreases along with it",
            ours=f"{np.mean(falls):.2f} of its greatest, {max(falls):.2f} in the worst seed",
            rule="at most 0.2 of its greatest in every seed",
            holds=max(falls) <= 0.2,
        ),
    )


def _late(row: Row, name: str, until: float = 1.0) -> float:
    """The mean of a norm over the tenth of the rounds that ends with this share of them."""
    rounds = np.array(row["found"]["rounds"]) / row["cell"]["rounds"]
    return float(np.mean(np.array(row["found"][name])[(rounds > until - 0.1) & (rounds <= until)]))
