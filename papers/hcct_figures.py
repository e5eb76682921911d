"""Figures of HCCT's experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.comparing import labels, of
from papers.drawing import BLUE, COLUMN, GREY, ORANGE, band, panels
from papers.hcct_choice import OURS, PRINTED, with_chosen
from papers.hcct_tables import MEMORY
from papers.numbers import found, picked, values
from papers.study import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def percent(rows: Sequence[Row], name: str) -> np.ndarray:
    """Errors in percent: ``(seeds,)``, or ``(seeds, rounds tested)`` of curves."""
    return np.asarray(100 * (1 - found(rows, name)))


def _by_method(
    rows: Sequence[Row], draw: Callable[[Axes, int, list[Row]], None], xlabel: str
) -> Figure:
    """A line of text per method, the first above; those chosen by validation in bold."""
    every = with_chosen(rows)
    names = labels(every)
    made, ((axis,),) = panels(1, width=COLUMN + 1.5, height=0.19 * len(names) + 0.9)
    for place, name in enumerate(reversed(names)):
        draw(axis, place, of(every, name))
    axis.set(
        yticks=range(len(names)),
        yticklabels=list(reversed(names)),
        xlabel=xlabel,
        ylim=(-0.7, len(names) - 0.3),
    )
    for text in axis.get_yticklabels():
        text.set_fontweight("bold" if text.get_text() in (OURS, PRINTED) else "normal")
    axis.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)
    made.legend(loc="outside upper center", ncols=3)
    return made


def errors(rows: Sequence[Row]) -> Figure:
    """The error of each method: the mean over clients, and the worst client."""

    def draw(axis: Axes, place: int, own: list[Row]) -> None:
        for name, marker, colour, label in (
            ("accuracy", "s", BLUE, "mean of clients"),
            ("worst", "v", ORANGE, "worst client"),
        ):
            each = percent(own, name)
            axis.plot([each.min(), each.max()], [place] * 2, color=colour, linewidth=1)
            axis.plot(
                [each.mean()],
                [place],
                color=colour,
                marker=marker,
                linestyle="",
                label=label if place == 0 else None,
            )

    return _by_method(rows, draw, "test error, %; bars: least and greatest of seeds")


def spreads(rows: Sequence[Row]) -> Figure:
    """The errors of each method's clients: least, greatest, mean and standard deviation."""

    def draw(axis: Axes, place: int, own: list[Row]) -> None:
        middle, deviation = (
            float(percent(own, "accuracy").mean()),
            100 * float(found(own, "std").mean()),
        )
        ends = [float(percent(own, name).mean()) for name in ("best", "worst")]
        said = ("least to greatest", "mean and standard deviation") if place == 0 else (None, None)
        axis.plot(ends, [place] * 2, color=GREY, linewidth=1, label=said[0])
        axis.plot(
            [middle - deviation, middle + deviation],
            [place] * 2,
            color=BLUE,
            linewidth=3.5,
            solid_capstyle="butt",
            label=said[1],
        )
        axis.plot([middle], [place], color=ORANGE, marker="s", linestyle="")

    return _by_method(rows, draw, "test error of clients, %; means over seeds")


def joining(rows: Sequence[Row]) -> Figure:
    """Error round by round of those who are there: a panel per method, a line per number of joiners."""
    names = labels(rows)
    made, axes = panels(len(names), width=max(COLUMN, 2.4 * len(names)), sharey=True)
    for axis, name in zip(axes[0], names, strict=True):
        for number, joiners in enumerate(values(rows, "joiners")):
            own = of(rows, name, joiners=joiners)
            band(
                axis,
                own[0]["found"]["tested"],
                percent(own, "curve"),
                number,
                f"{joiners} at a time",
                marked=False,
            )
        axis.set(title=name, xlabel="epoch")
    axes[0][0].set(ylabel="test error, %")
    axes[0][0].legend(title="clients that join")
    return made


def tradeoffs(rows: Sequence[Row]) -> Figure:
    """Error by λ: a panel with memory and one without, a line per share of data to train on."""
    memories, weights = values(rows, "memory"), sorted(values(rows, "tradeoff"))
    made, axes = panels(
        len(memories), width=max(COLUMN, 3.0 * len(memories)), height=2.7, sharey=True
    )
    for axis, memory in zip(axes[0], memories, strict=True):
        for number, train in enumerate(sorted(values(rows, "train"))):
            own = picked(rows, memory=memory, train=train)
            each = np.array(
                [percent(picked(own, tradeoff=weight), "accuracy") for weight in weights]
            ).T
            band(axis, list(range(len(weights))), each, number, f"{train:g}")
        axis.set(
            title=f"HCCT {MEMORY[memory == 0]}",
            xlabel="λ / mean training-set size",
            xticks=range(len(weights)),
            xticklabels=[f"{weight:g}" for weight in weights],
        )
    axes[0][0].set(ylabel="test error, %")
    made.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=4,
        title="share to train on",
    )
    return made


def groups(rows: Sequence[Row]) -> Figure:
    """Error and total utility by the number of groups; the number of domains dotted."""
    counts, domains = sorted(values(rows, "groups")), rows[0]["found"]["domains"]
    made, axes = panels(2, width=2 * COLUMN)
    for number, memory in enumerate(values(rows, "memory")):
        each = [picked(rows, memory=memory, groups=count) for count in counts]
        label = f"HCCT {MEMORY[memory == 0]}"
        band(
            axes[0][0],
            counts,
            np.array([percent(own, "accuracy") for own in each]).T,
            number,
            label,
        )
        band(axes[0][1], counts, np.array([found(own, "utility") for own in each]).T, number, label)
    for axis, name in zip(axes[0], ("test error, %", "total utility"), strict=True):
        axis.axvline(domains, color=GREY, linestyle=":", label="number of domains")
        axis.set(xlabel="groups", ylabel=name, xticks=counts)
    axes[0][0].legend()
    return made
