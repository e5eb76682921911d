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
from coterie.records.ending import Ending
from coterie.records.record import (
    CALIBRATION_FILE,
    EXPERIMENT_FILE,
    NODES_FILE,
    OTHER_TENSORS_FILE,
    ROUNDS_FILE,
    RUN_FILE,
    Entry,
    Record,
    read_calibration,
    read_nodes,
)
from coterie.records.round_line import MATRICES_FOLDER, load_matrices
from coterie.records.shown import Shown
from coterie.records.store import LOCK_FILE, PART_SUFFIX, Checkpoints, check_schema, write_whole
from coterie.records.text_files import EDITABLE_ENTRIES, read_recorded, read_toml
from coterie.runs.experiment import OwnMethodError
from coterie.runs.export import MODELS_FILE, PLACEMENT_FILE, SHARED_FILE
from coterie.runs.folders import reopen
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
    CALIBRATION_FILE,
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
        findings = _look(folder)
        if (
            not (findings.damaged or findings.unchecked)
            or attempt == MAX_LOOKS
            or not (goes_on or _goes_on(folder))
        ):
            break
        time.sleep(LOOK_PAUSE_SECONDS)
    return findings


def _goes_on(folder: Path) -> bool:
    """Whether a process is writing in this folder."""
    if not folder.is_dir():
        return False
    # The lock is in the run directory, which may be a subfolder of an experiment's folder.
    return any(os.path.lexists(path / LOCK_FILE) for path in (folder, *folder.iterdir()))


def _look(folder: Path) -> Checked:
    checking = _Checking(folder, Checked(str(folder)))
    subfolders = sorted(filter(Path.is_dir, _listed(folder)))
    # The experiment and whether its runs are those that it describes.
    if os.path.lexists(folder / EXPERIMENT_FILE):
        with checking.step():
            checking.read_toml_file(folder, EXPERIMENT_FILE)
            with suppress(OwnMethodError):
                reopen(folder)
    # A single run, the runs of an experiment, and exports of either.
    for checked_folder in (folder, *subfolders):
        has_run = os.path.lexists(checked_folder / RUN_FILE) or os.path.lexists(
            checked_folder / ROUNDS_FILE
        )
        if has_run or os.path.lexists(checked_folder / MODELS_FILE):
            with checking.step():
                if checked_folder != folder:
                    within(folder, checked_folder.name)
                checking.check_run(checked_folder) if has_run else checking.check_export(
                    checked_folder
                )
    # A folder in which nothing was read is none that Coterie wrote.
    if not checking.files and not checking.findings.damaged:
        raise UserError(
            f"{folder} is not a run directory, and contains neither runs nor exported models"
        )
    checking.findings.digest = checking.digest()
    return checking.findings


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
    inner_names = sorted(str(path.relative_to(folder)) for path in folder.glob(f"*/{RUN_FILE}"))
    file_paths = []
    for file_name in (EXPERIMENT_FILE, RUN_FILE, *inner_names):
        # A link may lead out of the folder, to a file that nobody means to change.
        file_path = within(folder, file_name)
        if file_path.is_file():
            file_paths.append(file_path)
    if not file_paths:
        raise UserError(f"{folder} has no {RUN_FILE} and no {EXPERIMENT_FILE}")
    # The files as they are now, in case one of them cannot be accepted.
    edited_files = {path: read_within(path.parent, path.name) for path in file_paths}
    try:
        for file_path, edited_bytes in edited_files.items():
            # The old checksum is cut off, and a new one covers the edited text.
            check_schema(read_toml(file_path).get("schema"), file_path)
            edited_text = checksum.of_toml(edited_bytes)[0].decode()
            write_whole(
                file_path,
                checksum.sealed_toml(
                    edited_text if edited_text.endswith("\n") else f"{edited_text}\n"
                ),
            )
        for file_path in file_paths:
            _check_accepted(file_path)
    except UserError as error:
        # All or nothing: every file gets its earlier content back.
        for edited_path, earlier_bytes in edited_files.items():
            write_whole(edited_path, earlier_bytes)
        raise UserError(f"{file_path} cannot be accepted: {error}") from error
    return file_paths


