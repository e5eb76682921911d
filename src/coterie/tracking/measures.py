"""What is tracked of a round: its record as names and numbers, and as text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.files import check_links, read_within, within
from coterie.printable import printable
from coterie.records.record import Line, Record, load_matrices, spread
from coterie.records.store import SCHEMA, check_schema, write_whole
from coterie.report.summary import ABOUT, agreement, isolated, mean_of, without
from coterie.runs.run import EXPERIMENT

MOST = 100
"""Clients are tracked one by one up to so many; of more, the clusters and the whole are."""

BEFALL = ("join", "walk", "move", "merge")
"""Kinds of notes besides those on a group that was looked at, in the same round and maybe with the same smallest member."""


class Course:
    """Turns the rounds of a run, one after the other, into numbers. description: of ``run.toml``."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.truth = description["world"].get("true_groups")
        self.adversaries = description["world"].get("adversaries", [])
        self.sums: dict[str, float] = {"traffic/bytes_up": 0, "traffic/bytes_down": 0, "seconds/total": 0.0}

    def numbers(self, line: Line) -> dict[str, float]:
        """All numbers of the next round by name; what is not finite, or was not measured, is left out."""
        self.sums["traffic/bytes_up"] += line["bytes_up"]
        self.sums["traffic/bytes_down"] += line["bytes_down"]
        self.sums["seconds/total"] += sum(line["seconds"].values())
        found = {
            **self.sums,
            **{f"seconds/{name}": value for name, value in line["seconds"].items()},
            "traffic/asked": line["asked"],
            "traffic/answered": line["answered"],
            **self._groups(line),
            **_criteria(line),
            **dict(_measured(line)),
        }
        return {name: float(value) for name, value in found.items() if value is not None and value == value}

    def _groups(self, line: Line) -> dict[str, float | None]:
        """How many there are, and how well they agree with the truth about those who are there."""
        groups = line["groups"]
        absent = {c for group in self.truth or () for c in group} - {c for group in groups for c in group}
        truth = self.truth and without(self.truth, [*self.adversaries, *absent])
        return {
            "groups/count": len(groups),
            "groups/adjusted_rand": agreement(without(groups, self.adversaries), truth),
            "groups/isolated": isolated(groups, self.adversaries),
        }


def _criteria(line: Line) -> dict[str, float | None]:
    """The numbers that the method compared, of each group that it looked at, and of what befell one."""
    return {
        "/".join(["criteria", name_of(note["clients"]), *([note["kind"]] if note["kind"] in BEFALL else []), name]): value
        for note in line["notes"]
        if note["clients"]
        for name, value in note["numbers"].items()
    }


def _measured(line: Line) -> Iterator[tuple[str, float | None]]:
    """Of a tested round: each metric over all clients, over those of a cluster, and of each client."""
    clients = line["clients"]
    yield from ((f"cluster/{name_of(group)}/size", len(group)) for group in line["groups"])
    if not line["tested"]:
        return
    for metric in dict.fromkeys(name for entry in clients.values() for name in entry if name not in ABOUT):
        whole = spread(line, metric)
        yield from ((f"{metric}/{part}", whole[part]) for part in ("mean", "std", "min"))
        for group in line["groups"]:
            yield f"cluster/{name_of(group)}/{metric}", mean_of(line, group, metric)
        if len(clients) <= MOST:
            yield from ((f"client/{client}/{metric}", value) for client, value in whole["per_client"].items())


def name_of(group: list[int]) -> str:
    """A group is called by its smallest member: after a split, one part keeps the name, and the curve goes on.

    >>> name_of([7, 3, 12])
    'of-3'
    """
    return f"of-{min(group)}"


def words(line: Line) -> str:
    """The notes of a round as text, a line each; empty where there are none."""
    return "\n".join(f"round {line['round']} {note['kind']}: {printable(note['text'])}" for note in line["notes"])


def changed(line: Line) -> bool:
    """Whether a note tells that groups were made anew."""
    return any(len(note["parts"]) > 1 for note in line["notes"])


