"""Where a run's tracking stands and where its data go: files in ``track/`` of the run directory and of the call's folder."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from coterie.files import check_links, read_within, within
from coterie.record import Record
from coterie.runs import EXPERIMENT
from coterie.store import SCHEMA, check_schema, write_whole
from coterie.track.measures import settings
from coterie.track.pictures import Picture

TRACK = "track"
"""Folder inside a run directory, or inside the folder of several runs."""

LOG = "debug-core.log"
"""Links of this name Weights & Biases makes to its logs elsewhere; it writes through none that is there."""


class Writer(Protocol):
    """What a tracker is told, in the order of the rounds."""

    place: Place

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """A round; when this returns, a killed process loses no more of it than the tracker's own care allows."""

    def close(self, finished: bool) -> None:
        """No more rounds are coming now; finished: ever."""


class Place:
    """One run in one tracker. folder: the run directory. tracker: its name.

    ``identity``: of the run there, the same after a resume. ``round``: the last one tracked. Both are kept in
    ``track/<tracker>.json`` of the run directory; ``known``: whether they were there. ``where``: tells one store of the
    tracker from another; in another one a run is tracked anew, from its first round.
    """

    def __init__(self, folder: Path, tracker: str, where: str = "") -> None:
        self.folder, self.where = folder.absolute(), where
        self.description: dict[str, Any] = Record(folder).description()
        self._path = within(self.folder, f"{TRACK}/{tracker}.json")
        for folder in {self.folder, self.home}:  # trackers write there, and make links to their own files
            check_links(folder / TRACK, but=LOG)
        known: dict[str, Any] = {"schema": SCHEMA, "where": None}
        if self._path.exists():
            known = json.loads(read_within(self.folder, f"{TRACK}/{tracker}.json"))
        check_schema(known.get("schema"), self._path)
        self.known = here = known["where"] == where
        self.identity: str = known["run"] if here else uuid.uuid4().hex[:12]
        self.round: int = known["round"] if here else 0

    @property
    def home(self) -> Path:
        """The folder of the call: of several runs, the one that holds them all."""
        several = (self.folder.parent / EXPERIMENT).is_file()
        return self.folder.parent if several else self.folder

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        return settings(self.description)

    def keep(self, round: int | None = None, identity: str | None = None) -> None:
        """Remember how far the run is tracked, and what it is called there."""
        self.round = self.round if round is None else round
        self.identity = identity or self.identity
        self._path.parent.mkdir(exist_ok=True)
        known = {"schema": SCHEMA, "where": self.where, "run": self.identity, "round": self.round}
        write_whole(self._path, json.dumps(known).encode())
