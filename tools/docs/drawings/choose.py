"""Which method when: at most eight questions, of which the first yes decides."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs.drawings.canvas import LEADING, Drawing

WIDTH = 720
QUESTION_LEFT = 18
QUESTION_WIDTH = 250
ANSWER_LEFT = 330
ANSWER_WIDTH = WIDTH - 18 - ANSWER_LEFT
TOP = 18
GAP = 22
PADDING = 11
"""Above and below the lines in a box."""

METHOD = "text"
REMARK = "quiet"

Line = Sequence[tuple[str, str]]

QUESTIONS: Sequence[tuple[Sequence[str], Sequence[Line]]] = (
    (
        ("May nothing be sent?",),
        [[("Independent", METHOD)]],
    ),
    (
        ("Do you know that all", "clients do not differ?"),
        [[("FedAvg", METHOD)]],
    ),
    (
        ("Must updates be hidden", "from the server?"),
        [
            [("Split-half from sums, FedAvg", METHOD), (": masks", REMARK)],
            [("Private split-half", METHOD), (": noise, 1,000 clients", REMARK)],
            [("FedAvg, CFL, FL+HC", METHOD), (": noise on each", REMARK)],
        ],
    ),
    (
        ("Must some layers stay", "at their client?"),
        [[("FedPer, FedRep, HCCT-P", METHOD)]],
    ),
    (
        ("Is it a Flower app that was", "not written for Coterie?"),
        [[("FedAvg, CFL, FL+HC, HCCT, HCCT-E", METHOD)]],
    ),
    (
        ("Must training or traffic", "be least?"),
        [
            [("Split-half, HCCT, CFL", METHOD), (": one model each", REMARK)],
            [("FL+HC", METHOD), (": least traffic, all answer once", REMARK)],
        ],
    ),
    (
        ("Do the data change", "during the run?"),
        [[("Split-half", METHOD), (" with alert, inside ", REMARK), ("Tuned", METHOD)]],
    ),
    (
        ("Do you know the number", "of groups?"),
        [
            [("CFL-GP", METHOD), (": they differ much, all answer", REMARK)],
            [("IFCA", METHOD), (": 60 clients, few answer", REMARK)],
            [("CLoVE", METHOD), (": IFCA gives all one model", REMARK)],
        ],
    ),
)
"""Each question in lines, and the lines of its answer for yes."""

LAST: Line = [
    ("Auto", METHOD),
    (", the default: one model, groups, personal models or training alone", REMARK),
]
REMARKS = ("Some clients may be hostile: set robust.hostile, with one model also a robust mean.",)


def choose() -> Drawing:
    """The questions from top to bottom, an answer beside each, and the default below."""
    heights = [_height(max(len(question), len(answer))) for question, answer in QUESTIONS]
    below = TOP + sum(heights) + GAP * len(heights)
    drawing = Drawing(
        WIDTH,
        round(below + _height(1) + 40),
        "Which method when",
        "Questions from top to bottom; the first yes names the method. "
        + " ".join(
            f"{' '.join(question)} {'; '.join(_plain(line) for line in answer)}."
            for question, answer in QUESTIONS
        )
        + f" If every answer is no: {_plain(LAST)}. {' '.join(REMARKS)}",
    )
    y: float = TOP
    for (question, answer), height in zip(QUESTIONS, heights, strict=True):
        _question(drawing, y, height, question)
        _answer(drawing, y, height, answer)
        y += height + GAP
    drawing.box(
        QUESTION_LEFT,
        y,
        WIDTH - 2 * QUESTION_LEFT,
        _height(1),
        fill="panel",
        stroke="accent",
        stroke_width=2.5,
    )
    drawing.spans(WIDTH / 2, _baseline(y, _height(1), 1), LAST, anchor="middle")
    drawing.lines(QUESTION_LEFT + 4, y + _height(1) + 26, REMARKS, colour="quiet")
    return drawing


def _question(drawing: Drawing, y: float, height: float, question: Sequence[str]) -> None:
    middle = QUESTION_LEFT + QUESTION_WIDTH / 2
    drawing.box(QUESTION_LEFT, y, QUESTION_WIDTH, height, fill="accent", radius=18, opacity=0.13)
    drawing.lines(middle, _baseline(y, height, len(question)), question, anchor="middle")
    drawing.arrow((middle, y + height + 1), (middle, y + height + GAP - 1))
    drawing.text(middle + 10, y + height + 16, "no", colour="quiet")


def _answer(drawing: Drawing, y: float, height: float, answer: Sequence[Line]) -> None:
    right = QUESTION_LEFT + QUESTION_WIDTH
    own = _height(len(answer))
    top = y + (height - own) / 2
    drawing.arrow((right + 2, y + height / 2), (ANSWER_LEFT - 3, y + height / 2))
    drawing.text(
        (right + ANSWER_LEFT) / 2 - 3, y + height / 2 - 7, "yes", anchor="middle", colour="quiet"
    )
    drawing.box(ANSWER_LEFT, top, ANSWER_WIDTH, own, fill="panel", stroke="line")
    for row, line in enumerate(answer):
        drawing.spans(ANSWER_LEFT + 14, _baseline(top, own, len(answer)) + row * LEADING, line)


def _height(lines: int) -> float:
    return LEADING * lines + 2 * PADDING - 4


def _baseline(top: float, height: float, lines: int) -> float:
    """Where the first of the lines stands, if all are in the middle of a box."""
    return top + (height - LEADING * lines) / 2 + 13.5


def _plain(line: Line) -> str:
    return "".join(words for words, _ in line)
