"""The progress of a run in a notebook or a script: a bar if tqdm is installed, otherwise one line per round on stderr.

In a log file a bar would be hundreds of lines, so there it is a line every few seconds.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, Protocol, TypeVar

from coterie.printable import say

MIN_SECONDS_BETWEEN_LINES = 5.0
"""Least time in seconds between two lines in a log file."""


class Numbered(Protocol):
    """A round: it has a number from 1, and a text that says what happened in it."""

    @property
    def number(self) -> int:
        """The number, from 1."""
        ...


R = TypeVar("R", bound=Numbered)


def followed(rounds: Generator[R, None, None], name: str, total: int) -> Iterator[R]:
    """Show the progress of some rounds while they are made.

    Args:
        rounds: The rounds. They are closed if the caller stops early.
        name: The name of the run.
        total: Number of its last round.

    Yields:
        The rounds.
    """
    with closing(rounds):
        if not _is_watched():
            yield from _lines(rounds, name, total, MIN_SECONDS_BETWEEN_LINES)
            return
        bar_class = _bar()
        yield from (
            _lines(rounds, name, total)
            if bar_class is None
            else _drawn(bar_class, rounds, name, total)
        )


def _is_watched() -> bool:
    """Whether stderr is a terminal or a notebook, where a bar is drawn again and again in its place."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _drawn(bar_class: Any, rounds: Iterator[R], name: str, total: int) -> Iterator[R]:
    with bar_class(desc=name, total=total, unit="round") as progress:
        for finished_round in rounds:
            # A run that goes on begins where it stopped.
            if not progress.n:
                progress.initial = progress.n = finished_round.number - 1
            progress.set_postfix_str(_event(finished_round), refresh=False)
            progress.update()
            yield finished_round
        # No bar is left of a run that was finished before.
        progress.leave = bool(progress.n)


def _lines(rounds: Iterator[R], name: str, total: int, seconds_between: float = 0.0) -> Iterator[R]:
    """The rounds, with a line for each; but for the last one at least some seconds after the line before."""
    time_of_last_line = time.monotonic()
    for finished_round in rounds:
        now = time.monotonic()
        is_last = finished_round.number >= total
        if is_last or now - time_of_last_line >= seconds_between:
            time_of_last_line = now
            say(
                f"{name}: round {finished_round.number} of {total}: {_event(finished_round)}",
                sys.stderr,
            )
        yield finished_round


def _event(finished_round: Numbered) -> str:
    # Without the number, which the bar or the line already shows.
    return str(finished_round).partition(": ")[2]


def _bar() -> Any:
    """The class of tqdm's bars for this notebook or terminal, without its thread; None if tqdm is not installed."""
    try:
        # Without ipywidgets a notebook gets the bar of a terminal, and a warning.
        with warnings.catch_warnings(action="ignore"):
            from tqdm.auto import tqdm
    except ImportError:
        return None
    # tqdm's thread looks after slow bars. An engine forks its workers, and a process that forks
    # must have no other threads.
    return type("Bar", (tqdm,), {"monitor_interval": 0})


def tell(text: str) -> None:
    """Print one sentence on stderr, below a notebook's cell or in a script's output."""
    say(f"coterie: {text}", sys.stderr)
