"""The files of a run directory: description, records and checkpoints.

``run.toml`` describes the run. ``rounds.jsonl`` records its rounds, with the matrices of their
notes in ``similarity/``. ``state/`` holds its checkpoints.

A round is recorded before its checkpoint is stored, and both survive a killed process. So a run
continues from its newest checkpoint: later records are removed and made again, with the same
content except for the seconds.

The checksum of a line covers the line and the identity of the run: a checksum of what ``run.toml``
says about it. A line holds the checksums of its matrices, and a checkpoint holds the identity. So
damage, missing lines, and files of another run are noticed.

Numbers that are not finite are ``null`` in all JSON that Coterie writes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

from coterie.core import Client, Note, Round
from coterie.files import (
    available_memory,
    descriptor,
    open_regular,
    read_regular,
    read_within,
    reason,
    within,
)
from coterie.printable import printable
from coterie.records import checksum
from coterie.records.codec import DamagedError, safetensors_of
from coterie.records.schema import check_description, check_nodes, decoded_line
from coterie.records.shown import ClientId, Shown, shown, shown_as
from coterie.records.shown import Line as Line
from coterie.records.store import (
    CHECKPOINTS_KEPT,
    SCHEMA,
    BusyError,
    Checkpoints,
    check_schema,
    sync_folder,
    write_whole,
)
from coterie.settings import UserError, toml

T = TypeVar("T")

RUN = "run.toml"
ROUNDS = "rounds.jsonl"
SIMILARITY = "similarity"

NODES = "nodes.json"
"""File with the information that the server of a federation has about its nodes, besides the
position."""

OTHER_ARRAYS = "others.safetensors"
"""File with the tensors of a federation's net that have no place in a row, as the server has them.
"""

REQUIRED_ENTRIES = (
    "methods",
    "scenario",
    "seeds",
    "rounds",
    "eval_every",
    "training",
    "boundary",
    "robust",
)
"""Entries that every ``run.toml`` and ``experiment.toml`` has. They are never taken from defaults.
"""

HIDDEN = "hidden"
"""Word that replaces the secret of a boundary wherever a record is shown."""

EDITABLE = (
    "rounds",
    "target",
    "eval_every",
    "checkpoint_every",
    "checkpoints_kept",
    "workers",
    "data",
)
"""Entries of a ``run.toml`` that may be edited: the end of the run, how often it is tested and
stored, and where it is made.

