"""A run directory: what was run (``run.toml``), what happened (``rounds.jsonl``, with the matrices of its notes in
``similarity/``), where it stands (``state/``).

A round is recorded before its checkpoint is stored, and both survive a killed process. So a run goes on from its newest
checkpoint: records past it are cut off and made again, the same but for the seconds.

Numbers that are not finite are ``null`` in every JSON that Coterie writes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch

import coterie
from coterie.codec import DamagedError
from coterie.settings import UserError
from coterie.store import SCHEMA, Checkpoints, check_schema, sync_folder, write_whole

if TYPE_CHECKING:
    from coterie.core import Note
    from coterie.engines.inprocess import Round

RUN = "run.toml"
ROUNDS = "rounds.jsonl"
SIMILARITY = "similarity"

WRITTEN = ("methods", "scenario", "seeds", "rounds", "training", "world")
"""What every ``run.toml`` has."""

Line = dict[str, Any]
"""One round as it is recorded: see :func:`line`."""


class Record:
    """The files of one run, in ``folder``."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "state")

    @property
    def begun(self) -> bool:
        return (self.folder / RUN).is_file()

    def describe(self, document: Mapping[str, Any]) -> None:
        """Write ``run.toml``, once, before the first round."""
        write_whole(self.folder / RUN, to_toml({"schema": SCHEMA, **document}).encode())

    def description(self) -> dict[str, Any]:
        """What ``run.toml`` says. Raises :class:`~coterie.settings.UserError` where there is none, or a newer one."""
        if not self.begun:
            raise UserError(f"{self.folder} is no run directory: it has no {RUN}")
        document = read_toml(self.folder / RUN)
        check_schema(document.get("schema"), self.folder / RUN)
        lacking = [key for key in WRITTEN if key not in document]
        if lacking:
            raise DamagedError(f"{self.folder / RUN} lacks {lacking[0]!r}; it is damaged")
        return document

    def lines(self) -> list[Line]:
        """The recorded rounds in order; a last line that was cut short by a killed process is left out."""
        return [parsed for parsed, _ in self._parsed()]

    def keep(self, done: Round) -> Line:
        """Record a round, its matrices first, so that every file that a line names is there; returns its line."""
        for name, note in matrices(done).items():
            if not (self.folder / SIMILARITY).exists():
                (self.folder / SIMILARITY).mkdir()
                sync_folder(self.folder)
            write_whole(self.folder / name, matrix_file(note, done.number))
        recorded = line(done)
        self.append(recorded)
        return recorded

    def append(self, line: Line) -> None:
        """Record a round; it is on the disk when this returns."""
        new = not self._path.exists()
        with open(self._path, "ab") as file:
            file.write(to_json(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.folder)

    def rewind(self, round: int) -> None:
        """Cut off what was recorded after ``round``. Raises ``DamagedError`` if the records do not reach it."""
        end = reached = 0
        for parsed, stop in self._parsed():
            if parsed["round"] > round:
                break
            end, reached = stop, parsed["round"]
        if reached != round:
            raise DamagedError(f"{self._path} ends at round {reached}, but the checkpoint stands at round {round}")
        if self._path.exists() and self._path.stat().st_size != end:
            with open(self._path, "r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())

    @property
    def _path(self) -> Path:
        return self.folder / ROUNDS

    def _parsed(self) -> list[tuple[Line, int]]:
        """(record, where in the file it ends) of each whole line."""
        data = self._path.read_bytes() if self._path.exists() else b""
        out: list[tuple[Line, int]] = []
        end = 0
        for number, raw in enumerate(data.splitlines(keepends=True), start=1):
            if not raw.endswith(b"\n"):
                break
            end += len(raw)
            try:
                parsed = json.loads(raw)
                following = parsed["round"] == number
            except (ValueError, TypeError, KeyError) as error:
                if end == len(data):  # torn: the length reached the disk before the words
                    break
                raise DamagedError(f"line {number} of {self._path} is damaged ({error})") from error
            if not following:
                raise DamagedError(f"line {number} of {self._path} is of round {parsed['round']}")
            out.append((parsed, end))
        return out


def versions() -> Mapping[str, str]:
    """Of what the numbers may depend on."""
    return {
        "coterie": coterie.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def line(done: Round) -> Line:
    """A round as one JSON object.

    round, exchange: how many are completed. clients: id -> ``group`` (its place in ``groups``) and, where the round was
    tested, ``loss``, ``accuracy`` and the other metrics on its test data; ``adversary`` of those that mean harm. notes: why
    the method did or did not act; ``similarity`` names the file of a note's matrices, or is None.
    """
    groups = [list(group) for group in done.assignment.groups]
    clients: dict[str, dict[str, Any]] = {
        str(client): {"group": number, **(done.scores[client] if done.scores is not None else {})}
        for client, number in sorted((c, i) for i, group in enumerate(groups) for c in group)
    }
    for client in done.adversaries:
        if str(client) in clients:  # it may not have come yet
            clients[str(client)]["adversary"] = True
    files = {id(note): name for name, note in matrices(done).items()}
    notes = [
        {
            "kind": note.kind,
            "clients": list(note.clients),
            "parts": [list(part) for part in note.parts],
            "text": note.text,
            "numbers": dict(note.numbers),
            "values": {name: dict(sorted(values.items())) for name, values in note.values.items()},
            "similarity": files.get(id(note)),
        }
        for note in done.notes
    ]
    plain: Line = {
        "round": done.number,
        "exchange": done.position.exchange,
        "exchanges": done.exchanges,
        "tested": done.scores is not None,
        "groups": groups,
        "clients": clients,
        "notes": notes,
        "asked": done.asked,
        "answered": done.answered,
        "refused": {str(client): why for client, why in done.refused.items()},
        "silent": list(done.silent),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "evaluations": done.evaluations,
        "seconds": dict(done.seconds),
    }
    if done.released:
        plain["released"] = {str(client): count for client, count in sorted(done.released.items())}
    result = finite(plain)
    assert isinstance(result, dict)
    return result


def matrices(done: Round) -> dict[str, Note]:
    """File, in the run directory -> the note whose matrices it holds."""
    notes = [note for note in done.notes if note.similarity]
    name = f"{SIMILARITY}/round-{done.number}"
    return {f"{name}{f'-{i}' if i > 1 else ''}.safetensors": note for i, note in enumerate(notes, start=1)}


def matrix_file(note: Note, round: int) -> bytes:
    """A note's matrices ``(n, n)`` by name, as float32 in safetensors; the metadata's ``note`` says whose rows they are.

    All of it under one key: safetensors writes several in no certain order, and a file made again must be the same.
    """
    about = {"round": round, "kind": note.kind, "clients": list(note.order)}
    tensors = {name: matrix.detach().to("cpu", torch.float32).contiguous() for name, matrix in note.similarity.items()}
    return safetensors.torch.save(tensors, {"note": to_json(about)})


def spread(line: Line, metric: str = "accuracy") -> dict[str, Any]:
    """mean, std (of these clients, not an estimate), min of a metric over honest clients, and per_client of all, in a
    tested round."""
    values = {client: entry.get(metric) for client, entry in line["clients"].items()}
    honest = [values[client] for client, entry in line["clients"].items() if not entry.get("adversary")] or [None]
    row = np.array([np.nan if value is None else value for value in honest], dtype=np.float64)
    return {"mean": float(row.mean()), "std": float(row.std()), "min": float(row.min()), "per_client": values}


def ends(line: Line, rounds: int, target: float | None) -> bool:
    """Whether a run ends with this round: it is the last, or its mean accuracy has reached the target."""
    reached = target is not None and line["tested"] and spread(line)["mean"] >= target
    return bool(line["round"] >= rounds or reached)


def finite(value: Any) -> Any:
    """``value`` for JSON: numbers that are not finite become None, NumPy's numbers Python's, tuples lists.

    >>> finite({"loss": float("nan"), "groups": ((0, 1),)})
    {'loss': None, 'groups': [[0, 1]]}
    """
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text: see :func:`finite`."""
    return json.dumps(finite(value), allow_nan=False, indent=indent, ensure_ascii=False)


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML text; keys that are None are left out."""
    import tomli_w

    return tomli_w.dumps({key: value for key, value in document.items() if value is not None})


def read_toml(path: Path) -> dict[str, Any]:
    """The document in a TOML file. Raises :class:`~coterie.settings.UserError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no TOML file: {error}") from error
