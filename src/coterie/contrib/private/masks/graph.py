"""Which clients have common masks: all of them, or each with some tens of others where clients are many.

J. Bell, K. Bonawitz, A. Gascón, T. Lepoint, M. Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020: clients stand in a random order on a ring, and each has masks
in common with the ``degree / 2`` nearest on both sides.
"""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import scipy

MAX_COMPLETE_CLIENTS = 100
"""Up to so many clients, each has masks in common with all others."""

MIN_SUM_CLIENTS = 3
"""Clients of a sum, at least: of two, each could subtract its own numbers from the sum."""

MAX_EXPOSURE_PROBABILITY = 2.0**-40
"""Greatest probability that a sparse graph exposes any client."""

MAX_FAILURE_PROBABILITY = 2.0**-20
"""Greatest probability that a sum fails."""


@dataclass(frozen=True)
class Graph:
    """Who has common masks with whom in one sum.

    Attributes:
        neighbours: Client -> the other clients with which it has masks in common, sorted.
        threshold: Shares that give back a client's secret: more than half of those that it and its
            neighbours hold. So a server that tells them different things cannot collect both
            secrets of a client, unless clients help it.

    Example:
        >>> graph = Graph.of([3, 5, 9])
        >>> dict(graph.neighbours), graph.threshold
        ({3: (5, 9), 5: (3, 9), 9: (3, 5)}, 2)
    """

    neighbours: Mapping[int, tuple[int, ...]]
    threshold: int

    @classmethod
    def of(cls, clients: Iterable[int], dropouts: float = 0.1, colluding: float = 0.1) -> Graph:
        """Return a graph of clients: complete up to :data:`MAX_COMPLETE_CLIENTS` clients, else sparse and random.

        Args:
            clients: Their ids.
            dropouts: Share of the clients that may fall silent after they have sent their keys.
            colluding: Share of the clients that may help the server.

        Raises:
            ValueError: There are fewer than :data:`MIN_SUM_CLIENTS` clients.
        """
        client_ids = sorted(set(clients))
        client_count = len(client_ids)
        if client_count < MIN_SUM_CLIENTS:
            raise ValueError(f"a masked sum needs three clients or more, got {client_count}")
        # Few clients have masks in common with all others.
        client_degree = client_count - 1
        if client_count > MAX_COMPLETE_CLIENTS:
            client_degree = degree(client_count, dropouts, colluding)
        if client_degree == client_count - 1:
            neighbours = {
                client: tuple(other for other in client_ids if other != client)
                for client in client_ids
            }
            return cls(neighbours, threshold(client_degree))
        # The k / 2 nearest clients on both sides, on a ring in random order.
        ring = secrets.SystemRandom().sample(client_ids, client_count)
        ring_offsets = [*range(-(client_degree // 2), 0), *range(1, client_degree // 2 + 1)]
        neighbours = {}
        for ring_place, client in enumerate(ring):
            nearest_clients = [
                ring[(ring_place + ring_offset) % client_count] for ring_offset in ring_offsets
            ]
            neighbours[client] = tuple(sorted(nearest_clients))
        return cls(neighbours, threshold(client_degree))


def threshold(graph_degree: int) -> int:
    """Return how many of a client's and its neighbours' shares give back a secret: the least majority."""
    return (graph_degree + 1) // 2 + 1


def degree(clients: int, dropouts: float, colluding: float) -> int:
    """Return the least even degree of a sparse graph that is safe.

    Each of three events must be improbable for all clients together: as many colluding neighbours
    as the threshold; too few neighbours that stay; and so many colluding or silent ones in a row
    that the others fall apart (Bell et al., section 3).

    Args:
        clients: n.
        dropouts: Share of the clients that may fall silent.
        colluding: Share of the clients that may help the server.

    Returns:
        The degree; ``n - 1``, the complete graph, if no smaller one is safe.
    """
    num_colluding = round(colluding * clients)
    num_dropouts = round(dropouts * clients)

    def is_safe(graph_degree: int) -> bool:
        shares_needed = threshold(graph_degree)
        # As many colluding neighbours as the threshold.
        exposure_probability = clients * float(
            scipy.stats.hypergeom.sf(shares_needed - 1, clients - 1, num_colluding, graph_degree)
        )
        # So many colluding or silent clients in a row that the graph is disconnected.
        split_probability = clients * (dropouts + colluding) ** (graph_degree // 2)
        # Too few neighbours that stay.
        failure_probability = clients * float(
            scipy.stats.hypergeom.sf(
                graph_degree + 1 - shares_needed, clients, num_dropouts, graph_degree + 1
            )
        )
        return (
            exposure_probability + split_probability <= MAX_EXPOSURE_PROBABILITY
            and failure_probability <= MAX_FAILURE_PROBABILITY
        )

    even_degrees = range(2, clients - 1, 2)
    # A greater degree is safer.
    position = bisect.bisect_left(even_degrees, True, key=is_safe)
    return even_degrees[position] if position < len(even_degrees) else clients - 1
