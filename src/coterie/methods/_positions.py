"""Where clients are in the rows of a table with one row for each client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.core import Client


def positions_of(clients: Iterable[Client], among: Sequence[Client]) -> list[int]:
    """Return the positions of clients among others, in the order of ``clients``; who is not among them is left out.

    Args:
        clients: The clients to find.
        among: The clients of the rows.

    Example:
        >>> positions_of([9, 4, 5], among=[3, 4, 9])
        [2, 1]
    """
    position_of_client = {client: position for position, client in enumerate(among)}
    return [position_of_client[client] for client in clients if client in position_of_client]
