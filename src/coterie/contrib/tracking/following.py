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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, cast

from coterie.contrib.tracking.metrics import MAX_TRACKED_CLIENTS
from coterie.contrib.tracking.trackers import TRACK, TRACKERS
from coterie.files import within
from coterie.printable import printable
from coterie.records.record import Record
from coterie.records.store import write_whole
from coterie.settings import UserError, known_list, nearest
from coterie.settings.calls import public

MAX_WAIT_SECONDS = 60.0
"""Seconds to wait for a tracker at the end; the count starts again whenever it has tracked another
round."""

ANNOUNCE_SECONDS = 5.0
"""Seconds after which a message about the waiting is shown."""

Tell = Callable[[str], None]
"""A function that takes a sentence."""


def check(names: Iterable[str]) -> list[str]:
    """Return the names of trackers without repetitions.

    Args:
        names: The names.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """
    distinct_names = list(dict.fromkeys(names))
    for tracker_name in distinct_names:
        try:
            tracker = TRACKERS.find(tracker_name)
        except KeyError:
            raise UserError(
                f"there is no tracker {tracker_name!r}{nearest(tracker_name, TRACKERS)}{known_list(TRACKERS)}"
            ) from None
        for module_name in tracker.needs:
            module_spec = importlib.util.find_spec(module_name)
            # A plain folder, such as wandb leaves where it is run, has no origin.
            if module_spec is None or module_spec.origin is None:
                raise UserError(
                    f"tracking with {tracker_name} needs the module {module_name}: pip install 'coterie[track]'"
                )
    return distinct_names


@public
class Tracking:
    """Context manager that lets trackers follow runs. At its end, the trackers have tracked all rounds.

    Args:
        names: Names of :data:`~coterie.contrib.tracking.TRACKERS`.
        tell: Called with a sentence when a tracker has failed and is switched off, or leaves
            something out; issues a warning by default. The runs continue.
        wait: Called with a sentence when the end has to wait for a tracker.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """

    def __init__(
        self, names: Iterable[str] | str, tell: Tell = warnings.warn, wait: Tell | None = None
    ) -> None:
        self.names = check([names] if isinstance(names, str) else names)
        self.tell = tell
        self.wait = wait
        self.told_of_many = False
        self.folders: list[Path] = []
        self.processes: list[_Process] = []

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            # An empty line is the end. Closing the pipe is not enough, since forked workers may
            # keep it open.
            process.say(b"")
        for process in list(self.processes):
            self._drop(process, process.wait(self.folders, self.wait))

    def follow(self, run_folder: Path | str) -> None:
        """Track a run, from its first round that is not tracked yet to the rounds still to come.

        Call it when a round has been recorded; more calls do no harm. For a resumed run, do not
        call it before the first round: the run may have removed records.

        Args:
            run_folder: The run directory.
        """
        # The first run starts the processes; each next one is told to all of them.
        run_folder = Path(run_folder).absolute()
        if not self.folders:
            self.processes = [_Process(tracker_name) for tracker_name in self.names]
        if run_folder not in self.folders[-1:]:
            self.folders.append(run_folder)
            for tracker_process in self.processes:
                tracker_process.say(os.fsencode(run_folder))
            self._tell_of_many(run_folder)
        # A tracker that has failed is switched off, and the run goes on.
        for tracker_process in list(self.processes):
            if tracker_process.child.poll() is not None:
                self._drop(tracker_process, tracker_process.failure(run_folder))

    def _tell_of_many(self, run_folder: Path) -> None:
        """Report once that single clients are not tracked, if there are too many."""
        # The number of clients is in the description of the run.
        if not self.processes or self.told_of_many:
            return
        client_count = len(Record(run_folder).description()["world"]["clients"])
        if client_count > MAX_TRACKED_CLIENTS:
            self.told_of_many = True
            self.tell(
                f"of {client_count} clients, which are more than {MAX_TRACKED_CLIENTS}, "
                "only the clusters are tracked and not each client"
            )

    def _drop(self, tracker_process: _Process, failure: str | None) -> None:
        """Forget a process that has ended, and report why if it failed."""
        tracker_process.close()
        self.processes.remove(tracker_process)
        if failure:
            self.tell(f"tracking with {tracker_process.name} is off: {failure}")


@public
def track(folder: Path | str, names: Iterable[str] | str) -> None:
    """Track an existing run, finished or not. Rounds that are tracked already are not tracked again.

    Args:
        folder: The run directory.
        names: Names of :data:`~coterie.contrib.tracking.TRACKERS`.

    Raises:
        UserError: A name is unknown, or a module that a tracker needs is not installed.
    """
    with Tracking(names) as tracking:
        tracking.follow(folder)


class _Process:
    """The process of one tracker, in its own session, so that Ctrl-C does not reach it."""

    def __init__(self, tracker_name: str) -> None:
        self.name = tracker_name
        self.output = tempfile.TemporaryFile()  # noqa: SIM115
        # -P: nothing is imported from the current folder, which may be a run directory from another
        # person.
        command = [sys.executable, "-P", "-m", __package__, tracker_name]
        self.child = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )
        self.input = cast(IO[bytes], self.child.stdin)

    def say(self, line_bytes: bytes) -> None:
        # If the process has ended, failure() will say why.
        with suppress(BrokenPipeError):
            self.input.write(line_bytes + b"\n")

    def wait(self, run_folders: Sequence[Path], tell: Tell | None) -> str | None:
        """Wait until all rounds of these runs are tracked; return why they cannot be, or None."""
        # Each tracker writes its state after every round.
        state_files = [folder / TRACK / f"{self.name}.json" for folder in run_folders]
        newest_state = 0.0
        waiting_since = time.monotonic()
        while time.monotonic() - waiting_since < MAX_WAIT_SECONDS:
            with suppress(subprocess.TimeoutExpired):
                exit_status = self.child.wait(timeout=ANNOUNCE_SECONDS)
                return self.failure(run_folders[-1]) if exit_status else None
            if tell:
                tell(f"waiting for {self.name} to track the last rounds")
                tell = None
            # A newer state means that another round was tracked: the wait begins again.
            state_before = newest_state
            newest_state = max(
                state_file.stat().st_mtime if state_file.exists() else 0.0
                for state_file in state_files
            )
            if newest_state != state_before:
                waiting_since = time.monotonic()
        self.child.kill()
        self.child.wait()
        return f"it took more than {MAX_WAIT_SECONDS:.0f} s for a round"

    def failure(self, run_folder: Path) -> str:
        """The last line of the process's output; the whole output is saved in the run directory."""
        # The process may write anything, so its output is shown without control characters.
        self.output.seek(0)
        output_text = printable(self.output.read().decode(errors="replace").strip(), keep="\n")
        # The last line of a traceback, without the exception's class.
        last_line = re.sub(r"^[\w.]+: +", "", output_text.rpartition("\n")[2])
        short_reason = last_line or "it ended without a message"
        short_reason = textwrap.shorten(short_reason, 160, placeholder=" ...")
        # The whole output is for who wants to know more.
        try:
            log_file = within(run_folder, f"{TRACK}/{self.name}.log")
            log_file.parent.mkdir(exist_ok=True)
            write_whole(log_file, f"{output_text}\n".encode())
        except (OSError, UserError):
            # For example, the disk is full, or a link is in the way.
            return short_reason
        return f"{short_reason}; details in {log_file}"

    def close(self) -> None:
        self.output.close()
        self.input.close()
