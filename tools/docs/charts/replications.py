"""A strip for each experiment of the papers: a square for each claim, and the verdict on the main one."""

from __future__ import annotations

from collections.abc import Mapping

from experiment_tables import largest
from replications import verdict_of

from papers import PAPERS, STUDIES
from tools.docs.drawings.canvas import Drawing

COLOUR: Mapping[bool | None, str] = {True: "c2", False: "c1", None: "line"}
"""Whether a claim agrees -> the colour of its square; None: the runs cannot tell."""

LABEL: Mapping[bool | None, str] = {True: "agrees", False: "does not", None: "cannot tell"}

LEFT = 244
TOP = 66
ROW_HEIGHT = 22
SQUARE = 14
STEP = 18


def replication_chart() -> Drawing:
    """A row per experiment, in the order of the papers."""
    bottom = TOP + ROW_HEIGHT * len(STUDIES)
    drawing = Drawing(
        720,
        bottom + 18,
        "The claims of the papers' experiments",
        f"For each of {len(STUDIES)} experiments, a square for each claim that counts: whether it agrees with the runs, "
        "does not, or the runs cannot tell; and the verdict on the main claim. "
        + " ".join(f"{name}: {verdict_of(name)['claim']}." for name in STUDIES),
    )
    drawing.text(20, 30, "Claims of 29 experiments", size=16, bold=True)
    x = LEFT
    for agrees, label in LABEL.items():
        drawing.box(x, 40, SQUARE, SQUARE, fill=COLOUR[agrees], radius=2)
        drawing.text(x + 20, 52, label, colour="quiet")
        x += 110
    drawing.text(700, 52, "main claim", anchor="end", colour="quiet")
    for place, (name, study) in enumerate(STUDIES.items()):
        y = TOP + ROW_HEIGHT * place
        where = study.where[0].lower() + study.where[1:]
        drawing.text(20, y + 14, f"{PAPERS[study.paper].partition(':')[0]}, {where}")
        outcome = largest(study)
        claims = [] if outcome is None else [claim for claim in outcome.claims if not claim.aside]
        for number, claim in enumerate(claims):
            drawing.box(
                LEFT + STEP * number, y + 3, SQUARE, SQUARE, fill=COLOUR[claim.holds], radius=2
            )
        verdict = verdict_of(name)["claim"]
        drawing.text(
            700,
            y + 14,
            verdict,
            anchor="end",
            bold=verdict.startswith("holds"),
            colour="text" if verdict.startswith("holds") else "quiet",
        )
    return drawing
