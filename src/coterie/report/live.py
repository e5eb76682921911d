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
from coterie.records.shown import Line, shown_as, spread
from coterie.report import terminal
from coterie.report.limits import limit_sentences, limited
from coterie.report.words import count, decimals

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
    is_watched = sys.stderr.isatty() and sys.stdout.isatty() and not quiet
    return terminal.console(sys.stderr) if is_watched else None


class Screen:
    """Lines that are updated, below lines that stay; a context manager, which removes the former at its end."""

    def __init__(self, console: Console | None) -> None:
        self.display = console and Display(console=console, auto_refresh=False, transient=True)
        self.last_update_time = -MIN_UPDATE_SECONDS

    def __enter__(self) -> Screen:
        if self.display:
            self.display.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
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
        current_time = time.monotonic()
        is_due = at_once or current_time - self.last_update_time >= MIN_UPDATE_SECONDS
        if self.display and is_due:
            self.last_update_time = current_time
            width = self.display.console.width - FREE_COLUMNS
            self.display.update(Constrain(Group(*lines()), width), refresh=True)

    def keep(self, line: Text) -> None:
        """Print a line that stays."""
        if self.display:
            self.display.console.print(line, no_wrap=True, overflow="ellipsis")


def bar(title: str, done: float, total: float, suffix: str) -> Table:
    """Return one line of any width with a progress bar.

    Args:
        title: The text before the bar.
        done: The progress, in the unit of ``total``.
        total: The progress at the end.
        suffix: The text after the bar.
    """
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, max_width=28)
    # The bar takes all the width that the texts leave.
    grid.add_column(ratio=1, min_width=8)
    grid.add_column(no_wrap=True)
    progress = ProgressBar(total=max(total, 1), completed=done)
    grid.add_row(Text(title), progress, Text(suffix, style="dim"))
    return grid


def line_of(sentence: str) -> Text:
    """Return a text as one line, cut at the terminal's edge."""
    return Text(f"  {sentence}", style="cyan", no_wrap=True, overflow="ellipsis")


