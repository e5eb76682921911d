"""Files that survive a killed process: written whole or not at all; checkpoints; one process per run directory.

A checkpoint is ``state/<round>.json``, whose arrays are ``state/blobs/<hash>.safetensors``. The newest
ones are kept, with their blobs; what does not change from one to the next is stored once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie import codec
from coterie.codec import DamagedError
from coterie.settings import UserError

try:
    import fcntl
except ImportError:
    raise UserError("Coterie locks run directories by fcntl, which Windows has not: install it in WSL 2") from None

SCHEMA = 1
"""Version of a run directory's files. A greater one was written by a newer Coterie and is refused."""

KEPT = 2
"""Checkpoints kept where nothing else is said: the newest, and one to fall back on if it cannot be read."""

_PART = ".part"


LOCK = "lock"
"""File in a run directory that is there while a process writes it."""


class BusyError(UserError):
    """Another process is writing this run directory."""


def check_schema(found: object, path: Path) -> None:
    """Refuse a file of a newer (or no) schema version with a :class:`~coterie.settings.UserError`."""
    if not isinstance(found, int) or found < 1:
        raise DamagedError(f"{path} has no schema version; it is no file of Coterie's, or damaged")
    if found > SCHEMA:
        raise UserError(
            f"{path} has schema version {found}, this version of Coterie reads up to {SCHEMA}; use a newer Coterie"
        )


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that, whenever the process or the machine stops, it is there whole or as before."""
    part = path.with_name(path.name + _PART)
    try:
        with open(part, "wb") as file:
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

    def save(self, round: int, value: Any, kept: int = KEPT) -> None:
        """Store ``value`` as the checkpoint after ``round``, then drop all but the newest ``kept``."""
        self.blobs.mkdir(parents=True, exist_ok=True)
        encoded = codec.encode(value, self._put)
        document = {"schema": SCHEMA, "round": round, "value": encoded}
        write_whole(self._path(round), json.dumps(document, allow_nan=False).encode())
        self.prune(kept)

    def load(self) -> tuple[int, Any] | None:
        """(round, value) of the newest checkpoint that can be read; None where there is none.

        A damaged checkpoint is passed over for the one before: going on from there gives the same result, later. Raises
        :class:`~coterie.codec.DamagedError` if none can be read, and
        :class:`~coterie.settings.UserError` for one of a newer schema or with an unknown class.
        """
        damaged: DamagedError | None = None
        for round in reversed(self.rounds()):
            path = self._path(round)
            try:
                return round, codec.decode(self._document(path)["value"], self._get)
            except DamagedError as error:
                damaged = DamagedError(f"{path} cannot be read: {error}")
        if damaged is not None:
            raise damaged
        return None

    def rounds(self) -> list[int]:
        """The rounds after which a checkpoint was stored, ascending."""
        return sorted(int(p.stem) for p in self.folder.glob("*.json") if p.stem.isdecimal())

    def _path(self, round: int) -> Path:
        return self.folder / f"{round:06d}.json"

    def _document(self, path: Path) -> dict[str, Any]:
        try:
            document = json.loads(path.read_bytes())
            check_schema(document["schema"], path)
            return {"value": document["value"]}
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"it is not what was written ({error})") from error

    def _put(self, data: bytes) -> str:
        name = codec.blob(data)
        path = self._blob(name)
        if not path.exists():
            write_whole(path, data)
        return name

    def _get(self, name: str) -> bytes:
        try:
            data = self._blob(name).read_bytes()
        except OSError as error:
            raise DamagedError(f"blob {name} is missing") from error
        if codec.blob(data) != name:
            raise DamagedError(f"blob {name} is not what was written")
        return data

    def _blob(self, name: str) -> Path:
        return self.blobs / f"{Path(name).name}.safetensors"

    def prune(self, kept: int = KEPT) -> None:
        """Drop all but the newest ``kept`` checkpoints, and blobs that none of them refers to."""
        rounds = self.rounds()
        for round in rounds[:-kept]:
            self._path(round).unlink()
        used: set[str] = set()
        for round in rounds[-kept:]:
            # A damaged one has no use for blobs.
            with suppress(DamagedError):
                used.update(codec.blobs(self._document(self._path(round))["value"]))
        for path in self.blobs.iterdir():
            if path.stem not in used:
                path.unlink()


_HELD: set[str] = set()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process alone; raises :class:`BusyError` where another holds it.

    The lock is the operating system's and goes with the process, however it ends.
    """
    path = folder / LOCK
    key = str(path.resolve())
    if key in _HELD:  # a process does not shut itself out by lockf
        raise BusyError(f"{folder} is being written by this process already")
    handle = _lock(path)
    _HELD.add(key)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held, so that nobody's else's lock is removed
        _HELD.discard(key)
        os.close(handle)


def _lock(path: Path) -> int:
    """An open, locked file at ``path``. ``lockf``, unlike ``flock``, is not inherited by forked worker processes."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode(errors="replace").strip()
            os.close(handle)
            raise BusyError(f"{path.parent} is being written by another process (id {owner or 'unknown'})") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        os.close(handle)  # its owner removed it in between
