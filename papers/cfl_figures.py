"""Figures 3 to 7 of CFL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.clustering import guaranteed_gamma
from papers.drawing import COLOURS, COLUMN, DASHES, GREEN, GREY, MARKERS, band, panels
from papers.numbers import found, mean, picked, values
from papers.study import Row
from papers.watched import GRADIENTS, UPDATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def cuts(rows: Sequence[Row]) -> Figure:
    """P[g(α) > 0] and P[correct] over (γ, k), and the area that Theorem 1 guarantees."""
    made, axes = panels(2, height=2.6, sharey=True)
    rows = picked(rows, stationary=True)
    ks, gammas = values(rows, "k"), values(rows, "gamma")
    for place, (name, title) in zip(
        axes[0], (("gap", "P[g(α) > 0]"), ("correct", "P[the best cut is correct]")), strict=True
    ):
        grid = [[mean(picked(rows, k=k, gamma=gamma), name) for gamma in gammas] for k in ks]
        if len(ks) > len(COLOURS):
            drawn = place.pcolormesh(
                gammas, ks, grid, cmap="cividis", vmin=0, vmax=1, shading="nearest", rasterized=True
            )
            fine = np.arange(ks[0], ks[-1] + 1)
            place.fill_betweenx(
                fine,
                0,
                [guaranteed_gamma(int(k)) for k in fine],
                color=GREEN,
                label="guaranteed by Theorem 1",
            )
            made.colorbar(drawn, ax=place)
            place.set(
                title=title,
                xlabel="relative noise γ",
                ylabel="distributions k",
                xlim=(0, gammas[-1]),
            )
        else:
            for i, (k, line) in enumerate(zip(ks, grid, strict=True)):
                place.plot(
                    gammas,
                    line,
                    color=COLOURS[i],
                    marker=MARKERS[i],
                    linestyle=DASHES[i % 4],
                    label=f"k = {k}",
                )
                place.plot(
                    [0, guaranteed_gamma(k)], [1.03 + 0.03 * i] * 2, color=COLOURS[i], linewidth=2.5
                )
            place.set(
                title=title,
                xlabel="relative noise γ",
                ylabel="share of draws",
                xlim=(0, None),
                yticks=np.arange(6) / 5,
            )
    axes[0][0].legend(
        title="bars above: guaranteed" if len(ks) <= len(COLOURS) else None, loc="lower left"
    )
    return made


# -- figure 4
# --------------------------------------------------------------------------------------------------------------


ACROSS, DOWN, PER_LINE = 0.115, 0.17, 8
"""Of the ids in a node: how far apart, and how many stand in a line."""


@dataclass
class _Node:
    """A group in the figure: where it stands (levels count down from the root's), and the place of its parent."""

    group: Mapping[str, Any]
    x: float
    level: int
    parent: _Node | None = None

    @property
    def y(self) -> float:
        return float(-self.level)

    @property
    def bottom(self) -> float:
        return self.y - DOWN * ((len(self.group["clients"]) - 1) // PER_LINE) - 0.1


def tree(rows: Sequence[Row]) -> Figure:
    """The tree of the first seed: every group with its clients in the colours of the true groups; squares are newcomers."""
    run = rows[0]["found"]
    kin = {client: i for i, group in enumerate(run["truth"]) for client in group}
    new = {int(client) for client in run["newcomers"]}
    nodes: list[_Node] = []
    _place(run["tree"], 0, 0.0, nodes)
    depth, width = max(node.level for node in nodes), sum(not node.group["parts"] for node in nodes)
    made, ((axis,),) = panels(1, height=0.3 + 0.8 * (depth + 1))
    for node in nodes:
        said = f"split after round {node.group['round']}" if node.group["parts"] else "leaf"
        axis.text(node.x, node.y + 0.14, said, ha="center", fontsize=6.5, color=GREY)
        if node.parent:
            axis.plot(
                [node.parent.x, node.x],
                [node.parent.bottom, node.y + 0.26],
                color=GREY,
                linewidth=0.8,
            )
        _members(axis, node, kin, new)
    axis.set(xlim=(-0.55, width - 0.45), ylim=(-depth - 0.3, 0.3))
    axis.set_axis_off()
    return made


def _place(
    group: Mapping[str, Any], level: int, left: float, out: list[_Node]
) -> tuple[_Node, float]:
    """Put a group above its leaves, which stand side by side from ``left`` on; returns it and where the next begins."""
    node, parts = _Node(group, left, level), []
    for part in group["parts"]:
        child, left = _place(part, level + 1, left, out)
        child.parent = node
        parts.append(child)
    out.append(node)
    if not parts:
        return node, left + 1
    node.x = sum(child.x for child in parts) / len(parts)
    return node, left


def _members(axis: Axes, node: _Node, kin: Mapping[int, int], new: set[int]) -> None:
    """The ids of a group's clients, each in a disc of the colour of its true group, or a square."""
    clients = node.group["clients"]
    for place, client in enumerate(clients):
        x = node.x + ACROSS * (place % PER_LINE - (min(len(clients), PER_LINE) - 1) / 2)
        y = node.y - DOWN * (place // PER_LINE)
        marker, edge = ("s", "black") if client in new else ("o", "none")
        axis.scatter([x], [y], s=85, c=COLOURS[kin[client]], marker=marker, edgecolors=edge)
        axis.text(
            x, y, str(client), ha="center", va="center", fontsize=5.5, color="white", weight="bold"
        )


# -- figures 5 to 7
# --------------------------------------------------------------------------------------------------------

KINDS = {UPDATES: "weight-updates", GRADIENTS: "gradients"}


def gap_by_examples(rows: Sequence[Row]) -> Figure:
    """The gap against the examples of a client: a panel per problem, updates and gradients."""
    problems = values(rows, "problem")
    made, axes = panels(len(problems), width=COLUMN * len(problems))
    for axis, problem in zip(axes[0], problems, strict=True):
        own = picked(rows, problem=problem)
        sizes = sorted(values(own, "examples"))
        for i, (of, label) in enumerate(KINDS.items()):
            of_size = [
                [row["found"][of]["gap"] for row in picked(own, examples=size)] for size in sizes
            ]
            band(axis, sizes, np.array(of_size).T, i, label)
        _gap(axis, problem, "training examples of a client")
    return made


def gap_by_round(rows: Sequence[Row]) -> Figure:
    """The gap against the round: a panel per problem, updates and gradients."""
    problems = values(rows, "problem")
    made, axes = panels(len(problems), width=COLUMN * len(problems))
    for axis, problem in zip(axes[0], problems, strict=True):
        own = picked(rows, problem=problem)
        for i, (of, label) in enumerate(KINDS.items()):
            series = found(own, of, "gap")
            band(axis, range(1, series.shape[1] + 1), series, i, label, marked=False)
        _gap(axis, problem, "round of Federated Learning")
    return made


def _gap(axis: Axes, problem: str, along: str) -> None:
    axis.axhline(0, color=GREY, linewidth=0.7)
    axis.set(title=problem, xlabel=along, ylabel="separation gap g(α)")
    axis.legend()


def norms(rows: Sequence[Row]) -> Figure:
    """Both norms against the round, congruent and incongruent."""
    made, axes = panels(2, sharey=True)
    for axis, problem in zip(axes[0], ("incongruent", "congruent"), strict=True):
        own = picked(rows, problem=problem)
        along = own[0]["found"]["rounds"]
        for i, (name, label) in enumerate(
            (("client_norm", "greatest client norm (33)"), ("mean_norm", "mean update (32)"))
        ):
            band(axis, along, found(own, name), i, label, marked=False)
        axis.set(title=problem, xlabel="round", ylabel="norm", xscale="log")
    axes[0][0].set_ylim(bottom=0)  # of both, which share it
    axes[0][0].legend()
    return made
