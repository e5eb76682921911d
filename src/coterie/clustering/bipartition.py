"""The best bipartition of a group (Sattler, Müller, Samek, arXiv 1910.01991, Algorithm 1)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.agglomerative import borders, cut_dendrogram, dendrogram, margin
from coterie.settings.calls import public

BIPARTITION_LINKAGES = ("single", "complete", "average")


class Bipartition(NamedTuple):
    """Two groups of positions.

    Attributes:
        left: The group with position 0, sorted.
        right: The other group, sorted.
        cross: The greatest similarity between the two groups.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    cross: float


@public
def optimal_bipartition(similarity: np.ndarray) -> Bipartition:
    """Find the two groups whose greatest cross similarity is smallest: argmin of ``max α_ij``, i in c1, j in c2.

    CFL's Algorithm 1 merges along the pairs in descending order of similarity until two clusters
    are left. This is Kruskal's maximum spanning tree without its last edge, that is, single linkage
    cut into two groups. Published code uses complete linkage, which does not minimise the cross
    similarity.

    Here Prim's rule builds the tree in O(n²). Ties: pairs of equal similarity count in the order of
    (i, j), i < j. So the order of pairs is total, the tree is unique, and the result is that of the
    printed algorithm with the pairs sorted stably. Two clients always become two groups of one; the
    printed loop may merge them.

    Args:
        similarity: Shape ``(n, n)``, symmetric, n >= 2. Only entries off the diagonal are read.

    Returns:
        The bipartition.

    Raises:
        ValueError: There are fewer than two clients, or ``similarity`` is not finite, not
            symmetric, a matrix of distances or a Gram matrix.

    Example:
        >>> optimal_bipartition(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]))
        Bipartition(left=(0, 1), right=(2,), cross=0.3)
    """
    square = _at_least_two(similarity)
    n = len(square)
    parents, edge_weights = _spanning_tree(square)
    # Without its weakest edge the tree is two subtrees; of equal edges, the last in order.
    children = np.arange(1, n)
    smaller_end = np.minimum(children, parents[1:])
    larger_end = np.maximum(children, parents[1:])
    weakest_first = np.lexsort((-larger_end, -smaller_end, edge_weights[1:]))
    return _from_side(square, _subtree(parents, 1 + int(weakest_first[0])))


