"""The progress of runs in a terminal: lines about past events, and below them a few lines that are updated.

All updates happen in calls, never in a thread: an engine forks its workers, and a process that
forks must have no other threads. Without a console nothing is shown.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.printable import say
from coterie.records.record import Line
from coterie.records.shown import shown_as, spread
from coterie.report import terminal
from coterie.report.limits import limit_sentences, limited
from coterie.report.words import count

MIN_UPDATE_SECONDS = 0.1
"""The least time between two updates, in seconds."""

FREE_COLUMNS = 3
"""Columns left free on the right: ``^C`` is shown there, and would otherwise start a line that is
not removed."""

MAX_SIZES_SHOWN = 8
"""Sizes of groups are shown if there are at most this many groups."""


def watched(quiet: bool = False) -> Console | None:
    """Return the console of stderr if stderr and stdout are terminals, else None.

    Args:
        quiet: Whether to return None in any case, as with ``--json``.
    """
    looking = sys.stderr.isatty() and sys.stdout.isatty()
    return terminal.console(sys.stderr) if looking and not quiet else None


class Screen:
    """Lines that are updated, below lines that stay; a context manager, which removes the former at its end."""

    def __init__(self, console: Console | None) -> None:
        self.display = console and Display(console=console, auto_refresh=False, transient=True)
        self.shown = -MIN_UPDATE_SECONDS

    def __enter__(self) -> Screen:
        if self.display:
            self.display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.display:
            self.display.stop()

    def write(self, lines: Callable[[], Iterable[RenderableType]], at_once: bool = False) -> None:
        """Replace the updated lines.

        Args:
            lines: A function that returns the new lines.
            at_once: Whether to replace them even if less than :data:`MIN_UPDATE_SECONDS` seconds have passed
                since the last update.
        """
        now = time.monotonic()
        if self.display and (at_once or now - self.shown >= MIN_UPDATE_SECONDS):
            self.shown = now
            self.display.update(
                Constrain(Group(*lines()), self.display.console.width - FREE_COLUMNS), refresh=True
            )

    def keep(self, line: Text) -> None:
        """Print a line that stays."""
        if self.display:
            self.display.console.print(line, no_wrap=True, overflow="ellipsis")


def bar(name: str, done: float, total: float, after: str) -> Table:
    """Return one line of any width with a progress bar.

    Args:
        name: The text before the bar.
        done: The progress, in the unit of ``total``.
        total: The progress at the end.
        after: The text after the bar.
    """
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True, max_width=28)
    row.add_column(ratio=1, min_width=8)
    row.add_column(no_wrap=True)
    row.add_row(
        Text(name), ProgressBar(total=max(total, 1), completed=done), Text(after, style="dim")
    )
    return row


def line_of(text: str) -> Text:
    """Return a text as one line, cut at the terminal's edge."""
    return Text(f"  {text}", style="cyan", no_wrap=True, overflow="ellipsis")


