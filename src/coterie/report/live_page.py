"""The report of running experiments as a file, which is written again when a round has been recorded.

The page reloads itself from its file until all runs have ended. Nothing is served: a browser opens
the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from coterie.files import descriptor, within
from coterie.records.record import EXPERIMENT_FILE, ROUNDS_FILE, RUN_FILE
from coterie.records.store import write_whole
from coterie.records.text_files import read_recorded
from coterie.report.page import checked_suffix, page
from coterie.report.page.document import PageRun, document_of, read_run
from coterie.report.summary import expand

RELOAD_SECONDS = 3
"""Seconds after which a page of a running experiment reloads itself."""

POLL_SECONDS = 1.0
"""Seconds between two looks at the records that another process writes."""

REST_FACTOR = 4
"""The pause before a page is made again, as a multiple of the time that making it took: for large
runs it takes seconds, and a run should not take more than a fifth longer."""

WAITING = """\
<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="2">
<title>Waiting – Coterie</title></head>
<body style="font: 1rem system-ui, sans-serif; margin: 4rem auto; max-width: 36rem">
<h1>No round is completed yet</h1>
<p>This page shows the report after the first round.</p>
</body>
</html>
"""

Stamp = tuple[tuple[int, int], ...]
"""(time of change, bytes) of each file of a run's records."""


class LivePage:
    """The page of running experiments in one file.

    Args:
        folders: Directories of runs or experiments.
        to: The file of the page, which ends in .html or .htm.

    Attributes:
        ended: Whether all runs had ended when the page was last made.

    Raises:
        UserError: One of ``folders`` is not the directory of a run or an experiment, or ``to`` is
            not the name of a page.
    """

    def __init__(self, folders: Iterable[Path], to: Path) -> None:
        self.folders = list(folders)
        self.to = checked_suffix(to)
        self.ended = False
        # The runs as last read, each with the stamp of its records then.
        self._page_runs: dict[Path, tuple[Stamp, PageRun]] = {}
        self._shown_stamps: dict[Path, Stamp] | None = None
        self._due_time = 0.0
        # Raises an error for a folder that is no run, before anything is written.
        self._run_folders()

    def update(self, reloads: bool = True) -> bool:
        """Write the page if a record has grown since it was last written.

        Args:
            reloads: Whether the page reloads itself while a run goes on, and waits after a page
                that took long. If not, this is the last page, and it is written in any case.

        Returns:
            Whether the file was written.

        Raises:
            UserError: The records are damaged.
        """
        stamps: dict[Path, Stamp] = {}
        for folder in self._run_folders():
            stamp = records_stamp(folder)
            if stamp is not None:
                stamps[folder] = stamp
        if reloads and (stamps == self._shown_stamps or time.monotonic() < self._due_time):
            return False
        # Before the first round there is a page that waits for it, unless nothing will follow.
        if not stamps:
            if reloads:
                self._write(WAITING)
                self._shown_stamps = stamps
            return reloads
        start_time = time.monotonic()
        # Only runs whose records have changed are read again.
        for folder, stamp in stamps.items():
            if folder not in self._page_runs or self._page_runs[folder][0] != stamp:
                self._page_runs[folder] = (stamp, read_run(folder))
        document = document_of([self._page_runs[folder][1] for folder in stamps])
        all_begun = len(stamps) >= self._expected_runs()
        self.ended = all_begun and all(run["finished"] for run in document["runs"])
        self._write(page(document, RELOAD_SECONDS if reloads and not self.ended else None))
        self._shown_stamps = stamps
        self._due_time = time.monotonic() + REST_FACTOR * (time.monotonic() - start_time)
        return True

    def follow(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Update the page until all runs have ended, or the user interrupts.

        Args:
            sleep: Waits for some seconds.
        """
        try:
            while not self.ended:
                self.update()
                if not self.ended:
                    sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.update(reloads=False)

    def _run_folders(self) -> list[Path]:
        """The run directories that exist now."""
        run_folders: list[Path] = []
        for folder in self.folders:
            run_folders += self._runs_in(folder)
        return run_folders

    def _runs_in(self, folder: Path) -> list[Path]:
        has_run = (folder / RUN_FILE).is_file() or any(folder.glob(f"*/{RUN_FILE}"))
        # An experiment whose first run has not begun has no runs yet.
        if not has_run and (folder / EXPERIMENT_FILE).is_file():
            return []
        return expand(folder)

    def _expected_runs(self) -> int:
        """The number of runs that there are at the end: those of an experiment begin one after the other."""
        num_runs = 0
        for folder in self.folders:
            if (folder / EXPERIMENT_FILE).is_file():
                experiment = read_recorded(within(folder, EXPERIMENT_FILE))
                num_runs += len(experiment["methods"]) * len(experiment["seeds"])
            else:
                num_runs += len(self._runs_in(folder))
        return num_runs

    def _write(self, text: str) -> None:
        self.to.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.to, text.encode())


def records_stamp(run: Path) -> Stamp | None:
    """Return when a run's records last changed; None before its first round is complete.

    Args:
        run: The run directory.
    """
    try:
        with open(descriptor(within(run, ROUNDS_FILE), os.O_RDONLY), "rb") as file:
            # A round is complete when its line is.
            if not file.readline().endswith(b"\n"):
                return None
        file_states = [(run / name).stat() for name in (RUN_FILE, ROUNDS_FILE)]
        return tuple((state.st_mtime_ns, state.st_size) for state in file_states)
    except FileNotFoundError:
        return None
