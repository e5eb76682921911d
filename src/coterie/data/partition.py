"""Dealing examples to clients: labels in, one array of positions per client out.

Pure functions of their arguments and a NumPy generator. Positions are those of the pool; no example goes to two
clients; every client gets at least one. Too few examples are a :class:`SettingError`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.settings import SettingError

Parts = list[np.ndarray]
"""Positions of each client's examples, client by client."""


def _enough(examples: int, clients: int, each: int = 1) -> None:
    if examples < clients * each:
        wanted = f"{clients} clients of at least {each} examples need {clients * each}"
        raise SettingError(f"{wanted}, and there are {examples}")


def iid(examples: int, clients: int, rng: np.random.Generator) -> Parts:
    """All examples, shuffled and cut into equal parts (sizes differ by one at most)."""
    _enough(examples, clients)
    return np.array_split(rng.permutation(examples), clients)


def shards(labels: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> Parts:
    """Pathological: sorted by label, cut into ``clients * each`` equal shards, ``each`` at random to a client.

    McMahan et al. 2017, §3, with two shards; FL+HC §III calls it pathological non-IID.
    """
    _enough(len(labels), clients, each)
    cut = np.array_split(_by_label(labels, rng), clients * each)
    order = rng.permutation(len(cut)).reshape(clients, each)
    return [np.concatenate([cut[s] for s in mine]) for mine in order]


def half_normal(labels: np.ndarray, clients: int, total: int, rng: np.random.Generator) -> Parts:
    """``total`` shards sorted by label; client n gets ``floor(total x_n / Σx)`` of them, x ~ ``|N(0, 1)|``, at least one.

    HCCT's CIFAR-10 experiment (§VII-A; 100 shards of 500 images). What the floor leaves over is not used.
    """
    _enough(len(labels), total)
    if clients > total:
        raise SettingError(f"half-normal needs at least one shard per client: {total} shards, {clients} clients")
    draws = np.abs(rng.standard_normal(clients))
    counts = np.maximum(np.floor(total * draws / draws.sum()).astype(int), 1)
    while counts.sum() > total:  # the ones that were raised to one shard are paid for by the richest
        counts[counts.argmax()] -= 1
    cut = np.array_split(_by_label(labels, rng), total)
    order = np.split(rng.permutation(total), np.cumsum(counts))[:-1]
    return [np.concatenate([cut[s] for s in mine]) for mine in order]


def dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, least: int = 1) -> Parts:
    """Each class is shared out by proportions drawn from ``Dirichlet(alpha)``: the smaller alpha, the more skewed.

    Clients left with fewer than ``least`` examples are topped up with random ones of the then largest client.
    """
    _enough(len(labels), clients, least)
    dealt: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        for client, some in enumerate(np.split(mine, _cuts(shares, len(mine)))):
            dealt[client].append(some)
    return _top_up([rng.permutation(np.concatenate(some)) for some in dealt], least)


def quantity(examples: int, clients: int, alpha: float, rng: np.random.Generator, least: int = 1) -> Parts:
    """One distribution, unequal sizes: all examples shuffled, cut by proportions drawn from ``Dirichlet(alpha)``."""
    _enough(examples, clients, least)
    cuts = _cuts(rng.dirichlet(np.full(clients, alpha)), examples)
    return _top_up(np.split(rng.permutation(examples), cuts), least)


def ranges(examples: int, clients: int, low: int, high: int, rng: np.random.Generator) -> Parts:
    """One distribution, sizes drawn evenly from ``low`` to ``high``, both included; the rest is not used."""
    if not 1 <= low <= high:
        raise SettingError(f"sizes must be a lowest and a highest number, 1 <= lowest <= highest, got {low} and {high}")
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
    """Groups of clients with disjoint sets of classes; ``groups`` ``(clients,)`` is the group of each client.

    per_group: classes of a group (default: all classes, shared out evenly). per_client: of its group's classes a client
    holds this many, its neighbour's set moved on by one (default: all). sizes: lowest and highest number of examples of
    a class, drawn evenly (ACFL's imbalanced subsets of CIFAR; default: all there are).
    """
    classes, count = rng.permutation(np.unique(labels)), int(groups.max()) + 1
    wanted = count if per_group is None else count * per_group
    if len(classes) < wanted:
        raise SettingError(f"{count} groups of {per_group or 1} classes need {wanted}, and there are {len(classes)}")
    sets = np.array_split(classes, count) if per_group is None else np.split(classes[:wanted], count)
    dealt: list[list[np.ndarray]] = [[] for _ in groups]
    for group, own in enumerate(sets):
        members = np.flatnonzero(groups == group)
        holds = len(own) if per_client is None else per_client
        if holds > len(own):
            raise SettingError(f"a client cannot hold {holds} of the {len(own)} classes of its group")
        for place, label in enumerate(own):
            holders = [m for i, m in enumerate(members) if (place - i) % len(own) < holds]
            mine = rng.permutation(np.flatnonzero(labels == label))[: _size(sizes, rng)]
            for client, some in zip(holders, np.array_split(mine, max(len(holders), 1)), strict=False):
                dealt[client].append(some)
    parts = [np.concatenate(some) for some in dealt]
    if not all(len(part) for part in parts):
        raise SettingError(f"{len(labels)} examples are too few for {len(groups)} clients in {count} groups of classes")
    return parts


def by_owner(owners: np.ndarray, clients: int, rng: np.random.Generator, least: int = 1) -> Parts:
    """Each client is one owner (a writer), drawn at random from those with at least ``least`` examples."""
    names, sizes = np.unique(owners, return_counts=True)
    able = names[sizes >= least]
    if clients > len(able):
        raise SettingError(f"{clients} clients asked for, but only {len(able)} writers have at least {least} examples")
    return [np.flatnonzero(owners == owner) for owner in rng.choice(able, clients, replace=False)]


def by_kind(kinds: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> Parts:
    """Each client sees one kind of examples (a domain, a topic), shared evenly with the others of its group.

    kinds ``(N,)``: numbers of the kinds, 0 to k - 1. groups ``(clients,)``: the kind of each client.
    """
    parts: Parts = [np.empty(0, int)] * len(groups)
    for kind in np.unique(groups):
        members, mine = np.flatnonzero(groups == kind), np.flatnonzero(kinds == kind)
        _enough(len(mine), len(members))
        for client, some in zip(members, np.array_split(rng.permutation(mine), len(members)), strict=True):
            parts[client] = some
    return parts


def same_classes(labels: np.ndarray, parts: Parts) -> np.ndarray | None:
    """``(clients,)`` groups of clients with the same set of classes, or None where sets overlap without being equal."""
    sets = [frozenset(np.unique(labels[part]).tolist()) for part in parts]
    distinct = list(dict.fromkeys(sets))
    if sum(map(len, distinct)) > len(frozenset().union(*distinct)):
        return None
    return np.array([distinct.index(own) for own in sets])


def _by_label(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All positions, sorted by label, in random order within one."""
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
