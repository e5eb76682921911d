"""What goes on, in a terminal: lines for what has happened, and below them a few that are written anew.

Everything is refreshed by calls alone: an engine forks its workers, and a process that forks must have no other threads.
Without a console nothing is shown.
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
from coterie.records.record import Line, spread
from coterie.report import terminal

OFTEN = 0.1
"""Seconds: nothing is written anew more often."""

EDGE = 3
"""Columns left free at the right: ``^C`` is shown there, and would else begin a line that is not taken away."""

SIZES = 8
"""Groups are told with their sizes up to so many."""


def watched(quiet: bool = False) -> Console | None:
    """The console of stderr where somebody looks at it and at the output; else None. quiet: as with ``--json``."""
    looking = sys.stderr.isatty() and sys.stdout.isatty()
    return terminal.console(sys.stderr) if looking and not quiet else None


class Screen:
    """Lines that are written anew, below those that stay; a context manager, which leaves none of the former behind."""

    def __init__(self, console: Console | None) -> None:
        self.display = console and Display(console=console, auto_refresh=False, transient=True)
        self.shown = -OFTEN

    def __enter__(self) -> Screen:
        if self.display:
            self.display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.display:
            self.display.stop()

    def write(self, lines: Callable[[], Iterable[RenderableType]], at_once: bool = False) -> None:
        """These lines in place of those there are; but not where they are still new, unless ``at_once``."""
        now = time.monotonic()
        if self.display and (at_once or now - self.shown >= OFTEN):
            self.shown = now
            self.display.update(Constrain(Group(*lines()), self.display.console.width - EDGE), refresh=True)

    def keep(self, line: Text) -> None:
        """A line that stays."""
        if self.display:
            self.display.console.print(line, no_wrap=True, overflow="ellipsis")


def bar(name: str, done: float, total: float, after: str) -> Table:
    """``name``, a bar, and what is told after it, on one line of any width."""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(no_wrap=True, max_width=28)
    row.add_column(ratio=1, min_width=8)
    row.add_column(no_wrap=True)
    row.add_row(Text(name), ProgressBar(total=max(total, 1), completed=done), Text(after, style="dim"))
    return row


def line_of(text: str) -> Text:
    """One line, cut where the terminal ends."""
    return Text(f"  {text}", style="cyan", no_wrap=True, overflow="ellipsis")


class Live:
    """The runs of an experiment: how far the present one is and all are, what the last round gave, and what happened.

    names: one per run, the method first and ``-seed`` after it where there are several. rounds: of each run, at most.
    """

    def __init__(self, console: Console | None, names: Iterable[str], rounds: int) -> None:
        self.screen, self.names, self.rounds = Screen(console), list(names), rounds
        self.pace = Pace([name.partition("-seed")[0] for name in self.names], rounds)
        self.number = self.finished = 0
        self.last: Line | None = None
        self.tested = ""

    def __enter__(self) -> Live:
        self.screen.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.screen.__exit__(kind, error, trace)

    def begin(self, number: int, done: int) -> None:
        """The run with this ``number`` starts, or goes on after ``done`` rounds."""
        self.number, self.last, self.tested = number, None, ""
        self.pace.begin(number, done)
        self.screen.write(self._lines, at_once=True)

    def show(self, number: int, line: Line) -> None:
        """A round of the run with this ``number`` has been recorded as ``line``."""
        self.pace.ended(line["round"])
        self.last = line
        if line["tested"]:
            mean = spread(line)["mean"]  # not a number where it was not measured, or the models diverged
            self.tested = f"accuracy {terminal.number(mean if math.isfinite(mean) else None)}"
        for note in line["notes"]:
            text = terminal.event(note, line["round"])
            if text:
                self.screen.keep(Text.assemble("  ", text))
        self.screen.write(self._lines)

    def end(self, number: int) -> None:
        """The run with this ``number`` has ended."""
        self.finished += 1
        self.pace.finish()
        if self.last is not None:
            parts = (f"{self.last['round']} rounds", self.tested, groups(self.last["groups"]), self.pace.taken())
            self.screen.keep(Text.assemble((self.names[number], "bold"), f": {', '.join(filter(None, parts))}"))

    def tell(self, text: str) -> None:
        """One sentence that stays, on stderr whether or not somebody looks."""
        if self.screen.display:
            self.screen.keep(Text(f"coterie: {text}", style="yellow"))
        else:
            say(f"coterie: {text}", sys.stderr)

    def note(self, text: str) -> None:
        """What goes on besides, where somebody looks."""
        self.screen.write(lambda: [*self._lines(), line_of(text)], at_once=True)

    def _lines(self) -> Iterable[RenderableType]:
        done = self.pace.done
        yield bar(self.names[self.number], done, self.rounds, f"round {done} of {self.rounds}{self.pace.left()}")
        if self.last is None:
            yield line_of("the first round is going on")
        else:
            replies = f"{self.last['answered']} of {self.last['asked']} replies"
            yield line_of(", ".join(filter(None, (replies, self.tested, groups(self.last["groups"])))))
        if len(self.names) > 1:
            count = len(self.names)
            yield bar("all runs", self.pace.share(), 1, f"{self.finished} of {count} done{self.pace.left_of_all()}")


def groups(found: Sequence[Sequence[int]]) -> str:
    """How many groups there are and, where they are few, of how many clients.

    >>> groups([[0, 1], [2]]), groups([[0, 1, 2]])
    ('2 groups of 2, 1', '1 group of 3')
    """
    count = f"{len(found)} group{'' if len(found) == 1 else 's'}"
    return f"{count} of {', '.join(str(len(group)) for group in found)}" if len(found) <= SIZES else count


class Steps:
    """Something that takes a number of steps, each of about the same length; a context manager.

    name: of what is done. total: how many steps there are, of which ``done`` are already.
    """

    def __init__(self, console: Console | None, name: str, total: int, done: int = 0) -> None:
        self.screen, self.name, self.total, self.done, self.now = Screen(console), name, total, done, ""
        self.first, self.began = done, time.monotonic()

    def __enter__(self) -> Steps:
        self.screen.__enter__()
        self.screen.write(self._lines, at_once=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.screen.__exit__(kind, error, trace)

    def step(self) -> None:
        """One is done."""
        self.done, self.now = self.done + 1, ""
        self.total = max(self.total, self.done)
        self.screen.write(self._lines, at_once=True)

    def tell(self, text: str) -> None:
        """What goes on within a step."""
        self.now = text
        self.screen.write(self._lines)

    def _lines(self) -> Iterable[RenderableType]:
        made, left = self.done - self.first, ""
        if made and self.done < self.total:
            left = f", {duration((time.monotonic() - self.began) / made * (self.total - self.done))} left"
        yield bar(self.name, self.done, self.total, f"{self.done} of {self.total}{left}")
        if self.now:
            yield line_of(self.now)


# ----------------------------------------------------------------------------------------------------
# How long it will take: from the rounds that have been and the rounds that are left.


RECENT = 10
"""Rounds of the present run whose median is what a round takes."""


def duration(seconds: float) -> str:
    """About how long.

    >>> duration(40), duration(150), duration(5400), duration(400_000)
    ('40 s', '2 min', '1.5 h', '4.6 days')
    """
    for unit, length, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Pace:
    """Of the runs of an experiment, one after the other. kinds: what each is, such as its method: those of one kind take
    about as long. rounds: of each, at most."""

    def __init__(self, kinds: Sequence[str], rounds: int) -> None:
        self.kinds, self.rounds = kinds, rounds
        self.number, self.done, self.first = 0, 0, True
        self.ended_runs: set[int] = set()
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.known: dict[str, float] = {}
        self.began = self.at = time.monotonic()

    def begin(self, number: int, done: int) -> None:
        """The run with this ``number`` begins, after ``done`` rounds."""
        self.number, self.done = number, done
        self.recent.clear()
        self.first = True  # it has the making of data and workers in it, and counts until there is another
        self.began = self.at = time.monotonic()

    def ended(self, round: int) -> None:
        """So has a round of it."""
        now = time.monotonic()
        if self.first and self.recent:
            self.recent.clear()
            self.first = False
        self.recent.append(now - self.at)
        self.known[self.kinds[self.number]] = median(self.recent)
        self.at, self.done = now, round

    def finish(self) -> None:
        """So has the run."""
        self.ended_runs.add(self.number)

    def taken(self) -> str:
        """How long the present run has taken by now."""
        return duration(self.at - self.began)

    def left(self) -> str:
        """How long the present run will take, to be put after other words; nothing where that cannot be told."""
        rounds = self.rounds - self.done
        return f", {duration(median(self.recent) * rounds)} left" if self.recent and rounds else ""

    def left_of_all(self) -> str:
        """The same of all runs. One of a kind not seen yet is taken to be as the mean of those seen."""
        if not self.known:
            return ""
        waiting = [kind for i, kind in enumerate(self.kinds) if i != self.number and i not in self.ended_runs]
        mean = fmean(self.known.values())
        seconds = sum(self.known.get(kind, mean) * self.rounds for kind in waiting)
        if self.number not in self.ended_runs:
            seconds += self.known.get(self.kinds[self.number], mean) * (self.rounds - self.done)
        return f", {duration(seconds)} left" if seconds else ""

    def share(self) -> float:
        """Of all rounds, those that are done."""
        here = 0 if self.number in self.ended_runs else self.done / self.rounds
        return (len(self.ended_runs) + here) / len(self.kinds)
