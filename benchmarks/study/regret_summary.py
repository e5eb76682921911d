"""What the runs of :mod:`study.regret` say: regret, who is worse off, and what it costs, as numbers and as Markdown tables.

The regret of a method in a world is the accuracy of the best method there, by the mean over clients
and seeds, less its own. Only methods that were run with all seeds of the judged one are compared
with it. A client is worse off than under another method if its accuracy is lower; *surely*, if that
is no chance of its test examples (:func:`surely_lower`), or if a client of its number is worse off
over the seeds (:func:`lower_over_seeds`). The number of a client means little from seed to seed, as
its data are drawn anew: the second test finds what is true of most clients, the first one finds the
few who are harmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy import stats

Row = Mapping[str, Any]
World = tuple[str, str, float]
"""Kind, size and participation."""

Runs = Mapping[str, Mapping[int, Row]]
"""Method -> seed -> its run, in one world."""

LEVEL = 0.025
"""Probability that a client who is not worse off is called so, one-sided."""

ALONE, ONE = "independent", "fedavg"
CLOSE = 0.01
"""A method is close to the best if it lacks no more accuracy than this."""

NOTHING = "–"


def by_world(rows: Iterable[Row]) -> dict[World, dict[str, dict[int, Row]]]:
    """The runs of each world, in the order in which worlds and methods are first seen. Of a run made twice, the last one."""
    found: dict[World, dict[str, dict[int, Row]]] = {}
    for row in rows:
        world = (row["kind"], row["size"], row["participation"])
        found.setdefault(world, {}).setdefault(row["method"], {})[row["seed"]] = row
    return found


def comparable(runs: Runs, of: str) -> dict[str, list[Row]]:
    """Method -> its runs with the seeds of ``of``; only of methods that have them all."""
    seeds = sorted(runs.get(of, {}))
    return {
        name: [own[seed] for seed in seeds]
        for name, own in runs.items()
        if seeds and set(seeds) <= set(own)
    }


def average(own: Sequence[Row], key: str) -> float | None:
    """The mean over runs; None if no run has a value."""
    values = [row[key] for row in own if row[key] is not None]
    return mean(values) if values else None


@dataclass(frozen=True)
class Regret:
    """What a method lacks in a world.

    Attributes:
        best: The method of the greatest mean accuracy; the judged one if it is not behind.
        regret: That accuracy less the judged one's, at least 0.
        error: The standard error of the regret, of differences paired by seed; None of one seed.
        crossed: What it lacks in each seed to the method that is the best in the other seeds, on
            average; None of one seed. The best of many methods is also the luckiest, which raises
            the regret and not this, which can be negative.
    """

    best: str
    regret: float
    error: float | None
    crossed: float | None


def regret(runs: Runs, of: str) -> Regret | None:
    """The regret of ``of`` in a world; None if it was not run there.

    Example:
        >>> one, two = {"accuracy": 1.0}, {"accuracy": 0.75}
        >>> regret({"auto": {0: two}, "hcct": {0: one}}, "auto")
        Regret(best='hcct', regret=0.25, error=None, crossed=None)
    """
    each = {name: [row["accuracy"] for row in own] for name, own in comparable(runs, of).items()}
    if not each:
        return None
    seeds = range(len(each[of]))
    lacks = {
        name: [one - own for one, own in zip(values, each[of], strict=True)]
        for name, values in each.items()
    }
    best = _best(lacks, of, seeds)
    if len(seeds) == 1:
        return Regret(best, lacks[best][0], None, None)
    crossed = mean(
        lacks[_best(lacks, of, [other for other in seeds if other != seed])][seed] for seed in seeds
    )
    return Regret(best, mean(lacks[best]), stdev(lacks[best]) / len(seeds) ** 0.5, crossed)


def _best(lacks: Mapping[str, Sequence[float]], of: str, seeds: Sequence[int]) -> str:
    """The method of the greatest mean over some seeds; among equals the judged one."""
    return max(lacks, key=lambda name: (mean(lacks[name][seed] for seed in seeds), name == of))


@dataclass(frozen=True)
class Worse:
    """Shares of clients that are worse off than under another method.

    Attributes:
        lower: Of all clients of all runs, those of lower accuracy.
        by_tests: Of these, those for whom that is no chance of their test examples.
        lower_mean: Of the numbers of clients, those of lower mean accuracy over the seeds.
        by_seeds: Of these, those for whom that is no chance of the seeds; None of one seed.
    """

    lower: float
    by_tests: float
    lower_mean: float
    by_seeds: float | None


def worse(runs: Runs, of: str, than: str) -> Worse | None:
    """Who is worse off under ``of``; None if one of the two was not run with all seeds."""
    each = comparable(runs, of)
    if than not in each:
        return None
    own, other = (
        np.array([_honest(row) for row in each[name]]) for name in (of, than)
    )  # (seeds, clients)
    tests = np.array([_honest(row, "tests") for row in each[of]])
    return Worse(
        float((own < other).mean()),
        float(surely_lower(own, other, tests).mean()),
        float((own.mean(0) < other.mean(0)).mean()),
        float(lower_over_seeds(own, other).mean()) if len(own) > 1 else None,
    )


def _honest(row: Row, key: str = "accuracies") -> list[float]:
    """A number of each client that is no adversary, of whom there are as many in every run of a world."""
    return [
        value for value, score in zip(row[key], row["accuracies"], strict=True) if score is not None
    ]


def surely_lower(own: np.ndarray, other: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """Whether accuracies are lower than others on as many test examples: a test of two proportions at :data:`LEVEL`.

    Both are of the same examples, which makes their difference less random than the test takes it
    to be.
    """
    variance = (own * (1 - own) + other * (1 - other)) / tests
    return np.asarray(other - own > stats.norm.ppf(1 - LEVEL) * np.sqrt(variance))


def lower_over_seeds(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether each column ``(seeds,)`` is lower than the other's: a paired t-test at :data:`LEVEL`."""
    lacks, n = other - own, len(own)
    limit = float(stats.t.ppf(1 - LEVEL, n - 1))
    return np.asarray(lacks.mean(0) > limit * lacks.std(0, ddof=1) / n**0.5)