class Live:
    """The progress of an experiment: of the present run and of all runs, the results of the last round, and past events.

    Args:
        console: Where to show it, or None to show nothing.
        run_names: One per run, the method first, followed by ``-seed`` if there are several seeds.
        rounds: The greatest number of rounds of each run.
    """

    def __init__(self, console: Console | None, run_names: Iterable[str], rounds: int) -> None:
        self.screen = Screen(console)
        self.names = list(run_names)
        self.rounds = rounds
        self.pace = Pace([run_name.partition("-seed")[0] for run_name in self.names], rounds)
        self.run_number = 0
        self.num_finished = 0
        # What is known of the present run.
        self.last_line: Line | None = None
        self.last_tested_line: Line | None = None
        self.last_score = ""
        self.has_warned_of_divergence = False
        self.has_warned_of_limits = False

    def __enter__(self) -> Live:
        self.screen.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.screen.__exit__(error_type, error, trace)

    def begin(self, run_number: int, rounds_done: int) -> None:
        """Show that the run with this ``run_number`` starts, or continues after ``rounds_done`` rounds."""
        self.run_number = run_number
        self.last_line = None
        self.last_tested_line = None
        self.last_score = ""
        self.has_warned_of_divergence = False
        self.has_warned_of_limits = False
        self.pace.begin(run_number, rounds_done)
        self.screen.write(self._lines, at_once=True)

    def show(self, run_number: int, line: Line) -> None:
        """Show that a round of the run with this ``run_number`` has been recorded as ``line``."""
        self.pace.ended(line["round"])
        self.last_line = line
        self._warn(run_number, line)
        if line["tested"]:
            self.last_tested_line = line
            # The mean is not a number if nothing was measured or the models diverged.
            mean = spread(line)["mean"]
            score = decimals(mean if math.isfinite(mean) else None)
            self.last_score = f"{shown_as(line).main} {score}"
        # Decisions that changed groups stay on the screen.
        for note in line["notes"]:
            event = terminal.event(note, line["round"])
            if event:
                self.screen.keep(Text.assemble("  ", event))
        self.screen.write(self._lines)

    def _warn(self, run_number: int, line: Line) -> None:
        """Warn of divergence and of limits on clients, of each once a run."""
        run_name = self.names[run_number]
        if not self.has_warned_of_divergence:
            problem = divergence(line, self.last_tested_line)
            if problem:
                self.has_warned_of_divergence = True
                self.tell(f"{run_name}: {problem}")
        if not self.has_warned_of_limits:
            changes = limit_sentences(limited([line]), 1)
            if changes:
                self.has_warned_of_limits = True
                self.tell(f"{run_name}: in round {line['round']}, {' '.join(changes)}")

    def end(self, run_number: int) -> None:
        """Show that the run with this ``run_number`` has ended."""
        self.num_finished += 1
        self.pace.finish()
        if self.last_line is not None:
            results = (
                f"{self.last_line['round']} rounds",
                self.last_score,
                groups(self.last_line["groups"]),
                self.pace.taken(),
            )
            summary = f": {', '.join(filter(None, results))}"
            self.screen.keep(Text.assemble((self.names[run_number], "bold"), summary))

    def tell(self, sentence: str) -> None:
        """Print a sentence that stays, on stderr even without a console."""
        # On a console the sentence is above the updated lines.
        if self.screen.display:
            self.screen.keep(Text(f"coterie: {sentence}", style="yellow"))
        else:
            say(f"coterie: {sentence}", sys.stderr)

    def note(self, activity: str) -> None:
        """Show, on a console only, a further activity."""
        self.screen.write(lambda: [*self._lines(), line_of(activity)], at_once=True)

    def _lines(self) -> Iterable[RenderableType]:
        rounds_done = self.pace.done
        progress = f"round {rounds_done} of {self.rounds}{self.pace.left()}"
        yield bar(self.names[self.run_number], rounds_done, self.rounds, progress)
        if self.last_line is None:
            yield line_of("the first round is in progress")
        else:
            # What the last round of this run gave.
            replies = f"{self.last_line['answered']} of {self.last_line['asked']} replies"
            results = (replies, self.last_score, groups(self.last_line["groups"]))
            yield line_of(", ".join(filter(None, results)))
        if len(self.names) > 1:
            progress = f"{self.num_finished} of {len(self.names)} done{self.pace.left_of_all()}"
            yield bar("all runs", self.pace.share(), 1, progress)


def divergence(line: Line, tested_before: Line | None) -> str:
    """Return a sentence if training diverges in a round, else an empty text.

    Args:
        line: The record of the round.
        tested_before: The record of the last tested round before it, or None.
    """
    # 1. At least half of the clients sent what the server had to refuse.
    refused = line["refused"]
    if refused and 2 * len(refused) >= line["asked"]:
        client, reason = next(iter(refused.items()))
        return (
            f"in round {line['round']}, {count(len(refused), 'client')} were refused, "
            f"for example client {client}: {reason}"
        )
    # 2. Clients whose loss was a number in the last tested round, and is not finite now.
    if tested_before is None or not line["tested"]:
        return ""
    diverged = []
    for client, entry_before in tested_before["clients"].items():
        entry = line["clients"].get(client)
        if entry is not None and entry_before["loss"] is not None and entry["loss"] is None:
            diverged.append(client)
    if not diverged:
        return ""
    return (
        f"in round {line['round']}, training has diverged for {count(len(diverged), 'client')}, "
        f"for example client {diverged[0]}: a smaller training.lr, or training.clip, may help"
    )


