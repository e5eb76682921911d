"""Reading of untrusted files: only regular files, no links where none are expected, and no more bytes than are expected."""

from __future__ import annotations

import math
import os
import re
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from coterie.settings import SettingError, UserError

Folder = str | os.PathLike[str]
"""The path of a folder, or an object that has one, such as a :class:`~coterie.runs.run.Run`."""

MAX_READ_BYTES = 1 << 30
"""The default maximum size, in bytes, of a file that is read into memory as a whole."""


def reason(error: OSError) -> str:
    """Return the reason why the system refused, in lower case."""
    return (error.strerror or str(error)).lower()


def open_regular(
    path: Path | str, *, follow: bool = True, limit: float = MAX_READ_BYTES
) -> BinaryIO:
    """Open a regular file for reading.

    A named pipe, device or folder is refused without waiting for it, and so is a symbolic link
    unless ``follow``.

    Args:
        path: The path.
        follow: Whether to follow a symbolic link.
        limit: The maximum size in bytes.

    Returns:
        The open file.

    Raises:
        OSError: As from ``open``.
        UserError: The file is refused.
    """
    path = Path(path)
    if not follow:
        _refuse_link(path)
    # Without waiting: to open a named pipe for reading would wait for a writer.
    file_descriptor = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    )
    # Look at the open file, not at the path, which someone may have exchanged meanwhile.
    status = os.fstat(file_descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return open(file_descriptor, "rb")
    os.close(file_descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file")
    raise UserError(f"{path} has {status.st_size:,} bytes, more than the limit of {limit:,.0f}")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, which Coterie does not follow here")


def read_regular(path: Path | str, *, follow: bool = True, limit: int = MAX_READ_BYTES) -> bytes:
    """Read the bytes of a regular file.

    Args:
        path: The path.
        follow: Whether to follow a symbolic link.
        limit: The maximum size in bytes.

    Returns:
        The bytes.

    Raises:
        OSError: As from ``open``.
        UserError: As in :func:`open_regular`.
    """
    with open_regular(path, follow=follow, limit=limit) as file:
        file_bytes = file.read(limit + 1)
    # The file may have grown since its size was read.
    if len(file_bytes) > limit:
        raise UserError(f"{path} has more than the limit of {limit:,} bytes")
    return file_bytes


def read_toml_file(path: Path | str, what: str, limit: int) -> dict[str, Any]:
    """Read a TOML file that a setting names. Its integers may have more than 64 bits, as ids of Flower's nodes do.

    Args:
        path: The file.
        what: What it is, for messages.
        limit: The greatest number of bytes.

    Returns:
        The document.

    Raises:
        SettingError: The file cannot be read, or is not a TOML file.
    """
    import tomllib

    try:
        return tomllib.loads(read_regular(path, limit=limit).decode())
    except OSError as error:
        raise SettingError(f"{what} {path} cannot be read: {reason(error)}") from None
    except UserError as error:
        raise SettingError(f"{what} {error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{what} {path} is not a TOML file: {error}") from None


def expanded(path: Path | str | os.PathLike[str]) -> Path:
    """Replace ``~`` in a path that a user wrote.

    Args:
        path: The path.

    Returns:
        The path with the home directory.

    Raises:
        UserError: The path names a user that does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: there is no such user") from error


MAX_UNPACKING_RATIO = 500
"""The greatest ratio of unpacked to packed size of real data. gzip and zip reach a thousand, but
only for zeros."""

ALLOWED_BYTES = 1 << 26
"""The size in bytes that a file may always have after unpacking, however small it is."""


def check_unpacked(path: Path | str, packed: int, unpacked: int) -> None:
    """Check the unpacked size of a packed file: before it is unpacked, and while it is unpacked.

    Args:
        path: The path, for messages.
        packed: Its size in bytes, or the number of bytes read so far.
        unpacked: The size in bytes that it states, or the number of bytes unpacked so far.

    Raises:
        UserError: The size is beyond half of the available memory, or beyond the ratio that real
            data can have.
    """
    # The other half is for what is made of the data.
    allowed_bytes = available_memory() / 2
    if unpacked > allowed_bytes:
        raise UserError(
            f"{path} unpacks to {unpacked:,} bytes or more, and half of the free memory is {allowed_bytes:,.0f} bytes"
        )
    if unpacked > max(ALLOWED_BYTES, MAX_UNPACKING_RATIO * packed):
        raise UserError(
            f"{path} unpacks to {unpacked:,} bytes or more from {packed:,}: it looks like a decompression bomb"
        )


def available_memory() -> float:
    """Compute the bytes that this process can use without swapping, given the machine, its container and its own limit.

    Returns:
        The number of bytes; infinite if the system does not report it.
    """
    # The machine's free memory.
    bounds = [math.inf]
    with suppress(OSError, ValueError):
        match = re.search(
            r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE
        )
        bounds.append(float(match[1]) * 1024 if match else math.inf)
    # A container without a limit says "max", which is a ValueError.
    with suppress(OSError, ValueError):
        bounds.append(float(Path("/sys/fs/cgroup/memory.max").read_text()))
    # Windows has no such limits.
    with suppress(OSError, ValueError, ImportError):
        import resource

        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        if address_space != resource.RLIM_INFINITY:
            bounds.append(max(float(address_space - used_bytes), 0.0))
    return min(bounds)


# -- in a run directory: the user may give a link as the folder, but inside the folder Coterie
# chooses all names


def within(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder.

    Args:
        folder: The folder.
        name: The name of the file, which may be several folders deep.

    Returns:
        The path.

    Raises:
        UserError: The name leads out of the folder, or a part of it below the folder is a symbolic
            link.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise UserError(f"{folder} refers to a file {name!r} outside the folder")
    # Every folder on the way may be a link.
    path = folder
    for part in parts:
        path = path / part
        _refuse_link(path)
    return path


def check_links(folder: Path, but: str = "") -> None:
    """Check that no link leads out of a folder.

    Args:
        folder: The folder, which may not be a link itself.
        but: Links of this name are allowed.

    Raises:
        UserError: A link anywhere in the folder leads out of it, or the folder is a link.
    """
    _refuse_link(folder)
    # Links within the folder are allowed, for example to a shared model.
    real_folder = folder.resolve()
    for subfolder, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(subfolder, name)
            if (
                path.name != but
                and path.is_symlink()
                and not _leads(path).is_relative_to(real_folder)
            ):
                raise UserError(f"{path} is a symbolic link that leads out of {folder}")


def _leads(link: Path) -> Path:
    """The target of a link; the root for a circle."""
    try:
        return link.resolve()
    except (OSError, RuntimeError):
        return Path("/")


MAX_GROWTH_BYTES = 1 << 26
"""The number of bytes by which a file may grow while it is read."""


def read_within(folder: Path, name: str) -> bytes:
    """Read a file in a run directory. It may be as large as the free memory, because a model is large.

    Args:
        folder: The run directory.
        name: The name of the file, as in :func:`within`.

    Returns:
        The bytes.

    Raises:
        OSError: As from ``open``.
        UserError: As in :func:`within` and :func:`read_regular`.
    """
    path = within(folder, name)
    return read_regular(
        path,
        follow=False,
        limit=int(min(path.lstat().st_size + MAX_GROWTH_BYTES, available_memory())),
    )


def descriptor(path: Path, flags: int) -> int:
    """Open a regular file in a run directory, to be read or written in place.

    No link is followed. A file that is to be written has no other name, so that no file elsewhere
    is written with it.

    Args:
        path: The path.
        flags: As for ``os.open``.

    Returns:
        The file descriptor.

    Raises:
        OSError: As from ``os.open``.
        UserError: The file is refused.
    """
    _refuse_link(path)
    file_descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    status = os.fstat(file_descriptor)
    # Writing in place would change a file under all of its names.
    if not stat.S_ISREG(status.st_mode):
        cause = "is not a regular file"
    elif flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
        cause = (
            f"is one file with {status.st_nlink} names (hard links), and is not written in place"
        )
    else:
        return file_descriptor
    os.close(file_descriptor)
    raise UserError(f"{path} {cause}")
