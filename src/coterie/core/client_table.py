"""Numbers of many clients as arrays: a tenth of the memory of a dictionary, and computed with at once."""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, Generic, TypeVar, cast

import numpy as np

from coterie.core.clients import AllBut, Client, SharedValues, among

Value = TypeVar("Value")

MIN_TABLE_ENTRIES = 1000
"""From so many clients on, :func:`with_entries` makes a table."""

MEMBERS_PER_SEARCH = 20
"""With more than so many members per client, each client is looked up by itself, by a binary search."""


class ClientTable(Mapping[Client, Value]):
    """Client -> a number, or a tuple of numbers, which are stored as arrays. It never changes.

    Args:
        clients: Shape ``(n,)``, the clients, all different, in the order of the mapping.
        columns: The numbers of each client, shape ``(n,)`` each: float64 or integers.
        has_tuples: Whether the value of a client is a tuple of its numbers; otherwise there is one
            column.
        rank: Shape ``(n,)``, the positions in ``clients`` of the sorted clients; None to compute them.

    Example:
        >>> reports = ClientTable.of({7: (0.5, 20), 3: (0.25, 10)})
        >>> reports[7], list(reports), reports.columns[1].tolist()
        ((0.5, 20), [7, 3], [20, 10])
    """

    def __init__(
        self,
        clients: np.ndarray,
        columns: tuple[np.ndarray, ...],
        has_tuples: bool,
        rank: np.ndarray | None = None,
    ) -> None:
        self.clients = clients
        self.columns = columns
        self.has_tuples = has_tuples
        if rank is None:
            rank = np.argsort(clients, kind="stable").astype(_integer_type_for(len(clients)))
        self.rank = rank
        self._in_order = clients[rank]

    @classmethod
    def of(cls, values: Mapping[Client, Value]) -> ClientTable[Value] | None:
        """Return the table of a mapping; None if its values are not numbers or tuples of them, or differ in kind."""
        if isinstance(values, ClientTable):
            return values
        clients = _column(list(values))
        if clients is None or clients.dtype.kind != "i":
            return None
        client_values: list[Any] = list(values.values())
        has_tuples = type(client_values[0]) is tuple
        if not has_tuples:
            column = _column(client_values)
            return None if column is None else cls(clients, (column,), False)
        lengths = {len(value) if type(value) is tuple else 0 for value in client_values}
        if len(lengths) > 1 or lengths == {0}:
            return None
        columns = []
        for entries in zip(*client_values, strict=True):
            column = _column(list(entries))
            if column is None:
                return None
            columns.append(column)
        return cls(clients, tuple(columns), True)

    @classmethod
    def checked(
        cls, clients: np.ndarray, columns: tuple[np.ndarray, ...], has_tuples: bool
    ) -> ClientTable[Value]:
        """Return the table of arrays that were read from a file.

        Raises:
            ValueError: They are not integers and numbers of one length, or a client occurs twice.
        """
        kinds = {column.dtype.kind for column in columns}
        shapes = {column.shape for column in (clients, *columns)}
        if clients.dtype.kind not in "iu" or not kinds <= set("iuf") or shapes != {(len(clients),)}:
            raise ValueError("a table has arrays of other kinds or lengths")
        if len(np.unique(clients)) < len(clients):
            raise ValueError("a table has a client twice")
        compact = []
        for column in columns:
            compact.append(column if column.dtype.kind == "f" else _compact(column))
        return cls(_compact(clients), tuple(compact), has_tuples)

    def updated(self, entries: ClientTable[Value]) -> ClientTable[Value] | None:
        """Return the table with new values of some clients; others are added at the end. None if values differ in kind."""
        if entries.has_tuples != self.has_tuples or len(entries.columns) != len(self.columns):
            return None
        for column, new_column in zip(self.columns, entries.columns, strict=True):
            if column.dtype.kind != new_column.dtype.kind:
                return None
        positions = self.positions(entries.clients)
        is_known = positions >= 0
        has_new = not is_known.all()
        columns = []
        for column, new_column in zip(self.columns, entries.columns, strict=True):
            dtype = np.promote_types(column.dtype, new_column.dtype)
            changed = column.astype(dtype)
            changed[positions[is_known]] = new_column[is_known]
            if has_new:
                changed = np.concatenate([changed, new_column[~is_known]])
            columns.append(changed)
        if not has_new:
            return ClientTable(self.clients, tuple(columns), self.has_tuples, self.rank)
        clients = np.concatenate([self.clients, entries.clients[~is_known]])
        return ClientTable(clients, tuple(columns), self.has_tuples)

    def positions(self, clients: np.ndarray) -> np.ndarray:
        """Return the positions of clients in the arrays, shape ``(m,)``; -1 for those that have no entry."""
        if not len(self.clients):
            return np.full(len(clients), -1)
        # In the type of the array, or all of it would be converted for each search.
        largest = np.iinfo(self.clients.dtype).max
        searched = np.where(clients <= largest, clients, -1).astype(self.clients.dtype)
        places = np.searchsorted(self._in_order, searched)
        positions = self.rank[np.minimum(places, len(self.clients) - 1)].astype(np.int64)
        positions[self.clients[positions] != clients] = -1
        return positions

    def entries_at(self, positions: np.ndarray) -> ClientTable[Value]:
        """Return the entries at some positions of the arrays, in their order."""
        columns = tuple(column[positions] for column in self.columns)
        return ClientTable(self.clients[positions], columns, self.has_tuples)

    def __getitem__(self, client: Client) -> Value:
        position = self._position(client)
        if position < 0:
            raise KeyError(client)
        numbers = tuple(column[position].item() for column in self.columns)
        client_value: Any = numbers if self.has_tuples else numbers[0]
        return cast(Value, client_value)

    def __contains__(self, client: object) -> bool:
        return self._position(client) >= 0

    def _position(self, client: object) -> int:
        if not isinstance(client, int | np.integer) or not len(self.clients):
            return -1
        if abs(int(client)) > np.iinfo(np.int64).max:
            return -1
        return int(self.positions(np.array([client]))[0])

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients.tolist())

    def __len__(self) -> int:
        return len(self.clients)

    def values(self) -> ValuesView[Value]:
        return _ValuesOfTable(self)

    def items(self) -> ItemsView[Client, Value]:
        return _ItemsOfTable(self)

    def __or__(self, entries: Mapping[Client, Value]) -> dict[Client, Value]:
        return {**self, **entries}

    def __ror__(self, values: Mapping[Client, Value]) -> dict[Client, Value]:
        return {**values, **self}

    def __repr__(self) -> str:
        return f"<ClientTable of {len(self):,} clients>"


