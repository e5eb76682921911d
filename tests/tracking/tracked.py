"""What tests of trackers share: a record that is cut, and a writer that keeps what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.tracking.measures import Picture, TrackerState

ROUNDS = 8
"""Of the run that is tracked."""


def cut(run: Path, rounds: int) -> bytes:
    """Cut the record of ``run`` after so many rounds; returns what is cut off."""
    path = run / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:rounds]))
    return b"".join(lines[rounds:])


def append(run: Path, data: bytes) -> None:
    """Put it back."""
    with open(run / "rounds.jsonl", "ab") as file:
        file.write(data)


class Kept:
    """Keeps what it is told, and fails in round ``fails``."""

    def __init__(self, folder: Path, fails: int = 0) -> None:
        self.place, self.fails = TrackerState(folder, "kept"), fails
        self.rounds: list[int] = []
        self.numbers: list[Mapping[str, float]] = []
        self.pictures: list[str] = []
        self.closed: list[bool] = []

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        if round == self.fails:
            raise RuntimeError("the store is full")
        self.rounds.append(round)
        self.numbers.append(numbers)
        self.pictures += [picture.name for picture in pictures]

    def close(self, finished: bool) -> None:
        self.closed.append(finished)
