"""The attacks of ``make attack`` on what is read and what is printed: a fixed number of them, none of which may get through."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Collection
from pathlib import Path

import pytest

SLOW = ("files that fill the memory", "surroundings")
"""Points whose attempts take processes or seconds."""


def failures(
    subject: str, count: int, folder: Path, seed: int, without: Collection[str] = ()
) -> list[str]:
    """What went wrong in the first so many attempts."""
    found = []
    for attempt in importlib.import_module(f"attack.{subject}").attempts(
        random.Random(seed), folder
    ):
        if attempt.point in without:
            continue
        if (why := attempt.failure()) is not None:
            found.append(f"{attempt.point}: {attempt.name}: {why}")
        count -= 1
        if not count:
            return found
    raise AssertionError("attempts never end")


@pytest.mark.parametrize(("subject", "count"), [("inputs", 45), ("terminal_text", 40)])
def test_no_attempt_gets_through(subject: str, count: int, tmp_path: Path) -> None:
    assert failures(subject, count, tmp_path, seed=5, without=SLOW) == []


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "count"), [("inputs", 459), ("terminal_text", 500)])
def test_no_attempt_of_many_gets_through(subject: str, count: int, tmp_path: Path) -> None:
    assert failures(subject, count, tmp_path, seed=6) == []


@pytest.mark.parametrize("subject", ["inputs", "terminal_text"])
def test_attempts_are_the_same_for_the_same_seed(
    subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any time of day: gzip and MATLAB files hold the time at which they were written."""

    def names(seed: int, time_of_day: float) -> list[str]:
        monkeypatch.setattr(time, "time", lambda: time_of_day)
        monkeypatch.setattr(time, "asctime", lambda *_: str(time_of_day))
        return [
            one.name
            for one, _ in zip(
                module.attempts(random.Random(seed), tmp_path), range(102), strict=False
            )
        ]

    module = importlib.import_module(f"attack.{subject}")
    assert names(1, 1e9) == names(1, 1.1e9)
    assert names(1, 1e9) != names(2, 1e9)
    assert len(set(names(1, 1e9))) > 95
