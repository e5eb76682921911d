"""Clients, groups of clients, and the classes that a stored state may contain."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar, dataclass_transform

from coterie.settings.calls import public

Client = int
"""A client's id: any integer >= 0, the same in every exchange. Never a position in a matrix."""

LONGEST_NAME = 100
"""Most characters of a client's name."""

Groups = tuple[tuple[Client, ...], ...]
"""A partition of clients: each group sorted, groups ordered by their first member."""

STATES: dict[str, type[Any]] = {}
"""Tag -> class, for all classes that may occur in a stored state. A checkpoint can restore only
these."""

STORED = "stored"
"""Key of a field's metadata in a state class; False: the field is left out of stored states."""

NOT_STORED: Mapping[str, bool] = {STORED: False}
"""Metadata of a field on which nothing depends after the exchange, such as notes. It has a default."""

StateClass = TypeVar("StateClass")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,)
)
def state(tag: str) -> Callable[[type[StateClass]], type[StateClass]]:
    """Turn a class into a frozen, keyword-only dataclass that can be stored; a class decorator.

    Its fields may be tensors, numbers, strings, tuples, mappings and other such classes. The class
    is entered in ``STATES``, so that records can store and restore it without pickle.

    Args:
        tag: The name of the class in stored states. It must stay the same when the class is renamed
            or moved.

    Returns:
        The decorator.

    Raises:
        ValueError: Another class has the tag.

    Example:
        >>> @state("doc.counter")
        ... class Counter:
        ...     count: int = 0
        >>> Counter(count=3).count
        3
    """

    def entered(cls: type[StateClass]) -> type[StateClass]:
        # Two tensors compare entry by entry, so a state has no ``==`` over its fields.
        dataclass_type = dataclass(frozen=True, kw_only=True, eq=False)(cls)
        # A tag belongs to the class of one name. A tag of Coterie's own belongs to one module, too.
        registered_class = STATES.setdefault(tag, dataclass_type)
        is_coteries = (
            registered_class.__module__.startswith("coterie.")
            and registered_class.__module__ != cls.__module__
        )
        if is_coteries or registered_class.__qualname__ != cls.__qualname__:
            registered_name = f"{registered_class.__module__}.{registered_class.__qualname__}"
            raise ValueError(
                f"the tag {tag!r} of {cls.__qualname__} is already used by {registered_name}"
            )
        # A class that is defined again, as in a notebook, replaces the old one.
        STATES[tag] = dataclass_type
        dataclass_type.__state_tag__ = tag  # type: ignore[attr-defined]
        return dataclass_type

    return entered


@public
def as_groups(groups: Iterable[Iterable[Client]]) -> Groups:
    """Sort the members of each group, and the groups by their first member.

    Args:
        groups: Groups of clients in any order.

    Returns:
        The same groups, sorted.

    Example:
        >>> as_groups([[5, 3], [0, 9]])
        ((0, 9), (3, 5))
    """
    return tuple(sorted(tuple(sorted(clients_of_group)) for clients_of_group in groups))


@public
def row_of(groups: Groups) -> dict[Client, int]:
    """Map each client to the number of its group."""
    group_of_client = {}
    for group_number, clients_of_group in enumerate(groups):
        for client in clients_of_group:
            group_of_client[client] = group_number
    return group_of_client


@public
def groups_by(number_of_client: Mapping[Client, int]) -> Groups:
    """Group clients that have the same number.

    Args:
        number_of_client: Client -> number, such as that of its model.

    Returns:
        The groups.

    Example:
        >>> groups_by({5: 1, 3: 0, 0: 1})
        ((0, 5), (3,))
    """
    members_of_number: dict[int, list[Client]] = {}
    for client, number in number_of_client.items():
        members_of_number.setdefault(number, []).append(client)
    return as_groups(members_of_number.values())


