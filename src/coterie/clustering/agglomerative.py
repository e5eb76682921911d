"""Hierarchical clustering of updates, as FL+HC (Briggs, Fan, Andras, arXiv 2004.11791) and ACFL use it.

SciPy builds the trees. This module adds the checks of the inputs, a strict threshold, and labels
numbered by first member.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import scipy
import torch

from coterie.clustering import _checks, geometry
from coterie.clustering.sketch import sketch_error, sketch_of_columns
from coterie.settings.calls import public

UPDATE_METRICS = ("l1", "l2", "cosine")
LINKAGES = ("single", "complete", "average", "ward")


@public
def dendrogram(distances: np.ndarray, linkage: str) -> np.ndarray:
    """Build the tree of merges of n clients.

    Args:
        distances: Shape ``(n, n)``, symmetric with a zero diagonal.
        linkage: The distance of groups A and B. ``"single"``: the smallest distance of a pair.
            ``"complete"``: the greatest. ``"average"``: the mean over pairs (UPGMA; not the
            distance of means, which is not monotone). ``"ward"``, which assumes Euclidean
            distances: ``sqrt(2|A||B| / (|A|+|B|)) ‖μ_A - μ_B‖``.

    Returns:
        SciPy's linkage matrix, ``(n - 1, 4)``; ``(0, 4)`` for one client. Row r makes node ``n +
        r`` from the two nodes in columns 0 and 1 (below n: a client). Column 2 is the height,
        column 3 the number of clients.

    Raises:
        ValueError: ``distances`` are similarities, a Gram matrix, not symmetric or not finite, or
            the linkage is unknown.

    Example:
        >>> dendrogram(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single")
        array([[0., 1., 1., 2.],
               [2., 3., 4., 3.]])
    """
    _checks.one_of(linkage, LINKAGES, "linkage")
    square = _checks.distance_matrix(distances)
    if len(square) == 1:
        return np.zeros((0, 4))
    condensed = scipy.spatial.distance.squareform(square, checks=False)
    tree: np.ndarray = scipy.cluster.hierarchy.linkage(condensed, method=linkage)
    return tree


@public
def cut_dendrogram(
    tree: np.ndarray, *, threshold: float | None = None, groups: int | None = None
) -> np.ndarray:
    """Cut a tree at a height or into a number of groups. One tree serves any number of cuts.

    Exactly one of ``threshold`` and ``groups`` must be given.

    Args:
        tree: Shape ``(n - 1, 4)``, of :func:`dendrogram`.
        threshold: Merge only while the distance is *below* this value.
        groups: The number of groups.

    Returns:
        Labels ``(n,)``, numbered by first member.

    Raises:
        ValueError: The tree has another shape, or ``threshold`` or ``groups`` is not valid.

    Example:
        >>> tree = dendrogram(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single")
        >>> cut_dendrogram(tree, threshold=4.0), cut_dendrogram(tree, groups=1)
        (array([0, 0, 1]), array([0, 0, 0]))
    """
    tree = _checks.array(tree)
    if tree.ndim != 2 or tree.shape[1] != 4:
        raise ValueError(f"tree must be (n - 1, 4), as dendrogram makes it, got shape {tree.shape}")
    if not np.isfinite(tree.astype(np.float64)).all():
        raise ValueError("tree holds a value that is not finite; pass one that dendrogram made")
    n = len(tree) + 1
    _check_cut(n, threshold, groups)
    # Heights grow from row to row, so the merges below the cut are the first ones.
    num_merges = n - groups if groups is not None else int((tree[:, 2] < threshold).sum())
    # A merge joins the members of two nodes in a new one; the nodes that are left are the groups.
    members_of_node = {client: [client] for client in range(n)}
    for merge in range(num_merges):
        left_members = members_of_node.pop(int(tree[merge, 0]))
        right_members = members_of_node.pop(int(tree[merge, 1]))
        members_of_node[n + merge] = left_members + right_members
    labels = np.empty(n, dtype=np.int64)
    for label, group in enumerate(sorted(members_of_node.values(), key=min)):
        labels[group] = label
    return labels


def _check_cut(n: int, threshold: float | None, groups: int | None) -> None:
    if (threshold is None) == (groups is None):
        raise ValueError(
            "exactly one of threshold and groups must be given, "
            f"got threshold={threshold} and groups={groups}"
        )
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold must be >= 0, a distance, got {threshold}")
    if groups is not None:
        _checks.number_of_groups(groups, n)


@public
def cut(
    distances: np.ndarray,
    *,
    linkage: str,
    threshold: float | None = None,
    groups: int | None = None,
) -> np.ndarray:
    """Group clients by hierarchical clustering of their distances.

    Exactly one of ``threshold`` and ``groups`` must be given.

    Args:
        distances: Shape ``(n, n)``, symmetric with a zero diagonal.
        linkage: As in :func:`dendrogram`.
        threshold: Merge only while the distance is strictly below this value. Two clients at
            distance 3 stay separate at threshold 3.
        groups: The number of groups.

    Returns:
        Labels ``(n,)``, numbered by first member; ``[0]`` for one client.

    Raises:
        ValueError: As in :func:`dendrogram` and :func:`cut_dendrogram`.

    Example:
        >>> distances = np.array([[0.0, 3.0], [3.0, 0.0]])
        >>> [cut(distances, linkage="ward", threshold=limit) for limit in (3.0, 3.001)]
        [array([0, 1]), array([0, 0])]
    """
    return cut_dendrogram(dendrogram(distances, linkage), threshold=threshold, groups=groups)


@public
def cut_margin(
    distances: np.ndarray,
    *,
    linkage: str,
    threshold: float | None = None,
    groups: int | None = None,
    tree: np.ndarray | None = None,
) -> float:
    """Compute the margin of a :func:`cut`: its groups stay the same while every distance changes by less than half of it.

    If distances are known up to ``eps``, the groups are certain if the margin is above ``2 eps``.

    Single linkage: the margin is the gap between the last merge made and the next one. With a
    threshold, it is twice the gap from the threshold to the nearer of the two. Complete and average
    linkage: the same, with the greatest distance within a group and the smallest between groups.
    This is sufficient, not necessary: the margin is 0 if groups overlap, although they may be
    stable.

    Reason: a linkage of two sets lies between their smallest and greatest distance. While all
    distances that are to be merged stay below all that are not, every merge within a group comes
    before any other.

    Args:
        distances: As in :func:`cut`.
        linkage: As in :func:`cut`, without ``"ward"``.
        threshold: As in :func:`cut`.
        groups: As in :func:`cut`.
        tree: The tree of :func:`dendrogram`, if it is available.

    Returns:
        The margin, >= 0; ``inf`` if no change could alter the groups, as with one group.

    Raises:
        ValueError: As in :func:`cut`, and for ward. Its heights are not distances of pairs, and no
            such margin is known.

    Example:
        >>> distances = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
        >>> cut_margin(distances, linkage="single", groups=2)
        3.0
        >>> cut_margin(distances, linkage="complete", threshold=1.5)
        1.0
    """
    if linkage == "ward":
        raise ValueError(
            "linkage must be single, complete or average, got 'ward', for which no margin is known"
        )
    square = _checks.distance_matrix(distances)
    tree = dendrogram(square, linkage) if tree is None else tree
    labels = cut_dendrogram(tree, threshold=threshold, groups=groups)
    if len(labels) != len(square):
        raise ValueError(
            f"tree must have the {len(square)} clients of distances, got {len(labels)}"
        )
    return margin(*borders(square, labels, tree, linkage), threshold)


@public
def agglomerative(
    updates: np.ndarray | torch.Tensor,
    *,
    metric: str,
    linkage: str,
    threshold: float | None = None,
    groups: int | None = None,
    sketch: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Group clients by hierarchical clustering of their updates.

    FL+HC recommends l1 with complete linkage. For l2 the mean row is subtracted first: this changes
    no distance, and avoids the cancellation that a large common part would cause.

    Args:
        updates: Shape ``(n, d)``.
        metric: ``"l1"``, ``"l2"`` or ``"cosine"`` (1 - cosine; 1 to a zero update).
        linkage: ``"single"``, ``"complete"``, ``"average"``, or with l2 ``"ward"``, in the
            convention of SciPy and scikit-learn.
        threshold: See :func:`cut`.
        groups: See :func:`cut`.
        sketch: If given, cluster sketches (:func:`~coterie.clustering.sketch`) of that many numbers
            instead of long updates; for l2 or cosine. A ``SketchWarning`` is issued if their error
            (:func:`~coterie.clustering.sketch_error`) could have changed the groups.
        seed: The seed of the sketches.

    Returns:
        Labels ``(n,)``, numbered by first member.

    Raises:
        ValueError: Settings are unknown or contradict each other, rows are not finite, or
            ``updates`` is certainly a matrix of distances, which is an input for :func:`cut`.

    Example:
        >>> updates = np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1.5]])
        >>> agglomerative(updates, metric="l2", linkage="ward", threshold=1.0)
        array([0, 1, 0])
    """
    _checks.one_of(metric, UPDATE_METRICS, "metric")
    _checks.one_of(linkage, LINKAGES, "linkage")
    if linkage == "ward" and metric != "l2":
        raise ValueError(
            f"linkage ward needs metric l2, got {metric}: it is defined for Euclidean distances"
        )
    rows = _checks.rows(updates)
    num_parameters = rows.shape[1]
    _check_cut(len(rows), threshold, groups)
    _refuse_distances(rows)
    if sketch is not None:
        if metric == "l1":
            raise ValueError(
                "sketch needs metric l2 or cosine, got l1: a sketch keeps inner products, not l1 distances"
            )
        rows = sketch_of_columns(rows, None, sketch, seed)
    distances = _distances(rows, metric)
    # FL+HC: the tree of merges, cut at the threshold.
    tree = dendrogram(distances, linkage)
    labels = cut_dendrogram(tree, threshold=threshold, groups=groups)
    # Rows that are not longer are their own sketches, without an error.
    if sketch is not None and num_parameters > sketch:
        cut_borders = borders(distances, labels, tree, linkage)
        warn_if_near(
            cut_borders,
            linkage=linkage,
            metric=metric,
            threshold=threshold,
            size=sketch,
            n=len(rows),
        )
    return labels


def _distances(rows: torch.Tensor, metric: str) -> np.ndarray:
    if metric == "l1":
        return geometry.manhattan(rows)
    return geometry.distances(geometry.gram_of_rows(rows), metric)


def _refuse_distances(rows: torch.Tensor) -> None:
    """Refuse a symmetric square of positive numbers with zeros on the diagonal: these are not updates."""
    n, d = rows.shape
    if n != d or n < 3:
        return
    square = _checks.array(rows)
    off_diagonal = square[~np.eye(n, dtype=bool)]
    zero_diagonal = not np.diagonal(square).any()
    if zero_diagonal and (off_diagonal > 0).all() and np.array_equal(square, square.T):
        raise ValueError(
            "updates look like a matrix of distances (n, n); pass that to cut(distances, linkage=...)"
        )


# ----------------------------------------------------------------------------------------------------
# How much distances may change before groups change, so that groups found from sketches can be
# confirmed.


class SketchWarning(UserWarning):
    """Groups were found from sketches, and the error of the sketches could have changed them."""


def borders(
    distances: np.ndarray, labels: np.ndarray, tree: np.ndarray, linkage: str
) -> tuple[float, float]:
    """Find two distances between which the groups are decided: ``(below, above)``.

    The groups ``labels`` stay as they are while every distance that is at most ``below`` stays
    under all distances that are at least ``above``.

    Single linkage: the last merge made and the next one. Its groups are the connected components of
    the graph of distances below the cut. The merges made hold them together, and no distance
    between them is below the next merge.

    Complete and average linkage: the greatest distance within a group and the smallest between
    groups. The linkage of two sets lies between their smallest and greatest distance. While all
    distances within groups are below all distances between them, merges within groups come first,
    however the tree grows. This is sufficient, not necessary: it gives no result for groups that
    overlap (below >= above).

    Args:
        distances: Shape ``(n, n)``.
        labels: Shape ``(n,)``, the groups.
        tree: The tree of :func:`dendrogram`.
        linkage: ``"single"``, ``"complete"`` or ``"average"``.

    Returns:
        ``below``, which is ``-inf`` if every client is alone, and ``above``, which is ``inf`` if
        all clients are together.
    """
    n = len(labels)
    num_groups = int(labels.max()) + 1
    below = -math.inf
    above = math.inf
    # Single linkage: the last merge that was made, and the next one.
    if linkage == "single":
        num_merges = n - num_groups
        if num_merges:
            below = float(tree[num_merges - 1, 2])
        if num_groups > 1:
            above = float(tree[num_merges, 2])
        return below, above
    # Complete and average linkage: distances within groups and between them.
    for row_range in _checks.strips(n):
        same_group = labels[row_range, None] == labels
        above = min(above, float(np.min(distances[row_range], where=~same_group, initial=math.inf)))
        below = max(below, float(np.max(distances[row_range], where=same_group, initial=0.0)))
    # Then every distance within a group is that of a client to itself.
    if num_groups == n:
        below = -math.inf
    return below, above


def margin(below: float, above: float, threshold: float | None) -> float:
    """Compute how much two distances may approach each other between ``borders``: twice what each may change, >= 0."""
    # Without a threshold the two distances approach each other; with one, either may reach it.
    if threshold is None:
        return max(above - below, 0.0)
    room_above = math.inf if above == math.inf else above - threshold
    return max(2 * min(threshold - below, room_above), 0.0)


def doubt(
    cut_borders: tuple[float, float],
    *,
    linkage: str,
    metric: str,
    threshold: float | None,
    size: int,
    n: int,
) -> str | None:
    """Find a reason why the error of sketches could have changed the groups.

    A cosine distance is wrong by at most the bound, a squared Euclidean distance by at most that
    share of itself.

    Args:
        cut_borders: The :func:`borders` among the distances of the n sketches.
        linkage: The linkage of the groups.
        metric: ``"l2"`` or ``"cosine"``.
        threshold: The threshold of the cut, if it had one.
        size: The number of numbers in a sketch.
        n: The number of clients.

    Returns:
        The reason, or ``None`` if the error cannot have changed the groups.
    """
    error_bound = sketch_error(size, n)
    if linkage == "ward":
        return "no margin is known for linkage ward"
    if _safe(cut_borders, metric, threshold, error_bound):
        return None
    changed_value = "a cosine" if metric == "cosine" else "a squared distance, relatively,"
    return f"a sketch of {size} numbers may change {changed_value} by {error_bound:.3g}, more than the cut allows"


def warn_if_near(cut_borders: tuple[float, float], **cut_settings: Any) -> None:
    """Issue a :class:`SketchWarning` if there is a :func:`doubt`."""
    reason = doubt(cut_borders, **cut_settings)
    if reason is None:
        return
    advice = "compare with a larger sketch, or cluster the updates themselves"
    warnings.warn(
        f"the groups of the updates may differ from those of their sketches: {reason}; {advice}",
        SketchWarning,
        stacklevel=4,
    )


def _safe(
    cut_borders: tuple[float, float], metric: str, threshold: float | None, error_bound: float
) -> bool:
    """Whether the true distances are on the same sides of the cut as those of the sketches."""
    below, above = cut_borders
    if threshold is None and (below == -math.inf or above == math.inf):
        # There is one group, or every client is alone.
        return True
    # The greatest true distance of those below the cut, and the smallest of those above.
    if metric == "cosine":
        max_below = below + error_bound
        min_above = above - error_bound
    elif error_bound >= 1:
        return False
    else:
        max_below = below / math.sqrt(1 - error_bound)
        min_above = above / math.sqrt(1 + error_bound)
    if threshold is None:
        return max_below < min_above
    return max_below < threshold <= min_above
