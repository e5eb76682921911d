"""The page of runs that go on, made anew only when a record has grown."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.files import descriptor, within
from coterie.record import ROUNDS, RUN, to_json
from coterie.report.page import page
from coterie.report.page.document import one, together
from coterie.report.summary import expand
from coterie.runs import EXPERIMENT

REST = 4
"""After a page was made, this many times as long passes before it is made again: of large runs that takes seconds."""

Stamp = tuple[tuple[int, int], ...]
"""(time of change, bytes) of a run's records."""


@dataclass(frozen=True)
class Shown:
    """The page and its document as bytes, and the document's tag."""

    tag: str
    page: bytes
    document: bytes


class Following:
    """What is to be shown of the runs in ``folder``; used by several threads at once.

    Raises :class:`~coterie.settings.UserError` for a folder that is neither a run's nor an experiment's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._parts: dict[Path, tuple[Stamp, Any]] = {}
        self._shown: tuple[dict[Path, Stamp], Shown] | None = None
        self._again = 0.0
        self.runs()

    def runs(self) -> list[Path]:
        """The run directories that are there by now."""
        begun = (self.folder / RUN).is_file() or any(self.folder.glob(f"*/{RUN}"))
        return [] if not begun and (self.folder / EXPERIMENT).is_file() else expand([self.folder])

    def shown(self) -> Shown | None:
        """As of now, or of a moment ago; None while no round of any run is completed."""
        with self._lock:
            stamps = {run: stamp for run in self.runs() if (stamp := stamped(run))}
            known = self._shown
            if known and (known[0] == stamps or time.monotonic() < self._again):
                return known[1]
            began = time.monotonic()
            made = self._made(stamps)
            self._shown = (stamps, made) if made else None
            now = time.monotonic()
            self._again = now + REST * (now - began)
            return made

    def _made(self, stamps: dict[Path, Stamp]) -> Shown | None:
        """Of runs that are as they were, what is known; the others are read."""
        parts: dict[Path, tuple[Stamp, Any]] = {}
        for run, stamp in stamps.items():
            known = self._parts.get(run)
            if known and known[0] == stamp:
                parts[run] = known
            else:
                parts[run] = (stamp, one(run))
        self._parts = parts
        if not parts:
            return None
        document = together(list(parts), [part for _, part in parts.values()])
        text = to_json(document).encode()
        tag = f'"{hashlib.sha256(text).hexdigest()[:32]}"'
        return Shown(tag, page(document, live=tag).encode(), text)


def stamped(run: Path) -> Stamp | None:
    """When the run's records last changed; None before its first round is whole."""
    try:
        with open(descriptor(within(run, ROUNDS), os.O_RDONLY), "rb") as file:
            if not file.readline().endswith(b"\n"):
                return None
        return tuple((told.st_mtime_ns, told.st_size) for told in ((run / name).stat() for name in (RUN, ROUNDS)))
    except FileNotFoundError:
        return None
