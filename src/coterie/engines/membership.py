"""Client participation: clients that join, leave or return, and clients retired after too many rounds without an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from coterie.core import (
    STATISTICS,
    Admits,
    Client,
    Method,
    Note,
    Plan,
    Position,
    Replies,
    Statistic,
    without,
)
from coterie.data.attendance import Attendance
from coterie.data.world import World
from coterie.notebook.tables import count
from coterie.settings import SettingError


class Roster(Protocol):
    """The clients that may take part: those of a world, or the nodes of a federation."""

    @property
    def clients(self) -> Mapping[Client, Any]:
        """All clients, by id."""
        ...

    @property
    def attendance(self) -> Attendance:
        """The rounds in which clients are present, and whether they answer."""
        ...

    @property
    def client_names(self) -> Mapping[Client, str]:
        """The names of the clients, by id; empty if they have none."""
        ...

    @property
    def attacks(self) -> Mapping[Client, Any]:
        """The adversaries among the clients, by id, and their attacks."""
        ...


def check_membership(method: Method[Any], world: World) -> None:
    """Check that the method can admit clients if clients of the world join during the run.

    Args:
        method: The method to check.
        world: The clients and when they are present.

    Raises:
        SettingError: Clients join, and the method has no ``admit`` and ``retire``.
    """
    if world.attendance.joins and not isinstance(method, Admits):
        raise SettingError(
            f"{method.name} cannot take newcomers: it has no methods admit and retire"
        )


def admit_new(
    method: Method[Any], roster: Roster, position: Position
) -> tuple[Position, tuple[Note, ...]]:
    """Admit the clients that are present in the next round and are not members yet.

    Args:
        method: The method that admits them.
        roster: The clients that may take part.
        position: State of the run before the round.

    Returns:
        The position with the new members, and a note of kind "arrive" if there are any.
    """
    # Where all clients are present in all rounds, as many members as clients are all of them.
    if roster.attendance.is_full and len(position.members) == len(roster.clients):
        return position, ()
    # Newcomers are clients that are present, and are not members.
    current_members = set(position.members)
    next_round = position.round + 1
    new_clients = tuple(
        client
        for client in sorted(roster.clients)
        if client not in current_members and roster.attendance.is_present(client, next_round)
    )
    if not new_clients or not isinstance(method, Admits):
        return position, ()
    all_members = tuple(sorted((*position.members, *new_clients)))
    note_text = f"{_named(new_clients)} joined in round {next_round}"
    membership_note = Note(kind="arrive", effect="arrives", clients=new_clients, text=note_text)
    state = method.admit(position.state, new_clients)
    return replace(position, members=all_members, state=state), (membership_note,)


def told_statistics(replies: Replies) -> tuple[Note, ...]:
    """A note for each statistic of their data that clients told, in the plan or a part of it."""
    notes = []
    for statistic in STATISTICS:
        clients = _who_told(statistic, replies)
        if not clients:
            continue
        text = (
            f"{count(len(clients), 'client')} told the server the {STATISTIC_IN_WORDS[statistic]}"
        )
        notes.append(Note(kind="statistic", clients=tuple(sorted(clients)), text=text))
    return tuple(notes)


def _who_told(statistic: Statistic, replies: Replies) -> set[Client]:
    """The clients that told a statistic, in replies or in those to parts of the plan."""
    clients = set(replies.statistics.get(statistic, ()))
    for part_replies in replies.parts.values():
        clients |= _who_told(statistic, part_replies)
    return clients


STATISTIC_IN_WORDS: dict[Statistic, str] = {
    "label-counts": "counts of their labels",
    "feature-mean": "means of their features",
}
"""Statistic -> what clients told."""


def present(attendance: Attendance, position: Position) -> tuple[Client, ...]:
    """Members that are present in the next round."""
    # In most worlds all are.
    if attendance.is_full:
        return position.members
    next_round = position.round + 1
    return tuple(client for client in position.members if attendance.is_present(client, next_round))


def answering(attendance: Attendance, plan: Plan, exchange: int, seed: int) -> Plan:
    """The plan without the tasks of clients that will not answer."""
    # Most worlds have no silent clients.
    if not attendance.silent:
        return plan
    answered_parts = {
        part_name: answering(attendance, part, exchange, seed)
        for part_name, part in plan.parts.items()
    }
    answered_tasks = {
        client: task
        for client, task in plan.tasks.items()
        if attendance.answers(client, exchange, seed)
    }
    return replace(plan, tasks=answered_tasks, parts=answered_parts)


def retire_silent(
    method: Method[Any],
    position: Position,
    asked_clients: Collection[Client],
    answered_clients: Collection[Client],
    present_clients: Collection[Client],
    patience: int,
) -> tuple[Position, tuple[Note, ...]]:
    """Count missed rounds and retire the clients that missed too many in a row.

    A member misses a round if it was not present, or was asked and did not answer. A member that
    missed ``patience`` rounds in a row is retired: it is no longer served, and is admitted as a new
    client when it returns. At least one member stays.

    Args:
        method: The method that retires them.
        position: State of the run after the round.
        asked_clients: Clients that got a task in the round.
        answered_clients: Clients that answered in the round.
        present_clients: Clients that were present in the round.
        patience: Missed rounds in a row after which a client is retired.

    Returns:
        The position after the round, and a note of kind "leave" if clients were retired.
    """
    missed_by_member = missed_rounds(
        position.missed, position.members, asked_clients, answered_clients, present_clients
    )
    # Members that have missed too many rounds in a row leave.
    retired = tuple(
        client
        for client, missed_in_a_row in missed_by_member.items()
        if missed_in_a_row >= patience
    )
    # The last members are never retired.
    if not 0 < len(retired) < len(position.members) or not isinstance(method, Admits):
        return replace(position, missed=missed_by_member), ()
    staying = without(position.members, retired)
    verb = "counts" if len(retired) == 1 else "count"
    note_text = (
        f"{_named(retired)} {verb} as away: "
        f"no answer in {patience} round{'s' if patience > 1 else ''}"
    )
    membership_note = Note(kind="leave", effect="leaves", clients=retired, text=note_text)
    still_missed = {
        client: missed_by_member[client]
        for client in missed_by_member
        if client not in set(retired)
    }
    state = method.retire(position.state, retired)
    return replace(position, members=staying, missed=still_missed, state=state), (membership_note,)


MAX_CLIENTS_BY_NAME = 4
"""Clients that came or went together and are named one by one."""


def _named(clients: Sequence[Client]) -> str:
    """A few clients one by one, so that readers see their names; of many, their number."""
    if len(clients) > MAX_CLIENTS_BY_NAME:
        return f"{len(clients)} clients"
    return ", ".join(f"client {client}" for client in clients)


def missed_rounds(
    missed_before: Mapping[Client, int],
    members: Collection[Client],
    asked_clients: Collection[Client],
    answering_clients: Collection[Client],
    present_clients: Collection[Client],
) -> dict[Client, int]:
    """Rounds in a row that each member has missed; a round in which it is present and has no task does not count."""
    answered_clients = set(answering_clients)
    # A client that is absent misses a round, and one that was asked and has not answered.
    missing = set(asked_clients)
    if len(present_clients) < len(members):
        missing |= set(members) - set(present_clients)
    # All others have missed no round, now or before, or answer again.
    may_have_missed = (missing | set(missed_before)) - answered_clients
    if not may_have_missed:
        return {}
    missed_by_member = {}
    for client in members:
        if client in may_have_missed:
            missed_by_member[client] = missed_before.get(client, 0) + (client in missing)
    return missed_by_member
