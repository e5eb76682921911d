"""Integrity checks for run directories and exported models: :func:`check`.

A check finds damage and careless edits. It does not prove who wrote the files: a person who can
write a file can also write its checksum. For a proof, sign the digest, which covers the bytes of
all checked files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.files import read_within, reason, within
from coterie.notebook.tables import count
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.record import (
    NODES_FILE,
    OTHER_TENSORS_FILE,
    ROUNDS_FILE,
    RUN_FILE,
    Entry,
    Record,
    read_nodes,
)
from coterie.records.round_line import MATRICES_FOLDER, load_matrices
from coterie.records.shown import Shown, ends
from coterie.records.store import LOCK_FILE, PART_SUFFIX, Checkpoints, check_schema, write_whole
from coterie.records.text_files import EDITABLE_ENTRIES, read_recorded, read_toml
from coterie.runs.experiment import EXPERIMENT_FILE
from coterie.runs.export import MODELS_FILE, SHARED_FILE
from coterie.runs.folders import OwnMethodError, reopen
from coterie.runs.loading import read_document, read_model
from coterie.settings import UserError
from coterie.settings.calls import public

MAX_LOOKS = 3
"""Number of looks at a run in progress before a mismatch counts as damage: a process may be
changing the files."""

LOOK_PAUSE_SECONDS = 0.3
"""Seconds between two looks."""

WRITTEN_NAMES = {
    RUN_FILE,
    ROUNDS_FILE,
    MATRICES_FOLDER,
    "state",
    NODES_FILE,
    OTHER_TENSORS_FILE,
    EXPERIMENT_FILE,
    MODELS_FILE,
    LOCK_FILE,
    "failure.txt",
    "report.html",
    "track",
}
"""Names that commands write into a run directory."""

MAX_LISTED_DAMAGE = 100
"""Most damaged lines of one file that are listed. The rest is not read, since a hostile file could
fill the memory."""


@dataclass
class Checked:
    """The findings of a check, as sentences.

    Attributes:
        folder: The folder that was checked.
        intact: Files that are unchanged since they were written.
        damaged: Files that have been changed or damaged.
        unchecked: What cannot be checked: files that Coterie did not write, and what an interrupted
            run left.
        digest: Digest of the bytes of all checked files.
    """

    folder: str
    intact: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    digest: str = ""


@public
def check(folder: Path | str) -> Checked:
    """Read every file of a run directory, an experiment's folder or an export, and report what is damaged.

    Args:
        folder: The folder.

    Returns:
        The findings.

    Raises:
        UserError: ``folder`` is none of these.
    """
    folder = Path(folder)
    # What a running process changes between two reads looks like damage: look again.
    for attempt in range(1, MAX_LOOKS + 1):
        # Before and after the look: a process may begin or end meanwhile.
        goes_on = _goes_on(folder)
        checked = _look(folder)
        if (
            not (checked.damaged or checked.unchecked)
            or attempt == MAX_LOOKS
            or not (goes_on or _goes_on(folder))
        ):
            break
        time.sleep(LOOK_PAUSE_SECONDS)
    return checked


def _goes_on(folder: Path) -> bool:
    """Whether a process is writing in this folder."""
    return folder.is_dir() and any(
        os.path.lexists(place / LOCK_FILE) for place in (folder, *folder.iterdir())
    )


def _look(folder: Path) -> Checked:
    checked = _Checking(folder, Checked(str(folder)))
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    # The experiment and whether its runs are those that it describes.
    if os.path.lexists(folder / EXPERIMENT_FILE):
        with checked.step():
            checked.read(folder, EXPERIMENT_FILE)
            with suppress(OwnMethodError):
                reopen(folder)
    # A single run, the runs of an experiment, and exports of either.
    for place in (folder, *inside):
        has_run = os.path.lexists(place / RUN_FILE) or os.path.lexists(place / ROUNDS_FILE)
        if has_run or os.path.lexists(place / MODELS_FILE):
            with checked.step():
                if place != folder:
                    within(folder, place.name)
                checked.run(place) if has_run else checked.export(place)
    # A folder in which nothing was read is none that Coterie wrote.
    if not checked.files and not checked.findings.damaged:
        raise UserError(
            f"{folder} is not a run directory, and contains neither runs nor exported models"
        )
    checked.findings.digest = checked.digest()
    return checked.findings


@public
def accept(folder: Path | str) -> list[Path]:
    """Accept ``run.toml`` and ``experiment.toml`` as the user has edited them, and write new checksums for them.

    Args:
        folder: A run directory or an experiment's folder.

    Returns:
        The accepted files.

    Raises:
        UserError: There is no such file, or the records of a run do not belong to what its file
            describes now. In these cases no file is changed.
    """
    folder = Path(folder)
    inside = sorted(str(path.relative_to(folder)) for path in folder.glob(f"*/{RUN_FILE}"))
    files = [
        path
        for file_name in (EXPERIMENT_FILE, RUN_FILE, *inside)
        if (path := within(folder, file_name)).is_file()
    ]
    if not files:
        raise UserError(f"{folder} has no {RUN_FILE} and no {EXPERIMENT_FILE}")
    # The files as they are now, in case one of them cannot be accepted.
    before = {path: read_within(path.parent, path.name) for path in files}
    try:
        for path, edited in before.items():
            # The old checksum is cut off, and a new one covers the edited text.
            check_schema(read_toml(path).get("schema"), path)
            text = checksum.of_toml(edited)[0].decode()
            write_whole(path, checksum.sealed_toml(text if text.endswith("\n") else f"{text}\n"))
        for path in files:
            _check_accepted(path)
    except UserError as error:
        # All or nothing: every file gets its earlier content back.
        for edited_path, earlier_bytes in before.items():
            write_whole(edited_path, earlier_bytes)
        raise UserError(f"{path} cannot be accepted: {error}") from error
    return files


def _check_accepted(path: Path) -> None:
    """Raise :class:`~coterie.settings.UserError` if the records do not belong to what a file describes now."""
    read_recorded(path)
    try:
        if path.name == RUN_FILE:
            Record(path.parent).lines()
        with suppress(OwnMethodError):
            reopen(path.parent)
    except UserError as error:
        raise UserError(f"{error} (only {', '.join(EDITABLE_ENTRIES)} may be edited)") from error


class _Checking:
    """A check that continues after errors.

    Attributes:
        folder: The folder that is checked.
        findings: What was found so far.
        files: File that was read -> its checksum.
    """

    def __init__(self, folder: Path, findings: Checked) -> None:
        self.folder = folder
        self.findings = findings
        self.files: dict[Path, str] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """A part of the check: an error in its body is recorded as damage."""
        try:
            yield
        except UserError as error:
            self.findings.damaged.append(str(error))
        except OSError as error:
            self.findings.damaged.append(f"{error.filename}: {reason(error)}")

    def digest(self) -> str:
        """The digest of all files that were read."""
        checksum_lines = [
            f"{path.relative_to(self.folder)} {file_checksum}\n"
            for path, file_checksum in sorted(self.files.items())
        ]
        return checksum.digest("".join(checksum_lines).encode())

    def keep(self, path: Path) -> None:
        """Include a file in the digest."""
        self.files[path] = checksum.digest(read_within(path.parent, path.name))

    def read(self, folder: Path, name: str) -> None:
        """Check a recorded TOML file."""
        path = within(folder, name)
        read_recorded(path)
        self.keep(path)

    def run(self, folder: Path) -> None:
        """Check a run directory."""
        record = Record(folder)
        # Some checks make sense only while nothing of this run is damaged.
        damaged_before = len(self.findings.damaged)
        rounds: list[int] = []
        entries: list[Entry] = []
        with self.step():
            # Checkpoints first: a running process records a round before it stores its checkpoint.
            rounds = record.checkpoints.rounds()
        with self.step():
            self.read(folder, RUN_FILE)
            record.description()
            entries = self.records(record)
            with self.step():
                self.federation(record, bool(entries))
        # Then what the records name, and last what nothing names.
        matrices = [name for entry in entries for name in self.matrices(folder, entry)]
        with self.step():
            blobs = self.checkpoints(
                record, rounds, entries, len(self.findings.damaged) == damaged_before
            )
            planted_names = (
                self.planted(folder, matrices, blobs)
                if len(self.findings.damaged) == damaged_before
                else []
            )
            self.others(folder, WRITTEN_NAMES, planted_names)
        if len(self.findings.damaged) == damaged_before:
            kept_words = (
                f"checkpoints of rounds {', '.join(map(str, rounds))}"
                if rounds
                else "no checkpoint"
            )
            self.findings.intact.append(
                f"{folder}: {RUN_FILE}, {len(entries)} rounds, {kept_words}"
            )

    def records(self, record: Record) -> list[Entry]:
        """Check the records and return the lines that are intact."""
        entries: list[Entry] = []
        with self.step():
            rounds_path = within(record.folder, ROUNDS_FILE)
            damaged_lines = 0
            # The size before the file is read: a running process adds lines.
            file_size = rounds_path.stat().st_size if rounds_path.exists() else 0
            for entry in record.entries():
                entries.append(entry)
                if entry.problem is not None:
                    self.findings.damaged.append(entry.problem)
                    damaged_lines += 1
                if damaged_lines == MAX_LISTED_DAMAGE:
                    raise UserError(f"{rounds_path} has more damaged lines, which are not listed")
            if rounds_path.exists():
                self.keep(rounds_path)
            # Bytes after the last complete line are reported, and are no damage.
            if file_size > (entries[-1].end if entries else 0):
                self.rest(record, entries)
            if all(entry.problem is None for entry in entries):
                record.lines()
        return [entry for entry in entries if entry.problem is None]

    def rest(self, record: Record, entries: list[Entry]) -> None:
        """Report the bytes after the last complete line."""
        rounds_path = record.folder / ROUNDS_FILE
        description = record.description()
        # After the last round of a run nothing is read; before it, a line may be incomplete.
        is_last = entries and Shown.of(description["world"]).line(entries[-1].line)
        if is_last and ends(is_last, description["rounds"], description.get("target")):
            problem = "has data after the last round, which no command reads; they may be deleted"
        elif _goes_on(record.folder):
            problem = "has a last line that is being written"
        else:
            problem = "has an incomplete last line; resuming repeats that round"
        self.findings.unchecked.append(f"{rounds_path} {problem}")

    def matrices(self, folder: Path, entry: Entry) -> list[str]:
        """Check the matrices of a round and return their files."""
        notes = [note for note in entry.line["notes"] if note["similarity"] is not None]
        for note in notes:
            with self.step():
                load_matrices(folder, entry.line, note)
                self.keep(folder / note["similarity"])
        return [note["similarity"] for note in notes]

    def checkpoints(
        self, record: Record, rounds: list[int], entries: list[Entry], sound: bool
    ) -> list[str]:
        """Check the checkpoints of some rounds.

        Args:
            record: The files of the run.
            rounds: The rounds.
            entries: The intact lines of the records.
            sound: Whether nothing else of the run is damaged.

        Returns:
            The blobs that these checkpoints need.
        """
        # A damaged description has no identity to compare with.
        identity = record.identity() if sound else None
        blobs: list[str] = []
        newest_intact = None
        for round in reversed(rounds):
            checkpoint_path = record.checkpoints.path(round)
            try:
                blobs += record.checkpoints.check(round, identity)
                self.keep(checkpoint_path)
                newest_intact = newest_intact or round
            except (UserError, FileNotFoundError) as error:
                # If it is gone, a running process has removed it.
                if round in record.checkpoints.rounds():
                    intact_hint = (
                        f"; that of round {newest_intact} is intact, so {checkpoint_path.name} is not needed and may be deleted"
                        if newest_intact
                        else ""
                    )
                    self.findings.damaged.append(
                        f"{checkpoint_path} cannot be read: {error}{intact_hint}"
                    )
        if sound and entries:
            self.newest(record, len(entries))
        return blobs

    def newest(self, record: Record, recorded: int) -> None:
        """Check that there is a checkpoint for the end of the records."""
        rounds = record.checkpoints.rounds()
        if not rounds:
            problem = "has no checkpoint: it cannot be exported, and missing last rounds cannot be detected"
            self.findings.unchecked.append(f"{record.folder} {problem}")
        elif recorded - rounds[-1] > record.description().get("checkpoint_every", 1):
            problem = f"{record.folder} has lost its newest checkpoint; resuming repeats the rounds after {rounds[-1]}"
            self.findings.damaged.append(problem)

    def planted(self, folder: Path, matrices: Collection[str], blobs: Collection[str]) -> list[str]:
        """Files in a run's folders that no other file refers to, so that no command reads them."""
        # The names of all files to which the records and checkpoints refer.
        checkpoints = Checkpoints(folder / "state")
        expected_names = {
            *matrices,
            "state/blobs",
            *(f"state/blobs/{file_name}.safetensors" for file_name in blobs),
        }
        expected_names |= {
            f"state/{checkpoints.path(round).name}" for round in checkpoints.rounds()
        }
        inside = [
            inner_path
            for file_name in (MATRICES_FOLDER, "state", "state/blobs")
            for inner_path in _listed(within(folder, file_name))
        ]
        return [
            file_name
            for inner_path in inside
            if (file_name := str(inner_path.relative_to(folder)).removesuffix(PART_SUFFIX))
            not in expected_names
        ]

    def federation(self, record: Record, recorded: bool) -> None:
        """Check the files that only the server of a federation writes; ``recorded``: whether it has completed a round."""
        folder = record.folder
        world = record.description()["world"]
        # After its first round a federation must have the list of its nodes.
        if os.path.lexists(folder / NODES_FILE) or (recorded and "data" not in world):
            if read_nodes(folder) is None:
                raise DamagedError(f"{folder} has lost its {NODES_FILE}")
            self.keep(folder / NODES_FILE)
        net = world.get("net", {})
        if "others" in net:
            checksum.check(
                read_within(folder, OTHER_TENSORS_FILE),
                folder / OTHER_TENSORS_FILE,
                net.get("others_checksum"),
            )
            self.keep(folder / OTHER_TENSORS_FILE)

    def export(self, folder: Path) -> None:
        """Check a folder of exported models."""
        document = read_document(folder)
        self.keep(folder / MODELS_FILE)
        for file_name in document["files"]:
            with self.step():
                read_model(folder, file_name, document)
                self.keep(folder / file_name)
        models = len(set(document["files"]) - {SHARED_FILE})
        self.findings.intact.append(f"{folder}: {MODELS_FILE} and {count(models, 'model')}")
        self.others(folder, {MODELS_FILE, *document["files"]})

    def others(
        self, folder: Path, known_names: Collection[str], planted: Collection[str] = ()
    ) -> None:
        """Report the unknown files in a folder, and the files ``more`` inside its subfolders."""
        other_names = [
            file_name
            for path in _listed(folder)
            if (file_name := path.name.removesuffix(PART_SUFFIX)) not in known_names
        ]
        other_names = sorted(other_names) + sorted(planted)
        if other_names:
            extra = f"{folder} has other files: {', '.join(other_names[:8])}{' ...' if len(other_names) > 8 else ''}"
            next_round_hint = f" (some may be of the next round: {folder / LOCK_FILE} says that a process writes here)"
            self.findings.unchecked.append(
                extra + (next_round_hint if planted and _goes_on(folder) else "")
            )


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
