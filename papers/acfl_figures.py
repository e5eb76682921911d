"""ACFL's figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from papers.acfl_claims import (
    CLUSTERS,
    ENOUGH,
    NONE,
    PRETRAINED,
    by_share,
    dense_pairs,
    grid,
    kin,
    matrix,
)
from papers.comparing import labels, of
from papers.drawing import BLUE, COLOURS, DASHES, GREY, ORANGE, band, panels
from papers.numbers import found, mean, picked, values
from papers.study import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# -- figures 3 and 4
# -------------------------------------------------------------------------------------------------------


def heat_maps(rows: Sequence[Row]) -> Figure:
    """Cosines of the first seed: a line per experiment and epochs, a heat map per layer; white lines between true groups."""
    problems, layers = values(rows, "problem"), list(rows[0]["found"]["layers"])
    first = {problem: picked(rows, problem=problem)[0] for problem in problems}
    lines = [
        (problem, epochs)
        for problem in problems
        for epochs in (ENOUGH, max(first[problem]["cell"]["epochs"]))
    ]
    made, axes = panels(len(layers), len(lines), height=1.05)
    least = min(matrix(first[p], layer, e).min() for p, e in lines for layer in layers)
    for line, (problem, epochs) in zip(axes, lines, strict=True):
        row = first[problem]
        for axis, layer in zip(line, layers, strict=True):
            drawn = axis.imshow(
                matrix(row, layer, epochs),
                cmap="cividis",
                vmin=least,
                vmax=1,
                interpolation="nearest",
            )
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(True)
            for edge in np.cumsum([len(group) for group in row["found"]["truth"]])[:-1] - 0.5:
                axis.axhline(edge, color="white", linewidth=1)
                axis.axvline(edge, color="white", linewidth=1)
        line[0].set_ylabel(f"{problem}\n{epochs} epochs".replace(", ", ",\n"))
    for axis, layer in zip(axes[0], layers, strict=True):
        axis.set_title(layer)
    made.colorbar(
        drawn,
        ax=axes,
        shrink=0.6,
        label="cosine of two clients' weights; white: between true groups",
    )
    return made


def pairs(rows: Sequence[Row]) -> Figure:
    """A line per pair of clients of the first seed: the cosine of their dense layers against the epochs."""
    problems = values(rows, "problem")
    made, axes = panels(len(problems), width=max(3.5, 2.4 * len(problems)), sharey=True)
    for axis, problem in zip(axes[0], problems, strict=True):
        row = picked(rows, problem=problem)[0]
        epochs, same = row["cell"]["epochs"], kin(row)
        for curve, own in zip(dense_pairs(row).T, same, strict=True):
            axis.plot(
                epochs,
                curve,
                color=BLUE if own else ORANGE,
                linestyle="-" if own else "--",
                linewidth=0.9,
            )
        axis.axhline(row["cell"]["threshold"], color=GREY, linestyle=":")
        axis.set(
            title=problem,
            xlabel="epochs of pre-training",
            xscale="log",
            xticks=epochs,
            xticklabels=epochs,
        )
        axis.minorticks_off()
    axes[0][0].set_ylabel("cosine of dense layers")
    axes[0][0].plot([], [], color=BLUE, label="pairs of one group")
    axes[0][0].plot([], [], color=ORANGE, linestyle="--", label="pairs across groups")
    axes[0][0].plot([], [], color=GREY, linestyle=":", label="threshold")
    made.legend(loc="outside upper center", ncols=3)
    return made


# -- figures 5 to 7
# --------------------------------------------------------------------------------------------------------


def by_mixing(rows: Sequence[Row]) -> Figure:
    """Validation loss by round, then test accuracy and precision by λ; the other methods are lines across."""
    made, axes = panels(3, height=3.0)
    _losses(axes[0][0], rows)
    for axis, name in zip(axes[0][1:], ("accuracy", "precision"), strict=True):
        for i, kind in enumerate((CLUSTERS, NONE, PRETRAINED)):
            band(axis, *by_share(rows, kind, name), i, kind)
        _others(axis, rows, name)
        axis.set(xlabel="λ", ylabel=f"test {name}", ylim=(None, 1.02))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return made


def _others(axis: Axes, rows: Sequence[Row], name: str) -> None:
    """Methods that have no place on the axis of λ."""
    mixed = {own[0]["cell"]["method"]["label"] for own in grid(rows).values()}
    for i, method in enumerate(name for name in labels(rows) if name not in mixed):
        axis.axhline(
            mean(of(rows, method), name), color=GREY, linestyle=DASHES[2 + i % 2], label=method
        )


def _losses(axis: Axes, rows: Sequence[Row]) -> None:
    """Means over seeds: a colour per λ, dashed without clusters; not of those that are pre-trained without clusters."""
    known = {place: own for place, own in grid(rows).items() if place[0] != PRETRAINED}
    for (kind, share), own in known.items():
        i = sorted({each for _, each in known}).index(share)
        look: dict[str, Any] = {"color": COLOURS[i], "linestyle": "-" if kind == CLUSTERS else "--"}
        axis.plot(own[0]["found"]["tested"], found(own, "validation").mean(0), linewidth=1, **look)
        if kind == CLUSTERS:
            axis.plot([], [], color=COLOURS[i], label=f"λ = {share:g}")
    axis.plot([], [], color=GREY, linestyle="--", label="no clusters")
    axis.set(xlabel="round", ylabel="validation loss", yscale="log")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
