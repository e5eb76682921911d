"""HCCT's utility, its greedy merge and the benefit of a merge, from the Gram matrix (arXiv 2401.13236, section V).

The utility of a client in group G is ``U_n(G) = cos(g_n, ḡ_G) - λ_n / N_G``. The cosine measures
how well the gradient of the group, ``ḡ_G = Σ N_i g_i / N_G``, fits the client; for a client alone
it is 1 by definition. The second term is a price for little data. The utility of a group is the sum
over its members. The paper's constant Γ cancels in every comparison and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coterie.clustering import _checks
from coterie.clustering.geometry import ZERO
from coterie.settings.calls import public

Tradeoff = float | Sequence[float] | np.ndarray


@public
def utility(gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, group: Iterable[int]) -> np.ndarray:
    """Compute the utility ``U_n(G)`` of every member of one group (eq. 9 with Γ = 0).

    The utility of the group is the sum. A merge may raise it while it lowers the utility of a
    member.

    Args:
        gram: Shape ``(n, n)``, of the gradients or updates. A norm below 1e-12 makes a cosine 0.
        sizes: Training-set sizes N, shape ``(n,)``, > 0.
        tradeoff: λ >= 0, a number or shape ``(n,)``, on the scale of the sizes.
        group: Positions of the members.

    Returns:
        Shape ``(|G|,)``, in the order of positions.

    Raises:
        ValueError: An argument does not have the form above.

    Example:
        >>> gram = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> utility(gram, [100, 100, 100], 10, group=[0, 1])  # 1 - 10/200 each
        array([0.95, 0.95])
    """
    products, sizes, tradeoff = _inputs(gram, sizes, tradeoff)
    members = _checks.position_list(group, len(products))
    # λ_n / N_G
    group_size = sizes[members].sum()
    prices = tradeoff[members] / group_size
    if len(members) == 1:
        return 1.0 - prices
    # cos(g_n, ḡ_G), with the gradient of the group ḡ_G = Σ share_i g_i.
    shares = sizes[members] / group_size
    inner_products = products[np.ix_(members, members)] @ shares
    update_norms = np.sqrt(np.diagonal(products)[members])
    mean_norm = np.sqrt(max(shares @ inner_products, 0.0))
    norm_products = update_norms * mean_norm if mean_norm >= ZERO else np.zeros(len(members))
    is_similar = (update_norms >= ZERO) & (norm_products > 0)
    cosines = np.zeros(len(members))
    np.divide(inner_products, norm_products, out=cosines, where=is_similar)
    return np.clip(cosines, -1.0, 1.0) - prices


@public
def utility_merge(
    gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, *, groups: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Merge the two groups with the greatest gain of utility while there is a gain (Algorithm 2).

    If two gains are equal, the pair with the smallest first members is merged. A gain must be above
    zero by more than rounding.

    With ``P_A = Σ N_i g_i``, ``U_A = Σ g_i/‖g_i‖`` and ``L_A = Σ λ_i``, the utility of ``A ∪ B`` is
    ``<P_A + P_B, U_A + U_B> / ‖P_A + P_B‖ - (L_A + L_B) / (N_A + N_B)``. It consists of entries of
    two ``(n, n)`` matrices that follow from the Gram matrix. A merge adds two rows and two columns
    of each. So a pair costs O(1) and the whole algorithm O(n²), whatever d is; the definition costs
    O(n³ d).

    Args:
        gram: As in :func:`utility`.
        sizes: As in :func:`utility`.
        tradeoff: As in :func:`utility`.
        groups: If given, merge until this number of groups is left, whatever the gain.

    Returns:
        Groups as sorted tuples of positions, in the order of their first members.

    Raises:
        ValueError: As in :func:`utility`, or ``groups`` is not an integer 1 to n.

    Example:
        Two clients of N examples and cosine c merge if ``λ/N > 2 (1 - sqrt((1 + c)/2))``, 0.586 for
        c = 0:

        >>> gram = np.eye(2)
        >>> utility_merge(gram, [100, 100], 58), utility_merge(gram, [100, 100], 59)
        (((0,), (1,)), ((0, 1),))
    """
    products, sizes, tradeoff = _inputs(gram, sizes, tradeoff)
    if groups is not None:
        _checks.number_of_groups(groups, len(products))
    return _Merging(products, sizes, tradeoff).run(groups)


