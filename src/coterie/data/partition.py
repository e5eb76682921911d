"""Partition examples over clients: from labels to one array of positions per client.

The functions depend only on their arguments and a NumPy generator. Positions are those of the pool.
No example goes to two clients, and every client gets at least one. Too few examples raise a
:class:`SettingError`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    alpha: float = setting(0.5, "concentration of the dirichlet and quantity partitions", gt=0)
    least: int = setting(10, "minimum examples per client (dirichlet, quantity, writer)", ge=1)
    shards: int = setting(2, "shards per client (shards)", ge=1, le=1_000_000)
    total_shards: int = setting(100, "shards in all (half-normal)", ge=1, le=10_000_000)
    classes_per_group: int | None = setting(
        None, "classes per group; none: divide all of them (classes)", ge=1
    )
    classes_per_client: int | None = setting(
        None, "classes per client, from its group's; none: all of them (classes)", ge=1
    )
    sizes: tuple[int, ...] = setting(
        (), "lowest and highest size of a client (quantity) or of a class (classes)", ge=1
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
        one_group = np.zeros(clients, int)
        group_order = rng if shuffle else None
        match self.kind:
            case "iid":
                return iid(len(pool), clients, rng), one_group
            case "quantity" if self.sizes:
                low, high = self.sizes
                return ranges(len(pool), clients, low, high, rng), one_group
            case "quantity":
                return quantity(len(pool), clients, self.alpha, rng, self.least), one_group
            case "dirichlet":
                return dirichlet(labels, clients, self.alpha, rng, self.least), None
            case "shards":
                parts = shards(labels, clients, self.shards, rng)
                return parts, same_classes(labels, parts)
            case "half-normal":
                return half_normal(labels, clients, self.total_shards, rng), None
            case "classes":
                group_of = deal(clients, groups, group_order)
                parts = class_groups(
                    labels,
                    group_of,
                    rng,
                    per_group=self.classes_per_group,
                    per_client=self.classes_per_client,
                    sizes=self.sizes,
                )
                return parts, group_of
        # The others divide examples by what the data set records of them, such as the writer.
        if self.kind not in pool.meta:
            raise SettingError(
                f"Scenario.partition {self.kind} needs another data set: this one does not record "
                f"the {self.kind} of its examples"
            )
        values = pool.meta[self.kind].numpy()
        if self.kind == "writer":
            return by_owner(values, clients, rng, self.least), None
        group_of = deal(clients, min(int(values.max()) + 1, clients), group_order)
        return by_kind(values, group_of, rng), group_of


def _enough(examples: int, clients: int, each: int = 1) -> None:
    if examples < clients * each:
        wanted = f"{clients} clients of at least {each} examples need {clients * each}"
        raise SettingError(f"{wanted}, and there are {examples}")


def iid(examples: int, clients: int, rng: np.random.Generator) -> Parts:
    """Shuffle all examples and cut them into equal parts (sizes differ by at most one)."""
    _enough(examples, clients)
    return np.array_split(rng.permutation(examples), clients)


def shards(labels: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> Parts:
    """Partition by label (pathological non-IID).

    Examples are sorted by label and cut into ``clients * each`` equal shards; each client gets
    ``each`` shards at random. McMahan et al. 2017, §3, use two shards; FL+HC §III calls the
    partition pathological non-IID.

    Args:
        labels: Labels ``(N,)`` of the examples.
        clients: Number of clients.
        each: Shards per client.
        rng: Draws the order within a label, and the shards of each client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few examples.
    """
    _enough(len(labels), clients, each)
    cut = np.array_split(_by_label(labels, rng), clients * each)
    order = rng.permutation(len(cut)).reshape(clients, each)
    return [np.concatenate([cut[s] for s in mine]) for mine in order]


def half_normal(labels: np.ndarray, clients: int, total: int, rng: np.random.Generator) -> Parts:
    """Partition by label into shards, where the numbers of shards per client are half-normal.

    There are ``total`` shards, sorted by label. Client n gets ``floor(total x_n / Σx)`` of them, x
    ~ ``|N(0, 1)|``, and at least one. This is HCCT's CIFAR-10 experiment (§VII-A; 100 shards of 500
    images). The shards that remain after rounding down are not used.

    Args:
        labels: Labels ``(N,)`` of the examples.
        clients: Number of clients.
        total: Number of shards.
        rng: Draws the numbers x_n, the order within a label, and the shards of each client.

    Returns:
        Positions of each client.

    Raises:
        SettingError: There are too few examples, or fewer shards than clients.
    """
    _enough(len(labels), total)
    if clients > total:
        raise SettingError(
            f"half-normal needs at least one shard per client: {total} shards, {clients} clients"
        )
    draws = np.abs(rng.standard_normal(clients))
    counts = np.maximum(np.floor(total * draws / draws.sum()).astype(int), 1)
    while counts.sum() > total:  # clients raised to one shard take it from the client with most
        counts[counts.argmax()] -= 1
    cut = np.array_split(_by_label(labels, rng), total)
    order = np.split(rng.permutation(total), np.cumsum(counts))[:-1]
    return [np.concatenate([cut[s] for s in mine]) for mine in order]


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
    _enough(len(labels), clients, least)
    dealt: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        for client, some in enumerate(np.split(mine, _cuts(shares, len(mine)))):
            dealt[client].append(some)
    return _top_up([rng.permutation(np.concatenate(some)) for some in dealt], least)


def quantity(
    examples: int, clients: int, alpha: float, rng: np.random.Generator, least: int = 1
) -> Parts:
    """Shuffle all examples and cut them by proportions from ``Dirichlet(alpha)``: one distribution, unequal sizes."""
    _enough(examples, clients, least)
    cuts = _cuts(rng.dirichlet(np.full(clients, alpha)), examples)
    return _top_up(np.split(rng.permutation(examples), cuts), least)


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
    sizes = rng.integers(low, high, clients, endpoint=True)
    _enough(examples, 1, int(sizes.sum()))
    return np.split(rng.permutation(examples), np.cumsum(sizes))[:-1]


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
    classes, count = rng.permutation(np.unique(labels)), int(groups.max()) + 1
    wanted = count if per_group is None else count * per_group
    if len(classes) < wanted:
        raise SettingError(
            f"{count} groups of {per_group or 1} classes need {wanted}, and there are {len(classes)}"
        )
    sets = (
        np.array_split(classes, count) if per_group is None else np.split(classes[:wanted], count)
    )
    dealt: list[list[np.ndarray]] = [[] for _ in groups]
    for group, own in enumerate(sets):
        members = np.flatnonzero(groups == group)
        holds = len(own) if per_client is None else per_client
        if holds > len(own):
            raise SettingError(
                f"a client cannot hold {holds} of the {len(own)} classes of its group"
            )
        for place, label in enumerate(own):
            holders = [m for i, m in enumerate(members) if (place - i) % len(own) < holds]
            mine = rng.permutation(np.flatnonzero(labels == label))[: _size(sizes, rng)]
            for client, some in zip(
                holders, np.array_split(mine, max(len(holders), 1)), strict=False
            ):
                dealt[client].append(some)
    parts = [np.concatenate(some) for some in dealt]
    if not all(len(part) for part in parts):
        raise SettingError(
            f"{len(labels)} examples are too few for {len(groups)} clients in {count} groups of classes"
        )
    return parts


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
    names, sizes = np.unique(owners, return_counts=True)
    able = names[sizes >= least]
    if clients > len(able):
        raise SettingError(
            f"{clients} clients requested, but only {len(able)} writers have at least {least} examples"
        )
    return [np.flatnonzero(owners == owner) for owner in rng.choice(able, clients, replace=False)]


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
        members, mine = np.flatnonzero(groups == kind), np.flatnonzero(kinds == kind)
        _enough(len(mine), len(members))
        for client, some in zip(
            members, np.array_split(rng.permutation(mine), len(members)), strict=True
        ):
            parts[client] = some
    return parts


def same_classes(labels: np.ndarray, parts: Parts) -> np.ndarray | None:
    """Group the clients that have the same set of classes.

    Args:
        labels: Labels ``(N,)`` of the examples.
        parts: Positions of each client.

    Returns:
        The group ``(n,)`` of each client, or None where sets overlap but are not equal.
    """
    sets = [frozenset(np.unique(labels[part]).tolist()) for part in parts]
    distinct = list(dict.fromkeys(sets))
    if sum(map(len, distinct)) > len(frozenset().union(*distinct)):
        return None
    return np.array([distinct.index(own) for own in sets])


def _by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All positions, sorted by label and in random order within a label."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _cuts(shares: np.ndarray, count: int) -> np.ndarray:
    return (np.cumsum(shares)[:-1] * count).astype(int).clip(0, count)


def _size(sizes: Sequence[int], rng: np.random.Generator) -> int | None:
    return int(rng.integers(sizes[0], sizes[1], endpoint=True)) if sizes else None


def _top_up(parts: Parts, least: int) -> Parts:
    parts = list(parts)
    for client in range(len(parts)):
        while (lack := least - len(parts[client])) > 0:
            giver = max(range(len(parts)), key=lambda c: len(parts[c]))
            give = min(lack, len(parts[giver]) - least)
            parts[client] = np.concatenate([parts[client], parts[giver][:give]])
            parts[giver] = parts[giver][give:]
    return parts
