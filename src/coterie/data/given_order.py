"""The times that users give with their clients' examples: their checks, and what a record says about the split by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any

import numpy as np
import torch

from coterie.data.batches import Items
from coterie.data.examples import Pool
from coterie.data.order import ENDS, spans
from coterie.data.times import EPOCH, Times, check_gap, gap_of, times_of
from coterie.data.windows import overlap
from coterie.data.world import ClientData
from coterie.notebook.tables import count
from coterie.settings import UserError

ORDERS = ("order", "order_validation", "order_test")
"""Keys of the times of a client's training, validation and test examples."""

LOOKED_AT = 5
"""Clients whose examples are examined for overlapping windows, where no order is given."""

Pools = tuple[Pool | None, ...]
"""The (training, validation, test) pools of a client; a missing one is None."""


def order_of_each(clients: Mapping[Any, Any], order: Any, gap: Any) -> dict[Any, Any]:
    """Give each client its own order.

    Args:
        clients: Name of each client -> its data, see :func:`coterie.from_lists`.
        order: See :func:`coterie.from_lists`.
        gap: See :func:`coterie.from_lists`.

    Returns:
        The clients' data, each a mapping with an order, if ``order`` is not None.

    Raises:
        UserError: The order does not fit the clients, or there is a gap but no order.
    """
    check_gap(gap)
    if order is None:
        if gap is not None and not any(
            isinstance(one, Mapping) and "order" in one for one in clients.values()
        ):
            raise UserError(
                f"gap {gap!r} needs an order, by which examples are early or late: pass the times of each client"
            )
        return dict(clients)
    if isinstance(order, str):
        raise UserError(
            f"order must be the times of each client's examples, got {order!r}; from_frame takes a column's name"
        )
    return {
        name: _with_order(name, clients[name], one)
        for name, one in _by_client(clients, order).items()
    }


def _by_client(clients: Mapping[Any, Any], order: Any) -> dict[Any, Any]:
    """Name of each client -> its order."""
    if isinstance(order, Mapping):
        if set(order) != set(clients):
            name = next(iter(set(order) ^ set(clients)))
            raise UserError(
                f"order must have the times of each client by its name, and {name!r} is not in both"
            )
        return {name: order[name] for name in clients}
    several = isinstance(order, list | tuple) and all(
        hasattr(one, "__len__") and not isinstance(one, str) for one in order
    )
    table = isinstance(order, np.ndarray | torch.Tensor) and order.ndim == 2 and order.shape[1] != 2
    if several or table:
        if len(order) != len(clients):
            raise UserError(
                f"order must have one array for each of {count(len(clients), 'client')}, got {len(order)}"
            )
        return dict(zip(clients, order, strict=True))
    return dict.fromkeys(clients, order)  # one array for all


def _with_order(name: Any, data: Any, order: Any) -> Mapping[str, Any]:
    """A client's data as a mapping that has an order."""
    if isinstance(data, Mapping):
        if "order" in data:
            raise UserError(f"client {name} has an order in its data and in order: give it once")
        return {**data, "order": order}
    if isinstance(data, Sequence):
        keys = ("x", "y", "x_test", "y_test")
        if len(data) not in (2, 4):
            raise UserError(
                f"client {name} must be (x, y) or (x, y, x_test, y_test), got {len(data)} arrays"
            )
        return {**dict(zip(keys, data, strict=False)), "order": order}
    return {"train": data, "order": order}


def with_spans(pools: Pools, given: Mapping[str, Any], gap: Any, where: Any) -> Pools:
    """Give a client's pools the spans of their examples, and check that parts follow each other in time.

    Args:
        pools: The (training, validation, test) pools.
        given: The client's data, with some keys of :data:`ORDERS` or none.
        gap: See :func:`coterie.from_lists`.
        where: The client, for messages.

    Returns:
        The pools, with :data:`~coterie.data.order.ENDS` in the ``meta`` of those that have an
        order.

    Raises:
        UserError: An order does not fit its examples, or a part is not later than an earlier one.
    """
    known = [key for key in ORDERS if given.get(key) is not None]
    if not known:
        return pools
    if known[0] != "order":
        raise UserError(f"{where} has {known[0]} and no order, the times of its training examples")
    made: list[Pool | None] = list(pools)
    times: dict[str, Times] = {}
    for key in known:
        place, what = ORDERS.index(key), f"{where}: {key}"
        pool = pools[place]
        if pool is None:
            raise UserError(f"{what} is the time of examples that it does not have")
        times[key] = times_of(given[key], what)
        if len(times[key].values) != len(pool):
            raise UserError(
                f"{what} must hold a time for each of {len(pool)} examples, got {len(times[key].values)}"
            )
        made[place] = replace(pool, meta={**pool.meta, **_spans(pool, times[key], gap)})
    check_later(times, gap, where)
    return tuple(made)


