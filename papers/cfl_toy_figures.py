"""Figures 1 and 2 of CFL, of toys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.drawing import BLUE, COLOURS, DASHES, GREY, ORANGE, panels
from papers.numbers import picked
from papers.study import Row
from papers.toys import toy_clients

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLUSTERS = (BLUE, ORANGE)
TITLES = {
    "xor": "federated XOR: one line is not enough",
    "diverging": "diverging labels: no model is enough",
}


def toys(rows: Sequence[Row]) -> Figure:
    """The points of the first seed, the line of one linear model for all, and those of CFL's groups."""
    made, axes = panels(2, height=2.9)
    for place, (toy, title) in zip(axes[0], TITLES.items(), strict=True):
        row = picked(rows, toy=toy, model="linear", seed=0)[0]
        cell = row["cell"]
        for client, (x, y, *_) in enumerate(
            toy_clients(toy, cell["clients"], cell["points"], cell["spread"], 0)
        ):
            for label, marker in ((0, "o"), (1, "x")):
                at = x[y == label]
                place.scatter(
                    at[:, 0],
                    at[:, 1],
                    s=9,
                    marker=marker,
                    c=CLUSTERS[client % 2],
                    alpha=0.6,
                    linewidths=0.8,
                )
        place.set(
            title=title,
            xlim=(-2.2, 2.2),
            ylim=(-2.2, 2.2),
            xlabel="first feature",
            ylabel="second feature",
        )
        place.set_aspect("equal")
        (joint,) = row["found"]["fedavg"]["lines"]
        _line(place, joint, "black", DASHES[1], "one model for all")
        for group, own in enumerate(row["found"]["cfl"]["lines"]):
            _line(place, own, COLOURS[group], "-", f"model of CFL's group {group + 1}")
        for cluster, colour in enumerate(CLUSTERS):
            place.scatter(
                [], [], s=9, marker="o", c=colour, label=f"clients of cluster {cluster + 1}"
            )
    handles, labels = axes[0][0].get_legend_handles_labels()
    handles += [axes[0][0].scatter([], [], s=9, marker=marker, c=GREY) for marker in ("o", "x")]
    made.legend(handles, [*labels, "label 0", "label 1"], loc="outside lower center", ncols=4)
    return made


def _line(place: Axes, line: Sequence[float], colour: str, dash: str, label: str) -> None:
    a, b, c = line
    x, y = (
        -c * side / (a * a + b * b) for side in (a, b)
    )  # the point of the line that is nearest to the origin
    place.axline((x, y), (x - b, y + a), color=colour, linestyle=dash, label=label)


def paths(rows: Sequence[Row]) -> Figure:
    """Contours of both clients' risks, the paths of Federated Learning, and at their ends where each client pulls."""
    made, axes = panels(2, height=3.0)
    for place, problem in zip(axes[0], ("incongruent", "congruent"), strict=True):
        own = picked(rows, problem=problem)
        bowls = own[0]["cell"]["bowls"]
        span = np.linspace(-3.2, 3.2, 161)
        x, y = np.meshgrid(span, span)
        risks = [surface(bowl, x, y) for bowl in bowls]
        place.contourf(x, y, sum(risks), levels=[-1, 1e-6], colors=["#BBBBBB"])
        for each, colour in zip(risks, CLUSTERS, strict=True):
            place.contour(
                x,
                y,
                each,
                levels=[0.02, 0.2, 0.6, 1.2, 2.0, 3.0],
                colors=colour,
                linewidths=0.6,
                alpha=0.8,
            )
        for row in own:
            path = np.array(row["found"]["path"])
            place.plot(*path.T, color="black", linewidth=1.2, marker=".", markersize=2)
            place.plot(*path[0], color="black", marker="o", markersize=4, markerfacecolor="white")
            for bowl, colour in zip(bowls, CLUSTERS, strict=True):
                pull = -slope(bowl, *path[-1])
                if np.hypot(*pull) > 0.05:
                    place.annotate(
                        "",
                        path[-1] + pull,
                        path[-1],
                        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2},
                    )
        place.set(
            title=problem,
            xlim=(-3.2, 3.2),
            ylim=(-3.2, 3.2),
            xlabel="$\\theta_1$",
            ylabel="$\\theta_2$",
        )
        place.set_aspect("equal")
    return made


def surface(bowl: Sequence[float], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A client's risk at points: half the squared stretched distance beyond its radius."""
    across, along, radius, *stretch = bowl
    away = np.hypot(stretch[0] * (x - across), stretch[1] * (y - along)) - radius
    return np.maximum(away, 0) ** 2 / 2


def slope(bowl: Sequence[float], x: float, y: float) -> np.ndarray:
    """``(2,)`` the gradient of :func:`surface` at a point, by central differences."""
    step = 1e-4
    at = np.array([[x + step, y], [x - step, y], [x, y + step], [x, y - step]])
    risks = surface(bowl, at[:, 0], at[:, 1])
    return np.array([risks[0] - risks[1], risks[2] - risks[3]]) / (2 * step)
