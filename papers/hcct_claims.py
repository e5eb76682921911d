"""What HCCT's paper says of its experiments, beside what came out here: the rules of the verdicts.

The numbers of its tables and figures are lost; the rules say its words in numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from coterie.report.summary import interval
from coterie.report.words import plus_minus
from papers.comparing import ONE_MODEL, labels, of
from papers.hcct_choice import OURS, PRINTED, with_chosen
from papers.hcct_tables import MEMORY, best_tradeoff, error, said
from papers.numbers import found, mean, picked, spread, surely_less, values
from papers.study import Claim, Row

NEAR = 1.5
"""Percentage points within which two errors are about the same."""

ALONE = "Independent"
IN_WORDS = {ALONE: "training alone", ONE_MODEL: "one model for all"}
COPIES = {"IFCA": "IFCA, identical start", "FLSC": "FLSC, identical start"}
"""Methods with models that differ at the start, and the same as in the code published with the
paper: all alike."""

BASELINES = (ALONE, ONE_MODEL, "MAXFL", "FedFA", *COPIES)

WITH_MEMORY = "with memory, which is ours"


def baselines(rows: Sequence[Row], without: Sequence[str] = ()) -> list[str]:
    """Those of the paper's baselines that were run."""
    return [
        name
        for name in (*BASELINES, *COPIES.values())
        if name in labels(rows) and name not in without
    ]


def all_run(rows: Sequence[Row], without: Sequence[str] = ()) -> bool | None:
    """None if one of the paper's baselines was not run."""
    return set(BASELINES) <= {*labels(rows), *without} or None


def every(each: Iterable[bool | None]) -> bool | None:
    """Whether all hold; None if none fails, but the rows cannot tell of some.

    >>> every([True, None]), every([None, False]), every([True, True])
    (None, False, True)
    """
    known = list(each)
    return False if False in known else None if None in known else True


def errors_of(rows: Sequence[Row], name: str, what: str = "accuracy") -> np.ndarray:
    """``(seeds,)`` percent; ``what``: of which accuracy, or ``std``, the deviation over clients."""
    shares = found(of(rows, name), what)
    return 100 * (shares if what == "std" else 1 - shares)


# -- table IV
# --------------------------------------------------------------------------------------------------------------