@public
def benefits(
    gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, groups: Sequence[Iterable[int]]
) -> np.ndarray:
    """Compute the benefit ``B_ij = U(G_i ∪ G_j) - U(G_i) - U(G_j)`` of merging any two groups (eq. 15).

    Args:
        gram: As in :func:`utility`.
        sizes: As in :func:`utility`.
        tradeoff: As in :func:`utility`.
        groups: k groups of positions. No position is in two of them; not all positions need be in
            one.

    Returns:
        Shape ``(k, k)``, symmetric. The diagonal is -inf: no group merges with itself.

    Raises:
        ValueError: As in :func:`utility`, or ``groups`` are not such groups.

    Example:
        >>> gram = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> benefits(gram, [100, 100, 100], 10, [[0], [1], [2]]).round(3)  # 2 - 20/200 - 2 (1 - 10/100); cos 45° twice
        array([[  -inf,  0.1  , -0.486],
               [ 0.1  ,   -inf, -0.486],
               [-0.486, -0.486,   -inf]])
    """
    products, sizes, tradeoff = _inputs(gram, sizes, tradeoff)
    group_positions = [_checks.position_list(group, len(products)) for group in groups]
    if not group_positions:
        raise ValueError("groups must be one or more disjoint lists of positions")
    all_positions = np.concatenate(group_positions)
    if len(np.unique(all_positions)) != len(all_positions):
        raise ValueError("groups must be one or more disjoint lists of positions")
    # Sums over the members of each group, in the letters of `utility_merge`: <P_A, P_B>, <P_A, U_B>,
    # N_A and L_A.
    group_starts = np.cumsum([0, *map(len, group_positions)])[:-1]
    member_pairs = np.ix_(all_positions, all_positions)
    single_pp, single_pu = _tables(products, sizes)
    products_pp = _block_sums(single_pp[member_pairs], group_starts)
    products_pu = _block_sums(single_pu[member_pairs], group_starts)
    group_sizes = np.add.reduceat(sizes[all_positions], group_starts)
    group_prices = np.add.reduceat(tradeoff[all_positions], group_starts)
    # U(G_i) of each group by itself.
    squared_norms = np.diagonal(products_pp)
    inner_products = np.diagonal(products_pu)
    single_utilities = _summed_utility(squared_norms, inner_products, group_sizes, group_prices)
    has_one_member = np.array([len(positions) == 1 for positions in group_positions])
    single_prices = group_prices[has_one_member] / group_sizes[has_one_member]
    single_utilities[has_one_member] = 1.0 - single_prices
    # U(G_i ∪ G_j) of each pair.
    merged_utilities = _summed_utility(
        squared_norms[:, None] + 2 * products_pp + squared_norms,
        inner_products[:, None] + products_pu + products_pu.T + inner_products,
        group_sizes[:, None] + group_sizes,
        group_prices[:, None] + group_prices,
    )
    gains = merged_utilities - single_utilities[:, None] - single_utilities
    gains = (gains + gains.T) / 2
    np.fill_diagonal(gains, -np.inf)
    return gains


def _block_sums(table: np.ndarray, block_starts: np.ndarray) -> np.ndarray:
    """Sums ``(k, k)`` over the blocks of a table that begin at ``starts``."""
    return np.add.reduceat(np.add.reduceat(table, block_starts, axis=0), block_starts, axis=1)