All other entries describe the run."""

_MATRIX_FILE = re.compile(r"similarity/[\w-]+\.safetensors", re.ASCII)


@dataclass(frozen=True)
class Entry:
    """A complete line of the records.

    Attributes:
        line: The recorded round; empty if the line is damaged.
        end: The position in the file where the line ends, in bytes.
        problem: The reason why the line is damaged, or None.
    """

    line: Line
    end: int
    problem: str | None


class Record:
    """The files of one run, in ``folder``."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "state")
        self._known_identity: str | None = None

    @property
    def begun(self) -> bool:
        """Whether the run has a ``run.toml``."""
        return (self.folder / RUN).is_file()

    def describe(self, document: Mapping[str, Any]) -> None:
        """Write ``run.toml``."""
        self._known_identity = None
        write_whole(
            self.folder / RUN, checksum.sealed_toml(to_toml({"schema": SCHEMA, **document}))
        )

    def description(self) -> dict[str, Any]:
        """Read ``run.toml``.

        Returns:
            The document, in which the word ``hidden`` replaces a boundary's secret.

        Raises:
            UserError: There is no ``run.toml``, it is of a newer Coterie, or it has been changed or
                damaged.
        """
        if not self.begun:
            raise UserError(f"{self.folder} is not a run directory: it has no {RUN}")
        # The checksum of the file first, then the form of its entries.
        description_path = within(self.folder, RUN)
        document = read_recorded(description_path)
        try:
            check_description(document)
        except DamagedError as error:
            raise DamagedError(f"{description_path} is damaged: {error}") from error
        # The record has only a digest of the secret: readers see that there is one.
        if "secret" in document:
            document["boundary"] = {**document["boundary"], "secret": HIDDEN}
        return document

    def identity(self) -> str:
        """A checksum of what ``run.toml`` says about the run, without :data:`EDITABLE` entries.

        Raises:
            UserError: As :meth:`description`.
        """
        description = self.description()
        # What a user may edit is not part of the identity, so an edited run can continue.
        fixed = {
            entry_name: value
            for entry_name, value in description.items()
            if entry_name not in EDITABLE
        }
        return checksum.digest(json.dumps(fixed, sort_keys=True, default=str).encode())

    def lines(self) -> list[Line]:
        """Read the recorded rounds.

        Returns:
            The rounds in order, without an incomplete last line that a killed process has left.

        Raises:
            DamagedError: The records have been changed or damaged, or end before the newest
                checkpoint.
        """
        # Checkpoints first: a running process records a round before it stores its checkpoint.
        newest_checkpoint = max(self.checkpoints.rounds(), default=0)
        lines = []
        for entry in self.entries():
            _refuse(entry)
            lines.append(entry.line)
        if len(lines) < newest_checkpoint:
            raise DamagedError(
                f"{self._path} ends at round {len(lines)}, "
                f"but there is a checkpoint of round {newest_checkpoint}"
            )
        return lines

    def shown(self) -> tuple[dict[str, Any], list[Line]]:
        """The content of ``run.toml`` and the recorded rounds as people read them, see :func:`coterie.records.shown.shown`.

        Raises:
            UserError: As :meth:`description`, :meth:`lines` and :meth:`naming`.
        """
        description = self.description()
        lines = self.lines()
        return shown(self.naming(description), description, lines)

    def naming(self, description: Mapping[str, Any]) -> Shown:
        """What is needed to show the records. The clients of a federation report their names later than it is described.

        Args:
            description: The content of ``run.toml``.

        Returns:
            The names in ``run.toml``; in a federation those in ``nodes.json``, and none if it has
            no such file.

        Raises:
            UserError: As :func:`read_nodes`.
        """
        world = description["world"]
        # A world with a digest of its data is on this machine, so it is no federation.
        nodes = None if "data" in world else read_nodes(self.folder)
        names = None
        if nodes is not None:
            names = {int(client): client_name for client, client_name in nodes["names"].items()}
        return Shown.of(world, names)

    def keep(self, round: Round) -> Line:
        """Record a round. Its matrices are written first, so that every file that a line names exists.

        Args:
            round: The completed round.

        Returns:
            The recorded line.
        """
        recorded_line = line(round)
        checksums = {}
        # The matrices first.
        for matrix_name, note in matrices(round).items():
            matrix_path = within(self.folder, matrix_name)
            if not matrix_path.parent.exists():
                matrix_path.parent.mkdir()
                sync_folder(self.folder)
            matrix_bytes = matrix_file(note, round.number)
            write_whole(matrix_path, matrix_bytes)
            checksums[matrix_name] = checksum.digest(matrix_bytes)
        if checksums:
            recorded_line["files"] = checksums
        self.append(recorded_line)
        return recorded_line

    def append(self, line: Line) -> None:
        """Append a round to the records; it is on the disk when this method returns."""
        # One write and one sync for each round: a killed process leaves at most a part of a line.
        is_new = not self._path.exists()
        # The checksum of a line covers the identity of the run: a line of another run does not pass.
        sealed_line = checksum.sealed_json(to_json(line).encode(), self._own_identity()) + b"\n"
        handle = descriptor(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(handle, "ab") as file:
            file.write(sealed_line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.folder)

    def store(self, round: int, position: Any, kept: int = CHECKPOINTS_KEPT) -> None:
        """Store a checkpoint after the last recorded round.

        Args:
            round: The number of that round.
            position: The position of the run.
            kept: Newest checkpoints to keep.
        """
        self.checkpoints.save(round, position, kept, self._own_identity())

    def _own_identity(self) -> str:
        """The identity of the run that this object writes, read once: ``run.toml`` may be large."""
        if self._known_identity is None:
            self._known_identity = self.identity()
        return self._known_identity

    def stored(self, kind: type[T], fallback: bool = True) -> tuple[int, T] | None:
        """The newest checkpoint of these records, see ``Checkpoints.load``.

        Args:
            kind: The class of the values in checkpoints.
            fallback: Whether to use the checkpoint before, if one is damaged.

        Returns:
            (round, value); None if there is no checkpoint.

        Raises:
            DamagedError: No checkpoint is intact, or it holds a value of another class.
            BusyError: Checkpoints were removed while they were read, in every attempt.
        """
        # A process that runs removes old checkpoints: the list may be outdated when they are read.
        identity = self.identity()
        for _ in range(MAX_READ_ATTEMPTS):
            rounds = self.checkpoints.rounds()
            try:
                checkpoint = self.checkpoints.load(identity, fallback, rounds)
            except DamagedError:
                if self.checkpoints.rounds() == rounds:
                    raise
                # A running process has removed the checkpoint.
                continue
            if checkpoint is not None and not isinstance(checkpoint[1], kind):
                kind_name = kind.__name__.lower()
                raise DamagedError(
                    f"the checkpoint of {self.folder} holds no {kind_name} of a run; it is damaged"
                )
            return checkpoint
        raise BusyError(
            f"{self.folder} changes too fast: its checkpoints are removed while they are read"
        )

    def go_on(self, kind: type[T], every: int) -> tuple[int, T] | None:
        """Prepare to resume: load the newest checkpoint and remove the records after it.

        Args:
            kind: The class of the values in checkpoints.
            every: Rounds from one checkpoint to the next.

        Returns:
            (round, value); None if the run was stopped before its first checkpoint.

        Raises:
            DamagedError: No checkpoint is intact, or there is none although there are more records
                than a run can have before its first checkpoint.
        """
        # Checked before anything is removed.
        recorded_rounds = len(self.lines())
        checkpoint = self.stored(kind)
        if checkpoint is None and recorded_rounds > every:
            raise DamagedError(
                f"{self.folder} has {recorded_rounds} recorded rounds and no checkpoint "
                "to resume from: its state was removed or lost"
            )
        round = 0 if checkpoint is None else checkpoint[0]
        # Later checkpoints go first: a run that is killed here resumes from the same round again.
        self.checkpoints.drop_after(round)
        self.rewind(round)
        return checkpoint

    def rewind(self, round: int) -> None:
        """Remove the records after a round.

        Args:
            round: The round.

        Raises:
            DamagedError: The records end before this round, or are damaged.
        """
        # Find the end of the round's line, then cut the file there.
        end_position = 0
        last_round = 0
        for entry in self.entries():
            _refuse(entry)
            if entry.line["round"] > round:
                break
            end_position = entry.end
            last_round = entry.line["round"]
        if last_round != round:
            raise DamagedError(
                f"{self._path} ends at round {last_round}, but the checkpoint is of round {round}"
            )
        # An incomplete last line goes, too.
        if self._path.exists() and self._path.stat().st_size != end_position:
            with open(descriptor(self._path, os.O_RDWR), "r+b") as file:
                file.truncate(end_position)
                os.fsync(file.fileno())

    def entries(self) -> Iterator[Entry]:
        """Every complete line, intact or not; a last line that a killed process left incomplete is skipped."""
        if not within(self.folder, ROUNDS).exists():
            return
        identity = self.identity()
        end_position = 0
        # The place of a line in the file says of which round it must be.
        for number, (raw_line, is_last) in enumerate(self._raw_lines(), start=1):
            end_position += len(raw_line) + 1
            try:
                recorded_line = _checked_line(raw_line, identity, number)
            except DamagedError as error:
                # The length of a file may reach the disk before its text: the line is incomplete.
                if is_last and not _is_json(raw_line):
                    return
                yield Entry({}, end_position, f"line {number} of {self._path} {error}")
            else:
                yield Entry(recorded_line, end_position, None)

    @property
    def _path(self) -> Path:
        return self.folder / ROUNDS

    def _raw_lines(self) -> Iterator[tuple[bytes, bool]]:
        """Every complete line, and whether it is the last; read one by one, since a hostile file could fill the memory."""
        with open_regular(self._path, follow=False, limit=available_memory() / 4) as file:
            raw_line = file.readline(MAX_LINE_BYTES)
            # A line without an end is what a killed process left; it is not a line yet.
            while raw_line.endswith(b"\n"):
                next_raw_line = file.readline(MAX_LINE_BYTES)
                yield raw_line[:-1], not next_raw_line
                raw_line = next_raw_line
        # The reading of a longer line stopped in its middle.
        if len(raw_line) == MAX_LINE_BYTES:
            raise DamagedError(
                f"{self._path} has a line of more than {MAX_LINE_BYTES:,} bytes; it is damaged"
            )


def _checked_line(raw_line: bytes, identity: str, number: int) -> Line:
    """Decode a line of the records, and check it.

    Args:
        raw_line: The line.
        identity: The identity of the run.
        number: The number of the line, which is that of its round.

    Raises:
        DamagedError: The line is damaged or of another run; the message continues a sentence.
    """
    # The checksum first: what it does not cover is not decoded.
    covered_bytes, recorded_checksum = checksum.of_json(raw_line)
    if recorded_checksum is None and not _is_json(raw_line):
        raise DamagedError("is damaged: it is not JSON")
    if recorded_checksum is None:
        raise DamagedError("has lost its checksum: it was changed or damaged")
    if recorded_checksum != checksum.digest(identity.encode(), covered_bytes):
        raise DamagedError("was changed, damaged or moved: its checksum does not match")
    try:
        recorded_line = decoded_line(raw_line)
    except DamagedError as error:
        raise DamagedError(f"is damaged: {error}") from error
    # A line that was moved or repeated is intact, but at the place of another round.
    if recorded_line["round"] != number:
        raise DamagedError(f"is of round {recorded_line['round']}")
    return recorded_line


def _is_json(raw_line: bytes) -> bool:
    """Whether a line is JSON, without decoding it."""
    try:
        msgspec.json.decode(raw_line, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(entry: Entry) -> None:
    """Raise :class:`DamagedError` for a damaged line."""
    if entry.problem is not None:
        raise DamagedError(entry.problem)


def read_nodes(folder: Path) -> dict[str, Any] | None:
    """Read what the server of a federation knows about its nodes.

    Args:
        folder: The run directory.

    Returns:
        The content of ``nodes.json``; None without a file.

    Raises:
        UserError: The file cannot be read, or is a link.
        DamagedError: The file has been changed or damaged.
    """
    # A run on one machine has no such file.
    nodes_path = within(folder, NODES)
    if not nodes_path.exists():
        return None
    try:
        nodes_bytes = read_within(folder, NODES)
        checksum.check_json(nodes_bytes, nodes_path)
        document = json.loads(nodes_bytes)
    except OSError as error:
        raise UserError(f"{nodes_path} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{nodes_path} is damaged ({error})") from error
    try:
        check_nodes(document)
    except DamagedError as error:
        raise DamagedError(f"{nodes_path} is damaged: {error}") from error
    return dict(document)


def versions() -> Mapping[str, str]:
    """The versions of all software on which the results may depend."""
    # Imported here: commands that read runs do not need it, and it takes long.
    from importlib.metadata import version

    return {
        "coterie": version("coterie"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def line(round: Round) -> Line:
    """A round as one JSON object.

    ``round`` and ``exchange`` are the numbers of completed rounds and exchanges. ``clients`` maps
    each id to ``group`` (its place in ``groups``) and, in a tested round, ``loss``, ``accuracy``
    and the other metrics on its test data; hostile clients have ``adversary``. ``sums`` maps ids to
    the ``ErrorSums`` of the metrics that have some. ``notes`` hold the reasons why the method did
    or did not act; ``similarity`` is the file of a note's matrices, or None.

    Args:
        round: The completed round.

    Returns:
        The object.
    """
    # What every line has; numbers that are not finite become None at the end.
    groups = [list(group) for group in round.assignment.groups]
    clients = _client_entries(round)
    file_of_note = {id(note): entry_name for entry_name, note in matrices(round).items()}
    recorded_line: Line = {
        "round": round.number,
        "exchange": round.position.exchange,
        "exchanges": round.exchanges,
        "tested": round.scores is not None,
        "groups": groups,
        "clients": clients,
        "notes": [note_entry(note, file_of_note.get(id(note))) for note in round.notes],
        "asked": round.asked,
        "answered": round.answered,
        "refused": {str(client): reason for client, reason in round.refused.items()},
        "silent": list(round.silent),
        "bytes_up": round.bytes_up,
        "bytes_down": round.bytes_down,
        "evaluations": round.evaluations,
        "seconds": dict(round.seconds),
    }
    # The other entries are in the lines to which they apply.
    if round.sums:
        recorded_line["sums"] = {
            str(client): dict(sums)
            for client, sums in sorted(round.sums.items())
            if str(client) in clients
        }
    for entry_name in ("scaled", "claimed", "counted", "released"):
        values: Mapping[Client, float] = getattr(round, entry_name)
        if values:
            recorded_line[entry_name] = {
                str(client): value for client, value in sorted(values.items())
            }
    # JSON has neither NaN nor infinity.
    result = finite(recorded_line)
    assert isinstance(result, dict)
    return result


def _client_entries(round: Round) -> dict[str, dict[str, Any]]:
    """Client's id as a key -> its group, its scores in a tested round, and whether it is hostile."""
    # Each client with the number of its group, in the order of their ids.
    group_of_client: dict[Client, int] = {}
    for number, group in enumerate(round.assignment.groups):
        group_of_client |= dict.fromkeys(group, number)
    entries: dict[str, dict[str, Any]] = {}
    for client, number in sorted(group_of_client.items()):
        scores = {} if round.scores is None else round.scores[client]
        entries[str(client)] = {"group": number, **scores}
    for client in round.adversaries:
        # It may not have joined yet.
        if str(client) in entries:
            entries[str(client)]["adversary"] = True
    return entries


def note_entry(note: Note, file: str | None) -> dict[str, Any]:
    """The entry of a note in a round's line.

    Args:
        note: The note.
        file: The file of its matrices, if it has any.

    Returns:
        The entry, in which numbers may still be NaN or infinite.
    """
    return {
        "kind": note.kind,
        "effect": note.effect,
        "clients": list(note.clients),
        "parts": [list(group) for group in note.parts],
        "text": note.text,
        "criteria": [{**asdict(criterion), "held": criterion.held} for criterion in note.criteria],
        "otherwise": note.otherwise,
        "numbers": dict(note.numbers),
        "labels": dict(note.labels),
        "values": {
            value_name: dict(sorted(values.items())) for value_name, values in note.values.items()
        },
        "similarity": file,
    }


def matrices(round: Round) -> dict[str, Note]:
    """File in the run directory -> the note whose matrices it holds."""
    # The first note with matrices has the plain name, further ones a number.
    notes = [note for note in round.notes if note.similarity]
    note_of_file = {}
    for number, note in enumerate(notes, start=1):
        suffix = f"-{number}" if number > 1 else ""
        note_of_file[f"{SIMILARITY}/round-{round.number}{suffix}.safetensors"] = note
    return note_of_file


def matrix_file(note: Note, round: int) -> bytes:
    """The file of a note's matrices.

    The metadata has one key, ``note``, which names the clients of the rows. There is only one key
    because safetensors writes several in no fixed order, and a file that is made again must be the
    same.

    Args:
        note: The note, with matrices ``(n, n)`` by name.
        round: The number of the round.

    Returns:
        The matrices as float32 in safetensors.
    """
    about = {"round": round, "kind": note.kind, "clients": list(note.order)}
    tensors = {
        matrix_name: matrix.detach().to("cpu", torch.float32).contiguous()
        for matrix_name, matrix in note.similarity.items()
    }
    return safetensors_of(tensors, {"note": to_json(about)})


def load_matrices(
    folder: Path, line: Line, note: Mapping[str, Any]
) -> tuple[list[ClientId], dict[str, np.ndarray]]:
    """Read the matrices of a note.

    Args:
        folder: The run directory.
        line: The record of the round.
        note: The note in this record.

    Returns:
        The clients of the rows, and the matrices ``(n, n)`` by name.

    Raises:
        DamagedError: The file is missing, or has been changed or damaged.
        UserError: The file is a link.
    """
    file_name = note["similarity"]
    if not _MATRIX_FILE.fullmatch(file_name):
        raise DamagedError(
            f"round {line['round']} of {folder} names a file of matrices {file_name!r:.80}, which is not part of a run"
        )
    try:
        file_bytes = read_within(folder, file_name)
        checksum.check(file_bytes, folder / file_name, line.get("files", {}).get(file_name))
        # A safetensors file begins with the length of its header, 8 bytes, and the header as JSON.
        header = json.loads(file_bytes[8 : 8 + int.from_bytes(file_bytes[:8], "little")])
        about = json.loads(header["__metadata__"]["note"])
        clients = [int(client) for client in about["clients"]]
        matrices_by_name = safetensors.numpy.load(file_bytes)
    except (
        OSError,
        SafetensorError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise DamagedError(
            f"{folder / file_name} cannot be read; it is damaged or missing"
        ) from error
    for matrix in matrices_by_name.values():
        if matrix.shape != (len(clients), len(clients)) or matrix.dtype.kind != "f":
            raise DamagedError(
                f"{folder / file_name} has a matrix that does not match its {len(clients)} clients"
            )
    # With the names by which the line shows clients.
    naming = shown_as(line)
    return [naming.client(client) for client in clients], matrices_by_name


def finite(value: Any) -> Any:
    """Convert a value for JSON.

    Args:
        value: The value.

    Returns:
        The value, in which numbers that are not finite are None, NumPy's numbers are Python's, and
        tuples are lists.

    Example:
        >>> finite({"loss": float("nan"), "groups": ((0, 1),)})
        {'loss': None, 'groups': [[0, 1]]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text that is safe to show in a terminal, see :func:`finite` and ``coterie.printable.printable``."""
    return printable(
        json.dumps(finite(value), allow_nan=False, indent=indent, ensure_ascii=False), keep="\n"
    )


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML text; keys that are None are left out."""
    import tomli_w

    return tomli_w.dumps({key: value for key, value in document.items() if value is not None})


MAX_LINE_BYTES = 1 << 28
"""Most bytes of a line of the records; the line of a million clients has fewer."""

MAX_READ_ATTEMPTS = 20
"""Attempts to read the newest checkpoint of a run in progress, since it may be removed while it is
read."""

MAX_TOML_BYTES = 1 << 26
"""Most bytes of a TOML file; the ``run.toml`` of a hundred thousand clients has fewer."""

MAX_USER_TOML_BYTES = 1 << 20
"""Most bytes of a TOML file without a schema, which a user has written: many short keys take long
to parse."""

_SCHEMA = re.compile(rb"^schema\s*=", re.MULTILINE)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.

    Returns:
        The document.

    Raises:
        UserError: The file cannot be read.
    """
    return _parsed_toml(_bytes_of(path), path)


def read_any(path: Path) -> dict[str, Any]:
    """The document in a TOML file; if it has a schema, so that Coterie wrote it, it is read by :func:`read_recorded`."""
    file_bytes = _bytes_of(path)
    document = _parsed_toml(file_bytes, path)
    return _checked(document, file_bytes, path) if "schema" in document else document


def read_recorded(path: Path) -> dict[str, Any]:
    """Read a TOML file that Coterie has written.

    Args:
        path: The file.

    Returns:
        The document.

    Raises:
        UserError: The file cannot be read, or is of a newer Coterie.
        DamagedError: The file has been changed or damaged.
    """
    file_bytes = _bytes_of(path)
    return _checked(_parsed_toml(file_bytes, path), file_bytes, path)


def _checked(document: dict[str, Any], file_bytes: bytes, path: Path) -> dict[str, Any]:
    """The document of a TOML file that Coterie has written, after checks."""
    check_schema(document.get("schema"), path)
    edits = f"{', '.join(EDITABLE[:-1])} or {EDITABLE[-1]}"
    hint = f"; if you edited only its {edits}, accept it with coterie check {path.parent} --accept"
    checksum.check_toml(file_bytes, path, hint)
    for entry_name in REQUIRED_ENTRIES:
        if entry_name not in document:
            raise DamagedError(f"{path} lacks {entry_name!r}; it is damaged")
    # The secret would be in the hands of whoever gets the file.
    boundary = document["boundary"]
    if isinstance(boundary, dict) and boundary.get("secret", "none") != "none":
        raise DamagedError(
            f"{path} has the boundary's secret in plain text, which Coterie never writes; delete it"
        )
    return document


def _bytes_of(path: Path) -> bytes:
    try:
        return read_regular(path, limit=MAX_TOML_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


def _parsed_toml(file_bytes: bytes, path: Path) -> dict[str, Any]:
    if len(file_bytes) > MAX_USER_TOML_BYTES and not _SCHEMA.search(
        file_bytes, 0, MAX_USER_TOML_BYTES
    ):
        raise UserError(
            f"{path} has {len(file_bytes):,} bytes, more than the limit of {MAX_USER_TOML_BYTES:,}"
        )
    try:
        return toml(file_bytes.decode("utf-8-sig"))
    # From TOML or from UTF-8.
    except ValueError as error:
        raise UserError(f"{path} is not a readable TOML file: {error}") from error