def of_digit(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows = with_chosen(rows)
    minimal = "minimal among all training schemes (numbers lost)"
    claims = [
        _below_all(rows, name, f"{words}: mean error", minimal, "accuracy", aside)
        for name, words, aside in _both(rows)
    ]
    alone, joint, ours = (error(of(rows, name)) for name in (ALONE, ONE_MODEL, _both(rows)[0][0]))
    claims.append(
        Claim(
            what="training alone, and one model for all",
            printed="limited data; poor convergence by heterogeneous data",
            ours=f"{alone:.1f} % and {joint:.1f} %, HCCT {ours:.1f} %",
            rule="HCCT's error below both by 1 point or more",
            holds=ours <= min(alone, joint) - 1,
        )
    )
    for name, words, aside in (
        (
            COPIES["IFCA"],
            "IFCA, as published: all models start alike",
            "the published code's start, not IFCA's",
        ),
        ("IFCA", "IFCA: models start apart", ""),
    ):
        if name in labels(rows):
            claims.append(
                _one_group(
                    rows, name, words, "all clients may find the same model appealing", aside
                )
            )
    return (*claims, *_personal(rows))


def _both(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """HCCT as printed, and ours, each with λ by validation; how they are called in claims, and why one does not count."""
    both = ((PRINTED, "HCCT as printed", ""), (OURS, "HCCT with memory", WITH_MEMORY))
    return [each for each in both if each[0] in labels(rows)]


def _below_all(
    rows: Sequence[Row], name: str, what: str, printed: str, of_what: str, aside: str = ""
) -> Claim:
    """Of a number of clients' errors, see :func:`errors_of`: less than with every baseline."""
    mine, others = (
        errors_of(rows, name, of_what),
        {other: errors_of(rows, other, of_what) for other in baselines(rows)},
    )
    best = min(others, key=lambda other: others[other].mean())
    unit = "points" if of_what == "std" else "%"
    here, there = (
        f"{plus_minus(interval(each.tolist()), 1)} {unit}" for each in (mine, others[best])
    )
    return Claim(
        what=what,
        printed=printed,
        ours=f"{here}; least of the others {best}, {there}",
        rule="below that of every baseline, by the 95 % intervals of the differences",
        holds=every([all_run(rows), *(surely_less(mine, other) for other in others.values())]),
        aside=aside,
    )


def _one_group(rows: Sequence[Row], name: str, what: str, printed: str, aside: str = "") -> Claim:
    own = of(rows, name)
    joint = int(sum(found(own, "groups") == 1))
    return Claim(
        what=what,
        printed=printed,
        ours=f"{spread(own, 'groups', digits=1)} groups; one in {joint} of {len(own)} runs; error {said(own)} %",
        rule="one group at the end of every run",
        holds=joint == len(own),
        aside=aside,
    )


def _personal(rows: Sequence[Row]) -> list[Claim]:
    own, plain = of(rows, "HCCT-P"), of(rows, OURS)
    if not own or not plain:
        return []
    return [
        Claim(
            what="HCCT-P",
            printed="further reduces the test error, relatively little",
            ours=f"{said(own)} %, HCCT {said(plain)} %",
            rule="error below that of HCCT with memory, λ by validation",
            holds=error(own) < error(plain),
        )
    ]


def of_fmnist(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows = with_chosen(rows)
    return (
        *_near(rows, ONE_MODEL, ALONE, "similar test errors (numbers lost)"),
        _above_the_rest(
            rows, ONE_MODEL, "they outperform other baselines", (ONE_MODEL, *COPIES.values())
        ),
        _one_group(rows, _both(rows)[0][0], "HCCT's groups", "identifies global training"),
        *_personal(rows),
    )


def of_cifar(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows = with_chosen(rows)
    alone, joint, mine = (errors_of(rows, name) for name in (ALONE, ONE_MODEL, _both(rows)[0][0]))
    return (
        *_near(rows, ALONE, ONE_MODEL, "comparable test error (numbers lost)"),
        Claim(
            what="one model for all",
            printed="suffers from non-IID data",
            ours=f"{joint.mean():.1f} %; alone {alone.mean():.1f} %, HCCT {mine.mean():.1f} %",
            rule="above both, by the 95 % intervals of the differences",
            holds=every(surely_less(other, joint) for other in (alone, mine)),
        ),
        _above_the_rest(rows, ALONE, "preferable to perform independent training", (ALONE,)),
        *_personal(rows),
    )


def _near(rows: Sequence[Row], to: str, far: str, printed: str) -> list[Claim]:
    """HCCT beside the better one of training alone and one model for all."""
    there, away = error(of(rows, to)), error(of(rows, far))
    return [
        Claim(
            what=f"{words} beside {IN_WORDS[to]}",
            printed=printed,
            ours=f"{said(of(rows, name))} % and {said(of(rows, to))} %; {IN_WORDS[far]} {away:.1f} %",
            rule=f"within {NEAR:g} points, and at most half the way to {IN_WORDS[far]}",
            holds=abs(error(of(rows, name)) - there) <= min(NEAR, (away - there) / 2),
            aside=aside,
        )
        for name, words, aside in _both(rows)
    ]


def _above_the_rest(
    rows: Sequence[Row], beside: str, printed: str, without: Sequence[str]
) -> Claim:
    others = {name: error(of(rows, name)) for name in baselines(rows, without)}
    best, worse = (
        min(others, key=lambda name: others[name]),
        max(error(of(rows, name)) for name in (_both(rows)[0][0], beside)),
    )
    apart = "; of IFCA and FLSC those that start apart" if COPIES["IFCA"] in without else ""
    return Claim(
        what=f"HCCT and {IN_WORDS[beside]} beside the rest",
        printed=printed,
        ours=f"{worse:.1f} % or less; best of the rest {best}, {others[best]:.1f} %",
        rule=f"both errors below every other's{apart}",
        holds=every([worse < others[best], all_run(rows, without)]),
    )


# -- table V
# ---------------------------------------------------------------------------------------------------------------


def of_spread(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows = with_chosen(rows)
    lower, deviation = (
        "lower than of the baselines (numbers lost)",
        "standard deviation of errors over clients",
    )
    return (
        *(
            _below_all(rows, name, f"{words}: {deviation}", lower, "std", aside)
            for name, words, aside in _both(rows)
        ),
        _below_all(rows, _both(rows)[0][0], "the worst client's error", "notably reduced", "worst"),
    )


# -- figure 3
# --------------------------------------------------------------------------------------------------------------


def of_joining(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, counts = [], sorted(values(rows, "joiners"))
    tried = (
        "the local epochs were changed after a failing trial"
        if rows[0]["cell"]["training"]["epochs"] > 1
        else ""
    )
    for name, aside in (("HCCT as printed", tried), ("HCCT", WITH_MEMORY)):
        own = [of(rows, name, joiners=count) for count in counts]
        final = [error(each) for each in own]
        first = [100 * (1 - float(found(each, "founders")[:, -1].mean())) for each in own]
        final_words, first_words = (
            ", ".join(f"{count}: {each:.1f} %" for count, each in zip(counts, errors, strict=True))
            for errors in (final, first)
        )
        claims += [
            Claim(
                what=f"{name}: error at the end",
                printed="progressively reduced by additional clients (numbers lost)",
                ours=final_words,
                rule="falls with every number of clients that join",
                holds=all(a > b for a, b in pairwise(final)),
                aside=aside,
            ),
            Claim(
                what=f"{name}: error of the first clients",
                printed="new clients' data improve the performance",
                ours=first_words,
                rule=f"lower with {counts[-1]} at a time than with none",
                holds=first[-1] < first[0],
                aside=aside,
            ),
        ]
    return tuple(claims)


# -- figure 4
# --------------------------------------------------------------------------------------------------------------


def of_tradeoff(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, shares = [], sorted(values(rows, "train"))
    half = len(shares) // 2
    for memory in values(rows, "memory"):
        own = picked(rows, memory=memory)
        best = [best_tradeoff(picked(own, train=share)) for share in shares]
        weights = sorted(values(own, "tradeoff"))
        by_share = [
            [error(picked(own, train=share, tradeoff=weight)) for share in shares]
            for weight in weights
        ]
        claims.append(
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: the best λ",
                printed="large where data are few, smaller where there are many",
                ours=", ".join(
                    f"{share:g}: {each:g}" for share, each in zip(shares, best, strict=True)
                ),
                rule="for each of the lower half of the shares larger than for each of the upper half",
                holds=min(best[:half]) > max(best[-half:]),
                aside=WITH_MEMORY if memory else "",
            )
        )
        claims.append(
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: more data",
                printed="enhance the performance in all cases",
                ours=f"error falls by {min(each[0] - each[-1] for each in by_share):.1f} points or more",
                rule="error falls from each share to the next, for each λ",
                holds=all(a > b for each in by_share for a, b in pairwise(each)),
                aside=WITH_MEMORY if memory else "nearly any run passes",
            )
        )
    return tuple(claims)


# -- figure 5
# --------------------------------------------------------------------------------------------------------------


def of_groups(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, domains = [], round(mean(rows, "domains"))
    for memory in values(rows, "memory"):
        own = picked(rows, memory=memory)
        counts = sorted(values(own, "groups"))
        wrong = {count: error(picked(own, groups=count)) for count in counts}
        worth = {count: mean(picked(own, groups=count), "utility") for count in counts}
        best, top = (
            min(counts, key=lambda count: wrong[count]),
            max(counts, key=lambda count: worth[count]),
        )
        claims += [
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: groups of least error",
                printed="one per data set (numbers lost)",
                ours=f"{best}: {wrong[best]:.1f} %",
                rule=f"as many as there are domains, {domains}",
                holds=best == domains,
                aside=WITH_MEMORY if memory else "",
            ),
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: groups of greatest utility",
                printed="as many as of least error",
                ours=f"{top}: {worth[top]:.2f}",
                rule="the same number as of least error",
                holds=top == best,
                aside=WITH_MEMORY if memory else "",
            ),
        ]
    return tuple(claims)
