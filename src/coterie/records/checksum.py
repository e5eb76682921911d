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


def digest(*byte_strings: bytes) -> str:
    """The checksum of bytes.

    Args:
        *byte_strings: The bytes, in one or more parts.

    Returns:
        :data:`CHECKSUM_DIGITS` hexadecimal digits of their SHA-256 hash.

    Example:
        >>> len(digest(b"a", b"b")), digest(b"ab") == digest(b"a", b"b")
        (32, True)
    """
    sha256 = hashlib.sha256()
    for byte_string in byte_strings:
        sha256.update(byte_string)
    return sha256.hexdigest()[:CHECKSUM_DIGITS]


def of_json(json_bytes: bytes) -> tuple[bytes, str | None]:
    """(the bytes that the checksum of a JSON object covers, the checksum in the object or None)."""
    # The checksum is the last entry of the object, so its end is enough.
    object_end = json_bytes[-256:]
    checksum_match = _JSON_CHECKSUM.search(object_end)
    if checksum_match is None:
        return json_bytes, None
    covered_length = len(json_bytes) - len(object_end) + checksum_match.start()
    return json_bytes[:covered_length], checksum_match[1].decode()


def sealed_json(json_bytes: bytes, run_identity: str = "") -> bytes:
    """Add the checksum to a JSON object.

    Args:
        json_bytes: The text of the object, which has at least one entry.
        run_identity: The identity of the run to which the object belongs; the checksum covers it.

    Returns:
        The text with the checksum.

    Example:
        >>> sealed_json(b'{"a": 1}')[:24]
        b'{"a": 1, "checksum": "79'
    """
    # The object without its closing brace; the checksum becomes its last entry.
    covered_bytes = json_bytes.rstrip()[:-1].rstrip()
    new_checksum = digest(run_identity.encode(), covered_bytes)
    return covered_bytes + f', "checksum": "{new_checksum}"}}'.encode()


def check_json(json_bytes: bytes, file_path: Path) -> None:
    """Check a JSON object.

    Args:
        json_bytes: The text of the object.
        file_path: Its file, for error messages.

    Raises:
        DamagedError: The object has been changed or damaged, or lacks a checksum.
    """
    covered_bytes, recorded_checksum = of_json(json_bytes)
    _compare(file_path, recorded_checksum, digest(covered_bytes))


def check(file_bytes: bytes, file_path: Path, recorded_checksum: str | None) -> None:
    """Check a file whose checksum is recorded in another file.

    Args:
        file_bytes: The bytes of the file.
        file_path: The file, for error messages.
        recorded_checksum: The recorded checksum; None if the other file lacks it, which is damage.

    Raises:
        DamagedError: The checksum differs or is missing.
    """
    _compare(file_path, recorded_checksum, digest(file_bytes))


def sealed_toml(toml_text: str) -> bytes:
    """A TOML document with its checksum as its last line."""
    covered_bytes = toml_text.encode()
    return covered_bytes + f"# checksum {digest(covered_bytes)}\n".encode()


def of_toml(toml_bytes: bytes) -> tuple[bytes, str | None]:
    """(the bytes that the checksum of a TOML file covers, the checksum in the file or None)."""
    checksum_match = _TOML_CHECKSUM.search(toml_bytes)
    if checksum_match is None:
        return toml_bytes, None
    # The comment is the last line; all before it is covered.
    return toml_bytes[: checksum_match.start()], checksum_match[1].decode()


def check_toml(toml_bytes: bytes, file_path: Path, hint: str = "") -> None:
    """Check a TOML file.

    Args:
        toml_bytes: The bytes of the file.
        file_path: The file, for error messages.
        hint: A hint that is added to the error message.

    Raises:
        DamagedError: The file has been changed or damaged, or lacks a checksum.
    """
    covered_bytes, recorded_checksum = of_toml(toml_bytes)
    _compare(file_path, recorded_checksum, digest(covered_bytes), hint)


def _compare(
    file_path: Path, recorded_checksum: str | None, computed_checksum: str, hint: str = ""
) -> None:
    if recorded_checksum is None:
        raise DamagedError(f"{file_path} has lost its checksum: it was changed or damaged{hint}")
    if recorded_checksum != computed_checksum:
        raise DamagedError(f"{file_path} was changed or damaged: its checksum does not match{hint}")
