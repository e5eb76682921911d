"""The tracked quantities of a round: its record as names and numbers, and as text."""

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
"""Most clients that are tracked one by one; if there are more, only the clusters and the whole are tracked."""

BEFALL = ("join", "walk", "move", "merge")
"""Kinds of notes about events. They may be about a group with the same smallest member as a group examined in this round."""


class Course:
    """Converts the rounds of a run, one after the other, to numbers.

    Args:
        description: The document of ``run.toml``.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.truth = description["world"].get("true_groups")
        self.adversaries = description["world"].get("adversaries", [])
        self.sums: dict[str, float] = {"traffic/bytes_up": 0, "traffic/bytes_down": 0, "seconds/total": 0.0}

    def numbers(self, line: Line) -> dict[str, float]:
        """All numbers of the next round by name, except those that are not finite or were not measured."""
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
        """The number of groups, and their agreement with the true groups of the clients that are present."""
        groups = line["groups"]
        absent = {c for group in self.truth or () for c in group} - {c for group in groups for c in group}
        truth = self.truth and without(self.truth, [*self.adversaries, *absent])
        return {
            "groups/count": len(groups),
            "groups/adjusted_rand": agreement(without(groups, self.adversaries), truth),
            "groups/isolated": isolated(groups, self.adversaries),
        }


def _criteria(line: Line) -> dict[str, float | None]:
    """The numbers that the method compared for each group that it examined, and the numbers of events."""
    return {
        "/".join(["criteria", name_of(note["clients"]), *([note["kind"]] if note["kind"] in BEFALL else []), name]): value
        for note in line["notes"]
        if note["clients"]
        for name, value in note["numbers"].items()
    }


def _measured(line: Line) -> Iterator[tuple[str, float | None]]:
    """The sizes of clusters, and in a tested round each metric over all clients, over each cluster, and of each client."""
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
    """The name of a group, after its smallest member.

    After a split, one part keeps the name, and its curve continues.

    Args:
        group: The clients of the group.

    Returns:
        The name.

    Example:
        >>> name_of([7, 3, 12])
        'of-3'
    """
    return f"of-{min(group)}"


def words(line: Line) -> str:
    """The notes of a round as text, one line each; empty if there are none."""
    return "\n".join(f"round {line['round']} {note['kind']}: {printable(note['text'])}" for note in line["notes"])


def changed(line: Line) -> bool:
    """Whether a note of the round reports a change of groups."""
    return any(len(note["parts"]) > 1 for note in line["notes"])


def settings(description: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """The settings of a run as a flat table: ``method.eps1``, ``scenario.clients``, ``training.lr``, ``versions.torch``.

    Args:
        description: The document of ``run.toml``.

    Returns:
        Name -> value. Lists are strings. From the world, only the number of clients is included.
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
# The similarity matrices of clusterings as pictures: RGB arrays, made without a plotting library.


SIDE = 512
"""Approximate pixels of a picture's side: small matrices are enlarged to it, larger ones are averaged down to it."""

MAP = np.array([[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
                [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]], dtype=float)  # fmt: skip
"""Ten colours from dark to light, suitable for colour-blind readers: Matplotlib's viridis (CC0)."""


@dataclass(frozen=True)
class Picture:
    """A matrix as a picture.

    Attributes:
        name: The name of the matrix: ``similarity/GROUP/all``, or a layer instead of ``all``.
        pixels: The picture, ``(h, w, 3)`` uint8.
        caption: A description of the picture.
    """

    name: str
    pixels: np.ndarray
    caption: str


def pictures(folder: Path, line: Line) -> Iterator[Picture]:
    """The pictures of a round, with rows and columns ordered by the parts in the note.

    Args:
        folder: The run directory.
        line: The record of the round.

    Yields:
        One picture per matrix of the round's notes.
    """
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
    """The places of the parts' clients among the rows; clients without a part form the last part."""
    place = {client: i for i, client in enumerate(rows)}
    found = [[place[client] for client in part if client in place] for part in parts]
    left = sorted(set(place.values()) - {i for part in found for i in part})
    return [part for part in [*found, left] if part]


def extent(matrix: np.ndarray) -> tuple[float, float]:
    """The least and the greatest finite number of a matrix, without its diagonal, which carries no information.

    Args:
        matrix: The matrix ``(n, n)``.

    Returns:
        (least, greatest); (0, 0) if there is no finite number.
    """
    off = matrix[~np.eye(len(matrix), dtype=bool)]
    known = off[np.isfinite(off)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def coloured(matrix: np.ndarray, low: float, high: float) -> np.ndarray:
    """Colour a matrix.

    Args:
        matrix: The matrix ``(n, n)``.
        low: The number that is dark.
        high: The number that is light.

    Returns:
        The pixels ``(h, w, 3)`` uint8; numbers that are not finite are grey.
    """
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
# The state of a run's tracking and the place of its data: files in ``track/`` of the run directory and of the call's folder.


TRACK = "track"
"""Folder of trackers' files inside a run directory, or inside the folder of several runs."""

LOG = "debug-core.log"
"""Weights & Biases makes links of this name to its logs in other folders; it does not write through an existing link."""


class Writer(Protocol):
    """The interface of a tracker, which receives the rounds in their order.

    Attributes:
        place: The state of the run in this tracker.
    """

    place: TrackerState

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """Write a round.

        If the process is killed after this returns, it loses no more of the round than the tracker itself may lose.

        Args:
            round: The number of the round.
            numbers: Its numbers by name.
            text: Its notes; empty if there are none.
            pictures: Its pictures.
        """

    def close(self, finished: bool) -> None:
        """End the tracking for now; ``finished``: the run is finished, so no more rounds will ever come."""


class TrackerState:
    """The state of one run in one tracker.

    ``identity`` and ``round`` are stored in ``track/<tracker>.json`` of the run directory.

    Args:
        folder: The run directory.
        tracker: The name of the tracker.
        where: Identifies the tracker's store. In another store, a run is tracked again from its first round.

    Attributes:
        identity: The id of the run in the tracker, the same after a resume.
        round: The last tracked round.
        known: Whether both were stored already.
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
        """The folder of the call: the run directory, or for several runs the folder that holds them all."""
        several = (self.folder.parent / EXPERIMENT).is_file()
        return self.folder.parent if several else self.folder

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.folder.name

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """The settings of the run, see :func:`settings`."""
        return settings(self.description)

    def keep(self, round: int | None = None, identity: str | None = None) -> None:
        """Store the state.

        Args:
            round: The last tracked round; None if it has not changed.
            identity: The id of the run in the tracker; None if it has not changed.
        """
        self.round = self.round if round is None else round
        self.identity = identity or self.identity
        self._path.parent.mkdir(exist_ok=True)
        known = {"schema": SCHEMA, "where": self.where, "run": self.identity, "round": self.round}
        write_whole(self._path, json.dumps(known).encode())
