"""The best way to cut a group in two (Sattler, Müller, Samek, arXiv 1910.01991, Algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.agglomerative import cut_dendrogram, dendrogram
from coterie.clustering.margins import borders, margin

LINKAGES = ("single", "complete", "average")


class Bipartition(NamedTuple):
    """Two groups of positions, each sorted; ``left`` holds position 0. cross: their greatest cross similarity."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    cross: float


def optimal_bipartition(similarity: np.ndarray) -> Bipartition:
    """The two groups whose greatest similarity across is smallest: argmin of ``max α_ij``, i in c1, j in c2.

    similarity: ``(n, n)``, symmetric, n >= 2; only entries off the diagonal are read.

    CFL's Algorithm 1 merges along the pairs in descending similarity until two clusters are left. That is Kruskal's
    maximum spanning tree without its last edge, which is single linkage cut at two; published code uses complete
    linkage, which does not minimise this. Here the tree is grown by Prim's rule in O(n²). Ties: pairs of equal
    similarity count in the order of (i, j), i < j, so the order of pairs is total, the tree unique, and the result that
    of the algorithm as printed, with the pairs sorted stably. Two clients are always the two singletons, where the
    printed loop may merge them.

    Raises ``ValueError`` for fewer than two clients, entries that are not finite, asymmetry, distances, a Gram matrix.

    >>> optimal_bipartition(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]))
    Bipartition(left=(0, 1), right=(2,), cross=0.3)
    """
    square = _at_least_two(similarity)
    n = len(square)
    parent, weight = _spanning_tree(square)
    child = np.arange(1, n)
    low, high = np.minimum(child, parent[1:]), np.maximum(child, parent[1:])
    last = 1 + int(np.lexsort((-high, -low, weight[1:]))[0])  # the weakest edge; of equals the last in order
    return _from_side(square, _below(parent, last))


def _spanning_tree(square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prim's maximum spanning tree from position 0: each position's parent and the similarity of that edge."""
    n = len(square)
    parent = np.zeros(n, dtype=np.int64)
    weight = square[0].copy()
    outside = np.ones(n, dtype=bool)
    outside[0] = False
    for _ in range(n - 1):
        best = np.where(outside, weight, -np.inf)
        ties = np.flatnonzero(best == best.max())
        pair = np.minimum(ties, parent[ties]) * n + np.maximum(ties, parent[ties])
        new = int(ties[pair.argmin()])
        outside[new] = False
        row = square[new]
        # Of two equal edges to the same outside position, the pair with the smaller inside position comes first.
        better = outside & ((row > weight) | ((row == weight) & (new < parent)))
        weight[better], parent[better] = row[better], new
    return parent, weight


def _below(parent: np.ndarray, top: int) -> np.ndarray:
    """Which positions hang below ``top``, itself included, as ``(n,)`` booleans."""
    children: dict[int, list[int]] = {}
    for child in range(1, len(parent)):
        children.setdefault(int(parent[child]), []).append(child)
    side = np.zeros(len(parent), dtype=bool)
    stack = [top]
    while stack:
        node = stack.pop()
        side[node] = True
        stack += children.get(node, ())
    return side


def bipartition(similarity: np.ndarray, linkage: str = "single") -> Bipartition:
    """A group cut in two by hierarchical clustering of ``-similarity``; arguments and errors as above.

    linkage: ``"single"`` is :func:`optimal_bipartition`; ``"complete"`` and ``"average"`` are for comparison with code
    that uses them, and their ``cross`` is never below the optimal one.

    >>> bipartition(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]), "complete").right
    (2,)
    """
    if _checks.one_of(linkage, LINKAGES, "linkage") == "single":
        return optimal_bipartition(similarity)
    square = _at_least_two(similarity)
    _, labels, _ = _clustered(square, linkage)
    return _from_side(square, labels == 1)


def bipartition_margin(similarity: np.ndarray, linkage: str = "single") -> float:
    """How much the cut in two can bear: its sides stay the same while every similarity moves by less than half of this.

    Arguments and errors as in :func:`bipartition`. So where similarities are known up to ``eps``, the sides are certain
    if the margin is above ``2 eps``. Single linkage, :func:`optimal_bipartition`: the weakest edge that is left in its
    spanning tree, less the cross similarity. Why: the edges left hold each side together, and no similarity across is
    above the cross; while that order holds, both sides are joined before anything across. Complete and average: the
    least similarity within a side less the greatest across, which is sufficient, not necessary: 0 where that is
    negative, though the cut may be stable. Two clients have but one cut: ``inf``.

    >>> bipartition_margin(np.array([[1.0, 0.75, 0.125], [0.75, 1.0, 0.25], [0.125, 0.25, 1.0]]))  # 0.75 - 0.25
    0.5
    """
    _checks.one_of(linkage, LINKAGES, "linkage")
    square = _at_least_two(similarity)
    if len(square) == 2:
        return np.inf
    if linkage == "single":
        cross, weakest = np.partition(_spanning_tree(square)[1][1:], 1)[:2]
        return float(weakest - cross)
    apart, labels, tree = _clustered(square, linkage)
    return margin(*borders(apart, labels, tree, linkage), None)


def _clustered(square: np.ndarray, linkage: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``-square`` as distances, their two groups as labels, and their tree."""
    apart = square.max() - square
    np.fill_diagonal(apart, 0.0)
    tree = dendrogram(apart, linkage)
    return apart, cut_dendrogram(tree, groups=2), tree


def _at_least_two(similarity: np.ndarray) -> np.ndarray:
    square = _checks.similarity_matrix(similarity)
    if len(square) < 2:
        raise ValueError("similarity must be of at least 2 clients to be cut in two, got 1")
    return square


def _from_side(square: np.ndarray, side: np.ndarray) -> Bipartition:
    if side[0]:
        side = ~side
    left, right = np.flatnonzero(~side), np.flatnonzero(side)
    small, large = (left, right) if len(left) < len(right) else (right, left)
    cross = max(float(square[i, large].max()) for i in small)
    return Bipartition(tuple(left.tolist()), tuple(right.tolist()), cross)