def groups(members: Sequence[Sequence[int]]) -> str:
    """Return the number of groups in words and, if there are few, their sizes.

    Example:
        >>> groups([[0, 1], [2]]), groups([[0, 1, 2]])
        ('2 groups of 2, 1', '1 group of 3')
    """
    num_groups = count(len(members), "group")
    if len(members) > MAX_SIZES_SHOWN:
        return num_groups
    return f"{num_groups} of {', '.join(str(len(group)) for group in members)}"


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
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.screen.__exit__(error_type, error, trace)

    def step(self) -> None:
        """Show that one more step is done."""
        self.done += 1
        self.activity = ""
        # There may be more steps than expected.
        self.total = max(self.total, self.done)
        self.screen.write(self._lines, at_once=True)

    def tell(self, activity: str) -> None:
        """Show the activity within the present step."""
        self.activity = activity
        self.screen.write(self._lines)

    def _lines(self) -> Iterable[RenderableType]:
        # Steps that an earlier process made say nothing about the speed.
        steps_made = self.done - self.done_before
        remaining_time = ""
        if steps_made and self.done < self.total:
            seconds_per_step = (time.monotonic() - self.start_time) / steps_made
            remaining_time = f", {duration(seconds_per_step * (self.total - self.done))} left"
        progress = f"{self.done} of {self.total}{remaining_time}"
        yield bar(self.name, self.done, self.total, progress)
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
    # The largest unit of which there are at least 1.5.
    for unit, length, digits in (("days", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


class Pace:
    """The speed of the runs of an experiment, which follow each other.

    Args:
        run_kinds: The kind of each run, such as its method; runs of one kind take about the same time.
        rounds: The greatest number of rounds of each run.
    """

    def __init__(self, run_kinds: Sequence[str], rounds: int) -> None:
        self.kinds = run_kinds
        self.rounds = rounds
        self.run_number = 0
        self.done = 0
        self.has_only_first_round = True
        self.ended_runs: set[int] = set()
        self.recent_seconds: deque[float] = deque(maxlen=MAX_RECENT_ROUNDS)
        # The median of the last rounds of each kind.
        self.seconds_of_kind: dict[str, float] = {}
        self.begin_time = time.monotonic()
        self.round_end_time = self.begin_time

    def begin(self, run_number: int, rounds_done: int) -> None:
        """Start the run with this ``run_number``, after ``rounds_done`` rounds."""
        self.run_number = run_number
        self.done = rounds_done
        self.recent_seconds.clear()
        # The first round includes the start of data and workers. It counts until there is another.
        self.has_only_first_round = True
        self.begin_time = time.monotonic()
        self.round_end_time = self.begin_time

    def ended(self, round: int) -> None:
        """Record that a round of the present run has ended."""
        current_time = time.monotonic()
        # The first round no longer counts once there is a second one.
        if self.has_only_first_round and self.recent_seconds:
            self.recent_seconds.clear()
            self.has_only_first_round = False
        self.recent_seconds.append(current_time - self.round_end_time)
        self.seconds_of_kind[self.kinds[self.run_number]] = median(self.recent_seconds)
        self.round_end_time = current_time
        self.done = round

    def finish(self) -> None:
        """Record that the present run has ended."""
        self.ended_runs.add(self.run_number)

    def taken(self) -> str:
        """Return the time that the present run has taken so far, in words."""
        return duration(self.round_end_time - self.begin_time)

    def left(self) -> str:
        """Return the remaining time of the present run, as a continuation of a sentence; empty if it is not known."""
        rounds_left = self.rounds - self.done
        # Without a past round the speed is not known.
        if not self.recent_seconds or not rounds_left:
            return ""
        return f", {duration(median(self.recent_seconds) * rounds_left)} left"

    def left_of_all(self) -> str:
        """Return the remaining time of all runs, as :meth:`left` does.

        A kind of run without past rounds is assumed to take the mean time of the other kinds.
        """
        # No run has had a round yet.
        if not self.seconds_of_kind:
            return ""
        mean_seconds = fmean(self.seconds_of_kind.values())
        # 1. The runs that have not begun.
        waiting_seconds = []
        for run_number, kind in enumerate(self.kinds):
            if run_number != self.run_number and run_number not in self.ended_runs:
                waiting_seconds.append(self.seconds_of_kind.get(kind, mean_seconds) * self.rounds)
        seconds = sum(waiting_seconds)
        # 2. The rest of the present run.
        if self.run_number not in self.ended_runs:
            seconds_per_round = self.seconds_of_kind.get(self.kinds[self.run_number], mean_seconds)
            seconds += seconds_per_round * (self.rounds - self.done)
        return f", {duration(seconds)} left" if seconds else ""

    def share(self) -> float:
        """Return the share of all rounds that are done."""
        # An ended run counts as a whole, also one that stopped early.
        share_of_run = 0 if self.run_number in self.ended_runs else self.done / self.rounds
        return (len(self.ended_runs) + share_of_run) / len(self.kinds)