class Live:
    """The progress of an experiment: of the present run and of all runs, the results of the last round, and past events.

    Args:
        console: Where to show it, or None to show nothing.
        names: One per run, the method first, followed by ``-seed`` if there are several seeds.
        rounds: The greatest number of rounds of each run.
    """

    def __init__(self, console: Console | None, names: Iterable[str], rounds: int) -> None:
        self.screen = Screen(console)
        self.names = list(names)
        self.rounds = rounds
        self.pace = Pace([name.partition("-seed")[0] for name in self.names], rounds)
        self.number = 0
        self.finished = 0
        self.last: Line | None = None
        self.scored: Line | None = None
        self.tested = ""
        self.warned = False
        self.limited = False

    def __enter__(self) -> Live:
        self.screen.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.screen.__exit__(kind, error, trace)

    def begin(self, number: int, done: int) -> None:
        """Show that the run with this ``number`` starts, or continues after ``done`` rounds."""
        self.number = number
        self.last = None
        self.scored = None
        self.tested = ""
        self.warned = False
        self.limited = False
        self.pace.begin(number, done)
        self.screen.write(self._lines, at_once=True)

    def show(self, number: int, line: Line) -> None:
        """Show that a round of the run with this ``number`` has been recorded as ``line``."""
        self.pace.ended(line["round"])
        self.last = line
        if not self.warned and (problem := divergence(line, self.scored)):
            self.warned = True
            self.tell(f"{self.names[number]}: {problem}")
        if not self.limited and (changed := limit_sentences(limited([line]), 1)):
            self.limited = True
            self.tell(f"{self.names[number]}: in round {line['round']}, {' '.join(changed)}")
        if line["tested"]:
            self.scored = line
            mean = spread(line)[
                "mean"
            ]  # not a number if it was not measured or the models diverged
            self.tested = (
                f"{shown_as(line).main} {terminal.number(mean if math.isfinite(mean) else None)}"
            )
        for note in line["notes"]:
            text = terminal.event(note, line["round"])
            if text:
                self.screen.keep(Text.assemble("  ", text))
        self.screen.write(self._lines)

    def end(self, number: int) -> None:
        """Show that the run with this ``number`` has ended."""
        self.finished += 1
        self.pace.finish()
        if self.last is not None:
            parts = (
                f"{self.last['round']} rounds",
                self.tested,
                groups(self.last["groups"]),
                self.pace.taken(),
            )
            self.screen.keep(
                Text.assemble((self.names[number], "bold"), f": {', '.join(filter(None, parts))}")
            )

    def tell(self, text: str) -> None:
        """Print a sentence that stays, on stderr even without a console."""
        if self.screen.display:
            self.screen.keep(Text(f"coterie: {text}", style="yellow"))
        else:
            say(f"coterie: {text}", sys.stderr)

    def note(self, text: str) -> None:
        """Show, on a console only, a further activity."""
        self.screen.write(lambda: [*self._lines(), line_of(text)], at_once=True)

    def _lines(self) -> Iterable[RenderableType]:
        done = self.pace.done
        yield bar(
            self.names[self.number],
            done,
            self.rounds,
            f"round {done} of {self.rounds}{self.pace.left()}",
        )
        if self.last is None:
            yield line_of("the first round is in progress")
        else:
            replies = f"{self.last['answered']} of {self.last['asked']} replies"
            yield line_of(
                ", ".join(filter(None, (replies, self.tested, groups(self.last["groups"]))))
            )
        if len(self.names) > 1:
            yield bar(
                "all runs",
                self.pace.share(),
                1,
                f"{self.finished} of {len(self.names)} done{self.pace.left_of_all()}",
            )


def divergence(line: Line, before: Line | None) -> str:
    """Return a sentence if training diverges in a round, else an empty text.

    Args:
        line: The record of the round.
        before: The record of the last tested round before it, or None.
    """
    refused = line["refused"]
    if refused and 2 * len(refused) >= line["asked"]:
        client, why = next(iter(refused.items()))
        return f"in round {line['round']}, {count(len(refused), 'client')} were refused, for example client {client}: {why}"
    if before is None or not line["tested"]:
        return ""
    # Clients whose loss was a number in the last tested round, and is not finite now.
    lost = [
        client
        for client, entry in before["clients"].items()
        if entry["loss"] is not None
        and client in line["clients"]
        and line["clients"][client]["loss"] is None
    ]
    if not lost:
        return ""
    many = f"in round {line['round']}, training has diverged for {count(len(lost), 'client')}, for example client {lost[0]}"
    return f"{many}: a smaller training.lr, or training.clip, may help"


def groups(members: Sequence[Sequence[int]]) -> str:
    """Return the number of groups in words and, if there are few, their sizes.

    Example:
        >>> groups([[0, 1], [2]]), groups([[0, 1, 2]])
        ('2 groups of 2, 1', '1 group of 3')
    """
    number = count(len(members), "group")
    if len(members) > MAX_SIZES_SHOWN:
        return number
    return f"{number} of {', '.join(str(len(group)) for group in members)}"


