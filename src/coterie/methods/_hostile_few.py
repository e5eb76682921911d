"""Looking at a group without a few of its clients, so that these do not decide who learns with whom.

Any number that is estimated from all clients of a group can be moved by one of them: pooled noise,
the direction in which clients differ, the greatest similarity across a cut. With ``hostile`` clients
expected (a setting of :class:`~coterie.core.Averaging`), a method that keeps a group whole looks
again without one client, then without two, and so on. If the group would split then, these few
clients had hidden the difference. Coterie's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from coterie.core import Client, without

MIN_CLIENTS_LEFT = 4
"""The fewest clients of which one is left out: three others can show that two of them differ from one."""

MAX_SUSPECTS = 50
"""The most clients of a group that are left out in turn, so that a large group does not take long."""

MAX_LEFT_OUT = 0.25
"""The greatest share of points that k-means leaves out."""

Clients = tuple[Client, ...]


def left_out(
    clients: Sequence[Client],
    hostile: int,
    differ: Callable[[Clients, int], tuple[bool, float]],
    order: Sequence[Client] | None = None,
) -> Clients | None:
    """Find the fewest clients without which the others differ, leaving out one after the other.

    Args:
        clients: the n clients of a group.
        hostile: the most clients that may be left out.
        differ: from some of the clients, and the number of sets of clients that might have been left
            out in their place: whether they differ, and how much they seem to.
        order: the order in which clients are left out; if None, the next is the one without which the
            others seem to differ most.

    Returns:
        The clients to leave out, none if all of them differ as they are; None if they do not differ
        even so.
    """
    remaining = tuple(clients)
    for num_left_out in range(hostile + 1):
        if differ(remaining, math.comb(len(clients), num_left_out))[0]:
            return without(clients, remaining)
        # Of two clients, none can be told from the other.
        if num_left_out == hostile or len(remaining) < MIN_CLIENTS_LEFT:
            break
        if order is not None:
            suspect = order[num_left_out]
        else:
            differences = {}
            for client in remaining[:MAX_SUSPECTS]:
                differences[client] = differ(without(remaining, [client]), 1)[1]
            suspect = max(differences, key=differences.__getitem__)
        remaining = without(remaining, [suspect])
    return None


def labels_without_few(
    points: np.ndarray, labels_of: Callable[[np.ndarray], np.ndarray], hostile: int
) -> tuple[np.ndarray, np.ndarray]:
    """Group points, so that a few far ones do not take a group from the others.

    k-means with a fixed k gives an outlier a group, and joins two true ones for it. So groups of no
    more points than hostile clients are left out, the smallest and farthest first, and the others are
    grouped again, until there is no such group. Points that are left out, a quarter at most, then join
    the group of the nearest mean. (After trimmed k-means: J. A. Cuesta-Albertos, A. Gordaliza, C.
    Matrán, Annals of Statistics 25(2), 1997.)

    Args:
        points: Shape ``(n, p)``.
        labels_of: the groups of some points ``(m, p)``: their labels ``(m,)``.
        hostile: the number of points that are no group; 0 leaves none out.

    Returns:
        The label of each point, shape ``(n,)``, and which of them decided the groups, booleans.
    """
    kept = np.arange(len(points))
    if hostile:
        points = near_others(points, hostile, ranges=10.0)
    labels = labels_of(points)
    fewest_kept = math.ceil(len(points) * (1 - MAX_LEFT_OUT))
    centre = np.median(points, axis=0)
    while True:
        groups = [kept[labels == label] for label in np.unique(labels)]
        small_groups = []
        for group in groups:
            if len(group) <= hostile and len(kept) - len(group) >= fewest_kept:
                small_groups.append(group)
        if not small_groups:
            break

        def farness(group: np.ndarray) -> tuple[int, float]:
            return -len(group), float(np.abs(points[group] - centre).max())

        removed = max(small_groups, key=farness)
        kept = kept[~np.isin(kept, removed)]
        labels = labels_of(points[kept])
    # The others join the group whose mean is nearest.
    decided = np.isin(np.arange(len(points)), kept)
    group_names = np.unique(labels)
    means = np.stack([points[kept[labels == label]].mean(axis=0) for label in group_names])
    all_labels = np.empty(len(points), dtype=labels.dtype)
    all_labels[kept] = labels
    for position in np.flatnonzero(~decided):
        distances = ((means - points[position]) ** 2).sum(axis=1)
        all_labels[position] = group_names[distances.argmin()]
    return all_labels, decided


def near_others(points: np.ndarray, hostile: int, ranges: float) -> np.ndarray:
    """Limit the coordinates of points ``(n, p)`` to the range of the others, and some such ranges beyond it.

    The range is that of each coordinate, without as many of the least and of the greatest values as
    there may be hostile clients.

    Example:
        >>> near_others(np.array([[-1e30], [1.0], [2.0], [3.0]]), hostile=1, ranges=0.0).ravel()
        array([1., 1., 2., 2.])
    """
    if len(points) <= 2 * hostile:
        return points
    ordered = np.sort(points, axis=0)
    low = ordered[hostile]
    high = ordered[-1 - hostile]
    margin = ranges * (high - low)
    return points.clip(low - margin, high + margin)
