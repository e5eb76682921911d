"""What is printed is text: controls of strangers are shown, and JSON and UTF-8 stay what they are."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.cli import fail
from coterie.printable import printable, printable_record, say
from coterie.records.text_files import to_json
from coterie.report import terminal
from coterie.settings import UserError

LETTERS = st.text(st.characters(codec=None, categories=None))


@given(LETTERS)
def test_nothing_but_text_is_left_and_plain_text_is_as_it_was(text: str) -> None:
    made = printable(text)
    assert {unicodedata.category(letter)[0] for letter in made} <= set("LMNPSZ")
    assert not {unicodedata.category(letter) for letter in made} & {"Zl", "Zp"}
    assert made.encode("utf-8").decode() == made
    if text.isprintable():
        assert made == text


@given(
    st.recursive(
        LETTERS, lambda inner: st.lists(inner) | st.dictionaries(LETTERS, inner), max_leaves=8
    )
)
def test_json_says_the_same(value: object) -> None:
    for indent in (None, 1):
        data = to_json(value, indent)
        assert json.loads(data) == value
        assert printable(data, keep="\n") == data
        data.encode("utf-8")


def test_a_mistake_is_one_line_however_long_and_odd(capsys: pytest.CaptureFixture[str]) -> None:
    error = UserError("the file \x1b[2Ja\nb\u2028c\udcff cannot be read:\n  " + "why " * 5000)
    assert str(error).startswith(r"the file \u001b[2Ja b c\udcff cannot be read: why why")
    assert len(str(error)) < 2000
    assert fail("here:\n\x1b[31m", 2) == 2
    assert capsys.readouterr().err == "coterie: here: \\u001b[31m\n"


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\n\ttwo\r\x9b")
    assert capsys.readouterr().out == "one\n\ttwo\\u000d\\u009b\n"


def test_a_console_knows_no_markup_and_cuts_what_it_has_escaped() -> None:
    stream = io.StringIO()
    console = terminal.console(stream)
    rows = terminal.table(
        [
            {
                "method": "[red]a[/]:smile: \x1b[2J",
                "scenario": "digits/iid",
                "settings": {},
                "seed": 0,
                "rounds": 1,
                "metric": "accuracy",
                "score": None,
                "loss": None,
                "bytes_up": 1,
                "bytes_down": 1,
                "groups": [],
                "ari": None,
                "seconds": 1.0,
            }
        ]
    )
    console.print(rows)
    console.print("[bold]plain[/bold]")
    assert r"[red]a[/]" in stream.getvalue()
    assert ":smile:" in stream.getvalue()
    assert "[bold]plain[/bold]" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    "columns", ["", "0", "-3", "²", "9" * 5000, "wide", "100000"], ids=range(7)
)
def test_an_invalid_width_is_ignored(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert terminal.console(io.StringIO()).width == 160
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal.console(io.StringIO()).width == 72


def test_a_log_is_printable(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("coterie.test")
    log.addFilter(printable_record)
    try:
        log.warning("client %s refused: %s", 3, "\x1b]0;x\x07\nforged")
    finally:
        log.removeFilter(printable_record)
    assert caplog.messages == [r"client 3 refused: \u001b]0;x\u0007\u000aforged"]


def test_the_servers_log_goes_through_it() -> None:
    from coterie.engines.flower.tolerant_grid import log

    assert printable_record in log.filters
