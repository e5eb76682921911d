"""The files of a run directory: description, records and checkpoints.

``run.toml`` describes the run. ``rounds.jsonl`` records its rounds, with the matrices of their
notes in ``similarity/``. ``state/`` holds its checkpoints.

A round is recorded before its checkpoint is stored, and both survive a killed process. So a run
continues from its newest checkpoint: later records are removed and made again, with the same
content except for the seconds.

The checksum of a line covers the line and the identity of the run: a checksum of what ``run.toml``
says about it. A line holds the checksums of its matrices, and a checkpoint holds the identity. So
damage, missing lines, and files of another run are noticed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch

from coterie.core import Client, Round
from coterie.files import available_memory, descriptor, open_regular, read_within, reason, within
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.round_line import line_of_round, matrices, matrix_file
from coterie.records.schema import check_description, check_nodes, decoded_line
from coterie.records.shown import Line, Shown, shown
from coterie.records.store import (
    CHECKPOINTS_KEPT,
    SCHEMA_VERSION,
    BusyError,
    Checkpoints,
    sync_folder,
    write_whole,
)
from coterie.records.text_files import EDITABLE_ENTRIES, read_recorded, to_json, to_toml
from coterie.settings import UserError

T = TypeVar("T")

RUN_FILE = "run.toml"
ROUNDS_FILE = "rounds.jsonl"
EXPERIMENT_FILE = "experiment.toml"
"""The recorded experiment of several runs, in the folder of their directories."""

NODES_FILE = "nodes.json"
"""File with the information that the server of a federation has about its nodes, besides the
position."""

CALIBRATION_FILE = "calibration.json"
"""File with the sums by which an export of a federation calibrates its models, see
``coterie.training.calibration_sums``."""

OTHER_TENSORS_FILE = "others.safetensors"
"""File with the tensors of a federation's net that have no place in a row, as the server has them.
"""

HIDDEN_SECRET = "hidden"
"""Word that replaces the secret of a boundary wherever a record is shown."""


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
        return (self.folder / RUN_FILE).is_file()

    def describe(self, description: Mapping[str, Any]) -> None:
        """Write ``run.toml``."""
        self._known_identity = None
        write_whole(
            self.folder / RUN_FILE,
            checksum.sealed_toml(to_toml({"schema": SCHEMA_VERSION, **description})),
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
            raise UserError(f"{self.folder} is not a run directory: it has no {RUN_FILE}")
        # The checksum of the file first, then the form of its entries.
        description_path = within(self.folder, RUN_FILE)
        description = read_recorded(description_path)
        try:
            check_description(description)
        except DamagedError as error:
            raise DamagedError(f"{description_path} is damaged: {error}") from error
        # The record has only a digest of the secret: readers see that there is one.
        if "secret" in description:
            description["boundary"] = {**description["boundary"], "secret": HIDDEN_SECRET}
        return description

    def identity(self) -> str:
        """A checksum of what ``run.toml`` says about the run, without the entries that may be edited.

        Raises:
            UserError: As :meth:`description`.
        """
        description = self.description()
        # What a user may edit is not part of the identity, so an edited run can continue.
        fixed_entries = dict(description)
        for entry_name in EDITABLE_ENTRIES:
            fixed_entries.pop(entry_name, None)
        return checksum.digest(json.dumps(fixed_entries, sort_keys=True, default=str).encode())

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
        recorded_lines = []
        for entry in self.entries():
            _refuse(entry)
            recorded_lines.append(entry.line)
        if len(recorded_lines) < newest_checkpoint:
            raise DamagedError(
                f"{self._path} ends at round {len(recorded_lines)}, "
                f"but there is a checkpoint of round {newest_checkpoint}"
            )
        return recorded_lines

    def shown(self) -> tuple[dict[str, Any], list[Line]]:
        """The content of ``run.toml`` and the recorded rounds as people read them, see :func:`coterie.records.shown.shown`.

        Raises:
            UserError: As :meth:`description`, :meth:`lines` and :meth:`naming`.
        """
        description = self.description()
        recorded_lines = self.lines()
        return shown(self.naming(description), description, recorded_lines)

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
        world_table = description["world"]
        # A world with a digest of its data is on this machine, so it is no federation.
        nodes_document = None if "data" in world_table else read_nodes(self.folder)
        client_names = None
        if nodes_document is not None:
            name_of_key = nodes_document["names"]
            client_names = dict(zip(map(int, name_of_key), name_of_key.values(), strict=True))
        return Shown.of(world_table, client_names)

    def keep(self, finished_round: Round, listed: Collection[Client] | None = None) -> Line:
        """Record a round. Its matrices are written first, so that every file that a line names exists.

        Args:
            finished_round: The completed round.
            listed: The clients that the line lists; None for all.

        Returns:
            The recorded line.
        """
        recorded_line = line_of_round(finished_round, listed)
        checksum_of_file = {}
        # The matrices first.
        for matrix_name, note in matrices(finished_round).items():
            matrix_path = within(self.folder, matrix_name)
            if not matrix_path.parent.exists():
                matrix_path.parent.mkdir()
                sync_folder(self.folder)
            matrix_bytes = matrix_file(note, finished_round.number)
            write_whole(matrix_path, matrix_bytes)
            checksum_of_file[matrix_name] = checksum.digest(matrix_bytes)
        if checksum_of_file:
            recorded_line["files"] = checksum_of_file
        self.append(recorded_line)
        return recorded_line

    def append(self, recorded_line: Line) -> None:
        """Append a round to the records; it is on the disk when this method returns."""
        # One write and one sync for each round: a killed process leaves at most a part of a line.
        is_new_file = not self._path.exists()
        # The checksum of a line covers the identity of the run: a line of another run does not pass.
        sealed_line = (
            checksum.sealed_json(to_json(recorded_line).encode(), self._own_identity()) + b"\n"
        )
        file_descriptor = descriptor(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with open(file_descriptor, "ab") as file:
            file.write(sealed_line)
            file.flush()
            os.fsync(file.fileno())
        if is_new_file:
            sync_folder(self.folder)

    def store(
        self,
        round_number: int,
        position: Any,
        num_kept: int = CHECKPOINTS_KEPT,
        best_round: int | None = None,
    ) -> None:
        """Store a checkpoint after the last recorded round.

        Args:
            round_number: The number of that round.
            position: The position of the run.
            num_kept: Newest checkpoints to keep.
            best_round: A round whose checkpoint stays, however old it is; None for none.
        """
        self.checkpoints.save(round_number, position, num_kept, self._own_identity(), best_round)

    def _own_identity(self) -> str:
        """The identity of the run that this object writes, read once: ``run.toml`` may be large."""
        if self._known_identity is None:
            self._known_identity = self.identity()
        return self._known_identity

    def stored(
        self, value_class: type[T], fallback: bool = True, round_number: int | None = None
    ) -> tuple[int, T] | None:
        """The newest checkpoint of these records, see ``Checkpoints.load``.

        Args:
            value_class: The class of the values in checkpoints.
            fallback: Whether to use the checkpoint before, if one is damaged.
            round_number: The round of the checkpoint, in place of the newest one.

        Returns:
            (round, value); None if there is no such checkpoint.

        Raises:
            DamagedError: No checkpoint is intact, or it holds a value of another class.
            BusyError: Checkpoints were removed while they were read, in every attempt.
        """
        # A process that runs removes old checkpoints: the list may be outdated when they are read.
        run_identity = self.identity()
        for _ in range(MAX_READ_ATTEMPTS):
            checkpoint_rounds = self.checkpoints.rounds()
            considered_rounds = checkpoint_rounds
            if round_number is not None:
                considered_rounds = [round_number] if round_number in checkpoint_rounds else []
            try:
                checkpoint = self.checkpoints.load(run_identity, fallback, considered_rounds)
            except DamagedError:
                if self.checkpoints.rounds() == checkpoint_rounds:
                    raise
                # A running process has removed the checkpoint.
                continue
            if checkpoint is not None and not isinstance(checkpoint[1], value_class):
                class_name = value_class.__name__.lower()
                raise DamagedError(
                    f"the checkpoint of {self.folder} holds no {class_name} of a run; it is damaged"
                )
            return checkpoint
        raise BusyError(
            f"{self.folder} changes too fast: its checkpoints are removed while they are read"
        )

    def go_on(self, value_class: type[T], checkpoint_every: int) -> tuple[int, T] | None:
        """Prepare to resume: load the newest checkpoint and remove the records after it.

        Args:
            value_class: The class of the values in checkpoints.
            checkpoint_every: Rounds from one checkpoint to the next.

        Returns:
            (round, value); None if the run was stopped before its first checkpoint.

        Raises:
            DamagedError: No checkpoint is intact, or there is none although there are more records
                than a run can have before its first checkpoint.
        """
        # Checked before anything is removed.
        recorded_rounds = len(self.lines())
        checkpoint = self.stored(value_class)
        if checkpoint is None and recorded_rounds > checkpoint_every:
            raise DamagedError(
                f"{self.folder} has {recorded_rounds} recorded rounds and no checkpoint "
                "to resume from: its state was removed or lost"
            )
        round_number = 0 if checkpoint is None else checkpoint[0]
        # Later checkpoints go first: a run that is killed here resumes from the same round again.
        self.checkpoints.drop_after(round_number)
        self.rewind(round_number)
        return checkpoint

    def rewind(self, round_number: int) -> None:
        """Remove the records after a round.

        Args:
            round_number: The round.

        Raises:
            DamagedError: The records end before this round, or are damaged.
        """
        # Find the end of the round's line, then cut the file there.
        end_position = 0
        last_round = 0
        for entry in self.entries():
            _refuse(entry)
            if entry.line["round"] > round_number:
                break
            end_position = entry.end
            last_round = entry.line["round"]
        if last_round != round_number:
            raise DamagedError(
                f"{self._path} ends at round {last_round}, but the checkpoint is of round {round_number}"
            )
        # An incomplete last line goes, too.
        if self._path.exists() and self._path.stat().st_size != end_position:
            with open(descriptor(self._path, os.O_RDWR), "r+b") as file:
                file.truncate(end_position)
                os.fsync(file.fileno())

    def entries(self) -> Iterator[Entry]:
        """Every complete line, intact or not; a last line that a killed process left incomplete is skipped."""
        if not within(self.folder, ROUNDS_FILE).exists():
            return
        run_identity = self.identity()
        end_position = 0
        # The place of a line in the file says of which round it must be.
        for line_number, (raw_line, is_last) in enumerate(self._raw_lines(), start=1):
            end_position += len(raw_line) + 1
            try:
                recorded_line = _checked_line(raw_line, run_identity, line_number)
            except DamagedError as error:
                # The length of a file may reach the disk before its text: the line is incomplete.
                if is_last and not _is_json(raw_line):
                    return
                yield Entry({}, end_position, f"line {line_number} of {self._path} {error}")
            else:
                yield Entry(recorded_line, end_position, None)

    @property
    def _path(self) -> Path:
        return self.folder / ROUNDS_FILE

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


def _checked_line(raw_line: bytes, run_identity: str, line_number: int) -> Line:
    """Decode a line of the records, and check it.

    Args:
        raw_line: The line.
        run_identity: The identity of the run.
        line_number: The number of the line, which is that of its round.

    Raises:
        DamagedError: The line is damaged or of another run; the message continues a sentence.
    """
    # The checksum first: what it does not cover is not decoded.
    covered_bytes, recorded_checksum = checksum.of_json(raw_line)
    if recorded_checksum is None and not _is_json(raw_line):
        raise DamagedError("is damaged: it is not JSON")
    if recorded_checksum is None:
        raise DamagedError("has lost its checksum: it was changed or damaged")
    if recorded_checksum != checksum.digest(run_identity.encode(), covered_bytes):
        raise DamagedError("was changed, damaged or moved: its checksum does not match")
    try:
        recorded_line = decoded_line(raw_line)
    except DamagedError as error:
        raise DamagedError(f"is damaged: {error}") from error
    # A line that was moved or repeated is intact, but at the place of another round.
    if recorded_line["round"] != line_number:
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
    nodes_path = within(folder, NODES_FILE)
    if not nodes_path.exists():
        return None
    nodes_document = _checked_json(folder, NODES_FILE)
    try:
        check_nodes(nodes_document)
    except DamagedError as error:
        raise DamagedError(f"{nodes_path} is damaged: {error}") from error
    return dict(nodes_document)


def read_calibration(folder: Path) -> dict[str, Any] | None:
    """Read the sums that calibrate the models of a federation.

    Args:
        folder: The run directory.

    Returns:
        The content of ``calibration.json``; None without a file.

    Raises:
        UserError: The file cannot be read, or is a link.
        DamagedError: The file has been changed or damaged.
    """
    path = within(folder, CALIBRATION_FILE)
    if not path.exists():
        return None
    document = _checked_json(folder, CALIBRATION_FILE)
    if not isinstance(document, dict):
        raise DamagedError(f"{path} is damaged")
    return document


def _checked_json(folder: Path, name: str) -> Any:
    """The content of a JSON file with a checksum, in a run directory.

    Raises:
        UserError: The file cannot be read, or is a link.
        DamagedError: The file has been changed or damaged.
    """
    path = within(folder, name)
    try:
        file_bytes = read_within(folder, name)
        checksum.check_json(file_bytes, path)
        return json.loads(file_bytes)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error})") from error


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


MAX_LINE_BYTES = 1 << 28
"""Most bytes of a line of the records; the line of a million clients has fewer."""

MAX_READ_ATTEMPTS = 20
"""Attempts to read the newest checkpoint of a run in progress, since it may be removed while it is
read."""
