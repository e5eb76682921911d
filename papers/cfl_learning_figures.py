"""Figures 8 and 9 of CFL: scores by true group and gaps by group found, over the rounds, and all methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from papers.cfl_learning_claims import by_schedule, splits
from papers.comparing import ONE_MODEL, labels, of
from papers.drawing import COLOURS, DASHES, GREY, MARKERS, panels
from papers.numbers import found
from papers.study import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIXED = "black"
"""The colour of clients of more than one true group."""


def course(rows: Sequence[Row]) -> Figure:
    """Left, as in the paper, a run of CFL (the first seed): scores by true group above, separation gaps by group found below.
    Right: the mean score of every method, and the mean cosine within CFL's groups."""
    made, axes = panels(2, 2, height=2.5, sharex=True)
    run, score = by_schedule(rows)[0], str(rows[0]["found"]["score"])
    _by_group(axes[0][0], run, of(rows, ONE_MODEL, seed=run["cell"]["seed"])[0])
    _by_method(axes[0][1], rows)
    _by_leaf(axes[1][0], run, "gap")
    _by_leaf(axes[1][1], run, "mean")
    axes[0][0].set(ylabel=score, title="one run of CFL, by true group")
    axes[0][1].set(ylabel=score, title="every method, mean over clients and seeds")
    axes[1][0].set(ylabel="separation gap g(α)", xlabel="round", title="within each group found")
    axes[1][1].set(ylabel="mean cosine", xlabel="round", title="within each group found")
    for axis in axes.flat:
        for split in splits(rows):
            axis.axvline(split, color=GREY, linewidth=0.6, linestyle=":")
    for axis in axes[0]:
        if score == "perplexity":
            _zoom(
                axis,
                [
                    curve
                    for row in rows
                    for curve in (row["found"]["scores"], *row["found"]["by_group"])
                ],
            )
        else:
            axis.set_ylim(0, 1.02)
    _legend(made, [axes[0][0], axes[1][0]], "outside lower left")
    _legend(made, [axes[0][1]], "outside lower right")
    return made


def _legend(
    made: Figure, axes: Sequence[Axes], where: Literal["outside lower left", "outside lower right"]
) -> None:
    """Below all panels, so that it hides no line."""
    lines = [line for axis in axes for line in axis.get_legend_handles_labels()[0]]
    made.legend(handles=lines, loc=where, ncols=2, fontsize=7)


def _by_method(axis: Axes, rows: Sequence[Row]) -> None:
    """A line per method, wide ones first, so that those it coincides with are seen on it."""
    names = labels(rows)
    for number, name in enumerate(names):
        own = of(rows, name)
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number % len(DASHES)]}
        wide = 1 + 2 * (len(names) - number) / len(names)
        axis.plot(
            own[0]["found"]["tested"],
            found(own, "scores").mean(0),
            linewidth=wide,
            label=name,
            **look,
        )


def _zoom(axis: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Leave out the first rounds, in which everything is still to be learned and the perplexity is many times as high.

    What is more than twice the least is left out as well, or nothing else could be told apart.
    """
    shown = [value for curve in curves for value in curve[len(curve) // 10 :]]
    axis.set_ylim(0.9 * min(shown), min(1.05 * max(shown), 2 * min(shown)))


def _by_group(axis: Axes, run: Row, joint: Row) -> None:
    found = run["found"]
    for number, curve in enumerate(found["by_group"]):
        axis.plot(
            found["tested"],
            curve,
            color=COLOURS[number],
            linestyle=DASHES[number % 4],
            label=f"group {number + 1}",
        )
    axis.plot(
        joint["found"]["tested"],
        joint["found"]["scores"],
        color=MIXED,
        linestyle=":",
        label=ONE_MODEL,
    )


def _by_leaf(axis: Axes, run: Row, name: str) -> None:
    """A line per group that was trained: in its true group's colour, or black where it has clients of several."""
    truth = run["found"]["truth"]
    home = {client: number for number, group in enumerate(truth) for client in group}
    said = False
    for leaf in run["found"]["leaves"]:
        kinds = {home[client] for client in leaf["clients"]}
        number = min(kinds) if len(kinds) == 1 else None
        look: dict[str, Any] = {"color": MIXED}
        if number is not None:
            look = {
                "color": COLOURS[number],
                "linestyle": DASHES[number % 4],
                "marker": MARKERS[number % len(MARKERS)],
            }
        label = None if number is not None or said else "clients of several groups"
        said = said or number is None
        axis.plot(leaf["rounds"], leaf[name], label=label, markevery=0.2, **look)
    axis.axhline(0, color=GREY, linewidth=0.7)
