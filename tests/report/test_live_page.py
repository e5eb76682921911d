"""The report that is written after each round: ``coterie run --watch`` and ``coterie report --follow``."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.cli import main
from coterie.records.record import ROUNDS_FILE, Record
from coterie.report import live_page
from coterie.report.live_page import RELOAD_SECONDS, LivePage
from coterie.settings import UserError
from page_runs import line, note, write

GROUPS = [[0, 1, 2, 3]]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is made again however long the last one took."""
    monkeypatch.setattr(live_page, "REST_FACTOR", 0)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def reload_seconds(page: Path) -> int | None:
    """After how many seconds the page reloads itself."""
    match = re.search(r'data-reload="(\d*)"', page.read_text())
    assert match is not None
    return int(match[1]) if match[1] else None


@pytest.mark.usefixtures("at_once")
def test_it_reloads_itself_until_the_runs_have_ended(tmp_path: Path, page: Path) -> None:
    run = write(tmp_path / "run", [line(1, GROUPS)], rounds=2)
    live = LivePage([run], page)
    assert live.update()
    assert reload_seconds(page) == RELOAD_SECONDS
    assert not live.ended
    Record(run).append(line(2, GROUPS))
    assert live.update()
    assert reload_seconds(page) is None
    assert live.ended


def test_a_run_that_is_stopped_leaves_a_final_page(tmp_path: Path, page: Path) -> None:
    run = write(tmp_path / "run", [line(1, GROUPS)], rounds=2)
    live = LivePage([run], page)
    live.update()
    assert live.update(reloads=False)
    assert reload_seconds(page) is None


