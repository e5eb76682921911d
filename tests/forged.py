"""Run directories whose files were edited and whose checksums were then written anew, as anybody can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.records.checksum import of_toml, sealed_json, sealed_toml
from coterie.records.record import Record
from coterie.records.text_files import to_json


def forge(folder: Path) -> None:
    """Make the checksums of a run directory fit to what its files say now."""
    toml = folder / "run.toml"
    toml.write_bytes(sealed_toml(of_toml(toml.read_bytes())[0].decode()))
    identity = Record(folder).identity()
    path = folder / "rounds.jsonl"
    if path.exists():
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(_sealed(line, identity) + b"\n" for line in lines))
    for checkpoint in folder.glob("state/*.json"):
        document = json.loads(checkpoint.read_bytes())
        document["run"] = identity
        document.pop("checksum", None)
        checkpoint.write_bytes(sealed_json(json.dumps(document).encode()))


def _sealed(line: dict[str, Any], identity: str) -> bytes:
    line.pop("checksum", None)
    return sealed_json(to_json(line).encode(), identity)


def change(folder: Path, edit: Callable[[str], str]) -> None:
    """Edit the text of ``run.toml``, and make all checksums fit to it."""
    toml = folder / "run.toml"
    toml.write_text(edit(toml.read_text()))
    forge(folder)


def change_lines(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit every recorded round in place, and make all checksums fit to it."""
    path = folder / "rounds.jsonl"
    lines = [json.loads(raw) for raw in path.read_bytes().splitlines()]
    for line in lines:
        edit(line)
    path.write_text("".join(f"{to_json(line)}\n" for line in lines))
    forge(folder)
