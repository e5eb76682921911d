"""Crash-safe files: atomic writes, checkpoints, and a lock that allows one process per run directory.

A checkpoint is ``state/<round>.json``; its arrays are ``state/blobs/<hash>.safetensors``. The
newest checkpoints are kept with their blobs. An array that does not change from one checkpoint to
the next is stored once. Files with other names are never removed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.files import descriptor, read_within, within
from coterie.records import checksum, codec
from coterie.records.codec import DamagedError
from coterie.settings import UserError

try:
    import fcntl
except ImportError:
    raise UserError(
        "Coterie locks run directories with fcntl, which Windows does not have: install Coterie in WSL 2"
    ) from None

SCHEMA_VERSION = 1
"""Version of a run directory's files. A greater version was written by a newer Coterie and is
refused."""

CHECKPOINTS_KEPT = 2
"""Checkpoints kept by default: the newest, and one to fall back on if the newest cannot be read."""

PART_SUFFIX = ".part"
"""Suffix of a file's name while it is being written."""

_CHECKPOINT_NAME = re.compile(r"(\d{6,})\.json", re.ASCII)
_BLOB_NAME = re.compile(r"([0-9a-f]{40})\.safetensors")

LOCK_FILE = "lock"
"""File that exists in a run directory while a process writes there."""


class BusyError(UserError):
    """Another process is writing this run directory."""


def check_schema(version: object, file_path: Path) -> None:
    """Check the schema version of a file.

    Args:
        version: The version in the file.
        file_path: The file, for error messages.

    Raises:
        DamagedError: The file has no version.
        UserError: The version is newer than :data:`SCHEMA_VERSION`.
    """
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedError(
            f"{file_path} has no schema version; it is not a Coterie file, or damaged"
        )
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{file_path} has schema version {version}, this version of Coterie reads up to "
            f"{SCHEMA_VERSION}; use a newer Coterie"
        )


def write_whole(file_path: Path, file_bytes: bytes, sync_name: bool = True) -> None:
    """Write a file atomically: if the process or the machine stops, the file is either complete or as before.

    If there is a link at ``file_path``, the link is replaced, and its target stays as it is.

    Args:
        file_path: The file.
        file_bytes: Its bytes.
        sync_name: Whether the file's new name is on the disk when this function returns. If not, call
            :func:`sync_folder` later.

    Raises:
        OSError: The file cannot be written, for example because the disk is full.
        UserError: A link or a special file is at the place of the partial file.
    """
    partial_path = file_path.with_name(file_path.name + PART_SUFFIX)
    try:
        # Written under another name and renamed: the file is never there in part.
        _make_way(partial_path)
        file_descriptor = os.open(
            partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        with open(file_descriptor, "wb") as file:
            file.write(file_bytes)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial_path, file_path)
    except OSError as error:
        # For example, the disk is full. The message names the file that the caller named.
        with suppress(OSError):
            partial_path.unlink(missing_ok=True)
        error.filename = str(file_path)
        error.filename2 = None
        raise
    # The directory has the new name on the disk only after a sync of its own.
    if sync_name:
        sync_folder(file_path.parent)


def _make_way(partial_path: Path) -> None:
    """Remove the partial file of a killed process; raise :class:`~coterie.settings.UserError` for anything else."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(partial_path.lstat().st_mode):
            raise UserError(
                f"{partial_path} cannot be replaced: it is a link or not a regular file"
            )
        partial_path.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the directory ``folder`` to disk, so that renames in it are durable."""
    folder_descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_descriptor)
    finally:
        os.close(folder_descriptor)


