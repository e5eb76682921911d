"""Who is there when: clients that join late, go away and come back, and clients that do not answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.core import Client
from coterie.randomness import Purpose, numpy_generator
from coterie.settings import SettingError


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """The comings and goings of a federation; rounds count from 1.

    joins: client -> the round in which it is there for the first time; the others are there from the first. away:
    client -> the spells ``(from, to)``, both included, in which it is not there. silent: probability with which a client
    that is asked does not answer, drawn for each client and exchange. patience: rounds in a row without an answer after
    which a client counts as away: it is served no more, and admitted anew on return.
    """

    joins: Mapping[Client, int] = field(default_factory=dict)
    away: Mapping[Client, Sequence[tuple[int, int]]] = field(default_factory=dict)
    silent: float = 0.0
    patience: int = 10

    def there(self, client: Client, round: int) -> bool:
        """Whether ``client`` can be asked in ``round``."""
        return self.joins.get(client, 1) <= round and not any(a <= round <= b for a, b in self.away.get(client, ()))

    def founders(self, clients: Iterable[Client]) -> tuple[Client, ...]:
        """Those of ``clients`` that are in the federation from its first round, sorted."""
        return tuple(sorted(c for c in clients if self.joins.get(c, 1) <= 1))

    def answers(self, client: Client, exchange: int, seed: int) -> bool:
        """Whether ``client`` answers when asked in ``exchange``; of other clients' draws it knows nothing."""
        return not self.silent or bool(
            numpy_generator(seed, Purpose.SILENCE, exchange, client).random() >= self.silent
        )


def drawn(
    clients: Sequence[Client],
    seed: int,
    *,
    silent: float = 0.0,
    patience: int = 10,
    newcomers: int = 0,
    join_round: int = 1,
    leavers: int = 0,
    leave: Sequence[int] = (),
) -> Attendance:
    """Attendance with so many ``newcomers`` from ``join_round`` on and so many ``leavers`` away from round ``leave[0]`` to
    ``leave[1]``, all of them different clients at random."""
    if newcomers + leavers >= len(clients):
        raise SettingError(
            f"Scenario.newcomers {newcomers} and leavers {leavers} must leave at least one of the {len(clients)} clients"
        )
    if leavers and (len(leave) != 2 or leave[0] > leave[1]):
        raise SettingError(f"Scenario.leave must be the first and the last round of absence, got {list(leave)}")
    order = [int(c) for c in numpy_generator(seed, Purpose.ATTENDANCE).permutation(sorted(clients))]
    spell = [(leave[0], leave[1])] if leavers else []
    return Attendance(
        joins=dict.fromkeys(sorted(order[:newcomers]), join_round),
        away=dict.fromkeys(sorted(order[newcomers : newcomers + leavers]), spell),
        silent=silent,
        patience=patience,
    )