class _ValuesOfTable(ValuesView[Value], Generic[Value]):
    """The values of a table, made from whole columns."""

    def __init__(self, table: ClientTable[Value]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[Any]:
        columns = [column.tolist() for column in self._table.columns]
        return zip(*columns, strict=True) if self._table.has_tuples else iter(columns[0])


class _ItemsOfTable(ItemsView[Client, Value], Generic[Value]):
    """The clients of a table and their values, made from whole columns."""

    def __init__(self, table: ClientTable[Value]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[tuple[Client, Value]]:
        return zip(self._table, self._table.values(), strict=True)


def _column(entries: list[Any]) -> np.ndarray | None:
    """Numbers of one kind as an array ``(n,)``: floats, or integers that fit; None for anything else."""
    kinds = set(map(type, entries))
    if kinds == {float}:
        return np.array(entries, dtype=np.float64)
    if kinds != {int}:
        return None
    try:
        integers = np.array(entries, dtype=np.int64)
    except OverflowError:
        return None
    return _compact(integers)


def _compact(integers: np.ndarray) -> np.ndarray:
    """Integers in the smaller of two types."""
    largest = max(abs(int(integers.min())), abs(int(integers.max()))) if len(integers) else 0
    return integers.astype(_integer_type_for(largest))


def _integer_type_for(largest: int) -> type[np.signedinteger[Any]]:
    """The type of integers up to ``largest``: of 4 bytes where they fit."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def with_entries(
    values: Mapping[Client, Value], entries: Mapping[Client, Value]
) -> Mapping[Client, Value]:
    """Return ``{**values, **entries}``, as a :class:`ClientTable` if these are numbers of many clients.

    Args:
        values: Client -> value.
        entries: Client -> value, of clients whose values are new.
    """
    if not entries:
        return values
    if not values:
        return entries if isinstance(entries, ClientTable) else dict(entries)
    if max(len(values), len(entries)) >= MIN_TABLE_ENTRIES:
        table = ClientTable.of(values)
        new_entries = ClientTable.of(entries)
        if table is not None and new_entries is not None:
            updated = table.updated(new_entries)
            if updated is not None:
                return updated
    return dict(chain(values.items(), entries.items()))


def as_array(clients: Collection[Client]) -> np.ndarray:
    """Return clients as an array ``(n,)``, in their order."""
    return np.fromiter(clients, dtype=np.int64, count=len(clients))


def entries_among(
    values: Mapping[Client, Value], group: Collection[Client]
) -> Mapping[Client, Value]:
    """Return the entries of the clients of a group, sorted by client.

    Args:
        values: Client -> value.
        group: The clients: a sorted tuple, a mapping, or any other collection.
    """
    if not isinstance(values, ClientTable):
        if isinstance(group, Mapping):
            # Of a large group, only those that have values are looked up.
            clients = [client for client in sorted(values) if client in group]
        else:
            clients = among(values, group if isinstance(group, tuple) else sorted(group))
        return {client: values[client] for client in clients}
    positions = values.rank
    is_member = are_among(values.clients[positions], group)
    return values.entries_at(positions[is_member])


def are_among(clients: np.ndarray, group: Collection[Client]) -> np.ndarray:
    """Return whether each of n sorted clients is in a group, shape ``(n,)`` of booleans.

    Args:
        clients: Shape ``(n,)``, sorted.
        group: The clients of the group: a sorted tuple, a mapping, or any other collection.
    """
    if isinstance(group, AllBut):
        return are_among(clients, group.clients) & ~are_among(clients, group.exceptions)
    if isinstance(group, SharedValues):
        is_member = np.zeros(len(clients), dtype=bool)
        for members, _ in group.groups:
            is_member |= are_among(clients, members)
        return is_member
    if isinstance(group, ClientTable):
        return group.positions(clients) >= 0
    if isinstance(group, Mapping | set | frozenset):
        return np.fromiter((client in group for client in clients.tolist()), bool, len(clients))
    if isinstance(group, range):
        if not group:
            return np.zeros(len(clients), dtype=bool)
        is_between = (clients >= min(group)) & (clients <= max(group))
        return np.asarray(is_between & ((clients - group.start) % group.step == 0))
    members = group if isinstance(group, tuple) else tuple(sorted(group))
    if MEMBERS_PER_SEARCH * len(clients) < len(members):
        return np.isin(clients, among(clients.tolist(), members))
    if not members:
        return np.zeros(len(clients), dtype=bool)
    ordered = as_array(members)
    places = np.minimum(np.searchsorted(ordered, clients), len(ordered) - 1)
    return np.asarray(ordered[places] == clients)


def those_among(clients: Collection[Client], group: Collection[Client]) -> tuple[Client, ...]:
    """Return those of some sorted clients that are in a group, sorted."""
    ordered = as_array(clients)
    return tuple(ordered[are_among(ordered, group)].tolist())
