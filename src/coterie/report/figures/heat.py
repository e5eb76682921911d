"""The matrices on which a decision was based, ordered by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.report.figures.style import COLUMN, PAGE, Looks, looks, panels
from coterie.report.gathered import Gathered
from coterie.report.page.charts import arranged, load
from coterie.settings import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3
"""The greatest number of matrices in a row."""

BORDERS = 40
"""The greatest number of lines between groups; more would hide the matrix."""


def figure(run: Gathered, round: int | None) -> Figure:
    """Draw every layer of every matrix of a round.

    Args:
        run: The run.
        round: The round, or None for the last one that has a matrix.

    Raises:
        UserError: If there is no matrix.
    """
    drawn = _panels(run, chosen(run, round))
    columns = min(len(drawn), ACROSS)
    rows = math.ceil(len(drawn) / columns)
    width = COLUMN if columns == 1 else PAGE
    made, axes = panels(columns, rows, width=width, height=width / columns * 0.86)
    look = looks(run)
    for i, place in enumerate(axes.flat):
        if i < len(drawn):
            _draw(place, run, look, *drawn[i])
            if i % columns:
                place.set_ylabel("")
        else:
            place.axis("off")
    return made


def chosen(run: Gathered, round: int | None) -> list[tuple[Any, Any]]:
    """Return (line, note) of the matrices of a round.

    Args:
        run: The run.
        round: The round, or None for the last one that has a matrix.

    Raises:
        UserError: If there is no matrix.
    """
    named = [(line, note) for line in run.lines for note in line["notes"] if note.get("similarity")]
    having = sorted({line["round"] for line, _ in named})
    if not having:
        raise UserError(f"{run.folder} has no similarities recorded: its method, {_method(run)}, kept no matrix in any round")
    if round is not None and round not in having:
        shown = [str(one) for one in having]
        known = ", ".join(shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-3:]])
        raise UserError(f"--round {round} has no matrix recorded; there is one of round{'s' * (len(having) > 1)} {known}")
    return [(line, note) for line, note in named if line["round"] == (having[-1] if round is None else round)]


def _method(run: Gathered) -> str:
    return str(run.description["methods"][0]["name"])


def _panels(run: Gathered, named: Sequence[tuple[Any, Any]]) -> list[tuple[str, Any, Any, Any, np.ndarray]]:
    """Return title, clients, groups, edges and matrix of each panel."""
    out: list[tuple[str, Any, Any, Any, np.ndarray]] = []
    for line, note in named:
        clients, groups, edges, layers = arranged(*load(run.folder, line, note), line, run.clients)
        of = f"round {line['round']}" + (f", {len(clients)} clients" if len(named) > 1 else "")
        out += [
            (of if len(layers) == 1 else f"{of}, {name}", clients, groups, edges, matrix) for name, matrix in layers.items()
        ]
    return out


def _meaning(run: Gathered) -> str:
    """Return the name of a matrix's values: FL+HC clusters by distances, the other methods by cosines."""
    method = run.description["methods"][0]
    return f"{method['metric']} distance" if method["name"] == "flhc" else "cosine similarity"


def scale(matrix: np.ndarray) -> dict[str, Any]:
    """Return the colour scale of a matrix.

    For cosines it is symmetric about zero, for other values it reaches from the least to the greatest. Both ignore values
    that are not finite, such as those of single clients on the diagonal.

    Args:
        matrix: The matrix ``(n, n)``.
    """
    known = matrix[np.isfinite(matrix)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if -1.001 <= low < 0 and high <= 1.001:
        reach = max(-low, high, 1e-9)
        return {"cmap": "PuOr_r", "vmin": -reach, "vmax": reach}
    return {"cmap": "YlGnBu", "vmin": low, "vmax": high if high > low else low + 1}


def _draw(axes: Axes, run: Gathered, look: Looks, title: str, clients: Any, groups: Any, edges: Any, matrix: Any) -> None:
    n = len(matrix)
    shown = matrix.astype(np.float64)
    if edges is None:
        np.fill_diagonal(shown, np.nan)
    axes.set_facecolor("#808080")
    image = axes.imshow(np.ma.masked_invalid(shown), interpolation="nearest", **scale(shown))
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02)
    bar.outline.set_linewidth(0.5)
    bar.ax.tick_params(width=0.5, length=2)
    bar.set_label(_meaning(run))
    first = list(range(n)) if edges is None else edges[:-1]
    borders = [i for i in range(1, n) if groups[first[i]] != groups[first[i] - 1]]
    for i in borders if len(borders) <= BORDERS else ():
        axes.axhline(i - 0.5, color="black", linewidth=0.9)
        axes.axvline(i - 0.5, color="black", linewidth=0.9)
    if run.facts.get("true_groups"):
        truth = run.truth
        _stripes(axes, n, [truth.get(clients[i], -1) for i in first], look)
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(f"{len(clients):,} clients" + ("" if edges is None else ", means over blocks"), labelpad=12)
    axes.spines[["top", "right"]].set_visible(True)


def _stripes(axes: Axes, n: int, truth: Sequence[int], look: Looks) -> None:
    """Draw the true groups to the left of the rows and above the columns."""
    from matplotlib.colors import to_rgb

    colours = np.array([[to_rgb(look.truth.get(number, "white")) for number in truth]])
    left = axes.inset_axes((-0.045, 0, 0.03, 1))
    left.imshow(colours.transpose(1, 0, 2), aspect="auto", interpolation="nearest")
    top = axes.inset_axes((0, 1.015, 1, 0.03))
    top.imshow(colours, aspect="auto", interpolation="nearest")
    for beside in (left, top):
        beside.axis("off")
    axes.title.set_position((0.5, 1.05))