def _spans(pool: Pool, times: Times, gap: Any) -> dict[str, torch.Tensor]:
    """The spans of a pool's examples, which are longer for overlapping windows."""
    shared = 0
    if not isinstance(pool.inputs, Items):
        last = times.values if times.values.ndim == 1 else times.values[:, 1]
        by_time = np.argsort(last, kind="stable")
        shared = max(
            overlap(pool.inputs, pool.targets), overlap(pool.inputs, pool.targets, by_time)
        )
    return spans(times, gap_of(gap, times.dates), shared)


def check_later(times: Mapping[str, Times], gap: Any, where: Any) -> None:
    """Check that given parts follow each other in time.

    Args:
        times: Key of :data:`ORDERS` -> the times of the part.
        gap: See :func:`coterie.from_lists`.
        where: The client, for messages.

    Raises:
        UserError: An example of a later part is not later than all of an earlier one.
    """
    for (one, early), (two, late) in combinations(times.items(), 2):
        if early.dates != late.dates:
            raise UserError(f"{where}: {one} and {two} must both hold dates, or both numbers")
        last = early.values.max()
        first = late.values if late.values.ndim == 1 else late.values[:, 0]
        wrong = first - gap_of(gap, late.dates) <= last
        if wrong.any():
            ends, begins = _shown(last, early.dates), _shown(first.min(), late.dates)
            apart = "" if gap is None else f" by more than the gap {gap}"
            raise UserError(
                f"{where}: {count(int(wrong.sum()), 'example')} of {two} are not later{apart} than all of {one}, which ends at "
                f"{ends}, while {two} begins at {begins}: a test on the past knows the future; give later examples"
            )


def _shown(time: Any, dates: bool) -> str:
    return (
        str(EPOCH + timedelta(microseconds=int(time)))
        if dates
        else f"{time:g}"
        if isinstance(time, float)
        else str(time)
    )


# ----------------------------------------------------------------------------------------------------
# What records and reports say.


def about_order(by: str, gap: Any, pools: Mapping[Any, Sequence[Pool | None]]) -> dict[str, Any]:
    """Return the entry ``order`` for ``World.about``: what orders the examples, and the gap; empty without an order.

    Args:
        by: The name of the column, or empty.
        gap: See :func:`coterie.from_lists`.
        pools: Name of each client -> its pools.
    """
    if not any(first is not None and ENDS in first.meta for first, *_ in pools.values()):
        return {}
    unordered = [
        str(name)
        for name, (first, *_) in pools.items()
        if first is not None and ENDS not in first.meta
    ]
    if unordered:
        raise UserError(
            f"{_called(unordered[0])} has no order, and other clients have one: give all clients one, or none"
        )
    entry = {"by": by or "time"}
    if gap is not None:
        entry["gap"] = (
            gap
            if isinstance(gap, str)
            else f"{gap:g}"
            if isinstance(gap, int | float)
            else str(gap)
        )
    return {"order": entry}


def _called(name: str) -> str:
    """A client's name in a sentence; clients without names are called by their numbers."""
    return name if name.startswith("client ") else f"client {name}"


def tested_by(
    about: Mapping[str, Any],
    pools: Mapping[Any, Sequence[Pool | None]],
    clients: Iterable[ClientData],
) -> tuple[dict[str, Any], list[str]]:
    """Add to the entry ``order`` which share of the examples tests, and how many are left out.

    Args:
        about: Facts about the world.
        pools: Name of each client -> its pools.
        clients: The data of the clients.

    Returns:
        The facts, and hints about given parts whose times are not known.
    """
    if "order" not in about:
        return dict(about), []
    clients = list(clients)
    parts = [
        sum(len(getattr(data, part)) for data in clients)
        for part in ("train", "validation", "test")
    ]
    there = sum(len(pool) for each in pools.values() for pool in each if pool is not None)
    entry = {
        **about["order"],
        "test": round(parts[2] / sum(parts), 3),
        "left_out": there - sum(parts),
    }
    hints = []
    for place, what in enumerate(ORDERS):
        unknown = [
            str(name)
            for name, each in pools.items()
            if (pool := each[place]) is not None and ENDS not in pool.meta
        ]
        if unknown:
            part = what.removeprefix("order_")
            hints.append(
                f"{_called(unknown[0])} has {part} examples without {what}: whether they are later is not known"
            )
    return {**about, "order": entry}, hints


def window_hints(pools: Mapping[Any, Sequence[Pool | None]]) -> list[str]:
    """Return a hint if no order is given, parts are divided at random, and examples are overlapping windows of a series."""
    for first, _, test in list(pools.values())[:LOOKED_AT]:
        if (
            first is None
            or test is not None
            or ENDS in first.meta
            or isinstance(first.inputs, Items)
        ):
            continue
        if shared := overlap(first.inputs, first.targets):
            return [
                f"examples are overlapping windows, each shares values with the next {shared}, and tests at random places know "
                "the future: order, such as the numbers of the windows, tests on later ones"
            ]
    return []
