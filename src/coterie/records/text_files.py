"""JSON and TOML as Coterie writes and reads them.

Numbers that are not finite are ``null`` in all JSON that Coterie writes. A TOML file with a schema
version was written by Coterie and has a checksum; any other was written by a user.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.files import read_regular, reason
from coterie.printable import printable
from coterie.records import checksum
from coterie.records.codec import DamagedError
from coterie.records.store import check_schema
from coterie.settings import UserError, toml

REQUIRED_ENTRIES = (
    "methods",
    "scenario",
    "seeds",
    "rounds",
    "eval_every",
    "training",
    "boundary",
    "robust",
)
"""Entries that every ``run.toml`` and ``experiment.toml`` has. They are never taken from defaults.
"""

EDITABLE_ENTRIES = (
    "rounds",
    "target",
    "stop_after",
    "eval_every",
    "checkpoint_every",
    "checkpoints_kept",
    "workers",
    "data",
)
"""Entries of a ``run.toml`` that may be edited: the end of the run, how often it is tested and
stored, and where it is made.

All other entries describe the run."""


def finite(value: Any) -> Any:
    """Convert a value for JSON.

    Args:
        value: The value.

    Returns:
        The value, in which numbers that are not finite are None, NumPy's numbers are Python's, and
        tuples are lists.

    Example:
        >>> finite({"loss": float("nan"), "groups": ((0, 1),)})
        {'loss': None, 'groups': [[0, 1]]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text that is safe to show in a terminal, see :func:`finite` and ``coterie.printable.printable``."""
    json_text = json.dumps(finite(value), allow_nan=False, indent=indent, ensure_ascii=False)
    return printable(json_text, keep="\n")


def to_toml(document: Mapping[str, Any]) -> str:
    """TOML text; keys that are None are left out."""
    import tomli_w

    return tomli_w.dumps({key: value for key, value in document.items() if value is not None})


MAX_TOML_BYTES = 1 << 26
"""Most bytes of a TOML file; the ``run.toml`` of a hundred thousand clients has fewer."""

MAX_USER_TOML_BYTES = 1 << 20
"""Most bytes of a TOML file without a schema, which a user has written: many short keys take long
to parse."""

_SCHEMA_ENTRY = re.compile(rb"^schema\s*=", re.MULTILINE)


def read_toml(file_path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        file_path: The file.

    Returns:
        The document.

    Raises:
        UserError: The file cannot be read.
    """
    return _parsed_toml(_bytes_of(file_path), file_path)


def read_any(file_path: Path) -> dict[str, Any]:
    """The document in a TOML file; if it has a schema, so that Coterie wrote it, it is read by :func:`read_recorded`."""
    file_bytes = _bytes_of(file_path)
    document = _parsed_toml(file_bytes, file_path)
    return _checked(document, file_bytes, file_path) if "schema" in document else document


def read_recorded(file_path: Path) -> dict[str, Any]:
    """Read a TOML file that Coterie has written.

    Args:
        file_path: The file.

    Returns:
        The document.

    Raises:
        UserError: The file cannot be read, or is of a newer Coterie.
        DamagedError: The file has been changed or damaged.
    """
    file_bytes = _bytes_of(file_path)
    return _checked(_parsed_toml(file_bytes, file_path), file_bytes, file_path)


def _checked(document: dict[str, Any], file_bytes: bytes, file_path: Path) -> dict[str, Any]:
    """The document of a TOML file that Coterie has written, after checks."""
    check_schema(document.get("schema"), file_path)
    editable_words = f"{', '.join(EDITABLE_ENTRIES[:-1])} or {EDITABLE_ENTRIES[-1]}"
    hint = (
        f"; if you edited only its {editable_words}, "
        f"accept it with coterie check {file_path.parent} --accept"
    )
    checksum.check_toml(file_bytes, file_path, hint)
    # A default would be a guess about a run that was made with other settings.
    for entry_name in REQUIRED_ENTRIES:
        if entry_name not in document:
            raise DamagedError(f"{file_path} lacks {entry_name!r}; it is damaged")
    # With the secret in it, whoever gets the file could undo the boundary's map.
    boundary = document["boundary"]
    if isinstance(boundary, dict) and boundary.get("secret", "none") != "none":
        raise DamagedError(
            f"{file_path} has the boundary's secret in plain text, which Coterie never writes; delete it"
        )
    return document


def _bytes_of(file_path: Path) -> bytes:
    try:
        return read_regular(file_path, limit=MAX_TOML_BYTES)
    except OSError as error:
        raise UserError(f"{file_path} cannot be read: {reason(error)}") from error


def _parsed_toml(file_bytes: bytes, file_path: Path) -> dict[str, Any]:
    # Only a file that Coterie wrote may be large.
    is_large = len(file_bytes) > MAX_USER_TOML_BYTES
    if is_large and not _SCHEMA_ENTRY.search(file_bytes, 0, MAX_USER_TOML_BYTES):
        raise UserError(
            f"{file_path} has {len(file_bytes):,} bytes, more than the limit of {MAX_USER_TOML_BYTES:,}"
        )
    try:
        return toml(file_bytes.decode("utf-8-sig"))
    except ValueError as error:
        # The text is not UTF-8, or not TOML.
        raise UserError(f"{file_path} is not a readable TOML file: {error}") from error
