"""Access to a run's records: its settings, its rounds up to the requested one, and every note with its context."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import Criterion, Effect
from coterie.records.record import RUN, Line, Record
from coterie.records.shown import ClientId, shown_as, truth_at
from coterie.report.page.charts import load
from coterie.report.words import members
from coterie.settings import UserError, nearest

Clients = tuple[ClientId, ...]


@dataclass(frozen=True)
class RunHistory:
    """A run as recorded, up to a round.

    Attributes:
        folder: The run directory.
        description: The content of ``run.toml``.
        lines: The rounds; the requested one is the last.
    """

    folder: Path
    description: Mapping[str, Any]
    lines: Sequence[Line]

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.description["methods"][0]["name"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the method; ``none`` becomes None."""
        return {
            key: None if value == "none" else value
            for key, value in self.description["methods"][0].items()
        }

    @property
    def truth(self) -> list[Clients] | None:
        """The true groups, of the clients that are present; None if they are not known."""
        here = {c for group in self.groups for c in group}
        true = truth_at(self.description["world"], self.lines[-1]["round"])
        groups = [tuple(c for c in group if c in here) for group in true or ()]
        return [group for group in groups if group] if true else None

    @property
    def groups(self) -> list[Clients]:
        """The groups after the last of these rounds."""
        return [tuple(group) for group in self.lines[-1]["groups"]]

    @property
    def adversaries(self) -> list[int]:
        """The hostile clients, if the data contain this information."""
        return list(self.description["world"].get("adversaries", ()))

    def views(self) -> Iterator[NoteView]:
        """Yield every note, oldest first."""
        before: Line | None = None
        for place, line in enumerate(self.lines):
            for note in line["notes"]:
                yield NoteView(self, place, line, before, note)
            before = line


@dataclass(frozen=True)
class NoteView:
    """A note with its context.

    Attributes:
        history: The run.
        place: The position of the note's round in the run.
        line: The record of that round.
        before: The record of the round before, or None.
        note: The note.
    """

    history: RunHistory
    place: int
    line: Line
    before: Line | None
    note: Mapping[str, Any]

    @property
    def round(self) -> int:
        """The number of the note's round."""
        return int(self.line["round"])

    @property
    def kind(self) -> str:
        """The kind of the note."""
        return str(self.note["kind"])

    @property
    def effect(self) -> Effect:
        """What happened to the groups."""
        effect: Effect = self.note["effect"]
        return effect

    @property
    def clients(self) -> Clients:
        """The clients that the note is about."""
        return tuple(self.note["clients"])

    @property
    def parts(self) -> list[Clients]:
        """The parts of the note: groups of clients."""
        return [tuple(part) for part in self.note["parts"]]

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria of the note. Records have no infinite numbers: a bound is then that of the setting, or NaN."""
        return tuple(self._criterion(one) for one in self.note["criteria"])

    def _criterion(self, one: Mapping[str, Any]) -> Criterion:
        value = math.nan if one["value"] is None else one["value"]
        bound = (
            self.history.settings.get(one["setting"], math.nan)
            if one["bound"] is None
            else one["bound"]
        )
        return Criterion(
            one["name"],
            value,
            one["sign"],
            bound,
            one["setting"],
            one["met"],
            one["unmet"],
            one["key"],
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the note that are known."""
        return {name: value for name, value in self.note["numbers"].items() if value is not None}

    @property
    def labels(self) -> dict[str, int]:
        """What the note names or counts, such as nodes."""
        return dict(self.note["labels"])

    def values(self, name: str) -> dict[ClientId, float]:
        """Return client -> number for the numbers that are known; empty if the record has none of this name."""
        id = shown_as(self.line).key
        return {
            id(client): value
            for client, value in self.note["values"].get(name, {}).items()
            if value is not None
        }

    @cached_property
    def matrices(self) -> tuple[list[ClientId], dict[str, np.ndarray]]:
        """The clients of the rows, and the matrices ``(n, n)`` by name; both empty if nothing was recorded."""
        return (
            load(self.history.folder, self.line, self.note) if self.note["similarity"] else ([], {})
        )

    @property
    def was_one_group(self) -> bool:
        """Whether the clients of the parts were one group before this round."""
        divided = {client for part in self.parts for client in part}
        before = self.before["groups"] if self.before else [divided]
        return sum(bool(divided & set(group)) for group in before) == 1

    @property
    def changes(self) -> bool:
        """Whether the note changed groups."""
        if self.effect in ("joins", "moves", "merges"):
            return True
        if not self.parts:
            return False
        if self.effect == "regroups":  # with parts only if the next groups are others
            return True
        inside = {c for part in self.parts for c in part}
        old = {
            frozenset(inside & set(group))
            for group in (self.before["groups"] if self.before else [inside])
        }
        return {frozenset(part) for part in self.parts} != {group for group in old if group}


def read(run: Path | str, round: int | None = None) -> RunHistory:
    """Read the records of the run in directory ``run``.

    Args:
        run: The run directory.
        round: The last round to read; None for all.

    Raises:
        UserError: For a folder of several runs or of none, a run without rounds, or one without
            this round.
    """
    folder = Path(run)
    if not (folder / RUN).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{RUN}"))
        if inside:
            named = ", ".join(inside[:6]) + (
                f" and {len(inside) - 6} more" if len(inside) > 6 else ""
            )
            raise UserError(
                f"{run} has {len(inside)} runs inside, and explain tells of one: {named}"
            )
    record = Record(folder)
    description, lines = record.shown()
    if not lines:
        raise UserError(
            f"{run} has no completed round yet: there is nothing to explain; coterie resume {run} goes on with it"
        )
    last = lines[-1]["round"]
    if round is not None and not (isinstance(round, int) and 1 <= round <= last):
        raise UserError(
            f"--round {round} is not among the {last} recorded rounds of {run}: 1 to {last}"
        )
    return RunHistory(folder, description, lines if round is None else lines[:round])


def of_client(history: RunHistory, client: ClientId) -> tuple[ClientId, Clients]:
    """Return a client as the records show it, and its group.

    Args:
        history: The run.
        client: Its name or number, also as text.

    Raises:
        UserError: If the client is not present; the message names the nearest one.
    """
    found = next(
        ((one, group) for group in history.groups for one in group if str(one) == str(client)), None
    )
    if found is None:
        ids = [one for group in history.groups for one in group]
        once = next(
            (line["round"] for line in reversed(history.lines) if str(client) in line["clients"]),
            None,
        )
        refused = [
            why
            for line in history.lines[-1:]
            for one, why in line["refused"].items()
            if str(one) == str(client)
        ]
        if refused and once is None:
            raise UserError(f"client {client} takes no part: {refused[0]}")
        what = f"was last present in round {once}" if once else "is not one of the run's clients"
        raise UserError(
            f"client {client} {what}; after round {history.lines[-1]['round']} these are {members(ids, max_spans=6)}"
            f"{nearest(str(client), map(str, ids))}"
        )
    return found