@public
def joined(clients: tuple[Client, ...], added_clients: Iterable[Client]) -> tuple[Client, ...]:
    """Return ``clients`` and the added ones together, sorted and without duplicates."""
    return tuple(sorted({*clients, *added_clients}))


@public
def without(clients: Iterable[Client], removed_clients: Iterable[Client]) -> tuple[Client, ...]:
    """Return ``clients`` without the removed ones, in the same order."""
    removed_set = set(removed_clients)
    return tuple(client for client in clients if client not in removed_set)


# ----------------------------------------------------------------------------------------------------
# Many clients: what all clients of a group have in common is stored once, and not for each of them.


Value = TypeVar("Value")


def _is_among(client: Client, clients: Sequence[Client]) -> bool:
    """Whether a client is one of ``clients``, which are sorted, in the time of a binary search."""
    position = bisect_left(clients, client)
    return position < len(clients) and clients[position] == client


@public
def among(candidates: Iterable[Client], clients: Sequence[Client]) -> list[Client]:
    """Return those of a few candidates that are among many ``clients``, which are sorted; sorted."""
    return [client for client in sorted(candidates) if _is_among(client, clients)]


MANY = 10_000
"""From so many clients on, :func:`in_order` remembers that they are sorted."""

_SORTED: dict[int, tuple[Client, ...]] = {}
_MOST_SORTED = 16


def in_order(clients: Iterable[Client]) -> Sequence[Client]:
    """Return clients sorted. A tuple of many that was sorted before is not sorted again.

    The same tuple comes back in each round, for example that of all members.
    """
    # The tuple is kept with its id, so that the id stays in use.
    if _SORTED.get(id(clients)) is clients:
        return _SORTED[id(clients)]
    ordered = sorted(clients)
    if isinstance(clients, tuple) and len(clients) >= MANY and tuple(ordered) == clients:
        _SORTED[id(clients)] = clients
        if len(_SORTED) > _MOST_SORTED:
            del _SORTED[next(iter(_SORTED))]
    return ordered


@public
class SharedValues(Mapping[Client, Value]):
    """Client -> value, where clients of a group share one.

    Args:
        groups: Groups without a common client, each as its sorted clients and their value.
    """

    def __init__(self, groups: Iterable[tuple[Sequence[Client], Value]]) -> None:
        self.groups = [(clients, value) for clients, value in groups if clients]

    @property
    def distinct(self) -> list[Value]:
        """The values of the groups."""
        return [value for _, value in self.groups]

    def __getitem__(self, client: Client) -> Value:
        for clients, value in self.groups:
            if _is_among(client, clients):
                return value
        raise KeyError(client)

    def __iter__(self) -> Iterator[Client]:
        if len(self.groups) == 1:
            return iter(self.groups[0][0])
        return iter(sorted(chain.from_iterable(clients for clients, _ in self.groups)))

    def __len__(self) -> int:
        return sum(len(clients) for clients, _ in self.groups)

    def __repr__(self) -> str:
        return repr(dict(self))


def distinct_values(values: Mapping[Client, Value]) -> Iterable[Value]:
    """Return the values of all clients, each once if clients share them."""
    return values.distinct if isinstance(values, SharedValues) else values.values()


@public
class AllBut(Collection[Client]):
    """The clients of a mapping without some of them.

    Args:
        clients: The mapping.
        exceptions: Those of its clients that are left out.
    """

    def __init__(self, clients: Mapping[Client, Any], exceptions: Iterable[Client]) -> None:
        self.clients = clients
        self.exceptions = frozenset(exceptions)

    def __contains__(self, client: object) -> bool:
        return client not in self.exceptions and client in self.clients

    def __iter__(self) -> Iterator[Client]:
        return (client for client in sorted(self.clients) if client not in self.exceptions)

    def __len__(self) -> int:
        return len(self.clients) - len(self.exceptions)

    def __eq__(self, compared: object) -> bool:
        return isinstance(compared, Collection) and tuple(self) == tuple(compared)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
