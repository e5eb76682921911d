"""A strip of clients for each method: a dot per client, and the mean. Importing this module needs Matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from coterie.report.figures.looks import numbered
from coterie.report.figures.several import MAX_LABEL_OF_TWO_COLUMNS, curve_labels
from coterie.report.figures.style import COLUMN, LINE_HEIGHT, panels
from coterie.report.summary import Summary
from coterie.settings import UserError

STRIP_HEIGHT = 0.34
"""Height of the strip of one method, in inches."""

MAX_STACKED = 9
"""Dots at one place that are drawn above and below each other; further ones cover these."""

PLACES = 80
"""Number of places at which dots are told apart, from the least score to the greatest."""


def figure(entries: Sequence[Sequence[Summary]]) -> Figure:
    """Draw a strip for each method: a dot for each client at its score, the mean over seeds, and a bar at the mean.

    Args:
        entries: The summaries of runs; those of one entry differ in their seed alone.

    Raises:
        UserError: If a run has no scores, or the metrics of the runs differ.
    """
    metrics = list(dict.fromkeys(entry[0]["metric"] for entry in entries))
    if len(metrics) > 1:
        raise UserError(
            f"these runs have different main metrics, {' and '.join(metrics)}: a figure of clients needs one"
        )
    # 1. The scores, from which the places of dots follow.
    scores_of_entry = [_client_scores(entry) for entry in entries]
    all_scores = np.concatenate(scores_of_entry)
    min_score = float(all_scores.min())
    max_score = float(all_scores.max())
    step = (max_score - min_score) / PLACES or 1.0
    # 2. A strip for each method, the first at the top.
    # Long labels, which list settings, would leave no room for the axes in one line.
    labels = [textwrap.fill(label, MAX_LABEL_OF_TWO_COLUMNS) for label in curve_labels(entries)]
    num_lines = max(1 + label.count("\n") for label in labels)
    strip_height = max(STRIP_HEIGHT, LINE_HEIGHT * (num_lines + 1))
    height = strip_height * len(entries) + 0.5 + LINE_HEIGHT
    drawing, ((axes,),) = panels(1, width=COLUMN, height=height)
    for row, client_scores in enumerate(scores_of_entry):
        colour = numbered(row)["color"]
        axes.scatter(
            client_scores,
            row + _offsets(client_scores, step),
            s=9,
            color=colour,
            alpha=0.6,
            linewidth=0,
        )
        axes.vlines(client_scores.mean(), row - 0.4, row + 0.4, color="black", linewidth=1.2)
    # 3. The axes.
    axes.set_yticks(range(len(entries)), labels)
    axes.set(
        ylim=(len(entries) - 0.5, -0.5),
        xlabel=f"{metrics[0]}\n(a dot per client, a bar at the mean)",
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return drawing


def _client_scores(entry: Sequence[Summary]) -> np.ndarray:
    """The score of each honest client that has one, the mean over seeds."""
    scores_of_client: dict[str, list[float]] = {}
    for summary in entry:
        adversaries = set(map(str, summary["adversaries"]))
        for client, score in (summary["score"] or {"per_client": {}})["per_client"].items():
            if score is not None and client not in adversaries:
                scores_of_client.setdefault(client, []).append(score)
    if not scores_of_client:
        raise UserError(f"{entry[0]['run_dir']} has no scores recorded: no client was tested")
    return np.array([math.fsum(scores) / len(scores) for scores in scores_of_client.values()])


def _offsets(scores: np.ndarray, step: float) -> np.ndarray:
    """How far each dot is moved up or down, so that equal scores do not cover each other."""
    dots_at_place: Counter[int] = Counter()
    offsets = []
    for score in scores:
        place = round(score / step)
        # 0, 1, -1, 2, -2, ... dots away from the middle.
        number = dots_at_place[place] % MAX_STACKED
        dots_at_place[place] += 1
        steps_away = (number + 1) // 2 * (1 if number % 2 else -1)
        offsets.append(steps_away * 0.8 / MAX_STACKED)
    return np.array(offsets)
