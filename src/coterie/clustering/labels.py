"""Partitions of clients: two ways to write one down, and how alike two are.

Labels are ``(n,)``, one per client; groups are tuples of positions. Labels' numbers mean nothing, so two partitions are
compared as sets of groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from coterie.clustering import _checks


def groups_of(labels: Any) -> tuple[tuple[int, ...], ...]:
    """The groups of labels ``(n,)``: positions sorted, groups in the order of their first members.

    >>> groups_of([7, 2, 7, 2, 0])
    ((0, 2), (1, 3), (4,))
    """
    numbered = _checks.label_vector(labels)
    order = np.argsort(numbered, kind="stable")
    borders = np.flatnonzero(np.diff(numbered[order])) + 1
    return tuple(tuple(part.tolist()) for part in np.split(order, borders))


def labels_of(groups: Iterable[Iterable[int]]) -> np.ndarray:
    """Labels ``(n,)``, numbered by first member, of groups that hold each position 0..n-1 once.

    >>> labels_of([(1, 3), (4,), (0, 2)])
    array([0, 1, 0, 1, 2])
    """
    parts = [tuple(group) for group in groups]
    members = [i for part in parts for i in part]
    if not members or not all(parts):
        raise ValueError("groups must not be empty")
    if sorted(members) != list(range(len(members))):
        raise ValueError(
            f"groups must hold each position 0 to {len(members) - 1} once; "
            "client ids are no positions, and labels become groups with groups_of(labels)"
        )
    labels = np.empty(len(members), dtype=np.int64)
    for number, part in enumerate(sorted(parts, key=min)):
        labels[list(part)] = number
    return labels


def same_partition(labels_a: Any, labels_b: Any) -> bool:
    """Whether labels ``(n,)`` and ``(n,)`` make the same groups, whatever the groups are called.

    Compared as sets of sets, in both directions. SciPy's ``is_isomorphic`` of 1.17 takes
    ``[1, 1, 2, 2, 3, 3, 4, 4]`` and ``[1, 1, 2, 2, 1, 1, 2, 2]`` for the same partition in one order of arguments.

    >>> same_partition([0, 0, 1], [5, 5, 3]), same_partition([1, 1, 2, 2], [1, 1, 1, 1])
    (True, False)
    """
    one, two = _two(labels_a, labels_b)
    return {frozenset(g) for g in groups_of(one)} == {frozenset(g) for g in groups_of(two)}


def adjusted_rand(labels_a: Any, labels_b: Any) -> float:
    """Adjusted Rand index of labels ``(n,)`` and ``(n,)``, scikit-learn's: 1 where equal, about 0 by chance.

    Two partitions that are both one group, or both singletons, are equal: 1.0. One group against singletons: 0.0.

    >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0]), adjusted_rand([0, 0, 0], [0, 1, 2])
    (1.0, 0.0)
    """
    from sklearn.metrics import adjusted_rand_score  # here, as importing it takes seconds

    return float(adjusted_rand_score(*_two(labels_a, labels_b)))


def purity(labels: Any, truth: Any) -> float:
    """Share of clients that belong to the true group most common in theirs; labels ``(n,)``, truth ``(n,)``.

    1 where no group mixes true groups, which singletons achieve too.

    >>> purity([0, 0, 0, 1], ["a", "a", "b", "b"])  # (2 + 1) / 4
    0.75
    """
    one, two = _two(labels, truth)
    return sum(int(np.bincount(two[list(group)]).max()) for group in groups_of(one)) / len(one)


def _two(labels_a: Any, labels_b: Any) -> tuple[np.ndarray, np.ndarray]:
    one, two = _checks.label_vector(labels_a), _checks.label_vector(labels_b)
    if len(one) != len(two):
        raise ValueError(f"both labellings must be of the same clients, got {len(one)} and {len(two)} labels")
    return one, two