def _tables(products: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``<P_a, P_b>`` and ``<P_a, U_b>`` of single clients."""
    products_pp = sizes[:, None] * sizes
    products_pp *= products
    products_pu = sizes[:, None] * _inverse_norms(products)
    products_pu *= products
    return products_pp, products_pu


def _inverse_norms(products: np.ndarray) -> np.ndarray:
    """``1/‖g_i‖``, ``(n,)``; 0 for a zero update."""
    update_norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
    is_zero = update_norms < ZERO
    return np.where(is_zero, 0.0, 1.0 / np.where(is_zero, 1.0, update_norms))


def _summed_utility(
    squared_norms: np.ndarray,
    inner_products: np.ndarray,
    group_sizes: np.ndarray,
    group_prices: np.ndarray,
) -> np.ndarray:
    """The utility of groups of two or more clients: ``<P, U> / ‖P‖ - L / N``, from ``‖P‖²`` and ``<P, U>``."""
    sum_norms = np.sqrt(np.maximum(squared_norms, 0.0))
    is_zero = sum_norms < ZERO * group_sizes
    # This is rare, and a division with a mask takes several times as long.
    if is_zero.any():
        inner_products = np.where(is_zero, 0.0, inner_products)
        sum_norms = np.where(is_zero, 1.0, sum_norms)
    return inner_products / sum_norms - group_prices / group_sizes


@public
def benefit(
    gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, groups: Sequence[Iterable[int]], newcomer: int
) -> np.ndarray:
    """Compute the benefit of admitting one client to each of k groups (eq. 15); it joins the best one if that is above zero.

    Args:
        gram: As in :func:`benefits`.
        sizes: As in :func:`benefits`.
        tradeoff: As in :func:`benefits`.
        groups: As in :func:`benefits`.
        newcomer: The position of the client, in none of the groups.

    Returns:
        Shape ``(k,)``.

    Raises:
        ValueError: As in :func:`benefits`.

    Example:
        >>> gram = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> benefit(gram, [100, 100, 100], 10, [[0], [2]], newcomer=1).round(3)
        array([ 0.1  , -0.486])
    """
    return benefits(gram, sizes, tradeoff, [*groups, [newcomer]])[-1, :-1]


def _inputs(gram: Any, sizes: Any, tradeoff: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    products = _checks.gram_matrix(gram)
    num_clients = len(products)
    sizes = _checks.one_per_client(sizes, num_clients, "sizes")
    if not sizes.all():
        empty_client = int(np.flatnonzero(sizes == 0)[0])
        raise ValueError(f"sizes must be > 0, got 0 for client {empty_client}")
    if np.ndim(tradeoff) == 0:
        tradeoff = np.full(num_clients, float(tradeoff))
    return products, sizes, _checks.one_per_client(tradeoff, num_clients, "tradeoff")


class _Merging:
    """The groups of :func:`utility_merge` while they merge; a group is stored in the row of its first member.

    ``pp[a, b] = <P_a, P_b>`` and ``pu[a, b] = <P_a, U_b>``; their diagonals are also stored
    separately, because that is faster to read. ``gain[a, b]`` is -inf unless a < b. ``best[a]`` is
    the position of the maximum in row a of ``gain``, and ``best_gain[a]`` is that maximum, so that
    the best pair is found in O(n).
    """

    def __init__(self, products: np.ndarray, sizes: np.ndarray, tradeoff: np.ndarray) -> None:
        num_clients = len(sizes)
        self.pp, self.pu = _tables(products, sizes)
        self.square = np.diagonal(self.pp).copy()
        self.inner = np.diagonal(self.pu).copy()
        self.data = sizes.copy()
        self.price = tradeoff.copy()
        # Of each group.
        self.utility = 1.0 - tradeoff / sizes
        self.members: dict[int, list[int]] = {
            position: [position] for position in range(num_clients)
        }
        self.alive = np.ones(num_clients, dtype=bool)
        self.gain = np.full((num_clients, num_clients), -np.inf)
        for a, inverse_norm in enumerate(_inverse_norms(products)):
            # Column a of pu, from a row of the symmetric products, which is faster to read.
            column_a = sizes * inverse_norm * products[a]
            self.gain[a, a + 1 :] = self._gains(a, column_a, slice(a + 1, None))
        self.best = self.gain.argmax(axis=1)
        self.best_gain = self.gain[np.arange(num_clients), self.best]

    def run(self, groups: int | None) -> tuple[tuple[int, ...], ...]:
        """Merge until the given number of groups is left, or until there is no gain (Algorithm 2)."""
        while len(self.members) > (groups or 1):
            # The first of equal gains, here and in `best`: the smallest first members win ties.
            a = int(self.best_gain.argmax())
            b = int(self.best[a])
            rounding = 4 * np.finfo(float).eps * (len(self.members[a]) + len(self.members[b]))
            if groups is None and self.best_gain[a] <= rounding:
                break
            self._merge(a, b)
        return tuple(tuple(sorted(self.members[a])) for a in sorted(self.members))

    def _merged_utility(self, a: int, column_a: np.ndarray, partners: slice) -> np.ndarray:
        """Utility of group a merged with each partner; ``column_a`` is column a of ``pu``."""
        squared_norms = self.square[a] + 2 * self.pp[a, partners] + self.square[partners]
        inner_products = (
            self.inner[a] + self.pu[a, partners] + column_a[partners] + self.inner[partners]
        )
        group_sizes = self.data[a] + self.data[partners]
        group_prices = self.price[a] + self.price[partners]
        return _summed_utility(squared_norms, inner_products, group_sizes, group_prices)

    def _gains(self, a: int, column_a: np.ndarray, partners: slice) -> np.ndarray:
        """The benefit of merging group a with each partner (eq. 15)."""
        merged_utilities = self._merged_utility(a, column_a, partners)
        gains = merged_utilities - self.utility[a] - self.utility[partners]
        return np.where(self.alive[partners], gains, -np.inf)

    def _merge(self, a: int, b: int) -> None:
        """Group b joins a, whose first member is the smaller."""
        self.utility[a] = self._merged_utility(a, self.pu[:, a], slice(b, b + 1))[0]
        self.members[a] += self.members.pop(b)
        self.alive[b] = False
        # P_a and U_a become sums over both groups: rows and columns of b are added to those of a.
        self.pp[a] += self.pp[b]
        self.pp[a, a] += self.pp[a, b]
        # The matrix is symmetric, and rows are faster to read than columns.
        self.pp[:, a] = self.pp[a]
        self.pu[a] += self.pu[b]
        column_a = self.pu[:, a] + self.pu[:, b]
        self.pu[:, a] = column_a
        self.square[a] = self.pp[a, a]
        self.inner[a] = column_a[a]
        self.data[a] += self.data[b]
        self.price[a] += self.price[b]
        # Group b can no longer merge, and group a gains differently.
        gains = self._gains(a, column_a, slice(None))
        self.gain[b] = -np.inf
        self.gain[:b, b] = -np.inf
        self.best_gain[b] = -np.inf
        self.gain[a, a + 1 :] = gains[a + 1 :]
        self.gain[:a, a] = gains[:a]
        # Rows whose maximum was at a or b are searched again. The last row is never the first of a
        # pair.
        stale_rows = np.flatnonzero(self.alive & ((self.best == a) | (self.best == b)))
        for row in {a, *stale_rows.tolist()} - {len(gains) - 1}:
            self.best[row] = row + 1 + int(self.gain[row, row + 1 :].argmax())
            self.best_gain[row] = self.gain[row, self.best[row]]
        # In the other rows only the new entry at a can beat the maximum.
        new_gains = gains[:a]
        best_gains = self.best_gain[:a]
        is_better = (new_gains > best_gains) | ((new_gains == best_gains) & (a < self.best[:a]))
        self.best[:a][is_better] = a
        self.best_gain[:a][is_better] = new_gains[is_better]


# ----------------------------------------------------------------------------------------------------
# The best partition by HCCT's utility (arXiv 2401.13236, problem P1), found by trying all: a
# reference for the greedy merge.


MAX_OPTIMUM_CLIENTS = 10
"""The maximum number of clients for :func:`utility_optimum`, whose work grows as 3ⁿ."""


@public
def utility_optimum(
    gram: np.ndarray, sizes: Any, tradeoff: Tradeoff, *, groups: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Find the partition of greatest total utility (eq. 10-11), of all partitions of n <= 10 clients.

    :func:`~coterie.clustering.utility_merge` merges greedily and is near this optimum, but does not
    always reach it. Of partitions that are equal except for rounding, one with the most groups is
    returned, because a merge must gain.

    Args:
        gram: As in :func:`~coterie.clustering.utility_merge`.
        sizes: As in :func:`~coterie.clustering.utility_merge`.
        tradeoff: As in :func:`~coterie.clustering.utility_merge`.
        groups: If given, consider only partitions into exactly this number of groups.

    Returns:
        Groups as in :func:`~coterie.clustering.utility_merge`.

    Raises:
        ValueError: As in :func:`~coterie.clustering.utility_merge`, or there are more than 10
            clients.

    Example:
        >>> utility_optimum(np.eye(2), [100, 100], 58), utility_optimum(np.eye(2), [100, 100], 59)
        (((0,), (1,)), ((0, 1),))
    """
    products = _checks.gram_matrix(gram)
    num_clients = len(products)
    if num_clients > MAX_OPTIMUM_CLIENTS:
        raise ValueError(
            f"utility_optimum tries all partitions of at most {MAX_OPTIMUM_CLIENTS} clients, "
            f"got {num_clients}; use utility_merge"
        )
    if groups is not None:
        _checks.number_of_groups(groups, num_clients)
    # Sets of clients are the bits of a number, here and below.
    group_utility = [0.0]
    for group in range(1, 1 << num_clients):
        group_utility.append(float(utility(products, sizes, tradeoff, _members(group)).sum()))
    # best_partitions[m][clients]: (utility, first group) of these clients in m groups.
    best_partitions: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for group_count in range(1, (groups or num_clients) + 1):
        in_this_many = {}
        for clients in range(1, 1 << num_clients):
            best_choice = _first_group(clients, group_utility, best_partitions[group_count - 1])
            if best_choice is not None:
                in_this_many[clients] = best_choice
        best_partitions.append(in_this_many)
    # Of numbers of groups that are equal except for rounding, the greatest.
    everyone = (1 << num_clients) - 1
    allowed_counts = [groups] if groups is not None else list(range(num_clients, 0, -1))
    utilities = {count: best_partitions[count][everyone][0] for count in allowed_counts}
    greatest_utility = max(utilities.values())
    least_utility = greatest_utility - _rounding(greatest_utility, num_clients)
    group_count = next(count for count, total in utilities.items() if total >= least_utility)
    # The best partition, group by group.
    chosen_groups = []
    remaining = everyone
    for groups_left in range(group_count, 0, -1):
        _, first_group = best_partitions[groups_left][remaining]
        chosen_groups.append(_members(first_group))
        remaining ^= first_group
    return tuple(chosen_groups)


def _first_group(
    clients: int, group_utility: list[float], smaller_partitions: dict[int, tuple[float, int]]
) -> tuple[float, int] | None:
    """The group of the first of these clients in the best partition whose remaining groups are as in ``smaller_partitions``.

    Returns (utility of the partition, group), or None if there is no such partition.
    """
    first_client = clients & -clients
    candidates = clients ^ first_client
    best_choice = None
    # Every subset of the candidates joins the first client, all of them first.
    joining = candidates
    while True:
        group = first_client | joining
        remaining = candidates ^ joining
        if remaining in smaller_partitions:
            total_utility = group_utility[group] + smaller_partitions[remaining][0]
            if best_choice is None or total_utility > best_choice[0]:
                best_choice = (total_utility, group)
        if not joining:
            return best_choice
        # The next smaller subset.
        joining = (joining - 1) & candidates


def _members(group: int) -> tuple[int, ...]:
    """The positions of the bits that are 1."""
    return tuple(position for position in range(group.bit_length()) if group >> position & 1)


def _rounding(total_utility: float, num_clients: int) -> float:
    return 4 * float(np.finfo(float).eps) * num_clients * max(1.0, abs(total_utility))
