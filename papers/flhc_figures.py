"""Figures of FL+HC's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.drawing import BLUE, COLUMN, GREY, ORANGE, band, panels
from papers.flhc_claims import last
from papers.numbers import by, found, mean, picked, values
from papers.study import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def fractions(rows: Sequence[Row]) -> Figure:
    """Accuracy at the end and directly after clustering, by the round of clustering: a row of panels per problem, a panel per
    client fraction."""
    each = by(rows, "problem")
    columns = max(len(values(own, "fraction")) for own in each.values())
    made, axes = panels(columns, len(each), width=max(COLUMN, 2.2 * columns), sharey=True)
    for line, (problem, own) in zip(axes, each.items(), strict=True):
        for axis in line[len(values(own, "fraction")) :]:
            axis.set_axis_off()
        for axis, (fraction, cells) in zip(line, by(own, "fraction").items(), strict=False):
            _by_round(axis, cells)
            axis.set(title=f"C = {fraction:g}", xlabel="round n of clustering")
        line[0].set(ylabel=f"{problem}\naccuracy" if len(each) > 1 else "accuracy")
    axes[0][0].legend()
    return made


def _by_round(axis: Axes, rows: Sequence[Row]) -> None:
    """The accuracies of one problem and client fraction, by the round of clustering."""
    end, befores = last(rows), [n for n in values(rows, "rounds_before") if n]
    after = [str(n + 1) for n in befores]
    for i, (label, at) in enumerate(
        ((f"FL+HC, round {end}", [end] * len(befores)), ("directly after", after))
    ):
        each = [
            found(picked(rows, rounds_before=n), r, "accuracy")
            for n, r in zip(befores, at, strict=True)
        ]
        band(axis, befores, np.array(each).T, i, label)
    joint = mean(picked(rows, rounds_before=0), end, "accuracy")
    axis.axhline(joint, color=GREY, linestyle=":", label=f"FL, round {end}")
    axis.set(xticks=befores)


def linkages(rows: Sequence[Row]) -> Figure:
    """Accuracy directly after clustering and at the end, a line per metric and linkage, Federated Learning dotted: a panel per
    problem."""
    each = by(rows, "problem")
    names = rows[0]["cell"]["linkages"]
    made, (axes,) = panels(
        len(each), width=COLUMN * len(each) + 1, height=0.26 * len(names) + 1, sharey=True
    )
    for axis, (problem, own) in zip(axes, each.items(), strict=True):
        for place, name in enumerate(reversed(names)):
            for when, marker, colour in (("post", "o", ORANGE), ("end", "s", BLUE)):
                accuracy = found(own, name, when, "accuracy")
                axis.plot([accuracy.min(), accuracy.max()], [place] * 2, color=colour, linewidth=1)
                axis.plot([accuracy.mean()], [place], color=colour, marker=marker)
        axis.axvline(mean(own, "fedavg", "end", "accuracy"), color=GREY, linestyle=":")
        axis.set(
            title=problem if len(each) > 1 else "",
            xlabel="accuracy; bars: least and greatest of seeds",
        )
        axis.set(yticks=range(len(names)), yticklabels=list(reversed(names)))
    axes[0].plot([], [], color=ORANGE, marker="o", label="directly after clustering")
    axes[0].plot([], [], color=BLUE, marker="s", label="at the end")
    axes[0].plot([], [], color=GREY, linestyle=":", label="FL at the end")
    made.legend(loc="outside upper center", ncols=3)
    return made
