"""What a run will take, said before it begins: ``coterie run --estimate``, and one line before a long run."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.printable import say

if TYPE_CHECKING:
    from coterie.estimate import Estimate
    from coterie.experiment import Experiment

LONG = 60.0
"""Seconds from which on a run is announced."""

AT_MOST = 2.0
"""Seconds that finding out may take."""


class TimeUp(BaseException):
    """Raised by :func:`within`. No exception of a program's, so that nobody on the way takes it for one of theirs."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises :class:`TimeUp` in the body after so many seconds, where a system has such a clock and this is the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def show(experiment: Experiment, folder: Path, as_json: bool) -> int:
    """Print the estimate of each method and of all runs; nothing is run or written."""
    from rich.table import Table

    from coterie.estimate import estimate, together
    from coterie.record import to_json
    from coterie.report import terminal
    from coterie.report.pace import duration

    experiment.check_calendar()
    found = estimate(_ready(experiment))
    runs = len(found) * len(experiment.seeds)
    whole = together(found, len(experiment.seeds))
    if as_json:
        say(to_json({"runs": runs, "methods": [dataclasses.asdict(one) for one in found], "all": dataclasses.asdict(whole)}))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "time", "memory", "disk", "exchanges", "tasks", "evaluations"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for one in (*found, *([whole] if runs > 1 else [])):
        name = f"all {runs} runs" if one is whole else one.method
        counts = (f"{round(value):,}" for value in (one.exchanges, one.asked, one.evaluations))
        table.add_row(name, duration(one.seconds), terminal.size(one.memory), terminal.size(one.disk), *counts)
    terminal.console(sys.stdout).print(table)
    say("\nestimated, each method with one seed; nothing was run")
    for text in shortages(whole, folder):
        say(f"coterie: {text}", sys.stderr)
    return 0


def announce(experiment: Experiment, folder: Path) -> None:
    """Before a long run, to somebody who looks on: what it will take, and what there is too little of.

    Nothing is said where that is not known within seconds, or at all: a run does not wait for it, and never fails by it.
    """
    from coterie.report import terminal
    from coterie.report.pace import duration

    if not sys.stderr.isatty():
        return
    said: list[str] = []
    with suppress(Exception, TimeUp), within(AT_MOST):  # a mistake of the user's is told by the run
        from coterie.estimate import estimate, together

        whole = together(estimate(_ready(experiment)), len(experiment.seeds))
        if whole.seconds > LONG:
            needs = f"{terminal.size(whole.memory)} of memory, {terminal.size(whole.disk)} on disk"
            said.append(f"about {duration(whole.seconds)}, {needs}")
        said += shortages(whole, folder)
    for text in said:
        say(f"coterie: {text}", sys.stderr)


def shortages(whole: Estimate, folder: Path) -> Sequence[str]:
    """A sentence on the disk and on the memory, where there is less of it than the runs take."""
    from coterie.files import available_memory
    from coterie.report.terminal import size

    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free, memory = shutil.disk_usage(there).free, available_memory()
    said = []
    if free < whole.disk:
        said.append(f"{there} has {size(free)} free, and the records may take {size(whole.disk)}: --out names another folder")
    if memory < whole.memory:
        said.append(f"{size(memory)} of memory are free, and the runs may take {size(whole.memory)}: fewer --workers need less")
    return said


def _ready(experiment: Experiment) -> Experiment:
    """With the folder of data as a run finds it."""
    from coterie.experiment import data_folder

    return dataclasses.replace(experiment, data=data_folder(experiment.data))
