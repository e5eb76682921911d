"""A figure of several runs: a curve for each. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from coterie.records.shown import shown_as, spread
from coterie.report.figures.drawings import curve, legend_below, over_rounds
from coterie.report.figures.looks import numbered
from coterie.report.figures.style import COLUMN, LINE_HEIGHT, panels
from coterie.report.gathered import Gathered
from coterie.settings import UserError


def figure(runs: Sequence[Gathered], kind: str) -> Figure:
    """Draw a curve for each run: a metric over its honest clients, or its bytes so far.

    Args:
        runs: The runs.
        kind: One of :data:`coterie.report.figures.OVER_ROUNDS`.

    Raises:
        UserError: If a run has no such numbers, or the main metrics of the runs differ.
    """
    metric = kind
    if kind == "score":
        # Scores of different metrics have no common axis.
        main_metrics = list(dict.fromkeys(shown_as(run.lines[-1]).main for run in runs))
        if len(main_metrics) > 1:
            raise UserError(
                f"these runs have different main metrics, {' and '.join(main_metrics)}: a figure of score needs one"
            )
        metric = main_metrics[0]
    # 1. A curve for each run.
    curves = []
    for run in runs:
        curves.append(_bytes_so_far(run) if kind == "traffic" else _scores(run, metric))
    # Below the axes is a legend with two columns.
    height = 2.1 + LINE_HEIGHT * math.ceil((len(runs) + 1) / 2)
    drawing, ((axes,),) = panels(1, width=COLUMN, height=height)
    for line_number, (label, value_of_round) in enumerate(zip(_labels(runs), curves, strict=True)):
        rounds = list(value_of_round)
        values = list(value_of_round.values())
        curve(axes, rounds, values, **numbered(line_number), label=label)
    # The longest run sets the width.
    over_rounds(axes, max(len(run.lines) for run in runs))
    axes.set_ylabel("MB sent so far" if kind == "traffic" else metric)
    legend_below(drawing)
    return drawing


def _scores(run: Gathered, metric: str) -> dict[int, float]:
    """Return round -> the metric over the honest clients, as in summaries."""
    mean_of_round = {}
    for line in run.lines:
        if line["tested"]:
            # A run may have been tested without this metric.
            mean = spread(line, metric)["mean"]
            if not math.isnan(mean):
                mean_of_round[line["round"]] = mean
    if not mean_of_round:
        raise UserError(
            f"{run.folder} has no {metric} recorded: none of its {len(run.lines)} rounds was tested for it"
        )
    return mean_of_round


def _bytes_so_far(run: Gathered) -> dict[int, float]:
    """Return round -> MB that clients and server have sent up to it."""
    round_bytes = [line["bytes_up"] + line["bytes_down"] for line in run.lines]
    return dict(enumerate((np.cumsum(round_bytes) / 1e6).tolist(), 1))


def _labels(runs: Sequence[Gathered]) -> list[str]:
    """Return the method of each run, with its seed or its folder where that is needed to tell runs apart."""
    labels = [str(run.description["methods"][0]["name"]) for run in runs]
    # What distinguishes runs of one method: the seed, or else the folder.
    additions: list[Callable[[Gathered], str]] = [
        lambda run: f" seed {run.description['seeds'][0]}",
        lambda run: f", {run.folder.parent.name}/{run.folder.name}",
    ]
    for addition in additions:
        # Labels that differ are short enough.
        if len(set(labels)) < len(labels):
            labels = [label + addition(run) for label, run in zip(labels, runs, strict=True)]
    return labels