class Steps:
    """The progress of a task of several steps, each of about the same length; a context manager.

    Args:
        console: Where to show it, or None to show nothing.
        name: The name of the task.
        total: The number of steps.
        done: The number of steps that are done already.
    """

    def __init__(self, console: Console | None, name: str, total: int, done: int = 0) -> None:
        self.screen = Screen(console)
        self.name = name
        self.total = total
        self.done = done
        self.done_before = done
        self.activity = ""
        self.start_time = time.monotonic()

    def __enter__(self) -> Steps:
        self.screen.__enter__()
        self.screen.write(self._lines, at_once=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.screen.__exit__(kind, error, trace)

    def step(self) -> None:
        """Show that one more step is done."""
        self.done += 1
        self.activity = ""
        self.total = max(self.total, self.done)
        self.screen.write(self._lines, at_once=True)

    def tell(self, text: str) -> None:
        """Show the activity within the present step."""
        self.activity = text
        self.screen.write(self._lines)

    def _lines(self) -> Iterable[RenderableType]:
        steps_made = self.done - self.done_before
        left = ""
        if steps_made and self.done < self.total:
            seconds_per_step = (time.monotonic() - self.start_time) / steps_made
            left = f", {duration(seconds_per_step * (self.total - self.done))} left"
        yield bar(self.name, self.done, self.total, f"{self.done} of {self.total}{left}")
        if self.activity:
            yield line_of(self.activity)


# ----------------------------------------------------------------------------------------------------
# The remaining time, from the durations of past rounds and the number of rounds left.


MAX_RECENT_ROUNDS = 10
"""The number of past rounds of the present run; their median is the expected duration of a round.
"""


def duration(seconds: float) -> str:
    """Return an approximate duration in words.

    Example:
        >>> duration(40), duration(150), duration(5400), duration(400_000)
        ('40 s', '2 min', '1.5 h', '4.6 days')
    """
    for unit, length, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Pace:
    """The speed of the runs of an experiment, which follow each other.

    Args:
        kinds: The kind of each run, such as its method; runs of one kind take about the same time.
        rounds: The greatest number of rounds of each run.
    """

    def __init__(self, kinds: Sequence[str], rounds: int) -> None:
        self.kinds = kinds
        self.rounds = rounds
        self.number = 0
        self.done = 0
        self.only_first_round = True
        self.ended_runs: set[int] = set()
        self.recent: deque[float] = deque(maxlen=MAX_RECENT_ROUNDS)
        self.seconds_of_kind: dict[str, float] = {}  # the median of its last rounds
        self.begin_time = time.monotonic()
        self.round_end_time = self.begin_time

    def begin(self, number: int, done: int) -> None:
        """Start the run with this ``number``, after ``done`` rounds."""
        self.number = number
        self.done = done
        self.recent.clear()
        # The first round includes the start of data and workers. It counts until there is another.
        self.only_first_round = True
        self.begin_time = time.monotonic()
        self.round_end_time = self.begin_time

    def ended(self, round: int) -> None:
        """Record that a round of the present run has ended."""
        now = time.monotonic()
        if self.only_first_round and self.recent:
            self.recent.clear()
            self.only_first_round = False
        self.recent.append(now - self.round_end_time)
        self.seconds_of_kind[self.kinds[self.number]] = median(self.recent)
        self.round_end_time = now
        self.done = round

    def finish(self) -> None:
        """Record that the present run has ended."""
        self.ended_runs.add(self.number)

    def taken(self) -> str:
        """Return the time that the present run has taken so far, in words."""
        return duration(self.round_end_time - self.begin_time)

    def left(self) -> str:
        """Return the remaining time of the present run, as a continuation of a sentence; empty if it is not known."""
        rounds = self.rounds - self.done
        return f", {duration(median(self.recent) * rounds)} left" if self.recent and rounds else ""

    def left_of_all(self) -> str:
        """Return the remaining time of all runs, as :meth:`left` does.

        A kind of run without past rounds is assumed to take the mean time of the other kinds.
        """
        if not self.seconds_of_kind:
            return ""
        waiting = [
            kind
            for i, kind in enumerate(self.kinds)
            if i != self.number and i not in self.ended_runs
        ]
        mean = fmean(self.seconds_of_kind.values())
        seconds = sum(self.seconds_of_kind.get(kind, mean) * self.rounds for kind in waiting)
        if self.number not in self.ended_runs:
            seconds += self.seconds_of_kind.get(self.kinds[self.number], mean) * (
                self.rounds - self.done
            )
        return f", {duration(seconds)} left" if seconds else ""

    def share(self) -> float:
        """Return the share of all rounds that are done."""
        here = 0 if self.number in self.ended_runs else self.done / self.rounds
        return (len(self.ended_runs) + here) / len(self.kinds)