class Checkpoints:
    """The checkpoints of one run, in ``folder``, which is created when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"

    def save(
        self,
        round_number: int,
        value: Any,
        num_kept: int = CHECKPOINTS_KEPT,
        run_identity: str = "",
        best_round: int | None = None,
    ) -> None:
        """Store a checkpoint, then remove all but the newest ones.

        Args:
            round_number: The round after which it is made.
            value: The value to store.
            num_kept: Newest checkpoints to keep.
            run_identity: The identity of the run, which shows that the checkpoint belongs to it.
            best_round: A round whose checkpoint stays, however old it is; None for none.
        """
        # Blobs first: a checkpoint on the disk has all its blobs.
        self._check_links()
        self.blobs.mkdir(parents=True, exist_ok=True)
        encoded_value = codec.encode(value, self._put)
        # Once for all blobs.
        sync_folder(self.blobs)
        document = {
            "schema": SCHEMA_VERSION,
            "round": round_number,
            "run": run_identity,
            "value": encoded_value,
        }
        write_whole(
            self.path(round_number),
            checksum.sealed_json(json.dumps(document, allow_nan=False).encode()),
        )
        self.prune(num_kept, {round_number: codec.blobs(encoded_value)}, best_round)

    def load(
        self,
        run_identity: str | None = None,
        fallback: bool = True,
        considered_rounds: list[int] | None = None,
    ) -> tuple[int, Any] | None:
        """The newest checkpoint that can be read.

        Args:
            run_identity: The identity of the run; None for any.
            fallback: Whether to use the checkpoint before, if one is damaged. A run that continues
                from there gives the same result, only later.
            considered_rounds: The rounds whose checkpoints are considered, ascending; None for all.

        Returns:
            (round, value); None if there is no checkpoint.

        Raises:
            DamagedError: No checkpoint can be read; without ``fallback``, the newest cannot be
                read.
            UserError: A checkpoint is of a newer schema, or has an unknown class.
        """
        # From the newest; the message is about the oldest if none can be read.
        damage: DamagedError | None = None
        for round_number in reversed(
            self.rounds() if considered_rounds is None else considered_rounds
        ):
            try:
                return round_number, codec.decode(
                    self.document(round_number, run_identity)["value"], self.blob
                )
            except (DamagedError, FileNotFoundError) as error:
                damage = DamagedError(f"{self.path(round_number)} cannot be read: {error}")
                if not fallback:
                    raise damage from error
        if damage is not None:
            raise damage
        return None

    def check(self, round_number: int, run_identity: str | None = None) -> list[str]:
        """Check a checkpoint and its blobs.

        Args:
            round_number: The round of the checkpoint.
            run_identity: The identity of the run; None for any.

        Returns:
            The names of its blobs.

        Raises:
            UserError: The checkpoint or one of its blobs has been changed or damaged.
        """
        # Reading a blob compares it with its name, which is its hash.
        blob_names = sorted(set(codec.blobs(self.document(round_number, run_identity)["value"])))
        for blob_name in blob_names:
            self.blob(blob_name)
        return blob_names

    def rounds(self) -> list[int]:
        """The rounds after which a checkpoint was stored, ascending."""
        self._check_links()
        if not self.folder.is_dir():
            return []
        checkpoint_rounds = []
        for file_name in os.listdir(self.folder):
            name_match = _CHECKPOINT_NAME.fullmatch(file_name)
            # Only the name that this class would write: not 0000012.json for round 12.
            if name_match and self.path(int(name_match[1])).name == file_name:
                checkpoint_rounds.append(int(name_match[1]))
        return sorted(checkpoint_rounds)

    def path(self, round_number: int) -> Path:
        """The file of a round's checkpoint."""
        return self.folder / f"{round_number:06d}.json"

    def document(self, round_number: int, run_identity: str | None = None) -> dict[str, Any]:
        """Read a checkpoint without decoding its value.

        Args:
            round_number: The round of the checkpoint.
            run_identity: The identity of the run; None for any.

        Returns:
            The entries ``round``, ``run`` and ``value``.

        Raises:
            DamagedError: The checkpoint has been changed or damaged, or belongs to another run.
        """
        checkpoint_path = self.path(round_number)
        try:
            file_bytes = read_within(self.folder, checkpoint_path.name)
            document = json.loads(file_bytes)
            check_schema(document["schema"], checkpoint_path)
            checksum.check_json(file_bytes, checkpoint_path)
            # Entries of later versions are ignored.
            entries = {entry_name: document[entry_name] for entry_name in ("round", "run", "value")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"it was changed or damaged ({error})") from error
        # A file that was renamed or copied from another run is intact, and wrong here.
        if entries["round"] != round_number:
            raise DamagedError(f"it belongs to round {entries['round']!r:.20}")
        if run_identity is not None and entries["run"] != run_identity:
            raise DamagedError("it belongs to another run")
        return entries

    def _put(self, blob_bytes: bytes) -> str:
        blob_name = codec.blob(blob_bytes)
        # An equal array of an earlier checkpoint is stored already.
        if not self._has(self._blob(blob_name), blob_bytes):
            write_whole(self._blob(blob_name), blob_bytes, sync_name=False)
        return blob_name

    def _has(self, blob_path: Path, blob_bytes: bytes) -> bool:
        """Whether a file has exactly these bytes; if it was damaged since, it must be written again."""
        if (
            blob_path.is_symlink()
            or not blob_path.is_file()
            or blob_path.stat().st_size != len(blob_bytes)
        ):
            return False
        return read_within(self.blobs, blob_path.name) == blob_bytes

    def blob(self, blob_name: str) -> bytes:
        """Read a blob.

        Args:
            blob_name: The name of the blob.

        Returns:
            Its bytes.

        Raises:
            DamagedError: The blob is missing, or has been changed or damaged.
        """
        blob_path = self._blob(blob_name)
        try:
            blob_bytes = read_within(self.blobs, blob_path.name)
        except FileNotFoundError as error:
            raise DamagedError(f"blob {blob_name} is missing") from error
        # The name is the hash of the content.
        if codec.blob(blob_bytes) != blob_name:
            raise DamagedError(f"blob {blob_name} was changed or damaged")
        return blob_bytes

    def _blob(self, blob_name: str) -> Path:
        blob_path = self.blobs / f"{blob_name}.safetensors"
        if not _BLOB_NAME.fullmatch(blob_path.name):
            raise DamagedError(f"{blob_name!r:.60} is not a blob name")
        return blob_path

    def prune(
        self,
        num_kept: int = CHECKPOINTS_KEPT,
        known_blobs: Mapping[int, Iterable[str]] | None = None,
        best_round: int | None = None,
    ) -> None:
        """Remove all but the newest checkpoints, and the blobs to which none of these refers.

        Args:
            num_kept: Number of checkpoints that stay.
            known_blobs: Round -> the blobs of its checkpoint, where the caller knows them; others are
                read.
            best_round: A round whose checkpoint stays, however old it is; None for none.
        """
        checkpoint_rounds = self.rounds()
        kept_rounds = {*checkpoint_rounds[-num_kept:], best_round}
        # Old checkpoints first: no checkpoint refers to a blob that is gone.
        for round_number in checkpoint_rounds:
            if round_number not in kept_rounds:
                self.path(round_number).unlink()
        # A blob stays while one of the kept checkpoints refers to it.
        used_blobs: set[str] = set()
        for round_number in checkpoint_rounds:
            if round_number not in kept_rounds:
                continue
            if known_blobs and round_number in known_blobs:
                used_blobs.update(known_blobs[round_number])
                continue
            # A damaged checkpoint needs no blobs.
            with suppress(DamagedError):
                used_blobs.update(codec.blobs(self.document(round_number)["value"]))
        # Then the blobs without a checkpoint, and what a killed process left of one.
        for blob_path in self.blobs.iterdir() if self.blobs.is_dir() else ():
            blob_match = _BLOB_NAME.fullmatch(blob_path.name.removesuffix(PART_SUFFIX))
            if blob_match and (
                blob_path.name.endswith(PART_SUFFIX) or blob_match[1] not in used_blobs
            ):
                blob_path.unlink()

    def drop_after(self, round_number: int) -> None:
        """Remove unreadable checkpoints of later rounds, and damaged blobs; these rounds are made again."""
        later_rounds = [later_round for later_round in self.rounds() if later_round > round_number]
        for later_round in later_rounds:
            self.path(later_round).unlink()
            sync_folder(self.folder)
        if not later_rounds or not self.blobs.is_dir():
            return
        # A damaged blob would be taken for the one that is stored again.
        for blob_path in self.blobs.iterdir():
            if not _BLOB_NAME.fullmatch(blob_path.name):
                continue
            try:
                self.blob(blob_path.stem)
            except DamagedError:
                blob_path.unlink()

    def _check_links(self) -> None:
        within(self.folder.parent, f"{self.folder.name}/{self.blobs.name}")


