"""Reading files that may be from a stranger: regular files alone, no links where none are meant, and not more than is meant."""

from __future__ import annotations

import math
import os
import re
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from coterie.settings import UserError

LARGEST = 1 << 30
"""Bytes of a file that is read into memory as a whole, where nothing else is said."""


def reason(error: OSError) -> str:
    """Why the system refused, in lower case."""
    return (error.strerror or str(error)).lower()


def open_regular(path: Path | str, *, follow: bool = True, limit: float = LARGEST) -> BinaryIO:
    """A regular file, open for reading.

    A named pipe, device or folder is refused without waiting for it, and so is a symbolic link unless ``follow``. Raises
    ``OSError`` as ``open`` does, and :class:`~coterie.settings.UserError` for what is refused.
    """
    path = Path(path)
    if not follow:
        _refuse_link(path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    about = os.fstat(handle)
    if stat.S_ISREG(about.st_mode) and about.st_size <= limit:
        return open(handle, "rb")
    os.close(handle)
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path} is not a regular file")
    raise UserError(f"{path} has {about.st_size:,} bytes, more than the {limit:,.0f} that such a file may have")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, and Coterie follows no links here")


def read_regular(path: Path | str, *, follow: bool = True, limit: int = LARGEST) -> bytes:
    """The bytes of a regular file, with the refusals of :func:`open_regular`."""
    with open_regular(path, follow=follow, limit=limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(f"{path} has more than the {limit:,} bytes that such a file may have")
    return data


def expanded(path: Path | str | os.PathLike[str]) -> Path:
    """A path as a user wrote it, with ``~`` in place; raises :class:`~coterie.settings.UserError` for a user who is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: there is no such user") from error


FOLDS = 500
"""Data are never packed more tightly: gzip and zip get to a thousand, with nothing but zeros."""

ALWAYS = 1 << 26
"""Bytes that a file may unpack to, however small it is."""


def check_unpacked(path: Path | str, packed: int, unpacked: int) -> None:
    """Hold a packed file to what it may unpack to: before it is unpacked, and while it is.

    packed: its bytes, or those read so far. unpacked: those it claims, or those that have come so far. Raises
    :class:`~coterie.settings.UserError` beyond half of the available memory, and beyond what data can be packed into.
    """
    memory = available_memory() / 2
    if unpacked > memory:
        raise UserError(f"{path} unpacks to {unpacked:,} bytes or more, and half of the free memory is {memory:,.0f} bytes")
    if unpacked > max(ALWAYS, FOLDS * packed):
        raise UserError(f"{path} unpacks to {unpacked:,} bytes or more from {packed:,}: it is made to fill the memory")


def available_memory() -> float:
    """Bytes that this process can have without swapping: of the machine, of its container, within its own limit.

    Infinite where the system does not tell.
    """
    bounds = [math.inf]
    with suppress(OSError, ValueError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        bounds.append(float(found[1]) * 1024 if found else math.inf)
    with suppress(OSError, ValueError):  # the latter where a container has no limit: "max"
        bounds.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(OSError, ValueError, ImportError):  # Windows has no such limits
        import resource

        own, _ = resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        bounds.append(math.inf if own == resource.RLIM_INFINITY else max(float(own - taken), 0.0))
    return min(bounds)


# -- in a run directory: whoever named a folder may have named a link to it; what is inside of it is named by Coterie --------


def within(folder: Path, name: str) -> Path:
    """The path of ``name`` in ``folder``, which may be several folders deep.

    Raises:
        UserError: the name leads out of the folder, or a part of it below the folder is a symbolic link.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise UserError(f"{folder} names a file {name!r}, which is not inside of it")
    path = folder
    for part in parts:
        path = path / part
        _refuse_link(path)
    return path


def check_links(folder: Path, but: str = "") -> None:
    """Raises :class:`~coterie.settings.UserError` if a link anywhere in ``folder``, or it itself, leads out of it.

    but: links of this name may.
    """
    _refuse_link(folder)
    home = folder.resolve()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.name != but and path.is_symlink() and not _leads(path).is_relative_to(home):
                raise UserError(f"{path} is a symbolic link that leads out of {folder}")


def _leads(link: Path) -> Path:
    """Where a link leads; of a circle, to the root."""
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        return Path("/")


GROWTH = 1 << 26
"""So many bytes a file may grow by while it is read."""


def read_within(folder: Path, name: str) -> bytes:
    """The bytes of the file ``name`` in a run directory; see :func:`within` and :func:`read_regular`.

    It may be as large as the free memory: a model is.
    """
    path = within(folder, name)
    return read_regular(path, follow=False, limit=int(min(path.lstat().st_size + GROWTH, available_memory())))


def descriptor(path: Path, flags: int) -> int:
    """A regular file in a run directory, opened with ``flags``, to be read or written in place.

    No link is followed, and a file to be written has no other name, so that no file elsewhere is written with it. Raises
    ``OSError`` as ``os.open`` does, and :class:`~coterie.settings.UserError` for what is refused.
    """
    _refuse_link(path)
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        why = "is not a regular file"
    elif flags & (os.O_WRONLY | os.O_RDWR) and about.st_nlink > 1:
        why = f"is one file with {about.st_nlink} names (hard links), and is not written in place"
    else:
        return handle
    os.close(handle)
    raise UserError(f"{path} {why}")