def _check_accepted(file_path: Path) -> None:
    """Raise :class:`~coterie.settings.UserError` if the records do not belong to what a file describes now."""
    read_recorded(file_path)
    try:
        if file_path.name == RUN_FILE:
            Record(file_path.parent).lines()
        with suppress(OwnMethodError):
            reopen(file_path.parent)
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
        checksum_lines = ""
        for file_path, file_checksum in sorted(self.files.items()):
            checksum_lines += f"{file_path.relative_to(self.folder)} {file_checksum}\n"
        return checksum.digest(checksum_lines.encode())

    def include_in_digest(self, file_path: Path) -> None:
        """Include a file in the digest."""
        self.files[file_path] = checksum.digest(read_within(file_path.parent, file_path.name))

    def read_toml_file(self, folder: Path, file_name: str) -> None:
        """Check a recorded TOML file."""
        file_path = within(folder, file_name)
        read_recorded(file_path)
        self.include_in_digest(file_path)

    def check_run(self, folder: Path) -> None:
        """Check a run directory."""
        record = Record(folder)
        # Some checks make sense only while nothing of this run is damaged.
        damaged_before = len(self.findings.damaged)
        checkpoint_rounds: list[int] = []
        intact_entries: list[Entry] = []
        with self.step():
            # Checkpoints first: a running process records a round before it stores its checkpoint.
            checkpoint_rounds = record.checkpoints.rounds()
        with self.step():
            self.read_toml_file(folder, RUN_FILE)
            record.description()
            intact_entries = self.check_lines(record)
            with self.step():
                self.check_federation(record, bool(intact_entries))
        # Then what the records name, and last what nothing names.
        matrix_files: list[str] = []
        for line_entry in intact_entries:
            matrix_files += self.check_matrices(folder, line_entry)
        with self.step():
            blob_names = self.check_checkpoints(
                record,
                checkpoint_rounds,
                intact_entries,
                len(self.findings.damaged) == damaged_before,
            )
            unreferenced_files = (
                self.unreferenced_files(folder, matrix_files, blob_names)
                if len(self.findings.damaged) == damaged_before
                else []
            )
            self.report_unknown_files(folder, WRITTEN_NAMES, unreferenced_files)
        if len(self.findings.damaged) == damaged_before:
            checkpoint_words = (
                f"checkpoints of rounds {', '.join(map(str, checkpoint_rounds))}"
                if checkpoint_rounds
                else "no checkpoint"
            )
            self.findings.intact.append(
                f"{folder}: {RUN_FILE}, {len(intact_entries)} rounds, {checkpoint_words}"
            )

    def check_lines(self, record: Record) -> list[Entry]:
        """Check the records and return the lines that are intact."""
        line_entries: list[Entry] = []
        with self.step():
            rounds_path = within(record.folder, ROUNDS_FILE)
            damaged_lines = 0
            # The size before the file is read: a running process adds lines.
            file_size = rounds_path.stat().st_size if rounds_path.exists() else 0
            for entry in record.entries():
                line_entries.append(entry)
                if entry.problem is not None:
                    self.findings.damaged.append(entry.problem)
                    damaged_lines += 1
                if damaged_lines == MAX_LISTED_DAMAGE:
                    raise UserError(f"{rounds_path} has more damaged lines, which are not listed")
            if rounds_path.exists():
                self.include_in_digest(rounds_path)
            # Bytes after the last complete line are reported, and are no damage.
            if file_size > (line_entries[-1].end if line_entries else 0):
                self.report_unread_bytes(record, line_entries)
            if all(entry.problem is None for entry in line_entries):
                record.lines()
        return [entry for entry in line_entries if entry.problem is None]

    def report_unread_bytes(self, record: Record, line_entries: list[Entry]) -> None:
        """Report the bytes after the last complete line."""
        rounds_path = record.folder / ROUNDS_FILE
        description = record.description()
        # After the last round of a run nothing is read; before it, a line may be incomplete.
        naming = Shown.of(description["world"])
        intact_lines = [naming.line(entry.line) for entry in line_entries if entry.problem is None]
        if Ending.of(description, intact_lines).ended:
            problem = "has data after the last round, which no command reads; they may be deleted"
        elif _goes_on(record.folder):
            problem = "has a last line that is being written"
        else:
            problem = "has an incomplete last line; resuming repeats that round"
        self.findings.unchecked.append(f"{rounds_path} {problem}")

    def check_matrices(self, folder: Path, line_entry: Entry) -> list[str]:
        """Check the matrices of a round and return their files."""
        matrix_files = []
        for note in line_entry.line["notes"]:
            if note["similarity"] is None:
                continue
            # A damaged file is reported, and still belongs to the run.
            matrix_files.append(note["similarity"])
            with self.step():
                load_matrices(folder, line_entry.line, note)
                self.include_in_digest(folder / note["similarity"])
        return matrix_files

    def check_checkpoints(
        self,
        record: Record,
        checkpoint_rounds: list[int],
        intact_entries: list[Entry],
        is_sound: bool,
    ) -> list[str]:
        """Check the checkpoints of some rounds.

        Args:
            record: The files of the run.
            checkpoint_rounds: The rounds.
            intact_entries: The intact lines of the records.
            is_sound: Whether nothing else of the run is damaged.

        Returns:
            The blobs that these checkpoints need.
        """
        # A damaged description has no identity to compare with.
        run_identity = record.identity() if is_sound else None
        blob_names: list[str] = []
        newest_intact = None
        for checkpoint_round in reversed(checkpoint_rounds):
            checkpoint_path = record.checkpoints.path(checkpoint_round)
            try:
                blob_names += record.checkpoints.check(checkpoint_round, run_identity)
                self.include_in_digest(checkpoint_path)
                newest_intact = newest_intact or checkpoint_round
            except (UserError, FileNotFoundError) as error:
                # If it is gone, a running process has removed it.
                if checkpoint_round in record.checkpoints.rounds():
                    intact_hint = ""
                    if newest_intact:
                        intact_hint = (
                            f"; that of round {newest_intact} is intact, so "
                            f"{checkpoint_path.name} is not needed and may be deleted"
                        )
                    self.findings.damaged.append(
                        f"{checkpoint_path} cannot be read: {error}{intact_hint}"
                    )
        if is_sound and intact_entries:
            self.check_newest_checkpoint(record, len(intact_entries))
        return blob_names

    def check_newest_checkpoint(self, record: Record, num_recorded: int) -> None:
        """Check that there is a checkpoint for the end of the records."""
        checkpoint_rounds = record.checkpoints.rounds()
        if not checkpoint_rounds:
            problem = "has no checkpoint: it cannot be exported, and missing last rounds cannot be detected"
            self.findings.unchecked.append(f"{record.folder} {problem}")
        elif num_recorded - checkpoint_rounds[-1] > record.description().get("checkpoint_every", 1):
            # There are more rounds after the last checkpoint than a killed process leaves.
            self.findings.damaged.append(
                f"{record.folder} has lost its newest checkpoint; "
                f"resuming repeats the rounds after {checkpoint_rounds[-1]}"
            )

    def unreferenced_files(
        self, folder: Path, matrix_files: Collection[str], blob_names: Collection[str]
    ) -> list[str]:
        """Files in a run's folders that no other file refers to, so that no command reads them."""
        # The names of all files to which the records and checkpoints refer.
        checkpoints = Checkpoints(folder / "state")
        expected_names = {*matrix_files, "state/blobs"}
        for blob_name in blob_names:
            expected_names.add(f"state/blobs/{blob_name}.safetensors")
        for checkpoint_round in checkpoints.rounds():
            expected_names.add(f"state/{checkpoints.path(checkpoint_round).name}")
        # The names of all files that are there; a partial file counts as the one it would become.
        unreferenced_files = []
        for folder_name in (MATRICES_FOLDER, "state", "state/blobs"):
            for inner_path in _listed(within(folder, folder_name)):
                file_name = str(inner_path.relative_to(folder)).removesuffix(PART_SUFFIX)
                if file_name not in expected_names:
                    unreferenced_files.append(file_name)
        return unreferenced_files

    def check_federation(self, record: Record, has_rounds: bool) -> None:
        """Check the files that only the server of a federation writes; ``has_rounds``: whether it has completed a round."""
        folder = record.folder
        world_table = record.description()["world"]
        # After its first round a federation must have the list of its nodes.
        if os.path.lexists(folder / NODES_FILE) or (has_rounds and "data" not in world_table):
            if read_nodes(folder) is None:
                raise DamagedError(f"{folder} has lost its {NODES_FILE}")
            self.include_in_digest(folder / NODES_FILE)
        if os.path.lexists(folder / CALIBRATION_FILE):
            read_calibration(folder)
            self.include_in_digest(folder / CALIBRATION_FILE)
        net_table = world_table.get("net", {})
        if "others" in net_table:
            checksum.check(
                read_within(folder, OTHER_TENSORS_FILE),
                folder / OTHER_TENSORS_FILE,
                net_table.get("others_checksum"),
            )
            self.include_in_digest(folder / OTHER_TENSORS_FILE)

    def check_export(self, folder: Path) -> None:
        """Check a folder of exported models."""
        models_document = read_document(folder)
        self.include_in_digest(folder / MODELS_FILE)
        for file_name in models_document["files"]:
            with self.step():
                read_model(folder, file_name, models_document)
                self.include_in_digest(folder / file_name)
        for card_name, card_checksum in models_document["cards"].items():
            with self.step():
                checksum.check(read_within(folder, card_name), folder / card_name, card_checksum)
                self.include_in_digest(folder / card_name)
        num_models = len(set(models_document["files"]) - {SHARED_FILE, PLACEMENT_FILE})
        self.findings.intact.append(f"{folder}: {MODELS_FILE} and {count(num_models, 'model')}")
        self.report_unknown_files(
            folder, {MODELS_FILE, *models_document["files"], *models_document["cards"]}
        )

    def report_unknown_files(
        self, folder: Path, known_names: Collection[str], unreferenced_files: Collection[str] = ()
    ) -> None:
        """Report the unknown files in a folder, and the ``unreferenced_files`` inside its subfolders."""
        other_names = []
        for inner_path in _listed(folder):
            file_name = inner_path.name.removesuffix(PART_SUFFIX)
            if file_name not in known_names:
                other_names.append(file_name)
        other_names = sorted(other_names) + sorted(unreferenced_files)
        if other_names:
            other_words = f"{folder} has other files: {', '.join(other_names[:8])}{' ...' if len(other_names) > 8 else ''}"
            next_round_hint = f" (some may be of the next round: {folder / LOCK_FILE} says that a process writes here)"
            self.findings.unchecked.append(
                other_words + (next_round_hint if unreferenced_files and _goes_on(folder) else "")
            )


def _listed(folder: Path) -> list[Path]:
    """What is in a folder; nothing if there is no such folder."""
    return list(folder.iterdir()) if folder.is_dir() else []
