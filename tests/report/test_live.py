"""Progress in a terminal: what is written, at 80 and 120 columns, and that nothing is where nobody looks."""

from __future__ import annotations

import io
import re
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from coterie.report import live
from coterie.report.live import FREE_COLUMNS, Live, Pace, Steps, divergence, watched


def line(
    round: int, groups: list[list[int]], tested: bool = True, parts: list[list[int]] | None = None
) -> dict[str, Any]:
    """A recorded round; clients' accuracies are a hundredth of their ids."""
    scores = ("accuracy", "loss") if tested else ()
    clients = {
        str(c): {"group": i, **dict.fromkeys(scores, c / 100)}
        for i, group in enumerate(groups)
        for c in group
    }
    notes = (
        [
            {
                "kind": "split",
                "effect": "divides",
                "clients": [c for group in groups for c in group],
                "parts": parts,
                "text": "why",
            }
        ]
        if parts
        else []
    )
    return {
        "round": round,
        "tested": tested,
        "groups": groups,
        "clients": clients,
        "notes": notes,
        "asked": 9,
        "answered": 7,
        "refused": {},
    }


class Clock:
    """Says what time it is told to be."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("time.monotonic", found)
    return found


def console(width: int = 80) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(
        file=stream,
        force_terminal=True,
        width=width,
        height=24,
        color_system=None,
        legacy_windows=False,
    ), stream


def frames(text: str) -> list[str]:
    """The lines written, without the terminal's controls."""
    return [
        row
        for row in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
        if row.strip()
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_is_seen_on_lines_that_fit(width: int, clock: Clock) -> None:
    screen, stream = console(width)
    big, before = [list(range(i, 1000, 7)) for i in range(7)], threading.active_count()
    with Live(
        screen, ["cfl-seed0", "a-method-with-a-very-long-name-of-its-own-seed0"], 40
    ) as shown:
        shown.begin(0, 0)
        for round in range(1, 4):
            clock.now += 2.0
            shown.show(0, line(round, big, parts=big if round == 2 else None))
        assert threading.active_count() == before  # workers are forked while this goes on
        shown.end(0)
        shown.begin(1, 5)
    rows = frames(stream.getvalue())
    assert max(map(len, rows)) <= width
    assert all(len(row) <= width - FREE_COLUMNS for row in rows if "━" in row)
    assert any("cfl-seed0" in row and "round 3 of 40, 74 s left" in row for row in rows)
    assert any("all runs" in row and "0 of 2 done, 3 min left" in row for row in rows)
    assert [row.endswith("…") for row in rows if "round 2 split: " in row] == [True]
    assert any("7 of 9 replies, accuracy 4.995, 7 groups of 143, 143, " in row for row in rows)
    assert any(
        row.startswith("cfl-seed0: 3 rounds, accuracy 4.995, 7 groups of 143") for row in rows
    )
    assert any("a-method-with-a-very-long" in row and "round 5 of 40" in row for row in rows)


@pytest.mark.parametrize("scores", [{"loss": 0.5}, {"accuracy": None, "loss": None}])
def test_an_accuracy_that_is_no_number_is_a_dash(scores: dict[str, Any], clock: Clock) -> None:
    screen, stream = console()
    one = line(1, [[0, 1]])
    one["clients"] = {client: {"group": 0, **scores} for client in ("0", "1")}
    with Live(screen, ["cfl"], 40) as shown:
        shown.begin(0, 0)
        shown.show(0, one)
        shown.end(0)
    assert any(
        row.startswith("cfl: ") and "accuracy -, 1 group of 2" in row
        for row in frames(stream.getvalue())
    )
    assert "nan" not in stream.getvalue()


def test_what_was_written_anew_is_taken_away_at_the_end(clock: Clock) -> None:
    screen, stream = console()
    with Live(screen, ["cfl"], 40) as shown:
        shown.begin(0, 0)
    last = stream.getvalue()
    assert last.endswith(
        "\x1b[?25h" + "\r" + "\x1b[1A\x1b[2K" * 2
    )  # the cursor is back, both lines are gone


def test_nothing_is_seen_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Live(None, ["cfl"], 4) as shown:
        shown.begin(0, 1)
        shown.show(0, line(2, [[0], [1]], parts=[[0], [1]]))
        shown.end(0)
    with Steps(None, "probing", 3) as steps:
        steps.tell("now")
        steps.step()
    assert capsys.readouterr() == ("", "")
    shown.tell("tracking with wandb is off")  # but what must be known is
    assert capsys.readouterr() == ("", "coterie: tracking with wandb is off\n")


@pytest.mark.parametrize(
    ("error", "output", "quiet"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_it_is_watched_only_in_a_terminal(
    error: bool, output: bool, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert watched() is not None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: error)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: output)
    assert watched(quiet) is None


def test_steps_tell_how_many_are_left_and_for_how_long(clock: Clock) -> None:
    screen, stream = console()
    with Steps(screen, "probing", 7, done=1) as steps:
        clock.now += 5.0
        steps.step()
        clock.now += 1.0
        steps.tell("9 clients")
        for _ in range(6):  # one more than was thought
            steps.step()
    rows = frames(stream.getvalue())
    assert any("probing" in row and "2 of 7, 25 s left" in row for row in rows)
    assert "9 clients" in "".join(rows)
    assert rows[-1].rstrip().endswith("8 of 8")


def test_events_are_many_and_the_terminal_is_written_seldom(clock: Clock) -> None:
    screen, stream = console()
    with Live(screen, ["cfl"], 10_000) as shown:
        shown.begin(0, 0)
        for round in range(1, 1001):
            clock.now += live.MIN_UPDATE_SECONDS / 100
            shown.show(0, line(round, [[0, 1]], tested=False))
        assert 5 < stream.getvalue().count("replies") < 15


def test_the_first_round_of_a_run_does_not_count_for_long(clock: Clock) -> None:
    pace = Pace(["cfl", "cfl", "fedavg"], rounds=11)
    assert pace.left_of_all() == ""
    pace.begin(0, 0)
    clock.now += 100.0  # data are made, workers are forked
    pace.ended(1)
    assert pace.left() == ", 17 min left"
    clock.now += 2.0
    pace.ended(2)
    assert pace.left() == ", 18 s left"
    assert pace.left_of_all() == ", 62 s left"  # 18, and 22 each of two more
    assert pace.share() == pytest.approx(2 / 33)
    pace.finish()  # at its target
    assert pace.left_of_all() == ", 44 s left"
    pace.begin(1, 10)
    assert pace.left_of_all() == ", 24 s left"
    assert pace.left() == ""


def test_divergence_is_said_when_it_happens_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    diverged = line(2, [[0, 1], [2]])
    diverged["clients"]["1"]["loss"] = None
    refused = {
        **line(3, [[0, 1], [2]]),
        "refused": {"2": "its update has a NaN", "0": "the same"},
        "asked": 3,
    }
    untested = line(1, [[0, 1], [2]])
    untested["clients"]["0"]["loss"] = None  # it has no test examples
    assert divergence(untested, None) == divergence(untested, untested) == ""
    assert divergence({**refused, "asked": 5}, None) == ""
    with Live(None, ["cfl"], 9) as live:
        live.begin(0, 0)
        for one in (line(1, [[0, 1], [2]]), diverged, refused):
            live.show(0, one)
        live.begin(0, 0)
        live.show(0, refused)
    first, second = capsys.readouterr().err.splitlines()
    assert (
        "cfl: in round 2, training has diverged for 1 client, for example client 1: a smaller training.lr"
        in first
    )
    assert (
        "cfl: in round 3, 2 clients were refused, for example client 2: its update has a NaN"
        in second
    )
