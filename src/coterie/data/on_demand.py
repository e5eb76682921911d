"""Clients whose data are made when they are needed and then forgotten: a million need the memory of those in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from coterie.core import Client

MOST_KEPT = 4096
"""Clients whose data stay in memory, in each process. They should be more than train in a round."""

MOST_EXAMINED = 100
"""Clients whose data are examined before a run, in place of all."""

Value = TypeVar("Value")
Other = TypeVar("Other")


class OnDemand(Mapping[Client, Value]):
    """The clients 0, 1, ... and their data, which a function makes whenever they are asked for.

    The data of the clients that were asked for last are kept. A copy in another process keeps its
    own. To look at the data of all clients makes all of them: :func:`examined` has a few.

    Args:
        make: Function of a client that returns its data, always the same ones.
        number: The number of clients.
        most_kept: Clients whose data are kept.
    """

    def __init__(
        self, make: Callable[[Client], Value], number: int, most_kept: int = MOST_KEPT
    ) -> None:
        self.make = make
        self.number = number
        self.most_kept = most_kept
        self._kept: dict[Client, Value] = {}
        self._examples: dict[Client, Value] | None = None

    def __getitem__(self, client: Client) -> Value:
        if client in self._kept:
            return self._kept[client]
        if client not in self:
            raise KeyError(client)
        client_data = self.make(client)
        self._kept[client] = client_data
        # A dict keeps the order in which its entries came: the first one is the oldest.
        if len(self._kept) > self.most_kept:
            del self._kept[next(iter(self._kept))]
        return client_data

    def __iter__(self) -> Iterator[Client]:
        return iter(range(self.number))

    def __len__(self) -> int:
        return self.number

    def __contains__(self, client: object) -> bool:
        is_id = isinstance(client, int) and not isinstance(client, bool)
        return is_id and client in range(self.number)

    def __repr__(self) -> str:
        return f"<{self.number:,} clients, made on demand>"

    def __getstate__(self) -> dict[str, Any]:
        # Another process makes the data that it needs itself.
        return {**self.__dict__, "_kept": {}, "_examples": None}

    def changed(self, change: Callable[[Client, Value], Other]) -> OnDemand[Other]:
        """Return these clients with other data.

        Args:
            change: Function of a client and its data that returns the new data.
        """
        return OnDemand(lambda client: change(client, self[client]), self.number, self.most_kept)

    @property
    def examples(self) -> dict[Client, Value]:
        """Some clients, evenly spaced, and their data, which are made once."""
        if self._examples is None:
            spacing = -(-self.number // MOST_EXAMINED)
            self._examples = {client: self[client] for client in range(0, self.number, spacing)}
        return self._examples


def examined(clients: Mapping[Client, Value]) -> Mapping[Client, Value]:
    """Return the clients whose data a check looks at: all, or some of those whose data are made on demand."""
    return clients.examples if isinstance(clients, OnDemand) else clients
