"""Attendance: the rounds in which clients are present, and whether they answer."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from coterie.core import Client
from coterie.data.parts import ScenarioPart
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError, brief, coerced, nearest, setting
from coterie.settings.calls import public


@public
@dataclass(frozen=True, kw_only=True)
class Attendance:
    """Rounds in which clients are present, and the probability that they do not answer; rounds count from 1.

    In a :class:`World`, clients may be given by their names.

    Attributes:
        joins: Client -> the first round in which it is present. The other clients are present from
            round 1.
        away: Client -> the intervals ``(from, to)``, both included, in which it is not present.
        silent: Probability that a client does not answer a request, drawn for each client and
            exchange.
        patience: Number of successive rounds without an answer after which a client counts as away.
            It then receives no more models, and is admitted again when it returns.
    """

    joins: Mapping[Client, int] = field(default_factory=dict)
    away: Mapping[Client, Sequence[tuple[int, int]]] = field(default_factory=dict)
    silent: float = 0.0
    patience: int = 10

    def __post_init__(self) -> None:
        # Mistakes in arguments are errors of one sentence, also where a type checker would find
        # them.
        for field_name in ("joins", "away"):
            field_value = getattr(self, field_name)
            if not isinstance(field_value, Mapping):
                raise SettingError(
                    f"Attendance.{field_name} must be a mapping from clients, such as {{0: ...}}, "
                    f"got {brief(field_value)}"
                )
        silent_probability = coerced("Attendance.silent", self.silent, float)
        if not 0 <= silent_probability <= 1:
            raise SettingError(f"Attendance.silent must be >= 0 and <= 1, got {self.silent!r}")
        patience = coerced("Attendance.patience", self.patience, int)
        if patience < 1:
            raise SettingError(f"Attendance.patience must be >= 1, got {self.patience!r}")
        object.__setattr__(self, "silent", silent_probability)
        object.__setattr__(self, "patience", patience)

    @property
    def is_full(self) -> bool:
        """Whether all clients are present in all rounds, so that none need be asked about."""
        return not self.joins and not self.away

    def is_present(self, client: Client, round: int) -> bool:
        """Whether ``client`` can be asked in ``round``."""
        # Not before it joins, and not in an interval of absence.
        if round < self.joins.get(client, 1):
            return False
        return not any(first <= round <= last for first, last in self.away.get(client, ()))

    def of(self, clients: Collection[Client]) -> Attendance:
        """The attendance of some of the clients."""
        kept_joins = {client: round for client, round in self.joins.items() if client in clients}
        kept_absences = {
            client: intervals for client, intervals in self.away.items() if client in clients
        }
        return replace(self, joins=kept_joins, away=kept_absences)

    def founders(self, clients: Iterable[Client]) -> tuple[Client, ...]:
        """Those of ``clients`` that are present from round 1, sorted."""
        return tuple(sorted(client for client in clients if self.joins.get(client, 1) <= 1))

    def answers(self, client: Client, exchange: int, seed: int) -> bool:
        """Whether ``client`` answers in ``exchange``; the draw does not depend on other clients."""
        if not self.silent:
            return True
        uniform_draw = numpy_generator(seed, Purpose.SILENCE, exchange, client).random()
        return bool(uniform_draw >= self.silent)


@dataclass(frozen=True, kw_only=True)
class AttendanceSettings(ScenarioPart):
    """Which clients of a scenario join late, leave for a while, or do not answer."""

    part: ClassVar[str] = "attendance"

    silent: float = setting(
        0.0, "probability that a client does not answer, in each exchange", ge=0, lt=1
    )
    patience: int = setting(
        10, "consecutive rounds without an answer after which a client counts as away", ge=1
    )
    newcomers: int | tuple[str, ...] = setting(
        0, "number of clients that join late, in join_round, or their names", ge=0
    )
    join_round: int = setting(
        10, "the round in which newcomers join", ge=1, not_with={"newcomers": (0, ())}
    )
    leavers: int | tuple[str, ...] = setting(
        0, "number of clients that leave and return, see leave, or their names", ge=0
    )
    leave: tuple[int, ...] = setting(
        (10, 20),
        "the first and the last round in which leavers are away",
        ge=1,
        not_with={"leavers": (0, ())},
    )

    def draw(
        self,
        clients: Collection[Client],
        seed: int,
        ids: Mapping[str, Client] = MappingProxyType({}),
    ) -> Attendance:
        """Make the attendance; newcomers and leavers that are numbers are different random clients.

        Args:
            clients: All clients.
            seed: Seed of the draw.
            ids: Name of a client -> its id.

        Returns:
            The attendance.

        Raises:
            SettingError: No client would always be present, a name is not known, or ``leave`` is
                not an interval.
        """
        # Clients that are given by name keep their role, and numbers are drawn from all others.
        newcomers = _ids("Scenario.newcomers", self.newcomers, ids)
        leavers = _ids("Scenario.leavers", self.leavers, ids)
        named_clients: set[Client] = set()
        for selection in (newcomers, leavers):
            if isinstance(selection, list):
                named_clients.update(selection)
        # Both draws take from one iterator, so that no client joins late and leaves, unless it was
        # named twice.
        random_order = numpy_generator(seed, Purpose.ATTENDANCE).permutation(sorted(clients))
        unnamed = [client for client in map(int, random_order) if client not in named_clients]
        unnamed_clients = iter(unnamed)
        late_clients = _drawn(newcomers, unnamed_clients)
        leaving_clients = _drawn(leavers, unnamed_clients)
        # Someone must be present in every round, or nothing could be trained.
        if len({*late_clients, *leaving_clients}) == len(clients):
            raise SettingError(
                f"Scenario.newcomers {self.newcomers} and leavers {self.leavers} must leave at "
                f"least one of the {len(clients)} clients"
            )
        if self.leavers and (len(self.leave) != 2 or self.leave[0] > self.leave[1]):
            raise SettingError(
                f"Scenario.leave must be the first and the last round of absence, "
                f"got {list(self.leave)}"
            )
        # All leavers are away in the same rounds.
        absences = [(self.leave[0], self.leave[1])] if self.leavers else []
        return Attendance(
            joins=dict.fromkeys(late_clients, self.join_round),
            away=dict.fromkeys(leaving_clients, absences),
            silent=self.silent,
            patience=self.patience,
        )


def _drawn(selection: int | list[Client], unnamed: Iterable[Client]) -> list[Client]:
    """The given clients, or as many of the ``unnamed``, in the order of their ids."""
    if isinstance(selection, int):
        return sorted(itertools.islice(unnamed, selection))
    return sorted(selection)


def _ids(
    setting: str, selection: int | Sequence[str], ids: Mapping[str, Client]
) -> int | list[Client]:
    """The ids of clients that are given by name; a number of clients as it is."""
    if isinstance(selection, int):
        return selection
    nameless = "" if ids else ": the clients of this data set have no names; give a number"
    return [id_of(setting, name, ids, nameless) for name in selection]


def id_of(owner: str, name: str, ids: Mapping[str, Client], hint: str = "") -> Client:
    """The id of a client's name; ``hint`` ends the error's sentence where no name is near."""
    if name not in ids:
        raise SettingError(
            f"{owner} has client {name!r}, which does not exist{nearest(name, ids) or hint}"
        )
    return ids[name]
