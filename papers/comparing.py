"""Studies that run methods side by side: one measure, one table, one figure of curves.

A cell names a ``problem``, its scenario and training, and a ``method``: a table of its name in
Coterie, its settings, and the ``label`` that it has in tables and figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core import Method
from coterie.methods import METHODS
from coterie.settings import build
from papers.drawing import COLUMN, band, panels
from papers.numbers import found, mean, picked, spread, values
from papers.running import rounds_of, world_of
from papers.study import Resources, Row, Table
from papers.tally import Tally, megabytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_MODEL = "FedAvg"
"""The label of one model for all, to which others are compared."""


def method_of(how: Mapping[str, Any]) -> Method[Any]:
    """The method of a cell's table."""
    made: Method[Any] = build(
        METHODS[how["name"]], {name: how[name] for name in how if name not in ("name", "label")}
    )
    return made


def train(
    on: Resources,
    *,
    problem: str,
    scenario: Mapping[str, Any],
    training: Mapping[str, Any],
    method: Mapping[str, Any],
    rounds: int,
    every: int,
    target: float,
    seed: int,
) -> dict[str, Any]:
    """What is found (see :meth:`Tally.found`) of a method after so many rounds; ``every`` so many are tested."""
    world = world_of(on, scenario, training, seed)
    return (
        Tally(world, target)
        .of(rounds_of(method_of(method), world, on, rounds, seed, every=every))
        .found()
    )


# -- rows of methods
# -------------------------------------------------------------------------------------------------------


def label(row: Row) -> str:
    """What a row's method is called."""
    text: str = row["cell"]["method"]["label"]
    return text


def labels(rows: Sequence[Row]) -> list[str]:
    """Of all methods, in their order."""
    return list(dict.fromkeys(map(label, rows)))


def of(rows: Sequence[Row], method: str, **cell: Any) -> list[Row]:
    """The rows of the method with this label, and these values of the cell."""
    return [row for row in picked(rows, **cell) if label(row) == method]


def method_table(rows: Sequence[Row]) -> Table:
    """A row per problem and method: how good, for whom, when, in which groups, at what cost."""
    problems, lines = values(rows, "problem"), []
    for problem in problems:
        joint = of(rows, ONE_MODEL, problem=problem)
        for name in labels(picked(rows, problem=problem)):
            own = of(rows, name, problem=problem)
            ratio = f"{mean(own, 'accuracy') / mean(joint, 'accuracy'):.2f}" if joint else "–"
            lines.append(
                (
                    *([problem] if len(problems) > 1 else []),
                    name,
                    spread(own, "accuracy", digits=3),
                    spread(own, "worst", digits=3),
                    spread(own, "std", digits=3),
                    f"{100 * mean(own, 'share'):.0f} %",
                    ratio,
                    reached(own),
                    rand(own),
                    spread(own, "groups", digits=1),
                    f"{mean(own, 'exchanges'):.0f}",
                    sent(own),
                )
            )
    targets = values(rows, "target")
    target = f"{targets[0]:g}" if len(targets) == 1 else "target"
    head: tuple[str, ...] = (
        "method",
        "accuracy",
        "worst client",
        "std of clients",
        f"clients at {target}",
        "to FedAvg",
        f"rounds to {target}",
        "adjusted Rand",
        "groups",
        "exchanges",
        "MB",
    )
    head = ("problem", *head) if len(problems) > 1 else head
    return Table(head, tuple(lines), "l" * (1 + (len(problems) > 1)) + "r" * 10)


def rand(rows: Sequence[Row]) -> str:
    """The adjusted Rand index, where there are true groups."""
    return "–" if None in [row["found"]["ari"] for row in rows] else spread(rows, "ari")


def sent(rows: Sequence[Row]) -> str:
    """The mean of all that was sent, both ways, in 10^6 bytes."""
    return f"{np.mean([megabytes(row['found']) for row in rows]):,.1f}"


def reached(rows: Sequence[Row]) -> str:
    """The mean round in which the target is reached, and in how many of the runs it is, if not in all."""
    known = [row["found"]["reached"] for row in rows if row["found"]["reached"] is not None]
    if not known:
        return "never"
    some = f" ({len(known)} of {len(rows)})" if len(known) < len(rows) else ""
    return f"{np.mean(known):.0f}{some}"


# -- curves
# ----------------------------------------------------------------------------------------------------------------


def curves(rows: Sequence[Row]) -> Figure:
    """Mean accuracy over clients in the rounds tested: a panel per problem, a line per method, its 95 % interval."""
    problems = values(rows, "problem")
    made, axes = panels(len(problems), width=COLUMN * len(problems), height=2.8)
    for axis, problem in zip(axes[0], problems, strict=True):
        draw_curves(axis, picked(rows, problem=problem))
        axis.set(title=problem, xlabel="round", ylabel="accuracy")
    axes[0][0].legend()
    return made


def draw_curves(axis: Axes, rows: Sequence[Row], name: str = "curve") -> None:
    """A line per method of what was kept under this name in the rounds tested."""
    for number, method in enumerate(labels(rows)):
        own = of(rows, method)
        band(axis, own[0]["found"]["tested"], found(own, name), number, method, marked=False)
