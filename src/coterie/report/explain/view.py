"""Access to a run's records: its settings, its rounds up to the requested one, and every note with its context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import Criterion, Effect
from coterie.records.record import RUN_FILE, Record
from coterie.records.shown import ClientId, Line, shown_as, truth_at
from coterie.report.page.charts import load
from coterie.report.words import MAX_RUNS_NAMED, members
from coterie.settings import UserError, in_shell, nearest

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
        settings: dict[str, Any] = {}
        for setting, value in self.description["methods"][0].items():
            settings[setting] = None if value == "none" else value
        return settings

    @property
    def truth(self) -> list[Clients] | None:
        """The true groups, of the clients that are present; None if they are not known."""
        # Clients that are not present are left out, and so are groups without any client.
        true_groups = truth_at(self.description["world"], self.lines[-1]["round"])
        if not true_groups:
            return None
        present_groups = []
        for group in true_groups:
            present = tuple(client for client in group if client in self.present)
            if present:
                present_groups.append(present)
        return present_groups

    @property
    def groups(self) -> list[Clients]:
        """The groups after the last of these rounds."""
        return list(map(tuple, self.lines[-1]["groups"]))

    @cached_property
    def present(self) -> set[ClientId]:
        """The clients that are in a group after the last of these rounds."""
        return clients_of(self.lines[-1])

    @property
    def adversaries(self) -> list[int]:
        """The hostile clients, if the data contain this information."""
        return list(self.description["world"].get("adversaries", ()))

    def views(self) -> Iterator[NoteView]:
        """Yield every note, oldest first."""
        line_before: Line | None = None
        # Each note is seen with the round before it, to tell what it changed.
        for round_index, line in enumerate(self.lines):
            for note in line["notes"]:
                yield NoteView(self, round_index, line, line_before, note)
            line_before = line


def clients_of(line: Line) -> set[ClientId]:
    """Return the clients that are in a group after a round."""
    return set().union(*line["groups"])


@dataclass(frozen=True)
class NoteView:
    """A note with its context.

    Attributes:
        history: The run.
        index: The position of the note's round in the run.
        line: The record of that round.
        line_before: The record of the round before, or None.
        note: The note.
    """

    history: RunHistory
    index: int
    line: Line
    line_before: Line | None
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
        return list(map(tuple, self.note["parts"]))

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria of the note. Records have no infinite numbers: a bound is then that of the setting, or NaN."""
        return tuple(map(self._criterion, self.note["criteria"]))

    def _criterion(self, recorded: Mapping[str, Any]) -> Criterion:
        # None stands for a number that is not finite.
        value = recorded["value"]
        if value is None:
            value = math.nan
        bound = recorded["bound"]
        if bound is None:
            bound = self.history.settings.get(recorded["setting"], math.nan)
        return Criterion(
            recorded["name"],
            value,
            recorded["sign"],
            bound,
            recorded["setting"],
            recorded["met"],
            recorded["unmet"],
            recorded["key"],
        )

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the note that are known."""
        return {
            number_name: value
            for number_name, value in self.note["numbers"].items()
            if value is not None
        }

    @property
    def labels(self) -> dict[str, int]:
        """What the note names or counts, such as nodes."""
        return dict(self.note["labels"])

    def values(self, value_name: str) -> dict[ClientId, float]:
        """Return client -> number for the numbers that are known; empty if the record has none of this name."""
        client_id = shown_as(self.line).key
        # Values that are not finite are recorded as None.
        recorded = self.note["values"].get(value_name, {})
        return {client_id(key): value for key, value in recorded.items() if value is not None}

    @cached_property
    def matrices(self) -> tuple[list[ClientId], dict[str, np.ndarray]]:
        """The clients of the rows, and the matrices ``(n, n)`` by name; both empty if nothing was recorded."""
        if not self.note["similarity"]:
            return [], {}
        return load(self.history.folder, self.line, self.note)

    @property
    def was_one_group(self) -> bool:
        """Whether the clients of the parts were one group before this round."""
        clients = self._clients_of_parts
        return sum(not clients.isdisjoint(group) for group in self._groups_before) == 1

    @property
    def changes(self) -> bool:
        """Whether the note changed groups."""
        if self.effect in ("joins", "moves", "merges"):
            return True
        if not self.parts:
            return False
        # Such a note has parts only if the next groups are others.
        if self.effect == "regroups":
            return True
        clients = self._clients_of_parts
        parts_before = {frozenset(clients & set(group)) for group in self._groups_before}
        return set(map(frozenset, self.parts)) != parts_before - {frozenset()}

    @property
    def _clients_of_parts(self) -> set[ClientId]:
        return set().union(*self.parts)

    @property
    def _groups_before(self) -> Sequence[Iterable[ClientId]]:
        """The groups before this round. Before the first one, the clients of the parts were one group."""
        if self.line_before is None:
            return [self._clients_of_parts]
        groups: Sequence[Iterable[ClientId]] = self.line_before["groups"]
        return groups


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
    # The folder may be that of an experiment: then the message names its runs.
    if not (folder / RUN_FILE).is_file():
        run_names = sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}"))
        if run_names:
            run_names_shown = ", ".join(run_names[:MAX_RUNS_NAMED])
            if len(run_names) > MAX_RUNS_NAMED:
                run_names_shown = f"{run_names_shown} and {len(run_names) - MAX_RUNS_NAMED} more"
            raise UserError(
                f"{run} has {len(run_names)} runs inside; explain takes one of them: {run_names_shown}"
            )
    # The records as people read them, up to the last complete round.
    record = Record(folder)
    description, lines = record.shown()
    if not lines:
        raise UserError(
            f"{run} has no completed round yet: there is nothing to explain; coterie resume {in_shell(run)} goes on with it"
        )
    # Rounds are numbered from 1 without gaps.
    last_round = lines[-1]["round"]
    # A caller in Python may pass any value.
    if round is not None and not (isinstance(round, int) and 1 <= round <= last_round):
        raise UserError(
            f"--round {round} is not among the {last_round} recorded rounds of {run}: 1 to {last_round}"
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
    for group in history.groups:
        for member in group:
            if str(member) == str(client):
                return member, group
    # The client is in no group now. It may have been refused, have left, or never have existed.
    last_line = history.lines[-1]
    last_round_present = next(
        (line["round"] for line in reversed(history.lines) if str(client) in line["clients"]), None
    )
    if last_round_present is None:
        for refused_client, reason in last_line["refused"].items():
            if str(refused_client) == str(client):
                raise UserError(f"client {client} is excluded: {reason}")
    absence = "is not one of the run's clients"
    if "all_clients" in history.description["world"]:
        absence = "is not one of the clients that the records list, those that are tested"
    if last_round_present:
        absence = f"was last present in round {last_round_present}"
    present = list(chain.from_iterable(history.groups))
    raise UserError(
        f"client {client} {absence}; after round {last_line['round']} these are {members(present, max_spans=6)}"
        f"{nearest(str(client), map(str, present))}"
    )
