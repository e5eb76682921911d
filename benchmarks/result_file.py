"""Files of results: a line of JSON per run, so that a study can be stopped, and goes on where it was."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast


def read_results(path: Path) -> list[dict[str, Any]]:
    """The rows that a file has; none if there is no file. One whose name ends in .gz is compressed."""
    if not path.exists():
        return []
    with _opened(path, "rt") as file:
        return [json.loads(line) for line in file]


def append_result(path: Path, row: Mapping[str, Any]) -> None:
    """Add a row at the end of a file, which is made if it is not there."""
    with _opened(path, "at") as file:
        file.write(json.dumps(row) + "\n")


def _opened(path: Path, mode: str) -> IO[str]:
    return cast(IO[str], gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode))