def _spanning_tree(square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prim's maximum spanning tree from position 0: the parent of each position, and the similarity of that edge."""
    n = len(square)
    parents = np.zeros(n, dtype=np.int64)
    edge_weights = square[0].copy()
    outside = np.ones(n, dtype=bool)
    outside[0] = False
    for _ in range(n - 1):
        # The heaviest edge from the tree to the outside; of equal ones, the first pair (i, j).
        outside_weights = np.where(outside, edge_weights, -np.inf)
        tied_positions = np.flatnonzero(outside_weights == outside_weights.max())
        tied_parents = parents[tied_positions]
        smaller_end = np.minimum(tied_positions, tied_parents)
        larger_end = np.maximum(tied_positions, tied_parents)
        pair_order = smaller_end * n + larger_end
        new_position = int(tied_positions[pair_order.argmin()])
        outside[new_position] = False
        new_similarities = square[new_position]
        # Of two equal edges to the same outside position, the pair with the smaller inside position
        # comes first.
        is_greater = new_similarities > edge_weights
        is_first_of_equal = (new_similarities == edge_weights) & (new_position < parents)
        is_better = outside & (is_greater | is_first_of_equal)
        edge_weights[is_better] = new_similarities[is_better]
        parents[is_better] = new_position
    return parents, edge_weights


def _subtree(parents: np.ndarray, top_node: int) -> np.ndarray:
    """Whether each position is in the subtree of ``top_node``, itself included, as ``(n,)`` booleans."""
    children: dict[int, list[int]] = {}
    for child in range(1, len(parents)):
        children.setdefault(int(parents[child]), []).append(child)
    in_subtree = np.zeros(len(parents), dtype=bool)
    open_nodes = [top_node]
    while open_nodes:
        node = open_nodes.pop()
        in_subtree[node] = True
        open_nodes += children.get(node, ())
    return in_subtree


@public
def bipartition(similarity: np.ndarray, linkage: str = "single") -> Bipartition:
    """Divide a group in two by hierarchical clustering of ``-similarity``.

    Args:
        similarity: As in :func:`optimal_bipartition`.
        linkage: ``"single"`` is :func:`optimal_bipartition`. ``"complete"`` and ``"average"`` are
            for comparison with code that uses them; their ``cross`` is never below the optimal one.

    Returns:
        The bipartition.

    Raises:
        ValueError: As in :func:`optimal_bipartition`, or the linkage is unknown.

    Example:
        >>> bipartition(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]), "complete").right
        (2,)
    """
    if _checks.one_of(linkage, BIPARTITION_LINKAGES, "linkage") == "single":
        return optimal_bipartition(similarity)
    square = _at_least_two(similarity)
    _, labels, _ = _clustered(square, linkage)
    return _from_side(square, labels == 1)


@public
def bipartition_margin(similarity: np.ndarray, linkage: str = "single") -> float:
    """Compute the margin of a bipartition: its groups stay the same while every similarity changes by less than half of it.

    If similarities are known up to ``eps``, the groups are certain if the margin is above ``2
    eps``.

    Single linkage, :func:`optimal_bipartition`: the weakest edge that remains in its spanning tree,
    minus the cross similarity. Reason: the remaining edges hold each group together, and no
    similarity between the groups is above the cross similarity. While that order holds, both groups
    are complete before anything between them is merged. Complete and average
    linkage: the smallest similarity within a group minus the greatest between groups. This is
    sufficient, not necessary: the margin is 0 if the difference is negative, although the
    bipartition may be stable.

    Args:
        similarity: As in :func:`bipartition`.
        linkage: As in :func:`bipartition`.

    Returns:
        The margin; ``inf`` for two clients, for which there is only one bipartition.

    Raises:
        ValueError: As in :func:`bipartition`.

    Example:
        >>> bipartition_margin(np.array([[1.0, 0.75, 0.125], [0.75, 1.0, 0.25], [0.125, 0.25, 1.0]]))  # 0.75 - 0.25
        0.5
    """
    _checks.one_of(linkage, BIPARTITION_LINKAGES, "linkage")
    square = _at_least_two(similarity)
    if len(square) == 2:
        return np.inf
    if linkage == "single":
        cross_similarity, weakest_within = np.partition(_spanning_tree(square)[1][1:], 1)[:2]
        return float(weakest_within - cross_similarity)
    distances, labels, tree = _clustered(square, linkage)
    return margin(*borders(distances, labels, tree, linkage), None)


def _clustered(square: np.ndarray, linkage: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``-similarity`` as distances, their two groups as labels, and their tree."""
    distances = square.max() - square
    np.fill_diagonal(distances, 0.0)
    tree = dendrogram(distances, linkage)
    return distances, cut_dendrogram(tree, groups=2), tree


def _at_least_two(similarity: np.ndarray) -> np.ndarray:
    square = _checks.similarity_matrix(similarity)
    if len(square) < 2:
        raise ValueError("similarity must have at least 2 clients to be split, got 1")
    return square


def _from_side(square: np.ndarray, is_on_side: np.ndarray) -> Bipartition:
    """The bipartition into the positions of ``is_on_side``, a mask ``(n,)``, and the others."""
    is_on_left = is_on_side if is_on_side[0] else ~is_on_side
    left = np.flatnonzero(is_on_left)
    right = np.flatnonzero(~is_on_left)
    smaller_side, larger_side = (left, right) if len(left) < len(right) else (right, left)
    cross_similarity = max(float(square[position, larger_side].max()) for position in smaller_side)
    return Bipartition(tuple(left.tolist()), tuple(right.tolist()), cross_similarity)


# ----------------------------------------------------------------------------------------------------
# Conditions for a correct bipartition: CFL's Separation Theorem (Sattler, Müller, Samek, arXiv
# 1910.01991, section II).
#
# A bipartition is *correct* (Definition 1) if no two clients of the same data distribution are on
# different sides. γ_i is the distance of client i's gradient from the gradient of its distribution,
# relative to the norm of the latter (eq. 16). With k distributions, similarities within one
# distribution are at least ``H(γ_i, γ_j)`` (eq. 21). The cross similarities of the best bipartition
# are at most ``separation_bound(k, γ_i, γ_j)`` (eq. 19), the greatest over the pairs across.
#
# Two misprints of the paper are not followed. Lemma 3's h must begin with ``-‖X‖‖Y‖ / (‖v‖‖w‖)``;
# the paper prints a denominator ``‖v‖²``, with which the lemma is false unless ``‖v‖ = ‖w‖``. And a
# gap above zero is sufficient for a correct bipartition, not "if and only if" (Remark 2, eq. 49):
# with noise, bipartitions are often correct without a gap.


@public
def separation_gap(similarity: np.ndarray, labels: Any) -> float:
    """Compute ``g(α)``: least similarity within a true group, minus the greatest across the best cut (Definition 2, eq. 28).

    Above zero, the best cut is correct; below, nothing follows. With one true group the gap is
    never above zero. If all clients are different, the similarity within a group is that of a
    client to itself, 1.

    Args:
        similarity: Cosine similarities, shape ``(n, n)``, n >= 2.
        labels: Shape ``(n,)``: the data distribution of each client.

    Returns:
        The gap.

    Raises:
        ValueError: There is not one label per client (positions or groups are not labels), or as in
            :func:`optimal_bipartition`.

    Example:
        >>> separation_gap(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]), [0, 0, 1])  # 0.9 - 0.3
        0.6000000000000001
    """
    square = _checks.similarity_matrix(similarity)
    true_groups = _checks.label_vector(labels, len(square))
    # α_cross^max, eq. 19
    cross_similarity = optimal_bipartition(square).cross
    # α_intra^min, eq. 21: the least similarity within a true group.
    within_similarity = 1.0
    for position, similarities in enumerate(square):
        is_in_group = true_groups[position + 1 :] == true_groups[position]
        to_later_members = similarities[position + 1 :][is_in_group]
        if to_later_members.size:
            within_similarity = min(within_similarity, float(to_later_members.min()))
    return within_similarity - cross_similarity


@public
def H(gamma_i: float, gamma_j: float) -> float:
    """Compute ``H_ij = -γ_i γ_j + sqrt(1 - γ_i²) sqrt(1 - γ_j²) = cos(asin γ_i + asin γ_j)`` (eq. 20).

    Args:
        gamma_i: γ of client i, 0 to 1.
        gamma_j: γ of client j, 0 to 1.

    Returns:
        The least cosine similarity of the two clients if they have the same data distribution.

    Raises:
        ValueError: A γ is not in [0, 1].

    Example:
        >>> H(0.0, 0.0), round(H(0.6, 0.6), 12)  # 1 - 2γ² for equal ones
        (1.0, 0.28)
    """
    for argument, gamma in (("gamma_i", gamma_i), ("gamma_j", gamma_j)):
        if not 0 <= gamma <= 1:
            raise ValueError(
                f"{argument} must be 0 to 1, where the Separation Theorem holds, got {gamma}"
            )
    return -gamma_i * gamma_j + math.sqrt(1 - gamma_i**2) * math.sqrt(1 - gamma_j**2)


@public
def separation_bound(k: int, gamma_i: float, gamma_j: float) -> float:
    """Compute the greatest possible similarity of two clients across the best cut (eq. 19).

    It is ``cos(π/(k-1)) H + sin(π/(k-1)) sqrt(1 - H²)`` if ``H >= cos(π/(k-1))``, else 1. The paper
    does not specify i and j: take the greatest over the pairs across.

    Args:
        k: The number of data distributions.
        gamma_i: γ of client i, 0 to 1.
        gamma_j: γ of client j, 0 to 1.

    Returns:
        The bound. For k = 2 it is ``-H`` (Remark 1). For k = 1 the clients are congruent, there is
        nothing to separate, and the formula contains π/0; the bound is 1, that of every cosine.

    Raises:
        ValueError: k is not an integer >= 1, or a γ is not in [0, 1].

    Example:
        >>> round(separation_bound(3, 0.0, 0.6), 12)  # H = 0.8; sqrt(1 - 0.8²)
        0.6
    """
    _whole(k)
    h = H(gamma_i, gamma_j)
    if k == 1:
        return 1.0
    if k == 2:
        # sin(π), in the formula below, is not zero in floating point.
        return -h
    angle = math.pi / (k - 1)
    # Nor is cos(π/2).
    cos_angle = 0.0 if k == 3 else math.cos(angle)
    if h < cos_angle:
        return 1.0
    return cos_angle * h + math.sin(angle) * math.sqrt(max(1 - h * h, 0.0))


@public
def guaranteed_gamma(k: int) -> float:
    """Compute ``sin(π / (4(k-1)))``: if every γ is below it, the best cut of k distributions is certainly correct.

    It follows from Theorem 1 with equal γ, ``cos φ > cos(π/(k-1) - φ)`` at ``φ = 2 asin γ``.

    Args:
        k: The number of data distributions.

    Returns:
        The bound on γ; 0 for k = 1, since no cut of congruent clients is correct.

    Raises:
        ValueError: k is not an integer >= 1.

    Example:
        >>> [round(guaranteed_gamma(k), 4) for k in (2, 3, 10)]
        [0.7071, 0.3827, 0.0872]
    """
    _whole(k)
    return math.sin(math.pi / (4 * (k - 1))) if k > 1 else 0.0


@public
def gamma_bound(cross: float) -> float:
    """Compute ``sqrt((1 - α_cross) / 2)``: a cut with this cross similarity is correct if every γ is below it (eq. 39).

    Args:
        cross: The greatest cosine similarity across the cut.

    Returns:
        The bound on γ.

    Raises:
        ValueError: ``cross`` is not in [-1, 1].

    Example:
        >>> gamma_bound(-1.0), gamma_bound(1.0)
        (1.0, 0.0)
    """
    if not -1 - _checks.FLOAT32_SLACK <= cross <= 1 + _checks.FLOAT32_SLACK:
        raise ValueError(f"cross must be a cosine similarity, -1 to 1, got {cross}")
    return math.sqrt(min(max((1 - cross) / 2, 0.0), 1.0))


@public
def passes_gamma(cross: float, gamma_max: float) -> bool:
    """Make CFL's test before a split, ``γ_max < sqrt((1 - α_cross) / 2)``, strictly (Algorithm 5, line 18).

    Args:
        cross: The greatest cosine similarity across the cut.
        gamma_max: The greatest γ, 0 to 1.

    Returns:
        Whether the cut may be made.

    Raises:
        ValueError: ``cross`` is not in [-1, 1], or ``gamma_max`` not in [0, 1].

    Example:
        >>> passes_gamma(0.0, 0.7), passes_gamma(1.0, 0.0)
        (True, False)
    """
    if not 0 <= gamma_max <= 1:
        raise ValueError(f"gamma_max must be 0 to 1, got {gamma_max}")
    return gamma_max < gamma_bound(cross)


def _whole(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise ValueError(f"k, the number of data distributions, must be an integer >= 1, got {k!r}")
