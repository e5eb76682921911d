"""Methods compared over the worlds of a suite: ranks, gaps to the best, and tests.

The tests follow Demšar (Statistical comparisons of classifiers over multiple data sets, JMLR 2006)
and Benavoli, Corani, Mangili (Should we really use post-hoc tests based on mean-ranks?, JMLR 2016):
Friedman's test of all methods, then Wilcoxon's signed-rank tests of pairs over worlds with Holm's
correction (Scandinavian Journal of Statistics 1979), and not tests of mean ranks, whose result for
two methods depends on which others there are.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import scipy.stats

from coterie.contrib.bench.rows import Row
from coterie.contrib.bench.suites import BenchWorld
from coterie.settings import UserError

LEVEL = 0.05
"""Of the tests of all pairs together, and of all tests of one method."""

CLOSE = 0.01
"""A method is close to the best where it lacks no more than this."""

TIE_DIGITS = 4
"""Scores that are equal to this many digits are a tie."""

ONE_MODEL = "fedavg"

RunsOfWorld = Mapping[str, Mapping[int, Row]]
"""Label of a method -> seed -> its row, in one world."""


@dataclass(frozen=True)
class Results:
    """The rows of methods that were run in all worlds of a suite.

    Attributes:
        worlds: The worlds.
        methods: The labels of the methods.
        runs: World -> label -> seed -> row.
        incomplete: Label -> the number of runs that it lacks, of methods that are left out.
    """

    worlds: Sequence[BenchWorld]
    methods: Sequence[str]
    runs: Mapping[str, RunsOfWorld]
    incomplete: Mapping[str, int]

    def score(self, world: str, method: str) -> float:
        """The mean score of a method over the clients and seeds of a world."""
        return fmean(row.score for row in self.runs[world][method].values())

    def scores(self) -> np.ndarray:
        """The mean scores, ``(worlds, methods)``."""
        return np.array(
            [[self.score(world.name, name) for name in self.methods] for world in self.worlds]
        )


def results(rows: Iterable[Row], worlds: Sequence[BenchWorld]) -> Results:
    """Arrange rows by world and method.

    Args:
        rows: The rows; of two rows of the same run the last one counts.
        worlds: The worlds of the suite.
    """
    # A method with several settings is several methods, whose labels name the settings.
    newest = {row.key: row for row in rows}
    names_of_worlds = {world.name for world in worlds}
    settings_of_method: dict[str, set[str]] = {}
    for _, method, settings, _ in newest:
        settings_of_method.setdefault(method, set()).add(settings)
    runs: dict[str, dict[str, dict[int, Row]]] = {name: {} for name in names_of_worlds}
    for (world, method, settings, seed), row in newest.items():
        if world not in names_of_worlds:
            continue
        label = method
        if len(settings_of_method[method]) > 1:
            label = f"{method} {_in_words(settings)}".strip()
        runs[world].setdefault(label, {})[seed] = row
    # Only methods with all runs are compared.
    needed = sum(len(world.seeds) for world in worlds)
    counts: dict[str, int] = {}
    for bench_world in worlds:
        for label, of_seeds in runs[bench_world.name].items():
            counts[label] = counts.get(label, 0) + len(set(of_seeds) & set(bench_world.seeds))
    complete = [label for label, count in counts.items() if count == needed]
    incomplete = {label: needed - count for label, count in counts.items() if count < needed}
    return Results(worlds, complete, runs, incomplete)


def _in_words(settings_json: str) -> str:
    """Settings as ``models=2, first=losses``."""
    return ", ".join(f"{name}={value}" for name, value in json.loads(settings_json).items())


@dataclass(frozen=True)
class Standing:
    """How a method compares with all others over the worlds of a suite.

    Attributes:
        method: Its label.
        rank: Its mean rank over worlds, 1 for the best; equal scores share their ranks.
        score: Its mean score over worlds.
        gap: How far its score is below that of the best method of each world, on average.
        crossed: The same, but the best method is found with the other seeds: the best of many
            methods is also the luckiest, which raises the gap and not this one. It can be negative.
            None where worlds have one seed.
        greatest_gap: The greatest gap.
        greatest_world: The world of the greatest gap.
        close: The number of worlds with a gap of at most ``CLOSE``.
        worst: The score of its worst client, mean over worlds and seeds.
        below_one_model: The share of clients with a lower score than under one model for all.
        traffic: Its bytes over those of one model for all, mean over worlds; None if unknown.
    """

    method: str
    rank: float
    score: float
    gap: float
    crossed: float | None
    greatest_gap: float
    greatest_world: str
    close: int
    worst: float
    below_one_model: float | None
    traffic: float | None


def standings(compared: Results) -> list[Standing]:
    """All methods by their mean gap, the smallest first.

    Raises:
        UserError: No method has all runs.
    """
    if not compared.methods:
        raise UserError("no method has rows of all worlds and seeds of this suite")
    scores = compared.scores()
    ranks = scipy.stats.rankdata(-np.round(scores, TIE_DIGITS), axis=1)
    gaps = scores.max(axis=1, keepdims=True) - scores
    standings_of_methods = []
    for place, method in enumerate(compared.methods):
        greatest = int(gaps[:, place].argmax())
        crossed = [_crossed_gap(compared, world, method) for world in compared.worlds]
        known_crossed = [gap for gap in crossed if gap is not None]
        rows = [r for w in compared.worlds for r in compared.runs[w.name][method].values()]
        standings_of_methods.append(
            Standing(
                method=method,
                rank=float(ranks[:, place].mean()),
                score=float(scores[:, place].mean()),
                gap=float(gaps[:, place].mean()),
                crossed=fmean(known_crossed) if known_crossed else None,
                greatest_gap=float(gaps[greatest, place]),
                greatest_world=compared.worlds[greatest].name,
                close=int((gaps[:, place] <= CLOSE).sum()),
                worst=fmean(row.worst for row in rows),
                below_one_model=_share_below(compared, method),
                traffic=_traffic(compared, method),
            )
        )
    return sorted(standings_of_methods, key=lambda standing: standing.gap)


def _crossed_gap(compared: Results, world: BenchWorld, method: str) -> float | None:
    """What a method lacks in each seed to the method that is the best in the other seeds; None of one seed."""
    if len(world.seeds) == 1:
        return None
    runs = compared.runs[world.name]
    lacking = []
    for seed in world.seeds:
        other_seeds = [other for other in world.seeds if other != seed]
        # Among equals it is the method itself.
        best = max(
            compared.methods,
            key=lambda name: (fmean(runs[name][s].score for s in other_seeds), name == method),
        )
        lacking.append(runs[best][seed].score - runs[method][seed].score)
    return fmean(lacking)


def _share_below(compared: Results, method: str) -> float | None:
    """The share of clients, over all runs, whose score is lower than under one model for all."""
    if ONE_MODEL not in compared.methods:
        return None
    below = []
    for world in compared.worlds:
        runs = compared.runs[world.name]
        for seed in world.seeds:
            pairs = zip(runs[method][seed].scores, runs[ONE_MODEL][seed].scores, strict=True)
            below += [own < other for own, other in pairs]
    return fmean(below)


def _traffic(compared: Results, method: str) -> float | None:
    """The bytes of a method over those of one model for all, mean over worlds."""
    if ONE_MODEL not in compared.methods:
        return None
    ratios = []
    for world in compared.worlds:
        runs = compared.runs[world.name]
        method_bytes = fmean(row.bytes for row in runs[method].values())
        one_model_bytes = fmean(row.bytes for row in runs[ONE_MODEL].values())
        ratios.append(method_bytes / one_model_bytes)
    return fmean(ratios)


# ----------------------------------------------------------------------------------------------------
# Tests.


@dataclass(frozen=True)
class Against:
    """One method compared with another over worlds.

    Attributes:
        method: The judged method.
        opponent: The other one.
        wins: Worlds in which the judged method has the greater score.
        ties: Worlds with equal scores.
        losses: Worlds in which it has the smaller score.
        difference: The median over worlds of its score less the other's.
        p: Of Wilcoxon's signed-rank test, two-sided.
        corrected: The same after Holm's correction for all comparisons of the judged method.
    """

    method: str
    opponent: str
    wins: int
    ties: int
    losses: int
    difference: float
    p: float
    corrected: float

    def plain(self) -> dict[str, Any]:
        """The comparison as a table, for JSON."""
        return {
            "method": self.method,
            "other": self.opponent,
            "wins": self.wins,
            "ties": self.ties,
            "losses": self.losses,
            "difference": self.difference,
            "p": self.p,
            "corrected": self.corrected,
        }


def against(compared: Results, method: str) -> list[Against]:
    """Compare one method with each other one, over the worlds.

    Args:
        compared: The results.
        method: The label of the method.

    Returns:
        The comparisons, by the other method's mean score, the best first.

    Raises:
        UserError: The method has not all runs.
    """
    if method not in compared.methods:
        lacking = compared.incomplete.get(method)
        reason = f"it lacks {lacking} runs" if lacking else "there are no rows of it"
        raise UserError(f"{method} cannot be compared: {reason}")
    scores = compared.scores().round(TIE_DIGITS)
    method_scores = scores[:, compared.methods.index(method)]
    opponents = [name for name in compared.methods if name != method]
    opponents.sort(key=lambda name: -scores[:, compared.methods.index(name)].mean())
    differences = [method_scores - scores[:, compared.methods.index(name)] for name in opponents]
    p_values = [signed_rank_p(difference) for difference in differences]
    comparisons = []
    for opponent, difference, p, corrected in zip(
        opponents, differences, p_values, holm(p_values), strict=True
    ):
        comparisons.append(
            Against(
                method=method,
                opponent=opponent,
                wins=int((difference > 0).sum()),
                ties=int((difference == 0).sum()),
                losses=int((difference < 0).sum()),
                difference=float(np.median(difference)),
                p=p,
                corrected=corrected,
            )
        )
    return comparisons


def signed_rank_p(differences: np.ndarray) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test; ranks of ties are split between both sides.

    Args:
        differences: Differences ``(worlds,)``.
    """
    # Without any difference there is no evidence at all.
    if not np.any(differences):
        return 1.0
    with warnings.catch_warnings():
        # Few worlds: the exact distribution does not apply to ties, and SciPy says so.
        warnings.simplefilter("ignore")
        return float(scipy.stats.wilcoxon(differences, zero_method="zsplit").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that are compared with the level of all tests together.

    Args:
        p_values: The p-values.

    Returns:
        The corrected ones, in the same order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    greatest = 0.0
    # The smallest is multiplied by the number of tests, the next one by one less, and so on; none
    # is smaller than one before it.
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for step, place in enumerate(order):
        greatest = max(greatest, min(1.0, (len(p_values) - step) * p_values[place]))
        corrected[place] = greatest
    return corrected


@dataclass(frozen=True)
class Cliques:
    """Which methods differ significantly, for a critical-difference diagram.

    Attributes:
        ranks: Method -> its mean rank, the best first.
        friedman_p: Of Friedman's test that all methods are equally good; None for two methods.
        groups: Methods that are next to each other by rank, and of which no two differ
            significantly; only the largest such groups, of two or more.
    """

    ranks: Mapping[str, float]
    friedman_p: float | None
    groups: Sequence[Sequence[str]]


def cliques(compared: Results, level: float = LEVEL) -> Cliques:
    """Find which methods do not differ significantly: Wilcoxon's test of each pair, corrected by Holm for all pairs."""
    scores = compared.scores().round(TIE_DIGITS)
    ranks = scipy.stats.rankdata(-scores, axis=1).mean(axis=0)
    order = [int(place) for place in np.argsort(ranks, kind="stable")]
    friedman_p = None
    if len(order) > 2 and len(scores) > 1:
        friedman_p = float(scipy.stats.friedmanchisquare(*scores.T).pvalue)
    pairs = list(combinations(range(len(order)), 2))
    p_values = [
        signed_rank_p(scores[:, order[first]] - scores[:, order[second]]) for first, second in pairs
    ]
    differing = {
        pair for pair, p in zip(pairs, holm(p_values), strict=True) if p < level
    }  # by places in the order
    groups: list[Sequence[str]] = []
    last_end = 0
    for start in range(len(order)):
        # The longest run of methods from here of which no two differ.
        end = start + 1
        while end < len(order) and not any(
            (inner, end) in differing for inner in range(start, end)
        ):
            end += 1
        if end - start > 1 and end > last_end:
            groups.append([compared.methods[place] for place in order[start:end]])
            last_end = end
    return Cliques(
        ranks={compared.methods[place]: float(ranks[place]) for place in order},
        friedman_p=friedman_p,
        groups=groups,
    )
