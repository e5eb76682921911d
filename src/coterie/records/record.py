"""A run directory: what was run (``run.toml``), what happened (``rounds.jsonl``, with the matrices of its notes in
``similarity/``), where it stands (``state/``).

A round is recorded before its checkpoint is stored, and both survive a killed process. So a run goes on from its newest
checkpoint: records past it are cut off and made again, the same but for the seconds.

The checksum of a line is over itself and the checksum of the line before, that of the first over what ``run.toml`` says was
run; a line has the checksums of its matrices, and a checkpoint that of the newest line. So whatever was changed, left out,
put in another order or taken from another run does not fit to the rest.

Numbers that are not finite are ``null`` in every JSON that Coterie writes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

from coterie.core import Note, Round
from coterie.files import available_memory, descriptor, open_regular, read_regular, read_within, reason, within
from coterie.printable import printable
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.store import CHECKED, KEPT, SCHEMA, BusyError, Checkpoints, Fits, check_schema, sync_folder, write_whole
from coterie.records.wellformed import flaw_of_description, flaw_of_line
from coterie.settings import UserError, toml

T = TypeVar("T")

RUN = "run.toml"
ROUNDS = "rounds.jsonl"
SIMILARITY = "similarity"

NODES = "nodes.json"
"""What the server of a federation knows of its nodes, besides the position."""

OTHERS = "others.safetensors"
"""Tensors of a federation's net that have no place in a row, as the server has them."""

WRITTEN = ("methods", "scenario", "seeds", "rounds", "training")
"""What every ``run.toml`` and ``experiment.toml`` has; nothing of it is ever taken from a default."""

HIDDEN = "hidden"
"""Stands for the secret of a boundary wherever a record is shown."""

EDITABLE = ("rounds", "target", "eval_every", "checkpoint_every", "checkpoints_kept", "workers", "data")
"""What may be edited in a ``run.toml``: when a run ends, how often it is tested and stored, and where it is made. All else is
what was run."""

_OF_RUN = ("scenario", "methods", "seeds", "training", "boundary")
"""What the records of a run of an earlier schema depend on, with its clients and data."""

_MATRICES = re.compile(r"similarity/[\w-]+\.safetensors", re.ASCII)

Line = dict[str, Any]
"""One round as it is recorded: see :func:`line`."""


@dataclass(frozen=True)
class Entry:
    """A whole line of the records: what it says, where it ends, its checksum, and what is wrong with it."""

    line: Line
    end: int
    checksum: str
    problem: str | None


