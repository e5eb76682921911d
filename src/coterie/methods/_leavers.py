"""What a state keeps when clients leave the federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from coterie.core import Client, Groups, as_groups, without
from coterie.core.client_table import ClientTable

ClientValue = TypeVar("ClientValue")


def entries_without(
    values: Mapping[Client, ClientValue], leavers: Iterable[Client]
) -> Mapping[Client, ClientValue]:
    """Return client -> value without clients that have left."""
    removed = set(leavers)
    if isinstance(values, ClientTable):
        return values.entries_at(np.flatnonzero([client not in removed for client in values]))
    return {client: value for client, value in values.items() if client not in removed}


def groups_without(groups: Groups, leavers: Iterable[Client]) -> Groups:
    """Return the groups without clients that have left, and without groups that are empty then."""
    removed = set(leavers)
    remaining_groups = [without(group, removed) for group in groups]
    return as_groups(filter(None, remaining_groups))
