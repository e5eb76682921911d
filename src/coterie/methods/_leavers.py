"""What a state keeps when clients leave the federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from coterie.core import Client, Groups, as_groups, without

ClientValue = TypeVar("ClientValue")


def entries_without(
    values: Mapping[Client, ClientValue], leavers: Iterable[Client]
) -> dict[Client, ClientValue]:
    """Return client -> value without clients that have left."""
    removed = set(leavers)
    return {client: value for client, value in values.items() if client not in removed}


def groups_without(groups: Groups, leavers: Iterable[Client]) -> Groups:
    """Return the groups without clients that have left, and without groups that are empty then."""
    removed = set(leavers)
    remaining_groups = [without(group, removed) for group in groups]
    return as_groups(filter(None, remaining_groups))
