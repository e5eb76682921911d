"""Hierarchical clustering of updates, as FL+HC (Briggs, Fan, Andras, arXiv 2004.11791) and ACFL use it.

SciPy builds the trees; here are the inputs' meaning, a strict threshold, and labels numbered by first member.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.clustering import _checks, geometry
from coterie.clustering.sketch import sketch_error, sketch_of_columns

METRICS = ("l1", "l2", "cosine")
LINKAGES = ("single", "complete", "average", "ward")


def dendrogram(distances: np.ndarray, linkage: str) -> np.ndarray:
    """The tree of merges of ``n`` clients, as SciPy's linkage matrix ``(n - 1, 4)``; ``(0, 4)`` for one client.

    Row r makes node ``n + r`` of the two nodes in columns 0 and 1 (below n: a client), at the height in column 2, with
    as many clients as column 3 says. distances: ``(n, n)``, symmetric with a zero diagonal. linkage, the distance of
    groups A and B: ``"single"``, the smallest of a pair; ``"complete"``, the greatest; ``"average"``, their mean over
    pairs (UPGMA; not the distance of means, which is not monotone); ``"ward"``, which presumes Euclidean distances,
    ``sqrt(2|A||B| / (|A|+|B|)) ‖μ_A - μ_B‖``.

    Raises ``ValueError`` for similarities, a Gram matrix, asymmetry, values that are not finite, unknown linkages.

    >>> dendrogram(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single")
    array([[0., 1., 1., 2.],
           [2., 3., 4., 3.]])
    """
    _checks.one_of(linkage, LINKAGES, "linkage")
    square = _checks.distance_matrix(distances)
    if len(square) == 1:
        return np.zeros((0, 4))
    tree: np.ndarray = hierarchy.linkage(squareform(square, checks=False), method=linkage)
    return tree


def cut_dendrogram(tree: np.ndarray, *, threshold: float | None = None, groups: int | None = None) -> np.ndarray:
    """The groups that a tree ``(n - 1, 4)`` of :func:`dendrogram` has at a height or in a number.

    Exactly one of threshold: merge only while the distance is *below* it, and groups: how many. Returns labels ``(n,)``
    numbered by first member. One tree serves any number of cuts.

    >>> tree = dendrogram(np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]]), "single")
    >>> cut_dendrogram(tree, threshold=4.0), cut_dendrogram(tree, groups=1)
    (array([0, 0, 1]), array([0, 0, 0]))
    """
    tree = _checks.array(tree)
    if tree.ndim != 2 or tree.shape[1] != 4:
        raise ValueError(f"tree must be (n - 1, 4), as dendrogram makes it, got shape {tree.shape}")
    n = len(tree) + 1
    _check_cut(n, threshold, groups)
    merges = n - groups if groups is not None else int((tree[:, 2] < threshold).sum())
    members = {i: [i] for i in range(n)}
    for row in range(merges):
        one, two = int(tree[row, 0]), int(tree[row, 1])
        members[n + row] = members.pop(one) + members.pop(two)
    labels = np.empty(n, dtype=np.int64)
    for number, group in enumerate(sorted(members.values(), key=min)):
        labels[group] = number
    return labels


def _check_cut(n: int, threshold: float | None, groups: int | None) -> None:
    if (threshold is None) == (groups is None):
        given = f"threshold={threshold} and groups={groups}"
        raise ValueError(f"exactly one of threshold and groups must be given, got {given}")
    if threshold is not None and not threshold >= 0:
        raise ValueError(f"threshold must be >= 0, a distance, got {threshold}")
    if groups is not None:
        _checks.number_of_groups(groups, n)


def cut(distances: np.ndarray, *, linkage: str, threshold: float | None = None, groups: int | None = None) -> np.ndarray:
    """Groups of clients by hierarchical clustering of their distances ``(n, n)``: labels ``(n,)`` by first member.

    linkage and errors as in :func:`dendrogram`. Exactly one of threshold: merge only while the distance is strictly
    below it (so two clients at distance 3 stay apart at threshold 3), and groups: how many. One client is ``[0]``.

    >>> apart = np.array([[0.0, 3.0], [3.0, 0.0]])
    >>> cut(apart, linkage="ward", threshold=3.0), cut(apart, linkage="ward", threshold=3.001)
    (array([0, 1]), array([0, 0]))
    """
    return cut_dendrogram(dendrogram(distances, linkage), threshold=threshold, groups=groups)


def cut_margin(
    distances: np.ndarray,
    *,
    linkage: str,
    threshold: float | None = None,
    groups: int | None = None,
    tree: np.ndarray | None = None,
) -> float:
    """How much a :func:`cut` can bear: its groups stay the same while every distance moves by less than half of this.

    Arguments and errors as in :func:`cut`; tree: that of :func:`dendrogram`, where it is at hand. So where distances are
    known up to ``eps``, the groups are certain if the margin is above ``2 eps``. Linkage single: the gap between the last
    merge made and the next one; with a threshold, twice the way from it to the nearer of the two. Complete and average:
    the same of the greatest distance within a group and the least between groups, which is sufficient, not necessary: 0
    where groups overlap, though they may be stable. ``inf`` where nothing could change them, as with one group.

    Why: a linkage of two sets lies between their least and greatest distance, so while all distances that are to be
    merged stay under all that are not, every merge within a group comes before any other. Raises ``ValueError`` for
    ward, whose heights are no distances of pairs; there no such margin is known.

    >>> apart = np.array([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
    >>> cut_margin(apart, linkage="single", groups=2), cut_margin(apart, linkage="complete", threshold=1.5)
    (3.0, 1.0)
    """
    if linkage == "ward":
        raise ValueError("linkage must be single, complete or average, got 'ward', of which no margin is known")
    square = _checks.distance_matrix(distances)
    made = dendrogram(square, linkage) if tree is None else tree
    labels = cut_dendrogram(made, threshold=threshold, groups=groups)
    if len(labels) != len(square):
        raise ValueError(f"tree must be of the {len(square)} clients of distances, got one of {len(labels)}")
    return margin(*borders(square, labels, made, linkage), threshold)


def agglomerative(
    updates: np.ndarray | Tensor,
    *,
    metric: str,
    linkage: str,
    threshold: float | None = None,
    groups: int | None = None,
    sketch: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Groups of clients by hierarchical clustering of their updates ``(n, d)``: labels ``(n,)`` by first member.

    metric: ``"l1"``, ``"l2"`` or ``"cosine"`` (1 - cosine; 1 to a zero update). linkage: ``"single"``, ``"complete"``,
    ``"average"``, or with l2 ``"ward"``, in SciPy's and scikit-learn's convention. threshold, groups: see :func:`cut`.
    FL+HC recommends l1 with complete linkage. For l2 the mean row is taken off first, which changes no distance and
    spares them the cancellation of a large common part. sketch: cluster sketches
    (:func:`~coterie.clustering.sketch`) of so many numbers, drawn by ``seed``, of long updates in l2 or cosine; a
    ``SketchWarning`` says when their error (:func:`~coterie.clustering.sketch_error`) could have changed the groups.

    Raises ``ValueError`` for unknown or contradictory settings, rows that are not finite, and what is certainly a
    matrix of distances, which :func:`cut` takes.

    >>> agglomerative(np.array([[0.0, 1.0], [5.0, 5.0], [0.0, 1.5]]), metric="l2", linkage="ward", threshold=1.0)
    array([0, 1, 0])
    """
    _checks.one_of(metric, METRICS, "metric")
    _checks.one_of(linkage, LINKAGES, "linkage")
    if linkage == "ward" and metric != "l2":
        raise ValueError(f"linkage ward is defined by Euclidean distances and takes metric l2 only, got {metric}")
    rows = _checks.rows(updates)
    d = rows.shape[1]
    _check_cut(len(rows), threshold, groups)
    _refuse_distances(rows)
    if sketch is not None:
        if metric == "l1":
            raise ValueError("sketch takes metric l2 or cosine only, got l1: a sketch keeps inner products, not l1 distances")
        rows = sketch_of_columns(rows, None, sketch, seed)
    if metric == "l1":
        apart = geometry.manhattan(rows)
    else:
        products = geometry.gram_of_rows(rows, centre=metric == "l2")
        apart = geometry.distances(products, metric)
    tree = dendrogram(apart, linkage)
    labels = cut_dendrogram(tree, threshold=threshold, groups=groups)
    if sketch is not None and d > sketch:  # else the rows are their own sketches
        ends = borders(apart, labels, tree, linkage)
        warn_if_near(ends, linkage=linkage, metric=metric, threshold=threshold, size=sketch, n=len(rows))
    return labels


def _refuse_distances(rows: Tensor) -> None:
    """A symmetric square of numbers >= 0 with zeros only and all along the diagonal is nobody's updates."""
    n, d = rows.shape
    if n != d or n < 3:
        return
    square = _checks.array(rows)
    off = ~np.eye(n, dtype=bool)
    if not np.diagonal(square).any() and (square[off] > 0).all() and np.array_equal(square, square.T):
        raise ValueError("updates look like a matrix of distances (n, n); pass that to cut(distances, linkage=...)")


# ----------------------------------------------------------------------------------------------------
# By how much distances may move before groups change, so that what was found in sketches can be vouched for.


class SketchWarning(UserWarning):
    """Groups were found in sketches, and a sketch's error could have changed them."""


def borders(distances: np.ndarray, labels: np.ndarray, tree: np.ndarray, linkage: str) -> tuple[float, float]:
    """(below, above): while every distance that is at most ``below`` stays under all that are at least ``above``, the
    groups ``labels`` stay as they are. ``-inf`` where nobody has a fellow, ``inf`` where all are together.

    Single linkage: the last merge made and the next one. Its groups are the components of the graph of distances below
    the cut; the merges made hold them together, and no distance between them is below the next merge.
    Complete and average linkage: the greatest distance within a group and the least between groups. The linkage of two
    sets lies between their least and greatest distance, so while all distances within groups are under all between them,
    merges within come first, whichever way the tree grows. This is sufficient, not necessary: of groups that overlap it
    knows nothing (below >= above).
    """
    n, groups = len(labels), int(labels.max()) + 1
    if linkage == "single":
        made = n - groups
        below = float(tree[made - 1, 2]) if made else -math.inf
        return below, float(tree[made, 2]) if groups > 1 else math.inf
    below, above = -math.inf, math.inf
    for part in _checks.strips(n):
        fellows = labels[part, None] == labels
        above = min(above, float(np.min(distances[part], where=~fellows, initial=math.inf)))
        below = max(below, float(np.max(distances[part], where=fellows, initial=0.0)))
    return (below if groups < n else -math.inf), above


def margin(below: float, above: float, threshold: float | None) -> float:
    """How much two distances may approach each other between ``borders``: twice what each may move, never below 0."""
    if threshold is None:
        return max(above - below, 0.0)
    room = math.inf if above == math.inf else above - threshold
    return max(2 * min(threshold - below, room), 0.0)


def doubt(ends: tuple[float, float], *, linkage: str, metric: str, threshold: float | None, size: int, n: int) -> str | None:
    """Why the error of sketches of ``size`` numbers might have changed the groups between ``ends``; None if it cannot.

    ends: the borders among the distances of n sketches. A cosine distance is off by up to the bound, a squared Euclidean
    one by up to its share.
    """
    error = sketch_error(size, n)
    if linkage == "ward":
        return "no margin is known for linkage ward"
    if _safe(ends, metric, threshold, error):
        return None
    what = "a cosine" if metric == "cosine" else "a squared distance by a share"
    return f"a sketch of {size} numbers may put {what} off by {error:.3g}, more than the cut has room for"


def warn_if_near(ends: tuple[float, float], **cut: Any) -> None:
    """A :class:`SketchWarning` where there is a :func:`doubt`."""
    reason = doubt(ends, **cut)
    if reason is None:
        return
    advice = "compare with a larger sketch, or cluster the updates themselves"
    warnings.warn(f"the groups of the updates may be others than those of their sketches: {reason}; {advice}",
                  SketchWarning, stacklevel=3)  # fmt: skip


def _safe(ends: tuple[float, float], metric: str, threshold: float | None, error: float) -> bool:
    below, above = ends
    if threshold is None and (below == -math.inf or above == math.inf):
        return True  # one group, or as many as clients
    if metric == "cosine":
        greatest, least = below + error, above - error
    elif error >= 1:
        return False
    else:
        greatest, least = below / math.sqrt(1 - error), above / math.sqrt(1 + error)
    return greatest < (least if threshold is None else threshold) and (threshold is None or threshold <= least)
