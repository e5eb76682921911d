"""What tests of trackers share: a record that is cut, and a tracker that keeps what it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from coterie.contrib.tracking.__main__ import follow
from coterie.contrib.tracking.pictures import Picture
from coterie.contrib.tracking.trackers import Tracker

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


class Kept(Tracker):
    """Keeps what it is given, and fails in round ``fails``."""

    name = "kept"

    def __init__(self, folder: Path, fails: int = 0) -> None:
        super().__init__(folder)
        self.fails = fails
        self.rounds: list[int] = []
        self.numbers: list[Mapping[str, float]] = []
        self.pictures: list[str] = []
        self.closed: list[bool] = []

    def write(
        self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]
    ) -> None:
        if round == self.fails:
            raise RuntimeError("the store is full")
        self.rounds.append(round)
        self.numbers.append(numbers)
        self.pictures += [picture.name for picture in pictures]

    def close(self) -> None:
        self.closed.append(self.finished)


def follow_one(run: Path, make: Callable[[Path], Tracker]) -> None:
    """Follow one run, as the process of a tracker does."""
    ours, theirs = os.pipe()
    os.write(theirs, os.fsencode(run) + b"\n\n")
    with open(ours, "rb", buffering=0) as stream, open(theirs, "wb"):
        follow(stream, make)
