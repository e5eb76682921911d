"""Checksums that files carry inside themselves, so that damage and edits are noticed.

A JSON object has it as its last entry, ``"checksum"``, over all bytes before it; a TOML file as a comment in its last line.
They protect from damage and from careless edits. They are no signature: who can write a file can write its checksum too.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from coterie.records.codec import DamagedError

LENGTH = 32
"""Hexadecimal digits of a checksum: 128 bits."""

_JSON = re.compile(rb',\s*"checksum": "([0-9a-f]{32})"\s*\}\s*\Z')
_TOML = re.compile(rb"^# checksum ([0-9a-f]{32})\s*\Z", re.MULTILINE)


def digest(*parts: bytes) -> str:
    """The checksum of bytes.

    >>> len(digest(b"a", b"b")), digest(b"ab") == digest(b"a", b"b")
    (32, True)
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:LENGTH]


def of_json(data: bytes) -> tuple[bytes, str | None]:
    """(what the checksum of a JSON object is over, the checksum that it carries or None)."""
    found = _JSON.search(data[-256:])
    if found is None:
        return data, None
    return data[: len(data) - len(data[-256:]) + found.start()], found[1].decode()


def sealed_json(data: bytes, before: str = "") -> bytes:
    """The text of a JSON object, which has entries, with its checksum. before: a checksum on which it is to depend.

    >>> sealed_json(b'{"a": 1}')[:24]
    b'{"a": 1, "checksum": "79'
    """
    body = data.rstrip()[:-1].rstrip()
    return body + f', "checksum": "{digest(before.encode(), body)}"}}'.encode()


def check_json(data: bytes, path: Path, needed: bool) -> None:
    """Raises :class:`DamagedError` if a JSON object is not what was written, or lacks a checksum it needs."""
    body, found = of_json(data)
    _compare(path, found, digest(body), needed)


def check(data: bytes, path: Path, known: str | None) -> None:
    """Raises :class:`DamagedError` if a file is not what it is known by elsewhere; None: nothing is known."""
    _compare(path, known, digest(data), needed=False)


def sealed_toml(text: str) -> bytes:
    """A TOML document with its checksum as its last line."""
    body = text.encode()
    return body + f"# checksum {digest(body)}\n".encode()


def of_toml(data: bytes) -> tuple[bytes, str | None]:
    """(what the checksum of a TOML file is over, the checksum that it carries or None)."""
    found = _TOML.search(data)
    return (data, None) if found is None else (data[: found.start()], found[1].decode())


def check_toml(data: bytes, path: Path, needed: bool, hint: str = "") -> None:
    """Raises :class:`DamagedError` if a TOML file is not what was written, or lacks a checksum it needs."""
    body, found = of_toml(data)
    _compare(path, found, digest(body), needed, hint)


def _compare(path: Path, found: str | None, computed: str, needed: bool, hint: str = "") -> None:
    if found is None and needed:
        raise DamagedError(f"{path} has lost its checksum, so it is not what was written{hint}")
    if found is not None and found != computed:
        raise DamagedError(f"{path} is not what was written: its checksum does not fit{hint}")
