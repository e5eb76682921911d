"""Figures of FL+HC's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.drawing import BLUE, COLUMN, GREY, ORANGE, band, panels
from papers.flhc_claims import last
from papers.numbers import found, mean, picked, values
from papers.study import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def fractions(rows: Sequence[Row]) -> Figure:
    """Accuracy at the end and directly after clustering, by the round of clustering: a panel per problem and fraction."""
    end, problems = last(rows), values(rows, "problem")
    every = [(problem, c) for problem in problems for c in values(picked(rows, problem=problem), "fraction")]
    made, axes = panels(len(every), width=max(COLUMN, 2.2 * len(every)), sharey=True)
    for axis, (problem, fraction) in zip(axes[0], every, strict=True):
        own = picked(rows, problem=problem, fraction=fraction)
        befores = [n for n in values(own, "rounds_before") if n]
        after = [str(n + 1) for n in befores]
        for i, (label, at) in enumerate(((f"FL+HC, round {end}", [end] * len(befores)), ("directly after", after))):
            each = [found(picked(own, rounds_before=n), r, "accuracy") for n, r in zip(befores, at, strict=True)]
            band(axis, befores, np.array(each).T, i, label)
        joint = mean(picked(own, rounds_before=0), end, "accuracy")
        axis.axhline(joint, color=GREY, linestyle=":", label=f"FL, round {end}")
        title = f"{problem}: " * (len(problems) > 1) + f"C = {fraction:g}"
        axis.set(title=title, xlabel="round n of clustering", ylabel="accuracy", xticks=befores)
    axes[0][0].legend()
    return made


def linkages(rows: Sequence[Row]) -> Figure:
    """Accuracy directly after clustering and at the end, a line per metric and linkage, Federated Learning dotted: a panel per
    problem."""
    each = {problem: picked(rows, problem=problem) for problem in values(rows, "problem")}
    names = rows[0]["cell"]["linkages"]
    made, (axes,) = panels(len(each), width=COLUMN * len(each) + 1, height=0.26 * len(names) + 1, sharey=True)
    for axis, (problem, own) in zip(axes, each.items(), strict=True):
        for place, name in enumerate(reversed(names)):
            for when, marker, colour in (("post", "o", ORANGE), ("end", "s", BLUE)):
                accuracy = found(own, name, when, "accuracy")
                axis.plot([accuracy.min(), accuracy.max()], [place] * 2, color=colour, linewidth=1)
                axis.plot([accuracy.mean()], [place], color=colour, marker=marker)
        axis.axvline(mean(own, "fedavg", "end", "accuracy"), color=GREY, linestyle=":")
        axis.set(title=problem if len(each) > 1 else "", xlabel="accuracy; bars: least and greatest of seeds")
        axis.set(yticks=range(len(names)), yticklabels=list(reversed(names)))
    axes[0].plot([], [], color=ORANGE, marker="o", label="directly after clustering")
    axes[0].plot([], [], color=BLUE, marker="s", label="at the end")
    axes[0].plot([], [], color=GREY, linestyle=":", label="FL at the end")
    made.legend(loc="outside upper center", ncols=3)
    return made
