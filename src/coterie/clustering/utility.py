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
    at = _checks.position_list(group, len(products))
    total = sizes[at].sum()
    if len(at) == 1:
        return 1.0 - tradeoff[at] / total
    share = sizes[at] / total
    inner = products[np.ix_(at, at)] @ share
    norm, mean_norm = np.sqrt(np.diagonal(products)[at]), np.sqrt(max(share @ inner, 0.0))
    both = norm * mean_norm if mean_norm >= ZERO else np.zeros(len(at))
    alike = np.divide(inner, both, out=np.zeros(len(at)), where=(norm >= ZERO) & (both > 0))
    return np.clip(alike, -1.0, 1.0) - tradeoff[at] / total


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
    parts = [_checks.position_list(group, len(products)) for group in groups]
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if not parts or len(np.unique(order)) != len(order):
        raise ValueError("groups must be one or more disjoint lists of positions")
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    pp, pu = (_sums(table[np.ix_(order, order)], starts) for table in _tables(products, sizes))
    data, price = np.add.reduceat(sizes[order], starts), np.add.reduceat(tradeoff[order], starts)
    mine = np.diagonal(pp), np.diagonal(pu)
    own = _summed(mine[0], mine[1], data, price)
    single = np.array([len(part) == 1 for part in parts])
    own[single] = 1.0 - price[single] / data[single]
    together = _summed(
        mine[0][:, None] + 2 * pp + mine[0],
        mine[1][:, None] + pu + pu.T + mine[1],
        data[:, None] + data,
        price[:, None] + price,
    )
    gain = together - own[:, None] - own
    gain = (gain + gain.T) / 2
    np.fill_diagonal(gain, -np.inf)
    return gain