# -- tables
# ---------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A Markdown table; the first ``left`` columns are flushed left."""
    rule = ["---" if place < left else "---:" for place in range(len(head))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rows))


def methods_of(found: Mapping[World, Runs]) -> list[str]:
    """All methods, in the order in which they are first seen."""
    return list(dict.fromkeys(method for runs in found.values() for method in runs))


def totals(rows: Iterable[Row]) -> str:
    """A line per method over the worlds in which all methods were run with the same seeds."""
    found = by_world(rows)
    methods = methods_of(found)
    whole = {
        world: runs
        for world, runs in found.items()
        if all(set(comparable(runs, one)) == set(methods) for one in methods)
    }
    if not whole:
        return "No setting has runs of all methods with the same seeds.\n"
    lines = sorted((_total(whole, method) for method in methods), key=lambda line: line[0])
    head = (
        "method",
        "mean gap",
        "crossed",
        "greatest gap",
        "close",
        "accuracy",
        "worse than one model",
        "than alone",
        "bytes",
    )
    seeds = len({seed for runs in whole.values() for own in runs.values() for seed in own})
    words = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"{len(whole)} settings, {words}:\n\n{table(head, [line[1] for line in lines], 1)}"


def _total(found: Mapping[World, Runs], method: str) -> tuple[float, tuple[str, ...]]:
    """The mean regret, by which lines are sorted, and the line."""
    each = {world: regret(runs, method) for world, runs in found.items()}
    lacks = {world: one.regret for world, one in each.items() if one}
    most = max(lacks, key=lambda world: lacks[world])
    cells = (
        f"`{method}`",
        f"{mean(lacks.values()):.4f}",
        _mean([one.crossed for one in each.values() if one], 4),
        f"{lacks[most]:.3f} ({named(most)})",
        f"{sum(value <= CLOSE for value in lacks.values())} of {len(lacks)}",
        f"{mean(row['accuracy'] for runs in found.values() for row in runs[method].values()):.3f}",
        *(_share([worse(runs, method, than) for runs in found.values()]) for than in (ONE, ALONE)),
        _mean([bytes_of(runs, method) for runs in found.values()]),
    )
    return mean(lacks.values()), cells


