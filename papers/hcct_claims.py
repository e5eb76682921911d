"""What HCCT's paper says of its experiments, beside what came out here: the rules of the verdicts.

The numbers of its tables and figures are lost; the rules say its words in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from papers.comparing import ONE_MODEL, labels, of
from papers.hcct_choice import OURS, PRINTED, with_chosen
from papers.hcct_tables import MEMORY, best_tradeoff, error, said
from papers.numbers import found, mean, picked, spread, values
from papers.study import Claim, Row

NEAR = 1.5
"""Percentage points within which two errors are about the same."""

ALONE = "Independent"
COPIES = {"IFCA": "IFCA, identical start", "FLSC": "FLSC, identical start"}
"""Methods with models that differ at the start, and the same as in the code published with the paper: all alike."""

BASELINES = (ALONE, ONE_MODEL, "MAXFL", "FedFA", *COPIES, *COPIES.values())


def baselines(rows: Sequence[Row], without: Sequence[str] = ()) -> dict[str, float]:
    """Error of each of the paper's baselines that was run."""
    return {name: error(of(rows, name)) for name in BASELINES if name in labels(rows) and name not in without}


def least(numbers: dict[str, float]) -> str:
    return min(numbers, key=lambda name: numbers[name])


# -- table IV --------------------------------------------------------------------------------------------------------------


