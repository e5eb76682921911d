"""What a run's records tell: its settings, its rounds as far as asked, and every note in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.codec import DamagedError
from coterie.record import RUN, Line, Record
from coterie.report.page.squares import load
from coterie.settings import UserError

Clients = tuple[int, ...]


@dataclass(frozen=True)
class Story:
    """A run as recorded, up to a round. description: of ``run.toml``. lines: the rounds, the last that was asked for last."""

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]

    @property
    def method(self) -> str:
        return str(self.description["methods"][0]["name"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Of the method; ``none`` is None."""
        return {key: None if value == "none" else value for key, value in self.description["methods"][0].items()}

    @property
    def truth(self) -> list[Clients] | None:
        """The true groups, of those clients that are there."""
        here = {c for group in self.groups for c in group}
        told = self.description["world"].get("true_groups")
        groups = [tuple(c for c in group if c in here) for group in told or ()]
        return [group for group in groups if group] if told else None

    @property
    def groups(self) -> list[Clients]:
        return [tuple(group) for group in self.lines[-1]["groups"]]

    @property
    def adversaries(self) -> list[int]:
        """Hostile clients, where the data tell."""
        return list(self.description["world"].get("adversaries", ()))

    def group(self, client: int) -> Clients | None:
        return next((group for group in self.groups if client in group), None)

    @cached_property
    def nodes(self) -> dict[int, Clients]:
        """Number of a node of the tree of groups -> who was in it when it was made, as far as records tell."""
        found: dict[int, Clients] = {}
        for told in self.told():
            first = told.numbers.get("first_part")
            if first is not None:
                found |= {int(first) + i: part for i, part in enumerate(told.parts)}
        return found

    def told(self) -> Iterator[Told]:
        """Every note, oldest first."""
        before: Line | None = None
        for place, line in enumerate(self.lines):
            for note in line["notes"]:
                yield Told(self, place, line, before, note)
            before = line


@dataclass(frozen=True)
class Told:
    """A note in its place: the line of its round, whose place is ``place``, and the line before."""

    story: Story
    place: int
    line: Line
    before: Line | None
    note: Mapping[str, Any]

    @property
    def round(self) -> int:
        return int(self.line["round"])

    @property
    def kind(self) -> str:
        return str(self.note["kind"])

    @property
    def clients(self) -> Clients:
        return tuple(self.note["clients"])

    @property
    def parts(self) -> list[Clients]:
        return [tuple(part) for part in self.note["parts"]]

    @property
    def numbers(self) -> dict[str, float]:
        """Those that are known."""
        return {name: value for name, value in (self.note.get("numbers") or {}).items() if value is not None}

    def values(self, name: str) -> dict[int, float]:
        """client -> number, of those that are known; empty where the record has none of this name."""
        found = (self.note.get("values") or {}).get(name) or {}
        return {int(client): value for client, value in found.items() if value is not None}

    @cached_property
    def matrices(self) -> tuple[list[int], dict[str, np.ndarray]]:
        """The clients of the rows, and the matrices ``(n, n)`` by name; none where nothing was recorded."""
        name, line = self.note.get("similarity"), self.story.lines[self.round - 1]
        if name and name in line.get("files", {}):
            return load(self.story.folder, line, self.note)
        if name:
            with suppress(DamagedError):  # of an earlier Coterie: a lost file is told like one that never was
                return load(self.story.folder, line, self.note)
        return [], {}

    def matrix(self, name: str = "all") -> tuple[list[int], np.ndarray | None]:
        clients, found = self.matrices
        return clients, found.get(name)

    @property
    def changes(self) -> bool:
        """Whether groups became others by it."""
        if self.arrives:
            return False
        if self.kind in ("join", "move", "merge"):
            return True
        if not self.parts or self.kind in ("hold", "ask", "gradients"):
            return False
        if self.kind == "partition":  # these are told where the groups to come are not those that trained
            return True
        inside = {c for part in self.parts for c in part}
        old = {frozenset(inside & set(group)) for group in (self.before["groups"] if self.before else [inside])}
        return {frozenset(part) for part in self.parts} != {group for group in old if group}

    @property
    def arrives(self) -> bool:
        """Whether it tells of clients who came to the federation, and of no decision: an engine's note, not a method's."""
        return self.kind == "join" and not self.numbers and str(self.note["text"]).endswith(f"joined in round {self.round}")


def read(run: Path | str, round: int | None = None) -> Story:
    """The records of the run in directory ``run``, up to ``round``; the last where None.

    Raises :class:`~coterie.settings.UserError` for a folder of several runs or of none, without rounds, or without that one.
    """
    folder = Path(run)
    if not (folder / RUN).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RUN}"))
        if inside:
            named = ", ".join(inside[:6]) + (f" and {len(inside) - 6} more" if len(inside) > 6 else "")
            raise UserError(f"{run} has {len(inside)} runs inside, and explain tells of one: {named}")
    record = Record(folder)
    description, lines = record.description(), record.lines()
    if not lines:
        raise UserError(f"{run} has no completed round yet: there is nothing to explain; coterie resume {run} goes on with it")
    last = lines[-1]["round"]
    if round is not None and not 1 <= round <= last:
        raise UserError(f"--round {round} is not among the {last} recorded rounds of {run}: 1 to {last}")
    return Story(folder, description, lines if round is None else lines[:round])


def of_client(story: Story, client: int) -> Clients:
    """The group of a client. Raises :class:`~coterie.settings.UserError` for one that is not there, naming the nearest."""
    group = story.group(client)
    if group is None:
        ids = sorted(c for members in story.groups for c in members)
        near = min(ids, key=lambda other: (abs(other - client), other))
        once = next((line["round"] for line in reversed(story.lines) if str(client) in line["clients"]), None)
        what = f"was last there in round {once}" if once else "is not one of the run's clients"
        raise UserError(
            f"client {client} {what}: after round {story.lines[-1]['round']} there are {len(ids)} clients, "
            f"{ids[0]} to {ids[-1]}; the nearest is {near}"
        )
    return group
