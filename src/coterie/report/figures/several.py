"""A figure of several runs: a curve for each method, the mean over its seeds. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from coterie.records.shown import shown_as, spread
from coterie.report.compared import same_but_seed
from coterie.report.figures.drawings import curve, legend_below, over_rounds, why_no_scores
from coterie.report.figures.looks import numbered
from coterie.report.figures.style import COLUMN, LINE_HEIGHT, panels
from coterie.report.gathered import Gathered
from coterie.report.over_seeds import MIN_SEEDS_OF_INTERVAL, within_limits
from coterie.report.setting_differences import named
from coterie.report.summary import Summary, interval, summarised
from coterie.report.virtual_time import virtual_times
from coterie.settings import UserError

MAX_LABEL_OF_TWO_COLUMNS = 22
"""Letters of a label that fit into a legend of two columns."""

MAX_LABEL_LINE = 44
"""Letters of a line in a legend of one column."""


def figure(runs: Sequence[Gathered], kind: str, metric: str = "") -> Figure:
    """Draw a curve for each method: a metric over honest clients, or bytes so far, the mean over seeds with its 95 % interval.

    The horizontal axis shows rounds, or the virtual time of a method that records it.

    Args:
        runs: The runs.
        kind: One of :data:`coterie.report.figures.OVER_ROUNDS`.
        metric: For ``score`` and ``time``, the metric; empty for the main one.

    Raises:
        UserError: If a run has no such numbers, or the main metrics of the runs differ.
    """
    metric = metric or kind
    if metric in ("score", "time"):
        # Scores of different metrics have no common axis.
        main_metrics = list(dict.fromkeys(shown_as(run.lines[-1]).main for run in runs))
        if len(main_metrics) > 1:
            raise UserError(
                f"these runs have different main metrics, {' and '.join(main_metrics)}: a figure of score needs one"
            )
        metric = main_metrics[0]
    # 1. Runs that differ in their seed alone are one curve.
    run_of_folder = {str(run.folder): run for run in runs}
    entries = same_but_seed(summarised(run.folder, run.description, run.lines, []) for run in runs)
    # 2. The mean over seeds in the rounds that all of them have, and its interval.
    longest = 0.0
    labels = curve_labels(entries)
    num_columns = 2
    num_lines = math.ceil((len(entries) + 1) / 2)
    # Long labels, which list settings, are below each other.
    if max(map(len, labels)) > MAX_LABEL_OF_TWO_COLUMNS:
        labels = [textwrap.fill(label, MAX_LABEL_LINE) for label in labels]
        num_columns = 1
        num_lines = 1 + sum(1 + label.count("\n") for label in labels)
    drawing, ((axes,),) = panels(1, width=COLUMN, height=2.1 + LINE_HEIGHT * num_lines)
    for line_number, (label, entry) in enumerate(zip(labels, entries, strict=True)):
        curves = []
        times = []
        for summary in entry:
            run = run_of_folder[summary["run_dir"]]
            curves.append(_bytes_so_far(run) if kind == "traffic" else _scores(run, metric))
            times.append(_virtual_times(run) if kind == "time" else {})
        if kind == "time":
            # Seeds have tests at different times: all are read at the same moments.
            curves = _at_moments(curves, times)
            longest = max(longest, *curves[0])
        rounds = [round for round in curves[0] if all(round in one for one in curves)]
        intervals = [interval([one[round] for one in curves]) for round in rounds]
        look = numbered(line_number)
        curve(axes, rounds, [over_seeds["mean"] for over_seeds in intervals], **look, label=label)
        if len(curves) > 1:
            # With two seeds the band is from one to the other, since an interval would say nothing.
            bands = []
            for round, over_rounds_of_seeds in zip(rounds, intervals, strict=True):
                values = [one[round] for one in curves]
                ends = (over_rounds_of_seeds["low"], over_rounds_of_seeds["high"])
                if len(values) < MIN_SEEDS_OF_INTERVAL:
                    ends = (min(values), max(values))
                bands.append(
                    [math.nan if end is None else within_limits(end, metric) for end in ends]
                )
            lower, upper = np.transpose(bands)
            axes.fill_between(rounds, lower, upper, color=look["color"], alpha=0.18, linewidth=0)
    # The longest run sets the width.
    over_rounds(axes, max(len(run.lines) for run in runs))
    if kind == "time":
        axes.set(xlabel="virtual time in seconds", xlim=(0, longest))
    # No axis shows values that the metric cannot have.
    axes.set_ylim(*(within_limits(end, metric) for end in axes.get_ylim()))
    axes.set_ylabel("MB sent so far" if kind == "traffic" else metric)
    legend_below(drawing, num_columns)
    return drawing


def _scores(run: Gathered, metric: str) -> dict[float, float]:
    """Return round -> the metric over the honest clients, as in summaries."""
    mean_of_round = {}
    for line in run.lines:
        if line["tested"]:
            # A run may have been tested without this metric.
            mean = spread(line, metric)["mean"]
            if not math.isnan(mean):
                mean_of_round[line["round"]] = mean
    if not mean_of_round:
        raise UserError(f"{run.folder} has no {metric} recorded: {why_no_scores(run, metric)}")
    return mean_of_round


def _bytes_so_far(run: Gathered) -> dict[float, float]:
    """Return round -> MB that clients and server have sent up to it."""
    round_bytes = [line["bytes_up"] + line["bytes_down"] for line in run.lines]
    return dict(enumerate((np.cumsum(round_bytes) / 1e6).tolist(), 1))


def _virtual_times(run: Gathered) -> dict[float, float]:
    """Return round -> the virtual time at its end, in seconds.

    Raises:
        UserError: The run's method records no virtual time.
    """
    time_of_round = virtual_times(run.lines)
    if not time_of_round:
        raise UserError(
            f"{run.folder} has no virtual time, which only the method timed records: draw score instead"
        )
    return time_of_round


def _at_moments(
    curves: Sequence[Mapping[float, float]], times: Sequence[Mapping[float, float]]
) -> list[dict[float, float]]:
    """Return curves over time, each with its last value before every moment.

    Args:
        curves: Of each seed, round -> value.
        times: Of each seed, round -> time.

    Returns:
        Of each seed, moment -> value; the moments are the same, from the first at which all seeds
        have a value to the last.
    """
    value_at_time = []
    for curve_of_seed, time_of_round in zip(curves, times, strict=True):
        value_at_time.append(
            {time_of_round[round]: value for round, value in curve_of_seed.items()}
        )
    first = max(min(values) for values in value_at_time)
    last = min(max(values) for values in value_at_time)
    moments = sorted({moment for values in value_at_time for moment in values})
    sampled = []
    for values in value_at_time:
        own_moments = np.array(sorted(values))
        value_of_moment = {}
        for moment in moments:
            if first <= moment <= last:
                latest = own_moments[np.searchsorted(own_moments, moment, side="right") - 1]
                value_of_moment[moment] = values[float(latest)]
        sampled.append(value_of_moment)
    return sampled


def curve_labels(entries: Sequence[Sequence[Summary]]) -> list[str]:
    """Return the method of each curve, with its settings or its folder where that is needed to tell curves apart."""
    first_runs = [entry[0] for entry in entries]
    labels = named(first_runs)
    # Labels that differ are short enough.
    labels_with_folders = []
    for label, run in zip(labels, first_runs, strict=True):
        folder = Path(run["run_dir"])
        is_enough = labels.count(label) == 1
        labels_with_folders.append(
            label if is_enough else f"{label}, {folder.parent.name}/{folder.name}"
        )
    return labels_with_folders