@pytest.mark.usefixtures("at_once")
def test_only_what_has_grown_is_read_again(
    tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_run = live_page.read_run
    monkeypatch.setattr(
        live_page, "read_run", lambda folder: read.append(folder.name) or read_run(folder)
    )
    for name in "ab":
        write(tmp_path / name, [line(1, GROUPS)], rounds=2)
    live = LivePage([tmp_path], page)
    assert live.update()
    assert not live.update()
    Record(tmp_path / "b").append(line(2, GROUPS))
    assert live.update()
    assert read == ["a", "b", "b"]


def test_a_page_that_took_long_is_not_made_again_at_once(
    tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "REST_FACTOR", 1e9)
    run = write(tmp_path / "run", [line(1, GROUPS)], rounds=3)
    live = LivePage([run], page)
    live.update()
    Record(run).append(line(2, GROUPS))
    assert not live.update()
    assert live.update(reloads=False)  # the last page has every round


@pytest.mark.usefixtures("at_once")
def test_a_page_without_a_round_becomes_the_report(tmp_path: Path, page: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "experiment.toml").write_text("schema = 1\n", encoding="utf-8")
    live = LivePage([folder], page)
    assert live.update()
    assert "No round is completed yet" in page.read_text()
    run = write(folder / "cfl-seed0", [])
    assert not live.update()
    Record(run).append(line(1, GROUPS))
    whole = (run / ROUNDS_FILE).read_bytes()
    (run / ROUNDS_FILE).write_bytes(whole[:40])
    assert not live.update()  # a line that is being written is no round


@pytest.mark.usefixtures("at_once")
def test_an_experiment_has_not_ended_before_its_last_run_begins(tmp_path: Path, page: Path) -> None:
    from coterie.records.checksum import sealed_toml
    from coterie.records.text_files import read_recorded, to_toml

    run = write(tmp_path / "fedavg-seed0", [line(1, GROUPS)], rounds=1)
    (tmp_path / "experiment.toml").write_bytes(
        sealed_toml(to_toml({**read_recorded(run / "run.toml"), "seeds": [0, 1]}))
    )
    live = LivePage([tmp_path], page)
    live.update()
    assert not live.ended
    write(tmp_path / "fedavg-seed1", [line(1, GROUPS)], rounds=1, seed=1)
    live.update()
    assert live.ended


def test_damaged_records_are_one_sentence(
    tmp_path: Path, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write(tmp_path / "run", [line(1, GROUPS)])
    whole = (run / ROUNDS_FILE).read_bytes()
    (run / ROUNDS_FILE).write_bytes(whole + b"nothing\n{}\n")
    assert main(["report", str(run), "--follow", "-o", str(page)]) == 2
    assert f"line 2 of {run / ROUNDS_FILE}" in capsys.readouterr().err
    assert not page.exists()


def test_a_folder_without_runs_is_refused(tmp_path: Path, page: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        LivePage([tmp_path], page)
    with pytest.raises(UserError, match="--out"):
        LivePage([write(tmp_path / "run", [line(1, GROUPS)])], page.with_suffix(".txt"))
    assert not page.exists()


@pytest.mark.usefixtures("at_once")
def test_follow_ends_with_the_run_or_an_interrupt(tmp_path: Path, page: Path) -> None:
    run = write(tmp_path / "run", [line(1, GROUPS)], rounds=3)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    LivePage([run], page).follow(sleep=interrupt)
    assert reload_seconds(page) is None
    numbers = iter((2, 3))
    LivePage([run], page).follow(
        sleep=lambda seconds: Record(run).append(line(next(numbers), GROUPS))
    )
    assert next(numbers, None) is None
    assert reload_seconds(page) is None


def test_the_command_of_an_ended_run_ends(tmp_path: Path, page: Path) -> None:
    run = write(tmp_path / "run", [line(1, GROUPS)])
    assert main(["report", str(run), "--follow", "-o", str(page)]) == 0
    assert reload_seconds(page) is None


RUN_WORDS = (
    *("run", "--scenario", "synthetic/groups", "--method", "fedavg", "--method", "cfl"),
    *("--rounds", "3", "--workers", "1"),
)


def test_a_run_with_watch_writes_its_page(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    assert main([*RUN_WORDS, "--watch", "--out", str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert reload_seconds(folder / "report.html") is None
    assert '"fedavg-seed0"' in text
    assert '"cfl-seed0"' in text
    assert main(["check", str(folder)]) == 0


def test_a_page_that_cannot_be_made_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: LivePage, reloads: bool = True) -> bool:
        raise UserError("no page today")

    monkeypatch.setattr(LivePage, "update", refuse)
    assert main([*RUN_WORDS, "--watch", "--out", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().err.count("no page today") == 1


@pytest.mark.slow
def test_a_run_is_followed_while_another_process_goes_on_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    running = subprocess.Popen(
        [sys.executable, "-m", "coterie", *RUN_WORDS, "--out", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    while not (folder / "experiment.toml").exists():
        assert running.poll() is None
        time.sleep(0.02)
    assert main(["report", str(folder), "--follow"]) == 0
    assert running.wait(timeout=60) == 0
    assert reload_seconds(folder / "report.html") is None


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab, with the errors and the requests of its page."""
    page = browser.new_page()
    page.wrong, page.asked = [], []
    page.on("console", lambda message: page.wrong.append(message.text))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    page.close()


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_a_browser_sees_rounds_as_they_come(
    tmp_path: Path, page: Path, tab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "RELOAD_SECONDS", 1)
    run = write(tmp_path / "run", [], rounds=3)
    live = LivePage([run], page)
    live.update()
    tab.goto(page.as_uri())
    tab.get_by_text("No round is completed yet").wait_for()
    Record(run).append(line(1, GROUPS))
    live.update()
    tab.locator("#live", has_text="live").wait_for()
    tab.get_by_text("every event").click()
    tab.evaluate("scrollTo(0, 300)")
    split = note("split", GROUPS[0], [[0, 1], [2, 3]], text="they pull apart")
    for number in (2, 3):
        Record(run).append(line(number, [[0, 1], [2, 3]], split))
    live.update()
    tab.get_by_text("they pull apart").first.wait_for()
    tab.wait_for_function("document.getElementById('live').hidden")  # the run has ended
    tab.wait_for_function("scrollY === 300")
    pressed = tab.get_by_text("every event").get_attribute("aria-pressed")
    assert pressed == "true"  # what the reader chose stays
    assert tab.wrong == []
    assert set(tab.asked) == {page.as_uri()}
