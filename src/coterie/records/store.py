"""Files that survive a killed process: written whole or not at all; checkpoints; one process per run directory.

A checkpoint is ``state/<round>.json``, whose arrays are ``state/blobs/<hash>.safetensors``. The newest
ones are kept, with their blobs; what does not change from one to the next is stored once. Files with other names are never
removed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
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
    raise UserError("Coterie locks run directories by fcntl, which Windows has not: install it in WSL 2") from None

SCHEMA = 2
"""Version of a run directory's files. A greater one was written by a newer Coterie and is refused."""

CHECKED = 2
"""From this version on every file has a checksum, so one that lacks it is damaged; and a secret is not written."""

KEPT = 2
"""Checkpoints kept where nothing else is said: the newest, and one to fall back on if it cannot be read."""

PART = ".part"
"""What the name of a file ends in while it is being written."""

_CHECKPOINT = re.compile(r"(\d{6,})\.json", re.ASCII)
_BLOB = re.compile(r"([0-9a-f]{40})\.safetensors")

Fits = Callable[[int, str | None], str | None]
"""(round, the checksum of the records that a checkpoint names) -> why it is not of this run, or None."""

LOCK = "lock"
"""File in a run directory that is there while a process writes it."""


class BusyError(UserError):
    """Another process is writing this run directory."""


def check_schema(found: object, path: Path) -> None:
    """Refuse a file of a newer (or no) schema version with a :class:`~coterie.settings.UserError`."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DamagedError(f"{path} has no schema version; it is no file of Coterie's, or damaged")
    if found > SCHEMA:
        raise UserError(f"{path} has schema version {found}, this version of Coterie reads up to {SCHEMA}; use a newer Coterie")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the process or the machine stops, it is there whole or as before.

    A link at ``path`` is replaced, and what it leads to is left as it is.
    """
    part = path.with_name(path.name + PART)
    try:
        _make_way(part)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:  # a full disk, say
        with suppress(OSError):
            part.unlink(missing_ok=True)
        error.filename = str(path)  # the one that was asked for
        error.filename2 = None
        raise
    sync_folder(path.parent)