class Record:
    """The files of one run, in ``folder``."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "state")

    @property
    def begun(self) -> bool:
        return (self.folder / RUN).is_file()

    def describe(self, document: Mapping[str, Any]) -> None:
        """Write ``run.toml``."""
        write_whole(self.folder / RUN, checksum.sealed_toml(to_toml({"schema": SCHEMA, **document})))

    def description(self) -> dict[str, Any]:
        """What ``run.toml`` says; a boundary's secret is left out, and told by the word ``hidden``.

        Raises:
            UserError: there is none, it is of a newer Coterie, or is not what was written.
        """
        if not self.begun:
            raise UserError(f"{self.folder} is no run directory: it has no {RUN}")
        path = within(self.folder, RUN)
        document = read_recorded(path)
        if "world" not in document:
            raise DamagedError(f"{path} lacks 'world'; it is damaged")
        if why := flaw_of_description(document):
            raise DamagedError(f"{path} is damaged: {why}")
        if "secret" in document or document.get("boundary", {}).get("secret", "none") != "none":
            document["boundary"] = {**document["boundary"], "secret": HIDDEN}
        return document

    def lines(self) -> list[Line]:
        """The recorded rounds in order; a last line that was cut short by a killed process is left out.

        Raises:
            DamagedError: they are not what was written, or end before the newest checkpoint.
        """
        return [entry.line for entry in self._sound()]

    def keep(self, done: Round) -> Line:
        """Record a round, its matrices first, so that every file that a line names is there; returns its line."""
        recorded, files = line(done), {}
        for name, note in matrices(done).items():
            path = within(self.folder, name)
            if not path.parent.exists():
                path.parent.mkdir()
                sync_folder(self.folder)
            data = matrix_file(note, done.number)
            write_whole(path, data)
            files[name] = checksum.digest(data)
        if files:
            recorded["files"] = files
        self.append(recorded)
        return recorded

    def append(self, line: Line) -> None:
        """Record a round; it is on the disk when this returns."""
        new = not self._path.exists()
        data = checksum.sealed_json(to_json(line).encode(), before=self._newest()) + b"\n"
        handle = descriptor(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(handle, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self.folder)

    def store(self, round: int, position: Any, kept: int = KEPT) -> None:
        """Store a checkpoint after the round that was recorded last."""
        self.checkpoints.save(round, position, kept, record=self._newest())

    def stored(self, kind: type[T], fallback: bool = True) -> tuple[int, T] | None:
        """The newest checkpoint of these records, see ``coterie.records.store.Checkpoints.load``.

        Raises:
            DamagedError: There is none that is whole, or it holds no ``kind``.
        """
        for _ in range(LOOKS):
            rounds = self.checkpoints.rounds()  # before the records: a round is recorded before its checkpoint is stored
            try:
                found = self.checkpoints.load(self.fits(), fallback, rounds)
            except DamagedError:
                if self.checkpoints.rounds() == rounds:
                    raise
            else:
                if found is not None and not isinstance(found[1], kind):
                    what = kind.__name__.lower()
                    raise DamagedError(f"the checkpoint of {self.folder} holds no {what} of a run; it is damaged")
                return found
        raise BusyError(f"{self.folder} goes on too fast: its checkpoints are dropped while they are read")

    def go_on(self, kind: type[T], every: int) -> tuple[int, T] | None:
        """The newest checkpoint, with what was recorded after it cut off; None if a run was stopped before its first.

        Args:
            kind: What a checkpoint holds.
            every: Rounds from one checkpoint to the next.

        Raises:
            DamagedError: There are more records than a run leaves that was stopped before its first checkpoint.
        """
        found = self.stored(kind)
        if found is None and (made := len(self.lines())) > every:
            raise DamagedError(
                f"{self.folder} has {made} recorded rounds and no checkpoint to go on from: its state was removed or lost"
            )
        self.checkpoints.drop_after(found[0] if found else 0)
        self.rewind(found[0] if found else 0)
        return found

    def fits(self) -> Fits:
        """Whether a checkpoint is of these records. Raises :class:`DamagedError` if they are not sound."""
        known = {0: self._start()[0], **{entry.line["round"]: entry.checksum for entry in self._sound()}}
        checked = self._start()[1]

        def why_not(round: int, record: str | None) -> str | None:
            if not record:
                return "it does not say of which records it is" if checked else None
            return None if known.get(round) == record else f"it is of other records than those in {self._path}"

        return why_not

    def rewind(self, round: int) -> None:
        """Cut off what was recorded after ``round``. Raises ``DamagedError`` if the records do not reach it."""
        end = reached = 0
        for entry in self.entries():
            _refuse(entry)
            if entry.line["round"] > round:
                break
            end, reached = entry.end, entry.line["round"]
        if reached != round:
            raise DamagedError(f"{self._path} ends at round {reached}, but the checkpoint stands at round {round}")
        if self._path.exists() and self._path.stat().st_size != end:
            with open(descriptor(self._path, os.O_RDWR), "r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())

    def entries(self) -> Iterator[Entry]:
        """Every whole line, sound or not; of a last line that a killed process has left no line is made."""
        previous, checked = self._start()
        end = 0
        for number, (raw, last) in enumerate(self._raw(), start=1):
            end += len(raw) + 1
            name = f"line {number} of {self._path}"
            body, found = checksum.of_json(raw)
            previous_ = checksum.digest(previous.encode(), body)
            try:
                parsed = json.loads(raw)
                problem = None if parsed["round"] == number else f"{name} is of round {parsed['round']!r:.20}"
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                if last:  # torn: the length reached the disk before the words
                    return
                parsed, problem = {}, f"{name} is damaged ({error})"
            if problem is None and found is not None and found != previous_:
                problem = f"{name} is not what was written, or not at its place: its checksum does not fit"
            elif problem is None and found is None and checked:
                problem = f"{name} has lost its checksum, so it is not what was written"
            if problem is None and (why := flaw_of_line(parsed, whole=self.begun)):
                problem = f"{name} is damaged: {why}"
            if isinstance(parsed, dict):
                parsed.pop("checksum", None)
            checked, previous = checked or found is not None, found or previous_
            yield Entry(parsed if isinstance(parsed, dict) else {}, end, previous, problem)

    @property
    def _path(self) -> Path:
        return self.folder / ROUNDS

    def _raw(self) -> Iterator[tuple[bytes, bool]]:
        """Every whole line, and whether nothing comes after it. A file may be made to fill the memory: lines are read one by
        one, as long as each is used up."""
        if not within(self.folder, ROUNDS).exists():
            return
        with open_regular(self._path, follow=False, limit=available_memory() / 4) as file:
            line = file.readline(LONGEST)
            while line.endswith(b"\n"):
                after = file.readline(LONGEST)
                yield line[:-1], not after
                line = after
        if len(line) == LONGEST:
            raise DamagedError(f"{self._path} has a line of more than {LONGEST:,} bytes; it is damaged")

    def _sound(self) -> list[Entry]:
        # Looked at first: a run that goes on records a round before it stores its checkpoint.
        newest = max(self.checkpoints.rounds(), default=0)
        found = []
        for entry in self.entries():
            _refuse(entry)
            found.append(entry)
        if len(found) < newest:
            raise DamagedError(f"{self._path} ends at round {len(found)}, but there is a checkpoint of round {newest}")
        return found

    def _start(self) -> tuple[str, bool]:
        """(the checksum on which that of the first line depends, whether every line has to have one)."""
        if not self.begun:
            return checksum.digest(b""), False
        document = self.description()
        checked = document["schema"] >= CHECKED
        boundary = {key: value for key, value in document.get("boundary", {}).items() if key != "secret"}
        if checked:
            about = {**{key: value for key, value in document.items() if key not in EDITABLE}, "boundary": boundary}
        else:
            world = {key: document["world"].get(key) for key in ("clients", "data")}
            about = {**{key: document.get(key) for key in _OF_RUN}, "boundary": boundary, "world": world}
        return checksum.digest(json.dumps(about, sort_keys=True, default=str).encode()), checked

    def _newest(self) -> str:
        """The checksum of the last line; it is read from the end of the file where it can be."""
        path = within(self.folder, ROUNDS)
        if not path.exists() or not path.stat().st_size:
            return self._start()[0]
        with open(descriptor(path, os.O_RDONLY), "rb") as file:
            file.seek(-min(256, path.stat().st_size), os.SEEK_END)
            found = checksum.of_json(file.read())[1]
        return found or [entry.checksum for entry in self.entries()][-1]


def _refuse(entry: Entry) -> None:
    if entry.problem is not None:
        raise DamagedError(entry.problem)


def versions() -> Mapping[str, str]:
    """Of what the numbers may depend on."""
    return {
        "coterie": version("coterie"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def line(done: Round) -> Line:
    """A round as one JSON object.

    round, exchange: how many are completed. clients: id -> ``group`` (its place in ``groups``) and, where the round was
    tested, ``loss``, ``accuracy`` and the other metrics on its test data; ``adversary`` of those that are hostile. notes: why
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
    if done.scaled:
        plain["scaled"] = {str(client): factor for client, factor in sorted(done.scaled.items())}
    if done.claimed:
        plain["claimed"] = {str(client): count for client, count in sorted(done.claimed.items())}
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


