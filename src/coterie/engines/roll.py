"""Who takes part: clients that come, go, come back, or are silent for so long that nobody waits for them any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from coterie.attendance import Attendance
from coterie.core import Admits, Client, Method, Note, Plan
from coterie.settings import SettingError
from coterie.world import World

if TYPE_CHECKING:
    from coterie.engines.inprocess import Position


class Roster(Protocol):
    """Those who may take part: a world's clients, or the nodes of a federation."""

    @property
    def clients(self) -> Mapping[Client, Any]: ...

    @property
    def attendance(self) -> Attendance: ...

    @property
    def attacks(self) -> Mapping[Client, Any]: ...


def check(method: Method[Any], world: World) -> None:
    """Raises :class:`SettingError` if clients are to join and the method has no way to admit them."""
    if world.attendance.joins and not isinstance(method, Admits):
        raise SettingError(f"{method.name} cannot take newcomers: it has no admit and retire")


def call(method: Method[Any], roster: Roster, position: Position) -> tuple[Position, tuple[Note, ...]]:
    """The position in which those have been admitted that are there in the next round and were not members."""
    known, number = set(position.members), position.round + 1
    new = tuple(c for c in sorted(roster.clients) if c not in known and roster.attendance.there(c, number))
    if not new or not isinstance(method, Admits):
        return position, ()
    members = tuple(sorted((*position.members, *new)))
    text = f"{len(new)} client{'s' if len(new) > 1 else ''} joined in round {number}"
    note = Note(kind="join", clients=new, text=text)
    return replace(position, members=members, state=method.admit(position.state, new)), (note,)


def present(attendance: Attendance, position: Position) -> tuple[Client, ...]:
    """The members that can be asked in the next round."""
    return tuple(c for c in position.members if attendance.there(c, position.round + 1))


def answering(attendance: Attendance, plan: Plan, exchange: int, seed: int) -> Plan:
    """The plan without the tasks of those who will not answer."""
    if not attendance.silent:
        return plan
    return replace(plan, tasks={c: t for c, t in plan.tasks.items() if attendance.answers(c, exchange, seed)})


def dismiss(
    method: Method[Any],
    position: Position,
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
    patience: int,
) -> tuple[Position, tuple[Note, ...]]:
    """The position after a round: who was not there, or asked and not heard, has missed one more.

    Who has missed ``patience`` rounds in a row is away: it is served no more, and admitted anew on return.
    """
    missed = _missed(position.missed, position.members, asked, heard, there)
    gone = tuple(c for c, rounds in missed.items() if rounds >= patience)
    stay = tuple(c for c in position.members if c not in set(gone))
    if not gone or not stay or not isinstance(method, Admits):  # the last ones are waited for
        return replace(position, missed=missed), ()
    text = f"{len(gone)} client{'s' if len(gone) > 1 else ''} away: no answer in {patience} round{'s' if patience > 1 else ''}"
    note = Note(kind="leave", clients=gone, text=text)
    missed = {c: rounds for c, rounds in missed.items() if c not in set(gone)}
    return replace(position, members=stay, missed=missed, state=method.retire(position.state, gone)), (note,)


def _missed(
    before: Mapping[Client, int],
    members: Collection[Client],
    asked: Collection[Client],
    heard: Collection[Client],
    there: Collection[Client],
) -> dict[Client, int]:
    """Rounds in a row in which each member was not heard; who rests while it is there has missed nothing more."""
    heard, there, asked = set(heard), set(there), set(asked)
    out = {c: before.get(c, 0) + (c in asked or c not in there) for c in members if c not in heard}
    return {c: rounds for c, rounds in out.items() if rounds}
