"""Checksums inside files, by which damage and edits are noticed.

A JSON object has its checksum as the last entry, ``"checksum"``, over all bytes before it. A TOML
file has it as a comment in its last line. Checksums protect from damage and careless edits. They
are not signatures: a person who can write a file can also write its checksum.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from coterie.records.codec import DamagedError

CHECKSUM_DIGITS = 32
"""Hexadecimal digits of a checksum: 128 bits."""

_JSON_CHECKSUM = re.compile(rb',\s*"checksum": "([0-9a-f]{32})"\s*\}\s*\Z')
_TOML_CHECKSUM = re.compile(rb"^# checksum ([0-9a-f]{32})\s*\Z", re.MULTILINE)


def digest(*parts: bytes) -> str:
    """The checksum of bytes.

    Args:
        *parts: The bytes, in one or more parts.

    Returns:
        :data:`CHECKSUM_DIGITS` hexadecimal digits of their SHA-256 hash.

    Example:
        >>> len(digest(b"a", b"b")), digest(b"ab") == digest(b"a", b"b")
        (32, True)
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:CHECKSUM_DIGITS]


def of_json(data: bytes) -> tuple[bytes, str | None]:
    """(the bytes that the checksum of a JSON object covers, the checksum in the object or None)."""
    # The checksum is the last entry of the object, so its end is enough.
    match = _JSON_CHECKSUM.search(data[-256:])
    if match is None:
        return data, None
    return data[: len(data) - len(data[-256:]) + match.start()], match[1].decode()


def sealed_json(data: bytes, identity: str = "") -> bytes:
    """Add the checksum to a JSON object.

    Args:
        data: The text of the object, which has at least one entry.
        identity: The identity of the run to which the object belongs; the checksum covers it.

    Returns:
        The text with the checksum.

    Example:
        >>> sealed_json(b'{"a": 1}')[:24]
        b'{"a": 1, "checksum": "79'
    """
    # The object without its closing brace; the checksum becomes its last entry.
    covered_bytes = data.rstrip()[:-1].rstrip()
    return covered_bytes + f', "checksum": "{digest(identity.encode(), covered_bytes)}"}}'.encode()


def check_json(data: bytes, path: Path) -> None:
    """Check a JSON object.

    Args:
        data: The text of the object.
        path: Its file, for error messages.

    Raises:
        DamagedError: The object has been changed or damaged, or lacks a checksum.
    """
    covered_bytes, recorded_checksum = of_json(data)
    _compare(path, recorded_checksum, digest(covered_bytes))


def check(data: bytes, path: Path, recorded_checksum: str | None) -> None:
    """Check a file whose checksum is recorded in another file.

    Args:
        data: The bytes of the file.
        path: The file, for error messages.
        recorded_checksum: The recorded checksum; None if the other file lacks it, which is damage.

    Raises:
        DamagedError: The checksum differs or is missing.
    """
    _compare(path, recorded_checksum, digest(data))


def sealed_toml(text: str) -> bytes:
    """A TOML document with its checksum as its last line."""
    covered_bytes = text.encode()
    return covered_bytes + f"# checksum {digest(covered_bytes)}\n".encode()


def of_toml(data: bytes) -> tuple[bytes, str | None]:
    """(the bytes that the checksum of a TOML file covers, the checksum in the file or None)."""
    match = _TOML_CHECKSUM.search(data)
    return (data, None) if match is None else (data[: match.start()], match[1].decode())


def check_toml(data: bytes, path: Path, hint: str = "") -> None:
    """Check a TOML file.

    Args:
        data: The bytes of the file.
        path: The file, for error messages.
        hint: A hint that is added to the error message.

    Raises:
        DamagedError: The file has been changed or damaged, or lacks a checksum.
    """
    covered_bytes, recorded_checksum = of_toml(data)
    _compare(path, recorded_checksum, digest(covered_bytes), hint)


def _compare(
    path: Path, recorded_checksum: str | None, computed_checksum: str, hint: str = ""
) -> None:
    if recorded_checksum is None:
        raise DamagedError(f"{path} has lost its checksum: it was changed or damaged{hint}")
    if recorded_checksum != computed_checksum:
        raise DamagedError(f"{path} was changed or damaged: its checksum does not match{hint}")
