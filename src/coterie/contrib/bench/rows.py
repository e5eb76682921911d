"""Rows of results: one per world, method and seed, as lines of JSON."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coterie.contrib.bench.suites import VERSION, WORLDS, BenchWorld
from coterie.files import read_regular
from coterie.records.text_files import to_json
from coterie.settings import UserError, nearest

RECORDED_ROWS_FOLDER = "rows"
"""Folder of this package with the recorded rows: Coterie's own, and a file of each method that others sent."""

ROW_FILE_SUFFIXES = (".jsonl", ".jsonl.gz")

MAX_UNPACKED_BYTES = 1 << 28


@dataclass(frozen=True)
class Row:
    """A run of a method in a world with one seed.

    Attributes:
        version: The version of the suites.
        world: The name of the world.
        data: The beginning of the digest of the world's data.
        method: The name of the method.
        settings: Its settings that are no defaults.
        seed: The seed.
        scores: The score of each honest client, in the order of their ids.
        rand: The adjusted Rand index of the groups in the last round; None without true groups.
        groups: The number of groups in the last round.
        bytes: Bytes between clients and server, in both directions.
        seconds: The time on the machine that made the row.
    """

    version: int
    world: str
    data: str
    method: str
    settings: dict[str, Any]
    seed: int
    scores: list[float]
    rand: float | None
    groups: int
    bytes: int
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int]:
        """World, method, settings and seed."""
        return self.world, self.method, json.dumps(self.settings, sort_keys=True), self.seed

    @property
    def score(self) -> float:
        """The mean score over clients."""
        return float(np.mean(self.scores))

    @property
    def worst(self) -> float:
        """The score of the worst client."""
        return min(self.scores)


_DECODER = msgspec.json.Decoder(Row)


def read_rows(path: Path) -> list[Row]:
    """Read a file of rows; of a row that is there twice, the last one counts.

    Args:
        path: The file, whose name ends in .jsonl or .jsonl.gz.

    Raises:
        UserError: A line is no row.
    """
    content = read_regular(path)
    if path.name.endswith(".gz"):
        content = _unpacked(content, path)
    rows: dict[Any, Row] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = _DECODER.decode(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}, is no row of a suite: {error}") from error
        rows[row.key] = row
    return list(rows.values())


def _unpacked(content: bytes, path: Path) -> bytes:
    """The bytes of a compressed file, which may be anybody's, up to a limit."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be unpacked") from error
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise UserError(f"{path} is too large for a file of rows")
    return unpacked


def recorded_rows() -> list[Row]:
    """All rows that come with Coterie."""
    folder = Path(str(files("coterie.contrib.bench") / RECORDED_ROWS_FOLDER))
    rows: list[Row] = []
    for path in sorted(folder.glob("*.jsonl*")):
        rows += read_rows(path)
    return rows


def append_row(path: Path, row: Row) -> None:
    """Add a row to the end of a file of rows."""
    text = f"{to_json(asdict(row))}\n"
    if path.name.endswith(".gz"):
        with gzip.open(path, "at", encoding="utf-8") as packed:
            packed.write(text)
    else:
        with path.open("a", encoding="utf-8") as plain:
            plain.write(text)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of rows, sorted by world, method and seed: equal rows make equal files."""
    text = "".join(f"{to_json(asdict(row))}\n" for row in sorted(rows, key=lambda row: row.key))
    content = text.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def mistakes(
    rows: Iterable[Row], suite: Sequence[BenchWorld], recorded: Iterable[Row]
) -> list[str]:
    """What is wrong with rows that are to be compared with the recorded ones, as sentences.

    Args:
        rows: The rows of one file.
        suite: The worlds in which each method must have been run, with all seeds.
        recorded: The recorded rows, whose data must be the same.
    """
    rows = list(rows)
    data_of_world = {(row.world, row.seed): row.data for row in recorded}
    sentences: dict[str, None] = {}
    for row in rows:
        for sentence in _mistakes_of(row, data_of_world):
            sentences[sentence] = None
    # Every method has the same settings everywhere, and all worlds and seeds of the suite.
    settings_of_method: dict[str, set[str]] = {}
    runs_of_method: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        settings_of_method.setdefault(row.method, set()).add(row.key[2])
        runs_of_method.setdefault(row.method, set()).add((row.world, row.seed))
    needed = {(world.name, seed) for world in suite for seed in world.seeds}
    for method, settings in settings_of_method.items():
        if len(settings) > 1:
            sentences[
                f"{method} has {len(settings)} different settings, and needs the same in all worlds: "
                f"{'; '.join(sorted(settings))}"
            ] = None
        missing = sorted(needed - runs_of_method[method])
        if missing:
            world, seed = missing[0]
            sentences[
                f"{method} lacks {len(missing)} of {len(needed)} runs, such as {world} with seed {seed}"
            ] = None
    return list(sentences)


def _mistakes_of(row: Row, data_of_world: Mapping[tuple[str, int], str]) -> list[str]:
    """What is wrong with a single row."""
    if row.version != VERSION:
        return [
            f"a row of {row.method} is of version {row.version} of the suites, and this is {VERSION}: run it again"
        ]
    world = WORLDS.get(row.world)
    if world is None:
        return [f"there is no world {row.world!r}{nearest(row.world, WORLDS)}"]
    sentences = []
    if row.seed not in world.seeds:
        seeds = ", ".join(map(str, world.seeds))
        sentences.append(
            f"{row.world} has the seeds {seeds}, and {row.method} has a row of {row.seed}"
        )
    expected = data_of_world.get((row.world, row.seed))
    if expected is not None and row.data != expected:
        sentences.append(
            f"{row.world} with seed {row.seed} has other data than the recorded rows "
            f"({row.data}, not {expected}): another version of a package or of a file?"
        )
    if not row.scores or not all(np.isfinite(score) and score <= 1 for score in row.scores):
        sentences.append(f"{row.method} in {row.world} has scores that are no accuracies")
    return sentences
