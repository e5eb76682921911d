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

COMPLETE = 100
"""Up to so many clients, each has masks in common with all others."""

LEAST = 3
"""Clients of a sum, at least: of two, each could subtract its own numbers from the sum."""

EXPOSED, FAILED = 2.0**-40, 2.0**-20
"""Probabilities that a sparse graph exposes any client, and that a sum fails, at most."""


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
        """Return a graph of clients: complete up to :data:`COMPLETE` clients, else sparse and random.

        Args:
            clients: Their ids.
            dropouts: Share of the clients that may fall silent after they have sent their keys.
            colluding: Share of the clients that may help the server.

        Raises:
            ValueError: There are fewer than :data:`LEAST` clients.
        """
        ids = sorted(set(clients))
        if len(ids) < LEAST:
            raise ValueError(f"a masked sum needs three clients or more, got {len(ids)}")
        k = len(ids) - 1 if len(ids) <= COMPLETE else degree(len(ids), dropouts, colluding)
        if k == len(ids) - 1:
            neighbours = {
                client: tuple(other for other in ids if other != client) for client in ids
            }
        else:
            ring = secrets.SystemRandom().sample(ids, len(ids))
            steps = [step for near in range(1, k // 2 + 1) for step in (-near, near)]
            neighbours = {
                c: tuple(sorted(ring[(i + step) % len(ring)] for step in steps))
                for i, c in enumerate(ring)
            }
        return cls(neighbours, threshold(k))


def threshold(degree: int) -> int:
    """Return how many of a client's and its neighbours' shares give back a secret: the least majority."""
    return (degree + 1) // 2 + 1


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
    bad, gone = round(colluding * clients), round(dropouts * clients)

    def safe(k: int) -> bool:
        least = threshold(k)
        exposed = clients * float(scipy.stats.hypergeom.sf(least - 1, clients - 1, bad, k))
        apart = clients * (dropouts + colluding) ** (k // 2)
        failed = clients * float(scipy.stats.hypergeom.sf(k + 1 - least, clients, gone, k + 1))
        return exposed + apart <= EXPOSED and failed <= FAILED

    even = range(2, clients - 1, 2)
    at = bisect.bisect_left(even, True, key=safe)  # a greater degree is safer
    return even[at] if at < len(even) else clients - 1
