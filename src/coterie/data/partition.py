"""Partition examples over clients: from labels to one array of positions per client.

The functions depend only on their arguments and a NumPy generator. Positions are those of the pool.
No example goes to two clients, and every client gets at least one. Too few examples raise a
:class:`SettingError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.data.examples import Pool
from coterie.data.parts import ScenarioPart
from coterie.data.shift import deal
from coterie.settings import SettingError, setting

Parts = list[np.ndarray]
"""Positions of the examples of each client, in the order of the clients."""


PARTITIONS = (
    "iid",
    "shards",
    "half-normal",
    "dirichlet",
    "quantity",
    "classes",
    "writer",
    "population",
    "domain",
    "topic",
    "clients",
)
RENEWABLE = ("iid", "dirichlet", "quantity")
"""Partitions that can give each client new examples in every time step."""


@dataclass(frozen=True, kw_only=True)
class PartitionSettings(ScenarioPart):
    """How the examples of a data set are divided among clients."""

    part: ClassVar[str] = "partition"
    main: ClassVar[str] = "kind"

    kind: str = setting("iid", "how examples are distributed over clients", choices=PARTITIONS)
    alpha: float = setting(
        0.5,
        "concentration of the dirichlet and quantity partitions",
        gt=0,
        only_with={"kind": ("dirichlet", "quantity")},
    )
    least: int = setting(
        10,
        "minimum examples per client (dirichlet, quantity, writer)",
        ge=1,
        only_with={"kind": ("dirichlet", "quantity", "writer")},
    )
    shards: int = setting(
        2, "shards per client (shards)", ge=1, le=1_000_000, only_with={"kind": ("shards",)}
    )
    total_shards: int = setting(
        100,
        "shards in all (half-normal)",
        ge=1,
        le=10_000_000,
        only_with={"kind": ("half-normal",)},
    )
    classes_per_group: int | None = setting(
        None,
        "classes per group; none: divide all of them (classes)",
        ge=1,
        only_with={"kind": ("classes",)},
    )
    classes_per_client: int | None = setting(
        None,
        "classes per client, from its group's; none: all of them (classes)",
        ge=1,
        only_with={"kind": ("classes",)},
    )
    sizes: tuple[int, ...] = setting(
        (),
        "lowest and highest size of a client (quantity) or of a class (classes)",
        ge=1,
        only_with={"kind": ("quantity", "classes")},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes and (len(self.sizes) != 2 or self.sizes[0] > self.sizes[1]):
            raise SettingError(
                f"Scenario.sizes must be a lowest and a highest number, got {list(self.sizes)}"
            )

    def divide(
        self, pool: Pool, clients: int, groups: int, shuffle: bool, rng: np.random.Generator
    ) -> tuple[Parts, np.ndarray | None]:
        """Divide a pool among clients.

        Args:
            pool: The pool.
            clients: Number of clients.
            groups: Number of groups, where the partition makes groups of a given number.
            shuffle: Whether clients are assigned to groups in random order.
            rng: Draws the parts.

        Returns:
            Positions of each client, and the clients' true groups ``(n,)``: one group if all
            clients have the same distribution, None if each client has its own.

        Raises:
            SettingError: There are too few examples, or they do not record what the partition
                divides them by.
        """
        labels = pool.labels
        # The groups of clients that all have the same distribution.
        one_group = np.zeros(clients, int)
        group_order = rng if shuffle else None
        match self.kind:
            # Random parts: one distribution for all, of equal or unequal sizes.
            case "iid":
                return iid(len(pool), clients, rng), one_group
            case "quantity" if self.sizes:
                lowest_size, highest_size = self.sizes
                return ranges(len(pool), clients, lowest_size, highest_size, rng), one_group
            case "quantity":
                return quantity(len(pool), clients, self.alpha, rng, self.least), one_group
            # Every client has class proportions of its own, so there are no true groups.
            case "dirichlet":
                return dirichlet(labels, clients, self.alpha, rng, self.least), None
            # Shards may give several clients the same classes, which are then a true group.
            case "shards":
                parts = shards(labels, clients, self.shards, rng)
                return parts, same_classes(labels, parts)
            case "half-normal":
                return half_normal(labels, clients, self.total_shards, rng), None
            # Groups of clients with classes of their own.
            case "classes":
                group_of_client = deal(clients, groups, group_order)
                parts = class_groups(
                    labels,
                    group_of_client,
                    rng,
                    per_group=self.classes_per_group,
                    per_client=self.classes_per_client,
                    sizes=self.sizes,
                )
                return parts, group_of_client
        # The others divide examples by what the data set records of them, such as the writer.
        if self.kind not in pool.meta:
            raise SettingError(
                f"Scenario.partition {self.kind} needs another data set: this one does not record "
                f"the {self.kind} of its examples"
            )
        recorded_values = pool.meta[self.kind].numpy()
        # One client for each writer, or clients in groups by population, domain or topic.
        if self.kind == "writer":
            return by_owner(recorded_values, clients, rng, self.least), None
        group_of_client = deal(clients, min(int(recorded_values.max()) + 1, clients), group_order)
        return by_kind(recorded_values, group_of_client, rng), group_of_client


def _check_enough(available: int, clients: int, min_per_client: int = 1) -> None:
    """Raise :class:`SettingError` if there are not enough examples for each client's minimum."""
    if available < clients * min_per_client:
        demand = f"{clients} clients of at least {min_per_client} examples need {clients * min_per_client}"
        raise SettingError(f"{demand}, and there are {available}")