_LOCKED_FOLDERS: set[str] = set()
"""Folders that this process has locked."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process.

    The operating system holds the lock and releases it when the process ends for any reason.

    Args:
        folder: The folder.

    Yields:
        None, while the folder is locked.

    Raises:
        BusyError: Another process holds the lock, or this process holds it already.
    """
    lock_path = folder / LOCK_FILE
    folder_key = str(folder.resolve())
    # lockf does not exclude the process that holds the lock.
    if folder_key in _LOCKED_FOLDERS:
        raise BusyError(f"{folder} is being written by this process already")
    # The lock of the operating system, and that of this process.
    lock_descriptor = _lock(lock_path)
    _LOCKED_FOLDERS.add(folder_key)
    try:
        yield
    finally:
        # While it is held, so that no other process's lock is removed.
        lock_path.unlink(missing_ok=True)
        _LOCKED_FOLDERS.discard(folder_key)
        os.close(lock_descriptor)


def _lock(lock_path: Path) -> int:
    """An open, locked file at ``path``.

    It uses ``lockf`` since forked worker processes do not inherit this lock, unlike that of
    ``flock``.
    """
    while True:
        lock_descriptor = descriptor(lock_path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # The owner has written its process id into the file, for this message.
            owner_text = os.read(lock_descriptor, 32).decode(errors="replace").strip()
            os.close(lock_descriptor)
            owner_id = owner_text if owner_text.isascii() and owner_text.isdecimal() else "unknown"
            raise BusyError(
                f"{lock_path.parent} is being written by another process (id {owner_id})"
            ) from error
        with suppress(FileNotFoundError):
            # The lock counts only if the file is still at its place.
            if os.path.samestat(os.fstat(lock_descriptor), lock_path.lstat()):
                os.ftruncate(lock_descriptor, 0)
                os.write(lock_descriptor, f"{os.getpid()}\n".encode())
                return lock_descriptor
        # The owner removed the file in the meantime: try again with a new one.
        os.close(lock_descriptor)