def load_matrices(folder: Path, line: Line, note: Mapping[str, Any]) -> tuple[list[int], dict[str, np.ndarray]]:
    """The clients of the rows of a note's matrices, and these ``(n, n)`` by name.

    Raises:
        DamagedError: the file is missing, or not what was written.
        UserError: it is a link.
    """
    name = note["similarity"]
    if not _MATRICES.fullmatch(name):
        raise DamagedError(f"round {line['round']} of {folder} names a file of matrices {name!r:.80}, which is none of a run's")
    try:
        data = read_within(folder, name)
        checksum.check(data, folder / name, line.get("files", {}).get(name))
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["note"]
        clients = [int(client) for client in json.loads(about)["clients"]]
        found = safetensors.numpy.load(data)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise DamagedError(f"{folder / name} cannot be read; it is damaged or missing") from error
    if any(matrix.shape != (len(clients), len(clients)) or matrix.dtype.kind != "f" for matrix in found.values()):
        raise DamagedError(f"{folder / name} has a matrix that is not of its {len(clients)} clients")
    return clients, found


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
    """Strict JSON text, which a terminal may show: see :func:`finite` and ``coterie.printable.printable``."""
    return printable(json.dumps(finite(value), allow_nan=False, indent=indent, ensure_ascii=False), keep="\n")


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML text; keys that are None are left out."""
    import tomli_w

    return tomli_w.dumps({key: value for key, value in document.items() if value is not None})


LONGEST = 1 << 28
"""Bytes of a line of the records: that of a million clients has fewer."""

LOOKS = 20
"""So often the newest checkpoint of a run that goes on is looked for: it may be dropped while it is read."""

LARGEST_TOML = 1 << 26
"""Bytes of a TOML file: the ``run.toml`` of a hundred thousand clients has fewer."""


LARGEST_OWN = 1 << 20
"""Bytes of one that a user has written, which has no schema: small keys in many bytes take long to parse."""

_SCHEMA = re.compile(rb"^schema\s*=", re.MULTILINE)


def read_toml(path: Path) -> dict[str, Any]:
    """The document in a TOML file. Raises :class:`~coterie.settings.UserError` if it cannot be read."""
    return _parsed_toml(_bytes_of(path), path)


def read_any(path: Path) -> dict[str, Any]:
    """The document in a TOML file: as :func:`read_recorded` where it says that Coterie has written it, by its schema."""
    data = _bytes_of(path)
    document = _parsed_toml(data, path)
    return _checked(document, data, path) if "schema" in document else document


def read_recorded(path: Path) -> dict[str, Any]:
    """The document in a TOML file that Coterie has written.

    Raises:
        UserError: it cannot be read, or is of a newer Coterie.
        DamagedError: it is not what was written.
    """
    data = _bytes_of(path)
    return _checked(_parsed_toml(data, path), data, path)


def _checked(document: dict[str, Any], data: bytes, path: Path) -> dict[str, Any]:
    check_schema(document.get("schema"), path)
    edits = f"{', '.join(EDITABLE[:-1])} or {EDITABLE[-1]}"
    hint = f"; if you edited only its {edits}, coterie check {path.parent} --accept accepts it"
    checksum.check_toml(data, path, document["schema"] >= CHECKED, hint)
    lacking = [key for key in WRITTEN if key not in document]
    if lacking:
        raise DamagedError(f"{path} lacks {lacking[0]!r}; it is damaged")
    return document


def _bytes_of(path: Path) -> bytes:
    try:
        return read_regular(path, limit=LARGEST_TOML)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


def _parsed_toml(data: bytes, path: Path) -> dict[str, Any]:
    if len(data) > LARGEST_OWN and not _SCHEMA.search(data, 0, LARGEST_OWN):
        raise UserError(f"{path} has {len(data):,} bytes, more than the {LARGEST_OWN:,} that such a file may have")
    try:
        return toml(data.decode("utf-8-sig"))
    except ValueError as error:  # of TOML, or of UTF-8
        raise UserError(f"{path} is no TOML file that can be read: {error}") from error
