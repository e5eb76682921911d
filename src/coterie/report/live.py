"""A run as it goes: a bar per run, and a line whenever groups change."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coterie.record import Line, spread
from coterie.report import terminal


class Live:
    """Shows progress on ``console``; without a console it shows nothing.

    Refreshed by :meth:`show` alone: an engine forks its workers, and a process that forks must have no other threads.
    """

    def __init__(self, console: Console | None, names: Iterable[str], rounds: int) -> None:
        self.progress = console and Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(), console=console, auto_refresh=False,
        )  # fmt: skip
        names = list(names)
        self.tasks = [self.progress.add_task(n, total=rounds, start=False, now="") for n in names] if self.progress else []

    def __enter__(self) -> Live:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.progress:
            self.progress.stop()

    def begin(self, number: int, done: int) -> None:
        """The run with this ``number`` starts, or goes on after ``done`` rounds."""
        if self.progress:
            self.progress.start_task(self.tasks[number])
            self.progress.update(self.tasks[number], completed=done)
            self.progress.refresh()

    def show(self, number: int, line: Line) -> None:
        """A round of the run with this ``number`` has been recorded as ``line``."""
        if not self.progress:
            return
        for note in line["notes"]:
            text = terminal.event(note, line["round"])
            if text:
                self.progress.console.print("  ", text, sep="")
        now = f"{len(line['groups'])} group{'' if len(line['groups']) == 1 else 's'}"
        if line["tested"]:
            now = f"accuracy {terminal.number(spread(line)['mean'])}  {now}"
        self.progress.update(self.tasks[number], completed=line["round"], now=now)
        self.progress.refresh()

    def end(self, number: int) -> None:
        """The run with this ``number`` has ended."""
        if self.progress:
            self.progress.stop_task(self.tasks[number])
