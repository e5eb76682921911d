"""Which arm the default delivers, by how much better groups truly are."""

from __future__ import annotations

from collections.abc import Mapping

from decision_tables import mean, rows

from tools.docs.charts.axes import Axis, dot_legend, level_lines, upright_lines
from tools.docs.drawings.canvas import Drawing

KINDS: Mapping[str, tuple[str, str]] = {
    "tested": ("accent", "groups that split-half's test has found"),
    "untested": ("quiet", "groups without a test"),
}
"""Kind of groups -> its colour and label."""

LEFT = 70
RIGHT = 690
TOP = 78
BOTTOM = 278


def shares_by_difference(kind: str) -> dict[float, float]:
    """True difference in standard errors -> share of races that deliver groups."""
    by_difference: dict[float, list[Mapping[str, object]]] = {}
    for row in (*rows("constant"), *rows("null")):
        if row["groups"] == kind and (row["clients"], row["rows"]) in sizes():
            by_difference.setdefault(row["curve"][0], []).append(row)
    return {
        difference: mean(by_difference[difference], "delivered")
        for difference in sorted(by_difference)
    }


def sizes() -> set[tuple[int, int]]:
    """Numbers of clients and rows of the races with a difference."""
    return {(row["clients"], row["rows"]) for row in rows("constant")}


def decision_chart() -> Drawing:
    """A line per kind of groups."""
    shares = {kind: shares_by_difference(kind) for kind in KINDS}
    across = Axis(LEFT, RIGHT, -4.0, 4.0)
    upward = Axis(BOTTOM, TOP, 0.0, 1.0)
    drawing = Drawing(
        720,
        BOTTOM + 62,
        "How often groups are delivered",
        "Share of simulated races that end with groups, by the true difference of the held-out losses in standard errors. "
        + " ".join(
            f"{KINDS[kind][1].capitalize()}: "
            + ", ".join(f"{share:.0%} at {difference:g}" for difference, share in each.items())
            + "."
            for kind, each in shares.items()
        ),
    )
    drawing.text(20, 30, "Races that end with groups", size=16, bold=True)
    dot_legend(drawing, 56, list(KINDS.values()), (25, 330))
    level_lines(drawing, upward, {0.0: "0", 0.5: "50 %", 1.0: "100 %"}, LEFT, RIGHT)
    marks = {float(mark): f"{mark:+d}" if mark else "0" for mark in range(-4, 5)}
    upright_lines(drawing, across, marks, TOP, BOTTOM)
    for kind, each in shares.items():
        points = [(across.at(difference), upward.at(share)) for difference, share in each.items()]
        colour = KINDS[kind][0]
        drawing.line(*points, colour=colour, width=2.0)
        for x, y in points:
            drawing.circle(x, y, 4, fill=colour)
    drawing.text(LEFT, BOTTOM + 46, "groups are better by so many standard errors", colour="quiet")
    return drawing