def iid(examples: int, clients: int, rng: np.random.Generator) -> Parts:
    """Shuffle all examples and cut them into equal parts (sizes differ by at most one)."""
    _check_enough(examples, clients)
    return np.array_split(rng.permutation(examples), clients)


def shards(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> Parts:
    """Partition by label (pathological non-IID).

    Examples are sorted by label and cut into ``clients * per_client`` equal shards; each client
    gets ``per_client`` shards at random. McMahan et al. 2017, §3, use two shards; FL+HC §III calls
    the partition pathological non-IID.

    Args:
        labels: Labels ``(N,)`` of the examples.
        clients: Number of clients.
        per_client: Shards per client.
        rng: Draws the order within a label, and the shards of each client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few examples.
    """
    _check_enough(len(labels), clients, per_client)
    # Cut the sorted examples into shards, and deal these out in random order.
    all_shards = np.array_split(_by_label(labels, rng), clients * per_client)
    shards_of_clients = rng.permutation(len(all_shards)).reshape(clients, per_client)
    return _joined_shards(all_shards, shards_of_clients)


def _joined_shards(all_shards: Parts, shards_of_clients: Iterable[np.ndarray]) -> Parts:
    """The positions of each client, from the numbers of its shards."""
    parts = []
    for client_shards in shards_of_clients:
        parts.append(np.concatenate([all_shards[shard] for shard in client_shards]))
    return parts


def half_normal(
    labels: np.ndarray, clients: int, shard_count: int, rng: np.random.Generator
) -> Parts:
    """Partition by label into shards, where the numbers of shards per client are half-normal.

    There are ``shard_count`` shards, sorted by label. Client n gets ``floor(shard_count x_n / Σx)``
    of them, x ~ ``|N(0, 1)|``, and at least one. This is HCCT's CIFAR-10 experiment (§VII-A; 100
    shards of 500 images). The shards that remain after rounding down are not used.

    Args:
        labels: Labels ``(N,)`` of the examples.
        clients: Number of clients.
        shard_count: Number of shards.
        rng: Draws the numbers x_n, the order within a label, and the shards of each client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few examples, or fewer shards than clients.
    """
    _check_enough(len(labels), shard_count)
    if clients > shard_count:
        raise SettingError(
            f"half-normal needs at least one shard per client: {shard_count} shards, {clients} clients"
        )
    # The numbers of shards, in proportion to the draws x_n.
    draws = np.abs(rng.standard_normal(clients))
    shards_per_client = np.maximum(np.floor(shard_count * draws / draws.sum()).astype(int), 1)
    # Clients that were raised to one shard take it from the client that has most.
    while shards_per_client.sum() > shard_count:
        shards_per_client[shards_per_client.argmax()] -= 1
    # Each client takes its number of shards from all of them in random order.
    all_shards = np.array_split(_by_label(labels, rng), shard_count)
    shards_of_clients = np.split(rng.permutation(shard_count), np.cumsum(shards_per_client))[:-1]
    return _joined_shards(all_shards, shards_of_clients)


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> Parts:
    """Divide each class over the clients by proportions from ``Dirichlet(alpha)``.

    A smaller ``alpha`` gives more skewed labels. A client with fewer than ``least`` examples gets
    random ones of the client that is the largest at that moment.

    Args:
        labels: Labels ``(N,)`` of the examples.
        clients: Number of clients.
        alpha: Concentration of the Dirichlet distribution.
        rng: Draws the proportions and the examples.
        least: Fewest examples of a client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few examples.
    """
    _check_enough(len(labels), clients, least)
    parts_of_clients: list[list[np.ndarray]] = [[] for _ in range(clients)]
    # Cut each class by its own shares of the clients.
    for label in np.unique(labels):
        positions = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        for client, class_part in enumerate(np.split(positions, _cuts(shares, len(positions)))):
            parts_of_clients[client].append(class_part)
    # The order of a client's examples must not show their classes.
    shuffled_parts = [
        rng.permutation(np.concatenate(class_parts)) for class_parts in parts_of_clients
    ]
    return _top_up(shuffled_parts, least)


def quantity(
    examples: int, clients: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> Parts:
    """Shuffle all examples and cut them by proportions from ``Dirichlet(alpha)``: one distribution, unequal sizes."""
    _check_enough(examples, clients, least)
    # One draw of shares, for the sizes of all clients.
    cut_positions = _cuts(rng.dirichlet(np.full(clients, alpha)), examples)
    return _top_up(np.split(rng.permutation(examples), cut_positions), least)


def ranges(examples: int, clients: int, low: int, high: int, rng: np.random.Generator) -> Parts:
    """Give clients of one distribution sizes that are uniform from ``low`` to ``high``.

    Args:
        examples: Number of examples; those that are left over are not used.
        clients: Number of clients.
        low: Least size of a client, included.
        high: Greatest size of a client, included.
        rng: Draws the sizes and the examples.

    Returns:
        Positions of each client.

    Raises:
        SettingError: The range is not valid, or there are too few examples for the drawn sizes.
    """
    if not 1 <= low <= high:
        raise SettingError(
            f"sizes must be a lowest and a highest number, 1 <= lowest <= highest, got {low} and {high}"
        )
    # Draw the sizes, then cut that many shuffled examples.
    drawn_sizes = rng.integers(low, high, clients, endpoint=True)
    _check_enough(examples, 1, int(drawn_sizes.sum()))
    return np.split(rng.permutation(examples), np.cumsum(drawn_sizes))[:-1]


def class_groups(
    labels: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    *,
    per_group: int | None = None,
    per_client: int | None = None,
    sizes: Sequence[int] = (),
) -> Parts:
    """Give groups of clients disjoint sets of classes.

    Args:
        labels: Labels ``(N,)`` of the examples.
        groups: The group of each client, ``(n,)``.
        rng: Draws the classes of each group and the examples of each client.
        per_group: Number of classes of a group. By default all classes are divided evenly.
        per_client: Number of its group's classes that a client has. The set of the next client of
            the group is shifted by one class. By default a client has all of them.
        sizes: Lowest and highest number of examples of a class, drawn uniformly (ACFL's imbalanced
            subsets of CIFAR). By default all examples are used.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few classes or examples.
    """
    group_count = int(groups.max()) + 1
    # Give each group its classes, in random order.
    class_sets = _class_sets(rng.permutation(np.unique(labels)), group_count, per_group)
    parts_of_clients: list[list[np.ndarray]] = [[] for _ in groups]
    for group, class_set in enumerate(class_sets):
        members = np.flatnonzero(groups == group)
        # Each client of the group holds all of its classes, or a window of some.
        held_classes = len(class_set) if per_client is None else per_client
        if held_classes > len(class_set):
            raise SettingError(
                f"a client cannot hold {held_classes} of the {len(class_set)} classes of its group"
            )
        for class_place, label in enumerate(class_set):
            # The first member holds the first classes, the next one those from the second on, and
            # so on round the set.
            holders = []
            for member_number, member in enumerate(members):
                if (class_place - member_number) % len(class_set) < held_classes:
                    holders.append(member)
            shuffled_positions = rng.permutation(np.flatnonzero(labels == label))
            # Divide the examples of the class evenly among those who hold it.
            positions = shuffled_positions[: _drawn_size(sizes, rng)]
            shares = np.array_split(positions, max(len(holders), 1))
            # A class that nobody holds has one share and no holder.
            for client, share in zip(holders, shares, strict=False):
                parts_of_clients[client].append(share)
    parts = [np.concatenate(shares) for shares in parts_of_clients]
    if not all(len(part) for part in parts):
        raise SettingError(
            f"{len(labels)} examples are too few for {len(groups)} clients in {group_count} "
            "groups of classes"
        )
    return parts


def _class_sets(classes: np.ndarray, group_count: int, per_group: int | None) -> list[np.ndarray]:
    """The classes of each group: ``per_group`` of them, or an even share of all."""
    needed_classes = group_count * (1 if per_group is None else per_group)
    if len(classes) < needed_classes:
        raise SettingError(
            f"{group_count} groups of {per_group or 1} classes need {needed_classes}, and there are "
            f"{len(classes)}"
        )
    # All classes divided evenly, or the first ones of the random order.
    if per_group is None:
        return np.array_split(classes, group_count)
    return np.split(classes[:needed_classes], group_count)


def by_owner(owners: np.ndarray, clients: int, rng: np.random.Generator, least: int = 1) -> Parts:
    """Give each client the examples of one owner (a writer).

    Args:
        owners: The owner of each example, ``(N,)``.
        clients: Number of clients.
        rng: Draws the owners.
        least: Owners with fewer examples are not drawn.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few owners with at least ``least`` examples.
    """
    # Writers with too few examples are left out, and the clients are drawn from the others.
    distinct_owners, examples_per_owner = np.unique(owners, return_counts=True)
    eligible_owners = distinct_owners[examples_per_owner >= least]
    if clients > len(eligible_owners):
        raise SettingError(
            f"{clients} clients requested, but only {len(eligible_owners)} writers have at least {least} examples"
        )
    drawn_owners = rng.choice(eligible_owners, clients, replace=False)
    return [np.flatnonzero(owners == owner) for owner in drawn_owners]


def by_kind(kinds: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> Parts:
    """Give each client examples of one kind (a domain, a topic), divided evenly among the clients of that kind.

    Args:
        kinds: The kind of each example, ``(N,)``, from 0 to the number of kinds - 1.
        groups: The kind of each client, ``(n,)``.
        rng: Draws the examples of each client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: A kind has fewer examples than clients.
    """
    parts: Parts = [np.empty(0, int)] * len(groups)
    for kind in np.unique(groups):
        # The clients of this kind share its examples evenly.
        members = np.flatnonzero(groups == kind)
        positions = np.flatnonzero(kinds == kind)
        _check_enough(len(positions), len(members))
        shares = np.array_split(rng.permutation(positions), len(members))
        for client, share in zip(members, shares, strict=True):
            parts[client] = share
    return parts


def same_classes(labels: np.ndarray, parts: Parts) -> np.ndarray | None:
    """Group the clients that have the same set of classes.

    Args:
        labels: Labels ``(N,)`` of the examples.
        parts: Positions of each client.

    Returns:
        The group ``(n,)`` of each client, or None where sets overlap but are not equal.
    """
    # The set of classes of each client, and the sets that differ.
    class_sets = [frozenset(np.unique(labels[part]).tolist()) for part in parts]
    distinct_sets = list(dict.fromkeys(class_sets))
    # Sets that overlap have more classes, counted one by one, than their union.
    if sum(map(len, distinct_sets)) > len(frozenset().union(*distinct_sets)):
        return None
    return np.array([distinct_sets.index(class_set) for class_set in class_sets])


def _by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All positions, sorted by label and in random order within a label."""
    # A stable sort keeps the random order within a label.
    random_order = rng.permutation(len(labels))
    return random_order[np.argsort(labels[random_order], kind="stable")]


def _cuts(shares: np.ndarray, example_count: int) -> np.ndarray:
    """The positions at which ``example_count`` examples are cut into these shares."""
    return (np.cumsum(shares)[:-1] * example_count).astype(int).clip(0, example_count)


def _drawn_size(sizes: Sequence[int], rng: np.random.Generator) -> int | None:
    """The size of a class, drawn from the lowest to the highest of ``sizes``; None for all of it."""
    return int(rng.integers(sizes[0], sizes[1], endpoint=True)) if sizes else None


def _top_up(parts: Parts, least: int) -> Parts:
    """The parts, in which the largest ones have given to those below ``least`` examples."""
    topped_up = list(parts)
    for client in range(len(parts)):
        while (missing_count := least - len(topped_up[client])) > 0:
            # Take what is missing from the client that is the largest now, which keeps its own
            # minimum.
            part_sizes = [len(part) for part in topped_up]
            largest_client = part_sizes.index(max(part_sizes))
            given_count = min(missing_count, part_sizes[largest_client] - least)
            given_positions = topped_up[largest_client][:given_count]
            topped_up[client] = np.concatenate([topped_up[client], given_positions])
            topped_up[largest_client] = topped_up[largest_client][given_count:]
    return topped_up
