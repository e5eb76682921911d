"""Ctrl-C once, twice at once, and again while the first is handled: status 130, one sentence, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie.cli


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Python's own handler: a process in the background may have started with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


RUN = (
    "run",
    "--scenario",
    "digits/iid",
    "--method",
    "fedavg",
    "--rounds",
    "4000",
    "--workers",
    "2",
    "--json",
)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.001, 0.01, 0.05, 0.1, 0.3])
def test_two_interrupts_are_one(tmp_path: Path, pause: float) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "coterie", *RUN, "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (out / "rounds.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(pause)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert said.decode().count("\n") == 1
    assert f"to continue, run coterie resume {out}" in said.decode()


def test_a_second_interrupt_right_after_the_first_is_ignored_and_handlers_are_restored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_twice(argv: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # while the first is handled
        return 0

    monkeypatch.setattr(coterie.cli, "_call", interrupted_twice)
    before = signal.getsignal(signal.SIGINT)
    assert coterie.cli.main(["methods"]) == 130
    assert capsys.readouterr().err == "coterie: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_long_after_the_first_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(coterie.cli, "SAME_INTERRUPT_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(os, "write", lambda *_: 0)

    def hangs(argv: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)
            raise
        return 0

    monkeypatch.setattr(coterie.cli, "_call", hangs)
    assert coterie.cli.main(["methods"]) == 130
    assert ended == [130]