def of_digit(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows = with_chosen(rows)
    claims = [_least_error(rows, name, words) for name, words in _both(rows)]
    alone, joint, ours = (error(of(rows, name)) for name in (ALONE, ONE_MODEL, _both(rows)[0][0]))
    claims += [
        Claim(
            what="training alone, and one model for all",
            printed="limited data; poor convergence by heterogeneous data",
            ours=f"{alone:.1f} % and {joint:.1f} %, HCCT {ours:.1f} %",
            rule="HCCT's error below both by 1 point or more",
            holds=ours <= min(alone, joint) - 1,
        ),
        *_crowding(rows),
        *_personal(rows),
    ]
    return tuple(claims)


def _both(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """HCCT as printed, and ours, each with λ by validation; and how they are called in claims."""
    known = labels(rows)
    return [(name, words) for name, words in ((PRINTED, "HCCT as printed"), (OURS, "HCCT with memory")) if name in known]


def _least_error(rows: Sequence[Row], name: str, words: str) -> Claim:
    others = baselines(rows)
    best = least(others)
    return Claim(
        what=f"{words}: mean error",
        printed="minimal among all training schemes (numbers lost)",
        ours=f"{said(of(rows, name))} %; best of the others {best}, {said(of(rows, best))} %",
        rule="below that of every baseline",
        holds=error(of(rows, name)) < others[best],
    )


def _crowding(rows: Sequence[Row]) -> list[Claim]:
    """Whether IFCA's clients end up with one model: as published, and with models that differ at the start."""
    claims = []
    for name, words in ((COPIES["IFCA"], "IFCA, as published: all models start alike"), ("IFCA", "IFCA: models start apart")):
        own = of(rows, name)
        if own:
            crowded = int(sum(found(own, "groups") == 1))
            claims.append(
                Claim(
                    what=words,
                    printed="all clients may find the same model appealing",
                    ours=f"{spread(own, 'groups', digits=1)} groups; one in {crowded} of {len(own)} runs; error {said(own)} %",
                    rule="one group at the end of every run",
                    holds=crowded == len(own),
                )
            )
    return claims


def _personal(rows: Sequence[Row]) -> list[Claim]:
    own, plain = of(rows, "HCCT-P"), of(rows, "HCCT")
    if not own or not plain:
        return []
    return [
        Claim(
            what="HCCT-P",
            printed="further reduces the test error, relatively little",
            ours=f"{said(own)} %, HCCT {said(plain)} %",
            rule="error below HCCT's, with the same λ",
            holds=error(own) < error(plain),
        )
    ]


def of_fmnist(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows, claims = with_chosen(rows), []
    for name, words in _both(rows):
        mine, joint = error(of(rows, name)), error(of(rows, ONE_MODEL))
        claims.append(
            Claim(
                what=f"{words} beside one model for all",
                printed="similar test errors (numbers lost)",
                ours=f"{said(of(rows, name))} % and {said(of(rows, ONE_MODEL))} %",
                rule=f"within {NEAR:g} points",
                holds=abs(mine - joint) <= NEAR,
            )
        )
    main = _both(rows)[0][0]
    others = baselines(rows, without=(ONE_MODEL, COPIES["IFCA"], COPIES["FLSC"]))
    best, worse = least(others), max(error(of(rows, name)) for name in (main, ONE_MODEL))
    claims.append(
        Claim(
            what="HCCT and one model for all beside the rest",
            printed="they outperform other baselines",
            ours=f"{worse:.1f} % or less; best of the rest {best}, {others[best]:.1f} %",
            rule="both errors below every other's; of IFCA and FLSC those that start apart",
            holds=worse < others[best],
        )
    )
    many = mean(of(rows, main), "groups")
    claims.append(
        Claim(
            what="HCCT's groups",
            printed="identifies global training",
            ours=f"{spread(of(rows, main), 'groups', digits=1)}",
            rule="1.5 or fewer in the mean of runs",
            holds=many <= 1.5,
        )
    )
    return (*claims, *_personal(rows))


def of_cifar(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows, claims = with_chosen(rows), []
    alone = error(of(rows, ALONE))
    for name, words in _both(rows):
        claims.append(
            Claim(
                what=f"{words} beside training alone",
                printed="comparable test error (numbers lost)",
                ours=f"{said(of(rows, name))} % and {said(of(rows, ALONE))} %",
                rule=f"within {NEAR:g} points",
                holds=abs(error(of(rows, name)) - alone) <= NEAR,
            )
        )
    joint, mine = error(of(rows, ONE_MODEL)), error(of(rows, _both(rows)[0][0]))
    claims.append(
        Claim(
            what="one model for all",
            printed="suffers from non-IID data",
            ours=f"{joint:.1f} %; alone {alone:.1f} %, HCCT {mine:.1f} %",
            rule="above both",
            holds=joint > max(alone, mine),
        )
    )
    others = baselines(rows, without=(ALONE,))
    best = least(others)
    claims.append(
        Claim(
            what="HCCT and training alone beside the rest",
            printed="preferable to perform independent training",
            ours=f"{max(alone, mine):.1f} % or less; best of the rest {best}, {others[best]:.1f} %",
            rule="both errors below every other's",
            holds=max(alone, mine) < others[best],
        )
    )
    return (*claims, *_personal(rows))


# -- table V ---------------------------------------------------------------------------------------------------------------


def of_spread(rows: Sequence[Row]) -> tuple[Claim, ...]:
    rows, claims = with_chosen(rows), []
    for name, words in _both(rows):
        others = {other: 100 * mean(of(rows, other), "std") for other in baselines(rows)}
        mine, best = 100 * mean(of(rows, name), "std"), least(others)
        claims.append(
            Claim(
                what=f"{words}: standard deviation of errors over clients",
                printed="lower than of the baselines (numbers lost)",
                ours=f"{mine:.1f} points; least of the others {best}, {others[best]:.1f}",
                rule="below that of every baseline",
                holds=mine < others[best],
            )
        )
    main = _both(rows)[0][0]
    worst = {other: error(of(rows, other), "worst") for other in baselines(rows)}
    mine, best = error(of(rows, main), "worst"), least(worst)
    claims.append(
        Claim(
            what="the worst client's error",
            printed="notably reduced",
            ours=f"{said(of(rows, main), 'worst')} %; least of the others {best}, {worst[best]:.1f} %",
            rule="below that of every baseline",
            holds=mine < worst[best],
        )
    )
    return tuple(claims)


# -- figure 3 --------------------------------------------------------------------------------------------------------------


def of_joining(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, counts = [], sorted(values(rows, "joiners"))
    for name in [name for name in labels(rows) if name.startswith("HCCT")]:
        final = [error(of(rows, name, joiners=count)) for count in counts]
        claims.append(
            Claim(
                what=f"{name}: error at the end",
                printed="progressively reduced by additional clients (numbers lost)",
                ours=", ".join(f"{count}: {each:.1f} %" for count, each in zip(counts, final, strict=True)),
                rule="falls with every number of clients that join",
                holds=all(a > b for a, b in pairwise(final)),
            )
        )
    name, most = labels(rows)[0], counts[-1]
    first = {count: 100 * (1 - found(of(rows, name, joiners=count), "founders")[:, -1].mean()) for count in counts}
    claims.append(
        Claim(
            what=f"{name}: error of those who were there from the first",
            printed="new clients' data improve the performance",
            ours=", ".join(f"{count}: {each:.1f} %" for count, each in first.items()),
            rule=f"lower with {most} at a time than with none",
            holds=bool(first[most] < first[counts[0]]),
        )
    )
    return tuple(claims)


# -- figure 4 --------------------------------------------------------------------------------------------------------------


def of_tradeoff(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, shares = [], sorted(values(rows, "train"))
    half = len(shares) // 2
    for memory in values(rows, "memory"):
        own = picked(rows, memory=memory)
        best = [best_tradeoff(picked(own, train=share)) for share in shares]
        weights = sorted(values(own, "tradeoff"))
        place = [weights.index(each) for each in best]
        claims.append(
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: the best λ",
                printed="large where data are few, smaller where there are many",
                ours=", ".join(f"{share:g}: {each:g}" for share, each in zip(shares, best, strict=True)),
                rule="the mean place in the grid is higher over the lower half of the shares than over the upper",
                holds=sum(place[:half]) / half > sum(place[-half:]) / half,
            )
        )
        fewest, most = ([error(picked(own, train=share, tradeoff=w)) for w in weights] for share in (shares[0], shares[-1]))
        claims.append(
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: more data",
                printed="enhance the performance in all cases",
                ours=f"error falls by {min(a - b for a, b in zip(fewest, most, strict=True)):.1f} points or more",
                rule="less error with the greatest share than with the smallest, for each λ",
                holds=all(a > b for a, b in zip(fewest, most, strict=True)),
            )
        )
    return tuple(claims)


# -- figure 5 --------------------------------------------------------------------------------------------------------------


def of_groups(rows: Sequence[Row]) -> tuple[Claim, ...]:
    claims, domains = [], round(mean(rows, "domains"))
    for memory in values(rows, "memory"):
        own = picked(rows, memory=memory)
        counts = sorted(values(own, "groups"))
        wrong = {count: error(picked(own, groups=count)) for count in counts}
        worth = {count: mean(picked(own, groups=count), "utility") for count in counts}
        best, top = min(counts, key=lambda count: wrong[count]), max(counts, key=lambda count: worth[count])
        claims += [
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: groups of least error",
                printed="one per data set (numbers lost)",
                ours=f"{best}: {wrong[best]:.1f} %",
                rule=f"as many as there are domains, {domains}",
                holds=best == domains,
            ),
            Claim(
                what=f"HCCT {MEMORY[memory == 0]}: groups of greatest utility",
                printed="as many as of least error",
                ours=f"{top}: {worth[top]:.2f}",
                rule="the same number as of least error",
                holds=top == best,
            ),
        ]
    return tuple(claims)
