"""Tracking from the side of the run: starts a process for each tracker, and reports when one of them has failed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from coterie.files import within
from coterie.printable import printable
from coterie.records.record import Record
from coterie.records.store import write_whole
from coterie.settings import UserError, nearest
from coterie.tracking.measures import MOST, TRACK

PATIENCE = 60.0
"""Seconds to wait for a tracker at the end; the count starts again whenever it has tracked another round."""

Tell = Callable[[str], None]
"""A function that takes a sentence."""

WHILE = 5.0
"""Seconds after which a message about the waiting is shown."""


class Tracking:
    """Context manager that lets trackers follow runs. At its end, the trackers have tracked all rounds.

    Args:
        names: Names of :data:`~coterie.tracking.TRACKERS`.
        tell: Called with a sentence when a tracker has failed and is switched off, or leaves something out; issues a warning
            by default. The runs continue.
        wait: Called with a sentence when the end has to wait for a tracker.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """

    def __init__(self, names: Iterable[str] | str, tell: Tell = warnings.warn, wait: Tell | None = None) -> None:
        names = [names] if isinstance(names, str) else names
        self.tell, self.wait, self.folder, self.told = tell, wait, Path(), False
        self.processes = {name: _Process(name) for name in check(names)}

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes.values():
            process.end()
        for name, process in list(self.processes.items()):
            self._hear(name, process.wait(self.wait))
        for process in self.processes.values():
            process.close()
        self.processes = {}

    def follow(self, folder: Path | str) -> None:
        """Track a run, from its first round that is not tracked yet to the rounds still to come.

        Call it when a round has been recorded; more calls do no harm. For a resumed run, do not call it before the first
        round: the run may have removed records.

        Args:
            folder: The run directory.
        """
        self._tell_once(Path(folder).absolute())
        for name, process in list(self.processes.items()):
            self._hear(name, process.follow(self.folder))

    def _tell_once(self, folder: Path) -> None:
        """Report that single clients are not tracked, if there are too many."""
        if folder == self.folder or not self.processes:
            return
        self.folder = folder
        many = len(Record(folder).description()["world"]["clients"])
        if many > MOST and not self.told:
            self.told = True
            self.tell(f"of {many} clients, which are more than {MOST}, only the clusters are tracked and not each client")

    def _hear(self, name: str, failure: str | None) -> None:
        if failure is not None:
            self.processes.pop(name).close()
            self.tell(f"tracking with {name} is off: {failure}")


def track(folder: Path | str, names: Iterable[str] | str) -> None:
    """Track an existing run, finished or not. Rounds that are tracked already are not tracked again.

    Args:
        folder: The run directory.
        names: Names of :data:`~coterie.tracking.TRACKERS`.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """
    with Tracking(names) as tracking:
        tracking.follow(folder)


class _Process:
    """The process of one tracker. It is started with the first run, in its own session, so that Ctrl-C does not reach it."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, Path()
        self.process: subprocess.Popen[bytes] | None = None
        self.said = tempfile.TemporaryFile()  # noqa: SIM115

    def follow(self, folder: Path) -> str | None:
        """Track a run; return the reason why the process has ended, if it has."""
        if self.process is None:
            # -P: nothing is imported from the current folder, which may be a run directory from another person.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __package__, self.name], stdin=subprocess.PIPE, stdout=self.said,
                stderr=self.said, start_new_session=True,
            )  # fmt: skip
        if folder != self.folder:
            self.folder = folder
            self._say(os.fsencode(folder))
        return None if self.process.poll() is None else self._why()

    def end(self) -> None:
        """Send the end mark: closing the pipe is not enough, since forked workers may keep it open."""
        self._say(b"")

    def wait(self, tell: Tell | None) -> str | None:
        """Wait until all rounds are tracked.

        Args:
            tell: Called with a sentence if the waiting takes long.

        Returns:
            The reason why the rounds cannot be tracked, or None.
        """
        if self.process is None:
            return None
        kept, seen, since, told = self.folder / TRACK / f"{self.name}.json", 0.0, time.monotonic(), False
        while time.monotonic() - since < PATIENCE:
            with suppress(subprocess.TimeoutExpired):
                return self._why() if self.process.wait(timeout=WHILE) else None
            if tell and not told:
                tell(f"waiting for {self.name} to track the last rounds")
            now, told = kept.stat().st_mtime if kept.exists() else 0.0, True
            if now != seen:
                seen, since = now, time.monotonic()
        self.process.kill()
        self.process.wait()
        return f"it took more than {PATIENCE:.0f} s for a round"

    def close(self) -> None:
        """Close the files."""
        self.said.close()
        if self.process and self.process.stdin:
            with suppress(OSError):  # the process may have ended already
                self.process.stdin.close()

    def _say(self, line: bytes) -> None:
        if self.process and self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()

    def _why(self) -> str:
        """The last line of the process's output; the whole output is saved in the run directory."""
        self.said.seek(0)
        text = self.said.read().decode(errors="replace").strip()
        last = re.sub(r"^[\w.]+: +", "", text.rpartition("\n")[2]) or "it ended without a word"  # the exception's class
        last = textwrap.shorten(printable(last), 160, placeholder=" ...")
        log = self.folder / TRACK / f"{self.name}.log"
        try:
            within(self.folder, TRACK).mkdir(exist_ok=True)
            write_whole(log, (printable(text, keep="\n") + "\n").encode())
        except (OSError, UserError):  # for example, a full disk or a link
            return last
        return f"{last}; details in {log}"


# ----------------------------------------------------------------------------------------------------
# The trackers by name, and the modules that each needs.


TRACKERS = {
    "tensorboard": ("tensorboard", "PIL"),
    "mlflow": ("mlflow", "sqlalchemy", "alembic", "PIL"),
    "wandb": ("wandb", "PIL"),
}
"""Name -> the modules that the tracker needs."""


def check(names: Iterable[str]) -> list[str]:
    """Check that trackers exist and are installed.

    Args:
        names: The names of the trackers.

    Returns:
        The names without repetitions.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in TRACKERS:
            raise UserError(f"there is no tracker {name!r}{nearest(name, TRACKERS)} (known: {', '.join(TRACKERS)})")
        missing = [module for module in TRACKERS[name] if not installed(module)]
        if missing:
            raise UserError(f"tracking with {name} needs the module {missing[0]}: pip install 'coterie[track]'")
    return chosen


def installed(module: str) -> bool:
    """Whether a module is installed.

    A plain folder of this name does not count: wandb leaves one where it is run.

    Args:
        module: The name of the module.

    Returns:
        Whether it is installed.
    """
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None
