"""The process of a tracker: ``python -m coterie.tracking NAME``, started by :class:`~coterie.tracking.Tracking`.

It reads run directories from stdin, one per line, each after the run before has ended. An empty line or the end of the input
stops it. It reads the record by itself, once a second, so no other process waits for it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from coterie.files import descriptor
from coterie.records.record import ROUNDS, Line, ends
from coterie.tracking.measures import Course, Writer, pictures, words

WRITERS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Wandb"}
"""Tracker -> the class in the module ``to_<tracker>``."""

EVERY = 1.0
"""Seconds between two reads of a growing record."""


class Follower:
    """Passes the recorded rounds of the run in ``folder`` to a writer."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.folder, self.writer, self.finished = folder, writer, False
        self.course, self.at = Course(writer.place.description), 0

    def catch_up(self) -> None:
        """Track the new rounds of the record, except those that an earlier process has tracked."""
        description, place = self.writer.place.description, self.writer.place
        for line in self._new():
            numbers = self.course.numbers(line)
            if line["round"] > place.round:
                self.writer.write(line["round"], numbers, words(line), list(pictures(self.folder, line)))
                place.keep(line["round"])
            self.finished = ends(line, description["rounds"], description.get("target"))

    def _new(self) -> Iterator[Line]:
        path = self.folder / ROUNDS
        if not path.exists():
            return
        with open(descriptor(path, os.O_RDONLY), "rb") as file:
            file.seek(self.at)
            for raw in file:
                if not raw.endswith(b"\n"):  # it is being written
                    return
                self.at += len(raw)
                yield json.loads(raw)


def follow(folders: Iterator[Path | None], make: Callable[[Path], Writer]) -> None:
    """Track runs one after the other.

    Args:
        folders: The next run directory, or None to read the record of the last one again.
        make: Makes the writer for a run directory.
    """
    now: Follower | None = None
    try:
        for folder in folders:
            if folder is not None and (now is None or folder != now.folder):
                if now:
                    now.catch_up()
                    now.writer.close(now.finished)
                now = Follower(folder, make(folder))
            if now:
                now.catch_up()
    finally:
        if now:
            now.writer.close(now.finished)


def followed(stream: int) -> Iterator[Path | None]:
    """Read paths from a file descriptor.

    Args:
        stream: The file descriptor.

    Yields:
        The path in each line, and None every second and at the end.
    """
    rest = b""
    while True:
        if not select.select([stream], [], [], EVERY)[0]:
            yield None
            continue
        data = os.read(stream, 65536)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line:
                yield Path(os.fsdecode(line))
        if not data or b"" in lines:
            yield None
            return


def main(name: str) -> None:
    """Run the tracker ``name`` until the end of stdin."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    writer = getattr(importlib.import_module(f"coterie.tracking.to_{name}"), WRITERS[name])
    follow(followed(sys.stdin.fileno()), writer)


if __name__ == "__main__":
    main(sys.argv[1])
