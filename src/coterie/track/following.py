"""The side of tracking that a run is on: starts a process for each tracker, and says so when one of them has failed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from coterie.record import Record
from coterie.track.known import check
from coterie.track.measures import MOST
from coterie.track.place import TRACK

PATIENCE = 60.0
"""Seconds that are waited for a tracker at the end, counted anew whenever it has tracked another round."""


class Tracking:
    """Lets trackers follow runs; a context manager, at whose end they have caught up.

    names: of :data:`~coterie.track.TRACKERS`. tell: takes one sentence when a tracker has failed and is switched off, or
    leaves something out; a warning by default. The runs go on. Raises :class:`~coterie.settings.UserError` for an unknown
    name, and where something is not installed.
    """

    def __init__(self, names: Iterable[str] | str, tell: Callable[[str], None] = warnings.warn) -> None:
        names = [names] if isinstance(names, str) else names
        self.tell, self.folder, self.told = tell, Path(), False
        self.processes = {name: _Process(name) for name in check(names)}

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes.values():
            process.end()
        waiting = list(self.processes.items())
        for name, process in waiting:
            self._hear(name, process.wait(self.folder))
        self.processes = {}

    def follow(self, folder: Path | str) -> None:
        """Track the run in this directory, from its first round that is not tracked to those still to come.

        To be called when a round has been recorded, as often as one likes: not before the first round of a run that goes on,
        which may have cut its record.
        """
        self._tell_once(Path(folder).absolute())
        for name, process in list(self.processes.items()):
            self._hear(name, process.follow(self.folder))

    def _tell_once(self, folder: Path) -> None:
        """That single clients are not tracked."""
        if folder == self.folder or not self.processes:
            return
        self.folder = folder
        count = len(Record(folder).description()["world"]["clients"])
        if count > MOST and not self.told:
            self.told = True
            self.tell(f"of {count} clients, which are more than {MOST}, only the clusters are tracked and not each client")

    def _hear(self, name: str, failure: str | None) -> None:
        if failure is not None:
            del self.processes[name]
            self.tell(f"tracking with {name} is off: {failure}")


def track(folder: Path | str, names: Iterable[str] | str) -> None:
    """Track a run that is there, finished or not; rounds that are tracked already are not tracked again."""
    with Tracking(names) as tracking:
        tracking.follow(folder)


class _Process:
    """One tracker's process. It is started with the first run, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, Path()
        self.process: subprocess.Popen[bytes] | None = None
        self.said = tempfile.TemporaryFile()  # noqa: SIM115

    def follow(self, folder: Path) -> str | None:
        """Returns why the process is gone, if it is."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __package__, self.name], stdin=subprocess.PIPE, stdout=self.said, stderr=self.said,
                start_new_session=True,
            )  # fmt: skip
        if folder != self.folder:
            self.folder = folder
            self._say(os.fsencode(folder))
        return None if self.process.poll() is None else self._why()

    def end(self) -> None:
        """Nothing more is coming. Said aloud: workers that were forked may keep the pipe open."""
        self._say(b"")

    def wait(self, folder: Path) -> str | None:
        """Until all is tracked; returns why that cannot be."""
        if self.process is None:
            return None
        kept, seen, since = folder / TRACK / f"{self.name}.json", 0.0, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                return self._why() if self.process.wait(timeout=1) else None
            now = kept.stat().st_mtime if kept.exists() else 0.0
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                self.process.kill()
                self.process.wait()
                return f"it took more than {PATIENCE:.0f} s for a round"

    def _say(self, line: bytes) -> None:
        if self.process and self.process.stdin:
            with suppress(BrokenPipeError):
                self.process.stdin.write(line + b"\n")
                self.process.stdin.flush()

    def _why(self) -> str:
        """The last line that it said; all of it is kept in the run directory."""
        self.said.seek(0)
        text = self.said.read().decode(errors="replace").strip()
        last = text.rpartition("\n")[2] or "it ended without a word"
        log = self.folder / TRACK / f"{self.name}.log"
        try:
            log.parent.mkdir(exist_ok=True)
            log.write_text(text + "\n")
        except OSError:  # a full disk, say, may be why
            return last
        return f"{last[:200]}; details in {log}"