def _sums(table: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Sums ``(k, k)`` over the blocks of a table that begin at ``starts``."""
    return np.add.reduceat(np.add.reduceat(table, starts, axis=0), starts, axis=1)


def _tables(products: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``<P_a, P_b>`` and ``<P_a, U_b>`` of single clients."""
    pp, pu = sizes[:, None] * sizes, sizes[:, None] * _units(products)
    pp *= products
    pu *= products
    return pp, pu


def _units(products: np.ndarray) -> np.ndarray:
    """``1/‖g_i‖``, ``(n,)``; 0 for a zero update."""
    norm = np.sqrt(np.maximum(np.diagonal(products), 0.0))
    return np.where(norm < ZERO, 0.0, 1.0 / np.where(norm < ZERO, 1.0, norm))


def _summed(
    square: np.ndarray, inner: np.ndarray, data: np.ndarray, price: np.ndarray
) -> np.ndarray:
    """The utility of groups of two or more clients: ``<P, U> / ‖P‖ - L / N``, from ``‖P‖²`` and ``<P, U>``."""
    norm = np.sqrt(np.maximum(square, 0.0))
    none = norm < ZERO * data
    if none.any():  # this is rare, and a division with a mask takes several times as long
        inner, norm = np.where(none, 0.0, inner), np.where(none, 1.0, norm)
    return inner / norm - price / data


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
    n = len(products)
    sizes = _checks.one_per_client(sizes, n, "sizes")
    if not sizes.all():
        raise ValueError(
            f"sizes must be > 0, got 0 for client {int(np.flatnonzero(sizes == 0)[0])}"
        )
    if np.ndim(tradeoff) == 0:
        tradeoff = np.full(n, float(tradeoff))
    return products, sizes, _checks.one_per_client(tradeoff, n, "tradeoff")


class _Merging:
    """The groups of :func:`utility_merge` while they merge; a group is stored in the row of its first member.

    ``pp[a, b] = <P_a, P_b>`` and ``pu[a, b] = <P_a, U_b>``; their diagonals are also stored
    separately, because that is faster to read. ``gain[a, b]`` is -inf unless a < b. ``best[a]`` is
    the position of the maximum in row a of ``gain``, and ``top[a]`` is that maximum, so that the
    best pair is found in O(n).
    """

    def __init__(self, products: np.ndarray, sizes: np.ndarray, tradeoff: np.ndarray) -> None:
        self.pp, self.pu = _tables(products, sizes)
        self.square, self.inner = np.diagonal(self.pp).copy(), np.diagonal(self.pu).copy()
        self.data, self.price = sizes.copy(), tradeoff.copy()
        self.own = 1.0 - tradeoff / sizes  # utility of each group
        self.members: dict[int, list[int]] = {i: [i] for i in range(len(sizes))}
        self.alive = np.ones(len(sizes), dtype=bool)
        self.gain = np.full((len(sizes), len(sizes)), -np.inf)
        for a, unit in enumerate(_units(products)):
            to_a = (
                sizes * unit * products[a]
            )  # column a of pu; a row of the symmetric products is faster to read
            self.gain[a, a + 1 :] = self._gains(a, to_a, slice(a + 1, None))
        self.best = self.gain.argmax(axis=1)
        self.top = self.gain[np.arange(len(sizes)), self.best]

    def run(self, groups: int | None) -> tuple[tuple[int, ...], ...]:
        """Merge until the given number of groups is left, or until there is no gain."""
        while len(self.members) > (groups or 1):
            a = int(
                self.top.argmax()
            )  # the first of equal ones, here and in ``best``, so smallest first members win ties
            b = int(self.best[a])
            rounding = 4 * np.finfo(float).eps * (len(self.members[a]) + len(self.members[b]))
            if groups is None and self.top[a] <= rounding:
                break
            self._merge(a, b)
        return tuple(tuple(sorted(self.members[a])) for a in sorted(self.members))

    def _together(self, a: int, to_a: np.ndarray, at: slice) -> np.ndarray:
        """Utility of group a together with every other group in ``at``; ``to_a`` is column a of ``pu``."""
        square = self.square[a] + 2 * self.pp[a, at] + self.square[at]
        inner = self.inner[a] + self.pu[a, at] + to_a[at] + self.inner[at]
        return _summed(square, inner, self.data[a] + self.data[at], self.price[a] + self.price[at])

    def _gains(self, a: int, to_a: np.ndarray, at: slice) -> np.ndarray:
        return np.where(
            self.alive[at], self._together(a, to_a, at) - self.own[a] - self.own[at], -np.inf
        )

    def _merge(self, a: int, b: int) -> None:
        """Group b joins a, whose first member is the smaller."""
        self.own[a] = self._together(a, self.pu[:, a], slice(b, b + 1))[0]
        self.members[a] += self.members.pop(b)
        self.alive[b] = False
        self.pp[a] += self.pp[b]
        self.pp[a, a] += self.pp[a, b]
        self.pp[:, a] = self.pp[a]  # symmetric, and rows are faster to read than columns
        self.pu[a] += self.pu[b]
        to_a = self.pu[:, a] + self.pu[:, b]
        self.pu[:, a] = to_a
        self.square[a], self.inner[a] = self.pp[a, a], to_a[a]
        self.data[a] += self.data[b]
        self.price[a] += self.price[b]
        gains = self._gains(a, to_a, slice(None))
        self.gain[b], self.gain[:b, b], self.top[b] = -np.inf, -np.inf, -np.inf
        self.gain[a, a + 1 :], self.gain[:a, a] = gains[a + 1 :], gains[:a]
        # Rows whose maximum was at a or b are searched again; in the others only the new entry at a
        # can beat it.
        stale = np.flatnonzero(self.alive & ((self.best == a) | (self.best == b)))
        for row in {a, *stale.tolist()} - {
            len(gains) - 1
        }:  # the last row is never the first of a pair
            self.best[row] = row + 1 + int(self.gain[row, row + 1 :].argmax())
            self.top[row] = self.gain[row, self.best[row]]
        new, old = gains[:a], self.top[:a]
        better = (new > old) | ((new == old) & (a < self.best[:a]))
        self.best[:a][better], self.top[:a][better] = a, new[better]


# ----------------------------------------------------------------------------------------------------
# The best partition by HCCT's utility (arXiv 2401.13236, problem P1), found by trying all: a
# reference for the greedy merge.


MOST = 10
"""The maximum number of clients: the work grows as 3ⁿ."""


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
    n = len(products)
    if n > MOST:
        raise ValueError(
            f"utility_optimum tries all partitions of at most {MOST} clients, got {n}; use utility_merge"
        )
    if groups is not None:
        _checks.number_of_groups(groups, n)
    worth = [0.0] + [
        float(utility(products, sizes, tradeoff, _members(s)).sum()) for s in range(1, 1 << n)
    ]
    # best[m][s]: (utility, first group) of the set s of clients in m groups; sets are the bits of a
    # number.
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for m in range(1, (groups or n) + 1):
        best.append(
            {
                s: found
                for s in range(1, 1 << n)
                if (found := _first_group(s, worth, best[m - 1])) is not None
            }
        )
    everyone = (1 << n) - 1
    counts = [m for m in range((groups or n), 0, -1) if groups in (None, m)]
    top = max(best[m][everyone][0] for m in counts)
    m = next(m for m in counts if best[m][everyone][0] >= top - _rounding(top, n))
    parts, rest = [], everyone
    for left in range(m, 0, -1):
        first = best[left][rest][1]
        parts.append(_members(first))
        rest ^= first
    return tuple(parts)


def _first_group(
    s: int, worth: list[float], fewer: dict[int, tuple[float, int]]
) -> tuple[float, int] | None:
    """The group of the first client of ``s`` in the best partition whose other groups are as in ``fewer``."""
    lowest, found = s & -s, None
    others = rest = s ^ lowest
    while (
        True
    ):  # every subset of the others, all of them first; those left out are ``others ^ rest``
        group = lowest | rest
        if others ^ rest in fewer:
            total = worth[group] + fewer[others ^ rest][0]
            if found is None or total > found[0]:
                found = total, group
        if not rest:
            return found
        rest = (rest - 1) & others


def _members(s: int) -> tuple[int, ...]:
    return tuple(i for i in range(s.bit_length()) if s >> i & 1)


def _rounding(total: float, n: int) -> float:
    return 4 * float(np.finfo(float).eps) * n * max(1.0, abs(total))
