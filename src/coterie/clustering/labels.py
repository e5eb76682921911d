"""Partitions of clients: two representations, and measures of how similar two partitions are.

Labels are ``(n,)``, one per client. Groups are tuples of positions. The values of labels have no
meaning, so two partitions are compared as sets of groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from coterie.clustering import _checks
from coterie.settings.calls import public


@public
def groups_of(labels: Any) -> tuple[tuple[int, ...], ...]:
    """Convert labels to groups.

    Args:
        labels: Shape ``(n,)``.

    Returns:
        The groups, positions sorted, groups in the order of their first members.

    Raises:
        ValueError: There is not one finite label per client.

    Example:
        >>> groups_of([7, 2, 7, 2, 0])
        ((0, 2), (1, 3), (4,))
    """
    numbered = _checks.label_vector(labels)
    ascending = np.argsort(numbered, kind="stable")
    # Positions in the order of their labels are cut where the label changes.
    borders = np.flatnonzero(np.diff(numbered[ascending])) + 1
    return tuple(tuple(members.tolist()) for members in np.split(ascending, borders))


@public
def labels_of(groups: Iterable[Iterable[int]]) -> np.ndarray:
    """Convert groups to labels.

    Args:
        groups: Groups that contain each position 0 to n-1 once.

    Returns:
        Labels ``(n,)``, numbered by first member.

    Raises:
        ValueError: A group is empty, or a position is missing or repeated.

    Example:
        >>> labels_of([(1, 3), (4,), (0, 2)])
        array([0, 1, 0, 1, 2])
    """
    try:
        member_lists = [tuple(group) for group in groups]
    except TypeError:
        raise ValueError(
            f"groups must be lists of positions, such as [[0, 1], [2]], got {groups!r:.60}"
        ) from None
    members = list(chain.from_iterable(member_lists))
    if not members or not all(member_lists):
        raise ValueError("groups must not be empty")
    if sorted(members) != list(range(len(members))):
        raise ValueError(
            f"groups must contain each position 0 to {len(members) - 1} once; "
            "client ids are not positions; for labels, use groups_of(labels)"
        )
    labels = np.empty(len(members), dtype=np.int64)
    # Labels are numbered by first member.
    for label, group_members in enumerate(sorted(member_lists, key=min)):
        labels[list(group_members)] = label
    return labels


@public
def same_partition(labels_a: Any, labels_b: Any) -> bool:
    """Whether two labellings make the same groups, whatever the values of the labels are.

    They are compared as sets of sets, in both directions. SciPy's ``is_isomorphic`` of 1.17 takes
    ``[1, 1, 2, 2, 3, 3, 4, 4]`` and ``[1, 1, 2, 2, 1, 1, 2, 2]`` for the same partition in one
    order of arguments.

    Args:
        labels_a: Shape ``(n,)``.
        labels_b: Shape ``(n,)``.

    Returns:
        Whether the partitions are the same.

    Raises:
        ValueError: The two do not have one label each for the same clients.

    Example:
        >>> same_partition([0, 0, 1], [5, 5, 3]), same_partition([1, 1, 2, 2], [1, 1, 1, 1])
        (True, False)
    """
    first, second = _two_labellings(labels_a, labels_b)
    return set(map(frozenset, groups_of(first))) == set(map(frozenset, groups_of(second)))


@public
def adjusted_rand(labels_a: Any, labels_b: Any) -> float:
    """Compute the adjusted Rand index: 1 if two partitions are equal, about 0 by chance.

    It is scikit-learn's ``adjusted_rand_score``, without the seconds that an import of scikit-learn
    takes.

    Args:
        labels_a: Shape ``(n,)``.
        labels_b: Shape ``(n,)``.

    Returns:
        The index. It is 1.0 if both partitions are one group, or both are groups of one client. It
        is 0.0 for one group against groups of one client.

    Raises:
        ValueError: The two do not have one label each for the same clients.

    Example:
        >>> adjusted_rand([0, 0, 1, 1], [1, 1, 0, 0]), adjusted_rand([0, 0, 0], [0, 1, 2])
        (1.0, 0.0)
    """
    first, second = _two_labellings(labels_a, labels_b)
    n = len(first)
    # Ordered pairs of clients that are in one group: in both partitions, in one alone, in neither.
    in_both = _pairs_in_a_group(first * (int(second.max()) + 1) + second)
    only_first = _pairs_in_a_group(first) - in_both
    only_second = _pairs_in_a_group(second) - in_both
    in_neither = n * (n - 1) - in_both - only_first - only_second
    if only_first == only_second == 0:
        return 1.0
    # The adjusted Rand index in terms of pairs.
    expected = (in_both + only_first) * (only_first + in_neither)
    expected += (in_both + only_second) * (only_second + in_neither)
    return 2.0 * (in_both * in_neither - only_first * only_second) / expected


def _pairs_in_a_group(labels: np.ndarray) -> int:
    """The number of ordered pairs of clients that have the same label; a Python integer, whose products cannot overflow."""
    group_sizes = np.unique(labels, return_counts=True)[1]
    return int((group_sizes * (group_sizes - 1)).sum())


@public
def purity(labels: Any, truth: Any) -> float:
    """Compute the share of clients that belong to the most common true group of their group.

    Args:
        labels: The groups that were found, shape ``(n,)``.
        truth: The true groups, shape ``(n,)``.

    Returns:
        The purity. It is 1 if no group mixes true groups, which groups of one client also achieve.

    Raises:
        ValueError: The two do not have one label each for the same clients.

    Example:
        >>> purity([0, 0, 0, 1], ["a", "a", "b", "b"])  # (2 + 1) / 4
        0.75
    """
    groups, true_groups = _two_labellings(labels, truth)
    # The clients of the most frequent true group in each group.
    in_majority = 0
    for group in groups_of(groups):
        in_majority += int(np.bincount(true_groups[list(group)]).max())
    return in_majority / len(groups)


def _two_labellings(labels_a: Any, labels_b: Any) -> tuple[np.ndarray, np.ndarray]:
    first = _checks.label_vector(labels_a)
    second = _checks.label_vector(labels_b)
    if len(first) != len(second):
        raise ValueError(
            f"both labellings must have the same clients, got {len(first)} and {len(second)} labels"
        )
    return first, second