def named(world: World) -> str:
    """A world in words."""
    kind, size, share = world
    return f"`{kind}`, {size}" + ("" if share == 1 else f", {share:.0%} answer")


def _share(each: Sequence[Worse | None]) -> str:
    known = [one for one in each if one]
    return (
        f"{mean(one.lower for one in known):.2f}, {mean(one.by_tests for one in known):.2f}"
        if known
        else NOTHING
    )


def _mean(each: Sequence[float | None], digits: int = 2) -> str:
    known = [one for one in each if one is not None]
    return f"{mean(known):.{digits}f}" if known else NOTHING


def bytes_of(runs: Runs, method: str) -> float | None:
    """Bytes of a method over those of one model for all."""
    each = comparable(runs, method)
    of_one = average(each[ONE], "bytes") if ONE in each else None
    own = average(each[method], "bytes") if method in each else None
    return own / of_one if of_one and own is not None else None


def accuracies(rows: Iterable[Row]) -> str:
    """A row per world, a column per method: its mean accuracy, the best one in bold."""
    found = by_world(rows)
    methods, lines = methods_of(found), []
    for world, runs in found.items():
        values = {
            method: mean(row["accuracy"] for row in own.values()) for method, own in runs.items()
        }
        best = max(values.values())
        cells = [_bold(values.get(method), best) for method in methods]
        lines.append((named(world), *cells))
    return table(("setting", *(f"`{method}`" for method in methods)), lines, 1)


def _bold(value: float | None, best: float) -> str:
    if value is None:
        return NOTHING
    return f"**{value:.3f}**" if value == best else f"{value:.3f}"


def judged(rows: Iterable[Row], of: str) -> str:
    """A row per world: regret, who is worse off, bytes over FedAvg's, and adjusted Rand indices."""
    lines = []
    for world, runs in by_world(rows).items():
        found = regret(runs, of)
        if found:
            also = ("split-half",) if of != "split-half" else ()
            lines.append(
                (
                    named(world),
                    f"`{found.best}`",
                    f"{found.regret:.4f}"
                    + ("" if found.error is None else f" ± {found.error:.4f}"),
                    _mean([found.crossed], 4),
                    _worse(worse(runs, of, ONE)),
                    _worse(worse(runs, of, ALONE)),
                    _mean([bytes_of(runs, of)]),
                    *(_index(runs.get(one, {})) for one in (of, *also)),
                )
            )
    if not lines:
        return f"There are no runs of {of} yet.\n"
    indices = ("adjusted Rand",) if of == "split-half" else ("adjusted Rand", "`split-half`'s")
    return table(
        (
            "setting",
            "best",
            "gap",
            "crossed",
            "worse than one model",
            "than alone",
            "bytes",
            *indices,
        ),
        lines,
        2,
    )


def _worse(found: Worse | None) -> str:
    if found is None:
        return NOTHING
    seeds = NOTHING if found.by_seeds is None else f"{found.by_seeds:.2f}"
    return f"{found.lower:.2f}, {found.by_tests:.2f}, {seeds}"


def _index(own: Mapping[int, Row]) -> str:
    value = average(list(own.values()), "ari")
    return NOTHING if value is None else f"{value:.2f}"


def page(rows: Sequence[Row], of: str) -> str:
    """All tables, with what their columns are."""
    parts = (
        ("In one line each", totals(rows)),
        ("Accuracy", accuracies(rows)),
        (f"{of}, by world", judged(rows, of)),
    )
    return "\n".join(f"## {title}\n\n{text}" for title, text in parts)
