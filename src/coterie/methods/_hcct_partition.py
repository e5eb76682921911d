"""Partition of HCCT (Algorithm 2): merges, and placement of silent clients and newcomers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from coterie.clustering import benefit, benefits, utility, utility_merge
from coterie.core import Client, without

Group = list[Client]
"""The members of a group while groups are made."""

MAX_LURED = 4
"""The most clients of a group, for each hostile one that is expected, that it may have drawn together."""


@dataclass(frozen=True, kw_only=True)
class EpochComparison:
    """Data for a partition.

    Attributes:
        answered: clients that answered.
        clients: these, and the silent clients whose cosines are remembered; n in all.
        gram: ``(n, n)``, the Gram matrix of their updates; None if λ is infinite.
        sizes: ``(n,)``, training-set sizes.
        tradeoffs: ``(n,)``, λ of each client.
        signal_share: share of signal in their squared norms, as far as noise is known.
        hostile: the number of clients that must not decide who learns with whom.
    """

    answered: tuple[Client, ...]
    clients: tuple[Client, ...]
    gram: np.ndarray | None
    sizes: np.ndarray
    tradeoffs: np.ndarray
    signal_share: float
    hostile: int = 0

    @cached_property
    def position_of_client(self) -> Mapping[Client, int]:
        """Client -> its position."""
        return {client: position for position, client in enumerate(self.clients)}

    def positions_of(self, group: Iterable[Client]) -> list[int]:
        """Return the positions of the clients of a group that can be compared."""
        positions = self.position_of_client
        return [positions[client] for client in group if client in positions]

    def partition(self, members: Sequence[Client], group_count: int | None) -> list[Group]:
        """Partition some of the clients by Algorithm 2, so that ``hostile`` ones draw no others out of their groups.

        Args:
            members: the clients to partition.
            group_count: the number of groups; None to merge while there is a gain.
        """
        if not members:
            return []
        if self.gram is None:
            return [list(members)]
        groups = self._merged(members, group_count)
        return self._without_lures(groups) if self.hostile else groups

    def _merged(self, members: Sequence[Client], group_count: int | None) -> list[Group]:
        """The groups of Algorithm 2."""
        assert self.gram is not None
        # Algorithm 2: beginning with every client alone, the two groups of greatest benefit merge.
        positions = self.positions_of(members)
        parts = utility_merge(
            self.gram[np.ix_(positions, positions)],
            self.sizes[positions],
            self.tradeoffs[positions],
            groups=None if group_count is None else min(group_count, len(positions)),
        )
        groups = []
        for part in parts:
            groups.append([members[position] for position in part])
        return groups

    def _without_lures(self, groups: list[Group]) -> list[Group]:
        """Return clients of small groups to the large groups that they are in without a few others.

        A hostile client whose updates are near those of others draws them out of their groups, and has
        much of the data of the group of all. So of each group of :data:`MAX_LURED` f or fewer, each one
        to f clients are left out in turn: a client returns to the large group that gains most by it,
        more than the rest of its small group does. Coterie's own.

        Args:
            groups: the groups by Algorithm 2.

        Returns:
            The groups, in the order of their first members.
        """
        # A client that is returned -> the first client of the large group to which it is returned.
        target_of_client: dict[Client, Client] = {}
        # A client alone was drawn by none.
        for size in range(2, MAX_LURED * self.hostile + 1):
            small_groups = [group for group in groups if len(group) == size]
            # In a smaller group than its own, hostile clients weigh more.
            smallest_target = max(size, 2 * self.hostile) + 1
            large_groups = [group for group in groups if len(group) >= smallest_target]
            if small_groups and large_groups:
                target_of_client |= self._targets(small_groups, large_groups)
        # Returned clients leave their groups, and join others.
        new_groups = []
        for group in groups:
            new_group = [client for client in group if client not in target_of_client]
            for client, target in target_of_client.items():
                if target == group[0]:
                    new_group.append(client)
            new_groups.append(sorted(new_group))
        return sorted(group for group in new_groups if group)

    def _targets(
        self, small_groups: Sequence[Group], large_groups: Sequence[Group]
    ) -> dict[Client, Client]:
        """A client of a small group that returns to a large one -> the first client of that group."""
        clients = list(chain.from_iterable(small_groups))
        gains = self._gains(large_groups, clients)
        targets = {}
        for group in small_groups:
            for client in group:
                gains_by_client = gains[clients.index(client)]
                best_gain = float(gains_by_client.max())
                if best_gain <= 0:
                    continue
                if best_gain > self._least_gain(group, client):
                    targets[client] = large_groups[int(gains_by_client.argmax())][0]
        return targets

    def _gains(self, groups: Sequence[Group], clients: Sequence[Client]) -> np.ndarray:
        """What each of some groups gains by each of some clients (eq. 15), shape ``(clients, groups)``."""
        assert self.gram is not None
        positions = self.positions_of([*chain.from_iterable(groups), *clients])
        ends = np.cumsum([*(len(group) for group in groups), *(1 for _ in clients)])
        parts = np.split(np.arange(len(positions)), ends[:-1])
        all_gains = benefits(
            self.gram[np.ix_(positions, positions)],
            self.sizes[positions],
            self.tradeoffs[positions],
            parts,
        )
        return all_gains[len(groups) :, : len(groups)]

    def _least_gain(self, group: Group, client: Client) -> float:
        """What a small group gains by a client, without the other ones to f of its clients with which it gains most."""
        other_members = without(tuple(group), [client])
        least_gain = np.inf
        for lure_count in range(1, min(self.hostile, len(other_members)) + 1):
            for lures in combinations(other_members, lure_count):
                remaining = without(other_members, lures)
                if not remaining:
                    return 0.0
                least_gain = min(least_gain, float(self._gains([list(remaining)], [client])[0, 0]))
        return least_gain

    def best_group(self, groups: Sequence[Group], newcomer: Client) -> tuple[int, float] | None:
        """Return the group that gains most by a newcomer (eq. 15, 16), and the gain; None if no group can be compared."""
        comparable_groups = []
        group_positions = []
        for group_number, group in enumerate(groups):
            positions = self.positions_of(group)
            if positions:
                comparable_groups.append(group_number)
                group_positions.append(positions)
        if not comparable_groups:
            return None
        # With an infinite λ every group gains without bound, and there is only one.
        if self.gram is None:
            return comparable_groups[0], np.inf
        (newcomer_position,) = self.positions_of([newcomer])
        gains = benefit(self.gram, self.sizes, self.tradeoffs, group_positions, newcomer_position)
        best = int(gains.argmax())
        return comparable_groups[best], float(gains[best])

    def utilities(
        self, gram_matrix: np.ndarray, groups: Iterable[tuple[Client, ...]]
    ) -> dict[str, dict[Client, float]]:
        """Return each member's utility (eq. 9), its gain over being alone, and its group's utility (eq. 14).

        Args:
            gram_matrix: ``(n, n)``, the Gram matrix of the updates.
            groups: the groups; each has members that can be compared.

        Returns:
            ``utility``, ``gain`` and ``group_utility``, each of them client -> number.
        """
        values: dict[str, dict[Client, float]] = {"utility": {}, "gain": {}, "group_utility": {}}
        # The utility of a member depends on its own group alone.
        for group in groups:
            positions = self.positions_of(group)
            sizes = self.sizes[positions]
            tradeoffs = self.tradeoffs[positions]
            group_gram = gram_matrix[np.ix_(positions, positions)]
            member_utilities = utility(group_gram, sizes, tradeoffs, range(len(positions)))
            # The utility of a client alone (eq. 12).
            utilities_alone = 1.0 - tradeoffs / sizes
            group_utility = float(member_utilities.sum())
            gains = member_utilities - utilities_alone
            for member, position in enumerate(positions):
                client = self.clients[position]
                values["utility"][client] = float(member_utilities[member])
                values["gain"][client] = float(gains[member])
                values["group_utility"][client] = group_utility
        return values


def follow(
    groups: list[Group], former_groups: Iterable[Group], sizes: Mapping[Client, int]
) -> list[Group]:
    """Add to new groups the clients of former groups that are in none of them.

    Each goes to the new group that has most of the data of its former group. Of equal shares, the
    group with the smallest first member counts. If no client of a former group is in a new group,
    the former group stays together.

    Args:
        groups: the new groups.
        former_groups: the former groups.
        sizes: training-set sizes.
    """
    group_of_client: dict[Client, int] = {}
    for group_number, group in enumerate(groups):
        group_of_client.update(dict.fromkeys(group, group_number))
    extended_groups = [list(group) for group in groups]
    for former_group in former_groups:
        absent = [client for client in former_group if client not in group_of_client]
        if not absent:
            continue
        # The data of the former group's clients in each new group.
        examples_in: dict[int, int] = {}
        for client in former_group:
            if client in group_of_client:
                group_number = group_of_client[client]
                examples_in[group_number] = examples_in.get(group_number, 0) + sizes[client]
        # The others follow most of the data; of equal shares, the group of the smallest client.
        if examples_in:
            most_data = min(
                examples_in, key=lambda number: (-examples_in[number], groups[number][0])
            )
            extended_groups[most_data] += absent
        else:
            extended_groups.append(absent)
    return extended_groups