def _make_way(part: Path) -> None:
    """Remove what a killed process has left of a file; raises :class:`~coterie.settings.UserError` for anything else."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(part.lstat().st_mode):
            raise UserError(f"{part} is in the way: it is a link or no regular file")
        part.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Checkpoints:
    """The checkpoints of one run, in ``folder``, made when the first is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"

    def save(self, round: int, value: Any, kept: int = KEPT, record: str = "") -> None:
        """Store ``value`` as the checkpoint after ``round``, then drop all but the newest ``kept``.

        record: the checksum of the records up to this round, by which the checkpoint is known to be of this run.
        """
        self._check_links()
        self.blobs.mkdir(parents=True, exist_ok=True)
        encoded = codec.encode(value, self._put)
        document = {"schema": SCHEMA, "round": round, "record": record, "value": encoded}
        write_whole(self.path(round), checksum.sealed_json(json.dumps(document, allow_nan=False).encode()))
        self.prune(kept)

    def load(self, fits: Fits | None = None, fallback: bool = True, rounds: list[int] | None = None) -> tuple[int, Any] | None:
        """(round, value) of the newest checkpoint that can be read, of those after ``rounds``; None where there is none.

        A damaged checkpoint is passed over for the one before: going on from there gives the same result, later. Without
        ``fallback`` it is an error.

        Raises:
            DamagedError: none can be read, or without ``fallback`` not the newest.
            UserError: one is of a newer schema, or has an unknown class.
        """
        damaged: DamagedError | None = None
        for round in reversed(self.rounds() if rounds is None else rounds):
            try:
                return round, codec.decode(self.document(round, fits)["value"], self.blob)
            except (DamagedError, FileNotFoundError) as error:
                damaged = DamagedError(f"{self.path(round)} cannot be read: {error}")
                if not fallback:
                    raise damaged from error
        if damaged is not None:
            raise damaged
        return None

    def check(self, round: int, fits: Fits | None = None) -> list[str]:
        """The blobs of a checkpoint. Raises :class:`~coterie.settings.UserError` if it or one of them is not what was
        written."""
        names = sorted(set(codec.blobs(self.document(round, fits)["value"])))
        for name in names:
            self.blob(name)
        return names

    def rounds(self) -> list[int]:
        """The rounds after which a checkpoint was stored, ascending."""
        self._check_links()
        if not self.folder.is_dir():
            return []
        found = (_CHECKPOINT.fullmatch(name) for name in os.listdir(self.folder))
        return sorted(int(match[1]) for match in found if match and self.path(int(match[1])).name == match[0])

    def path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.json"

    def document(self, round: int, fits: Fits | None = None) -> dict[str, Any]:
        """A checkpoint as it is stored. Raises :class:`~coterie.records.codec.DamagedError` if it is not what was written."""
        path = self.path(round)
        try:
            data = read_within(self.folder, path.name)
            document = json.loads(data)
            check_schema(document["schema"], path)
            checksum.check_json(data, path, needed=document["schema"] >= CHECKED)
            found = {"round": document["round"], "record": document.get("record"), "value": document["value"]}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(f"it is not what was written ({error})") from error
        if found["round"] != round:
            raise DamagedError(f"it is that of round {found['round']!r:.20}")
        if fits is not None and (why := fits(round, found["record"])):
            raise DamagedError(why)
        return found

    def _put(self, data: bytes) -> str:
        name = codec.blob(data)
        if not self._has(self._blob(name), data):
            write_whole(self._blob(name), data)
        return name

    def _has(self, path: Path, data: bytes) -> bool:
        """Whether a file has just these bytes: one that was damaged since is to be written again."""
        if path.is_symlink() or not path.is_file() or path.stat().st_size != len(data):
            return False
        return read_within(self.blobs, path.name) == data

    def blob(self, name: str) -> bytes:
        """The bytes of a blob. Raises :class:`~coterie.records.codec.DamagedError` if they are not what was written."""
        path = self._blob(name)
        try:
            data = read_within(self.blobs, path.name)
        except FileNotFoundError as error:
            raise DamagedError(f"blob {name} is missing") from error
        if codec.blob(data) != name:
            raise DamagedError(f"blob {name} is not what was written")
        return data

    def _blob(self, name: str) -> Path:
        path = self.blobs / f"{name}.safetensors"
        if not _BLOB.fullmatch(path.name):
            raise DamagedError(f"{name!r:.60} is no name of a blob")
        return path

    def prune(self, kept: int = KEPT) -> None:
        """Drop all but the newest ``kept`` checkpoints, and blobs that none of them refers to."""
        rounds = self.rounds()
        for round in rounds[:-kept]:
            self.path(round).unlink()
        used: set[str] = set()
        for round in rounds[-kept:]:
            # A damaged one has no use for blobs.
            with suppress(DamagedError):
                used.update(codec.blobs(self.document(round)["value"]))
        for path in self.blobs.iterdir() if self.blobs.is_dir() else ():
            ours = _BLOB.fullmatch(path.name.removesuffix(PART))
            if ours and (path.name.endswith(PART) or ours[1] not in used):
                path.unlink()

    def drop_after(self, round: int) -> None:
        """Remove the checkpoints of later rounds, which cannot be read and are made again, and the blobs that are damaged."""
        later = [one for one in self.rounds() if one > round]
        for one in later:
            self.path(one).unlink()
            sync_folder(self.folder)
        for path in self.blobs.iterdir() if later and self.blobs.is_dir() else ():
            if _BLOB.fullmatch(path.name):
                try:
                    self.blob(path.stem)
                except DamagedError:
                    path.unlink()

    def _check_links(self) -> None:
        within(self.folder.parent, f"{self.folder.name}/{self.blobs.name}")


_HELD: set[str] = set()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process alone; raises :class:`BusyError` where another holds it.

    The lock is the operating system's and goes with the process, however it ends.
    """
    path = folder / LOCK
    key = str(folder.resolve())
    if key in _HELD:  # a process does not shut itself out by lockf
        raise BusyError(f"{folder} is being written by this process already")
    handle = _lock(path)
    _HELD.add(key)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that nobody else's lock is removed
        _HELD.discard(key)
        os.close(handle)


def _lock(path: Path) -> int:
    """An open, locked file at ``path``. ``lockf``, unlike ``flock``, is not inherited by forked worker processes."""
    while True:
        handle = descriptor(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            known = owner if owner.isascii() and owner.isdecimal() else "unknown"
            raise BusyError(f"{path.parent} is being written by another process (id {known})") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.lstat()):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(handle)  # its owner removed it in between
