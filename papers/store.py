"""Where rows are kept: a file of JSON lines per study and scale, to which each row is added as it is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coterie.files import read_regular
from coterie.records.codec import DamagedError
from coterie.records.text_files import to_json
from papers.study import Cell, Row, key


class Rows:
    """The rows at ``path``. A last line that a killed process has cut short does not count, and is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def known(self) -> dict[str, Row]:
        """Key of a cell -> its row. Raises :class:`~coterie.records.codec.DamagedError` for a line that is not a row."""
        return self._whole()[0]

    def of(self, cells: list[Cell]) -> list[Row]:
        """The rows of those of ``cells`` that are recorded, in their order."""
        known = self.known()
        return [known[key(cell)] for cell in cells if key(cell) in known]

    def append(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        end = self._whole()[1]
        with open(self.path, "ab") as file:
            file.truncate(end)
            file.write(to_json(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _whole(self) -> tuple[dict[str, Row], int]:
        """The rows of whole lines, and where the last of these ends."""
        data = read_regular(self.path) if self.path.exists() else b""
        known: dict[str, Row] = {}
        end = 0
        for number, line in enumerate(data.splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                known[key(row["cell"])] = {**row, "found": row["found"], "seconds": row["seconds"]}
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise DamagedError(
                    f"line {number} of {self.path} is not a row of a study ({error})"
                ) from error
            end += len(line)
        return known, end
