"""Virtual time of runs on a simulated fleet: what a run takes, and when it reaches a score.

A method that simulates devices, such as ``timed``, records in each round a note with the numbers
named here; other runs have no virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from coterie.records.shown import Line, spread
from coterie.report.words import decimals

SECONDS = "virtual seconds"
"""The number of a note that has the virtual time at the end of a round."""

IDLE_SECONDS = "idle device seconds"
"""The number of a note that has the seconds in which devices waited for others in a round."""

LOST_SECONDS = "lost device seconds"
"""The number of a note that has the seconds of devices whose work was lost in a round."""

JOULES = "joules"
"""The number of a note that has the energy of a round."""

MEANS_OVER_RUNS = ("seconds", "idle", "lost", "joules")
"""The values of which a table has means over runs."""

Cells = list[tuple[str, str]]
"""A row of a table from left to right: the heading of each column, and its cell."""


@dataclass(frozen=True)
class VirtualTime:
    """What a run takes on a simulated fleet.

    Attributes:
        seconds: Virtual seconds of the run.
        idle: Share of all device seconds in which devices waited for others.
        lost: Share of all device seconds whose work was lost.
        joules: Energy of all devices.
        curve: Of each tested round, the virtual time at its end and the mean score over clients.
    """

    seconds: float
    idle: float
    lost: float
    joules: float
    curve: tuple[tuple[float, float], ...]

    @classmethod
    def of_lines(
        cls,
        lines: Sequence[Line],
        num_clients: int,
        metric: str = "",
        weights: Mapping[str, float] | None = None,
    ) -> VirtualTime | None:
        """Return the virtual time of a run; None if its method records none.

        Args:
            lines: The completed rounds.
            num_clients: The number of all clients, whose devices exist all the time.
            metric: The metric of the score; empty for the main one.
            weights: Client -> its weight in the mean score; None for equal weights.
        """
        time_of_round = virtual_times(lines)
        if not time_of_round:
            return None
        totals = dict.fromkeys((IDLE_SECONDS, LOST_SECONDS, JOULES), 0.0)
        curve = []
        for line in lines:
            for note in line["notes"]:
                for number_name in totals:
                    totals[number_name] += note["numbers"].get(number_name, 0.0)
            if not line["clients"] or line["round"] not in time_of_round:
                continue
            # A metric may have no value, such as the area under an ROC curve of one class.
            mean_score = float(spread(line, metric, weights)["mean"])
            if math.isfinite(mean_score):
                curve.append((time_of_round[line["round"]], mean_score))
        seconds = max(time_of_round.values())
        # No division by zero where no time has passed.
        device_seconds = max(seconds * num_clients, 1e-300)
        return cls(
            seconds=seconds,
            idle=totals[IDLE_SECONDS] / device_seconds,
            lost=totals[LOST_SECONDS] / device_seconds,
            joules=totals[JOULES],
            curve=tuple(curve),
        )


def virtual_times(lines: Iterable[Line]) -> dict[float, float]:
    """Return round -> the virtual time at its end, in seconds; empty if the method records none.

    Args:
        lines: The completed rounds.
    """
    time_of_round: dict[float, float] = {}
    for line in lines:
        for note in line["notes"]:
            if SECONDS in note["numbers"]:
                time_of_round[line["round"]] = note["numbers"][SECONDS]
    return time_of_round


def table_rows(
    labels: Sequence[str], entries: Sequence[Mapping[str, Any]], virtual: Sequence[Sequence[Any]]
) -> list[Cells]:
    """Return a row for each entry with virtual time: means over its runs.

    With several such entries, one column has the time at which each reaches the score that all of
    them reach.

    Args:
        labels: The name of each entry.
        entries: The entries of a comparison, or the summaries of runs.
        virtual: Of each entry, the value ``virtual`` of the summary of each of its runs.
    """
    timed = []
    for label, entry, runs in zip(labels, entries, virtual, strict=True):
        if runs and None not in runs:
            timed.append((label, entry, runs))
    rows = []
    target = _common_score(timed)
    for label, entry, runs in timed:
        means = {name: fmean(run[name] for run in runs) for name in MEANS_OVER_RUNS}
        cells = [("virtual time", label), ("seconds", _significant(means["seconds"]))]
        if target is not None:
            first_times = [_first_time(run["curve"], target, entry["better"]) for run in runs]
            heading = f"{entry['metric']} {decimals(target)} after"
            cells.append((heading, _significant(fmean(first_times))))
        cells += [
            ("idle", f"{means['idle']:.0%}"),
            ("lost", f"{means['lost']:.0%}"),
            ("energy", f"{_significant(means['joules'])} J"),
        ]
        rows.append(cells)
    return rows


def _common_score(timed: Sequence[tuple[str, Mapping[str, Any], Sequence[Any]]]) -> float | None:
    """The best score that every run reaches; None for a single entry, or for several metrics."""
    if len(timed) < 2 or len({entry["metric"] for _, entry, _ in timed}) > 1:
        return None
    better = timed[0][1]["better"]
    best_scores = []
    for _, _, runs in timed:
        for run in runs:
            if not run["curve"]:
                return None
            scores = [score for _, score in run["curve"]]
            best_scores.append(max(scores) if better == "greater" else min(scores))
    return min(best_scores) if better == "greater" else max(best_scores)


def _first_time(curve: Sequence[Sequence[float]], target: float, better: str) -> float:
    """The time of the first test at a score, which the curve reaches, or beyond."""
    times = []
    for seconds, score in curve:
        if score >= target if better == "greater" else score <= target:
            times.append(seconds)
    return min(times)


def _significant(number: float) -> str:
    """A number in three digits; a larger one without decimals."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
