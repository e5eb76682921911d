"""Client participation: clients that join, leave or return, and clients retired after too many rounds without an answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from coterie.core import Admits, Client, Method, Note, Plan, Position
from coterie.data.attendance import Attendance
from coterie.data.world import World
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
    known, number = set(position.members), position.round + 1
    new = tuple(
        c for c in sorted(roster.clients) if c not in known and roster.attendance.there(c, number)
    )
    if not new or not isinstance(method, Admits):
        return position, ()
    members = tuple(sorted((*position.members, *new)))
    text = f"{len(new)} client{'s' if len(new) > 1 else ''} joined in round {number}"
    note = Note(kind="arrive", effect="arrives", clients=new, text=text)
    return replace(position, members=members, state=method.admit(position.state, new)), (note,)


def present(attendance: Attendance, position: Position) -> tuple[Client, ...]:
    """Members that are present in the next round."""
    return tuple(c for c in position.members if attendance.there(c, position.round + 1))


def answering(attendance: Attendance, plan: Plan, exchange: int, seed: int) -> Plan:
    """The plan without the tasks of clients that will not answer."""
    if not attendance.silent:
        return plan
    parts = {name: answering(attendance, part, exchange, seed) for name, part in plan.parts.items()}
    return replace(
        plan,
        tasks={c: t for c, t in plan.tasks.items() if attendance.answers(c, exchange, seed)},
        parts=parts,
    )


def retire_silent(
    method: Method[Any],
    position: Position,
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
    patience: int,
) -> tuple[Position, tuple[Note, ...]]:
    """Count missed rounds and retire the clients that missed too many in a row.

    A member misses a round if it was not present, or was asked and did not answer. A member that
    missed ``patience`` rounds in a row is retired: it is no longer served, and is admitted as a new
    client when it returns. At least one member stays.

    Args:
        method: The method that retires them.
        position: State of the run after the round.
        asked: Clients that got a task in the round.
        heard: Clients that answered in the round.
        there: Clients that were present in the round.
        patience: Missed rounds in a row after which a client is retired.

    Returns:
        The position after the round, and a note of kind "leave" if clients were retired.
    """
    missed = missed_rounds(position.missed, position.members, asked, heard, there)
    gone = tuple(c for c, rounds in missed.items() if rounds >= patience)
    stay = tuple(c for c in position.members if c not in set(gone))
    if not gone or not stay or not isinstance(method, Admits):  # the last members are never retired
        return replace(position, missed=missed), ()
    text = f"{len(gone)} client{'s' if len(gone) > 1 else ''} away: no answer in {patience} round{'s' if patience > 1 else ''}"
    note = Note(kind="leave", effect="leaves", clients=gone, text=text)
    missed = {c: rounds for c, rounds in missed.items() if c not in set(gone)}
    return replace(
        position, members=stay, missed=missed, state=method.retire(position.state, gone)
    ), (note,)


def missed_rounds(
    before: Mapping[Client, int],
    members: Collection[Client],
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
) -> dict[Client, int]:
    """Rounds in a row that each member has missed; a round in which it is present and has no task does not count."""
    heard, there, asked = set(heard), set(there), set(asked)
    out = {c: before.get(c, 0) + (c in asked or c not in there) for c in members if c not in heard}
    return {c: rounds for c, rounds in out.items() if rounds}