def settings(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What was run, flat: ``method.eps1``, ``scenario.clients``, ``training.lr``, ``seed``, ``versions.torch``.

    Lists are texts. Of the world, the number of clients alone.
    """
    rest = {k: v for k, v in description.items() if k not in ("methods", "seeds", "world", "schema")}
    world = {"clients": len(description["world"]["clients"])}
    table = {"method": description["methods"][0], "seed": description["seeds"][0], **rest, "world": world}
    return dict(_flat(table, ""))


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, bool | int | float | str) else str(value)


# ----------------------------------------------------------------------------------------------------
# The matrices that a clustering rested on, as pictures: arrays of RGB, made without a plotting library.


SIDE = 512
"""Pixels of a picture's side, about: small matrices are enlarged to it, those of more clients are averaged down to it."""

MAP = np.array([[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
                [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]], dtype=float)  # fmt: skip
"""Ten colours from dark to light, alike to the colour-blind: Matplotlib's viridis (CC0)."""


@dataclass(frozen=True)
class Picture:
    """name: of the matrix, ``similarity/all`` or a layer. pixels: ``(h, w, 3)`` uint8. caption: what is seen."""

    name: str
    pixels: np.ndarray
    caption: str


def pictures(folder: Path, line: Line) -> Iterator[Picture]:
    """One per matrix of the round's notes; rows and columns are ordered by the parts that the note made."""
    for note in line["notes"]:
        if note["similarity"] is None:
            continue
        group = f"of-{min(note['clients'])}"
        rows, matrices = load_matrices(folder, line, note)
        parts = _placed(rows, note["parts"])
        order = [place for part in parts for place in part]
        for layer, values in sorted(matrices.items()):
            matrix = values[np.ix_(order, order)]
            low, high = extent(matrix)
            about = f"round {line['round']}, {note['kind']}: {len(rows)} clients in {len(parts)} parts"
            caption = f"{about}; dark {low:.3g}, light {high:.3g}"
            yield Picture(f"similarity/{group}/{layer}", coloured(matrix, low, high), caption)


def _placed(rows: Sequence[int], parts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The places of the parts' clients among the rows; those of no part are the last part."""
    place = {client: i for i, client in enumerate(rows)}
    found = [[place[client] for client in part if client in place] for part in parts]
    left = sorted(set(place.values()) - {i for part in found for i in part})
    return [part for part in [*found, left] if part]


def extent(matrix: np.ndarray) -> tuple[float, float]:
    """The least and the greatest finite number off the diagonal, which says nothing; (0, 0) where there is none."""
    off = matrix[~np.eye(len(matrix), dtype=bool)]
    known = off[np.isfinite(off)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def coloured(matrix: np.ndarray, low: float, high: float) -> np.ndarray:
    """``(h, w, 3)`` uint8 of a matrix ``(n, n)``: ``low`` is dark, ``high`` light, what is not finite grey."""
    n = len(matrix)
    step = -(-n // SIDE)
    if step > 1:
        padded = np.pad(matrix, (0, -n % step), mode="edge")
        matrix = padded.reshape(len(padded) // step, step, -1, step).mean(axis=(1, 3))
    share = np.clip((matrix - low) / (high - low), 0, 1) if high > low else np.zeros_like(matrix)
    at = np.nan_to_num(share) * (len(MAP) - 1)
    colours = np.stack([np.interp(at, range(len(MAP)), channel) for channel in MAP.T], axis=-1)
    colours[~np.isfinite(matrix)] = 128
    times = max(1, SIDE // len(matrix))
    return colours.round().astype(np.uint8).repeat(times, axis=0).repeat(times, axis=1)


# ----------------------------------------------------------------------------------------------------
# Where a run's tracking stands and where its data go: files in ``track/`` of the run directory and of the call's folder.


TRACK = "track"
"""Folder inside a run directory, or inside the folder of several runs."""

LOG = "debug-core.log"
"""Links of this name Weights & Biases makes to its logs elsewhere; it writes through none that is there."""


class Writer(Protocol):
    """What a tracker is told, in the order of the rounds."""

    place: TrackerState

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """A round; when this returns, a killed process loses no more of it than the tracker's own care allows."""

    def close(self, finished: bool) -> None:
        """No more rounds are coming now; finished: ever."""


class TrackerState:
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
